//! The usage record of one image.

use std::time::SystemTime;

use super::use_history::{ImageOrigin, PullCost, UseHistory};

#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::inventory) struct ImageUsage {
    pub(in crate::inventory) first_seen: Option<SystemTime>,
    pub(in crate::inventory) last_used: Option<SystemTime>,
    /// Start of its last use.
    pub(in crate::inventory) begun: Option<SystemTime>,
    /// In use at the last pass, whose time is its last use and is not written per image.
    pub(in crate::inventory) in_use: bool,
    /// When its absence was detected.
    pub(in crate::inventory) gone: Option<SystemTime>,
    pub(in crate::inventory) origin: ImageOrigin,
    /// `NAMESPACE/POD`.
    pub(in crate::inventory) user: Option<String>,
    pub(in crate::inventory) pulled: Option<PullCost>,
    pub(in crate::inventory) history: UseHistory,
    /// Announced uses without a seen container.
    pub(in crate::inventory) credits: u8,
}
