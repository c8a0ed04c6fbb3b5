//! Shared pulls: clients with the same work join one pull, which ends with its last client or after a grace.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    scheduler::{Place, Request, Scheduler, Ticket},
    work::{Outcome, Pulled, Work},
};
use crate::{
    events::PodIdentity,
    image::{ImageSpec, Platform},
    lock::locked,
    manager::{
        EnsureRequest,
        status::{PullClient, PullStatus},
    },
    ports::{PullProgress, PullRequest, PullWatcher},
    text::PlainError,
};

type PullFuture = BoxFuture<'static, Outcome>;
/// The requests that share a pull. Has its own lock, because a pull may be dropped while the table is locked.
pub(super) type PullClients = Arc<Mutex<Vec<PullClient>>>;

/// Identifies a pull. Pulls with equal keys are the same for registry and store, so one pull is enough. The key has the
/// hashes of the credentials, so no client shares a pull that another client's access permitted. Two secrets with the
/// same content share a pull, and each secret is recorded.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PullKey {
    image: ImageSpec,
    platform: Option<Platform>,
    credentials: Vec<String>,
    /// The namespace of the pod, if the runtime receives the pod, because it may grant access by namespace.
    namespace: Option<Arc<str>>,
    /// A unique number, if the request must not share its pull.
    alone: Option<u64>,
}

pub(super) struct SingleFlight {
    scheduler: Arc<Scheduler>,
    grace: Duration,
    /// `true`: equal requests share a pull. `false`: each request of a pod has its own pull, as in the kubelet.
    shares: bool,
    alone: AtomicU64,
    table: Mutex<FlightTable>,
}

#[derive(Default)]
struct FlightTable {
    by_key: HashMap<PullKey, Pull>,
    keepers: JoinSet<()>,
}

struct Pull {
    ticket: Ticket,
    /// The subscriptions own the pull. It ends with the last subscription, or after a grace.
    future: WeakShared<PullFuture>,
    progress: watch::Receiver<PullProgress>,
    pod: PodIdentity,
    clients: PullClients,
    priority: i32,
}

impl Pull {
    fn has_ended(&self) -> bool {
        self.future.upgrade().is_none()
    }
}

struct OnComplete<T> {
    kept: T,
    conclude: fn(T, Pulled) -> BoxFuture<'static, ()>,
    /// Returns when the grace must end early.
    unwanted: fn(&T) -> BoxFuture<'static, ()>,
}

/// One client's share of a pull. A drop does not end the pull for other clients. The last drop ends it; a running pull
/// gets a grace first.
pub(crate) struct Subscription<T: Send + 'static> {
    pulls: Arc<SingleFlight>,
    key: PullKey,
    ticket: Ticket,
    client: PullClient,
    /// The shared pull. `None`: the pull has ended.
    pull: Option<Shared<PullFuture>>,
    pub(crate) progress: watch::Receiver<PullProgress>,
    on_complete: Option<OnComplete<T>>,
}

impl SingleFlight {
    pub(super) fn new(scheduler: Arc<Scheduler>, grace: Duration, shares: bool) -> Self {
        Self { scheduler, grace, shares, alone: AtomicU64::default(), table: Mutex::default() }
    }

    /// Whether an equal pull waits or runs. A request that joins that pull costs the registry nothing.
    pub(super) fn has(&self, work: &Work) -> bool {
        locked(&self.table).by_key.get(&self.key(work)).is_some_and(|pull| !pull.has_ended())
    }

    fn key(&self, work: &Work) -> PullKey {
        let request = &work.request.pull;
        let is_alone = !self.shares && !work.request.caller.is_client();
        PullKey {
            image: request.image.clone(),
            platform: request.platform.clone(),
            credentials: work.credentials.hashes(),
            namespace: request.encoded_pod.as_ref().map(|_| Arc::clone(&request.pod.namespace)),
            alone: is_alone.then(|| self.alone.fetch_add(1, Ordering::Relaxed)),
        }
    }

    pub(super) fn join<T: Send + 'static>(
        self: &Arc<Self>,
        work: &Work,
        request: Request,
        begin: impl FnOnce(Place, watch::Sender<PullProgress>, PullClients) -> PullFuture,
    ) -> Result<Subscription<T>, PlainError> {
        let (key, priority) = (self.key(work), request.priority);
        let EnsureRequest { pull: PullRequest { pod, .. }, caller, .. } = &work.request;
        let client = PullClient { pod: pod.clone(), caller: *caller, since: Instant::now() };
        let mut table = locked(&self.table);
        let joined = table.by_key.get_mut(&key).and_then(|pull| Some((pull.future.upgrade()?, pull)));
        let (ticket, future, progress) = if let Some((future, pull)) = joined {
            locked(&pull.clients).push(client.clone());
            pull.priority = pull.priority.max(priority);
            self.scheduler.raise(pull.ticket, priority, request.is_limited);
            (pull.ticket, future, pull.progress.clone())
        } else {
            let (place, (sender, progress)) = (self.scheduler.enter(request)?, watch::channel(PullProgress::default()));
            let (ticket, clients) = (place.ticket, Arc::new(Mutex::new(vec![client.clone()])));
            let pull = begin(place, sender, Arc::clone(&clients));
            let (pulls, key_of_pull) = (Arc::clone(self), key.clone());
            let future = async move {
                let outcome = pull.await;
                // A later client does not join an ended pull. It starts a new pull to get a current result.
                pulls.forget(&key_of_pull, ticket, |_| true);
                outcome
            };
            let future = future.boxed().shared();
            let weak = future.downgrade().expect("a future that was not polled is not done");
            let pull = Pull { ticket, future: weak, progress: progress.clone(), pod: pod.clone(), clients, priority };
            table.by_key.insert(key.clone(), pull);
            (ticket, future, progress)
        };
        let (pulls, pull) = (Arc::clone(self), Some(future));
        Ok(Subscription { pulls, key, ticket, client, pull, progress, on_complete: None })
    }

    pub(super) fn status(&self) -> Vec<PullStatus> {
        let (table, mut states) = (locked(&self.table), self.scheduler.states());
        let status = |(key, pull): (&PullKey, &Pull)| {
            Some(PullStatus {
                number: pull.ticket,
                image: key.image.image.clone(),
                pod: pull.pod.clone(),
                turn: states.remove(&pull.ticket)?,
                clients: locked(&pull.clients).clone(),
                priority: pull.priority,
                progress: pull.progress.borrow().clone(),
            })
        };
        let mut pulls: Vec<PullStatus> = table.by_key.iter().filter_map(status).collect();
        pulls.sort_by_key(|pull| (pull.turn.since, pull.number));
        pulls
    }

    fn forget(&self, key: &PullKey, ticket: Ticket, is_over: impl FnOnce(&Pull) -> bool) {
        let mut table = locked(&self.table);
        if table.by_key.get(key).is_some_and(|pull| pull.ticket == ticket && is_over(pull)) {
            table.by_key.remove(key);
        }
    }

    /// Removes a client from a pull. Returns whether the pull continues for a grace without clients.
    fn leave(&self, key: &PullKey, ticket: Ticket, client: &PullClient) -> bool {
        let mut table = locked(&self.table);
        let Some(pull) = table.by_key.get_mut(key).filter(|pull| pull.ticket == ticket) else { return false };
        let mut clients = locked(&pull.clients);
        if let Some(at) = clients.iter().position(|it| it == client) {
            clients.remove(at);
        }
        if !clients.is_empty() {
            return false;
        }
        drop(clients);
        // A waiting pull loses no progress, so it leaves the queue at once.
        let is_kept = !self.grace.is_zero() && self.scheduler.is_running(ticket);
        if !is_kept {
            table.by_key.remove(key);
        }
        is_kept
    }
}

impl<T: Send + 'static> Subscription<T> {
    pub(crate) fn on_complete(
        mut self,
        kept: T,
        conclude: fn(T, Pulled) -> BoxFuture<'static, ()>,
        unwanted: fn(&T) -> BoxFuture<'static, ()>,
    ) -> Self {
        self.on_complete = Some(OnComplete { kept, conclude, unwanted });
        self
    }

    /// The result of the pull, and `kept` of [`Self::on_complete`]. The watcher gets the current progress first.
    pub(crate) async fn outcome(mut self, watcher: &PullWatcher) -> (Outcome, Option<T>) {
        // The original stays in `self`, so that a drop of `self` can give the pull to a keeper, the task of the grace.
        let mut pull = self.pull.clone().expect("it is there until this is over");
        let outcome = loop {
            watcher(&self.progress.borrow_and_update());
            tokio::select! {
                biased;
                outcome = &mut pull => break outcome,
                Ok(()) = self.progress.changed() => {}
            }
        };
        watcher(&self.progress.borrow());
        self.pull = None;
        (outcome, self.on_complete.take().map(|it| it.kept))
    }
}

impl<T: Send + 'static> Drop for Subscription<T> {
    fn drop(&mut self) {
        let Some(pull) = self.pull.take() else { return };
        let (pulls, key, ticket) = (Arc::clone(&self.pulls), self.key.clone(), self.ticket);
        if !pulls.leave(&key, ticket, &self.client) {
            return;
        }
        let (Ok(handle), Some(on_complete)) = (Handle::try_current(), self.on_complete.take()) else {
            drop(pull);
            return pulls.forget(&key, ticket, Pull::has_ended);
        };
        let keep = async move {
            let ended = tokio::select! {
                biased;
                () = (on_complete.unwanted)(&on_complete.kept) => None,
                ended = timeout(pulls.grace, pull) => ended.ok(),
            };
            // A client that joined during the grace now owns the pull. Otherwise the pull ended with its last clone.
            pulls.forget(&key, ticket, Pull::has_ended);
            if let Some(Ok(pulled)) = ended {
                (on_complete.conclude)(on_complete.kept, pulled).await;
            }
        };
        let mut table = locked(&self.pulls.table);
        while table.keepers.try_join_next().is_some() {}
        table.keepers.spawn_on(keep, &handle);
    }
}

#[cfg(test)]
mod tests;
