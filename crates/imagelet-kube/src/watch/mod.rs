//! The watch of the node's pods: one list, then changes, resumed where it ended.
//!
//! The API server is the only source. While it is away the last known pods stay: nothing is released by its absence.

mod events;
mod health;
mod known_pods;
mod pace;
mod pods_api;

use std::sync::Arc;

use kube::Client;
use tokio::time::Instant;

pub use self::health::{WatchHealth, WatchReport};
use self::{
    events::PodEvent,
    health::WatchEnd,
    pace::random,
    pods_api::{ListSource, PodsApi},
};
pub(crate) use self::{health::FAMILIES, known_pods::KnownPods, pace::WatchPace};
use crate::{access::ApiAccess, api_error::ApiError};

/// Receives the pods whenever other images are awaited than before.
pub(crate) type ApplyPods<'a> = &'a (dyn Fn(&KnownPods) + Send + Sync);

/// A watch of the pods that are bound to one node.
#[derive(Debug)]
pub(crate) struct PodWatch {
    pub(crate) access: ApiAccess,
    pub(crate) node: String,
    pub(crate) pace: WatchPace,
    pub(crate) health: Arc<WatchHealth>,
}

/// How the watch goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NextStep {
    List(ListSource),
    /// From this resource version.
    Watch(String),
}

/// What outlives one watch.
struct Progress {
    client: Option<Client>,
    pods: KnownPods,
    next: NextStep,
    /// When the last watch began; `None`: there was none.
    followed_at: Option<Instant>,
}

impl PodWatch {
    /// Follows the pods for as long as this future lives.
    pub(crate) async fn run(&self, apply: ApplyPods<'_>) {
        let mut progress = Progress {
            client: None,
            pods: KnownPods::default(),
            next: NextStep::List(ListSource::Cache("0".into())),
            followed_at: None,
        };
        let mut failures = 0;
        loop {
            progress.followed_at = None;
            let end = self.follow(&mut progress, apply).await;
            let lived = progress.followed_at.is_some_and(|at| at.elapsed() >= self.pace.life_min);
            let end = match end {
                Ok(()) => WatchEnd::Closed,
                Err(ApiError::Expired) => WatchEnd::Expired,
                Err(error) => {
                    // The next client has the credentials that the files hold then.
                    progress.client = None;
                    WatchEnd::Failed(error.chain())
                }
            };
            let is_new = self.health.ended(&end);
            let wait = self.pace.wait(failures, random());
            failures = if lived { 0 } else { failures.saturating_add(1) };
            match &end {
                WatchEnd::Failed(error) if is_new => tracing::warn!(
                    error,
                    node = self.node,
                    "cannot follow the pods of the node; the last known ones stay, and the attempt is repeated"
                ),
                end => tracing::debug!(?end, ?wait, "the watch of the pods starts again"),
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// One watch, after a list where one is due. Ends with the watch.
    async fn follow(&self, progress: &mut Progress, apply: ApplyPods<'_>) -> Result<(), ApiError> {
        let client = match &progress.client {
            Some(client) => client.clone(),
            None => progress.client.insert(self.access.connect().await?).clone(),
        };
        let api = PodsApi::new(client, &self.node, self.pace.answer_max);
        let version = match progress.next.clone() {
            NextStep::Watch(version) => version,
            NextStep::List(source) => {
                let listed = api.list(&source).await.inspect_err(|error| {
                    if matches!(error, ApiError::Expired | ApiError::TooLarge { .. } | ApiError::Decode(_)) {
                        progress.next = NextStep::List(ListSource::Pages);
                    }
                })?;
                self.health.heard();
                progress.pods.replace(&listed.pods);
                // Also where nothing changed: no list was known before the first.
                self.count(progress, apply);
                progress.next = NextStep::Watch(listed.version.clone());
                listed.version
            }
        };
        let watched = self.watch(&api, &version, progress, apply).await;
        if let (Err(error), NextStep::Watch(version)) = (&watched, &progress.next)
            && matches!(error, ApiError::Expired | ApiError::TooLarge { .. } | ApiError::Decode(_))
        {
            progress.next = NextStep::List(ListSource::Cache(version.clone()));
        }
        watched
    }

    async fn watch(
        &self,
        api: &PodsApi,
        version: &str,
        progress: &mut Progress,
        apply: ApplyPods<'_>,
    ) -> Result<(), ApiError> {
        let mut events = api.watch(version, random()).await?;
        progress.followed_at = Some(Instant::now());
        self.health.heard();
        if let Some(failure) = self.health.synced() {
            tracing::info!(node = self.node, failure, "following the pods of the node again");
        }
        while let Some(event) = events.next(self.pace.silence_max).await? {
            self.health.heard();
            let (is_changed, object) = match event {
                PodEvent::Changed(object) => (progress.pods.change(&object), object),
                PodEvent::Deleted(object) => (progress.pods.remove(&object), object),
                PodEvent::Bookmark(object) => (false, object),
            };
            if !object.version().is_empty() {
                progress.next = NextStep::Watch(object.version().to_owned());
            }
            if is_changed {
                self.count(progress, apply);
            }
        }
        Ok(())
    }

    fn count(&self, progress: &Progress, apply: ApplyPods<'_>) {
        self.health.counted(progress.pods.len(), progress.pods.waiting().len());
        apply(&progress.pods);
    }
}
