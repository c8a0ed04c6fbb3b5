//! Moves a layer into a snapshot: checks containerd's mount and renames the layer's folder.

use std::{
    collections::HashSet,
    fs, io,
    path::{Component, Path, PathBuf},
};

use imagelet_oci::{
    StagedTree,
    layer_folders::{LayerFolders, copy_folder_metadata, effective_folder, open_folder},
};
use rustix::{
    fd::OwnedFd,
    fs::{Gid, Mode, Uid},
};

use crate::containerd::v1::types::Mount;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SnapshotFolders {
    upper: PathBuf,
    /// The folders of the layers below, the topmost first.
    lower: Vec<PathBuf>,
}

impl SnapshotFolders {
    /// Reads the folders from a snapshot's mounts. All folders must be in the snapshotter's folder.
    pub(crate) fn of_mounts(mounts: &[Mount], snapshotter: &Path) -> Result<Self, String> {
        let [mount] = mounts else { return Err(format!("it is {} mounts, not one", mounts.len())) };
        let inside = |path: &str| {
            let path = Path::new(path);
            let is_inside =
                path.starts_with(snapshotter) && !path.components().any(|part| part == Component::ParentDir);
            is_inside.then(|| path.to_owned()).ok_or_else(|| format!("`{}` is outside", path.display()))
        };
        let option = |name: &str| mount.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
        match mount.r#type.as_str() {
            "bind" if mount.options.iter().any(|option| option == "rw") => {
                Ok(Self { upper: inside(&mount.source)?, lower: Vec::new() })
            }
            "overlay" if mount.options.iter().any(|option| option == "userxattr") => {
                Err("its overlay is of a user namespace".to_owned())
            }
            "overlay" => match (option("upperdir"), option("lowerdir")) {
                (Some(upper), Some(lower)) => {
                    Ok(Self { upper: inside(upper)?, lower: lower.split(':').map(inside).collect::<Result<_, _>>()? })
                }
                _ => Err("its overlay cannot be written".to_owned()),
            },
            "bind" => Err("it is read-only".to_owned()),
            other => Err(format!("it is mounted as `{}`", other.escape_debug())),
        }
    }

    pub(crate) fn take(&self, tree: &StagedTree) -> io::Result<()> {
        let named: HashSet<&[u8]> = tree.implicit.iter().map(Vec::as_slice).collect();
        if named.contains(b"".as_slice()) {
            // The layer's archive has no entry for the root folder, so the root folder keeps containerd's metadata.
            copy_folder_metadata(&open_folder(&self.upper)?, &open_folder(&tree.folder)?)?;
        }
        let folders = named.into_iter().filter(|path| !path.is_empty()).collect::<Vec<_>>();
        if !folders.is_empty() {
            let mut layers = vec![LayerFolders::open(&tree.folder, tree.implicit.iter().cloned().collect())?];
            for lower in &self.lower {
                layers.push(LayerFolders::open(lower, HashSet::new())?);
            }
            for path in folders {
                let absent = || io::Error::new(io::ErrorKind::NotFound, "the layer lacks a folder that it lists");
                let folder = effective_folder(&layers[..1], path)?.ok_or_else(absent)?;
                let source = effective_folder(&layers, path)?.ok_or_else(absent)?;
                if is_same(&source, &folder)? {
                    // No layer below has the folder, so the folder gets containerd's default owner and mode.
                    rustix::fs::fchown(&folder, Some(Uid::ROOT), Some(Gid::ROOT))?;
                    rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o755))?;
                } else {
                    copy_folder_metadata(&source, &folder)?;
                }
            }
        }
        fs::rename(&tree.folder, &self.upper)
    }
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Whether a layer has folders whose metadata comes from the layers below.
pub(crate) fn needs_lower(tree: &StagedTree) -> bool {
    tree.implicit.iter().any(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    const PLACE: &str = "/c/io.containerd.snapshotter.v1.overlayfs";

    fn mount(kind: &str, source: &str, options: &[&str]) -> Mount {
        Mount {
            r#type: kind.to_owned(),
            source: source.to_owned(),
            options: options.iter().map(ToString::to_string).collect(),
        }
    }

    fn read(mounts: &[Mount]) -> Result<SnapshotFolders, String> {
        SnapshotFolders::of_mounts(mounts, Path::new(PLACE))
    }

    #[test]
    fn one_bind_or_overlay_inside_the_snapshotter_takes_a_layer() {
        let fs = |number: u32| format!("{PLACE}/snapshots/{number}/fs");
        let bind = mount("bind", &fs(1), &["rw", "rbind"]);
        assert_eq!(read(&[bind]), Ok(SnapshotFolders { upper: fs(1).into(), lower: Vec::new() }));
        let lower = format!("lowerdir={}:{}", fs(2), fs(1));
        let upper = format!("upperdir={}", fs(3));
        let overlay = mount("overlay", "overlay", &["index=off", &format!("workdir={PLACE}/w"), &upper, &lower]);
        let folders = SnapshotFolders { upper: fs(3).into(), lower: vec![fs(2).into(), fs(1).into()] };
        assert_eq!(read(&[overlay]), Ok(folders));
    }

    #[test]
    fn every_other_answer_is_refused_with_its_reason() {
        let inside = format!("{PLACE}/snapshots/1/fs");
        let upper = format!("upperdir={inside}");
        let lower = format!("lowerdir={inside}");
        let good = mount("bind", &inside, &["rw"]);
        for (mounts, why) in [
            (vec![], "it is 0 mounts, not one"),
            (vec![good.clone(), good], "it is 2 mounts, not one"),
            (vec![mount("bind", &inside, &["ro", "rbind"])], "it is read-only"),
            (vec![mount("bind", "/etc", &["rw"])], "`/etc` is outside"),
            (vec![mount("bind", &format!("{PLACE}/../x"), &["rw"])], &format!("`{PLACE}/../x` is outside")),
            (vec![mount("bind", &format!("{PLACE}x"), &["rw"])], &format!("`{PLACE}x` is outside")),
            (vec![mount("overlay", "overlay", &[&lower])], "its overlay cannot be written"),
            (vec![mount("overlay", "overlay", &[&upper])], "its overlay cannot be written"),
            (vec![mount("overlay", "overlay", &[&upper, "lowerdir=/etc"])], "`/etc` is outside"),
            (vec![mount("overlay", "overlay", &[&lower, "upperdir=/etc"])], "`/etc` is outside"),
            (vec![mount("overlay", "o", &[&upper, &lower, "userxattr"])], "its overlay is of a user namespace"),
            (vec![mount("ext4\n", "/dev/x", &["rw"])], "it is mounted as `ext4\\n`"),
        ] {
            assert_eq!(read(&mounts), Err(why.to_owned()), "{mounts:?}");
        }
    }

    fn folder(path: &Path, mode: u32, seconds: i64) {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }

    fn look(path: &Path) -> (u32, i64) {
        let metadata = fs::metadata(path).unwrap();
        (metadata.mode() & 0o7777, metadata.mtime())
    }

    #[test]
    fn folders_without_an_entry_look_like_those_below_and_the_root_like_the_snapshots() {
        let here = tempfile::tempdir().unwrap();
        let at = |path: &str| here.path().join(path);
        folder(&at("lowest/etc"), 0o700, 1);
        folder(&at("lowest/var/lib"), 0o711, 2);
        folder(&at("lowest/opt/app"), 0o750, 3);
        folder(&at("lower/etc"), 0o1777, 4);
        // A file ends the search, and so does a folder of the layer itself that hides all below.
        fs::create_dir_all(at("lower/opt")).unwrap();
        fs::write(at("lower/opt/app"), "").unwrap();
        for path in ["etc", "var/lib", "opt/app"] {
            folder(&at("staged").join(path), 0o755, 9);
        }
        // Metadata of an earlier base.
        folder(&at("staged/srv"), 0o711, 9);
        folder(&at("upper"), 0o705, 7);
        let implicit = ["", "etc", "var", "var/lib", "opt/app", "srv"].map(|path| path.as_bytes().to_vec()).to_vec();
        let tree = StagedTree { folder: at("staged"), implicit, blob: None };
        assert!(needs_lower(&tree));
        let folders = SnapshotFolders { upper: at("upper"), lower: vec![at("lower"), at("lowest")] };
        folders.take(&tree).unwrap();
        assert!(!at("staged").exists());
        assert_eq!(look(&at("upper")).0, 0o705);
        assert_eq!(look(&at("upper/etc")), (0o1777, 4), "the uppermost that has it");
        assert_eq!(look(&at("upper/var/lib")), (0o711, 2), "the lowest has it, too");
        assert_eq!(look(&at("upper/opt/app")), (0o755, 9), "hidden by a file");
        assert_eq!(look(&at("upper/srv")), (0o755, 9), "no layer below has it");
    }

    #[test]
    fn a_root_with_an_entry_keeps_its_own_metadata_and_a_full_snapshot_is_refused() {
        let here = tempfile::tempdir().unwrap();
        let at = |path: &str| here.path().join(path);
        folder(&at("staged"), 0o1777, 5);
        folder(&at("upper"), 0o755, 7);
        let tree = StagedTree { folder: at("staged"), implicit: Vec::new(), blob: None };
        assert!(!needs_lower(&tree));
        let folders = SnapshotFolders { upper: at("upper"), lower: Vec::new() };
        fs::write(at("upper/file"), "").unwrap();
        assert_eq!(folders.take(&tree).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
        fs::remove_file(at("upper/file")).unwrap();
        folders.take(&tree).unwrap();
        assert_eq!(look(&at("upper")), (0o1777, 5));
    }
}
