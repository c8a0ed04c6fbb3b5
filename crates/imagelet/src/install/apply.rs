//! Runs the steps of a plan and reports each step.

use std::{path::Path, process::Stdio, time::Duration};

use imagelet_core::printable::printable;
use serde::Serialize;
use tokio::{process::Command, time::Instant};

use super::{
    CONFIGURATION, InstallArgs, SOCKET, Step,
    host::below,
    owned_file::{self, PRIVATE},
    plan::mode_of,
};
use imagelet_node::{
    failure::Failure,
    node::{Probed, RemoteNode},
    serve::parse_endpoint,
};

const PROBE_MAX: Duration = Duration::from_secs(5);
/// Timeout of one `systemctl` call. To start the service, `systemctl` waits until the daemon is ready.
const SYSTEMCTL_MAX: Duration = Duration::from_secs(90);
const DAEMON_MAX: Duration = Duration::from_secs(30);
const DAEMON_PROBES: Duration = Duration::from_millis(200);
const UNCHECKED: &str = "/etc/imagelet/config.yaml.unchecked";
/// The variable PATH for `systemctl` if a pod calls it on the pod's host.
const HOST_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SHOWN_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) step: &'static str,
    pub(super) target: String,
    /// `done`, `planned` for a dry run, `unchanged`, `open` for advice to the administrator, or `failed`.
    pub(super) result: &'static str,
    pub(super) detail: String,
}

/// Runs the steps until one fails; with `--dry-run`, runs none. `check` checks a configuration file as the daemon does.
pub(super) async fn apply(
    steps: &[Step],
    root: &Path,
    request: &InstallArgs,
    check: impl AsyncFn(&Path) -> Result<(), Failure>,
) -> (Vec<Outcome>, Option<Failure>) {
    let mut outcomes = Vec::new();
    for step in steps {
        let (name, target, detail) = shown(step);
        let result = match step {
            Step::Keep { .. } => "unchanged",
            Step::Advise(_) => "open",
            _ if request.dry_run => "planned",
            _ => match run(step, root, request.is_from_pod, &check).await {
                Ok(()) => "done",
                Err(failure) => {
                    let detail = failure.message.clone();
                    outcomes.push(Outcome { step: name, target, result: "failed", detail });
                    return (outcomes, Some(failure));
                }
            },
        };
        outcomes.push(Outcome { step: name, target, result, detail });
    }
    (outcomes, None)
}

fn shown(step: &Step) -> (&'static str, String, String) {
    match step {
        Step::ProbeRuntime(endpoint) => ("probe", endpoint.clone(), "a runtime has to answer".into()),
        Step::Write { path, .. } => ("write", path.display().to_string(), String::new()),
        Step::Keep { path, why } => ("keep", path.display().to_string(), (*why).into()),
        Step::Protect(path) => ("protect", (*path).into(), "only root may read it: it may hold passwords".into()),
        Step::Remove(path) => ("remove", path.display().to_string(), String::new()),
        Step::RemoveFolder(path) => ("remove", (*path).into(), "if it is empty".into()),
        Step::CheckConfiguration(_) => ("check", CONFIGURATION.into(), "as `imagelet config check` does".into()),
        Step::Systemctl(arguments) => ("run", format!("systemctl {}", arguments.join(" ")), String::new()),
        Step::AwaitDaemon => ("await", SOCKET.into(), "the daemon has to answer".into()),
        Step::Advise(text) => ("advice", String::new(), text.clone()),
    }
}

async fn run(
    step: &Step,
    root: &Path,
    is_from_pod: bool,
    check: &impl AsyncFn(&Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match step {
        Step::ProbeRuntime(endpoint) => probe_runtime(endpoint).await,
        Step::Write { path, content } => owned_file::write(&below(root, path)?, content, mode_of(path)),
        Step::Protect(path) => owned_file::protect(&below(root, Path::new(path))?),
        Step::Remove(path) => owned_file::remove(&below(root, path)?),
        Step::RemoveFolder(path) => owned_file::remove_empty_folder(&below(root, Path::new(path))?),
        Step::CheckConfiguration(None) => check(&below(root, Path::new(CONFIGURATION))?).await,
        Step::CheckConfiguration(Some(content)) => {
            let path = below(root, Path::new(UNCHECKED))?;
            owned_file::write(&path, content, PRIVATE)?;
            let checked = check(&path).await;
            owned_file::remove(&path)?;
            checked
        }
        Step::Systemctl(arguments) => systemctl(root, is_from_pod, arguments).await,
        Step::AwaitDaemon => await_daemon().await,
        Step::Keep { .. } | Step::Advise(_) => Ok(()),
    }
}

async fn probe_runtime(endpoint: &str) -> Result<(), Failure> {
    let node = RemoteNode::new(parse_endpoint(endpoint)?.path(), PROBE_MAX);
    let failed = |why: &str| Failure::new("Unavailable", format!("`{endpoint}` {why}"));
    match node.probe().await {
        Probed::OtherCri => Ok(()),
        Probed::Ours => Err(failed("is a socket of imagelet, not of a runtime")),
        Probed::Missing => Err(failed("does not exist").or_hint("start the runtime first")),
        Probed::Silent(error) => Err(Failure::because(format!("the runtime at `{endpoint}` does not answer"), &error)),
    }
}

async fn await_daemon() -> Result<(), Failure> {
    let deadline = Instant::now() + DAEMON_MAX;
    loop {
        if matches!(RemoteNode::new(Path::new(SOCKET), PROBE_MAX).probe().await, Probed::Ours) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let message = format!("the daemon did not answer at `{SOCKET}` within {} s", DAEMON_MAX.as_secs());
            return Err(Failure::new("Unavailable", message).or_hint("see `journalctl -u imagelet.service`"));
        }
        tokio::time::sleep(DAEMON_PROBES).await;
    }
}

async fn systemctl(root: &Path, is_from_pod: bool, arguments: &[&str]) -> Result<(), Failure> {
    let shown = format!("`systemctl {}`", arguments.join(" "));
    let mut command = Command::new("systemctl");
    if root != Path::new("/") {
        command.arg("--root").arg(root);
    }
    if is_from_pod {
        // Without SYSTEMCTL_FORCE_BUS, systemctl fails with "No data available": it asks a private socket for systemd's
        // process id, and systemd has none in a pod's PID namespace.
        command.env_clear().env("PATH", HOST_PATH).env("SYSTEMCTL_FORCE_BUS", "1").current_dir("/");
    }
    command.args(["--no-pager", "--no-ask-password"]).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(SYSTEMCTL_MAX, command.output()).await.map_err(|_| {
        Failure::new("DeadlineExceeded", format!("{shown} did not end within {} s", SYSTEMCTL_MAX.as_secs()))
    })?;
    let output = ended.map_err(|error| Failure::because(format!("could not run {shown}"), &error))?;
    if output.status.success() {
        return Ok(());
    }
    let text = printable(String::from_utf8_lossy(&output.stderr).trim());
    let text = &text[..text.floor_char_boundary(SHOWN_MAX)];
    Err(Failure::new("Failed", format!("{shown} failed ({}): {text}", output.status)))
}
