//! A node for tests of the agent: pulls that take a time, fail, or never end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use imagelet_core::{
    events::Event,
    manager::EnsureRequest,
    runtime::{ErrorClass, Progress, Stage},
};

use super::node::{FetchFailure, ImagePresence, PrefetchNode, SetPin};

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
    requests: Vec<EnsureRequest>,
    present: BTreeSet<String>,
    pins: Vec<SetPin>,
    events: Vec<Event>,
}

impl FakeNode {
    /// Each pull takes this time.
    pub(crate) fn taking(takes: Duration) -> Self {
        let node = Self::default();
        node.lock().takes = takes;
        node
    }

    /// Pulls of this image fail with this class, or with `None` no more.
    pub(crate) fn fail(&self, image: &str, class: Option<ErrorClass>) {
        let failure = |class| FetchFailure { class, hop: Stage::Token, message: "denied".into() };
        match class {
            Some(class) => self.lock().failing.insert(image.into(), failure(class)),
            None => self.lock().failing.remove(image),
        };
    }

    pub(crate) fn requests(&self) -> Vec<EnsureRequest> {
        self.lock().requests.clone()
    }

    /// The images that were asked for, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.lock().requests.iter().map(|request| request.image.clone()).collect()
    }

    pub(crate) fn present(&self) -> usize {
        self.lock().present.len()
    }

    pub(crate) fn pins(&self) -> Vec<String> {
        self.lock().pins.iter().map(|pin| format!("{} by {}", pin.reference, pin.owner)).collect()
    }

    /// The events about the node, oldest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl PrefetchNode for FakeNode {
    fn presence(&self, _references: &BTreeSet<String>) -> ImagePresence {
        ImagePresence::default()
    }

    async fn fetch(&self, request: EnsureRequest, _progress: Progress) -> Result<(), FetchFailure> {
        let takes = self.lock().takes;
        tokio::time::sleep(takes).await;
        let mut state = self.lock();
        let image = request.image.clone();
        state.requests.push(request);
        if let Some(failure) = state.failing.get(&image) {
            return Err(failure.clone());
        }
        state.present.insert(image);
        Ok(())
    }

    async fn pin(&self, pins: &[SetPin]) -> Result<(), String> {
        self.lock().pins = pins.to_vec();
        Ok(())
    }

    fn record(&self, event: Event) {
        self.lock().events.push(event);
    }
}
