//! Progress of a node's pulls: one entry for each pull that its store runs, whatever its callers.
//!
//! Bounded in pulls and in layers of each; a pull beyond the bound runs and is not shown. A finished pull is kept for a
//! while, so that a poller sees its end.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use MetricKind::Counter;
use imagelet_core::{
    hold::PullWait,
    image::{ByteSize, Digest, shown_name},
    metrics::{Family, MetricKind, Metrics},
    runtime::{LayerState, PullEnd, PullEvent, PullObserver, PullRequest, PullRoute},
};
use tokio::time::Instant;

use crate::{
    api::{LayerProgress, PullProgress, PullRetry, RemovedForPull, milliseconds_of},
    traces::{PullTrace, Tracer},
};

families! {
    PULLS = "imagelet_pulls_total",
        "Pulls of the store or runtime that ended, by outcome: pulled, failed, cancelled. Callers that share a pull count once.",
        Counter, &["outcome"];
    WAITS = "imagelet_pull_waits_total",
        "Waits of layers for what other pulls hold, by thing: memory, place, layer, space. Of memory, places and space, waits of less than a quarter of a second do not count.",
        Counter, &["thing"];
    RECEIVED = "imagelet_pull_received_bytes_total",
        "Bytes of layers that pulls received, compressed as in the registry; none of pulls by a runtime.", Counter, &[];
}

const PULLS_MAX: usize = 512;
const LAYERS_MAX: usize = 256;
const REMOVED_MAX: usize = 64;
const OVER_MAX: usize = 32;
const SPEED_OVER: Duration = Duration::from_secs(5);
/// The least interval of the speed's samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, Default)]
pub struct PullTracker {
    pulls: Arc<Mutex<Pulls>>,
    is_silent: bool,
    metrics: Arc<Metrics>,
    tracer: Tracer,
}

#[derive(Debug, Default)]
struct Pulls {
    next: u64,
    /// Incremented by every change, so that a poller gets only changes.
    version: u64,
    by_number: BTreeMap<u64, Pull>,
    over: VecDeque<u64>,
}

#[derive(Debug)]
struct Pull {
    /// What was reported of it; a reader's copy has its sums, times and rates.
    shown: PullProgress,
    began: Instant,
    ended: Option<Instant>,
    samples: VecDeque<(Instant, u64)>,
    /// Bytes of the present layers that the counter has.
    counted: u64,
    /// When which host gets the next request, and whether it requested the wait.
    retry: Option<(Instant, String, bool)>,
    /// What its layers wait for.
    waits: BTreeMap<Digest, PullWait>,
    /// Hosts that have not begun their answers, with the number of requests.
    unanswered: BTreeMap<String, usize>,
    version: u64,
    trace: Option<PullTrace>,
}

/// Phases of a pull, as `docs/events.md` lists them.
mod phase {
    pub(super) const RESOLVING: &str = "asking";
    pub(super) const PULLING: &str = "pulling";
    pub(super) const FETCHING: &str = "fetching";
    pub(super) const COMMITTING: &str = "committing";
    pub(super) const DONE: &str = "done";
    pub(super) const FAILED: &str = "failed";
    pub(super) const GIVEN_UP: &str = "given-up";
}

impl PullTracker {
    /// `is_silent`: a runtime pulls and reports no progress.
    pub fn new(is_silent: bool, metrics: Arc<Metrics>, tracer: Tracer) -> Self {
        Self { pulls: Arc::default(), is_silent, metrics, tracer }
    }

    /// What running pulls wait for, by image.
    pub fn waits(&self) -> BTreeMap<String, String> {
        let pulls = self.lock();
        let wait = |pull: &Pull| Some((pull.shown.image.clone(), pull.awaited()?));
        pulls.by_number.values().filter_map(wait).collect()
    }

    /// The changes after a version, and the present version. Zero returns every running pull.
    pub fn since(&self, version: u64, now: Instant) -> (u64, Vec<PullProgress>) {
        let pulls = self.lock();
        let is_news = |pull: &&Pull| pull.version > version && (version > 0 || pull.ended.is_none());
        // A running pull is shown although it reported nothing.
        let runs = |pull: &&Pull| pull.ended.is_none();
        let shown = pulls.by_number.values().filter(|pull| is_news(pull) || runs(pull));
        (pulls.version.max(1), shown.map(|pull| pull.progress(now)).collect())
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Pull)) {
        let mut pulls = self.lock();
        pulls.version += 1;
        let version = pulls.version;
        if let Some(pull) = pulls.by_number.get_mut(&number) {
            change(pull);
            pull.version = version;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pulls> {
        self.pulls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pull {
    /// What it waits for: a thing that another pull holds, else the answer of a host.
    fn awaited(&self) -> Option<String> {
        let host = || self.unanswered.keys().next().map(|host| format!("waiting for {host}"));
        self.waits.values().next().map(ToString::to_string).or_else(host)
    }

    fn bytes(&self) -> (u64, u64) {
        let fetched = self.shown.layers.iter().filter(|layer| layer.state != "present");
        fetched.fold((0, 0), |(total, received), layer| (total + layer.size, received + layer.received))
    }

    /// Bytes received since the last call. A layer that is fetched again counts once more.
    fn newly_received(&mut self) -> u64 {
        let received = self.bytes().1;
        let new = received.saturating_sub(self.counted);
        self.counted = received;
        new
    }

    fn sample(&mut self, now: Instant) {
        if self.samples.back().is_some_and(|(at, _)| now < *at + SAMPLE_EVERY) {
            return;
        }
        let received = self.bytes().1;
        self.samples.push_back((now, received));
        while self.samples.len() > 2 && self.samples.front().is_some_and(|(at, _)| *at + SPEED_OVER < now) {
            self.samples.pop_front();
        }
    }

    /// Bytes per second; `None` before there are two samples.
    fn speed(&self, now: Instant) -> Option<u64> {
        let (since, before) = *self.samples.front()?;
        let (total, received) = self.bytes();
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        if self.shown.phase != phase::FETCHING || total == 0 || seconds < SAMPLE_EVERY.as_secs_f64() {
            return None;
        }
        // A layer that is fetched again has fewer bytes than before.
        let speed = received.saturating_sub(before) as f64 / seconds;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of bytes, not below zero")]
        let speed = speed as u64;
        Some(speed)
    }

    fn step(&mut self, event: &PullEvent, now: Instant) {
        let shown = &mut self.shown;
        match event {
            PullEvent::Resolved { manifest, layers } => {
                shown.phase = phase::FETCHING.into();
                shown.manifest = manifest.to_string();
                shown.layers.clear();
                // Each blob once, even if the image names it several times.
                for (digest, ByteSize(size)) in layers {
                    let known = &mut shown.layers;
                    if known.len() < LAYERS_MAX && known.iter().all(|layer| layer.digest != digest.as_str()) {
                        known.push(LayerProgress {
                            digest: digest.to_string(),
                            state: "waiting".into(),
                            size: *size,
                            received: 0,
                        });
                    }
                }
                shown.layers_hidden = layers.len().saturating_sub(LAYERS_MAX) as u64;
                self.samples.clear();
                self.sample(now);
            }
            PullEvent::Layer { digest, state } => {
                if let Some(layer) = shown.layers.iter_mut().find(|layer| layer.digest == digest.as_str()) {
                    let (state, received) = match state {
                        LayerState::Present => ("present", 0),
                        LayerState::Fetching { received } => ("fetching", received.0.min(layer.size)),
                        LayerState::Done => ("done", layer.size),
                    };
                    (layer.state, layer.received) = (state.into(), received);
                }
                self.sample(now);
            }
            PullEvent::Removed(image) if shown.removed.len() < REMOVED_MAX => {
                shown.removed.push(RemovedForPull::from(image.clone()));
            }
            PullEvent::Removed(_) => {}
            PullEvent::Committing => shown.phase = phase::COMMITTING.into(),
            PullEvent::Retry { host, at, is_requested } => self.retry = Some((*at, host.clone(), *is_requested)),
            PullEvent::Waits { layer, wait: Some(wait) } if self.waits.len() < LAYERS_MAX => {
                self.waits.insert(layer.clone(), wait.clone());
            }
            PullEvent::Waits { layer, .. } => {
                self.waits.remove(layer);
            }
            PullEvent::Head { host, is_awaited: true } if self.unanswered.len() < LAYERS_MAX => {
                *self.unanswered.entry(host.clone()).or_default() += 1;
            }
            PullEvent::Head { host, .. } => {
                if let Some(count) = self.unanswered.get_mut(host) {
                    *count = count.saturating_sub(1);
                }
                self.unanswered.retain(|_, count| *count > 0);
            }
            PullEvent::Hosts(_) | PullEvent::Token { .. } | PullEvent::Warning { .. } => {}
            PullEvent::Route(PullRoute::Imported) => shown.phase = phase::RESOLVING.into(),
            PullEvent::Route(PullRoute::Forwarded(_)) => {
                // The runtime does not reuse what an import fetched.
                (shown.phase, shown.layers, shown.layers_hidden) = (phase::PULLING.into(), Vec::new(), 0);
                shown.manifest.clear();
                self.samples.clear();
            }
        }
    }

    fn progress(&self, now: Instant) -> PullProgress {
        let (total, received) = self.bytes();
        let speed = self.speed(now);
        let remaining = speed.filter(|speed| *speed > 0).map(|speed| (total - received).saturating_mul(1000) / speed);
        PullProgress {
            bytes_total: (!self.shown.layers.is_empty()).then_some(total),
            bytes_received: received,
            bytes_per_second: speed,
            remaining_ms: remaining,
            elapsed_ms: milliseconds_of(self.ended.unwrap_or(now).saturating_duration_since(self.began)),
            waits: self.awaited().unwrap_or_default(),
            retry: self.retry.clone().and_then(|(at, host, requested)| PullRetry::new(host, at, requested)),
            ..self.shown.clone()
        }
    }
}

impl PullObserver for PullTracker {
    fn begin(&self, request: &PullRequest) -> u64 {
        let sandbox = request.sandbox.clone().unwrap_or_default();
        let mut pulls = self.lock();
        pulls.next += 1;
        pulls.version += 1;
        let (number, version) = (pulls.next, pulls.version);
        if pulls.by_number.len() < PULLS_MAX {
            let pull = Pull {
                shown: PullProgress {
                    pull: number,
                    image: shown_name(&request.image.image).into_owned(),
                    namespace: sandbox.namespace,
                    pod: sandbox.name,
                    phase: if self.is_silent { phase::PULLING } else { phase::RESOLVING }.into(),
                    ..PullProgress::default()
                },
                began: Instant::now(),
                ended: None,
                samples: VecDeque::new(),
                counted: 0,
                retry: None,
                waits: BTreeMap::new(),
                unanswered: BTreeMap::new(),
                version,
                trace: self.tracer.pull(&request.image.image),
            };
            pulls.by_number.insert(number, pull);
        }
        number
    }

    fn step(&self, pull: u64, event: &PullEvent) {
        let (now, mut received) = (Instant::now(), 0);
        self.change(pull, |pull| {
            pull.step(event, now);
            if let Some(trace) = &mut pull.trace {
                trace.step(event);
            }
            received = pull.newly_received();
        });
        if let PullEvent::Waits { wait: Some(wait), .. } = event {
            self.metrics.increment(&WAITS, &[wait.thing.name()]);
        }
        if received > 0 {
            self.metrics.add(&RECEIVED, &[], received as f64);
        }
    }

    fn end(&self, pull: u64, end: PullEnd<'_>) {
        let outcome = match end {
            PullEnd::Pulled => "pulled",
            PullEnd::Failed(_) => "failed",
            PullEnd::Cancelled => "cancelled",
        };
        self.metrics.increment(&PULLS, &[outcome]);
        self.change(pull, |pull| {
            (pull.ended, pull.retry) = (Some(Instant::now()), None);
            pull.waits.clear();
            pull.unanswered.clear();
            if let Some(trace) = pull.trace.take() {
                trace.end(end);
            }
            let (ended, failure) = match end {
                PullEnd::Pulled => (phase::DONE, String::new()),
                PullEnd::Failed(error) => (phase::FAILED, error.chain()),
                PullEnd::Cancelled => (phase::GIVEN_UP, String::new()),
            };
            (pull.shown.phase, pull.shown.failure) = (ended.into(), failure);
        });
        let mut pulls = self.lock();
        if pulls.by_number.contains_key(&pull) {
            pulls.over.push_back(pull);
        }
        if pulls.over.len() > OVER_MAX
            && let Some(oldest) = pulls.over.pop_front()
        {
            pulls.by_number.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::{
        hold::SharedThing,
        image::ImageSpec,
        runtime::{ForwardReason, RemovedImage},
    };

    use super::*;

    const MEGABYTE: u64 = 1_000_000;

    fn request(image: &str) -> PullRequest {
        PullRequest { image: ImageSpec::new(image), ..PullRequest::default() }
    }

    fn layer(text: &str, state: LayerState) -> PullEvent {
        PullEvent::Layer { digest: Digest::of(text.as_bytes()), state }
    }

    fn resolved(layers: &[(&str, u64)]) -> PullEvent {
        let layers = layers.iter().map(|(text, size)| (Digest::of(text.as_bytes()), ByteSize(*size))).collect();
        PullEvent::Resolved { manifest: Digest::of(b"m"), layers }
    }

    #[test]
    fn a_pull_that_waits_for_another_one_says_for_what_and_for_which_until_the_wait_ends() {
        let metrics = Arc::new(Metrics::default());
        let tracker = PullTracker { metrics: Arc::clone(&metrics), ..PullTracker::default() };
        let pull = tracker.begin(&request("app:v1"));
        let holder = Some("r.io/slow:v1".to_owned());
        let wait = |wait| PullEvent::Waits { layer: Digest::of(b"a"), wait };
        tracker.step(pull, &wait(Some(PullWait { thing: SharedThing::Layer, holder })));
        let text = "waits for a layer that the pull of r.io/slow:v1 fetches";
        assert_eq!(tracker.since(0, Instant::now()).1[0].waits, text);
        assert_eq!(tracker.waits().values().collect::<Vec<_>>(), [text]);
        assert!(metrics.render().contains("imagelet_pull_waits_total{thing=\"layer\"} 1"));
        tracker.step(pull, &wait(None));
        assert_eq!(tracker.since(0, Instant::now()).1[0].waits, "");
        assert!(tracker.waits().is_empty());
    }

    #[test]
    fn a_pull_whose_registry_is_slow_to_answer_says_for_which_host_it_waits() {
        let tracker = PullTracker::default();
        let pull = tracker.begin(&request("app:v1"));
        let waits = || tracker.since(0, Instant::now()).1[0].waits.clone();
        let head = |is_awaited| PullEvent::Head { host: "zot.test:5000".into(), is_awaited };
        for (is_awaited, shown) in [
            (true, "waiting for zot.test:5000"),
            (true, "waiting for zot.test:5000"),
            (false, "waiting for zot.test:5000"),
            (false, ""),
        ] {
            tracker.step(pull, &head(is_awaited));
            assert_eq!(waits(), shown, "{is_awaited}");
        }
        tracker.step(pull, &head(true));
        tracker.end(pull, PullEnd::Pulled);
        assert_eq!(tracker.waits().len(), 0);
    }

    #[test]
    fn a_pull_reports_phase_layers_speed_and_what_remains() {
        let (tracker, began) = (PullTracker::default(), Instant::now());
        tracker.begin(&request("app:v1"));
        let step = |second, event| tracker.change(1, |pull| pull.step(&event, began + Duration::from_secs(second)));
        assert_eq!(tracker.since(0, began).1[0].phase, "asking");
        step(0, resolved(&[("a", 10 * MEGABYTE), ("b", 5 * MEGABYTE), ("a", 10 * MEGABYTE)]));
        step(0, layer("b", LayerState::Present));
        for second in 1..=4 {
            step(second, layer("a", LayerState::Fetching { received: ByteSize(second * MEGABYTE) }));
        }
        let progress = tracker.since(0, began + Duration::from_secs(4)).1.remove(0);
        let states: Vec<_> = progress.layers.iter().map(|layer| layer.state.as_str()).collect();
        assert_eq!(states, ["fetching", "present"]);
        assert_eq!((progress.bytes_total, progress.bytes_received), (Some(10 * MEGABYTE), 4 * MEGABYTE));
        assert_eq!((progress.bytes_per_second, progress.remaining_ms), (Some(MEGABYTE), Some(6000)));
        step(5, layer("a", LayerState::Done));
        step(5, PullEvent::Committing);
        assert_eq!(tracker.since(0, Instant::now()).1[0].phase, "committing");
    }

    #[test]
    fn pulls_and_the_bytes_that_they_receive_are_counted() {
        let metrics = Arc::new(Metrics::new());
        let tracker = PullTracker { metrics: Arc::clone(&metrics), ..PullTracker::default() };
        let pull = tracker.begin(&request("app:v1"));
        tracker.step(pull, &resolved(&[("a", 10 * MEGABYTE), ("b", 5 * MEGABYTE), ("c", MEGABYTE)]));
        tracker.step(pull, &layer("c", LayerState::Present));
        for received in [4, 6, 2, 5] {
            tracker.step(pull, &layer("a", LayerState::Fetching { received: ByteSize(received * MEGABYTE) }));
        }
        tracker.step(pull, &layer("b", LayerState::Done));
        tracker.end(pull, PullEnd::Pulled);
        tracker.end(tracker.begin(&request("app:v2")), PullEnd::Cancelled);
        let megabytes = metrics.value(&RECEIVED, &[]) / 1e6;
        assert!((megabytes - 14.0).abs() < 1e-9, "6 of the first try, 3 of the second, 5 of the other: {megabytes}");
        let text = metrics.render();
        assert!(
            text.contains(
                "imagelet_pulls_total{outcome=\"cancelled\"} 1\nimagelet_pulls_total{outcome=\"pulled\"} 1\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_pull_through_a_runtime_has_a_phase_of_its_own() {
        let tracker = PullTracker { is_silent: true, ..PullTracker::default() };
        let seen = tracker.begin(&request("app:v1"));
        let now = Instant::now();
        let progress = tracker.since(0, now + Duration::from_secs(90)).1.remove(0);
        assert_eq!(
            (progress.phase.as_str(), progress.bytes_total, progress.elapsed_ms >= 90_000),
            ("pulling", None, true)
        );
        tracker.end(seen, PullEnd::Cancelled);
        assert_eq!(tracker.since(1, now).1[0].phase, "given-up");
    }

    #[test]
    fn an_import_shows_its_layers_until_it_is_forwarded() {
        let (tracker, now) = (PullTracker { is_silent: true, ..PullTracker::default() }, Instant::now());
        let seen = tracker.begin(&request("app:v1"));
        let progress = || tracker.since(0, now).1.remove(0);
        assert_eq!(progress().phase, "pulling");
        tracker.step(seen, &PullEvent::Route(PullRoute::Imported));
        assert_eq!(progress().phase, "asking");
        tracker.step(seen, &resolved(&[("a", 10 * MEGABYTE)]));
        assert_eq!((progress().phase.as_str(), progress().bytes_total), ("fetching", Some(10 * MEGABYTE)));
        tracker.step(seen, &PullEvent::Route(PullRoute::Forwarded(ForwardReason::SwitchedOff)));
        assert_eq!((progress().phase.as_str(), progress().bytes_total, progress().layers.len()), ("pulling", None, 0));
        tracker.end(seen, PullEnd::Cancelled);
    }

    #[test]
    fn a_password_in_a_name_is_not_reported() {
        let tracker = PullTracker::default();
        tracker.begin(&request("https://user:hunter2@reg.test/app"));
        assert_eq!(tracker.since(0, Instant::now()).1[0].image, "https://[redacted]@reg.test/app");
    }

    #[test]
    fn the_end_of_a_pull_is_reported_once() {
        let tracker = PullTracker::default();
        let seen = tracker.begin(&request("app:v1"));
        let (version, under_way) = tracker.since(0, Instant::now());
        assert_eq!(under_way.len(), 1);
        tracker.end(seen, PullEnd::Failed(&imagelet_core::runtime::RuntimeError::other("no")));
        let (version, news) = tracker.since(version, Instant::now());
        assert_eq!((news.len(), news[0].phase.as_str(), news[0].failure.as_str()), (1, "failed", "no"));
        assert!(tracker.since(version, Instant::now()).1.is_empty());
        assert!(tracker.since(0, Instant::now()).1.is_empty(), "a later reader gets no finished pulls");
    }

    #[test]
    fn a_stream_of_pulls_leaves_no_more_than_the_last_behind() {
        let tracker = PullTracker::default();
        for number in 0..1000 {
            tracker.end(tracker.begin(&request(&format!("app:v{number}"))), PullEnd::Cancelled);
        }
        assert_eq!(tracker.lock().by_number.len(), OVER_MAX);
        let many: Vec<_> = (0..PULLS_MAX + 5).map(|_| tracker.begin(&request("app:v1"))).collect();
        assert!(tracker.lock().by_number.len() <= PULLS_MAX);
        for seen in many {
            tracker.end(seen, PullEnd::Cancelled);
        }
        assert_eq!(tracker.lock().by_number.len(), OVER_MAX);
    }

    #[test]
    fn a_pull_names_what_was_removed_for_it() {
        let tracker = PullTracker::default();
        let pull = tracker.begin(&request("app:v1"));
        let removed = RemovedImage { names: vec!["old:v1".into()], bytes: ByteSize(20 * MEGABYTE) };
        tracker.step(pull, &PullEvent::Removed(removed));
        tracker.step(pull, &resolved(&[("a", MEGABYTE)]));
        tracker.end(pull, PullEnd::Failed(&imagelet_core::runtime::RuntimeError::other("no")));
        let progress = tracker.since(1, Instant::now()).1.remove(0);
        let shown = serde_json::to_value(&progress).expect("JSON");
        assert_eq!(shown["removed"], serde_json::json!([{ "names": ["old:v1"], "bytes": 20 * MEGABYTE }]), "{shown}");
    }

    #[test]
    fn an_image_with_too_many_layers_hides_some() {
        let tracker = PullTracker::default();
        let names: Vec<String> = (0..LAYERS_MAX + 7).map(|number| number.to_string()).collect();
        let layers: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        tracker.step(tracker.begin(&request("app:v1")), &resolved(&layers));
        let progress = tracker.since(0, Instant::now()).1.remove(0);
        assert_eq!((progress.layers.len(), progress.layers_hidden), (LAYERS_MAX, 7));
    }
}
