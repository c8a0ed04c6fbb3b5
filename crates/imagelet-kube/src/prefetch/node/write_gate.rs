//! Decides when a node writes its report and its condition: rarely, and only after a change.

use std::time::Duration;

use imagelet_core::retry_wait::scattered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::time::Instant;

use super::images_ready::ImagesReady;
use crate::prefetch::objects::{ImagePhase, SetReport};

pub(super) const WRITE_EVERY: Duration = Duration::from_secs(10);
/// The minimum time between two writes that are [alike](NodeFact::is_alike).
pub(super) const PROGRESS_EVERY: Duration = Duration::from_mins(1);
/// A change waits for this time minus a random part. This merges changes and spreads the writes of a cluster.
pub(super) const COLLECT_FOR: Duration = Duration::from_secs(4);

#[derive(Debug, Default, PartialEq)]
pub(super) struct WrittenReport {
    /// The owning Node. A recreated Node is another owner.
    pub(super) owner: Option<OwnerReference>,
    pub(super) sets: Vec<SetReport>,
}

/// A fact that a node writes about itself: the report or the condition.
pub(super) trait NodeFact: PartialEq {
    const NAME: &str;
    /// The wait after a forbidden request. With `None`, the wait is the same as after any other failure.
    const FORBIDDEN_RETRY: Option<Duration>;

    fn is_empty(&self) -> bool;

    /// Whether the facts only differ in progress, which causes no action of other components.
    fn is_alike(&self, other: &Self) -> bool;
}

impl NodeFact for WrittenReport {
    const NAME: &str = "report";
    const FORBIDDEN_RETRY: Option<Duration> = None;

    fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    fn is_alike(&self, other: &Self) -> bool {
        milestones(self) == milestones(other)
    }
}

impl NodeFact for Option<ImagesReady> {
    const NAME: &str = "condition `imagelet.dev/ImagesReady`";
    /// Most clusters do not grant the right to write the condition.
    const FORBIDDEN_RETRY: Option<Duration> = Some(Duration::from_mins(15));

    fn is_empty(&self) -> bool {
        self.is_none()
    }

    fn is_alike(&self, other: &Self) -> bool {
        self.as_ref().map(|it| it.is_ready) == other.as_ref().map(|it| it.is_ready)
    }
}

#[derive(Debug)]
pub(super) struct WriteGate<T> {
    written: Option<T>,
    written_at: Option<Instant>,
    /// When the fact first differed from the written fact, and the wait from that time.
    changed: Option<(Instant, Duration)>,
    failures: u32,
    retry_at: Option<Instant>,
}

impl<T: NodeFact> WriteGate<T> {
    pub(super) fn restored(written: Option<T>) -> Self {
        Self { written, written_at: None, changed: None, failures: 0, retry_at: None }
    }

    pub(super) fn found(&mut self, found: T) {
        self.written = Some(found);
    }

    /// When to write this fact, or `None` if it is already written. `random` is between 0 and 1.
    pub(super) fn due(&mut self, fact: &T, now: Instant, random: f64) -> Option<Instant> {
        let is_written = match &self.written {
            Some(written) => written == fact,
            None => fact.is_empty(),
        };
        if is_written {
            self.changed = None;
            return None;
        }
        let (changed_at, wait) = *self.changed.get_or_insert((now, scattered(COLLECT_FOR, 0.5, 1.0 - random)));
        let is_alike = self.written.as_ref().is_some_and(|written| written.is_alike(fact));
        let every = if is_alike { PROGRESS_EVERY } else { WRITE_EVERY };
        [Some(changed_at + wait), self.written_at.map(|at| at + every), self.retry_at].into_iter().flatten().max()
    }

    pub(super) fn written(&mut self, fact: T, now: Instant) {
        *self = Self { written_at: Some(now), ..Self::restored(Some(fact)) };
    }

    /// Returns whether this is the first failure in a row. `wait` returns the wait after a number of failures.
    pub(super) fn failed(&mut self, now: Instant, wait: impl Fn(u32) -> Duration) -> bool {
        self.retry_at = Some(now + wait(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.failures == 1
    }
}

/// The parts of a report that the controller counts: the phase of each set, and the failed images with their errors.
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
        let (start, mut gate) = (Instant::now(), WriteGate::restored(None));
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
        let mut gate = WriteGate::restored(Some(report(SetPhase::Ready, 1)));
        let now = Instant::now();
        assert_eq!(gate.due(&report(SetPhase::Ready, 1), now, 1.0), None);
        let owner = Some(OwnerReference { uid: "another".into(), ..OwnerReference::default() });
        let of_new_node = WrittenReport { owner, ..report(SetPhase::Ready, 1) };
        assert!(
            gate.due(&of_new_node, now, 1.0).is_some(),
            "the report of a Node that was created again is another one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_gets_ready_says_so_in_seconds_and_which_images_are_missing_once_a_minute() {
        let (start, mut gate) = (Instant::now(), WriteGate::restored(None));
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let missing = |message: &str| Some(ImagesReady { is_ready: false, message: message.into() });
        let ready = Some(ImagesReady { is_ready: true, message: "all".into() });
        gate.found(None);
        assert_eq!(gate.due(&None, start, 1.0), None, "without a gated set nothing is written");
        assert_eq!(gate.due(&missing("a, b"), start, 1.0), Some(after(4)));
        gate.written(missing("a, b"), after(4));
        gate.found(missing("a, b"));
        assert_eq!(gate.due(&missing("a, b"), after(5), 1.0), None);
        assert_eq!(gate.due(&missing("b"), after(6), 1.0), Some(after(64)));
        assert_eq!(gate.due(&ready, after(20), 1.0), Some(after(14)), "the change is older than its wait");
        gate.written(ready.clone(), after(20));
        // Another client changed the condition.
        gate.found(missing("x"));
        assert_eq!(gate.due(&ready, after(100), 1.0), Some(after(104)));
        gate.found(ready.clone());
        assert_eq!(gate.due(&ready, after(110), 1.0), None);
        assert_eq!(gate.due(&None, after(200), 1.0), Some(after(204)), "it is removed with the last gated set");
    }
}
