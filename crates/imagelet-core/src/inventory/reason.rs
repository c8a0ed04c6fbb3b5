//! The reason to keep or remove an image: a stable code with its inputs, and a text.

use std::{
    borrow::Cow,
    fmt,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{image::ByteSize, text::duration_text};

/// Why an image stays or is removed. The code is stable; the fields are the inputs of the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    InUse(Vec<String>),
    /// The image stays, because it is pinned by these patterns or sets, by `runtime` or as `sandbox image`.
    Pinned(Vec<String>),
    PodWaits(Vec<String>),
    Rule(String),
    LabelsUnknown(String),
    NotOwned,
    NoId,
    Young(Duration),
    Leased(Duration),
    /// The image stays, because it is leased until this time. `None`: another removal of the image is running.
    Awaited(Option<SystemTime>),
    /// The image stays: its last container vanished recently, so the list of containers may be incomplete.
    Released,
    JustUsed,
    NotNeeded,
    NotEnough,
    Recent {
        idle: Idle,
        idle_min: Duration,
    },
    Gone,
    Aborted(String),
    /// The runtime rejected the removal with this error. Only the runtime sees the user.
    Refused(String),
    Failed(String),
    /// The image stays, because it cannot be removed or was still present after its removal. The text is the error.
    Remains(String),
    Old {
        idle: Idle,
        age_max: Duration,
    },
    Room {
        idle: Idle,
        frees: ByteSize,
    },
    Unused(Idle),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    Used(Duration),
    /// The image was never used. The duration is the time since it was first listed.
    Never(Duration),
}

impl Idle {
    pub(crate) fn of(last_used: Option<SystemTime>, first_seen: SystemTime, now: SystemTime) -> Self {
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
    /// The reason for an image that a pod awaits, under a lease that ends at `until`. `until` is rounded up to a full
    /// second.
    pub(crate) fn awaited(until: SystemTime) -> Self {
        let since = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs() + u64::from(since.subsec_nanos() > 0);
        Self::Awaited(Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)))
    }

    pub fn code(&self) -> &'static str {
        self.parts().0
    }

    /// The inputs as JSON: camelCase keys, durations in seconds with the unit in the key. `null`: no inputs.
    pub fn inputs(&self) -> Value {
        self.parts().1
    }

    fn parts(&self) -> (&'static str, Value, Cow<'static, str>) {
        let of_idle = |idle: &Idle| {
            let (Idle::Used(passed) | Idle::Never(passed)) = idle;
            json!({"idleSeconds": seconds(*passed), "neverUsed": matches!(idle, Idle::Never(_))})
        };
        let idle_and = |idle: &Idle, key: &str, value: Value| {
            let mut inputs = of_idle(idle);
            inputs[key] = value;
            inputs
        };
        let null = Value::Null;
        match self {
            Self::InUse(by) => ("in_use", json!({"by": by}), format!("in use by {}", first_of(by)).into()),
            Self::Pinned(by) => {
                let quoted = |it: &String| match it.as_str() {
                    "runtime" => "the runtime".to_owned(),
                    "sandbox image" => "the sandbox image setting".to_owned(),
                    pattern => format!("`{pattern}`"),
                };
                let pins = by.iter().map(quoted).collect::<Vec<_>>().join(", ");
                ("pinned", json!({"by": by}), format!("pinned by {pins}").into())
            }
            Self::PodWaits(by) => ("pod_waits", json!({"by": by}), format!("awaited by {}", first_of(by)).into()),
            Self::Rule(rule) => ("rule", json!({"rule": rule}), format!("kept by the rule `{rule}`").into()),
            Self::LabelsUnknown(rule) => {
                let text = format!("its labels are not known, and the rule `{rule}` may keep it");
                ("labels_unknown", json!({"rule": rule}), text.into())
            }
            Self::NotOwned => ("not_owned", null, "neither pulled nor adopted by imagelet".into()),
            Self::NoId => ("no_id", null, "listed without an id".into()),
            Self::Young(age_min) => {
                let text = format!("younger than {}", duration_text(*age_min));
                ("young", json!({"ageMinSeconds": seconds(*age_min)}), text.into())
            }
            Self::Leased(lease) => {
                let text = format!("asked for less than {} ago", duration_text(*lease));
                ("leased", json!({"leaseSeconds": seconds(*lease)}), text.into())
            }
            Self::Awaited(None) => ("awaited", null, "asked for, and the container it is for may still come".into()),
            Self::Awaited(Some(until)) => {
                let until = moment(*until);
                let text = format!("asked for, and held until {until} for the container that may come");
                ("awaited", json!({"until": until}), text.into())
            }
            Self::Released => ("released", null, "in use until a moment ago".into()),
            Self::JustUsed => ("just_used", null, "used since the collection began".into()),
            Self::NotNeeded => ("not_needed", null, "not needed".into()),
            Self::NotEnough => ("not_enough", null, "all removable images together are not enough".into()),
            Self::Recent { idle, idle_min } => {
                let text = duration_text(*idle_min);
                let text = format!("idle for less than {text}, and the goal is out of reach: {idle}");
                ("recent", idle_and(idle, "idleMinSeconds", seconds(*idle_min)), text.into())
            }
            Self::Gone => ("gone", null, "gone already".into()),
            Self::Aborted(why) => ("aborted", json!({"why": why}), format!("the collection ended early: {why}").into()),
            Self::Refused(error) => {
                ("refused", json!({"error": error}), format!("the runtime refused to remove it: {error}").into())
            }
            Self::Failed(error) => ("failed", json!({"error": error}), format!("could not be removed: {error}").into()),
            Self::Remains(why) => ("remains", json!({"why": why}), format!("cannot be removed: {why}").into()),
            Self::Old { idle, age_max } => {
                let text = format!("unused for more than {}: {idle}", duration_text(*age_max));
                ("old", idle_and(idle, "ageMaxSeconds", seconds(*age_max)), text.into())
            }
            Self::Room { idle, frees } => {
                ("room", idle_and(idle, "frees", frees.0.into()), format!("room is wanted: {idle}").into())
            }
            Self::Unused(idle) => ("unused", of_idle(idle), format!("unused: {idle}").into()),
        }
    }
}

fn first_of(users: &[String]) -> String {
    const SHOWN_MAX: usize = 3;
    let shown = users[..users.len().min(SHOWN_MAX)].join(", ");
    match users.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn moment(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "the end of time".to_owned(), |at| at.to_string())
}

/// The seconds as JSON, without a fraction if possible. `Duration::MAX` means infinite and becomes `null`.
fn seconds(duration: Duration) -> Value {
    match duration {
        Duration::MAX => Value::Null,
        whole if whole.subsec_nanos() == 0 => whole.as_secs().into(),
        other => other.as_secs_f64().into(),
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts().2)
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
