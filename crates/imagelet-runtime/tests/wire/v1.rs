//! The wire types of tests: those of the crate, and those that only a test sends or serves.

use std::collections::BTreeMap;

pub(crate) use imagelet_runtime::cri::v1::*;

pub(crate) type StreamImagesRequest = ListImagesRequest;
pub(crate) type StreamImagesResponse = ListImagesResponse;
pub(crate) type StreamContainersRequest = ListContainersRequest;
pub(crate) type StreamContainersResponse = ListContainersResponse;
pub(crate) type ListPodSandboxRequest = Empty;
pub(crate) type StreamPodSandboxesRequest = Empty;
pub(crate) type StreamPodSandboxesResponse = ListPodSandboxResponse;
pub(crate) type ImageFsInfoRequest = Empty;
pub(crate) type RemoveImageResponse = Empty;
pub(crate) type RuntimeConfigRequest = Empty;
pub(crate) type RemovePodSandboxRequest = StopPodSandboxRequest;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerEventResponse {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerFilter {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

/// What a kubelet says of a pod, as far as a test has it said.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "2")]
    pub(crate) hostname: String,
    #[prost(string, tag = "3")]
    pub(crate) log_directory: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub(crate) linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LinuxPodSandboxConfig {
    #[prost(string, tag = "1")]
    pub(crate) cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<LinuxSandboxSecurityContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LinuxSandboxSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(crate) network: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RunPodSandboxResponse {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StopPodSandboxRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub(crate) sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateContainerResponse {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) command: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) mounts: Vec<VolumeMount>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(string, tag = "11")]
    pub(crate) log_path: String,
    #[prost(message, optional, tag = "15")]
    pub(crate) linux: Option<LinuxContainerConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VolumeMount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(bool, tag = "3")]
    pub(crate) readonly: bool,
    #[prost(message, optional, tag = "9")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, tag = "10")]
    pub(crate) image_sub_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LinuxContainerConfig {
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<LinuxContainerSecurityContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LinuxContainerSecurityContext {
    #[prost(message, optional, tag = "3")]
    pub(crate) namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StopContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(int64, tag = "2")]
    pub(crate) timeout: i64,
}
