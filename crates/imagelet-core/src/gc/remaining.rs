//! Images that a removal did not remove: later collections spare them until their names change.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::reason::Reason;
use crate::{
    image::{Image, ImageKey},
    inventory::Snapshot,
};

/// The names of an image as a pass after its removal lists them; `None` before that pass.
type LaterNames = Option<Vec<String>>;

/// Each image with the reason and its names.
#[derive(Debug, Default)]
pub(super) struct RemainingImages(Mutex<BTreeMap<ImageKey, (Reason, LaterNames)>>);

impl RemainingImages {
    /// `left`: the image after its removal, where no pass follows at once.
    pub(super) fn add(&self, key: ImageKey, reason: Reason, left: Option<&Image>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, (reason, left.map(names)));
    }

    /// The images of a pass to spare, but those that stay for a use or a pin. Forgets images that are absent or have
    /// other names.
    pub(super) fn of(&self, snapshot: &Snapshot) -> BTreeMap<ImageKey, Reason> {
        let mut remaining = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remaining.is_empty() {
            return BTreeMap::new();
        }
        let (mut listed, mut spared) = (BTreeMap::new(), BTreeMap::new());
        for entry in &snapshot.entries {
            let (key, names) = (entry.key(), names(&entry.image));
            if let Some((reason, known)) = remaining.remove(&key)
                && known.is_none_or(|known| known == names)
            {
                if entry.in_use_by.is_empty() && entry.pinned_by.is_empty() {
                    spared.insert(key.clone(), reason.clone());
                }
                listed.insert(key, (reason, Some(names)));
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
