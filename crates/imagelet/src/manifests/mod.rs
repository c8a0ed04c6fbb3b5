//! Kubernetes manifests for `ensure`, and the requests to a node for their pods. As in the API server, absent fields
//! get default values, and a pod without pull secrets gets those of its service account.

mod documents;
mod objects;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use documents::{Document, FILE_LENGTH_MAX, decode, documents};
use imagelet_core::{credentials::PullSecretKind, image::counted};
use imagelet_node::{
    api::{PodName, PodRequest, PullSecretText},
    failure::Failure,
};
use objects::Objects;

const KINDS_NAMED_MAX: usize = 8;

/// A manifest file. It has no `Debug`, because the text may contain a secret.
pub(crate) struct ManifestFile {
    pub(crate) name: String,
    pub(crate) text: String,
}

#[derive(Debug, Default)]
pub(crate) struct Manifests {
    pub(crate) pods: Vec<PodRequest>,
    /// Warnings for the user, for example about a missing pull secret. The pods in question are requested all the same.
    pub(crate) notes: Vec<String>,
    /// The objects that cannot be used, each with its name in messages. The pods in all other objects are requested.
    pub(crate) failures: Vec<(String, Failure)>,
}

fn kinds_text(kinds: &BTreeSet<String>) -> String {
    let named: Vec<String> = kinds.iter().take(KINDS_NAMED_MAX).map(|kind| format!("`{kind}`")).collect();
    if named.is_empty() { " and is empty".into() } else { format!("; it has {}", named.join(", ")) }
}

impl Manifests {
    /// Reads pods, secrets and other objects from `files`, and more secrets from `secrets`. No error shows a secret.
    pub(crate) fn read(files: &[ManifestFile], secrets: &[ManifestFile]) -> Result<Self, Failure> {
        let mut objects = Objects::default();
        for file in files {
            objects.add(&file.name, &file.text);
        }
        if objects.pods.is_empty() {
            if let Some((_, failure)) = objects.failed.into_iter().next() {
                return Err(failure);
            }
            let file = files.first().map_or("", |file| &file.name);
            let kinds = kinds_text(&objects.kinds);
            let message = format!("`{file}` describes no pod and nothing with a pod template{kinds}");
            return Err(Failure::new("Failed", message));
        }
        for file in secrets {
            let (pods, before) = (objects.pods.len(), objects.secrets.len() + objects.failed.len());
            objects.kinds.clear();
            objects.add(&file.name, &file.text);
            if objects.secrets.len() + objects.failed.len() == before || objects.pods.len() > pods {
                let message = format!("`{}` was given as a secret{}", file.name, kinds_text(&objects.kinds));
                return Err(Failure::new("Failed", message));
            }
        }
        Ok(objects.resolve())
    }
}

impl Objects {
    fn resolve(self) -> Manifests {
        let mut notes = self.notes.clone();
        notes.extend(self.others.iter().map(|(file, kinds)| others_text(file, kinds)));
        let pods = self.pods.iter().map(|pod| self.request(pod, &mut notes)).collect();
        for (at, (secret, file)) in self.secrets.iter().enumerate() {
            let PullSecretText { namespace, name, .. } = secret;
            let is_named = |pod: &PodRequest| pod.pod.namespace == *namespace && self.pull_secrets(pod).contains(name);
            // A secret that no pod pulls with gets no note: it may be in the bundle for another purpose.
            if !self.pods.iter().any(is_named) {
                continue;
            }
            if self.secrets[at + 1..].iter().any(|(later, _)| later.namespace == *namespace && later.name == *name) {
                notes.push(format!(
                    "the secret `{namespace}/{name}` in `{file}` is replaced by a later one of that name"
                ));
            } else if secret.docker_config.is_none() {
                notes.push(unusable_text(secret, file));
            }
        }
        Manifests { pods, notes, failures: self.failed }
    }

    fn request(&self, pod: &PodRequest, notes: &mut Vec<String>) -> PodRequest {
        let mut request = PodRequest { secrets_unread: Vec::new(), runtime_handler: String::new(), ..pod.clone() };
        let PodName { namespace, name: pod_name, .. } = &pod.pod;
        for name in self.pull_secrets(pod).iter().filter(|name| !name.is_empty()) {
            match self.secrets.iter().rfind(|(secret, _)| secret.namespace == *namespace && secret.name == *name) {
                Some((secret, _)) if secret.docker_config.is_some() => request.secrets.push(secret.clone()),
                // As in the kubelet, a secret without registry credentials is skipped.
                Some(_) => {}
                None => {
                    notes.push(format!(
                        "the pull secret `{namespace}/{name}` was not given with --secret; going on without it"
                    ));
                    request.secrets_unread.push(name.clone());
                }
            }
        }
        if request.images.is_empty() {
            notes.push(format!("{} `{namespace}/{pod_name}` names no images", request.kind));
        }
        match self.classes.get(&pod.runtime_handler) {
            Some(handler) => request.runtime_handler.clone_from(handler),
            None if pod.runtime_handler.is_empty() => {}
            None => notes.push(format!(
                "the runtime class `{}` of the pod `{namespace}/{pod_name}` was not given with -f; its images are \
                 requested without a runtime handler",
                pod.runtime_handler
            )),
        }
        request
    }

    /// As in the API server, a pod that names no pull secrets has those of its service account.
    fn pull_secrets<'a>(&'a self, pod: &'a PodRequest) -> &'a [String] {
        let account = (pod.pod.namespace.clone(), pod.service_account.clone());
        if pod.secrets_unread.is_empty() {
            self.accounts.get(&account).map_or(&[], Vec::as_slice)
        } else {
            &pod.secrets_unread
        }
    }
}

fn others_text(file: &str, kinds: &BTreeMap<String, usize>) -> String {
    let count = counted(kinds.values().sum::<usize>(), "object");
    let mut named: Vec<&str> = kinds.keys().take(KINDS_NAMED_MAX).map(String::as_str).collect();
    if kinds.len() > KINDS_NAMED_MAX {
        named.push("…");
    }
    format!("passed over {count} in `{file}` without images: {}", named.join(", "))
}

fn unusable_text(PullSecretText { namespace, name, r#type, .. }: &PullSecretText, file: &str) -> String {
    let why = match PullSecretKind::from_type(r#type) {
        Some(kind) => format!("it has nothing under `{}`", kind.key()),
        None if r#type.is_empty() => "it has no type".to_owned(),
        None => format!("its type is `{type}`"),
    };
    format!(
        "the secret `{namespace}/{name}` in `{file}` holds no registry credentials, as {why}; pull secrets have the type \
         `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`"
    )
}

#[cfg(test)]
mod tests;
