//! A store of images, served as a CRI image service: to kubelets, crictl and critest (`spec/cri.md §5`).

mod listen;

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use futures_util::{Stream, stream};
use imagelet_core::{
    image::ImageSpec,
    runtime::{ImageService, RuntimeError, RuntimeErrorKind, no_progress},
};
pub use listen::{ListenError, listen};
use prost::Message as _;
use tonic::{Request, Response, Status};

use crate::{
    MESSAGE_BYTES_MAX, convert,
    v1::{
        self,
        image_service_server::{ImageService as ImageServiceRpc, ImageServiceServer},
    },
};

/// The most images in one message of a stream.
const BATCH_IMAGES_MAX: usize = 1000;

/// The most bytes in one message of a stream; an image that is larger goes alone.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// The image service of a store, for a tonic router, with the interface's message limits.
///
/// ```no_run
/// # async fn serve(images: std::sync::Arc<dyn imagelet_core::runtime::ImageService>) -> Result<(), Box<dyn std::error::Error>> {
/// let socket = imagelet_cri::listen("/run/imagelet/imagelet.sock".as_ref()).await?;
/// tonic::transport::Server::builder()
///     .add_service(imagelet_cri::image_service(images))
///     .serve_with_incoming(tokio_stream::wrappers::UnixListenerStream::new(socket))
///     .await?;
/// # Ok(())
/// # }
/// ```
pub fn image_service(images: Arc<dyn ImageService>) -> ImageServiceServer<ImageServer> {
    ImageServiceServer::new(ImageServer { images })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// Answers CRI calls from a store of images.
///
/// A caller that goes away, or whose deadline passes, drops the call, and with it the pull.
#[derive(Clone, Debug)]
pub struct ImageServer {
    images: Arc<dyn ImageService>,
}

impl ImageServer {
    /// Sorted by id, so that equal stores give equal lists.
    async fn list(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, Status> {
        let filter = convert::filter_from_wire(filter);
        let images = self.images.list(filter.as_ref()).await.map_err(|error| status("ListImages", "", &error))?;
        let mut images: Vec<v1::Image> = images.into_iter().map(convert::image_to_wire).collect();
        images.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(images)
    }
}

#[tonic::async_trait]
impl ImageServiceRpc for ImageServer {
    type StreamImagesStream = Pin<Box<dyn Stream<Item = Result<v1::StreamImagesResponse, Status>> + Send>>;

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let images = self.list(request.into_inner().filter).await?;
        Ok(Response::new(fitting(v1::ListImagesResponse { images })))
    }

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<Self::StreamImagesStream>, Status> {
        let images = self.list(request.into_inner().filter).await?;
        let messages = batches(images).into_iter().map(|images| Ok(v1::StreamImagesResponse { images }));
        Ok(Response::new(Box::pin(stream::iter(messages))))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let request = request.into_inner();
        let spec = named(request.image)?;
        let found = if request.verbose {
            let details = self.images.details(&spec).await;
            details.map(|details| details.map(|details| (convert::info_to_wire(&details), details.image)))
        } else {
            self.images.status(&spec).await.map(|image| image.map(|image| (BTreeMap::new(), image)))
        };
        match found {
            Ok(Some((info, image))) => {
                Ok(Response::new(v1::ImageStatusResponse { image: Some(convert::image_to_wire(image)), info }))
            }
            // An absent image is an answer.
            Ok(None) => Ok(Response::new(v1::ImageStatusResponse::default())),
            Err(error) if error.kind() == RuntimeErrorKind::NotFound => {
                Ok(Response::new(v1::ImageStatusResponse::default()))
            }
            Err(error) => Err(status("ImageStatus", &spec.image, &error)),
        }
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let request = convert::pull_from_wire(request.into_inner()).map_err(|error| status("PullImage", "", &error))?;
        require_name(&request.image)?;
        let id = self
            .images
            .pull(&request, no_progress())
            .await
            .map_err(|error| status("PullImage", &request.image.image, &error))?;
        Ok(Response::new(v1::PullImageResponse { image_ref: id.as_str().to_owned() }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let spec = named(request.into_inner().image)?;
        match self.images.remove(&spec).await {
            Err(error) if error.kind() != RuntimeErrorKind::NotFound => Err(status("RemoveImage", &spec.image, &error)),
            _ => Ok(Response::new(v1::RemoveImageResponse {})),
        }
    }

    async fn image_fs_info(
        &self,
        _request: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        let filesystems = self.images.filesystem().await.map_err(|error| status("ImageFsInfo", "", &error))?;
        Ok(Response::new(convert::filesystems_to_wire(&filesystems)))
    }
}

/// The call ends here, so here its error is logged.
fn status(call: &str, image: &str, error: &RuntimeError) -> Status {
    tracing::warn!(call, image, error = error.chain(), hint = error.hint(), "a CRI call failed");
    convert::status_from_error(error)
}

fn named(spec: Option<v1::ImageSpec>) -> Result<ImageSpec, Status> {
    let spec = convert::spec_from_wire(spec);
    require_name(&spec)?;
    Ok(spec)
}

fn require_name(spec: &ImageSpec) -> Result<(), Status> {
    if spec.image.is_empty() { Err(Status::invalid_argument("no image specified")) } else { Ok(()) }
}

/// Leaves annotations out where the list is too long for a message otherwise.
fn fitting(mut response: v1::ListImagesResponse) -> v1::ListImagesResponse {
    if response.encoded_len() > MESSAGE_BYTES_MAX {
        for spec in response.images.iter_mut().filter_map(|image| image.spec.as_mut()) {
            spec.annotations.clear();
        }
    }
    response
}

/// Messages of bounded count and size, none of them empty.
fn batches(images: Vec<v1::Image>) -> Vec<Vec<v1::Image>> {
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    let mut bytes = 0;
    for image in images {
        let length = image.encoded_len();
        if !batch.is_empty() && (batch.len() == BATCH_IMAGES_MAX || bytes + length > BATCH_BYTES_MAX) {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += length;
        batch.push(image);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(count: usize, name: &str) -> Vec<v1::Image> {
        vec![v1::Image { id: name.to_owned(), size: 1, ..v1::Image::default() }; count]
    }

    #[test]
    fn a_stream_has_full_batches_and_no_empty_one() {
        let lengths = |images| batches(images).iter().map(Vec::len).collect::<Vec<_>>();
        assert!(lengths(images(0, "a")).is_empty());
        assert_eq!(lengths(images(3, "a")), [3]);
        assert_eq!(lengths(images(2001, "a")), [1000, 1000, 1]);
        let large = "x".repeat(BATCH_BYTES_MAX / 2);
        assert_eq!(lengths(images(3, &large)), [1, 1, 1]);
    }

    #[test]
    fn a_list_too_long_loses_its_annotations_first() {
        let spec = v1::ImageSpec {
            annotations: BTreeMap::from([("note".to_owned(), "x".repeat(MESSAGE_BYTES_MAX))]),
            ..v1::ImageSpec::default()
        };
        let image = v1::Image { id: "a".into(), size: 1, spec: Some(spec), ..v1::Image::default() };
        let response = fitting(v1::ListImagesResponse { images: vec![image] });
        assert!(response.encoded_len() < 100);
        assert_eq!(response.images[0].id, "a");
    }
}
