//! How much an encoded message may hold, counted before it is decoded, and the codec that counts it.
//!
//! Two bytes on the wire can be an empty image or a mount: a message of 16 MiB can expand to gigabytes in memory. So an
//! adapter counts the elements of a message before it decodes them.

use std::marker::PhantomData;

use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstEncoder};

/// The limits of one response, over all its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageBounds {
    /// Bytes on the wire.
    pub(crate) bytes: usize,
    /// Direct elements of the messages.
    pub(crate) entries: usize,
    /// Those, and their direct elements.
    pub(crate) parts: usize,
}

impl MessageBounds {
    /// The remainder after a message; `None`: the message exceeds the limits.
    #[must_use]
    pub(crate) fn less(self, message: &[u8]) -> Option<Self> {
        let (mut entries, mut parts) = (1, 0);
        for entry in Fields(message) {
            entries += 1;
            // A text may decode as a message, so its parts count as well.
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

/// The length-delimited fields of a message, in order; ends at invalid data.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            match varint(&mut self.0)? & 7 {
                0 => drop(varint(&mut self.0)?),
                1 => drop(take(&mut self.0, 8)?),
                2 => {
                    let length = varint(&mut self.0)?;
                    return take(&mut self.0, usize::try_from(length).ok()?);
                }
                // The content of a group counts as if it were outside.
                3 | 4 => {}
                5 => drop(take(&mut self.0, 4)?),
                _ => return None,
            }
        }
    }
}

fn varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or_default();
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(from: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}

/// Prost's codec, which counts what an answer holds before anything is made of it.
pub(crate) struct BoundedCodec<Q, A> {
    left: MessageBounds,
    messages: PhantomData<(Q, A)>,
}

impl<Q, A> BoundedCodec<Q, A> {
    pub(crate) fn new(bounds: MessageBounds) -> Self {
        Self { left: bounds, messages: PhantomData }
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
