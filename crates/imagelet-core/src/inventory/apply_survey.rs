//! Applies one survey: updates records, usage history and leases, and builds all entries.

use std::{collections::BTreeSet, iter::Peekable, sync::Arc, time::SystemTime};

use crate::image::{Image, ImageKey};
use crate::inventory::{
    ImageEntry, InventoryState, LEASE_UNSEEN_MAX, PullCost, Snapshot,
    boot_clock::{AgeClock, moved},
    detect::{DetectTimes, Record, Survey, Users, Uses, detect, in_order_of_keys, uses},
    usage_history::image_usage::ImageUsage,
};

/// A smaller difference between the clocks is reading delay, not a clock change.
const SHIFT_MIN: i128 = 10_000_000;

impl InventoryState {
    /// `asked_at` and `now` are the two clocks of `docs/spec/gc.md §5`.
    pub(super) fn apply(&mut self, mut survey: Survey, asked_at: SystemTime, now: SystemTime) -> Arc<Snapshot> {
        #[cfg(test)]
        self.mutate_before_pass();
        let wall = now;
        let now = self.adjust_clock(now);
        self.clamp(now, wall);
        let times = DetectTimes { detected_at: Some(moved(asked_at, -self.shift)), now };
        // Sorted once for all walks; a duplicate image keeps the order of the listing.
        let mut images = std::mem::take(&mut survey.images).into_images();
        images.sort_by(|one, other| in_order_of_keys(one, other));
        survey.images = images.into();
        let used_before = self.used_before();
        let uses = self.uses(&survey);
        self.watch.advance(survey.runtime_containers(), now);
        detect(&mut self.records, &survey, &uses.by_image, times);
        self.memory.apply(&mut self.records, &uses, &survey.images, now);
        // An earlier first sight must not expose an unreported recent pull: the image counts as requested now.
        for key in self.memory.take_dated() {
            self.touches.insert(key, wall);
        }
        self.update_leases(&survey, used_before, &uses.by_image, now, wall);
        let snapshot = Arc::new(self.draw(survey.images.into_images(), &uses.by_image, now));
        self.mounts = survey.mounts;
        self.sandboxes.keep(survey.sandboxes, uses.sandboxes);
        self.snapshot = Some(Arc::clone(&snapshot));
        snapshot
    }

    /// Uses of each image, in boot-clock time.
    fn uses(&self, survey: &Survey) -> Uses {
        let mut uses = uses(survey, |id| !self.mounts.contains_key(id));
        for fresh in uses.fresh.values_mut().flatten() {
            fresh.created = fresh.created.map(|at| moved(at, -self.shift));
        }
        uses
    }

    fn update_leases(
        &mut self,
        survey: &Survey,
        used_before: BTreeSet<ImageKey>,
        users: &Users,
        now: SystemTime,
        wall: SystemTime,
    ) {
        let records = &self.records;
        self.touches.retain(|leased, leased_at| {
            let first = ImageKey::new(leased.id().clone(), String::new());
            let is_there = records.range(first..).next().is_some_and(|(key, _)| key.id() == leased.id());
            is_there || wall.duration_since(*leased_at).unwrap_or_default() < LEASE_UNSEEN_MAX
        });
        self.dirty |= survey.runtime_containers() > 0 || self.memory.is_changed();
        self.serve_leases(survey);
        let doubtful = if survey.missing_are_gone { BTreeSet::new() } else { used_before };
        self.note_released(doubtful, users, now);
    }

    /// Updates the offset of the wall clock and returns the boot-clock time.
    fn adjust_clock(&mut self, wall: SystemTime) -> SystemTime {
        if let Some(correction) = self.clock.correct(wall) {
            for record in self.records.values_mut() {
                record.first_seen = record.first_seen.map(|seen| correction.apply(seen));
                record.last_used = record.last_used.map(|used| correction.apply(used));
            }
            let watch = &mut self.watch;
            for time in [&mut watch.since, &mut watch.last_pass, &mut watch.vanished_at].into_iter().flatten() {
                *time = correction.apply(*time);
            }
            self.memory.correct(correction);
        }
        let steady = self.clock.now(wall);
        let shift = AgeClock::shift(steady, wall);
        if (shift - self.shift).abs() >= SHIFT_MIN {
            self.shift = shift;
        }
        steady
    }

    /// Moves future times to now, whatever a ledger or an earlier clock reported.
    fn clamp(&mut self, now: SystemTime, wall: SystemTime) {
        for leased_at in self.touches.values_mut() {
            *leased_at = wall.min(*leased_at);
        }
        for released_at in self.released.values_mut() {
            *released_at = now.min(*released_at);
        }
        self.leases.tidy(now);
        if self.seen_at.replace(now).is_some_and(|seen| seen <= now) {
            return;
        }
        self.memory.clamp(now);
        for record in self.records.values_mut() {
            record.first_seen = record.first_seen.map(|seen| seen.min(now));
            record.last_used = record.last_used.map(|used| used.min(now));
        }
        self.watch.since = self.watch.since.map(|since| since.min(now));
        self.watch.vanished_at = self.watch.vanished_at.map(|vanished| vanished.min(now));
    }

    /// `images` are ordered by key.
    fn draw(&self, images: Vec<Arc<Image>>, users: &Users, now: SystemTime) -> Snapshot {
        let mut images = images.into_iter().peekable();
        // The later entry of a duplicate image is shown.
        let mut next = || loop {
            let image = images.next()?;
            if images.peek().is_none_or(|other| in_order_of_keys(&image, other).is_ne()) {
                return Some(image);
            }
        };
        let (mut records, mut memory) = (self.records.iter().peekable(), self.memory.present().peekable());
        let mut users = users.iter().peekable();
        let entries = std::iter::from_fn(&mut next).map(|image| {
            let key = image.key();
            let (record, remembered) = (find(&mut records, &key), find(&mut memory, &key));
            Arc::new(self.entry(image, &key, record, remembered, find(&mut users, &key), now))
        });
        let entries = entries.collect();
        self.snapshot_of(entries, now)
    }

    fn snapshot_of(&self, entries: Vec<Arc<ImageEntry>>, now: SystemTime) -> Snapshot {
        let reported = |time: SystemTime| moved(time, self.shift);
        Snapshot {
            taken_at: reported(now),
            entries,
            watched_since: reported(self.watch.since.unwrap_or(now)),
            containers: self.watch.containers,
            containers_vanished: self.watch.vanished_at.is_some(),
        }
    }

    fn entry(
        &self,
        image: Arc<Image>,
        key: &ImageKey,
        record: Option<&Record>,
        remembered: Option<&ImageUsage>,
        users: Option<&Vec<String>>,
        now: SystemTime,
    ) -> ImageEntry {
        let reported = |time: SystemTime| moved(time, self.shift);
        ImageEntry {
            first_seen: reported(record.and_then(|record| record.first_seen).unwrap_or(now)),
            last_used: record.and_then(|record| record.last_used).map(reported),
            leased_at: self.leased_at(key),
            leased_until: self.leases.until(key.id(), now).map(reported),
            released_at: self.released.get(key).copied().map(reported),
            use_count: remembered.map_or(0, |it| it.history.uses),
            last_user: remembered.and_then(|it| it.user.clone()),
            pulled: remembered.and_then(|it| it.pulled).map(|cost| PullCost { at: reported(cost.at), ..cost }),
            origin: remembered.map(|it| it.origin).unwrap_or_default(),
            history: remembered.map(|it| it.history.clone()).unwrap_or_default(),
            in_use_by: self.users_of(key.id(), users),
            pinned_by: self.pinned_by(&image),
            image,
        }
    }
}

/// The next item of a sorted iterator with this key.
fn find<'a, T>(row: &mut Peekable<impl Iterator<Item = (&'a ImageKey, T)>>, key: &ImageKey) -> Option<T> {
    while row.next_if(|(other, _)| *other < key).is_some() {}
    row.next_if(|(other, _)| *other == key).map(|(_, found)| found)
}
