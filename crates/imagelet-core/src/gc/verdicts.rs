//! What became of each image, as it is told: drawn up when somebody reads it, as most collections tell thousands of
//! images that nothing was to be done with.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{GcVerdict, Kept, Planned, Reason};
use crate::{
    image::{ByteSize, ImageKey, SharedNames},
    inventory::{Entry, Snapshot},
};

/// What becomes of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcDecision {
    /// Which.
    pub key: ImageKey,
    /// Its names with tag.
    pub tags: SharedNames,
    /// Its names with digest.
    pub digests: SharedNames,
    /// What the runtime says it takes.
    pub size: ByteSize,
    /// Stay or go.
    pub verdict: GcVerdict,
    /// Why.
    pub reason: Reason,
}

impl GcDecision {
    pub(super) fn of(entry: &Entry, verdict: GcVerdict, reason: Reason) -> Self {
        let image = &entry.image;
        let (tags, digests) = (SharedNames::tags_of(image), SharedNames::digests_of(image));
        Self { key: entry.key(), tags, digests, size: image.size, verdict, reason }
    }

    /// All its names.
    pub fn names(&self) -> Vec<String> {
        self.tags.iter().chain(&*self.digests).cloned().collect()
    }
}

/// What becomes of all images, one for each.
#[derive(Clone, Default)]
pub struct Decisions {
    /// What was decided about all of them at first.
    first: Option<(Arc<Snapshot>, Why)>,
    /// What was decided later, in place of the first or beside it.
    later: BTreeMap<ImageKey, GcDecision>,
}

/// What becomes of the images of a snapshot, by their places, and why.
#[derive(Clone)]
pub(super) enum Why {
    /// Those that a plan keeps stay; about the others it is decided one by one.
    Kept(Arc<Planned>),
    /// All is as planned: those that go by place, each with the number of its step.
    Foreseen(Arc<Planned>, Vec<(usize, usize)>),
    /// The same without a plan.
    Own(Kept),
}

impl Why {
    pub(super) fn foreseen(planned: Arc<Planned>) -> Self {
        let mut goes: Vec<(usize, usize)> =
            planned.plan.steps.iter().enumerate().map(|(number, step)| (step.place, number)).collect();
        goes.sort_unstable();
        Self::Foreseen(planned, goes)
    }

    fn kept(&self) -> &Kept {
        match self {
            Self::Kept(planned) | Self::Foreseen(planned, _) => &planned.plan.kept,
            Self::Own(kept) => kept,
        }
    }

    fn at(&self, place: usize) -> Option<(GcVerdict, &Reason)> {
        if let Some(reason) = self.kept().at(place) {
            return Some((GcVerdict::Keep, reason));
        }
        let Self::Foreseen(planned, goes) = self else { return None };
        let number = goes.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        let step = planned.plan.steps.get(goes[number].1)?;
        Some((GcVerdict::Remove { phase: step.phase }, &step.reason))
    }
}

impl Decisions {
    pub(super) fn take(&mut self, decision: GcDecision) {
        self.later.insert(decision.key.clone(), decision);
    }

    /// Takes what was decided about all images of a snapshot, in place of what was decided before.
    pub(super) fn take_all(&mut self, snapshot: &Arc<Snapshot>, why: Why) {
        let first = Some((Arc::clone(snapshot), why));
        if self.is_empty() {
            self.first = first;
            return;
        }
        let anew = Self { first, later: BTreeMap::new() };
        self.later.extend(anew.iter().map(|decision| (decision.key.clone(), decision)));
    }

    /// Each, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = GcDecision> {
        let told =
            |(entry, verdict, reason): (&Entry, GcVerdict, &Reason)| GcDecision::of(entry, verdict, reason.clone());
        let mut first = self.first().peekable();
        let mut later = self.later.values().peekable();
        std::iter::from_fn(move || {
            let Some(next) = later.peek() else { return first.next().map(told) };
            if let Some(before) = first.next_if(|(entry, ..)| entry.image.cmp_key(&next.key).is_lt()) {
                return Some(told(before));
            }
            // What was decided later holds.
            first.next_if(|(entry, ..)| entry.image.cmp_key(&next.key).is_eq());
            later.next().cloned()
        })
    }

    fn first(&self) -> impl Iterator<Item = (&Entry, GcVerdict, &Reason)> {
        self.first.iter().flat_map(|(snapshot, why)| {
            let decided = |(place, entry)| why.at(place).map(|(verdict, reason)| (entry, verdict, reason));
            snapshot.entries.iter().map(|entry| &**entry).enumerate().filter_map(decided)
        })
    }

    /// How many images were decided about.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.later.is_empty() && self.first().next().is_none()
    }

    /// What was decided about this one.
    pub fn of(&self, key: &ImageKey) -> Option<GcDecision> {
        if let Some(decision) = self.later.get(key) {
            return Some(decision.clone());
        }
        let (snapshot, why) = self.first.as_ref()?;
        let place = snapshot.entries.binary_search_by(|entry| entry.image.cmp_key(key)).ok()?;
        let (verdict, reason) = why.at(place)?;
        Some(GcDecision::of(&snapshot.entries[place], verdict, reason.clone()))
    }
}

impl FromIterator<GcDecision> for Decisions {
    fn from_iter<I: IntoIterator<Item = GcDecision>>(decisions: I) -> Self {
        let later = decisions.into_iter().map(|decision| (decision.key.clone(), decision)).collect();
        Self { first: None, later }
    }
}

impl fmt::Debug for Decisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
