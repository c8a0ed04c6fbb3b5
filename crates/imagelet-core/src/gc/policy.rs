//! The collection policy: when a collection starts, and how much it frees.

use std::time::Duration;

use crate::{
    disks::DiskUse,
    image::{ByteSize, Percent},
    node_policy::{GcRules, NodePolicy},
    ports::Freed,
    text::{PlainError, named_enum},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcPolicy {
    pub bytes: GcMarks,
    /// The inode usage at which a collection starts, and the usage at which it stops. `None`: inode usage is ignored.
    pub inodes: Option<GcMarks>,
    /// A collection keeps an image for this time after the image was first listed or last requested.
    pub age_min: Duration,
    /// Images that are idle for longer are removed at any disk usage. `None`: no image is removed because of its age.
    pub age_max: Option<Duration>,
    pub order: GcOrder,
    /// Used if a collection cannot reach its goal. `None`: it then removes no image for space.
    pub pressure_relief: Option<ReliefMarks>,
    pub rules: GcRules,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GcOrder {
    /// Removes the least recently used image first. All removals are planned before the first removal.
    #[default]
    Lru,
    /// Removes the image with the lowest cost per freed byte first. All removals are planned before the first removal.
    Cost,
    /// Removes the least recently used image first, until the listed sizes are enough. If a removal fails, the next
    /// image is removed (`docs/spec/gc.md §6-§8`). `inodes` and `pressure_relief` have no effect.
    #[serde(skip)]
    ListedSizes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcRequest {
    pub policy: GcPolicy,
    pub goal: GcGoal,
    pub dry_run: bool,
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GcPhase {
        Age = "age",
        /// Also the removal of all unused images, as in the kubelet.
        Space = "space",
    }
}

/// With every goal, images that are in use, pinned or leased stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcGoal {
    /// Removes images over the maximum idle time. At the high threshold, removes more, down to the low threshold.
    Threshold,
    Free(ByteSize),
    AllUnused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcMarks {
    high: Percent,
    low: Percent,
}

impl GcMarks {
    /// A collection starts at `high` percent usage and stops at `low`. A `low` above `high` is lowered to `high`.
    pub fn new(high: Percent, low: Percent) -> Self {
        Self { high, low: low.min(high) }
    }
}

/// What a collection removes if it cannot reach its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReliefMarks {
    pub idle_min: Duration,
    /// From this disk usage on, images that are idle for less than `idle_min` are removed, too.
    pub critical: Percent,
}

impl GcPolicy {
    /// A collection starts at `high` percent of disk usage and stops at `low`. Images first seen less than `age_min`
    /// ago stay. Images idle for longer than `age_max` are removed at any disk usage. Zero means no maximum.
    pub fn new(high: i64, low: i64, age_min: Duration, age_max: Option<Duration>) -> Result<Self, PlainError> {
        let percent = |name, value| {
            let invalid = |_| PlainError(format!("invalid {name} {value}, must be in range [0-100]"));
            Percent::new(value).map_err(invalid)
        };
        let high_percent = percent("HighThresholdPercent", high)?;
        let low_percent = percent("LowThresholdPercent", low)?;
        if low_percent > high_percent {
            let text = format!("LowThresholdPercent {low} can not be higher than HighThresholdPercent {high}");
            return Err(PlainError(text));
        }
        Ok(Self {
            bytes: GcMarks::new(high_percent, low_percent),
            inodes: None,
            age_min,
            age_max: age_max.filter(|age| !age.is_zero()),
            order: GcOrder::default(),
            pressure_relief: None,
            rules: NodePolicy::IMAGELET.gc,
        })
    }

    pub fn high(&self) -> Percent {
        self.bytes.high
    }

    pub fn low(&self) -> Percent {
        self.bytes.low
    }

    /// Whether disk usage reaches the high threshold if this many more bytes are in use.
    pub fn is_reached_with(&self, disk: &DiskUse, bytes: ByteSize) -> bool {
        let level = Level::bytes(disk);
        Level { free: level.free.saturating_sub(bytes.0.into()), ..level }.is_at(self.high())
    }

    /// Whether all removals are planned before the first removal. If so, a prevented removal causes a new plan.
    pub(crate) fn is_planned(&self) -> bool {
        self.order != GcOrder::ListedSizes
    }

    /// Whether periodic collection is off (`docs/spec/gc.md §9`). Inode thresholds have no effect.
    pub fn is_off(&self) -> bool {
        self.high().get() == 100 && self.age_max.is_none()
    }

    /// The bytes to free to reach the low threshold, and the bytes to free to get below the high threshold. `None`:
    /// usage is below the high threshold. With equal thresholds, both may be zero because of rounding.
    pub(crate) fn bytes_wanted(&self, disk: &DiskUse) -> Option<(u64, u64)> {
        Level::bytes(disk).wanted(self.bytes)
    }

    pub(crate) fn inodes_wanted(&self, disk: &DiskUse) -> Option<(u64, u64)> {
        Level::inodes(disk)?.wanted(self.inodes?)
    }

    pub(crate) fn relief_wanted(&self, disk: &DiskUse) -> Option<Freed> {
        let critical = self.pressure_relief?.critical;
        let wanted = |level: Level| if level.is_at(critical) { level.below(critical) } else { 0 };
        let inodes = self.inodes.and_then(|_| Level::inodes(disk)).map_or(0, wanted);
        Some(Freed { bytes: ByteSize(wanted(Level::bytes(disk))), inodes })
    }

    /// The kubelet's number of bytes to free. Negative if usage is below the low threshold.
    pub(crate) fn excess(&self, disk: &DiskUse) -> i64 {
        let free_wanted = i128::from(disk.capacity.0) * i128::from(100 - self.low().get()) / 100;
        let excess = free_wanted - i128::from(disk.available.0);
        i64::try_from(excess).unwrap_or(if excess < 0 { i64::MIN } else { i64::MAX })
    }
}

/// Total and free bytes or inodes, in 128 bits: the calculation of a percentage of a large disk may overflow 64 bits.
struct Level {
    all: u128,
    free: u128,
}

impl Level {
    fn bytes(disk: &DiskUse) -> Self {
        Self { all: disk.capacity.0.into(), free: disk.available.0.into() }
    }

    fn inodes(disk: &DiskUse) -> Option<Self> {
        Some(Self { all: disk.inodes.filter(|all| *all > 0)?.into(), free: disk.inodes_free?.into() })
    }

    fn is_at(&self, mark: Percent) -> bool {
        let free = (self.free.min(self.all) * 100).checked_div(self.all).unwrap_or(0);
        100 - free >= u128::from(mark.get())
    }

    fn wanted(&self, marks: GcMarks) -> Option<(u64, u64)> {
        let low = self.missing(self.all * u128::from(100 - marks.low.get()) / 100);
        self.is_at(marks.high).then(|| (low, self.below(marks.high).min(low)))
    }

    /// The amount to free to get below a mark. For a mark of zero, this is more than the used amount.
    fn below(&self, mark: Percent) -> u64 {
        self.missing((self.all * u128::from(101 - mark.get())).div_ceil(100))
    }

    fn missing(&self, free_wanted: u128) -> u64 {
        u64::try_from(free_wanted.saturating_sub(self.free)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    fn freed(bytes: u64) -> Freed {
        Freed { bytes: ByteSize(bytes), inodes: 0 }
    }

    fn space_wanted(policy: &GcPolicy, disk: &DiskUse) -> Option<u64> {
        policy.bytes_wanted(disk).map(|(all, _)| all)
    }

    #[test]
    fn a_disk_is_at_the_high_threshold_with_what_is_added_to_it() {
        let policy = |high| GcPolicy::new(high, 10, Duration::ZERO, None).unwrap();
        let disk = DiskUse::of(ByteSize(1000), ByteSize(200));
        // Percentages are rounded as a collection rounds them.
        for (high, added, expected) in [
            (85, 0, false),
            (85, 40, false),
            (85, 41, true),
            (85, u64::MAX, true),
            (80, 0, true),
            (100, 190, false),
            (100, 191, true),
        ] {
            assert_eq!(policy(high).is_reached_with(&disk, ByteSize(added)), expected, "{high} % with {added}");
        }
    }

    #[test]
    fn inodes_are_freed_down_to_the_low_mark_where_the_disk_counts_them() {
        let marks = |high, low| GcMarks::new(Percent::new(high).unwrap(), Percent::new(low).unwrap());
        let policy = GcPolicy::new(90, 80, Duration::ZERO, None).unwrap();
        let disk = |free| DiskUse { inodes: Some(1_000), inodes_free: Some(free), ..DiskUse::default() };
        assert_eq!(policy.inodes_wanted(&disk(0)), None);
        let policy = GcPolicy { inodes: Some(marks(95, 90)), ..policy };
        assert_eq!(policy.inodes_wanted(&disk(60)), None);
        // 94.1 percent is reported as 95.
        assert_eq!(policy.inodes_wanted(&disk(59)), Some((41, 1)));
        assert_eq!(policy.inodes_wanted(&disk(10)), Some((90, 50)));
        assert_eq!(policy.inodes_wanted(&DiskUse::default()), None);
        assert_eq!(marks(50, 90), marks(50, 50));
        let off = GcPolicy::new(100, 80, Duration::ZERO, None).unwrap();
        assert!(GcPolicy { inodes: Some(marks(95, 90)), ..off }.is_off());
    }

    #[test]
    fn policies_are_refused_with_the_kubelets_texts() {
        let cases = vectors("gc-policy.json");
        assert_eq!(cases.len(), 10);
        for case in cases {
            let input = &case["input"];
            let policy = GcPolicy::new(
                input["high_threshold_percent"].as_i64().unwrap(),
                input["low_threshold_percent"].as_i64().unwrap(),
                Duration::from_nanos(input["min_age"].as_u64().unwrap()),
                Some(Duration::from_nanos(input["max_age"].as_u64().unwrap())),
            );
            let error = policy.err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), case["expected"]["error"].as_str(), "{}", case["name"]);
        }
    }

    #[test]
    fn the_space_wanted_reaches_down_to_the_low_threshold() {
        let policy = GcPolicy::new(90, 80, Duration::ZERO, None).unwrap();
        let disk = |capacity, available| DiskUse::of(ByteSize(capacity), ByteSize(available));
        assert_eq!(space_wanted(&policy, &disk(1000, 600)), None);
        assert_eq!(space_wanted(&policy, &disk(1000, 110)), None);
        // 89.9 percent is reported as 90.
        assert_eq!(space_wanted(&policy, &disk(1000, 101)), Some(99));
        assert_eq!(space_wanted(&policy, &disk(1000, 100)), Some(100));
        assert_eq!(space_wanted(&policy, &disk(1000, 50)), Some(150));
        let huge = 1 << 62;
        assert_eq!(space_wanted(&policy, &disk(huge, 0)), Some(922_337_203_685_477_580));
    }

    #[test]
    fn below_the_high_threshold_is_where_no_collection_begins() {
        for (high, available) in [(90, 50), (90, 0), (50, 300), (85, 149), (2, 7), (100, 0)] {
            let policy = GcPolicy::new(high, 1, Duration::ZERO, None).unwrap();
            let disk = DiskUse::of(ByteSize(1000), ByteSize(available));
            let (_, room) = policy.bytes_wanted(&disk).unwrap();
            assert!(policy.bytes_wanted(&disk.with_more_available(freed(room))).is_none(), "{high} {available}");
            let almost = disk.with_more_available(freed(room - 1));
            assert!(policy.bytes_wanted(&almost).is_some(), "{high} {available}");
        }
    }

    #[test]
    fn meeting_thresholds_never_want_less_than_nothing() {
        let policy = GcPolicy::new(50, 50, Duration::ZERO, None).unwrap();
        let disk = DiskUse::of(ByteSize(1000), ByteSize(509));
        assert_eq!((disk.used_percent(), policy.bytes_wanted(&disk)), (50, Some((0, 0))));
    }
}
