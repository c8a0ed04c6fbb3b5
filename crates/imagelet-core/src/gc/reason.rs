//! The reason for keeping or removing an image: a stable code with its inputs, and a text.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{image::ByteSize, text::duration_text};

/// Why an image stays or is removed. The code is stable; the fields are the inputs of the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Stays: in use by these containers, mounts or exports.
    InUse(Vec<String>),
    /// Stays: pinned by these patterns, `runtime`, or `sandbox image`.
    Pinned(Vec<String>),
    /// Stays: these pods are bound to the node, and their containers of it do not exist yet.
    PodWaits(Vec<String>),
    Rule(String),
    /// Stays: this label rule may match, and the labels are unknown.
    LabelsUnknown(String),
    /// Stays: imagelet neither pulled nor adopted it, and the configuration removes only such images.
    NotOwned,
    /// Stays: the runtime lists it without an id, so it cannot be removed.
    NoId,
    /// Stays: first seen less than this minimum age ago.
    Young(Duration),
    /// Stays: requested less than this long ago, and no container is seen yet.
    Leased(Duration),
    /// Stays: requested, and its container may still start until then, in whole seconds; `None`: another caller is about
    /// to remove it.
    Awaited(Option<SystemTime>),
    /// Stays: in use at the last pass but one; a list may have missed its user.
    Released,
    JustUsed,
    /// Stays: no space was needed, or earlier removals free enough.
    NotNeeded,
    /// Stays: the goal is out of reach, so its removal gains nothing.
    InVain,
    /// Stays: the goal is out of reach, and it was not idle long enough to be removed in that case.
    Recent {
        idle: Idle,
        idle_min: Duration,
    },
    Gone,
    /// Stays: the collection ended early, for this cause.
    Aborted(String),
    /// Stays: the runtime refused the removal with this error, because of a user that only the runtime sees.
    Refused(String),
    Failed(String),
    /// Stays: it cannot be removed, or was still there after its removal, for this reason.
    Remains(String),
    Old {
        idle: Idle,
        age_max: Duration,
    },
    Room {
        idle: Idle,
        /// Bytes freed after the previous removals.
        frees: ByteSize,
    },
    Unused(Idle),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcPhase {
    Age,
    Space,
    All,
}

impl GcPhase {
    /// The metrics label; the kubelet counts the removal of all unused images as `space`, too.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Space | Self::All => "space",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    Used(Duration),
    /// Never used; since its first sight.
    Never(Duration),
}

impl Idle {
    pub(super) fn of(last_used: Option<SystemTime>, first_seen: SystemTime, now: SystemTime) -> Self {
        let since = |time: SystemTime| Duration::from_secs(now.duration_since(time).unwrap_or_default().as_secs());
        last_used.map_or_else(|| Self::Never(since(first_seen)), |used| Self::Used(since(used)))
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used(idle) => write!(f, "last used {} ago", duration_text(*idle)),
            Self::Never(Duration::MAX) => f.write_str("never used"),
            Self::Never(age) => write!(f, "never used, first seen {} ago", duration_text(*age)),
        }
    }
}

impl Reason {
    /// Rounds the end of the lease up to a full second.
    pub(crate) fn awaited(until: SystemTime) -> Self {
        let since = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs() + u64::from(since.subsec_nanos() > 0);
        Self::Awaited(Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)))
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::InUse(_) => "in_use",
            Self::Pinned(_) => "pinned",
            Self::PodWaits(_) => "pod_waits",
            Self::Rule(_) => "rule",
            Self::LabelsUnknown(_) => "labels_unknown",
            Self::NotOwned => "not_owned",
            Self::NoId => "no_id",
            Self::Young(_) => "young",
            Self::Leased(_) => "leased",
            Self::Awaited(_) => "awaited",
            Self::Released => "released",
            Self::JustUsed => "just_used",
            Self::NotNeeded => "not_needed",
            Self::InVain => "in_vain",
            Self::Recent { .. } => "recent",
            Self::Gone => "gone",
            Self::Aborted(_) => "aborted",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
            Self::Remains(_) => "remains",
            Self::Old { .. } => "old",
            Self::Room { .. } => "room",
            Self::Unused(_) => "unused",
        }
    }

    /// The inputs as a document: camelCase keys, durations in seconds with the unit in the key. Null without inputs.
    pub fn inputs(&self) -> Value {
        let of_idle = |idle: &Idle| {
            let (Idle::Used(passed) | Idle::Never(passed)) = idle;
            json!({"idleSeconds": seconds(*passed), "neverUsed": matches!(idle, Idle::Never(_))})
        };
        let idle_and = |idle: &Idle, key: &str, value: Value| {
            let mut document = of_idle(idle);
            document[key] = value;
            document
        };
        match self {
            Self::InUse(by) | Self::Pinned(by) | Self::PodWaits(by) => json!({"by": by}),
            Self::Rule(rule) | Self::LabelsUnknown(rule) => json!({"rule": rule}),
            Self::Young(age_min) => json!({"ageMinSeconds": seconds(*age_min)}),
            Self::Leased(lease) => json!({"leaseSeconds": seconds(*lease)}),
            Self::Awaited(Some(until)) => json!({"until": moment(*until)}),
            Self::Aborted(why) | Self::Remains(why) => json!({"why": why}),
            Self::Refused(error) | Self::Failed(error) => json!({"error": error}),
            Self::Recent { idle, idle_min } => idle_and(idle, "idleMinSeconds", seconds(*idle_min)),
            Self::Old { idle, age_max } => idle_and(idle, "ageMaxSeconds", seconds(*age_max)),
            Self::Room { idle, frees } => idle_and(idle, "frees", frees.0.into()),
            Self::Unused(idle) => of_idle(idle),
            Self::NotOwned
            | Self::NoId
            | Self::Awaited(None)
            | Self::Released
            | Self::JustUsed
            | Self::NotNeeded
            | Self::InVain
            | Self::Gone => Value::Null,
        }
    }
}

fn moment(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "the end of time".to_owned(), |at| at.to_string())
}

/// Seconds, whole where possible; null for an infinite duration.
fn seconds(duration: Duration) -> Value {
    match duration {
        Duration::MAX => Value::Null,
        whole if whole.subsec_nanos() == 0 => whole.as_secs().into(),
        other => other.as_secs_f64().into(),
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const USERS_SHOWN_MAX: usize = 3;
        match self {
            Self::InUse(by) | Self::PodWaits(by) => {
                f.write_str(if matches!(self, Self::InUse(_)) { "in use by " } else { "awaited by " })?;
                f.write_str(&by.iter().take(USERS_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", "))?;
                match by.len().saturating_sub(USERS_SHOWN_MAX) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Self::Pinned(by) => {
                let quoted = |it: &String| match it.as_str() {
                    "runtime" => "the runtime".to_owned(),
                    "sandbox image" => "the sandbox image setting".to_owned(),
                    pattern => format!("`{pattern}`"),
                };
                write!(f, "pinned by {}", by.iter().map(quoted).collect::<Vec<_>>().join(", "))
            }
            Self::Rule(rule) => write!(f, "kept by the rule `{rule}`"),
            Self::LabelsUnknown(rule) => {
                write!(f, "its labels are not known, and the rule `{rule}` may keep it")
            }
            Self::NotOwned => f.write_str("neither pulled nor adopted by imagelet"),
            Self::NoId => f.write_str("listed without an id"),
            Self::Young(age_min) => write!(f, "younger than {}", duration_text(*age_min)),
            Self::Leased(lease) => write!(f, "asked for less than {} ago", duration_text(*lease)),
            Self::Awaited(None) => f.write_str("asked for, and the container it is for may still come"),
            Self::Awaited(Some(until)) => {
                write!(f, "asked for, and held until {} for the container that may come", moment(*until))
            }
            Self::Released => f.write_str("in use until a moment ago"),
            Self::JustUsed => f.write_str("used since the collection began"),
            Self::NotNeeded => f.write_str("not needed"),
            Self::InVain => f.write_str("would be removed in vain: all that may go is not enough"),
            Self::Recent { idle, idle_min } => {
                write!(f, "idle for less than {}, and the goal is out of reach: {idle}", duration_text(*idle_min))
            }
            Self::Gone => f.write_str("gone already"),
            Self::Aborted(why) => write!(f, "the collection ended early: {why}"),
            Self::Refused(error) => write!(f, "the runtime refused to remove it: {error}"),
            Self::Failed(error) => write!(f, "could not be removed: {error}"),
            Self::Remains(why) => write!(f, "cannot be removed: {why}"),
            Self::Old { idle, age_max } => write!(f, "unused for more than {}: {idle}", duration_text(*age_max)),
            Self::Room { idle, .. } => write!(f, "room is wanted: {idle}"),
            Self::Unused(idle) => write!(f, "unused: {idle}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_read_as_sentences() {
        let users = |count: usize| Reason::InUse((0..count).map(|number| format!("default/web/{number}")).collect());
        for (reason, text) in [
            (users(1), "in use by default/web/0"),
            (users(5), "in use by default/web/0, default/web/1, default/web/2 and 2 more"),
            (Reason::PodWaits(vec!["default/web".to_owned()]), "awaited by default/web"),
            (Reason::Pinned(vec!["runtime".to_owned(), "x*".to_owned()]), "pinned by the runtime, `x*`"),
            (Reason::Pinned(vec!["sandbox image".to_owned()]), "pinned by the sandbox image setting"),
            (Reason::Young(Duration::from_mins(2)), "younger than 2m0s"),
            (
                Reason::Recent { idle: Idle::Used(Duration::from_secs(90)), idle_min: Duration::from_hours(1) },
                "idle for less than 1h0m0s, and the goal is out of reach: last used 1m30s ago",
            ),
            (Reason::NotNeeded, "not needed"),
            (Reason::Refused("held".to_owned()), "the runtime refused to remove it: held"),
            (Reason::Rule("namespace: kube-*".to_owned()), "kept by the rule `namespace: kube-*`"),
            (Reason::NotOwned, "neither pulled nor adopted by imagelet"),
            (
                Reason::Room { idle: Idle::Never(Duration::from_secs(90)), frees: ByteSize(1) },
                "room is wanted: never used, first seen 1m30s ago",
            ),
        ] {
            assert_eq!(reason.to_string(), text);
        }
    }

    #[test]
    fn what_a_reason_rests_on_is_a_document_with_its_units_in_the_names() {
        let (used, never) = (Duration::from_secs(90), Duration::from_hours(1));
        for (reason, inputs) in [
            (Reason::NotNeeded, Value::Null),
            (Reason::InUse(vec!["a".to_owned()]), json!({"by": ["a"]})),
            (Reason::PodWaits(vec!["a".to_owned()]), json!({"by": ["a"]})),
            (Reason::Young(Duration::from_mins(2)), json!({"ageMinSeconds": 120})),
            (Reason::Leased(Duration::from_millis(1500)), json!({"leaseSeconds": 1.5})),
            (Reason::Awaited(Some(SystemTime::UNIX_EPOCH)), json!({"until": "1970-01-01T00:00:00Z"})),
            (
                Reason::Old { idle: Idle::Used(used), age_max: Duration::from_mins(1) },
                json!({"idleSeconds": 90, "neverUsed": false, "ageMaxSeconds": 60}),
            ),
            (
                Reason::Room { idle: Idle::Never(never), frees: ByteSize(7) },
                json!({"idleSeconds": 3600, "neverUsed": true, "frees": 7}),
            ),
            (Reason::Unused(Idle::Never(Duration::MAX)), json!({"idleSeconds": null, "neverUsed": true})),
        ] {
            assert_eq!(reason.inputs(), inputs, "{reason}");
        }
    }
}
