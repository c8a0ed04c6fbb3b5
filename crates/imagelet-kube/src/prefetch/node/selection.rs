//! The sets that select a node: by the labels of the node, and by the pods that are bound to it. A pure function.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    pods::BoundPod,
    prefetch::objects::{ImageSet, SetScope},
};

/// A set stays selected for this time after its last pod ended, so that a recreated pod ends no pull and no pin.
pub(super) const LINGER: Duration = Duration::from_mins(2);

/// For each set with a pod selector, by its uid: when it last matched a bound pod.
pub(super) type LastMatches = BTreeMap<String, Instant>;

#[derive(Debug, Default)]
pub(super) struct SelectedSets {
    pub(super) sets: Vec<ImageSet>,
    pub(super) gated_beyond: Vec<ImageSet>,
}

impl SelectedSets {
    /// The sets of `self` that select the node, in the order of `self`. A namespaced set sees only the pods of its
    /// namespace. `pods` is `None` before the first list of pods; until then, a set that matched before still matches.
    pub(super) fn selecting(
        mut self,
        labels: &BTreeMap<String, String>,
        pods: Option<&[Arc<BoundPod>]>,
        last: &mut LastMatches,
        now: Instant,
    ) -> Self {
        let mut matches = LastMatches::new();
        let mut is_selected = |set: &ImageSet| {
            let Some(selector) = &set.spec.pod_selector else { return set.spec.selects(labels) };
            let sees =
                |pod: &BoundPod| set.name.scope == SetScope::Cluster || *pod.identity.namespace == *set.name.namespace;
            let matched = |pod: &BoundPod| sees(pod) && pod.labels.as_ref().is_some_and(|it| selector.matches(it));
            let before = last.get(&set.uid).copied();
            let at = match pods {
                None => before.map(|_| now),
                Some(pods) if pods.iter().any(|pod| matched(pod)) => Some(now),
                Some(_) => before.filter(|at| now.saturating_duration_since(*at) < LINGER),
            };
            matches.extend(at.map(|at| (set.uid.clone(), at)));
            at.is_some() && set.spec.selects(labels)
        };
        self.sets.retain(&mut is_selected);
        self.gated_beyond.retain(&mut is_selected);
        *last = matches;
        self
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::events::PodIdentity;

    use super::*;
    use crate::prefetch::objects::testing::set_of;

    fn labelled(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn pod(namespace: &str, labels: Option<&[(&str, &str)]>) -> Arc<BoundPod> {
        Arc::new(BoundPod {
            identity: PodIdentity { namespace: namespace.into(), name: "web-1".into(), uid: "u1".into() },
            labels: labels.map(labelled),
            service_account: "".into(),
            pull_secrets: Vec::new(),
            images: Vec::new(),
            left_out: 0,
        })
    }

    fn names(sets: &[ImageSet]) -> Vec<&str> {
        sets.iter().map(|set| set.name.name.as_str()).collect()
    }

    /// Sets for nodes of the pool `gpu`, and for pods of the application `web`.
    fn sets() -> SelectedSets {
        let sets = [
            (SetScope::Namespace, "nodes"),
            (SetScope::Namespace, "pods"),
            (SetScope::Namespace, "both"),
            (SetScope::Cluster, "cluster"),
        ]
        .map(|(scope, name)| {
            let mut set = set_of(scope, if scope == SetScope::Cluster { "" } else { "shop" }, name, &["a:1"]);
            if ["nodes", "both"].contains(&name) {
                set.spec.node_selector = labelled(&[("pool", "gpu")]);
            }
            if name != "nodes" {
                let selector = serde_json::json!({"matchLabels": {"app": "web"}});
                set.spec.pod_selector = serde_json::from_value(selector).unwrap();
            }
            set
        });
        SelectedSets { sets: sets.to_vec(), gated_beyond: sets.to_vec() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_selects_the_nodes_to_which_a_pod_of_its_namespace_is_bound_and_with_both_selectors_needs_both() {
        let (gpu, web): (&[_], &[_]) = (&[("pool", "gpu")], &[("app", "web"), ("tier", "front")]);
        let other: &[_] = &[("app", "other")];
        for (labels, pods, expected) in [
            (gpu, vec![], &["nodes"][..]),
            (gpu, vec![pod("shop", Some(web))], &["nodes", "pods", "both", "cluster"]),
            (&[], vec![pod("shop", Some(web))], &["pods", "cluster"]),
            (&[], vec![pod("shop", Some(other))], &[]),
            (&[], vec![pod("shop", Some(other)), pod("shop", Some(web))], &["pods", "cluster"]),
            // A pod of another tenant selects sets of the cluster alone.
            (gpu, vec![pod("bank", Some(web))], &["nodes", "cluster"]),
            // Its labels are over the limit.
            (&[], vec![pod("shop", None)], &[]),
        ] {
            let now = Instant::now();
            let selected = sets().selecting(&labelled(labels), Some(&pods), &mut LastMatches::new(), now);
            assert_eq!(names(&selected.sets), expected, "{labels:?} {pods:?}");
            assert_eq!(names(&selected.gated_beyond), expected, "{labels:?} {pods:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_stays_selected_for_two_minutes_after_its_last_pod_and_never_on_a_node_without_its_labels() {
        let (mut last, start) = (LastMatches::new(), Instant::now());
        let web: &[_] = &[("app", "web")];
        for (seconds, pods, labels, expected) in [
            (0, Some(vec![]), &[][..], &[][..]),
            (1, None, &[], &[]),
            (10, Some(vec![pod("shop", Some(web))]), &[], &["pods", "cluster"]),
            (20, Some(vec![]), &[], &["pods", "cluster"]),
            (129, Some(vec![]), &[("pool", "gpu")], &["nodes", "pods", "both", "cluster"]),
            (130, Some(vec![]), &[("pool", "gpu")], &["nodes"]),
            (131, Some(vec![]), &[], &[]),
        ] {
            let now = start + Duration::from_secs(seconds);
            let selected = sets().selecting(&labelled(labels), pods.as_deref(), &mut last, now);
            assert_eq!(names(&selected.sets), expected, "after {seconds} s");
        }
        assert!(last.is_empty(), "nothing is kept of pods that ended long ago");
        // After a restart, the pods are not known yet.
        last = ["uid-pods", "uid-deleted"].map(|uid| (uid.to_owned(), start)).into();
        for (seconds, pods, expected) in
            [(0, None, &["pods"][..]), (600, None, &["pods"]), (719, Some(vec![]), &["pods"]), (720, Some(vec![]), &[])]
        {
            let now = start + Duration::from_secs(seconds);
            let selected = sets().selecting(&labelled(&[]), pods.as_deref(), &mut last, now);
            assert_eq!(names(&selected.sets), expected, "{seconds} s after the restart");
        }
    }
}
