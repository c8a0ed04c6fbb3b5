//! Carries pulls out: each in its turn, credential after credential.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    circuit::{Circuits, OpenCircuit, Refusal, Route},
    flights::{Asking, Departure, FlightKey, FlightStatus, Flights, Keepsake},
    meters::QueueMeters,
    queue::{Gate, Manner, Newcomer, Place, Queue, Size, Standing},
    request::{Caller, Compatibility, Concurrency, PullSettings, PullState, PullStatus},
    throttle::Throttle,
};
use crate::{
    credentials::TrackedCredential,
    image::{ByteSize, Digest, ImageId, ImageKey, ImageSpec, Platform, Reference},
    runtime::{
        LayerState, Progress, PullEvent, PullRequest, PullWay, RuntimeError, RuntimeErrorKind, RuntimeManager,
        SandboxConfig,
    },
};

/// Most credentials tried for one pull. Each costs the registry a round of requests. The kubelet tries all there are.
const CREDENTIALS_MAX: usize = 64;
/// Most pulls that are estimated at once while they wait. Each costs the registry a manifest.
const ESTIMATES_MAX: usize = 4;

/// What to fetch, and with what.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// With its default tag.
    pub(crate) image: ImageSpec,
    /// In the order in which to try them; none: ask anonymously.
    pub(crate) credentials: Vec<TrackedCredential>,
    pub(crate) sandbox: Option<SandboxConfig>,
    pub(crate) platform: Option<Platform>,
    /// Whose turn it is used for: the pod's namespace.
    pub(crate) tenant: Arc<str>,
    /// The higher goes first.
    pub(crate) priority: i32,
    pub(crate) caller: Caller,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    pub(crate) id: ImageId,
    /// In whose store it is, by what the runtime says.
    pub(crate) handler: String,
    /// Zero when the store does not say.
    pub(crate) size: ByteSize,
    /// Compressed bytes that came over the network; its size where the store does not tell.
    pub(crate) fetched: ByteSize,
    /// Without waiting for its turn.
    pub(crate) took: Duration,
    /// Which of the work's credentials opened the registry.
    pub(crate) credential: Option<usize>,
    /// How it came into a runtime, where the store has a choice.
    pub(crate) way: Option<PullWay>,
}

/// A registry is not asked for now.
#[derive(Clone, Debug)]
pub(crate) struct LeftAlone {
    /// Why, in a sentence.
    pub(crate) message: String,
    /// What it answers those who ask.
    pub(crate) kind: RuntimeErrorKind,
}

pub(crate) type Outcome = Result<Pulled, Arc<RuntimeError>>;

#[derive(Debug)]
pub(crate) struct Puller {
    runtime: RuntimeManager,
    queue: Arc<Queue>,
    /// Asked for a token without waiting. `None`: at any rate, or the queue waits for one.
    throttle: Option<Mutex<Throttle>>,
    /// `None`: nobody's turn depends on a size.
    estimates: Option<Semaphore>,
    flights: Arc<Flights>,
    /// `None`: each pod finds out for itself.
    circuits: Option<Mutex<Circuits>>,
    compatibility: Compatibility,
}

impl Puller {
    pub(crate) fn new(runtime: RuntimeManager, settings: &PullSettings, meters: QueueMeters, now: Instant) -> Self {
        let slots = match settings.concurrency {
            Concurrency::Serial => Some(1),
            Concurrency::Parallel { max } => max.map(std::num::NonZeroUsize::get),
        };
        let is_fifo = settings.compatibility.is_kubelet();
        let throttle = settings.rate.map(|rate| Throttle::new(rate, now));
        // A bucket that never fills is not waited at.
        let refuses = is_fifo || settings.rate.is_some_and(|rate| rate.burst == 0);
        let (refusing, waiting) = if refuses { (throttle, None) } else { (None, throttle) };
        let manner = if is_fifo { Manner::Fifo } else { Manner::Fair };
        Self {
            runtime,
            queue: Arc::new(Queue::new(manner, slots, waiting, meters)),
            throttle: refusing.map(Mutex::new),
            estimates: (!is_fifo).then(|| Semaphore::new(ESTIMATES_MAX)),
            flights: Arc::new(Flights::new(settings.grace)),
            circuits: (!is_fifo).then(|| Mutex::new(Circuits::new(settings.backoff_first))),
            compatibility: settings.compatibility,
        }
    }

    /// Whether the registry may be asked. It is not where it is left alone; who joins a pull asks nothing.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub(crate) fn admit(&self, work: &Work) -> Result<(), LeftAlone> {
        let (Some(circuits), Some(route)) = (&self.circuits, work.route()) else { return Ok(()) };
        if self.flights.has(&self.flights.key(work, self.compatibility)) {
            return Ok(());
        }
        let (mut circuits, now) = (circuits.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        if work.caller == Caller::Command {
            circuits.probe(&route, now);
            return Ok(());
        }
        circuits.admit(&route, now).map_err(|refusal| {
            let Refusal { trouble, failures, remaining, class } = refusal;
            let (registry, seconds) = (&route.registry, remaining.as_secs() + 1);
            let next = if remaining.is_zero() {
                "a probe is under way".to_owned()
            } else {
                format!("next attempt in {seconds} s")
            };
            let message = format!("circuit open for registry `{registry}` after {failures} failures ({class}); {next}");
            LeftAlone { message, kind: trouble.kind() }
        })
    }

    /// The registries that are not asked now.
    pub(crate) fn open_circuits(&self, now: Instant) -> Vec<OpenCircuit> {
        let Some(circuits) = &self.circuits else { return Vec::new() };
        circuits.lock().unwrap_or_else(PoisonError::into_inner).open(now)
    }

    /// What a pull's end, or its manifest, says of the registry.
    fn learn(&self, work: &Work, met: Result<(), &RuntimeError>) {
        let (Some(circuits), Some(route)) = (&self.circuits, work.route()) else { return };
        let mut circuits = circuits.lock().unwrap_or_else(PoisonError::into_inner);
        match met {
            Ok(()) => circuits.answered(&route),
            Err(error) => circuits.failed(&route, &error.fault(), Instant::now()),
        }
    }

    /// Pulls, or joins a pull of the same that is under way.
    pub(crate) fn pull<T: Send + 'static>(
        self: &Arc<Self>,
        work: &Work,
        keepsake: Keepsake<T>,
    ) -> Result<Asking<T>, Arc<RuntimeError>> {
        let key = self.flights.key(work, self.compatibility);
        let gate = work.gate();
        let begin = |departure: Departure| {
            let size = if self.estimates.is_some() { Size::Asked } else { Size::Unknown };
            let newcomer = Newcomer { tenant: Arc::clone(&work.tenant), priority: work.priority, size, gate };
            let place = self
                .queue
                .enter(newcomer)
                .map_err(|full| Arc::new(RuntimeError::other("there is no room to wait for a pull").caused_by(full)))?;
            let ticket = place.ticket();
            let (puller, key, work) = (Arc::clone(self), key.clone(), work.clone());
            let future = async move {
                let outcome = puller.carry_out(&key, &departure, &place, &work).await;
                puller.learn(&work, outcome.as_ref().map(drop).map_err(AsRef::as_ref));
                puller.flights.forget(&key, departure.number);
                outcome
            };
            Ok((future.boxed().shared(), ticket))
        };
        let raise = |ticket, priority, gate| self.queue.raise(ticket, priority, gate);
        self.flights.join(key.clone(), (work.priority, gate), keepsake, raise, begin)
    }

    /// The pulls under way: those that have been where they are for longest first.
    pub(crate) fn status(&self) -> Vec<PullStatus> {
        let standings = self.queue.standings();
        let told = |flight: FlightStatus| {
            let (state, position) = match standings.get(&flight.ticket)? {
                Standing::Running => (PullState::Running, None),
                Standing::Waiting { position, for_rate: true } => (PullState::WaitingForRate, Some(*position)),
                Standing::Waiting { position, for_rate: false } => (PullState::WaitingForSlot, Some(*position)),
            };
            Some(PullStatus {
                image: flight.image,
                state,
                since: flight.since,
                askers: flight.askers,
                position,
                priority: flight.priority,
            })
        };
        self.flights.status().into_iter().filter_map(told).collect()
    }

    async fn carry_out(
        self: &Arc<Self>,
        key: &FlightKey,
        departure: &Departure,
        place: &Arc<Place>,
        work: &Work,
    ) -> Outcome {
        self.wait(place, work).await;
        self.flights.take_off(key, departure.number);
        let began = Instant::now();
        if let Some(throttle) = &self.throttle
            && !place.is_free()
            && !throttle.lock().unwrap_or_else(PoisonError::into_inner).try_take(began)
        {
            let error = RuntimeError::other("pull QPS exceeded");
            return Err(Arc::new(error.with_hint("raise `registryPullQPS` or `registryBurst`, or set the first to 0")));
        }
        let progress = self.heard(work, weighed(departure.progress.sink(), place));
        let (id, credential) = self.try_credentials(work, &progress).await?;
        let (size, handler) = self.as_listed(&work.image).await;
        let fetched = departure.progress.fetched().unwrap_or(size);
        let way = departure.progress.way();
        Ok(Pulled { id, handler, size, fetched, took: began.elapsed(), credential, way })
    }

    /// Notes that the registry answered as soon as the manifest is here, and passes everything on.
    fn heard(self: &Arc<Self>, work: &Work, progress: Progress) -> Progress {
        let (puller, work) = (Arc::downgrade(self), work.clone());
        Arc::new(move |event| {
            if matches!(event, PullEvent::Resolved { .. })
                && let Some(puller) = puller.upgrade()
            {
                puller.learn(&work, Ok(()));
            }
            progress(event);
        })
    }

    /// Waits for the turn, and meanwhile finds out how much there is to fetch.
    async fn wait(&self, place: &Place, work: &Work) {
        let turn = place.turn();
        if place.has_turn() {
            return;
        }
        let estimate = async {
            place.resize(self.estimate(work).await.map_or(Size::Unknown, Size::Known));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = turn => {}
            () = estimate => {}
        }
    }

    /// What there is to fetch, as far as the store can tell and one of the first credentials is let in.
    async fn estimate(&self, work: &Work) -> Option<ByteSize> {
        /// Credentials that are tried for a guess.
        const TRIED_MAX: usize = 2;
        let _permit = self.estimates.as_ref()?.acquire().await.ok()?;
        let mut request = work.request();
        let credentials = work.credentials.iter().map(|tracked| Some(tracked.credential.clone()));
        let anonymous = work.credentials.is_empty().then_some(None);
        for credential in credentials.chain(anonymous).take(TRIED_MAX) {
            request.credential = credential;
            match self.runtime.estimate(&request).await {
                Ok(estimate) => return estimate.map(|estimate| estimate.bytes_missing),
                Err(error) => {
                    let error = error.chain();
                    tracing::debug!(image = work.image.image, error, "the size of a waiting pull is not known");
                }
            }
        }
        None
    }

    async fn try_credentials(
        &self,
        work: &Work,
        progress: &Progress,
    ) -> Result<(ImageId, Option<usize>), Arc<RuntimeError>> {
        let mut request = work.request();
        let images = &self.runtime;
        if work.credentials.is_empty() {
            return Ok((images.pull(&request, Arc::clone(progress)).await?, None));
        }
        let mut failures = Vec::new();
        let tried_max = if self.compatibility.is_kubelet() { usize::MAX } else { CREDENTIALS_MAX };
        for (index, tracked) in work.credentials.iter().enumerate().take(tried_max) {
            request.credential = Some(tracked.credential.clone());
            match images.pull(&request, Arc::clone(progress)).await {
                Ok(id) => return Ok((id, Some(index))),
                Err(error) => {
                    let is_final = !self.compatibility.is_kubelet() && no_credential_helps(error.kind());
                    failures.push(error);
                    if is_final {
                        break;
                    }
                }
            }
        }
        Err(Arc::new(join_failures(failures)))
    }

    /// Size and handler as listed right after the pull; an error here is none of the pull's.
    async fn as_listed(&self, image: &ImageSpec) -> (ByteSize, String) {
        match self.runtime.status(image).await {
            Ok(Some(found)) => (found.size, found.spec.runtime_handler),
            Ok(None) => (ByteSize::ZERO, image.runtime_handler.clone()),
            Err(error) => {
                tracing::debug!(image = image.image, error = error.chain(), "the size of a pulled image is not known");
                (ByteSize::ZERO, image.runtime_handler.clone())
            }
        }
    }
}

impl Pulled {
    /// What the inventory knows it by.
    pub(crate) fn key(&self) -> ImageKey {
        ImageKey::new(self.id.clone(), self.handler.clone())
    }
}

impl Work {
    /// Who asks which registry for what. `None`: the name names none.
    fn route(&self) -> Option<Route> {
        let registry = self.image.image.parse::<Reference>().ok()?.domain().to_owned();
        let credentials = self.credentials.iter().map(|tracked| tracked.hash.clone()).collect();
        (!registry.is_empty()).then(|| Route { registry, credentials, image: self.image.image.clone() })
    }

    /// Who asks in the name of somebody that has limits of its own is limited once.
    fn gate(&self) -> Gate {
        match self.caller {
            Caller::Client { is_limited: false, .. } => Gate::Free,
            Caller::Client { is_limited: true, .. } | Caller::Pod | Caller::Command => Gate::Limited,
        }
    }

    fn request(&self) -> PullRequest {
        PullRequest {
            image: self.image.clone(),
            credential: None,
            sandbox: self.sandbox.clone(),
            platform: self.platform.clone(),
        }
    }
}

/// Tells the queue how much a pull fetches once its manifest is known, and passes everything on.
fn weighed(progress: Progress, place: &Arc<Place>) -> Progress {
    let place = Arc::downgrade(place);
    let layers: Mutex<Vec<(Digest, ByteSize)>> = Mutex::default();
    Arc::new(move |event| {
        let missing = {
            let mut layers = layers.lock().unwrap_or_else(PoisonError::into_inner);
            match &event {
                PullEvent::Resolved { layers: all, .. } => {
                    layers.clone_from(all);
                    Some(layers.iter().map(|(_, size)| *size).sum())
                }
                PullEvent::Layer { digest, state: LayerState::Present } => {
                    layers.retain(|(other, _)| other != digest);
                    Some(layers.iter().map(|(_, size)| *size).sum())
                }
                _ => None,
            }
        };
        if let (Some(missing), Some(place)) = (missing, place.upgrade()) {
            place.resize(Size::Known(missing));
        }
        if event == PullEvent::Trickles
            && let Some(place) = place.upgrade()
        {
            place.set_aside();
        }
        progress(event);
    })
}

/// Whether a failure has nothing to do with who asks.
fn no_credential_helps(kind: RuntimeErrorKind) -> bool {
    matches!(
        kind,
        RuntimeErrorKind::InvalidArgument
            | RuntimeErrorKind::RegistryUnavailable
            | RuntimeErrorKind::Corrupt
            | RuntimeErrorKind::DiskFull
            | RuntimeErrorKind::Unavailable
            | RuntimeErrorKind::TimedOut
            | RuntimeErrorKind::Cancelled
    )
}

/// One error of all: the only one, or a list in brackets, each text once.
pub(super) fn join_failures(mut failures: Vec<RuntimeError>) -> RuntimeError {
    let mut texts: Vec<String> = Vec::new();
    for failure in &failures {
        let text = failure.chain();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    let hint = failures.iter().find_map(|failure| failure.hint().map(str::to_owned));
    let is_outage = failures.iter().all(RuntimeError::is_outage);
    let last = failures.pop().expect("each credential that did not work left an error");
    if texts.len() == 1 {
        return last;
    }
    let joined = RuntimeError::new(last.kind(), format!("[{}]", texts.join(", ")));
    // Where one credential was refused, the registry was there.
    let joined = if is_outage { joined } else { joined.not_an_outage() };
    match hint {
        Some(hint) => joined.with_hint(hint),
        None => joined,
    }
}
