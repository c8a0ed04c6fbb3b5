//! Gives memory back when the daemon comes to rest: after its start, and after work.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

/// How long little must be done for that to be rest.
const PERIOD: Duration = Duration::from_secs(3);
/// Less work than this in a period is none: lists that are asked for, jobs that look.
const WORK_MIN: Duration = Duration::from_millis(60);
/// Small work brings back some of what was given; this much is worth giving again,
const GROWTH_MIN: u64 = 2 << 20;
/// but not more often than this, as the program's pages may have to be read from the disk each time.
const AGAIN_PERIODS: u32 = 10;

/// Looks every few seconds whether the daemon has come to rest; ends with the token.
pub(crate) async fn give_memory_back(stop: CancellationToken) {
    let mut rest = Rest::default();
    while stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_some() {
        let resident = match tokio::task::spawn_blocking(imagelet_memory::resident).await {
            Ok(resident) => resident.unwrap_or_default(),
            Err(error) => return tracing::error!(%error, "could not look at memory"),
        };
        if !rest.begins(used(), resident) {
            continue;
        }
        let given = tokio::task::spawn_blocking(|| {
            imagelet_memory::give_back()?;
            imagelet_memory::resident()
        });
        match given.await {
            Ok(Ok(left)) => {
                tracing::debug!(left, "at rest: gave memory back");
                rest.left = left;
            }
            Ok(Err(error)) => tracing::debug!(%error, "could not give memory back"),
            Err(error) => tracing::error!(%error, "could not give memory back"),
        }
    }
}

/// Whether memory was given back since the last work.
#[derive(Debug, Default)]
struct Rest {
    used: Duration,
    idle: bool,
    /// Periods since memory was given back.
    periods: u32,
    /// Bytes that were resident after that.
    left: u64,
}

impl Rest {
    /// Takes the CPU time used so far and the resident bytes; answers whether this is the moment.
    fn begins(&mut self, used: Duration, resident: u64) -> bool {
        let worked = used.saturating_sub(std::mem::replace(&mut self.used, used)) >= WORK_MIN;
        self.periods = self.periods.saturating_add(1);
        let grown = self.periods >= AGAIN_PERIODS && resident >= self.left.saturating_add(GROWTH_MIN);
        let begins = !worked && (!self.idle || grown);
        self.idle = !worked;
        if begins {
            self.periods = 0;
        }
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
            passes.push(rest.begins(used, 0));
        }
        assert_eq!(passes, [true, false, false, false, true, false, false, false, true]);
    }

    #[test]
    fn what_small_work_brings_back_goes_now_and_then() {
        let mut rest = Rest::default();
        assert!(rest.begins(Duration::ZERO, 9 << 20));
        rest.left = 4 << 20;
        let passes: Vec<bool> = (1..=22).map(|_| rest.begins(Duration::ZERO, 6 << 20)).collect();
        let moments: Vec<usize> = (1..=22).filter(|period| passes[period - 1]).collect();
        assert_eq!(moments, [10, 20]);
        assert!(!(1..=30).any(|_| rest.begins(Duration::ZERO, 5 << 20)), "too little to give");
    }
}
