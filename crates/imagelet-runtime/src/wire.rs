//! gRPC calls over a unix socket. The elements of an encoded answer are counted and limited before it is decoded.
//!
//! An encoded image or mount may have only two bytes, so a message of 16 MiB could expand to gigabytes in memory.

use std::{error::Error, io, marker::PhantomData};

use hyper_util::rt::TokioIo;
use prost::{Message, encoding::decode_varint};
use tokio::net::UnixStream;
use tonic::{
    Request, Response, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder},
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Uri},
};
use tonic_prost::{ProstCodec, ProstEncoder};
use tower::service_fn;

use crate::MESSAGE_BYTES_MAX;

pub(crate) fn channel<F>(dial: impl Fn() -> F + Send + Sync + 'static) -> Channel
where
    F: Future<Output = io::Result<UnixStream>> + Send + 'static,
{
    let connect = service_fn(move |_: Uri| {
        let dialled = dial();
        async move { dialled.await.map(TokioIo::new) }
    });
    // The URI only sets the `:authority`.
    Channel::from_static("http://localhost").connect_with_connector_lazy(connect)
}

/// The root cause of a status that this process created for an unreachable peer, or `None` for the peer's status.
pub(crate) fn innermost(status: &Status) -> Option<&(dyn Error + 'static)> {
    let mut cause = status.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause)
}

pub(crate) trait Query: Message + 'static {}
impl<T: Message + 'static> Query for T {}

pub(crate) trait Reply: Message + Default + 'static {}
impl<T: Message + Default + 'static> Reply for T {}

pub(crate) async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    Ok(grpc)
}

pub(crate) async fn unary<Q: Query, A: Reply>(
    channel: Channel,
    path: PathAndQuery,
    request: Request<Q>,
    bounds: MessageBounds,
) -> Result<A, Status> {
    ready(channel).await?.unary(request, path, BoundedCodec::new(bounds)).await.map(Response::into_inner)
}

pub(crate) async fn listed<Q: Query, A: Reply, T>(
    channel: Channel,
    path: PathAndQuery,
    request: Request<Q>,
    bounds: MessageBounds,
    items: fn(A) -> Vec<T>,
) -> Result<Vec<T>, Status> {
    let codec = BoundedCodec::<Q, A>::new(bounds);
    let mut pages = ready(channel).await?.server_streaming(request, path, codec).await?.into_inner();
    let mut all = Vec::new();
    while let Some(page) = pages.message().await? {
        all.extend(items(page));
    }
    Ok(all)
}

/// The limits of one response. They apply to all its messages together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageBounds {
    pub bytes: usize,
    /// Maximum number of messages and their direct elements.
    pub entries: usize,
    /// Maximum number of messages, their direct elements, and the direct elements of these elements.
    pub parts: usize,
}

impl MessageBounds {
    #[must_use]
    pub fn less(self, message: &[u8]) -> Option<Self> {
        let (mut entries, mut parts) = (1, 0);
        for entry in Fields(message) {
            entries += 1;
            // A text and a message have the same encoding, so the parts of a text are counted, too.
            parts += Fields(entry).count();
            if entries > self.entries || parts > self.parts {
                return None;
            }
        }
        Some(Self {
            bytes: self.bytes.checked_sub(message.len())?,
            entries: self.entries.checked_sub(entries)?,
            parts: self.parts.checked_sub(entries + parts)?,
        })
    }
}

/// The length-delimited fields of a message, in order. The iterator stops at invalid data.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            match decode_varint(&mut self.0).ok()? & 7 {
                0 => drop(decode_varint(&mut self.0).ok()?),
                1 => drop(take(&mut self.0, 8)?),
                2 => {
                    let length = decode_varint(&mut self.0).ok()?;
                    return take(&mut self.0, usize::try_from(length).ok()?);
                }
                // The content of a group is counted like fields outside the group.
                3 | 4 => {}
                5 => drop(take(&mut self.0, 4)?),
                _ => return None,
            }
        }
    }
}

fn take<'a>(from: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}

/// The elements of an answer are counted before the answer is decoded.
pub(crate) struct BoundedCodec<Q, A> {
    left: MessageBounds,
    messages: PhantomData<(Q, A)>,
}

impl<Q, A> BoundedCodec<Q, A> {
    pub(crate) fn new(bounds: MessageBounds) -> Self {
        Self { left: bounds, messages: PhantomData }
    }
}

impl<Q: Query, A: Reply> Codec for BoundedCodec<Q, A> {
    type Encode = Q;
    type Decode = A;
    type Encoder = ProstEncoder<Q>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<Q, A>::default().encoder()
    }

    fn decoder(&mut self) -> Self {
        Self::new(self.left)
    }
}

impl<Q, A: Message + Default> Decoder for BoundedCodec<Q, A> {
    type Item = A;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<A>, Status> {
        use prost::bytes::Buf as _;
        let message = source.copy_to_bytes(source.remaining());
        self.left = self.left.less(&message).ok_or_else(|| Status::internal("the answer holds more than any may"))?;
        A::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_where_a_message_does_not_read() {
        let count = |bytes: &[u8]| Fields(bytes).count();
        for (bytes, wanted) in [
            (&b""[..], 0),
            (b"\x0a\x00", 1),
            (b"\x0a\x01x\x12\x00", 2),
            (b"\x0a\x05x", 0),
            (b"\x08\x96\x01\x0a\x00", 1),
            (b"\x0d1234\x0a\x00", 1),
            (b"\x0912345678\x0a\x00", 1),
            (b"\x0f\x0a\x00", 0),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 0),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 0),
        ] {
            assert_eq!(count(bytes), wanted, "{bytes:?}");
        }
    }
}
