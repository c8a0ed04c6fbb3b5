//! The metadata fields that imagelet reads from objects. All other fields are skipped and not stored.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

/// The annotation of a mirror pod: the object of a pod from a kubelet's manifest file.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// Maximum bytes of an object's label keys and values. Usual pods have less than one KiB.
pub(crate) const LABELS_LENGTH_MAX: usize = 8 << 10;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NarrowMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<NarrowAnnotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NarrowAnnotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<String>,
}

pub(crate) fn narrow<'de, D: Deserializer<'de>>(value: D) -> Result<ObjectMeta, D::Error> {
    narrow_with_labels(value).map(|metadata| ObjectMeta { labels: None, ..metadata })
}

/// Reads the metadata with the labels. Labels over the limit are `None`, and absent labels are an empty map.
pub(crate) fn narrow_with_labels<'de, D: Deserializer<'de>>(value: D) -> Result<ObjectMeta, D::Error> {
    let metadata = NarrowMetadata::deserialize(value)?;
    let mirror = metadata.annotations.and_then(|annotations| annotations.mirror);
    let labels = metadata.labels.unwrap_or_default();
    let length: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    Ok(ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        owner_references: metadata.owner_references,
        labels: (length <= LABELS_LENGTH_MAX).then_some(labels),
        annotations: mirror.map(|mirror| BTreeMap::from([(MIRROR_ANNOTATION.to_owned(), mirror)])),
        ..ObjectMeta::default()
    })
}

/// Implements `kube::Resource` with `[GROUP, VERSION, KIND, PLURAL]`, which may depend on the dynamic type.
macro_rules! resource {
    ($object:ty, $scope:ty, $dynamic:ty, |$it:pat_param| $words:expr) => {
        impl kube::Resource for $object {
            type DynamicType = $dynamic;
            type Scope = $scope;

            fn group($it: &$dynamic) -> std::borrow::Cow<'_, str> {
                $words[0].into()
            }

            fn version($it: &$dynamic) -> std::borrow::Cow<'_, str> {
                $words[1].into()
            }

            fn kind($it: &$dynamic) -> std::borrow::Cow<'_, str> {
                $words[2].into()
            }

            fn plural($it: &$dynamic) -> std::borrow::Cow<'_, str> {
                $words[3].into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;
