//! The cases of the vectors, and the two configurations under which they run.

use std::{fmt, num::NonZeroUsize, time::Duration};

use serde_json::Value;

use super::vectors;
use crate::{
    gc::{AgeCounts, GcOrder, GcPolicy, GcWay, InodeMarks, ReliefMarks},
    image::Percent,
    manager::{Compatibility, PullRate, PullSettings},
    records::Guard,
};

/// The configuration of a vector run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `compatibility: kubelet`.
    Kubelet,
    /// The defaults: no configuration at all.
    Shipped,
}

impl Way {
    /// Both ways.
    pub const BOTH: [Self; 2] = [Self::Kubelet, Self::Shipped];

    /// The `compatibility` setting.
    pub fn compatibility(self) -> Compatibility {
        match self {
            Self::Kubelet => Compatibility::Kubelet,
            Self::Shipped => Compatibility::default(),
        }
    }

    /// The daemon's pull settings.
    pub fn pull_settings(self) -> PullSettings {
        PullSettings {
            slots: NonZeroUsize::new(1),
            rate: Some(PullRate { qps: 5.0, burst: 10 }),
            grace: Duration::from_secs(2),
            compatibility: self.compatibility(),
            ..PullSettings::default()
        }
    }

    /// What a started pull protects from collection.
    pub fn guard(self) -> Guard {
        match self {
            Self::Kubelet => Guard::Spelling,
            Self::Shipped => Guard::Image,
        }
    }

    /// These thresholds and ages, with this way's defaults for the rest.
    #[must_use]
    pub fn collecting(self, policy: GcPolicy) -> GcPolicy {
        let percent = |value| Percent::new(value).expect("a percentage");
        match self {
            Self::Kubelet => policy.in_order(GcOrder::Lru).counting(AgeCounts::FromUse).in_way(GcWay::Kubelet),
            Self::Shipped => {
                let relief = ReliefMarks { idle_min: Duration::from_hours(1), critical: percent(95) };
                let inodes = InodeMarks::new(percent(95), percent(90));
                policy.in_order(GcOrder::Cost).watching_inodes(Some(inodes)).relieving(Some(relief))
            }
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubelet => "in the kubelet's way",
            Self::Shipped => "as shipped",
        })
    }
}

/// A case with its expectation in one way.
#[derive(Clone, Debug)]
pub struct VectorCase {
    /// Its name in the file.
    pub name: String,
    /// The input.
    pub input: Value,
    /// The complete expectation.
    pub expected: Value,
}

/// The cases of a file, as the kubelet's.
pub(super) fn cases(file: &str) -> Vec<VectorCase> {
    let case = |mut case: Value| VectorCase {
        name: case["name"].as_str().expect("each case has a name").to_owned(),
        input: case["input"].take(),
        expected: case["expected"].take(),
    };
    vectors(file).into_iter().map(case).collect()
}
