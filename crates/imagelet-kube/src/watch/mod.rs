//! The watch of one collection of objects: one list, then changes, resumed where it ended.
//!
//! The API server is the only source. While it is away the last known objects stay: nothing is released by its absence.

mod events;
mod health;
mod list_api;
mod pace;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub use self::health::{WatchHealth, WatchReport};
use self::{
    events::WatchEvent,
    health::WatchEnd,
    list_api::{ListApi, ListSource},
};
pub(crate) use self::{
    health::FAMILIES,
    list_api::Collection,
    pace::{WatchPace, random},
};
use crate::{api_client::ApiClient, api_error::ApiError};

/// An object as a watch sends it.
pub(crate) trait WatchedObject: DeserializeOwned + Send {
    /// The resource version of the object, or of a bookmark.
    fn version(&self) -> &str;
}

/// What is known of the objects of a collection. Each change returns whether the result is another one.
pub(crate) trait ObjectCache: Send {
    /// The objects.
    type Object: WatchedObject;

    /// Replaces all objects by those of a list.
    fn replace(&mut self, objects: Vec<Self::Object>) -> bool;

    /// Applies one new or changed object.
    fn change(&mut self, object: &Self::Object) -> bool;

    /// Removes an object.
    fn remove(&mut self, object: &Self::Object) -> bool;
}

/// A watch of one collection.
#[derive(Debug)]
pub(crate) struct ObjectWatch {
    pub(crate) client: ApiClient,
    pub(crate) collection: Collection,
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
struct Progress<C> {
    cache: C,
    next: NextStep,
    /// When the last watch began; `None`: there was none.
    followed_at: Option<Instant>,
}

impl ObjectWatch {
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
            let end = match end {
                Ok(()) => WatchEnd::Closed,
                Err(ApiError::Expired) => WatchEnd::Expired,
                Err(error) => {
                    self.client.disconnect();
                    WatchEnd::Failed(error.chain())
                }
            };
            let is_new = self.health.ended(&end);
            let wait = if is_absent { self.pace.absent(random()) } else { self.pace.wait(failures, random()) };
            failures = if lived { 0 } else { failures.saturating_add(1) };
            match &end {
                WatchEnd::Failed(_) if is_new && is_unknown => {
                    tracing::info!("the API server has no {name}; it is asked again at times");
                }
                WatchEnd::Failed(error) if is_new => tracing::warn!(
                    error,
                    selector = self.collection.selector,
                    "cannot follow the {name}; the last known ones stay, and the attempt is repeated"
                ),
                end => tracing::debug!(?end, ?wait, "the watch of the {name} starts again"),
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
        let api = ListApi::new(&client, &self.collection);
        let version = match progress.next.clone() {
            NextStep::Watch(version) => version,
            NextStep::List(source) => {
                let listed = api.list(&source).await.inspect_err(|error| {
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
        let watched = self.watch(&api, &version, progress, apply).await;
        if let (Err(error), NextStep::Watch(version)) = (&watched, &progress.next)
            && matches!(error, ApiError::Expired | ApiError::TooLarge { .. } | ApiError::Decode(_))
        {
            progress.next = NextStep::List(ListSource::Cache(version.clone()));
        }
        watched
    }

    async fn watch<C: ObjectCache>(
        &self,
        api: &ListApi<'_, C::Object>,
        version: &str,
        progress: &mut Progress<C>,
        apply: &(impl Fn(&C) + Send + Sync),
    ) -> Result<(), ApiError> {
        let mut events = api.watch(version, random()).await?;
        progress.followed_at = Some(Instant::now());
        self.health.heard();
        if let Some(failure) = self.health.synced() {
            let name = self.collection.name;
            tracing::info!(selector = self.collection.selector, failure, "following the {name} again");
        }
        while let Some(event) = events.next(self.pace.silence_max).await? {
            self.health.heard();
            let (is_changed, object) = match event {
                WatchEvent::Changed(object) => (progress.cache.change(&object), object),
                WatchEvent::Deleted(object) => (progress.cache.remove(&object), object),
                WatchEvent::Bookmark(object) => (false, object),
            };
            if !object.version().is_empty() {
                progress.next = NextStep::Watch(object.version().to_owned());
            }
            if is_changed {
                apply(&progress.cache);
            }
        }
        Ok(())
    }
}
