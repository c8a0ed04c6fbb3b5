//! Caches parsed pull secrets per image for the next equal request.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::access_record::proof_of;
use crate::{
    credentials::{Keyring, KeyringError, PullSecret, TrackedCredential},
    image::Reference,
    manager::Compatibility,
    records::AccessProof,
};

/// About as many images as a node's pods name.
const KEPT_MAX: usize = 256;
/// Longer secrets are parsed each time, which bounds the cache to a few megabytes.
const LENGTH_MAX: usize = 8 * 1024;

#[derive(Debug, Default)]
pub(crate) struct PullSecretEntry {
    /// In the order to try them.
    pub(super) credentials: Vec<TrackedCredential>,
    pub(super) proof: Arc<AccessProof>,
    /// The unreadable secrets and their errors.
    pub(super) missing: Vec<String>,
}

type EntryByImage = HashMap<Box<str>, (Vec<PullSecret>, Arc<PullSecretEntry>)>;

/// The last parsed secrets by image. An entry is valid for identical secrets only.
#[derive(Default)]
pub(crate) struct PullSecretCache {
    by_image: Mutex<EntryByImage>,
}

impl PullSecretCache {
    /// Parses secrets, or returns the cached result.
    ///
    /// # Errors
    /// In the kubelet's compatible mode only: the first secret that cannot be read.
    pub(crate) fn read(
        &self,
        image: &str,
        secrets: &[PullSecret],
        compatibility: Compatibility,
    ) -> Result<Arc<PullSecretEntry>, KeyringError> {
        if let Some((known, entry)) = self.lock().get(image)
            && known == secrets
        {
            return Ok(Arc::clone(entry));
        }
        let entry = Arc::new(PullSecretEntry::read(image, secrets, compatibility)?);
        let length: usize = secrets.iter().map(|secret| secret.document.expose().len()).sum();
        // An unreadable secret is reported each time.
        if entry.missing.is_empty() && length <= LENGTH_MAX {
            let mut by_image = self.lock();
            if by_image.len() >= KEPT_MAX {
                by_image.clear();
            }
            by_image.insert(image.into(), (secrets.to_vec(), Arc::clone(&entry)));
        }
        Ok(entry)
    }

    fn lock(&self) -> MutexGuard<'_, EntryByImage> {
        self.by_image.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PullSecretEntry {
    fn read(image: &str, secrets: &[PullSecret], compatibility: Compatibility) -> Result<Self, KeyringError> {
        let Ok(reference) = image.parse::<Reference>() else { return Ok(Self::default()) };
        let (keyring, unreadable) = if compatibility.is_kubelet() {
            (Keyring::from_secrets(secrets)?, Vec::new())
        } else {
            Keyring::from_readable_secrets(secrets)
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
        let proof = Arc::new(proof_of(&credentials));
        Ok(Self { credentials, proof, missing })
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
        assert_ne!(first.proof, changed.proof);
        assert!(Arc::ptr_eq(&changed, &read(secret("q"))));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let cache = PullSecretCache::default();
        let read = |image: &str| cache.read(image, &[secret("p")], Compatibility::Imagelet).expect("it reads");
        for image in 0..=KEPT_MAX {
            read(&format!("reg.io/{image}"));
        }
        assert!(cache.lock().len() <= KEPT_MAX);
        let long = cache.read("reg.io/long", &[secret(&"p".repeat(LENGTH_MAX))], Compatibility::Imagelet);
        long.expect("it reads");
        assert!(!cache.lock().contains_key("reg.io/long"));
    }

    #[test]
    fn what_cannot_be_read_is_reported_each_time() {
        let cache = PullSecretCache::default();
        let broken = PullSecret { document: Secret::new("{"), ..secret("p") };
        for _ in 0..2 {
            let answer = cache.read("reg.io/a", std::slice::from_ref(&broken), Compatibility::Imagelet);
            assert_eq!(answer.expect("it is passed over").missing.len(), 1);
        }
        assert!(cache.read("reg.io/a", &[broken], Compatibility::Kubelet).is_err());
    }
}
