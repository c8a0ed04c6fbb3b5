//! What is recorded, single acts and collections with what they decided, and the lines of the log.
//!
//! ```text
//! {"act":{"at":"2026-03-01T04:10:00Z","code":"pulled",…}}      something was done
//! {"run":{"head":{"at":…,"by":"timer"},"decided":[…],…}}       images were collected
//! {"lost":{"at":…,"count":3,"error":…}}                        so much could not be written
//! ```
//!
//! A line is one JSON document without a line end in it, so a reader that finds damage continues with the next line. A
//! newer version adds fields; readers ignore those they do not know.

use std::{collections::BTreeMap, time::SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One act on an image or on the pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Act {
    /// Time of the act.
    #[serde(with = "moment")]
    pub at: SystemTime,
    /// Kind of the act.
    pub code: ActCode,
    /// The image's key; for a change of pins, all matching images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// The image's names, the requested one first; for a change of pins, the pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The requester, as far as known: `command`, `CRI`, `pod NAMESPACE/NAME`.
    pub by: String,
    /// Bytes fetched or reclaimed, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Duration in milliseconds, where recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// The reason as text, where the code is not enough.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Of a pull by the embedded store: what each host of the registry sent. At most [`PullHost::REPORTED_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<PullHost>,
}

/// What one host, a mirror or the registry itself, sent for a pull, and how its requests failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PullHost {
    /// `HOST:PORT`, without user and path.
    pub host: String,
    /// It sent or confirmed the manifest.
    pub manifest: bool,
    /// Blobs of which it sent bytes.
    pub blobs: u64,
    /// Bytes of those blobs.
    pub bytes: u64,
    /// Failed requests by class; at most [`PullHost::CLASSES_MAX`] classes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
}

impl PullHost {
    /// Hosts reported for one pull.
    pub const REPORTED_MAX: usize = 8;
    /// Classes of failures reported for one host.
    pub const CLASSES_MAX: usize = 8;

    /// Adds what hosts sent in a further attempt of the same pull.
    pub(crate) fn add_all(known: &mut Vec<Self>, more: &[Self]) {
        for host in more {
            if let Some(other) = known.iter_mut().find(|other| other.host == host.host) {
                other.add(host);
            } else if known.len() < Self::REPORTED_MAX {
                known.push(host.clone());
            }
        }
    }

    fn add(&mut self, more: &Self) {
        self.manifest |= more.manifest;
        self.blobs = self.blobs.saturating_add(more.blobs);
        self.bytes = self.bytes.saturating_add(more.bytes);
        for (class, count) in &more.failures {
            if self.failures.len() < Self::CLASSES_MAX || self.failures.contains_key(class) {
                *self.failures.entry(class.clone()).or_default() += count;
            }
        }
    }
}

/// The kind of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActCode {
    /// The image was pulled.
    Pulled,
    /// The image came from an archive.
    Imported,
    /// The image was removed with all its names on request.
    RemovedOnRequest,
    /// One name of the image was removed on request.
    UntaggedOnRequest,
    /// A pattern was pinned.
    Pinned,
    /// A pattern was unpinned.
    Unpinned,
    /// Another image manager of the node pulled it, according to its records.
    Adopted,
    /// A pull of this name failed; the act has names and no key.
    PullFailed,
    /// The caller of a pull disconnected before the end; the act has names and no key.
    PullGivenUp,
    /// A collection is about to remove the image. The collection records the outcome unless the process ends first.
    Removing,
}

impl Act {
    /// Whether the act is a pull without an image: names and no key.
    pub(super) fn is_of_a_name(&self) -> bool {
        matches!(self.code, ActCode::PullFailed | ActCode::PullGivenUp)
    }
}

impl ActCode {
    /// Whether the image was present at the time of the act.
    pub(super) fn shows_presence(self) -> bool {
        matches!(self, Self::Pulled | Self::Imported | Self::Adopted | Self::Removing)
    }

    /// The stable code.
    pub fn code(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
            Self::Imported => "imported",
            Self::RemovedOnRequest => "removed_on_request",
            Self::UntaggedOnRequest => "untagged_on_request",
            Self::Pinned => "pinned_on_request",
            Self::Unpinned => "unpinned_on_request",
            Self::Adopted => "adopted",
            Self::PullFailed => "pull_failed",
            Self::PullGivenUp => "pull_given_up",
            Self::Removing => "removing",
        }
    }
}

/// A collection. The log has it by its differences from the previous one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Times, requester and totals.
    pub head: RunHead,
    /// One decision per listed image; in the log those that changed, or whose image has other names or another size.
    #[serde(default, rename = "decided", skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// Images that are no longer listed; the writer finds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// The attempted removals, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Outcome>,
    /// Number of decisions omitted because the log has no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

/// Times, requester and totals of a collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    /// Start of the collection.
    #[serde(with = "moment")]
    pub at: SystemTime,
    /// End of the collection; images are listed between the two.
    #[serde(with = "moment")]
    pub until: SystemTime,
    /// The requester: `timer`, `command`, `pull`.
    pub by: String,
    /// Decisions without removals.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Listed bytes of the removed images.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claimed: u64,
    /// Bytes that became available on the disk, where measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
    /// Errors of the collection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The decision on one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The image's key.
    pub key: String,
    /// Its names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The listed size in bytes.
    pub size: u64,
    /// Whether the image is to be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes: bool,
    /// The stable code of the reason.
    pub code: String,
    /// The inputs of the reason.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub inputs: Value,
    /// The reason as text.
    pub text: String,
}

/// The result of one removal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The image's key.
    pub key: String,
    /// Its names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Result of the removal.
    pub result: OutcomeResult,
}

/// Result of a removal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeResult {
    /// Removed; the listed size in bytes.
    Removed(u64),
    /// The runtime failed to remove it; its error.
    Failed(String),
    /// A check after the plan prevented the removal.
    Spared {
        /// The stable code of the check.
        code: String,
        /// The check's result as text.
        text: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Act(Act),
    Run(Run),
    Lost(LostLine),
}

/// Records that were lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LostLine {
    /// When writing succeeded again.
    #[serde(with = "moment")]
    pub(super) at: SystemTime,
    pub(super) count: u64,
    pub(super) error: String,
}

/// RFC 3339 times, exact to the nanosecond.
pub(super) mod moment {
    use std::time::SystemTime;

    use jiff::Timestamp;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _, ser::Error as _};

    pub(in super::super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Timestamp::try_from(*time).map_err(S::Error::custom)?)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse::<Timestamp>().map(SystemTime::from).map_err(D::Error::custom)
    }
}
