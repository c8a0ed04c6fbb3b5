//! The status of a set from the reports of its nodes, and whether the set must be deleted. Pure functions.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use imagelet_core::printable::printable_start;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::waves::{SelectedNode, wave};
use crate::prefetch::objects::{FailureCount, ImagePhase, ImageSet, NodeCounts, SetLimit, SetStatus};

const FAILURES_MAX: usize = 10;
const MESSAGE_LENGTH_MAX: usize = 256;
/// Nodes with matching pods report themselves within this time after the start of a spec. Until the end of this time,
/// no wave begins and the set is not complete.
const SELECTION_LASTS: Duration = Duration::from_secs(30);

/// After `Idle` without a time, only a change of objects causes the next decision.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SetAction {
    Idle { until: Option<SystemTime> },
    Write(Box<SetStatus>),
    Delete,
}

/// Decides what to do for one set. `limit` is the limit that the set exceeds, if any. `nodes` are sorted by place.
pub(super) fn decide(
    set: &ImageSet,
    limit: Option<SetLimit>,
    nodes: &[SelectedNode<'_>],
    now: SystemTime,
) -> SetAction {
    let status = status(set, limit, nodes, now);
    if status != set.status {
        return SetAction::Write(Box::new(status));
    }
    let ends = set.spec.ttl_after_finished.zip(status.finished_at);
    let selection_ends = status.started_at.as_ref().and_then(|started| selection_ends(set, started, now));
    match ends.map(|(lasts, finished)| SystemTime::from(finished.0) + lasts.0) {
        Some(until) if until <= now => SetAction::Delete,
        until => SetAction::Idle { until: until.into_iter().chain(selection_ends).min() },
    }
}

/// `None` means that `SELECTION_LASTS` is over or that the spec has no pod selector.
fn selection_ends(set: &ImageSet, started: &Time, now: SystemTime) -> Option<SystemTime> {
    set.spec.pod_selector.as_ref()?;
    Some(SystemTime::from(started.0) + SELECTION_LASTS).filter(|ends| *ends > now)
}

fn status(set: &ImageSet, limit: Option<SetLimit>, nodes: &[SelectedNode<'_>], wall: SystemTime) -> SetStatus {
    let before = &set.status;
    let mut counts = NodeCounts { wanted: nodes.len(), ..NodeCounts::default() };
    for node in nodes {
        node.phase.unwrap_or_default().count(&mut counts);
    }
    let is_over = set.deadline().is_some_and(|deadline| deadline <= wall);
    // Times of the API have whole seconds.
    let seconds = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = Time(i64::try_from(seconds).ok().and_then(|it| Timestamp::from_second(it).ok()).unwrap_or_default());
    let known = |time: &Option<Time>| time.clone().filter(|_| set.is_observed()).unwrap_or_else(|| now.clone());
    let started_at = known(&before.started_at);
    let is_selected = selection_ends(set, &started_at, wall).is_none();
    let is_complete = is_selected && counts.wanted > 0 && counts.ready == counts.wanted;
    let is_finished = is_complete || (is_over && counts.wanted > 0);
    // Nodes ignore a set above a limit other than the report limit, so no node is admitted.
    let is_admitting = is_selected && limit.is_none_or(|limit| limit == SetLimit::Report);
    SetStatus {
        observed_generation: set.generation,
        started_at: Some(started_at),
        finished_at: is_finished.then(|| known(&before.finished_at)),
        wave: if is_admitting { wave(set, nodes) } else { None },
        nodes: counts,
        failures: failures(nodes),
        conditions: conditions(set, limit, &counts, (is_complete, is_over), &now),
    }
}

fn conditions(
    set: &ImageSet,
    limit: Option<SetLimit>,
    counts: &NodeCounts,
    (is_complete, is_over): (bool, bool),
    now: &Time,
) -> Vec<Condition> {
    let condition = |name: &str, is_true: bool, reason: &str, message: &str| {
        let status = if is_true { "True" } else { "False" };
        let same = set.status.condition(name).filter(|before| before.status == status);
        Condition {
            type_: name.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: Some(set.generation),
            last_transition_time: same.map_or(now, |before| &before.last_transition_time).clone(),
        }
    };
    let NodeCounts { wanted, ready, failed, .. } = counts;
    let limited = limit.map(SetLimit::texts);
    let passed_over = limited.as_ref().filter(|_| limit != Some(SetLimit::Report));
    let so_far = &*format!("{ready} of {wanted} nodes have fetched all images");
    let (reason, message) = match passed_over {
        _ if is_complete => ("Complete", so_far),
        _ if *wanted == 0 && set.spec.pod_selector.is_none() => ("NoNodes", "no node has the labels of the selector"),
        Some((reason, message)) => (*reason, message.as_str()),
        None if *wanted == 0 => ("NoNodes", "no node with the labels of the selector has a pod of podSelector"),
        None if is_over => ("DeadlineExceeded", so_far),
        None if set.spec.paused => ("Paused", so_far),
        None => ("Pulling", so_far),
    };
    let degraded = if *failed > 0 { "NodesFailed" } else { "NoFailures" };
    let mut conditions = vec![
        condition("Complete", is_complete, reason, message),
        condition("Progressing", reason == "Pulling", reason, so_far),
        condition("Degraded", *failed > 0, degraded, &format!("{failed} of {wanted} nodes failed")),
    ];
    conditions.extend(limited.map(|(reason, message)| condition("Limited", true, reason, &message)));
    conditions
}

fn failures(nodes: &[SelectedNode<'_>]) -> Vec<FailureCount> {
    let mut found: BTreeMap<(&str, &str), FailureCount> = BTreeMap::new();
    for node in nodes {
        let mut of_node: BTreeMap<(&str, &str), (&str, &str)> = BTreeMap::new();
        for image in node.images.iter().filter(|image| image.phase == ImagePhase::Failed) {
            of_node.entry((&image.class, &image.hop)).or_insert((&image.reference, &image.message));
        }
        for ((class, hop), (image, message)) in of_node {
            let of_node = |nodes| FailureCount {
                class: printable_start(class, MESSAGE_LENGTH_MAX),
                hop: printable_start(hop, MESSAGE_LENGTH_MAX),
                nodes,
                node: node.name.to_owned(),
                image: printable_start(image, 1024),
                message: printable_start(message, MESSAGE_LENGTH_MAX),
            };
            let failure = found.entry((class, hop)).or_insert_with(|| of_node(0));
            failure.nodes += 1;
            // The failure names the first node by name, so the status does not depend on the order of the waves.
            if node.name < failure.node.as_str() {
                *failure = of_node(failure.nodes);
            }
        }
    }
    let mut failures: Vec<FailureCount> = found.into_values().collect();
    failures.sort_by(|a, b| (b.nodes, &a.class, &a.hop).cmp(&(a.nodes, &b.class, &b.hop)));
    failures.truncate(FAILURES_MAX);
    failures
}

#[cfg(test)]
mod tests;
