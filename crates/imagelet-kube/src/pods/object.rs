//! The fields of a pod object that are about images; all others are skipped without being stored.

use serde::{Deserialize, Deserializer, de::IgnoredAny};

use crate::watch::WatchedObject;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodObject {
    pub(super) metadata: PodMetadata,
    pub(super) spec: PodSpec,
    #[serde(deserialize_with = "nullable")]
    pub(super) status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodMetadata {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    resource_version: String,
    pub(super) deletion_timestamp: Option<IgnoredAny>,
}

impl WatchedObject for PodObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl PodObject {
    /// `NAMESPACE/NAME`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }
}

#[derive(Debug, Default, Deserialize)]
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

#[derive(Debug, Default, Deserialize)]
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

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct VolumeSpec {
    pub(super) name: String,
    pub(super) image: Option<ImageSource>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ImageSource {
    pub(super) reference: String,
    pub(super) pull_policy: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ObjectName {
    pub(super) name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    pub(super) init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) state: ContainerPhase,
}

/// At most one of both is given; a container with neither waits.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerPhase {
    pub(super) running: Option<IgnoredAny>,
    pub(super) terminated: Option<Terminated>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Terminated {
    pub(super) exit_code: i64,
}

/// Null is the default, as in Go.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}
