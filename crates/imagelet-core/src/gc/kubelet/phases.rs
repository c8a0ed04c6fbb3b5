//! Which image goes, and when: candidates in order, the age phase, the space phase. Touches nothing (`spec/gc.md §6-§8`).

use std::time::{Duration, SystemTime};

use super::super::{
    GcError, Reason,
    policy::AgeCounts,
    text::aggregate,
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

/// Removes what was unused for too long, whatever the disk.
#[derive(Clone, Debug)]
pub(crate) struct AgePhase {
    pub(crate) age_max: Duration,
    /// Since when uses are known: nothing is old before it was watched for that long.
    pub(crate) watched_since: SystemTime,
    pub(crate) now: SystemTime,
    pub(crate) counts: AgeCounts,
    pub(crate) failures: Vec<String>,
}

impl AgePhase {
    /// Whether it removes anything at all.
    pub(crate) fn opens(&self) -> bool {
        is_older(Some(self.watched_since), self.age_max, self.now)
    }

    /// Whether this one goes.
    pub(crate) fn takes(&self, candidate: &Candidate) -> bool {
        let since = match self.counts {
            AgeCounts::FromUseOrSight => candidate.last_used.max(candidate.first_seen),
            AgeCounts::FromUse => candidate.last_used,
        };
        is_older(since, self.age_max, self.now)
    }

    /// The error of the phase, if any removal failed.
    pub(crate) fn error(&self) -> Option<GcError> {
        (!self.failures.is_empty())
            .then(|| GcError::AgeRemovals { age_max: self.age_max, errors: aggregate(&self.failures) })
    }
}

/// Removes in order until enough is gone.
#[derive(Clone, Debug)]
pub(crate) struct SpacePhase {
    /// Bytes to free. Nothing or less still takes one image, as the kubelet does; who wants none does not begin.
    pub(crate) wanted: i64,
    pub(crate) age_min: Duration,
    pub(crate) now: SystemTime,
    pub(crate) freed: ByteSize,
    pub(crate) failures: Vec<String>,
    is_done: bool,
}

impl SpacePhase {
    pub(crate) fn new(wanted: i64, age_min: Duration, now: SystemTime) -> Self {
        Self { wanted, age_min, now, freed: ByteSize::ZERO, failures: Vec::new(), is_done: false }
    }

    /// Enough is gone; who comes now is not looked at any more.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Why this one stays although more is wanted; `None`: it goes.
    pub(crate) fn keeps(&self, candidate: &Candidate) -> Option<Reason> {
        if candidate.last_used >= Some(self.now) {
            return Some(Reason::JustUsed);
        }
        if is_younger(candidate.first_seen, self.age_min, self.now) {
            return Some(Reason::Young { age_min: self.age_min });
        }
        let is_leased = candidate.leased_at.is_some() && is_younger(candidate.leased_at, self.age_min, self.now);
        is_leased.then_some(Reason::Leased { lease: self.age_min })
    }

    /// Counts a removal.
    pub(crate) fn removed(&mut self, size: ByteSize) {
        self.freed = self.freed + size;
        self.is_done = i128::from(self.freed.0) >= i128::from(self.wanted);
    }

    /// Counts a failure; the walk goes on.
    pub(crate) fn failed(&mut self, error: String) {
        self.failures.push(error);
    }

    /// The error of the phase, if any removal failed, even when enough was freed.
    pub(crate) fn error(&self) -> Option<GcError> {
        (!self.failures.is_empty()).then(|| GcError::SpaceRemovals {
            wanted: self.wanted,
            freed: self.freed.0,
            errors: aggregate(&self.failures),
        })
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

    #[test]
    fn space_is_freed_as_the_kubelet_frees_it() {
        let cases = vectors("gc-free-space.json");
        assert_eq!(cases.len(), 25);
        for case in cases {
            let input = &case["input"];
            let wanted = input["bytes_to_free"].as_i64().unwrap();
            let mut phase = SpacePhase::new(wanted, duration(&input["min_age"]), time(&input["free_time"]).unwrap());
            let (mut deleted, mut remaining) = (Vec::new(), Vec::new());
            for (key, candidate, error) in candidates(&input["candidates"]) {
                if phase.is_done() {
                    break;
                }
                let id = key.id().to_string();
                match (phase.keeps(&candidate), error) {
                    (Some(_), _) => remaining.push(id),
                    (None, Some(error)) => phase.failed(error),
                    (None, None) => {
                        phase.removed(candidate.size);
                        deleted.push(id);
                    }
                }
            }
            let expected = &case["expected"];
            let error = phase.error().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected["error"].as_str(), "{}", case["name"]);
            assert_eq!(deleted, texts(&expected["deleted"]), "{}", case["name"]);
            assert_eq!(phase.freed.0, expected["freed"].as_u64().unwrap(), "{}", case["name"]);
            assert_eq!(error.is_some(), expected["remaining"].is_null(), "{}", case["name"]);
            if error.is_none() {
                assert_eq!(remaining, texts(&expected["remaining"]), "{}", case["name"]);
            }
        }
    }

    #[test]
    fn old_images_go_as_the_kubelet_lets_them_go() {
        let cases = vectors("gc-max-age.json");
        assert_eq!(cases.len(), 10);
        for case in cases {
            let input = &case["input"];
            let mut phase = AgePhase {
                age_max: duration(&input["max_age"]),
                watched_since: time(&input["began_gc"]).unwrap(),
                now: time(&input["free_time"]).unwrap(),
                counts: AgeCounts::FromUse,
                failures: Vec::new(),
            };
            // A policy turns an age of zero into none, so that the phase does not exist.
            let opens = !phase.age_max.is_zero() && phase.opens();
            let (mut deleted, mut remaining) = (Vec::new(), Vec::new());
            for (key, candidate, error) in candidates(&input["candidates"]) {
                let id = key.id().to_string();
                match error {
                    _ if !opens || !phase.takes(&candidate) => remaining.push(id),
                    Some(error) => {
                        phase.failures.push(error);
                        remaining.push(id);
                    }
                    None => deleted.push(id),
                }
            }
            let expected = &case["expected"];
            let error = phase.error().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected["error"].as_str(), "{}", case["name"]);
            assert_eq!(deleted, texts(&expected["deleted"]), "{}", case["name"]);
            assert_eq!(remaining, texts(&expected["remaining"]), "{}", case["name"]);
        }
    }

    #[test]
    fn a_just_pulled_image_is_not_old() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(100);
        let phase = AgePhase {
            age_max: Duration::from_hours(1),
            watched_since: SystemTime::UNIX_EPOCH,
            now,
            counts: AgeCounts::FromUseOrSight,
            failures: Vec::new(),
        };
        let mut image = candidate(&serde_json::json!({"id": "a", "size": 1}));
        image.first_seen = Some(now - Duration::from_mins(59));
        assert!(phase.opens() && !phase.takes(&image));
        image.first_seen = Some(now - Duration::from_mins(61));
        assert!(phase.takes(&image));
    }

    #[test]
    fn keys_read_and_print_as_the_kubelets() {
        for case in vectors("gc-image-tuple.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            if let (Some(id), Some(handler)) = (input["image_id"].as_str(), input["runtime_handler"].as_str()) {
                let key = ImageKey::new(crate::image::ImageId::new(id), handler.to_owned());
                assert_eq!(key.to_string(), expected["key"].as_str().unwrap(), "{}", case["name"]);
            }
            let text = input["key"].as_str().or(expected["key"].as_str()).unwrap();
            assert_eq!(ImageKey::parse(text).id().as_str(), expected["id_from_key"].as_str().unwrap());
        }
    }
}
