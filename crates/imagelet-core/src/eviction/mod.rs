//! The kubelet's eviction thresholds: read, compared with the disks, with what it reclaims before any pod (`docs/spec/gc.md §14`).
//!
//! Pure functions; this module removes nothing.

mod parse;
mod quantity;

use std::{fmt, str::FromStr, time::Duration};

pub use self::parse::{SignalTexts, ThresholdError, ThresholdTexts, defaults, thresholds};
use self::quantity::NANOS;

/// A resource the kubelet monitors, in the order of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory that pods may use together.
    AllocatableMemoryAvailable,
    /// Bytes on the file system of writable layers.
    ContainerfsAvailable,
    /// Inodes on the file system of writable layers.
    ContainerfsInodesFree,
    /// Bytes on the image file system.
    ImagefsAvailable,
    /// Inodes on the image file system.
    ImagefsInodesFree,
    /// Memory of the node.
    MemoryAvailable,
    /// Bytes on the kubelet's file system.
    NodefsAvailable,
    /// Inodes on the kubelet's file system.
    NodefsInodesFree,
    /// Process ids.
    PidAvailable,
}

/// The signals by their names in configurations.
const SIGNALS: [(&str, Signal); 9] = [
    ("allocatableMemory.available", Signal::AllocatableMemoryAvailable),
    ("containerfs.available", Signal::ContainerfsAvailable),
    ("containerfs.inodesFree", Signal::ContainerfsInodesFree),
    ("imagefs.available", Signal::ImagefsAvailable),
    ("imagefs.inodesFree", Signal::ImagefsInodesFree),
    ("memory.available", Signal::MemoryAvailable),
    ("nodefs.available", Signal::NodefsAvailable),
    ("nodefs.inodesFree", Signal::NodefsInodesFree),
    ("pid.available", Signal::PidAvailable),
];

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SIGNALS.iter().filter(|(_, signal)| signal == self).try_for_each(|(name, _)| f.write_str(name))
    }
}

impl FromStr for Signal {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let found = SIGNALS.iter().find(|(name, _)| *name == text).map(|(_, signal)| *signal);
        found.ok_or_else(|| ThresholdError::new(format!("unsupported eviction signal {text}")))
    }
}

/// An absolute or relative limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A number of bytes, inodes or processes, in billionths.
    Nanos(i128),
    /// A share of the capacity; 32 bits, as in the kubelet.
    Fraction(f32),
}

/// A limit: the node is short when less than this is available.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// The monitored resource.
    pub signal: Signal,
    /// The limit.
    pub value: Amount,
    /// The limit as configured.
    pub text: String,
    /// How long the limit may stay crossed; `None` for a hard threshold.
    pub grace: Option<Duration>,
    /// How much beyond the limit must be available before the pressure ends.
    pub reclaim_min: Option<Amount>,
}

impl Threshold {
    /// Whether less is available than the limit.
    pub fn is_met(&self, capacity: u64, available: u64) -> bool {
        let wanted = match self.value {
            Amount::Nanos(nanos) => nanos,
            #[expect(clippy::cast_possible_truncation, reason = "truncated in 64 bits, as the kubelet computes it")]
            Amount::Fraction(fraction) => i128::from((capacity as f64 * f64::from(fraction)) as i64) * NANOS,
        };
        wanted > i128::from(available) * NANOS
    }
}

/// How images, writable layers and the kubelet's own files share disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One disk for everything.
    Single,
    /// Images and writable layers on a separate disk.
    DedicatedImages,
    /// Images on a separate disk; writable layers with the kubelet's files.
    Split,
}

impl Layout {
    /// A split counts only with dedicated images, as in the kubelet.
    pub fn of(has_dedicated_images: bool, is_split: bool) -> Self {
        match (has_dedicated_images, is_split) {
            (false, _) => Self::Single,
            (true, false) => Self::DedicatedImages,
            (true, true) => Self::Split,
        }
    }

    /// The name in API responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::DedicatedImages => "dedicated-images",
            Self::Split => "split",
        }
    }

    /// What the kubelet reclaims, in order, after a threshold of this signal is crossed. Empty: only evicting a pod helps.
    pub fn reclaims(self, signal: Signal) -> &'static [&'static str] {
        use Signal as S;
        const BOTH: &[&str] = &["DeleteAllUnusedContainers", "DeleteUnusedImages"];
        let (containers, images) = BOTH.split_at(1);
        match (signal, self) {
            (S::MemoryAvailable | S::AllocatableMemoryAvailable | S::PidAvailable, _) => &[],
            (S::NodefsAvailable | S::NodefsInodesFree, Self::DedicatedImages) => &[],
            (S::ImagefsAvailable | S::ImagefsInodesFree, Self::Split) => images,
            (_, Self::Split) => containers,
            (_, Self::Single | Self::DedicatedImages) => BOTH,
        }
    }

    /// Derives the thresholds of the writable layers' file system. A configured one is dropped with a warning; the
    /// kubelet keeps the last of several warnings.
    pub fn with_containerfs(self, mut thresholds: Vec<Threshold>) -> (Vec<Threshold>, Option<String>) {
        let is_derived =
            |it: &Threshold| matches!(it.signal, Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree);
        let warning = thresholds.iter().rfind(|it| is_derived(it)).map(|it| {
            let kind = if it.grace.is_none() { "hard" } else { "soft" };
            format!("found {} for {kind} eviction. ignoring", it.signal)
        });
        thresholds.retain(|it| !is_derived(it));
        let (bytes, inodes) = match self {
            Self::Single | Self::Split => (Signal::NodefsAvailable, Signal::NodefsInodesFree),
            Self::DedicatedImages => (Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
        };
        for (from, signal) in [(bytes, Signal::ContainerfsAvailable), (inodes, Signal::ContainerfsInodesFree)] {
            let sources: Vec<Threshold> = thresholds.iter().filter(|it| it.signal == from).cloned().collect();
            thresholds.extend(sources.into_iter().map(|source| Threshold { signal, ..source }));
        }
        (thresholds, warning)
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;
    use serde_json::Value;

    use super::*;

    fn threshold(it: &Value) -> Threshold {
        assert_eq!(it["operator"], "LessThan");
        let amount = |field: &str| it[field].as_str().map(|text| Amount::Nanos(quantity::parse(text).unwrap()));
        Threshold {
            signal: it["signal"].as_str().unwrap().parse().unwrap(),
            value: amount("quantity").unwrap(),
            text: it["quantity"].as_str().unwrap().to_owned(),
            grace: it["grace_period_ns"].as_u64().map(Duration::from_nanos),
            reclaim_min: amount("min_reclaim_quantity"),
        }
    }

    fn thresholds(list: &Value) -> Vec<Threshold> {
        list.as_array().unwrap().iter().map(threshold).collect()
    }

    fn layout(input: &Value) -> Layout {
        Layout::of(input["dedicated_image_fs"] == true, input["container_fs_split_from_image_fs"] == true)
    }

    #[test]
    fn every_vector_of_derived_thresholds_holds() {
        let cases = vectors("gc-containerfs-thresholds.json");
        assert_eq!(cases.len(), 5);
        for case in cases {
            let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
            let given = thresholds(&input["thresholds"]);
            let (found, warning) = layout(input).with_containerfs(given.clone());
            assert_eq!(warning.as_deref(), expected["warning"].as_str(), "{name}");
            let kept = given.iter().filter(|it| !it.signal.to_string().starts_with("containerfs"));
            assert!(kept.clone().all(|it| found.contains(it)), "{name}: no other threshold changes");
            if !expected["appended_unordered"].is_null() {
                let wanted = thresholds(&expected["appended_unordered"]);
                assert_eq!(found.len(), given.len() + wanted.len(), "{name}");
                assert!(wanted.iter().all(|it| found[given.len()..].contains(it)), "{name}: {found:?}");
            }
        }
    }

    fn limit(signal: Signal, value: Amount) -> Threshold {
        Threshold { signal, value, text: String::new(), grace: None, reclaim_min: None }
    }

    #[test]
    fn a_configured_threshold_is_replaced_by_the_derived_one() {
        let quantity = |text: &str| Amount::Nanos(quantity::parse(text).unwrap());
        let set = limit(Signal::ContainerfsAvailable, quantity("7Mi"));
        let node = limit(Signal::NodefsAvailable, quantity("100Mi"));
        let (found, _) = Layout::Single.with_containerfs(vec![set.clone(), node.clone()]);
        assert_eq!(found, [node, limit(Signal::ContainerfsAvailable, quantity("100Mi"))]);
        let (found, warning) = Layout::Single.with_containerfs(vec![set]);
        assert_eq!((found, warning.is_some()), (Vec::new(), true));
    }

    #[test]
    fn every_vector_of_node_reclaim_holds() {
        let cases = vectors("gc-node-reclaim.json");
        assert_eq!(cases.len(), 24);
        for case in cases {
            let signal = case["input"]["signal"].as_str().unwrap().parse().unwrap();
            let calls = layout(&case["input"]).reclaims(signal);
            assert_eq!(case["expected"]["reclaim_calls_in_order"], serde_json::json!(calls), "{}", case["name"]);
        }
        assert_eq!(Layout::of(false, true), Layout::Single, "a split without a disk for images");
    }

    #[test]
    fn a_threshold_is_crossed_only_below_it() {
        let gibibyte = limit(Signal::ImagefsAvailable, Amount::Nanos((1 << 30) * NANOS));
        assert!(gibibyte.is_met(10 << 30, (1 << 30) - 1));
        assert!(!gibibyte.is_met(10 << 30, 1 << 30));
    }

    #[test]
    fn a_share_is_of_the_capacity_and_truncated_to_whole_bytes() {
        // The 32-bit value of 0.15 is slightly larger than 0.15; 1000 times it truncates to 150.
        let share = limit(Signal::ImagefsAvailable, Amount::Fraction(0.15));
        assert!(share.is_met(1000, 149) && !share.is_met(1000, 150));
        let share = limit(Signal::ImagefsAvailable, Amount::Fraction(15.0 / 100.0));
        assert!(share.is_met(100_000_000_000, 15_000_000_000), "the 32 bits show on a large disk");
    }
}
