//! The Kubernetes objects that contain images, or the credentials to pull them.

use std::collections::{BTreeMap, BTreeSet};

use imagelet_core::{
    credentials::{PullSecretKind, Secret},
    image::Digest,
    printable::printable_start,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::documents::{Document, documents};
use imagelet_node::{
    api::{Hidden, PodImageRequest, PodName, PodRequest, PullSecretText},
    failure::Failure,
};

const IMAGES_MAX: usize = 1000;
const LISTS_MAX: usize = 4;
const POLICY_SHOWN_MAX: usize = 64;
const NAME_SHOWN_MAX: usize = 400;
/// The kinds of Kubernetes itself that have pods. Each container in them must have an image.
const OWN_KINDS: &str = "Pod Deployment DaemonSet StatefulSet ReplicaSet ReplicationController Job CronJob PodTemplate";
const POLICIES: [&str; 4] = ["", "Always", "IfNotPresent", "Never"];

const DEFAULT_ACCOUNT: &str = "default";

/// The objects that affect pulls. Of two secrets, accounts or classes with one name, the later applies, as in kubectl.
#[derive(Default)]
pub(super) struct Objects {
    /// The requests for the pods. `secrets_unread` has all pull secrets of a pod, and `runtime_handler` its runtime class.
    pub(super) pods: Vec<PodRequest>,
    /// Each secret with its file's name. It has credentials only if it has a pull secret's type and that type's key.
    pub(super) secrets: Vec<(PullSecretText, String)>,
    pub(super) accounts: BTreeMap<(String, String), Vec<String>>,
    pub(super) classes: BTreeMap<String, String>,
    pub(super) kinds: BTreeSet<String>,
    pub(super) others: BTreeMap<String, BTreeMap<String, usize>>,
    pub(super) failed: Vec<(String, Failure)>,
    pub(super) notes: Vec<String>,
}

/// The error is the reason why an object is rejected. It contains no value of the object that may be secret.
type Rejected<T> = Result<T, String>;

fn of_field(field: &str, line: u64, problem: &str) -> String {
    format!("`{field}` of the manifest in line {line} {problem}")
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
struct Metadata {
    name: String,
    generate_name: String,
    namespace: String,
    uid: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, expecting = "an object")]
struct Template {
    metadata: Metadata,
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
struct PodSpec {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    ephemeral_containers: Vec<Container>,
    volumes: Vec<Volume>,
    image_pull_secrets: Vec<ByName>,
    service_account_name: String,
    service_account: String,
    runtime_class_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
struct Container {
    name: String,
    image: String,
    image_pull_policy: String,
    restart_policy: String,
    volume_mounts: Vec<ByName>,
}

#[derive(Default, Deserialize)]
#[serde(default, expecting = "an object")]
struct Volume {
    name: String,
    image: Option<ImageSource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
struct ImageSource {
    reference: String,
    pull_policy: String,
}

#[derive(Default, Deserialize)]
#[serde(default, expecting = "an object")]
struct ByName {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", expecting = "an object")]
struct OtherObject {
    metadata: Metadata,
    r#type: String,
    data: BTreeMap<String, String>,
    string_data: BTreeMap<String, String>,
    image_pull_secrets: Vec<ByName>,
    handler: String,
}

impl Objects {
    pub(super) fn add(&mut self, file: &str, text: &str) {
        let mut is_repeated = false;
        for Document { line, read, repeated } in documents(text) {
            if let Some(line) = repeated.filter(|_| !std::mem::replace(&mut is_repeated, true)) {
                self.notes.push(format!("`{file}` has a key twice in line {line}; the later one counts"));
            }
            match read {
                Ok(object) => self.collect(file, object, "", line, 0),
                Err(why) => self.fail(format!("the document in line {line} of `{file}`"), why),
            }
        }
    }

    /// Adds an object, or the items of a list. `kind` is the kind of an object that does not name its kind.
    fn collect(&mut self, file: &str, mut object: Value, kind: &str, line: u64, depth: usize) {
        let kind =
            object.get("kind").and_then(Value::as_str).filter(|kind| !kind.is_empty()).unwrap_or(kind).to_owned();
        if let Some(of_items) = kind.strip_suffix("List")
            && depth < LISTS_MAX
            && let Some(items) = object.get_mut("items").and_then(Value::as_array_mut)
        {
            let items = std::mem::take(items);
            return items.into_iter().for_each(|item| self.collect(file, item, of_items, line, depth + 1));
        }
        let name = shown(&kind, &object, file);
        if let Err(why) = self.read_object(file, &object, kind, line) {
            self.fail(name, why);
        }
    }

    fn fail(&mut self, name: String, why: String) {
        let failure = Failure::new("Failed", format!("could not use {name}"));
        self.failed.push((name, Failure { causes: vec![why], ..failure }));
    }

    fn read_object(&mut self, file: &str, object: &Value, kind: String, line: u64) -> Rejected<()> {
        if kind.is_empty() {
            return Err(format!("the manifest in line {line} has no `kind`"));
        }
        if kind.ends_with("List") && object.get("items").is_some_and(Value::is_array) {
            return Err(format!("the list in line {line} is nested deeper than {LISTS_MAX} lists"));
        }
        self.kinds.insert(kind.clone());
        match kind.as_str() {
            "Secret" => self.secrets.push((secret(read(object, line)?, line)?, file.to_owned())),
            "ServiceAccount" => {
                let account: OtherObject = read(object, line)?;
                let PodName { namespace, name, .. } = account.metadata.named();
                self.accounts.insert((namespace, name), names(account.image_pull_secrets));
            }
            "RuntimeClass" => {
                let class: OtherObject = read(object, line)?;
                self.classes.insert(class.metadata.name, class.handler);
            }
            _ => {
                let mut templates = Vec::new();
                if kind == "Pod" {
                    templates.push(object);
                } else {
                    find_templates(object, &["spec", "template"], &mut templates);
                }
                let mut pods = Vec::new();
                for (at, template) in templates.iter().enumerate() {
                    let number = (templates.len() > 1).then_some(at + 1);
                    pods.extend(pod(&kind, line, object, template, number)?);
                }
                if pods.is_empty() {
                    *self.others.entry(file.to_owned()).or_default().entry(kind).or_default() += 1;
                }
                self.pods.extend(pods);
            }
        }
        Ok(())
    }
}

fn shown(kind: &str, object: &Value, file: &str) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
    let name = text("/metadata/name").or(text("/metadata/generateName")).unwrap_or("without a name");
    let namespace = text("/metadata/namespace").map(|namespace| format!("{namespace}/")).unwrap_or_default();
    let kind = if kind.is_empty() { "object" } else { kind };
    format!("{} in `{file}`", printable_start(&format!("{kind} `{namespace}{name}`"), NAME_SHOWN_MAX))
}

/// Parses an object. Of serde's message, the error repeats only the expected type, because the message shows the value.
fn read<T: DeserializeOwned>(object: &Value, line: u64) -> Rejected<T> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let field = error.path().to_string();
        let message = error.into_inner().to_string();
        let wanted = message.rsplit_once(", expected ").map_or("what it should be", |(_, wanted)| wanted);
        of_field(&field, line, &format!("is not {wanted}"))
    })
}

/// Finds pod templates at any depth below `fields`: mappings that have a list `containers` directly or in `spec`.
fn find_templates<'a>(object: &'a Value, fields: &[&str], found: &mut Vec<&'a Value>) {
    let has_containers = |value: &Value| value.get("containers").is_some_and(Value::is_array);
    match object {
        Value::Object(_) if has_containers(object) || object.get("spec").is_some_and(has_containers) => {
            found.push(object);
        }
        Value::Object(all) => {
            let wanted = |name: &String| fields.is_empty() || fields.contains(&name.as_str());
            all.iter().filter(|(name, _)| wanted(name)).for_each(|(_, field)| find_templates(field, &[], found));
        }
        Value::Array(items) => items.iter().for_each(|item| find_templates(item, &[], found)),
        _ => {}
    }
}

/// Reads a template as a pod. `None`: the kind is not one of Kubernetes itself, and the template names no image.
fn pod(kind: &str, line: u64, object: &Value, template: &Value, number: Option<usize>) -> Rejected<Option<PodRequest>> {
    let (annotations, spec) = if template.get("containers").is_some() {
        (BTreeMap::new(), read::<PodSpec>(template, line)?)
    } else {
        let Template { metadata, spec } = read(template, line)?;
        (metadata.annotations, spec)
    };
    let is_own = OWN_KINDS.split(' ').any(|own| own == kind);
    let mut images = Vec::new();
    for (list, role, containers) in [
        ("initContainers", "init", spec.init_containers),
        ("containers", "container", spec.containers),
        ("ephemeralContainers", "ephemeral", spec.ephemeral_containers),
    ] {
        for (position, container) in containers.into_iter().enumerate() {
            let Container { name, image, image_pull_policy: policy, restart_policy, volume_mounts } = container;
            let role = if role == "init" && restart_policy == "Always" { "sidecar" } else { role }.to_owned();
            let mounts = names(volume_mounts);
            images.push((list, PodImageRequest { role, name, position, image, policy, mounts }));
        }
    }
    for (position, Volume { name, image }) in spec.volumes.into_iter().enumerate() {
        if let Some(ImageSource { reference: image, pull_policy: policy }) = image {
            let (role, mounts) = ("volume".to_owned(), Vec::new());
            images.push(("volumes", PodImageRequest { role, name, position, image, policy, mounts }));
        }
    }
    if !is_own {
        // An object of a custom kind may omit images, because the operator of this kind adds them.
        images.retain(|(_, image)| !image.image.is_empty());
        if images.is_empty() {
            return Ok(None);
        }
    }
    for (list, image) in &images {
        let field = || format!("spec.{list}[{}]", image.position);
        if image.image.is_empty() {
            return Err(of_field(&field(), line, "names no image"));
        }
        if !POLICIES.contains(&image.policy.as_str()) {
            let policy = printable_start(&image.policy, POLICY_SHOWN_MAX);
            let problem = format!("has pull policy `{policy}`, and may have `Always`, `IfNotPresent` or `Never`");
            return Err(of_field(&field(), line, &problem));
        }
    }
    if images.len() > IMAGES_MAX {
        let count = images.len();
        return Err(format!("the pod in line {line} has {count} images; the limit is {IMAGES_MAX}"));
    }
    let metadata: Metadata = object.get("metadata").map_or_else(|| Ok(Metadata::default()), |it| read(it, line))?;
    let mut named = metadata.named();
    if named.name.is_empty() {
        return Err(format!("the manifest in line {line} has no `metadata.name`"));
    }
    if let Some(number) = number {
        // An object with several templates has several pods, so each pod gets a different name and uid.
        named.name = format!("{}-{number}", named.name);
        named.uid.clear();
    }
    if named.uid.is_empty() {
        named.uid = stable_uid(&[kind, &named.namespace, &named.name]);
    }
    let account = [spec.service_account_name, spec.service_account].into_iter().find(|name| !name.is_empty());
    Ok(Some(PodRequest {
        kind: kind.to_owned(),
        pod: named,
        annotations,
        service_account: account.unwrap_or_else(|| DEFAULT_ACCOUNT.to_owned()),
        runtime_handler: spec.runtime_class_name,
        secrets_unread: names(spec.image_pull_secrets),
        images: images.into_iter().map(|(_, image)| image).collect(),
        ..PodRequest::default()
    }))
}

fn names(list: Vec<ByName>) -> Vec<String> {
    list.into_iter().map(|one| one.name).collect()
}

impl Metadata {
    fn named(self) -> PodName {
        // An object with `generateName` has no name until the API server creates it, so that its prefix is used.
        let generated = self.generate_name.trim_end_matches('-').to_owned();
        PodName {
            name: if self.name.is_empty() { generated } else { self.name },
            namespace: if self.namespace.is_empty() { "default".into() } else { self.namespace },
            uid: self.uid,
        }
    }
}

/// Reads a secret. As in the Kubernetes API, `stringData` overrides `data`.
fn secret(object: OtherObject, line: u64) -> Rejected<PullSecretText> {
    use base64::Engine as _;
    let OtherObject { metadata, r#type: of_type, data, string_data, .. } = object;
    let document = match PullSecretKind::from_type(&of_type).map(PullSecretKind::key) {
        None => None,
        Some(key) => match (string_data.get(key), data.get(key)) {
            (Some(plain), _) => Some(Secret::new(plain)),
            (None, Some(encoded)) => {
                let text: String = encoded.split_ascii_whitespace().collect();
                let bytes = base64::engine::general_purpose::STANDARD.decode(text);
                let refused = |_| format!("`data.{key}` of the secret in line {line} is not base64");
                let bytes = bytes.map_err(refused)?;
                Some(Secret::new(String::from_utf8_lossy(&bytes).into_owned()))
            }
            (None, None) => None,
        },
    };
    let document = document.filter(|document| !document.expose().is_empty());
    let PodName { namespace, name, mut uid } = metadata.named();
    if uid.is_empty() {
        // A secret without a uid gets one from its name and content. If the content did not count, a client that knows
        // only the name could use the images that were pulled with the secret.
        uid = stable_uid(&["Secret", &namespace, &name, document.as_ref().map_or("", Secret::expose)]);
    }
    Ok(PullSecretText { namespace, name, uid, r#type: of_type, docker_config: document.map(Hidden) })
}

fn stable_uid(parts: &[&str]) -> String {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    let digest = Digest::of(&bytes);
    let hex = digest.hex();
    // The two digits 8 are the version and the variant of a UUID with custom content (RFC 9562).
    format!("{}-{}-8{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32])
}

#[cfg(test)]
mod tests {
    use super::{
        super::documents::{DOCUMENTS_MAX, NODES_MAX},
        *,
    };

    fn read(text: &str) -> Rejected<Objects> {
        let mut found = Objects::default();
        found.add("f.yaml", text);
        match found.failed.pop() {
            Some((_, failure)) => Err(failure.causes.concat()),
            None => Ok(found),
        }
    }

    fn pod_of(text: &str) -> PodRequest {
        read(text).expect("it reads").pods.remove(0)
    }

    const SPEC: &str = "{serviceAccount: robot, runtimeClassName: kata, imagePullSecrets: [{name: a}, {name: ''}, {}], \
        containers: [{name: app, image: 'b:v1', imagePullPolicy: Never, volumeMounts: [{name: m, mountPath: /m}]}], \
        initContainers: [{name: side, image: a, restartPolicy: Always}], ephemeralContainers: [{name: debug, image: d}], \
        volumes: [{name: tmp, emptyDir: {}}, {name: m, image: {reference: c, pullPolicy: Always}}]}";

    #[test]
    fn every_field_that_names_an_image_is_found() {
        let request =
            pod_of(&format!("kind: Pod\nmetadata: {{name: web, annotations: {{b: '2', a: '1'}}}}\nspec: {SPEC}\n"));
        let found: Vec<_> = request
            .images
            .iter()
            .map(|one| (one.role.as_str(), one.name.as_str(), one.image.as_str(), one.policy.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("sidecar", "side", "a", ""),
                ("container", "app", "b:v1", "Never"),
                ("ephemeral", "debug", "d", ""),
                ("volume", "m", "c", "Always"),
            ]
        );
        assert_eq!((request.images[1].mounts.as_slice(), request.images[3].position), (&["m".to_owned()][..], 1));
        assert_eq!(request.annotations, BTreeMap::from([("a".into(), "1".into()), ("b".into(), "2".into())]));
        assert_eq!(request.secrets_unread, ["a", "", ""]);
        assert_eq!((request.service_account.as_str(), request.runtime_handler.as_str()), ("robot", "kata"));
        assert_eq!((request.pod.namespace.as_str(), request.pod.name.as_str()), ("default", "web"));
    }

    #[test]
    fn whatever_has_a_pod_template_names_images() {
        let inner = format!("{{metadata: {{annotations: {{a: '1'}}}}, spec: {SPEC}}}");
        for (kind, spec) in [
            ("Deployment", format!("spec: {{replicas: 0, template: {inner}}}")),
            ("Rollout", format!("spec: {{template: {inner}}}")),
            ("Job", format!("spec: {{template: {inner}}}")),
            ("CronJob", format!("spec: {{jobTemplate: {{spec: {{template: {inner}}}}}}}")),
            ("PodTemplate", format!("template: {inner}")),
        ] {
            let request =
                pod_of(&format!("kind: {kind}\nmetadata: {{generateName: nightly-, namespace: ops}}\n{spec}\n"));
            assert_eq!((request.kind.as_str(), request.images.len(), request.annotations.len()), (kind, 4, 1));
            assert_eq!((request.pod.namespace.as_str(), request.pod.name.as_str()), ("ops", "nightly"));
        }
    }

    #[test]
    fn lists_are_opened_and_other_objects_passed_over() {
        let text = "kind: List\nitems:\n- {kind: ServiceList, items: [{kind: Service, metadata: {name: s}, spec: {template: 7}}]}\n\
                    - {kind: ConfigMap, data: {spec: x}}\n- {kind: Pod, metadata: {name: p}, spec: {containers: []}}\n";
        let found = read(text).expect("it reads");
        assert!(found.others["f.yaml"].keys().eq(["ConfigMap", "Service"]));
        assert_eq!(found.pods[0].pod.name, "p");
        let nested = "{kind: List, items: [".repeat(LISTS_MAX + 2) + &"]}".repeat(LISTS_MAX + 2);
        let error = read(&nested).err().expect("refused");
        assert_eq!(error, "the list in line 1 is nested deeper than 4 lists");
    }

    #[test]
    fn secrets_are_read_from_data_and_plain_text_and_others_hold_nothing() {
        let read_one = |text: &str| {
            let (secret, _) = read(text).expect("it reads").secrets.remove(0);
            secret.docker_config.map(|document| document.0.expose().to_owned())
        };
        let json = Some("{\"auths\":{}}".to_owned());
        let kind = "kind: Secret\ntype: kubernetes.io/dockerconfigjson\n";
        assert_eq!(read_one(&format!("{kind}data:\n  .dockerconfigjson: |\n    eyJhdXRo\n    cyI6e319\n")), json);
        assert_eq!(
            read_one(&format!(
                "{kind}stringData: {{.dockerconfigjson: '{{\"auths\":{{}}}}'}}\ndata: {{.dockerconfigjson: '!'}}\n"
            )),
            json
        );
        let older = "kind: Secret\ntype: kubernetes.io/dockercfg\ndata: {.dockercfg: e30=}\n";
        assert_eq!(read_one(older), Some("{}".to_owned()));
        for text in [
            "kind: Secret\ntype: Opaque\ndata: {.dockerconfigjson: e30=}\n",
            "kind: Secret\ntype: kubernetes.io/dockercfg\ndata: {.dockerconfigjson: e30=}\n",
            "kind: Secret\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: ''}\n",
            "kind: Secret\ndata: {password: aHVudGVyMg==}\n",
        ] {
            assert_eq!(read_one(text), None, "{text}");
        }
    }

    #[test]
    fn what_the_api_would_refuse_is_refused_with_field_and_line_and_shows_no_value() {
        for (text, complaint) in [
            ("spec: {}\n", "the manifest in line 1 has no `kind`"),
            ("# a\nkind: Pod\nspec: {}\n", "the manifest in line 2 has no `metadata.name`"),
            (
                "kind: Pod\nspec:\n  containers:\n  - {name: x}\n",
                "`spec.containers[0]` of the manifest in line 1 names no image",
            ),
            (
                "kind: Pod\nspec:\n  volumes: [{name: v, image: {}}]\n",
                "`spec.volumes[0]` of the manifest in line 1 names no image",
            ),
            ("kind: Service\n---\nkind: Pod\nspec: hunter2\n", "`spec` of the manifest in line 3 is not an object"),
            (
                "kind: Pod\nspec: {containers: [{image: a}, {image: {hunter2: 1}}]}\n",
                "`spec.containers[1].image` of the manifest in line 1 is not a string",
            ),
            (
                "kind: Pod\nspec: {containers: [{image: a, imagePullPolicy: Sometimes}]}\n",
                "`spec.containers[0]` of the manifest in line 1 has pull policy `Sometimes`, and may have `Always`, `IfNotPresent` or `Never`",
            ),
            (
                "kind: Secret\ntype: kubernetes.io/dockerconfigjson\ndata:\n  .dockerconfigjson: 'hunter2!'\n",
                "`data..dockerconfigjson` of the secret in line 1 is not base64",
            ),
            (
                "kind: Secret\ntype: kubernetes.io/dockercfg\ndata: hunter2\n",
                "`data` of the manifest in line 1 is not a map",
            ),
        ] {
            let error = read(text).err().expect("refused");
            assert_eq!(error, complaint);
        }
        let many = format!("kind: Pod\nspec: {{containers: [{}]}}\n", "{image: a},".repeat(IMAGES_MAX + 1));
        let error = read(&many).err().expect("refused");
        assert_eq!(error, "the pod in line 1 has 1001 images; the limit is 1000");
    }

    #[test]
    fn documents_of_yaml_and_json_are_told_apart() {
        let text = "%YAML 1.2\n# bundle\n---\nkind: A\ntext: |\n  ---\n  b\n--- # next\n\n---\n# nothing\n---\n\
                    {\"kind\": \"P\\u006fd\", \"n\": null,\n\t\"metadata\": {\"name\": \"on\"}}\n...\n";
        let found = read(text).expect("it reads");
        assert!(found.kinds.iter().eq(["A", "Pod"]));
        assert_eq!(found.pods[0].pod.name, "on");
        let pod = pod_of("kind: Pod\nmetadata: {name: &x on}\nspec: {containers: [{image: *x, name: '12'}]}\n");
        let image = &pod.images[0];
        assert_eq!((image.image.as_str(), image.name.as_str()), ("on", "12"));
    }

    #[test]
    fn what_is_too_deep_too_much_or_written_twice_is_refused_with_its_line() {
        let deep = format!("kind: Pod\nspec: {}{}\n", "[".repeat(5000), "]".repeat(5000));
        let block = (0..3000).map(|depth| " ".repeat(depth) + "a:\n").collect::<Vec<_>>().concat();
        let wide = format!("a: [{}]\n", "1,".repeat(NODES_MAX + 1));
        let level =
            |level: usize| format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(","));
        let bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned() + &(1..12).map(level).collect::<Vec<_>>().concat();
        for text in [&deep, &block, &wide, &bomb, "a: [hunter2\nb: }", "\u{0}"] {
            let error = read(text).err().expect("refused");
            assert!(error.starts_with("does not read as YAML or JSON"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = read("kind: A\n---\nb: [\n").err().expect("refused");
        assert_eq!(error, "does not read as YAML or JSON in line 3, or has too many values");
        let many = "---\nkind: A\n".repeat(DOCUMENTS_MAX + 1);
        let error = read(&many).err().expect("refused");
        assert_eq!(error, "is beyond the limit of 10000 documents");
    }
}
