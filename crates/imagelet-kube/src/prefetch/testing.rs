//! A node for tests of the agent: pulls that take a time, fail, or never end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    error::{ErrorClass, Stage},
    events::Event,
    image::{ByteSize, Digest},
    lock::locked,
    manager::EnsureRequest,
    ports::{LayerState, PullEvent, PullProgress, PullWatcher},
};

use super::node::{FetchConditions, FetchFailure, ImagePresence, PrefetchNode, SetPin};

/// The API group of the sets on the fake API server.
pub(crate) const GROUP: &str = "/apis/imagelet.dev/v1alpha1";
pub(crate) const SETS: &str = "/apis/imagelet.dev/v1alpha1/imagesets";
pub(crate) const REPORTS: &str = "/apis/imagelet.dev/v1alpha1/nodeimages";
pub(crate) const NODES: &str = "/api/v1/nodes";

/// A node in this process. Clones are the same node.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeNode(Arc<Mutex<NodeState>>);

#[derive(Debug, Default)]
struct NodeState {
    takes: Duration,
    failing: BTreeMap<String, FetchFailure>,
    /// Bytes a second and whole size of images whose layer comes over a network.
    layers: BTreeMap<String, (u64, u64)>,
    /// What came of these layers, over all attempts.
    received: BTreeMap<String, u64>,
    is_queued: bool,
    /// All attempts, in order.
    begun: Vec<String>,
    requests: Vec<EnsureRequest>,
    present: BTreeSet<String>,
    /// Images that were removed after their pull.
    removed: BTreeSet<String>,
    /// No pass has listed the images.
    is_unlisted: bool,
    pins: Vec<SetPin>,
    events: Vec<Event>,
}

impl FakeNode {
    /// Each pull takes this time.
    pub(crate) fn taking(takes: Duration) -> Self {
        let node = Self::default();
        locked(&node.0).takes = takes;
        node
    }

    /// Pulls of this image fail with this class, or with `None` no more.
    pub(crate) fn fail(&self, image: &str, class: Option<ErrorClass>) {
        let failure = |class| FetchFailure { class, stage: Stage::Token, message: "denied".into() };
        match class {
            Some(class) => locked(&self.0).failing.insert(image.into(), failure(class)),
            None => locked(&self.0).failing.remove(image),
        };
    }

    /// Pulls of this image receive so many bytes a second of so many, and continue where the last one was.
    pub(crate) fn send(&self, image: &str, rate: u64, size: u64) {
        locked(&self.0).layers.insert(image.into(), (rate, size));
    }

    /// Pulls wait for their turn, behind those of pods.
    pub(crate) fn queue(&self, is_queued: bool) {
        locked(&self.0).is_queued = is_queued;
    }

    /// Removes an image, as a kubelet does.
    pub(crate) fn lose(&self, image: &str) {
        locked(&self.0).removed.insert(image.to_owned());
    }

    /// Whether a pass has listed the images.
    pub(crate) fn list(&self, is_listed: bool) {
        locked(&self.0).is_unlisted = !is_listed;
    }

    /// The bytes of an image that came over the network.
    pub(crate) fn received(&self, image: &str) -> u64 {
        locked(&self.0).received.get(image).copied().unwrap_or_default()
    }

    /// The images whose pulls began, in order.
    pub(crate) fn begun(&self) -> Vec<String> {
        locked(&self.0).begun.clone()
    }

    pub(crate) fn requests(&self) -> Vec<EnsureRequest> {
        locked(&self.0).requests.clone()
    }

    /// The images that were asked for, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        locked(&self.0).requests.iter().map(|request| request.image().to_owned()).collect()
    }

    pub(crate) fn present(&self) -> usize {
        locked(&self.0).present.len()
    }

    pub(crate) fn pins(&self) -> Vec<String> {
        locked(&self.0).pins.iter().map(|pin| format!("{} by {}", pin.reference, pin.owner)).collect()
    }

    /// The events about the node, oldest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        locked(&self.0).events.clone()
    }

    async fn receive(&self, image: &str, (rate, size): (u64, u64), watcher: &PullWatcher) {
        let mut known = PullProgress::default();
        let mut progress = |event| {
            known.apply(event, tokio::time::Instant::now());
            watcher(&known);
        };
        let digest = Digest::of(image.as_bytes());
        progress(PullEvent::Resolved { manifest: digest.clone(), layers: vec![(digest.clone(), ByteSize(size))] });
        let mut of_attempt = 0;
        while locked(&self.0).received.get(image).copied().unwrap_or_default() < size {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if locked(&self.0).is_queued {
                continue;
            }
            *locked(&self.0).received.entry(image.to_owned()).or_default() += rate;
            of_attempt += rate;
            let state = LayerState::Fetching { received: ByteSize(of_attempt) };
            progress(PullEvent::Layer { digest: digest.clone(), state });
        }
        progress(PullEvent::Layer { digest, state: LayerState::Done });
    }
}

#[async_trait]
impl PrefetchNode for FakeNode {
    async fn presence(&self, _references: &BTreeSet<String>) -> ImagePresence {
        let state = locked(&self.0);
        if state.is_unlisted {
            return ImagePresence::default();
        }
        ImagePresence { taken_at: Some(SystemTime::now()), absent: state.removed.clone() }
    }

    async fn fetch(&self, request: EnsureRequest, watcher: PullWatcher) -> Result<(), FetchFailure> {
        let (takes, layer) = {
            let mut state = locked(&self.0);
            state.begun.push(request.image().to_owned());
            (state.takes, state.layers.get(request.image()).copied())
        };
        match layer {
            Some(layer) => self.receive(request.image(), layer, &watcher).await,
            None => tokio::time::sleep(takes).await,
        }
        let mut state = locked(&self.0);
        let image = request.image().to_owned();
        state.requests.push(request);
        if let Some(failure) = state.failing.get(&image) {
            return Err(failure.clone());
        }
        state.removed.remove(&image);
        state.present.insert(image);
        Ok(())
    }

    fn conditions(&self) -> FetchConditions {
        FetchConditions { is_queued: locked(&self.0).is_queued, is_measured: true, ..FetchConditions::default() }
    }

    async fn pin(&self, pins: &[SetPin]) -> Result<(), String> {
        locked(&self.0).pins = pins.to_vec();
        Ok(())
    }

    fn record(&self, event: Event) {
        locked(&self.0).events.push(event);
    }
}
