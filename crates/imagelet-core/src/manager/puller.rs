//! Carries pulls out: one for all who ask the same, each in its turn, credential after credential.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use super::{
    progress::Broadcast,
    request::{Compatibility, Concurrency, PullSettings, PullState, PullStatus},
    throttle::Throttle,
};
use crate::{
    credentials::TrackedCredential,
    image::{ByteSize, ImageId, ImageSpec, Platform},
    runtime::{Progress, PullRequest, RuntimeError, RuntimeErrorKind, RuntimeManager, SandboxConfig},
};

/// Most credentials tried for one pull. Each costs the registry a round of requests. The kubelet tries all there are.
const CREDENTIALS_MAX: usize = 64;

/// What to fetch, and with what.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// With its default tag.
    pub(crate) image: ImageSpec,
    /// In the order in which to try them; none: ask anonymously.
    pub(crate) credentials: Vec<TrackedCredential>,
    pub(crate) sandbox: Option<SandboxConfig>,
    pub(crate) platform: Option<Platform>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    pub(crate) id: ImageId,
    /// Zero when the store does not say.
    pub(crate) size: ByteSize,
    /// Without waiting for its turn.
    pub(crate) took: Duration,
    /// Which of the work's credentials opened the registry.
    pub(crate) credential: Option<usize>,
}

type Outcome = Result<Pulled, Arc<RuntimeError>>;
type Flight = BoxFuture<'static, Outcome>;

/// Two pulls with the same key differ in nothing the registry or the store could tell, so one is enough.
///
/// The credentials are in it: nobody ever shares a pull that somebody else's right made possible.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FlightKey {
    image: ImageSpec,
    platform: Option<Platform>,
    credentials: Vec<String>,
    /// Set where each asker has its own pull, as with the kubelet.
    alone: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Puller {
    runtime: RuntimeManager,
    /// `None`: any number at once.
    slots: Option<Semaphore>,
    /// `None`: at any rate.
    throttle: Option<Mutex<Throttle>>,
    flights: Mutex<Flights>,
    compatibility: Compatibility,
}

#[derive(Default)]
struct Flights {
    by_key: HashMap<FlightKey, InFlight>,
    next: u64,
}

struct InFlight {
    /// Tells this flight from a later one under the same key.
    number: u64,
    /// The askers own the flight; with the last of them it ends.
    future: WeakShared<Flight>,
    progress: Broadcast,
    state: PullState,
    since: Instant,
}

impl Puller {
    pub(crate) fn new(runtime: RuntimeManager, settings: &PullSettings, now: Instant) -> Self {
        let slots = match settings.concurrency {
            Concurrency::Serial => Some(Semaphore::new(1)),
            Concurrency::Parallel { max } => max.map(|max| Semaphore::new(max.get().min(Semaphore::MAX_PERMITS))),
        };
        let throttle = settings.rate.map(|rate| Mutex::new(Throttle::new(rate, now)));
        Self { runtime, slots, throttle, flights: Mutex::default(), compatibility: settings.compatibility }
    }

    /// Pulls, or joins a pull of the same that is under way. Dropped, it leaves the pull to the others who wait for it;
    /// the last to leave ends it.
    pub(crate) async fn pull(self: &Arc<Self>, work: Work, progress: Progress) -> Outcome {
        let key = FlightKey {
            image: work.image.clone(),
            platform: work.platform.clone(),
            credentials: work.credentials.iter().map(|tracked| tracked.hash.clone()).collect(),
            alone: self.compatibility.is_kubelet().then(|| self.flights().number()),
        };
        let (flight, broadcast, number) = self.join(&key, work);
        // A dropped call drops what it awaits first, so that this guard sees whether it was the last.
        let _leaving = Leaving { puller: self, key, number };
        let _listening = broadcast.listen(&progress);
        flight.await
    }

    /// The pulls under way, oldest first.
    pub(crate) fn status(&self) -> Vec<PullStatus> {
        let flights = self.flights();
        let mut pulls: Vec<PullStatus> = flights
            .by_key
            .iter()
            .map(|(key, flight)| PullStatus {
                image: key.image.image.clone(),
                state: flight.state,
                since: flight.since,
                askers: flight.progress.listeners(),
            })
            .collect();
        pulls.sort_by(|a, b| (a.since, &a.image).cmp(&(b.since, &b.image)));
        pulls
    }

    fn join(self: &Arc<Self>, key: &FlightKey, work: Work) -> (Shared<Flight>, Broadcast, u64) {
        let mut flights = self.flights();
        if let Some(flight) = flights.by_key.get(key)
            && let Some(future) = flight.future.upgrade()
        {
            return (future, flight.progress.clone(), flight.number);
        }
        let number = flights.number();
        let progress = Broadcast::default();
        let puller = Arc::clone(self);
        let (key_of_flight, sink) = (key.clone(), progress.sink());
        let future: Shared<Flight> = async move {
            let outcome = puller.carry_out(&key_of_flight, number, &work, &sink).await;
            // What is over is not joined: the next asker wants to know how things are then.
            puller.forget(&key_of_flight, number);
            outcome
        }
        .boxed()
        .shared();
        let weak = future.downgrade().expect("a future that was not polled is not done");
        let flight = InFlight {
            number,
            future: weak,
            progress: progress.clone(),
            state: PullState::Waiting,
            since: Instant::now(),
        };
        flights.by_key.insert(key.clone(), flight);
        (future, progress, number)
    }

    async fn carry_out(&self, key: &FlightKey, number: u64, work: &Work, progress: &Progress) -> Outcome {
        let _slot = self.slot().await;
        self.take_off(key, number);
        let began = Instant::now();
        if let Some(throttle) = &self.throttle
            && !throttle.lock().unwrap_or_else(PoisonError::into_inner).try_take(began)
        {
            let error = RuntimeError::other("pull QPS exceeded");
            return Err(Arc::new(error.with_hint("raise `registryPullQPS` or `registryBurst`, or set the first to 0")));
        }
        let (id, credential) = self.try_credentials(work, progress).await?;
        let size = self.size_of(&work.image).await;
        Ok(Pulled { id, size, took: began.elapsed(), credential })
    }

    async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        match &self.slots {
            Some(slots) => Some(slots.acquire().await.expect("the semaphore is never closed")),
            None => None,
        }
    }

    async fn try_credentials(
        &self,
        work: &Work,
        progress: &Progress,
    ) -> Result<(ImageId, Option<usize>), Arc<RuntimeError>> {
        let mut request = PullRequest {
            image: work.image.clone(),
            credential: None,
            sandbox: work.sandbox.clone(),
            platform: work.platform.clone(),
        };
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

    /// As listed right after the pull; an error here is none of the pull's.
    async fn size_of(&self, image: &ImageSpec) -> ByteSize {
        match self.runtime.status(image).await {
            Ok(found) => found.map_or(ByteSize::ZERO, |found| found.size),
            Err(error) => {
                tracing::debug!(image = image.image, error = error.chain(), "the size of a pulled image is not known");
                ByteSize::ZERO
            }
        }
    }

    fn take_off(&self, key: &FlightKey, number: u64) {
        if let Some(flight) = self.flights().by_key.get_mut(key)
            && flight.number == number
        {
            flight.state = PullState::Running;
            flight.since = Instant::now();
        }
    }

    fn forget(&self, key: &FlightKey, number: u64) {
        let mut flights = self.flights();
        if flights.by_key.get(key).is_some_and(|flight| flight.number == number) {
            flights.by_key.remove(key);
        }
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flights {
    /// One that no flight had.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Takes a flight off the board when its last asker left before it was over.
struct Leaving<'a> {
    puller: &'a Puller,
    key: FlightKey,
    number: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut flights = self.puller.flights();
        let is_abandoned = flights
            .by_key
            .get(&self.key)
            .is_some_and(|flight| flight.number == self.number && flight.future.upgrade().is_none());
        if is_abandoned {
            flights.by_key.remove(&self.key);
        }
    }
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
            | RuntimeErrorKind::Cancelled
    )
}

/// One error of all: the only one, or a list in brackets, each text once.
fn join_failures(mut failures: Vec<RuntimeError>) -> RuntimeError {
    let mut texts: Vec<String> = Vec::new();
    for failure in &failures {
        let text = failure.chain();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    let hint = failures.iter().find_map(|failure| failure.hint().map(str::to_owned));
    let last = failures.pop().expect("each credential that did not work left an error");
    if texts.len() == 1 {
        return last;
    }
    let joined = RuntimeError::new(last.kind(), format!("[{}]", texts.join(", ")));
    match hint {
        Some(hint) => joined.with_hint(hint),
        None => joined,
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").field("under_way", &self.by_key.len()).finish_non_exhaustive()
    }
}
