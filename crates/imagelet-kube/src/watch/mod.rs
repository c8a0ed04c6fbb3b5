//! The watch of one collection of objects: `kube`'s watch with one log line per failure, and a health state.
//!
//! While the API server is unreachable, the agent keeps the last known objects and releases no lease or pin.

mod health;

use std::{fmt::Debug, future::ready, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use imagelet_core::retry_wait::{grown, random_share, scattered};
use kube::{
    Api, Client, Resource,
    runtime::{
        reflector::Store,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub(crate) use self::health::FAMILIES;
pub use self::health::{WatchHealth, WatchReport};
use crate::{
    api_error::{code, of_watch, text},
    client::observed,
};

/// Maximum duration of a watch. A random part of up to a fifth is subtracted to spread the watches of a fleet.
const LIFE_MAX: Duration = Duration::from_secs(288);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_mins(1);
/// Maximum wait if the API server does not have the kind or forbids it, because this may be permanent.
const ABSENT_RETRY_MAX: Duration = Duration::from_mins(3);
/// After this time without a failure, the next failure is the first in a row.
const HEALTHY_AFTER: Duration = Duration::from_mins(2);

/// Watches objects until this future is dropped. `name` is for the log. `take` receives each change, and `Init` if a
/// partial list must be discarded.
pub(crate) async fn follow<K>(
    name: &'static str,
    client: &Client,
    kind: &K::DynamicType,
    config: watcher::Config,
    health: Arc<WatchHealth>,
    mut take: impl FnMut(Event<K>),
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let seen = Arc::clone(&health);
    let client = observed(client.clone(), move |answer| {
        if let Some(failure) = seen.observe(answer) {
            tracing::info!(failure, "following the {name} again");
        }
    });
    let life = scattered(LIFE_MAX, 0.2, random_share()).as_secs();
    let (api, config) = (Api::all_with(client, kind), config.timeout(u32::try_from(life).unwrap_or(u32::MAX)));
    // The library sends `Init` before each attempt to list. A received `Init` would reset the count of failures.
    let begin = || {
        let events = watcher(api.clone(), config.clone());
        Box::pin(events.try_filter(|event| ready(!matches!(event, Event::Init))))
    };
    let (mut events, mut failures, mut since) = (begin(), 0_u32, Instant::now());
    while let Some(event) = events.next().await {
        let error = match event {
            Ok(event) => {
                failures = 0;
                let is_listed = matches!(event, Event::InitDone);
                take(event);
                if is_listed {
                    health.listed();
                }
                continue;
            }
            Err(error) => of_watch(error),
        };
        take(Event::Init);
        let code = code(&error);
        // The expiry of the watched version (410) is normal and is not logged. A list follows.
        if health.failed(text(&error), code == Some(410)) {
            let error = text(&error);
            if code == Some(404) {
                tracing::info!(error, "the API server does not have the {name}; the attempt is repeated");
            } else {
                tracing::warn!(
                    error,
                    "could not follow the {name}; the last known ones stay, and the attempt is repeated"
                );
            }
        }
        if since.elapsed() >= HEALTHY_AFTER {
            failures = 0;
        }
        let longest = if matches!(code, Some(403 | 404)) { ABSENT_RETRY_MAX } else { RETRY_MAX };
        tokio::time::sleep(backoff(RETRY_FIRST, longest, failures)).await;
        (failures, since) = (failures.saturating_add(1), Instant::now());
        // The API server no longer has the version from which the library continues the watch, so a new list is needed.
        if matches!(code, Some(410 | 504)) {
            events = begin();
        }
    }
}

pub(crate) fn is_listed<K>(store: &Store<K>) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.wait_until_ready().now_or_never().is_some()
}

/// The wait doubles with each failure in a row. A random part of up to a half is subtracted to spread retries.
pub(crate) fn backoff(first: Duration, longest: Duration, failures: u32) -> Duration {
    scattered(grown(first, 2.0, longest, failures), 0.5, random_share())
}
