//! The settings of the two configurations under which test vectors run.

use std::{num::NonZeroUsize, time::Duration};

use crate::{
    gc::{GcMarks, GcOrder, GcPolicy, ReliefMarks},
    image::Percent,
    manager::{PullRate, PullSettings},
    node_policy::NodePolicy,
    records::Guard,
};

/// The settings of one configuration: the kubelet's or the shipped configuration.
pub trait WaySettings: Copy {
    fn is_shipped(self) -> bool;

    fn node_policy(self) -> NodePolicy {
        if self.is_shipped() { NodePolicy::IMAGELET } else { NodePolicy::KUBELET }
    }

    fn pull_settings(self) -> PullSettings {
        PullSettings {
            slots: NonZeroUsize::new(1),
            rate: Some(PullRate { qps: 5.0, burst: 10 }),
            grace: Duration::from_secs(2),
            node_policy: self.node_policy(),
            ..PullSettings::default()
        }
    }

    /// The names of an image whose access the intent of a started pull restricts.
    fn guard(self) -> Guard {
        if self.is_shipped() { Guard::Image } else { Guard::Spelling }
    }

    /// The policy with these thresholds and ages. Its other fields have the defaults of this configuration.
    #[must_use]
    fn collecting(self, policy: GcPolicy) -> GcPolicy {
        if !self.is_shipped() {
            return GcPolicy { order: GcOrder::ListedSizes, rules: NodePolicy::KUBELET.gc, ..policy };
        }
        let percent = |value| Percent::new(value).expect("a percentage");
        let relief = ReliefMarks { idle_min: Duration::from_hours(1), critical: percent(95) };
        let inodes = GcMarks::new(percent(95), percent(90));
        GcPolicy { order: GcOrder::Cost, inodes: Some(inodes), pressure_relief: Some(relief), ..policy }
    }
}

/// The policy with another removal order. The kubelet's order gets the kubelet's rules.
#[cfg(test)]
pub(crate) fn in_order(order: GcOrder, policy: GcPolicy) -> GcPolicy {
    let rules = if order == GcOrder::ListedSizes { NodePolicy::KUBELET } else { NodePolicy::IMAGELET }.gc;
    GcPolicy { order, rules, ..policy }
}

#[cfg(test)]
impl WaySettings for imagelet_vectors::Way {
    fn is_shipped(self) -> bool {
        self == Self::Shipped
    }
}
