//! The pods that need no more images, and the end of the requests for these pods (`docs/spec/pull.md §2.11`).

use std::{collections::HashMap, fmt, sync::Arc};

use tokio::sync::watch;

use super::request::{Caller, EnsureRequest};
use crate::{bounded_map::make_room, image::Reference, inventory::WaitingPod};

/// The maximum number of ended pods. Above it, the earliest end is dropped; a node has some hundred pods.
const ENDED_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodEnd {
    /// The pod has a deletion timestamp.
    Deleted,
    /// The phase of the pod is `Succeeded` or `Failed`.
    Finished,
    /// The pod was known and is absent from the API server.
    Removed,
}

impl fmt::Display for PodEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deleted => "is being deleted",
            Self::Finished => "has finished",
            Self::Removed => "was removed from the API server",
        })
    }
}

#[derive(Debug, Default)]
pub struct PodChanges {
    /// The pods that need no more images, by uid. A second end of a pod is ignored.
    pub ended: Vec<(Arc<str>, PodEnd)>,
    pub alive: Vec<Arc<str>>,
    pub waiting: Vec<WaitingPod>,
}

/// What the agent of the node knows about its pods. Without an agent, no pod ends.
#[derive(Debug, Default)]
pub(super) struct PodsView {
    /// The ended pods by uid, each with the sequence number of its end.
    ended: HashMap<Arc<str>, (u64, PodEnd)>,
    sequence: u64,
    waiting: Vec<WaitingPod>,
}

impl PodsView {
    fn change(&mut self, changes: PodChanges) {
        for (uid, end) in changes.ended {
            if uid.is_empty() || self.ended.contains_key(&uid) {
                continue;
            }
            make_room(&mut self.ended, &uid, ENDED_MAX, |(sequence, _)| *sequence);
            self.sequence += 1;
            self.ended.insert(uid, (self.sequence, end));
        }
        // After the API server is restored from a backup, a removed pod may be alive again.
        for uid in changes.alive {
            self.ended.remove(&uid);
        }
        self.waiting = changes.waiting;
    }

    fn end_of(&self, uid: &str) -> Option<PodEnd> {
        self.ended.get(uid).map(|(_, end)| *end)
    }

    /// Whether another pod waits for the image, so that a pull gets its usual grace. `image` is normalised.
    fn is_awaited(&self, image: Option<&Reference>) -> bool {
        let is_image = |name: &Arc<str>| name.parse::<Reference>().is_ok_and(|name| Some(&name.canonical()) == image);
        self.waiting.iter().flat_map(|pod| &pod.images).any(is_image)
    }
}

#[derive(Debug, Default)]
pub(super) struct EndedPods(watch::Sender<PodsView>);

impl EndedPods {
    pub(super) fn change(&self, changes: PodChanges) {
        self.0.send_modify(|view| view.change(changes));
    }

    /// Binds a request of a kubelet or of the look-ahead to its pod. Other requests do not end with a pod.
    pub(super) fn bond(&self, request: &EnsureRequest) -> PodBond {
        let is_bound = matches!(request.caller, Caller::Client { .. } | Caller::LookAhead);
        let uid = if is_bound { Arc::clone(&request.pull.pod.uid) } else { Arc::default() };
        let image = request.image().parse::<Reference>().ok().map(|image| image.canonical());
        PodBond { view: self.0.subscribe(), uid, image }
    }
}

#[derive(Clone)]
pub(super) struct PodBond {
    view: watch::Receiver<PodsView>,
    /// The uid of the pod; empty if the request does not end with a pod.
    uid: Arc<str>,
    image: Option<Reference>,
}

impl PodBond {
    pub(super) fn end(&self) -> Option<PodEnd> {
        self.view.borrow().end_of(&self.uid)
    }

    pub(super) async fn ended(self) -> PodEnd {
        let Self { mut view, uid, .. } = self;
        match view.wait_for(|view| view.end_of(&uid).is_some()).await.ok().and_then(|view| view.end_of(&uid)) {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }

    /// Returns when the pod has ended and no other pod waits for the image.
    pub(super) async fn unwanted(self) {
        let Self { mut view, uid, image } = self;
        let is_over = |view: &PodsView| view.end_of(&uid).is_some() && !view.is_awaited(image.as_ref());
        if view.wait_for(is_over).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(pods: &[(&str, &[&str])]) -> Vec<WaitingPod> {
        let pod = |(pod, images): &(&str, &[&str])| WaitingPod {
            pod: (*pod).into(),
            images: images.iter().map(|image| (*image).into()).collect(),
        };
        pods.iter().map(pod).collect()
    }

    fn ended(pods: &[(&str, PodEnd)]) -> PodChanges {
        let ended = pods.iter().map(|(uid, end)| ((*uid).into(), *end)).collect();
        PodChanges { ended, ..PodChanges::default() }
    }

    fn end_of(view: &PodsView, uid: &str) -> Option<(PodEnd, bool)> {
        let image = "app:v1".parse::<Reference>().unwrap().canonical();
        view.end_of(uid).map(|end| (end, view.is_awaited(Some(&image))))
    }

    #[test]
    fn a_request_ends_with_its_pod_alone_and_the_fetch_has_a_grace_where_another_pod_waits_for_the_image() {
        let none = &[][..];
        let other = &[("shop/other", &["app:v2", "docker.io/library/app:v1"][..])][..];
        let others = &[("shop/a", &["app:v2"][..]), ("shop/b", &["reg.test/app:v1"][..])][..];
        let broken = &[("shop/a", &["", "UPPER", "*"][..])][..];
        for (uid, ends, pods, expected) in [
            ("u1", &[("u1", PodEnd::Deleted)][..], none, Some((PodEnd::Deleted, false))),
            ("u1", &[("u1", PodEnd::Finished)], none, Some((PodEnd::Finished, false))),
            ("u1", &[("u1", PodEnd::Removed)], none, Some((PodEnd::Removed, false))),
            ("u1", &[("u1", PodEnd::Deleted), ("u1", PodEnd::Removed)], none, Some((PodEnd::Deleted, false))),
            // Unknown is not ended, and a pod of another uid is another pod.
            ("u1", &[], none, None),
            ("u1", &[("u2", PodEnd::Deleted)], other, None),
            ("", &[("", PodEnd::Deleted)], none, None),
            ("u1", &[("u1", PodEnd::Deleted)], other, Some((PodEnd::Deleted, true))),
            ("u1", &[("u1", PodEnd::Deleted)], others, Some((PodEnd::Deleted, false))),
            ("u1", &[("u1", PodEnd::Deleted)], broken, Some((PodEnd::Deleted, false))),
        ] {
            let mut view = PodsView::default();
            view.change(PodChanges { waiting: waiting(pods), ..ended(ends) });
            assert_eq!(end_of(&view, uid), expected, "{uid} {ends:?} {pods:?}");
        }
    }

    #[test]
    fn a_pod_stays_ended_until_the_api_server_has_it_again() {
        let mut view = PodsView::default();
        view.change(ended(&[("u1", PodEnd::Removed), ("u2", PodEnd::Removed)]));
        view.change(PodChanges { alive: vec!["u3".into()], ..PodChanges::default() });
        assert_eq!(end_of(&view, "u1"), Some((PodEnd::Removed, false)));
        view.change(PodChanges { alive: vec!["u1".into()], ..PodChanges::default() });
        assert_eq!((end_of(&view, "u1"), end_of(&view, "u2")), (None, Some((PodEnd::Removed, false))));
    }

    #[test]
    fn the_memory_of_ended_pods_is_bounded_and_forgets_the_earliest_end() {
        let mut view = PodsView::default();
        for number in 0..=ENDED_MAX {
            view.change(ended(&[(&format!("u{number}"), PodEnd::Deleted)]));
        }
        assert_eq!(view.ended.len(), ENDED_MAX);
        assert_eq!((end_of(&view, "u0"), end_of(&view, "u1")), (None, Some((PodEnd::Deleted, false))));
    }
}
