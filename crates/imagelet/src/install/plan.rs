//! Plans an installation or uninstallation: a pure function from the request and facts about the host to the steps.

use std::path::{Path, PathBuf};

use imagelet_core::trusted_files;
use imagelet_node::failure::Failure;

use super::{
    CONFIGURATION, CONFIGURATION_FOLDER, InstallArgs, KUBELET_CONFIG_DIR, KUBELET_CONFIG_NAME, KUBELET_UNIT_DROP_IN,
    KUBELET_UNIT_FOLDER, Role, SERVICE_UNIT, SOCKET, SOCKET_FOLDER, SOCKET_UNIT, contents,
    host::{HostFacts, Systemd},
    owned_file::{FileState, PRIVATE, PUBLIC},
};

/// Paths are relative to the host's root: they do not begin with `--root`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    ProbeRuntime(String),
    Write {
        path: PathBuf,
        content: String,
    },
    /// Sets mode 0600 on an existing file that every user can read now.
    Protect(&'static str),
    Keep {
        path: PathBuf,
        why: &'static str,
    },
    Remove(PathBuf),
    RemoveFolder(&'static str),
    /// Checks whether the daemon accepts this text as its configuration. `None`: checks the existing file.
    CheckConfiguration(Option<String>),
    Systemctl(&'static [&'static str]),
    AwaitDaemon,
    Advise(String),
}

/// Returns the steps in the order of execution. Fails if the administrator must first change the host or the command.
pub(super) fn plan(request: &InstallArgs, host: &HostFacts) -> Result<Vec<Step>, Failure> {
    let Some(role) = request.role else { return Ok(uninstall(request, host)) };
    if host.systemd == Systemd::Absent {
        let hint = "`--root DIR` prepares another root file system; `imagelet help operations` has other ways to start the daemon";
        return Err(refused("systemd does not run here".into(), hint));
    }
    let is_live = host.systemd == Systemd::Running;
    let mut steps = Vec::new();
    let (endpoint, configuration) = configuration(request, host)?;
    if is_live {
        steps.push(Step::ProbeRuntime(endpoint));
    }
    // The text is checked before it is written, so that the daemon never restarts with an invalid configuration.
    let content = match &configuration {
        Step::Write { content, .. } => Some(content.clone()),
        _ => None,
    };
    let is_ours = host.state(Path::new(CONFIGURATION)) != FileState::Foreign;
    let is_exposed = content.is_none() && is_ours && trusted_files::is_public(host.configuration.mode);
    steps.extend([Step::CheckConfiguration(content), configuration]);
    steps.extend(is_exposed.then_some(Step::Protect(CONFIGURATION)));
    let units =
        [(SOCKET_UNIT, contents::SOCKET_UNIT.to_owned()), (SERVICE_UNIT, contents::service_unit(&host.program))];
    for (path, content) in units {
        if host.there.package {
            steps.push(Step::Keep { path: path.into(), why: "the package has the unit" });
        } else {
            steps.push(owned(host, Path::new(path), content)?);
        }
    }
    steps.extend(reload(is_live));
    steps.push(Step::Systemctl(&["enable", "imagelet.socket", "imagelet.service"]));
    if is_live {
        // Either verb also starts the socket. A daemon that runs with old files is restarted.
        let is_kept = request.keep_running && !has_writes(&steps);
        let start: &[&str] = if is_kept { &["start", "imagelet.service"] } else { &["restart", "imagelet.service"] };
        steps.push(Step::Systemctl(start));
        steps.push(Step::AwaitDaemon);
    }
    match role {
        Role::Node => {
            steps.extend(without_kubelet(request, host, is_live));
            steps.push(Step::Advise(
                "run one collector on the node: set the kubelet's thresholds above imagelet's (`imagelet help beside`)"
                    .into(),
            ));
        }
        Role::Between => steps.extend(between(request, host, is_live)?),
    }
    Ok(steps)
}

fn refused(message: String, hint: &str) -> Failure {
    Failure::new("Failed", message).or_hint(hint)
}

pub(super) fn mode_of(path: &Path) -> u32 {
    if path == Path::new(CONFIGURATION) { PRIVATE } else { PUBLIC }
}

fn has_writes(steps: &[Step]) -> bool {
    steps.iter().any(|step| matches!(step, Step::Write { .. }))
}

fn configuration(request: &InstallArgs, host: &HostFacts) -> Result<(String, Step), Failure> {
    let path = Path::new(CONFIGURATION);
    let state = host.state(path);
    if state.is_kept() {
        let exists = |what: &str, hint: &str| refused(format!("`{CONFIGURATION}` exists and {what}"), hint);
        let configured = host.configuration.endpoint.clone().ok_or_else(|| {
            exists("names no runtime", "set `imageService.cri.endpoint` in it, or move the file away")
        })?;
        if let Some(wanted) = request.runtime_endpoint.as_ref().filter(|wanted| **wanted != configured) {
            let other = format!("names the runtime `{configured}`, not `{wanted}`");
            return Err(exists(&other, "change the file, or leave `--runtime-endpoint` out"));
        }
        if request.node_name.is_some() || !host.configuration.base.is_empty() {
            let without = "is not changed: `--node-name` and `--base-configuration` would have no effect";
            return Err(exists(without, "set the keys in the file, or move it away"));
        }
        let why = if state == FileState::Foreign { "it was there before" } else { "it was changed since" };
        return Ok((configured, Step::Keep { path: path.into(), why }));
    }
    let endpoint = match (&request.runtime_endpoint, &host.runtimes[..]) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, [one]) => one.clone(),
        (None, []) => {
            let hint = "name it: `--runtime-endpoint unix:///run/containerd/containerd.sock`";
            return Err(refused("no socket of a runtime was found".into(), hint));
        }
        (None, several) => {
            let message = format!("{} are there", several.join(" and "));
            return Err(refused(message, "choose one with `--runtime-endpoint`"));
        }
    };
    let content = contents::configuration(&endpoint, request, &host.configuration.base);
    Ok((endpoint, owned(host, path, content)?))
}

/// The steps that connect the kubelet to the daemon. They must run after the daemon has answered.
fn between(request: &InstallArgs, host: &HostFacts, is_live: bool) -> Result<Vec<Step>, Failure> {
    let mut steps = vec![owned(host, Path::new(KUBELET_UNIT_DROP_IN), contents::KUBELET_UNIT.into())?];
    let folder = kubelet_config_dir(request, host);
    steps.push(owned(host, &folder.join(KUBELET_CONFIG_NAME), contents::kubelet_configuration())?);
    steps.extend(reload(is_live));
    let restarts = is_live && (!request.keep_running || has_writes(&steps));
    let kubelet = &host.kubelet;
    if let Some(flag) = kubelet.image_endpoint_flag.as_ref().filter(|flag| !flag.ends_with(SOCKET)) {
        steps.push(Step::Advise(format!(
            "the kubelet runs with `--image-service-endpoint={flag}`, which wins over its configuration: remove the flag"
        )));
    }
    if kubelet.config_dir.as_ref() == Some(&folder) {
        // `install` may restart the kubelet, because pods keep running meanwhile.
        steps.extend(restarts.then_some(Step::Systemctl(&["try-restart", "kubelet.service"])));
    } else {
        let folder = folder.display();
        steps.push(Step::Advise(format!(
            "start the kubelet with `--config-dir={folder}` (kubeadm: KUBELET_EXTRA_ARGS in /etc/default/kubelet); \
             without it the drop-in has no effect"
        )));
    }
    steps.push(Step::Advise(
        "set the kubelet's image thresholds above imagelet's: its own collection still runs (`imagelet help between`)"
            .into(),
    ));
    Ok(steps)
}

fn without_kubelet(request: &InstallArgs, host: &HostFacts, is_live: bool) -> Vec<Step> {
    let places = [PathBuf::from(KUBELET_UNIT_DROP_IN), kubelet_config_dir(request, host).join(KUBELET_CONFIG_NAME)];
    let mut steps: Vec<Step> = places.into_iter().filter_map(|path| removal(host, path)).collect();
    // Only the folder of the unit drop-in is removed. The kubelet's `--config-dir` may name the other drop-in's folder.
    if steps.contains(&Step::Remove(KUBELET_UNIT_DROP_IN.into())) {
        steps.push(Step::RemoveFolder(KUBELET_UNIT_FOLDER));
    }
    if is_live && steps.iter().any(|step| matches!(step, Step::Remove(_))) {
        steps.extend(reload(true));
        // The kubelet uses imagelet's socket until it is restarted. Its pods keep running.
        steps.push(Step::Systemctl(&["try-restart", "kubelet.service"]));
    }
    steps
}

/// The kubelet's steps come first: a kubelet that is configured for imagelet's socket cannot start without the socket.
fn uninstall(request: &InstallArgs, host: &HostFacts) -> Vec<Step> {
    let is_live = host.systemd == Systemd::Running;
    let mut steps = without_kubelet(request, host, is_live);
    let units = [SERVICE_UNIT, SOCKET_UNIT].map(PathBuf::from);
    let are_ours = units.iter().any(|path| matches!(host.state(path), FileState::Unchanged(_) | FileState::Changed));
    let disable: &[&str] = match host.systemd {
        Systemd::Running => &["disable", "--now", "imagelet.service", "imagelet.socket"],
        Systemd::Offline | Systemd::Absent => &["disable", "imagelet.service", "imagelet.socket"],
    };
    if are_ours && !host.there.package && host.systemd != Systemd::Absent {
        steps.push(Step::Systemctl(disable));
    }
    steps.extend(units.into_iter().filter_map(|path| removal(host, path)));
    if are_ours {
        steps.extend(reload(is_live));
    }
    if are_ours && !host.there.package && host.there.socket {
        // systemd closes the socket but does not remove its file.
        steps.extend([Step::Remove(SOCKET.into()), Step::RemoveFolder(SOCKET_FOLDER)]);
    }
    if let Some(step) = removal(host, CONFIGURATION.into()) {
        let folder = matches!(step, Step::Remove(_)).then_some(Step::RemoveFolder(CONFIGURATION_FOLDER));
        steps.push(step);
        steps.extend(folder);
    }
    if host.there.package {
        steps.push(Step::Advise("the package stays: `apt remove imagelet` removes it".into()));
    }
    if host.there.state {
        steps.push(Step::Advise("/var/lib/imagelet stays: pull records and images of imagelet's own store".into()));
    }
    steps
}

fn kubelet_config_dir(request: &InstallArgs, host: &HostFacts) -> PathBuf {
    let named = request.kubelet_config_dir.as_ref().or(host.kubelet.config_dir.as_ref());
    named.cloned().unwrap_or_else(|| KUBELET_CONFIG_DIR.into())
}

fn reload(is_live: bool) -> Option<Step> {
    is_live.then_some(Step::Systemctl(&["daemon-reload"]))
}

fn owned(host: &HostFacts, path: &Path, content: String) -> Result<Step, Failure> {
    match host.state(path) {
        FileState::Unchanged(there) if there == content => Ok(Step::Keep { path: path.into(), why: "it is as wanted" }),
        FileState::Absent | FileState::Unchanged(_) => Ok(Step::Write { path: path.into(), content }),
        FileState::Changed => Ok(Step::Keep { path: path.into(), why: "it was changed since" }),
        FileState::Foreign => Err(refused(
            format!("`{}` exists and was not written by `imagelet install`", path.display()),
            "move it away, or set it up by hand: `imagelet help operations`",
        )),
    }
}

fn removal(host: &HostFacts, path: PathBuf) -> Option<Step> {
    match host.state(&path) {
        FileState::Absent => None,
        FileState::Unchanged(_) => Some(Step::Remove(path)),
        FileState::Changed => Some(Step::Keep { path, why: "it was changed since" }),
        FileState::Foreign => Some(Step::Keep { path, why: "`imagelet install` did not write it" }),
    }
}
