//! The result of a store's verification: what differs from what was pulled.

use std::io;

use serde::{Deserialize, Serialize};

use crate::image::{Digest, ImageId};

/// Listed findings; further ones are only counted.
const FINDINGS_MAX: usize = 20;

#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// Each requested image, unlisted damaged ones included.
    pub images: Vec<ImageCheck>,
    /// Findings in the store's own files.
    pub store: Findings,
    /// The kept blobs, if any.
    pub blobs: BlobsCheck,
}

#[derive(Clone, Debug)]
pub struct ImageCheck {
    pub id: ImageId,
    /// Its names, of every kind.
    pub names: Vec<String>,
    /// Its record, manifest, configuration and index.
    pub documents: Findings,
    /// Its layers, lowest first.
    pub layers: Vec<(LayerName, LayerCheck)>,
}

impl ImageCheck {
    /// Whether any content differs from what was pulled.
    pub fn is_damaged(&self) -> bool {
        !self.documents.is_empty() || self.layers.iter().any(|(_, check)| !check.findings.is_empty())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerName {
    /// Digest of the uncompressed tar.
    pub diff_id: Digest,
    /// Digest of the blob, where the image's record is readable.
    pub blob: Option<Digest>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerCheck {
    pub findings: Findings,
    /// Paths checked.
    pub files: u64,
    pub bytes: u64,
    /// Files whose content only root can read; their metadata was compared.
    pub unread: u64,
}

/// The kept blobs after their check.
#[derive(Clone, Debug, Default)]
pub struct BlobsCheck {
    /// Number of hashed blobs.
    pub count: u64,
    pub findings: Findings,
    pub damaged: Vec<Digest>,
}

/// The deviations in one place. None: every byte is as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// The first findings.
    pub first: Vec<Finding>,
    /// Number of further ones.
    pub more: u64,
}

/// One deviation from what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Path below the folder of the image or layer. Control characters are percent-encoded.
    pub path: String,
    /// `missing`, `extra`, `type`, `size`, `content`, `target`, `device`, `mode`, `owner`, `mtime`, `xattrs` or
    /// `unreadable`.
    pub what: String,
    /// Readable text with the values.
    pub detail: String,
}

impl Findings {
    pub fn of(path: &str, what: &str, detail: impl Into<String>) -> Self {
        let mut findings = Self::default();
        findings.add(path.to_owned(), what, detail.into());
        findings
    }

    /// Appends a finding, or only counts it.
    pub fn add(&mut self, path: String, what: &str, detail: String) {
        if self.first.len() < FINDINGS_MAX {
            self.first.push(Finding { path, what: what.to_owned(), detail });
        } else {
            self.more += 1;
        }
    }

    pub fn merge(&mut self, other: Findings) {
        for finding in other.first {
            self.add(finding.path, &finding.what, finding.detail);
        }
        self.more += other.more;
    }

    pub fn unreadable(&mut self, path: &str, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::NotFound => self.add(path.into(), "missing", "it is missing".into()),
            io::ErrorKind::InvalidData => self.add(path.into(), "content", error.to_string()),
            _ => self.add(path.into(), "unreadable", format!("it cannot be read: {error}")),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}
