//! The codec of all calls: Prost's, which counts what an answer holds before anything is made of it.

use std::marker::PhantomData;

use crate::wire::MessageBounds;
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstEncoder};

/// Bounds of one answer over all its messages: many times the size of the largest nodes.
const ANSWER: MessageBounds = MessageBounds { bytes: 256 << 20, entries: 500_000, parts: 8_000_000 };

#[derive(Debug)]
pub(crate) struct BoundedCodec<Q, A> {
    left: MessageBounds,
    messages: PhantomData<(Q, A)>,
}

impl<Q, A> Default for BoundedCodec<Q, A> {
    fn default() -> Self {
        Self { left: ANSWER, messages: PhantomData }
    }
}

impl<Q, A> Codec for BoundedCodec<Q, A>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    type Encode = Q;
    type Decode = A;
    type Encoder = ProstEncoder<Q>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<Q, A>::default().encoder()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
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
    use crate::containerd::{
        Many,
        v1::{content, snapshots},
    };

    #[test]
    fn what_nodes_have_passes_and_what_would_fill_the_memory_does_not() {
        let label = |at: usize| (format!("containerd.io/gc.ref.content.l.{at}"), format!("sha256:{at:064}"));
        let blob =
            content::Info { digest: format!("sha256:{:064}", 1), size: i64::MAX, labels: (0..30).map(label).collect() };
        let page = Many { items: vec![blob; 1000] }.encode_to_vec();
        let taken = std::iter::successors(ANSWER.less(&page), |left| left.less(&page)).take(1000).count();
        assert!(taken > 50, "{taken} thousand blobs with 30 labels each");
        let hollow = Many { items: vec![snapshots::Info::default(); 600_000] };
        assert_eq!(ANSWER.less(&hollow.encode_to_vec()), None, "two bytes each");
    }
}
