//! The reconciliation of images known beyond passes: other managers' images, and images missing from a list.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    image::{Image, ImageId, ImageKey},
    inventory::usage_history::{ImageUsage, UsageHistory, use_history::ImageOrigin},
};

const ADOPTED_MAX: usize = 50_000;
/// How long a runtime may list no image and still be assumed to have kept them.
const UNLISTED_FOR_MAX: Duration = Duration::from_hours(1);
/// A single image that comes back may have been pulled again.
const RETURNED_MIN: usize = 2;
/// The percentage of images that must come back at once. A wiped store that is refilled has few of them at first.
const RETURNED_PERCENT: usize = 90;

impl UsageHistory {
    pub(in crate::inventory) fn adopt(&mut self, id: &ImageId, since: Option<SystemTime>) {
        if self.adopted.len() < ADOPTED_MAX {
            self.adopted.insert(id.clone(), since);
        }
    }

    /// Starts a pass that listed these images.
    pub(super) fn begin_pass(&mut self, images: &[Arc<Image>], now: SystemTime) {
        self.returning = None;
        if images.is_empty() {
            if self.present().next().is_some() {
                self.unlisted = Some(now);
            }
            return;
        }
        let Some(unlisted) = self.unlisted.take() else { return };
        let gone = || self.images.iter().filter(|(_, usage)| usage.gone == Some(unlisted));
        let is_listed = |key: &ImageKey| images.binary_search_by(|image| image.cmp_key(key)).is_ok();
        let (all, back) = (gone().count(), gone().filter(|(key, _)| is_listed(key)).count());
        let is_short = now.duration_since(unlisted).unwrap_or_default() <= UNLISTED_FOR_MAX;
        if is_short && back >= RETURNED_MIN && back * 100 >= all * RETURNED_PERCENT {
            tracing::warn!(images = back, "the runtime lists images again that it did not list; they keep their ages");
            self.returning = Some(unlisted);
        }
    }

    /// After a restart the last list may have been empty.
    pub(super) fn resume_unlisted(&mut self) {
        if self.present().next().is_none() {
            self.unlisted = self.images.values().filter_map(|usage| usage.gone).max();
        }
    }

    /// Restores an image that was absent since `gone` and first seen `before` that.
    pub(super) fn come_back(
        &self,
        usage: &mut ImageUsage,
        before: Option<SystemTime>,
        gone: SystemTime,
        now: SystemTime,
    ) {
        if self.returning != Some(gone) {
            usage.history.comebacks += 1;
            // Another manager brought it back, unless a recorded pull is later.
            if usage.pulled.is_none_or(|pulled| pulled.at <= gone) {
                usage.origin = ImageOrigin::Found;
            }
        } else if let Some(before) = before.filter(|_| !self.is_forgetful) {
            usage.date_back(before, now);
        }
    }

    /// Merges another manager's record of a new image.
    pub(super) fn take_over(&self, key: &ImageKey, usage: &mut ImageUsage, is_new: bool, now: SystemTime) {
        let Some(since) = self.adopted.get(key.id()) else { return };
        if !since.is_none_or(|since| since <= now) || !usage.adopt() {
            return;
        }
        if let Some(since) = since.filter(|_| is_new && !self.is_forgetful) {
            usage.date_back(since, now);
        }
    }
}
