//! Limits how many lines of one kind reach the log, and counts the suppressed ones.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct LineLimit {
    lines_max: u32,
    over: Duration,
    since: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl LineLimit {
    /// At most `lines_max` lines in each `over`.
    pub(crate) fn new(lines_max: u32, over: Duration) -> Self {
        Self { lines_max, over, since: None, written: 0, suppressed: 0 }
    }

    /// The number of lines suppressed since the last written one; `None`: suppress this line, too.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now >= since + self.over) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written == self.lines_max {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_and_the_count_is_reported_once() {
        let over = Duration::from_secs(10);
        let (mut lines, now) = (LineLimit::new(20, over), Instant::now());
        let written = (0..1000).filter(|_| lines.take(now).is_some()).count();
        assert_eq!(written, 20);
        assert_eq!(lines.take(now + over), Some(1000 - 20));
        assert_eq!(lines.take(now + over), Some(0));
    }
}
