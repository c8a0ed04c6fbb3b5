//! What is remembered of an image beyond its age: where it came from, what it cost, how its uses follow one another.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::image::ByteSize;

/// What the last pull of an image cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullCost {
    /// Compressed bytes that came over the network.
    pub bytes: ByteSize,
    /// From the first request to the image being there.
    pub duration: Duration,
    /// When it was there.
    pub at: SystemTime,
}

/// How an image came to be on the node, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageOrigin {
    /// imagelet pulled it.
    Pulled,
    /// Somebody else did, and it was handed over: by a pull record or by an operator.
    Adopted,
    /// It was there when the first pass looked, or came behind imagelet's back.
    #[default]
    Found,
}

impl ImageOrigin {
    /// The stable word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
            Self::Adopted => "adopted",
            Self::Found => "found",
        }
    }
}

/// A pause shorter than this belongs to the use before it: no collection takes an image that fast.
pub(in crate::inventory) const GAP_MIN: Duration = Duration::from_mins(2);

/// How an image was used, as far as tells whether it will be again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UseHistory {
    /// How often it was used: an `ensure` by a pod, a pull, a container or a mount that a pass had not seen before. The
    /// container that follows an `ensure` is the same use.
    pub uses: u64,
    /// How often it was used again after it had lain idle.
    pub returns: u32,
    /// How often it had to be fetched again because it was gone.
    pub comebacks: u32,
    /// Seconds from one use to the next after a pause: a mean in which the latest weighs most. Zero: it never returned.
    pub interval: u64,
    /// A newer image of the same repository has been used since: it is an old version.
    pub superseded: bool,
}

impl UseHistory {
    /// It was used again, so long after the use before it began.
    pub(in crate::inventory) fn returned(&mut self, after: Duration) {
        /// What the latest interval counts in the mean, in percent.
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
