//! Runs a plugin once in its own process group, and leaves no process behind (`docs/spec/pull.md §7.4`). After the run,
//! however it ends, the group is killed before its leader is reaped: the unreaped leader reserves the group id. The run
//! does not wait for a process that left the group and keeps the output open.

use crate::image::ByteSize;
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

const STDOUT_LENGTH_MAX: usize = 1 << 20;
/// Further bytes are read and dropped, so that the plugin does not block.
const STDERR_LENGTH_MAX: usize = 64 << 10;
const CHUNK_LENGTH: usize = 8 << 10;
/// The wait for the rest of the plugin's output after its exit, if another process keeps the output open.
const FINISHED_AFTER: Duration = Duration::from_millis(100);
/// How long a run waits for the end of a killed plugin. A plugin that is stuck in the kernel is reaped later.
const REAPED_WITHIN: Duration = Duration::from_secs(5);
/// The maximum number of tries to start a plugin. A start fails with `ETXTBSY` while the plugin is being replaced.
const BUSY_TRIES: u32 = 5;
const BUSY_WAIT: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) environment: Variables,
    pub(super) limit: Duration,
}

/// Environment variables. Of a repeated name, the last value is used. `Debug` shows only their number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variables(pub Vec<(OsString, OsString)>);

pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) result: Result<(), RunError>,
}

/// A plugin did not run or did not succeed. The text contains no output.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("fork/exec {}: {}", .path.display(), go_text(.source))]
    Start { path: PathBuf, source: io::Error },
    #[error("{}", status_text(*.0))]
    Failed(ExitStatus),
    #[error("context deadline exceeded")]
    TimedOut,
    #[error("standard output is longer than {}", ByteSize(STDOUT_LENGTH_MAX as u64))]
    TooLong,
    #[error("could not follow the plugin: {}", go_text(.0))]
    System(io::Error),
}

impl Variables {
    pub(super) fn with(&self, provider: &[Variable]) -> Self {
        let own = provider.iter().map(|variable| (variable.name.clone().into(), variable.value.clone().into()));
        Self(self.0.iter().cloned().chain(own).collect())
    }
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Variables({})", self.0.len())
    }
}

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
    /// Runs the plugin once. A drop of the future kills its process group.
    pub(super) async fn run(&self, question: &[u8]) -> Output {
        let mut output = Output { stdout: Vec::new(), stderr: Vec::new(), result: Ok(()) };
        output.result = self.run_into(question, &mut output).await;
        output
    }

    async fn run_into(&self, question: &[u8], output: &mut Output) -> Result<(), RunError> {
        let deadline = Instant::now() + self.limit;
        let mut child = self.start().await?;
        // Declared after the child, so it is dropped first, while the unreaped leader still reserves the group id.
        let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
        let ended = follow(&mut child, group.0, question, output, deadline).await;
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
}

/// Writes the request, and reads until the plugin has exited and its output is complete. Does not reap the plugin.
async fn follow(
    child: &mut Child,
    leader: Option<Pid>,
    question: &[u8],
    Output { stdout, stderr, .. }: &mut Output,
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
    // The time when the output of the plugin itself is complete. `None`: the plugin still runs.
    let mut settled: Option<Instant> = None;
    while stdout_open || stderr_open || settled.is_none() {
        let is_over = settled.is_some_and(|settled| Instant::now() >= settled);
        // The response is complete. Later output of another process does not change it.
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

#[expect(deprecated, reason = "the successor is unsafe, for files that are closed meanwhile; this one is owned")]
fn ended(leader: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd_open(leader, PidfdFlags::empty())?, Interest::READABLE)
}

fn has_failed(leader: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(leader), options), Ok(Some(status)) if status.exit_status() != Some(0))
}

/// Writes the request. An error is only logged, because a plugin may close its input without reading it.
async fn feed(mut stdin: ChildStdin, question: &[u8]) {
    if let Err(error) = stdin.write_all(question).await {
        tracing::debug!(%error, "a credential provider did not read its request");
    }
    drop(stdin);
}

/// Reads once and stores at most `length_max` bytes in all. Returns false at the end of the stream.
async fn keep(from: &mut (impl AsyncRead + Unpin), kept: &mut Vec<u8>, length_max: usize) -> io::Result<bool> {
    // The buffer is on the heap, so that the future stays small.
    let mut chunk = vec![0; CHUNK_LENGTH];
    let count = from.read(&mut chunk).await?;
    kept.extend(&chunk[..count.min(length_max.saturating_sub(kept.len()))]);
    Ok(count > 0)
}

fn status_text(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else { return format!("exit status {}", status.code().unwrap_or_default()) };
    let core = if status.core_dumped() { " (core dumped)" } else { "" };
    let name = match signal {
        6 => "aborted",
        9 => "killed",
        11 => "segmentation fault",
        15 => "terminated",
        other => return format!("signal: signal {other}{core}"),
    };
    format!("signal: {name}{core}")
}

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
