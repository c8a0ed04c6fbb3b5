//! Whole archives: whatever they say, the host stays as it was, and the report is what stands on disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs::{self, File},
    io::{BufReader, Read as _},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use super::{
    assert_short_message,
    disk::{self, Nodes},
    file_manifest::Recorder,
    fingerprint,
};
use imagelet_oci::fuzzing::{SMALL_BYTES_MAX, SMALL_ENTRIES_MAX, UnpackForm, Unpacked, unpack};

/// The buffer a pull has.
const BUFFER: usize = 256 << 10;
const BLOCK: usize = 512;
const SMALL: UnpackForm<'static> = UnpackForm { as_root: false, is_small: true, folder: None };

/// Unpacks as a pull by root does and as one by anybody else does; compares what both can have.
pub(crate) fn check(bytes: &[u8], folder: &Path) {
    let site = Site::new(folder);
    let choice = fingerprint(bytes);
    let first = site.unpack(bytes, rustix::process::geteuid().is_root(), BUFFER);
    // A small and odd buffer puts headers and data across its ends.
    let buffer = 1 + usize::try_from(choice % 1000).expect("a small number");
    let second = site.unpack(bytes, false, buffer);
    if let (Ok(first), Ok(second)) = (first, second) {
        let numbers = |report: &Unpacked| (report.entries, report.bytes, report.root_opaque);
        assert_eq!(numbers(&first), numbers(&second), "root and others read the same archive");
        // A device that is not made leaves no name that a later entry would replace or run into.
        if second.ownership.iter().all(|(_, is_device)| !is_device) {
            assert_eq!(first.implicit_directories, second.implicit_directories);
        }
    }
}

type Outcome = Result<Unpacked, Box<dyn Error>>;

/// A layer's directory between things that must not be touched.
pub(crate) struct Site {
    layer: PathBuf,
    host: PathBuf,
    home: PathBuf,
}

impl Site {
    pub(crate) fn new(folder: &Path) -> Self {
        let site = Self { layer: folder.join("layer"), host: folder.join("host"), home: folder.to_owned() };
        if !site.host.exists() {
            fs::create_dir_all(site.host.join("dir")).expect("the folder is ours");
            fs::write(site.host.join("secret"), "untouched").expect("the folder is ours");
            fs::write(site.host.join("dir/file"), "untouched").expect("the folder is ours");
        }
        site
    }

    fn unpack(&self, bytes: &[u8], as_root: bool, buffer: usize) -> Outcome {
        let form = UnpackForm { as_root, ..SMALL };
        self.within(bytes, form, buffer, |result, nodes| {
            match result {
                Ok(report) => {
                    assert_true_report(report, nodes, bytes);
                    if let Some(contents) = plain_contents(bytes) {
                        assert_contents(&contents, nodes);
                    }
                }
                Err(error) => {
                    assert_short_message(&**error);
                    // Only the kernel knows which attributes it supports.
                    let excused = error.to_string().starts_with("could not set an extended attribute");
                    assert!(!is_io(&**error) || excused, "the kernel had to refuse: {error:?}");
                }
            }
            assert_no_foreign_overlay(nodes);
        })
    }

    /// Unpacks into a new directory, shows what came of it, and removes it; the host is looked at before and after.
    pub(crate) fn within(
        &self,
        bytes: &[u8],
        form: UnpackForm<'_>,
        buffer: usize,
        look: impl FnOnce(&Outcome, &Nodes),
    ) -> Outcome {
        let before = disk::read(&self.host);
        fs::create_dir(&self.layer).expect("the last run removed its directory");
        let root = File::open(&self.layer).expect("was just made");
        let mut listing = Recorder::default();
        let input = &mut BufReader::with_capacity(buffer, bytes);
        let result = unpack(input, root.as_fd(), form, &mut |path, record| listing.record(path, record));
        let nodes = disk::read(&self.layer);
        if result.is_ok() {
            listing.assert_lists(&nodes);
        }
        look(&result, &nodes);
        fs::remove_dir_all(&self.layer).expect("a layer can be removed");
        assert_eq!(disk::read(&self.host), before, "the host was touched");
        assert_eq!(fs::read_dir(&self.home).expect("is ours").count(), 1, "something lies beside the layer");
        result
    }
}

/// Whether the file system or the kernel refused.
pub(crate) fn is_io(error: &(dyn Error + 'static)) -> bool {
    error.source().is_some_and(<dyn Error>::is::<std::io::Error>)
}

/// The report's numbers are those of the disk.
fn assert_true_report(report: &Unpacked, nodes: &Nodes, bytes: &[u8]) {
    let blocks = u64::try_from(bytes.len().div_ceil(BLOCK)).expect("a length fits in 64 bits");
    assert!(report.entries <= blocks.min(SMALL_ENTRIES_MAX), "more entries than blocks or than allowed");

    let mut inodes = BTreeSet::new();
    let mut sizes: u64 = 0;
    let mut units: u64 = 0;
    let mut directories: u64 = 0;
    for node in nodes.values() {
        match node.kind {
            FileType::RegularFile if inodes.insert(node.stat.inode) => {
                sizes += node.stat.size;
                units += node.stat.size.div_ceil(4096);
            }
            FileType::Directory => directories += 1,
            _ => {}
        }
    }
    assert_eq!(report.bytes, sizes, "the files' sizes");
    assert!(report.bytes <= SMALL_BYTES_MAX);
    if !speaks_of_sparse_files(bytes) {
        assert_eq!(report.disk_bytes, 4096 * (units + directories - 1), "what the layer takes on disk");
    }

    let implicit = &report.implicit_directories;
    assert!(implicit.is_sorted(), "{implicit:?}");
    for path in implicit {
        let node = nodes.get(path).unwrap_or_else(|| panic!("{path:?} was made and is not there"));
        assert_eq!((node.kind, node.stat.mode), (FileType::Directory, 0o755), "{path:?}");
    }
    for (path, is_device) in &report.ownership {
        let path: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
        assert!(*is_device || nodes.contains_key(&path), "{path:?} has an owner and is not there");
    }
    assert_eq!(report.root_opaque, nodes[&b""[..]].is_opaque());
}

/// The files of an archive as the `tar` crate reads it; `None`: it has more than files and folders, each once.
fn plain_contents(bytes: &[u8]) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    if speaks_of_sparse_files(bytes) {
        // The crate reads the pieces alone.
        return None;
    }
    let (mut contents, mut folders) = (BTreeMap::new(), BTreeSet::new());
    for entry in tar::Archive::new(bytes).entries().ok()? {
        let mut entry = entry.ok()?;
        let path = entry.path_bytes().into_owned();
        let parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
        if parts.iter().any(|part| *part == b".." || part.starts_with(b".wh.") || part.contains(&0)) {
            return None;
        }
        for end in 1..parts.len() {
            folders.insert(parts[..end].join(&b'/'));
        }
        let name = parts.join(&b'/');
        match entry.header().entry_type() {
            tar::EntryType::Directory => {
                folders.insert(name);
            }
            tar::EntryType::Regular if !path.ends_with(b"/") && !name.is_empty() => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).ok()?;
                if contents.insert(name, content).is_some() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    contents.keys().all(|name| !folders.contains(name)).then_some(contents)
}

/// Two readers find the same files.
fn assert_contents(contents: &BTreeMap<Vec<u8>, Vec<u8>>, nodes: &Nodes) {
    let files = nodes.iter().filter(|(_, node)| node.kind == FileType::RegularFile);
    let files: BTreeMap<&Vec<u8>, Option<&Vec<u8>>> = files.map(|(path, node)| (path, node.content.as_ref())).collect();
    assert_eq!(files.keys().copied().collect::<Vec<_>>(), contents.keys().collect::<Vec<_>>(), "other files");
    for (path, content) in contents {
        // One that its mode keeps from a reader without root has no content here.
        assert!(files[path].is_none_or(|found| found == content), "{path:?} has another content");
    }
}

/// No attribute speaks to overlayfs but those that unpacking sets itself.
fn assert_no_foreign_overlay(nodes: &Nodes) {
    for (path, node) in nodes {
        for (name, value) in &node.xattrs {
            let is_ours = match name.as_str() {
                "trusted.overlay.opaque" => value == b"y" && node.kind == FileType::Directory,
                "user.overlay.opaque" => matches!(&value[..], b"x" | b"y") && node.kind == FileType::Directory,
                "user.overlay.whiteout" => node.kind == FileType::RegularFile && node.stat.size == 0,
                name => !name.starts_with("trusted.") && !name.starts_with("user.overlay."),
            };
            assert!(is_ours, "{path:?} has {name} = {value:?}");
        }
    }
}

/// The report estimates the disk usage of sparse files.
fn speaks_of_sparse_files(bytes: &[u8]) -> bool {
    bytes.windows(10).any(|window| window == b"GNU.sparse") || bytes.chunks_exact(BLOCK).any(|block| block[156] == b'S')
}

#[cfg(test)]
mod tests {
    use super::super::blocks;
    use super::*;

    fn archive() -> Vec<u8> {
        let parts = [blocks::file(b'5', b"d", b"", 0), blocks::file(b'0', b"e/f", b"content", 0), vec![0; 1024]];
        parts.concat()
    }

    fn look_at(tamper: impl FnOnce(&mut Unpacked, &mut Nodes)) {
        let home = tempfile::tempdir().unwrap();
        Site::new(home.path())
            .within(&archive(), SMALL, BUFFER, |result, nodes| {
                let (mut report, mut nodes) = (result.as_ref().unwrap().clone(), nodes.clone());
                tamper(&mut report, &mut nodes);
                assert_true_report(&report, &nodes, &archive());
                assert_contents(&plain_contents(&archive()).expect("it is plain"), &nodes);
                assert_no_foreign_overlay(&nodes);
            })
            .unwrap();
    }

    #[test]
    fn a_true_report_passes() {
        look_at(|report, _| assert_eq!(report.implicit_directories, [b"e"]));
    }

    #[test]
    #[should_panic(expected = "the files' sizes")]
    fn a_wrong_size_is_found() {
        look_at(|report, _| report.bytes += 1);
    }

    #[test]
    #[should_panic(expected = "what the layer takes on disk")]
    fn a_wrong_size_on_disk_is_found() {
        look_at(|report, _| report.disk_bytes += 1);
    }

    #[test]
    #[should_panic(expected = "has another content")]
    fn another_content_is_found() {
        look_at(|_, nodes| nodes.get_mut(&b"e/f"[..]).unwrap().content = Some(b"damage!".to_vec()));
    }

    #[test]
    #[should_panic(expected = "is not there")]
    fn a_directory_that_was_not_made_is_found() {
        look_at(|report, _| report.implicit_directories.push(b"x".to_vec()));
    }

    #[test]
    #[should_panic(expected = "user.overlay.redirect")]
    fn an_attribute_that_speaks_to_overlayfs_is_found() {
        look_at(|_, nodes| {
            let node = nodes.get_mut(&b"d"[..]).unwrap();
            node.xattrs.insert("user.overlay.redirect".to_owned(), b"/etc".to_vec());
        });
    }

    #[test]
    #[should_panic(expected = "as listed, and on disk")]
    fn a_listing_that_is_not_true_is_found() {
        let home = tempfile::tempdir().unwrap();
        let mut listing = Recorder::default();
        let root = File::open(home.path()).unwrap();
        let mut record = |path: &[u8], record: &[u8]| listing.record(path, record);
        unpack(&mut &archive()[..], root.as_fd(), SMALL, &mut record).unwrap();
        listing.assert_lists(&disk::read(home.path()));
        fs::write(home.path().join("e/f"), "damage!").unwrap();
        listing.assert_lists(&disk::read(home.path()));
    }

    #[test]
    #[should_panic(expected = "the host was touched")]
    fn a_touched_host_is_found() {
        let home = tempfile::tempdir().unwrap();
        let site = Site::new(home.path());
        let _ = site.within(&archive(), SMALL, BUFFER, |_, _| {
            fs::write(site.host.join("secret"), "changed!!").unwrap();
        });
    }
}
