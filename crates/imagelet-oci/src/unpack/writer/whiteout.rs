//! Whiteouts in the forms of OCI and of overlayfs.

use rustix::{
    fd::{AsFd, BorrowedFd},
    fs::{AtFlags, FileType, Mode, OFlags, XattrFlags},
    io::Errno,
};

use crate::scarce::patiently;
use crate::unpack::{
    Ownership,
    error::{Fault, shown},
};

const PREFIX: &[u8] = b".wh.";
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mark<'a> {
    Plain,
    Whiteout(&'a [u8]),
    Opaque,
    /// A file of AUFS, which has no meaning in a layer.
    Ignored,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Opacity {
    #[default]
    Merged,
    /// Merges with the layers below, and contains whiteouts in xattr form.
    Xattrs,
    Opaque,
}

/// Finds the whiteout mark in a clean path, which is split into parent and name.
pub(crate) fn mark<'a>(parent: &[u8], name: &'a [u8]) -> Result<Mark<'a>, Fault> {
    for component in parent.split(|&byte| byte == b'/') {
        if component.starts_with(META_PREFIX) {
            return Ok(Mark::Ignored);
        }
        if component.starts_with(PREFIX) {
            return Err(Fault::refused(format!("it lies below the whiteout `{}`", shown(component))));
        }
    }
    if name == OPAQUE {
        return Ok(Mark::Opaque);
    }
    // `.wh...` is the whiteout of `..`. Names that begin with `.wh..wh.` are those of AUFS.
    match name.strip_prefix(PREFIX) {
        Some(b"" | b"." | b"..") => Err(Fault::refused("it is a whiteout of nothing")),
        Some(hidden) if hidden.starts_with(PREFIX) => Ok(Mark::Ignored),
        Some(hidden) => Ok(Mark::Whiteout(hidden)),
        None => Ok(Mark::Plain),
    }
}

impl Ownership {
    pub(crate) fn hide(self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<Opacity, Fault> {
        match (rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0), self) {
            (Ok(()), _) => Ok(Opacity::Merged),
            (Err(Errno::PERM | Errno::INVAL), Ownership::Record) => hide_by_xattr(parent, name),
            (Err(errno), _) => Err(Fault::io("make the whiteout of")(errno)),
        }
    }

    pub(crate) fn xattr(self, opacity: Opacity) -> Option<(&'static str, &'static [u8])> {
        let name = match self {
            Ownership::Apply => "trusted.overlay.opaque",
            Ownership::Record => "user.overlay.opaque",
        };
        match opacity {
            Opacity::Merged => None,
            Opacity::Xattrs => Some((name, b"x")),
            Opacity::Opaque => Some((name, b"y")),
        }
    }
}

fn hide_by_xattr(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Opacity, Fault> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = patiently(|| rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR))
        .map_err(Fault::io("make the whiteout of"))?;
    rustix::fs::fsetxattr(file.as_fd(), "user.overlay.whiteout", b"y", XattrFlags::empty())
        .map_err(Fault::io("make the whiteout of"))?;
    Ok(Opacity::Xattrs)
}

pub(crate) fn is_whiteout_device(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

pub(crate) fn look(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<rustix::fs::Stat>, Fault> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Fault::io("look at")(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_hidden() {
        for (name, said) in [
            ("a", Mark::Plain),
            (".wh", Mark::Plain),
            ("a.wh.b", Mark::Plain),
            (".wh.a", Mark::Whiteout(b"a")),
            (".wh..a", Mark::Whiteout(b".a")),
            (".wh....", Mark::Whiteout(b"...")),
            (".wh..wh..opq", Mark::Opaque),
            (".wh..wh.plnk", Mark::Ignored),
            (".wh..wh.aufs", Mark::Ignored),
        ] {
            let name = name.as_bytes();
            let said_here = mark(b"d", name).unwrap();
            assert_eq!(said_here, said, "{}", shown(name));
        }
        for name in [".wh.", ".wh..", ".wh..."] {
            mark(b"", name.as_bytes()).expect_err(name);
        }
        mark(b"d/.wh.a", b"b").expect_err("below a whiteout");
        assert_eq!(mark(b".wh..wh.plnk", b"12.34").unwrap(), Mark::Ignored);
    }

    #[test]
    fn a_whiteout_without_a_device_is_an_empty_file_with_an_xattr() {
        let home = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(home.path()).unwrap();
        assert_eq!(hide_by_xattr(root.as_fd(), b"gone").unwrap(), Opacity::Xattrs);
        let path = home.path().join("gone");
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().len(), 0);
        let mut value = [0; 8];
        assert_eq!(rustix::fs::lgetxattr(&path, "user.overlay.whiteout", &mut value).unwrap(), 1);
        assert_eq!(Ownership::Record.xattr(Opacity::Xattrs), Some(("user.overlay.opaque", &b"x"[..])));
    }
}
