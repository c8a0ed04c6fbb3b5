//! A server of images that answers what a test says.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use imagelet_runtime::cri::RemoteImageService;
use tonic::{Request, Response, Status};

use crate::{
    PATIENCE, Served,
    wire::{ImageService as ImageServiceRpc, ImageServiceServer, Streamed, v1},
};

/// Answers what a vector says.
#[derive(Default)]
pub(crate) struct Scripted {
    pub(crate) image: Option<v1::Image>,
    pub(crate) image_ref: String,
    pub(crate) refusal: Option<Status>,
    pub(crate) batches: Vec<Vec<String>>,
    pub(crate) unary: Option<Vec<String>>,
    /// What the call that proves the interface is refused with.
    pub(crate) handshake_refusal: Option<Status>,
    pub(crate) stream_end: Option<Status>,
    pub(crate) lists: Arc<AtomicUsize>,
    /// The list calls, in order.
    pub(crate) asked: Arc<Mutex<Vec<&'static str>>>,
    /// The deadline of the last call, as it was sent.
    pub(crate) deadlines: Arc<Mutex<Vec<Option<String>>>>,
    pub(crate) hangs: bool,
}

impl Scripted {
    async fn answer<T>(&self, request: Request<impl Send>, answer: T) -> Result<Response<T>, Status> {
        let deadline = request.metadata().get("grpc-timeout").map(|value| value.to_str().unwrap().to_owned());
        self.deadlines.lock().unwrap().push(deadline);
        if self.hangs {
            std::future::pending::<()>().await;
        }
        self.refusal.clone().map_or(Ok(Response::new(answer)), Err)
    }
}

fn listed(ids: &[impl AsRef<str>]) -> Vec<v1::Image> {
    ids.iter().map(|id| v1::Image { id: id.as_ref().to_owned(), ..v1::Image::default() }).collect()
}

impl ImageServiceRpc for Scripted {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.asked.lock().unwrap().push("ListImages");
        let images = self.unary.as_ref().map_or_else(|| listed(&["a"]), |ids| listed(ids));
        self.answer(request, v1::ListImagesResponse { images }).await
    }
    async fn stream_images(
        &self,
        _request: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<Streamed<v1::StreamImagesResponse>>, Status> {
        self.asked.lock().unwrap().push("StreamImages");
        let images = self.batches.iter().map(|ids| Ok(v1::StreamImagesResponse { images: listed(ids) }));
        let messages: Vec<_> = images.chain(self.stream_end.clone().map(Err)).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        self.answer(request, v1::ImageStatusResponse { image: self.image.clone(), ..Default::default() }).await
    }
    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        self.answer(request, v1::PullImageResponse { image_ref: self.image_ref.clone() }).await
    }
    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        self.answer(request, v1::RemoveImageResponse {}).await
    }
    async fn image_fs_info(
        &self,
        request: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        if let Some(refusal) = &self.handshake_refusal {
            return Err(refusal.clone());
        }
        self.answer(request, v1::ImageFsInfoResponse::default()).await
    }
}

pub(crate) async fn scripted(script: Scripted) -> (Served, RemoteImageService) {
    let served = Served::service(ImageServiceServer::new(script)).await;
    let client = RemoteImageService::lazy(&served.endpoint, PATIENCE).unwrap();
    (served, client)
}
