//! The result of a store's verification: the differences from the pulled content.

use std::io;

use serde::{Deserialize, Serialize};

use crate::image::{Digest, ImageId};

/// The maximum number of listed findings. Further findings are only counted.
const FINDINGS_MAX: usize = 20;

#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// Each requested image, also damaged images that are not listed.
    pub images: Vec<ImageCheck>,
    pub store: Findings,
    pub blobs: BlobsCheck,
}

#[derive(Clone, Debug)]
pub struct ImageCheck {
    pub id: ImageId,
    pub names: Vec<String>,
    /// The record, manifest, configuration and index of the image.
    pub documents: Findings,
    /// The layers, lowest first.
    pub layers: Vec<(LayerName, LayerCheck)>,
}

impl ImageCheck {
    pub fn is_damaged(&self) -> bool {
        !self.documents.is_empty() || self.layers.iter().any(|(_, check)| !check.findings.is_empty())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerName {
    /// Digest of the uncompressed tar.
    pub diff_id: Digest,
    /// Digest of the blob, if the image's record is readable.
    pub blob: Option<Digest>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerCheck {
    pub findings: Findings,
    /// The number of checked paths.
    pub files: u64,
    pub bytes: u64,
    /// The number of files that only root can read. Only their metadata was compared.
    pub unread: u64,
}

#[derive(Clone, Debug, Default)]
pub struct BlobsCheck {
    pub count: u64,
    pub findings: Findings,
    pub damaged: Vec<Digest>,
}

/// The differences in one part of the store. If the list is empty, every byte is as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    pub first: Vec<Finding>,
    /// The number of further findings, which are not listed.
    pub more: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The path below the folder of the image or layer. Control characters are percent-encoded.
    pub path: String,
    /// `missing`, `extra`, `type`, `size`, `content`, `target`, `device`, `mode`, `owner`, `mtime`, `xattrs` or
    /// `unreadable`.
    pub what: String,
    /// The text for users, with the values that differ.
    pub detail: String,
}

impl Findings {
    pub fn of(path: &str, what: &str, detail: impl Into<String>) -> Self {
        let mut findings = Self::default();
        findings.add(path.to_owned(), what, detail.into());
        findings
    }

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
