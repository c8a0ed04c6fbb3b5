//! The settings of the pull records: memory limits, strictness and expiry.

use std::time::Duration;

use super::verify::VerificationPolicy;

/// The kubelet's default.
const PODS_MAX: usize = 110;
const INTENTS_MAX: usize = 1024;
const RECORDS_MAX: usize = 2000;
/// The number of lock shards where the number of parallel pulls has no limit.
const STRIPES: i64 = 31;

/// The settings of the pull records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsSettings {
    /// The images for which a client has to present credentials.
    pub policy: VerificationPolicy,
    /// What an open intent protects.
    pub guard: Guard,
    /// A record without a pull for this long expires; `None`: never.
    pub age_max: Option<Duration>,
    /// Most intents in memory; others are read from disk.
    pub intents_max: usize,
    /// Most records in memory; others are read from disk.
    pub records_max: usize,
    /// The number of parallel writes of either kind, within 1 to 31.
    pub stripes: i64,
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
    /// Settings for the kubelet's default number of pods and any number of pulls.
    pub fn new(policy: VerificationPolicy) -> Self {
        Self { policy, guard: Guard::Image, age_max: None, intents_max: 0, records_max: 0, stripes: STRIPES }
            .sized(PODS_MAX, None)
    }

    /// Sizes memory for a number of pods and of parallel pulls.
    #[must_use]
    pub fn sized(self, pods_max: usize, parallel_max: Option<usize>) -> Self {
        let pulls = parallel_max.unwrap_or_default();
        Self {
            intents_max: pods_max.max(pulls).saturating_mul(2).min(INTENTS_MAX),
            records_max: pods_max.saturating_mul(5).min(RECORDS_MAX),
            stripes: parallel_max.map_or(STRIPES, |pulls| i64::try_from(pulls).unwrap_or(STRIPES)),
            ..self
        }
    }
}

impl From<VerificationPolicy> for RecordsSettings {
    fn from(policy: VerificationPolicy) -> Self {
        Self::new(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_pods_and_pulls_up_to_a_bound() {
        let sized = |pods, pulls| {
            let settings = RecordsSettings::new(VerificationPolicy::AlwaysVerify).sized(pods, pulls);
            (settings.intents_max, settings.records_max, settings.stripes)
        };
        assert_eq!(sized(110, None), (220, 550, 31));
        assert_eq!(sized(110, Some(1)), (220, 550, 1));
        assert_eq!(sized(10, Some(200)), (400, 50, 200));
        assert_eq!(sized(1000, Some(5)), (1024, 2000, 5));
    }
}
