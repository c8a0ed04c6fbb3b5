//! The spec of a set, and the rules of a valid spec.

use std::collections::{BTreeMap, BTreeSet};

use imagelet_core::image::{Platform, Reference, shown_name};
use serde::Deserialize;

use super::{
    IMAGES_MAX,
    pod_selector::{LABELS_MAX, PodSelector, is_label},
    values::{NodeLimit, SetDuration},
};
use crate::names::{NAME_LENGTH_MAX, is_name, shown};

pub(super) const REFERENCE_LENGTH_MAX: usize = 1024;
pub(super) const PLATFORM_LENGTH_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ImageSetSpec {
    pub(crate) images: Vec<SetImage>,
    #[serde(default)]
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) pod_selector: Option<PodSelector>,
    /// Whether nodes keep the images. `gate` sets it, so that a node does not lose the images that made it ready.
    #[serde(default)]
    pub(crate) keep: bool,
    #[serde(default)]
    pub(crate) gate: bool,
    pub(crate) max_concurrent_nodes: Option<NodeLimit>,
    pub(crate) deadline: Option<SetDuration>,
    pub(crate) ttl_after_finished: Option<SetDuration>,
    #[serde(default)]
    pub(crate) paused: bool,
    #[serde(default)]
    pub(crate) pull_policy: SetPullPolicy,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SetImage {
    pub(crate) reference: String,
    pub(crate) pull_secret: Option<String>,
    pub(crate) platform: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetScope {
    /// Images of one namespace, pulled with its pull secrets.
    Namespace,
    /// Images of the cluster, pulled with the credentials of each node.
    Cluster,
}

impl SetScope {
    pub(crate) const ALL: [Self; 2] = [Self::Namespace, Self::Cluster];

    pub(crate) fn kind(self) -> &'static str {
        self.words()[2]
    }

    pub(super) fn words(self) -> [&'static str; 4] {
        match self {
            Self::Namespace => ["imagelet.dev", "v1alpha1", "ImageSet", "imagesets"],
            Self::Cluster => ["imagelet.dev", "v1alpha1", "ClusterImageSet", "clusterimagesets"],
        }
    }
}

/// When a node pulls an image of a set. `Never` does not exist, because a set with this policy has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum SetPullPolicy {
    /// The node pulls the image once for each generation of the spec.
    Always,
    #[default]
    IfNotPresent,
}

/// Why a document or an object is not a valid set: the violated rule.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SetRejection(pub(crate) String);

impl ImageSetSpec {
    pub(crate) fn read(spec: &serde_json::Value, scope: SetScope) -> Result<Self, SetRejection> {
        let spec = Self::deserialize(spec).map_err(|error| format!("spec: {}", shown(&error.to_string())));
        let spec = spec.and_then(|spec| spec.check(scope).map(|()| spec));
        let kept = |spec: Self| Self { keep: spec.keep || spec.gate, ..spec };
        spec.map(kept).map_err(SetRejection)
    }

    fn check(&self, scope: SetScope) -> Result<(), String> {
        for (field, count, min, max) in
            [("images", self.images.len(), 1, IMAGES_MAX), ("nodeSelector", self.node_selector.len(), 0, LABELS_MAX)]
        {
            if !(min..=max).contains(&count) {
                return Err(format!("spec.{field} has {count} items; there may be {min} to {max}"));
            }
        }
        let mut seen = BTreeSet::new();
        for (position, image) in self.images.iter().enumerate() {
            image.check(scope).map_err(|why| format!("spec.images[{position}].{why}"))?;
            if !seen.insert((&image.reference, &image.platform)) {
                let name = shown(&image.reference);
                return Err(format!("spec.images[{position}].reference: `{name}` is listed twice for one platform"));
            }
        }
        if self.gate && self.ttl_after_finished.is_some() {
            return Err(
                "spec.ttlAfterFinished: the end of a set with `gate` ends the condition of its nodes".to_owned()
            );
        }
        if let Some((key, value)) = self.node_selector.iter().find(|(key, value)| !is_label(key, value)) {
            return Err(format!("spec.nodeSelector: `{}` is no label", shown(&format!("{key}={value}"))));
        }
        self.pod_selector.as_ref().map_or(Ok(()), PodSelector::check).map_err(|why| format!("spec.podSelector.{why}"))
    }

    /// Whether the node selector matches the labels of a node. The pod selector is not checked.
    pub(crate) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl SetImage {
    fn check(&self, scope: SetScope) -> Result<(), String> {
        let Self { reference, pull_secret, platform } = self;
        let length = reference.len();
        if length > REFERENCE_LENGTH_MAX {
            return Err(format!("reference: the name has {length} bytes; the limit is {REFERENCE_LENGTH_MAX}"));
        }
        let invalid = |error| format!("reference: `{}`: {error}", shown(&shown_name(reference)));
        reference.parse::<Reference>().map_err(invalid)?;
        if pull_secret.is_some() && scope == SetScope::Cluster {
            let why = "a ClusterImageSet is pulled with the credentials of the node; only an ImageSet has pull secrets";
            return Err(format!("pullSecret: {why}"));
        }
        if let Some(secret) = pull_secret.as_ref().filter(|secret| !is_name(secret, NAME_LENGTH_MAX)) {
            return Err(format!("pullSecret: `{}` is no name of a secret", shown(secret)));
        }
        let Some(platform) = platform else { return Ok(()) };
        if platform.len() > PLATFORM_LENGTH_MAX {
            return Err(format!("platform: the text is longer than {PLATFORM_LENGTH_MAX} bytes"));
        }
        platform.parse::<Platform>().map(drop).map_err(|error| format!("platform: {}", shown(&error.to_string())))
    }
}
