//! Derived limits of the writable layers' file system: they follow from the limits of another file system.

use super::{Layout, Signal, Threshold};

/// Derives the thresholds of the writable layers' file system from the disk layout.
///
/// A configured value is overwritten with a warning; the kubelet keeps the last of several warnings.
pub fn with_containerfs(mut thresholds: Vec<Threshold>, layout: Layout) -> (Vec<Threshold>, Option<String>) {
    let mut warning = None;
    for threshold in &thresholds {
        if matches!(threshold.signal, Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree) {
            let kind = if threshold.grace.is_none() { "hard" } else { "soft" };
            warning = Some(format!("found {} for {kind} eviction. ignoring", threshold.signal));
        }
    }
    let (bytes, inodes) = match layout {
        Layout::Single | Layout::Split => (Signal::NodefsAvailable, Signal::NodefsInodesFree),
        Layout::DedicatedImages => (Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
    };
    for (derived, from) in [(Signal::ContainerfsAvailable, bytes), (Signal::ContainerfsInodesFree, inodes)] {
        for is_hard in [true, false] {
            let is = |threshold: &Threshold, signal| threshold.signal == signal && threshold.grace.is_none() == is_hard;
            // The last of several counts, because a later text overwrites an earlier one.
            let source = thresholds.iter().rfind(|it| is(it, from)).copied();
            let copy = source.map(|source| Threshold { signal: derived, ..source });
            let place = thresholds.iter().rposition(|it| is(it, derived));
            match (copy, place) {
                (Some(copy), Some(place)) => thresholds[place] = copy,
                (Some(copy), None) => thresholds.push(copy),
                // Without a source threshold the configured one does not count either.
                (None, Some(place)) => drop(thresholds.remove(place)),
                (None, None) => {}
            }
        }
    }
    (thresholds, warning)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::{eviction::Amount, testing::vectors};

    fn threshold(it: &Value) -> Threshold {
        assert_eq!(it["operator"], "LessThan");
        let amount = |field: &str| it[field].as_str().map(|text| Amount::Quantity(text.parse().unwrap()));
        Threshold {
            signal: it["signal"].as_str().unwrap().parse().unwrap(),
            value: amount("quantity").unwrap(),
            grace: it["grace_period_ns"].as_u64().map(Duration::from_nanos),
            reclaim_min: amount("min_reclaim_quantity"),
        }
    }

    fn thresholds(list: &Value) -> Vec<Threshold> {
        list.as_array().unwrap().iter().map(threshold).collect()
    }

    #[test]
    fn every_vector_of_derived_thresholds_holds() {
        let cases = vectors("gc-containerfs-thresholds.json");
        assert_eq!(cases.len(), 5);
        for case in cases {
            let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
            let layout =
                Layout::of(input["dedicated_image_fs"] == true, input["container_fs_split_from_image_fs"] == true);
            let given = thresholds(&input["thresholds"]);
            let (found, warning) = with_containerfs(given.clone(), layout);
            assert_eq!(warning.as_deref(), expected["warning"].as_str(), "{name}");
            let kept = given.iter().filter(|it| !it.signal.name().starts_with("containerfs"));
            assert!(kept.clone().all(|it| found.contains(it)), "{name}: no other threshold changes");
            if !expected["appended_unordered"].is_null() {
                let wanted = thresholds(&expected["appended_unordered"]);
                assert_eq!(found.len(), given.len() + wanted.len(), "{name}");
                assert!(wanted.iter().all(|it| found[given.len()..].contains(it)), "{name}: {found:?}");
            }
        }
    }

    #[test]
    fn what_somebody_set_gives_way_to_what_is_derived() {
        let read = |signal: Signal, text: &str| Threshold {
            signal,
            value: Amount::Quantity(text.parse().unwrap()),
            grace: None,
            reclaim_min: None,
        };
        let set = read(Signal::ContainerfsAvailable, "7Mi");
        let node = read(Signal::NodefsAvailable, "100Mi");
        let (found, _) = with_containerfs(vec![set, node], Layout::Single);
        assert_eq!(found, [read(Signal::ContainerfsAvailable, "100Mi"), node]);
        let (found, warning) = with_containerfs(vec![set], Layout::Single);
        assert_eq!((found, warning.is_some()), (Vec::new(), true));
    }
}
