//! The plan of a node for the sets of the cluster: the next pull, the pins, and the report. A pure function.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use imagelet_core::printable::printable_start;
use tokio::time::Instant;

use super::{
    images_ready::ImagesReady,
    port::{FetchFailure, ImagePresence, SetPin},
    turns::{Candidate, next},
};
use crate::prefetch::objects::{
    ImagePhase, ImageReport, ImageSet, REPORTED_SETS_MAX, SetImage, SetName, SetPhase, SetPullPolicy, SetReport,
};

const MESSAGE_LENGTH_MAX: usize = 256;
const MESSAGES_LENGTH_MAX: usize = 64 << 10;

/// One image of one set. The key stays the same until the image must be pulled again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TaskKey {
    pub(super) uid: String,
    /// The generation, if the set pulls again for each generation. Otherwise zero.
    pub(super) generation: i64,
    pub(super) image: SetImage,
}

/// `Running` has the received bytes and the total bytes, or `None` if they are not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TaskState {
    Running(Option<(u64, u64)>),
    Done { at: SystemTime },
    Failed { failure: FetchFailure, retry_at: Instant },
    GaveWay { at: Instant },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) key: TaskKey,
    pub(super) set: SetName,
    pub(super) policy: SetPullPolicy,
}

#[derive(Debug)]
pub(super) struct PlanInput<'a> {
    /// The sets that select the node, in the order of their places (`objects::known_sets`).
    pub(super) sets: &'a [ImageSet],
    /// Gated sets that select the node and that no node fetches, because of a limit.
    pub(super) gated_beyond: &'a [ImageSet],
    pub(super) node: &'a str,
    pub(super) states: &'a BTreeMap<TaskKey, TaskState>,
    pub(super) presence: &'a ImagePresence,
    pub(super) last: &'a str,
    pub(super) wall: SystemTime,
    pub(super) now: Instant,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) next: Option<Task>,
    pub(super) waiting: Option<Waiting>,
    pub(super) pins: Vec<SetPin>,
    pub(super) report: Vec<SetReport>,
    /// The condition of the node, or `None` if no gated set selects it. Only valid after a pass has listed the images.
    pub(super) images_ready: Option<ImagesReady>,
    /// All tasks of selected sets. The states of other tasks are dropped, and their pulls are cancelled.
    pub(super) tasks: BTreeSet<TaskKey>,
    pub(super) retry_at: Option<Instant>,
}

/// The next image of a set other than the set of the running pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) image: String,
    pub(super) are_all_slow: bool,
}

pub(super) fn plan(input: &PlanInput<'_>) -> Plan {
    let mut plan = Plan::default();
    let (mut candidates, mut running, mut reports, mut gated) = (Vec::new(), None, Vec::new(), Vec::new());
    let gave_way = input.states.iter().filter(|(_, state)| matches!(state, TaskState::GaveWay { .. }));
    let slow: BTreeSet<&str> = gave_way.map(|(key, _)| key.uid.as_str()).collect();
    let mut messages_left = MESSAGES_LENGTH_MAX;
    for set in input.sets {
        let held = held(set, input);
        let is_slow = slow.contains(set.uid.as_str());
        let mut images = Vec::with_capacity(set.spec.images.len());
        for image in &set.spec.images {
            let key = key_of(set, image);
            let state = input.states.get(&key);
            images.push(report_of(image, state, set.spec.keep, input.presence, &mut messages_left));
            let mut wait = |since| candidates.push(Candidate { set, image, is_slow, since });
            match state {
                Some(TaskState::Running(_)) => running = Some(&set.uid),
                _ if held.is_some() => {}
                None => wait(None),
                Some(TaskState::Failed { retry_at, .. }) if *retry_at > input.now => {
                    plan.retry_at = Some(plan.retry_at.map_or(*retry_at, |at: Instant| at.min(*retry_at)));
                }
                Some(TaskState::Failed { retry_at: since, .. } | TaskState::GaveWay { at: since }) => {
                    wait(Some(*since));
                }
                Some(TaskState::Done { at }) => {
                    if set.spec.keep && input.presence.is_removed(&image.reference, *at) {
                        wait(None);
                    }
                }
            }
            if set.spec.keep {
                plan.pins.push(SetPin { reference: image.reference.clone(), owner: set.name.to_string() });
            }
            plan.tasks.insert(key);
        }
        let report = set_report(set, held, images);
        if set.spec.gate {
            gated.push(report.clone());
        }
        // A node that waits for its turn writes no report: the controller counts a node without a report as waiting.
        // With a pod selector, the controller knows only the nodes that report the set.
        if set.spec.pod_selector.is_some() || is_begun(&report) {
            reports.push((set, report));
        }
    }
    if let Some(uid) = running {
        candidates.retain(|candidate| candidate.set.uid != *uid);
        let are_all_slow = candidates.iter().all(|candidate| candidate.is_slow);
        let waiting = next(&candidates, input.last);
        plan.waiting = waiting.map(|it| Waiting { image: it.image.reference.clone(), are_all_slow });
    } else {
        let task = |Candidate { set, image, .. }: &Candidate<'_>| Task {
            key: key_of(set, image),
            set: set.name.clone(),
            policy: set.spec.pull_policy,
        };
        plan.next = next(&candidates, input.last).map(task);
    }
    // Gated sets come first: a restarted agent knows only reported images and must not change the condition.
    reports.sort_by_key(|(set, _)| !set.spec.gate);
    reports.truncate(REPORTED_SETS_MAX);
    // This order is stable and so avoids writes, because the places of sets change with other sets.
    reports.sort_by(|(a, _), (b, _)| (&a.created_at, &a.name).cmp(&(&b.created_at, &b.name)));
    plan.report = reports.into_iter().map(|(_, report)| report).collect();
    plan.images_ready = ImagesReady::of(&gated, input.gated_beyond);
    plan.pins.sort();
    plan.pins.dedup();
    plan
}

pub(super) fn key_of(set: &ImageSet, image: &SetImage) -> TaskKey {
    let generation = if set.spec.pull_policy == SetPullPolicy::Always { set.generation } else { 0 };
    TaskKey { uid: set.uid.clone(), generation, image: image.clone() }
}

/// The states of a starting agent. A fetched image is not fetched again, even if a collection has removed it.
pub(super) fn restored(sets: &[ImageSet], reports: &[SetReport]) -> BTreeMap<TaskKey, TaskState> {
    let mut states = BTreeMap::new();
    for set in sets {
        let Some(report) = reports.iter().find(|report| report.uid == set.uid) else { continue };
        let is_current = report.generation == set.generation || set.spec.pull_policy == SetPullPolicy::IfNotPresent;
        for image in set.spec.images.iter().filter(|_| is_current) {
            let is_fetched = report.images.iter().any(|it| {
                it.reference == image.reference
                    && it.platform == image.platform
                    && matches!(it.phase, ImagePhase::Present | ImagePhase::Removed)
            });
            if is_fetched {
                states.insert(key_of(set, image), TaskState::Done { at: SystemTime::UNIX_EPOCH });
            }
        }
    }
    states
}

fn held(set: &ImageSet, input: &PlanInput<'_>) -> Option<SetPhase> {
    if set.deadline().is_some_and(|deadline| deadline <= input.wall) {
        Some(SetPhase::Expired)
    } else if set.spec.paused {
        Some(SetPhase::Paused)
    } else {
        (!set.admits(input.node)).then_some(SetPhase::Waiting)
    }
}

fn set_report(set: &ImageSet, held: Option<SetPhase>, images: Vec<ImageReport>) -> SetReport {
    let is_done = |image: &ImageReport| match image.phase {
        ImagePhase::Present => true,
        ImagePhase::Removed => !set.spec.keep,
        _ => false,
    };
    let has = |phase| images.iter().any(|image| image.phase == phase);
    let phase = match held {
        _ if images.iter().all(is_done) => SetPhase::Ready,
        _ if has(ImagePhase::Pulling) => SetPhase::Pulling,
        Some(phase) => phase,
        None if images.iter().any(|image| image.phase != ImagePhase::Failed && !is_done(image)) => SetPhase::Pulling,
        None => SetPhase::Failed,
    };
    SetReport {
        kind: set.name.scope.kind().to_owned(),
        namespace: set.name.namespace.clone(),
        name: set.name.name.clone(),
        uid: set.uid.clone(),
        generation: set.generation,
        phase,
        images,
    }
}

fn is_begun(report: &SetReport) -> bool {
    let is_held = matches!(report.phase, SetPhase::Waiting | SetPhase::Paused);
    !is_held || report.images.iter().any(|image| image.phase != ImagePhase::Pending)
}

fn report_of(
    image: &SetImage,
    state: Option<&TaskState>,
    keeps: bool,
    presence: &ImagePresence,
    messages_left: &mut usize,
) -> ImageReport {
    let SetImage { reference, platform, .. } = image.clone();
    let mut report = ImageReport { reference, platform, ..ImageReport::default() };
    match state {
        None => {}
        Some(TaskState::GaveWay { .. }) => {
            report.message = "gave way to other sets that wait; it continues in its turn".into();
        }
        Some(TaskState::Running(bytes)) => {
            report.phase = ImagePhase::Pulling;
            (report.bytes, report.bytes_total) = bytes.unzip();
        }
        Some(TaskState::Done { at }) if presence.is_removed(&image.reference, *at) => {
            // A set that keeps its images pulls a removed image again. For other sets the image is finished.
            report.phase = ImagePhase::Removed;
            report.message = if keeps { "the image was removed; it is pulled again".to_owned() } else { String::new() };
        }
        Some(TaskState::Done { .. }) => report.phase = ImagePhase::Present,
        Some(TaskState::Failed { failure: FetchFailure { class, stage, message }, .. }) => {
            report.phase = ImagePhase::Failed;
            (report.class, report.hop) = (class.to_string(), stage.to_string());
            let message = printable_start(message, MESSAGE_LENGTH_MAX);
            if let Some(left) = messages_left.checked_sub(message.len()) {
                (*messages_left, report.message) = (left, message);
            }
        }
    }
    report
}

#[cfg(test)]
mod tests;
