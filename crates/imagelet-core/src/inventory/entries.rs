//! All images of a pass by key, with what every plan reads of each of them packed side by side: a node has more images
//! than a processor keeps at hand, and most of them nothing holds.

use std::{
    ops::Deref,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Entry, PullCost, reuse::Kind};
use crate::image::ByteSize;

/// All images of a pass, by key. What is glanced at is always what the entries say.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    all: Vec<Arc<Entry>>,
    glances: Vec<Glance>,
}

/// What a plan reads of each image, and of most images no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// See [`Entry::first_seen`].
    pub first_seen: SystemTime,
    /// See [`Entry::last_used`].
    pub last_used: Option<SystemTime>,
    /// See [`Entry::image`].
    pub size: ByteSize,
    /// Bytes and time of its last pull.
    pub pulled: Option<(ByteSize, Duration)>,
    /// Which kind of image it is.
    pub kind: Kind,
    /// Idle times of its own are known.
    pub has_gaps: bool,
    /// It has an id, and no user, pin, lease, question or release stands in the entry.
    pub is_free: bool,
}

impl Glance {
    fn of(entry: &Entry) -> Self {
        Self {
            first_seen: entry.first_seen,
            last_used: entry.last_used,
            size: entry.image.size,
            pulled: entry.pulled.map(|PullCost { bytes, duration, .. }| (bytes, duration)),
            kind: Kind::of(&entry.history),
            has_gaps: !entry.history.gaps.is_empty(),
            is_free: entry.in_use_by.is_empty()
                && entry.pinned_by.is_empty()
                && entry.leased_at.is_none()
                && entry.leased_until.is_none()
                && entry.released_at.is_none()
                && !entry.image.id.as_str().is_empty(),
        }
    }
}

impl Entries {
    /// What is glanced at, by place.
    pub fn glances(&self) -> &[Glance] {
        &self.glances
    }

    /// Changes one, without effect on who holds an earlier state of it.
    pub(super) fn change(&mut self, place: usize, change: impl FnOnce(&mut Entry)) {
        let entry = Arc::make_mut(&mut self.all[place]);
        change(entry);
        self.glances[place] = Glance::of(entry);
    }
}

impl Deref for Entries {
    type Target = [Arc<Entry>];

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl IntoIterator for Entries {
    type Item = Arc<Entry>;
    type IntoIter = std::vec::IntoIter<Arc<Entry>>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.into_iter()
    }
}

impl<'a> IntoIterator for &'a Entries {
    type Item = &'a Arc<Entry>;
    type IntoIter = std::slice::Iter<'a, Arc<Entry>>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}

impl FromIterator<Arc<Entry>> for Entries {
    fn from_iter<I: IntoIterator<Item = Arc<Entry>>>(entries: I) -> Self {
        let all: Vec<Arc<Entry>> = entries.into_iter().collect();
        let glances = all.iter().map(|entry| Glance::of(entry)).collect();
        Self { all, glances }
    }
}
