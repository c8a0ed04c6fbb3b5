//! Serves a store of images as a CRI image service to the kubelet, crictl and critest (`docs/spec/cri.md §5`).

mod deadline;
mod list_cache;
mod listen;
mod runtime;

use std::{collections::BTreeMap, convert::Infallible, panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::ImageSpec,
    ports::{ImageService, Listing, no_progress},
};
pub use listen::{ListenError, listen};
use prost::Message;
pub use runtime::RuntimeServer;
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    codegen::http::{self, HeaderValue, Uri},
    metadata::MetadataMap,
    server::Grpc,
    service::Routes,
};
use tonic_prost::ProstCodec;
use tower::{service_fn, util::MapResponseLayer};
use tracing::Instrument as _;

use list_cache::{EncodedList, ListCache};

use crate::{
    MESSAGE_BYTES_MAX,
    cri::{
        convert::{self, Handlers},
        trace::TraceContext,
        v1,
    },
};

const SERVICE_LENGTH_MAX: usize = 128;

const BATCH_IMAGES_MAX: usize = 1000;

/// Maximum bytes in one message of a stream. A larger image gets a message of its own.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// All services of a CRI socket: images and runtime. A call to any other service, also of an older CRI version, returns
/// an error that names the service.
///
/// ```no_run
/// # async fn run(images: std::sync::Arc<dyn imagelet_core::ports::ImageService>) -> Result<(), imagelet_runtime::cri::ListenError> {
/// use imagelet_runtime::cri::{Handlers, RuntimeServer};
/// use tokio_stream::wrappers::UnixListenerStream;
///
/// let socket = imagelet_runtime::cri::listen("/run/imagelet/imagelet.sock".as_ref()).await?;
/// let connections = UnixListenerStream::new(socket);
/// let routes = imagelet_runtime::cri::routes(images, Handlers::default(), RuntimeServer::without_runtime("0.1.0"));
/// tonic::transport::Server::builder().add_routes(routes).serve_with_incoming(connections).await.ok();
/// # Ok(())
/// # }
/// ```
pub fn routes(images: Arc<dyn ImageService>, handlers: Handlers, runtime: RuntimeServer) -> Routes {
    let images = ImageServer { images, handlers, list: ListCache::default() };
    let mut routes = Routes::default();
    let router = std::mem::take(routes.axum_router_mut())
        .route_service(
            "/runtime.v1.ImageService/{call}",
            service_fn(move |request| {
                let images = images.clone();
                in_time(request, |request| images.answer(request))
            }),
        )
        .route_service(
            "/runtime.v1.RuntimeService/{call}",
            service_fn(move |request| {
                let runtime = runtime.clone();
                in_time(request, |request| runtime.answer(request))
            }),
        )
        .fallback(|uri: Uri| async move { refused(&uri).into_http::<Body>() })
        .layer(MapResponseLayer::new(as_go_says));
    *routes.axum_router_mut() = router;
    routes
}

/// Ends a call at its caller's deadline with `DeadlineExceeded`. Tonic would end the call with `Cancelled`.
async fn in_time<B, F>(
    request: http::Request<B>,
    answer: impl FnOnce(http::Request<Body>) -> F,
) -> Result<http::Response<Body>, Infallible>
where
    B: tonic::codegen::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
    F: Future<Output = http::Response<Body>>,
{
    let limit = deadline::limit(request.headers());
    deadline::within(limit, answer(request.map(Body::new)).map(Ok)).await
}

fn grpc<A: Message + 'static, Q: Message + Default + 'static>() -> Grpc<ProstCodec<A, Q>> {
    Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

async fn unary<Q, A, F>(
    call: &str,
    request: http::Request<Body>,
    answer: impl Fn(Q) -> F + Send + Sync,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    let service = service_fn(|request: Request<Q>| {
        let (metadata, _, message) = request.into_parts();
        let answer = answer(message);
        async move { traced(call, &metadata, answer).await.map(Response::new) }
    });
    grpc::<A, Q>().unary(service, request).await
}

async fn traced<T>(
    rpc: &str,
    metadata: &MetadataMap,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let trace = TraceContext::of(metadata);
    let span = tracing::debug_span!("cri", rpc, trace = trace.id());
    // A panic fails only this call, and the connection stays open.
    let call = AssertUnwindSafe(call.instrument(span)).catch_unwind();
    match trace.scope(call).await {
        Ok(answer) => answer,
        Err(_) => Err(status(rpc, "", &RuntimeError::defect("imagelet failed inside; its log says where"))),
    }
}

/// Replaces Tonic's status code for a message above the length limit with the code that Go's runtimes return.
fn as_go_says<B>(mut response: http::Response<B>) -> http::Response<B> {
    const CODE: &str = "grpc-status";
    // Percent-encoded as in a header. With another message, `OutOfRange` means that a store rejected an image.
    const TOO_LONG: &[u8] = b"message%20length%20too%20large";
    let has = |name: &str, is_it: &dyn Fn(&[u8]) -> bool| {
        response.headers().get(name).is_some_and(|value| is_it(value.as_bytes()))
    };
    let code = (Code::OutOfRange as i32).to_string();
    if has(CODE, &|value| value == code.as_bytes())
        && has("grpc-message", &|text| text.windows(TOO_LONG.len()).any(|part| part == TOO_LONG))
    {
        response.headers_mut().insert(CODE, HeaderValue::from(Code::ResourceExhausted as i32));
    }
    response
}

/// The error for an unknown service, which equals that of Go's gRPC server.
fn refused(uri: &Uri) -> Status {
    let service = uri.path().trim_start_matches('/').split('/').next().unwrap_or_default();
    let shown: String = service.chars().take(SERVICE_LENGTH_MAX).collect();
    tracing::debug!(service = shown, "refused a call to a service that is not here");
    Status::unimplemented(format!("unknown service {shown}"))
}

/// If a `PullImage` call is cancelled or expires, the server drops the pull.
#[derive(Clone, Debug)]
struct ImageServer {
    images: Arc<dyn ImageService>,
    handlers: Handlers,
    list: ListCache,
}

impl ImageServer {
    async fn answer(self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        match path.rsplit('/').next().unwrap_or_default() {
            call @ "ListImages" => unary(call, request, |request| self.list_images(request)).await,
            call @ "ImageStatus" => unary(call, request, |request| self.image_status(request)).await,
            call @ "PullImage" => unary(call, request, |request| self.pull_image(request)).await,
            call @ "RemoveImage" => unary(call, request, |request| self.remove_image(request)).await,
            call @ "ImageFsInfo" => unary(call, request, |()| self.image_fs_info()).await,
            "StreamImages" => self.stream_images(request).await,
            call => {
                Status::unimplemented(format!("unknown method {call} for service runtime.v1.ImageService")).into_http()
            }
        }
    }

    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, Status> {
        self.images.list(filter).await.map_err(|error| status("ListImages", "", &error))
    }

    async fn list_images(&self, request: v1::ListImagesRequest) -> Result<EncodedList, Status> {
        let filter = convert::filter_from_wire(request.filter);
        let listing = self.list(filter.as_ref()).await?;
        if let Some(list) = self.list.get(&listing) {
            return Ok(list);
        }
        let images = to_wire(listing.clone());
        let list = EncodedList(fitting(v1::ListImagesResponse { images }).encode_to_vec().into());
        if filter.is_none() {
            self.list.set(listing, list.clone());
        }
        Ok(list)
    }

    async fn stream_images(&self, request: http::Request<Body>) -> http::Response<Body> {
        let service = service_fn(|request: Request<v1::ListImagesRequest>| async move {
            let (metadata, _, request) = request.into_parts();
            let filter = convert::filter_from_wire(request.filter);
            let images = traced("StreamImages", &metadata, self.list(filter.as_ref())).await?;
            // A batch is created after the previous batch was sent, so a closed connection ends the work.
            let batches = stream::iter(batches(images).map(|images| Ok(v1::ListImagesResponse { images })));
            Ok(Response::new(batches))
        });
        grpc::<v1::ListImagesResponse, v1::ListImagesRequest>().server_streaming(service, request).await
    }

    async fn image_status(&self, request: v1::ImageStatusRequest) -> Result<v1::ImageStatusResponse, Status> {
        let spec = named(request.image)?;
        let found = if request.verbose {
            let details = self.images.details(&spec).await;
            details.map(|details| details.map(|details| (details.to_info(), details.image)))
        } else {
            self.images.status(&spec).await.map(|image| image.map(|image| (BTreeMap::new(), image)))
        };
        match found {
            Ok(Some((info, image))) => Ok(v1::ImageStatusResponse { image: Some(convert::image_to_wire(image)), info }),
            Err(error) if error.kind() != RuntimeErrorKind::NotFound => Err(status("ImageStatus", &spec.image, &error)),
            // CRI specifies an empty answer for an absent image.
            _ => Ok(v1::ImageStatusResponse::default()),
        }
    }

    async fn pull_image(&self, request: v1::PullImageRequest) -> Result<v1::PullImageResponse, Status> {
        let request =
            convert::pull_from_wire(request, &self.handlers).map_err(|error| status("PullImage", "", &error))?;
        require_name(&request.image)?;
        let pulled = self.images.pull(&request, no_progress()).await;
        let id = pulled.map_err(|error| status("PullImage", &request.image.image, &error))?;
        Ok(v1::PullImageResponse { image_ref: id.as_str().to_owned() })
    }

    async fn remove_image(&self, request: v1::RemoveImageRequest) -> Result<(), Status> {
        let spec = named(request.image)?;
        match self.images.remove(&spec).await {
            Err(error) if error.kind() != RuntimeErrorKind::NotFound => Err(status("RemoveImage", &spec.image, &error)),
            _ => Ok(()),
        }
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, Status> {
        let filesystems = self.images.filesystem().await.map_err(|error| status("ImageFsInfo", "", &error))?;
        Ok(convert::filesystems_to_wire(&filesystems))
    }
}

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

fn fitting(mut response: v1::ListImagesResponse) -> v1::ListImagesResponse {
    if response.encoded_len() > MESSAGE_BYTES_MAX {
        for spec in response.images.iter_mut().filter_map(|image| image.spec.as_mut()) {
            spec.annotations.clear();
        }
    }
    response
}

/// The images sorted by id, so that equal stores return equal lists.
fn to_wire(listing: Listing) -> Vec<v1::Image> {
    let images = listing.to_vec();
    drop(listing);
    let images = images.into_iter().map(|image| convert::image_to_wire(Arc::unwrap_or_clone(image)));
    let mut images: Vec<v1::Image> = images.collect();
    images.sort_by(|one, other| one.id.cmp(&other.id));
    images
}

pub fn batches(listing: Listing) -> impl Iterator<Item = Vec<v1::Image>> {
    let mut images = to_wire(listing).into_iter().peekable();
    std::iter::from_fn(move || Some(next_batch(&mut images)).filter(|batch| !batch.is_empty()))
}

fn next_batch(images: &mut std::iter::Peekable<std::vec::IntoIter<v1::Image>>) -> Vec<v1::Image> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while let Some(image) = images.next_if(|image| {
        bytes += image.encoded_len();
        batch.is_empty() || (batch.len() < BATCH_IMAGES_MAX && bytes <= BATCH_BYTES_MAX)
    }) {
        batch.push(image);
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(count: usize, name: &str) -> Vec<v1::Image> {
        vec![v1::Image { id: name.to_owned(), size: 1, ..v1::Image::default() }; count]
    }

    #[test]
    fn a_stream_has_full_batches_and_no_empty_one() {
        let lengths = |images: Vec<v1::Image>| {
            let mut images = images.into_iter().peekable();
            std::iter::from_fn(|| Some(next_batch(&mut images).len()).filter(|length| *length > 0)).collect::<Vec<_>>()
        };
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
