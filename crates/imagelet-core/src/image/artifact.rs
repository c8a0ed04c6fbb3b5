//! The artifact that an image was made of: files, such as a model, in place of a root file system.

use std::collections::BTreeMap;

use super::Digest;
use crate::printable::{printable, printable_start};

/// The label of an artifact's type. Images without this label are not artifacts.
pub const ARTIFACT_TYPE_LABEL: &str = "dev.imagelet.artifact.type";
const DIGEST_LABEL: &str = "dev.imagelet.artifact.digest";
const FILES_LABEL: &str = "dev.imagelet.artifact.files";
/// RFC 6838: two names of at most 127 bytes, and the slash.
const TYPE_BYTES_MAX: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub kind: String,
    /// The digest of the artifact's manifest. In a runtime, the image has another id.
    pub manifest: Digest,
    /// The number of files. An archive counts as one file, although it is unpacked to many.
    pub files: u64,
}

impl Artifact {
    pub fn labels(&self) -> BTreeMap<String, String> {
        let [kind, digest, files] = [ARTIFACT_TYPE_LABEL, DIGEST_LABEL, FILES_LABEL].map(str::to_owned);
        let shown = printable_start(&self.kind, TYPE_BYTES_MAX);
        [(kind, shown), (digest, self.manifest.to_string()), (files, self.files.to_string())].into()
    }

    pub fn from_labels(labels: &BTreeMap<String, String>) -> Option<Self> {
        let kind = labels.get(ARTIFACT_TYPE_LABEL).filter(|kind| kind.len() <= TYPE_BYTES_MAX)?;
        let manifest = labels.get(DIGEST_LABEL)?.parse().ok()?;
        Some(Self { kind: printable(kind), manifest, files: labels.get(FILES_LABEL)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_is_read_from_its_labels_and_from_no_others() {
        let artifact = Artifact { kind: "a/model".to_owned(), manifest: Digest::of(b"manifest"), files: 3 };
        let labels = artifact.labels();
        assert_eq!(Artifact::from_labels(&labels), Some(artifact.clone()));
        for (key, value) in [
            (ARTIFACT_TYPE_LABEL, "x".repeat(TYPE_BYTES_MAX + 1)),
            (DIGEST_LABEL, "sha256:../../etc".to_owned()),
            (FILES_LABEL, "-1".to_owned()),
        ] {
            let mut foreign = labels.clone();
            foreign.insert(key.to_owned(), value);
            assert_eq!(Artifact::from_labels(&foreign), None, "{key}");
            foreign.remove(key);
            assert_eq!(Artifact::from_labels(&foreign), None, "without {key}");
        }
        let coloured = Artifact { kind: "a\u{1b}[31m".to_owned(), ..artifact.clone() };
        assert_eq!(coloured.labels()[ARTIFACT_TYPE_LABEL], "a?[31m");
        let long = Artifact { kind: "ä".repeat(200), ..artifact };
        assert_eq!(Artifact::from_labels(&long.labels()).expect("its own labels").kind.len(), 254);
    }
}
