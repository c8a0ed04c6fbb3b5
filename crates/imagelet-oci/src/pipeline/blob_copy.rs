//! The copy of a layer's compressed bytes: written by a thread of its own, behind a short queue.

use std::io;

use bytes::Bytes;
use imagelet_core::runtime::RuntimeError;
use tokio::{sync::mpsc, task::JoinHandle};

use super::panicked;
use crate::{
    admission::WrittenBytes,
    store::{BlobWriter, storage_error},
};

/// A frame is at most as large as the transport's read buffer.
const FRAMES_QUEUED: usize = 16;

pub(super) struct BlobCopy(JoinHandle<io::Result<BlobWriter>>);

impl BlobCopy {
    /// Starts the thread. It ends when the sender is dropped, after all that was sent is written, or when a write fails.
    pub(super) fn start(mut writer: BlobWriter, written_bytes: WrittenBytes) -> (mpsc::Sender<Bytes>, Self) {
        let (sender, mut frames) = mpsc::channel::<Bytes>(FRAMES_QUEUED);
        let thread = tokio::task::spawn_blocking(move || {
            while let Some(bytes) = frames.blocking_recv() {
                writer.write(&bytes)?;
                if writer.is_reserved() {
                    written_bytes.add(bytes.len() as u64);
                }
            }
            Ok(writer)
        });
        (sender, Self(thread))
    }

    /// Waits for the thread; the sender has to be dropped.
    pub(super) async fn end(self) -> Result<BlobWriter, RuntimeError> {
        let written = self.0.await.map_err(panicked)?;
        written.map_err(|error| storage_error("could not keep the compressed blob", error))
    }
}
