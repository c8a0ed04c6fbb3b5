//! What is remembered of an image beyond its age: where it came from, what it cost, how often it was used.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::image::ByteSize;

/// What the last pull of an image cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullCost {
    /// Compressed bytes that came over the network.
    pub bytes: ByteSize,
    /// From the first request to the image being there.
    pub duration: Duration,
    /// When it was there.
    pub at: SystemTime,
}

/// How an image came to be on the node, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// imagelet pulled it.
    Pulled,
    /// Somebody else did, and it was handed over: by a pull record or by an operator.
    Adopted,
    /// It was there when the first pass looked, or came behind imagelet's back.
    #[default]
    Found,
}
