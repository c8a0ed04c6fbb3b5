//! The metadata of an object, and an object of which nothing else is read.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::watch::WatchedObject;

/// `metadata` of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ObjectMetadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: u64,
    pub(crate) creation_timestamp: Option<String>,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

/// An object as far as its metadata go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MetadataObject {
    pub(crate) metadata: ObjectMetadata,
}

impl WatchedObject for MetadataObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}
