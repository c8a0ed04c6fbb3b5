//! The settings of the two configurations under which vectors run.

use std::{num::NonZeroUsize, time::Duration};

use imagelet_vectors::Way;

use crate::{
    gc::{GcMarks, GcOrder, GcPolicy, ReliefMarks},
    image::Percent,
    manager::{Compatibility, PullRate, PullSettings},
    records::Guard,
};

/// The settings of a [`Way`].
pub trait WaySettings {
    /// The `compatibility` setting.
    fn compatibility(self) -> Compatibility;
    /// The daemon's pull settings.
    fn pull_settings(self) -> PullSettings;
    /// What a started pull protects from collection.
    fn guard(self) -> Guard;
    /// These thresholds and ages, with this way's defaults for the rest.
    #[must_use]
    fn collecting(self, policy: GcPolicy) -> GcPolicy;
}

impl WaySettings for Way {
    fn compatibility(self) -> Compatibility {
        match self {
            Self::Kubelet => Compatibility::Kubelet,
            Self::Shipped => Compatibility::default(),
        }
    }

    fn pull_settings(self) -> PullSettings {
        PullSettings {
            slots: NonZeroUsize::new(1),
            rate: Some(PullRate { qps: 5.0, burst: 10 }),
            grace: Duration::from_secs(2),
            compatibility: self.compatibility(),
            ..PullSettings::default()
        }
    }

    fn guard(self) -> Guard {
        match self {
            Self::Kubelet => Guard::Spelling,
            Self::Shipped => Guard::Image,
        }
    }

    fn collecting(self, policy: GcPolicy) -> GcPolicy {
        let percent = |value| Percent::new(value).expect("a percentage");
        match self {
            Self::Kubelet => GcPolicy { order: GcOrder::Kubelet, ..policy },
            Self::Shipped => {
                let relief = ReliefMarks { idle_min: Duration::from_hours(1), critical: percent(95) };
                let inodes = GcMarks::new(percent(95), percent(90));
                GcPolicy { order: GcOrder::Cost, inodes: Some(inodes), relief: Some(relief), ..policy }
            }
        }
    }
}
