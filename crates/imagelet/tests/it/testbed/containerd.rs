//! containerd from Debian with its CRI plug-in: the versions that stories run on, and the settings that they want.

use std::{
    fmt, fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Part, Registry, require_root, wait_until};
use crate::program;

/// Where `make parts` unpacks the packages of the next Debian releases.
const PARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/parts");
/// The versions of these packages; a later one may be in their place.
const UNPACKED: [&str; 2] = ["1.7", "2.1"];
/// The first version whose pods mount images as volumes.
const IMAGE_VOLUMES: (u32, u32) = (2, 1);
/// The first version that mounts one folder of an image; earlier ones mount the whole image without a word.
const IMAGE_SUB_PATHS: (u32, u32) = (2, 2);

/// One version of containerd on this machine; its shim lies beside it or on the search path.
#[derive(Clone, Debug)]
pub(crate) struct ContainerdRelease {
    program: PathBuf,
    version: String,
}

impl ContainerdRelease {
    /// The machine's own package: 1.6.
    pub(crate) fn installed() -> Self {
        Self::of("containerd", "install the Debian package containerd")
    }

    /// All that a story runs on: 1.6, 1.7, 2.1, and the program that `IMAGELET_TEST_CONTAINERD` names.
    pub(crate) fn all() -> Vec<Self> {
        let unpacked = UNPACKED.map(|version| {
            let program = format!("{PARTS}/containerd-{version}/usr/bin/containerd");
            Self::of(program, "`make parts` unpacks it from Debian's mirror")
        });
        let named = std::env::var_os("IMAGELET_TEST_CONTAINERD");
        let named = named.map(|program| Self::of(program, "IMAGELET_TEST_CONTAINERD names a program"));
        std::iter::once(Self::installed()).chain(unpacked).chain(named).collect()
    }

    /// Whether its pods mount images as volumes.
    pub(crate) fn has_image_volumes(&self) -> bool {
        self.number() >= IMAGE_VOLUMES
    }

    /// Whether its pods mount one folder of an image.
    pub(crate) fn has_image_sub_paths(&self) -> bool {
        self.number() >= IMAGE_SUB_PATHS
    }

    fn of(program: impl Into<PathBuf>, hint: &str) -> Self {
        let program = program.into();
        let output = Command::new(&program)
            .arg("--version")
            .output()
            .unwrap_or_else(|error| panic!("cannot run `{}`: {error}; {hint}", program.display()));
        // `containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1`
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().nth(2).unwrap_or_else(|| panic!("{}: {text}", program.display()));
        Self { version: version.to_owned(), program }
    }

    /// Major and minor number.
    pub(crate) fn number(&self) -> (u32, u32) {
        let mut numbers = self.version.trim_start_matches('v').split('.').map(|number| number.parse().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => (major, minor),
            _ => panic!("containerd has no version number: {}", self.version),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // The shim of a version is looked up on the search path first.
        if let Some(folder) = self.program.parent().filter(|folder| folder.is_absolute()) {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(folders).unwrap());
        }
        command
    }
}

impl fmt::Display for ContainerdRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "containerd {}", self.version)
    }
}

/// What a containerd is started with.
#[derive(Clone, Debug)]
pub(crate) struct ContainerdSetup {
    release: ContainerdRelease,
    pause: String,
    settings: String,
}

impl ContainerdSetup {
    /// With containerd's own settings for registries: those on loopback are asked over plain HTTP. Pods take the image
    /// `pause`, which must be served before one runs.
    pub(crate) fn new(release: &ContainerdRelease, pause: &str) -> Self {
        Self { release: release.clone(), pause: pause.to_owned(), settings: String::new() }
    }

    /// With this snapshotter.
    pub(crate) fn snapshotter(self, name: &str) -> Self {
        // containerd 2 reads the rest of the older table, and not this key. Its transfer service unpacks for overlayfs alone.
        let table = if self.release.number() >= (2, 0) {
            "[plugins.\"io.containerd.cri.v1.images\"]\n  use_local_image_pull = true\n"
        } else {
            "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n"
        };
        self.settings(&format!("{table}  snapshotter = \"{name}\"\n"))
    }

    /// With these tables of the configuration, in the form of version 2.
    pub(crate) fn settings(mut self, tables: &str) -> Self {
        self.settings.push_str(tables);
        self
    }

    /// Starts it below `parent`.
    pub(crate) fn start(self, parent: &Path) -> Containerd {
        require_root("containerd");
        let folder = tempfile::Builder::new().prefix("ctd-").tempdir_in(parent).unwrap();
        let (root, pause) = (folder.path().display(), &self.pause);
        let config = format!(
            r#"version = 2
root = "{root}/root"
state = "{root}/state"
[grpc]
  address = "{root}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{pause}"
{}"#,
            self.settings
        );
        fs::write(folder.path().join("config.toml"), config).unwrap();
        let part = run(&self.release, folder.path());
        Containerd { part, release: self.release, folder }
    }
}

/// Starts it over what a folder has, and waits until its CRI plug-in answers, which it does after the socket.
fn run(release: &ContainerdRelease, folder: &Path) -> Part {
    let socket = folder.join("containerd.sock");
    let mut command = release.command();
    command.arg("-c").arg(folder.join("config.toml"));
    let mut part = Part::start(&mut command, "containerd", folder.join("containerd.log"));
    wait_until("containerd", || {
        assert_eq!(part.ended(), None, "{release} ended:\n{}", part.log());
        UnixStream::connect(&socket).is_ok() && is_initialized(&socket)
    });
    part
}

fn is_initialized(socket: &Path) -> bool {
    let outcome = program::run(program::program().arg("--endpoint").arg(socket).arg("ls"));
    !outcome.stderr.contains("server is not initialized yet")
}

/// A running containerd.
#[derive(Debug)]
pub(crate) struct Containerd {
    part: Part,
    release: ContainerdRelease,
    folder: tempfile::TempDir,
}

impl Containerd {
    /// The installed one below `parent`, with the registry as a mirror; `registry` must serve `pause:3.9` before a pod runs.
    pub(crate) fn start(parent: &Path, registry: &Registry) -> Self {
        let address = registry.address();
        let mirror = format!(
            "[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"{address}\"]\n  endpoint = [\"http://{address}\"]\n"
        );
        ContainerdSetup::new(&ContainerdRelease::installed(), &format!("{address}/pause:3.9"))
            .settings(&mirror)
            .start(parent)
    }

    /// What it wrote to its log so far.
    pub(crate) fn log(&self) -> String {
        self.part.log()
    }

    /// Ends it the hard way.
    pub(crate) fn kill(&mut self) {
        self.part.kill();
    }

    /// Starts it again over what it left, after [`Self::kill`].
    pub(crate) fn restart(&mut self) {
        self.part = run(&self.release, self.folder.path());
    }

    /// The folder of its images and snapshots.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Its socket as imagelet wants it.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}/containerd.sock", self.folder.path().display())
    }
}

impl Containerd {
    /// Ends the pods that a failed story has left: they would hold the files that they inherited, such as locks.
    fn end_pods(&self) {
        let folder = self.folder.path().to_str().expect("temporary directories have plain names");
        for process in fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
            // A shim is started with the address of its containerd.
            let command = fs::read(process.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command);
            let Some(shim) = process.file_name().and_then(|name| name.to_str()) else { continue };
            if command.contains("containerd-shim") && command.contains(folder) {
                let children = fs::read_to_string(process.join(format!("task/{shim}/children"))).unwrap_or_default();
                for id in children.split_whitespace().chain([shim]) {
                    let id = id.parse().ok().and_then(rustix::process::Pid::from_raw).expect("the id of a process");
                    // An error says that it ended before.
                    let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
                }
            }
        }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.end_pods();
        // What pods left mounted would keep the directory from going.
        let table = super::mount_table();
        let ours = table.lines().filter_map(|line| line.split(' ').nth(4));
        let mut ours: Vec<&str> = ours.filter(|mount| Path::new(mount).starts_with(self.folder.path())).collect();
        ours.sort_by_key(|mount| std::cmp::Reverse(mount.len()));
        for mount in ours {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
fn stories_run_on_more_than_one_version_of_containerd() {
    let numbers: Vec<(u32, u32)> = ContainerdRelease::all().iter().take(3).map(ContainerdRelease::number).collect();
    assert!(numbers[0] >= (1, 6) && numbers.is_sorted_by(|older, newer| older < newer), "{numbers:?}");
    assert!(numbers[1] < IMAGE_VOLUMES && numbers[2] >= IMAGE_VOLUMES, "{numbers:?}");
}
