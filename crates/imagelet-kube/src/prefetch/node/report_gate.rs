//! When a node writes its report: rarely, and only when it changed.

use std::time::Duration;

use tokio::time::Instant;

use crate::prefetch::objects::{ImagePhase, SetReport};

/// The shortest time between two writes of one node.
pub(super) const WRITE_EVERY: Duration = Duration::from_secs(10);
/// The shortest time between two writes where no set changed its phase and no image newly failed.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_mins(1);
/// A change waits for so long, less a random part, so that changes that follow each other are one write and the nodes of a
/// cluster do not write together.
pub(super) const COLLECT_FOR: Duration = Duration::from_secs(4);

/// The last write, and the change that waits.
#[derive(Debug, Default)]
pub(super) struct ReportGate {
    written: Option<Vec<SetReport>>,
    written_at: Option<Instant>,
    /// When the report began to differ from the written one, and how long to wait from then.
    changed: Option<(Instant, Duration)>,
}

impl ReportGate {
    /// The gate of an agent that starts, with the report that the API has.
    pub(super) fn restored(written: Option<Vec<SetReport>>) -> Self {
        Self { written, ..Self::default() }
    }

    /// When to write this report; `None`: it is the written one. `random` is between 0 and 1.
    pub(super) fn due(&mut self, report: &[SetReport], now: Instant, random: f64) -> Option<Instant> {
        let written = self.written.as_deref().unwrap_or_default();
        if written == report {
            self.changed = None;
            return None;
        }
        let (changed_at, wait) =
            *self.changed.get_or_insert((now, COLLECT_FOR.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))));
        let every = if milestones(written) == milestones(report) { PROGRESS_EVERY } else { WRITE_EVERY };
        let collected = changed_at + wait;
        Some(self.written_at.map_or(collected, |at| collected.max(at + every)))
    }

    pub(super) fn written(&mut self, report: Vec<SetReport>, now: Instant) {
        *self = Self { written: Some(report), written_at: Some(now), changed: None };
    }
}

/// What the controller counts: the phase of each set, and which images failed and why.
fn milestones(report: &[SetReport]) -> impl PartialEq {
    let failed = |set: &SetReport| -> Vec<(String, String)> {
        let failed = set.images.iter().filter(|image| image.phase == ImagePhase::Failed);
        failed.map(|image| (image.reference.clone(), image.class.clone())).collect()
    };
    report.iter().map(|set| (set.uid.clone(), set.generation, set.phase, failed(set))).collect::<Vec<_>>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::objects::{ImageReport, SetPhase};

    fn report(phase: SetPhase, bytes: u64) -> Vec<SetReport> {
        let image = ImageReport { phase: ImagePhase::Pulling, bytes: Some(bytes), ..ImageReport::default() };
        vec![SetReport { phase, images: vec![image], ..SetReport::default() }]
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_phase_waits_for_seconds_progress_for_a_minute_and_the_same_report_for_ever() {
        let (start, mut gate) = (Instant::now(), ReportGate::default());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(gate.due(&[], start, 1.0), None, "a node without sets writes nothing");
        assert_eq!(gate.due(&report(SetPhase::Pulling, 0), start, 1.0), Some(after(4)));
        assert_eq!(gate.due(&report(SetPhase::Pulling, 5), after(3), 0.0), Some(after(4)), "the wait is not extended");
        gate.written(report(SetPhase::Pulling, 5), after(4));
        assert_eq!(gate.due(&report(SetPhase::Pulling, 5), after(5), 1.0), None);
        assert_eq!(gate.due(&report(SetPhase::Pulling, 9), after(6), 1.0), Some(after(64)));
        assert_eq!(gate.due(&report(SetPhase::Ready, 9), after(7), 1.0), Some(after(14)));
        gate.written(report(SetPhase::Ready, 9), after(14));
        assert_eq!(gate.due(&[], after(100), 0.0), Some(after(102)), "the end of a set is written, too");
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_starts_does_not_write_what_the_api_has() {
        let mut gate = ReportGate::restored(Some(report(SetPhase::Ready, 1)));
        assert_eq!(gate.due(&report(SetPhase::Ready, 1), Instant::now(), 1.0), None);
    }
}
