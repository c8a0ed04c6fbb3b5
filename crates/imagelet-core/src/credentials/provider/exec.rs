//! Runs a plugin once: question in, answer out, and nothing of it left behind (`docs/spec/pull.md §7.4`).
//!
//! A plugin gets a process group of its own. Whatever way a run ends (answer, failure, time limit, a caller that went
//! away), the whole group is killed before its leader is reaped, so that the group's number cannot be another's by then.
//! A process that left the group on purpose and holds the output open is not waited for.

use std::{
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    path::{Path, PathBuf},
    pin::pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, Interest, unix::AsyncFd},
    process::{Child, ChildStdin, Command},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    config::{Variable, go_text},
    plugin_protocol::Response,
};

/// A longer answer is refused.
const STDOUT_LENGTH_MAX: usize = 1 << 20;
/// So much of what a plugin complains is kept; what follows is read and dropped.
const STDERR_LENGTH_MAX: usize = 64 << 10;
/// Read at once.
const CHUNK_LENGTH: usize = 8 << 10;
/// When a plugin has ended and another process still holds its output: what it wrote itself is here after this time.
const FINISHED_AFTER: Duration = Duration::from_millis(100);
/// A killed process is gone after this time, or the system holds on to it; then it is reaped some other time.
const REAPED_WITHIN: Duration = Duration::from_secs(5);
/// A plugin that is just being replaced is busy for a moment.
const BUSY_TRIES: u32 = 5;
const BUSY_WAIT: Duration = Duration::from_millis(20);

/// What to run, and how.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    /// The whole environment; of one name the last value counts.
    pub(super) environment: Environment,
    pub(super) limit: Duration,
}

/// Variables of a process. `Debug` shows how many.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Environment(Vec<(OsString, OsString)>);

/// What a plugin wrote.
pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) result: Result<(), RunError>,
}

/// A plugin did not run, or not to a good end. Shows nothing of what it wrote.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("fork/exec {}: {}", .path.display(), go_text(.source))]
    Start { path: PathBuf, source: io::Error },
    #[error("{}", status_text(*.0))]
    Failed(ExitStatus),
    #[error("context deadline exceeded")]
    TimedOut,
    #[error("standard output is longer than {STDOUT_LENGTH_MAX} bytes")]
    TooLong,
    /// The system did not let us listen.
    #[error("could not follow the plugin: {}", go_text(.0))]
    System(io::Error),
}

impl Environment {
    /// The daemon's variables, and behind them the provider's.
    pub(super) fn new(process: &[(OsString, OsString)], provider: &[Variable]) -> Self {
        let own = provider.iter().map(|variable| (variable.name.clone().into(), variable.value.clone().into()));
        Self(process.iter().cloned().chain(own).collect())
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Environment({})", self.0.len())
    }
}

/// Kills a process group when dropped.
struct Group(Option<Pid>);

impl Group {
    fn end(&mut self) {
        if let Some(leader) = self.0.take()
            && let Err(error) = kill_process_group(leader, Signal::KILL)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, "could not end the processes of a credential provider");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

impl Plugin {
    /// Asks once. Dropped, it ends whatever it started.
    pub(super) async fn run(&self, question: &[u8]) -> Output {
        let mut output = Output { stdout: Vec::new(), stderr: Vec::new(), result: Ok(()) };
        output.result = self.run_into(question, &mut output.stdout, &mut output.stderr).await;
        output
    }

    async fn run_into(&self, question: &[u8], stdout: &mut Vec<u8>, stderr: &mut Vec<u8>) -> Result<(), RunError> {
        let deadline = Instant::now() + self.limit;
        let mut child = self.start().await?;
        // Declared behind the child, so that it is dropped first, while the leader still stands for its group.
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let mut group = Group(leader);
        let ended = self.follow(&mut child, leader, question, stdout, stderr, deadline).await;
        group.end();
        let reaped = timeout(REAPED_WITHIN, child.wait()).await;
        ended?;
        let status = reaped.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(RunError::System)?;
        if status.success() { Ok(()) } else { Err(RunError::Failed(status)) }
    }

    async fn start(&self) -> Result<Child, RunError> {
        let mut command = Command::new(&self.path);
        command
            .args(&self.args)
            .env_clear()
            .envs(self.environment.0.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let mut tries = 1;
        loop {
            match command.spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                    tries += 1;
                    sleep(BUSY_WAIT).await;
                }
                started => {
                    return started.map_err(|source| RunError::Start { path: self.path.clone(), source });
                }
            }
        }
    }

    /// Feeds and listens until the plugin has ended and all is read. Does not reap it.
    async fn follow(
        &self,
        child: &mut Child,
        leader: Option<Pid>,
        question: &[u8],
        stdout: &mut Vec<u8>,
        stderr: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<(), RunError> {
        let (Some(stdin), Some(mut from_stdout), Some(mut from_stderr), Some(leader)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take(), leader)
        else {
            return Err(RunError::System(io::Error::other("a stream is missing")));
        };
        let exit = ended(leader).map_err(RunError::System)?;
        let mut feed = pin!(feed(stdin, question));
        let mut limit = pin!(sleep_until(deadline));
        let (mut fed, mut stdout_open, mut stderr_open) = (false, true, true);
        // From when on what was written before the end is surely here.
        let mut settled: Option<Instant> = None;
        while stdout_open || stderr_open || settled.is_none() {
            let is_over = settled.is_some_and(|settled| Instant::now() >= settled);
            // Nothing that another one may still write makes this answer a better one.
            if is_over && (!stdout_open || Response::is_whole(stdout) || has_failed(leader)) {
                return Ok(());
            }
            tokio::select! {
                () = &mut feed, if !fed => fed = true,
                read = keep(&mut from_stdout, stdout, STDOUT_LENGTH_MAX + 1), if stdout_open => {
                    stdout_open = read.map_err(RunError::System)?;
                    if stdout.len() > STDOUT_LENGTH_MAX {
                        return Err(RunError::TooLong);
                    }
                }
                read = keep(&mut from_stderr, stderr, STDERR_LENGTH_MAX), if stderr_open => {
                    stderr_open = read.map_err(RunError::System)?;
                }
                ready = exit.readable(), if settled.is_none() => {
                    drop(ready.map_err(RunError::System)?);
                    settled = Some(Instant::now() + FINISHED_AFTER);
                }
                () = sleep_until(settled.unwrap_or(deadline)), if settled.is_some() && !is_over => {}
                () = &mut limit => return Err(RunError::TimedOut),
            }
        }
        Ok(())
    }
}

/// Becomes readable when a process has ended.
#[expect(deprecated, reason = "the successor is unsafe, for files that are closed meanwhile; this one is owned")]
fn ended(leader: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd_open(leader, PidfdFlags::empty())?, Interest::READABLE)
}

/// Whether a process that has ended did so badly. Does not reap it.
fn has_failed(leader: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(leader), options), Ok(Some(status)) if status.exit_status() != Some(0))
}

/// Writes the question. A plugin that does not want it need not read it.
async fn feed(mut stdin: ChildStdin, question: &[u8]) {
    if let Err(error) = stdin.write_all(question).await {
        tracing::debug!(%error, "a credential provider did not read its request");
    }
    drop(stdin);
}

/// Reads once, and keeps what there is room for; false when the stream has ended.
async fn keep(from: &mut (impl AsyncRead + Unpin), kept: &mut Vec<u8>, length_max: usize) -> io::Result<bool> {
    // On the heap: futures are moved about.
    let mut chunk = vec![0; CHUNK_LENGTH];
    let count = from.read(&mut chunk).await?;
    kept.extend(&chunk[..count.min(length_max.saturating_sub(kept.len()))]);
    Ok(count > 0)
}

/// How a process ended, as Go prints it.
fn status_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => {
            let core = if status.core_dumped() { " (core dumped)" } else { "" };
            format!("signal: {}{core}", signal_text(signal))
        }
        (None, None) => "it ended in an unknown way".to_owned(),
    }
}

fn signal_text(signal: i32) -> String {
    match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    }
    .to_owned()
}

/// Whether a file may be run, as far as its mode says.
pub(super) fn executable(folder: &Path, name: &str) -> Result<PathBuf, (PathBuf, io::Error)> {
    let path = folder.join(name);
    let found = std::fs::metadata(&path).map_err(|error| (path.clone(), error))?;
    if found.is_dir() {
        return Err((path, io::Error::from(io::ErrorKind::IsADirectory)));
    }
    rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).map_err(|error| (path.clone(), error.into()))?;
    Ok(path)
}

#[cfg(test)]
mod tests;
