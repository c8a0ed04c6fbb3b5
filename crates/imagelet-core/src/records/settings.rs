//! How records are kept, and how strictly.

use std::time::Duration;

use super::verify::VerificationPolicy;

/// Most pods of a node: the kubelet's default.
const PODS_MAX: usize = 110;
/// Most intents in memory, however many pods there are.
const INTENTS_MAX: usize = 1024;
/// Most records in memory, however many pods there are.
const RECORDS_MAX: usize = 2000;
/// So many writes at once where the number of pulls has no bound.
const STRIPES: i64 = 31;

/// How records are kept, and how strictly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsSettings {
    /// For which images a client has to show credentials.
    pub policy: VerificationPolicy,
    /// What a pull guards that was begun and whose end is not recorded.
    pub guard: Guard,
    /// After how long without a pull a record expires; `None`: never.
    pub age_max: Option<Duration>,
    /// Most intents in memory; the others are looked for on disk.
    pub intents_max: usize,
    /// Most records in memory; the others are looked for on disk.
    pub records_max: usize,
    /// How many writes of either kind may run at once, within 1 to 31.
    pub stripes: i64,
}

/// What a pull guards that was begun and whose end is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The one spelling it was begun under, as the kubelet does. Meanwhile any other spelling of the image is open to
    /// all, after a crash for good; and whole seconds identify a record that is older than a collection.
    Spelling,
    /// The image, under each of its names.
    Image,
}

impl RecordsSettings {
    /// For a node with the kubelet's default number of pods, and any number of pulls.
    pub fn new(policy: VerificationPolicy) -> Self {
        Self { policy, guard: Guard::Image, age_max: None, intents_max: 0, records_max: 0, stripes: STRIPES }
            .sized(PODS_MAX, None)
    }

    /// Memory for so many pods, and so many pulls at once.
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
