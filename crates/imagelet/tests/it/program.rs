//! Runs the program itself: one command, or the daemon.

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read as _, Seek as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use imagelet_core::testing::debug_text;
use tokio::time::Instant;

use crate::testbed::{Part, wait_until};

/// No command of these tests takes longer; one that does hangs.
const COMMAND_MAX: Duration = Duration::from_mins(2);

/// The program with none of the caller's settings.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imagelet"));
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

/// What a command said and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Stdout of a command that succeeded.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "exit code\nstdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }

    /// Stdout of a command that succeeded, as JSON.
    pub(crate) fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON: {error}\n{text}"))
    }

    /// Stderr of a command that failed with exit code 1 and told each of `words`.
    pub(crate) fn refused(self, words: &[&str]) -> String {
        assert_eq!(self.code, 1, "exit code\nstdout: {}\nstderr: {}", self.stdout, self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not told:\n{}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self.stderr
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let (mut stdout, mut stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > COMMAND_MAX {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} hangs\n{}", read(&mut stderr));
        }
        thread::sleep(Duration::from_millis(2));
    };
    let outcome = Outcome { code: status.code().unwrap_or(-1), stdout: read(&mut stdout), stderr: read(&mut stderr) };
    if outcome.code != 0 {
        // Debug logs of libraries are for developers.
        let is_for_people = |line: &&str| !["TRACE", "DEBUG"].iter().any(|level| line.contains(level));
        let said = outcome.stderr.lines().filter(is_for_people).collect::<Vec<_>>().join("\n");
        assert_eq!(debug_text(&said), None, "Rust's debug format:\n{said}");
    }
    outcome
}

fn read(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Runs `imagelet --store STORE ARGUMENTS`.
pub(crate) fn with_store<S: AsRef<OsStr>>(store: &Path, arguments: impl IntoIterator<Item = S>) -> Outcome {
    run(program().arg("--store").arg(store).args(arguments))
}

/// Writes a shell script that every user may run.
pub(crate) fn write_script(path: &Path, body: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{body}")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Writes a configuration with these settings of the store, and answers its path.
pub(crate) fn write_store_config(folder: &Path, store: &str) -> String {
    let path = folder.join("config.yaml");
    let text = format!("apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nstore: {{{store}}}\n");
    // A full disk of the machine that runs the tests must not make a daemon collect.
    let text = text + "gc: {enabled: false}\n";
    // A pull from a registry that is away repeats its requests for no longer than this.
    let text = text + "pulls: {retryBudget: 2s}\n";
    std::fs::write(&path, text).unwrap();
    path.into_os_string().into_string().expect("temporary directories have plain names")
}

/// The daemon, killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) part: Part,
    socket: PathBuf,
}

impl Daemon {
    /// Starts `serve ARGUMENTS` with its socket and log in `folder`, and waits until it answers.
    pub(crate) fn start<S: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>) -> Self {
        Self::spawn(folder, arguments).answering()
    }

    /// Starts it with variables of the environment.
    pub(crate) fn start_with<S: AsRef<OsStr>>(
        folder: &Path,
        arguments: impl IntoIterator<Item = S>,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::spawn_with(folder, arguments, environment).answering()
    }

    /// Starts it with a failpoint armed.
    pub(crate) fn start_armed<S: AsRef<OsStr>>(
        folder: &Path,
        arguments: impl IntoIterator<Item = S>,
        failpoint: &str,
    ) -> Self {
        Self::spawn_with(folder, arguments, &[("IMAGELET_FAILPOINT", failpoint)]).answering()
    }

    /// Starts it where a process may have so many open files.
    pub(crate) fn start_with_files_max<S: AsRef<OsStr>>(
        folder: &Path,
        arguments: impl IntoIterator<Item = S>,
        files_max: usize,
    ) -> Self {
        let socket = folder.join("imagelet.sock");
        let program = program();
        let mut command = Command::new("sh");
        command.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.arg("-c").arg(format!("ulimit -n {files_max} && exec \"$0\" \"$@\"")).arg(program.get_program());
        command.arg("serve").arg("--socket").arg(&socket).args(arguments);
        Self { part: Part::start(&mut command, "dash", folder.join("imagelet.log")), socket }.answering()
    }

    fn answering(mut self) -> Self {
        let daemon = &mut self;
        let socket = daemon.socket.clone();
        wait_until("the daemon's socket", || {
            assert_eq!(daemon.part.ended(), None, "the daemon ended:\n{}", daemon.part.log());
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        self
    }

    /// Starts it and does not wait.
    pub(crate) fn spawn<S: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>) -> Self {
        Self::spawn_with(folder, arguments, &[])
    }

    /// Starts it with variables of the environment and does not wait.
    pub(crate) fn spawn_with<S: AsRef<OsStr>>(
        folder: &Path,
        arguments: impl IntoIterator<Item = S>,
        environment: &[(&str, &str)],
    ) -> Self {
        let socket = folder.join("imagelet.sock");
        let mut command = program();
        command.envs(environment.iter().copied());
        command.arg("serve").arg("--socket").arg(&socket).args(arguments);
        Self { part: Part::start(&mut command, "of imagelet", folder.join("imagelet.log")), socket }
    }

    /// Runs `imagelet --endpoint SOCKET ARGUMENTS`.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Outcome {
        run(self.command().args(arguments))
    }

    /// `imagelet --endpoint SOCKET`, to be spawned.
    pub(crate) fn command(&self) -> Command {
        let mut command = program();
        command.arg("--endpoint").arg(self.endpoint());
        command
    }

    /// Its socket as clients want it.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Starts it with at most so many open files: a soft limit and a hard one.
    pub(crate) fn start_with_files<S: AsRef<OsStr>>(
        folder: &Path,
        (soft, hard): (u64, u64),
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let socket = folder.join("imagelet.sock");
        let mut command = Command::new("prlimit");
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/nonexistent");
        command.arg(format!("--nofile={soft}:{hard}")).arg(env!("CARGO_BIN_EXE_imagelet"));
        command.arg("serve").arg("--socket").arg(&socket).args(arguments);
        Self { part: Part::start(&mut command, "of util-linux", folder.join("imagelet.log")), socket }.answering()
    }

    /// Asks it to stop and waits for its exit status.
    pub(crate) fn stop(mut self, signal: rustix::process::Signal) -> std::process::ExitStatus {
        self.part.signal(signal);
        let mut status = None;
        wait_until("the daemon to stop", || {
            status = self.part.ended();
            status.is_some()
        });
        status.expect("it ended")
    }
}
