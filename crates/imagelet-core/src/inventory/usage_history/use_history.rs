//! The use history of an image beyond its age: origin, pull cost and use intervals.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::image::ByteSize;

/// Cost of the last pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullCost {
    /// Compressed bytes over the network.
    pub bytes: ByteSize,
    /// From the first request to the commit of the image.
    pub duration: Duration,
    /// Time of the commit.
    pub at: SystemTime,
}

/// The known origin of an image on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageOrigin {
    /// imagelet pulled it.
    Pulled,
    /// Another manager pulled it, and a pull record or an operator transferred it.
    Adopted,
    /// Present at the first pass, or added without imagelet.
    #[default]
    Found,
}

impl ImageOrigin {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
            Self::Adopted => "adopted",
            Self::Found => "found",
        }
    }
}

/// Use statistics that predict future uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UseHistory {
    /// Number of uses: an `ensure` by a pod, a pull, a new container or mount. A container after an `ensure` is the
    /// same use.
    pub uses: u64,
    /// Number of uses after an idle time.
    pub returns: u32,
    /// Number of pulls after its removal.
    pub comebacks: u32,
    /// Mean seconds between uses with a pause, weighted to the latest. Zero: never used again.
    pub interval: u64,
    /// A newer image of the same repository was used since.
    pub superseded: bool,
}

impl UseHistory {
    /// Records a use this long after the start of the previous one.
    pub(in crate::inventory) fn returned(&mut self, after: Duration) {
        /// Weight of the latest interval in percent.
        const LATEST: u64 = 30;
        let mean = if self.returns == 0 { after.as_secs() } else { self.interval };
        self.interval = mean.saturating_mul(100 - LATEST).saturating_add(after.as_secs().saturating_mul(LATEST)) / 100;
        self.returns = self.returns.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_interval_weighs_most_and_none_overflows() {
        let mut history = UseHistory::default();
        let day = Duration::from_hours(24);
        (0..10).for_each(|_| history.returned(day));
        assert_eq!((history.interval, history.returns), (day.as_secs(), 10));
        history.returned(Duration::from_hours(1));
        assert_eq!(history.interval, (day.as_secs() * 70 + 3600 * 30) / 100);
        history.returned(Duration::MAX);
        assert!(history.interval > day.as_secs());
    }
}
