//! The file of leases, which a process reads when it starts after a crash. `STATE_DIR/leases.json` has the last request
//! time of each leased image, for all processes. The file is not synced: after a power failure, all containers request
//! their images again. If the file is unreadable, every image is treated as leased.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use crate::{
    durable::{Disk, StateDir, nanos, replace_file_unsynced, time},
    image::ImageId,
};

pub(crate) const LEASES: &str = "leases.json";

#[derive(Debug)]
pub(crate) struct LeaseFile {
    directory: Option<StateDir>,
    disk: Arc<dyn Disk>,
    turn: tokio::sync::Mutex<()>,
    written: AtomicU64,
}

type RequestTimes = BTreeMap<ImageId, SystemTime>;

impl LeaseFile {
    pub(crate) fn of(directory: Option<StateDir>, disk: Arc<dyn Disk>) -> Self {
        Self { directory, disk, turn: tokio::sync::Mutex::default(), written: AtomicU64::default() }
    }

    pub(super) fn read(&self) -> io::Result<RequestTimes> {
        self.directory.as_ref().map_or_else(|| Ok(RequestTimes::new()), read)
    }

    /// The leases on disk, including those of other processes.
    pub(super) async fn reload(&self) -> io::Result<RequestTimes> {
        let Some(directory) = self.directory.clone() else { return Ok(RequestTimes::new()) };
        self.on_disk(move || read(&directory)).await
    }

    /// Writes the leases if the file is older than version `wanted`. Concurrent callers share a write.
    pub(super) async fn keep(
        &self,
        wanted: u64,
        due: impl FnOnce() -> (u64, RequestTimes, Duration),
    ) -> io::Result<()> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        if self.written.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if self.written.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let (version, due, lasts) = due();
        let written = self.on_disk(move || write(&directory, due, lasts)).await;
        self.written.fetch_max(version, Ordering::AcqRel);
        written
    }

    async fn on_disk<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        if !self.disk.takes_time() {
            tokio::task::yield_now().await;
            return work();
        }
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

fn read(directory: &StateDir) -> io::Result<RequestTimes> {
    let Some(text) = directory.content(LEASES)? else { return Ok(RequestTimes::new()) };
    let asked: BTreeMap<ImageId, u64> = serde_json::from_slice(&text).map_err(io::Error::other)?;
    Ok(asked.into_iter().map(|(id, asked_at)| (id, time(asked_at))).collect())
}

/// Merges these leases into the file, which all processes share. Expired leases and a damaged file are dropped.
fn write(directory: &StateDir, due: RequestTimes, lasts: Duration) -> io::Result<()> {
    let _lock = directory.lock()?;
    let now = due.values().max().copied().unwrap_or(SystemTime::UNIX_EPOCH);
    let mut asked = read(directory).unwrap_or_default();
    asked.retain(|_, asked_at| *asked_at + lasts > now);
    asked.extend(due);
    let asked: BTreeMap<ImageId, u64> = asked.into_iter().map(|(id, asked_at)| (id, nanos(asked_at))).collect();
    let beside = directory.path.join(format!(".{LEASES}.new"));
    let text = serde_json::to_vec(&asked).map_err(io::Error::other)?;
    replace_file_unsynced(&directory.path.join(LEASES), &beside, &text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::durable::MachineDisk;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn times(times: &[(&str, u64)]) -> RequestTimes {
        times.iter().map(|(id, seconds)| (ImageId::new(*id), at(*seconds))).collect()
    }

    fn lease_file() -> (tempfile::TempDir, LeaseFile) {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDir::open(folder.path()).unwrap();
        (folder, LeaseFile::of(Some(directory), Arc::new(MachineDisk)))
    }

    #[tokio::test]
    async fn a_write_keeps_the_leases_of_other_processes_until_they_expire() {
        let (_folder, file) = lease_file();
        let lasts = Duration::from_mins(1);
        file.keep(1, || (1, times(&[("sha256:other", 10), ("sha256:own", 20)]), lasts)).await.unwrap();
        for (version, (now, expected)) in (2..).zip([(69, true), (70, false)]) {
            // The latest request of the write is now.
            let due = times(&[("sha256:early", 15), ("sha256:own", now)]);
            file.keep(version, || (version, due, lasts)).await.unwrap();
            let found = file.reload().await.unwrap();
            assert_eq!(found.contains_key(&ImageId::new("sha256:other")), expected, "{now}");
            assert_eq!(found[&ImageId::new("sha256:own")], at(now));
            assert_eq!(file.read().unwrap(), found);
        }
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_write() {
        let (_folder, file) = lease_file();
        let writes = AtomicU64::new(0);
        let keep = |wanted| {
            file.keep(wanted, || {
                writes.fetch_add(1, Ordering::Relaxed);
                (2, times(&[("sha256:a", 1)]), Duration::from_mins(1))
            })
        };
        let (first, second, third) = tokio::join!(keep(1), keep(2), keep(2));
        assert!(first.is_ok() && second.is_ok() && third.is_ok());
        assert_eq!(writes.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_an_absent_one() {
        let (folder, file) = lease_file();
        assert_eq!(file.read().unwrap(), RequestTimes::new());
        let path = folder.path().join(LEASES);
        fs::create_dir(&path).unwrap();
        assert!(file.read().is_err());
        fs::remove_dir(&path).unwrap();
        fs::File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
        assert_eq!(file.read().unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
