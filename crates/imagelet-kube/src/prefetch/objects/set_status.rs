//! The status of a set, which the controller alone writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Deserializer, Serialize};

/// What the controller writes. What cannot be read is absent: the next write replaces it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SetStatus {
    pub(crate) observed_generation: i64,
    /// When the controller first saw this generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<Time>,
    /// When the last node finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished_at: Option<Time>,
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

/// The nodes that a set selects, by what they report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeCounts {
    /// All of them; zero before the controller has seen the set.
    pub wanted: usize,
    /// They have fetched all images.
    pub ready: usize,
    pub pulling: usize,
    /// An image failed on them.
    pub failed: usize,
    /// They have not begun.
    pub waiting: usize,
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

impl SetStatus {
    pub(crate) fn condition(&self, name: &str) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.type_ == name)
    }
}

/// A status that cannot be read is an empty one.
pub(super) fn readable<'de, D: Deserializer<'de>>(value: D) -> Result<SetStatus, D::Error> {
    let value = serde_json::Value::deserialize(value)?;
    Ok(SetStatus::deserialize(value).unwrap_or_default())
}
