//! Decides which images of which pods are fetched ahead, and which fetches are cancelled: a pure function.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    num::NonZeroUsize,
    sync::Arc,
};

use imagelet_core::{events::PodIdentity, manager::PullPolicy};

use crate::pods::{BoundPod, PodImageUse};

/// One image of one pod, as the pod spells it. All containers of the pod with this image share one fetch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FetchKey {
    pub(super) pod: PodIdentity,
    pub(super) image: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchState {
    Running,
    /// After a success, a failure or a cancellation, only the kubelet requests the image.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) key: FetchKey,
    pub(super) pod: Arc<BoundPod>,
    /// The first use of the image in the pod, with the strongest policy of all its uses.
    pub(super) image: PodImageUse,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FetchPlan {
    pub(super) begin: Vec<Fetch>,
    pub(super) cancel: Vec<FetchKey>,
    pub(super) forget: Vec<FetchKey>,
}

/// At most `running_max` fetches run. The first image of every pod is fetched before the second image of any pod.
pub(super) fn plan(
    pods: &[Arc<BoundPod>],
    fetches: &HashMap<FetchKey, FetchState>,
    running_max: NonZeroUsize,
) -> FetchPlan {
    let mut wanted: BTreeMap<(usize, usize), Fetch> = BTreeMap::new();
    let mut keys = HashSet::new();
    let mut named = HashSet::new();
    for (at, pod) in pods.iter().enumerate() {
        let key = |image: &Arc<str>| FetchKey { pod: pod.identity.clone(), image: Arc::clone(image) };
        let images: BTreeSet<&Arc<str>> = pod.images.iter().map(|it| &it.image).collect();
        named.extend(images.into_iter().map(key));
        for (position, image) in images_to_fetch(pod).into_iter().enumerate() {
            let key = key(&image.image);
            keys.insert(key.clone());
            wanted.insert((position, at), Fetch { key, pod: Arc::clone(pod), image });
        }
    }
    let mut plan = FetchPlan::default();
    for (key, state) in fetches {
        match state {
            FetchState::Running if !keys.contains(key) => plan.cancel.push(key.clone()),
            FetchState::Ended if !named.contains(key) => plan.forget.push(key.clone()),
            FetchState::Running | FetchState::Ended => {}
        }
    }
    let running = fetches.values().filter(|state| **state == FetchState::Running).count();
    let free = running_max.get().saturating_sub(running.saturating_sub(plan.cancel.len()));
    plan.begin = wanted.into_values().filter(|fetch| !fetches.contains_key(&fetch.key)).take(free).collect();
    plan
}

/// The images that containers wait for, in the kubelet's order.
fn images_to_fetch(pod: &BoundPod) -> Vec<PodImageUse> {
    let mut found: Vec<PodImageUse> = Vec::new();
    for image in pod.images.iter().filter(|it| it.waits) {
        match (found.iter_mut().find(|other| other.image == image.image), &image.policy) {
            (Some(other), PullPolicy::Always) => other.policy = PullPolicy::Always,
            (None, PullPolicy::Always | PullPolicy::IfNotPresent) => found.push(image.clone()),
            // `Never`, and a policy that the API server does not know, start no fetch.
            (_, _) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use imagelet_core::manager::PodRole;

    use super::*;

    /// A pod by `NAME`, with images as `IMAGE POLICY`; one in brackets has its container.
    fn pod(name: &str, images: &[&str]) -> Arc<BoundPod> {
        let image = |text: &&str| {
            let waits = !text.starts_with('(');
            let (image, policy) = text.trim_matches(['(', ')']).split_once(' ').unwrap();
            PodImageUse {
                role: PodRole::Container,
                name: image.into(),
                image: image.into(),
                policy: PullPolicy::as_written(policy),
                waits,
            }
        };
        Arc::new(BoundPod {
            labels: None,
            identity: PodIdentity { namespace: "shop".into(), name: name.into(), uid: format!("uid-{name}").into() },
            service_account: "default".into(),
            pull_secrets: Vec::new(),
            images: images.iter().map(image).collect(),
            left_out: 0,
        })
    }

    fn key(name: &str, image: &str) -> FetchKey {
        FetchKey { pod: pod(name, &[]).identity.clone(), image: image.into() }
    }

    /// `POD/IMAGE POLICY` of what begins, and `POD/IMAGE` of what is cancelled and forgotten.
    fn planned(pods: &[Arc<BoundPod>], fetches: &[(&str, &str, FetchState)], max: usize) -> [Vec<String>; 3] {
        let fetches = fetches.iter().map(|(pod, image, state)| (key(pod, image), *state)).collect();
        let FetchPlan { begin, cancel, forget } = plan(pods, &fetches, NonZeroUsize::new(max).unwrap());
        let text = |key: &FetchKey| format!("{}/{}", key.pod.name, key.image);
        let sorted = |keys: &[FetchKey]| {
            let mut texts: Vec<String> = keys.iter().map(text).collect();
            texts.sort();
            texts
        };
        let begin = begin.iter().map(|fetch| format!("{} {}", text(&fetch.key), fetch.image.policy)).collect();
        [begin, sorted(&cancel), sorted(&forget)]
    }

    fn begun(pods: &[Arc<BoundPod>], fetches: &[(&str, &str, FetchState)], max: usize) -> Vec<String> {
        let [begin, cancel, forget] = planned(pods, fetches, max);
        assert_eq!((cancel, forget), (vec![], vec![]));
        begin
    }

    #[test]
    fn every_image_that_a_pod_waits_for_begins_once_under_its_policy() {
        for (images, expected) in [
            (&["a:1 IfNotPresent", "b Always"][..], &["web/a:1 IfNotPresent", "web/b Always"][..]),
            (&["a:1 Never"], &[]),
            (&["a:1 always"], &[]),
            (&["(a:1 IfNotPresent)", "b:1 IfNotPresent"], &["web/b:1 IfNotPresent"]),
            (&["a:1 IfNotPresent", "a:1 Always", "a:1 Never"], &["web/a:1 Always"]),
            (&["a:1 Never", "a:1 IfNotPresent"], &["web/a:1 IfNotPresent"]),
            (&["(a:1 Always)", "a:1 IfNotPresent"], &["web/a:1 IfNotPresent"]),
            (&[], &[]),
        ] {
            assert_eq!(begun(&[pod("web", images)], &[], 9), expected, "{images:?}");
        }
    }

    #[test]
    fn the_first_image_of_every_pod_comes_before_the_second_of_any_up_to_the_budget() {
        let pods = [pod("a", &["1 Always", "2 Always"]), pod("b", &["3 Always", "4 Always"]), pod("c", &["5 Always"])];
        let all = ["a/1 Always", "b/3 Always", "c/5 Always", "a/2 Always", "b/4 Always"];
        for max in 1..7 {
            assert_eq!(begun(&pods, &[], max), all[..max.min(5)]);
        }
        let (running, ended) = (FetchState::Running, FetchState::Ended);
        let fetches = [("a", "1", running), ("b", "3", ended), ("c", "5", running)];
        assert_eq!(begun(&pods, &fetches, 3), ["a/2 Always"]);
        assert_eq!(begun(&pods, &fetches, 2), [""; 0]);
        assert_eq!(begun(&pods, &fetches, 1), [""; 0], "a lower budget ends nothing that runs");
    }

    #[test]
    fn a_fetch_ends_with_its_pod_or_once_no_container_waits_for_it_and_is_not_repeated_before() {
        let (running, ended) = (FetchState::Running, FetchState::Ended);
        let one = |images: &[&str]| vec![pod("web", images)];
        for (pods, state, begin, cancel, forget) in [
            (one(&["a:1 Always"]), running, 0, 0, 0),
            (one(&["a:1 Always"]), ended, 0, 0, 0),
            (one(&["(a:1 Always)"]), running, 0, 1, 0),
            (one(&["(a:1 Always)"]), ended, 0, 0, 0),
            (one(&["b:1 Never"]), running, 0, 1, 0),
            (one(&["b:1 Never"]), ended, 0, 0, 1),
            (vec![], running, 0, 1, 0),
            (vec![], ended, 0, 0, 1),
            // Deleted, and created again under the same name.
            (vec![pod("other", &["a:1 Always"])], running, 1, 1, 0),
            (vec![pod("other", &["a:1 Always"])], ended, 1, 0, 1),
        ] {
            let [begun, cancelled, forgotten] = planned(&pods, &[("web", "a:1", state)], 1);
            assert_eq!((begun.len(), cancelled.len(), forgotten.len()), (begin, cancel, forget), "{pods:?} {state:?}");
        }
    }

    #[test]
    fn a_pod_of_another_uid_is_another_pod() {
        let mut again = BoundPod::clone(&pod("web", &["a:1 Always"]));
        again.identity.uid = "uid-second".into();
        let [begin, cancel, _] = planned(&[Arc::new(again)], &[("web", "a:1", FetchState::Running)], 1);
        assert_eq!((begin.len(), cancel.len()), (1, 1));
    }
}
