//! The Kubernetes objects that say which images are wanted, and by what right.

use imagelet_core::{
    credentials::{PullSecretKind, Secret},
    manager::PodRole,
};

use super::tree::{Node, Place, TreeError};

/// Most images of one Pod; a manifest with more is none.
const IMAGES_MAX: usize = 1000;
/// Lists inside of lists.
const LISTS_MAX: usize = 4;

/// What a manifest describes.
pub(super) enum Object {
    Pod(PodManifest),
    Secret(SecretManifest),
    ServiceAccount(AccountManifest),
    RuntimeClass(ClassManifest),
    /// Something that names no images.
    Other {
        kind: String,
    },
}

/// A Pod, or the pods that something like a Deployment makes.
pub(super) struct PodManifest {
    pub(super) kind: String,
    pub(super) named: Named,
    pub(super) annotations: Vec<(String, String)>,
    pub(super) images: Vec<ImageField>,
    pub(super) pull_secrets: Vec<String>,
    pub(super) service_account: String,
    pub(super) runtime_class: String,
}

/// Name, namespace and uid of an object; what is not written is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// A field that names an image.
pub(super) struct ImageField {
    pub(super) role: PodRole,
    pub(super) position: usize,
    pub(super) name: String,
    pub(super) image: String,
    /// Empty: the kubelet's default for the tag.
    pub(super) policy: String,
    pub(super) is_sidecar: bool,
    pub(super) mounts: Vec<String>,
}

/// A Secret; only what may be a registry's credentials is kept of it.
pub(super) struct SecretManifest {
    pub(super) named: Named,
    pub(super) of_type: String,
    /// `None`: it holds none, by its type or for want of the type's key.
    pub(super) document: Option<(PullSecretKind, Secret)>,
}

/// A `ServiceAccount`.
pub(super) struct AccountManifest {
    pub(super) named: Named,
    pub(super) pull_secrets: Vec<String>,
}

/// A `RuntimeClass`, which belongs to no namespace.
pub(super) struct ClassManifest {
    pub(super) name: String,
    pub(super) handler: String,
}

/// Why an object cannot be used. Shows nothing of what a secret holds.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ObjectError {
    /// It is not shaped like what it says it is.
    #[error("{0}")]
    Shape(TreeError),
    /// It does not say what it is.
    #[error("the manifest in line {line} has no `{field}`")]
    Nameless { field: &'static str, line: u64 },
    /// A container without an image.
    #[error("`{field}` in line {line} names no image")]
    NoImage { field: String, line: u64 },
    /// No policy of the Kubernetes API.
    #[error("`{field}` in line {line} is no pull policy; there are `Always`, `IfNotPresent` and `Never`")]
    Policy { field: String, line: u64 },
    /// The API would not take such a secret.
    #[error("`{field}` in line {line} is not in base64")]
    Base64 { field: String, line: u64 },
    /// More images than a Pod has.
    #[error("the pod in line {0} has more than {IMAGES_MAX} images")]
    TooMany(u64),
    /// Lists in lists in lists.
    #[error("the list in line {0} lies in too many others")]
    Nested(u64),
}

impl From<TreeError> for ObjectError {
    fn from(error: TreeError) -> Self {
        Self::Shape(error)
    }
}

/// The objects of a document: one, or those of a `List`.
pub(super) fn objects(document: &Node) -> Result<Vec<Object>, ObjectError> {
    let mut found = Vec::new();
    collect(&document.root(), 0, &mut found)?;
    Ok(found)
}

fn collect(place: &Place<'_>, depth: usize, found: &mut Vec<Object>) -> Result<(), ObjectError> {
    let kind = place.at("kind")?.text()?;
    if kind.is_empty() {
        return Err(ObjectError::Nameless { field: "kind", line: place.line() });
    }
    if kind.ends_with("List") && place.at("items")?.is_there() {
        if depth == LISTS_MAX {
            return Err(ObjectError::Nested(place.line()));
        }
        return place.at("items")?.list()?.iter().try_for_each(|item| collect(item, depth + 1, found));
    }
    found.push(match kind {
        "Pod" => Object::Pod(pod(kind, place, place)?),
        "Secret" => Object::Secret(secret(place)?),
        "ServiceAccount" => Object::ServiceAccount(AccountManifest {
            named: named(place)?,
            pull_secrets: names(&place.at("imagePullSecrets")?)?,
        }),
        "RuntimeClass" => Object::RuntimeClass(ClassManifest {
            name: named(place)?.name,
            handler: place.at("handler")?.text()?.to_owned(),
        }),
        _ => match template(place) {
            Some(template) => Object::Pod(pod(kind, place, &template)?),
            None => Object::Other { kind: kind.to_owned() },
        },
    });
    Ok(())
}

/// The pod template of a `Deployment`, a `Job`, a `CronJob` and of whatever else has one where these have theirs.
fn template<'a>(place: &Place<'a>) -> Option<Place<'a>> {
    let below = |path: &[&str]| {
        let at = |place: Option<Place<'a>>, name: &&str| place?.at(name).ok().filter(Place::is_object);
        let root = Some(place.at(path.first()?).ok()?).filter(Place::is_object);
        let found = path[1..].iter().fold(root, at)?;
        found.at("spec").ok()?.at("containers").is_ok_and(|containers| containers.is_there()).then_some(found)
    };
    below(&["spec", "template"])
        .or_else(|| below(&["spec", "jobTemplate", "spec", "template"]))
        .or_else(|| below(&["template"]))
}

fn pod(kind: &str, object: &Place<'_>, template: &Place<'_>) -> Result<PodManifest, ObjectError> {
    let spec = template.at("spec")?;
    let mut images = Vec::new();
    for role in [PodRole::Init, PodRole::Container, PodRole::Ephemeral] {
        for (position, container) in spec.at(role.field())?.list()?.iter().enumerate() {
            images.push(image_of_container(role, position, container)?);
        }
    }
    let volumes = spec.at(PodRole::Volume.field())?.list()?;
    for (position, volume) in volumes.iter().enumerate() {
        if volume.at("image")?.is_there() {
            images.push(image_of_volume(position, volume)?);
        }
    }
    if images.len() > IMAGES_MAX {
        return Err(ObjectError::TooMany(object.line()));
    }
    let named = named(object)?;
    if named.name.is_empty() {
        return Err(ObjectError::Nameless { field: "metadata.name", line: object.line() });
    }
    let account = spec.at("serviceAccountName")?.text()?;
    // The older spelling, which the API still takes.
    let account = if account.is_empty() { spec.at("serviceAccount")?.text()? } else { account };
    Ok(PodManifest {
        kind: kind.to_owned(),
        named,
        annotations: annotations(template)?,
        images,
        pull_secrets: names(&spec.at("imagePullSecrets")?)?,
        service_account: account.to_owned(),
        runtime_class: spec.at("runtimeClassName")?.text()?.to_owned(),
    })
}

fn image_of_container(role: PodRole, position: usize, container: &Place<'_>) -> Result<ImageField, ObjectError> {
    let mounts = container.at("volumeMounts")?.list()?;
    let mounts =
        mounts.iter().map(|mount| Ok(mount.at("name")?.text()?.to_owned())).collect::<Result<_, TreeError>>()?;
    Ok(ImageField {
        role,
        position,
        name: container.at("name")?.text()?.to_owned(),
        image: image(container, "image")?,
        policy: policy(&container.at("imagePullPolicy")?)?,
        is_sidecar: role == PodRole::Init && container.at("restartPolicy")?.text()? == "Always",
        mounts,
    })
}

fn image_of_volume(position: usize, volume: &Place<'_>) -> Result<ImageField, ObjectError> {
    let source = volume.at("image")?;
    Ok(ImageField {
        role: PodRole::Volume,
        position,
        name: volume.at("name")?.text()?.to_owned(),
        image: image(&source, "reference")?,
        policy: policy(&source.at("pullPolicy")?)?,
        is_sidecar: false,
        mounts: Vec::new(),
    })
}

fn image(place: &Place<'_>, field: &str) -> Result<String, ObjectError> {
    let text = place.at(field)?.text()?;
    if text.is_empty() {
        return Err(ObjectError::NoImage { field: place.field().to_owned(), line: place.line() });
    }
    Ok(text.to_owned())
}

fn policy(place: &Place<'_>) -> Result<String, ObjectError> {
    match place.text()? {
        policy @ ("" | "Always" | "IfNotPresent" | "Never") => Ok(policy.to_owned()),
        _ => Err(ObjectError::Policy { field: place.field().to_owned(), line: place.line() }),
    }
}

fn named(object: &Place<'_>) -> Result<Named, ObjectError> {
    let metadata = object.at("metadata")?;
    let (name, prefix) = (metadata.at("name")?.text()?, metadata.at("generateName")?.text()?);
    // Who has the name made up has none yet; its beginning is what people know it by.
    let name = if name.is_empty() { prefix.trim_end_matches('-') } else { name };
    let namespace = metadata.at("namespace")?.text()?;
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    Ok(Named { namespace: namespace.into(), name: name.into(), uid: metadata.at("uid")?.text()?.into() })
}

fn annotations(object: &Place<'_>) -> Result<Vec<(String, String)>, ObjectError> {
    let mut annotations: Vec<(String, String)> = object
        .at("metadata")?
        .at("annotations")?
        .texts()?
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .collect();
    annotations.sort();
    Ok(annotations)
}

fn names(list: &Place<'_>) -> Result<Vec<String>, ObjectError> {
    let names = list.list()?;
    Ok(names.iter().map(|one| Ok(one.at("name")?.text()?.to_owned())).collect::<Result<_, TreeError>>()?)
}

fn secret(place: &Place<'_>) -> Result<SecretManifest, ObjectError> {
    let of_type = place.at("type")?.text()?.to_owned();
    let document = match PullSecretKind::from_type(&of_type) {
        None => None,
        Some(kind) => document(place, kind.key())?.map(|document| (kind, document)),
    };
    let document = document.filter(|(_, document)| !document.expose().is_empty());
    Ok(SecretManifest { named: named(place)?, of_type, document })
}

/// What stands under a key; `stringData` wins, as it does in the API.
fn document(secret: &Place<'_>, key: &str) -> Result<Option<Secret>, ObjectError> {
    use base64::Engine as _;
    let plain = secret.at("stringData")?.at(key)?;
    if plain.is_there() {
        return Ok(Some(Secret::new(plain.text()?)));
    }
    let packed = secret.at("data")?.at(key)?;
    if !packed.is_there() {
        return Ok(None);
    }
    let text: String = packed.text()?.split_ascii_whitespace().collect();
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text)
        .map_err(|_| ObjectError::Base64 { field: packed.field().to_owned(), line: packed.line() })?;
    Ok(Some(Secret::new(String::from_utf8_lossy(&bytes).into_owned())))
}

#[cfg(test)]
mod tests {
    use super::{super::tree::documents, *};

    fn read(text: &str) -> Result<Vec<Object>, ObjectError> {
        let mut found = Vec::new();
        for document in documents(text)? {
            found.extend(objects(&document)?);
        }
        Ok(found)
    }

    fn pod_of(text: &str) -> PodManifest {
        match read(text).expect("it reads").remove(0) {
            Object::Pod(pod) => pod,
            _ => panic!("no pod"),
        }
    }

    const SPEC: &str = "{serviceAccount: robot, runtimeClassName: kata, imagePullSecrets: [{name: a}, {name: ''}, {}], \
        containers: [{name: app, image: 'b:v1', imagePullPolicy: Never, volumeMounts: [{name: m, mountPath: /m}]}], \
        initContainers: [{name: side, image: a, restartPolicy: Always}], ephemeralContainers: [{name: debug, image: d}], \
        volumes: [{name: tmp, emptyDir: {}}, {name: m, image: {reference: c, pullPolicy: Always}}]}";

    #[test]
    fn every_field_that_names_an_image_is_found() {
        let pod =
            pod_of(&format!("kind: Pod\nmetadata: {{name: web, annotations: {{b: '2', a: '1'}}}}\nspec: {SPEC}\n"));
        let told: Vec<_> = pod
            .images
            .iter()
            .map(|one| (one.role, one.name.as_str(), one.image.as_str(), one.policy.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (PodRole::Init, "side", "a", ""),
                (PodRole::Container, "app", "b:v1", "Never"),
                (PodRole::Ephemeral, "debug", "d", ""),
                (PodRole::Volume, "m", "c", "Always"),
            ]
        );
        assert!(pod.images[0].is_sidecar);
        assert_eq!((pod.images[1].mounts.as_slice(), pod.images[3].position), (&["m".to_owned()][..], 1));
        assert_eq!(pod.annotations, [("a".into(), "1".into()), ("b".into(), "2".into())]);
        assert_eq!(pod.pull_secrets, ["a", "", ""]);
        assert_eq!((pod.service_account.as_str(), pod.runtime_class.as_str()), ("robot", "kata"));
        assert_eq!((pod.named.namespace.as_str(), pod.named.name.as_str()), ("default", "web"));
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
            let pod = pod_of(&format!("kind: {kind}\nmetadata: {{generateName: nightly-, namespace: ops}}\n{spec}\n"));
            assert_eq!((pod.kind.as_str(), pod.images.len(), pod.annotations.len()), (kind, 4, 1));
            assert_eq!((pod.named.namespace.as_str(), pod.named.name.as_str()), ("ops", "nightly"));
        }
    }

    #[test]
    fn lists_are_opened_and_other_objects_passed_over() {
        let text = "kind: List\nitems:\n- {kind: ServiceList, items: [{kind: Service, metadata: {name: s}, spec: {template: 7}}]}\n\
                    - {kind: ConfigMap, data: {spec: x}}\n- {kind: Pod, metadata: {name: p}, spec: {containers: []}}\n";
        let found = read(text).expect("it reads");
        assert!(matches!(&found[0], Object::Other { kind } if kind == "Service"));
        assert!(matches!(&found[1], Object::Other { kind } if kind == "ConfigMap"));
        assert!(matches!(&found[2], Object::Pod(pod) if pod.named.name == "p"));
        let nested = "{kind: List, items: [".repeat(LISTS_MAX + 2) + &"]}".repeat(LISTS_MAX + 2);
        assert_eq!(read(&nested).err(), Some(ObjectError::Nested(1)));
    }

    #[test]
    fn secrets_are_read_from_data_and_plain_text_and_others_hold_nothing() {
        let read_one = |text: &str| match read(text).expect("it reads").remove(0) {
            Object::Secret(secret) => secret.document.map(|(kind, document)| (kind, document.expose().to_owned())),
            _ => panic!("no secret"),
        };
        let json = Some((PullSecretKind::DockerConfigJson, "{\"auths\":{}}".to_owned()));
        let kind = "kind: Secret\ntype: kubernetes.io/dockerconfigjson\n";
        assert_eq!(read_one(&format!("{kind}data:\n  .dockerconfigjson: |\n    eyJhdXRo\n    cyI6e319\n")), json);
        assert_eq!(
            read_one(&format!(
                "{kind}stringData: {{.dockerconfigjson: '{{\"auths\":{{}}}}'}}\ndata: {{.dockerconfigjson: '!'}}\n"
            )),
            json
        );
        let older = "kind: Secret\ntype: kubernetes.io/dockercfg\ndata: {.dockercfg: e30=}\n";
        assert_eq!(read_one(older), Some((PullSecretKind::DockerCfg, "{}".to_owned())));
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
            ("kind: Pod\nspec:\n  containers:\n  - {name: x}\n", "`spec.containers[0]` in line 4 names no image"),
            (
                "kind: Pod\nspec:\n  volumes: [{name: v, image: {}}]\n",
                "`spec.volumes[0].image` in line 3 names no image",
            ),
            ("kind: Pod\nspec: [hunter2]\n", "`spec` in line 2 is a list, not an object"),
            (
                "kind: Pod\nspec: {containers: [{image: a, imagePullPolicy: hunter2}]}\n",
                "`spec.containers[0].imagePullPolicy` in line 2 is no pull policy; there are `Always`, `IfNotPresent` and `Never`",
            ),
            (
                "kind: Secret\ntype: kubernetes.io/dockerconfigjson\ndata:\n  .dockerconfigjson: 'hunter2!'\n",
                "`data..dockerconfigjson` in line 4 is not in base64",
            ),
            (
                "kind: Secret\ntype: kubernetes.io/dockercfg\ndata: hunter2\n",
                "`data` in line 3 is a text, not an object",
            ),
        ] {
            let error = read(text).err().expect("refused");
            assert_eq!(error.to_string(), complaint);
        }
        let many = format!("kind: Pod\nspec: {{containers: [{}]}}\n", "{image: a},".repeat(IMAGES_MAX + 1));
        assert_eq!(read(&many).err(), Some(ObjectError::TooMany(1)));
    }
}
