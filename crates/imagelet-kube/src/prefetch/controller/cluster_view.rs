//! What the controller knows of the cluster: sets, nodes and reports, and which nodes report nothing new.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{core::PartialObjectMeta, runtime::reflector::Store};
use tokio::{sync::Notify, time::Instant};

use super::{
    summary::{NodeReport, SetAction, decide},
    waves::SelectedNode,
};
use crate::{
    prefetch::objects::{ImageSet, Labels, NodeImages, REPORTED_SETS_MAX, SetLimit, SetReport, SharedSets},
    watch::is_listed,
};

/// A node that may begin and reports nothing new for so long holds up no other one.
const STALLED_AFTER: Duration = Duration::from_mins(15);
/// A report is removed when its Node is absent for so long.
const ABSENT_FOR: Duration = Duration::from_mins(2);

/// The caches of one time as the leader.
#[derive(Debug)]
pub(super) struct ClusterView {
    pub(super) sets: SharedSets,
    pub(super) reports: Store<NodeImages>,
    pub(super) nodes: Store<PartialObjectMeta<Node>>,
    pub(super) changed: Notify,
}

/// What the controller remembers between two passes; a restart loses it, which delays and changes nothing.
#[derive(Debug, Default)]
pub(super) struct PassMemory {
    /// By set and node: the last report of a busy node, and since when it is the same.
    busy: BTreeMap<(String, String), (Option<SetReport>, Instant)>,
    /// Reports without a Node, and since when.
    orphans: BTreeMap<String, Instant>,
}

#[derive(Debug, Default)]
pub(super) struct PassPlan {
    pub(super) sets: Vec<(ImageSet, SetAction)>,
    /// Names and uids of reports whose Node is gone.
    pub(super) orphans: Vec<(String, String)>,
    /// The next pass at the latest, where nothing changes.
    pub(super) wait: Option<Duration>,
    pub(super) sets_known: usize,
    pub(super) reports_known: usize,
}

impl ClusterView {
    /// Decides for all sets; `None`: not everything is listed yet.
    pub(super) fn plan(&self, memory: &mut PassMemory, wall: SystemTime, now: Instant) -> Option<PassPlan> {
        if !is_listed(&self.reports) || !is_listed(&self.nodes) {
            return None;
        }
        let all_sets = self.sets.listed()?;
        let (reports, nodes, no_labels) = (self.reports.state(), self.nodes.state(), Labels::new());
        let name = |metadata: &'_ ObjectMeta| -> String { metadata.name.clone().unwrap_or_default() };
        let reports: BTreeMap<String, Arc<NodeImages>> =
            reports.into_iter().map(|report| (name(&report.metadata), report)).collect();
        let nodes: BTreeMap<String, &Labels> = nodes
            .iter()
            .map(|node| (name(&node.metadata), node.metadata.labels.as_ref().unwrap_or(&no_labels)))
            .collect();
        let mut of_sets: BTreeMap<&str, BTreeMap<&str, &SetReport>> = BTreeMap::new();
        for (node, report) in &reports {
            for set in &report.sets {
                of_sets.entry(&set.uid).or_default().insert(node, set);
            }
        }
        let mut plan = PassPlan { reports_known: reports.len(), ..PassPlan::default() };
        let mut busy_now = BTreeSet::new();
        // In the order of the places, so that no namespace takes all writes of a pass.
        for (set, limit) in all_sets.iter().flat_map(|sets| sets.all()) {
            plan.sets_known += 1;
            let found = of_sets.get(set.uid.as_str());
            let mut full = 0;
            let selected = nodes.iter().filter(|(_, labels)| set.spec.selects(labels));
            let mut of_set: Vec<NodeReport<'_>> = selected
                .map(|(name, _)| {
                    let report = found.and_then(|found| found.get(name.as_str()).copied());
                    let is_full = || reports.get(name).is_some_and(|node| node.sets.len() >= REPORTED_SETS_MAX);
                    full += usize::from(report.is_none() && is_full());
                    let report = report.filter(|report| report.generation == set.generation);
                    let is_stalled = memory.is_stalled(set, name, report, now, &mut busy_now, &mut plan.wait);
                    let (place, phase) = (set.place_of(name), report.map(|report| report.phase));
                    (SelectedNode { name, place, phase, is_stalled }, report)
                })
                .collect();
            of_set.sort_by_key(|(node, _)| (node.place, node.name));
            let limit = limit.or_else(|| (full > 0).then_some(SetLimit::Report(full)));
            let action = decide(set, limit, &of_set, wall);
            if let SetAction::Idle { until } = &action {
                let deadline = set.deadline().filter(|deadline| *deadline > wall);
                for at in [*until, deadline].into_iter().flatten() {
                    soonest(&mut plan.wait, at.duration_since(wall).unwrap_or_default());
                }
                continue;
            }
            plan.sets.push((set.clone(), action));
        }
        memory.busy.retain(|key, _| busy_now.contains(key));
        let uids = reports.iter().map(|(name, report)| (name, &report.metadata.uid));
        memory.find_orphans(uids, &nodes, now, &mut plan);
        Some(plan)
    }
}

impl PassMemory {
    /// Whether a node that may begin and is not finished has reported nothing new for a long time.
    fn is_stalled(
        &mut self,
        set: &ImageSet,
        node: &str,
        report: Option<&SetReport>,
        now: Instant,
        busy_now: &mut BTreeSet<(String, String)>,
        wait: &mut Option<Duration>,
    ) -> bool {
        let is_busy = set.spec.max_concurrent_nodes.is_some()
            && set.admits(node)
            && !report.is_some_and(|report| report.phase.is_finished());
        if !is_busy {
            return false;
        }
        let key = (set.uid.clone(), node.to_owned());
        let last = self.busy.entry(key.clone()).or_insert_with(|| (report.cloned(), now));
        if last.0.as_ref() != report {
            *last = (report.cloned(), now);
        }
        busy_now.insert(key);
        let passed = now.saturating_duration_since(last.1);
        if passed < STALLED_AFTER {
            soonest(wait, STALLED_AFTER.saturating_sub(passed));
        }
        passed >= STALLED_AFTER
    }

    fn find_orphans<'a>(
        &mut self,
        reports: impl Iterator<Item = (&'a String, &'a Option<String>)>,
        nodes: &BTreeMap<String, &Labels>,
        now: Instant,
        plan: &mut PassPlan,
    ) {
        let orphans: BTreeMap<&String, &Option<String>> =
            reports.filter(|(name, _)| !nodes.contains_key(*name)).collect();
        self.orphans.retain(|name, _| orphans.contains_key(name));
        for (name, uid) in orphans {
            let since = *self.orphans.entry(name.clone()).or_insert(now);
            let passed = now.saturating_duration_since(since);
            if passed < ABSENT_FOR {
                soonest(&mut plan.wait, ABSENT_FOR.saturating_sub(passed));
            } else if let Some(uid) = uid {
                plan.orphans.push((name.clone(), uid.clone()));
            }
        }
    }
}

fn soonest(wait: &mut Option<Duration>, other: Duration) {
    *wait = Some(wait.map_or(other, |wait| wait.min(other)));
}
