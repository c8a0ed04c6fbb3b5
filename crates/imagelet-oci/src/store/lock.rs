//! One owner of a store at a time; a second is told who the first is.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Duration,
};

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};
use rustix::fs::{FlockOperation, flock};
use tokio::time::Instant;

/// A store that was just closed in this process may still be held by a thread that clears up after a pull; it is waited
/// for this long.
const ENDING_MAX: Duration = Duration::from_secs(2);
/// How often to look meanwhile.
const ENDING_LOOK: Duration = Duration::from_millis(5);

/// An advisory lock on the whole store; the kernel gives it back when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn take(root: &Path) -> Result<Self, RuntimeError> {
        let path = root.join("lock");
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(
                |error| super::storage_error(format!("could not open the lock `{}`", path.display()), error),
            )?;
        let asked = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let holder = holder(&mut file);
                    if asked.elapsed() >= ENDING_MAX || !is_this_process(&holder) {
                        return Err(held_by_another(root, &holder));
                    }
                    std::thread::sleep(ENDING_LOOK);
                }
                Err(error) => {
                    return Err(super::storage_error(format!("could not lock `{}`", path.display()), error.into()));
                }
            }
        }
        // Only for the error message of others: without it the lock holds as well.
        let _ = file.set_len(0).and_then(|()| write!(file, "{} {}", std::process::id(), command_line()));
        Ok(Self { _file: file })
    }
}

/// What the owner wrote of itself.
fn holder(file: &mut File) -> String {
    const HOLDER_LENGTH_MAX: u64 = 512;
    let mut holder = String::new();
    let _ = file.rewind();
    let _ = file.take(HOLDER_LENGTH_MAX).read_to_string(&mut holder);
    holder.chars().filter(|character| !character.is_control()).collect()
}

fn is_this_process(holder: &str) -> bool {
    holder.split_once(' ').is_some_and(|(pid, _)| pid == std::process::id().to_string())
}

fn held_by_another(root: &Path, holder: &str) -> RuntimeError {
    let who = match holder.split_once(' ') {
        Some((pid, command)) => format!("`{command}` (pid {pid})"),
        None => "another process".to_owned(),
    };
    RuntimeError::new(RuntimeErrorKind::InUse, format!("the store `{}` is in use by {who}", root.display()))
        .with_hint("talk to that process with --endpoint unix://SOCKET, wait for it to end, or name another place with --store DIR")
}

const COMMANDS: [&str; 15] = [
    "serve", "pull", "ensure", "ls", "inspect", "rm", "untag", "gc", "df", "pin", "unpin", "pins", "mount", "unmount",
    "verify",
];

/// Program and command word only: arguments may hold what others must not see.
fn command_line() -> String {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    match arguments.find(|argument| COMMANDS.contains(&argument.as_str())) {
        Some(command) => format!("{program} {command}"),
        None => program,
    }
}
