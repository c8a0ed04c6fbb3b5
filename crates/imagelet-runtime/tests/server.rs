//! The whole socket as callers see it: deadlines, traces, handlers, other services.

mod wire;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ImageId, ImageSpec},
    ports::{ImageFilesystems, ImageService, Listing, Progress, PullRequest},
    testing::{FakeRuntime, conformance},
};
use imagelet_runtime::cri::{Endpoint, Handlers, RemoteContainerService, RemoteImageService, RuntimeServer, listen};
use imagelet_vectors::vectors;
use prost::Message as _;
use tokio::{io::AsyncReadExt as _, net::UnixStream, sync::Notify, task::JoinHandle};
use tokio_stream::{StreamExt as _, wrappers::UnixListenerStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{
    Code, Request, Response, Status,
    service::InterceptorLayer,
    transport::{Channel, Server},
};
use wire::{ImageServiceClient, RuntimeService, RuntimeServiceClient, RuntimeServiceServer, Streamed, v1};

const PATIENCE: Duration = Duration::from_secs(20);

/// A socket with all services; ends when dropped.
struct Socket {
    path: PathBuf,
    task: JoinHandle<()>,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Socket {
    async fn open(images: Arc<dyn ImageService>, handlers: Handlers, runtime: RuntimeServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imagelet.sock");
        let listener = listen(&path).await.unwrap();
        let routes = imagelet_runtime::cri::routes(images, handlers, runtime);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let (routes, open) = (routes.prepare(), TaskTracker::new());
            while let Some(accepted) = stopped.run_until_cancelled(listener.accept()).await {
                let (stream, _) = accepted.unwrap();
                let (service, stopped) = (TowerToHyperService::new(routes.clone()), stopped.clone());
                open.spawn(async move {
                    let builder = Builder::new(TokioExecutor::new()).http2_only();
                    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
                    if stopped.run_until_cancelled(served.as_mut()).await.is_none() {
                        served.as_mut().graceful_shutdown();
                        drop(served.await);
                    }
                });
            }
            open.close();
            open.wait().await;
        });
        Self { path, task, stop, _folder: folder }
    }

    async fn of(fake: &FakeRuntime) -> Self {
        Self::open(Arc::new(fake.clone()), Handlers::Any, RuntimeServer::without_runtime("1.2.3")).await
    }

    /// A runtime of the test's own.
    async fn of_runtime(runtime: impl RuntimeService) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runtime.sock");
        let incoming = UnixListenerStream::new(listen(&path).await.unwrap());
        let server = Server::builder().add_service(RuntimeServiceServer::new(runtime));
        let task = tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
        Self { path, task, stop: CancellationToken::new(), _folder: folder }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::at(&self.path).unwrap()
    }

    async fn channel(&self) -> Channel {
        let uri = format!("unix://{}", self.path.display());
        tonic::transport::Endpoint::new(uri).unwrap().connect().await.unwrap()
    }

    async fn images(&self) -> ImageServiceClient {
        ImageServiceClient::new(self.channel().await)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn fake() -> FakeRuntime {
    let fake = FakeRuntime::new();
    fake.preload("registry.test/a:v1", "a", 1024);
    fake.offer("registry.test/b:v1", "b", 2048);
    fake
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.into(), ..v1::ImageSpec::default() }
}

fn pull(image: &str) -> v1::PullImageRequest {
    v1::PullImageRequest { image: Some(spec(image)), ..v1::PullImageRequest::default() }
}

#[tokio::test]
async fn a_store_behind_the_whole_socket_keeps_every_promise() {
    let fake = FakeRuntime::new();
    fake.offer("registry.test/a:v1", "a", 1024);
    fake.offer("registry.test/a:v2", "a", 1024);
    fake.offer("registry.test/b:v1", "b", 2048);
    let socket = Socket::of(&fake).await;
    let promised = conformance::PromisedImages {
        first: "registry.test/a:v1".into(),
        first_again: "registry.test/a:v2".into(),
        second: "registry.test/b:v1".into(),
        absent: "registry.test/none:v1".into(),
        reports_progress: false,
        untags: false,
        reports_layers: false,
        reports_configs: true,
    };
    let client = RemoteImageService::connect(&socket.endpoint(), PATIENCE).await.unwrap();
    conformance::run(&client, &promised).await;
}

#[tokio::test]
async fn a_list_is_never_sent_after_the_next_change() {
    let fake = fake();
    let socket = Socket::of(&fake).await;
    let mut client = socket.images().await;
    let tags = |listed: v1::ListImagesResponse| -> Vec<String> {
        let mut tags: Vec<String> = listed.images.into_iter().flat_map(|image| image.repo_tags).collect();
        tags.sort();
        tags
    };
    let by_name = v1::ImageFilter { image: Some(spec("registry.test/b:v1")) };
    for (change, wanted) in [
        ("", &["registry.test/a:v1"][..]),
        ("b", &["registry.test/a:v1", "registry.test/b:v1"]),
        ("pin", &["registry.test/a:v1", "registry.test/b:v1"]),
    ] {
        match change {
            "b" => drop(client.pull_image(pull("registry.test/b:v1")).await.unwrap()),
            "pin" => fake.set_pinned(&fake.offer("registry.test/b:v1", "b", 2048), true),
            _ => {}
        }
        for filter in [None, None, Some(v1::ImageFilter { image: None }), None] {
            let listed = client.list_images(v1::ListImagesRequest { filter }).await.unwrap().into_inner();
            assert_eq!(listed.images.iter().any(|image| image.pinned), change == "pin");
            assert_eq!(tags(listed), wanted, "after {change:?}");
        }
    }
    let filter = Some(by_name);
    let one = client.list_images(v1::ListImagesRequest { filter }).await.unwrap().into_inner();
    assert_eq!(tags(one), ["registry.test/b:v1"], "who asks for one is not sent all");
    let all = client.list_images(v1::ListImagesRequest::default()).await.unwrap().into_inner();
    assert_eq!(all.images.len(), 2, "and does not change what all are");
}

#[tokio::test]
async fn services_that_are_not_here_are_refused_by_name() {
    let socket = Socket::of(&fake()).await;
    let mut client = tonic::client::Grpc::new(socket.channel().await);
    for (path, message) in [
        ("/runtime.v1alpha2.ImageService/ListImages", "unknown service runtime.v1alpha2.ImageService"),
        ("/runtime.v1alpha2.RuntimeService/Version", "unknown service runtime.v1alpha2.RuntimeService"),
        ("/grpc.health.v1.Health/Check", "unknown service grpc.health.v1.Health"),
    ] {
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::ListImagesRequest, v1::ListImagesResponse>::default();
        let request = Request::new(v1::ListImagesRequest::default());
        let refused = client.unary(request, path.parse().unwrap(), codec).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::Unimplemented, message));
    }
}

#[tokio::test]
async fn methods_of_a_later_interface_are_unimplemented() {
    let socket = Socket::of(&fake()).await;
    let mut client = tonic::client::Grpc::new(socket.channel().await);
    for path in [
        "/runtime.v1.ImageService/PullSecurityProfile",
        "/runtime.v1.ImageService/ListSecurityProfiles",
        "/runtime.v1.ImageService/RemoveSecurityProfile",
    ] {
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::ListImagesRequest, v1::ListImagesResponse>::default();
        let request = Request::new(v1::ListImagesRequest::default());
        let refused = client.unary(request, path.parse().unwrap(), codec).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn a_pull_that_is_late_ends_with_deadline_exceeded_and_is_given_up() {
    let fake = fake();
    fake.set_pull_takes(Duration::from_hours(1));
    let socket = Socket::of(&fake).await;
    for limit in ["1m", "40m"] {
        // A client that leaves the clock to the server.
        let stream = TokioIo::new(UnixStream::connect(&socket.path).await.unwrap());
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let message = pull("registry.test/b:v1").encode_to_vec();
        let framed = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message.as_slice()].concat();
        let request = http::Request::post("http://localhost/runtime.v1.ImageService/PullImage")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", limit)
            .body(http_body_util::Full::new(bytes::Bytes::from(framed)))
            .unwrap();
        let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("in time").unwrap();
        assert_eq!(answer.headers()["grpc-status"], "4", "{limit}: {:?}", answer.headers());
        connection.abort();
    }
    let gone = async {
        while fake.pulls_running() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the pulls are dropped");
}

#[tokio::test]
async fn an_unknown_handler_is_refused_in_the_field_and_ignored_in_the_annotation() {
    let fake = fake();
    let known = Handlers::Known(BTreeSet::from(["kata".to_owned()]));
    let socket = Socket::open(Arc::new(fake.clone()), known, RuntimeServer::without_runtime("1")).await;
    let mut client = socket.images().await;
    let ask = |field: &str, annotation: &str| v1::PullImageRequest {
        image: Some(v1::ImageSpec { runtime_handler: field.into(), ..spec("registry.test/b:v1") }),
        sandbox_config: Some(
            v1::PodSandboxConfig {
                annotations: [("io.containerd.cri.runtime-handler".to_owned(), annotation.to_owned())].into(),
                ..v1::PodSandboxConfig::default()
            }
            .encode_to_vec(),
        ),
        ..v1::PullImageRequest::default()
    };
    let refused = client.pull_image(ask("gvisor", "kata")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "unknown runtime handler \"gvisor\""));
    for (field, annotation, used) in [("kata", "x", "kata"), ("", "kata", "kata"), ("", "gvisor", "")] {
        client.pull_image(ask(field, annotation)).await.unwrap();
        assert_eq!(fake.pull_requests().last().unwrap().image.runtime_handler, used);
    }
}

#[tokio::test]
async fn a_store_without_a_runtime_says_so_to_whoever_asks_for_one() {
    let socket = Socket::of(&fake()).await;
    let service = RemoteContainerService::connect(&socket.endpoint(), PATIENCE).await.unwrap();
    let version = service.version().await.unwrap();
    assert_eq!((version.name.as_str(), version.version.as_str()), ("imagelet", "1.2.3"));
    let mut client = RuntimeServiceClient::new(socket.channel().await);
    let asked = v1::VersionRequest { version: "0.1.0".into() };
    let version = client.version(asked).await.unwrap().into_inner();
    assert_eq!((version.version.as_str(), version.runtime_api_version.as_str()), ("0.1.0", "v1"));
    let status = client.status(v1::StatusRequest { verbose: true }).await.unwrap().into_inner();
    let conditions = status.status.unwrap().conditions;
    let told: Vec<_> = conditions.iter().map(|condition| (condition.r#type.as_str(), condition.status)).collect();
    assert_eq!(told, [("RuntimeReady", false), ("NetworkReady", false)]);
    assert!(conditions.iter().all(|condition| condition.reason == "NoContainerRuntime"));
    assert_eq!(status.info["imagelet"], r#"{"version":"1.2.3"}"#);
    assert!(client.runtime_config(v1::RuntimeConfigRequest {}).await.unwrap().into_inner().linux.is_some());
    assert!(
        client.list_containers(v1::ListContainersRequest::default()).await.unwrap().into_inner().containers.is_empty()
    );
    assert!(client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap().into_inner().items.is_empty());
    let stream = client.stream_containers(v1::StreamContainersRequest::default()).await.unwrap().into_inner();
    assert!(stream.map(Result::unwrap).all(|message| message.containers.is_empty()).await);
    let absent = client.container_status(v1::ContainerStatusRequest::default()).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound);
    let refused = client.run_pod_sandbox(v1::RunPodSandboxRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("RunPodSandbox"), "{refused:?}");
}

#[tokio::test]
async fn what_asks_for_the_runtime_behind_is_passed_on_and_what_changes_it_is_not() {
    let behind = Socket::of(&fake()).await;
    let runtime = RuntimeServer::behind(&behind.endpoint(), PATIENCE).unwrap();
    let front = Socket::open(Arc::new(fake()), Handlers::Any, runtime).await;
    let mut client = RuntimeServiceClient::new(front.channel().await);
    let version = client.version(v1::VersionRequest::default()).await.unwrap().into_inner();
    assert_eq!(version.runtime_version, "1.2.3");
    let status = client.status(v1::StatusRequest { verbose: true }).await.unwrap().into_inner();
    assert_eq!(status.info.len(), 1);
    let refused = client.stop_container(v1::StopContainerRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    behind.stop.cancel();
    drop(behind);
    let gone = async {
        // The first call may still find the old connection; the runtime is away, and imagelet is not.
        loop {
            match client.version(v1::VersionRequest::default()).await {
                Err(away)
                    if away.code() == Code::Unavailable && away.message().contains("cannot reach the runtime") =>
                {
                    return;
                }
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it is told");
    let mut images = front.images().await;
    assert_eq!(images.list_images(v1::ListImagesRequest::default()).await.unwrap().into_inner().images.len(), 1);
}

/// A runtime that answers no call, and a call for events with the first event.
#[derive(Clone, Default)]
struct Quiet {
    asked: Arc<Notify>,
    happens: Arc<Notify>,
    ended: Arc<Notify>,
}

/// Notifies when a stream is dropped.
struct Ended(Arc<Notify>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl RuntimeService for Quiet {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        std::future::pending().await
    }

    async fn get_container_events(
        &self,
        _: Request<v1::Empty>,
    ) -> Result<Response<Streamed<v1::ContainerEventResponse>>, Status> {
        let ended = Ended(Arc::clone(&self.ended));
        self.asked.notify_one();
        self.happens.notified().await;
        let event = v1::ContainerEventResponse { container_id: "c".into() };
        let events = tokio_stream::once(Ok(event)).chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(events.map(move |event| (event, &ended).0))))
    }
}

#[tokio::test]
async fn events_of_a_quiet_runtime_last_as_long_as_their_client_and_the_runtime() {
    let quiet = Quiet::default();
    let behind = Socket::of_runtime(quiet.clone()).await;
    let runtime = RuntimeServer::behind(&behind.endpoint(), Duration::from_millis(1)).unwrap();
    let front = Socket::open(Arc::new(fake()), Handlers::Any, runtime).await;
    let mut client = RuntimeServiceClient::new(front.channel().await);
    let events = async |mut client: RuntimeServiceClient| client.get_container_events(v1::Empty {}).await;

    let asked = tokio::spawn(events(client.clone()));
    quiet.asked.notified().await;
    // Its limit is the same and began later, so that of a call for events has passed.
    let late = client.version(v1::VersionRequest::default()).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    quiet.happens.notify_one();
    let mut stream = asked.await.unwrap().expect("it lasts until the first event").into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().container_id, "c");
    drop(stream);
    tokio::time::timeout(PATIENCE, quiet.ended.notified()).await.expect("the runtime's call ends with its client");

    let asked = tokio::spawn(events(client.clone()));
    quiet.asked.notified().await;
    asked.abort();
    tokio::time::timeout(PATIENCE, quiet.ended.notified()).await.expect("before the first event, too");
}

#[tokio::test]
async fn a_call_for_events_ends_with_the_connection_to_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runtime.sock");
    let behind = listen(&path).await.unwrap();
    let runtime = RuntimeServer::behind(&Endpoint::at(&path).unwrap(), Duration::from_millis(1)).unwrap();
    let front = Socket::open(Arc::new(fake()), Handlers::Any, runtime).await;
    let mut client = RuntimeServiceClient::new(front.channel().await);
    let asked = tokio::spawn(async move { client.get_container_events(v1::Empty {}).await });
    let (mut connection, _) = behind.accept().await.unwrap();
    connection.read_u8().await.unwrap();
    drop(connection);
    let gone = tokio::time::timeout(PATIENCE, asked).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone:?}");
}

#[tokio::test]
async fn a_trace_reaches_the_runtime_behind_with_every_call() {
    let inner = Arc::new(Seen::default());
    let behind = Traced::open(Arc::clone(&inner)).await;
    let service = RemoteImageService::lazy(&behind.endpoint(), PATIENCE).unwrap();
    let front = Socket::open(Arc::new(service), Handlers::Any, RuntimeServer::without_runtime("1")).await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut client = front.images().await;
    let mut request = Request::new(v1::ListImagesRequest::default());
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    client.list_images(request).await.unwrap();
    client.list_images(v1::ListImagesRequest::default()).await.unwrap();
    assert_eq!(*inner.0.lock().unwrap(), [Some(parent.to_owned()), None]);
}

/// The traces that calls came with.
#[derive(Debug, Default)]
struct Seen(std::sync::Mutex<Vec<Option<String>>>);

/// A socket that notes traces.
struct Traced;

impl Traced {
    async fn open(seen: Arc<Seen>) -> Socket {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traced.sock");
        let incoming = UnixListenerStream::new(listen(&path).await.unwrap());
        let note = InterceptorLayer::new(move |request: Request<()>| {
            let parent = request.metadata().get("traceparent").map(|parent| parent.to_str().unwrap().to_owned());
            seen.0.lock().unwrap().push(parent);
            Ok(request)
        });
        let routes =
            imagelet_runtime::cri::routes(Arc::new(fake()), Handlers::Any, RuntimeServer::without_runtime("1"));
        let task = tokio::spawn(async move {
            Server::builder().layer(note).add_routes(routes).serve_with_incoming(incoming).await.unwrap();
        });
        Socket { path, task, stop: CancellationToken::new(), _folder: folder }
    }
}

/// A store whose every call fails in one way.
#[derive(Debug)]
struct Failing(RuntimeErrorKind);

impl Failing {
    fn error<T>(&self) -> Result<T, RuntimeError> {
        Err(RuntimeError::new(self.0, "it is so"))
    }
}

#[async_trait::async_trait]
impl ImageService for Failing {
    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        self.error()
    }
    async fn status(&self, _spec: &ImageSpec) -> Result<Option<imagelet_core::image::Image>, RuntimeError> {
        self.error()
    }
    async fn pull(&self, _request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        self.error()
    }
    async fn remove(&self, _spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.error()
    }
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.error()
    }
}

/// A store with a defect in one call.
#[derive(Debug)]
struct Defective(FakeRuntime);

#[async_trait::async_trait]
impl ImageService for Defective {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        self.0.list(filter).await
    }
    async fn status(&self, _spec: &ImageSpec) -> Result<Option<imagelet_core::image::Image>, RuntimeError> {
        panic!("a planted defect")
    }
    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        self.0.pull(request, progress).await
    }
    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.0.remove(spec).await
    }
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.0.filesystem().await
    }
}

#[tokio::test]
async fn a_defect_ends_one_call_and_its_caller_is_told() {
    let socket = Socket::open(Arc::new(Defective(fake())), Handlers::Any, RuntimeServer::without_runtime("1")).await;
    let mut client = socket.images().await;
    let asked = v1::ImageStatusRequest { image: Some(spec("a")), verbose: false };
    let failed = client.image_status(asked).await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::Internal, "imagelet failed inside; its log says where"));
    // The connection and all other calls go on.
    assert_eq!(client.list_images(v1::ListImagesRequest::default()).await.unwrap().into_inner().images.len(), 1);
}

#[tokio::test]
async fn every_situation_has_the_code_that_callers_expect() {
    for (kind, code, message) in [
        (RuntimeErrorKind::InvalidArgument, Code::InvalidArgument, "it is so"),
        (RuntimeErrorKind::NotFound, Code::NotFound, "it is so"),
        (RuntimeErrorKind::Denied, Code::PermissionDenied, "it is so"),
        (RuntimeErrorKind::RegistryUnavailable, Code::Unknown, "RegistryUnavailable: it is so"),
        (RuntimeErrorKind::SignatureInvalid, Code::Unknown, "SignatureValidationFailed: it is so"),
        (RuntimeErrorKind::TimedOut, Code::DeadlineExceeded, "it is so"),
        (RuntimeErrorKind::Cancelled, Code::Cancelled, "it is so"),
        (RuntimeErrorKind::InUse, Code::FailedPrecondition, "it is so"),
        (RuntimeErrorKind::DiskFull, Code::ResourceExhausted, "it is so"),
        (RuntimeErrorKind::Unavailable, Code::Unavailable, "it is so"),
        (RuntimeErrorKind::Unsupported, Code::Unimplemented, "it is so"),
        (RuntimeErrorKind::Corrupt, Code::DataLoss, "it is so"),
        (RuntimeErrorKind::Unacceptable, Code::OutOfRange, "it is so"),
        (RuntimeErrorKind::Defect, Code::Internal, "it is so"),
        // A runtime's own refusal without a meaning; a kubelet shows the bare text of no other code.
        (RuntimeErrorKind::Other, Code::Unknown, "it is so"),
    ] {
        let runtime = RuntimeServer::without_runtime("1");
        let socket = Socket::open(Arc::new(Failing(kind)), Handlers::Any, runtime).await;
        let mut client = socket.images().await;
        let refused = client.pull_image(pull("a")).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (code, message));
        let removed = client.remove_image(v1::RemoveImageRequest { image: Some(spec("a")) }).await;
        let looked = client.image_status(v1::ImageStatusRequest { image: Some(spec("a")), verbose: false }).await;
        // What is absent is no failure of either.
        let is_absent = kind == RuntimeErrorKind::NotFound;
        assert_eq!((removed.is_ok(), looked.is_ok()), (is_absent, is_absent));
    }
}

#[tokio::test]
async fn a_socket_answers_images_as_the_vectors_say() {
    let cases = vectors("cri-image-rpcs.json");
    assert_eq!(cases.len(), 6);
    for case in cases {
        let (input, expected, name) = (&case["input"], &case["expected"], case["name"].as_str().unwrap());
        let fake = FakeRuntime::new();
        for image in input["store"].as_array().unwrap() {
            fake.insert(wire::stored::stored(image));
        }
        let socket = Socket::of(&fake).await;
        let asked = input["image"].as_str().unwrap_or_default();
        assert_eq!(expected.get("error").cloned().unwrap_or_default(), serde_json::Value::Null, "{name}");
        match input["rpc"].as_str().unwrap() {
            "ImageStatus" => {
                let status = v1::ImageStatusRequest { image: Some(spec(asked)), verbose: false };
                let image = socket.images().await.image_status(status).await.unwrap().into_inner().image;
                assert_eq!(image, wire::stored::wire(&expected["image"]), "{name}");
            }
            "ListImages" => {
                let listed = socket.images().await.list_images(v1::ListImagesRequest::default()).await.unwrap();
                let wanted = expected["images_unordered"].as_array().unwrap().iter().filter_map(wire::stored::wire);
                assert_eq!(listed.into_inner().images, wanted.collect::<Vec<_>>(), "{name}");
            }
            "RemoveImage" => {
                let callers = input["concurrency"].as_u64().unwrap_or(1);
                let mut tasks = Vec::new();
                for _ in 0..callers {
                    let (mut client, asked) = (socket.images().await, asked.to_owned());
                    let repeat = input["repeat"].as_u64().unwrap_or(1);
                    tasks.push(tokio::spawn(async move {
                        for _ in 0..repeat {
                            client.remove_image(v1::RemoveImageRequest { image: Some(spec(&asked)) }).await.unwrap();
                        }
                        let status = v1::ImageStatusRequest { image: Some(spec(&asked)), verbose: false };
                        client.image_status(status).await.unwrap().into_inner().image
                    }));
                }
                for task in tasks {
                    let status = expected.get("status_image").and_then(wire::stored::wire);
                    assert_eq!(task.await.unwrap(), status, "{name}: right after the removal");
                }
                let left = socket.images().await.list_images(v1::ListImagesRequest::default()).await.unwrap();
                assert_eq!(left.into_inner().images.len(), expected["store_after"].as_array().unwrap().len(), "{name}");
            }
            other => panic!("no such call: {other}"),
        }
    }
}
