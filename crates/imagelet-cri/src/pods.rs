//! Runs real pods on the host's network, so that a test sees what a container truly holds.

use std::{path::PathBuf, time::Duration};

use imagelet_core::runtime::RuntimeError;
use tonic::transport::Channel;

use crate::{
    Endpoint,
    channel::Peer,
    convert::Call,
    v1::{self, runtime_service_client::RuntimeServiceClient},
};

/// How long a runtime may take to start or stop a pod.
const CALL_MAX: Duration = Duration::from_mins(1);

/// Pods of a runtime for a test. Needs no network plug-in; leaves what it started to whoever calls `remove`.
#[derive(Clone, Debug)]
pub struct TestPods {
    peer: Peer,
    client: RuntimeServiceClient<Channel>,
    log_directory: PathBuf,
}

/// A pod that runs.
#[derive(Clone, Debug)]
pub struct TestSandbox {
    /// Its id.
    pub id: String,
    config: v1::PodSandboxConfig,
}

impl TestPods {
    /// Connects to a runtime; container logs go to a directory that exists.
    pub async fn connect(endpoint: &Endpoint, log_directory: impl Into<PathBuf>) -> Result<Self, RuntimeError> {
        let peer = Peer::new(endpoint, CALL_MAX)?;
        let client = RuntimeServiceClient::new(peer.channel.clone());
        let pods = Self { peer, client, log_directory: log_directory.into() };
        let mut client = pods.client.clone();
        let request = v1::VersionRequest::default();
        pods.peer.call(Call::Other("Version"), request, |request| async move { client.version(request).await }).await?;
        Ok(pods)
    }

    /// Runs the pod `default/NAME` with the uid `uid-NAME`.
    pub async fn run_sandbox(&self, name: &str) -> Result<TestSandbox, RuntimeError> {
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
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(host_network()),
                    ..v1::LinuxSandboxSecurityContext::default()
                }),
                ..v1::LinuxPodSandboxConfig::default()
            }),
            ..v1::PodSandboxConfig::default()
        };
        let mut client = self.client.clone();
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let response = self
            .peer
            .call(Call::Other("RunPodSandbox"), request, |request| async move { client.run_pod_sandbox(request).await })
            .await?;
        Ok(TestSandbox { id: response.pod_sandbox_id, config })
    }

    /// Runs a container of an image that is here, and answers with its id.
    pub async fn run_container(
        &self,
        sandbox: &TestSandbox,
        image: &str,
        command: &[&str],
    ) -> Result<String, RuntimeError> {
        let id = Box::pin(self.create_container(sandbox, image, command, &[])).await?;
        let mut client = self.client.clone();
        let request = v1::StartContainerRequest { container_id: id.clone() };
        self.peer
            .call(
                Call::Other("StartContainer"),
                request,
                |request| async move { client.start_container(request).await },
            )
            .await?;
        Ok(id)
    }

    /// Creates a container without starting it; `volumes` are images and where they are mounted.
    pub async fn create_container(
        &self,
        sandbox: &TestSandbox,
        image: &str,
        command: &[&str],
        volumes: &[(&str, &str)],
    ) -> Result<String, RuntimeError> {
        let mounts = volumes.iter().map(|(image, path)| v1::Mount {
            container_path: (*path).to_owned(),
            readonly: true,
            image: Some(v1::ImageSpec { image: (*image).to_owned(), ..v1::ImageSpec::default() }),
            ..v1::Mount::default()
        });
        // As a kubelet does: a container repeats whose it is.
        let mut labels = sandbox.config.labels.clone();
        labels.insert("io.kubernetes.container.name".to_owned(), "main".to_owned());
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() }),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            mounts: mounts.collect(),
            labels,
            log_path: format!("{}.log", sandbox.id),
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(host_network()),
                    privileged: false,
                }),
            }),
            ..v1::ContainerConfig::default()
        };
        let mut client = self.client.clone();
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.id.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox.config.clone()),
        };
        let call = self.peer.call(Call::Other("CreateContainer"), request, |request| async move {
            client.create_container(request).await
        });
        Ok(Box::pin(call).await?.container_id)
    }

    /// Stops a container at once.
    pub async fn stop_container(&self, id: &str) -> Result<(), RuntimeError> {
        let mut client = self.client.clone();
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: 0 };
        self.peer
            .call(Call::Other("StopContainer"), request, |request| async move { client.stop_container(request).await })
            .await?;
        Ok(())
    }

    /// Removes a stopped container.
    pub async fn remove_container(&self, id: &str) -> Result<(), RuntimeError> {
        let mut client = self.client.clone();
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        self.peer
            .call(
                Call::Other("RemoveContainer"),
                request,
                |request| async move { client.remove_container(request).await },
            )
            .await?;
        Ok(())
    }

    /// Stops a pod with all its containers; it is not ready from then on.
    pub async fn stop_sandbox(&self, sandbox: &TestSandbox) -> Result<(), RuntimeError> {
        let mut client = self.client.clone();
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        self.peer
            .call(
                Call::Other("StopPodSandbox"),
                request,
                |request| async move { client.stop_pod_sandbox(request).await },
            )
            .await?;
        Ok(())
    }

    /// Stops and removes a pod with all its containers.
    pub async fn remove_sandbox(&self, sandbox: &TestSandbox) -> Result<(), RuntimeError> {
        self.stop_sandbox(sandbox).await?;
        let mut client = self.client.clone();
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        self.peer
            .call(Call::Other("RemovePodSandbox"), request, |request| async move {
                client.remove_pod_sandbox(request).await
            })
            .await?;
        Ok(())
    }
}

fn host_network() -> v1::NamespaceOption {
    v1::NamespaceOption { network: v1::NamespaceMode::Node as i32, ..v1::NamespaceOption::default() }
}
