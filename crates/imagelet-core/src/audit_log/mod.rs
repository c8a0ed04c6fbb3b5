//! The audit log: the acts on images and their reasons, as JSON lines on disk. Removals and refusals are acts, too.
//!
//! ```text
//! DIRECTORY/NNNNNNNNNN.jsonl   the youngest file has the highest number; the oldest is removed when space is needed
//! DIRECTORY/lock               locked while a process appends lines
//! ```
//!
//! The directory may be deleted at any time; the only effect is that the command `why` has no history. A line is one
//! JSON document (`record.rs`). A crash leaves at worst a torn last line, which readers skip. Several processes may
//! write. Readers take no lock. Other files in the directory are ignored.
//!
//! **Invariant:** a caller never fails or waits because of a full or slow disk. A record that cannot be written is
//! counted as lost. The next successful write records the count.

mod files;
mod history;
mod record;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
};

use jiff::Timestamp;

use self::{files::LogFiles, record::Line};
pub use self::{
    history::{History, ImageHistory},
    record::{Act, ActCode, ActDetails, PullHost},
};
use crate::lock::locked;

/// Further acts are lost and counted.
const WAITING_MAX: usize = 256;
/// The minimum size: a smaller log covers too little history.
pub(crate) const BYTES_MIN: u64 = 64 << 10;

/// The audit log of a node. A separate thread writes the log. The first act starts the thread.
#[derive(Debug, Default)]
pub struct AuditLog {
    directory: Option<PathBuf>,
    /// The maximum size of the log. Zero: no act is written, but existing records stay readable.
    bytes_max: u64,
    state: Arc<WriteState>,
    worker: Mutex<Option<Worker>>,
}

#[derive(Debug, Default)]
struct WriteState {
    lost: AtomicU64,
    is_failing: AtomicBool,
}

#[derive(Debug)]
struct Worker {
    queue: SyncSender<Message>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
enum Message {
    Act(Box<Act>),
    /// Requests an answer as soon as all earlier acts are written or lost.
    Flush(SyncSender<()>),
}

impl AuditLog {
    /// Opens a log of at most `bytes_max` bytes, but at least `BYTES_MIN`. The first act creates the directory.
    pub fn new(directory: &Path, bytes_max: u64) -> Self {
        let mut log = Self::read_only(directory);
        log.bytes_max = bytes_max.max(BYTES_MIN);
        log
    }

    pub fn read_only(directory: &Path) -> Self {
        let mut log = Self::off();
        log.directory = Some(directory.to_owned());
        log
    }

    pub fn off() -> Self {
        Self::default()
    }

    /// Queues an act without waiting. If the queue is full, the act is lost.
    pub fn act(&self, act: Act) {
        let (Some(directory), true) = (&self.directory, self.bytes_max > 0) else { return };
        let mut worker = locked(&self.worker);
        if worker.is_none() {
            match Worker::start(directory, self.bytes_max, &self.state) {
                Ok(started) => *worker = Some(started),
                Err(error) => tracing::warn!(%error, "could not start the writer of the audit log"),
            }
        }
        let sent = worker.as_ref().ok_or("there is no thread to write").and_then(|worker| {
            worker.queue.try_send(Message::Act(Box::new(act))).map_err(|error| match error {
                TrySendError::Full(_) => "the disk is slower than what is decided",
                TrySendError::Disconnected(_) => "the writer has ended",
            })
        });
        if let Err(why) = sent {
            self.state.failed(why);
        }
    }

    /// Blocks until all queued records are written or lost.
    pub fn flush(&self) {
        let queue = locked(&self.worker).as_ref().map(|worker| worker.queue.clone());
        let Some(queue) = queue else { return };
        let (done, wait) = sync_channel(1);
        if queue.send(Message::Flush(done)).is_ok() {
            // An error means that the writer has ended, so no record is left to write.
            let _ = wait.recv();
        }
    }

    pub fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Relaxed)
    }

    /// The history of the images that match a name, an id, a digest or a prefix of these two. Blocks the thread.
    pub fn history(&self, text: &str) -> io::Result<History> {
        self.flush();
        self.directory.as_deref().map_or_else(|| Ok(History::default()), |directory| History::of(directory, text))
    }

    /// The last acts on all images, the latest first. Blocks the thread.
    pub fn recent(&self, max: usize) -> io::Result<Vec<Act>> {
        self.flush();
        self.directory.as_deref().map_or_else(|| Ok(Vec::new()), |directory| files::recent(directory, max))
    }
}

impl WriteState {
    /// Counts a lost record. Logs only the first of several errors in a row.
    fn failed(&self, why: &str) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(error = why, "could not write the audit log; decisions continue and are not recorded");
        }
    }

    fn succeeded(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            tracing::info!(lost = self.lost.load(Ordering::Relaxed), "the audit log is written again");
        }
    }
}

impl Worker {
    fn start(directory: &Path, bytes_max: u64, state: &Arc<WriteState>) -> io::Result<Self> {
        let (queue, messages) = sync_channel(WAITING_MAX);
        let (files, state) = (LogFiles::new(directory, bytes_max), Arc::clone(state));
        let thread =
            std::thread::Builder::new().name("audit-log".into()).spawn(move || work(&files, &state, &messages))?;
        Ok(Self { queue, thread })
    }
}

fn work(files: &LogFiles, state: &WriteState, messages: &Receiver<Message>) {
    let mut reported = 0;
    while let Ok(message) = messages.recv() {
        match message {
            Message::Act(act) => {
                // Failed and cancelled pulls are not synced: they change no image, and there may be many.
                let is_synced = !act.code.is_of_a_name();
                let lost = state.lost.load(Ordering::Relaxed);
                let report = Line::Lost { at: Timestamp::now(), count: lost - reported };
                let report = Some(report).filter(|_| lost > reported);
                let lines: Vec<Line> = report.into_iter().chain([Line::Act(*act)]).collect();
                match files.append(&lines, is_synced) {
                    Ok(()) => {
                        reported = lost;
                        state.succeeded();
                    }
                    Err(error) => state.failed(&error.to_string()),
                }
            }
            // An error means that the caller waits no longer.
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        let Some(Worker { queue, thread }) = locked(&self.worker).take() else { return };
        drop(queue);
        if thread.join().is_err() {
            tracing::error!("the writer of the audit log panicked");
        }
    }
}
