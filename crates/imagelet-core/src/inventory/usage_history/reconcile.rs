//! The reconciliation of images known beyond passes: other managers' images, and images missing from a list.

use std::{
    mem,
    time::{Duration, SystemTime},
};

use crate::inventory::usage_history::{ImageUsage, UsageHistory};
use crate::{
    image::{ImageId, ImageKey},
    inventory::{
        detect::{Record, Records},
        usage_history::use_history::ImageOrigin,
    },
};

/// Limit of images from another manager's records.
const ADOPTED_MAX: usize = 50_000;
/// How long a runtime may list no image and still be assumed to have kept them.
const UNLISTED_FOR_MAX: Duration = Duration::from_hours(1);
/// A single image that comes back may have been pulled again.
const RETURNED_MIN: usize = 2;
/// The percentage of images that must come back at once. A wiped store that is refilled has few of them at first.
const RETURNED_PERCENT: usize = 90;

impl UsageHistory {
    /// Another manager recorded the image, since that time if known.
    pub(in crate::inventory) fn adopt(&mut self, id: &ImageId, since: Option<SystemTime>) {
        if self.adopted.len() < ADOPTED_MAX {
            self.adopted.insert(id.clone(), since);
        }
    }

    /// Takes the images with a changed first sight; an unreported recent pull of them is possible.
    pub(in crate::inventory) fn take_dated(&mut self) -> Vec<ImageKey> {
        mem::take(&mut self.dated)
    }

    /// Starts a pass that listed these images.
    pub(in crate::inventory) fn begin_pass(&mut self, records: &Records, now: SystemTime) {
        self.returning = None;
        if records.is_empty() {
            if self.present().next().is_some() {
                self.unlisted = Some(now);
            }
            return;
        }
        let Some(unlisted) = self.unlisted.take() else { return };
        let gone = || self.images.iter().filter(|(_, remembered)| remembered.gone == Some(unlisted));
        let (all, back) = (gone().count(), gone().filter(|(key, _)| records.contains_key(*key)).count());
        let is_short = now.duration_since(unlisted).unwrap_or_default() <= UNLISTED_FOR_MAX;
        if is_short && back >= RETURNED_MIN && back * 100 >= all * RETURNED_PERCENT {
            tracing::warn!(images = back, "the runtime lists images again that it did not list; they keep their ages");
            self.returning = Some(unlisted);
        }
    }

    /// After a restart the last list may have been empty.
    pub(in crate::inventory) fn resume_unlisted(&mut self) {
        if self.present().next().is_none() {
            self.unlisted = self.images.values().filter_map(|remembered| remembered.gone).max();
        }
    }

    /// Restores an image that was absent since then.
    pub(in crate::inventory) fn come_back(
        &mut self,
        key: &ImageKey,
        remembered: &mut ImageUsage,
        record: &mut Record,
        gone: SystemTime,
    ) {
        let is_forgetful = self.is_forgetful;
        if !is_forgetful {
            record.last_used = record.last_used.max(remembered.last_used);
        }
        if self.returning == Some(gone) {
            if !is_forgetful {
                record.first_seen = remembered.first_seen.or(record.first_seen).min(record.first_seen);
                self.dated.push(key.clone());
            }
            return;
        }
        remembered.history.comebacks += 1;
        // Another manager brought it back, unless a recorded pull is later.
        if remembered.pulled.is_none_or(|pulled| pulled.at <= gone) {
            remembered.origin = ImageOrigin::Found;
        }
    }

    /// Merges another manager's record of a new image.
    pub(in crate::inventory) fn take_over(
        &mut self,
        key: &ImageKey,
        remembered: &mut ImageUsage,
        record: &mut Record,
        is_new: bool,
        now: SystemTime,
    ) {
        let Some(since) = self.adopted.get(key.id()) else { return };
        if !since.is_none_or(|since| since <= now) || !remembered.adopt() {
            return;
        }
        if let Some(since) = since.filter(|_| is_new && !self.is_forgetful) {
            record.first_seen = record.first_seen.map(|seen| seen.min(since));
            self.dated.push(key.clone());
        }
    }
}

impl ImageUsage {
    /// Marks the image as adopted. Returns whether this is a change.
    pub(in crate::inventory) fn adopt(&mut self) -> bool {
        let is_news = self.origin == ImageOrigin::Found;
        if is_news {
            self.origin = ImageOrigin::Adopted;
        }
        is_news
    }
}
