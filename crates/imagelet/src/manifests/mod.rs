//! Kubernetes manifests as people hand them in, turned into what a node is asked for.
//!
//! Does what the API server does before a kubelet sees a pod: defaults, and the pull secrets of the service account.

mod objects;

use std::collections::BTreeMap;

use imagelet_core::image::Digest;

use crate::api::{Hidden, PodName, PodRequest, PullSecretText};
use objects::{AccountManifest, ClassManifest, Named, Object, ObjectError, PodManifest, SecretManifest, objects};

pub(crate) const FILE_LENGTH_MAX: u64 = objects::FILE_LENGTH_MAX as u64;
/// Kinds named in a note; a bundle has many.
const KINDS_NAMED_MAX: usize = 8;
/// The service account of pods that name none.
const DEFAULT_ACCOUNT: &str = "default";

/// A file of manifests. Has no `Debug`: it may hold a secret.
pub(crate) struct ManifestFile {
    /// For error messages.
    pub(crate) name: String,
    pub(crate) text: String,
}

#[derive(Debug)]
pub(crate) struct Manifests {
    /// In the order of the files.
    pub(crate) pods: Vec<PodRequest>,
    /// Notes for the user; none keeps a pod from being requested.
    pub(crate) notes: Vec<String>,
}

/// Why a file is rejected. Shows no content of a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("could not use the manifest `{file}`")]
    Unreadable { file: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("`{file}` describes no pod and nothing with a pod template{}", found_text(.found))]
    NoPod { file: String, found: Vec<String> },
    /// The file was given as a secret and contains none.
    #[error("`{file}` was given as a secret{}", found_text(.found))]
    NoSecret { file: String, found: Vec<String> },
}

fn found_text(kinds: &[String]) -> String {
    match kinds {
        [] => " and is empty".into(),
        kinds => format!("; it has {}", kinds.join(", ")),
    }
}

impl Manifests {
    /// Reads files with pods and files with their secrets; both may hold other objects as well.
    pub(crate) fn read(files: &[ManifestFile], secrets: &[ManifestFile]) -> Result<Self, ManifestError> {
        let mut cluster = Cluster::default();
        for file in files {
            cluster.take(file)?;
        }
        if cluster.pods.is_empty() {
            let file = files.first().map_or_else(String::new, |file| file.name.clone());
            return Err(ManifestError::NoPod { file, found: kinds(&cluster) });
        }
        for file in secrets {
            let mut given = Cluster::default();
            given.take(file)?;
            if given.secrets.is_empty() || !given.pods.is_empty() {
                return Err(ManifestError::NoSecret { file: file.name.clone(), found: kinds(&given) });
            }
            cluster.merge(given);
        }
        Ok(cluster.resolve())
    }
}

/// The objects of all files that affect pulls.
#[derive(Default)]
struct Cluster {
    pods: Vec<PodManifest>,
    /// Each with its file.
    secrets: Vec<(SecretManifest, String)>,
    accounts: Vec<AccountManifest>,
    classes: Vec<ClassManifest>,
    /// Number of ignored objects by file and kind.
    others: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Cluster {
    fn take(&mut self, file: &ManifestFile) -> Result<(), ManifestError> {
        let unreadable =
            |error: ObjectError| ManifestError::Unreadable { file: file.name.clone(), source: error.into() };
        for object in objects(&file.text).map_err(unreadable)? {
            match object {
                Object::Pod(pod) => self.pods.push(pod),
                Object::Secret(secret) => self.secrets.push((secret, file.name.clone())),
                Object::ServiceAccount(account) => self.accounts.push(account),
                Object::RuntimeClass(class) => self.classes.push(class),
                Object::Other { kind } => {
                    *self.others.entry(file.name.clone()).or_default().entry(kind).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    fn merge(&mut self, other: Self) {
        self.secrets.extend(other.secrets);
        self.accounts.extend(other.accounts);
        self.classes.extend(other.classes);
        self.others.extend(other.others);
    }

    fn resolve(self) -> Manifests {
        let mut notes: Vec<String> = self.others.iter().map(|(file, kinds)| others_text(file, kinds)).collect();
        let pods: Vec<PodRequest> = self.pods.iter().map(|pod| self.request(pod, &mut notes)).collect();
        for (at, (secret, file)) in self.secrets.iter().enumerate() {
            let name = full_name(&secret.named);
            // Of two objects with one name the later applies, as with `kubectl apply`.
            if self.secrets[at + 1..].iter().any(|(later, _)| is_named(&later.named, &secret.named)) {
                notes.push(format!("the secret `{name}` in `{file}` is replaced by a later one of that name"));
            } else if secret.document.is_none() {
                notes.push(unusable_text(secret, &name, file));
            } else if !self.pods.iter().any(|pod| self.names_secret(pod, &secret.named)) {
                notes.push(format!("no pod names the secret `{name}` in `{file}` in its `imagePullSecrets`"));
            }
        }
        Manifests { pods, notes }
    }

    fn request(&self, pod: &PodManifest, notes: &mut Vec<String>) -> PodRequest {
        let (mut secrets, mut secrets_unread) = (Vec::new(), Vec::new());
        for name in self.pull_secrets(pod).iter().filter(|name| !name.is_empty()) {
            if let Some(secret) = self.secret(&pod.named.namespace, name) {
                secrets.extend(secret_text(secret));
                continue;
            }
            let namespace = &pod.named.namespace;
            notes
                .push(format!("the pull secret `{namespace}/{name}` was not given with --secret; going on without it"));
            secrets_unread.push(name.clone());
        }
        if pod.images.is_empty() {
            notes.push(format!("{} `{}` names no images", pod.kind, full_name(&pod.named)));
        }
        let account = if pod.service_account.is_empty() { DEFAULT_ACCOUNT } else { &pod.service_account };
        PodRequest {
            kind: pod.kind.clone(),
            pod: pod_name(pod),
            annotations: pod.annotations.clone(),
            service_account: account.to_owned(),
            runtime_handler: self.runtime_handler(pod, notes),
            secrets,
            secrets_unread,
            images: pod.images.clone(),
        }
    }

    /// The handler of the pod's runtime class, if the class is in the files; empty means the default.
    fn runtime_handler(&self, pod: &PodManifest, notes: &mut Vec<String>) -> String {
        if pod.runtime_class.is_empty() {
            return String::new();
        }
        if let Some(class) = self.classes.iter().rfind(|class| class.name == pod.runtime_class) {
            return class.handler.clone();
        }
        let (class, name) = (&pod.runtime_class, full_name(&pod.named));
        notes.push(format!(
            "the runtime class `{class}` of the pod `{name}` was not given with -f; its images are asked for without a \
             runtime handler"
        ));
        String::new()
    }

    /// A pod without pull secrets gets those of its service account, as in the API server.
    fn pull_secrets<'a>(&'a self, pod: &'a PodManifest) -> &'a [String] {
        if !pod.pull_secrets.is_empty() {
            return &pod.pull_secrets;
        }
        let name = if pod.service_account.is_empty() { DEFAULT_ACCOUNT } else { &pod.service_account };
        let is_its =
            |account: &&AccountManifest| account.named.name == name && account.named.namespace == pod.named.namespace;
        self.accounts.iter().rfind(is_its).map_or(&[], |account| &account.pull_secrets)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<&SecretManifest> {
        let is_it =
            |(secret, _): &&(SecretManifest, String)| secret.named.namespace == namespace && secret.named.name == name;
        self.secrets.iter().rfind(is_it).map(|(secret, _)| secret)
    }

    fn names_secret(&self, pod: &PodManifest, secret: &Named) -> bool {
        pod.named.namespace == secret.namespace && self.pull_secrets(pod).contains(&secret.name)
    }
}

fn is_named(one: &Named, other: &Named) -> bool {
    (&one.namespace, &one.name) == (&other.namespace, &other.name)
}

fn full_name(named: &Named) -> String {
    format!("{}/{}", named.namespace, named.name)
}

fn kinds(cluster: &Cluster) -> Vec<String> {
    let mut kinds: Vec<String> = cluster.pods.iter().map(|pod| pod.kind.clone()).collect();
    kinds.extend(cluster.secrets.iter().map(|_| "Secret".to_owned()));
    kinds.extend(cluster.accounts.iter().map(|_| "ServiceAccount".to_owned()));
    kinds.extend(cluster.classes.iter().map(|_| "RuntimeClass".to_owned()));
    kinds.extend(cluster.others.values().flat_map(BTreeMap::keys).cloned());
    kinds.sort();
    kinds.dedup();
    kinds.truncate(KINDS_NAMED_MAX);
    kinds.into_iter().map(|kind| format!("`{kind}`")).collect()
}

fn others_text(file: &str, kinds: &BTreeMap<String, usize>) -> String {
    let count: usize = kinds.values().sum();
    let mut named: Vec<String> = kinds.keys().take(KINDS_NAMED_MAX).cloned().collect();
    if kinds.len() > KINDS_NAMED_MAX {
        named.push("…".into());
    }
    let plural = if count == 1 { "" } else { "s" };
    format!("passed over {count} object{plural} in `{file}` without images: {}", named.join(", "))
}

fn unusable_text(secret: &SecretManifest, name: &str, file: &str) -> String {
    let why = match imagelet_core::credentials::PullSecretKind::from_type(&secret.of_type) {
        Some(kind) => format!("it has nothing under `{}`", kind.key()),
        None if secret.of_type.is_empty() => "it has no type".to_owned(),
        None => format!("its type is `{}`", secret.of_type),
    };
    format!(
        "the secret `{name}` in `{file}` holds no registry credentials, as {why}; pull secrets have the type \
         `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`"
    )
}

fn pod_name(pod: &PodManifest) -> PodName {
    let Named { namespace, name, uid } = pod.named.clone();
    let uid = if uid.is_empty() { stable_uid(&[&pod.kind, &namespace, &name]) } else { uid };
    PodName { namespace, name, uid }
}

/// `None` for a secret without credentials: a kubelet reads it and finds nothing.
fn secret_text(secret: &SecretManifest) -> Option<PullSecretText> {
    let document = secret.document.as_ref()?;
    let Named { namespace, name, uid } = secret.named.clone();
    // Without a uid nothing proves that a secret of this name is the earlier one: the content is part of its identity.
    // By name alone, a caller that knows the name would be granted what the earlier secret had opened.
    let uid = if uid.is_empty() { stable_uid(&["Secret", &namespace, &name, document.expose()]) } else { uid };
    Some(PullSecretText {
        namespace,
        name,
        uid,
        r#type: secret.of_type.clone(),
        docker_config: Some(Hidden(document.clone())),
    })
}

/// Deterministic for equal parts, and shaped like any other uid.
fn stable_uid(parts: &[&str]) -> String {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    let digest = Digest::of(&bytes);
    let hex = digest.hex();
    // Version 8 and variant 1: a custom uid (RFC 9562).
    format!("{}-{}-8{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32])
}

#[cfg(test)]
mod tests;
