//! Carries pulls out: each in its turn, credential after credential.

pub(super) mod circuit_breaker;
mod progress;
mod scheduler;
mod single_flight;
pub(super) mod throttle;
mod work;

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::FutureExt as _;
use tokio::{sync::Semaphore, time::Instant};

pub(super) use self::work::{Pulled, Work};
use self::{
    circuit_breaker::{Circuits, OpenCircuit},
    progress::Broadcast,
    scheduler::{Place, Policy, Request, Scheduler},
    single_flight::{SingleFlight, Subscription},
    throttle::Throttle,
    work::Outcome,
};
use super::{ManagerParts, request::Caller, status::PullStatus};
use crate::{
    audit_log::PullHost,
    credentials::PullCredentials,
    events::{Event, EventCause, EventKind, EventSink, EventSubject},
    image::{ByteSize, ImageId, ImageKey, ImageSpec},
    node_policy::NodePolicy,
    runtime::{ErrorClass, Party, Progress, PullEvent, PullRequest, RuntimeError, RuntimeErrorKind, RuntimeManager},
};

/// Most credentials tried for one pull. Each costs the registry a round of requests. The kubelet tries all there are.
const CREDENTIALS_MAX: usize = 64;
/// Most pulls that are estimated at once while they wait. Each costs the registry a manifest.
const ESTIMATES_MAX: usize = 4;

pub(crate) struct Puller {
    runtime: RuntimeManager,
    pulls: Arc<SingleFlight>,
    /// Refuses what is beyond the rate. `None`: there is no rate, or the queue waits for it.
    throttle: Option<Mutex<Throttle>>,
    estimates: Semaphore,
    circuits: Mutex<Circuits>,
    events: Arc<dyn EventSink>,
    policy: NodePolicy,
}

impl Puller {
    pub(crate) fn new(parts: &ManagerParts, now: Instant) -> Self {
        let settings = &parts.settings;
        let slots = settings.slots.map(NonZeroUsize::get);
        let policy = settings.node_policy;
        let throttle = settings.rate.map(|rate| Throttle::new(rate, now));
        // A bucket that never fills is not waited at.
        let refuses = !policy.pulls.waits_for_rate || settings.rate.is_some_and(|rate| rate.burst == 0);
        let (refusing, waiting) = if refuses { (throttle, None) } else { (None, throttle) };
        let scheduler = Arc::new(Scheduler::new(
            Policy { slots, is_fifo: !policy.pulls.prioritized_queue },
            waiting,
            Arc::clone(&parts.metrics),
        ));
        Self {
            runtime: parts.runtime.clone(),
            pulls: Arc::new(SingleFlight::new(scheduler, settings.grace, policy.pulls.shared_pulls)),
            throttle: refusing.map(Mutex::new),
            estimates: Semaphore::new(ESTIMATES_MAX),
            circuits: Mutex::new(Circuits::new(settings.backoff_first)),
            events: Arc::clone(&parts.events),
            policy,
        }
    }

    /// Whether the registry may be asked. A request that joins a pull asks nothing.
    pub(crate) fn admit(&self, work: &Work) -> Result<(), OpenCircuit> {
        if !self.policy.pulls.circuit_breaker || self.pulls.has(work) {
            return Ok(());
        }
        let (key, now) = (work.circuit_key(), Instant::now());
        if work.caller == Caller::Command {
            self.circuits().probe(&key, now);
            return Ok(());
        }
        if work.caller == Caller::LookAhead {
            return self.circuits().check_closed(&key, now);
        }
        self.circuits().admit(&key, now)
    }

    pub(crate) fn open_circuits(&self, now: Instant) -> Vec<OpenCircuit> {
        self.circuits().open(now)
    }

    pub(crate) fn pull<T: Send + 'static>(self: &Arc<Self>, work: &Work) -> Result<Subscription<T>, Arc<RuntimeError>> {
        let request =
            Request { tenant: Arc::clone(&work.tenant), priority: work.priority, is_limited: work.is_limited() };
        let begin = |place: Place, progress: Broadcast| {
            let (puller, work) = (Arc::clone(self), work.clone());
            async move {
                let outcome = puller.carry_out(&place, &progress, &work).await;
                puller.record(&work, &outcome);
                outcome
            }
            .boxed()
        };
        let joined = self.pulls.join(work, request, begin);
        joined.map_err(|full| Arc::new(RuntimeError::other("the pull queue is full").caused_by(full)))
    }

    pub(crate) fn status(&self) -> Vec<PullStatus> {
        self.pulls.status()
    }

    fn record(&self, work: &Work, outcome: &Outcome) {
        if !self.policy.pulls.circuit_breaker {
            return;
        }
        match outcome {
            Ok(_) => self.circuits().answered(&work.circuit_key()),
            // Counted, it would hold back the pod's own request for a failure that may be over by then.
            Err(error) if work.caller == Caller::LookAhead && error.fault().retry_after.is_none() => {}
            Err(error) => {
                let fault = error.fault();
                let opened = self.circuits().failed(&work.circuit_key(), &fault, Instant::now());
                if let Some(open) = opened {
                    self.events.record(Event {
                        kind: EventKind::Warning,
                        reason: "CircuitOpened",
                        message: open.opening(fault.stage),
                        note: None,
                        subject: EventSubject::Node,
                        cause: Some(EventCause { class: fault.class.word(), stage: fault.stage.word() }),
                    });
                }
            }
        }
    }

    async fn carry_out(&self, place: &Place, progress: &Broadcast, work: &Work) -> Outcome {
        self.wait(place, work).await;
        let began = Instant::now();
        if let Some(throttle) = &self.throttle
            && work.is_limited()
            && !throttle.lock().unwrap_or_else(PoisonError::into_inner).try_take(began)
        {
            let error = RuntimeError::other("pull QPS exceeded");
            return Err(Arc::new(error.with_hint("raise `registryPullQPS` or `registryBurst`, or set the first to 0")));
        }
        let (id, attempt, senders) = self.try_credentials(work, &progress.sink()).await?;
        let (size, handler) = self.as_listed(&work.request.image).await;
        Ok(Pulled {
            key: ImageKey::new(id, handler),
            size,
            fetched: progress.fetched().unwrap_or(size),
            took: began.elapsed(),
            attempt,
            senders,
            way: progress.way(),
            hosts: progress.hosts(),
        })
    }

    /// Waits for the turn, and meanwhile estimates how much there is to fetch: what is small may start earlier.
    async fn wait(&self, place: &Place, work: &Work) {
        let estimate = async {
            if self.policy.pulls.prioritized_queue
                && let Some(size) = self.estimate(work).await
            {
                place.set_size(size);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = place.turn() => {}
            () = estimate => {}
        }
    }

    /// What there is to fetch, where the store can estimate it and the first credential is accepted.
    async fn estimate(&self, work: &Work) -> Option<ByteSize> {
        let _permit = self.estimates.acquire().await.ok()?;
        let estimate = self.runtime.estimate(&with_credentials(&work.request, &work.credentials, 0)).await;
        let estimate = estimate.inspect_err(|error| {
            tracing::debug!(
                image = work.request.image.image,
                error = error.chain(),
                "the size of a waiting pull is not known"
            );
        });
        estimate.ok()?.map(|estimate| estimate.bytes_missing)
    }

    /// Returns the id with the attempt that succeeded, and the hosts that sent something in it.
    async fn try_credentials(
        &self,
        work: &Work,
        progress: &Progress,
    ) -> Result<(ImageId, usize, Vec<String>), Arc<RuntimeError>> {
        let mut failures = Vec::new();
        let tried_max = if self.policy.pulls.bounded_attempts { CREDENTIALS_MAX } else { usize::MAX };
        for attempt in 0..work.credentials.attempts().min(tried_max) {
            let request = with_credentials(&work.request, &work.credentials, attempt);
            let hosts = Arc::<Mutex<AskedHosts>>::default();
            let outcome = self.runtime.pull(&request, noting_hosts(progress, &hosts)).await;
            let hosts = std::mem::take(&mut *hosts.lock().unwrap_or_else(PoisonError::into_inner));
            match outcome {
                Ok(id) => return Ok((id, attempt, hosts.senders)),
                Err(error) => {
                    let helps_none = no_credential_helps(error.kind()) && !hosts.has_refused;
                    let is_final = self.policy.pulls.bounded_attempts && helps_none;
                    failures.push(error);
                    if is_final {
                        break;
                    }
                }
            }
        }
        Err(Arc::new(join_failures(failures)))
    }

    /// Size and handler as listed right after the pull; an error here is not the pull's.
    async fn as_listed(&self, image: &ImageSpec) -> (ByteSize, String) {
        let found = self.runtime.status(image).await.unwrap_or_else(|error| {
            tracing::debug!(image = image.image, error = error.chain(), "the size of a pulled image is not known");
            None
        });
        found.map_or_else(
            || (ByteSize::ZERO, image.runtime_handler.clone()),
            |found| (found.size, found.spec.runtime_handler),
        )
    }

    fn circuits(&self) -> MutexGuard<'_, Circuits> {
        self.circuits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request of an attempt.
pub(super) fn with_credentials(request: &PullRequest, credentials: &PullCredentials, attempt: usize) -> PullRequest {
    PullRequest {
        credential: credentials.of_registry(attempt).map(|tracked| tracked.credential.clone()),
        host_credentials: credentials.of_hosts(attempt),
        ..request.clone()
    }
}

/// The hosts of an attempt.
#[derive(Debug, Default)]
struct AskedHosts {
    /// Those that sent something.
    senders: Vec<String>,
    /// One of them refused its credential: the next one may open it, whatever became of the others.
    has_refused: bool,
}

impl AskedHosts {
    fn of(hosts: &[PullHost]) -> Self {
        let is_refusal = |class: &String| {
            [ErrorClass::Unauthorized, ErrorClass::Forbidden].map(ErrorClass::word).contains(&class.as_str())
        };
        let senders = hosts.iter().filter(|host| host.manifest || host.bytes > 0).map(|host| host.host.clone());
        let has_refused = hosts.iter().any(|host| host.failures.keys().any(is_refusal));
        Self { senders: senders.collect(), has_refused }
    }
}

/// Passes the progress on, and keeps what it says of hosts.
fn noting_hosts(progress: &Progress, asked: &Arc<Mutex<AskedHosts>>) -> Progress {
    let (progress, asked) = (Arc::clone(progress), Arc::clone(asked));
    Arc::new(move |event| {
        if let PullEvent::Hosts(hosts) = &event {
            *asked.lock().unwrap_or_else(PoisonError::into_inner) = AskedHosts::of(hosts);
        }
        progress(event);
    })
}

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
    // The joined text does not say which party failed.
    let fault = last.fault();
    let joined = if fault.party == Party::Registry { joined } else { joined.with_fault(fault) };
    // Where one credential was refused, the registry was there.
    let joined = if is_outage { joined } else { joined.not_an_outage() };
    match hint {
        Some(hint) => joined.with_hint(hint),
        None => joined,
    }
}
