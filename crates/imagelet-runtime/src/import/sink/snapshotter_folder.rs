//! Checks that layers can be renamed into containerd's snapshots.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::Path,
};

use imagelet_core::ports::ForwardReason;

use crate::cri::SnapshotterPlace;

const PROBE: &str = "imagelet-probe";
const PROBES_MAX: usize = 5;

impl SnapshotterPlace {
    /// Tests whether a folder can be renamed from the staging folder. Creates the staging folder if it is absent.
    pub(crate) fn probe(&self) -> Result<(), ForwardReason> {
        let (folder, staging) = (self.folder(), self.staging());
        // These characters have a special meaning in the mount options of overlayfs.
        if folder.as_os_str().as_bytes().iter().any(|byte| b":,\\".contains(byte)) {
            let why = format!("overlayfs cannot mount below the image folder `{}`", folder.display());
            return Err(ForwardReason::RootUnreachable(why));
        }
        if !has_rights(rustix::process::geteuid().is_root(), &fs::read_to_string("/proc/self/uid_map")) {
            return Err(ForwardReason::Rights("import needs root in the initial user namespace".to_owned()));
        }
        let shown = staging.display();
        let failed = |error| ForwardReason::Staging(format!("cannot use the staging folder `{shown}`: {error}"));
        match DirBuilder::new().mode(0o700).create(&staging) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        // Tries again, because another process may probe concurrently with this folder. A crash leaves an empty folder.
        for _ in 0..PROBES_MAX {
            match try_rename(&staging.join(PROBE), &folder.join(PROBE)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    return Err(ForwardReason::Staging(format!(
                        "`{shown}` and `{}` are not on one mount: layers cannot be renamed from one to the other",
                        folder.display()
                    )));
                }
                tried => return tried.map_err(failed),
            }
        }
        Err(failed(io::Error::from(io::ErrorKind::NotFound)))
    }
}

fn try_rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::create_dir(from) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let renamed = fs::rename(from, to);
    match fs::remove_dir(if renamed.is_ok() { to } else { from }) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => renamed.and(Err(error)),
        _ => renamed,
    }
}

/// Whether the process is root in the initial user namespace, which may set any owner and overlayfs attribute.
fn has_rights(is_root: bool, uid_map: &io::Result<String>) -> bool {
    let is_whole = |map: &String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    // A kernel without user namespaces does not have the file `uid_map`.
    let is_initial = match uid_map {
        Ok(map) => is_whole(map),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    is_root && is_initial
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_overlayfs_cannot_mount_is_no_target() {
        for root in ["/a:b", "/a,b", "/a\\b"] {
            let place = SnapshotterPlace { root: root.into(), snapshotter: "overlayfs".into() };
            assert_eq!(place.probe().unwrap_err().code(), "root-unreachable", "{root}");
        }
    }

    #[test]
    fn the_rights_are_root_in_the_initial_user_namespace() {
        let map = |text: &str| Ok(text.to_owned());
        assert!(has_rights(true, &map("         0          0 4294967295\n")));
        assert!(has_rights(true, &Err(io::ErrorKind::NotFound.into())));
        for (is_root, uid_map) in [
            (false, map("0 0 4294967295\n")),
            (true, map("0 100000 65536\n")),
            (true, map("")),
            (true, Err(io::ErrorKind::PermissionDenied.into())),
        ] {
            assert!(!has_rights(is_root, &uid_map), "{uid_map:?}");
        }
    }

    #[test]
    fn a_probe_leaves_nothing_and_survives_what_one_that_crashed_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("io.containerd.snapshotter.v1.overlayfs");
        let place = SnapshotterPlace::of(&path).unwrap();
        assert_eq!(place.probe().unwrap_err().code(), "staging", "the snapshotter has no folder");
        fs::create_dir_all(path.join(PROBE)).unwrap();
        fs::create_dir(place.staging().join(PROBE)).unwrap();
        place.probe().unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count() + fs::read_dir(place.staging()).unwrap().count(), 0);
        fs::write(path.join(PROBE), "").unwrap();
        assert_eq!(place.probe().unwrap_err().code(), "staging", "a file is in the way");
    }
}
