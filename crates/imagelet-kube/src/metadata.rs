//! The metadata of objects as far as they are read; all else is skipped without being stored.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};

/// A pod with it is the object of a kubelet's own manifest.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

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
    annotations: Option<NarrowAnnotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NarrowAnnotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<String>,
}

pub(crate) fn narrow<'de, D: Deserializer<'de>>(value: D) -> Result<ObjectMeta, D::Error> {
    let metadata = NarrowMetadata::deserialize(value)?;
    let mirror = metadata.annotations.and_then(|annotations| annotations.mirror);
    Ok(ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        annotations: mirror.map(|mirror| BTreeMap::from([(MIRROR_ANNOTATION.to_owned(), mirror)])),
        ..ObjectMeta::default()
    })
}

/// A kind of which an object's `metadata` is the narrow one.
macro_rules! resource {
    ($object:ty, $kind:literal, $group:literal, $version:literal, $plural:literal, $scope:ty) => {
        impl kube::Resource for $object {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
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
