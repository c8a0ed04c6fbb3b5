//! A pass after which only some images have to be looked at: those that changed, are used, or grew older by a span.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{GHOST_AGE_MAX, Memory, PENDING_AGE_MAX, Remembered, repositories};
use crate::{
    image::{Image, ImageKey},
    inventory::{
        detect::{Records, Uses},
        history::{SPANS, Span},
    },
};

/// What has to be done after such a pass.
#[derive(Debug, Default)]
pub(in crate::inventory) struct Met {
    /// Whether a newer image of a repository is in use has to be asked again.
    pub(in crate::inventory) regroup: bool,
    /// Images whose use or presence changed.
    pub(in crate::inventory) changed: Vec<ImageKey>,
}

impl Remembered {
    /// When the time it has lain idle comes into a span that is not counted yet.
    pub(in crate::inventory) fn due(&self) -> Option<SystemTime> {
        let next = usize::from(self.counted) + 1;
        let since = self.idle_since().filter(|_| !self.in_use && next < SPANS)?;
        since.checked_add(Duration::from_secs(Span::start_seconds(next)))
    }
}

impl Memory {
    /// Whether the next pass has to look at all images.
    pub(in crate::inventory) fn wants_all(&self) -> bool {
        self.is_resumed || !self.adopted.is_empty() || self.unlisted.is_some()
    }

    /// When the time an image has lain idle comes into its next span.
    pub(in crate::inventory) fn due(&self, key: &ImageKey) -> Option<SystemTime> {
        self.images.get(key)?.due()
    }

    /// What is remembered of an image that is there.
    pub(in crate::inventory) fn of(&self, key: &ImageKey) -> Option<&Remembered> {
        self.images.get(key).filter(|remembered| remembered.gone.is_none())
    }

    /// Images that are gone and whose idle time has come into its next span.
    pub(in crate::inventory) fn ghosts_due(&self, now: SystemTime) -> impl Iterator<Item = &ImageKey> {
        self.ghosts.iter().filter(move |(_, (_, due))| due.is_some_and(|due| due <= now)).map(|(key, _)| key)
    }

    /// Takes in what a pass found of these images, who uses them among it; all others are as they were.
    pub(in crate::inventory) fn absorb_some(
        &mut self,
        records: &mut Records,
        uses: &Uses,
        keys: &[ImageKey],
        now: SystemTime,
    ) -> Met {
        let mut met = Met::default();
        let mut arrived = Vec::new();
        let mut left = false;
        let reuse = Arc::make_mut(&mut self.reuse);
        for key in keys {
            let mut record = records.get_mut(key);
            let known = self.images.get_mut(key);
            let in_use = uses.by_image.contains_key(key);
            if let Some(record) = record.as_mut().filter(|_| in_use) {
                record.last_used = record.last_used.max(Some(now));
            }
            match (record, known) {
                (Some(record), Some(remembered)) if remembered.gone.is_none() => {
                    let fresh = uses.fresh.get(key).map(Vec::as_slice).unwrap_or_default();
                    if remembered.meet(record, in_use, fresh, false, now, reuse) {
                        self.changed.insert(key.clone());
                        met.changed.push(key.clone());
                    }
                }
                (Some(_), _) => arrived.push(key.clone()),
                (None, Some(remembered)) => {
                    if remembered.leave(key, now, reuse, &mut self.changed) {
                        met.changed.push(key.clone());
                        left = true;
                    }
                    self.ghosts.insert(key.clone(), (remembered.gone.unwrap_or(now), remembered.due()));
                }
                (None, None) => {}
            }
        }
        for key in arrived {
            if let Some(record) = records.get_mut(&key) {
                self.ghosts.remove(&key);
                met.changed.push(key.clone());
                self.arrive(key, record, uses, now);
            }
        }
        if left && records.is_empty() {
            self.unlisted = Some(now);
        }
        met.regroup = !met.changed.is_empty();
        self.pending.retain(|_, pending| now.duration_since(pending.at).unwrap_or_default() < PENDING_AGE_MAX);
        let is_old = |gone: SystemTime| now.duration_since(gone).unwrap_or_default() > GHOST_AGE_MAX;
        if left || self.ghosts.values().any(|(gone, _)| is_old(*gone)) {
            self.forget_ghosts(now);
            self.ghosts.retain(|key, _| self.images.contains_key(key));
        }
        met
    }

    /// Marks old versions among the images of these repositories and these images, or among all; see [`Memory::regroup`]. Answers whose mark changed.
    pub(in crate::inventory) fn regroup_some<'a>(
        &mut self,
        images: impl Iterator<Item = &'a Image> + Clone,
        of: Option<(&HashSet<String>, &HashSet<ImageKey>)>,
    ) -> Vec<ImageKey> {
        let is_concerned = |image: &&Image| {
            of.is_none_or(|(of, renamed)| {
                repositories(image).any(|repository| of.contains(repository))
                    || (!renamed.is_empty() && renamed.contains(&image.key()))
            })
        };
        let concerned: Vec<&Image> = images.clone().filter(is_concerned).collect();
        // An image of several repositories is old by the newest of any of them.
        let asked: HashSet<&str> = concerned.iter().flat_map(|image| repositories(image)).collect();
        let mut newest: HashMap<&str, SystemTime> = HashMap::new();
        for image in images.filter(|image| repositories(image).any(|repository| asked.contains(repository))) {
            let Some(remembered) = self.images.get(&image.key()).filter(|it| it.history.uses > 0) else { continue };
            let Some(first_seen) = remembered.first_seen else { continue };
            for repository in repositories(image) {
                let newest = newest.entry(repository).or_insert(first_seen);
                *newest = first_seen.max(*newest);
            }
        }
        let mut changed = Vec::new();
        for image in concerned {
            let Some(remembered) = self.images.get_mut(&image.key()) else { continue };
            let wanted = remembered.begun.max(remembered.first_seen);
            let superseded =
                repositories(image).filter_map(|repository| newest.get(repository)).max().copied() > wanted;
            if remembered.history.superseded != superseded {
                remembered.history.superseded = superseded;
                self.changed.insert(image.key());
                changed.push(image.key());
            }
        }
        changed
    }

    /// The repositories an image is named after.
    pub(in crate::inventory) fn note_repositories(image: &Image, into: &mut HashSet<String>) {
        into.extend(repositories(image).map(str::to_owned));
    }
}
