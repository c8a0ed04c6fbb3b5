//! What a container sees of an image: the merged tree as the snapshotter mounts it, entry by entry.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use imagelet_core::image::Digest;
use imagelet_runtime::containerd::{
    ContainerdClient,
    v1::{snapshots::PrepareSnapshotRequest, types::Mount},
};

use super::node::SNAPSHOTTER;
use crate::testbed::run;

/// Path below the root → what lies there. The root is the empty path.
pub(super) type Shown = BTreeMap<String, ShownEntry>;

/// All that a program can see of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShownEntry {
    /// Type and permissions.
    mode: u32,
    owner: (u32, u32),
    /// Bytes; of a folder its file system says what it likes.
    size: Option<u64>,
    device: u64,
    /// The digest of a file's bytes, the target of a link.
    content: String,
    modified: (i64, i64),
    xattrs: BTreeMap<String, Vec<u8>>,
    /// All names of the same file.
    links: BTreeSet<String>,
}

/// The names of an image's snapshots, lowest first.
pub(super) fn chain(diff_ids: &[String]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::new();
    for diff_id in diff_ids {
        let below = chain.last().map(|below| Digest::of(format!("{below} {diff_id}").as_bytes()).as_str().to_owned());
        chain.push(below.unwrap_or_else(|| diff_id.clone()));
    }
    chain
}

/// Mounts the layers below a snapshot and itself as a container gets them, and reads all of it.
pub(super) async fn shown(client: &ContainerdClient, root: &Path, top: &str) -> Shown {
    let key = format!("look-{top}");
    let request = PrepareSnapshotRequest {
        snapshotter: SNAPSHOTTER.into(),
        key: key.clone(),
        parent: top.to_owned(),
        ..PrepareSnapshotRequest::default()
    };
    let mounts = client.prepare(request).await.unwrap();
    let folders = root.join(format!("io.containerd.snapshotter.v1.{SNAPSHOTTER}/snapshots"));
    let shown = read_mounted(&folders, &lower_folders(&mounts, &folders));
    client.remove_snapshot(SNAPSHOTTER, &key).await.unwrap();
    shown
}

/// The folders of the layers, topmost first, each below the folder of all snapshots.
fn lower_folders(mounts: &[Mount], folders: &Path) -> Vec<PathBuf> {
    let [mount] = mounts else { panic!("not one mount: {mounts:?}") };
    let lower = mount.options.iter().find_map(|option| option.strip_prefix("lowerdir=")).expect("an overlay mount");
    lower.split(':').map(|folder| Path::new(folder).strip_prefix(folders).unwrap().to_owned()).collect()
}

fn read_mounted(folders: &Path, lower: &[PathBuf]) -> Shown {
    let target = crate::testbed::scratch();
    let mut mount = Command::new("mount");
    if let [only] = lower {
        mount.args(["--bind", "-o", "ro"]).arg(only);
    } else {
        // By relative paths: what a mount may be given in one page has no room for 60 long ones.
        let lower: Vec<&str> = lower.iter().map(|folder| folder.to_str().unwrap()).collect();
        mount.args(["-t", "overlay", "-o", &format!("ro,lowerdir={}", lower.join(":")), "overlay"]);
    }
    run(mount.arg(target.path()).current_dir(folders), "mount");
    let shown = std::panic::catch_unwind(|| read(target.path()));
    rustix::mount::unmount(target.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    shown.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What lies below a folder, and the folder itself.
fn read(root: &Path) -> Shown {
    let mut shown = Shown::new();
    let mut names: BTreeMap<(u64, u64), BTreeSet<String>> = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(path) = pending.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let mut entry = entry(&path, &stat);
        if stat.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            names.entry((stat.dev(), stat.ino())).or_default().insert(name.clone());
            entry.links.insert(format!("{} names", stat.nlink()));
        }
        shown.insert(name, entry);
    }
    for links in names.into_values().filter(|links| links.len() > 1) {
        for name in &links {
            shown.get_mut(name).expect("it was read").links.clone_from(&links);
        }
    }
    shown
}

fn entry(path: &Path, stat: &fs::Metadata) -> ShownEntry {
    let kind = stat.file_type();
    let content = if stat.is_file() {
        Digest::of(&fs::read(path).unwrap()).as_str().to_owned()
    } else if stat.is_symlink() {
        fs::read_link(path).unwrap().to_str().unwrap().to_owned()
    } else {
        String::new()
    };
    let is_device = kind.is_block_device() || kind.is_char_device();
    ShownEntry {
        mode: stat.mode(),
        owner: (stat.uid(), stat.gid()),
        size: (!stat.is_dir()).then_some(stat.len()),
        device: if is_device { stat.rdev() } else { 0 },
        content,
        modified: (stat.mtime(), stat.mtime_nsec()),
        xattrs: xattrs(path),
        links: BTreeSet::new(),
    }
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0_u8; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let name = String::from_utf8(name.to_vec()).unwrap();
            let mut value = vec![0_u8; 64 << 10];
            let length = rustix::fs::lgetxattr(path, name.as_str(), &mut value).unwrap();
            value.truncate(length);
            (name, value)
        })
        .collect()
}

/// A line for each entry that differs; the times of these folders do not count.
pub(super) fn differences(found: &Shown, expected: &Shown, timeless: &[String]) -> Vec<String> {
    let mut differences = Vec::new();
    for path in expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path))) {
        let [mut one, mut other] = [found, expected].map(|shown| shown.get(path).cloned());
        if timeless.contains(path) {
            for entry in [&mut one, &mut other].into_iter().flatten() {
                entry.modified = (0, 0);
            }
        }
        if one != other {
            differences.push(format!("{path:?}: expected {other:?}, found {one:?}"));
        }
    }
    differences
}

/// What is done to a tree.
type Change = fn(&Path);

#[test]
fn a_tree_that_differs_in_one_thing_is_found() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let folder = crate::testbed::scratch();
    let make = |name: &str| {
        let root = folder.path().join(name);
        fs::create_dir_all(root.join("d")).unwrap();
        fs::write(root.join("d/a"), "text").unwrap();
        fs::hard_link(root.join("d/a"), root.join("b")).unwrap();
        symlink("a", root.join("d/l")).unwrap();
        rustix::fs::lsetxattr(root.join("b"), "user.x", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        for path in ["d/a", "d/l", "d", ""] {
            let times = rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 2 },
                last_modification: rustix::fs::Timespec { tv_sec: 3, tv_nsec: 4 },
            };
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, root.join(path), &times, flags).unwrap();
        }
        root
    };
    let expected = read(&make("expected"));
    assert_eq!(differences(&read(&make("same")), &expected, &[]), Vec::<String>::new());
    let changes: [(&str, Change); 6] = [
        ("mode", |root| fs::set_permissions(root.join("b"), fs::Permissions::from_mode(0o4644)).unwrap()),
        ("owner", |root| std::os::unix::fs::lchown(root.join("d/l"), Some(7), None).unwrap()),
        ("time", |root| fs::File::open(root.join("d")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap()),
        ("xattr", |root| rustix::fs::lremovexattr(root.join("b"), "user.x").unwrap()),
        ("root", |root| fs::set_permissions(root, fs::Permissions::from_mode(0o700)).unwrap()),
        ("link", |root| {
            fs::copy(root.join("b"), root.join("c")).unwrap();
            fs::rename(root.join("c"), root.join("b")).unwrap();
        }),
    ];
    for (name, change) in changes {
        let root = make(name);
        change(&root);
        assert_ne!(differences(&read(&root), &expected, &[]), Vec::<String>::new(), "{name}");
    }
    let root = make("timeless");
    fs::File::open(root.join("d")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(differences(&read(&root), &expected, &["d".into()]), Vec::<String>::new());
}
