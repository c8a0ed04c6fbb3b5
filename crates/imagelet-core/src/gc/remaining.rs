//! Images still present after their removal. Later collections skip them until their names change or they are used.

use std::{collections::BTreeMap, sync::Mutex, time::SystemTime};

use super::reason::Reason;
use crate::{
    image::{Image, ImageKey},
    inventory::Snapshot,
    lock::locked,
};

#[derive(Debug)]
struct Remaining {
    reason: Reason,
    since: SystemTime,
    /// The names in the first pass after the removal. `None` before that pass.
    names: Option<Vec<String>>,
}

#[derive(Debug, Default)]
pub(super) struct RemainingImages(Mutex<BTreeMap<ImageKey, Remaining>>);

impl RemainingImages {
    /// `left`: the image after its removal; required if no pass follows at once.
    pub(super) fn add(&self, key: ImageKey, reason: Reason, since: SystemTime, left: Option<&Image>) {
        let remaining = Remaining { reason, since, names: left.map(names) };
        locked(&self.0).insert(key, remaining);
    }

    /// The listed images to skip, except pinned images, which stay anyway. Forgets images that are absent, have other
    /// names, or were used or first seen since the removal: a pull may have added them again.
    pub(super) fn of(&self, snapshot: &Snapshot) -> BTreeMap<ImageKey, Reason> {
        let mut remaining = locked(&self.0);
        if remaining.is_empty() {
            return BTreeMap::new();
        }
        let (mut listed, mut spared) = (BTreeMap::new(), BTreeMap::new());
        for entry in &snapshot.entries {
            let (key, names) = (entry.key(), names(&entry.image));
            if let Some(known) = remaining.remove(&key)
                && known.names.as_ref().is_none_or(|known| *known == names)
                && entry.usage.used_by.is_empty()
                && entry.first_seen() <= known.since
                && entry.usage.times.last_used.is_none_or(|used| used <= known.since)
            {
                if entry.pinned_by.is_empty() {
                    spared.insert(key.clone(), known.reason.clone());
                }
                listed.insert(key, Remaining { names: Some(names), ..known });
            }
        }
        *remaining = listed;
        spared
    }
}

fn names(image: &Image) -> Vec<String> {
    let mut names: Vec<String> = image.tags.iter().chain(&image.digests).cloned().collect();
    names.sort();
    names
}
