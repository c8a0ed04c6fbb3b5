//! The agent of prefetch on one node: follows the sets and its own Node, pulls, pins, and reports.

mod plan;
mod port;
mod progress;
mod report_gate;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    backoff::random_share,
    error::{ErrorClass, Stage},
    hold::CHECK_PERIOD,
    image::{ImageSpec, Platform},
    manager::{Caller, EnsureRequest},
    ports::PullRequest,
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::task::AbortOnDropHandle;

pub use self::port::{FetchConditions, FetchFailure, ImagePresence, PrefetchNode, SetPin};
use self::{
    plan::{Plan, PlanInput, Task, TaskKey, TaskState, Waiting, plan, restored},
    progress::PullBytes,
    report_gate::{ReportGate, WrittenReport},
    turns::Turn,
};
use super::objects::{ImageSet, KnownSets, NodeImages, PREFETCH_GROUP, SetScope, SharedSets};
use crate::{
    api_error::text,
    credentials::read_set_secret,
    node_events::failure_event,
    watch::{backoff, follow},
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

type OwnNode = PartialObjectMeta<Node>;

struct Inputs {
    sets: SharedSets,
    nodes: Store<OwnNode>,
    changed: Notify,
}

/// A pull that runs in a task of its own. Dropping it cancels the pull.
struct RunningPull {
    key: TaskKey,
    bytes: PullBytes,
    task: AbortOnDropHandle<Result<(), FetchFailure>>,
}

/// What outlives one step of the agent.
#[derive(Default)]
struct AgentWork {
    states: BTreeMap<TaskKey, TaskState>,
    attempts: BTreeMap<TaskKey, Attempts>,
    running: Option<RunningPull>,
    /// The namespace of the last pull that began; empty for a set of the cluster.
    last: String,
    pins: Option<Vec<SetPin>>,
}

#[derive(Clone, Copy, Default)]
struct Attempts {
    /// In a row.
    failures: u32,
    /// How often the pull gave way to other sets.
    given_way: u32,
}

impl PrefetchAgent {
    pub fn new(client: Client, node: &str, target: Arc<dyn PrefetchNode>) -> Self {
        Self { client, node: node.to_owned(), target }
    }

    /// Follows the sets for as long as this future lives. Where the API server does not have the kinds, nothing happens.
    pub async fn run(&self) {
        let (nodes, mut writer) = reflector::store();
        let inputs = Inputs { sets: SharedSets::default(), nodes, changed: Notify::new() };
        let own_node = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        let take = |event| {
            writer.apply_watcher_event(&event);
            inputs.changed.notify_one();
        };
        let following = async {
            tokio::join!(
                inputs.sets.follow(&self.client, &inputs.changed),
                follow("Node of this agent", &self.client, &(), own_node, Arc::default(), take),
                self.work(&inputs),
            )
        };
        Box::pin(following).await;
    }

    async fn work(&self, inputs: &Inputs) {
        // Before all three are known nothing is decided: pins of the last run stay.
        let (sets, _) = inputs.known(&self.node).await;
        let written = self.read_report().await;
        let reports = written.as_ref().map_or(&[][..], |written| &written.sets);
        let mut work = AgentWork { states: restored(&sets, reports), ..AgentWork::default() };
        let mut gate = ReportGate::restored(written);
        // Pulls go on while the API server is slow to answer.
        let mut writing = None;
        loop {
            let (sets, node) = inputs.known(&self.node).await;
            let plan = self.step(&mut work, &sets, &node).await;
            let now = Instant::now();
            let mut until = plan.retry_at.into_iter().chain([now + TICK]).min();
            if writing.is_none() {
                let report = WrittenReport { owner: node.owner_ref(&()), sets: plan.report };
                match gate.due(&report, now, random_share()) {
                    Some(at) if at > now => until = until.min(Some(at)),
                    Some(_) => writing = Some(Box::pin(self.write_report(report))),
                    None => {}
                }
            }
            let written = async {
                match &mut writing {
                    Some(writing) => writing.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                (report, answer) = written => {
                    writing = None;
                    self.written(&mut gate, report, answer);
                }
                ended = self.pull_ended(work.running.as_mut(), &work.attempts, plan.waiting.as_ref()) => {
                    self.ended(&mut work, ended);
                }
                () = inputs.changed.notified() => {}
                () = sleep_until(until.unwrap_or(now)) => {}
            }
        }
    }

    /// Returns how the running pull ended; `None`: it is to give way to the images that wait.
    async fn pull_ended(
        &self,
        running: Option<&mut RunningPull>,
        attempts: &BTreeMap<TaskKey, Attempts>,
        waiting: Option<&Waiting>,
    ) -> Option<Result<(), FetchFailure>> {
        let Some(RunningPull { key, bytes, task }) = running else { return pending().await };
        let given_way = attempts.get(key).map_or(0, |attempts| attempts.given_way);
        loop {
            let (now, conditions) = (Instant::now(), self.target.conditions());
            let meter = bytes.meter(conditions.is_queued, now);
            // A pull that has ended gives way to nothing.
            if let Some(Waiting { image, are_all_slow }) = waiting.filter(|_| !task.is_finished()) {
                let is_measured = bytes.is_measured().unwrap_or(conditions.is_measured);
                let turn = Turn { given_way, is_measured, are_all_slow: *are_all_slow };
                if turn.is_over(conditions.policy, meter, now) {
                    let (slow, rate) = (&key.image.reference, meter.rate(now));
                    tracing::info!(image = slow, rate, waiting = image, "a slow prefetch gives way to another set");
                    return None;
                }
            }
            if let Ok(ended) = timeout(CHECK_PERIOD, &mut *task).await {
                return Some(ended.unwrap_or_else(|error| failed(ErrorClass::Other, Stage::Queue, error.to_string())));
            }
        }
    }

    /// Takes over how the running pull ended. What a pull that gives way has received stays on the disk for its next attempt.
    fn ended(&self, work: &mut AgentWork, outcome: Option<Result<(), FetchFailure>>) {
        let Some(RunningPull { key, .. }) = work.running.take() else { return };
        let attempts = work.attempts.entry(key.clone()).or_default();
        let state = match outcome {
            None => {
                attempts.given_way += 1;
                TaskState::GaveWay { at: Instant::now() }
            }
            Some(Ok(())) => {
                *attempts = Attempts::default();
                TaskState::Done { at: SystemTime::now() }
            }
            Some(Err(failure)) => {
                let FetchFailure { class, stage, message } = &failure;
                // A pull that an open circuit refused has no event: the circuit had its own.
                if *class != ErrorClass::HeldBack {
                    let image = &key.image.reference;
                    let (message, what) =
                        (format!("could not prefetch `{image}`: {message}"), "could not prefetch an image");
                    self.target.record(failure_event("PrefetchFailed", message, what, image, (*class, *stage)));
                }
                let retry_at = Instant::now() + backoff(RETRY_FIRST, RETRY_MAX, attempts.failures);
                attempts.failures = attempts.failures.saturating_add(1);
                TaskState::Failed { failure, retry_at }
            }
        };
        work.states.insert(key, state);
    }

    /// Decides, and does what follows at once: pins, the cancel of a pull, the next pull.
    async fn step(&self, work: &mut AgentWork, sets: &[ImageSet], node: &OwnNode) -> Plan {
        loop {
            if let Some(RunningPull { key, bytes, .. }) = &work.running {
                work.states.insert(key.clone(), TaskState::Running(bytes.sum()));
            }
            let references: BTreeSet<String> = work.states.keys().map(|key| key.image.reference.clone()).collect();
            let presence = &self.target.presence(&references).await;
            let AgentWork { states, last, .. } = &*work;
            let (wall, now, labels) = (SystemTime::now(), Instant::now(), node.labels());
            let mut plan = plan(&PlanInput { sets, node: &self.node, labels, states, presence, last, wall, now });
            work.states.retain(|key, _| plan.tasks.contains(key));
            work.attempts.retain(|key, _| plan.tasks.contains(key));
            work.running.take_if(|running| !plan.tasks.contains(&running.key));
            if work.pins.as_ref() != Some(&plan.pins) {
                match self.target.pin(&plan.pins).await {
                    Ok(()) => work.pins = Some(plan.pins.clone()),
                    Err(error) => tracing::warn!(error, "could not pin the images of sets; the attempt is repeated"),
                }
            }
            // Nothing runs, or the plan has dropped what did: the next pull begins at once.
            let Some(task) = plan.next.take() else { return plan };
            let (client, target, bytes) = (self.client.clone(), Arc::clone(&self.target), PullBytes::new(now));
            let (key, watcher) = (task.key.clone(), bytes.watcher());
            work.last.clone_from(&task.set.namespace);
            let pull = async move { target.fetch(request(&client, &task).await?, watcher).await };
            work.running = Some(RunningPull { key, bytes, task: AbortOnDropHandle::new(tokio::spawn(pull)) });
        }
    }

    async fn write_report(&self, report: WrittenReport) -> (WrittenReport, Result<NodeImages, kube::Error>) {
        let object = json!({
            "apiVersion": PREFETCH_GROUP, "kind": "NodeImages",
            // The report ends with its Node: the cluster collects it.
            "metadata": {"name": self.node, "ownerReferences": Vec::from_iter(&report.owner)},
            "sets": report.sets,
        });
        let manager = PatchParams::apply(FIELD_MANAGER).force();
        let answer = self.reports().patch(&self.node, &manager, &Patch::Apply(&object)).await;
        (report, answer)
    }

    fn written(&self, gate: &mut ReportGate, report: WrittenReport, answer: Result<NodeImages, kube::Error>) {
        match answer {
            Ok(_) => gate.written(report, Instant::now()),
            Err(error) => {
                let wait = |failures| backoff(WRITE_RETRY_FIRST, WRITE_RETRY_MAX, failures);
                if gate.failed(Instant::now(), wait) {
                    let (error, node) = (text(&error), &self.node);
                    tracing::warn!(error, node, "could not write the report of this node; the attempt is repeated");
                }
            }
        }
    }

    /// The report that the API has; `None`: it is absent.
    async fn read_report(&self) -> Option<WrittenReport> {
        for failures in 0.. {
            match self.reports().get_opt(&self.node).await {
                Ok(found) => return found.map(WrittenReport::from),
                // What cannot be read is replaced by the next write.
                Err(kube::Error::SerdeError(_)) => return None,
                Err(error) => tracing::debug!(error = text(&error), "could not read the report of this node"),
            }
            sleep(backoff(WRITE_RETRY_FIRST, WRITE_RETRY_MAX, failures)).await;
        }
        None
    }

    fn reports(&self) -> Api<NodeImages> {
        Api::all(self.client.clone())
    }
}

impl Inputs {
    /// Waits until all sets and this node are known.
    async fn known(&self, node: &str) -> (Vec<ImageSet>, Arc<OwnNode>) {
        loop {
            if let (Some(sets), Some(node)) = (self.sets.listed(), self.nodes.get(&ObjectRef::new(node))) {
                return (sets.iter().flat_map(KnownSets::fetched).cloned().collect(), node);
            }
            self.changed.notified().await;
        }
    }
}

fn failed<T>(class: ErrorClass, stage: Stage, message: String) -> Result<T, FetchFailure> {
    Err(FetchFailure { class, stage, message })
}

/// The request for one image: with the secret of the set, or with the credentials of the node for a set of the cluster.
async fn request(client: &Client, task: &Task) -> Result<EnsureRequest, FetchFailure> {
    let image = &task.key.image;
    let mut secrets = Vec::new();
    if let Some(name) = &image.pull_secret {
        let secret = read_set_secret(client, &task.set.namespace, name).await;
        secrets.push(secret.or_else(|why| failed(ErrorClass::CredentialsUnreadable, Stage::Credentials, why))?);
    }
    let platform = image.platform.as_deref().map(str::parse::<Platform>).transpose();
    let platform = platform.or_else(|error| failed(ErrorClass::NameInvalid, Stage::Name, error.to_string()))?;
    Ok(EnsureRequest {
        caller: Caller::Prefetch { own_credentials: task.set.scope == SetScope::Cluster },
        pull: PullRequest { image: ImageSpec::new(image.reference.clone()), platform, ..PullRequest::default() },
        policy: task.policy.for_pull(),
        secrets,
        priority: PREFETCH_PRIORITY,
        ..EnsureRequest::default()
    })
}

#[cfg(test)]
mod tests;
