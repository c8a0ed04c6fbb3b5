//! The status of a manager: its pulls, back-offs and open circuits.

use std::time::Duration;

use tokio::time::Instant;

use super::{puller::circuit_breaker::OpenCircuit, request::Caller};
use crate::{
    events::PodIdentity,
    image::counted,
    ports::{NextRequest, PullEnd, PullProgress, PullRoute, PullTimes},
    text::named_enum,
};

#[derive(Clone, Debug, Default)]
pub struct ManagerStatus {
    /// Running and waiting pulls, oldest first.
    pub pulls: Vec<PullStatus>,
    /// Images in back-off. The image with the earliest next attempt is first.
    pub held_back: Vec<HeldBack>,
    pub open_circuits: Vec<OpenCircuit>,
}

#[derive(Clone, Debug)]
pub struct PullStatus {
    /// The number of the pull, unique in this process, from 1.
    pub number: u64,
    pub image: String,
    /// The pod of the first client.
    pub pod: PodIdentity,
    pub turn: PullTurn,
    /// The requests that share the pull; empty during the grace. For an ended pull: the requests at its end.
    pub clients: Vec<PullClient>,
    pub priority: i32,
    pub progress: PullProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullTurn {
    pub state: PullState,
    pub since: Instant,
    /// The place in the queue; `None`: the pull runs.
    pub place: Option<QueuePlace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Starts at 1.
    pub position: usize,
    /// The number of pulls of the same kind, with the node's limits or without, that run or are earlier in the queue.
    pub behind: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullClient {
    pub pod: PodIdentity,
    pub caller: Caller,
    pub since: Instant,
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PullState {
        WaitingForSlot = "waiting-for-slot",
        WaitingForRate = "waiting-for-rate",
        Running = "running",
    }
}

impl PullStatus {
    /// What the pull does now, in one line: `1.2 of 2.8 GB, 35 MB/s, about 45 s left`. `names_others`: whether the line
    /// names the image of another pull that this pull waits for, which a pod's tenant may not read.
    pub fn line(&self, names_others: bool, now: Instant) -> String {
        let PullProgress { times: PullTimes { began, end, committing, .. }, route, layers, .. } = &self.progress;
        let retry = &self.progress.waits.retry;
        let since_start = |until: Instant| about(until.saturating_duration_since(began.unwrap_or(self.turn.since)));
        match (end, self.turn.state) {
            (Some((at, PullEnd::Pulled)), _) => return format!("pulled in {}", since_start(*at)),
            (Some((_, PullEnd::Cancelled)), _) => return "cancelled".to_owned(),
            (Some((_, PullEnd::Failed(error))), _) => {
                let fault = error.fault();
                return format!("failed: {} at {}", fault.class, fault.stage);
            }
            (None, PullState::WaitingForSlot) => {
                let behind = self.turn.place.map_or(0, |place| place.behind);
                return format!("waits for a place behind {}", counted(behind, "pull"));
            }
            (None, PullState::WaitingForRate) => return "waits for the limit of pulls per second".to_owned(),
            (None, PullState::Running) => {}
        }
        let retry = retry.as_ref().and_then(|next| retry_text(next, now));
        let waits: Vec<String> = retry.into_iter().chain(self.progress.awaited(names_others)).collect();
        let (received, all) = self.progress.bytes();
        let mut parts = Vec::new();
        if received < all {
            parts.push(part_of(received, all));
            match self.progress.speed(now) {
                None => {}
                Some(0) => parts.push("no bytes arrive".to_owned()),
                Some(speed) => {
                    let left = Duration::from_secs(((all - received) / speed).max(1));
                    parts.extend([rate(speed), format!("about {} left", about(left))]);
                }
            }
        } else if committing.is_some() || !layers.is_empty() {
            parts.extend((all > 0).then(|| format!("{} fetched", amount(all))));
            parts.push("the image is being stored".to_owned());
        } else if waits.is_empty() {
            let does = match route {
                Some(PullRoute::Forwarded(_)) => "pulling through the runtime",
                _ => "asking the registry",
            };
            parts.push(format!("{does} for {}", since_start(now)));
        }
        parts.extend(waits);
        parts.join(", ")
    }
}

/// Describes the wait for the next request. `None`: the wait is over.
fn retry_text(NextRequest { host, at, is_requested }: &NextRequest, now: Instant) -> Option<String> {
    let left = at.checked_duration_since(now).filter(|left| !left.is_zero())?;
    let why = if *is_requested { "limits requests" } else { "failed" };
    Some(format!("registry {host} {why}, next in {}", about(left)))
}

/// A duration in one rounded unit: `45 s`, `12 min`, `3 h`.
fn about(duration: Duration) -> String {
    match (duration + Duration::from_millis(999)).as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

fn unit(bytes: u64) -> (f64, &'static str) {
    match bytes {
        ..1_000_000 => (1e3, "kB"),
        1_000_000..1_000_000_000 => (1e6, "MB"),
        1_000_000_000..1_000_000_000_000 => (1e9, "GB"),
        _ => (1e12, "TB"),
    }
}

fn amount(bytes: u64) -> String {
    let (scale, unit) = unit(bytes);
    format!("{:.1} {unit}", bytes as f64 / scale)
}

/// The received bytes, for example `1.2 of 2.8 GB`. They are rounded down, so that only a whole fetch shows all bytes.
fn part_of(received: u64, all: u64) -> String {
    let (scale, _) = unit(all);
    format!("{:.1} of {}", (received as f64 / scale * 10.0).floor() / 10.0, amount(all))
}

fn rate(speed: u64) -> String {
    let (scale, unit) = unit(speed);
    let speed = speed as f64 / scale;
    let places = usize::from(speed < 9.95);
    format!("{speed:.places$} {unit}/s")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// The image as the pod spelled it.
    pub image: String,
    pub pod_uid: String,
    pub remaining: Duration,
    pub failure: String,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        error::RuntimeError,
        hold::{PullWait, SharedThing},
        image::{ByteSize, Digest},
        ports::{ForwardReason, LayerState, PullEvent},
    };

    const MEGABYTE: u64 = 1_000_000;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A pull that began at `start`, after these events, each with its second.
    fn running(start: Instant, events: Vec<(u64, PullEvent)>) -> PullStatus {
        let mut progress =
            PullProgress { times: PullTimes { began: Some(start), ..PullTimes::default() }, ..PullProgress::default() };
        for (second, event) in events {
            progress.apply(event, start + seconds(second));
        }
        PullStatus {
            number: 1,
            image: "shop.io/app:v1".into(),
            pod: PodIdentity::default(),
            turn: PullTurn { state: PullState::Running, since: start, place: None },
            clients: Vec::new(),
            priority: 0,
            progress,
        }
    }

    fn fetching(megabytes: u64) -> PullEvent {
        let state = LayerState::Fetching { received: ByteSize(megabytes * MEGABYTE) };
        PullEvent::Layer { digest: Digest::of(b"a"), state }
    }

    fn resolved(megabytes: u64) -> PullEvent {
        let layers = vec![(Digest::of(b"a"), ByteSize(megabytes * MEGABYTE))];
        PullEvent::Resolved { manifest: Digest::of(b"m"), layers }
    }

    #[test]
    fn a_running_pull_says_how_far_it_is_how_fast_and_how_long_it_still_takes() {
        let start = Instant::now();
        let retry = |second, is_requested| {
            (1, PullEvent::Retry(NextRequest { host: "shop.io".into(), at: start + seconds(second), is_requested }))
        };
        let head = (1, PullEvent::Head { host: "shop.io".into(), is_awaited: true });
        let present = PullEvent::Layer { digest: Digest::of(b"a"), state: LayerState::Present };
        let forwarded = (0, PullEvent::Route(PullRoute::Forwarded(ForwardReason::SwitchedOff)));
        for (events, at, expected) in [
            (vec![], 20, "asking the registry for 20 s"),
            (vec![forwarded], 150, "pulling through the runtime for 2 min"),
            (vec![head.clone()], 20, "waiting for shop.io"),
            (vec![retry(32, true)], 20, "registry shop.io limits requests, next in 12 s"),
            (vec![retry(32, false)], 20, "registry shop.io failed, next in 12 s"),
            (vec![retry(20, true)], 20, "asking the registry for 20 s"),
            (vec![(0, resolved(2800))], 0, "0.0 of 2.8 GB"),
            (vec![(0, resolved(2800))], 20, "0.0 of 2.8 GB, no bytes arrive"),
            (
                vec![(0, resolved(2800)), (10, fetching(870)), (20, fetching(1220))],
                20,
                "1.2 of 2.8 GB, 35 MB/s, about 45 s left",
            ),
            (
                vec![(0, resolved(2800)), (10, fetching(2798)), (20, fetching(2799))],
                20,
                "2.7 of 2.8 GB, 100 kB/s, about 10 s left",
            ),
            (
                vec![(0, resolved(90_000)), (10, fetching(10)), (20, fetching(20))],
                20,
                "0.0 of 90.0 GB, 1.0 MB/s, about 24 h left",
            ),
            (
                vec![(0, resolved(5)), (1, fetching(1)), (15, fetching(2)), retry(32, true), head],
                20,
                "2.0 of 5.0 MB, 53 kB/s, about 57 s left, registry shop.io limits requests, next in 12 s, waiting for shop.io",
            ),
            (vec![(0, resolved(5)), (1, fetching(5))], 9, "5.0 MB fetched, the image is being stored"),
            (vec![(0, resolved(5)), (1, present), (1, PullEvent::Committing)], 9, "the image is being stored"),
        ] {
            let pull = running(start, events);
            assert_eq!(pull.line(false, start + seconds(at)), expected);
        }
    }

    #[test]
    fn a_waiting_pull_names_how_many_pulls_are_before_it() {
        let start = Instant::now();
        for (state, behind, expected) in [
            (PullState::WaitingForSlot, 3, "waits for a place behind 3 pulls"),
            (PullState::WaitingForSlot, 1, "waits for a place behind 1 pull"),
            (PullState::WaitingForRate, 1, "waits for the limit of pulls per second"),
        ] {
            let place = Some(QueuePlace { position: 1, behind });
            let pull = PullStatus { turn: PullTurn { state, since: start, place }, ..running(start, Vec::new()) };
            assert_eq!(pull.line(false, start), expected);
        }
    }

    #[test]
    fn the_image_of_another_pull_is_named_to_operators_alone() {
        let start = Instant::now();
        let holder = Some("bank.io/secret:v1".to_owned());
        let wait =
            PullEvent::Waits { layer: Digest::of(b"a"), wait: Some(PullWait { thing: SharedThing::Layer, holder }) };
        let pull = running(start, vec![(0, resolved(5)), (1, wait)]);
        let lines = [true, false].map(|names_others| pull.line(names_others, start));
        let expected = [
            "0.0 of 5.0 MB, waits for a layer that the pull of bank.io/secret:v1 fetches",
            "0.0 of 5.0 MB, waits for a layer that another pull fetches",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn an_ended_pull_says_how_it_ended_without_the_text_of_its_registry() {
        let start = Instant::now();
        let error = RuntimeError::other("a text of the registry");
        for (end, expected) in [
            (PullEnd::Pulled, "pulled in 90 s"),
            (PullEnd::Cancelled, "cancelled"),
            (PullEnd::Failed(Arc::new(error)), "failed: other at "),
        ] {
            let mut pull = running(start, vec![(0, resolved(5))]);
            pull.progress.finish(end, start + seconds(90));
            let line = pull.line(false, start + seconds(100));
            assert!(line.starts_with(expected) && !line.contains("a text"), "{line}");
        }
    }
}
