//! Runs real pods on the host's network, so that a test sees what a container truly holds.

use std::{fs, path::PathBuf, time::Duration};

use imagelet_runtime::cri::Endpoint;
use prost::Message;
use tonic::{Request, Status, transport::Channel};

use super::v1;

const CALL_MAX: Duration = Duration::from_mins(1);
/// The host's own namespace.
const NODE: i32 = 2;

/// Pods of a runtime for a test. Needs no network plug-in; pods stay until they are removed.
#[derive(Clone, Debug)]
pub(crate) struct TestPods {
    channel: Channel,
    log_directory: PathBuf,
}

/// A running pod.
#[derive(Clone, Debug)]
pub(crate) struct TestSandbox {
    /// Its id.
    pub(crate) id: String,
    config: v1::PodSandboxConfig,
}

impl TestPods {
    /// Connects to a runtime; container logs go to a directory that exists.
    pub(crate) async fn connect(endpoint: &Endpoint, log_directory: impl Into<PathBuf>) -> Result<Self, Status> {
        let uri = format!("unix://{}", endpoint.path().display());
        let channel = tonic::transport::Endpoint::new(uri).expect("the socket's path is a URI").connect().await;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Self { channel, log_directory: log_directory.into() })
    }

    async fn ask<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut request = Request::new(message);
        request.set_timeout(CALL_MAX);
        Ok(super::call(&self.channel, path, request).await?.into_inner())
    }

    /// Runs the pod `default/NAME` with the uid `uid-NAME`.
    pub(crate) async fn run_sandbox(&self, name: &str) -> Result<TestSandbox, Status> {
        let labels = [("name", name), ("namespace", "default"), ("uid", &format!("uid-{name}"))]
            .map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned()));
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "default".into(),
                attempt: 0,
            }),
            log_directory: self.log_directory.to_string_lossy().into_owned(),
            labels: labels.into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                security_context: Some(v1::LinuxSandboxSecurityContext { namespace_options: Some(host_network()) }),
                ..v1::LinuxPodSandboxConfig::default()
            }),
            ..v1::PodSandboxConfig::default()
        };
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()) };
        let response: v1::RunPodSandboxResponse = self.ask("/runtime.v1.RuntimeService/RunPodSandbox", request).await?;
        Ok(TestSandbox { id: response.pod_sandbox_id, config })
    }

    /// Runs a container of a present image, and returns its id.
    pub(crate) async fn run_container(
        &self,
        sandbox: &TestSandbox,
        image: &str,
        command: &[&str],
    ) -> Result<String, Status> {
        Box::pin(self.run_with_volumes(sandbox, image, command, &[])).await
    }

    /// Runs a container with these image volumes, and returns its id.
    pub(crate) async fn run_with_volumes(
        &self,
        sandbox: &TestSandbox,
        image: &str,
        command: &[&str],
        volumes: &[v1::VolumeMount],
    ) -> Result<String, Status> {
        let id = Box::pin(self.create_container(sandbox, image, command, volumes)).await?;
        let request = v1::ContainerRequest { container_id: id.clone() };
        self.ask::<_, v1::Empty>("/runtime.v1.RuntimeService/StartContainer", request).await?;
        Ok(id)
    }

    /// The lines that the container of a pod has written.
    pub(crate) fn lines(&self, sandbox: &TestSandbox) -> Vec<String> {
        let log = fs::read_to_string(self.log_directory.join(log_file(sandbox))).unwrap_or_default();
        // `TIME STREAM TAG LINE`
        log.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).map(str::to_owned).collect()
    }

    /// Creates a container without starting it.
    pub(crate) async fn create_container(
        &self,
        sandbox: &TestSandbox,
        image: &str,
        command: &[&str],
        volumes: &[v1::VolumeMount],
    ) -> Result<String, Status> {
        // As the kubelet does: a container repeats its pod's labels.
        let mut labels = sandbox.config.labels.clone();
        labels.insert("io.kubernetes.container.name".to_owned(), "main".to_owned());
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() }),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            mounts: volumes.to_vec(),
            labels,
            log_path: log_file(sandbox),
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(v1::LinuxContainerSecurityContext { namespace_options: Some(host_network()) }),
            }),
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.id.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox.config.clone()),
        };
        let created: v1::CreateContainerResponse =
            self.ask("/runtime.v1.RuntimeService/CreateContainer", request).await?;
        Ok(created.container_id)
    }

    /// Stops a container without a grace period.
    pub(crate) async fn stop_container(&self, id: &str) -> Result<(), Status> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: 0 };
        self.ask::<_, v1::Empty>("/runtime.v1.RuntimeService/StopContainer", request).await?;
        Ok(())
    }

    /// Removes a stopped container.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), Status> {
        let request = v1::ContainerRequest { container_id: id.to_owned() };
        self.ask::<_, v1::Empty>("/runtime.v1.RuntimeService/RemoveContainer", request).await?;
        Ok(())
    }

    /// Stops a pod with all its containers; it is not ready from then on.
    pub(crate) async fn stop_sandbox(&self, sandbox: &TestSandbox) -> Result<(), Status> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        self.ask::<_, v1::Empty>("/runtime.v1.RuntimeService/StopPodSandbox", request).await?;
        Ok(())
    }

    /// Stops and removes a pod with all its containers.
    pub(crate) async fn remove_sandbox(&self, sandbox: &TestSandbox) -> Result<(), Status> {
        self.stop_sandbox(sandbox).await?;
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        self.ask::<_, v1::Empty>("/runtime.v1.RuntimeService/RemovePodSandbox", request).await?;
        Ok(())
    }
}

/// An image as a volume, as a kubelet mounts it.
pub(crate) fn image_volume(image: &str, path: &str, sub_path: &str) -> v1::VolumeMount {
    v1::VolumeMount {
        container_path: path.to_owned(),
        readonly: true,
        image: Some(v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() }),
        image_sub_path: sub_path.to_owned(),
    }
}

fn log_file(sandbox: &TestSandbox) -> String {
    format!("{}.log", sandbox.id)
}

fn host_network() -> v1::NamespaceOption {
    v1::NamespaceOption { network: NODE }
}
