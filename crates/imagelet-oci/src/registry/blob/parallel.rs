//! Reads one blob over as many connections as its reader can use, and delivers it in order. Each byte is requested
//! once, except the rest of a connection that is far slower than the other connections.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    ops::Range,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use imagelet_core::error::RuntimeError;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    BlobSource, BlobStream,
    overtake::Race,
    range_concurrency::{PART, Pace, RANGED_MIN, TransferSample},
    straggler::WindowMeter,
};
use crate::registry::{connection::Urgency, locked};

#[derive(Clone, Debug, Default)]
pub(crate) struct ReaderWait(Arc<AtomicU64>);

impl ReaderWait {
    pub(crate) fn add(&self, waited: Duration) {
        self.0.fetch_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) struct RangedStream {
    source: BlobSource,
    reader_wait: ReaderWait,
    pace: Pace,
    started: Instant,
    meter: Arc<Meter>,
    head: BlobStream,
    /// The part that is delivered now. After its read-ahead bytes are delivered, its stream becomes `head`.
    turned: Option<Part>,
    ahead: VecDeque<Part>,
    planned: u64,
    /// Whether the host answered the first request, which was for a part, with the whole blob.
    is_whole: bool,
    delivered: u64,
    race: Race,
}

#[derive(Default)]
struct Meter {
    received: AtomicU64,
    answered: AtomicUsize,
    /// The shortest time to an answer. Longer times may include waits for a connection or a token.
    answer: Mutex<Option<Duration>>,
}

impl Meter {
    async fn answered_after(&self, stream: &mut BlobStream) -> Result<(), RuntimeError> {
        let asked = Instant::now();
        stream.ready().await?;
        let mut shortest = locked(&self.answer);
        *shortest = [*shortest, Some(asked.elapsed())].into_iter().flatten().min();
        Ok(())
    }
}

struct Part {
    held: mpsc::UnboundedReceiver<BufferedBytes>,
    task: AbortOnDropHandle<Result<BlobStream, RuntimeError>>,
    meter: Arc<WindowMeter>,
    end: u64,
    urgency: Arc<Urgency>,
    _connection: Option<OwnedSemaphorePermit>,
}

type BufferedBytes = (Bytes, Option<OwnedSemaphorePermit>);

impl BlobSource {
    pub(crate) async fn open_ranged(
        &self,
        offset: u64,
        reader_wait: &ReaderWait,
    ) -> Result<RangedStream, RuntimeError> {
        let mut pace = Pace::new();
        let size = self.size();
        let planned = if size.saturating_sub(offset) < RANGED_MIN { size } else { offset + pace.next_range() };
        let mut head = self.stream(offset..planned);
        let meter = Arc::<Meter>::default();
        meter.answered_after(&mut head).await?;
        Ok(RangedStream {
            source: self.clone(),
            reader_wait: reader_wait.clone(),
            pace,
            started: Instant::now(),
            meter,
            is_whole: head.end > planned,
            planned: planned.max(head.end),
            head,
            turned: None,
            ahead: VecDeque::new(),
            delivered: offset,
            race: Race::default(),
        })
    }
}

impl RangedStream {
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RuntimeError> {
        loop {
            self.adapt();
            if let Some(bytes) = self.step().await? {
                self.delivered += bytes.len() as u64;
                self.heed_extent();
                return Ok(Some(bytes));
            }
            if self.turned.take().is_some() {
                self.heed_extent();
                continue;
            }
            self.race.end();
            if let Some(part) = self.ahead.pop_front() {
                part.urgency.raise();
                self.turned = Some(part);
            } else if self.planned < self.source.size() {
                let span = self.plan();
                self.head = self.source.stream(span);
            } else {
                return Ok(None);
            }
        }
    }

    /// The next bytes of the current connection or of its rival. `None` at the end of the bytes in memory.
    async fn step(&mut self) -> Result<Option<Bytes>, RuntimeError> {
        let Self { source, head, turned, race, meter, delivered, .. } = self;
        let part = turned.as_ref();
        let head_meter = Arc::clone(part.map_or(&head.meter, |part| &part.meter));
        let end = part.map_or(head.end, |part| part.end);
        let (bytes, stream) = tokio::select! {
            biased;
            bytes = next_of(turned, head, meter) => return bytes,
            overtaken = race.overtaken(source, &head_meter, *delivered..end) => overtaken,
        };
        meter.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        stream.urgency.raise();
        *head = stream;
        *turned = None;
        Ok(Some(bytes))
    }

    /// Whether a host of the blob ignores ranges, so that a resumption receives all bytes again.
    pub(crate) fn begins_anew(&self) -> bool {
        self.is_whole || !locked(&self.source.notes).whole_only.is_empty()
    }

    pub(crate) fn pause(&mut self) {
        if let Some(part) = self.turned.take() {
            self.head = self.source.stream(self.delivered..part.end);
        }
        self.head.sender = None;
        self.race.end();
        self.ahead.clear();
        self.planned = self.head.end;
    }

    /// A host that ignores ranges sends the whole blob. Then no other connection is needed.
    fn heed_extent(&mut self) {
        if self.head.end == self.source.size() {
            self.ahead.clear();
        }
        self.planned = self.planned.max(self.head.end);
    }

    fn adapt(&mut self) {
        let size = self.source.size();
        if self.planned >= size {
            return;
        }
        let shared = &self.source.session.shared;
        // If the bandwidth is limited, another connection does not increase the rate.
        let has_room = shared.read_ahead.available_permits() as u64 >= PART && shared.config.bandwidth.rate().is_none();
        self.pace.observe(TransferSample {
            at: self.started.elapsed(),
            received: self.meter.received.load(Ordering::Relaxed),
            reader_wait: self.reader_wait.total(),
            answered: self.meter.answered.load(Ordering::Relaxed),
            has_room,
        });
        let mut reading = 1 + self.ahead.iter().filter(|part| !part.task.is_finished()).count();
        while reading < self.pace.connections && has_room && self.planned < size {
            let connections = Arc::clone(&self.source.session.shared.extra_connections);
            let Ok(connection) = connections.try_acquire_owned() else { break };
            self.begin(Some(connection));
            reading += 1;
        }
        let left = self.head.end - self.head.reached;
        if self.ahead.is_empty()
            && self.turned.is_none()
            && left <= self.pace.lead(locked(&self.meter.answer).unwrap_or(Duration::MAX))
            && self.planned < size
        {
            self.begin(None);
        }
    }

    fn plan(&mut self) -> Range<u64> {
        let start = self.planned;
        let (size, range) = (self.source.size(), self.pace.next_range());
        // A short rest of the blob is added to this range, because a request for it is not worth its time.
        self.planned = if size - start < range + PART / 2 { size } else { start + range };
        start..self.planned
    }

    /// Requests the next span. If `connection` is `None`, the span's bytes are read only at its turn.
    fn begin(&mut self, connection: Option<OwnedSemaphorePermit>) {
        let span = self.plan();
        let end = span.end;
        let stream = self.source.stream_ahead(span);
        let (meter, urgency) = (Arc::clone(&stream.meter), Arc::clone(&stream.urgency));
        let room = Arc::clone(&self.source.session.shared.read_ahead);
        let (sender, held) = mpsc::unbounded_channel();
        let ahead = connection.is_some().then_some((sender, room));
        let task = AbortOnDropHandle::new(tokio::spawn(read_part(stream, Arc::clone(&self.meter), ahead)));
        self.ahead.push_back(Part { held, task, meter, end, urgency, _connection: connection });
    }
}

/// The next bytes of a part, else of the head. After the last bytes of the part, its stream is the head.
async fn next_of(
    turned: &mut Option<Part>,
    head: &mut BlobStream,
    meter: &Meter,
) -> Result<Option<Bytes>, RuntimeError> {
    let Some(part) = turned else {
        let bytes = head.next().await?;
        meter.received.fetch_add(bytes.as_ref().map_or(0, Bytes::len) as u64, Ordering::Relaxed);
        return Ok(bytes);
    };
    if let Some((bytes, _)) = part.held.recv().await {
        return Ok(Some(bytes));
    }
    *head = (&mut part.task).await??;
    Ok(None)
}

/// Opens a part's stream, reads it into memory until the part's turn if `ahead` is given, and returns it.
async fn read_part(
    mut stream: BlobStream,
    meter: Arc<Meter>,
    ahead: Option<(mpsc::UnboundedSender<BufferedBytes>, Arc<Semaphore>)>,
) -> Result<BlobStream, RuntimeError> {
    // A request is never cancelled before its answer: the host would have to answer twice.
    meter.answered_after(&mut stream).await?;
    let urgency = Arc::clone(&stream.urgency);
    let mut turned = pin!(urgency.raised());
    let Some((held, room)) = ahead else {
        turned.await;
        return Ok(stream);
    };
    meter.answered.fetch_add(1, Ordering::Relaxed);
    loop {
        let bytes = tokio::select! {
            biased;
            () = &mut turned => return Ok(stream),
            bytes = stream.next() => bytes?,
        };
        let Some(bytes) = bytes else { return Ok(stream) };
        meter.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_many_owned(length) => permit.ok(),
            // The part's turn has come, so the reader takes the bytes without a permit.
            () = &mut turned => None,
        };
        let is_due = permit.is_none();
        if held.send((bytes, permit)).is_err() || is_due {
            return Ok(stream);
        }
    }
}
