//! The controller's view of the cluster: sets, nodes and reports, and the nodes whose report does not change.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, core::PartialObjectMeta, runtime::reflector::Store};
use tokio::{sync::Notify, time::Instant};

use super::{
    summary::{SetAction, decide},
    waves::SelectedNode,
};
use crate::{
    prefetch::objects::{
        ImageSet, KnownSets, NodeImages, REPORTED_SETS_MAX, SetLimit, SetPhase, SetReport, SharedSets,
    },
    watch::is_listed,
};

/// If the report of an admitted node does not change for this time, the node is stalled and does not delay other nodes.
const STALLED_AFTER: Duration = Duration::from_mins(15);

#[derive(Debug)]
pub(super) struct ClusterView {
    pub(super) sets: SharedSets,
    pub(super) reports: Store<NodeImages>,
    pub(super) nodes: Store<PartialObjectMeta<Node>>,
    pub(super) changed: Notify,
}

/// The last report of each busy node and the time of its change, by set uid and node. Each new leader starts anew.
pub(super) type BusyNodes = HashMap<(String, String), (Option<SetReport>, Instant)>;

#[derive(Debug, Default)]
pub(super) struct PassPlan {
    pub(super) sets: Vec<(ImageSet, SetAction)>,
    pub(super) next: Option<Instant>,
    pub(super) sets_known: usize,
    pub(super) reports_known: usize,
}

impl ClusterView {
    /// Decides what to do for each set. `None` means that the sets, nodes or reports are not listed yet.
    pub(super) fn plan(&self, busy: &mut BusyNodes, wall: SystemTime, now: Instant) -> Option<PassPlan> {
        if !is_listed(&self.reports) || !is_listed(&self.nodes) {
            return None;
        }
        let all_sets = self.sets.listed()?;
        let nodes = self.nodes.state();
        let nodes: BTreeMap<String, _> = nodes.iter().map(|node| (node.name_any(), node.labels())).collect();
        let reports: BTreeMap<String, Arc<NodeImages>> =
            self.reports.state().into_iter().map(|report| (report.name_any(), report)).collect();
        let mut of_sets: HashMap<(&str, &str), &SetReport> = HashMap::new();
        for (node, report) in &reports {
            of_sets.extend(report.sets.iter().map(|set| ((set.uid.as_str(), node.as_str()), set)));
        }
        let mut plan = PassPlan { reports_known: reports.len(), ..PassPlan::default() };
        let soonest = |next: &mut Option<Instant>, at| *next = Some(next.map_or(at, |next| next.min(at)));
        let mut still_busy = BusyNodes::new();
        // The order of places prevents that one namespace uses all writes of a pass.
        for (set, limit) in all_sets.iter().flat_map(KnownSets::placed) {
            plan.sets_known += 1;
            let (mut selected, mut is_full) = (Vec::new(), false);
            for (name, _) in nodes.iter().filter(|(_, labels)| set.spec.selects(labels)) {
                let report = of_sets.get(&(set.uid.as_str(), name.as_str())).copied();
                is_full |=
                    report.is_none() && reports.get(name).is_some_and(|node| node.sets.len() >= REPORTED_SETS_MAX);
                // Only a node knows its pods. It reports the sets that match them.
                if set.spec.pod_selector.is_some() && report.is_none() {
                    continue;
                }
                let report = report.filter(|report| report.generation == set.generation);
                let phase = report.map(|report| report.phase);
                let mut node = SelectedNode {
                    name,
                    place: set.place_of(name),
                    phase,
                    images: report.map_or(&[], |report| &report.images),
                    is_stalled: false,
                };
                let may_begin = set.spec.max_concurrent_nodes.is_some() && set.admits(name);
                if may_begin && !phase.is_some_and(SetPhase::is_finished) {
                    let key = (set.uid.clone(), name.clone());
                    let same = busy.remove(&key).filter(|(before, _)| before.as_ref() == report);
                    let same = same.unwrap_or_else(|| (report.cloned(), now));
                    let stalled_at = same.1 + STALLED_AFTER;
                    still_busy.insert(key, same);
                    node.is_stalled = stalled_at <= now;
                    if !node.is_stalled {
                        soonest(&mut plan.next, stalled_at);
                    }
                }
                selected.push(node);
            }
            selected.sort_by_key(|node| (node.place, node.name));
            let limit = limit.or(is_full.then_some(SetLimit::Report));
            match decide(set, limit, &selected, wall) {
                SetAction::Idle { until } => {
                    let deadline = set.deadline().filter(|deadline| *deadline > wall);
                    for at in [until, deadline].into_iter().flatten() {
                        soonest(&mut plan.next, now + at.duration_since(wall).unwrap_or_default());
                    }
                }
                action => plan.sets.push((set.clone(), action)),
            }
        }
        *busy = still_busy;
        Some(plan)
    }
}
