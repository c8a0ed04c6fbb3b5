//! The usage history of present and absent images, updated by uses, pulls and passes.

pub(crate) mod image_usage;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::image::{Image, ImageId, ImageKey};
use crate::inventory::{
    detect::{ImageUses, USER_LENGTH_MAX, Users, find},
    ledger::Ledger,
    usage_history::image_usage::{ImageOrigin, ImageUsage, PENDING_AGE_MAX, PassTimes, UseReport, UseTimes},
};

pub(crate) const REMOVED_IMAGES_MAX: usize = 4096;
const REMOVED_AGE_MAX: Duration = Duration::from_hours(90 * 24);
/// Limit of images with a reported use or pull that no pass has listed yet.
const PENDING_MAX: usize = 1024;
/// The limit of absent images while the runtime lists no image at all.
const UNLISTED_MAX: usize = 100_000;
const ADOPTED_MAX: usize = 50_000;
/// A runtime that lists no image for longer has probably lost its images.
const UNLISTED_FOR_MAX: Duration = Duration::from_hours(1);
/// The minimum number of images that return together after an empty list. A single image may have been pulled again.
const RETURNED_MIN: usize = 2;
/// The percentage of images that return together after an empty list. A wiped store that is filled again has fewer.
const RETURNED_PERCENT: usize = 90;

#[derive(Debug)]
pub(crate) struct Pending {
    reported: UseReport,
    uses: u64,
    at: SystemTime,
}

#[derive(Debug, Default)]
pub(crate) struct UsageHistory {
    pub(crate) images: BTreeMap<ImageKey, ImageUsage>,
    pub(crate) pending: BTreeMap<ImageKey, Pending>,
    /// Images that another manager of the node has recorded, with the recorded time if known.
    adopted: HashMap<ImageId, Option<SystemTime>>,
    /// The time when an empty list made all images absent. `None` after the next non-empty list.
    unlisted: Option<SystemTime>,
    /// The current pass treats images that are absent since this time as always present: one list was empty by mistake.
    returning: Option<SystemTime>,
    pub(crate) is_forgetful: bool,
    /// Whether no pass has run since the history was restored. Containers may then be older than this process.
    is_resumed: bool,
    pub(crate) has_new_users: bool,
}

impl UsageHistory {
    pub(crate) fn restore(&mut self, ledger: Ledger) {
        self.is_resumed = true;
        self.images = ledger.into_images();
        // If no restored image is present, the last list was empty.
        if self.present().next().is_none() {
            self.unlisted = self.images.values().filter_map(|usage| usage.times.gone).max();
        }
    }

    /// Merges the data of another process. Keeps the earliest first sight, the latest use and the larger history.
    pub(crate) fn merge(&mut self, others: Ledger) {
        for (key, other) in others.into_images() {
            let Some(ours) = self.images.get_mut(&key) else {
                if other.times.gone.is_none() {
                    self.images.insert(key, other);
                }
                continue;
            };
            ours.times.first_seen = ours.times.first_seen.into_iter().chain(other.times.first_seen).min();
            ours.times.last_used = ours.times.last_used.max(other.times.last_used);
            ours.times.begun = ours.times.begun.max(other.times.begun);
            let other_is_newer = other.pulled.map(|cost| cost.at) > ours.pulled.map(|cost| cost.at);
            if other_is_newer {
                (ours.pulled, ours.origin) = (other.pulled, other.origin);
            }
            if other.history.uses > ours.history.uses {
                (ours.history, ours.user) = (other.history, other.user);
            }
        }
    }

    /// Records that a caller got the image. A key without a handler means all handlers of the image.
    pub(crate) fn used(&mut self, key: &ImageKey, mut reported: UseReport, uses: u64, at: SystemTime) {
        reported.user.take_if(|user| reported.is_prefetch || user.len() > USER_LENGTH_MAX);
        let mut is_listed = false;
        let of_id = self.images.range_mut(by_id(key)..).take_while(|(other, _)| other.id() == key.id());
        for (_, usage) in
            of_id.filter(|(other, usage)| usage.times.gone.is_none() && (key.handler().is_empty() || *other == key))
        {
            usage.take(reported.clone(), uses, at);
            is_listed = true;
        }
        if !is_listed && (self.pending.len() < PENDING_MAX || self.pending.contains_key(key)) {
            let first = || Pending { reported: UseReport::default(), uses: 0, at };
            let pending = self.pending.entry(key.clone()).or_insert_with(first);
            // The image is prefetched only if no use was reported, before or after the prefetch.
            pending.reported.is_prefetch = reported.is_prefetch && pending.uses == 0;
            pending.at = pending.at.max(at);
            pending.uses += uses;
            pending.reported.user = reported.user.or(pending.reported.user.take());
            pending.reported.pulled = reported.pulled.or(pending.reported.pulled);
        }
    }

    pub(crate) fn requested_at(&self, key: &ImageKey) -> Option<SystemTime> {
        let listed = self.images.get(key).and_then(|usage| usage.times.requested_at);
        let pending = [self.pending.get(key), self.pending.get(&by_id(key))];
        pending.into_iter().flatten().map(|pending| pending.at).max().max(listed)
    }

    pub(crate) fn present(&self) -> impl Iterator<Item = (&ImageKey, &ImageUsage)> {
        self.images.iter().filter(|(_, usage)| usage.times.gone.is_none())
    }

    /// Applies a pass. `images` are sorted by key, without duplicates. Returns whether the ledger must be written.
    pub(crate) fn apply(&mut self, images: &[Arc<Image>], users: &Users, pass: &PassTimes) -> bool {
        self.begin_pass(images, pass.now);
        let mut changed = self.is_resumed && !self.images.is_empty();
        let (mut arrived, mut absent) = (Vec::new(), Vec::new());
        let mut listed = images.iter().peekable();
        let mut used = users.iter().peekable();
        // `images`, `users` and the history are sorted by key, so one walk joins them.
        for (key, usage) in &mut self.images {
            let is_listed = loop {
                match listed.peek().map(|image| image.cmp_key(key)) {
                    Some(Ordering::Less) => arrived.extend(listed.next().map(|image| image.key())),
                    other => break other == Some(Ordering::Equal),
                }
            };
            let uses = find(&mut used, key);
            changed |= usage.update_release(uses.is_some(), pass);
            if !is_listed {
                changed |= usage.leave(pass.now);
                absent.extend(usage.times.gone.map(|gone| (gone, key.clone())));
                continue;
            }
            listed.next();
            if usage.times.gone.is_some() {
                arrived.push(key.clone());
            } else {
                let had_containers = usage.has_containers;
                usage.times.first_seen.get_or_insert(pass.detected_at);
                changed |= self.adopted.contains_key(key.id()) && usage.adopt();
                changed |= usage.see(uses, self.is_resumed, pass.now);
                self.has_new_users |= usage.has_containers && !had_containers;
            }
        }
        arrived.extend(listed.map(|image| image.key()));
        changed |= !arrived.is_empty();
        for key in arrived {
            let uses = users.get(&key);
            self.arrive(key, uses, pass);
        }
        self.is_resumed = false;
        self.adopted.clear();
        self.pending.retain(|_, pending| pass.now.duration_since(pending.at).unwrap_or_default() < PENDING_AGE_MAX);
        changed |= self.forget_removed(absent, pass.now);
        if changed {
            self.mark_superseded(images);
        }
        changed
    }

    fn arrive(&mut self, key: ImageKey, uses: Option<&ImageUses>, pass: &PassTimes) {
        let mut usage = self.images.remove(&key).unwrap_or_default();
        let gone = usage.times.gone.take();
        let before = usage.times.first_seen.replace(pass.detected_at);
        if let Some(gone) = gone {
            if self.returning != Some(gone) {
                // Without a recorded pull after the absence, another manager pulled the image again.
                if usage.pulled.is_none_or(|pulled| pulled.at <= gone) {
                    usage.origin = ImageOrigin::Found;
                }
            } else if let Some(before) = before.filter(|_| !self.is_forgetful) {
                usage.date_back(before, pass.now);
            }
        }
        let adopted = self.adopted.get(key.id()).filter(|since| since.is_none_or(|since| since <= pass.now));
        if let Some(since) = adopted
            && usage.adopt()
            && let Some(since) = since.filter(|_| gone.is_none() && !self.is_forgetful)
        {
            usage.date_back(since, pass.now);
        }
        let pending = self.pending.remove(&key).or_else(|| self.pending.remove(&by_id(&key)));
        if let Some(pending) = pending {
            usage.take(pending.reported, pending.uses, pending.at.min(pass.now));
        }
        usage.see(uses, true, pass.now);
        self.has_new_users |= usage.has_containers;
        let created = uses.into_iter().flat_map(|uses| &uses.fresh).filter_map(|fresh| fresh.created);
        let oldest = created.min().filter(|at| *at <= pass.now && self.is_resumed && !self.is_forgetful);
        usage.times.first_seen = usage.times.first_seen.map(|seen| oldest.map_or(seen, |oldest| seen.min(oldest)));
        if self.is_forgetful && !usage.in_use {
            usage.times.last_used = None;
        }
        self.images.insert(key, usage);
    }

    fn mark_superseded(&mut self, images: &[Arc<Image>]) {
        let mut newest: HashMap<&str, SystemTime> = HashMap::new();
        for (image, (_, usage)) in images.iter().zip(self.present()).filter(|(_, (_, it))| it.history.uses > 0) {
            let Some(first_seen) = usage.times.first_seen else { continue };
            for repository in repositories(image) {
                let newest = newest.entry(repository).or_insert(first_seen);
                *newest = first_seen.max(*newest);
            }
        }
        let present = self.images.values_mut().filter(|usage| usage.times.gone.is_none());
        for (image, usage) in images.iter().zip(present) {
            let newest = repositories(image).filter_map(|repository| newest.get(repository)).max();
            usage.history.superseded = newest.copied() > usage.times.begun.max(usage.times.first_seen);
        }
    }

    /// Removes the records of absent images that are too old or too many. Returns whether a record was removed.
    fn forget_removed(&mut self, mut absent: Vec<(SystemTime, ImageKey)>, now: SystemTime) -> bool {
        absent.sort_unstable();
        let absent_max = if self.unlisted.is_some() { UNLISTED_MAX } else { REMOVED_IMAGES_MAX };
        let too_many = absent.len().saturating_sub(absent_max);
        let is_old = |gone: SystemTime| now.duration_since(gone).unwrap_or_default() > REMOVED_AGE_MAX;
        let old = absent.iter().enumerate().filter(|(index, (gone, _))| *index < too_many || is_old(*gone));
        let before = self.images.len();
        old.for_each(|(_, (_, key))| drop(self.images.remove(key)));
        self.images.len() < before
    }

    pub(crate) fn adopt(&mut self, id: &ImageId, since: Option<SystemTime>) {
        if self.adopted.len() < ADOPTED_MAX {
            self.adopted.insert(id.clone(), since);
        }
    }

    fn begin_pass(&mut self, images: &[Arc<Image>], now: SystemTime) {
        self.returning = None;
        if images.is_empty() {
            if self.present().next().is_some() {
                self.unlisted = Some(now);
            }
            return;
        }
        let Some(unlisted) = self.unlisted.take() else { return };
        let gone = || self.images.iter().filter(|(_, usage)| usage.times.gone == Some(unlisted));
        let is_listed = |key: &ImageKey| images.binary_search_by(|image| image.cmp_key(key)).is_ok();
        let (all, back) = (gone().count(), gone().filter(|(key, _)| is_listed(key)).count());
        let is_short = now.duration_since(unlisted).unwrap_or_default() <= UNLISTED_FOR_MAX;
        if is_short && back >= RETURNED_MIN && back * 100 >= all * RETURNED_PERCENT {
            tracing::warn!(images = back, "the runtime lists images again that it did not list; they keep their ages");
            self.returning = Some(unlisted);
        }
    }

    pub(crate) fn map_times(&mut self, map: impl Fn(SystemTime) -> SystemTime) {
        for usage in self.images.values_mut() {
            let UseTimes { first_seen, last_used, begun, gone, released_at, requested_at } = &mut usage.times;
            let times = [first_seen, last_used, begun, gone, released_at, requested_at];
            times.into_iter().flatten().for_each(|time| *time = map(*time));
            if let Some(cost) = &mut usage.pulled {
                cost.at = map(cost.at);
            }
        }
        for pending in self.pending.values_mut() {
            pending.at = map(pending.at);
        }
    }
}

fn by_id(key: &ImageKey) -> ImageKey {
    ImageKey::new(key.id().clone(), String::new())
}

/// The repositories of all names of an image, perhaps with duplicates.
fn repositories(image: &Image) -> impl Iterator<Item = &str> {
    let tagged = image.tags.iter().map(|name| match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name.as_str(),
    });
    let digested = image.digests.iter().filter_map(|name| name.split_once('@')).map(|(repository, _)| repository);
    tagged.chain(digested)
}

#[cfg(test)]
mod tests;
