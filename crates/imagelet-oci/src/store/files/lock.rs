//! The lock of a store: one process changes it at a time, and another one can report which that is.

use std::{
    fs::File,
    io::{Read as _, Seek as _, Write as _},
    path::Path,
};

use imagelet_core::{
    printable::printable,
    runtime::{RuntimeError, RuntimeErrorKind},
};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
};

use super::root::Place;
use crate::store::could_not;

/// An advisory lock on the whole store; the kernel releases it when the process ends.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "it is held until it is dropped")] File);

impl Lock {
    pub(crate) fn take(place: &Place) -> Result<Self, RuntimeError> {
        let path = place.path.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&place.folder, "lock", flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(opened.map_err(could_not("open the lock", &path))?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(held_by_another(&place.path, &holder(&mut file))),
            locked => locked.map_err(could_not("lock", &path))?,
        }
        // Only for the error message of other processes: a failure does not affect the lock.
        let _ = file.set_len(0).and_then(|()| write!(file, "{} {}", std::process::id(), command_line()));
        Ok(Self(file))
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
    let process = match holder.split_once(' ') {
        Some((pid, command)) => format!("`{command}` (pid {pid})"),
        None => "another process".to_owned(),
    };
    RuntimeError::new(RuntimeErrorKind::InUse, format!("the store `{}` is in use by {process}", root.display()))
        .with_hint("talk to that process with --endpoint unix://SOCKET, wait for longer with --lock-timeout, or name another place with --store DIR")
}

const COMMANDS: [&str; 15] = [
    "serve", "pull", "ensure", "ls", "inspect", "rm", "untag", "gc", "df", "pin", "unpin", "pins", "mount", "unmount",
    "verify",
];

/// Program and command word only: arguments may contain secrets.
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
}
