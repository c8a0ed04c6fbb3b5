//! The usage record of one image, and the rules by which uses and passes update the record.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{
    image::ByteSize,
    inventory::detect::{Fresh, ImageUses},
    text::named_enum,
};

/// A use after a shorter pause continues the previous use: no collection removes an image in so short a time.
const GAP_MIN: Duration = Duration::from_mins(2);

/// How long a reported use waits until its image or container is listed. The commit of a pull takes less time.
pub(super) const PENDING_AGE_MAX: Duration = Duration::from_mins(15);

#[derive(Clone, Debug, Default)]
pub struct UseReport {
    /// `NAMESPACE/POD` of the requesting pod, if known.
    pub user: Option<String>,
    pub pulled: Option<PullCost>,
    pub is_prefetch: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PassTimes {
    /// The time before the listings. It becomes the first sight of new images.
    pub(crate) detected_at: SystemTime,
    /// The moment after the listings, never before an earlier record. It becomes the last use of images in use.
    pub(crate) now: SystemTime,
    /// The same moment by the wall clock. Waits use this time.
    pub(crate) wall: SystemTime,
    pub(crate) settling: Duration,
    pub(crate) is_doubtful: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UseTimes {
    /// Time of the first pass that listed the image. It is set for every present image.
    #[serde(with = "nanos", skip_serializing_if = "Option::is_none")]
    pub first_seen: Option<SystemTime>,
    #[serde(with = "nanos", skip_serializing_if = "Option::is_none")]
    pub last_used: Option<SystemTime>,
    #[serde(with = "nanos", skip_serializing_if = "Option::is_none")]
    pub(crate) begun: Option<SystemTime>,
    /// Time of the first pass without a user of the image. `None`: no such pass waits for confirmation. A restarting
    /// runtime may return a short list, so a second pass must confirm the release.
    #[serde(with = "nanos", skip_serializing_if = "Option::is_none")]
    pub released_at: Option<SystemTime>,
    #[serde(with = "nanos", skip_serializing_if = "Option::is_none")]
    pub(crate) gone: Option<SystemTime>,
    #[serde(skip)]
    pub(crate) requested_at: Option<SystemTime>,
}

/// The usage of an image, in the format of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageUsage {
    #[serde(flatten)]
    pub times: UseTimes,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) in_use: bool,
    pub origin: ImageOrigin,
    /// Whether the image was prefetched for a set and is unused since then. A collection removes such an image first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prefetched: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pulled: Option<PullCost>,
    pub history: UseHistory,
    /// The users: `NAMESPACE/POD/CONTAINER`, `NAMESPACE/POD (sandbox)`, `mount DIRECTORY`, `container ID`.
    #[serde(skip)]
    pub used_by: Vec<String>,
    #[serde(skip)]
    pub(crate) has_containers: bool,
    /// The number of reported uses whose container is not listed yet.
    #[serde(skip)]
    pub(crate) credits: u8,
}

impl ImageUsage {
    fn idle_since(&self) -> Option<SystemTime> {
        self.times.last_used.or(self.times.first_seen)
    }

    pub(super) fn take(&mut self, reported: UseReport, uses: u64, at: SystemTime) {
        if let Some(cost) = reported.pulled {
            // A pull that fetched no bytes does not measure the cost.
            if cost.bytes > ByteSize::ZERO || self.pulled.is_none() {
                self.pulled = Some(cost);
            }
            self.origin = ImageOrigin::Pulled;
        }
        self.times.requested_at = self.times.requested_at.max(Some(at));
        if reported.is_prefetch {
            self.prefetched |= self.history.uses == 0 && self.times.last_used.is_none() && !self.in_use;
            return;
        }
        self.user = reported.user.or(self.user.take());
        self.begin(uses, at);
        self.credits = self.credits.saturating_add(u8::try_from(uses).unwrap_or(u8::MAX));
    }

    fn begin(&mut self, uses: u64, at: SystemTime) {
        self.prefetched = false;
        let gap = self.idle_since().and_then(|since| at.duration_since(since).ok());
        if gap.is_some_and(|gap| !self.in_use && gap >= GAP_MIN) && self.history.uses > 0 {
            let since = self.times.begun.or(self.idle_since()).and_then(|begun| at.duration_since(begun).ok());
            self.history.returned(since.unwrap_or_default());
        }
        self.history.uses = self.history.uses.saturating_add(uses);
        self.times.last_used = self.times.last_used.max(Some(at));
        self.times.begun = self.times.begun.max(Some(at));
    }

    /// Updates the release time. `in_use`: whether the pass found users. Returns whether the time changed.
    pub(super) fn update_release(&mut self, in_use: bool, pass: &PassTimes) -> bool {
        let before = self.times.released_at;
        let is_settled = |at: &SystemTime| pass.wall.duration_since(*at).unwrap_or_default() >= pass.settling;
        self.times.released_at = self.times.released_at.filter(|at| !in_use && !is_settled(at));
        if self.has_containers && !in_use && pass.is_doubtful {
            self.times.released_at.get_or_insert(pass.wall);
        }
        self.times.released_at != before
    }

    pub(super) fn leave(&mut self, now: SystemTime) -> bool {
        let left = self.times.gone.is_none();
        if left {
            (self.times.gone, self.in_use, self.has_containers, self.credits) = (Some(now), false, false, 0);
            self.used_by.clear();
        }
        left
    }

    pub(super) fn adopt(&mut self) -> bool {
        let is_news = self.origin == ImageOrigin::Found;
        if is_news {
            self.origin = ImageOrigin::Adopted;
        }
        is_news
    }

    /// Moves the first sight back. The image counts as requested now, because a pull may have fetched it unreported.
    pub(super) fn date_back(&mut self, since: SystemTime, now: SystemTime) {
        self.times.first_seen = self.times.first_seen.map(|seen| seen.min(since));
        self.times.requested_at = Some(now);
    }

    /// Applies the users of a pass. Returns whether the record changed. `by_creation`: a use gets the creation time of
    /// its container.
    pub(super) fn see(&mut self, uses: Option<&ImageUses>, by_creation: bool, now: SystemTime) -> bool {
        let in_use = uses.is_some();
        self.has_containers = uses.is_some_and(|uses| uses.has_containers);
        self.used_by = uses.map(|uses| uses.by.clone()).unwrap_or_default();
        if !in_use && !self.in_use && !by_creation {
            return false;
        }
        let mut changed = self.in_use != in_use;
        let was_in_use = self.in_use && by_creation;
        let fresh = uses.filter(|_| !was_in_use).into_iter().flat_map(|uses| &uses.fresh);
        let mut fresh: Vec<&Fresh> = fresh.collect();
        fresh.sort_by_key(|fresh| fresh.created);
        for fresh in fresh {
            changed = true;
            if let Some(user) = &fresh.user {
                self.user = Some(user.clone());
            }
            if self.credits > 0 {
                self.credits -= 1;
                continue;
            }
            let at = fresh.created.filter(|at| by_creation && *at <= now).unwrap_or(now);
            // A container older than the last known use was already counted.
            if !by_creation || self.times.last_used.is_none_or(|used| used <= at) {
                self.begin(1, at);
            }
        }
        self.in_use = in_use;
        if in_use {
            self.prefetched = false;
            self.times.last_used = self.times.last_used.max(Some(now));
            if self.history.uses == 0 {
                self.history.uses = 1;
                self.times.begun = Some(now);
            }
        } else if self.credits > 0
            && self.times.begun.is_none_or(|at| now.duration_since(at).unwrap_or_default() > PENDING_AGE_MAX)
        {
            self.credits = 0;
        }
        changed
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullCost {
    /// The compressed bytes that the pull fetched.
    pub bytes: ByteSize,
    /// The time from the first request to the commit of the image.
    pub duration: Duration,
    pub at: SystemTime,
}

named_enum! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ImageOrigin {
        Pulled = "pulled",
        /// Another manager pulled the image, and a pull record or an operator transferred it.
        Adopted = "adopted",
        /// The image was present in the first pass, or was added without imagelet.
        #[default]
        Found = "found",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UseHistory {
    /// The number of uses: `ensure` by a pod, pull, new container, mount. An `ensure` and its container are one use.
    pub uses: u64,
    pub returns: u32,
    /// Mean seconds between uses with a pause. Later intervals have more weight. Zero: the image was used only once.
    pub interval: u64,
    /// Whether a newer image of the repository was used, and this image is unused since the newer image appeared.
    pub superseded: bool,
}

impl UseHistory {
    /// `after` is the time since the start of the previous use.
    pub(crate) fn returned(&mut self, after: Duration) {
        /// Weight of the latest interval in percent.
        const LATEST: u64 = 30;
        let mean = if self.returns == 0 { after.as_secs() } else { self.interval };
        self.interval = mean.saturating_mul(100 - LATEST).saturating_add(after.as_secs().saturating_mul(LATEST)) / 100;
        self.returns = self.returns.saturating_add(1);
    }
}

mod nanos {
    use std::time::SystemTime;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use crate::durable::{nanos, time};

    #[expect(clippy::ref_option, reason = "serde passes the field")]
    pub(super) fn serialize<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(nanos).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_has_the_times_of_an_image_beside_its_other_fields() {
        let written = serde_json::json!({
            "first_seen": 1_795_731_711_066_029_101_u64, "last_used": 2, "begun": 3, "gone": 4, "origin": "pulled",
            "history": {"uses": 1, "returns": 0, "interval": 0, "superseded": false},
        });
        let usage: ImageUsage = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(usage.times.first_seen, Some(crate::durable::time(1_795_731_711_066_029_101)));
        assert_eq!(serde_json::to_value(&usage).unwrap(), written);
    }

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
