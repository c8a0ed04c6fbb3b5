//! What a pod's pull secrets hold for an image: read once, kept for whoever asks the same again.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::access_record::asker_of;
use crate::{
    credentials::{Keyring, KeyringError, PullSecret, TrackedCredential},
    image::Reference,
    manager::Compatibility,
    records::Asker,
};

/// Most images whose askers are remembered: about as many as a node's pods name.
const KEPT_MAX: usize = 256;
/// Longer secrets are read each time, so that what is kept stays below a few megabytes.
const LENGTH_MAX: usize = 8 * 1024;

/// What secrets hold for one image.
#[derive(Debug, Default)]
pub(crate) struct PullSecretEntry {
    /// In the order in which to try them.
    pub(super) credentials: Vec<TrackedCredential>,
    /// What they say about who asks.
    pub(super) asker: Asker,
    /// Which of them cannot be read, and why.
    pub(super) missing: Vec<String>,
}

/// The answers to the last askers, by image. An answer holds as long as the very same secrets are shown.
#[derive(Default)]
pub(crate) struct PullSecretCache {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_image: HashMap<Box<str>, Entry>,
    clock: u64,
}

struct Entry {
    secrets: Vec<PullSecret>,
    answer: Arc<PullSecretEntry>,
    used: u64,
}

impl PullSecretCache {
    /// Reads secrets, or remembers what they held.
    ///
    /// # Errors
    /// For the kubelet's way alone: the first secret that cannot be read.
    pub(crate) fn read(
        &self,
        image: &str,
        secrets: &[PullSecret],
        compatibility: Compatibility,
    ) -> Result<Arc<PullSecretEntry>, KeyringError> {
        if let Some(answer) = self.remembered(image, secrets) {
            return Ok(answer);
        }
        let answer = Arc::new(PullSecretEntry::read(image, secrets, compatibility)?);
        // What cannot be read is told each time.
        if answer.missing.is_empty() {
            self.keep(image, secrets, &answer);
        }
        Ok(answer)
    }

    fn remembered(&self, image: &str, secrets: &[PullSecret]) -> Option<Arc<PullSecretEntry>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let now = kept.clock;
        let entry = kept.by_image.get_mut(image).filter(|entry| entry.secrets == secrets)?;
        entry.used = now;
        Some(Arc::clone(&entry.answer))
    }

    fn keep(&self, image: &str, secrets: &[PullSecret], answer: &Arc<PullSecretEntry>) {
        let length: usize = secrets.iter().map(|secret| secret.document.expose().len()).sum();
        if length > LENGTH_MAX {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.by_image.len() >= KEPT_MAX && !kept.by_image.contains_key(image) {
            let oldest = kept.by_image.iter().min_by_key(|(_, entry)| entry.used).map(|(image, _)| image.clone());
            if let Some(oldest) = oldest {
                kept.by_image.remove(&oldest);
            }
        }
        let entry = Entry { secrets: secrets.to_vec(), answer: Arc::clone(answer), used: kept.clock };
        kept.by_image.insert(image.into(), entry);
    }
}

impl PullSecretEntry {
    fn read(image: &str, secrets: &[PullSecret], compatibility: Compatibility) -> Result<Self, KeyringError> {
        let Ok(reference) = image.parse::<Reference>() else { return Ok(Self::default()) };
        let (keyring, unreadable) = if compatibility.is_kubelet() {
            (Keyring::of_secrets(secrets)?, Vec::new())
        } else {
            Keyring::of_readable_secrets(secrets)
        };
        let missing = unreadable.iter().map(|error| {
            let text = format!("{error}: {}", error.source);
            tracing::warn!(image, "{text}; it is passed over");
            text
        });
        let missing = missing.collect();
        let mut credentials = keyring.lookup(reference.repository());
        if !compatibility.is_kubelet() {
            credentials = credentials.into_iter().filter_map(TrackedCredential::usable).collect();
        }
        let asker = asker_of(&credentials);
        Ok(Self { credentials, asker, missing })
    }
}

impl fmt::Debug for PullSecretCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullSecretCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{ObjectIdentity, PullSecretKind, Secret};

    fn secret(password: &str) -> PullSecret {
        PullSecret {
            identity: ObjectIdentity { uid: "u".into(), namespace: "n".into(), name: "s".into() },
            kind: PullSecretKind::DockerConfigJson,
            document: Secret::new(format!(
                r#"{{"auths": {{"reg.io": {{"username": "u", "password": "{password}"}}}}}}"#
            )),
        }
    }

    #[test]
    fn the_same_secrets_are_read_once_and_changed_ones_anew() {
        let cache = PullSecretCache::default();
        let read = |secret: PullSecret| cache.read("reg.io/a", &[secret], Compatibility::Kubelet).expect("it reads");
        let first = read(secret("p"));
        assert!(Arc::ptr_eq(&first, &read(secret("p"))));
        let changed = read(secret("q"));
        assert_ne!(first.asker, changed.asker);
        assert!(Arc::ptr_eq(&changed, &read(secret("q"))));
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_least_used_goes_first() {
        let cache = PullSecretCache::default();
        let read = |image: &str| cache.read(image, &[secret("p")], Compatibility::Imagelet).expect("it reads");
        let kept = read("reg.io/kept");
        for image in 0..KEPT_MAX {
            read(&format!("reg.io/{image}"));
            read("reg.io/kept");
        }
        assert!(Arc::ptr_eq(&kept, &read("reg.io/kept")));
        assert_eq!(cache.kept.lock().expect("nobody panics").by_image.len(), KEPT_MAX);
        let long = cache.read("reg.io/long", &[secret(&"p".repeat(LENGTH_MAX))], Compatibility::Imagelet);
        long.expect("it reads");
        assert!(!cache.kept.lock().expect("nobody panics").by_image.contains_key("reg.io/long"));
    }

    #[test]
    fn what_cannot_be_read_is_told_each_time() {
        let cache = PullSecretCache::default();
        let broken = PullSecret { document: Secret::new("{"), ..secret("p") };
        for _ in 0..2 {
            let answer = cache.read("reg.io/a", std::slice::from_ref(&broken), Compatibility::Imagelet);
            assert_eq!(answer.expect("it is passed over").missing.len(), 1);
        }
        assert!(cache.read("reg.io/a", &[broken], Compatibility::Kubelet).is_err());
    }
}
