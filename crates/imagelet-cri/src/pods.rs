//! Runs real pods on the host's network, so that a test sees what a container truly holds.

use std::{path::PathBuf, time::Duration};

use imagelet_core::runtime::RuntimeError;

use crate::{Endpoint, channel::Peer, convert::Call, v1};

const CALL_MAX: Duration = Duration::from_mins(1);

/// Pods of a runtime for a test. Needs no network plug-in; pods stay until they are removed.
#[derive(Clone, Debug)]
pub struct TestPods {
    peer: Peer,
    log_directory: PathBuf,
}

/// A running pod.
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
        peer.ask::<_, v1::VersionResponse>(Call::Runtime("Version"), v1::VersionRequest::default()).await?;
        Ok(Self { peer, log_directory: log_directory.into() })
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
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let call = Call::Runtime("RunPodSandbox");
        let response: v1::RunPodSandboxResponse = self.peer.ask(call, request).await?;
        Ok(TestSandbox { id: response.pod_sandbox_id, config })
    }

    /// Runs a container of a present image, and returns its id.
    pub async fn run_container(
        &self,
        sandbox: &TestSandbox,
        image: &str,
        command: &[&str],
    ) -> Result<String, RuntimeError> {
        let id = Box::pin(self.create_container(sandbox, image, command, &[])).await?;
        let request = v1::StartContainerRequest { container_id: id.clone() };
        self.peer.ask::<_, v1::StartContainerResponse>(Call::Runtime("StartContainer"), request).await?;
        Ok(id)
    }

    /// Creates a container without starting it; `volumes` are images with their mount paths.
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
        // As the kubelet does: a container repeats its pod's labels.
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
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.id.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox.config.clone()),
        };
        let call = Call::Runtime("CreateContainer");
        let created: v1::CreateContainerResponse = self.peer.ask(call, request).await?;
        Ok(created.container_id)
    }

    /// Stops a container without a grace period.
    pub async fn stop_container(&self, id: &str) -> Result<(), RuntimeError> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: 0 };
        self.peer.ask::<_, v1::StopContainerResponse>(Call::Runtime("StopContainer"), request).await?;
        Ok(())
    }

    /// Removes a stopped container.
    pub async fn remove_container(&self, id: &str) -> Result<(), RuntimeError> {
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        self.peer.ask::<_, v1::RemoveContainerResponse>(Call::Runtime("RemoveContainer"), request).await?;
        Ok(())
    }

    /// Stops a pod with all its containers; it is not ready from then on.
    pub async fn stop_sandbox(&self, sandbox: &TestSandbox) -> Result<(), RuntimeError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        self.peer.ask::<_, v1::StopPodSandboxResponse>(Call::Runtime("StopPodSandbox"), request).await?;
        Ok(())
    }

    /// Stops and removes a pod with all its containers.
    pub async fn remove_sandbox(&self, sandbox: &TestSandbox) -> Result<(), RuntimeError> {
        self.stop_sandbox(sandbox).await?;
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        self.peer.ask::<_, v1::RemovePodSandboxResponse>(Call::Runtime("RemovePodSandbox"), request).await?;
        Ok(())
    }
}

fn host_network() -> v1::NamespaceOption {
    v1::NamespaceOption { network: v1::NamespaceMode::Node as i32, ..v1::NamespaceOption::default() }
}
