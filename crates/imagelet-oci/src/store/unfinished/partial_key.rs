//! The name of unfinished content, which decides which pulls may continue the content.

use imagelet_core::image::Digest;

pub(in crate::store) const PARTIAL_SUFFIX: &str = ".partial";

/// Identifies a partial blob or layer: its digest, and its repository if other repositories must not use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartialKey {
    pub(crate) digest: Digest,
    /// For a file of an artifact, contains the digest of the repository's name. Repositories share an image's layers.
    pub(in crate::store) file_name: String,
}

impl PartialKey {
    pub(crate) fn new(digest: &Digest, repository: Option<&str>) -> Self {
        let repository = repository.map(|repository| format!("-{}", Digest::of(repository.as_bytes()).hex()));
        let (algorithm, hex, repository) = (digest.algorithm().name(), digest.hex(), repository.unwrap_or_default());
        Self { digest: digest.clone(), file_name: format!("{algorithm}-{hex}{repository}{PARTIAL_SUFFIX}") }
    }
}
