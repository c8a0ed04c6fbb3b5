//! Fetches the images of a pod when the pod is bound to the node. The kubelet requests them later, one after the other.
//!
//! The pulls use the credentials of the pod and of the node, wait in the manager's queue, and are shared with the
//! kubelet's pulls. Each image of a pod is fetched ahead once. After that, only the kubelet requests the image.

mod plan;

use std::{collections::HashMap, num::NonZeroUsize, sync::Arc};

use imagelet_core::{
    error::ErrorClass,
    events::EventSink,
    image::{ImageSpec, Reference, default_tag},
    manager::{Caller, EnsureError, EnsureRequest, ImageManager, PodRole, PullPolicy},
    metrics::{MetricKind, Metrics, families},
    ports::{Patience, PullRequest, RuntimeManager, unwatched},
};
use kube::Client;
use tokio_util::task::JoinMap;

use self::plan::{Fetch, FetchState, plan};
use crate::{credentials::PullSecrets, node_events::failure_event, pods::PodsReceiver};

/// The priority of look-ahead pulls. The kubelet's pulls come first, because containers wait for them.
const PRIORITY: i32 = -10;

families! {
    IMAGES = "imagelet_look_ahead_images_total",
        "Images of bound pods that were fetched ahead, by outcome: present, pulled, failed, held_back, cancelled.",
        MetricKind::Counter, &["outcome"];
}

#[derive(Clone, Debug)]
pub struct LookAheadParts {
    pub manager: Arc<ImageManager>,
    pub runtime: RuntimeManager,
    pub images_max: NonZeroUsize,
    pub events: Arc<dyn EventSink>,
}

#[derive(Clone)]
pub(crate) struct LookAhead {
    parts: LookAheadParts,
    secrets: Arc<PullSecrets>,
    metrics: Arc<Metrics>,
}

impl LookAhead {
    pub(crate) fn new(parts: LookAheadParts, client: Client, metrics: Arc<Metrics>) -> Self {
        metrics.declare(&IMAGES);
        Self { parts, secrets: Arc::new(PullSecrets::new(client)), metrics }
    }

    pub(crate) async fn run(&self, mut pods: PodsReceiver) {
        let (mut states, mut tasks) = (HashMap::new(), JoinMap::new());
        loop {
            tokio::select! {
                changed = pods.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                Some((key, ended)) = tasks.join_next() => {
                    match ended {
                        Ok(()) => {}
                        Err(error) if error.is_cancelled() => self.metrics.increment(&IMAGES, &["cancelled"]),
                        Err(error) => tracing::error!(%error, "a look-ahead did not end well"),
                    }
                    states.entry(key).and_modify(|state| *state = FetchState::Ended);
                }
            }
            let plan = plan(&pods.borrow_and_update(), &states, self.parts.images_max);
            for key in plan.cancel {
                tracing::debug!(pod = &*key.pod.name, image = &*key.image, "no container waits for a look-ahead");
                tasks.abort(&key);
                // The fetch counts as ended from now on, although its task ends later.
                states.insert(key, FetchState::Ended);
            }
            for key in &plan.forget {
                states.remove(key);
            }
            for fetch in plan.begin {
                let (look_ahead, key) = (self.clone(), fetch.key.clone());
                states.insert(key.clone(), FetchState::Running);
                tasks.spawn(key, async move { look_ahead.fetch(&fetch).await });
            }
        }
    }

    async fn fetch(&self, fetch: &Fetch) {
        let pod = fetch.pod.full_name();
        let image = &*fetch.image.image;
        let end = match self.ensure(fetch).await {
            Ok(end) => end,
            Err(error) if error.class() == ErrorClass::HeldBack => {
                tracing::debug!(pod, image, error = error.message(), "an image of a pod is not fetched ahead");
                "held_back"
            }
            Err(error) => {
                // The failure is not logged, because the event sink logs the event.
                let (what, at) = ("could not fetch an image ahead", (error.class(), error.stage()));
                let message = format!("could not fetch `{image}` ahead for the pod `{pod}`: {}", error.message());
                self.parts.events.record(failure_event("LookAheadFailed", message, what, image, at));
                "failed"
            }
        };
        self.metrics.increment(&IMAGES, &[end]);
    }

    async fn ensure(&self, fetch: &Fetch) -> Result<&'static str, EnsureError> {
        let image = self.spelling(&fetch.image.image);
        if fetch.image.policy != PullPolicy::Always && self.is_present(&image).await {
            return Ok("present");
        }
        let secrets = self.secrets.of_pod(&fetch.pod).await;
        let is_for_start = fetch.image.role < PodRole::Container;
        let pull = PullRequest {
            image: ImageSpec::new(image),
            pod: fetch.key.pod.clone(),
            // One retry is enough, because the kubelet's own request follows and may share this pull.
            patience: Patience::ONE_RETRY,
            ..PullRequest::default()
        };
        let request = EnsureRequest {
            pull,
            policy: fetch.image.policy.clone(),
            caller: Caller::LookAhead,
            service_account: Some(fetch.pod.service_account.to_string()).filter(|name| !name.is_empty()),
            container: fetch.image.field().into(),
            secrets,
            priority: PRIORITY + i32::from(is_for_start),
        };
        self.parts.manager.ensure(&request, unwatched()).await.map(|_| "pulled")
    }

    /// Spells the image as the kubelet's CRI request does, so that both share a pull. A runtime gets it unchanged.
    fn spelling(&self, image: &str) -> String {
        match image.parse::<Reference>() {
            Ok(reference) if self.parts.runtime.local().is_some() => reference.canonical().to_string(),
            _ => image.to_owned(),
        }
    }

    /// An image whose presence is unknown is treated as absent, because the manager checks the presence again.
    async fn is_present(&self, image: &str) -> bool {
        let Ok(name) = default_tag(image) else { return false };
        match self.parts.runtime.usable(&ImageSpec::new(name)).await {
            Ok(found) => found.is_some(),
            Err(error) => {
                tracing::debug!(image, error = error.chain(), "could not look for an image");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
