//! Gives memory back when the daemon comes to rest: after its start, and after work.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

/// How long little must be done for that to be rest.
const PERIOD: Duration = Duration::from_secs(3);
/// Less work than this in a period is none: lists that are asked for, jobs that look.
const WORK_MIN: Duration = Duration::from_millis(60);

/// Looks every few seconds whether the daemon has come to rest; ends with the token.
pub(crate) async fn give_memory_back(stop: CancellationToken) {
    let mut rest = Rest::default();
    while stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_some() {
        if !rest.begins(used()) {
            continue;
        }
        match tokio::task::spawn_blocking(imagelet_memory::give_back).await {
            Ok(Ok(bytes)) => tracing::debug!(bytes, "at rest: gave memory back"),
            Ok(Err(error)) => tracing::debug!(%error, "could not give memory back"),
            Err(error) => tracing::error!(%error, "could not give memory back"),
        }
    }
}

/// Whether memory was given back since the last work.
#[derive(Debug, Default)]
struct Rest {
    used: Duration,
    at_rest: bool,
}

impl Rest {
    /// Takes the CPU time used so far; answers whether this is the moment.
    fn begins(&mut self, used: Duration) -> bool {
        let worked = used.saturating_sub(std::mem::replace(&mut self.used, used)) >= WORK_MIN;
        let begins = !worked && !self.at_rest;
        self.at_rest = !worked;
        begins
    }
}

/// CPU time of this process.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_once_after_each_piece_of_work() {
        let mut rest = Rest::default();
        let mut used = Duration::ZERO;
        let mut passes = Vec::new();
        for millis in [5, 5, 700, 90, 10, 59, 0, 60, 1] {
            used += Duration::from_millis(millis);
            passes.push(rest.begins(used));
        }
        assert_eq!(passes, [true, false, false, false, true, false, false, false, true]);
    }
}
