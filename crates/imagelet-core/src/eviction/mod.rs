//! The kubelet's eviction thresholds: read, compared with the disks, with what it reclaims before any pod (`docs/spec/gc.md §14`).
//!
//! Pure functions; this module removes nothing.

mod containerfs;
mod observe;
mod parse;
mod quantity;
mod reclaim;

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

pub use self::{
    containerfs::with_containerfs,
    observe::{Observation, Observations, met},
    parse::{ThresholdTexts, defaults, thresholds},
    quantity::{Quantity, QuantityError},
    reclaim::{Layout, Reclaim, reclaim_order},
};

/// A resource the kubelet monitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory of the node.
    MemoryAvailable,
    /// Memory that pods may use together.
    AllocatableMemoryAvailable,
    /// Bytes on the kubelet's file system.
    NodefsAvailable,
    /// Inodes on the kubelet's file system.
    NodefsInodesFree,
    /// Bytes on the image file system.
    ImagefsAvailable,
    /// Inodes on the image file system.
    ImagefsInodesFree,
    /// Bytes on the file system of writable layers.
    ContainerfsAvailable,
    /// Inodes on the file system of writable layers.
    ContainerfsInodesFree,
    /// Process ids.
    PidAvailable,
}

impl Signal {
    /// Every signal.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::ContainerfsAvailable,
        Self::ContainerfsInodesFree,
        Self::PidAvailable,
    ];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::ContainerfsAvailable => "containerfs.available",
            Self::ContainerfsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Signal {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let found = Self::ALL.into_iter().find(|signal| signal.name() == text);
        found.ok_or_else(|| ThresholdError(format!("unsupported eviction signal {text}")))
    }
}

/// An absolute or relative limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A number of bytes, inodes or processes.
    Quantity(Quantity),
    /// A share of the capacity; 32 bits, as in the kubelet.
    Fraction(f32),
}

impl Amount {
    #[expect(clippy::cast_possible_truncation, reason = "cut, not rounded, in 64 bits, as the kubelet computes it")]
    fn of(self, capacity: u64) -> i128 {
        match self {
            Self::Quantity(quantity) => quantity.nanos(),
            Self::Fraction(fraction) => Quantity::whole((capacity as f64 * f64::from(fraction)) as i64).nanos(),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantity(quantity) => quantity.fmt(f),
            // 32 bits are inexact beyond four decimal places.
            Self::Fraction(fraction) => write!(f, "{}%", (f64::from(*fraction) * 1_000_000.0).round() / 10_000.0),
        }
    }
}

/// A limit: the node is short when less than this is available.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// The monitored resource.
    pub signal: Signal,
    /// The limit.
    pub value: Amount,
    /// How long the limit may stay crossed; `None` for a hard threshold.
    pub grace: Option<Duration>,
    /// How much beyond the limit must be available before the pressure ends.
    pub reclaim_min: Option<Amount>,
}

/// Why the texts are not thresholds, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ThresholdError(String);

/// Configured texts by signal.
pub type SignalTexts = BTreeMap<String, String>;
