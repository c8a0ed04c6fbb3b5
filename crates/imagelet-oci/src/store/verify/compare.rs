//! What differs between a line of a layer's list and what the disk shows.

use std::fmt::{self, Display};

use crate::unpack::{Listed, ListedKind};

/// One difference; several may hold for one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    Missing,
    Extra,
    Kind { was: &'static str, is: &'static str },
    Size { was: u64, is: u64 },
    Content,
    Target,
    Device { was: (u32, u32), is: (u32, u32) },
    Mode { was: u32, is: u32 },
    Owner { was: (u32, u32), is: (u32, u32) },
    Mtime { was: (i64, u32), is: (i64, u32) },
    Xattrs,
    Unreadable(String),
}

impl Difference {
    /// The word for programs.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Difference::Missing => "missing",
            Difference::Extra => "extra",
            Difference::Kind { .. } => "type",
            Difference::Size { .. } => "size",
            Difference::Content => "content",
            Difference::Target => "target",
            Difference::Device { .. } => "device",
            Difference::Mode { .. } => "mode",
            Difference::Owner { .. } => "owner",
            Difference::Mtime { .. } => "mtime",
            Difference::Xattrs => "xattrs",
            Difference::Unreadable(_) => "unreadable",
        }
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Missing => f.write_str("it is missing"),
            Difference::Extra => f.write_str("the layer has no such path"),
            Difference::Kind { was, is } => write!(f, "it is a {is}, and was a {was}"),
            Difference::Size { was, is } => write!(f, "it has {is} bytes, and had {was}"),
            Difference::Content => f.write_str("its content has changed"),
            Difference::Target => f.write_str("the link leads elsewhere"),
            Difference::Device { was, is } => {
                write!(f, "it is device {}:{}, and was {}:{}", is.0, is.1, was.0, was.1)
            }
            Difference::Mode { was, is } => write!(f, "its mode is {is:04o}, and was {was:04o}"),
            Difference::Owner { was, is } => {
                write!(f, "it belongs to {}:{}, and did to {}:{}", is.0, is.1, was.0, was.1)
            }
            Difference::Mtime { was, is } => {
                write!(f, "it was changed at {}.{:09}, and not at {}.{:09}", is.0, is.1, was.0, was.1)
            }
            Difference::Xattrs => f.write_str("its extended attributes have changed"),
            Difference::Unreadable(why) => write!(f, "it cannot be read: {why}"),
        }
    }
}

/// Everything in which `found` is not what was listed.
pub(super) fn compare(listed: &Listed, found: &Listed) -> Vec<Difference> {
    let mut differences = Vec::new();
    let (was, is) = (kind_word(&listed.kind), kind_word(&found.kind));
    if was != is {
        // What else differs follows from this.
        return vec![Difference::Kind { was, is }];
    }
    differences.extend(compare_kinds(&listed.kind, &found.kind));
    if listed.mode != found.mode {
        differences.push(Difference::Mode { was: listed.mode, is: found.mode });
    }
    let (was, is) = ((listed.uid, listed.gid), (found.uid, found.gid));
    if was != is {
        differences.push(Difference::Owner { was, is });
    }
    if listed.mtime != found.mtime {
        differences.push(Difference::Mtime { was: listed.mtime, is: found.mtime });
    }
    if listed.xattrs != found.xattrs {
        differences.push(Difference::Xattrs);
    }
    differences
}

fn compare_kinds(was: &ListedKind, is: &ListedKind) -> Option<Difference> {
    if let (Some(was), Some(is)) = (size(was), size(is))
        && was != is
    {
        return Some(Difference::Size { was, is });
    }
    match (was, is) {
        _ if was == is => None,
        (ListedKind::Symlink(_), ListedKind::Symlink(_)) => Some(Difference::Target),
        (ListedKind::Device { major, minor, .. }, ListedKind::Device { major: major_now, minor: minor_now, .. }) => {
            Some(Difference::Device { was: (*major, *minor), is: (*major_now, *minor_now) })
        }
        _ => Some(Difference::Content),
    }
}

/// The length of a file.
pub(super) fn size(kind: &ListedKind) -> Option<u64> {
    match kind {
        ListedKind::File { size, .. } | ListedKind::Sparse { size, .. } => Some(*size),
        _ => None,
    }
}

fn kind_word(kind: &ListedKind) -> &'static str {
    match kind {
        ListedKind::File { .. } | ListedKind::Sparse { .. } => "file",
        ListedKind::Directory => "directory",
        ListedKind::Symlink(_) => "symbolic link",
        ListedKind::Fifo => "named pipe",
        ListedKind::Socket => "socket",
        ListedKind::Device { block: true, .. } => "block device",
        ListedKind::Device { block: false, .. } => "character device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(kind: ListedKind) -> Listed {
        Listed { kind, mode: 0o644, uid: 1, gid: 2, mtime: (10, 20), xattrs: None }
    }

    fn file(size: u64, content: u128) -> Listed {
        listed(ListedKind::File { size, content })
    }

    #[test]
    fn nothing_differs_between_equals() {
        let sparse = ListedKind::Sparse { size: 1 << 44, content: 3, ranges: vec![(4096, 1)] };
        for kind in [
            ListedKind::File { size: 3, content: 4 },
            sparse,
            ListedKind::Directory,
            ListedKind::Symlink(b"a".to_vec()),
            ListedKind::Fifo,
            ListedKind::Socket,
            ListedKind::Device { block: true, major: 1, minor: 2 },
        ] {
            assert_eq!(compare(&listed(kind.clone()), &listed(kind)), []);
        }
    }

    #[test]
    fn each_difference_is_told_by_its_own_word() {
        let device = |block, major, minor| listed(ListedKind::Device { block, major, minor });
        let link = |target: &[u8]| listed(ListedKind::Symlink(target.to_vec()));
        let sparse = |ranges| listed(ListedKind::Sparse { size: 9, content: 1, ranges });
        let was = file(3, 4);
        for (was, is, words) in [
            (was.clone(), file(2, 4), vec!["size"]),
            (was.clone(), file(3, 5), vec!["content"]),
            (was.clone(), listed(ListedKind::Directory), vec!["type"]),
            (was.clone(), Listed { mode: 0o4644, ..was.clone() }, vec!["mode"]),
            (was.clone(), Listed { uid: 0, ..was.clone() }, vec!["owner"]),
            (was.clone(), Listed { gid: 0, ..was.clone() }, vec!["owner"]),
            (was.clone(), Listed { mtime: (10, 21), ..was.clone() }, vec!["mtime"]),
            (was.clone(), Listed { mtime: (11, 20), ..was.clone() }, vec!["mtime"]),
            (was.clone(), Listed { xattrs: Some(1), ..was.clone() }, vec!["xattrs"]),
            (Listed { xattrs: Some(1), ..was.clone() }, was.clone(), vec!["xattrs"]),
            (link(b"a"), link(b"b"), vec!["target"]),
            (device(false, 1, 3), device(false, 1, 5), vec!["device"]),
            (device(false, 1, 3), device(true, 1, 3), vec!["type"]),
            (sparse(vec![(0, 1)]), sparse(vec![]), vec!["content"]),
            (was.clone(), Listed { mode: 0, mtime: (0, 0), ..file(3, 5) }, vec!["content", "mode", "mtime"]),
        ] {
            let found: Vec<_> = compare(&was, &is).iter().map(Difference::word).collect();
            assert_eq!(found, words, "{was:?} {is:?}");
        }
    }
}
