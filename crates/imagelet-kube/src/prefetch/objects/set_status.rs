//! The status of a set, which the controller alone writes.

use serde::{Deserialize, Deserializer, Serialize};

/// What the controller writes. What cannot be read is absent: the next write replaces it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SetStatus {
    /// The generation that all of it is about.
    pub(crate) observed_generation: u64,
    /// When the controller first saw this generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<String>,
    /// When the last node finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wave: Option<WaveStatus>,
    pub(crate) nodes: NodeCounts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<FailureCount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<Condition>,
}

/// Which nodes may begin: those whose place is below the cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct WaveStatus {
    pub(crate) cut: u64,
}

/// The nodes that the set selects, by what they report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct NodeCounts {
    pub(crate) wanted: usize,
    pub(crate) ready: usize,
    pub(crate) pulling: usize,
    pub(crate) failed: usize,
    pub(crate) waiting: usize,
}

/// One class of failure: how many nodes have it, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct FailureCount {
    pub(crate) class: String,
    pub(crate) hop: String,
    pub(crate) nodes: usize,
    pub(crate) node: String,
    pub(crate) image: String,
    pub(crate) message: String,
}

/// A condition, as in `meta/v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    pub(crate) r#type: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) observed_generation: u64,
    pub(crate) last_transition_time: String,
}

impl SetStatus {
    pub(crate) fn has(&self, condition: &str) -> bool {
        self.conditions.iter().any(|it| it.r#type == condition && it.status == "True")
    }
}

/// A status that cannot be read is an empty one.
pub(super) fn readable<'de, D: Deserializer<'de>>(value: D) -> Result<SetStatus, D::Error> {
    let value = serde_json::Value::deserialize(value)?;
    Ok(SetStatus::deserialize(value).unwrap_or_default())
}
