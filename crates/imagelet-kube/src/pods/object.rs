//! The fields of a pod object that are about images and its start; all others are skipped without being stored.

use std::time::SystemTime;

use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use crate::metadata::{narrow, resource};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodObject {
    #[serde(deserialize_with = "narrow")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: PodSpec,
    #[serde(deserialize_with = "nullable")]
    pub(super) status: PodStatus,
}

impl PodObject {
    /// `NAMESPACE/NAME`.
    pub(crate) fn full_name(&self) -> String {
        let ObjectMeta { namespace, name, .. } = &self.metadata;
        format!("{}/{}", namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
    }
}

resource!(PodObject, "Pod", "", "v1", "pods", NamespaceResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    #[serde(deserialize_with = "nullable")]
    pub(super) containers: Vec<ContainerSpec>,
    #[serde(deserialize_with = "nullable")]
    pub(super) init_containers: Vec<ContainerSpec>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ephemeral_containers: Vec<ContainerSpec>,
    #[serde(deserialize_with = "nullable")]
    pub(super) volumes: Vec<VolumeSpec>,
    #[serde(deserialize_with = "nullable")]
    pub(super) image_pull_secrets: Vec<ObjectName>,
    pub(super) service_account_name: String,
    /// The deprecated spelling.
    pub(super) service_account: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) runtime_class_name: String,
    pub(super) restart_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerSpec {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) image_pull_policy: String,
    /// Of an init container: `Always` makes it a sidecar.
    #[serde(deserialize_with = "nullable")]
    pub(super) restart_policy: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) restart_policy_rules: Vec<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeSpec {
    pub(super) name: String,
    pub(super) image: Option<ImageSource>,
    secret: Option<IgnoredAny>,
    config_map: Option<IgnoredAny>,
    #[serde(rename = "downwardAPI")]
    downward_api: Option<IgnoredAny>,
    empty_dir: Option<IgnoredAny>,
    projected: Option<IgnoredAny>,
}

impl VolumeSpec {
    /// The kubelet makes it by itself: no disk from elsewhere is attached for it.
    pub(super) fn is_of_the_node(&self) -> bool {
        let Self { image, secret, config_map, downward_api, empty_dir, projected, .. } = self;
        image.is_some() || [secret, config_map, downward_api, empty_dir, projected].iter().any(|it| it.is_some())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ImageSource {
    pub(super) reference: String,
    pub(super) pull_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ObjectName {
    pub(super) name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: String,
    /// When the kubelet began with the pod.
    #[serde(deserialize_with = "time")]
    pub(super) start_time: Option<SystemTime>,
    #[serde(deserialize_with = "nullable")]
    pub(super) container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    pub(super) init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) state: ContainerPhase,
}

/// At most one of both is given; a container with neither waits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerPhase {
    pub(super) running: Option<Running>,
    pub(super) terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Running {
    #[serde(deserialize_with = "time")]
    pub(super) started_at: Option<SystemTime>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Terminated {
    pub(super) exit_code: i64,
    #[serde(deserialize_with = "time")]
    pub(super) started_at: Option<SystemTime>,
    #[serde(deserialize_with = "time")]
    pub(super) finished_at: Option<SystemTime>,
}

/// Parses a timestamp of the API. Invalid text counts as absent.
fn time<'de, D: Deserializer<'de>>(value: D) -> Result<Option<SystemTime>, D::Error> {
    let text = Option::<String>::deserialize(value)?;
    Ok(text.and_then(|text| text.parse::<Timestamp>().ok()).map(SystemTime::from))
}

/// Null is the default, as in Go.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}
