//! When the kubelet calls a node short of something, and what it reclaims before any pod (`docs/spec/gc.md §14`).
//!
//! All of it is plain decision: thresholds are read, brought into line with how the disks are laid out, compared with
//! what is observed; nothing is removed from here.

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

    /// What an event calls the thing that is short.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable | Self::ContainerfsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree | Self::ContainerfsInodesFree => "inodes",
            Self::PidAvailable => "pids",
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
        found.ok_or_else(|| ThresholdError::Signal(text.to_owned()))
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
            // What 32 bits add behind the fourth place was not written by anybody.
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

/// Why texts are no thresholds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThresholdError {
    /// Nobody knows the signal.
    #[error("unsupported eviction signal {0}")]
    Signal(String),
    /// A share below nothing.
    #[error("eviction percentage threshold {signal} must be >= 0%: {text}")]
    BelowNothing {
        /// Whose.
        signal: Signal,
        /// As written.
        text: String,
    },
    /// A share of more than all.
    #[error("eviction percentage threshold {signal} must be <= 100%: {text}")]
    AboveAll {
        /// Whose.
        signal: Signal,
        /// As written.
        text: String,
    },
    /// An amount of nothing or less.
    #[error("eviction threshold {signal} must be positive: {quantity}")]
    NotPositive {
        /// Whose.
        signal: Signal,
        /// As understood.
        quantity: Quantity,
    },
    /// A soft threshold without its time.
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    NoGrace(Signal),
    /// A time below zero.
    #[error("invalid eviction grace period specified: {0}, must be a positive value")]
    Grace(String),
    /// A share to reclaim that is none.
    #[error("eviction percentage minimum reclaim {signal} must be positive: {text}")]
    ReclaimShare {
        /// Whose.
        signal: Signal,
        /// As written.
        text: String,
    },
    /// An amount to reclaim below zero.
    #[error("negative eviction minimum reclaim specified for {0}")]
    ReclaimQuantity(Signal),
    /// No quantity.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// No number before the percent sign.
    #[error("strconv.ParseFloat: parsing {}: invalid syntax", crate::text::quoted(.0))]
    Percentage(String),
    /// A number that no float holds.
    #[error("strconv.ParseFloat: parsing {}: value out of range", crate::text::quoted(.0))]
    PercentageRange(String),
    /// No duration.
    #[error("{0}")]
    Duration(String),
}

/// Signals with their texts, as configurations have them.
pub type SignalTexts = BTreeMap<String, String>;
