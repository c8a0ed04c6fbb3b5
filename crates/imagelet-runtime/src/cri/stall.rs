//! Ends pulls of a runtime that is no longer active.
//!
//! CRI reports no progress of a pull, so the whole runtime is observed. For a containerd with readable folders,
//! activity is a change of fetched blobs or of snapshot usage. For other runtimes, activity is an answer. A hanging
//! pull therefore ends only after the last active pull. A slow pull is never ended.

use std::{ffi::OsString, fs, path::Path, time::Duration};

use imagelet_core::ports::ImageFilesystems;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};

use crate::cri::SnapshotterPlace;

/// containerd's folder of running fetches. Each fetch has its own folder.
const INGESTS: &str = "io.containerd.content.v1.content/ingest";
const INGESTED: &str = "data";
/// Maximum number of checked fetches. A node usually runs some dozens.
const INGESTS_MAX: usize = 4096;
const LOOKS: u32 = 10;
const LOOK_EVERY_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Silent,
    Answers,
    Wrote(Written),
}

/// The bytes that a runtime has written so far. Any difference between two observations is activity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    snapshots: Vec<(u64, Option<u64>)>,
    ingests: Vec<(OsString, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stalled {
    Silent,
    Idle,
}

#[derive(Debug)]
pub(crate) struct StallWatch {
    pub(crate) quiet_max: Duration,
    /// Locked during an observation, so that one observation serves all pulls.
    pulse: Mutex<Pulse>,
}

#[derive(Debug, Default)]
struct Pulse {
    written: Option<Written>,
    lived_at: Option<Instant>,
    looked_at: Option<Instant>,
    answered: bool,
}

impl Pulse {
    fn note(&mut self, look: Look, now: Instant) {
        self.looked_at = Some(now);
        self.answered = look != Look::Silent;
        let is_sign = match look {
            Look::Silent => false,
            Look::Answers => true,
            Look::Wrote(written) => self.written.replace(written.clone()) != Some(written),
        };
        if is_sign {
            self.lived_at = Some(now);
        }
    }

    fn verdict(&self, began: Instant, quiet_max: Duration, now: Instant) -> Option<Stalled> {
        let lived_at = self.lived_at.map_or(began, |at| at.max(began));
        let is_over = now.saturating_duration_since(lived_at) >= quiet_max;
        is_over.then_some(if self.answered { Stalled::Idle } else { Stalled::Silent })
    }
}

impl StallWatch {
    pub(crate) fn new(quiet_max: Duration) -> Self {
        Self { quiet_max, pulse: Mutex::default() }
    }

    pub(crate) async fn stalled<F: Future<Output = Look>>(&self, look: impl Fn() -> F) -> Stalled {
        let began = Instant::now();
        let every = (self.quiet_max / LOOKS).min(LOOK_EVERY_MAX);
        loop {
            sleep(every).await;
            let mut pulse = self.pulse.lock().await;
            if pulse.looked_at.is_none_or(|at| at.elapsed() >= every / 2) {
                // An observation that hangs counts as no answer, so that it does not delay the end of the pull.
                let until = Instant::now() + (self.quiet_max / 2).min(LOOK_EVERY_MAX);
                let found = timeout_at(until, look()).await.unwrap_or(Look::Silent);
                pulse.note(found, Instant::now());
            }
            if let Some(stalled) = pulse.verdict(began, self.quiet_max, Instant::now()) {
                return stalled;
            }
        }
    }
}

/// Reads from disk how much a runtime has written. `None` means that its folders are unreadable or not containerd's.
pub(crate) fn written(filesystems: &ImageFilesystems) -> Option<Written> {
    let root = filesystems.images.iter().find_map(|place| SnapshotterPlace::of(&place.mountpoint))?.root;
    let ingests = ingests(&root.join(INGESTS))?;
    let snapshots = filesystems.images.iter().map(|place| (place.used.0, place.inodes_used)).collect();
    Some(Written { snapshots, ingests })
}

fn ingests(folder: &Path) -> Option<Vec<(OsString, u64)>> {
    let entries = fs::read_dir(folder).ok()?.flatten().take(INGESTS_MAX);
    // The file of a fetch that has just ended is absent and counts as 0 bytes. This change is activity, too.
    let sized = |entry: fs::DirEntry| {
        let size = fs::symlink_metadata(entry.path().join(INGESTED)).map_or(0, |file| file.len());
        (entry.file_name(), size)
    };
    let mut ingests: Vec<(OsString, u64)> = entries.map(sized).collect();
    ingests.sort_unstable();
    Some(ingests)
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        sync::atomic::{AtomicU64, Ordering},
        time::SystemTime,
    };

    use imagelet_core::{image::ByteSize, ports::FilesystemUsage};

    use super::*;

    const QUIET: Duration = Duration::from_mins(5);

    fn wrote(bytes: u64) -> Look {
        Look::Wrote(Written { snapshots: vec![(0, Some(0))], ingests: vec![("one".into(), bytes)] })
    }

    /// How long the watch lets a pull run, up to an hour.
    async fn lasts(look: impl Fn(Duration) -> Look) -> Option<(Duration, Stalled)> {
        let (watch, began) = (StallWatch::new(QUIET), Instant::now());
        let stalled = tokio::time::timeout(Duration::from_hours(1), watch.stalled(|| async { look(began.elapsed()) }));
        stalled.await.ok().map(|stalled| (began.elapsed(), stalled))
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_lives_is_never_cut_and_one_that_does_not_is_cut_in_time() {
        let minute = |passed: Duration| passed.as_secs() / 60;
        assert_eq!(lasts(|_| Look::Answers).await, None, "nothing can be seen, and it answers");
        assert_eq!(lasts(|passed| wrote(minute(passed) / 4)).await, None, "a byte in four minutes");
        let every_fourth = |passed| if minute(passed) % 4 == 0 { Look::Answers } else { Look::Silent };
        assert_eq!(lasts(every_fourth).await, None, "it answers now and then");
        assert_eq!(lasts(|_| Look::Silent).await, Some((QUIET, Stalled::Silent)));
        let (lasted, stalled) = lasts(|_| wrote(7)).await.expect("it is cut");
        assert!(lasted >= QUIET && lasted <= QUIET + 2 * LOOK_EVERY_MAX && stalled == Stalled::Idle, "{lasted:?}");
        // It writes for 30 minutes, then stops.
        let (lasted, stalled) = lasts(|passed| wrote(minute(passed).min(30))).await.expect("it is cut");
        assert_eq!((minute(lasted), stalled), (35, Stalled::Idle));
        let falls_silent = |passed| if minute(passed) < 10 { Look::Answers } else { Look::Silent };
        let (lasted, stalled) = lasts(falls_silent).await.expect("it is cut");
        assert_eq!((minute(lasted), stalled), (14, Stalled::Silent));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_is_none_and_all_pulls_share_their_looks() {
        let (watch, looks, began) = (StallWatch::new(QUIET), AtomicU64::new(0), Instant::now());
        let hangs = || async {
            looks.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        };
        let ended = futures_util::future::join_all((0..100).map(|_| watch.stalled(hangs))).await;
        assert!(ended.iter().all(|stalled| *stalled == Stalled::Silent));
        assert!(began.elapsed() <= QUIET + 2 * LOOK_EVERY_MAX, "{:?}", began.elapsed());
        assert!(looks.load(Ordering::Relaxed) <= 32, "{looks:?} looks");
        // A later pull has its own limit.
        sleep(2 * QUIET).await;
        let again = Instant::now();
        assert_eq!(watch.stalled(|| async { Look::Silent }).await, Stalled::Silent);
        assert!(again.elapsed() >= QUIET);
    }

    #[test]
    fn what_containerd_writes_is_seen_in_its_folders_and_of_others_nothing() {
        let root = tempfile::tempdir().unwrap();
        let at = |mountpoint: PathBuf, used: u64| {
            let measured_at = SystemTime::now();
            let place = FilesystemUsage { measured_at, mountpoint, used: ByteSize(used), inodes_used: Some(1) };
            ImageFilesystems { images: vec![place.clone()], containers: vec![place], ..ImageFilesystems::default() }
        };
        let mountpoint = root.path().join("io.containerd.snapshotter.v1.overlayfs");
        assert_eq!(written(&at(mountpoint.clone(), 1)), None, "no blobs are there");
        let blob = root.path().join(INGESTS).join("3f2a");
        fs::create_dir_all(&blob).unwrap();
        let empty = written(&at(mountpoint.clone(), 1));
        fs::write(blob.join(INGESTED), b"half").unwrap();
        let half = written(&at(mountpoint.clone(), 1));
        assert_eq!(half, written(&at(mountpoint.clone(), 1)), "nothing new");
        fs::write(blob.join(INGESTED), b"half and more").unwrap();
        let more = written(&at(mountpoint.clone(), 1));
        let unpacked = written(&at(mountpoint, 2));
        let all = [None, empty, half, more, unpacked];
        for (number, one) in all.iter().enumerate() {
            assert!(all.iter().skip(number + 1).all(|other| other != one), "{one:?} comes twice");
        }
        assert_eq!(written(&at(root.path().join("overlay-images"), 1)), None);
    }
}
