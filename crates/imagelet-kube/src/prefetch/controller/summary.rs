//! The status of a set from the reports of its nodes, and whether the set is to be deleted. Plain functions.

use std::{collections::BTreeMap, time::SystemTime};

use imagelet_core::printable::printable_start;

use super::waves::{SelectedNode, wave};
use crate::prefetch::objects::{
    Condition, FailureCount, ImagePhase, ImageSet, NodeCounts, SetLimit, SetReport, SetStatus, moment, parse_moment,
};

/// Most classes of failures in a status.
const FAILURES_MAX: usize = 10;
const MESSAGE_LENGTH_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SetAction {
    /// Nothing before this time, if any: then the set is to be deleted.
    Idle {
        until: Option<SystemTime>,
    },
    Write(Box<SetStatus>),
    /// Deletes the set: it finished long enough ago.
    Delete,
}

pub(super) type NodeReport<'a> = (SelectedNode<'a>, Option<&'a SetReport>);

/// Decides for one set, which may be beyond a limit. `nodes` are in the order of their places, with their reports of this spec.
pub(super) fn decide(set: &ImageSet, limit: Option<SetLimit>, nodes: &[NodeReport<'_>], now: SystemTime) -> SetAction {
    let status = status(set, limit, nodes, now);
    if status != set.status {
        return SetAction::Write(Box::new(status));
    }
    let (Some(lasts), Some(finished)) = (set.spec.ttl_after_finished, status.finished_at.as_deref()) else {
        return SetAction::Idle { until: None };
    };
    match parse_moment(finished).map(|at| at + lasts.get()) {
        Some(until) if until <= now => SetAction::Delete,
        until => SetAction::Idle { until },
    }
}

fn status(set: &ImageSet, limit: Option<SetLimit>, nodes: &[NodeReport<'_>], now: SystemTime) -> SetStatus {
    let before = &set.status;
    let is_current = before.observed_generation == set.generation;
    let mut counts = NodeCounts { wanted: nodes.len(), ..NodeCounts::default() };
    for (node, _) in nodes {
        node.phase.unwrap_or_default().count(&mut counts);
    }
    let is_over = set.deadline().is_some_and(|deadline| deadline <= now);
    let is_complete = counts.wanted > 0 && counts.ready == counts.wanted;
    let is_finished = is_complete || (is_over && counts.wanted > 0);
    let started_at = before.started_at.clone().filter(|_| is_current).unwrap_or_else(|| moment(now));
    let finished_at = before.finished_at.clone().filter(|_| is_current);
    let finished_at = is_finished.then(|| finished_at.unwrap_or_else(|| moment(now)));
    let selected: Vec<SelectedNode<'_>> = nodes.iter().map(|(node, _)| *node).collect();
    let conditions = conditions(set, limit, &counts, is_over);
    SetStatus {
        observed_generation: set.generation,
        started_at: Some(started_at),
        finished_at,
        // No node begins what all of them pass over.
        wave: if limit.is_some_and(SetLimit::is_passed_over) { None } else { wave(set, &selected) },
        nodes: counts,
        failures: failures(nodes),
        conditions: conditions.into_iter().map(|condition| dated(condition, before, now)).collect(),
    }
}

/// `Complete`, `Progressing`, `Degraded`, and `Limited` for a set that is beyond a limit.
fn conditions(set: &ImageSet, limit: Option<SetLimit>, counts: &NodeCounts, is_over: bool) -> Vec<Condition> {
    let condition = |name: &str, is_true: bool, reason: &str, message: String| Condition {
        r#type: name.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: set.generation,
        last_transition_time: String::new(),
    };
    let NodeCounts { wanted, ready, failed, .. } = counts;
    let is_complete = *wanted > 0 && ready == wanted;
    let passed_over = limit.filter(|limit| limit.is_passed_over());
    let so_far = format!("{ready} of {wanted} nodes have fetched all images");
    let (progressing, reason) = match passed_over {
        _ if is_complete => (false, "Complete"),
        _ if *wanted == 0 => (false, "NoNodes"),
        Some(limit) => (false, limit.reason()),
        None if is_over => (false, "DeadlineExceeded"),
        None if set.spec.paused => (false, "Paused"),
        None => (true, "Pulling"),
    };
    let complete = match (*wanted, passed_over) {
        (0, _) => condition("Complete", false, "NoNodes", "no node has the labels of the selector".to_owned()),
        (_, Some(limit)) if !is_complete => condition("Complete", false, reason, limit.to_string()),
        _ => condition("Complete", is_complete, reason, so_far.clone()),
    };
    let failures = format!("{failed} of {wanted} nodes failed");
    let degraded = if *failed > 0 { "NodesFailed" } else { "NoFailures" };
    let mut conditions = vec![
        complete,
        condition("Progressing", progressing, reason, so_far),
        condition("Degraded", *failed > 0, degraded, failures),
    ];
    conditions.extend(limit.map(|limit| condition("Limited", true, limit.reason(), limit.to_string())));
    conditions
}

/// The condition with the time since when it has its status.
fn dated(condition: Condition, before: &SetStatus, now: SystemTime) -> Condition {
    let same = before.conditions.iter().find(|it| it.r#type == condition.r#type && it.status == condition.status);
    let since = same.map(|it| it.last_transition_time.clone()).filter(|since| parse_moment(since).is_some());
    Condition { last_transition_time: since.unwrap_or_else(|| moment(now)), ..condition }
}

/// The failures by class and step, the most frequent first; each with the first node that has it.
fn failures(nodes: &[NodeReport<'_>]) -> Vec<FailureCount> {
    let mut found: BTreeMap<(&str, &str), FailureCount> = BTreeMap::new();
    for (node, report) in nodes {
        let mut of_node: BTreeMap<(&str, &str), (&str, &str)> = BTreeMap::new();
        let images = report.map(|report| &report.images[..]).unwrap_or_default();
        for image in images.iter().filter(|image| image.phase == ImagePhase::Failed) {
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
            // The first by name, so that the status does not depend on the order of the waves.
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
