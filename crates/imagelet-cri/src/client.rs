//! The ports to a container runtime, spoken over CRI: its images, and the containers that hold them.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use imagelet_core::{
    image::{Image, ImageId, ImageSpec},
    runtime::{
        Container, ContainerService, ImageDetails, ImageFilesystems, ImageService, Listing, Progress, PullRequest,
        RuntimeConfiguration, RuntimeError, RuntimeErrorKind, Sandbox, SandboxImage, default_sandbox_image,
    },
    text::quoted,
};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::{
    Endpoint, MESSAGE_BYTES_MAX,
    bounded::{self, LIST, ONE},
    channel::Peer,
    convert::{self, Call},
    stall::{self, Look, StallWatch},
    streaming::Streaming,
    trace::Tracing,
    v1::{self, image_service_client::ImageServiceClient},
};

/// The version of the interface every runtime must answer.
const API_VERSION: &str = "0.1.0";

/// The images of a runtime.
///
/// Connects with the first call and again after the runtime was away; while it is away, calls fail at once. Every call
/// has the deadline it was built with, except a pull, which has none: drop it to give it up, or let it be watched. CRI
/// reports no progress, so a pull reports none either.
#[derive(Clone)]
pub struct RemoteImageService {
    peer: Peer,
    client: ImageServiceClient<Channel>,
    streaming: Streaming,
    /// `None`: a pull may hang for good.
    watch: Option<Arc<StallWatch>>,
}

impl RemoteImageService {
    /// Connects, and proves with one call that a CRI image service listens.
    ///
    /// # Errors
    /// Where the timeout is zero, nobody listens, or whoever does speaks no CRI v1.
    pub async fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        let service = Self::lazy(endpoint, timeout)?;
        match service.filesystem().await {
            Ok(_) => Ok(service),
            Err(error) => Err(service.peer.refused("image", error)),
        }
    }

    /// The same without the proof; whether anybody listens shows at the first call. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// Where the timeout is zero.
    pub fn lazy(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        let peer = Peer::new(endpoint, timeout)?;
        let client = ImageServiceClient::new(peer.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Ok(Self { peer, client, streaming: Streaming::default(), watch: None })
    }

    /// Asks for lists in a stream, so that none is too long for one message. Falls back where the runtime has none.
    #[must_use]
    pub fn with_streaming_lists(self) -> Self {
        self.streaming_lists(true)
    }

    /// The same, or not.
    #[must_use]
    pub fn streaming_lists(mut self, on: bool) -> Self {
        self.streaming = if on { Streaming::on() } else { Streaming::default() };
        self
    }

    /// What is traced of its calls; a caller's trace alone, unless this says otherwise.
    #[must_use]
    pub fn traced(mut self, tracing: Tracing) -> Self {
        self.peer.trace(tracing);
        self
    }

    /// Ends a pull once the runtime has given no sign of life for so long: it answers nothing, or its folders can be read
    /// here, are containerd's, and nothing is written there. A pull that is only slow goes on. `None`: none is ended.
    #[must_use]
    pub fn with_stall_max(mut self, quiet_max: Option<Duration>) -> Self {
        self.watch = quiet_max.map(|quiet_max| Arc::new(StallWatch::new(quiet_max)));
        self
    }

    /// Does what may hang, and ends when the runtime shows no more signs of life.
    async fn watched<T>(&self, name: &str, work: impl Future<Output = T>) -> Result<T, RuntimeError> {
        let Some(watch) = &self.watch else { return Ok(work.await) };
        tokio::select! {
            biased;
            done = work => Ok(done),
            stalled = watch.stalled(|| self.look()) => Err(self.peer.stalled(stalled, name, watch.quiet_max())),
        }
    }

    /// Looks for signs of life.
    async fn look(&self) -> Look {
        use RuntimeErrorKind::{Cancelled, TimedOut, Unavailable};
        match self.filesystem().await {
            Err(error) if matches!(error.kind(), Cancelled | TimedOut | Unavailable) => Look::Silent,
            Err(_) => Look::Answers,
            Ok(told) => {
                let written = tokio::task::spawn_blocking(move || stall::written(&told)).await;
                written.ok().flatten().map_or(Look::Answers, Look::Wrote)
            }
        }
    }

    async fn list_all(&self, deadline: Instant) -> Result<Vec<v1::Image>, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::ListImagesRequest::default();
        let call = Call::Other("ListImages");
        let send = |request| async move {
            bounded::unary::<_, v1::ListImagesResponse>(channel, "/runtime.v1.ImageService/ListImages", request, LIST)
                .await
        };
        Ok(self.peer.call_until(deadline, call, request, send).await?.images)
    }

    /// One image and what else is said of it; absent is no error.
    async fn ask_status(
        &self,
        spec: &ImageSpec,
        verbose: bool,
    ) -> Result<Option<(Image, BTreeMap<String, String>)>, RuntimeError> {
        require_name(spec)?;
        let channel = self.peer.channel.clone();
        let request = v1::ImageStatusRequest { image: Some(convert::spec_to_wire(spec)), verbose };
        let response = self
            .peer
            .call(Call::Other("ImageStatus"), request, |request| async move {
                bounded::unary::<_, v1::ImageStatusResponse>(
                    channel,
                    "/runtime.v1.ImageService/ImageStatus",
                    request,
                    ONE,
                )
                .await
            })
            .await;
        let (image, info) = match response {
            Ok(response) => (response.image, response.info),
            // Not what the interface says, but what it means.
            Err(error) if error.kind() == RuntimeErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match image {
            Some(image) if image.id.is_empty() || image.size == 0 => {
                Err(RuntimeError::other(format!("Id or size of image {} is not set", quoted(&spec.image))))
            }
            image => Ok(image.map(|image| (convert::image_from_wire(image), info))),
        }
    }

    async fn stream_all(&self, deadline: Instant) -> Result<Vec<v1::Image>, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::StreamImagesRequest::default();
        let read = |request| async move {
            let mut stream = bounded::stream::<_, v1::StreamImagesResponse>(
                channel,
                "/runtime.v1.ImageService/StreamImages",
                request,
                LIST,
            )
            .await?;
            let mut images = Vec::new();
            while let Some(message) = stream.message().await? {
                images.extend(message.images);
            }
            Ok(images)
        };
        self.peer.until(deadline, Call::Other("StreamImages"), request, read).await
    }
}

#[async_trait]
impl ImageService for RemoteImageService {
    /// A filter is answered by `status`: containerd would ignore it and list everything.
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        if let Some(spec) = filter.filter(|spec| !spec.image.is_empty()) {
            return Ok(self.status(spec).await?.into_iter().collect());
        }
        let deadline = self.peer.deadline();
        let images =
            self.streaming.list(Box::pin(self.stream_all(deadline)), Box::pin(self.list_all(deadline))).await?;
        Ok(images.into_iter().map(convert::image_from_wire).collect())
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
        let mut client = self.client.clone();
        let message = convert::pull_to_wire(request);
        let pull =
            self.peer.without_deadline(Call::Pull, message, |message| async move { client.pull_image(message).await });
        let response = Box::pin(self.watched(&request.image.image, pull)).await?;
        match response.map(|response| response.image_ref) {
            Ok(id) if id.is_empty() => {
                Err(RuntimeError::other(format!("imageRef of image {} is not set", quoted(&request.image.image))))
            }
            Ok(id) => Ok(ImageId::new(id)),
            Err(status) => Err(self.peer.error(Call::Pull, &convert::without_credential(status, request))),
        }
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        require_name(spec)?;
        let mut client = self.client.clone();
        let request = v1::RemoveImageRequest { image: Some(convert::spec_to_wire(spec)) };
        let response =
            self.peer.call(Call::Remove, request, |request| async move { client.remove_image(request).await }).await;
        match response {
            Err(error) if error.kind() != RuntimeErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::ImageFsInfoRequest {};
        let response = self
            .peer
            .call(Call::Other("ImageFsInfo"), request, |request| async move {
                bounded::unary::<_, v1::ImageFsInfoResponse>(
                    channel,
                    "/runtime.v1.ImageService/ImageFsInfo",
                    request,
                    ONE,
                )
                .await
            })
            .await?;
        Ok(convert::filesystems_from_wire(response))
    }
}

impl fmt::Debug for RemoteImageService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteImageService").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The containers and sandboxes of a runtime. Connects, and fails, as [`RemoteImageService`] does.
#[derive(Clone)]
pub struct RemoteContainerService {
    peer: Peer,
    streaming: Streaming,
}

/// What a runtime says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// `containerd`, `cri-o`, …
    pub name: String,
    /// The runtime's own version.
    pub version: String,
    /// `v1`
    pub api: String,
}

/// What a runtime can do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeReady {
    /// It runs containers.
    pub runtime: bool,
    /// Its network is set up.
    pub network: bool,
    /// The handlers it has; empty where it does not say.
    pub handlers: Vec<String>,
}

impl RemoteContainerService {
    /// Connects, and proves with one call that a CRI runtime service listens.
    ///
    /// # Errors
    /// Where the timeout is zero, nobody listens, or whoever does speaks no CRI v1.
    pub async fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        let service = Self::lazy(endpoint, timeout)?;
        match service.ask_version("").await {
            Ok(_) => Ok(service),
            Err(error) => Err(service.peer.refused("runtime", error)),
        }
    }

    /// The same without the proof; whether anybody listens shows at the first call. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// Where the timeout is zero.
    pub fn lazy(endpoint: &Endpoint, timeout: Duration) -> Result<Self, RuntimeError> {
        let peer = Peer::new(endpoint, timeout)?;
        Ok(Self { peer, streaming: Streaming::default() })
    }

    /// Asks for lists in a stream, so that none is too long for one message. Falls back where the runtime has none.
    #[must_use]
    pub fn with_streaming_lists(self) -> Self {
        self.streaming_lists(true)
    }

    /// The same, or not.
    #[must_use]
    pub fn streaming_lists(mut self, on: bool) -> Self {
        self.streaming = if on { Streaming::on() } else { Streaming::default() };
        self
    }

    /// What is traced of its calls; a caller's trace alone, unless this says otherwise.
    #[must_use]
    pub fn traced(mut self, tracing: Tracing) -> Self {
        self.peer.trace(tracing);
        self
    }

    /// What the runtime says it is.
    ///
    /// # Errors
    /// Where it cannot be asked, or leaves something out.
    pub async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        let response = self.ask_version(API_VERSION).await?;
        convert::check_version(&response)?;
        Ok(RuntimeVersion {
            name: response.runtime_name,
            version: response.runtime_version,
            api: response.runtime_api_version,
        })
    }

    /// What the runtime reports of its configuration, as far as imports depend on it.
    ///
    /// # Errors
    /// Where it cannot be asked.
    pub async fn configuration(&self) -> Result<RuntimeConfiguration, RuntimeError> {
        let response = self.ask_status(true).await?;
        let conditions = response.status.unwrap_or_default().conditions;
        let conditions = conditions.into_iter().map(|condition| (condition.r#type, condition.message)).collect();
        Ok(RuntimeConfiguration::read(&response.info, &conditions))
    }

    /// Whether the runtime is ready to run containers, and its network to join them.
    ///
    /// # Errors
    /// Where it cannot be asked, or does not say both.
    pub async fn ready(&self) -> Result<RuntimeReady, RuntimeError> {
        let response = self.ask_status(false).await?;
        convert::check_status(&response)?;
        let conditions = response.status.unwrap_or_default().conditions;
        let is = |kind: &str| conditions.iter().any(|condition| condition.r#type == kind && condition.status);
        let handlers = response.runtime_handlers.into_iter().map(|handler| handler.name).collect();
        Ok(RuntimeReady { runtime: is("RuntimeReady"), network: is("NetworkReady"), handlers })
    }

    /// One sandbox; `None` where it is gone.
    ///
    /// # Errors
    /// Where the runtime cannot be asked, or leaves out whose it is.
    pub async fn sandbox(&self, id: &str) -> Result<Option<Sandbox>, RuntimeError> {
        let Some(response) = self.ask_sandbox(id, false).await? else { return Ok(None) };
        let status = response.status.unwrap_or_default();
        convert::check_sandbox_status(&status)?;
        Ok(convert::sandbox_from_wire(v1::PodSandbox {
            id: status.id,
            metadata: status.metadata,
            state: status.state,
            created_at: status.created_at,
            labels: status.labels,
            annotations: status.annotations,
            runtime_handler: status.runtime_handler,
        }))
    }

    /// One sandbox as it was answered; absent is no error.
    async fn ask_sandbox(&self, id: &str, verbose: bool) -> Result<Option<v1::PodSandboxStatusResponse>, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        let ask = |request| bounded::unary(channel, "/runtime.v1.RuntimeService/PodSandboxStatus", request, ONE);
        match self.peer.call(Call::Other("PodSandboxStatus"), request, ask).await {
            Err(error) if error.kind() == RuntimeErrorKind::NotFound => Ok(None),
            response => response.map(Some),
        }
    }

    async fn ask_status(&self, verbose: bool) -> Result<v1::StatusResponse, RuntimeError> {
        let channel = self.peer.channel.clone();
        let ask = |request| bounded::unary(channel, "/runtime.v1.RuntimeService/Status", request, ONE);
        self.peer.call(Call::Other("Status"), v1::StatusRequest { verbose }, ask).await
    }

    async fn list_containers(&self, deadline: Instant) -> Result<Vec<v1::Container>, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::ListContainersRequest::default();
        let call = Call::Other("ListContainers");
        let send = |request| async move {
            bounded::unary::<_, v1::ListContainersResponse>(
                channel,
                "/runtime.v1.RuntimeService/ListContainers",
                request,
                LIST,
            )
            .await
        };
        Ok(self.peer.call_until(deadline, call, request, send).await?.containers)
    }

    async fn stream_containers(&self, deadline: Instant) -> Result<Vec<v1::Container>, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::StreamContainersRequest::default();
        let read = |request| async move {
            let mut stream = bounded::stream::<_, v1::StreamContainersResponse>(
                channel,
                "/runtime.v1.RuntimeService/StreamContainers",
                request,
                LIST,
            )
            .await?;
            let mut containers = Vec::new();
            while let Some(message) = stream.message().await? {
                containers.extend(message.containers);
            }
            Ok(containers)
        };
        self.peer.until(deadline, Call::Other("StreamContainers"), request, read).await
    }

    async fn list_sandboxes(&self, deadline: Instant) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::ListPodSandboxRequest::default();
        let call = Call::Other("ListPodSandbox");
        let send = |request| async move {
            bounded::unary::<_, v1::ListPodSandboxResponse>(
                channel,
                "/runtime.v1.RuntimeService/ListPodSandbox",
                request,
                LIST,
            )
            .await
        };
        Ok(self.peer.call_until(deadline, call, request, send).await?.items)
    }

    async fn stream_sandboxes(&self, deadline: Instant) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::StreamPodSandboxesRequest::default();
        let read = |request| async move {
            let mut stream = bounded::stream::<_, v1::StreamPodSandboxesResponse>(
                channel,
                "/runtime.v1.RuntimeService/StreamPodSandboxes",
                request,
                LIST,
            )
            .await?;
            let mut sandboxes = Vec::new();
            while let Some(message) = stream.message().await? {
                sandboxes.extend(message.pod_sandboxes);
            }
            Ok(sandboxes)
        };
        self.peer.until(deadline, Call::Other("StreamPodSandboxes"), request, read).await
    }

    /// The answer as it came, whatever it leaves out.
    async fn ask_version(&self, version: &str) -> Result<v1::VersionResponse, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::VersionRequest { version: version.to_owned() };
        self.peer
            .call(Call::Other("Version"), request, |request| async move {
                bounded::unary::<_, v1::VersionResponse>(channel, "/runtime.v1.RuntimeService/Version", request, ONE)
                    .await
            })
            .await
    }
}

impl RemoteContainerService {
    async fn container_status(&self, container_id: &str) -> Result<v1::ContainerStatusResponse, RuntimeError> {
        let channel = self.peer.channel.clone();
        let request = v1::ContainerStatusRequest { container_id: container_id.to_owned(), verbose: false };
        let ask = |request| bounded::unary(channel, "/runtime.v1.RuntimeService/ContainerStatus", request, ONE);
        self.peer.call(Call::Other("ContainerStatus"), request, ask).await
    }
}

#[async_trait]
impl ContainerService for RemoteContainerService {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let deadline = self.peer.deadline();
        let containers = self
            .streaming
            .list(Box::pin(self.stream_containers(deadline)), Box::pin(self.list_containers(deadline)))
            .await?;
        Ok(containers.into_iter().map(convert::container_from_wire).collect())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        let deadline = self.peer.deadline();
        let sandboxes = self
            .streaming
            .list(Box::pin(self.stream_sandboxes(deadline)), Box::pin(self.list_sandboxes(deadline)))
            .await?;
        Ok(sandboxes.into_iter().filter_map(convert::sandbox_from_wire).collect())
    }

    async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
        let status = match self.container_status(container_id).await {
            Ok(response) => response.status.unwrap_or_default(),
            Err(error) if error.kind() == RuntimeErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        convert::check_container_status(&status)?;
        Ok(convert::volumes_from_wire(status))
    }

    async fn is_gone(&self, container_id: &str) -> Result<bool, RuntimeError> {
        match self.container_status(container_id).await {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == RuntimeErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Read from what a verbose answer adds; containerd and CRI-O add it.
    async fn sandbox_image(&self, sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        let response = self.ask_sandbox(sandbox_id, true).await?;
        Ok(response.map_or(SandboxImage::Gone, |response| SandboxImage::of_info(&response.info)))
    }

    async fn default_sandbox_images(&self) -> Result<Vec<String>, RuntimeError> {
        Ok(default_sandbox_image(&self.ask_status(true).await?.info).into_iter().collect())
    }
}

impl fmt::Debug for RemoteContainerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteContainerService").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// No name is refused here: containerd takes it for the only image of its store.
fn require_name(spec: &ImageSpec) -> Result<(), RuntimeError> {
    if spec.image.is_empty() {
        return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, "no image specified"));
    }
    Ok(())
}
