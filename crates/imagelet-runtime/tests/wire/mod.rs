//! The interface's services as tests call and serve them: clients without checks, and servers of a test's own.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

pub(crate) mod pods;
pub(crate) mod stored;
pub(crate) mod v1;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use prost::Message;
use tokio_stream::Stream;
use tonic::{
    IntoRequest, Request, Response, Status, Streaming,
    body::Body,
    client,
    codegen::{Service, http},
    server::{self, NamedService},
    transport::{Channel, Endpoint, Error},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// A stream of answers.
pub(crate) type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Sends one call and waits for its answer, of 4 MiB at most.
pub(crate) async fn call<Q, A>(
    channel: &Channel,
    path: &'static str,
    request: Request<Q>,
) -> Result<Response<A>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    grpc.unary(request, http::uri::PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
}

async fn call_for_stream<Q, A>(
    channel: &Channel,
    path: &'static str,
    request: Request<Q>,
) -> Result<Response<Streaming<A>>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    grpc.server_streaming(request, http::uri::PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
}

/// Serves one call.
pub(crate) async fn answer<Q, A, F>(
    request: http::Request<Body>,
    answer: impl FnMut(Request<Q>) -> F,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    F: Future<Output = Result<Response<A>, Status>>,
{
    let grpc = server::Grpc::new(ProstCodec::<A, Q>::default());
    grpc.max_encoding_message_size(usize::MAX).unary(service_fn(answer), request).await
}

/// Serves one call by a stream.
pub(crate) async fn answer_by_stream<Q, A, F>(
    request: http::Request<Body>,
    answer: impl FnMut(Request<Q>) -> F,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    F: Future<Output = Result<Response<Streamed<A>>, Status>>,
{
    server::Grpc::new(ProstCodec::<A, Q>::default()).server_streaming(service_fn(answer), request).await
}

/// A client, a trait whose calls are all unimplemented, and a server of an implementation.
macro_rules! service {
    ($name:ident as $path:literal, $client:ident, $server:ident {
        $($rpc:literal $method:ident($question:ident) -> $answer:ident;)*
        streams $($stream_rpc:literal $stream:ident($stream_question:ident) -> $page:ident;)*
    }) => {
        #[derive(Clone, Debug)]
        pub(crate) struct $client(Channel);

        impl $client {
            pub(crate) fn new(channel: Channel) -> Self {
                Self(channel)
            }

            pub(crate) async fn connect(uri: String) -> Result<Self, Error> {
                Ok(Self(Endpoint::new(uri)?.connect().await?))
            }

            $(pub(crate) async fn $method(
                &mut self,
                request: impl IntoRequest<v1::$question>,
            ) -> Result<Response<v1::$answer>, Status> {
                call(&self.0, concat!("/", $path, "/", $rpc), request.into_request()).await
            })*

            $(pub(crate) async fn $stream(
                &mut self,
                request: impl IntoRequest<v1::$stream_question>,
            ) -> Result<Response<Streaming<v1::$page>>, Status> {
                call_for_stream(&self.0, concat!("/", $path, "/", $stream_rpc), request.into_request()).await
            })*
        }

        pub(crate) trait $name: Send + Sync + 'static {
            $(fn $method(
                &self,
                _request: Request<v1::$question>,
            ) -> impl Future<Output = Result<Response<v1::$answer>, Status>> + Send {
                std::future::ready(Err(Status::unimplemented("no test needs it")))
            })*

            $(fn $stream(
                &self,
                _request: Request<v1::$stream_question>,
            ) -> impl Future<Output = Result<Response<Streamed<v1::$page>>, Status>> + Send {
                std::future::ready(Err(Status::unimplemented("this runtime streams no lists")))
            })*
        }

        #[derive(Debug)]
        pub(crate) struct $server<T>(Arc<T>);

        impl<T> $server<T> {
            pub(crate) fn new(service: T) -> Self {
                Self(Arc::new(service))
            }
        }

        impl<T> Clone for $server<T> {
            fn clone(&self) -> Self {
                Self(Arc::clone(&self.0))
            }
        }

        impl<T> NamedService for $server<T> {
            const NAME: &'static str = $path;
        }

        impl<T: $name> Service<http::Request<Body>> for $server<T> {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

            fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                let service = Arc::clone(&self.0);
                Box::pin(async move {
                    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                    Ok(match method.as_str() {
                        $($rpc => answer(request, |request| service.$method(request)).await,)*
                        $($stream_rpc => answer_by_stream(request, |request| service.$stream(request)).await,)*
                        _ => Status::unimplemented("unknown method").into_http(),
                    })
                })
            }
        }
    };
}

service! {
    ImageService as "runtime.v1.ImageService", ImageServiceClient, ImageServiceServer {
        "ListImages" list_images(ListImagesRequest) -> ListImagesResponse;
        "ImageStatus" image_status(ImageStatusRequest) -> ImageStatusResponse;
        "PullImage" pull_image(PullImageRequest) -> PullImageResponse;
        "RemoveImage" remove_image(RemoveImageRequest) -> RemoveImageResponse;
        "ImageFsInfo" image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse;
        streams
        "StreamImages" stream_images(StreamImagesRequest) -> StreamImagesResponse;
    }
}

service! {
    RuntimeService as "runtime.v1.RuntimeService", RuntimeServiceClient, RuntimeServiceServer {
        "Version" version(VersionRequest) -> VersionResponse;
        "Status" status(StatusRequest) -> StatusResponse;
        "RuntimeConfig" runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse;
        "ListPodSandbox" list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse;
        "PodSandboxStatus" pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse;
        "RunPodSandbox" run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse;
        "RemovePodSandbox" remove_pod_sandbox(RemovePodSandboxRequest) -> Empty;
        "ListContainers" list_containers(ListContainersRequest) -> ListContainersResponse;
        "ContainerStatus" container_status(ContainerStatusRequest) -> ContainerStatusResponse;
        "StopContainer" stop_container(StopContainerRequest) -> Empty;
        streams
        "StreamPodSandboxes" stream_pod_sandboxes(StreamPodSandboxesRequest) -> StreamPodSandboxesResponse;
        "StreamContainers" stream_containers(StreamContainersRequest) -> StreamContainersResponse;
        "GetContainerEvents" get_container_events(Empty) -> ContainerEventResponse;
    }
}
