//! The differences between an entry of a layer's manifest and the file on the disk.

use imagelet_core::text::file_time_text;

use crate::unpack::{FileEntry, FileEntryKind};

pub(super) type Difference = (&'static str, String);

pub(super) fn compare(listed: &FileEntry, found: &FileEntry) -> Vec<Difference> {
    let (was, is) = (kind_word(&listed.kind), kind_word(&found.kind));
    if was != is {
        return vec![("type", format!("it is a {is}, and was a {was}"))];
    }
    let mut differences = Vec::from_iter(compare_kinds(&listed.kind, &found.kind));
    if listed.mode != found.mode {
        differences.push(("mode", format!("its mode is {:04o}, and was {:04o}", found.mode, listed.mode)));
    }
    if (listed.uid, listed.gid) != (found.uid, found.gid) {
        let (is, was) = ((found.uid, found.gid), (listed.uid, listed.gid));
        differences.push(("owner", format!("it belongs to {}:{}, and did to {}:{}", is.0, is.1, was.0, was.1)));
    }
    if listed.mtime != found.mtime {
        let [is, was] = [found.mtime, listed.mtime].map(|(seconds, nanoseconds)| file_time_text(seconds, nanoseconds));
        differences.push(("mtime", format!("it was changed at {is}, and not at {was}")));
    }
    if listed.xattrs != found.xattrs {
        differences.push(("xattrs", "its extended attributes have changed".into()));
    }
    differences
}

fn compare_kinds(was: &FileEntryKind, is: &FileEntryKind) -> Option<Difference> {
    match (size(was), size(is)) {
        (Some(was), Some(is)) if was != is => {
            return Some(("size", format!("it has {is} bytes, and had {was}")));
        }
        _ if was == is => return None,
        _ => {}
    }
    Some(match (was, is) {
        (FileEntryKind::Symlink(_), _) => ("target", "the link leads elsewhere".into()),
        (
            FileEntryKind::Device { major, minor, .. },
            FileEntryKind::Device { major: major_is, minor: minor_is, .. },
        ) => ("device", format!("it is device {major_is}:{minor_is}, and was {major}:{minor}")),
        _ => ("content", "its content has changed".into()),
    })
}

pub(super) fn size(kind: &FileEntryKind) -> Option<u64> {
    match kind {
        FileEntryKind::File { size, .. } | FileEntryKind::Sparse { size, .. } => Some(*size),
        _ => None,
    }
}

fn kind_word(kind: &FileEntryKind) -> &'static str {
    match kind {
        FileEntryKind::File { .. } | FileEntryKind::Sparse { .. } => "file",
        FileEntryKind::Directory => "directory",
        FileEntryKind::Symlink(_) => "symbolic link",
        FileEntryKind::Fifo => "named pipe",
        FileEntryKind::Socket => "socket",
        FileEntryKind::Device { block: true, .. } => "block device",
        FileEntryKind::Device { block: false, .. } => "character device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(kind: FileEntryKind) -> FileEntry {
        FileEntry { kind, mode: 0o644, uid: 1, gid: 2, mtime: (10, 20), xattrs: None }
    }

    fn file(size: u64, content: u128) -> FileEntry {
        listed(FileEntryKind::File { size, content })
    }

    #[test]
    fn nothing_differs_between_equals() {
        let sparse = FileEntryKind::Sparse { size: 1 << 44, content: 3, ranges: vec![(4096, 1)] };
        for kind in [
            FileEntryKind::File { size: 3, content: 4 },
            sparse,
            FileEntryKind::Directory,
            FileEntryKind::Symlink(b"a".to_vec()),
            FileEntryKind::Fifo,
            FileEntryKind::Socket,
            FileEntryKind::Device { block: true, major: 1, minor: 2 },
        ] {
            assert!(compare(&listed(kind.clone()), &listed(kind)).is_empty());
        }
    }

    #[test]
    fn the_times_of_a_changed_file_are_in_utc() {
        let was = FileEntry { mtime: (1_700_000_000, 0), ..file(3, 4) };
        let is = FileEntry { mtime: (1_700_000_000, 20), ..was.clone() };
        let text = "it was changed at 2023-11-14T22:13:20.00000002Z, and not at 2023-11-14T22:13:20Z";
        assert_eq!(compare(&was, &is), [("mtime", text.to_owned())]);
    }

    #[test]
    fn each_difference_has_its_own_word() {
        let device = |block, major, minor| listed(FileEntryKind::Device { block, major, minor });
        let link = |target: &[u8]| listed(FileEntryKind::Symlink(target.to_vec()));
        let sparse = |ranges| listed(FileEntryKind::Sparse { size: 9, content: 1, ranges });
        let was = file(3, 4);
        for (was, is, words) in [
            (was.clone(), file(2, 4), vec!["size"]),
            (was.clone(), file(3, 5), vec!["content"]),
            (was.clone(), listed(FileEntryKind::Directory), vec!["type"]),
            (was.clone(), FileEntry { mode: 0o4644, ..was.clone() }, vec!["mode"]),
            (was.clone(), FileEntry { uid: 0, ..was.clone() }, vec!["owner"]),
            (was.clone(), FileEntry { gid: 0, ..was.clone() }, vec!["owner"]),
            (was.clone(), FileEntry { mtime: (10, 21), ..was.clone() }, vec!["mtime"]),
            (was.clone(), FileEntry { mtime: (11, 20), ..was.clone() }, vec!["mtime"]),
            (was.clone(), FileEntry { xattrs: Some(1), ..was.clone() }, vec!["xattrs"]),
            (FileEntry { xattrs: Some(1), ..was.clone() }, was.clone(), vec!["xattrs"]),
            (link(b"a"), link(b"b"), vec!["target"]),
            (device(false, 1, 3), device(false, 1, 5), vec!["device"]),
            (device(false, 1, 3), device(true, 1, 3), vec!["type"]),
            (sparse(vec![(0, 1)]), sparse(vec![]), vec!["content"]),
            (was.clone(), FileEntry { mode: 0, mtime: (0, 0), ..file(3, 5) }, vec!["content", "mode", "mtime"]),
        ] {
            let found: Vec<_> = compare(&was, &is).into_iter().map(|(word, _)| word).collect();
            assert_eq!(found, words, "{was:?} {is:?}");
        }
    }
}
