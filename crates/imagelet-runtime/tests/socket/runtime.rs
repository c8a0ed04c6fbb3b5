//! The client of containers before a runtime that streams its lists, or does not, and says no more than it must.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use imagelet_core::{error::RuntimeErrorKind, ports::ContainerService as _};
use imagelet_runtime::cri::{Endpoint, RemoteContainerService, listen};
use prost::Message;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, body::Body, codegen::http, server::NamedService};
use tonic_prost::ProstCodec;

use crate::{PATIENCE, wire::v1};

/// How a runtime answers a call for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streams {
    InTwoMessages,
    None,
    /// One message, then an error.
    Broken,
}

/// A runtime with two containers and two sandboxes, and a version that leaves everything out.
#[derive(Clone, Debug)]
struct Runtime {
    streams: Streams,
    asked: Arc<Mutex<Vec<String>>>,
}

fn container(id: &str) -> v1::Container {
    v1::Container { id: id.into(), ..v1::Container::default() }
}

fn sandbox(id: &str) -> v1::PodSandbox {
    let metadata = Some(v1::PodSandboxMetadata { name: id.into(), ..v1::PodSandboxMetadata::default() });
    v1::PodSandbox { id: id.into(), metadata, ..v1::PodSandbox::default() }
}

impl Runtime {
    async fn unary<Q, A>(request: http::Request<Body>, answer: A) -> http::Response<Body>
    where
        Q: Message + Default + 'static,
        A: Message + Default + Clone + 'static,
    {
        let service = tower::service_fn(move |_: Request<Q>| {
            let answer = answer.clone();
            async move { Ok::<_, Status>(Response::new(answer)) }
        });
        tonic::server::Grpc::new(ProstCodec::<A, Q>::default()).unary(service, request).await
    }

    async fn stream<Q, A>(self, request: http::Request<Body>, messages: [A; 2]) -> http::Response<Body>
    where
        Q: Message + Default + 'static,
        A: Message + Default + Clone + 'static,
    {
        let [first, second] = messages.map(Ok);
        let answers = match self.streams {
            Streams::InTwoMessages => vec![first, second],
            Streams::None => vec![Err(Status::unimplemented("unknown method"))],
            Streams::Broken => vec![first, Err(Status::internal("boom"))],
        };
        let service = tower::service_fn(move |_: Request<Q>| {
            let answers = answers.clone();
            async move { Ok::<_, Status>(Response::new(tokio_stream::iter(answers))) }
        });
        tonic::server::Grpc::new(ProstCodec::<A, Q>::default()).server_streaming(service, request).await
    }

    async fn answer(self, request: http::Request<Body>) -> http::Response<Body> {
        let authority = request.uri().authority().map(ToString::to_string);
        assert_eq!(authority.as_deref(), Some("localhost"), "whatever the path of the socket");
        let call = request.uri().path().rsplit('/').next().unwrap().to_owned();
        self.asked.lock().unwrap().push(call.clone());
        let containers = |ids: &[&str]| ids.iter().map(|id| container(id)).collect::<Vec<_>>();
        let sandboxes = |ids: &[&str]| ids.iter().map(|id| sandbox(id)).collect::<Vec<_>>();
        match call.as_str() {
            "Version" => Self::unary::<v1::VersionRequest, _>(request, v1::VersionResponse::default()).await,
            "ListContainers" => {
                let answer = v1::ListContainersResponse { containers: containers(&["a", "b"]) };
                Self::unary::<v1::ListContainersRequest, _>(request, answer).await
            }
            "ListPodSandbox" => {
                let answer = v1::ListPodSandboxResponse { items: sandboxes(&["p", "q"]) };
                Self::unary::<v1::ListPodSandboxRequest, _>(request, answer).await
            }
            "StreamContainers" => {
                let message = |id| v1::StreamContainersResponse { containers: containers(&[id]) };
                self.stream::<v1::StreamContainersRequest, _>(request, ["a", "b"].map(message)).await
            }
            "StreamPodSandboxes" => {
                let message = |id| v1::StreamPodSandboxesResponse { items: sandboxes(&[id]) };
                self.stream::<v1::StreamPodSandboxesRequest, _>(request, ["p", "q"].map(message)).await
            }
            other => panic!("nobody asks for {other}"),
        }
    }
}

impl NamedService for Runtime {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl tower::Service<http::Request<Body>> for Runtime {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.answer(request).await) })
    }
}

#[tokio::test]
async fn containers_and_sandboxes_come_in_streams_whole_or_not_at_all() {
    for (streams, wanted) in [
        (Streams::InTwoMessages, ["StreamContainers", "StreamPodSandboxes", "StreamContainers"].as_slice()),
        // Once told that there are none, it asks for none again.
        (Streams::None, &["StreamContainers", "ListContainers", "ListPodSandbox", "ListContainers"]),
        (Streams::Broken, &["StreamContainers", "StreamPodSandboxes", "StreamContainers"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runtime.sock");
        let incoming = UnixListenerStream::new(listen(&path).await.unwrap());
        let runtime = Runtime { streams, asked: Arc::default() };
        let asked = Arc::clone(&runtime.asked);
        let server = tokio::spawn(async move {
            tonic::transport::Server::builder().add_service(runtime).serve_with_incoming(incoming).await.unwrap();
        });
        let endpoint = Endpoint::at(&path).unwrap();
        // It says nothing of its version, and passes: that it answers is all that counts.
        let service = RemoteContainerService::connect(&endpoint, PATIENCE).await.unwrap().streaming_lists(true);
        let error = service.version().await.unwrap_err();
        assert!(error.to_string().starts_with("not all fields are set in VersionResponse"), "{error}");
        asked.lock().unwrap().clear();

        for round in 0..2 {
            let listed = service.containers().await;
            if streams == Streams::Broken {
                assert_eq!(listed.unwrap_err().to_string(), "rpc error: code = Internal desc = boom");
            } else {
                let ids: Vec<String> = listed.unwrap().into_iter().map(|container| container.id).collect();
                assert_eq!(ids, ["a", "b"], "{streams:?}");
            }
            if round == 0 {
                let listed = service.sandboxes().await;
                if streams == Streams::Broken {
                    assert_eq!(listed.unwrap_err().kind(), RuntimeErrorKind::Other);
                } else {
                    let ids: Vec<String> = listed.unwrap().into_iter().map(|sandbox| sandbox.id).collect();
                    assert_eq!(ids, ["p", "q"], "{streams:?}");
                }
            }
        }
        assert_eq!(*asked.lock().unwrap(), wanted, "{streams:?}");
        server.abort();
    }
}
