//! The images of a Pod manifest, each with its policy and the Pod's pull secrets.

use std::collections::BTreeMap;

use base64::Engine as _;
use imagelet_core::credentials::Secret;
use serde::Deserialize;

use super::{Hidden, PodName, PullRequest, PullSecretText};

/// A secret of this type holds a docker configuration; the others hold something else.
const SECRET_TYPE: &str = "kubernetes.io/dockerconfigjson";
const SECRET_KEY: &str = ".dockerconfigjson";
/// Most images of one Pod; a manifest with more is none.
const IMAGES_MAX: usize = 1000;

/// Why a manifest cannot be used. Shows nothing of what a secret holds.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodsError {
    /// It is no YAML, or not shaped like a manifest.
    #[error("could not read the manifest `{file}`{}", line_text(*line))]
    Parse { file: String, line: Option<u64> },
    /// It describes something else.
    #[error("`{file}` is a `{found}`, not a `{wanted}`")]
    Kind { file: String, found: String, wanted: &'static str },
    /// The secret holds something else.
    #[error("secret `{name}` in `{file}` has the type `{found}`, not `{SECRET_TYPE}`")]
    SecretType { file: String, name: String, found: String },
    /// The secret lacks its document, or it is not in base64.
    #[error("secret `{name}` in `{file}` has no readable `{SECRET_KEY}`")]
    SecretKey { file: String, name: String },
    /// A container without an image.
    #[error("`{field}` in `{file}` names no image")]
    NoImage { file: String, field: String },
    /// More images than a Pod has.
    #[error("the Pod in `{0}` has more than {IMAGES_MAX} images")]
    TooMany(String),
}

fn line_text(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}

/// What a Pod needs.
#[derive(Debug)]
pub(crate) struct PodImages {
    /// One request for each image, in the order of the manifest, init containers first.
    pub(crate) requests: Vec<PullRequest>,
    /// Pull secrets the Pod names and nobody gave; it is tried without them, as the kubelet does.
    pub(crate) secrets_missing: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pod {
    kind: String,
    metadata: Metadata,
    spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    ephemeral_containers: Vec<Container>,
    volumes: Vec<Volume>,
    image_pull_secrets: Vec<Named>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    image: String,
    image_pull_policy: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Volume {
    name: String,
    image: Option<ImageVolume>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ImageVolume {
    reference: String,
    pull_policy: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SecretManifest {
    kind: String,
    metadata: Metadata,
    r#type: String,
    data: BTreeMap<String, String>,
    string_data: BTreeMap<String, String>,
}

impl PodImages {
    /// Reads a Pod and the secrets handed in with it; each with the name of its file.
    pub(crate) fn read(pod: (&str, &str), secrets: &[(String, String)]) -> Result<Self, PodsError> {
        let (file, text) = pod;
        let manifest: Pod = parse(file, text)?;
        expect_kind(file, &manifest.kind, "Pod")?;
        let namespace = or_default(manifest.metadata.namespace);
        let mut known = Vec::new();
        for (file, text) in secrets {
            known.push(read_secret(file, text)?);
        }
        let (mut given, mut secrets_missing) = (Vec::new(), Vec::new());
        let pod = PodName { namespace, name: manifest.metadata.name, uid: manifest.metadata.uid };
        let spec = manifest.spec;
        for Named { name } in spec.image_pull_secrets {
            match known.iter().find(|secret| secret.name == name && secret.namespace == pod.namespace) {
                Some(secret) => given.push(secret.clone()),
                None => secrets_missing.push(format!("{}/{name}", pod.namespace)),
            }
        }
        let containers = |kind: &'static str, containers: Vec<Container>| {
            containers
                .into_iter()
                .map(move |one| (format!("spec.{kind}{{{}}}", one.name), one.image, one.image_pull_policy))
        };
        let volumes = spec.volumes.into_iter().filter_map(|volume| {
            let image = volume.image?;
            Some((format!("spec.volumes{{{}}}", volume.name), image.reference, image.pull_policy))
        });
        let requests: Vec<PullRequest> = containers("initContainers", spec.init_containers)
            .chain(containers("containers", spec.containers))
            .chain(containers("ephemeralContainers", spec.ephemeral_containers))
            .chain(volumes)
            .map(|(field, image, policy)| PullRequest {
                image,
                policy,
                field,
                pod: Some(pod.clone()),
                secrets: given.clone(),
                ..PullRequest::default()
            })
            .collect();
        if requests.len() > IMAGES_MAX {
            return Err(PodsError::TooMany(file.to_owned()));
        }
        if let Some(request) = requests.iter().find(|request| request.image.is_empty()) {
            return Err(PodsError::NoImage { file: file.to_owned(), field: request.field.clone() });
        }
        Ok(Self { requests, secrets_missing })
    }
}

fn parse<T: for<'de> Deserialize<'de>>(file: &str, text: &str) -> Result<T, PodsError> {
    // The parser's own message shows the text around the mistake, and that may be a password.
    serde_saphyr::from_str(text).map_err(|error| PodsError::Parse {
        file: file.to_owned(),
        line: error.location().map(|location| location.line()),
    })
}

fn expect_kind(file: &str, found: &str, wanted: &'static str) -> Result<(), PodsError> {
    if found == wanted {
        return Ok(());
    }
    Err(PodsError::Kind { file: file.to_owned(), found: found.to_owned(), wanted })
}

fn read_secret(file: &str, text: &str) -> Result<PullSecretText, PodsError> {
    let manifest: SecretManifest = parse(file, text)?;
    expect_kind(file, &manifest.kind, "Secret")?;
    let name = manifest.metadata.name;
    if manifest.r#type != SECRET_TYPE {
        return Err(PodsError::SecretType { file: file.to_owned(), name, found: manifest.r#type });
    }
    // `stringData` wins, as it does in the API.
    let plain = manifest.string_data.get(SECRET_KEY).cloned();
    let document = plain.or_else(|| {
        let packed: String = manifest.data.get(SECRET_KEY)?.split_whitespace().collect();
        let bytes = base64::engine::general_purpose::STANDARD.decode(packed).ok()?;
        String::from_utf8(bytes).ok()
    });
    let Some(document) = document else {
        return Err(PodsError::SecretKey { file: file.to_owned(), name });
    };
    Ok(PullSecretText {
        namespace: or_default(manifest.metadata.namespace),
        name,
        uid: manifest.metadata.uid,
        docker_config: Some(Hidden(Secret::new(document))),
    })
}

fn or_default(namespace: String) -> String {
    if namespace.is_empty() { "default".into() } else { namespace }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: u-1}\nspec:\n  imagePullSecrets: [{name: reg}, {name: gone}]\n  \
        initContainers: [{name: init, image: a, restartPolicy: Always}]\n  containers:\n  - {name: app, image: 'b:v1', imagePullPolicy: Never}\n  \
        volumes:\n  - {name: model, image: {reference: 'c:v1', pullPolicy: Always}}\n  - {name: tmp, emptyDir: {}}\n";

    #[test]
    fn all_images_of_a_pod_are_found_with_policies_and_secrets() {
        let secret = "kind: Secret\nmetadata: {name: reg}\ntype: kubernetes.io/dockerconfigjson\ndata:\n  .dockerconfigjson: eyJhdXRocyI6e319\n";
        let images = PodImages::read(("p.yaml", POD), &[("s.yaml".into(), secret.into())]).expect("a Pod");
        let told: Vec<_> = images
            .requests
            .iter()
            .map(|one| (one.image.as_str(), one.policy.as_str(), one.field.as_str(), one.secrets.len()))
            .collect();
        assert_eq!(
            told,
            [
                ("a", "", "spec.initContainers{init}", 1),
                ("b:v1", "Never", "spec.containers{app}", 1),
                ("c:v1", "Always", "spec.volumes{model}", 1),
            ]
        );
        assert_eq!(images.secrets_missing, ["default/gone"]);
        let document = images.requests[0].secrets[0].docker_config.as_ref().expect("the document");
        assert_eq!(document.0.expose(), "{\"auths\":{}}");
    }

    #[test]
    fn what_is_no_pod_or_no_pull_secret_is_refused_without_showing_it() {
        let read = |pod: &str, secret: Option<&str>| {
            let secrets: Vec<_> = secret.map(|text| ("s.yaml".to_owned(), text.to_owned())).into_iter().collect();
            PodImages::read(("p.yaml", pod), &secrets).expect_err("refused").to_string()
        };
        assert_eq!(read("kind: Deployment\n", None), "`p.yaml` is a `Deployment`, not a `Pod`");
        assert!(read("kind: Pod\nspec: [hunter2", None).starts_with("could not read the manifest `p.yaml`"));
        assert_eq!(
            read("kind: Pod\nspec: {containers: [{name: x}]}\n", None),
            "`spec.containers{x}` in `p.yaml` names no image"
        );
        for secret in [
            "kind: Secret\nmetadata: {name: s}\ntype: Opaque\ndata: {password: hunter2}\n",
            "kind: Secret\nmetadata: {name: s}\ntype: kubernetes.io/dockerconfigjson\ndata: {.dockerconfigjson: 'hunter2!'}\n",
            "kind: Secret\ndata: [hunter2\n",
        ] {
            let error = read(POD, Some(secret));
            assert!(error.contains("`s.yaml`") && !error.contains("hunter2"), "{error}");
        }
    }
}
