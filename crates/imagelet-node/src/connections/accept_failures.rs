//! The result of a failed accept: a warning, a pause where the next accept would fail too, and never the end of the
//! listener.

use std::{io, time::Duration};

use rustix::io::Errno;
use tokio::time::Instant;

use super::line_limit::LineLimit;

const LINES_MAX: u32 = 2;
/// A flood of failures must not fill a disk.
const LINES_OVER: Duration = Duration::from_secs(30);
/// The first pause after a failure that the next accept would share.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// Shorter than the deadline of a waiting client.
const PAUSE_MAX: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct AcceptFailures {
    listener: &'static str,
    in_a_row: u32,
    lines: LineLimit,
}

impl AcceptFailures {
    pub(crate) fn new(listener: &'static str) -> Self {
        Self { listener, in_a_row: 0, lines: LineLimit::new(LINES_MAX, LINES_OVER) }
    }

    pub(crate) fn clear(&mut self) {
        self.in_a_row = 0;
    }

    /// Logs a failure within the line limit. Returns the pause before the next accept.
    pub(crate) fn report(&mut self, error: &io::Error) -> Duration {
        let pause = pause_after(error, self.in_a_row);
        self.in_a_row = self.in_a_row.saturating_add(1);
        if let Some(suppressed) = self.lines.take(Instant::now()) {
            tracing::warn!(listener = self.listener, %error, suppressed, "could not accept a connection");
        }
        pause
    }
}

pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

fn pause_after(error: &io::Error, before: u32) -> Duration {
    match Errno::from_io_error(error) {
        // Failures of one connection, whose client disconnected or is rejected; the next one is independent.
        Some(Errno::CONNABORTED | Errno::PERM | Errno::PROTO | Errno::INTR | Errno::NETDOWN | Errno::HOSTUNREACH) => {
            Duration::ZERO
        }
        _ => PAUSE_FIRST.saturating_mul(1 << before.min(16)).min(PAUSE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_next_accept_shares_is_waited_for_and_never_long() {
        let milliseconds = Duration::from_millis;
        for (errno, before, pause) in [
            (Errno::CONNABORTED, 0, milliseconds(0)),
            (Errno::CONNABORTED, 9, milliseconds(0)),
            (Errno::PERM, 0, milliseconds(0)),
            (Errno::MFILE, 0, milliseconds(20)),
            (Errno::MFILE, 1, milliseconds(40)),
            (Errno::NFILE, 4, milliseconds(320)),
            (Errno::MFILE, 5, milliseconds(500)),
            (Errno::NOMEM, u32::MAX, milliseconds(500)),
            (Errno::BADF, 0, milliseconds(20)),
        ] {
            assert_eq!(pause_after(&errno.into(), before), pause, "{errno:?} after {before}");
        }
        assert_eq!(pause_after(&io::Error::other("unknown"), 0), milliseconds(20));
    }

    #[test]
    fn an_accept_that_succeeds_ends_the_row_of_failures() {
        let mut failures = AcceptFailures::new("test");
        let error = Errno::MFILE.into();
        assert_eq!([failures.report(&error), failures.report(&error)], [PAUSE_FIRST, PAUSE_FIRST * 2]);
        failures.clear();
        assert_eq!(failures.report(&error), PAUSE_FIRST);
    }
}
