//! An `ImageSet` or `ClusterImageSet` as it is read: its name, its valid spec, and its status.

use std::{borrow::Cow, fmt, time::SystemTime};

use imagelet_core::image::Digest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource, core::DynamicResourceScope};
use serde::Deserialize;

use super::{
    set_scope::SetScope,
    set_spec::{ImageSetSpec, SetRejection},
    set_status::{SetStatus, readable},
    values::parse_moment,
};
use crate::{
    metadata::narrow,
    names::{NAME_LENGTH_MAX, NAMESPACE_LENGTH_MAX, is_name, shown},
};

/// Nodes have places from 0 to this number, which JSON and JavaScript hold exactly.
pub(crate) const PLACES: u64 = 1 << 52;

/// Kind, namespace and name of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetName {
    pub(crate) scope: SetScope,
    /// Empty for a set of the cluster.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl SetName {
    pub(crate) fn api(&self, client: &Client) -> Api<SetObject> {
        match self.scope {
            SetScope::Namespace => Api::namespaced_with(client.clone(), &self.namespace, &self.scope),
            SetScope::Cluster => Api::all_with(client.clone(), &self.scope),
        }
    }

    /// Whether both are names of the API.
    pub(crate) fn is_valid(&self) -> bool {
        let is_namespaced = self.scope == SetScope::Namespace;
        is_name(&self.name, NAME_LENGTH_MAX)
            && is_namespaced != self.namespace.is_empty()
            && (!is_namespaced || is_name(&self.namespace, NAMESPACE_LENGTH_MAX))
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            SetScope::Namespace => write!(f, "ImageSet {}/{}", self.namespace, self.name),
            SetScope::Cluster => write!(f, "ClusterImageSet {}", self.name),
        }
    }
}

/// A set with a valid spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageSet {
    pub(crate) name: SetName,
    pub(crate) uid: String,
    pub(crate) generation: u64,
    pub(crate) created_at: Option<SystemTime>,
    pub(crate) spec: ImageSetSpec,
    pub(crate) status: SetStatus,
}

/// The object of either kind. The spec is read apart, so that one invalid set does not end the watch of all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SetObject {
    #[serde(deserialize_with = "narrow")]
    pub(crate) metadata: ObjectMeta,
    spec: serde_json::Value,
    #[serde(deserialize_with = "readable")]
    status: SetStatus,
}

impl Resource for SetObject {
    type DynamicType = SetScope;
    type Scope = DynamicResourceScope;

    fn kind(scope: &SetScope) -> Cow<'_, str> {
        scope.kind().into()
    }

    fn group(_: &SetScope) -> Cow<'_, str> {
        "imagelet.dev".into()
    }

    fn version(_: &SetScope) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural(scope: &SetScope) -> Cow<'_, str> {
        match scope {
            SetScope::Namespace => "imagesets".into(),
            SetScope::Cluster => "clusterimagesets".into(),
        }
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl ImageSet {
    /// Reads an object; `None`: it is being deleted.
    pub(crate) fn read(object: &SetObject, scope: SetScope) -> Result<Option<Self>, SetRejection> {
        let ObjectMeta { name, namespace, uid, generation, .. } = object.metadata.clone();
        let name = SetName { scope, namespace: namespace.unwrap_or_default(), name: name.unwrap_or_default() };
        if !name.is_valid() {
            return Err(SetRejection(format!("`{}` is no name of a set", shown(&name.to_string()))));
        }
        if object.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let created_at = object.metadata.creation_timestamp.as_ref().map(|time| time.0.into());
        let spec = ImageSetSpec::read(&object.spec, scope)?;
        let (uid, generation) =
            (uid.unwrap_or_default(), generation.unwrap_or_default().try_into().unwrap_or_default());
        let status = object.status.clone();
        Ok(Some(Self { name, uid, generation, created_at, spec, status }))
    }

    /// The place of a node in the order of the waves: the same for every process, and another one for each set.
    pub(crate) fn place_of(&self, node: &str) -> u64 {
        let digest = Digest::of(format!("{}/{node}", self.uid).as_bytes());
        u64::from_str_radix(&digest.hex()[..13], 16).unwrap_or_default()
    }

    /// Whether a node may begin: the status is about this spec, and its cut is above the place of the node.
    pub(crate) fn admits(&self, node: &str) -> bool {
        if self.spec.max_concurrent_nodes.is_none() {
            return true;
        }
        let is_current = self.status.observed_generation == self.generation;
        is_current && self.status.wave.is_some_and(|wave| self.place_of(node) < wave.cut)
    }

    /// The end of the time in which nodes begin to pull; `None`: there is no end.
    pub(crate) fn deadline(&self) -> Option<SystemTime> {
        let lasts = self.spec.deadline?.get();
        let is_current = self.status.observed_generation == self.generation;
        let started = self.status.started_at.as_deref().filter(|_| is_current).and_then(parse_moment);
        // Before the controller has seen a spec, only the first one has a time.
        started.or(self.created_at.filter(|_| self.generation <= 1)).map(|at| at + lasts)
    }
}
