//! The records of the audit log: its JSON lines.
//!
//! ```text
//! {"act":{"at":"2026-03-01T04:10:00Z","code":"pulled",…}}      an act, a removal or the refusal of a removal
//! {"lost":{"at":…,"count":3}}                                  the number of records that were not written
//! ```
//!
//! A line is one JSON document without a line break. After a damaged line, a reader continues with the next line. A
//! newer version may add fields. Readers ignore unknown fields.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::text::named_enum;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Act {
    pub at: Timestamp,
    pub code: ActCode,
    /// The key of the image. For a change of pins, the keys of all matching images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// The names of the image, the requested name first. For a change of pins, the pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The origin of the request, if known: `command`, `CRI`, `pod NAMESPACE/NAME`.
    pub by: String,
    #[serde(flatten)]
    pub details: ActDetails,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ActDetails {
    /// The bytes that a pull fetched or a removal freed. For a removal by a collection: the listed size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// What each host sent for a pull by the embedded store, for at most [`PullHost::REPORTED_MAX`] hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<PullHost>,
}

impl Act {
    pub fn new(code: ActCode, names: Vec<String>, by: impl Into<String>) -> Self {
        let (at, by, details) = (Timestamp::now(), by.into(), ActDetails::default());
        Self { at, code, keys: Vec::new(), names, by, details }
    }
}

/// What a host (a mirror or the registry) sent for a pull, and the failures of its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PullHost {
    /// `HOST:PORT`, without user and path.
    pub host: String,
    /// Whether the host sent or confirmed the manifest.
    pub manifest: bool,
    /// The number of blobs of which the host sent bytes.
    pub blobs: u64,
    pub bytes: u64,
    /// Error class → number of failed requests, for at most [`PullHost::CLASSES_MAX`] classes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
}

impl PullHost {
    pub const REPORTED_MAX: usize = 8;
    pub const CLASSES_MAX: usize = 8;

    /// Adds the bytes and failures of another attempt of the same pull.
    pub(crate) fn add_all(known: &mut Vec<Self>, more: &[Self]) {
        for host in more {
            if let Some(other) = known.iter_mut().find(|other| other.host == host.host) {
                other.manifest |= host.manifest;
                other.blobs = other.blobs.saturating_add(host.blobs);
                other.bytes = other.bytes.saturating_add(host.bytes);
                for (class, count) in &host.failures {
                    if other.failures.len() < Self::CLASSES_MAX || other.failures.contains_key(class) {
                        *other.failures.entry(class.clone()).or_default() += count;
                    }
                }
            } else if known.len() < Self::REPORTED_MAX {
                known.push(host.clone());
            }
        }
    }
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ActCode {
        Pulled = "pulled",
        Imported = "imported",
        RemovedOnRequest = "removed_on_request",
        /// One name of the image was removed on request.
        UntaggedOnRequest = "untagged_on_request",
        Pinned = "pinned_on_request",
        Unpinned = "unpinned_on_request",
        /// Another image manager of the node pulled the image, according to its records.
        Adopted = "adopted",
        /// A pull of this name failed; the act has names and no key.
        PullFailed = "pull_failed",
        /// The caller of a pull disconnected before the end; the act has names and no key.
        PullGivenUp = "pull_given_up",
        Removed = "removed",
        /// A collection selected the image, but the runtime or a later check prevented the removal.
        Refused = "refused",
    }
}

impl ActCode {
    pub(super) fn is_of_a_name(self) -> bool {
        matches!(self, Self::PullFailed | Self::PullGivenUp)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Act(Act),
    Lost { at: Timestamp, count: u64 },
}
