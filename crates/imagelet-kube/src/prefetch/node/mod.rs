//! The agent of prefetch on one node: follows the sets and its own Node, pulls, pins, and reports.

mod plan;
mod port;
mod progress;
mod pull_secret;
mod report_gate;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    events::Event,
    hold::CHECK_PERIOD,
    image::ImageSpec,
    manager::{Caller, EnsureRequest},
    runtime::{ErrorClass, PullRequest, Stage},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde_json::json;
use tokio::{
    sync::{Notify, mpsc},
    task::AbortHandle,
    time::Instant,
};

pub use self::port::{FetchConditions, FetchFailure, ImagePresence, PrefetchNode, SetPin};
use self::{
    plan::{Plan, PlanInput, Task, TaskKey, TaskState, Waiting, plan, restored},
    progress::PullBytes,
    report_gate::ReportGate,
    turns::Turn,
};
use super::objects::{ImageSet, Labels, NodeImages, PREFETCH_GROUP, SetReport, SetScope, SharedSets};
use crate::{
    api_error::text,
    node_events::failure_event,
    watch::{WatchHealth, backoff, follow, random},
};

/// The name by which the agents own the fields that they write.
const FIELD_MANAGER: &str = "imagelet";
/// The first wait after a failed pull; it doubles with each failure in a row.
const RETRY_FIRST: Duration = Duration::from_secs(30);
const RETRY_MAX: Duration = Duration::from_mins(15);
/// The first wait after a failed request for the report.
const WRITE_RETRY_FIRST: Duration = Duration::from_secs(5);
const WRITE_RETRY_MAX: Duration = Duration::from_mins(2);
/// How often the progress of a pull is read, and whether images are still present.
const TICK: Duration = Duration::from_secs(30);
/// The priority of each pull for a set: those of pods come first.
pub const PREFETCH_PRIORITY: i32 = i32::MIN;

/// Prefetches the images of the sets that select one node.
pub struct PrefetchAgent {
    client: Client,
    node: String,
    target: Arc<dyn PrefetchNode>,
}

/// What the watches know.
struct Inputs {
    sets: SharedSets,
    nodes: Store<PartialObjectMeta<Node>>,
    changed: Notify,
}

/// A pull that runs in a task of its own. Dropping it cancels the pull.
struct RunningPull {
    key: TaskKey,
    bytes: PullBytes,
    task: AbortHandle,
}

impl Drop for RunningPull {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What outlives one step of the agent.
struct AgentWork {
    states: BTreeMap<TaskKey, TaskState>,
    /// Failures in a row, by task.
    failures: BTreeMap<TaskKey, u32>,
    /// How often a pull gave way to other sets, by task.
    given_way: BTreeMap<TaskKey, u32>,
    running: Option<RunningPull>,
    /// The namespace of the last pull that began; empty for a set of the cluster.
    last: String,
    gate: ReportGate,
    pins: Option<Vec<SetPin>>,
    /// Failed writes in a row, and when the next one is due.
    write_failures: u32,
    write_at: Option<Instant>,
}

impl PrefetchAgent {
    /// An agent of this node, which begins with [`Self::run`].
    pub fn new(client: Client, node: &str, target: Arc<dyn PrefetchNode>) -> Self {
        Self { client, node: node.to_owned(), target }
    }

    /// Follows the sets for as long as this future lives. Where the API server does not have the kinds, nothing happens.
    pub async fn run(&self) {
        Box::pin(self.follow()).await;
    }

    async fn follow(&self) {
        let (nodes, mut writer) = reflector::store();
        let inputs = Inputs { sets: SharedSets::new(), nodes, changed: Notify::new() };
        let own_node = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        let health = Arc::new(WatchHealth::unmeasured());
        let take = |event| {
            writer.apply_watcher_event(&event);
            inputs.changed.notify_one();
        };
        tokio::join!(
            inputs.sets.follow(&self.client, &inputs.changed),
            follow("Node of this agent", &self.client, &(), own_node, &health, take),
            self.work(&inputs),
        );
    }

    async fn work(&self, inputs: &Inputs) {
        // Before all three are known nothing is decided: pins of the last run stay.
        let (sets, _) = inputs.known(&self.node).await;
        let written = self.read_report().await;
        let mut work = AgentWork {
            states: restored(&sets, written.as_deref().unwrap_or_default()),
            failures: BTreeMap::new(),
            given_way: BTreeMap::new(),
            running: None,
            last: String::new(),
            gate: ReportGate::restored(written),
            pins: None,
            write_failures: 0,
            write_at: None,
        };
        let (finished, mut outcomes) = mpsc::channel(1);
        // Pulls go on while the API server is slow to answer.
        let mut writing = None;
        loop {
            let (sets, labels) = inputs.known(&self.node).await;
            let plan = self.step(&mut work, &sets, &labels, &finished).await;
            let now = Instant::now();
            let mut until = now + TICK;
            if writing.is_none() {
                match work.write_due(&plan.report, now) {
                    Some(at) if at > now => until = until.min(at),
                    Some(_) => writing = Some(Box::pin(self.write_report(plan.report))),
                    None => {}
                }
            }
            until = plan.retry_at.map_or(until, |at| until.min(at));
            let written = async {
                match &mut writing {
                    Some(writing) => writing.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                (report, answer) = written => {
                    writing = None;
                    self.written(&mut work, report, answer);
                }
                Some((key, outcome)) = outcomes.recv() => {
                    let event = outcome.as_ref().err().and_then(|failure| failed_event(&key, failure));
                    let was_running = work.finished(key, outcome);
                    if let Some(event) = event.filter(|_| was_running) {
                        self.target.record(event);
                    }
                }
                () = inputs.changed.notified() => {}
                () = self.turn_ended(&work, plan.waiting.as_ref()) => work.give_way(),
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Returns when the running pull is to give way to the images that wait.
    async fn turn_ended(&self, work: &AgentWork, waiting: Option<&Waiting>) {
        let Some(RunningPull { key, bytes, .. }) = &work.running else { return std::future::pending().await };
        let given_way = work.given_way.get(key).copied().unwrap_or_default();
        loop {
            let (now, conditions) = (Instant::now(), self.target.conditions());
            let meter = bytes.meter(conditions.is_queued, now);
            if let Some(Waiting { image, are_all_slow }) = waiting {
                let is_measured = bytes.is_measured().unwrap_or(conditions.is_measured);
                let turn = Turn { given_way, is_measured, are_all_slow: *are_all_slow };
                if turn.is_over(conditions.policy, meter, now) {
                    let (slow, rate) = (&key.image.reference, meter.rate(now));
                    tracing::info!(image = slow, rate, waiting = image, "a slow prefetch gives way to another set");
                    return;
                }
            }
            tokio::time::sleep(CHECK_PERIOD).await;
        }
    }

    /// One decision, and what follows from it at once: pins, the cancel of a pull, the next pull.
    async fn step(
        &self,
        work: &mut AgentWork,
        sets: &[ImageSet],
        labels: &Labels,
        finished: &mpsc::Sender<(TaskKey, Result<(), FetchFailure>)>,
    ) -> Plan {
        work.measure();
        let references: BTreeSet<String> = work.states.keys().map(|key| key.image.reference.clone()).collect();
        let (presence, last) = (self.target.presence(&references).await, work.last.clone());
        let decide = |states: &BTreeMap<TaskKey, TaskState>| {
            let (wall, now) = (SystemTime::now(), Instant::now());
            plan(&PlanInput { sets, node: &self.node, labels, states, presence: &presence, last: &last, wall, now })
        };
        let mut plan = decide(&work.states);
        work.states.retain(|key, _| plan.tasks.contains(key));
        work.failures.retain(|key, _| plan.tasks.contains(key));
        work.given_way.retain(|key, _| plan.tasks.contains(key));
        if work.running.as_ref().is_some_and(|running| !plan.tasks.contains(&running.key)) {
            work.running = None;
        }
        if work.pins.as_ref() != Some(&plan.pins) {
            match self.target.pin(&plan.pins).await {
                Ok(()) => work.pins = Some(plan.pins.clone()),
                Err(error) => tracing::warn!(error, "could not pin the images of sets; the attempt is repeated"),
            }
        }
        // Nothing runs, or the plan has dropped what did: the next pull begins at once.
        if let Some(task) = plan.next.take() {
            self.begin(work, task, finished.clone());
            plan = decide(&work.states);
        }
        plan
    }

    fn begin(&self, work: &mut AgentWork, task: Task, finished: mpsc::Sender<(TaskKey, Result<(), FetchFailure>)>) {
        let (client, target, bytes) = (self.client.clone(), Arc::clone(&self.target), PullBytes::new(Instant::now()));
        let (key, watcher) = (task.key.clone(), bytes.watcher());
        work.last.clone_from(&task.set.namespace);
        work.states.insert(key.clone(), TaskState::Running(None));
        let pull = tokio::spawn(async move {
            let outcome = match request(&client, &task).await {
                Ok(request) => target.fetch(request, watcher).await,
                Err(failure) => Err(failure),
            };
            // The agent ended.
            let _ = finished.send((task.key, outcome)).await;
        });
        work.running = Some(RunningPull { key, bytes, task: pull.abort_handle() });
    }

    async fn write_report(&self, report: Vec<SetReport>) -> (Vec<SetReport>, Result<NodeImages, kube::Error>) {
        let object = json!({
            "apiVersion": PREFETCH_GROUP, "kind": "NodeImages", "metadata": {"name": self.node}, "sets": report,
        });
        let manager = PatchParams::apply(FIELD_MANAGER).force();
        let answer = self.reports().patch(&self.node, &manager, &Patch::Apply(&object)).await;
        (report, answer)
    }

    fn written(&self, work: &mut AgentWork, report: Vec<SetReport>, answer: Result<NodeImages, kube::Error>) {
        let now = Instant::now();
        let Err(error) = answer else {
            work.gate.written(report, now);
            (work.write_failures, work.write_at) = (0, None);
            return;
        };
        if work.write_failures == 0 {
            let error = text(&error);
            tracing::warn!(error, node = self.node, "cannot write the report of this node; the attempt is repeated");
        }
        work.write_at = Some(now + backoff(WRITE_RETRY_FIRST, WRITE_RETRY_MAX, work.write_failures, random()));
        work.write_failures = work.write_failures.saturating_add(1);
    }

    /// The report that the API has; `None`: it is absent.
    async fn read_report(&self) -> Option<Vec<SetReport>> {
        let mut failures = 0;
        loop {
            match self.reports().get_opt(&self.node).await {
                Ok(found) => return found.map(|found| found.sets),
                // What cannot be read is replaced by the next write.
                Err(kube::Error::SerdeError(_)) => return None,
                Err(error) => tracing::debug!(error = text(&error), "cannot read the report of this node"),
            }
            tokio::time::sleep(backoff(WRITE_RETRY_FIRST, WRITE_RETRY_MAX, failures, random())).await;
            failures = failures.saturating_add(1);
        }
    }

    fn reports(&self) -> Api<NodeImages> {
        Api::all(self.client.clone())
    }
}

impl Inputs {
    /// Waits until all sets and the labels of this node are known.
    async fn known(&self, node: &str) -> (Vec<ImageSet>, Labels) {
        loop {
            if let Some(known) = self.look(node) {
                return known;
            }
            self.changed.notified().await;
        }
    }

    fn look(&self, node: &str) -> Option<(Vec<ImageSet>, Labels)> {
        let sets = self.sets.listed()?;
        let node = self.nodes.get(&ObjectRef::new(node))?;
        let labels = node.metadata.labels.clone().unwrap_or_default();
        Some((sets.iter().flat_map(|sets| sets.sets()).cloned().collect(), labels))
    }
}

impl AgentWork {
    /// Takes the progress of the running pull into its state.
    fn measure(&mut self) {
        if let Some(running) = &self.running {
            self.states.insert(running.key.clone(), TaskState::Running(running.bytes.sum()));
        }
    }

    /// When to write this report; `None`: the API has it.
    fn write_due(&mut self, report: &[SetReport], now: Instant) -> Option<Instant> {
        let due = self.gate.due(report, now, random())?;
        Some(self.write_at.map_or(due, |at| due.max(at)))
    }

    /// Ends the running pull. Its image waits behind others; what it has received stays on the disk for the next attempt.
    fn give_way(&mut self) {
        let Some(running) = self.running.take() else { return };
        *self.given_way.entry(running.key.clone()).or_default() += 1;
        self.states.insert(running.key.clone(), TaskState::GaveWay { at: Instant::now() });
    }

    /// Returns false for a pull that was cancelled, and ended before it.
    fn finished(&mut self, key: TaskKey, outcome: Result<(), FetchFailure>) -> bool {
        if self.running.as_ref().is_none_or(|running| running.key != key) {
            return false;
        }
        self.running = None;
        let state = match outcome {
            Ok(()) => {
                self.failures.remove(&key);
                self.given_way.remove(&key);
                TaskState::Done { at: SystemTime::now() }
            }
            Err(failure) => {
                let failures = self.failures.entry(key.clone()).or_default();
                let retry_at = Instant::now() + backoff(RETRY_FIRST, RETRY_MAX, *failures, random());
                *failures = failures.saturating_add(1);
                TaskState::Failed { failure, retry_at }
            }
        };
        self.states.insert(key, state);
        true
    }
}

/// The request for one image: with the secret of the set, or with the credentials of the node for a set of the cluster.
async fn request(client: &Client, task: &Task) -> Result<EnsureRequest, FetchFailure> {
    let image = &task.key.image;
    let failed = |class: ErrorClass, stage: Stage, message: String| FetchFailure { class, stage, message };
    let mut secrets = Vec::new();
    if let Some(name) = &image.pull_secret {
        let secret = pull_secret::read(client, &task.set.namespace, name).await;
        secrets.push(secret.map_err(|why| failed(ErrorClass::CredentialsUnreadable, Stage::Credentials, why))?);
    }
    let platform = image.platform.as_deref().map(str::parse).transpose();
    let platform = platform.map_err(|error: imagelet_core::image::PlatformError| {
        failed(ErrorClass::NameInvalid, Stage::Name, error.to_string())
    })?;
    Ok(EnsureRequest {
        caller: Caller::Prefetch { own_credentials: task.set.scope == SetScope::Cluster },
        pull: PullRequest { image: ImageSpec::new(image.reference.clone()), platform, ..PullRequest::default() },
        policy: task.policy.for_pull(),
        secrets,
        priority: PREFETCH_PRIORITY,
        ..EnsureRequest::default()
    })
}

/// The event of a failed pull. A pull that an open circuit refused has none: the circuit had its own.
fn failed_event(key: &TaskKey, failure: &FetchFailure) -> Option<Event> {
    let FetchFailure { class, stage, message } = failure;
    let image = &key.image.reference;
    (*class != ErrorClass::HeldBack).then(|| {
        let message = format!("could not prefetch `{image}`: {message}");
        failure_event("PrefetchFailed", message, "could not prefetch an image", image, (*class, *stage))
    })
}

#[cfg(test)]
mod tests;
