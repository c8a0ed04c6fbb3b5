//! Runs pulls: each pull waits in the queue, then tries its credentials in order.

pub(super) mod circuit_breaker;
mod scheduler;
mod single_flight;
pub(super) mod throttle;
mod work;

use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use futures_util::FutureExt as _;
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

pub(super) use self::work::{Pulled, Work};
use self::{
    circuit_breaker::{Circuits, OpenCircuit},
    scheduler::{Place, Request, Scheduler},
    single_flight::{PullClients, SingleFlight, Subscription},
    throttle::Throttle,
    work::Outcome,
};
use super::{
    ManagerParts, ManagerReports, meters,
    request::Caller,
    status::{PullState, PullStatus, PullTurn},
};
use crate::{
    error::{ErrorClass, Party, RuntimeError, RuntimeErrorKind},
    events::{Event, EventKind, EventSubject},
    image::{ByteSize, ImageId, ImageKey, ImageSpec},
    lock::locked,
    node_policy::NodePolicy,
    ports::{Progress, PullEnd, PullEstimate, PullEvent, PullProgress, RuntimeManager},
    text::aggregate,
};

/// The maximum number of credentials per pull. Each costs the registry some requests. The kubelet has no limit.
const CREDENTIALS_MAX: usize = 64;
/// The maximum number of parallel estimates for waiting pulls. Each estimate costs the registry one manifest.
const ESTIMATES_MAX: usize = 4;
/// The number of ended pulls that stay listed, so that a client that polls the list sees each end.
const ENDED_MAX: usize = 32;

pub(crate) struct Puller {
    runtime: RuntimeManager,
    pulls: Arc<SingleFlight>,
    /// Rejects pulls above the rate. `None`: there is no rate, or the queue waits for the rate.
    throttle: Option<Mutex<Throttle>>,
    estimates: Semaphore,
    pub(super) circuits: Mutex<Circuits>,
    reports: ManagerReports,
    policy: NodePolicy,
    ended: Mutex<EndedPulls>,
}

struct EndedPulls {
    /// Incremented at the end of each pull; starts at 1.
    version: u64,
    last: VecDeque<PullStatus>,
}

impl Puller {
    pub(crate) fn new(parts: &ManagerParts, now: Instant) -> Self {
        let settings = &parts.settings;
        let slots = settings.slots.map(NonZeroUsize::get);
        let policy = settings.node_policy;
        let throttle = settings.rate.map(|rate| Throttle::new(rate, now));
        // With a burst of 0 no token ever comes, so pulls are rejected and do not wait.
        let refuses = !policy.pulls.waits_for_rate || settings.rate.is_some_and(|rate| rate.burst == 0);
        let (refusing, waiting) = if refuses { (throttle, None) } else { (None, throttle) };
        let is_fifo = !policy.pulls.prioritized_queue;
        let scheduler = Arc::new(Scheduler::new(slots, is_fifo, waiting, Arc::clone(&parts.reports.metrics)));
        Self {
            runtime: parts.runtime.clone(),
            pulls: Arc::new(SingleFlight::new(scheduler, settings.grace, policy.pulls.shared_pulls)),
            throttle: refusing.map(Mutex::new),
            estimates: Semaphore::new(ESTIMATES_MAX),
            circuits: Mutex::new(Circuits::new(settings.backoff_first)),
            reports: parts.reports.clone(),
            policy,
            ended: Mutex::new(EndedPulls { version: 1, last: VecDeque::new() }),
        }
    }

    /// Whether a pull may contact the registry. A request that joins a pull is always admitted.
    pub(crate) fn admit(&self, work: &Work) -> Result<(), OpenCircuit> {
        if !self.policy.pulls.circuit_breaker || self.pulls.has(work) {
            return Ok(());
        }
        let (key, now) = (work.circuit_key(), Instant::now());
        if work.request.caller == Caller::Command {
            locked(&self.circuits).probe(&key, now);
            return Ok(());
        }
        if work.request.caller == Caller::LookAhead {
            return locked(&self.circuits).check_closed(&key, now);
        }
        locked(&self.circuits).admit(&key, now)
    }

    pub(crate) fn pull<T: Send + 'static>(self: &Arc<Self>, work: &Work) -> Result<Subscription<T>, Arc<RuntimeError>> {
        let tenant = Arc::clone(&work.request.pull.pod.namespace);
        let request = Request { tenant, priority: work.request.priority, is_limited: work.is_limited() };
        let begin = |place: Place, progress: watch::Sender<PullProgress>, clients: PullClients| {
            let (puller, work) = (Arc::clone(self), work.clone());
            async move {
                puller.wait(&place, &work).await;
                RunningPull { puller, number: place.ticket, work, progress, clients, is_over: false }.run().await
            }
            .boxed()
        };
        let joined = self.pulls.join(work, request, begin);
        joined.map_err(|full| Arc::new(RuntimeError::other("the pull queue is full").caused_by(full)))
    }

    pub(crate) fn status(&self) -> Vec<PullStatus> {
        self.pulls.status()
    }

    pub(crate) fn since(&self, version: u64) -> (u64, Vec<PullStatus>) {
        let open = self.pulls.status();
        let ended = locked(&self.ended);
        let news = if version == 0 { 0 } else { ended.version.saturating_sub(version) };
        let known = ended.last.len().saturating_sub(usize::try_from(news).unwrap_or(usize::MAX));
        let ended_since = ended.last.iter().skip(known).cloned();
        // A pull that ends between the two reads is in both lists. The later entry has its end.
        (ended.version, open.into_iter().chain(ended_since).collect())
    }

    fn record(&self, work: &Work, outcome: &Outcome) {
        if !self.policy.pulls.circuit_breaker {
            return;
        }
        match outcome {
            Ok(_) => locked(&self.circuits).answered(&work.circuit_key()),
            // A failed look-ahead is not counted if the registry requests no wait: an open circuit would delay the
            // pod's own request, although the cause may be over by then.
            Err(error) if work.request.caller == Caller::LookAhead && error.fault().retry_after.is_none() => {}
            Err(error) => {
                let fault = error.fault();
                let opened = locked(&self.circuits).failed(&work.circuit_key(), &fault, Instant::now());
                if let Some(open) = opened {
                    self.reports.events.record(Event {
                        kind: EventKind::Warning,
                        reason: "CircuitOpened",
                        message: open.opening(fault.stage),
                        note: None,
                        subject: EventSubject::Node,
                        cause: Some((fault.class, fault.stage)),
                    });
                }
            }
        }
    }

    async fn carry_out(&self, progress: &watch::Sender<PullProgress>, work: &Work) -> Outcome {
        let began = Instant::now();
        if let Some(throttle) = &self.throttle
            && work.is_limited()
            && !locked(throttle).try_take(began)
        {
            let error = RuntimeError::other("pull QPS exceeded");
            return Err(Arc::new(error.with_hint("raise `registryPullQPS` or `registryBurst`, or set the first to 0")));
        }
        let (id, attempt, senders) = self.try_credentials(work, progress).await?;
        let (size, handler) = self.as_listed(&work.request.pull.image).await;
        Ok(Pulled { key: ImageKey::new(id, handler), size, took: began.elapsed(), attempt, senders })
    }

    /// Waits until the pull may start. Meanwhile estimates the bytes to fetch, because a small pull may start earlier.
    async fn wait(&self, place: &Place, work: &Work) {
        let estimate = async {
            if self.policy.pulls.prioritized_queue
                && let Ok(_permit) = self.estimates.acquire().await
                && let Some(estimate) = self.estimate(work).await
            {
                place.set_size(estimate.bytes_missing);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = place.turn() => {}
            () = estimate => {}
        }
    }

    pub(crate) async fn estimate(&self, work: &Work) -> Option<PullEstimate> {
        let estimate = self.runtime.estimate(&work.attempt(0)).await;
        let estimate = estimate.inspect_err(|error| {
            tracing::debug!(image = work.request.image(), error = error.chain(), "the size of a pull is not known");
        });
        estimate.ok().flatten()
    }

    /// Returns the image id, the index of the successful attempt, and the hosts that sent data in that attempt.
    async fn try_credentials(
        &self,
        work: &Work,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<(ImageId, usize, Vec<String>), Arc<RuntimeError>> {
        let (mut failures, sink) = (Vec::new(), self.sink(progress.clone()));
        let tried_max = if self.policy.pulls.bounded_attempts { CREDENTIALS_MAX } else { usize::MAX };
        for attempt in 0..work.credentials.attempts().min(tried_max) {
            let request = work.attempt(attempt);
            progress.send_modify(|progress| progress.traffic.attempt_hosts.clear());
            let outcome = self.runtime.pull(&request, Arc::clone(&sink)).await;
            let seen = progress.borrow();
            let hosts = &seen.traffic.attempt_hosts;
            match outcome {
                Ok(id) => {
                    let senders = hosts.iter().filter(|host| host.manifest || host.bytes > 0);
                    return Ok((id, attempt, senders.map(|host| host.host.clone()).collect()));
                }
                Err(error) => {
                    let refusals = [ErrorClass::Unauthorized, ErrorClass::Forbidden].map(ErrorClass::name);
                    let is_refusal = |class: &String| refusals.contains(&class.as_str());
                    // A host that rejected its credential may accept the next, even if another host ended the attempt.
                    let has_refused = hosts.iter().any(|host| host.failures.keys().any(is_refusal));
                    let is_final =
                        self.policy.pulls.bounded_attempts && no_credential_helps(error.kind()) && !has_refused;
                    failures.push(error);
                    if is_final {
                        break;
                    }
                }
            }
        }
        Err(Arc::new(join_failures(failures)))
    }

    fn sink(&self, progress: watch::Sender<PullProgress>) -> Progress {
        let metrics = Arc::clone(&self.reports.metrics);
        Arc::new(move |event| {
            if let PullEvent::Waits { wait: Some(wait), .. } = &event {
                metrics.increment(&meters::WAITS, &[wait.thing.name()]);
            }
            progress.send_modify(|progress| {
                let before = progress.traffic.received;
                progress.apply(event, Instant::now());
                if progress.traffic.received > before {
                    metrics.add(&meters::RECEIVED, &[], (progress.traffic.received - before) as f64);
                }
            });
        })
    }

    /// Size and handler as the store lists them after the pull. An error here does not fail the pull.
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
}

/// A running pull. A drop before its end cancels the pull.
struct RunningPull {
    puller: Arc<Puller>,
    number: u64,
    work: Work,
    progress: watch::Sender<PullProgress>,
    clients: PullClients,
    is_over: bool,
}

impl RunningPull {
    async fn run(mut self) -> Outcome {
        self.progress.send_modify(|progress| progress.times.began = Some(Instant::now()));
        let outcome = self.puller.carry_out(&self.progress, &self.work).await;
        self.puller.record(&self.work, &outcome);
        self.end(outcome.as_ref().map_or_else(|error| PullEnd::Failed(Arc::clone(error)), |_| PullEnd::Pulled));
        outcome
    }

    fn end(&mut self, end: PullEnd) {
        self.is_over = true;
        let word = match end {
            PullEnd::Pulled => "pulled",
            PullEnd::Failed(_) => "failed",
            PullEnd::Cancelled => "cancelled",
        };
        self.puller.reports.metrics.increment(&meters::PULLS, &[word]);
        let now = Instant::now();
        self.progress.send_modify(|progress| progress.finish(end, now));
        let mut ended = locked(&self.puller.ended);
        ended.version += 1;
        if ended.last.len() == ENDED_MAX {
            ended.last.pop_front();
        }
        ended.last.push_back(PullStatus {
            number: self.number,
            image: self.work.request.image().to_owned(),
            pod: self.work.request.pull.pod.clone(),
            turn: PullTurn { state: PullState::Running, since: now, place: None },
            clients: locked(&self.clients).clone(),
            priority: self.work.request.priority,
            progress: self.progress.borrow().clone(),
        });
    }
}

impl Drop for RunningPull {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(PullEnd::Cancelled);
        }
    }
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

/// Joins the errors of all attempts. If all texts are equal, returns the last error. Otherwise lists each text once.
pub(super) fn join_failures(mut failures: Vec<RuntimeError>) -> RuntimeError {
    let text = aggregate(&failures.iter().map(RuntimeError::chain).collect::<Vec<_>>());
    let hint = failures.iter().find_map(|failure| failure.hint().map(str::to_owned));
    let is_outage = failures.iter().all(RuntimeError::is_outage);
    let last = failures.pop().expect("each credential that did not work left an error");
    if text == last.chain() {
        return last;
    }
    let joined = RuntimeError::new(last.kind(), text);
    // The joined text does not say which party failed, so the fault of the last error is recorded.
    let fault = last.fault();
    let joined = if fault.party == Party::Registry { joined } else { joined.with_fault(fault) };
    // A registry that rejected a credential was reachable, so there is no outage.
    let joined = if is_outage { joined } else { joined.not_an_outage() };
    match hint {
        Some(hint) => joined.with_hint(hint),
        None => joined,
    }
}
