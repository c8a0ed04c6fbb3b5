//! What is put on record: single acts, and collections with what they decided.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something that somebody did to one image, or to the pins.
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
    /// Who asked, as far as known: `command`, `CRI`, `pod NAMESPACE/NAME`.
    pub by: String,
    /// Bytes fetched or given back, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// How long it took, in milliseconds, where that is worth knowing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// Why, for people, where the code does not say it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// What somebody did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActCode {
    /// It was pulled.
    Pulled,
    /// It was removed with all its names, because somebody said so.
    RemovedOnRequest,
    /// One name was taken from it, because somebody said so.
    UntaggedOnRequest,
    /// A pattern was pinned.
    Pinned,
    /// A pattern was unpinned.
    Unpinned,
    /// Another manager of the node pulled it, and its records say so.
    Adopted,
    /// A pull of this name failed. No image is known by it, so there are names and no key.
    PullFailed,
    /// A pull of this name was given up: its caller is gone. Names and no key, too.
    PullGivenUp,
    /// A collection is about to remove it: what came of that is in the collection's own lines, if it lived to write them.
    Removing,
}

impl Act {
    /// Whether it records a pull that brought nothing: a name without an image.
    pub(super) fn is_of_a_name(&self) -> bool {
        matches!(self.code, ActCode::PullFailed | ActCode::PullGivenUp)
    }
}

impl ActCode {
    /// All there are.
    pub const ALL: [Self; 9] = [
        Self::Pulled,
        Self::RemovedOnRequest,
        Self::UntaggedOnRequest,
        Self::Pinned,
        Self::Unpinned,
        Self::Adopted,
        Self::PullFailed,
        Self::PullGivenUp,
        Self::Removing,
    ];

    /// The stable word.
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

/// A collection: what was decided, and what came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// What it was and did as a whole.
    pub head: RunHead,
    /// One for each image that was listed.
    pub decisions: Vec<Decision>,
    /// The removals that were tried, in order.
    pub outcomes: Vec<Outcome>,
}

/// What a collection was and did as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    /// When it began.
    #[serde(with = "moment")]
    pub at: SystemTime,
    /// When it was over: images were listed between the two.
    #[serde(with = "moment")]
    pub until: SystemTime,
    /// Who asked: `timer`, `command`, `pull`, `pressure`.
    pub by: String,
    /// It told what it would do, and did nothing.
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

impl Default for RunHead {
    fn default() -> Self {
        Self {
            at: SystemTime::UNIX_EPOCH,
            until: SystemTime::UNIX_EPOCH,
            by: String::new(),
            shadow: false,
            claimed: 0,
            measured: None,
            failures: Vec::new(),
        }
    }
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
    /// The stable word of the reason.
    pub code: String,
    /// What the reason rests on.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub inputs: Value,
    /// The reason, for people.
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
    /// What came of it.
    pub result: OutcomeResult,
}

/// What came of a removal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeResult {
    /// The image is gone; it was listed with this many bytes.
    Removed(u64),
    /// The runtime did not remove it, and said this.
    Failed(String),
    /// Something came between the plan and the removal.
    Spared {
        /// The stable word of it.
        code: String,
        /// The same for people.
        text: String,
    },
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
