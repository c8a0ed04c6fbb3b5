//! The turns of images: the image to pull next, and when a slow pull is interrupted for waiting images. Pure functions.

use std::time::Duration;

use imagelet_core::hold::{GRACE, HoldMeter, HoldPolicy};
use tokio::time::Instant;

use crate::prefetch::objects::{ImageSet, SetImage, SetScope};

/// The first turn of a pull that reports no bytes. It is long, because a runtime may lose an interrupted pull's data.
const UNMEASURED_TURN: Duration = Duration::from_mins(2);
/// Maximum doublings of a turn. A small layer of a slow registry is not resumed, so it needs a whole turn.
const DOUBLINGS_MAX: u32 = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) set: &'a ImageSet,
    pub(super) image: &'a SetImage,
    /// Whether the pull of an image of the set was interrupted and has not finished since.
    pub(super) is_slow: bool,
    pub(super) since: Option<Instant>,
}

/// The next image. `candidates` are in the order of their sets' places. `last` is the namespace of the last turn.
///
/// Images that were never tried come before failed images and slow sets. Cluster-wide sets come before namespaces.
/// Namespaces take turns, so that no namespace waits for all images of another namespace.
pub(super) fn next<'a, 'b>(candidates: &'b [Candidate<'a>], last: &str) -> Option<&'b Candidate<'a>> {
    candidates.iter().min_by(|a, b| a.rank(last).cmp(&b.rank(last)))
}

impl Candidate<'_> {
    fn rank(&self, last: &str) -> (bool, bool, &str, Option<Instant>) {
        let namespace = self.set.name.namespace.as_str();
        let is_again = self.is_slow || self.since.is_some();
        let is_first = !is_again && self.set.name.scope == SetScope::Cluster;
        (is_again, !is_first && namespace <= last, namespace, self.since)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) given_way: u32,
    /// Whether the pull reports its bytes during the transfer. A runtime reports no bytes.
    pub(super) is_measured: bool,
    /// Whether all waiting sets are slow. If so, turns get longer, because longer turns waste less.
    pub(super) are_all_slow: bool,
}

impl Turn {
    pub(super) fn is_over(self, policy: HoldPolicy, meter: &HoldMeter, now: Instant) -> bool {
        let first = if self.is_measured { GRACE } else { UNMEASURED_TURN };
        let is_lengthened = self.are_all_slow || !self.is_measured;
        let doublings = if is_lengthened { self.given_way.min(DOUBLINGS_MAX) } else { 0 };
        let is_slow = if self.is_measured { policy.gives_up(meter, now) } else { policy.rate_min > 0 };
        is_slow && meter.held_for(now) >= first * 2_u32.pow(doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::objects::testing::set_of;

    /// The images in the order in which they are fetched, where each is fetched in its turn.
    fn order(candidates: &[Candidate<'_>]) -> Vec<String> {
        let (mut left, mut last, mut order) = (candidates.to_vec(), String::new(), Vec::new());
        while let Some(found) = next(&left, &last).copied() {
            last.clone_from(&found.set.name.namespace);
            order.push(found.image.reference.clone());
            left.retain(|it| !std::ptr::eq(it.image, found.image));
        }
        order
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_take_turns_after_the_cluster_and_slow_sets_and_failed_images_come_last() {
        let sets = [
            set_of(SetScope::Namespace, "a", "many", &["a1", "a2", "a3", "a4"]),
            set_of(SetScope::Namespace, "b", "few", &["b1", "b2"]),
            set_of(SetScope::Namespace, "z", "one", &["z1"]),
            set_of(SetScope::Cluster, "", "base", &["c1", "c2"]),
        ];
        let now = Instant::now();
        let all = |slow: &[&str], tried: &[(&str, u64)]| -> Vec<String> {
            let mut candidates = Vec::new();
            for set in &sets {
                let is_slow = slow.contains(&set.name.name.as_str());
                for image in &set.spec.images {
                    let waits = tried.iter().find(|(name, _)| *name == image.reference);
                    let since = waits.map(|(_, seconds)| now + Duration::from_secs(*seconds));
                    candidates.push(Candidate { set, image, is_slow, since });
                }
            }
            order(&candidates)
        };
        assert_eq!(all(&[], &[]), ["c1", "c2", "a1", "b1", "z1", "a2", "b2", "a3", "a4"]);
        assert_eq!(all(&["many"], &[("a1", 5)]), ["c1", "c2", "b1", "z1", "b2", "a2", "a3", "a4", "a1"]);
        let both = all(&["many", "few"], &[("a1", 5), ("b1", 3)]);
        assert_eq!(both, ["c1", "c2", "z1", "a2", "b2", "a3", "b1", "a4", "a1"], "slow sets take turns");
        let failed = all(&[], &[("a1", 9), ("a2", 1), ("z1", 5), ("c1", 7)]);
        assert_eq!(failed, ["c2", "a3", "b1", "a4", "b2", "z1", "c1", "a2", "a1"], "the longest waiting one first");
        let all_again = all(&["base", "one"], &[("c1", 1)]);
        assert_eq!(all_again, ["a1", "b1", "a2", "b2", "a3", "a4", "z1", "c2", "c1"], "also a slow set of the cluster");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_pull_gives_way_within_ten_seconds_to_others_and_later_each_time_to_slow_ones() {
        const KIB: u64 = 1 << 10;
        let turn = |given_way, is_measured, are_all_slow| Turn { given_way, is_measured, are_all_slow };
        let policy = HoldPolicy::default();
        // The turn, the bytes of a second, and the seconds after which it is over.
        for (turn, rate, over) in [
            (turn(0, true, false), 100, Some(5)),
            (turn(0, true, false), 20 * KIB, Some(5)),
            (turn(0, true, false), 300 * KIB, None),
            (turn(7, true, false), 100, Some(5)),
            (turn(0, true, true), 100, Some(5)),
            (turn(1, true, true), 100, Some(10)),
            (turn(4, true, true), 20 * KIB, Some(80)),
            (turn(9, true, true), 300 * KIB, None),
            (turn(99, true, true), 0, Some(1280)),
            (turn(0, false, false), 0, Some(120)),
            (turn(2, false, false), 0, Some(480)),
        ] {
            let began = Instant::now();
            let meter = HoldMeter::new(began);
            let found = (1..=2000).find(|second| {
                meter.add(rate);
                turn.is_over(policy, &meter, began + Duration::from_secs(*second))
            });
            assert_eq!(found, over, "{turn:?} at {rate} bytes a second");
            assert!(!turn.is_over(HoldPolicy { rate_min: 0 }, &meter, began + Duration::from_hours(1)), "switched off");
        }
    }
}
