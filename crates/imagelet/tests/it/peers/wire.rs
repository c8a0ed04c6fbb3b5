//! HTTP/2 written by hand, where a library would keep its peer from saying what these tests say.

use std::io::{self, Read, Write};

/// What a client opens with.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A block of headers, each a literal that nobody has to remember.
pub(super) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of seven bits.
fn length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        block.push(u8::try_from(length).unwrap());
        return;
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).unwrap());
}

/// The beginning of a call.
pub(super) fn call(stream: u32, path: &str) -> Vec<u8> {
    let headers = block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]);
    frame(HEADERS, END_HEADERS, stream, &headers)
}

/// The beginning of a good answer.
pub(super) fn answer(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200"), ("content-type", "application/grpc")]))
}

/// The end of an answer.
pub(super) fn trailers(stream: u32, status: &str, message: &str) -> Vec<u8> {
    let block = block(&[("grpc-status", status), ("grpc-message", message)]);
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

/// The five bytes before a message.
pub(super) fn message_head(compressed: u8, length: u32) -> Vec<u8> {
    let mut head = vec![compressed];
    head.extend(length.to_be_bytes());
    head
}

/// A message in frames that any peer takes.
pub(super) fn message(stream: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = message_head(0, u32::try_from(content.len()).unwrap());
    bytes.extend(content);
    bytes.chunks(16_384).flat_map(|chunk| frame(DATA, 0, stream, chunk)).collect()
}

/// A frame as it came.
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

/// Reads one frame; its payload is of no interest.
pub(super) fn read(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    io::copy(&mut from.by_ref().take(length.into()), &mut io::sink())?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & (u32::MAX >> 1);
    Ok(Frame { kind: head[3], flags: head[4], stream })
}

/// Speaks HTTP/2 as a server until the peer goes, answering each call with what `respond` says.
pub(super) fn serve(stream: &mut (impl Read + Write), respond: impl Fn(u32) -> Vec<u8>) -> io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface)?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
    loop {
        let frame_read = read(stream)?;
        match frame_read.kind {
            SETTINGS if frame_read.flags & ACK == 0 => stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
            PING if frame_read.flags & ACK == 0 => stream.write_all(&frame(PING, ACK, 0, &[0; 8]))?,
            HEADERS | DATA if frame_read.flags & END_STREAM != 0 => stream.write_all(&respond(frame_read.stream))?,
            _ => {}
        }
    }
}
