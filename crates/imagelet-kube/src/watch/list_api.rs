//! The two requests for the objects of a collection: a list, and a watch from a resource version.

use std::time::Duration;

use serde::{Deserialize, de::DeserializeOwned};

use super::events::EventStream;
use crate::{
    api_client::{ApiClient, encoded},
    api_error::ApiError,
};

const PAGE_OBJECTS: u32 = 100;
/// The largest list is that of the nodes of a cluster.
const PAGES_MAX: u32 = 500;
/// A watch ends by itself after this time, and after up to twice of it.
const LIFE_SECONDS: u32 = 240;
const LIST_OF_METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;q=0.9";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;q=0.9";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// What they are, for messages: `pods`.
    pub(crate) name: &'static str,
    /// `/api/v1/pods`.
    pub(crate) path: String,
    /// The field selector; empty: all objects.
    pub(crate) selector: String,
    /// Only their metadata are sent.
    pub(crate) is_metadata: bool,
    /// Most pages of a list.
    pub(crate) pages_max: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListSource {
    /// The cache of the API server, at this resource version or a later one; `0`: any.
    Cache(String),
    /// The newest state, page by page: costs the API server more, and always has an answer.
    Pages,
}

#[derive(Debug)]
pub(crate) struct ObjectList<T> {
    pub(crate) objects: Vec<T>,
    pub(super) version: String,
}

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct WireList<T> {
    metadata: ListMetadata,
    #[serde(default = "Option::default")]
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

impl Collection {
    /// All objects at a path, whole.
    pub(crate) fn of(name: &'static str, path: impl Into<String>) -> Self {
        Self { name, path: path.into(), selector: String::new(), is_metadata: false, pages_max: PAGES_MAX }
    }

    fn query(&self, rest: &str) -> String {
        if self.selector.is_empty() {
            return format!("{}?{rest}", self.path);
        }
        format!("{}?fieldSelector={}&{rest}", self.path, encoded(&self.selector))
    }

    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        client: &ApiClient,
        source: &ListSource,
    ) -> Result<ObjectList<T>, ApiError> {
        if let ListSource::Cache(version) = source {
            let version = encoded(version);
            let query = format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan");
            let WireList { metadata, items } = self.page(client, &query).await?;
            return Ok(ObjectList { objects: items.unwrap_or_default(), version: metadata.resource_version });
        }
        let mut objects = Vec::new();
        let mut query = format!("limit={PAGE_OBJECTS}");
        for _ in 0..self.pages_max {
            let WireList { metadata, items } = self.page(client, &query).await?;
            objects.extend(items.unwrap_or_default());
            if metadata.r#continue.is_empty() {
                return Ok(ObjectList { objects, version: metadata.resource_version });
            }
            query = format!("limit={PAGE_OBJECTS}&continue={}", encoded(&metadata.r#continue));
        }
        Err(ApiError::TooMany { max: self.pages_max * PAGE_OBJECTS })
    }

    async fn page<T: DeserializeOwned>(&self, client: &ApiClient, query: &str) -> Result<WireList<T>, ApiError> {
        client.get_as(&self.query(query), self.is_metadata.then_some(LIST_OF_METADATA)).await
    }

    /// A watch of the changes after this resource version. `random` is between 0 and 1.
    pub(super) async fn watch(&self, client: &ApiClient, version: &str, random: f64) -> Result<EventStream, ApiError> {
        // The watches of a fleet do not end together.
        let life = f64::from(LIFE_SECONDS) * (1.0 + random.clamp(0.0, 1.0));
        let query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
            Duration::from_secs_f64(life).as_secs(),
            encoded(version)
        );
        Ok(EventStream::new(client.open(&self.query(&query), self.is_metadata.then_some(METADATA)).await?))
    }
}
