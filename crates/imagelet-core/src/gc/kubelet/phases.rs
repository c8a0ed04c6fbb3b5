//! Which image goes, and when: candidates in order, the age phase, the space phase. Touches nothing (`spec/gc.md §6-§8`).

use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::super::{
    GcError, GcPolicy, Reason,
    policy::AgeCounts,
    round::Attempt,
    text::{aggregate, duration_text},
    time::{is_older, is_younger},
};
use crate::{
    image::ByteSize,
    inventory::{Entry, Glance},
};

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
    pub(crate) fn of(entry: &Entry, glance: &Glance) -> Self {
        if glance.is_free {
            return Self {
                nameless: false,
                size: glance.size,
                first_seen: Some(glance.first_seen),
                last_used: glance.last_used,
                leased_at: None,
                in_use: false,
                pinned: false,
            };
        }
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
    use serde_json::Value;

    use super::*;
    use crate::{image::ImageKey, testing::vectors};

    /// Nanoseconds on the vectors' clock; null is no time.
    fn time(value: &Value) -> Option<SystemTime> {
        value.as_i64().map(|nanos| {
            let span = Duration::from_nanos(nanos.unsigned_abs());
            if nanos < 0 { SystemTime::UNIX_EPOCH - span } else { SystemTime::UNIX_EPOCH + span }
        })
    }

    fn duration(value: &Value) -> Duration {
        Duration::from_nanos(value.as_u64().unwrap())
    }

    fn key(value: &Value) -> ImageKey {
        ImageKey::parse(value["key"].as_str().or(value["id"].as_str()).unwrap())
    }

    fn candidate(value: &Value) -> Candidate {
        Candidate {
            nameless: key(value).id().as_str().is_empty(),
            size: ByteSize(value["size"].as_u64().unwrap()),
            first_seen: time(&value["first_detected"]),
            last_used: time(&value["last_used"]),
            leased_at: None,
            in_use: false,
            pinned: value["pinned"].as_bool().unwrap_or(false),
        }
    }

    fn candidates(value: &Value) -> Vec<(ImageKey, Candidate, Option<String>)> {
        let error = |it: &Value| it["delete_error"].as_str().map(str::to_owned);
        value.as_array().unwrap().iter().map(|it| (key(it), candidate(it), error(it))).collect()
    }

    fn texts(value: &Value) -> Vec<String> {
        value.as_array().into_iter().flatten().map(|it| it.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn candidates_come_in_the_kubelets_order() {
        let cases = vectors("gc-eviction-order.json");
        assert_eq!(cases.len(), 13);
        for case in cases {
            let in_use = texts(&case["input"]["in_use"]);
            let all = candidates(&case["input"]["records"]).into_iter().map(|(key, candidate, _)| {
                let in_use = in_use.contains(&key.to_string());
                (key, Candidate { in_use, ..candidate })
            });
            let (order, nameless) = eviction_order(all.collect());
            let ids: Vec<_> = order.iter().map(|(key, _)| key.id().to_string()).collect();
            // The one case without an order upstream is in ours, by id.
            assert_eq!(ids, texts(&case["expected"]["order"]), "{}", case["name"]);
            let events: Vec<_> = nameless
                .iter()
                .map(|key| {
                    let event = crate::gc::invalid_id_event(key);
                    format!("Warning {} {}", event.reason, event.message)
                })
                .collect();
            assert_eq!(events, texts(&case["expected"]["events"]), "{}", case["name"]);
        }
    }

    /// Images with whether their removal fails, as the phases take them.
    type Listed = Vec<((ImageKey, Option<String>), Candidate)>;

    fn listed(value: &Value) -> Listed {
        candidates(value).into_iter().map(|(key, candidate, error)| ((key, error), candidate)).collect()
    }

    fn ids<'a>(images: impl IntoIterator<Item = &'a (ImageKey, Option<String>)>) -> Vec<String> {
        images.into_iter().map(|(key, _)| key.id().to_string()).collect()
    }

    /// Whom it was told to remove and did.
    #[derive(Default)]
    struct Deleted(Vec<String>);

    #[async_trait]
    impl Carries<(ImageKey, Option<String>)> for Deleted {
        fn keep(&mut self, _image: &(ImageKey, Option<String>), _reason: Reason) {}

        async fn remove(&mut self, (key, error): &(ImageKey, Option<String>)) -> Attempt {
            if let Some(error) = error {
                return Attempt::Failed(error.clone());
            }
            self.0.push(key.id().to_string());
            Attempt::Removed
        }
    }

    #[tokio::test]
    async fn space_is_freed_as_the_kubelet_frees_it() {
        let cases = vectors("gc-free-space.json");
        assert_eq!(cases.len(), 25);
        for case in cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            let wanted = input["bytes_to_free"].as_i64().unwrap();
            let mut phase = SpacePhase::new(wanted, duration(&input["min_age"]), time(&input["free_time"]).unwrap());
            let mut deleted = Deleted::default();
            let left = phase.run(listed(&input["candidates"]), &mut deleted).await;
            let error = phase.error().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected["error"].as_str(), "{}", case["name"]);
            assert_eq!(deleted.0, texts(&expected["deleted"]), "{}", case["name"]);
            assert_eq!(phase.freed().0, expected["freed"].as_u64().unwrap(), "{}", case["name"]);
            assert_eq!(error.is_some(), expected["remaining"].is_null(), "{}", case["name"]);
            if error.is_none() {
                assert_eq!(ids(&left), texts(&expected["remaining"]), "{}", case["name"]);
            }
        }
    }

    #[tokio::test]
    async fn old_images_go_as_the_kubelet_lets_them_go() {
        let cases = vectors("gc-max-age.json");
        assert_eq!(cases.len(), 10);
        for case in cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            let policy = GcPolicy::new(85, 80, Duration::ZERO, Some(duration(&input["max_age"]))).unwrap();
            let policy = policy.counting(AgeCounts::FromUse);
            let [began, now] = ["began_gc", "free_time"].map(|field| time(&input[field]).unwrap());
            let (mut left, mut deleted, mut error) = (listed(&input["candidates"]), Deleted::default(), None);
            if let Some(mut phase) = AgePhase::opens(&policy, began, now) {
                left = phase.run(left, &mut deleted).await;
                error = phase.error().map(|error| error.to_string());
            }
            assert_eq!(error.as_deref(), expected["error"].as_str(), "{}", case["name"]);
            assert_eq!(deleted.0, texts(&expected["deleted"]), "{}", case["name"]);
            assert_eq!(ids(left.iter().map(|(image, _)| image)), texts(&expected["remaining"]), "{}", case["name"]);
        }
    }

    #[test]
    fn a_just_pulled_image_is_not_old_unless_the_kubelet_says_so() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(100);
        let policy = GcPolicy::new(85, 80, Duration::ZERO, Some(Duration::from_hours(1))).unwrap();
        let takes = |counts, minutes| {
            let phase = AgePhase::opens(&policy.counting(counts), SystemTime::UNIX_EPOCH, now).unwrap();
            let first_seen = Some(now - Duration::from_mins(minutes));
            phase.takes(&Candidate { first_seen, ..candidate(&serde_json::json!({"id": "a", "size": 1})) })
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
