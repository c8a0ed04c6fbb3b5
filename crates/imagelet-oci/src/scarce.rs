//! File descriptors: scales bounds by the process's limit of open files, and retries operations that got no descriptor.

use std::{error::Error, io, iter, thread, time::Duration};

use imagelet_core::error::RuntimeError;
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};

/// From this limit of open files on, bounds of parallel work are not reduced.
const FILES_FULL: usize = 1024;
/// Descriptors that are not for pulls. The listeners of a daemon use most of them.
const FILES_RESERVED: usize = 128;

/// Reduces bounds of parallel work if this process may open fewer than [`FILES_FULL`] files. Work beyond a bound waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorShare {
    available: usize,
}

impl DescriptorShare {
    pub(crate) fn of_limit(files_max: usize) -> Self {
        Self { available: files_max.clamp(FILES_RESERVED, FILES_FULL) - FILES_RESERVED }
    }

    /// The reduced bound. It is at least 1, so that work proceeds at any limit of open files.
    pub(crate) fn of(self, bound: usize) -> usize {
        (bound * self.available / (FILES_FULL - FILES_RESERVED)).max(1)
    }
}

impl Default for DescriptorShare {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        Self::of_limit(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX))
    }
}

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
    iter::successors(Some(error), |&error| error.source()).any(|error| {
        let system = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        system.or_else(|| error.downcast_ref().copied()).is_some_and(is_scarce)
    })
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

/// Repeats `attempt` while no descriptor is free, for at most ten seconds. Blocks the thread.
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
    fn a_bound_is_whole_from_1024_descriptors_on_and_a_part_of_itself_below() {
        for (files, first, second) in
            [(usize::MAX, 48, 12), (1024, 48, 12), (576, 24, 6), (256, 6, 1), (128, 1, 1), (0, 1, 1)]
        {
            let share = DescriptorShare::of_limit(files);
            assert_eq!((share.of(48), share.of(12)), (first, second), "{files}");
        }
    }

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
