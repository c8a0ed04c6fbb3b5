//! An `ImageSet` or `ClusterImageSet` after parsing: its name, its valid spec, and its status.

use std::{fmt, time::SystemTime};

use imagelet_core::image::Digest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Api, Client, core::DynamicResourceScope};
use serde::Deserialize;

use super::{
    set_spec::{ImageSetSpec, SetRejection, SetScope},
    set_status::{SetStatus, readable},
};
use crate::{
    metadata::{narrow, resource},
    names::{NAME_LENGTH_MAX, NAMESPACE_LENGTH_MAX, is_name, shown},
};

/// The places of nodes are below this number. JSON and JavaScript represent them exactly.
pub(crate) const PLACES: u64 = 1 << 52;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetName {
    pub(crate) scope: SetScope,
    /// Empty for a cluster-wide set.
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

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ImageSet {
    pub(crate) name: SetName,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) created_at: Option<Time>,
    pub(crate) spec: ImageSetSpec,
    pub(crate) status: SetStatus,
}

/// The object of either kind. The spec is parsed separately, so that an invalid set does not end the watch of all sets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SetObject {
    #[serde(deserialize_with = "narrow")]
    pub(crate) metadata: ObjectMeta,
    spec: serde_json::Value,
    #[serde(deserialize_with = "readable")]
    status: SetStatus,
}

resource!(SetObject, DynamicResourceScope, SetScope, |scope| scope.words());

impl SetObject {
    pub(crate) fn name(&self, scope: SetScope) -> SetName {
        let ObjectMeta { name, namespace, .. } = &self.metadata;
        SetName { scope, namespace: namespace.clone().unwrap_or_default(), name: name.clone().unwrap_or_default() }
    }

    /// Parses the set. `None` means that the set is being deleted.
    pub(crate) fn read(&self, scope: SetScope) -> Result<Option<ImageSet>, SetRejection> {
        let name = self.name(scope);
        if !name.is_valid() {
            return Err(SetRejection(format!("`{}` is no name of a set", shown(&name.to_string()))));
        }
        let ObjectMeta { uid, generation, creation_timestamp, deletion_timestamp, .. } = &self.metadata;
        if deletion_timestamp.is_some() {
            return Ok(None);
        }
        Ok(Some(ImageSet {
            name,
            uid: uid.clone().unwrap_or_default(),
            generation: generation.unwrap_or_default(),
            created_at: creation_timestamp.clone(),
            spec: ImageSetSpec::read(&self.spec, scope)?,
            status: self.status.clone(),
        }))
    }
}

impl ImageSet {
    pub(crate) fn is_observed(&self) -> bool {
        self.status.observed_generation == self.generation
    }

    /// The place of a node in the order of the waves. It is the same in every process and differs between sets.
    pub(crate) fn place_of(&self, node: &str) -> u64 {
        let digest = Digest::of(format!("{}/{node}", self.uid).as_bytes());
        u64::from_str_radix(&digest.hex()[..13], 16).unwrap_or_default()
    }

    pub(crate) fn admits(&self, node: &str) -> bool {
        let is_admitted = || self.status.wave.is_some_and(|wave| self.place_of(node) < wave.cut);
        self.spec.max_concurrent_nodes.is_none() || (self.is_observed() && is_admitted())
    }

    /// The time until which nodes may start pulls. `None` means no deadline, or that the start is not known yet.
    pub(crate) fn deadline(&self) -> Option<SystemTime> {
        let lasts = self.spec.deadline?.0;
        let started = self.status.started_at.as_ref().filter(|_| self.is_observed());
        // Before the controller has observed a spec, only generation 1 has a start time: the creation of the set.
        let started = started.or(self.created_at.as_ref().filter(|_| self.generation <= 1));
        started.map(|at| SystemTime::from(at.0) + lasts)
    }
}
