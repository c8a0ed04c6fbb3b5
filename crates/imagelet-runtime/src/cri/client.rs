//! The core's ports to a container runtime over CRI: images, and the containers that use images.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use imagelet_core::{
    credentials::Credential,
    error::{RuntimeError, RuntimeErrorKind},
    image::{Image, ImageId, ImageSpec},
    ports::{
        Container, ContainerService, ImageDetails, ImageFilesystems, ImageService, Listing, Progress, PullRequest,
        Sandbox, SandboxImage, default_sandbox_image,
    },
    text::quoted,
};

use crate::cri::{
    Endpoint, RuntimeConfiguration, RuntimeInfo,
    channel::Peer,
    convert::{self, Call},
    stall::{self, Look, StallWatch},
    v1,
};

/// The version that the kubelet sends in its `Version` request.
const API_VERSION: &str = "0.1.0";

/// The images of a runtime.
///
/// The first call connects, and calls after an outage reconnect. While the runtime is unreachable, calls fail at once.
/// Every call except a pull has a deadline. A pull ends if its future is dropped. CRI reports no progress of a pull.
#[derive(Clone, Debug)]
pub struct RemoteImageService {
    peer: Peer,
    /// Detects stalled pulls. `None` means that pulls have no stall limit and may hang forever.
    watch: Option<Arc<StallWatch>>,
}

impl RemoteImageService {
    /// Connects, and verifies with one call that the peer is a CRI image service.
    pub async fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        let service = Self::lazy(endpoint, timeout)?;
        service.filesystem().await.map_err(|error| service.peer.refused("image", error))?;
        Ok(service)
    }

    /// Creates the service without a check of the peer. The first call connects. Must be called in a tokio runtime.
    pub fn lazy(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        Ok(Self { peer: Peer::new(endpoint, timeout)?, watch: None })
    }

    /// On: lists are streamed if the runtime supports streams. A streamed list may exceed the limit of one message.
    #[must_use]
    pub fn streaming_lists(mut self, on: bool) -> Self {
        self.peer.streams = Arc::new(on.into());
        self
    }

    /// Ends a pull if the runtime does not answer, or writes no bytes, for `quiet_max`. Written bytes are only known
    /// for a containerd with readable folders. A slow pull continues. `None` sets no limit.
    #[must_use]
    pub fn with_stall_max(mut self, quiet_max: Option<Duration>) -> Self {
        self.watch = quiet_max.map(|quiet_max| Arc::new(StallWatch::new(quiet_max)));
        self
    }

    async fn watched<T>(&self, name: &str, work: impl Future<Output = T>) -> Result<T, RuntimeError> {
        let Some(watch) = &self.watch else { return Ok(work.await) };
        tokio::select! {
            biased;
            done = work => Ok(done),
            stalled = watch.stalled(|| self.look()) => Err(self.peer.stalled(stalled, name, watch.quiet_max)),
        }
    }

    async fn look(&self) -> Look {
        use RuntimeErrorKind::{Cancelled, TimedOut, Unavailable};
        match self.filesystem().await {
            Err(error) if matches!(error.kind(), Cancelled | TimedOut | Unavailable) => Look::Silent,
            Err(_) => Look::Answers,
            Ok(filesystems) => {
                let written = tokio::task::spawn_blocking(move || stall::written(&filesystems)).await;
                written.ok().flatten().map_or(Look::Answers, Look::Wrote)
            }
        }
    }

    async fn ask_status(
        &self,
        spec: &ImageSpec,
        verbose: bool,
    ) -> Result<Option<(Image, BTreeMap<String, String>)>, RuntimeError> {
        require_name(spec)?;
        let request = v1::ImageStatusRequest { image: Some(convert::spec_to_wire(spec)), verbose };
        // CRI specifies an empty answer for an absent image. `NotFound` has the same meaning.
        let response = present(self.peer.ask(Call::Image("ImageStatus"), request).await)?;
        let v1::ImageStatusResponse { image, info } = response.unwrap_or_default();
        match image {
            Some(image) if image.id.is_empty() || image.size == 0 => {
                Err(RuntimeError::other(format!("Id or size of image {} is not set", quoted(&spec.image))))
            }
            image => Ok(image.map(|image| (convert::image_from_wire(image), info))),
        }
    }
}

#[async_trait]
impl ImageService for RemoteImageService {
    /// A filtered list is read with `ImageStatus`, because containerd ignores the filter of `ListImages`.
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        if let Some(spec) = filter.filter(|spec| !spec.image.is_empty()) {
            return Ok(self.status(spec).await?.into_iter().map(Arc::new).collect());
        }
        let items = |list: v1::ListImagesResponse| list.images;
        let images = self.peer.list(Call::Image("StreamImages"), Call::Image("ListImages"), items).await?;
        Ok(images.into_iter().map(convert::image_from_wire).map(Arc::new).collect())
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(self.ask_status(spec, false).await?.map(|(image, _)| image))
    }

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        Ok(self.ask_status(spec, true).await?.map(|(image, info)| ImageDetails::of_info(image, info)))
    }

    async fn pull(&self, request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        require_name(&request.image)?;
        if let Some(platform) = &request.platform {
            return Err(RuntimeError::unsupported(format!(
                "this runtime cannot be asked for the platform `{platform}`"
            )));
        }
        let pull = self.peer.ask_without_deadline(Call::Pull, convert::pull_to_wire(request));
        let response = Box::pin(self.watched(&request.image.image, pull)).await?;
        match response.map(|response: v1::PullImageResponse| response.image_ref) {
            Ok(id) if id.is_empty() => {
                Err(RuntimeError::other(format!("imageRef of image {} is not set", quoted(&request.image.image))))
            }
            Ok(id) => Ok(ImageId::new(id)),
            Err(status) => {
                let error = self.peer.error(Call::Pull, &convert::without_credential(status, request));
                let ending = request.credential.as_ref().and_then(Credential::line_break_hint);
                Err(match ending.filter(|_| error.kind() == RuntimeErrorKind::Denied) {
                    Some(ending) => error.with_hint(ending),
                    None => error,
                })
            }
        }
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        require_name(spec)?;
        let request = v1::RemoveImageRequest { image: Some(convert::spec_to_wire(spec)) };
        present(self.peer.ask(Call::Remove, request).await).map(|_: Option<()>| ())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        let response = self.peer.ask(Call::Image("ImageFsInfo"), ()).await?;
        Ok(convert::filesystems_from_wire(response))
    }
}

/// The containers and sandboxes of a runtime. Connects and fails like [`RemoteImageService`].
#[derive(Clone, Debug)]
pub struct RemoteContainerService {
    peer: Peer,
}

impl RemoteContainerService {
    pub async fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        let service = Self::lazy(endpoint, timeout)?;
        service.ask_version("").await.map_err(|error| service.peer.refused("runtime", error))?;
        Ok(service)
    }

    pub fn lazy(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        Ok(Self { peer: Peer::new(endpoint, timeout)? })
    }

    #[must_use]
    pub fn streaming_lists(mut self, on: bool) -> Self {
        self.peer.streams = Arc::new(on.into());
        self
    }

    pub async fn version(&self) -> Result<RuntimeInfo, RuntimeError> {
        let response = self.ask_version(API_VERSION).await?;
        convert::check_version(&response)?;
        let (name, version) = (response.runtime_name, response.runtime_version);
        Ok(RuntimeInfo { name, version, ..RuntimeInfo::default() })
    }

    pub async fn configuration(&self) -> Result<RuntimeConfiguration, RuntimeError> {
        let response = self.ask_status().await?;
        let conditions = response.status.unwrap_or_default().conditions;
        let conditions = conditions.into_iter().map(|condition| (condition.r#type, condition.message)).collect();
        Ok(RuntimeConfiguration::read(&response.info, &conditions))
    }

    async fn ask_status(&self) -> Result<v1::StatusResponse, RuntimeError> {
        let response = self.peer.ask(Call::Runtime("Status"), v1::StatusRequest { verbose: true }).await?;
        convert::check_status(&response)?;
        Ok(response)
    }

    async fn ask_version(&self, version: &str) -> Result<v1::VersionResponse, RuntimeError> {
        self.peer.ask(Call::Runtime("Version"), v1::VersionRequest { version: version.to_owned() }).await
    }

    async fn ask_container(&self, id: &str) -> Result<Option<v1::ContainerStatusResponse>, RuntimeError> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned() };
        present(self.peer.ask(Call::Runtime("ContainerStatus"), request).await)
    }
}

#[async_trait]
impl ContainerService for RemoteContainerService {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let items = |list: v1::ListContainersResponse| list.containers;
        let containers =
            self.peer.list(Call::Runtime("StreamContainers"), Call::Runtime("ListContainers"), items).await?;
        Ok(containers.into_iter().map(convert::container_from_wire).collect())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        let items = |list: v1::ListPodSandboxResponse| list.items;
        let sandboxes =
            self.peer.list(Call::Runtime("StreamPodSandboxes"), Call::Runtime("ListPodSandbox"), items).await?;
        Ok(sandboxes.into_iter().filter_map(convert::sandbox_from_wire).collect())
    }

    async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
        let Some(response) = self.ask_container(container_id).await? else { return Ok(Vec::new()) };
        let status = response.status.unwrap_or_default();
        convert::check_container_status(&status)?;
        Ok(convert::volumes_from_wire(status))
    }

    async fn is_gone(&self, container_id: &str) -> Result<bool, RuntimeError> {
        Ok(self.ask_container(container_id).await?.is_none())
    }

    /// Reads the image from the verbose status of the sandbox. Only containerd and CRI-O report the image.
    async fn sandbox_image(&self, sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox_id.to_owned(), verbose: true };
        let response = self.peer.ask(Call::Runtime("PodSandboxStatus"), request).await;
        let Some(response) = present(response)? else { return Ok(SandboxImage::Gone) };
        convert::check_sandbox_status(&response)?;
        Ok(SandboxImage::of_info(&response.info))
    }

    async fn default_sandbox_images(&self) -> Result<Vec<String>, RuntimeError> {
        Ok(default_sandbox_image(&self.ask_status().await?.info).into_iter().collect())
    }
}

/// Rejects an empty name: containerd resolves an empty name to the only image of its store.
fn require_name(spec: &ImageSpec) -> Result<(), RuntimeError> {
    if spec.image.is_empty() {
        return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, "no image specified"));
    }
    Ok(())
}

fn present<A>(answer: Result<A, RuntimeError>) -> Result<Option<A>, RuntimeError> {
    match answer {
        Err(error) if error.kind() == RuntimeErrorKind::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}
