//! The prefetch agent of a node: watches sets and its Node, pulls, pins, reports, and sets a condition for gated sets.

mod images_ready;
mod own_node;
mod plan;
mod port;
mod progress;
mod selection;
mod turns;
mod write_gate;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    error::{ErrorClass, Stage},
    hold::CHECK_PERIOD,
    image::{ImageSpec, Platform},
    manager::{Caller, EnsureRequest, PullPolicy},
    ports::PullRequest,
    retry_wait::random_share,
};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde_json::json;
use tokio::{
    sync::{Notify, watch::Ref},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::task::AbortOnDropHandle;

pub use self::port::{FetchConditions, FetchFailure, ImagePresence, PrefetchNode, SetPin};
use self::{
    images_ready::ImagesReady,
    own_node::OwnNode,
    plan::{Plan, PlanInput, Task, TaskKey, TaskState, Waiting, plan, restored},
    progress::PullBytes,
    selection::{LastMatches, SelectedSets},
    turns::Turn,
    write_gate::{NodeFact, WriteGate, WrittenReport},
};
use super::objects::{KnownSets, NodeImages, PREFETCH_GROUP, SetPullPolicy, SetScope, SharedSets};
use crate::{
    agent::NodeAgent,
    api_error::{code, text},
    credentials::read_set_secret,
    node_events::failure_event,
    pods::PodsReceiver,
    watch::{backoff, follow},
};

const FIELD_MANAGER: &str = "imagelet";
const RETRY_FIRST: Duration = Duration::from_secs(30);
const RETRY_MAX: Duration = Duration::from_mins(15);
const WRITE_RETRY_FIRST: Duration = Duration::from_secs(5);
const WRITE_RETRY_MAX: Duration = Duration::from_mins(2);
const PODS_WAIT: Duration = Duration::from_mins(1);
const TICK: Duration = Duration::from_secs(30);
/// The priority of each pull for a set. Pulls for pods have a higher priority.
pub const PREFETCH_PRIORITY: i32 = i32::MIN;

pub struct PrefetchAgent {
    client: Client,
    node: String,
    target: Arc<dyn PrefetchNode>,
    /// `None`: no set selects the node by its pods.
    pods: Option<PodsReceiver>,
}

struct Inputs {
    sets: SharedSets,
    nodes: Store<OwnNode>,
    changed: Notify,
}

/// Dropping the value cancels the pull.
struct RunningPull {
    key: TaskKey,
    bytes: Arc<PullBytes>,
    task: AbortOnDropHandle<Result<(), FetchFailure>>,
}

#[derive(Default)]
struct AgentWork {
    states: BTreeMap<TaskKey, TaskState>,
    attempts: BTreeMap<TaskKey, Attempts>,
    running: Option<RunningPull>,
    /// The namespace of the last started pull. Empty for a cluster-wide set.
    last: String,
    pins: Option<Vec<SetPin>>,
    matches: LastMatches,
}

#[derive(Clone, Copy, Default)]
struct Attempts {
    failures: u32,
    given_way: u32,
}

impl PrefetchAgent {
    pub fn new(client: Client, node: &str, target: Arc<dyn PrefetchNode>) -> Self {
        Self { client, node: node.to_owned(), target, pods: None }
    }

    /// Sets also select the node by the pods that this agent watches.
    #[must_use]
    pub fn with_pods_of(self, agent: &NodeAgent) -> Self {
        Self { pods: Some(agent.pods()), ..self }
    }

    /// Watches the sets until this future is dropped. Without the kinds in the API server, the agent does nothing.
    pub async fn run(&self) {
        let (nodes, mut writer) = reflector::store();
        let inputs = Inputs { sets: SharedSets::default(), nodes, changed: Notify::new() };
        let own_node = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        let take = |event| {
            writer.apply_watcher_event(&event);
            inputs.changed.notify_one();
        };
        let pods_changing = async {
            let Some(mut pods) = self.pods.clone() else { return };
            while pods.changed().await.is_ok() {
                inputs.changed.notify_one();
            }
        };
        let following = async {
            tokio::join!(
                pods_changing,
                inputs.sets.follow(&self.client, &inputs.changed),
                follow("Node of this agent", &self.client, &(), own_node, Arc::default(), take),
                self.work(&inputs),
            )
        };
        Box::pin(following).await;
    }

    async fn work(&self, inputs: &Inputs) {
        // The first plan needs the sets, the node, its pods and the report. Until then, the pins of the last run stay.
        let (SelectedSets { sets, .. }, _) = inputs.known(&self.node).await;
        let written = self.read_report().await;
        if let Some(mut pods) = self.pods.clone() {
            // Without a list of pods, sets without a pod selector are fetched, and the last matches of other sets stay.
            let _ = timeout(PODS_WAIT, pods.changed()).await;
        }
        let reports = written.as_ref().map_or(&[][..], |written| &written.sets);
        let by_pods = reports.iter().filter(|_| self.pods.is_some());
        let matches = by_pods.map(|set| (set.uid.clone(), Instant::now())).collect();
        let mut work = AgentWork { states: restored(&sets, reports), matches, ..AgentWork::default() };
        let (mut of_report, mut of_condition) = (WriteGate::restored(written), WriteGate::restored(None));
        let mut seen: Option<Arc<OwnNode>> = None;
        // Writes run in parallel to pulls, so that a slow API server does not delay pulls.
        let (mut reporting, mut conditioning) = (None, None);
        loop {
            let (sets, node) = inputs.known(&self.node).await;
            let pods = self.pods.as_ref().map(PodsReceiver::borrow).filter(Ref::has_changed).map(|pods| pods.to_vec());
            let sets = sets.selecting(node.labels(), pods.as_deref(), &mut work.matches, Instant::now());
            let (plan, is_surveyed) = self.step(&mut work, &sets).await;
            let now = Instant::now();
            let mut until = plan.retry_at.into_iter().chain([now + TICK]).min();
            if reporting.is_none() {
                let report = WrittenReport { owner: node.owner_ref(&()), sets: plan.report };
                match of_report.due(&report, now, random_share()) {
                    Some(at) if at > now => until = until.min(Some(at)),
                    Some(_) => reporting = Some(Box::pin(self.write_report(report))),
                    None => {}
                }
            }
            // Each Node is read once: a Node that was received before the last write does not have this write.
            if !seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &node)) {
                of_condition.found(node.images_ready());
                seen = Some(Arc::clone(&node));
            }
            if conditioning.is_none() && is_surveyed {
                match of_condition.due(&plan.images_ready, now, random_share()) {
                    Some(at) if at > now => until = until.min(Some(at)),
                    Some(_) => conditioning = Some(Box::pin(self.write_condition(node, plan.images_ready))),
                    None => {}
                }
            }
            tokio::select! {
                biased;
                (report, answer) = end_of(&mut reporting) => {
                    self.written(&mut of_report, report, answer.err());
                }
                (condition, answer) = end_of(&mut conditioning) => {
                    self.written(&mut of_condition, condition, answer.err());
                }
                ended = self.pull_ended(work.running.as_mut(), &work.attempts, plan.waiting.as_ref()) => {
                    self.ended(&mut work, ended);
                }
                () = inputs.changed.notified() => {}
                () = sleep_until(until.unwrap_or(now)) => {}
            }
        }
    }

    /// Returns the result of the running pull. `None`: the pull must be interrupted for the waiting images.
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
            if let Some(Waiting { image, are_all_slow }) = waiting.filter(|_| !task.is_finished()) {
                let is_measured = bytes.known().is_measured.unwrap_or(conditions.is_measured);
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

    /// Records the end of the running pull. The data of an interrupted pull stays on disk for the next attempt.
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
                // A pull that an open circuit rejected has no event, because the circuit had its own event.
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

    /// Executes the first actions of a plan. Also returns whether a pass has listed the images of the node.
    async fn step(&self, work: &mut AgentWork, SelectedSets { sets, gated_beyond }: &SelectedSets) -> (Plan, bool) {
        loop {
            if let Some(RunningPull { key, bytes, .. }) = &work.running {
                work.states.insert(key.clone(), TaskState::Running(bytes.known().sum));
            }
            let references: BTreeSet<String> = work.states.keys().map(|key| key.image.reference.clone()).collect();
            let presence = &self.target.presence(&references).await;
            let AgentWork { states, last, .. } = &*work;
            let (wall, now) = (SystemTime::now(), Instant::now());
            let node = &*self.node;
            let mut plan = plan(&PlanInput { sets, gated_beyond, node, states, presence, last, wall, now });
            work.states.retain(|key, _| plan.tasks.contains(key));
            work.attempts.retain(|key, _| plan.tasks.contains(key));
            work.running.take_if(|running| !plan.tasks.contains(&running.key));
            if work.pins.as_ref() != Some(&plan.pins) {
                match self.target.pin(&plan.pins).await {
                    Ok(()) => work.pins = Some(plan.pins.clone()),
                    Err(error) => tracing::warn!(error, "could not pin the images of sets; the attempt is repeated"),
                }
            }
            let Some(task) = plan.next.take() else { return (plan, presence.taken_at.is_some()) };
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
            // The API server deletes the report together with its Node.
            "metadata": {"name": self.node, "ownerReferences": Vec::from_iter(&report.owner)},
            "sets": report.sets,
        });
        let manager = PatchParams::apply(FIELD_MANAGER).force();
        let answer = self.reports().patch(&self.node, &manager, &Patch::Apply(&object)).await;
        (report, answer)
    }

    async fn write_condition(
        &self,
        node: Arc<OwnNode>,
        wanted: Option<ImagesReady>,
    ) -> (Option<ImagesReady>, Result<OwnNode, kube::Error>) {
        let nodes: Api<OwnNode> = Api::all(self.client.clone());
        let patch = Patch::Strategic(node.patch(wanted.as_ref(), Timestamp::now()));
        let answer = nodes.patch_status(&self.node, &PatchParams::default(), &patch).await;
        (wanted, answer)
    }

    fn written<T: NodeFact>(&self, gate: &mut WriteGate<T>, fact: T, error: Option<kube::Error>) {
        let Some(error) = error else { return gate.written(fact, Instant::now()) };
        let forbidden = if code(&error) == Some(403) { T::FORBIDDEN_RETRY } else { None };
        let wait = |failures| forbidden.unwrap_or_else(|| backoff(WRITE_RETRY_FIRST, WRITE_RETRY_MAX, failures));
        if gate.failed(Instant::now(), wait) {
            let (error, node) = (text(&error), &self.node);
            tracing::warn!(error, node, "could not write the {} of this node; the attempt is repeated", T::NAME);
        }
    }

    async fn read_report(&self) -> Option<WrittenReport> {
        for failures in 0.. {
            match self.reports().get_opt(&self.node).await {
                Ok(found) => {
                    let NodeImages { metadata, sets } = found?;
                    return Some(WrittenReport { owner: metadata.owner_references.into_iter().flatten().next(), sets });
                }
                // An unreadable report is replaced by the next write.
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
    async fn known(&self, node: &str) -> (SelectedSets, Arc<OwnNode>) {
        loop {
            if let (Some(known), Some(node)) = (self.sets.listed(), self.nodes.get(&ObjectRef::new(node))) {
                let mut sets = SelectedSets::default();
                for (set, limit) in known.iter().flat_map(KnownSets::placed) {
                    if limit.is_none() {
                        sets.sets.push(set.clone());
                    } else if set.spec.gate {
                        sets.gated_beyond.push(set.clone());
                    }
                }
                return (sets, node);
            }
            self.changed.notified().await;
        }
    }
}

async fn end_of<F: Future + Unpin>(running: &mut Option<F>) -> F::Output {
    let Some(write) = running else { return pending().await };
    let end = write.await;
    *running = None;
    end
}

fn failed<T>(class: ErrorClass, stage: Stage, message: String) -> Result<T, FetchFailure> {
    Err(FetchFailure { class, stage, message })
}

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
        policy: match task.policy {
            SetPullPolicy::Always => PullPolicy::Always,
            SetPullPolicy::IfNotPresent => PullPolicy::IfNotPresent,
        },
        secrets,
        priority: PREFETCH_PRIORITY,
        ..EnsureRequest::default()
    })
}

#[cfg(test)]
mod tests;
