//! The kubelet's eviction thresholds: read, compared with the disks, with what it reclaims before any pod (`docs/spec/gc.md §14`).
//!
//! Plain functions; nothing is removed from here.

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

/// What may run short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory of the node.
    MemoryAvailable,
    /// Memory of what pods may take together.
    AllocatableMemoryAvailable,
    /// Bytes where the kubelet's own files are.
    NodefsAvailable,
    /// Inodes there.
    NodefsInodesFree,
    /// Bytes where images are.
    ImagefsAvailable,
    /// Inodes there.
    ImagefsInodesFree,
    /// Bytes where writable layers are.
    ContainerfsAvailable,
    /// Inodes there.
    ContainerfsInodesFree,
    /// Process ids.
    PidAvailable,
}

impl Signal {
    /// All of them.
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

    /// Its name in configurations.
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

/// How much of something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// So many bytes, inodes or processes.
    Quantity(Quantity),
    /// This share of the capacity; 32 bits, as the kubelet holds it.
    Fraction(f32),
}

impl Amount {
    /// What it stands for on something of this capacity, in nanos.
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
            // Digits behind the fourth place come from the 32 bits.
            Self::Fraction(fraction) => write!(f, "{}%", (f64::from(*fraction) * 1_000_000.0).round() / 10_000.0),
        }
    }
}

/// A limit: the node is short when less than this is available.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// Of what.
    pub signal: Signal,
    /// Less than this is short.
    pub value: Amount,
    /// For how long it may stay short. `None`: not at all, the threshold is hard.
    pub grace: Option<Duration>,
    /// How much more than the limit must be available before it counts as over.
    pub reclaim_min: Option<Amount>,
}

/// Why texts are not thresholds, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ThresholdError(String);

/// Signals with their texts, as configurations have them.
pub type SignalTexts = BTreeMap<String, String>;
