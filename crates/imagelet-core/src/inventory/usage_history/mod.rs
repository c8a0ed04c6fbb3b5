//! What is remembered of images, those that are gone included: takes in uses, pulls and passes, and tells what changed.
//!
//! All times in this module are steady times.

pub(in crate::inventory) mod image_usage;
mod reconcile;
pub(in crate::inventory) mod use_history;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::image::{ByteSize, Image, ImageId, ImageKey};
use crate::inventory::{
    boot_clock::Correction,
    detect::{Fresh, Records, Uses},
    ledger::files::{nanos, time},
    ledger::{Batch, Content, PassLine},
    usage_history::{
        image_usage::ImageUsage,
        use_history::{GAP_MIN, ImageOrigin, PullCost},
    },
};

/// Limit of remembered absent images; the oldest is removed first.
pub(in crate::inventory) const REMOVED_IMAGES_MAX: usize = 4096;
/// How long an absent image is remembered.
const REMOVED_AGE_MAX: Duration = Duration::from_hours(90 * 24);
/// Limit of reported images without a pass that lists them.
const PENDING_MAX: usize = 1024;
/// How long an unlisted image, or the container after an `ensure`, is awaited.
const PENDING_AGE_MAX: Duration = Duration::from_mins(15);
/// Limit of remembered images while a runtime lists none.
const UNLISTED_MAX: usize = 100_000;
/// Longest name of a user: a namespace, a slash and a pod.
const USER_LENGTH_MAX: usize = 512;

/// A report of a use, as passed to the ledger.
#[derive(Clone, Debug, Default)]
pub(in crate::inventory) struct UseReport {
    pub(in crate::inventory) user: Option<String>,
    pub(in crate::inventory) pulled: Option<PullCost>,
}

#[derive(Debug)]
struct Pending {
    reported: UseReport,
    uses: u64,
    at: SystemTime,
}

#[derive(Debug, Default)]
pub(in crate::inventory) struct UsageHistory {
    images: BTreeMap<ImageKey, ImageUsage>,
    /// Reports on images that no pass has listed yet.
    pending: BTreeMap<ImageKey, Pending>,
    /// Images recorded by another manager of the node, and their first time, where known.
    adopted: HashMap<ImageId, Option<SystemTime>>,
    /// When an empty list made all images absent, until the next non-empty one.
    unlisted: Option<SystemTime>,
    /// The current pass found that images absent since then were present all the time.
    returning: Option<SystemTime>,
    /// Images with an earlier first sight than that of the passes.
    dated: Vec<ImageKey>,
    /// An image that comes back is new in all reports, as in the kubelet.
    pub(in crate::inventory) is_forgetful: bool,
    changed: BTreeSet<ImageKey>,
    forgotten: Vec<ImageKey>,
    everything_changed: bool,
    /// No pass since the start: the present containers are not all new.
    is_resumed: bool,
}

impl UsageHistory {
    pub(in crate::inventory) fn restore(&mut self, content: Content) {
        let last_pass = content.pass.at.map(time);
        self.is_resumed = true;
        self.images = content.images;
        for remembered in self.images.values_mut() {
            if remembered.in_use {
                remembered.last_used = remembered.last_used.max(last_pass);
            }
        }
        self.resume_unlisted();
    }

    /// Merges another process's data: the later time and the larger count win.
    pub(in crate::inventory) fn merge(&mut self, others: Content) {
        let last_pass = others.pass.at.map(time);
        for (key, other) in others.images {
            let other_used = if other.in_use { other.last_used.max(last_pass) } else { other.last_used };
            let Some(ours) = self.images.get_mut(&key) else {
                if other.gone.is_none() {
                    self.images.insert(key, ImageUsage { last_used: other_used, ..other });
                }
                continue;
            };
            ours.first_seen = ours.first_seen.into_iter().chain(other.first_seen).min();
            ours.last_used = ours.last_used.max(other_used);
            ours.begun = ours.begun.max(other.begun);
            let other_is_newer = other.pulled.map(|cost| cost.at) > ours.pulled.map(|cost| cost.at);
            if other_is_newer {
                (ours.pulled, ours.origin) = (other.pulled, other.origin);
            }
            if other.history.uses > ours.history.uses {
                (ours.history, ours.user) = (other.history, other.user);
            }
        }
        self.everything_changed = true;
    }

    pub(in crate::inventory) fn records(&self) -> Records {
        let present = self.images.iter().filter(|(_, remembered)| remembered.gone.is_none());
        present
            .map(|(key, remembered)| {
                let record = crate::inventory::detect::Record {
                    first_seen: remembered.first_seen,
                    last_used: remembered.last_used,
                    handler: key.handler().to_owned(),
                    size: ByteSize::ZERO,
                    pinned: false,
                };
                (key.clone(), record)
            })
            .collect()
    }

    /// Records a use: a caller got the image.
    pub(in crate::inventory) fn used(&mut self, key: &ImageKey, reported: UseReport, at: SystemTime) {
        let UseReport { user, pulled } = reported;
        let reported = UseReport { user: user.filter(|user| user.len() <= USER_LENGTH_MAX), pulled };
        match self.images.get_mut(key) {
            Some(known) if known.gone.is_none() => {
                known.take(reported, 1, at);
                self.changed.insert(key.clone());
            }
            _ if self.pending.len() < PENDING_MAX || self.pending.contains_key(key) => {
                let pending =
                    self.pending.entry(key.clone()).or_insert(Pending { reported: UseReport::default(), uses: 0, at });
                pending.at = pending.at.max(at);
                pending.uses += 1;
                pending.reported.user = reported.user.or(pending.reported.user.take());
                pending.reported.pulled = reported.pulled.or(pending.reported.pulled);
            }
            _ => {}
        }
    }

    pub(in crate::inventory) fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    pub(in crate::inventory) fn present(&self) -> impl Iterator<Item = (&ImageKey, &ImageUsage)> {
        self.images.iter().filter(|(_, remembered)| remembered.gone.is_none())
    }

    /// Applies a pass, and copies earlier knowledge into its records.
    pub(in crate::inventory) fn apply(
        &mut self,
        records: &mut Records,
        uses: &Uses,
        images: &[Arc<Image>],
        now: SystemTime,
    ) {
        self.begin_pass(records, now);
        let mut mark_superseded = false;
        let mut arrived = Vec::new();
        // All three are sorted by key, so one walk joins them.
        let mut known = self.images.iter_mut().peekable();
        let mut used = uses.by_image.keys().peekable();
        for (key, record) in records.iter_mut() {
            while let Some((gone, remembered)) = known.next_if(|(other, _)| *other < key) {
                mark_superseded |= remembered.leave(gone, now, &mut self.changed);
            }
            if let Some((_, remembered)) = known.next_if(|(other, _)| *other == key) {
                if remembered.gone.is_some() {
                    arrived.push(key.clone());
                    continue;
                }
                if self.adopted.contains_key(key.id()) && remembered.adopt() {
                    self.changed.insert(key.clone());
                }
                while used.next_if(|other| *other < key).is_some() {}
                let in_use = used.next_if(|other| *other == key).is_some();
                let fresh = uses.fresh.get(key).map(Vec::as_slice).unwrap_or_default();
                if remembered.meet(record, in_use, fresh, self.is_resumed, now) {
                    self.changed.insert(key.clone());
                    mark_superseded = true;
                }
            } else {
                arrived.push(key.clone());
            }
        }
        for (gone, remembered) in known {
            mark_superseded |= remembered.leave(gone, now, &mut self.changed);
        }
        mark_superseded |= !arrived.is_empty() || self.is_resumed;
        for key in arrived {
            if let Some(record) = records.get_mut(&key) {
                self.arrive(key, record, uses, now);
            }
        }
        self.is_resumed = false;
        self.adopted.clear();
        self.pending.retain(|_, pending| now.duration_since(pending.at).unwrap_or_default() < PENDING_AGE_MAX);
        self.forget_removed(now);
        if mark_superseded {
            self.mark_superseded(images);
        }
    }

    /// A new image is listed.
    fn arrive(&mut self, key: ImageKey, record: &mut crate::inventory::detect::Record, uses: &Uses, now: SystemTime) {
        let mut remembered = self.images.remove(&key).unwrap_or_default();
        let gone = remembered.gone.take();
        if let Some(gone) = gone {
            self.come_back(&key, &mut remembered, record, gone);
        }
        self.take_over(&key, &mut remembered, record, gone.is_none(), now);
        // A request may have the id without the handler.
        let by_id = ImageKey::new(key.id().clone(), String::new());
        if let Some(pending) = self.pending.remove(&key).or_else(|| self.pending.remove(&by_id)) {
            remembered.take(pending.reported, pending.uses, pending.at.min(now));
        }
        let in_use = uses.by_image.contains_key(&key);
        let fresh = uses.fresh.get(&key).map(Vec::as_slice).unwrap_or_default();
        remembered.see(in_use, fresh, true, now);
        let oldest = fresh.iter().filter_map(|fresh| fresh.created).min().filter(|at| *at <= now);
        if let Some(oldest) = oldest.filter(|_| self.is_resumed && !self.is_forgetful) {
            record.first_seen = record.first_seen.map(|seen| seen.min(oldest));
        }
        remembered.first_seen = record.first_seen;
        record.last_used = record.last_used.max(remembered.last_used.filter(|_| !self.is_forgetful || in_use));
        self.changed.insert(key.clone());
        self.images.insert(key, remembered);
    }

    /// Marks old versions: a newer image of the repository is in use, and they were not requested since it came.
    fn mark_superseded(&mut self, images: &[Arc<Image>]) {
        let mut newest: HashMap<&str, SystemTime> = HashMap::new();
        for image in images {
            let Some(remembered) = self.images.get(&image.key()).filter(|it| it.history.uses > 0) else { continue };
            let Some(first_seen) = remembered.first_seen else { continue };
            for repository in repositories(image) {
                let newest = newest.entry(repository).or_insert(first_seen);
                *newest = first_seen.max(*newest);
            }
        }
        for image in images {
            let Some(remembered) = self.images.get_mut(&image.key()) else { continue };
            let wanted = remembered.begun.max(remembered.first_seen);
            let newest = repositories(image).filter_map(|repository| newest.get(repository)).max();
            let superseded = newest.copied() > wanted;
            if remembered.history.superseded != superseded {
                remembered.history.superseded = superseded;
                self.changed.insert(image.key());
            }
        }
    }

    fn forget_removed(&mut self, now: SystemTime) {
        let ghosts = self.images.iter().filter_map(|(key, remembered)| Some((remembered.gone?, key)));
        let mut ghosts: Vec<_> = ghosts.map(|(gone, key)| (gone, key.clone())).collect();
        if ghosts.is_empty() {
            return;
        }
        ghosts.sort_unstable();
        let too_many =
            ghosts.len().saturating_sub(if self.unlisted.is_some() { UNLISTED_MAX } else { REMOVED_IMAGES_MAX });
        for (index, (gone, key)) in ghosts.into_iter().enumerate() {
            if index < too_many || now.duration_since(gone).unwrap_or_default() > REMOVED_AGE_MAX {
                self.images.remove(&key);
                self.changed.remove(&key);
                self.forgotten.push(key);
            }
        }
    }

    /// Moves future times to now.
    pub(in crate::inventory) fn clamp(&mut self, now: SystemTime) {
        self.map_times(|time| time.min(now));
    }

    /// Applies a correction of the time between two boots.
    pub(in crate::inventory) fn correct(&mut self, correction: Correction) {
        self.map_times(|time| correction.apply(time));
        self.everything_changed = true;
    }

    fn map_times(&mut self, map: impl Fn(SystemTime) -> SystemTime) {
        for remembered in self.images.values_mut() {
            let times =
                [&mut remembered.first_seen, &mut remembered.last_used, &mut remembered.begun, &mut remembered.gone];
            times.into_iter().flatten().for_each(|time| *time = map(*time));
            if let Some(cost) = &mut remembered.pulled {
                cost.at = map(cost.at);
            }
        }
        for pending in self.pending.values_mut() {
            pending.at = map(pending.at);
        }
    }

    /// Whether a returned image is not listed by a pass yet.
    pub(in crate::inventory) fn awaits_pass(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Marks the image for the next flush.
    pub(in crate::inventory) fn change(&mut self, key: &ImageKey) {
        if self.images.contains_key(key) {
            self.changed.insert(key.clone());
        }
    }

    pub(in crate::inventory) fn is_changed(&self) -> bool {
        self.everything_changed || !self.changed.is_empty() || !self.forgotten.is_empty()
    }

    /// The batch of a flush. After a failed flush the next batch is whole: see [`UsageHistory::keep`].
    pub(in crate::inventory) fn batch(&mut self, pass: PassLine, is_whole: bool) -> Batch {
        let is_whole = is_whole || self.everything_changed;
        let images = if is_whole {
            self.images.iter().map(|(key, remembered)| (key.clone(), remembered.clone())).collect()
        } else {
            let changed = self.changed.iter();
            changed.filter_map(|key| Some((key.clone(), self.images.get(key)?.clone()))).collect()
        };
        self.everything_changed = false;
        self.changed.clear();
        let forgotten = std::mem::take(&mut self.forgotten);
        Batch { is_whole, pass, images, forgotten: if is_whole { Vec::new() } else { forgotten } }
    }

    /// Makes the next flush write everything after a failed one.
    pub(in crate::inventory) fn keep(&mut self) {
        self.everything_changed = true;
    }
}

impl ImageUsage {
    fn idle_since(&self) -> Option<SystemTime> {
        self.last_used.or(self.first_seen)
    }

    /// Records a report of a use.
    fn take(&mut self, reported: UseReport, uses: u64, at: SystemTime) {
        if let Some(cost) = reported.pulled {
            // A pull without new layers says nothing about the cost.
            if cost.bytes > ByteSize::ZERO || self.pulled.is_none() {
                self.pulled = Some(cost);
            }
            self.origin = ImageOrigin::Pulled;
        }
        self.user = reported.user.or(self.user.take());
        self.begin(uses, at);
        self.credits = self.credits.saturating_add(u8::try_from(uses).unwrap_or(u8::MAX));
    }

    fn begin(&mut self, uses: u64, at: SystemTime) {
        let gap = self.idle_since().and_then(|since| at.duration_since(since).ok());
        if gap.is_some_and(|gap| !self.in_use && gap >= GAP_MIN) && self.history.uses > 0 {
            let since = self.begun.or(self.idle_since()).and_then(|begun| at.duration_since(begun).ok());
            self.history.returned(since.unwrap_or_default());
        }
        self.history.uses = self.history.uses.saturating_add(uses);
        self.last_used = self.last_used.max(Some(at));
        self.begun = self.begun.max(Some(at));
    }

    /// Applies a pass that listed it. Returns whether the change is worth writing.
    fn meet(
        &mut self,
        record: &mut crate::inventory::detect::Record,
        in_use: bool,
        fresh: &[Fresh],
        is_resumed: bool,
        now: SystemTime,
    ) -> bool {
        self.first_seen = record.first_seen;
        record.last_used = record.last_used.max(self.last_used);
        let mut changed = false;
        if in_use || self.in_use || is_resumed {
            changed = self.see(in_use, fresh, is_resumed, now);
            record.last_used = record.last_used.max(self.last_used);
        }
        changed
    }

    /// Applies the users of a pass. `by_creation`: containers may be older than the watching. Returns whether to write.
    fn see(&mut self, in_use: bool, fresh: &[Fresh], by_creation: bool, now: SystemTime) -> bool {
        let mut changed = self.in_use != in_use;
        let was_in_use = self.in_use && by_creation;
        let mut fresh: Vec<&Fresh> = fresh.iter().filter(|_| !was_in_use).collect();
        fresh.sort_by_key(|fresh| fresh.created);
        for fresh in fresh {
            changed = true;
            if let Some(user) = fresh.user.as_ref().filter(|user| user.len() <= USER_LENGTH_MAX) {
                self.user = Some(user.clone());
            }
            if self.credits > 0 {
                self.credits -= 1;
                continue;
            }
            let at = fresh.created.filter(|at| by_creation && *at <= now).unwrap_or(now);
            // A container older than the last known use was already counted.
            if !by_creation || self.last_used.is_none_or(|used| used <= at) {
                self.begin(1, at);
            }
        }
        self.in_use = in_use;
        if in_use {
            self.last_used = self.last_used.max(Some(now));
            if self.history.uses == 0 {
                self.history.uses = 1;
                self.begun = Some(now);
            }
        } else if self.credits > 0
            && self.begun.is_none_or(|at| now.duration_since(at).unwrap_or_default() > PENDING_AGE_MAX)
        {
            self.credits = 0;
        }
        changed
    }

    /// Marks an unlisted image as absent. Returns whether it was present.
    fn leave(&mut self, key: &ImageKey, now: SystemTime, changed: &mut BTreeSet<ImageKey>) -> bool {
        let left = self.gone.is_none();
        if left {
            (self.gone, self.in_use, self.credits) = (Some(now), false, 0);
            changed.insert(key.clone());
        }
        left
    }
}

/// Repositories of the image's names; may repeat.
fn repositories(image: &Image) -> impl Iterator<Item = &str> {
    let tagged = image.tags.iter().map(|name| match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name.as_str(),
    });
    let digested = image.digests.iter().filter_map(|name| name.split_once('@')).map(|(repository, _)| repository);
    tagged.chain(digested)
}

pub(in crate::inventory) fn pass_line(
    watch: crate::inventory::observation_window::ObservationWindow,
    anchor: Option<crate::inventory::boot_clock::Anchor>,
) -> PassLine {
    PassLine { since: watch.since.map(nanos), at: watch.last_pass.map(nanos), containers: watch.containers, anchor }
}

#[cfg(test)]
mod tests;
