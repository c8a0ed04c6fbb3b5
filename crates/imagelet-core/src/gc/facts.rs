//! What a decision may know of one image: a copy, so that later passes change nothing.

use std::{collections::BTreeMap, time::SystemTime};

use serde::{Deserialize, Serialize};

use crate::{
    image::{ByteSize, ImageKey, SharedNames},
    inventory::{Entry, Origin, PullCost, UseHistory},
};

/// What a decision may know of one image. `None` for a time is earlier than all times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// Which.
    pub key: ImageKey,
    /// Its names with tag.
    pub tags: SharedNames,
    /// Its names with digest.
    pub digests: SharedNames,
    /// What the runtime lists it with; shared layers count in each image.
    pub size: ByteSize,
    /// When a pass first saw it.
    pub first_seen: Option<SystemTime>,
    /// When it was last used or asked for.
    pub last_used: Option<SystemTime>,
    /// When it was last asked for.
    pub leased_at: Option<SystemTime>,
    /// Until when the container it was asked for may still come.
    pub leased_until: Option<SystemTime>,
    /// When its last user was gone from a list, while that is to be seen twice.
    pub released_at: Option<SystemTime>,
    /// Who holds it.
    pub in_use_by: Vec<String>,
    /// What pins it.
    pub pinned_by: Vec<String>,
    /// How often it was used.
    pub use_count: u64,
    /// Who used it last, as `NAMESPACE/POD`.
    pub last_user: Option<String>,
    /// What its last pull cost.
    pub pulled: Option<PullCost>,
    /// How it came to be here.
    pub origin: Origin,
    /// Those labels of its configuration that rules ask for; `None`: nobody asked, or nobody could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// How its uses follow one another.
    #[serde(default)]
    pub history: UseHistory,
}

impl ImageFacts {
    /// What the inventory knows of it.
    pub fn of(entry: &Entry) -> Self {
        Self {
            key: entry.key(),
            tags: SharedNames::tags_of(&entry.image),
            digests: SharedNames::digests_of(&entry.image),
            size: entry.image.size,
            first_seen: Some(entry.first_seen),
            last_used: entry.last_used,
            leased_at: entry.leased_at,
            leased_until: entry.leased_until,
            released_at: entry.released_at,
            in_use_by: entry.in_use_by.clone(),
            pinned_by: entry.pinned_by.clone(),
            use_count: entry.use_count,
            last_user: entry.last_user.clone(),
            pulled: entry.pulled,
            origin: entry.origin,
            labels: None,
            history: entry.history.clone(),
        }
    }
}
