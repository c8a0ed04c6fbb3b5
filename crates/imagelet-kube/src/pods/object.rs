//! The fields of a pod object for its images and its start. Other fields are skipped without being stored.

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ContainerState, ImageVolumeSource, LocalObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use crate::metadata::{narrow_with_labels, resource};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodObject {
    #[serde(deserialize_with = "narrow_with_labels")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: PodSpec,
    #[serde(deserialize_with = "nullable")]
    pub(super) status: PodStatus,
}

resource!(PodObject, NamespaceResourceScope, (), |()| ["", "v1", "Pod", "pods"]);

impl PodObject {
    pub(crate) fn full_name(&self) -> String {
        let ObjectMeta { namespace, name, .. } = &self.metadata;
        format!("{}/{}", namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
    }
}

type List<T> = Option<Vec<T>>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) containers: List<ContainerSpec>,
    pub(super) init_containers: List<ContainerSpec>,
    pub(super) ephemeral_containers: List<ContainerSpec>,
    pub(super) volumes: List<VolumeSpec>,
    pub(super) image_pull_secrets: List<LocalObjectReference>,
    pub(super) service_account_name: String,
    /// The deprecated field for the service account.
    pub(super) service_account: String,
    pub(super) restart_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerSpec {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) image_pull_policy: String,
    /// `Always` makes an init container a sidecar.
    pub(super) restart_policy: Option<String>,
    pub(super) restart_policy_rules: List<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeSpec {
    pub(super) name: String,
    pub(super) image: Option<ImageVolumeSource>,
    secret: Option<IgnoredAny>,
    config_map: Option<IgnoredAny>,
    #[serde(rename = "downwardAPI")]
    downward_api: Option<IgnoredAny>,
    empty_dir: Option<IgnoredAny>,
    projected: Option<IgnoredAny>,
}

impl VolumeSpec {
    /// Whether the kubelet creates the volume itself, so that no external disk is attached.
    pub(super) fn is_of_the_node(&self) -> bool {
        let Self { image, secret, config_map, downward_api, empty_dir, projected, .. } = self;
        image.is_some() || [secret, config_map, downward_api, empty_dir, projected].iter().any(|it| it.is_some())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: String,
    pub(super) start_time: Option<Time>,
    pub(super) container_statuses: List<ContainerStatus>,
    pub(super) init_container_statuses: List<ContainerStatus>,
    pub(super) ephemeral_container_statuses: List<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    pub(super) state: Option<ContainerState>,
}

/// Null is parsed as the default value, as in Go.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

pub(super) fn state_of<'a>(statuses: Option<&'a [ContainerStatus]>, name: &str) -> Option<&'a ContainerState> {
    statuses?.iter().find(|status| status.name == name)?.state.as_ref()
}
