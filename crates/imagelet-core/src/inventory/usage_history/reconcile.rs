//! Images of which more is known than passes have seen: another manager's, and those that were merely not listed.

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

/// Most images that another manager's records tell of.
const ADOPTED_MAX: usize = 50_000;
/// How long a runtime may list no image at all, and images that then come back were there all the time.
const UNLISTED_FOR_MAX: Duration = Duration::from_hours(1);
/// A single image that comes back may have been pulled again.
const RETURNED_MIN: usize = 2;
/// So many percent of all have to come back at once. Who wiped a store and fills it again has few of them at first.
const RETURNED_PERCENT: usize = 90;

impl UsageHistory {
    /// Another manager of this node has the image on record, since that time; without one it says only whose it is.
    pub(in crate::inventory) fn adopt(&mut self, id: &ImageId, since: Option<SystemTime>) {
        if self.adopted.len() < ADOPTED_MAX {
            self.adopted.insert(id.clone(), since);
        }
    }

    /// Images that were dated back since this was asked last: whoever pulled one just now is not known to have done so.
    pub(in crate::inventory) fn take_dated(&mut self) -> Vec<ImageKey> {
        mem::take(&mut self.dated)
    }

    /// A pass begins, which found these images.
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

    /// After a restart: a list without any image may have been the last one.
    pub(in crate::inventory) fn resume_unlisted(&mut self) {
        if self.present().next().is_none() {
            self.unlisted = self.images.values().filter_map(|remembered| remembered.gone).max();
        }
    }

    /// An image is there that was gone since then.
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
        // Whoever brought it this time, it was not this manager, unless that tells of its pull.
        if remembered.pulled.is_none_or(|pulled| pulled.at <= gone) {
            remembered.origin = ImageOrigin::Found;
        }
    }

    /// An image is there that was not: another manager may know it.
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
    /// Another manager has it on record. True: that is news.
    pub(in crate::inventory) fn adopt(&mut self) -> bool {
        let is_news = self.origin == ImageOrigin::Found;
        if is_news {
            self.origin = ImageOrigin::Adopted;
        }
        is_news
    }
}
