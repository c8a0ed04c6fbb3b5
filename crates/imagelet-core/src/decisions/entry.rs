//! The documents on the lines of a segment. A newer version adds fields; readers pass over what they do not know.

use std::{collections::BTreeMap, time::SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::{Act, Outcome, RunHead, nanos};

/// What one line says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    /// The first line of a segment.
    Segment {
        /// Of this format.
        version: u32,
    },
    Act(Act),
    Run(Box<RunLine>),
    Same(Box<SameLine>),
    Lost(LostLine),
}

/// A collection, told by how it differs from the one before it in its chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RunLine {
    /// Lines of one process between two starts or two segments.
    pub(super) chain: String,
    /// The place in the chain; 0 begins it and tells everything.
    pub(super) number: u64,
    pub(super) head: RunHead,
    /// Absent: it was too long, and the chain cannot be replayed from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<InputLine>,
    /// How long it would have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_out: Option<u64>,
    /// What was decided otherwise than before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) decided: Vec<Group>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) outcomes: Vec<Outcome>,
}

/// Collections that decided nothing new.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SameLine {
    pub(super) chain: String,
    pub(super) number: u64,
    /// How many.
    pub(super) count: u64,
    /// When the first of them was.
    #[serde(with = "nanos")]
    pub(super) first: SystemTime,
    /// The last of them.
    pub(super) head: RunHead,
    pub(super) common: Value,
    pub(super) clocks: Vec<Value>,
}

/// What could not be written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LostLine {
    /// When this was written, after all.
    #[serde(with = "nanos")]
    pub(super) at: SystemTime,
    /// How many acts and collections.
    pub(super) count: u64,
    /// Bytes of a line cut off by a crash.
    #[serde(default)]
    pub(super) torn: u64,
    /// Why.
    pub(super) error: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct InputLine {
    pub(super) common: Value,
    pub(super) clocks: Vec<Value>,
    /// Images that are new or changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) set: Vec<ImageLine>,
    /// Images that are gone, by their place in the order of keys before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<u32>,
    /// Absent: nothing is known of layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) layers: Option<LayersLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ImageLine {
    #[serde(rename = "k")]
    pub(super) key: String,
    #[serde(rename = "n", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) names: Vec<String>,
    #[serde(rename = "s", default)]
    pub(super) size: u64,
    #[serde(rename = "f")]
    pub(super) facts: Value,
}

/// How the layers differ from before. Each layer of a chain has a number, counted up as they are first told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LayersLine {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) add: Vec<(String, Value)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) change: Vec<(u32, Value)>,
    /// Their order, as runs of numbers that follow one another: first and length. Absent: as before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<Vec<(u32, u32)>>,
    /// Images whose layers are new or others, by number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) set: BTreeMap<String, Vec<u32>>,
    /// Images that have none any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<String>,
    /// Null: as before.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) certainty: Value,
}

impl LayersLine {
    /// Whether nothing has changed.
    pub(super) fn is_same(&self) -> bool {
        self.add.is_empty()
            && self.change.is_empty()
            && self.order.is_none()
            && self.set.is_empty()
            && self.gone.is_empty()
            && self.certainty.is_null()
    }
}

/// Images of which the same was decided for the same reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Group {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) goes: bool,
    pub(super) code: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) inputs: Value,
    pub(super) text: String,
    /// Their places in the order of keys: where the line tells all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) at: Vec<u32>,
    /// Their keys, elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) keys: Vec<String>,
}
