//! The settings of the pull records: strictness and expiry.

use std::time::Duration;

use super::verify::VerificationPolicy;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsSettings {
    pub policy: VerificationPolicy,
    pub guard: Guard,
    /// A record without a pull for this long expires; `None`: never.
    pub age_max: Option<Duration>,
}

/// What an open intent protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Only the spelling it was recorded under, as in the kubelet. Every other spelling of the image stays open to all
    /// clients, after a crash permanently; whole seconds identify a record that is older than a collection.
    Spelling,
    /// The image, under each of its names.
    Image,
}

impl RecordsSettings {
    pub fn new(policy: VerificationPolicy) -> Self {
        Self { policy, guard: Guard::Image, age_max: None }
    }
}

impl From<VerificationPolicy> for RecordsSettings {
    fn from(policy: VerificationPolicy) -> Self {
        Self::new(policy)
    }
}
