//! Overtakes a connection that is far slower than the others: a second request fetches the rest of its span.

use std::{
    future::pending,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Buf as _, Bytes};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{
    BlobSource, BlobStream, TWICE_MAX,
    straggler::{WindowMeter, is_straggler},
};
use crate::registry::locked;

/// Maximum number of second requests of one blob. With [`TWICE_MAX`] it bounds the bytes that are received twice.
const RIVALS_MAX: u32 = 16;

/// The race of the current connection and its rival, which is the second request. At most one rival runs.
#[derive(Default)]
pub(super) struct Race {
    delivered: Arc<AtomicU64>,
    begun: u32,
    from: u64,
    rival: Option<AbortOnDropHandle<Option<(Bytes, BlobStream)>>>,
}

impl Race {
    pub(super) fn delivered(&self, offset: u64) {
        self.delivered.store(offset, Ordering::Relaxed);
    }

    /// Stops the rival: another connection delivers the next bytes.
    pub(super) fn end(&mut self) {
        self.rival = None;
    }

    /// Waits until the rival of the connection that still has to deliver `rest` is ahead. Returns its next bytes and its
    /// stream. Dropping the future loses no bytes.
    pub(super) async fn overtaken(
        &mut self,
        source: &BlobSource,
        meter: &WindowMeter,
        rest: Range<u64>,
    ) -> (Bytes, BlobStream) {
        self.delivered(rest.start);
        let mut last = meter.take_last();
        loop {
            if let Some(rival) = &mut self.rival {
                let ended = rival.await;
                self.rival = None;
                let Ok(Some((mut bytes, stream))) = ended else { continue };
                let known = rest.start.saturating_sub(stream.reached - bytes.len() as u64);
                if known >= bytes.len() as u64 {
                    let raced = race(stream, self.from, Arc::clone(&self.delivered));
                    self.rival = Some(AbortOnDropHandle::new(tokio::spawn(raced)));
                    continue;
                }
                bytes.advance(usize::try_from(known).unwrap_or(usize::MAX));
                let slow = meter.host();
                if stream.sender.as_ref().is_some_and(|sender| sender.host != slow) {
                    locked(&source.notes).slow.insert(slow);
                }
                return (bytes, stream);
            }
            if self.begun == RIVALS_MAX {
                return pending().await;
            }
            let window = if let Some(window) = last.take() {
                window
            } else {
                sleep(meter.ends_in(Instant::now())).await;
                meter.window(Instant::now())
            };
            if is_straggler(window, rest.end - rest.start, source.session.rates.usual()) {
                self.begin_rival(source, meter.host(), &rest);
            }
        }
    }

    fn begin_rival(&mut self, source: &BlobSource, slow: usize, rest: &Range<u64>) {
        let Range { start, end } = *rest;
        let Some(host) = source.rival_host(slow, start) else { return };
        let place = |host: usize| source.session.hosts[host].host.origin.authority();
        tracing::debug!(
            blob = %source.descriptor.digest, host = place(slow), rival = place(host), from = start,
            "a connection is far slower than the others; requesting its rest a second time"
        );
        (self.begun, self.from) = (self.begun + 1, start);
        let mut stream = source.stream_ahead(start..end);
        let delivered = Arc::clone(&self.delivered);
        let opened =
            async move { if stream.open_at(host).await { race(stream, start, delivered).await } else { None } };
        self.rival = Some(AbortOnDropHandle::new(tokio::spawn(opened)));
    }
}

/// Reads until the stream has an undelivered byte. `None` if the stream failed, or sent too many delivered bytes.
async fn race(mut stream: BlobStream, from: u64, delivered: Arc<AtomicU64>) -> Option<(Bytes, BlobStream)> {
    loop {
        let bytes = stream.next().await.ok()??;
        if stream.reached > delivered.load(Ordering::Relaxed) {
            return Some((bytes, stream));
        }
        if stream.reached - from > TWICE_MAX {
            return None;
        }
    }
}
