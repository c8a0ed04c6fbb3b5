//! The metadata of an object, and objects of which nothing else is read.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::watch::ObjectCache;

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

/// Nodes of the cluster, with their labels.
#[derive(Debug, Default)]
pub(crate) struct KnownNodes(pub(crate) BTreeMap<String, Labels>);

pub(crate) type Labels = BTreeMap<String, String>;

impl ObjectCache for KnownNodes {
    type Object = MetadataObject;

    fn replace(&mut self, objects: Vec<MetadataObject>) {
        let nodes = objects.into_iter().map(|node| (node.metadata.name, node.metadata.labels.unwrap_or_default()));
        self.0 = nodes.collect();
    }

    fn change(&mut self, node: &MetadataObject) -> bool {
        let labels = node.metadata.labels.clone().unwrap_or_default();
        // A Node changes often, and its labels rarely.
        self.0.insert(node.metadata.name.clone(), labels.clone()) != Some(labels)
    }

    fn remove(&mut self, node: &MetadataObject) -> bool {
        self.0.remove(&node.metadata.name).is_some()
    }
}
