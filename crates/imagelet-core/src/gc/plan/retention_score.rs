//! The retention score: the expected cost of removing an image, as use frequency × fetch cost. The selection divides
//! the score by the freed bytes (Greedy-Dual-Size-Frequency). The frequency is one use per mean interval between uses,
//! and decays if the image is unused for longer than that interval. Superseded versions, and images that were never
//! used again, have a lower score.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::PlanInput;
use crate::{
    image::ImageId,
    inventory::{PullCost, UseHistory},
    ports::LayerGraph,
};

/// The assumed seconds between uses: an image that is unused for a working day is rarely used again.
const INTERVAL_GUESSED: f64 = 0.3 * DAY;
/// The assumed interval counts as this many measured intervals, which count as `KNOWN_WEIGHT_MAX` at most.
const GUESS_WEIGHT: f64 = 0.5;
const KNOWN_WEIGHT_MAX: f64 = 10.0 / 3.0;
/// The frequency decays after `SLACK` intervals without use. Each further idle second then counts `AGING` times.
const SLACK: f64 = 1.3;
const AGING: f64 = 8.0;
const NEVER_RETURNED: f64 = 0.5;
const SUPERSEDED: f64 = 0.03;
const DAY: f64 = 86_400.0;
/// The assumed network speed in bytes per second. The cost of a pull at this speed is its number of bytes.
const LINK_BYTES: f64 = 20e6;
/// The minimum and the maximum factor by which the speed of a registry changes the cost of a pull.
const SLOWNESS: (f64, f64) = (0.5, 4.0);
/// A smaller pull measures the latency of a registry and not its speed.
const PULL_MIN: u64 = 1 << 20;

/// The expected cost per day of removing each image, in bytes at the assumed network speed. An unused prefetch costs 1.
pub(super) fn costs(input: &PlanInput<'_>, places: &[usize]) -> Vec<u64> {
    let candidates = || places.iter().map(|place| input.id(*place)).collect();
    let fetched = input.layers.map(|graph| shared_out(graph, candidates())).unwrap_or_default();
    let cost = |place: &usize| {
        let entry = &input.snapshot.entries[*place];
        if entry.usage.prefetched {
            return 1;
        }
        let bytes = fetched.get(&entry.image.id).copied().unwrap_or(entry.image.size.0 as f64);
        let since = entry.usage.times.last_used.unwrap_or(entry.first_seen());
        let idle = input.now.duration_since(since).unwrap_or_default();
        let expected = uses_per_day(&entry.usage.history, idle) * bytes * slowness(entry.usage.pulled);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between the two bounds")]
        let expected = expected.clamp(1.0, 1e18) as u64;
        expected
    };
    places.iter().map(cost).collect()
}

fn slowness(pulled: Option<PullCost>) -> f64 {
    let Some(cost) = pulled.filter(|cost| cost.bytes.0 >= PULL_MIN) else { return 1.0 };
    (cost.duration.as_secs_f64() * LINK_BYTES / cost.bytes.0 as f64).clamp(SLOWNESS.0, SLOWNESS.1)
}

/// The bytes to fetch again for each candidate. A layer that stays counts 0. The images of a layer share its bytes
/// equally.
fn shared_out<'a>(graph: &LayerGraph, candidates: BTreeSet<&'a ImageId>) -> BTreeMap<&'a ImageId, f64> {
    let mut users = vec![0_u32; graph.layers.len()];
    let mut stays: Vec<bool> = graph.layers.iter().map(|layer| layer.held).collect();
    let index = |part: &u32| usize::try_from(*part).ok().filter(|part| *part < graph.layers.len());
    for (image, parts) in &graph.images {
        for part in parts.iter().filter_map(index) {
            users[part] += 1;
            stays[part] |= !candidates.contains(image);
        }
    }
    let share =
        |part: usize| if stays[part] { 0.0 } else { graph.layers[part].bytes.0 as f64 / f64::from(users[part]) };
    let of = |image: &'a ImageId| Some((image, graph.images.get(image)?.iter().filter_map(index).map(share).sum()));
    candidates.into_iter().filter_map(of).collect()
}

fn uses_per_day(history: &UseHistory, idle: Duration) -> f64 {
    let known = f64::from(history.returns).min(KNOWN_WEIGHT_MAX);
    let interval = (GUESS_WEIGHT * INTERVAL_GUESSED + known * history.interval as f64) / (GUESS_WEIGHT + known);
    let late = (idle.as_secs_f64() - SLACK * interval).max(0.0);
    let returned = if history.returns == 0 { NEVER_RETURNED } else { 1.0 };
    let superseded = if history.superseded { SUPERSEDED } else { 1.0 };
    DAY / (interval + AGING * late) * returned * superseded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        image::ByteSize,
        ports::{Certainty, LayerFacts},
    };

    const HOUR: Duration = Duration::from_hours(1);

    fn daily() -> UseHistory {
        UseHistory { uses: 8, returns: 7, interval: (24 * HOUR).as_secs(), ..UseHistory::default() }
    }

    fn once() -> UseHistory {
        UseHistory { uses: 1, ..UseHistory::default() }
    }

    #[test]
    fn without_a_history_the_score_is_the_order_of_last_use() {
        let mut last = f64::INFINITY;
        for hours in [10, 12, 24, 100, 1000, 100_000] {
            let rate = uses_per_day(&once(), hours * HOUR);
            assert!(rate < last && rate > 0.0, "{hours}: {rate}");
            last = rate;
        }
        let old = UseHistory { superseded: true, ..once() };
        assert!(uses_per_day(&old, HOUR) < uses_per_day(&once(), HOUR) / 10.0);
        // Half a use per guessed interval of 0.3 days: it never returned.
        assert!((uses_per_day(&once(), HOUR) - 0.5 / 0.3).abs() < 1e-9);
    }

    #[test]
    fn a_nightly_job_outlives_what_was_used_after_it_until_it_does_not_come() {
        let rate = |hours: u32| uses_per_day(&daily(), hours * HOUR);
        assert!(rate(20) > uses_per_day(&once(), 12 * HOUR), "it comes tonight");
        assert!((rate(20) - rate(2)).abs() < f64::EPSILON, "by day it is worth the same");
        assert!(rate(24 * 4) < rate(12) / 5.0, "it did not come for days");
    }

    #[test]
    fn no_history_makes_a_number_that_is_none() {
        let endless = UseHistory { returns: u32::MAX, interval: u64::MAX, ..once() };
        for history in [UseHistory::default(), once(), daily(), endless] {
            for idle in [Duration::ZERO, HOUR, Duration::MAX] {
                let rate = uses_per_day(&history, idle);
                assert!(rate.is_finite() && rate >= 0.0, "{idle:?}");
            }
        }
    }

    #[test]
    fn a_layer_costs_what_its_candidates_would_fetch_of_it_again() {
        let layer =
            |bytes, held| LayerFacts { id: "".into(), bytes: ByteSize(bytes), inodes: None, held, folder: None };
        let images = [("a", vec![0, 1, 5]), ("b", vec![1, 2, 3]), ("used", vec![2, 4])];
        let graph = LayerGraph {
            layers: vec![layer(100, false), layer(60, false), layer(7, false), layer(9, true), layer(1, false)],
            images: images.map(|(id, parts)| (ImageId::new(id), parts)).into(),
            certainty: Certainty::Exact,
        };
        let [a, b, unknown] = ["a", "b", "unknown"].map(ImageId::new);
        // A layer of two is split; what an image in use or another holder keeps costs nothing.
        let expected = BTreeMap::from([(&a, 130.0), (&b, 30.0)]);
        assert_eq!(shared_out(&graph, BTreeSet::from([&a, &b, &unknown])), expected);
        assert_eq!(shared_out(&graph, BTreeSet::from([&a])), BTreeMap::from([(&a, 100.0)]), "b keeps what they share");
    }

    #[test]
    fn a_slow_registry_makes_its_images_dearer() {
        let at = std::time::SystemTime::UNIX_EPOCH;
        let cost =
            |bytes: u64, seconds| PullCost { bytes: ByteSize(bytes), duration: Duration::from_secs(seconds), at };
        assert!(slowness(Some(cost(20_000_000, 3))) > slowness(Some(cost(20_000_000, 1))));
        assert!(slowness(Some(cost(PULL_MIN, 900))) > 1.0, "a pull that is just large enough counts");
        for unknown in [None, Some(cost(0, 900)), Some(cost(5_000, 900))] {
            assert!((slowness(unknown) - 1.0).abs() < f64::EPSILON);
        }
        assert!(slowness(Some(cost(2_000_000, 9_000_000))) <= SLOWNESS.1);
    }
}
