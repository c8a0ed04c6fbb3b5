//! The fake runtime, seen through client and server over a socket, keeps every promise it keeps without them.

mod client;
mod runtime;
mod scripted;
#[path = "../wire/mod.rs"]
mod wire;

use std::{path::PathBuf, sync::Arc, time::Duration};

use imagelet_core::{
    credentials::{Credential, Secret},
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser},
    ports::{ImageFilesystems, ImageService, Listing, Progress, PullRequest, no_progress},
    testing::{FakeRuntime, conformance},
};
use imagelet_runtime::cri::{
    Endpoint, Handlers, RemoteContainerService, RemoteImageService, RuntimeServer, listen, routes,
};
use tokio::task::JoinHandle;
use tokio_stream::{StreamExt as _, wrappers::UnixListenerStream};
use tonic::{Code, Request, service::Routes, transport::Server};
use wire::{ImageService as ImageServiceRpc, ImageServiceClient, ImageServiceServer, v1};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a socket of its own; ends when dropped.
struct Served {
    endpoint: Endpoint,
    task: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Served {
    async fn images(images: impl ImageService + 'static) -> Self {
        Self::routes(image_routes(images)).await
    }

    async fn service<S: ImageServiceRpc>(service: ImageServiceServer<S>) -> Self {
        Self::routes(Routes::new(service)).await
    }

    async fn routes(service: Routes) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cri.sock");
        let task = serve(path.clone(), service).await;
        Self { endpoint: Endpoint::at(path).unwrap(), task, _folder: folder }
    }

    async fn client(&self) -> RemoteImageService {
        RemoteImageService::connect(&self.endpoint, PATIENCE).await.unwrap()
    }

    /// A client without our checks and conversions.
    async fn raw(&self) -> ImageServiceClient {
        let uri = format!("unix://{}", self.endpoint.path().display());
        ImageServiceClient::connect(uri).await.unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn image_routes(images: impl ImageService + 'static) -> Routes {
    routes(Arc::new(images), Handlers::Any, RuntimeServer::without_runtime("1"))
}

async fn serve(path: PathBuf, service: Routes) -> JoinHandle<()> {
    let socket = UnixListenerStream::new(listen(&path).await.unwrap());
    tokio::spawn(async move { Server::builder().add_routes(service).serve_with_incoming(socket).await.unwrap() })
}

fn fake() -> FakeRuntime {
    let fake = FakeRuntime::new();
    fake.offer("registry.test/a:v1", "a", 1024);
    fake.offer("registry.test/a:v2", "a", 1024);
    fake.offer("registry.test/b:v1", "b", 2048);
    fake
}

fn request(image: &str) -> PullRequest {
    PullRequest { image: ImageSpec::new(image), ..PullRequest::default() }
}

fn promised() -> conformance::PromisedImages {
    conformance::PromisedImages {
        first: "registry.test/a:v1".into(),
        first_again: "registry.test/a:v2".into(),
        second: "registry.test/b:v1".into(),
        absent: "registry.test/none:v1".into(),
        reports_progress: false,
        untags: false,
        reports_layers: false,
        reports_configs: true,
    }
}

#[tokio::test]
async fn a_store_behind_client_and_server_keeps_every_promise() {
    let served = Served::images(fake()).await;
    conformance::run(&served.client().await, &promised()).await;
    conformance::run(&served.client().await.streaming_lists(true), &promised()).await;
}

#[tokio::test]
async fn a_store_behind_two_clients_and_two_servers_keeps_every_promise() {
    let inner = Served::images(fake()).await;
    let outer = Served::images(inner.client().await).await;
    conformance::run(&outer.client().await, &promised()).await;
}

#[tokio::test]
async fn a_credential_reaches_the_store_as_it_was_given() {
    let fake = FakeRuntime::new();
    fake.offer_to("registry.test/private:v1", "a", 1024, Some(("bob", "hunter2")));
    let served = Served::images(fake.clone()).await;
    let client = served.client().await;
    let error = client.pull(&request("registry.test/private:v1"), no_progress()).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Denied);
    let credential = Credential::basic("registry.test", "bob", Secret::new("hunter2"));
    let with = PullRequest { credential: Some(credential.clone()), ..request("registry.test/private:v1") };
    client.pull(&with, no_progress()).await.unwrap();
    assert_eq!(fake.pull_requests().last().unwrap().credential, Some(credential));
    let broken = Credential::basic("registry.test", "bob", Secret::new("hunter2\n"));
    let with = PullRequest { credential: Some(broken), ..request("registry.test/private:v1") };
    let error = client.pull(&with, no_progress()).await.unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("line break")), "{error:?}");
    let elsewhere = Credential::basic("other.test", "bob", Secret::new("hunter2"));
    let without = PullRequest { credential: Some(elsewhere), ..request("registry.test/private:v1") };
    assert_eq!(client.pull(&without, no_progress()).await.unwrap_err().kind(), RuntimeErrorKind::Denied);
    assert_eq!(fake.pull_requests().last().unwrap().credential, None);
}

#[tokio::test]
async fn an_unreachable_registry_is_told_by_prefix_and_kind() {
    let fake = fake();
    fake.fail("pull", RuntimeErrorKind::RegistryUnavailable, "connection refused");
    let served = Served::images(fake).await;
    let error = served.client().await.pull(&request("registry.test/a:v1"), no_progress()).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable);
    assert_eq!(error.to_string(), "RegistryUnavailable: connection refused");
}

#[tokio::test]
async fn a_dropped_pull_is_dropped_in_the_store_too() {
    let fake = fake();
    fake.set_pull_takes(Duration::from_hours(1));
    let served = Served::images(fake.clone()).await;
    let client = served.client().await;
    let pull = tokio::spawn(async move { client.pull(&request("registry.test/a:v1"), no_progress()).await });
    until(|| fake.pulls_running() == 1).await;
    pull.abort();
    until(|| fake.pulls_running() == 0).await;
}

#[tokio::test]
async fn a_pull_ends_with_its_callers_deadline() {
    let fake = fake();
    fake.set_pull_takes(Duration::from_hours(1));
    let served = Served::images(fake.clone()).await;
    let mut request = Request::new(v1::PullImageRequest {
        image: Some(v1::ImageSpec { image: "registry.test/a:v1".into(), ..v1::ImageSpec::default() }),
        ..v1::PullImageRequest::default()
    });
    request.set_timeout(Duration::from_millis(50));
    assert!(served.raw().await.pull_image(request).await.is_err());
    until(|| fake.pulls_running() == 0).await;
}

/// Waits until something another task does has happened.
async fn until(done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it happens");
}

#[tokio::test]
async fn the_server_refuses_no_name_and_forgives_absence() {
    let served = Served::images(fake()).await;
    let mut raw = served.raw().await;
    let none = Some(v1::ImageSpec::default());
    let absent = Some(v1::ImageSpec { image: "registry.test/none:v1".into(), ..v1::ImageSpec::default() });
    for image in [None, none.clone()] {
        let status = v1::ImageStatusRequest { image: image.clone(), verbose: false };
        assert_eq!(raw.image_status(status).await.unwrap_err().code(), Code::InvalidArgument);
        let pull = v1::PullImageRequest { image: image.clone(), ..v1::PullImageRequest::default() };
        assert_eq!(raw.pull_image(pull).await.unwrap_err().code(), Code::InvalidArgument);
        let error = raw.remove_image(v1::RemoveImageRequest { image }).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::InvalidArgument, "no image specified"));
    }
    let status = v1::ImageStatusRequest { image: absent.clone(), verbose: true };
    assert_eq!(raw.image_status(status).await.unwrap().into_inner(), v1::ImageStatusResponse::default());
    raw.remove_image(v1::RemoveImageRequest { image: absent.clone() }).await.unwrap();
    let pull = v1::PullImageRequest { image: absent, ..v1::PullImageRequest::default() };
    assert_eq!(raw.pull_image(pull).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn the_server_lists_by_filter_and_streams_what_it_lists() {
    let fake = fake();
    fake.preload("registry.test/a:v1", "a", 1024);
    fake.preload("registry.test/b:v1", "b", 2048);
    let served = Served::images(fake).await;
    let mut raw = served.raw().await;
    let filter = |image: &str| {
        Some(v1::ImageFilter { image: Some(v1::ImageSpec { image: image.into(), ..v1::ImageSpec::default() }) })
    };
    for (filter, count) in [
        (None, 2),
        (Some(v1::ImageFilter { image: None }), 2),
        (filter(""), 2),
        (filter("registry.test/b:v1"), 1),
        (filter("registry.test/none:v1"), 0),
    ] {
        let listed = raw.list_images(v1::ListImagesRequest { filter: filter.clone() }).await.unwrap().into_inner();
        assert_eq!(listed.images.len(), count, "{filter:?}");
        assert!(listed.images.is_sorted_by(|one, other| one.id < other.id));
        let stream = raw.stream_images(v1::StreamImagesRequest { filter }).await.unwrap().into_inner();
        let messages: Vec<_> = stream.map(Result::unwrap).collect().await;
        assert!(messages.iter().all(|message| !message.images.is_empty()));
        let streamed: Vec<_> = messages.into_iter().flat_map(|message| message.images).collect();
        assert_eq!(streamed, listed.images);
    }
    let verbose = v1::ImageStatusRequest { image: filter("registry.test/a:v1").unwrap().image, verbose: true };
    let status = raw.image_status(verbose).await.unwrap().into_inner();
    let info: serde_json::Value = serde_json::from_str(&status.info["info"]).unwrap();
    assert_eq!(info["labels"]["id"], status.image.unwrap().id);
    assert_eq!((info["chainID"].is_string(), &info["imageSpec"]["os"]), (true, &serde_json::json!("linux")));
}

/// Lists one image with a long note.
#[derive(Debug)]
struct Wordy(usize);

#[async_trait::async_trait]
impl ImageService for Wordy {
    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let annotations = vec![("note".to_owned(), "x".repeat(self.0))];
        Ok([Image {
            id: ImageId::new("a"),
            tags: Vec::new(),
            digests: Vec::new(),
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec { annotations, ..ImageSpec::default() },
            pinned: false,
            artifact: None,
        }]
        .map(Arc::new)
        .into())
    }
    async fn status(&self, _spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(None)
    }
    async fn pull(&self, _request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        Err(RuntimeError::unsupported("nothing is pulled here"))
    }
    async fn remove(&self, _spec: &ImageSpec) -> Result<(), RuntimeError> {
        Ok(())
    }
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(ImageFilesystems::default())
    }
}

#[tokio::test]
async fn a_list_larger_than_the_usual_limit_of_the_stack_arrives_whole() {
    const MIB: usize = 1 << 20;
    let note = async |client: RemoteImageService| client.list(None).await.unwrap()[0].spec.annotations.len();
    let served = Served::images(Wordy(8 * MIB)).await;
    assert_eq!(note(served.client().await).await, 1);
    assert_eq!(note(served.client().await.streaming_lists(true)).await, 1);
    let served = Served::images(Wordy(20 * MIB)).await;
    assert_eq!(note(served.client().await).await, 0, "beyond 16 MiB annotations are left out");
}

#[tokio::test]
async fn a_client_outlives_a_restart_of_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let endpoint = Endpoint::at(&path).unwrap();
    let client = RemoteImageService::lazy(&endpoint, PATIENCE).unwrap();
    let away = client.list(None).await.unwrap_err();
    assert_eq!(away.kind(), RuntimeErrorKind::Unavailable);
    assert!(away.chain().contains("cri.sock") && away.hint().is_some(), "{}", away.chain());

    let task = serve(path.clone(), image_routes(fake())).await;
    back(&client).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    std::fs::remove_file(&path).unwrap();

    let task = serve(path, image_routes(fake())).await;
    // The first call may still find the old connection broken.
    let first = client.list(None).await;
    assert!(first.is_ok() || first.unwrap_err().kind() == RuntimeErrorKind::Unavailable);
    back(&client).await;
    task.abort();
}

/// Waits until the runtime is reached again: not before the wait after a failed attempt is over.
async fn back(client: &RemoteImageService) {
    let reached = async {
        while let Err(error) = client.list(None).await {
            assert_eq!(error.kind(), RuntimeErrorKind::Unavailable, "{}", error.chain());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("the runtime is back");
}

#[tokio::test]
async fn a_failed_handshake_names_the_api_and_the_endpoint() {
    let served = Served::routes(Routes::default()).await;
    let error = RemoteContainerService::connect(&served.endpoint, PATIENCE).await.unwrap_err();
    let wanted =
        format!("validate service connection: validate CRI v1 runtime API for endpoint \"{}\"", served.endpoint);
    assert_eq!((error.kind(), error.to_string()), (RuntimeErrorKind::Unsupported, wanted));
    let zero = RemoteImageService::connect(&served.endpoint, Duration::ZERO).await.unwrap_err();
    assert_eq!(zero.to_string(), "connectionTimeout must be positive");
}
