//! Whether the unfinished content of a pull stays for the next pull.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use imagelet_core::error::{RuntimeError, RuntimeErrorKind};

/// Whether a later pull may continue a pull's staged content. An error that a retry would meet again forbids that.
#[derive(Clone, Debug)]
pub(crate) struct Resumption(Arc<AtomicBool>);

impl Resumption {
    pub(crate) fn new(is_allowed: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_allowed)))
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn heed(&self, error: &RuntimeError) {
        use RuntimeErrorKind::{
            Corrupt, Defect, DiskFull, InvalidArgument, SignatureInvalid, Unacceptable, Unsupported,
        };
        if matches!(
            error.kind(),
            Corrupt | Unacceptable | Unsupported | InvalidArgument | SignatureInvalid | DiskFull | Defect
        ) {
            self.0.store(false, Ordering::Relaxed);
        }
    }
}

/// Whether `since` is more than `age_max` before or after `now`. It is after `now` if the clock was set back.
pub(super) fn is_outdated(since: SystemTime, age_max: Duration, now: SystemTime) -> bool {
    let apart = now.duration_since(since).unwrap_or_else(|ahead| ahead.duration());
    apart > age_max
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_clock_keeps_nothing_longer_than_twice_the_limit() {
        let (hour, year) = (Duration::from_hours(1), Duration::from_hours(365 * 24));
        let now = SystemTime::UNIX_EPOCH + 50 * year;
        for (since, outdated) in [
            (now, false),
            (now - hour, false),
            (now - 25 * hour, true),
            (now - year, true),
            // The clock was set back by so much since.
            (now + hour, false),
            (now + year, true),
        ] {
            assert_eq!(is_outdated(since, 24 * hour, now), outdated, "{since:?}");
        }
    }

    #[test]
    fn an_interruption_leaves_what_a_refusal_removes() {
        use RuntimeErrorKind::{
            Cancelled, Corrupt, Denied, DiskFull, NotFound, Other, RegistryUnavailable, SignatureInvalid, TimedOut,
            Unacceptable, Unavailable, Unsupported,
        };
        for (kind, stays) in [
            (RegistryUnavailable, true),
            (TimedOut, true),
            (Cancelled, true),
            (Unavailable, true),
            (Denied, true),
            (NotFound, true),
            (Other, true),
            (Corrupt, false),
            (Unacceptable, false),
            (Unsupported, false),
            (SignatureInvalid, false),
            (DiskFull, false),
        ] {
            let resumption = Resumption::new(true);
            let shared = resumption.clone();
            resumption.heed(&RuntimeError::new(kind, "it failed"));
            assert_eq!(shared.is_allowed(), stays, "{kind:?}");
        }
        assert!(!Resumption::new(false).is_allowed());
    }
}
