//! A CRI runtime that does as it is told: what no honest one would answer, at the moment of our choice.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::wire::{ImageService, ImageServiceServer, RuntimeService, RuntimeServiceServer, Streamed, v1};

/// What the runtime has and does.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) images: Vec<v1::Image>,
    pub(crate) containers: Vec<v1::Container>,
    /// Containers that somebody starts right after the next list of containers.
    pub(crate) soon: Vec<v1::Container>,
    /// Images mounted into a container, by its id.
    pub(crate) volumes: BTreeMap<String, Vec<String>>,
    /// It takes its time over removals until this is false again.
    pub(crate) holds_removals: bool,
    /// Ids that it does not remove.
    pub(crate) refused: BTreeSet<String>,
    /// Ids that it has in a store that it only reads: it accepts their removal.
    pub(crate) kept: BTreeSet<String>,
    /// How long it takes to list its images.
    pub(crate) list_delay: std::time::Duration,
    /// It lists nothing, as one that has just been started anew.
    pub(crate) is_blank: bool,
    /// What it is asked to pull comes to be, by name; anything else hangs.
    pub(crate) offered: BTreeMap<String, v1::Image>,
    /// Every pull as it was asked for.
    pub(crate) asked: Vec<v1::PullImageRequest>,
    /// Every call that changes something, in order.
    pub(crate) calls: Vec<String>,
    /// Every call's method, in order.
    pub(crate) methods: Vec<String>,
    /// Lists come in streams, too, so many images a message; zero: it has none.
    pub(crate) images_streamed: usize,
    /// What it says its file system holds; by default the sizes of its images.
    pub(crate) used_bytes: Option<u64>,
    /// Its streams tell the same again and again.
    pub(crate) streams_without_end: bool,
}

/// The runtime, until it is dropped.
#[derive(Debug)]
pub(crate) struct Runtime {
    script: Arc<Mutex<Script>>,
    socket: PathBuf,
    _serving: tokio::runtime::Runtime,
}

impl Runtime {
    /// Serves on `runtime.sock` in a folder.
    pub(crate) fn start(folder: &Path, script: Script) -> Self {
        let socket = folder.join("runtime.sock");
        // A containerd's folders, by which a watch can tell that nothing is written.
        let snapshots = folder.join("ctd/io.containerd.snapshotter.v1.overlayfs");
        std::fs::create_dir_all(&snapshots).unwrap();
        std::fs::create_dir_all(folder.join("ctd/io.containerd.content.v1.content/ingest")).unwrap();
        let script = Arc::new(Mutex::new(script));
        let serving = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = serving.block_on(async { tokio::net::UnixListener::bind(&socket) }).unwrap();
        let acting = Acting { script: Arc::clone(&script), snapshots };
        let heard = Arc::clone(&script);
        let hearing = tower::util::MapRequestLayer::new(move |request: tonic::codegen::http::Request<_>| {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            heard.lock().unwrap().methods.push(method);
            request
        });
        serving.spawn(
            Server::builder()
                .layer(hearing)
                .add_service(ImageServiceServer::new(acting.clone()))
                .add_service(RuntimeServiceServer::new(acting))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        Self { script, socket, _serving: serving }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Looks at the script, or changes it.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Script) -> T) -> T {
        act(&mut self.script.lock().unwrap())
    }
}

/// An image of a name.
pub(crate) fn image(name: &str, size: u64) -> v1::Image {
    v1::Image { id: id_of(name), repo_tags: vec![name.to_owned()], size, ..v1::Image::default() }
}

/// The id that an image of a name has here.
pub(crate) fn id_of(name: &str) -> String {
    imagelet_core::image::Digest::of(name.as_bytes()).to_string()
}

/// A running container of an image.
pub(crate) fn container(name: &str, image: &str) -> v1::Container {
    v1::Container {
        id: format!("container-{name}"),
        pod_sandbox_id: format!("sandbox-{name}"),
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: id_of(image), ..v1::ImageSpec::default() }),
        image_ref: id_of(image),
        image_id: id_of(image),
        state: 1,
        created_at: 1,
        labels: [("namespace", "default"), ("name", name), ("uid", name)]
            .map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned()))
            .into(),
        ..v1::Container::default()
    }
}

#[derive(Clone)]
struct Acting {
    script: Arc<Mutex<Script>>,
    snapshots: PathBuf,
}

impl Acting {
    #[expect(clippy::unnecessary_wraps, reason = "it is what each call answers")]
    fn act<T>(&self, act: impl FnOnce(&mut Script) -> T) -> Result<Response<T>, Status> {
        Ok(Response::new(act(&mut self.script.lock().unwrap())))
    }
}

fn is_meant(image: &v1::Image, text: &str) -> bool {
    image.id == text || image.repo_tags.iter().chain(&image.repo_digests).any(|name| name == text)
}

impl ImageService for Acting {
    async fn list_images(&self, _: Request<v1::ListImagesRequest>) -> Result<Response<v1::ListImagesResponse>, Status> {
        tokio::time::sleep(self.act(|script| script.list_delay)?.into_inner()).await;
        self.act(|script| {
            let images = if script.is_blank { Vec::new() } else { script.images.clone() };
            v1::ListImagesResponse { images }
        })
    }
    async fn stream_images(
        &self,
        _: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<Streamed<v1::StreamImagesResponse>>, Status> {
        let (images, at_once) = self.act(|script| (script.images.clone(), script.images_streamed))?.into_inner();
        if at_once == 0 {
            return Err(Status::unimplemented("this runtime streams no lists"));
        }
        if self.act(|script| script.streams_without_end)?.into_inner() {
            let again = v1::StreamImagesResponse { images };
            return Ok(Response::new(Box::pin(futures_util::stream::repeat_with(move || Ok(again.clone())))));
        }
        let messages: Vec<_> =
            images.chunks(at_once).map(|images| Ok(v1::StreamImagesResponse { images: images.to_vec() })).collect();
        Ok(Response::new(Box::pin(futures_util::stream::iter(messages))))
    }
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let text = request.into_inner().image.unwrap_or_default().image;
        self.act(|script| {
            let found = script.images.iter().find(|image| is_meant(image, &text) && !script.is_blank);
            v1::ImageStatusResponse { image: found.cloned(), ..v1::ImageStatusResponse::default() }
        })
    }
    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let request = request.into_inner();
        let spec = request.image.clone().unwrap_or_default();
        let pulled = self.act(|script| {
            script.asked.push(request);
            script.calls.push(format!("pull {} for {:?}", spec.image, spec.runtime_handler));
            let pulled = script.offered.get(&spec.image).cloned();
            let is_here = |image: &v1::Image| script.images.iter().any(|other| other.id == image.id);
            let new = pulled.clone().filter(|image| !is_here(image));
            script.images.extend(new);
            pulled
        })?;
        match pulled.into_inner() {
            Some(image) => Ok(Response::new(v1::PullImageResponse { image_ref: image.id })),
            None => std::future::pending().await,
        }
    }
    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let spec = request.into_inner().image.unwrap_or_default();
        self.act(|script| script.calls.push(format!("remove {}", spec.image)))?;
        while self.act(|script| script.holds_removals)?.into_inner() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let refused = self.act(|script| {
            let refused = script.refused.contains(&spec.image);
            let kept = &script.kept;
            script.images.retain(|image| refused || kept.contains(&image.id) || !is_meant(image, &spec.image));
            refused
        })?;
        if refused.into_inner() {
            return Err(Status::failed_precondition("the image is in use by a container"));
        }
        Ok(Response::new(v1::RemoveImageResponse {}))
    }
    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        self.act(|script| {
            let place = v1::FilesystemUsage {
                timestamp: 1,
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: self.snapshots.display().to_string() }),
                used_bytes: Some(
                    script.used_bytes.unwrap_or_else(|| script.images.iter().map(|image| image.size).sum()),
                ),
                inodes_used: Some(script.images.len() as u64),
            };
            v1::ImageFsInfoResponse { image_filesystems: vec![place.clone()], container_filesystems: vec![place] }
        })
    }
}

impl RuntimeService for Acting {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "scripted".into(),
            runtime_version: "1.0".into(),
            runtime_api_version: "v1".into(),
        }))
    }
    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let conditions = ["RuntimeReady", "NetworkReady"].map(|name| v1::RuntimeCondition {
            r#type: name.into(),
            status: true,
            ..v1::RuntimeCondition::default()
        });
        let status = Some(v1::RuntimeStatus { conditions: conditions.into() });
        Ok(Response::new(v1::StatusResponse { status, ..v1::StatusResponse::default() }))
    }
    async fn list_pod_sandbox(
        &self,
        _: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        Ok(Response::new(v1::ListPodSandboxResponse::default()))
    }
    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        self.act(|script| {
            let containers = if script.is_blank { Vec::new() } else { script.containers.clone() };
            script.containers.append(&mut script.soon);
            v1::ListContainersResponse { containers }
        })
    }
    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        let found = self.act(|script| {
            let found = script.containers.iter().find(|container| container.id == id && !script.is_blank);
            let volumes = script.volumes.get(&id).cloned().unwrap_or_default();
            found.map(|found| (found.clone(), volumes))
        })?;
        let Some((found, volumes)) = found.into_inner() else {
            return Err(Status::not_found("no such container"));
        };
        // As a kubelet mounts it and containerd 2.1 tells it: asked for by what a pull answered.
        let mounts = volumes.into_iter().map(|image| v1::Mount {
            image: Some(v1::ImageSpec { image: image.clone(), image_ref: image, ..v1::ImageSpec::default() }),
        });
        let status = v1::ContainerStatus {
            id: found.id,
            metadata: found.metadata,
            created_at: found.created_at,
            image: found.image,
            image_ref: found.image_ref,
            mounts: mounts.collect(),
        };
        Ok(Response::new(v1::ContainerStatusResponse { status: Some(status) }))
    }
}
