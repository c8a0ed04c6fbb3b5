//! What is remembered of one image.

use std::time::SystemTime;

use super::use_history::{ImageOrigin, PullCost, UseHistory};

/// What is remembered of one image.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::inventory) struct ImageUsage {
    pub(in crate::inventory) first_seen: Option<SystemTime>,
    pub(in crate::inventory) last_used: Option<SystemTime>,
    /// When its last use began.
    pub(in crate::inventory) begun: Option<SystemTime>,
    /// The last pass saw it in use: its last use is as late as that pass, which is not written for each image.
    pub(in crate::inventory) in_use: bool,
    /// When it was found gone.
    pub(in crate::inventory) gone: Option<SystemTime>,
    pub(in crate::inventory) origin: ImageOrigin,
    /// `NAMESPACE/POD`.
    pub(in crate::inventory) user: Option<String>,
    pub(in crate::inventory) pulled: Option<PullCost>,
    pub(in crate::inventory) history: UseHistory,
    /// Uses that were announced and whose containers have not been seen yet.
    pub(in crate::inventory) credits: u8,
}
