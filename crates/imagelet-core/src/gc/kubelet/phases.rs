//! Which image goes, and when: candidates in order, the age phase, the space phase. Touches nothing (`docs/spec/gc.md §6-§8`).

use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::super::{
    GcError, GcPolicy, Reason,
    policy::AgeCounts,
    round::Attempt,
    text::{aggregate, duration_text},
    time::{is_older, is_younger},
};
use crate::{image::ByteSize, inventory::Entry};

/// What a decision needs to know of an image; a copy, so later passes do not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Listed without an id.
    pub(crate) nameless: bool,
    pub(crate) size: ByteSize,
    /// `None` is earlier than all times.
    pub(crate) first_seen: Option<SystemTime>,
    pub(crate) last_used: Option<SystemTime>,
    pub(crate) leased_at: Option<SystemTime>,
    pub(crate) in_use: bool,
    pub(crate) pinned: bool,
}

impl Candidate {
    pub(crate) fn of(entry: &Entry) -> Self {
        Self {
            nameless: entry.image.id.as_str().is_empty(),
            size: entry.image.size,
            first_seen: Some(entry.first_seen),
            last_used: entry.last_used,
            leased_at: entry.leased_at,
            in_use: !entry.in_use_by.is_empty(),
            pinned: !entry.pinned_by.is_empty(),
        }
    }
}

/// Who may go, the least recently used first; never used goes before used, full ties by key: by keys, or by whatever
/// stands for them in the same order.
///
/// Second: those without an id, which nobody could remove.
pub(crate) fn eviction_order<K: Ord>(candidates: Vec<(K, Candidate)>) -> (Vec<(K, Candidate)>, Vec<K>) {
    let (mut order, mut nameless) = (Vec::with_capacity(candidates.len()), Vec::new());
    for (key, candidate) in candidates.into_iter().filter(|(_, candidate)| !candidate.in_use && !candidate.pinned) {
        if candidate.nameless {
            nameless.push(key);
        } else {
            order.push((key, candidate));
        }
    }
    let by = |one: &(K, Candidate), other: &(K, Candidate)| {
        let times = |(_, it): &(K, Candidate)| (it.last_used, it.first_seen);
        times(one).cmp(&times(other)).then_with(|| one.0.cmp(&other.0))
    };
    order.sort_unstable_by(by);
    (order, nameless)
}

/// Who carries out what a phase decides.
#[async_trait]
pub(crate) trait Carries<T> {
    /// It stays although more is wanted.
    fn keep(&mut self, image: &T, reason: Reason);

    /// It goes, unless something has come between.
    async fn remove(&mut self, image: &T) -> Attempt;
}

/// Removes what was unused for too long, whatever the disk.
#[derive(Clone, Debug)]
pub(crate) struct AgePhase {
    age_max: Duration,
    counts: AgeCounts,
    now: SystemTime,
    failures: Vec<String>,
}

impl AgePhase {
    /// `None`: age alone removes nothing, or uses are not known for that long yet.
    pub(crate) fn opens(policy: &GcPolicy, watched_since: SystemTime, now: SystemTime) -> Option<Self> {
        let age_max = policy.age_max()?;
        if !is_older(Some(watched_since), age_max, now) {
            tracing::debug!(age_max = %duration_text(age_max), "images were not watched long enough to call one old");
            return None;
        }
        Some(Self { age_max, counts: policy.age_counts(), now, failures: Vec::new() })
    }

    /// Has the old ones removed, in order, and gives back what is left.
    pub(crate) async fn run<T>(
        &mut self,
        candidates: Vec<(T, Candidate)>,
        by: &mut impl Carries<T>,
    ) -> Vec<(T, Candidate)> {
        let mut left = Vec::new();
        for (image, candidate) in candidates {
            if self.takes(&candidate) {
                match by.remove(&image).await {
                    Attempt::Removed => continue,
                    Attempt::Failed(error) => self.failures.push(error),
                    Attempt::Spared(_) => {}
                }
            }
            left.push((image, candidate));
        }
        left
    }

    /// The error of the phase, if any removal failed.
    pub(crate) fn error(&self) -> Option<GcError> {
        (!self.failures.is_empty())
            .then(|| GcError::AgeRemovals { age_max: self.age_max, errors: aggregate(&self.failures) })
    }

    fn takes(&self, candidate: &Candidate) -> bool {
        let since = match self.counts {
            AgeCounts::FromUseOrSight => candidate.last_used.max(candidate.first_seen),
            AgeCounts::FromUse => candidate.last_used,
        };
        is_older(since, self.age_max, self.now)
    }
}

/// Removes in order until enough is gone.
#[derive(Clone, Debug)]
pub(crate) struct SpacePhase {
    /// Bytes to free. Nothing or less still takes one image, as the kubelet does; who wants none does not begin.
    wanted: i64,
    age_min: Duration,
    now: SystemTime,
    freed: ByteSize,
    failures: Vec<String>,
}

impl SpacePhase {
    pub(crate) fn new(wanted: i64, age_min: Duration, now: SystemTime) -> Self {
        Self { wanted, age_min, now, freed: ByteSize::ZERO, failures: Vec::new() }
    }

    /// Has them kept or removed, in order, until enough is gone. Gives back what it looked at and is left: nothing that
    /// comes behind the last that was needed.
    pub(crate) async fn run<T>(&mut self, candidates: Vec<(T, Candidate)>, by: &mut impl Carries<T>) -> Vec<T> {
        let mut left = Vec::new();
        for (image, candidate) in candidates {
            if let Some(reason) = self.keeps(&candidate) {
                by.keep(&image, reason);
                left.push(image);
                continue;
            }
            match by.remove(&image).await {
                Attempt::Removed => {
                    self.freed = self.freed + candidate.size;
                    if i128::from(self.freed.0) >= i128::from(self.wanted) {
                        break;
                    }
                    continue;
                }
                Attempt::Failed(error) => self.failures.push(error),
                Attempt::Spared(_) => {}
            }
            left.push(image);
        }
        left
    }

    /// What went, by the sizes of the images.
    pub(crate) fn freed(&self) -> ByteSize {
        self.freed
    }

    /// The error of the phase, if any removal failed, even when enough was freed.
    pub(crate) fn error(&self) -> Option<GcError> {
        (!self.failures.is_empty()).then(|| GcError::SpaceRemovals {
            wanted: self.wanted,
            freed: self.freed.0,
            errors: aggregate(&self.failures),
        })
    }

    /// Why this one stays although more is wanted; `None`: it goes.
    fn keeps(&self, candidate: &Candidate) -> Option<Reason> {
        if candidate.last_used >= Some(self.now) {
            return Some(Reason::JustUsed);
        }
        if is_younger(candidate.first_seen, self.age_min, self.now) {
            return Some(Reason::Young { age_min: self.age_min });
        }
        let is_leased = candidate.leased_at.is_some() && is_younger(candidate.leased_at, self.age_min, self.now);
        is_leased.then_some(Reason::Leased { lease: self.age_min })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{image::ImageKey, testing::vectors};

    #[test]
    fn a_just_pulled_image_is_not_old_unless_the_kubelet_says_so() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(100);
        let policy = GcPolicy::new(85, 80, Duration::ZERO, Some(Duration::from_hours(1))).unwrap();
        let takes = |counts, minutes| {
            let phase = AgePhase::opens(&policy.counting(counts), SystemTime::UNIX_EPOCH, now).unwrap();
            let first_seen = Some(now - Duration::from_mins(minutes));
            phase.takes(&Candidate {
                nameless: false,
                size: ByteSize(1),
                first_seen,
                last_used: None,
                leased_at: None,
                in_use: false,
                pinned: false,
            })
        };
        assert!(!takes(AgeCounts::FromUseOrSight, 59) && takes(AgeCounts::FromUseOrSight, 61));
        assert!(takes(AgeCounts::FromUse, 0));
        assert!(AgePhase::opens(&policy, now - Duration::from_hours(1), now).is_none(), "not watched for long enough");
    }

    #[test]
    fn keys_read_and_print_as_the_kubelets() {
        let (cases, mut written) = (vectors("gc-image-tuple.json"), 0);
        assert_eq!(cases.len(), 6);
        for case in cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            if let (Some(id), Some(handler)) = (input["image_id"].as_str(), input["runtime_handler"].as_str()) {
                let key = ImageKey::new(crate::image::ImageId::new(id), handler.to_owned());
                assert_eq!(key.to_string(), expected["key"].as_str().unwrap(), "{}", case["name"]);
                written += 1;
            }
            let text = input["key"].as_str().or(expected["key"].as_str()).unwrap();
            assert_eq!(ImageKey::parse(text).id().as_str(), expected["id_from_key"].as_str().unwrap());
        }
        assert!(written > 0);
    }
}
