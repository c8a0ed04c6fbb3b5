//! What CRI shows: the one call of it that an import makes, and the one that removes.

use async_trait::async_trait;
use imagelet_core::{
    error::RuntimeError,
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser},
    ports::{ImageFilesystems, ImageService, Listing, Progress, PullRequest},
};
use tonic::{Request, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

use crate::node::Node;

/// Both requests are an image spec whose first field is the name.
#[derive(Clone, PartialEq, prost::Message)]
struct SpecRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<Spec>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Spec {
    #[prost(string, tag = "1")]
    image: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    image: Option<Shown>,
}

/// An image as CRI shows it.
#[derive(Clone, PartialEq, prost::Message)]
struct Shown {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, repeated, tag = "2")]
    repo_tags: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    repo_digests: Vec<String>,
    #[prost(uint64, tag = "4")]
    size: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Empty {}

/// A node's images through CRI.
#[derive(Clone, Debug)]
pub(crate) struct CriImages(Channel);

impl CriImages {
    pub(crate) fn of(node: &Node) -> Self {
        let socket = node.socket();
        let dial = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
        });
        Self(Channel::from_static("http://localhost").connect_with_connector_lazy(dial))
    }

    async fn call<A: prost::Message + Default + 'static>(&self, call: &'static str, name: &str) -> A {
        let mut client = Grpc::new(self.0.clone());
        client.ready().await.unwrap();
        let request = Request::new(SpecRequest { image: Some(Spec { image: name.to_owned() }) });
        let codec = ProstCodec::<SpecRequest, A>::default();
        client.unary(request, PathAndQuery::from_static(call), codec).await.unwrap().into_inner()
    }
}

#[async_trait]
impl ImageService for CriImages {
    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let answer: StatusResponse = self.call("/runtime.v1.ImageService/ImageStatus", &spec.image).await;
        Ok(answer.image.map(|shown| Image {
            id: ImageId::new(shown.id),
            tags: shown.repo_tags,
            digests: shown.repo_digests,
            size: ByteSize(shown.size),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        }))
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let Empty {} = self.call("/runtime.v1.ImageService/RemoveImage", &spec.image).await;
        Ok(())
    }

    async fn list(&self, _: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        Err(RuntimeError::unsupported("not asked for by an import"))
    }

    async fn pull(&self, _: &PullRequest, _: Progress) -> Result<ImageId, RuntimeError> {
        Err(RuntimeError::unsupported("not asked for by an import"))
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Err(RuntimeError::unsupported("not asked for by an import"))
    }
}
