//! Runs the inflate stage for fuzzers.

use std::{io::Read as _, sync::Arc};

use bytes::Bytes;
use imagelet_core::image::DigestAlgorithm;
use tokio::sync::mpsc;

use super::{
    Stopped,
    buffer_pool::{self, BlockReader, Expansion},
    frames::{Frame, Intake},
    inflate::{self, Bounds},
};
use crate::hash::Hash;
use crate::{admission::WrittenBytes, registry::ReaderWait, unpack::LayerMemory};

#[derive(Debug)]
pub(crate) struct Inflated {
    pub(crate) outcome: Result<(), Stopped>,
    pub(crate) bytes: Vec<u8>,
    /// The next stage received the end mark.
    pub(crate) ended: bool,
}

/// Inflates frames of `frame` bytes, as a pull does.
pub(crate) fn inflated(compressed: &[u8], frame: usize, limit: u64) -> Inflated {
    let (sender, frames) = mpsc::channel(compressed.len().div_ceil(frame) + 1);
    let parts = compressed.chunks(frame).map(|part| Frame::Bytes(Bytes::copy_from_slice(part)));
    for frame in parts.chain([Frame::End]) {
        sender.try_send(frame).expect("the queue holds all frames");
    }
    let intake =
        Intake { frames, reader_wait: ReaderWait::default(), keep: None, written_bytes: WrittenBytes::default() };
    let memory = LayerMemory::of_its_own(64 << 20);
    let bounds = Bounds {
        expansion: Expansion::new(limit, &Arc::default()),
        memory: Arc::clone(&memory),
        cancelled: Arc::default(),
    };
    let (blocks, out) = buffer_pool::queue(&memory);
    let (outcome, bytes, ended) = std::thread::scope(|scope| {
        let inflater = scope.spawn(move || inflate::inflate(intake, &blocks, bounds).1);
        let mut bytes = Vec::new();
        let ended = BlockReader::new(out, Hash::new(DigestAlgorithm::Sha256)).read_to_end(&mut bytes).is_ok();
        (inflater.join().expect("inflating does not panic"), bytes, ended)
    });
    Inflated { outcome: outcome.map(drop), bytes, ended }
}
