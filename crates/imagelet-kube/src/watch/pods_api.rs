//! The two requests for the pods of a node: a list, and a watch from a resource version.

use std::time::Duration;

use http::{Request, Response};
use kube::{Client, client::Body};
use serde::Deserialize;

use super::events::EventStream;
use crate::{
    api_client::{encoded, read, send},
    api_error::ApiError,
    pods::PodObject,
};

/// The longest list. A node has a few hundred pods of some 20 kB.
const LIST_LENGTH_MAX: usize = 32 << 20;
/// Pods of one page.
const PAGE_PODS: u32 = 100;
/// Most pages of a list; more pods than any node runs.
const PAGES_MAX: u32 = 50;
/// A watch ends by itself after this time, and after up to twice of it.
const LIFE_SECONDS: u32 = 240;

/// Where a list is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListSource {
    /// The cache of the API server, at this resource version or a later one; `0`: any.
    Cache(String),
    /// The newest state, page by page: costs the API server more, and always has an answer.
    Pages,
}

/// All pods of the node, at a resource version.
#[derive(Debug)]
pub(super) struct PodList {
    pub(super) pods: Vec<PodObject>,
    pub(super) version: String,
}

#[derive(Deserialize)]
struct WireList {
    metadata: ListMetadata,
    #[serde(default)]
    items: Option<Vec<PodObject>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

#[derive(Clone)]
pub(super) struct PodsApi {
    client: Client,
    /// The path with the field selector.
    path: String,
    answer_max: Duration,
}

impl PodsApi {
    pub(super) fn new(client: Client, node: &str, answer_max: Duration) -> Self {
        let selector = encoded(&format!("spec.nodeName={node}"));
        Self { client, path: format!("/api/v1/pods?fieldSelector={selector}"), answer_max }
    }

    pub(super) async fn list(&self, source: &ListSource) -> Result<PodList, ApiError> {
        if let ListSource::Cache(version) = source {
            let version = encoded(version);
            let query = format!("&resourceVersion={version}&resourceVersionMatch=NotOlderThan");
            let WireList { metadata, items } = self.page(&query).await?;
            return Ok(PodList { pods: items.unwrap_or_default(), version: metadata.resource_version });
        }
        let mut pods = Vec::new();
        let mut query = format!("&limit={PAGE_PODS}");
        for _ in 0..PAGES_MAX {
            let WireList { metadata, items } = self.page(&query).await?;
            pods.extend(items.unwrap_or_default());
            if metadata.r#continue.is_empty() {
                return Ok(PodList { pods, version: metadata.resource_version });
            }
            query = format!("&limit={PAGE_PODS}&continue={}", encoded(&metadata.r#continue));
        }
        Err(ApiError::TooLarge { max: LIST_LENGTH_MAX })
    }

    async fn page(&self, query: &str) -> Result<WireList, ApiError> {
        let answer = async {
            let body = self.get(query).await?.into_body();
            let bytes = read(body, LIST_LENGTH_MAX).await?;
            serde_json::from_slice(&bytes).map_err(ApiError::Decode)
        };
        let late = |_| ApiError::Silent(self.answer_max);
        tokio::time::timeout(self.answer_max, answer).await.map_err(late)?
    }

    /// A watch of the changes after this resource version. `random` is between 0 and 1.
    pub(super) async fn watch(&self, version: &str, random: f64) -> Result<EventStream, ApiError> {
        // The watches of a fleet do not end together.
        let life = f64::from(LIFE_SECONDS) * (1.0 + random.clamp(0.0, 1.0));
        let query = format!(
            "&watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
            Duration::from_secs_f64(life).as_secs(),
            encoded(version)
        );
        let late = |_| ApiError::Silent(self.answer_max);
        let answer = tokio::time::timeout(self.answer_max, self.get(&query)).await.map_err(late)??;
        Ok(EventStream::new(answer.into_body()))
    }

    async fn get(&self, query: &str) -> Result<Response<Body>, ApiError> {
        send(&self.client, Request::get(format!("{}{query}", self.path)).body(Body::empty())).await
    }
}
