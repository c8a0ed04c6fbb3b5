//! The status of a set. Only the controller writes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Deserializer, Serialize};

/// The fields that the controller writes. An unreadable status is empty, and the next write replaces it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SetStatus {
    pub(crate) observed_generation: i64,
    /// The time when the controller first saw this generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<Time>,
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

/// Nodes with a place below the cut may begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct WaveStatus {
    pub(crate) cut: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeCounts {
    /// All selected nodes. Zero before the controller has seen the set.
    pub wanted: usize,
    pub ready: usize,
    pub pulling: usize,
    pub failed: usize,
    pub waiting: usize,
}

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

pub(super) fn readable<'de, D: Deserializer<'de>>(value: D) -> Result<SetStatus, D::Error> {
    let value = serde_json::Value::deserialize(value)?;
    Ok(SetStatus::deserialize(value).unwrap_or_default())
}
