//! The leases of a node, shared by requests for images, passes over containers, and removals.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{
    AHEAD_MAX, Leases,
    file::{RequestTimes, read, write},
};
use crate::{
    durable::{Disk, StateDir},
    image::{ImageId, ImageKey},
    lock::locked,
};

#[derive(Debug)]
pub struct LeaseService {
    state: Mutex<Leases>,
    /// `None`: the leases are only in memory.
    directory: Option<StateDir>,
    disk: Arc<dyn Disk>,
    turn: tokio::sync::Mutex<()>,
    /// The version of the leases in the last write.
    written: AtomicU64,
    removals: tokio::sync::Notify,
}

/// A running removal. Requests for the image wait until this guard is dropped, then query the store again.
#[derive(Debug)]
#[must_use = "the removal ends with it"]
pub(crate) struct Removal<'a> {
    leases: &'a LeaseService,
    id: ImageId,
}

impl LeaseService {
    pub(crate) fn new(directory: Option<StateDir>, disk: Arc<dyn Disk>) -> Self {
        let (state, turn, removals) = (Mutex::default(), tokio::sync::Mutex::default(), tokio::sync::Notify::new());
        Self { state, directory, disk, turn, written: AtomicU64::default(), removals }
    }

    /// Sets the duration of a lease, and restores the leases of an earlier process. Zero turns leases off. If the file
    /// is unreadable, every image counts as leased for this duration.
    pub fn start(&self, lasts: Duration, now: SystemTime) {
        let found = self.directory.as_ref().map_or_else(|| Ok(RequestTimes::new()), read);
        let mut leases = self.lock();
        leases.lasts = lasts;
        match found {
            Ok(found) => leases.restore(found, now, true),
            Err(error) => {
                tracing::error!(%error, "cannot read the leases; every image counts as leased for the time of a lease");
                leases.all_until = Some(now + lasts);
            }
        }
    }

    /// Treats every image as leased until the pods of the node are known, at most for the duration of a lease.
    pub fn expect_pods(&self, now: SystemTime) {
        let mut leases = self.lock();
        leases.pods_unknown_until = Some(now + leases.lasts);
    }

    pub fn until(&self, id: &ImageId, now: SystemTime) -> Option<SystemTime> {
        self.lock().until(id, now)
    }

    /// Queries a store for a pod and leases the found image: no collection removes the image before the lease ends.
    /// `pod` is a uid or empty. `ask` is a query or a pull. `key` extracts the found image. `granted` is called with
    /// each lease. If a removal starts between the answer and the lease, `ask` runs again, so the returned image is
    /// present. Concurrent requests share one write to the disk. A repeated request within seconds writes nothing.
    pub(crate) async fn leased<T, E, F>(
        &self,
        pod: &str,
        now: SystemTime,
        mut ask: impl FnMut() -> F,
        key: impl Fn(&T) -> Option<ImageKey>,
        granted: impl Fn(ImageKey, SystemTime),
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let began = Instant::now();
        loop {
            let mark = self.lock().begun;
            let answer = ask().await?;
            let Some(key) = key(&answer) else { return Ok(answer) };
            let (id, now) = (key.id().clone(), now + began.elapsed());
            if let Some(version) = self.lease(&id, pod, mark, now) {
                granted(key, now);
                self.keep(version).await;
                // A requested removal ignores leases, and may have removed the image during the write.
                if !self.lock().is_overtaken(&id, mark) {
                    return Ok(answer);
                }
            }
            tracing::debug!(image = %id, "a removal of the image ran meanwhile; looking again");
            self.removal_ended(&id).await;
        }
    }

    /// Returns the lease version. `None`: a removal ran since the mark.
    fn lease(&self, id: &ImageId, pod: &str, mark: u64, now: SystemTime) -> Option<u64> {
        let mut leases = self.lock();
        (!leases.is_overtaken(id, mark)).then(|| leases.lease(id, pod, now))
    }

    /// Starts a requested removal, even if the image is leased. Waits until another removal of the image has ended.
    pub(crate) async fn order_removal(&self, id: &ImageId) -> Removal<'_> {
        while !self.lock().begin_ordered_removal(id) {
            self.removal_ended(id).await;
        }
        Removal { leases: self, id: id.clone() }
    }

    pub(crate) fn begin_removal(&self, id: &ImageId, now: SystemTime) -> Result<Removal<'_>, Option<SystemTime>> {
        self.lock().begin_removal(id, now).map(|()| Removal { leases: self, id: id.clone() })
    }

    async fn removal_ended(&self, id: &ImageId) {
        loop {
            let mut ended = std::pin::pin!(self.removals.notified());
            // Enabled before the check, so that no notification is missed.
            ended.as_mut().enable();
            if !self.lock().removing.contains(id) {
                return;
            }
            ended.await;
        }
    }

    /// Writes the leases up to version `wanted`. Concurrent requests share a write. After a failure, new leases are valid
    /// only in this process.
    async fn keep(&self, wanted: u64) {
        let Some(directory) = self.directory.clone() else { return };
        if self.written.load(Ordering::Acquire) >= wanted {
            return;
        }
        let _turn = self.turn.lock().await;
        if self.written.load(Ordering::Acquire) >= wanted {
            return;
        }
        let (version, due, lasts) = {
            let mut leases = self.lock();
            (leases.version, leases.due(AHEAD_MAX), leases.lasts)
        };
        let written = self.on_disk(move || write(&directory, due, lasts)).await;
        self.written.fetch_max(version, Ordering::AcqRel);
        if let Err(error) = written {
            tracing::warn!(%error, "could not write the leases; a crash now may lose a request for an image");
        }
    }

    pub(crate) async fn reload(&self, now: SystemTime) {
        let Some(directory) = self.directory.clone() else { return };
        match self.on_disk(move || read(&directory)).await {
            Ok(found) => self.lock().restore(found, now, false),
            Err(error) => tracing::warn!(%error, "could not read the leases; keeping those known"),
        }
    }

    async fn on_disk<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        if !self.disk.takes_time() {
            tokio::task::yield_now().await;
            return work();
        }
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Leases> {
        locked(&self.state)
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.leases.lock().end_removal(&self.id);
        self.leases.removals.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct CountingDisk(AtomicU64);

    impl Disk for CountingDisk {
        fn takes_time(&self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            false
        }
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_write() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(CountingDisk::default());
        let directory = StateDir::open(folder.path()).unwrap();
        let leases = LeaseService::new(Some(directory.clone()), Arc::clone(&disk) as Arc<dyn Disk>);
        leases.lock().lasts = Duration::from_mins(1);
        let now = SystemTime::now();
        let versions = ["sha256:a", "sha256:b"].map(|id| leases.lock().lease(&ImageId::new(id), "pod", now));
        assert_eq!(versions, [1, 2]);
        tokio::join!(leases.keep(1), leases.keep(2), leases.keep(2));
        assert_eq!(disk.0.load(Ordering::Relaxed), 1);
        assert_eq!(read(&directory).unwrap().len(), 2);
    }
}
