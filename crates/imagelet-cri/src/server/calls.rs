//! Answers the calls of a socket: those that callers wait for many times a second straight away, all others by routes.
//!
//! Each layer around a call costs as much as the answer itself. So what is plain is answered here: one whole message, not
//! packed, of a call that reads. Whatever is odd about a request goes the way of tonic, which knows what to say to it.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    vec,
};

use hyper::body::{Body, Frame};
use imagelet_core::runtime::ImageService;
use prost::{DecodeError, Message};
use tonic::{
    Status,
    body::Body as RoutedBody,
    codegen::{
        Bytes, Service as _,
        http::{
            HeaderMap, HeaderValue, Method, Request, Response,
            header::{CONTENT_TYPE, HeaderName},
        },
    },
    metadata::MetadataMap,
    service::Routes,
};

use super::{Handlers, ImageServer, RuntimeServer, deadline, kept::KeptList, routes_of};
use crate::{MESSAGE_BYTES_MAX, convert, v1};

/// A byte that says whether the message is packed, and its length.
const PREFIX_BYTES: usize = 5;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const SUCCESS: HeaderValue = HeaderValue::from_static("0");

/// The calls answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plain {
    ListImages,
    ImageStatus,
    ImageFsInfo,
}

impl Plain {
    fn of<B>(request: &Request<B>) -> Option<Self> {
        let plain = match request.uri().path() {
            "/runtime.v1.ImageService/ImageStatus" => Self::ImageStatus,
            "/runtime.v1.ImageService/ListImages" => Self::ListImages,
            "/runtime.v1.ImageService/ImageFsInfo" => Self::ImageFsInfo,
            _ => return None,
        };
        let is_packed = request.headers().contains_key(ENCODING);
        (request.method() == Method::POST && !is_packed).then_some(plain)
    }

    fn asked(self, message: Bytes) -> Result<Asked, DecodeError> {
        Ok(match self {
            Self::ListImages => Asked::Images(v1::ListImagesRequest::decode(message)?),
            Self::ImageStatus => Asked::Image(v1::ImageStatusRequest::decode(message)?),
            Self::ImageFsInfo => {
                v1::ImageFsInfoRequest::decode(message)?;
                Asked::Filesystems
            }
        })
    }
}

/// The same, with what they ask.
enum Asked {
    Images(v1::ListImagesRequest),
    Image(v1::ImageStatusRequest),
    Filesystems,
}

/// All that a CRI socket answers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Calls {
    images: ImageServer,
    routes: Routes,
    list: KeptList,
}

impl Calls {
    /// Answers what [`super::routes`] does.
    pub fn new(images: Arc<dyn ImageService>, handlers: Handlers, runtime: RuntimeServer) -> Self {
        let images = ImageServer::new(images, handlers);
        Self { routes: routes_of(images.clone(), runtime), images, list: KeptList::default() }
    }

    /// The same, and what is changed of its routes.
    #[must_use]
    pub fn with_routes(self, change: impl FnOnce(Routes) -> Routes) -> Self {
        Self { routes: change(self.routes).prepare(), ..self }
    }

    /// Answers one call, within its caller's deadline.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Answer>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>> + Send,
    {
        let Some(call) = Plain::of(&request) else { return self.routed(request.map(RoutedBody::new)).await };
        let (head, body) = request.into_parts();
        let message = match read(body).await {
            Ok(message) => message,
            Err(odd) => return self.routed(Request::from_parts(head, RoutedBody::new(odd))).await,
        };
        let Ok(asked) = call.asked(message.slice(PREFIX_BYTES..)) else {
            let again = Again::<B> { read: vec![Ok(Frame::data(message))].into_iter(), rest: None };
            return self.routed(Request::from_parts(head, RoutedBody::new(again))).await;
        };
        match self.plain(asked, MetadataMap::from_headers(head.headers)).await {
            Ok(message) => sent(message),
            Err(status) => status.into_http(),
        }
    }

    async fn plain(&self, asked: Asked, metadata: MetadataMap) -> Result<Bytes, Status> {
        match asked {
            Asked::Images(request) => self.list(request, &metadata).await,
            Asked::Image(request) => prefixed(&self.images.status(&metadata, request).await?),
            Asked::Filesystems => prefixed(&self.images.filesystems(&metadata).await?),
        }
    }

    /// Makes the list of all images once after each change: that takes longer than all else, and callers ask for it over
    /// and over.
    async fn list(&self, request: v1::ListImagesRequest, metadata: &MetadataMap) -> Result<Bytes, Status> {
        let is_of_all = convert::filter_from_wire(request.filter.clone()).is_none();
        let edition = if is_of_all { self.images.images.edition() } else { None };
        if let Some(message) = edition.and_then(|edition| self.list.of(edition)) {
            return Ok(message);
        }
        let message = prefixed(&self.images.listed(metadata, request).await?)?;
        // What has changed meanwhile may be in it or not.
        if let Some(edition) = edition
            && self.images.images.edition() == Some(edition)
        {
            self.list.keep(edition, message.clone());
        }
        Ok(message)
    }

    async fn routed(&self, request: Request<RoutedBody>) -> Response<Answer> {
        let limit = deadline::of(request.headers());
        let routed = Box::pin(self.routes.clone().call(request));
        let answered = match limit {
            None => routed.await,
            Some(limit) => match tokio::time::timeout(limit, routed).await {
                Ok(answered) => answered,
                Err(_) => return deadline::passed().into_http(),
            },
        };
        let Ok(answer) = answered;
        answer.map(Answer::routed)
    }
}

/// A message as it goes over the wire.
fn prefixed(message: &impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    let (true, Ok(prefix)) = (length <= MESSAGE_BYTES_MAX, u32::try_from(length)) else {
        let why = format!("the answer has {length} bytes; the interface allows for {MESSAGE_BYTES_MAX}");
        return Err(Status::resource_exhausted(why));
    };
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + length);
    bytes.push(0);
    bytes.extend_from_slice(&prefix.to_be_bytes());
    message.encode_raw(&mut bytes);
    Ok(bytes.into())
}

fn sent(message: Bytes) -> Response<Answer> {
    let mut response = Response::new(Answer(Said::Message(message)));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// Reads a request that is one message in one frame, prefix included; any other is given back as it came.
async fn read<B: Body<Data = Bytes> + Unpin>(mut body: B) -> Result<Bytes, Again<B>> {
    let mut message: Option<Bytes> = None;
    loop {
        if body.is_end_stream() {
            break;
        }
        let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await else { break };
        match frame.map(Frame::into_data) {
            // Some say that they have ended in a frame of its own.
            Ok(Ok(bytes)) if bytes.is_empty() => {}
            Ok(Ok(bytes)) if message.is_none() => message = Some(bytes),
            other => {
                let other = match other {
                    Ok(Ok(bytes)) => Ok(Frame::data(bytes)),
                    Ok(Err(frame)) => Ok(frame),
                    Err(error) => Err(error),
                };
                let read: Vec<_> = message.map(|bytes| Ok(Frame::data(bytes))).into_iter().chain([other]).collect();
                return Err(Again { read: read.into_iter(), rest: Some(body) });
            }
        }
    }
    match message {
        Some(message) if is_whole(&message) => Ok(message),
        message => {
            let read: Vec<_> = message.map(|bytes| Ok(Frame::data(bytes))).into_iter().collect();
            Err(Again { read: read.into_iter(), rest: None })
        }
    }
}

fn is_whole(message: &[u8]) -> bool {
    let Some((&[0, a, b, c, d], rest)) = message.split_first_chunk() else { return false };
    u32::from_be_bytes([a, b, c, d]) as usize == rest.len()
}

/// A body that was read from, from its beginning.
struct Again<B: Body> {
    read: vec::IntoIter<Result<Frame<Bytes>, B::Error>>,
    /// `None`: it has ended.
    rest: Option<B>,
}

// Nothing in it is pinned: errors are only handed on.
impl<B: Body + Unpin> Unpin for Again<B> {}

impl<B: Body<Data = Bytes> + Unpin> Body for Again<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        match (this.read.next(), &mut this.rest) {
            (Some(frame), _) => Poll::Ready(Some(frame)),
            (None, Some(rest)) => Pin::new(rest).poll_frame(context),
            (None, None) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.as_slice().is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }
}

/// The body of an answer.
#[derive(Debug, Default)]
pub struct Answer(Said);

#[derive(Debug, Default)]
enum Said {
    /// One message, and that all went well.
    Message(Bytes),
    /// That all went well.
    Success,
    /// Whatever a route says.
    Routed(RoutedBody),
    #[default]
    Nothing,
}

impl Answer {
    fn routed(body: RoutedBody) -> Self {
        Self(Said::Routed(body))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let said = &mut self.get_mut().0;
        if let Said::Routed(body) = said {
            return Pin::new(body).poll_frame(context);
        }
        let (frame, next) = match std::mem::take(said) {
            Said::Message(message) => (Frame::data(message), Said::Success),
            Said::Success => (Frame::trailers(HeaderMap::from_iter([(STATUS, SUCCESS)])), Said::Nothing),
            Said::Routed(_) | Said::Nothing => return Poll::Ready(None),
        };
        *said = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Said::Message(_) | Said::Success => false,
            Said::Routed(body) => body.is_end_stream(),
            Said::Nothing => true,
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match &self.0 {
            Said::Message(_) | Said::Success => hyper::body::SizeHint::default(),
            Said::Routed(body) => body.size_hint(),
            Said::Nothing => hyper::body::SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::{BodyExt as _, StreamBody};
    use imagelet_core::testing::FakeRuntime;

    use super::*;

    const IMAGE: &str = "registry.test/a:v1";

    fn calls() -> (Calls, Routes) {
        let fake = Arc::new(FakeRuntime::new());
        fake.preload(IMAGE, "a", 1024);
        let runtime = || RuntimeServer::without_runtime("1");
        let calls = Calls::new(Arc::clone(&fake) as Arc<dyn ImageService>, Handlers::Any, runtime());
        (calls, super::super::routes(fake, Handlers::Any, runtime()))
    }

    /// What somebody may send: the call, a header of its own, and frames, of a message that is all right.
    struct Odd(&'static str, Option<(&'static str, &'static str)>, fn(&[u8]) -> Vec<Frame<Bytes>>);

    /// A request whose frames come one by one, cut off after the last; it does not know of its end before that is there.
    fn cut(odd: &Odd, whole: &[u8], end: Option<Status>) -> Request<RoutedBody> {
        let Odd(call, header, frames) = odd;
        let mut request = Request::post(format!("http://localhost/runtime.v1.ImageService/{call}"));
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")].iter().chain(header) {
            request = request.header(*name, *value);
        }
        let frames = frames(whole).into_iter().map(Ok).chain(end.map(Err));
        request.body(RoutedBody::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())))).unwrap()
    }

    fn request(odd: &Odd, whole: &[u8]) -> Request<RoutedBody> {
        cut(odd, whole, None)
    }

    fn data(bytes: &[u8]) -> Frame<Bytes> {
        Frame::data(Bytes::copy_from_slice(bytes))
    }

    fn framed(message: &impl Message) -> Vec<u8> {
        prefixed(message).unwrap().to_vec()
    }

    fn status_of(image: &str) -> v1::ImageStatusRequest {
        v1::ImageStatusRequest {
            image: Some(v1::ImageSpec { image: image.into(), ..v1::ImageSpec::default() }),
            verbose: false,
        }
    }

    /// What a caller sees of an answer: code and words, from wherever they come, and the message.
    async fn seen<B>(answer: Response<B>) -> (String, String, Bytes)
    where
        B: Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        assert_eq!(answer.headers()[CONTENT_TYPE], GRPC);
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap();
        let ends = body.trailers().cloned().unwrap_or(head.headers);
        let said = |name| ends.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        (said("grpc-status"), said("grpc-message"), body.to_bytes())
    }

    #[tokio::test]
    async fn every_request_however_odd_is_answered_as_its_route_answers_it() {
        let status = framed(&status_of(IMAGE));
        let (image, list) = ("ImageStatus", "ListImages");
        let odd = [
            ("an image", Odd(image, None, |whole| vec![data(whole)])),
            ("an end in a frame of its own", Odd(image, None, |whole| vec![data(whole), data(b"")])),
            ("empty frames", Odd(image, None, |whole| vec![data(b""), data(b""), data(whole), data(b"")])),
            ("two frames", Odd(image, None, |whole| vec![data(&whole[..7]), data(&whole[7..])])),
            ("two messages", Odd(image, None, |whole| vec![data(whole), data(whole)])),
            ("two messages in one", Odd(image, None, |whole| vec![data(&[whole, whole].concat())])),
            ("half a message", Odd(image, None, |whole| vec![data(&whole[..9])])),
            ("no message", Odd(image, None, |_| vec![])),
            ("nothing in it", Odd(image, None, |_| vec![data(&[0; 5])])),
            ("no text", Odd(image, None, |_| vec![data(b"\0\0\0\0\x06\x0a\x04\x0a\x02\xff\xfe")])),
            ("no protobuf", Odd(list, None, |_| vec![data(b"\0\0\0\0\x04\xff\xff\xff\xff")])),
            ("a list", Odd(list, None, |_| vec![data(&[0; 5])])),
            ("another message", Odd(list, None, |whole| vec![data(whole)])),
            ("unknown fields", Odd(image, None, |_| vec![data(b"\0\0\0\0\x02\x78\x01")])),
            ("packed", Odd(image, None, |_| vec![data(b"\x01\0\0\0\x01x")])),
            ("packed in some way", Odd(image, Some(("grpc-encoding", "gzip")), |_| vec![data(b"\x01\0\0\0\x01x")])),
            ("said to be plain", Odd(image, Some(("grpc-encoding", "identity")), |whole| vec![data(whole)])),
            ("no such flag", Odd(image, None, |_| vec![data(b"\x07\0\0\0\x01x")])),
            ("too long", Odd(image, None, |_| vec![data(b"\0\xff\xff\xff\xff")])),
            ("trailers", Odd(image, None, |whole| vec![data(whole), Frame::trailers(HeaderMap::new())])),
            ("trailers alone", Odd(image, None, |_| vec![Frame::trailers(HeaderMap::new())])),
            ("no such call", Odd("ImageStatu", None, |whole| vec![data(whole)])),
        ];
        for (name, odd) in odd {
            for end in [None, Some(Status::unavailable("the caller went away"))] {
                let (calls, mut routes) = calls();
                let answer = seen(calls.answer(cut(&odd, &status, end.clone())).await).await;
                let Ok(routed) = routes.call(cut(&odd, &status, end.clone())).await;
                assert_eq!(answer, seen(routed).await, "{name}, then {end:?}");
            }
        }
    }

    #[tokio::test]
    async fn file_systems_are_told_as_their_route_tells_them() {
        let (calls, mut routes) = calls();
        let ask = Odd("ImageFsInfo", None, |_| vec![data(b"\0\0\0\0\x02\x78\x01")]);
        let (code, _, message) = seen(calls.answer(request(&ask, &[])).await).await;
        let Ok(routed) = routes.call(request(&ask, &[])).await;
        let (routed_code, _, routed) = seen(routed).await;
        // The moment is in it.
        let places = |message: &Bytes| {
            let told = v1::ImageFsInfoResponse::decode(&message[PREFIX_BYTES..]).unwrap();
            let all = told.image_filesystems.into_iter().chain(told.container_filesystems);
            all.map(|place| v1::FilesystemUsage { timestamp: 0, ..place }).collect::<Vec<_>>()
        };
        assert_eq!((code, places(&message)), (routed_code, places(&routed)));
        assert_eq!(places(&message).len(), 2);
    }

    #[tokio::test]
    async fn a_call_of_a_route_ends_with_its_deadline() {
        let late = Routes::new(Never);
        let (calls, _) = calls();
        let calls = calls.with_routes(|_| late);
        let ask = Odd("PullImage", Some(("grpc-timeout", "1m")), |_| vec![data(&[0; 5])]);
        let (code, message, _) = seen(calls.answer(request(&ask, &[])).await).await;
        assert_eq!((code.as_str(), message.as_str()), ("4", "context%20deadline%20exceeded"));
    }

    #[derive(Clone)]
    struct Never;

    impl tonic::server::NamedService for Never {
        const NAME: &'static str = "runtime.v1.ImageService";
    }

    impl<B> tonic::codegen::Service<Request<B>> for Never {
        type Response = Response<RoutedBody>;
        type Error = std::convert::Infallible;
        type Future = std::future::Pending<Result<Self::Response, Self::Error>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _request: Request<B>) -> Self::Future {
            std::future::pending()
        }
    }
}
