//! The name of unfinished content: which pulls may continue it.

use imagelet_core::image::Digest;

pub(in crate::store) const PARTIAL_SUFFIX: &str = ".partial";

/// Identifies a partial download: its digest, and the repository if other repositories must not reuse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartialKey {
    pub(crate) digest: Digest,
    /// Contains the digest of the repository's name for a file of an artifact. Otherwise all repositories share the
    /// blob.
    pub(in crate::store) file_name: String,
}

impl PartialKey {
    pub(crate) fn new(digest: &Digest, repository: Option<&str>) -> Self {
        let repository = repository.map(|repository| format!("-{}", Digest::of(repository.as_bytes()).hex()));
        let (algorithm, hex, repository) = (digest.algorithm().name(), digest.hex(), repository.unwrap_or_default());
        Self { digest: digest.clone(), file_name: format!("{algorithm}-{hex}{repository}{PARTIAL_SUFFIX}") }
    }
}
