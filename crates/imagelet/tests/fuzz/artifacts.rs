//! Artifacts: manifests, whose accepted names are safe, and archives, whose members stay in the artifact.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use imagelet_core::error::RuntimeErrorKind;
use imagelet_oci::fuzzing::{UnpackForm, artifact};
use rustix::fs::FileType;

use super::{
    archive::{Site, is_io},
    assert_short_message, blocks,
    disk::Nodes,
    fingerprint,
    mutation::{self, Dice},
};

const BUFFER: usize = 4096;
const LINKS_MAX: usize = 64;
const FOLDERS: [&str; 3] = ["", "d", "d/e"];
const WORDS: [&[u8]; 16] = [
    b"\"mediaType\":\"application/vnd.cncf.model.weight.v1.tar\",",
    b"\"mediaType\":\"application/vnd.cnai.model.doc.v1.tar+gzip\",",
    b"\"mediaType\":\"application/vnd.oci.image.config.v1+json\",",
    b"\"artifactType\":\"application/vnd.cnai.model.layer.v1.tar\",",
    b"\"org.opencontainers.image.title\":\"d\",",
    b"\"org.opencontainers.image.title\":\"\",",
    b"\"org.cncf.model.filepath\":\"d/e\",",
    b"\"org.cnai.model.filepath\":\"..\",",
    b"\"io.deis.oras.content.unpack\":\"true\",",
    b"\"io.deis.oras.content.digest\":\"sha256:0\",",
    b"\"annotations\":null,",
    b"\"size\":274877906945,",
    b"../",
    b"/",
    b".wh.",
    b"\\u0000",
];

fn is_manifest(bytes: &[u8]) -> bool {
    bytes.starts_with(b"{")
}

/// Reads a manifest, or unpacks an archive.
pub(crate) fn check(bytes: &[u8], folder: &Path) {
    if is_manifest(bytes) {
        return check_manifest(bytes);
    }
    let site = Site::new(folder);
    let number = usize::try_from(fingerprint(bytes) % FOLDERS.len() as u64).expect("a small number");
    let below = FOLDERS[number];
    let form = UnpackForm { as_root: rustix::process::geteuid().is_root(), is_small: true, folder: Some(below) };
    let result = site.within(bytes, form, BUFFER, |result, nodes| match result {
        Ok(_) => assert_members(nodes, below),
        Err(error) => assert_short_message(&**error),
    });
    if let Err(error) = result {
        assert!(!is_io(&*error), "the kernel had to refuse: {error:?}");
    }
}

fn check_manifest(bytes: &[u8]) {
    let files = match artifact(bytes) {
        Ok(files) => files.unwrap_or_default(),
        Err(error) => {
            assert_short_message(&error);
            assert!(matches!(error.kind(), RuntimeErrorKind::Corrupt | RuntimeErrorKind::Unacceptable), "{error:?}");
            return;
        }
    };
    assert_eq!(artifact(bytes).expect("read twice").unwrap_or_default(), files);
    let mut keys = BTreeMap::new();
    for (path, key, is_archive) in &files {
        // Only an archive is without a name: its members have their own.
        let is_safe = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255 && !part.starts_with(".wh.");
        let is_bounded = path.len() <= 1024 && path.split('/').count() <= 16 && !path.contains(char::is_control);
        assert!((*is_archive && path.is_empty()) || (is_bounded && path.split('/').all(is_safe)), "{path:?}");
        if !path.is_empty() {
            assert_eq!(keys.entry(path).or_insert(key), &key, "{path:?} is that of two blobs");
        }
    }
    let plain: BTreeSet<&str> =
        files.iter().filter(|(_, _, is_archive)| !is_archive).map(|(path, ..)| &**path).collect();
    for (path, ..) in &files {
        let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
        assert!(folders.into_iter().all(|folder| !plain.contains(folder)), "{path:?} is below a file");
    }
}

fn assert_members(nodes: &Nodes, below: &str) {
    for (path, node) in nodes {
        let shown = String::from_utf8_lossy(path);
        let expected: &[u32] = match node.kind {
            FileType::Directory => &[0o755],
            FileType::RegularFile => &[0o644, 0o755],
            FileType::Symlink => &[0o777],
            kind => panic!("`{shown}` is a {kind:?}"),
        };
        assert!(expected.contains(&node.stat.mode), "`{shown}` has mode {:o}", node.stat.mode);
        if node.kind == FileType::RegularFile {
            assert_eq!(node.stat.mtime, (0, 0), "`{shown}`");
        }
        let is_roots = node.stat.owner == (0, 0) || !rustix::process::geteuid().is_root();
        assert!(is_roots, "`{shown}` is of {:?}", node.stat.owner);
        assert!(!node.is_whiteout() && node.xattrs.is_empty(), "`{shown}` has {:?}", node.xattrs);
        let is_in_folder =
            below.is_empty() || path.starts_with(format!("{below}/").as_bytes()) || node.kind == FileType::Directory;
        assert!(is_in_folder, "`{shown}` is outside `{below}`");
        if node.kind == FileType::Symlink {
            assert!(!leaves(nodes, path), "`{shown}` leaves the artifact");
        }
    }
}

/// Whether the way from a link to its end goes above the root, as the kernel would walk it.
fn leaves(nodes: &Nodes, link: &[u8]) -> bool {
    let mut here: Vec<&[u8]> = Vec::new();
    let mut ahead: Vec<&[u8]> = link.rsplit(|&byte| byte == b'/').collect();
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        match part {
            b"" | b"." => continue,
            b".." if here.pop().is_none() => return true,
            b".." => continue,
            part => here.push(part),
        }
        let Some(node) = nodes.get(&here.join(&b'/')) else { continue };
        if node.kind == FileType::Symlink {
            links += 1;
            let target = node.content.as_deref().expect("a link has a target");
            if target.starts_with(b"/") {
                return true;
            }
            if links > LINKS_MAX {
                return false;
            }
            here.pop();
            ahead.extend(target.rsplit(|&byte| byte == b'/'));
        }
    }
    false
}

pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    if is_manifest(bytes) {
        mutation::change(bytes, dice, &WORDS);
    } else {
        blocks::mutate(bytes, dice);
    }
}

pub(crate) fn repair(bytes: &mut [u8]) {
    if !is_manifest(bytes) {
        blocks::repair(bytes);
    }
}
