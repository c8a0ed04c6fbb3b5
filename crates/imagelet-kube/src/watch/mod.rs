//! The watch of one collection of objects: one list, then changes, resumed where it ended.
//!
//! The API server is the only source. While it is away the last known objects stay: nothing is released by its absence.

mod events;
mod health;
mod list_api;
mod pace;
mod shared_cache;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub use self::health::{WatchHealth, WatchReport};
use self::{events::EventKind, pace::scattered};
pub(crate) use self::{
    health::FAMILIES,
    list_api::{Collection, ListSource},
    pace::{WatchPace, backoff, random},
    shared_cache::SharedCache,
};
use crate::{api_client::ApiClient, api_error::ApiError};

/// What is known of the objects of a collection.
pub(crate) trait ObjectCache: Send {
    type Object: DeserializeOwned + Send;

    /// Replaces all objects by those of a list.
    fn replace(&mut self, objects: Vec<Self::Object>);

    /// Applies one new or changed object. Returns whether that makes a difference.
    fn change(&mut self, object: &Self::Object) -> bool;

    /// Removes an object. Returns whether that makes a difference.
    fn remove(&mut self, object: &Self::Object) -> bool;
}

#[derive(Debug)]
pub(crate) struct ObjectWatch {
    pub(crate) client: ApiClient,
    pub(crate) collection: Collection,
    pub(crate) pace: WatchPace,
    pub(crate) health: Arc<WatchHealth>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum NextStep {
    List(ListSource),
    /// From this resource version.
    Watch(String),
}

/// What outlives one watch.
struct Progress<C> {
    cache: C,
    next: NextStep,
    /// When the last watch began; `None`: there was none.
    followed_at: Option<Instant>,
}

impl ObjectWatch {
    pub(crate) fn unmeasured(client: &ApiClient, collection: Collection) -> Self {
        let health = Arc::new(WatchHealth::unmeasured());
        Self { client: client.clone(), collection, pace: WatchPace::default(), health }
    }

    /// Follows the objects for as long as this future lives. `apply` receives them after each list, and whenever a change
    /// makes a difference.
    pub(crate) async fn run<C: ObjectCache>(&self, cache: C, apply: impl Fn(&C) + Send + Sync) {
        let mut progress = Progress { cache, next: NextStep::List(ListSource::Cache("0".into())), followed_at: None };
        let mut failures = 0;
        let name = self.collection.name;
        loop {
            progress.followed_at = None;
            let end = self.follow(&mut progress, &apply).await;
            let lived = progress.followed_at.is_some_and(|at| at.elapsed() >= self.pace.life_min);
            let is_unknown = matches!(end, Err(ApiError::Rejected { code: 404, .. }));
            let is_absent = is_unknown || matches!(end, Err(ApiError::Rejected { code: 403, .. }));
            if let Err(error) = &end {
                self.client.heed(error);
            }
            let is_new = self.health.ended(&end);
            let WatchPace { wait_first, wait_max, absent, .. } = self.pace;
            let wait =
                if is_absent { scattered(absent, random()) } else { backoff(wait_first, wait_max, failures, random()) };
            failures = if lived { 0 } else { failures.saturating_add(1) };
            match &end {
                Err(_) if is_new && is_unknown => {
                    tracing::info!("the API server has no {name}; it is asked again at times");
                }
                Err(error) if is_new => tracing::warn!(
                    error = error.chain(),
                    selector = self.collection.selector,
                    "cannot follow the {name}; the last known ones stay, and the attempt is repeated"
                ),
                end => {
                    let end = end.as_ref().map_err(ApiError::chain);
                    tracing::debug!(?end, ?wait, "the watch of the {name} starts again");
                }
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// One watch, after a list where one is due. Ends with the watch.
    async fn follow<C: ObjectCache>(
        &self,
        progress: &mut Progress<C>,
        apply: &(impl Fn(&C) + Send + Sync),
    ) -> Result<(), ApiError> {
        let client = self.client.clone().waiting(self.pace.answer_max);
        let version = match progress.next.clone() {
            NextStep::Watch(version) => version,
            NextStep::List(source) => {
                let listed = self.collection.list(&client, &source).await.inspect_err(|error| {
                    if matches!(error, ApiError::Expired | ApiError::TooLarge { .. } | ApiError::Decode(_)) {
                        progress.next = NextStep::List(ListSource::Pages);
                    }
                })?;
                self.health.heard();
                progress.cache.replace(listed.objects);
                // Also where nothing changed: no list was known before the first.
                apply(&progress.cache);
                self.health.listed();
                progress.next = NextStep::Watch(listed.version.clone());
                listed.version
            }
        };
        let watched = self.watch(&client, &version, progress, apply).await;
        if let (Err(error), NextStep::Watch(version)) = (&watched, &progress.next)
            && matches!(error, ApiError::Expired | ApiError::TooLarge { .. } | ApiError::Decode(_))
        {
            progress.next = NextStep::List(ListSource::Cache(version.clone()));
        }
        watched
    }

    async fn watch<C: ObjectCache>(
        &self,
        client: &ApiClient,
        version: &str,
        progress: &mut Progress<C>,
        apply: &(impl Fn(&C) + Send + Sync),
    ) -> Result<(), ApiError> {
        let mut events = self.collection.watch(client, version, random()).await?;
        progress.followed_at = Some(Instant::now());
        self.health.heard();
        if let Some(failure) = self.health.synced() {
            let name = self.collection.name;
            tracing::info!(selector = self.collection.selector, failure, "following the {name} again");
        }
        while let Some(event) = events.next::<C::Object>(self.pace.silence_max).await? {
            self.health.heard();
            let is_changed = match event.kind {
                EventKind::Changed => progress.cache.change(&event.object),
                EventKind::Deleted => progress.cache.remove(&event.object),
                EventKind::Bookmark => false,
            };
            if !event.version.is_empty() {
                progress.next = NextStep::Watch(event.version);
            }
            if is_changed {
                apply(&progress.cache);
            }
        }
        Ok(())
    }
}
