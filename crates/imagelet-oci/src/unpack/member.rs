//! The rules for the members of an artifact's archive.
//!
//! Members are files, folders, and links that stay inside the artifact. Absolute names, names with `..` and repeated
//! names are rejected, because archive readers differ on them. Members get the owner root, a mode that lets all users
//! read, and a time in 1970.

use super::{
    archive::{TarEntry, TarKind, TarMetadata},
    error::{Fault, shown},
};

pub(super) const FILE_MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;

pub(super) fn of_artifact(entry: TarEntry) -> Result<TarEntry, Fault> {
    check_name("name", &entry.name)?;
    match entry.kind {
        TarKind::File | TarKind::Directory | TarKind::Symlink => {}
        TarKind::HardLink => check_name("hard link target", &entry.link)?,
        TarKind::CharDevice | TarKind::BlockDevice => return Err(Fault::refused("it is a device")),
        TarKind::Fifo => return Err(Fault::refused("it is a named pipe")),
        TarKind::Unknown => return Err(Fault::refused("it is neither a file, a folder nor a link")),
    }
    let is_executable = entry.kind == TarKind::Directory || entry.metadata.mode & 0o100 != 0;
    let mode = if is_executable { EXECUTABLE_MODE } else { FILE_MODE };
    Ok(TarEntry { metadata: TarMetadata { mode, ..TarMetadata::default() }, xattrs: Vec::new(), ..entry })
}

fn check_name(what: &str, name: &[u8]) -> Result<(), Fault> {
    if name.starts_with(b"/") {
        return Err(Fault::refused(format!("its {what} is absolute")));
    }
    for component in name.split(|&byte| byte == b'/') {
        if component == b".." {
            return Err(Fault::refused(format!("its {what} has a component `..`")));
        }
        if component.starts_with(b".wh.") {
            return Err(Fault::refused(format!("its {what} has a component that begins with `.wh.`")));
        }
    }
    Ok(())
}

pub(super) fn check_place(path: &[u8], entry: &TarEntry, folder: &str) -> Result<(), Fault> {
    let is_inside = match path.strip_prefix(folder.as_bytes()) {
        Some(rest) => {
            folder.is_empty() || rest.starts_with(b"/") || (rest.is_empty() && entry.kind == TarKind::Directory)
        }
        None => false,
    };
    if !is_inside {
        return Err(Fault::refused(format!("it is outside the folder `{}` of its archive", shown(folder.as_bytes()))));
    }
    if entry.kind == TarKind::Symlink {
        check_target(path, &entry.link)?;
    }
    Ok(())
}

/// `..` is permitted only at the start of a link's target, because a component before `..` may be any link.
fn check_target(path: &[u8], target: &[u8]) -> Result<(), Fault> {
    let leaves = || Err(Fault::refused(format!("it is a link to `{}`, which leaves the artifact", shown(target))));
    let mut depth = path.split(|&byte| byte == b'/').count() - 1;
    let mut is_start = true;
    if target.starts_with(b"/") {
        return leaves();
    }
    for component in target.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." if is_start && depth > 0 => depth -= 1,
            b".." => return leaves(),
            _ => is_start = false,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: TarKind, name: &str, link: &str) -> TarEntry {
        TarEntry { name: name.into(), link: link.into(), kind, ..TarEntry::default() }
    }

    #[test]
    fn a_member_is_a_file_a_folder_or_a_link_and_stays_in_the_artifact() {
        let refusals = [
            (entry(TarKind::File, "/etc/passwd", ""), "its name is absolute"),
            (entry(TarKind::File, "a/../../b", ""), "its name has a component `..`"),
            (entry(TarKind::File, "a/..", ""), "its name has a component `..`"),
            (entry(TarKind::File, "a/.wh.b", ""), "its name has a component that begins with `.wh.`"),
            (entry(TarKind::Directory, ".wh..wh..opq", ""), "begins with `.wh.`"),
            (entry(TarKind::HardLink, "a", "/etc/passwd"), "its hard link target is absolute"),
            (entry(TarKind::HardLink, "a", "../b"), "its hard link target has a component `..`"),
            (entry(TarKind::CharDevice, "a", ""), "a device"),
            (entry(TarKind::BlockDevice, "a", ""), "a device"),
            (entry(TarKind::Fifo, "a", ""), "a named pipe"),
            (entry(TarKind::Unknown, "a", ""), "neither a file, a folder nor a link"),
        ];
        for (entry, why) in refusals {
            let (name, refused) = (entry.name.clone(), of_artifact(entry).expect_err(why));
            let error = refused.at(&name).to_string();
            assert!(error.contains(why), "{error}");
        }
        for (kind, name) in [(TarKind::File, "./a/..b"), (TarKind::Directory, "./"), (TarKind::Symlink, "a.wh.")] {
            of_artifact(entry(kind, name, "b")).unwrap();
        }
    }

    #[test]
    fn a_member_has_no_owner_time_or_attribute_of_its_own_and_only_files_that_can_run_keep_that() {
        for (kind, mode, expected) in [
            (TarKind::File, 0o600, 0o644),
            (TarKind::File, 0o4711, 0o755),
            (TarKind::File, 0o666, 0o644),
            (TarKind::Directory, 0o1700, 0o755),
        ] {
            let mut entry = entry(kind, "a", "");
            entry.metadata = TarMetadata { mode, uid: 1000, gid: 7, ..TarMetadata::default() };
            entry.metadata.mtime.secs = 1_700_000_000;
            entry.xattrs = vec![(b"security.capability".to_vec(), b"x".to_vec())];
            let member = of_artifact(entry).unwrap();
            let TarMetadata { mode, uid, gid, mtime, .. } = member.metadata;
            assert_eq!((mode, uid, gid, mtime.secs, member.xattrs.len()), (expected, 0, 0, 0, 0));
        }
    }

    #[test]
    fn a_place_is_in_the_folder_of_its_archive_and_a_link_never_leaves_the_artifact() {
        let place =
            |path: &str, kind, link: &str, folder| check_place(path.as_bytes(), &entry(kind, path, link), folder);
        for (path, folder) in [("a", ""), ("d/a", "d"), ("d/e/a", "d/e"), ("d/d", "d")] {
            place(path, TarKind::File, "", folder).unwrap();
        }
        place("d", TarKind::Directory, "", "d").unwrap();
        for (path, folder) in [("a", "d"), ("da", "d"), ("d", "d"), ("e/d/a", "d")] {
            place(path, TarKind::File, "", folder).expect_err(path);
        }
        for (path, target) in [("a", "b"), ("a", "./b//c"), ("d/a", "../b"), ("d/e/a", "../../b/c"), ("a", "..b")] {
            place(path, TarKind::Symlink, target, "").unwrap();
        }
        for (path, target) in [
            ("a", "/etc/passwd"),
            ("a", ".."),
            ("d/a", "../.."),
            ("d/a", "../../etc/passwd"),
            ("d/a", "./../../x"),
            ("d/a", "b/.."),
            ("d/e/a", "../b/../../../x"),
        ] {
            place(path, TarKind::Symlink, target, "").expect_err(target);
        }
    }
}
