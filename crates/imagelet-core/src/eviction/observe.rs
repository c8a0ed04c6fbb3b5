//! Which thresholds are crossed by what is observed.

use std::collections::BTreeMap;

use super::{Signal, Threshold};

/// Capacity and available amount of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Total amount.
    pub capacity: u64,
    /// Available amount.
    pub available: u64,
}

/// Observations by signal. A signal with an unknown capacity or available amount is absent.
pub type Observations = BTreeMap<Signal, Observation>;

/// The thresholds that are crossed. A signal without an observation crosses none.
///
/// `with_reclaim` also requires the minimum reclaim beyond the limit, so that the node is not short again at once.
pub fn met<'a>(thresholds: &'a [Threshold], observed: &Observations, with_reclaim: bool) -> Vec<&'a Threshold> {
    let is_met = |threshold: &&Threshold| {
        let Some(observation) = observed.get(&threshold.signal) else {
            tracing::info!(signal = %threshold.signal, "Eviction manager: no observation found for eviction signal");
            return false;
        };
        let mut wanted = threshold.value.of(observation.capacity);
        if let Some(reclaim) = threshold.reclaim_min.filter(|_| with_reclaim) {
            wanted += reclaim.of(observation.capacity);
        }
        wanted > i128::from(observation.available) * 1_000_000_000
    };
    thresholds.iter().filter(is_met).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::Amount;

    fn threshold(value: Amount, reclaim_min: Option<Amount>) -> [Threshold; 1] {
        [Threshold { signal: Signal::ImagefsAvailable, value, grace: None, reclaim_min }]
    }

    fn quantity(text: &str) -> Amount {
        Amount::Quantity(text.parse().unwrap())
    }

    fn is_met(thresholds: &[Threshold], capacity: u64, available: u64, with_reclaim: bool) -> bool {
        let observed = Observations::from([(Signal::ImagefsAvailable, Observation { capacity, available })]);
        !met(thresholds, &observed, with_reclaim).is_empty()
    }

    #[test]
    fn a_threshold_is_crossed_only_below_it() {
        let limit = threshold(quantity("1Gi"), None);
        assert!(is_met(&limit, 10 << 30, (1 << 30) - 1, false));
        assert!(!is_met(&limit, 10 << 30, 1 << 30, false));
    }

    #[test]
    fn a_share_is_of_the_capacity_and_cut_to_whole_bytes() {
        // The 32-bit value of 0.15 is slightly larger than 0.15; 1000 times it truncates to 150.
        let limit = threshold(Amount::Fraction(0.15), None);
        assert!(is_met(&limit, 1000, 149, false) && !is_met(&limit, 1000, 150, false));
        let limit = threshold(Amount::Fraction(15.0 / 100.0), None);
        assert!(is_met(&limit, 100_000_000_000, 15_000_000_000, false), "the 32 bits show on a large disk");
    }

    #[test]
    fn what_was_reclaimed_must_go_the_minimum_beyond_the_limit() {
        let limit = threshold(quantity("1Gi"), Some(quantity("500Mi")));
        let available = |mebibytes: u64| mebibytes << 20;
        assert!(!is_met(&limit, 10 << 30, available(1126), false));
        assert!(is_met(&limit, 10 << 30, available(1126), true), "1.1 Gi are not 1.5");
        assert!(!is_met(&limit, 10 << 30, available(1536), true));
    }

    #[test]
    fn what_is_not_observed_crosses_nothing() {
        assert!(met(&threshold(quantity("1Gi"), None), &Observations::new(), false).is_empty());
    }
}
