//! Decides when a node writes its report: rarely, and only after a change.

use std::time::Duration;

use imagelet_core::backoff::scattered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::time::Instant;

use crate::prefetch::objects::{ImagePhase, NodeImages, SetReport};

/// The minimum time between two writes of one node.
pub(super) const WRITE_EVERY: Duration = Duration::from_secs(10);
/// The minimum time between two writes if no set changed its phase and no image newly failed.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_mins(1);
/// A change waits for this time minus a random part. Several changes then need one write, and the nodes of a cluster do
/// not write at the same moment.
pub(super) const COLLECT_FOR: Duration = Duration::from_secs(4);

/// The report of this node in the API.
#[derive(Debug, Default, PartialEq)]
pub(super) struct WrittenReport {
    /// The Node. A recreated Node is another owner.
    pub(super) owner: Option<OwnerReference>,
    pub(super) sets: Vec<SetReport>,
}

impl From<NodeImages> for WrittenReport {
    fn from(NodeImages { metadata, sets }: NodeImages) -> Self {
        Self { owner: metadata.owner_references.into_iter().flatten().next(), sets }
    }
}

/// The last write, and the waiting change.
#[derive(Debug, Default)]
pub(super) struct ReportGate {
    written: Option<WrittenReport>,
    written_at: Option<Instant>,
    /// When the report first differed from the written report, and how long to wait from that time.
    changed: Option<(Instant, Duration)>,
    /// Failed writes in a row, and the earliest time of the next write.
    failures: u32,
    retry_at: Option<Instant>,
}

impl ReportGate {
    /// The gate of an agent that starts, with the report in the API.
    pub(super) fn restored(written: Option<WrittenReport>) -> Self {
        Self { written, ..Self::default() }
    }

    /// When to write this report. `None`: the report is already written. `random` is between 0 and 1.
    pub(super) fn due(&mut self, report: &WrittenReport, now: Instant, random: f64) -> Option<Instant> {
        let is_written = match &self.written {
            Some(written) => written == report,
            None => report.sets.is_empty(),
        };
        if is_written {
            self.changed = None;
            return None;
        }
        let (changed_at, wait) = *self.changed.get_or_insert((now, scattered(COLLECT_FOR, 0.5, 1.0 - random)));
        let written = self.written.as_ref().map(milestones);
        let every = if written.is_some_and(|it| it == milestones(report)) { PROGRESS_EVERY } else { WRITE_EVERY };
        [Some(changed_at + wait), self.written_at.map(|at| at + every), self.retry_at].into_iter().flatten().max()
    }

    pub(super) fn written(&mut self, report: WrittenReport, now: Instant) {
        *self = Self { written: Some(report), written_at: Some(now), ..Self::default() };
    }

    /// Returns whether this is the first failure in a row. `wait` returns the wait after a number of failures.
    pub(super) fn failed(&mut self, now: Instant, wait: impl Fn(u32) -> Duration) -> bool {
        self.retry_at = Some(now + wait(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.failures == 1
    }
}

/// The parts that the controller counts: the phase of each set, and the failed images with their errors.
fn milestones(report: &WrittenReport) -> impl PartialEq + use<> {
    let failed = |set: &SetReport| -> Vec<(String, String)> {
        let failed = set.images.iter().filter(|image| image.phase == ImagePhase::Failed);
        failed.map(|image| (image.reference.clone(), image.class.clone())).collect()
    };
    let sets = report.sets.iter().map(|set| (set.uid.clone(), set.generation, set.phase, failed(set)));
    (report.owner.clone(), sets.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::objects::{ImageReport, SetPhase};

    fn report(phase: SetPhase, bytes: u64) -> WrittenReport {
        let image = ImageReport { phase: ImagePhase::Pulling, bytes: Some(bytes), ..ImageReport::default() };
        let sets = vec![SetReport { phase, images: vec![image], ..SetReport::default() }];
        WrittenReport { owner: None, sets }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_phase_waits_for_seconds_progress_for_a_minute_and_the_same_report_for_ever() {
        let (start, mut gate) = (Instant::now(), ReportGate::default());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(gate.due(&WrittenReport::default(), start, 1.0), None, "a node without sets writes nothing");
        assert_eq!(gate.due(&report(SetPhase::Pulling, 0), start, 1.0), Some(after(4)));
        assert_eq!(gate.due(&report(SetPhase::Pulling, 5), after(3), 0.0), Some(after(4)), "the wait is not extended");
        gate.written(report(SetPhase::Pulling, 5), after(4));
        assert_eq!(gate.due(&report(SetPhase::Pulling, 5), after(5), 1.0), None);
        assert_eq!(gate.due(&report(SetPhase::Pulling, 9), after(6), 1.0), Some(after(64)));
        assert_eq!(gate.due(&report(SetPhase::Ready, 9), after(7), 1.0), Some(after(14)));
        gate.written(report(SetPhase::Ready, 9), after(14));
        assert_eq!(
            gate.due(&WrittenReport::default(), after(100), 0.0),
            Some(after(102)),
            "the end of a set is written, too"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_starts_does_not_write_what_the_api_has() {
        let mut gate = ReportGate::restored(Some(report(SetPhase::Ready, 1)));
        let now = Instant::now();
        assert_eq!(gate.due(&report(SetPhase::Ready, 1), now, 1.0), None);
        let owner = Some(OwnerReference { uid: "another".into(), ..OwnerReference::default() });
        let of_new_node = WrittenReport { owner, ..report(SetPhase::Ready, 1) };
        assert!(
            gate.due(&of_new_node, now, 1.0).is_some(),
            "the report of a Node that was created again is another one"
        );
    }
}
