//! Lets old clients in: they send a socket's path as `:authority`, which a strict HTTP/2 stack takes for a broken request.
//!
//! The bytes that no authority may have are exchanged on the way in for such that it may, each for one of equal length
//! in its encoding. So nothing moves: lengths of frames and texts stay, and so does the size of every entry in the table
//! that the two ends keep of headers sent before (RFC 7541), which this room therefore need not know.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::{codegen::http::uri::Authority, transport::server::Connected};
use zeroize::Zeroize as _;

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length, type, flags and stream of a frame.
const HEAD_LENGTH: usize = 9;
const TYPE_HEADERS: u8 = 1;
const FLAG_PADDED: u8 = 0x8;
const FLAG_PRIORITY: u8 = 0x20;
/// Longest block of headers that is held to be looked at; no server of ours lets a client send a longer frame.
const BLOCK_LENGTH_MAX: usize = 16 << 10;
/// Read at once.
const CHUNK: usize = 8 << 10;
const NAME: &[u8] = b":authority";
/// Its place in the table that every client knows.
const NAME_INDEX: usize = 1;

/// The characters of the header code by the length of their codes, in the order of their codes (RFC 7541, appendix B).
/// Longer codes stand for what is in no path.
const CODES: [(u32, &[u8]); 10] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
];

/// A connection whose client may send any text as `:authority`.
#[derive(Debug)]
pub struct Lenient<S> {
    inner: S,
    filter: Filter,
    /// Read and looked at, not yet taken.
    waiting: Vec<u8>,
    taken: usize,
}

/// Takes a connection that was accepted.
pub fn lenient<S>(inner: S) -> Lenient<S> {
    // As much as one read can bring, so that it never moves and leaves a copy.
    let waiting = Vec::with_capacity(CHUNK + HEAD_LENGTH + BLOCK_LENGTH_MAX);
    Lenient { inner, filter: Filter::default(), waiting, taken: 0 }
}

impl<S> Drop for Lenient<S> {
    fn drop(&mut self) {
        self.waiting.zeroize();
        self.filter.held.zeroize();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lenient<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.taken == this.waiting.len() {
            // Credentials come by here, and nothing of them stays behind. Only what was written to is wiped: wiping goes
            // byte by byte, and nearly all calls are short.
            this.waiting.as_mut_slice().zeroize();
            this.waiting.clear();
            this.taken = 0;
            let mut chunk = [MaybeUninit::uninit(); CHUNK];
            let mut read = ReadBuf::uninit(&mut chunk);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                // What was held of a frame that never came whole.
                this.filter.end(&mut this.waiting);
                if this.waiting.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            } else {
                this.filter.push(read.filled(), &mut this.waiting);
                read.filled_mut().zeroize();
            }
        }
        let rest = &this.waiting[this.taken..];
        let length = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..length]);
        this.taken += length;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lenient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

impl<S: Connected> Connected for Lenient<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}

/// Finds the headers in what a client sends.
#[derive(Debug, Default)]
struct Filter {
    state: State,
    /// The beginning of a frame that is not there whole: its head, and of headers the rest.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// The first bytes of the connection.
    #[default]
    Preface,
    /// At the head of a frame.
    Head,
    /// Inside a frame that is passed on as it is, with this many bytes to go.
    Body(usize),
    /// Inside headers, held until this many bytes are there.
    Headers(usize),
    /// This is not HTTP/2, or none that we know.
    Unknown,
}

impl Filter {
    fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            match self.state {
                State::Unknown => {
                    out.extend_from_slice(bytes);
                    return;
                }
                State::Body(left) => {
                    let (taken, rest) = bytes.split_at(left.min(bytes.len()));
                    out.extend_from_slice(taken);
                    bytes = rest;
                    self.state = if taken.len() == left { State::Head } else { State::Body(left - taken.len()) };
                }
                State::Preface => {
                    bytes = self.hold(bytes, PREFACE.len());
                    if !PREFACE.starts_with(&self.held) {
                        self.state = State::Unknown;
                        out.append(&mut self.held);
                    } else if self.held.len() == PREFACE.len() {
                        self.state = State::Head;
                        out.append(&mut self.held);
                    }
                }
                State::Head => {
                    bytes = self.hold(bytes, HEAD_LENGTH);
                    let &[a, b, c, kind, ..] = self.held.as_slice() else { continue };
                    if self.held.len() < HEAD_LENGTH {
                        continue;
                    }
                    let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                    if kind == TYPE_HEADERS && (1..=BLOCK_LENGTH_MAX).contains(&length) {
                        self.state = State::Headers(HEAD_LENGTH + length);
                    } else {
                        out.append(&mut self.held);
                        self.state = if length == 0 { State::Head } else { State::Body(length) };
                    }
                }
                State::Headers(whole) => {
                    bytes = self.hold(bytes, whole);
                    if self.held.len() == whole {
                        mend_frame(&mut self.held);
                        out.append(&mut self.held);
                        self.state = State::Head;
                    }
                }
            }
        }
    }

    /// Holds bytes until so many are there; answers the rest.
    fn hold<'a>(&mut self, bytes: &'a [u8], whole: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at((whole - self.held.len()).min(bytes.len()));
        self.held.extend_from_slice(taken);
        rest
    }

    /// No more bytes come.
    fn end(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
    }
}

/// Mends the headers of a whole frame. What does not read is left for the stack to refuse.
fn mend_frame(frame: &mut [u8]) {
    let flags = frame[4];
    let mut block = &mut frame[HEAD_LENGTH..];
    if flags & FLAG_PADDED != 0 {
        let Some((padding, rest)) = block.split_first_mut() else { return };
        let Some(length) = rest.len().checked_sub(usize::from(*padding)) else { return };
        block = &mut rest[..length];
    }
    if flags & FLAG_PRIORITY != 0 {
        let Some((_, rest)) = block.split_at_mut_checked(5) else { return };
        block = rest;
    }
    // A block that goes on in another frame ends in the middle of a field: that much is read.
    let _ = mend_block(block);
}

/// Walks the fields of a block and mends each `:authority`. `None`: it ends early.
fn mend_block(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while at < block.len() {
        let first = block[at];
        let prefix = match first {
            // A field sent before; what it says was mended then.
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, next) = integer(block, at, prefix)?;
        at = next;
        if (0x20..0x40).contains(&first) || first >= 0x80 {
            continue;
        }
        let is_authority = if index == 0 {
            let (name, next) = text(block, at)?;
            at = next;
            name.reads_as(block, NAME)
        } else {
            index == NAME_INDEX
        };
        let (value, next) = text(block, at)?;
        at = next;
        if is_authority {
            value.mend(block);
        }
    }
    Some(())
}

/// A number whose first byte gives it `prefix` bits.
fn integer(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let low = (1_usize << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & low;
    let mut at = at + 1;
    if value < low {
        return Some((value, at));
    }
    // Longer than any frame is none.
    for shift in [0, 7, 14] {
        let byte = *block.get(at)?;
        at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

/// Where a text stands, and whether it is packed.
struct Text {
    from: usize,
    to: usize,
    packed: bool,
}

fn text(block: &[u8], at: usize) -> Option<(Text, usize)> {
    let packed = *block.get(at)? & 0x80 != 0;
    let (length, from) = integer(block, at, 7)?;
    let to = from.checked_add(length).filter(|to| *to <= block.len())?;
    Some((Text { from, to, packed }, to))
}

impl Text {
    fn reads_as(&self, block: &[u8], wanted: &[u8]) -> bool {
        let bytes = &block[self.from..self.to];
        if self.packed { unpack(bytes).is_some_and(|text| text == wanted) } else { bytes == wanted }
    }

    /// Exchanges what no authority may have.
    fn mend(&self, block: &mut [u8]) {
        let bytes = &mut block[self.from..self.to];
        let said = if self.packed { unpack(bytes) } else { Some(bytes.to_vec()) };
        let Some(said) = said.filter(|said| Authority::try_from(said.as_slice()).is_err()) else { return };
        let mended: Vec<u8> = said.iter().map(|byte| exchanged(*byte)).collect();
        if Authority::try_from(mended.as_slice()).is_err() {
            return;
        }
        let written = if self.packed { pack(&mended) } else { Some(mended) };
        // It always has: each character was exchanged for one whose code is as long.
        if let Some(written) = written.filter(|written| written.len() == bytes.len()) {
            bytes.copy_from_slice(&written);
        }
    }
}

/// A character that every authority may have, as long in the code.
fn exchanged(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') {
        return byte;
    }
    match length(byte) {
        Some(6) => b'b',
        Some(7) => b'j',
        Some(8) => b'X',
        Some(10) => b'!',
        Some(11) => b'+',
        Some(13) => b'$',
        // Nothing fits; then the stack refuses it.
        _ => byte,
    }
}

fn length(byte: u8) -> Option<u32> {
    CODES.iter().find(|(_, characters)| characters.contains(&byte)).map(|(length, _)| *length)
}

/// Each length with its first code: codes are counted up, and shifted where they get longer.
fn lengths() -> impl Iterator<Item = (u32, u32, &'static [u8])> {
    CODES.iter().scan((0_u32, 0_u32), |(next, before), (length, characters)| {
        let first = *next << (length - *before);
        *before = *length;
        *next = first + u32::try_from(characters.len()).unwrap_or_default();
        Some((*length, first, *characters))
    })
}

/// Reads packed text; `None` where a character has a long code, or the end is not padded with ones.
fn unpack(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(bytes.len() * 8 / 5);
    let (mut code, mut bits) = (0_u32, 0_u32);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |shift| u32::from(byte >> shift & 1))) {
        code = code << 1 | bit;
        bits += 1;
        let found = lengths().find(|(length, first, characters)| {
            *length == bits && code >= *first && ((code - first) as usize) < characters.len()
        });
        if let Some((_, first, characters)) = found {
            text.push(characters[(code - first) as usize]);
            (code, bits) = (0, 0);
        } else if bits > 15 {
            return None;
        }
    }
    (bits < 8 && code == (1 << bits) - 1).then_some(text)
}

fn pack(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut code, mut bits) = (Vec::with_capacity(text.len()), 0_u64, 0_u32);
    for byte in text {
        let (length, first, place) = lengths().find_map(|(length, first, characters)| {
            characters.iter().position(|character| character == byte).map(|place| (length, first, place))
        })?;
        code = (code << length) | (u64::from(first) + place as u64);
        bits += length;
        while bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(code >> bits & 0xff).ok()?);
        }
        code &= (1 << bits) - 1;
    }
    if bits > 0 {
        let padded = code << (8 - bits) | ((1 << (8 - bits)) - 1);
        bytes.push(u8::try_from(padded).ok()?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of headers with `:method: GET`, an authority, and a header sent by its name.
    fn headers(authority: &[u8], packed: bool, named: bool, flags: u8) -> Vec<u8> {
        let mut block = vec![0x82];
        if named {
            block.extend([0x40, u8::try_from(NAME.len()).unwrap()]);
            block.extend(NAME);
        } else {
            block.push(0x41);
        }
        let value = if packed { pack(authority).unwrap() } else { authority.to_vec() };
        assert!(value.len() < 127);
        block.push(u8::try_from(value.len()).unwrap() | if packed { 0x80 } else { 0 });
        block.extend(value);
        // `te: trailers`, never to be indexed, then the size of the table.
        block.extend(b"\x10\x02te\x08trailers\x20");
        let mut payload = Vec::new();
        if flags & FLAG_PADDED != 0 {
            payload.push(3);
        }
        if flags & FLAG_PRIORITY != 0 {
            payload.extend([0; 5]);
        }
        payload.extend(block);
        if flags & FLAG_PADDED != 0 {
            payload.extend([0; 3]);
        }
        let mut frame = vec![0, 0, u8::try_from(payload.len()).unwrap(), TYPE_HEADERS, flags | 4, 0, 0, 0, 1];
        frame.extend(payload);
        frame
    }

    fn through(bytes: &[u8], step: usize) -> Vec<u8> {
        let (mut filter, mut out) = (Filter::default(), Vec::new());
        for chunk in bytes.chunks(step) {
            filter.push(chunk, &mut out);
        }
        filter.end(&mut out);
        out
    }

    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const DATA: &[u8] = &[0, 0, 5, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5];

    #[test]
    fn a_path_becomes_an_authority_however_it_is_written_and_cut() {
        for (said, mended) in [
            (b"/run/containerd/containerd.sock".as_slice(), b"brunbcontainerdbcontainerd.sock".as_slice()),
            (b"%2Frun%2Fx.sock", b"b2Frunb2Fx.sock"),
            (b"unix:///run/my_x.sock", b"unixjbbbrunbmybx.sock"),
            (b"localhost", b"localhost"),
            (b"localhost:80", b"localhost:80"),
        ] {
            for packed in [false, true] {
                for named in [false, true] {
                    for flags in [0, FLAG_PADDED, FLAG_PRIORITY, FLAG_PADDED | FLAG_PRIORITY] {
                        let sent = [PREFACE, SETTINGS, &headers(said, packed, named, flags), DATA, SETTINGS].concat();
                        let wanted =
                            [PREFACE, SETTINGS, &headers(mended, packed, named, flags), DATA, SETTINGS].concat();
                        for step in [1, 7, 1000] {
                            assert_eq!(through(&sent, step), wanted, "{said:?} {packed} {named} {flags} {step}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_passed_on_as_it_came() {
        let with = |block: &[u8]| {
            let head = [0, 0, u8::try_from(block.len()).unwrap(), TYPE_HEADERS, 4, 0, 0, 0, 1];
            [PREFACE, &head, block].concat()
        };
        for sent in [
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            PREFACE[..10].to_vec(),
            [PREFACE, &[0, 0, 200, 1, 4, 0, 0, 0, 1, 0x41]].concat(),
            with(b"\x41\x7f\xff\xff\xff\xff\xff"),
            with(b"\x41\x81\0"),
            with(b"\x41"),
            with(b"\x41\x03/\\/"),
            // The padding is longer than the frame.
            [PREFACE, &[0, 0, 1, 1, 0xc, 0, 0, 0, 1, 9]].concat(),
        ] {
            for step in [1, 1000] {
                assert_eq!(through(&sent, step), sent, "{sent:?}");
            }
        }
    }

    #[test]
    fn texts_unpack_to_what_was_packed() {
        // RFC 7541, C.4.1.
        let packed = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(pack(b"www.example.com").unwrap(), packed);
        assert_eq!(unpack(&packed).unwrap(), b"www.example.com");
        let all: Vec<u8> = CODES.iter().flat_map(|(_, characters)| characters.iter().copied()).collect();
        assert_eq!(unpack(&pack(&all).unwrap()).unwrap(), all);
        assert_eq!((pack(b"\\"), unpack(&[0]), unpack(&[0xff, 0xff])), (None, None, None));
        for byte in all {
            assert_eq!(length(exchanged(byte)), length(byte), "{byte}");
        }
    }
}
