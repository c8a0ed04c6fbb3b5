//! Images still present after their removal. Later collections skip them until their names change or they are used.

use std::{collections::BTreeMap, sync::Mutex, time::SystemTime};

use crate::{
    image::{Image, ImageKey},
    inventory::{Reason, Snapshot},
    lock::locked,
};

#[derive(Debug)]
struct Remaining {
    reason: Reason,
    since: SystemTime,
    /// The names of the image in the first listing after its removal. `None`: no listing has followed yet.
    names: Option<Vec<String>>,
}

#[derive(Debug, Default)]
pub(super) struct RemainingImages(Mutex<BTreeMap<ImageKey, Remaining>>);

impl RemainingImages {
    /// `left` is the image as queried after its removal. With `None`, a listing must follow at once and sets the names.
    pub(super) fn add(&self, key: ImageKey, reason: Reason, since: SystemTime, left: Option<&Image>) {
        let remaining = Remaining { reason, since, names: left.map(names) };
        locked(&self.0).insert(key, remaining);
    }

    /// The listed images that a collection skips, without pinned images, which stay anyway. Forgets images that are
    /// absent, have new names, or were used or first seen after the removal: a pull may have added them again.
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
