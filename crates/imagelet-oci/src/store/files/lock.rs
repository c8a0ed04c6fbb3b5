//! The lock of a store. One process at a time changes the store; other processes can report that process.

use std::{
    fs::File,
    io::{Read as _, Seek as _, Write as _},
    path::Path,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    printable::printable,
};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
};
use tokio::time::Instant;

use super::root::Place;
use crate::store::could_not;

/// An advisory lock, which the kernel releases when the process ends. Its file's mtime is the owner's last progress.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    pub(crate) fn take(place: &Place) -> Result<Self, RuntimeError> {
        let path = place.path.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(opened.map_err(could_not("open the lock", &path))?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(held_by_another(&place.path, &holder(&mut file))),
            locked => locked.map_err(could_not("lock", &path))?,
        }
        // Other processes show this text in an error message. A failed write does not affect the lock.
        let _ = file.set_len(0).and_then(|()| write!(file, "{} {}", std::process::id(), command_line()));
        Ok(Self(file))
    }

    pub(crate) fn record_progress(&self) {
        // If this fails, the waiting processes only give up earlier.
        let _ = self.0.set_modified(SystemTime::now());
    }
}

impl Drop for Lock {
    /// Releases the lock explicitly. A child process has a copy of the descriptor until exec, so a close may not
    /// release the lock; see flock(2).
    fn drop(&mut self) {
        // If this fails, the kernel releases the lock when the last copy of the descriptor is closed.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// The time of the last progress of a store's owner; `None` for a daemon, because a daemon does not release the store.
pub(crate) fn progress_of_owner(root: &Path) -> Option<SystemTime> {
    let mut file = open_to_read(root)?;
    let modified = file.metadata().and_then(|about| about.modified()).ok()?;
    (!is_daemon(&holder(&mut file))).then_some(modified)
}

/// The command and pid of another process that owns the store in this folder; `None` if that process is a daemon.
pub fn command_of_owner(root: &Path) -> Option<String> {
    let holder = holder(&mut open_to_read(root)?);
    let (pid, _) = holder.split_once(' ').filter(|_| !is_daemon(&holder))?;
    let pid = pid.parse::<u32>().ok().filter(|pid| *pid != std::process::id())?;
    // The file may name an owner that has already ended.
    Path::new("/proc").join(pid.to_string()).exists().then(|| process(&holder))
}

fn open_to_read(root: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(root.join("lock"), flags, Mode::empty()).ok().map(File::from)
}

fn process(holder: &str) -> String {
    match holder.split_once(' ') {
        Some((pid, command)) => format!("`{command}` (pid {pid})"),
        None => "another process".to_owned(),
    }
}

fn is_daemon(holder: &str) -> bool {
    holder.ends_with(" serve")
}

/// The wait for a store that another process owns. It ends after `wait_max` without progress of that process.
pub(crate) struct LockWait {
    wait_max: Duration,
    begun: Instant,
    progress: Option<SystemTime>,
}

impl LockWait {
    pub(crate) fn new(wait_max: Duration, now: Instant) -> Self {
        Self { wait_max, begun: now, progress: None }
    }

    /// Zero: the wait has ended. Progress of the owner restarts the wait.
    pub(crate) fn left(&mut self, progress: Option<SystemTime>, now: Instant) -> Duration {
        if let Some(progress) = progress
            && self.progress.replace(progress).is_some_and(|before| before != progress)
        {
            self.begun = now;
        }
        self.wait_max.saturating_sub(now.saturating_duration_since(self.begun))
    }
}

fn holder(file: &mut File) -> String {
    const HOLDER_LENGTH_MAX: u64 = 512;
    let mut holder = String::new();
    let _ = file.rewind();
    let _ = file.take(HOLDER_LENGTH_MAX).read_to_string(&mut holder);
    printable(&holder)
}

fn held_by_another(root: &Path, holder: &str) -> RuntimeError {
    let process = process(holder);
    let hint = if is_daemon(holder) {
        "talk to that process with --endpoint unix://SOCKET, or name another place with --store DIR"
    } else {
        "wait for it to end, for longer with --lock-timeout, or name another place with --store DIR"
    };
    RuntimeError::new(RuntimeErrorKind::InUse, format!("the store `{}` is in use by {process}", root.display()))
        .with_hint(hint)
}

const COMMANDS: [&str; 17] = [
    "serve", "pull", "ensure", "ls", "inspect", "rm", "untag", "gc", "df", "pin", "unpin", "pins", "mount", "unmount",
    "export", "import", "verify",
];

/// This process's program and command word, without its arguments, which may contain secrets.
fn command_line() -> String {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    match arguments.find(|argument| COMMANDS.contains(&argument.as_str())) {
        Some(command) => format!("{program} {command}"),
        None => program,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_lock_is_not_taken_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, root) = (folder.path().join("victim"), folder.path().join("store"));
        std::fs::write(&victim, "precious").unwrap();
        let place = Place::find(&root, true).unwrap().unwrap();
        symlink(&victim, root.join("lock")).unwrap();
        let error = Lock::take(&place).unwrap_err().to_string();
        assert!(error.contains("could not open the lock"), "{error}");
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "precious");
    }

    #[test]
    fn the_second_learns_who_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::find(&folder.path().join("store"), true).unwrap().unwrap();
        let first = Lock::take(&place).unwrap();
        let error = Lock::take(&place).unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::InUse);
        assert!(error.to_string().contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(first);
        Lock::take(&place).unwrap();
    }

    #[test]
    fn a_lock_ends_with_its_owner_although_a_process_that_starts_has_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::find(&folder.path().join("store"), true).unwrap().unwrap();
        let first = Lock::take(&place).unwrap();
        let copy = first.0.try_clone().unwrap();
        drop(first);
        Lock::take(&place).unwrap();
        drop(copy);
    }

    #[test]
    fn the_hint_names_what_the_owner_of_a_store_can_do() {
        for (holder, expected) in [
            ("7 imagelet serve", "talk to that process with --endpoint"),
            ("7 imagelet pull", "wait for it to end"),
            ("7 imagelet import", "wait for it to end"),
            ("", "wait for it to end"),
        ] {
            let error = held_by_another(Path::new("/s"), holder);
            assert!(error.hint().unwrap().starts_with(expected), "{holder}: {error}");
        }
    }

    #[test]
    fn a_wait_for_the_store_goes_on_while_the_pull_of_its_owner_does() {
        type Looks<'a> = &'a [(u64, Option<SystemTime>, u64)];
        let (start, second) = (Instant::now(), Duration::from_secs);
        let mark = |at: u64| Some(SystemTime::UNIX_EPOCH + second(at));
        // When the wait looks, the progress it finds, and the seconds that are left.
        let cases: [(&str, Looks<'_>); 5] = [
            ("no progress", &[(0, mark(9), 10), (6, mark(9), 4), (10, mark(9), 0)]),
            (
                "bytes each 6 s",
                &[(0, mark(1), 10), (6, mark(2), 10), (12, mark(3), 10), (18, mark(4), 10), (28, mark(4), 0)],
            ),
            ("a clock set back", &[(0, mark(9), 10), (9, mark(2), 10), (12, mark(2), 7)]),
            ("a daemon", &[(0, None, 10), (9, None, 1), (10, None, 0)]),
            ("a daemon after a pull", &[(0, mark(1), 10), (5, mark(2), 10), (8, None, 7), (15, None, 0)]),
        ];
        for (case, looks) in cases {
            let mut wait = LockWait::new(second(10), start);
            for (at, progress, left) in looks {
                assert_eq!(wait.left(*progress, start + second(*at)), second(*left), "{case} after {at} s");
            }
        }
        assert_eq!(LockWait::new(Duration::ZERO, start).left(mark(1), start), Duration::ZERO, "no wait");
    }

    #[test]
    fn the_progress_of_an_owner_is_seen_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::find(&folder.path().join("store"), true).unwrap().unwrap();
        let lock = Lock::take(&place).unwrap();
        lock.0.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        lock.record_progress();
        assert!(progress_of_owner(&place.path).unwrap() > SystemTime::UNIX_EPOCH);
        let holder = |text: String| {
            std::fs::write(place.path.join("lock"), text).unwrap();
            command_of_owner(&place.path)
        };
        assert_eq!(holder("1 imagelet pull".to_owned()).as_deref(), Some("`imagelet pull` (pid 1)"));
        assert_eq!(holder(format!("{} imagelet pull", std::process::id())), None, "this process");
        assert_eq!(holder(format!("{} imagelet pull", u32::MAX)), None, "the last owner has ended");
        assert_eq!(holder("1 imagelet serve".to_owned()), None, "a daemon answers itself");
        assert_eq!(progress_of_owner(&place.path), None);
    }
}
