//! The progress of a pull: the events that a store reports, and the value that all displays of a pull read.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{PullRoute, RemovedImage};
use crate::error::RuntimeError;
use crate::{
    audit_log::PullHost,
    hold::PullWait,
    image::{ByteSize, Digest},
};

/// The maximum number of layers. The embedded store accepts no image with more layers.
const LAYERS_MAX: usize = 1000;
/// The maximum number of removed images, warnings, waiting hosts and token requests of one pull.
const NOTES_MAX: usize = 64;
const SPEED_OVER: Duration = Duration::from_secs(5);
/// The minimum time between two samples for the speed.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// Receives the events of a pull from its store. Must not block.
pub type Progress = Arc<dyn Fn(PullEvent) + Send + Sync>;

pub fn no_progress() -> Progress {
    Arc::new(|_| {})
}

/// Receives the progress of a pull for one client after each change, or after several fast changes. Must not block.
pub type PullWatcher = Arc<dyn Fn(&PullProgress) + Send + Sync>;

pub fn unwatched() -> PullWatcher {
    Arc::new(|_| {})
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullEvent {
    /// The route into a runtime, if there is a choice. A failed import is followed by a second event, for the forward.
    Route(PullRoute),
    Resolved {
        /// The manifest chosen for the platform.
        manifest: Digest,
        /// Digest and compressed size of each layer, in manifest order.
        layers: Vec<(Digest, ByteSize)>,
    },
    Layer {
        digest: Digest,
        state: LayerState,
    },
    /// All layers are present; the store syncs and names the image.
    Committing,
    Removed(RemovedImage),
    /// The data that each host of the registry sent in an attempt. Reported at the end of each attempt.
    Hosts(Vec<PullHost>),
    /// A failed request of the pull is sent again later. Other requests of the pull may continue.
    Retry(NextRequest),
    /// A layer waits for a resource that another pull has. `None`: the layer no longer waits.
    Waits {
        layer: Digest,
        wait: Option<PullWait>,
    },
    /// The partial layer that an earlier pull left is hashed again. Those bytes are not fetched again.
    Recheck {
        layer: Digest,
        is_over: bool,
    },
    /// A problem that does not stop the pull, for example a key without effect.
    Warning {
        text: String,
    },
    /// The wait for the answer of a host begins or ends. A wait is reported only after some time.
    Head {
        host: String,
        /// `true`: the host has not begun its answer. `false`: the wait for the answer is over.
        is_awaited: bool,
    },
    Token(TokenExchange),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// The layer was present before the pull. Nothing is fetched.
    Present,
    Fetching {
        /// Compressed bytes.
        received: ByteSize,
    },
    /// The layer was fetched, verified and unpacked.
    Done,
}

#[derive(Clone, Debug, Default)]
pub struct PullProgress {
    pub times: PullTimes,
    pub route: Option<PullRoute>,
    /// The layers in the order of the manifest, each blob once.
    pub layers: Vec<PulledLayerProgress>,
    pub traffic: PullTraffic,
    pub waits: PullWaits,
    /// The images removed for the pull, also those of an earlier attempt.
    pub removed: Vec<RemovedImage>,
    pub warnings: Vec<String>,
    pub tokens: Vec<TokenExchange>,
}

#[derive(Clone, Debug, Default)]
pub struct PullTimes {
    /// The start of the pull. `None`: the pull waits in the queue.
    pub began: Option<Instant>,
    /// When the manifest was known, and its digest. A new attempt or a forward resets the manifest and the layers.
    pub resolved: Option<(Instant, Digest)>,
    pub committing: Option<Instant>,
    pub end: Option<(Instant, PullEnd)>,
}

#[derive(Clone, Debug, Default)]
pub struct PullTraffic {
    /// Compressed bytes received over the network. A layer that is fetched again is counted again.
    pub received: u64,
    /// The data that each host has sent, over all attempts.
    pub hosts: Vec<PullHost>,
    /// The data that each host has sent in the last attempt.
    pub attempt_hosts: Vec<PullHost>,
    /// The received bytes at some times in the last seconds, for the speed.
    samples: VecDeque<(Instant, u64)>,
}

#[derive(Clone, Debug, Default)]
pub struct PullWaits {
    pub retry: Option<NextRequest>,
    /// Hosts that have not begun their answer, with the number of requests.
    pub unanswered: BTreeMap<String, usize>,
    layers: BTreeMap<Digest, PullWait>,
    /// Layers whose content from an earlier pull is hashed again.
    rechecked: BTreeSet<Digest>,
}

#[derive(Clone, Debug)]
pub enum PullEnd {
    Pulled,
    Failed(Arc<RuntimeError>),
    /// The last client of the pull is gone.
    Cancelled,
}

#[derive(Clone, Debug)]
pub struct PulledLayerProgress {
    pub digest: Digest,
    /// Compressed bytes.
    pub size: ByteSize,
    /// `None`: the fetch of the layer has not begun.
    pub state: Option<LayerState>,
    pub began: Option<Instant>,
    pub ended: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextRequest {
    pub host: String,
    pub at: Instant,
    /// `true`: the host requested the wait. `false`: the host failed.
    pub is_requested: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenExchange {
    pub service: String,
    pub began: Instant,
    pub ended: Instant,
    pub is_granted: bool,
}

impl PulledLayerProgress {
    /// The received bytes. Zero for a layer that was present.
    pub fn received(&self) -> u64 {
        match self.state {
            None | Some(LayerState::Present) => 0,
            Some(LayerState::Fetching { received }) => received.min(self.size).0,
            Some(LayerState::Done) => self.size.0,
        }
    }
}

impl PullProgress {
    pub fn apply(&mut self, event: PullEvent, now: Instant) {
        match event {
            PullEvent::Route(route) => {
                // The reports of an import are not valid for the runtime's own pull.
                self.restart();
                self.route = Some(route);
            }
            PullEvent::Resolved { manifest, layers } => {
                self.restart();
                self.times.resolved = Some((now, manifest));
                for (digest, size) in layers.into_iter().take(LAYERS_MAX) {
                    if self.layers.iter().all(|layer| layer.digest != digest) {
                        self.layers.push(PulledLayerProgress { digest, size, state: None, began: None, ended: None });
                    }
                }
                self.sample(now);
            }
            PullEvent::Layer { digest, state } => {
                let mut layers = self.layers.iter_mut();
                // A present layer is reported again when it is in place. That report is ignored.
                let layer = layers.find(|layer| layer.digest == digest && layer.state != Some(LayerState::Present));
                if let Some(layer) = layer {
                    let before = layer.received();
                    layer.state = Some(state);
                    match state {
                        LayerState::Present => {}
                        LayerState::Fetching { .. } => layer.began = layer.began.or(Some(now)),
                        LayerState::Done => layer.ended = Some(now),
                    }
                    self.traffic.received += layer.received().saturating_sub(before);
                }
                self.sample(now);
            }
            PullEvent::Committing => (self.times.committing, self.waits.retry) = (Some(now), None),
            PullEvent::Retry(next) => self.waits.retry = Some(next),
            PullEvent::Removed(image) => push(&mut self.removed, image),
            PullEvent::Hosts(hosts) => {
                PullHost::add_all(&mut self.traffic.hosts, &hosts);
                self.traffic.attempt_hosts = hosts;
            }
            PullEvent::Waits { layer, wait: Some(wait) } => drop(self.waits.layers.insert(layer, wait)),
            PullEvent::Waits { layer, wait: None } => drop(self.waits.layers.remove(&layer)),
            PullEvent::Recheck { layer, is_over: false } => drop(self.waits.rechecked.insert(layer)),
            PullEvent::Recheck { layer, is_over: true } => drop(self.waits.rechecked.remove(&layer)),
            // Each attempt repeats the warnings.
            PullEvent::Warning { text } if self.warnings.contains(&text) => {}
            PullEvent::Warning { text } => push(&mut self.warnings, text),
            PullEvent::Head { host, is_awaited: true } if self.waits.unanswered.len() < NOTES_MAX => {
                *self.waits.unanswered.entry(host).or_default() += 1;
            }
            PullEvent::Head { is_awaited: true, .. } => {}
            PullEvent::Head { host, is_awaited: false } => {
                if let Some(count) = self.waits.unanswered.get_mut(&host) {
                    *count = count.saturating_sub(1);
                }
                self.waits.unanswered.retain(|_, count| *count > 0);
            }
            PullEvent::Token(token) => push(&mut self.tokens, token),
        }
    }

    pub fn finish(&mut self, end: PullEnd, now: Instant) {
        (self.times.end, self.waits.retry) = (Some((now, end)), None);
        self.waits.layers.clear();
        self.waits.rechecked.clear();
        self.waits.unanswered.clear();
    }

    fn restart(&mut self) {
        self.layers.clear();
        self.traffic.samples.clear();
        (self.times.resolved, self.times.committing, self.waits.retry) = (None, None, None);
    }

    /// The received bytes of the missing layers, and their total size.
    pub fn bytes(&self) -> (u64, u64) {
        let missing = self.layers.iter().filter(|layer| layer.state != Some(LayerState::Present));
        missing.fold((0, 0), |(received, all), layer| {
            (received + layer.received(), u64::saturating_add(all, layer.size.0))
        })
    }

    /// What the pull waits for: a resource of another pull, else the check of an earlier pull's content, else a host.
    /// `names_holder`: whether the text names the image of the other pull, which a pod's tenant may not read.
    pub fn awaited(&self, names_holder: bool) -> Option<String> {
        let host = || self.waits.unanswered.keys().next().map(|host| format!("waiting for {host}"));
        let wait = self.waits.layers.values().next().map(|PullWait { thing, holder }| {
            PullWait { thing: *thing, holder: holder.clone().filter(|_| names_holder) }.to_string()
        });
        let recheck = || (!self.waits.rechecked.is_empty()).then(|| "checks what an earlier pull left".to_owned());
        wait.or_else(recheck).or_else(host)
    }

    fn sample(&mut self, now: Instant) {
        if self.traffic.samples.back().is_some_and(|(at, _)| now < *at + SAMPLE_EVERY) {
            return;
        }
        self.traffic.samples.push_back((now, self.bytes().0));
        while self.traffic.samples.len() > 2
            && self.traffic.samples.front().is_some_and(|(at, _)| *at + SPEED_OVER < now)
        {
            self.traffic.samples.pop_front();
        }
    }

    /// Bytes per second. `None`: no layer is being fetched, or the samples are too few.
    pub fn speed(&self, now: Instant) -> Option<u64> {
        let (since, before) = *self.traffic.samples.front()?;
        let (received, all) = self.bytes();
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        if self.times.committing.or(self.times.end.as_ref().map(|end| end.0)).is_some()
            || all == 0
            || seconds < SAMPLE_EVERY.as_secs_f64()
        {
            return None;
        }
        // A layer that is fetched again may have fewer bytes than in the sample.
        let speed = received.saturating_sub(before) as f64 / seconds;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of bytes, not below zero")]
        let speed = speed as u64;
        Some(speed)
    }
}

fn push<T>(list: &mut Vec<T>, one: T) {
    if list.len() < NOTES_MAX {
        list.push(one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hold::SharedThing, ports::ForwardReason};

    const MEGABYTE: u64 = 1_000_000;

    fn layer(text: &str, state: LayerState) -> PullEvent {
        PullEvent::Layer { digest: Digest::of(text.as_bytes()), state }
    }

    fn fetching(text: &str, megabytes: u64) -> PullEvent {
        layer(text, LayerState::Fetching { received: ByteSize(megabytes * MEGABYTE) })
    }

    fn resolved(layers: &[(&str, u64)]) -> PullEvent {
        let layers = layers.iter().map(|(text, size)| (Digest::of(text.as_bytes()), ByteSize(*size * MEGABYTE)));
        PullEvent::Resolved { manifest: Digest::of(b"m"), layers: layers.collect() }
    }

    fn after(events: impl IntoIterator<Item = PullEvent>) -> PullProgress {
        let mut progress = PullProgress::default();
        events.into_iter().for_each(|event| progress.apply(event, Instant::now()));
        progress
    }

    #[test]
    fn a_pull_says_for_what_and_for_which_pull_it_waits_until_the_wait_ends() {
        let holder = Some("r.io/slow:v1".to_owned());
        let wait = |wait| PullEvent::Waits { layer: Digest::of(b"a"), wait };
        let begun = wait(Some(PullWait { thing: SharedThing::Layer, holder }));
        let text = "waits for a layer that the pull of r.io/slow:v1 fetches";
        assert_eq!(after([begun.clone()]).awaited(true).as_deref(), Some(text));
        assert_eq!(after([begun, wait(None)]).awaited(true), None);
    }

    #[test]
    fn a_pull_says_that_it_checks_what_an_earlier_one_left() {
        let recheck = |is_over| PullEvent::Recheck { layer: Digest::of(b"a"), is_over };
        let head = PullEvent::Head { host: "zot.test:5000".into(), is_awaited: true };
        let begun = after([head.clone(), recheck(false)]);
        assert_eq!(begun.awaited(false).as_deref(), Some("checks what an earlier pull left"));
        assert_eq!(
            after([recheck(false), head, recheck(true)]).awaited(false).as_deref(),
            Some("waiting for zot.test:5000")
        );
    }

    #[test]
    fn a_pull_waits_for_a_host_until_each_of_its_requests_is_answered() {
        let head = |is_awaited| PullEvent::Head { host: "zot.test:5000".into(), is_awaited };
        let mut progress = PullProgress::default();
        for (is_awaited, shown) in [(true, true), (true, true), (false, true), (false, false), (true, true)] {
            progress.apply(head(is_awaited), Instant::now());
            assert_eq!(progress.awaited(false), shown.then(|| "waiting for zot.test:5000".to_owned()), "{is_awaited}");
        }
        progress.finish(PullEnd::Pulled, Instant::now());
        assert_eq!(progress.awaited(true), None);
    }

    #[test]
    fn present_layers_are_not_fetched_and_equal_ones_once_and_the_speed_is_that_of_the_last_seconds() {
        let (mut progress, began) = (PullProgress::default(), Instant::now());
        let at = |second| began + Duration::from_secs(second);
        progress.apply(resolved(&[("a", 10), ("b", 5), ("a", 10)]), began);
        progress.apply(layer("b", LayerState::Present), began);
        assert_eq!(progress.speed(began), None);
        for second in 1..=4 {
            progress.apply(fetching("a", second), at(second));
        }
        assert_eq!((progress.layers.len(), progress.bytes()), (2, (4 * MEGABYTE, 10 * MEGABYTE)));
        assert_eq!(progress.speed(at(4)), Some(MEGABYTE));
        progress.apply(layer("a", LayerState::Done), at(5));
        progress.apply(layer("b", LayerState::Done), at(5));
        assert_eq!(progress.bytes(), (10 * MEGABYTE, 10 * MEGABYTE), "what is in place was present before");
        progress.apply(PullEvent::Committing, at(5));
        assert_eq!(progress.speed(at(6)), None);
    }

    #[test]
    fn the_bytes_of_each_attempt_of_a_layer_are_received() {
        let mut events = vec![resolved(&[("a", 10), ("b", 5), ("c", 1)]), layer("c", LayerState::Present)];
        events.extend([4, 6, 2, 5].map(|received| fetching("a", received)));
        events.push(layer("b", LayerState::Done));
        assert_eq!(
            after(events).traffic.received,
            14 * MEGABYTE,
            "6 of the first try, 3 of the second, 5 of the other"
        );
        let again = [resolved(&[("a", 10)]), fetching("a", 3), resolved(&[("a", 10)]), fetching("a", 2)];
        assert_eq!(after(again).traffic.received, 5 * MEGABYTE, "the next credential starts again");
    }

    #[test]
    fn a_forward_has_none_of_the_layers_of_its_import() {
        let import = [PullEvent::Route(PullRoute::Imported), resolved(&[("a", 10)]), fetching("a", 3)];
        let mut progress = after(import);
        assert_eq!(progress.layers.len(), 1);
        progress.apply(PullEvent::Route(PullRoute::Forwarded(ForwardReason::SwitchedOff)), Instant::now());
        assert!(progress.layers.is_empty() && progress.times.resolved.is_none());
    }

    #[test]
    fn all_lists_are_bounded() {
        let removed = |number: usize| {
            PullEvent::Removed(RemovedImage { names: vec![format!("old:v{number}")], bytes: ByteSize(1) })
        };
        let warning = |number: usize| PullEvent::Warning { text: format!("key {number} has no effect") };
        let events = (0..1000).flat_map(|number| [removed(number), warning(number), warning(number)]);
        let progress = after(events);
        assert_eq!((progress.removed.len(), progress.warnings.len()), (NOTES_MAX, NOTES_MAX));
        let head = |number: usize| PullEvent::Head { host: number.to_string(), is_awaited: true };
        let heads = after((0..NOTES_MAX).chain(0..NOTES_MAX).map(head));
        assert_eq!(heads.waits.unanswered.len(), NOTES_MAX, "one more is not taken for the end of one");
        let names: Vec<String> = (0..LAYERS_MAX + 7).map(|number| number.to_string()).collect();
        let layers: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        assert_eq!(after([resolved(&layers)]).layers.len(), LAYERS_MAX);
    }
}
