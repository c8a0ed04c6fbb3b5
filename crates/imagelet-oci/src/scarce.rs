//! Retries of operations for which the process or the system had no file descriptor left.

use std::{error::Error, io, iter, thread, time::Duration};

use imagelet_core::runtime::RuntimeError;
use rustix::io::Errno;

/// The first wait; each further one doubles.
const WAIT_FIRST: Duration = Duration::from_millis(10);
/// Maximum number of waits: ten seconds in all.
const WAITS_MAX: usize = 10;

pub(crate) fn waits() -> impl Iterator<Item = Duration> {
    iter::successors(Some(WAIT_FIRST), |wait| Some(*wait * 2)).take(WAITS_MAX)
}

pub(crate) fn is_scarce(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

pub(crate) fn is_caused_by_scarcity(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let system = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        if system.or_else(|| error.downcast_ref().copied()).is_some_and(is_scarce) {
            return true;
        }
        next = error.source();
    }
    false
}

pub(crate) async fn retried<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, RuntimeError>
where
    F: Future<Output = Result<T, RuntimeError>>,
{
    for wait in waits() {
        match attempt().await {
            Err(error) if is_caused_by_scarcity(&error) => {
                tracing::debug!(error = error.chain(), "no file descriptor is left; trying again");
                tokio::time::sleep(wait).await;
            }
            outcome => return outcome,
        }
    }
    attempt().await
}

/// Retries while descriptors are exhausted. Blocks the thread.
pub(crate) fn patiently<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for wait in waits() {
        match attempt() {
            Err(errno) if is_scarce(errno) => thread::sleep(wait),
            outcome => return outcome,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waits_end_after_ten_seconds() {
        let all: Duration = waits().sum();
        assert!(all > Duration::from_secs(10) && all < Duration::from_secs(11), "{all:?}");
    }

    #[test]
    fn a_missing_descriptor_is_waited_for_and_nothing_else_is() {
        let mut answers = vec![Ok(7), Err(Errno::NFILE), Err(Errno::MFILE)];
        assert_eq!(patiently(|| answers.pop().expect("an answer for each try")), Ok(7));
        let mut tries = 0;
        let refused = patiently(|| {
            tries += 1;
            Err::<(), _>(Errno::ACCESS)
        });
        assert_eq!((refused, tries), (Err(Errno::ACCESS), 1));
    }

    #[test]
    fn a_missing_descriptor_is_found_below_what_it_caused() {
        let caused = |errno: Errno| {
            RuntimeError::other("outer").caused_by(RuntimeError::other("inner").caused_by(io::Error::from(errno)))
        };
        assert!(is_caused_by_scarcity(&caused(Errno::MFILE)));
        assert!(is_caused_by_scarcity(&caused(Errno::NFILE)));
        assert!(!is_caused_by_scarcity(&caused(Errno::NOSPC)));
        assert!(!is_caused_by_scarcity(&RuntimeError::other("alone")));
    }
}
