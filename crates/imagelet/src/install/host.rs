//! Reads facts about a host for the plan: files, units, sockets of runtimes, and the flags of the running kubelet.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use imagelet_core::trusted_files;
use serde_json::{Map, Value};

use super::{
    CONFIGURATION, InstallArgs, KUBELET_CONFIG_DIR, KUBELET_CONFIG_NAME, KUBELET_UNIT_DROP_IN, PROGRAM, SERVICE_UNIT,
    SOCKET, SOCKET_UNIT,
    owned_file::{FileState, mode, of_path, read_bounded},
};
use imagelet_node::failure::Failure;

const RUNTIME_SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];
const PROGRAMS: [&str; 2] = ["/usr/local/bin/imagelet", "/usr/bin/imagelet"];
pub(super) const PACKAGED_UNITS: [&str; 2] =
    ["/usr/lib/systemd/system/imagelet.service", "/lib/systemd/system/imagelet.service"];
const STATE: &str = "/var/lib/imagelet";
const COMMAND_LINE_LENGTH_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Systemd {
    Running,
    /// The host is another root file system (`--root`): `install` can enable its units, but cannot start them.
    Offline,
    #[default]
    Absent,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kubelet {
    /// The absolute path in the flag `--config-dir`. `None`: no kubelet runs, or its flags contain no such path.
    pub(super) config_dir: Option<PathBuf>,
    pub(super) image_endpoint_flag: Option<String>,
}

/// The facts about a host that a plan needs. Paths are relative to the host's root: they do not begin with `--root`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostFacts {
    pub(super) files: BTreeMap<PathBuf, FileState>,
    pub(super) systemd: Systemd,
    pub(super) there: HostParts,
    pub(super) program: PathBuf,
    pub(super) configuration: HostConfiguration,
    pub(super) runtimes: Vec<String>,
    pub(super) kubelet: Kubelet,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HostParts {
    pub(super) package: bool,
    pub(super) state: bool,
    /// Whether the daemon's socket exists as a file. It may exist although no process listens.
    pub(super) socket: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostConfiguration {
    pub(super) mode: u32,
    /// The runtime's endpoint in a configuration file that `install` keeps. `None`: there is no such file or endpoint.
    pub(super) endpoint: Option<String>,
    pub(super) base: Map<String, Value>,
}

impl HostFacts {
    pub(super) fn state(&self, path: &Path) -> FileState {
        self.files.get(path).cloned().unwrap_or_default()
    }
}

pub(super) fn gather(
    request: &InstallArgs,
    root: &Path,
    base: Map<String, Value>,
    endpoint_of: impl FnOnce(&Path) -> Result<Option<String>, Failure>,
) -> Result<HostFacts, Failure> {
    let is_live = root == Path::new("/");
    let kubelet = if is_live { running_kubelet() } else { Kubelet::default() };
    let mut places = [CONFIGURATION, SERVICE_UNIT, SOCKET_UNIT, KUBELET_UNIT_DROP_IN].map(PathBuf::from).to_vec();
    let folders = [request.kubelet_config_dir.clone(), kubelet.config_dir.clone(), Some(KUBELET_CONFIG_DIR.into())];
    places.extend(folders.into_iter().flatten().map(|folder| folder.join(KUBELET_CONFIG_NAME)));
    let mut files = BTreeMap::new();
    for path in places {
        let place = below(root, &path)?;
        let state = FileState::of(&place).map_err(|error| of_path("read", &place, &error))?;
        files.insert(path, state);
    }
    let there = |path: &str| below(root, Path::new(path)).is_ok_and(|path| path.exists());
    let endpoint = match files.get(Path::new(CONFIGURATION)) {
        // Only an installation parses the file. An uninstallation must also work with an invalid file.
        Some(state) if state.is_kept() && request.role.is_some() => {
            endpoint_of(&below(root, Path::new(CONFIGURATION))?)?
        }
        _ => None,
    };
    let systemd = match is_live {
        true if Path::new("/run/systemd/system").is_dir() => Systemd::Running,
        true => Systemd::Absent,
        false => Systemd::Offline,
    };
    let runtimes = RUNTIME_SOCKETS.iter().filter(|path| is_live && is_socket(Path::new(path)));
    Ok(HostFacts {
        files,
        systemd,
        there: HostParts {
            package: PACKAGED_UNITS.iter().any(|path| there(path)),
            state: there(STATE),
            socket: is_live && is_socket(Path::new(SOCKET)),
        },
        program: if request.role.is_some() { program(request, root, is_live)? } else { PathBuf::new() },
        configuration: HostConfiguration { mode: mode(&below(root, Path::new(CONFIGURATION))?), endpoint, base },
        runtimes: runtimes.map(|path| format!("unix://{path}")).collect(),
        kubelet,
    })
}

/// Appends `path` to `root`. In another root than `/`, a symbolic link is an error: it may lead to a file of this host.
pub(super) fn below(root: &Path, path: &Path) -> Result<PathBuf, Failure> {
    let mut place = root.to_owned();
    for part in path.components().skip(1) {
        place.push(part);
        if root != Path::new("/") && place.is_symlink() {
            let message = format!("`{}` is a symbolic link, and may lead out of `{}`", place.display(), root.display());
            return Err(Failure::invalid(message));
        }
    }
    Ok(place)
}

fn program(request: &InstallArgs, root: &Path, is_live: bool) -> Result<PathBuf, Failure> {
    if !is_live {
        let found = PROGRAMS.iter().find(|path| below(root, Path::new(path)).is_ok_and(|path| path.is_file()));
        return found.map(PathBuf::from).ok_or_else(|| {
            Failure::new("NotFound", format!("`{}` has no program imagelet", root.display()))
                .or_hint("copy it to usr/local/bin/imagelet there")
        });
    }
    let program = if request.is_from_pod { PROGRAM.into() } else { std::env::current_exe()? };
    // systemd runs the program as root, so no other user may be able to change it.
    trusted_files::open(&program)
        .map_err(|error| Failure::because(format!("`{}` may not be a service", program.display()), &error))?;
    Ok(program)
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

fn running_kubelet() -> Kubelet {
    let mut processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let line = |process: fs::DirEntry| read_bounded(&process.path().join("cmdline"), COMMAND_LINE_LENGTH_MAX).ok();
    processes.find_map(|process| kubelet_of(&line(process)?)).unwrap_or_default()
}

/// Parses a command line of `/proc`. Like Go, accepts flags with one or two dashes. `None`: the program is no kubelet.
fn kubelet_of(line: &[u8]) -> Option<Kubelet> {
    let line = String::from_utf8_lossy(line);
    let mut arguments = line.split('\0');
    if Path::new(arguments.next()?).file_name()? != "kubelet" {
        return None;
    }
    let mut kubelet = Kubelet::default();
    while let Some(argument) = arguments.next() {
        let flag = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')).unwrap_or_default();
        let (name, inline) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let mut value = || inline.or_else(|| arguments.next()).unwrap_or_default().to_owned();
        match name {
            "config-dir" => {
                kubelet.config_dir = Some(PathBuf::from(value()))
                    .filter(|path| path.is_absolute() && !path.to_string_lossy().contains('\u{fffd}'));
            }
            "image-service-endpoint" => kubelet.image_endpoint_flag = Some(value()).filter(|value| !value.is_empty()),
            _ => {}
        }
    }
    Some(kubelet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_a_kubelet_are_read_as_go_reads_them() {
        let of = |config_dir: Option<&str>, flag: Option<&str>| {
            Some(Kubelet { config_dir: config_dir.map(PathBuf::from), image_endpoint_flag: flag.map(str::to_owned) })
        };
        for (line, expected) in [
            ("/usr/bin/kubelet\0--config-dir=/etc/k\0", of(Some("/etc/k"), None)),
            ("kubelet\0-config-dir\0/etc/k\0--v=2\0", of(Some("/etc/k"), None)),
            ("kubelet\0--config-dir=/a\0--config-dir=/b\0", of(Some("/b"), None)),
            ("kubelet\0--image-service-endpoint\0unix:///x\0", of(None, Some("unix:///x"))),
            ("kubelet\0--config-dir\0", of(None, None)),
            ("kubelet\0--config-dir=relative\0", of(None, None)),
            ("kubelet\0--config=/etc/kubelet.yaml\0", of(None, None)),
            ("/usr/bin/kubelet-wrapper\0--config-dir=/etc/k\0", None),
            ("sh\0-c\0kubelet --config-dir=/x\0", None),
            ("", None),
        ] {
            assert_eq!(kubelet_of(line.as_bytes()), expected, "{line:?}");
        }
    }

    #[test]
    fn a_link_in_another_root_is_refused_and_one_of_this_host_is_not() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("etc")).unwrap();
        let refused = below(root.path(), Path::new(CONFIGURATION)).unwrap_err();
        assert!(refused.message.contains("symbolic link"), "{refused:?}");
        assert_eq!(below(root.path(), Path::new("/usr/x")).unwrap(), root.path().join("usr/x"));
        assert_eq!(below(Path::new("/"), Path::new(CONFIGURATION)).unwrap(), Path::new(CONFIGURATION));
    }
}
