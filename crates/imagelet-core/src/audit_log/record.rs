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

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something done to one image, or to the pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Act {
    /// When.
    #[serde(with = "moment")]
    pub at: SystemTime,
    /// What.
    pub code: ActCode,
    /// The image's key; of a change of pins all images that the pattern held then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Its names, the one it was asked for by first; of a change of pins the pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The requester, as far as known: `command`, `CRI`, `pod NAMESPACE/NAME`.
    pub by: String,
    /// Bytes fetched or given back, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// How long it took, in milliseconds, where that is worth knowing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// The reason as text, where the code does not say it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActCode {
    /// It was pulled.
    Pulled,
    /// It was removed with all its names on request.
    RemovedOnRequest,
    /// One name was removed from it on request.
    UntaggedOnRequest,
    /// A pattern was pinned.
    Pinned,
    /// A pattern was unpinned.
    Unpinned,
    /// Another manager of the node pulled it, and its records say so.
    Adopted,
    /// A pull of this name failed. No image is known by it, so there are names and no key.
    PullFailed,
    /// The caller of a pull of this name was gone before its end. Names and no key, too.
    PullGivenUp,
    /// A collection is about to remove it: the outcome is in the collection's own line, unless the process ended before.
    Removing,
}

impl Act {
    /// Whether it records a pull without result: a name without an image.
    pub(super) fn is_of_a_name(&self) -> bool {
        matches!(self.code, ActCode::PullFailed | ActCode::PullGivenUp)
    }
}

impl ActCode {
    /// The stable code.
    pub fn code(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
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

/// A collection: its decisions and their outcomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The collection as a whole.
    pub head: RunHead,
    /// One for each image that was listed.
    pub decisions: Vec<Decision>,
    /// The removals that were tried, in order.
    pub outcomes: Vec<Outcome>,
}

/// A collection as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    /// When it began.
    #[serde(with = "moment")]
    pub at: SystemTime,
    /// When it was over: images were listed between the two.
    #[serde(with = "moment")]
    pub until: SystemTime,
    /// The requester: `timer`, `command`, `pull`, `pressure`.
    pub by: String,
    /// It decided, and removed nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Bytes of the removed images as listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claimed: u64,
    /// Bytes the disk gained, where measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What was decided on one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The image's key.
    pub key: String,
    /// Its names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// What it is listed with, in bytes.
    pub size: u64,
    /// Whether it goes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes: bool,
    /// The stable code of the reason.
    pub code: String,
    /// What the reason rests on.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub inputs: Value,
    /// The reason as text.
    pub text: String,
}

/// How one removal went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The image's key.
    pub key: String,
    /// Its names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// How it ended.
    pub result: OutcomeResult,
}

/// How a removal ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeResult {
    /// The image is gone; it was listed with this many bytes.
    Removed(u64),
    /// The runtime did not remove it; its error.
    Failed(String),
    /// Something came between the plan and the removal.
    Spared {
        /// Its stable code.
        code: String,
        /// The same as text.
        text: String,
    },
}

/// What one line says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Act(Act),
    Run(RunLine),
    Lost(LostLine),
}

/// A collection as its differences from the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunLine {
    pub(super) head: RunHead,
    /// What was decided otherwise than before, or of images listed with other names or another size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) decided: Vec<Decision>,
    /// Images that are not listed any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) outcomes: Vec<Outcome>,
    /// Decisions that the log has no room for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) left_out: u64,
}

/// What could not be written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LostLine {
    /// When this was written, after all.
    #[serde(with = "moment")]
    pub(super) at: SystemTime,
    /// How many acts and collections.
    pub(super) count: u64,
    pub(super) error: String,
}

/// Times as RFC 3339, exact.
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
