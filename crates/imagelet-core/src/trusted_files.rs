//! Rejects files that other users can change. Files about credentials, programs and trust need this check.
//!
//! The check covers the open file, its real folder, and the folder of its path. The two folders differ if the path is a
//! symlink, as in a Kubernetes `ConfigMap` mount.

use std::{
    fs,
    io::{self, Read as _},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use zeroize::Zeroizing;

use crate::image::ByteSize;

/// The id of user `root` and of group `root`. By convention, group `root` has no other members.
const ROOT: u32 = 0;
/// In a folder with this bit, only the owner of an entry can remove or rename the entry.
const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const EVERYONE_WRITES: u32 = 0o002;
const EVERYONE_READS: u32 = 0o004;

#[derive(Clone, Copy, Debug)]
struct Ownership {
    uid: u32,
    gid: u32,
    mode: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    File,
    /// A symlink on the path. The mode of a symlink has no meaning.
    Link,
    /// A folder of which only one named file is used.
    Folder,
    /// A folder whose entries are all used. A new entry is a change, too.
    Collection,
}

/// The users that can change a file or the contents of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    Owner(u32),
    Group(u32),
    Everyone,
}

/// The users other than root and `user` that can change a part. `None`: there are none. Group write is permitted for
/// group `root` and for the group with the id of `user`: by convention, these groups have no other members.
fn exposure(part: Part, found: Ownership, user: u32) -> Option<Exposure> {
    let is_writable_folder = match part {
        Part::Folder => found.mode & STICKY == 0,
        Part::File | Part::Collection => true,
        Part::Link => false,
    };
    let is_trusted = |id: u32| id == ROOT || id == user;
    if !is_trusted(found.uid) {
        Some(Exposure::Owner(found.uid))
    } else if is_writable_folder && found.mode & EVERYONE_WRITES != 0 {
        Some(Exposure::Everyone)
    } else if is_writable_folder && found.mode & GROUP_WRITES != 0 && !is_trusted(found.gid) {
        Some(Exposure::Group(found.gid))
    } else {
        None
    }
}

/// The users other than root and `user` that can replace the contents of a folder. `None`: there are no such users.
pub fn folder_exposure(folder: &Stat, user: u32) -> Option<Exposure> {
    exposure(Part::Folder, ownership(folder), user)
}

fn ownership(stat: &Stat) -> Ownership {
    Ownership { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o7777 }
}

/// Opens a file for reading. Fails as [`check`] does.
pub fn open(path: &Path) -> io::Result<fs::File> {
    let file = fs::File::open(path)?;
    check(path, &file)?;
    Ok(file)
}

/// Opens a file with [`open`] and reads it. A file longer than `length_max` fails with `FileTooLarge`.
pub fn read(path: &Path, length_max: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::new());
    open(path)?.take(length_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > length_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {}", ByteSize(length_max))));
    }
    Ok(bytes)
}

pub fn is_public(mode: u32) -> bool {
    mode & EVERYONE_READS != 0
}

/// Reads the secret in a file with one line. `name` is the configuration key, for errors. If the line is longer than
/// `length_max` bytes, the result is also longer, so that the caller can reject it.
///
/// # Errors
/// If [`open`] fails, if every user may read the file, or if the file is not UTF-8.
pub fn read_secret(name: &str, path: &Path, length_max: usize) -> io::Result<Zeroizing<String>> {
    let file = open(path)?;
    let mode = file.metadata()?.mode();
    if is_public(mode) {
        let shown = path.display();
        let mode = mode & 0o7777;
        let message = format!("every user may read {name} `{shown}` (mode {mode:04o})\nhint: chmod o-r {shown}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    let mut text = Zeroizing::new(String::new());
    // One byte more than the longest secret with its line end.
    file.take(length_max as u64 + 3).read_to_string(&mut text)?;
    Ok(Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// Rejects an open file that other users can change or replace.
///
/// # Errors
/// `PermissionDenied`, with the remedy after `hint: ` on a separate line; or the error of the inspection.
pub fn check(path: &Path, file: impl AsFd) -> io::Result<()> {
    let file = file.as_fd();
    let stat = rustix::fs::fstat(file)?;
    judge(Part::File, path, &stat)?;
    let link = rustix::fs::lstat(path)?;
    if FileType::from_raw_mode(link.st_mode) == FileType::Symlink {
        judge(Part::Link, path, &link)?;
    }
    let named_in = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found_in = fs::canonicalize(named_in)?;
    judge_folder(Part::Folder, &found_in)?;
    // An unnamed pipe is in no folder.
    match real_folder(file)? {
        Some(lies_in) if lies_in != found_in => judge_folder(Part::Folder, &lies_in),
        _ => Ok(()),
    }
}

pub(crate) fn check_program(path: &Path) -> io::Result<()> {
    // `O_PATH` also opens a program that has only execute permission.
    check(path, rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Rejects a folder if other users can change it or add entries. All entries of the folder are used.
pub fn check_folder(path: &Path) -> io::Result<()> {
    judge_folder(Part::Collection, path)
}

/// Accepts a read-only mount. A `ConfigMap` volume is such a mount, and its mode permits every user to write.
fn judge_folder(part: Part, path: &Path) -> io::Result<()> {
    let folder = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    if rustix::fs::fstatvfs(&folder)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    judge(part, path, &rustix::fs::fstat(&folder)?)
}

/// The real folder of an open file. `None`: the file is in no folder.
fn real_folder(file: BorrowedFd<'_>) -> io::Result<Option<PathBuf>> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(path.parent().filter(|folder| folder.is_absolute()).map(Path::to_owned))
}

fn judge(part: Part, path: &Path, stat: &Stat) -> io::Result<()> {
    let found = ownership(stat);
    let (mode, shown) = (found.mode, path.display());
    let message = match exposure(part, found, rustix::process::geteuid().as_raw()) {
        None => return Ok(()),
        Some(Exposure::Owner(uid)) => format!("`{shown}` belongs to user {uid}\nhint: chown root {shown}"),
        Some(Exposure::Group(gid)) => {
            format!("group {gid} may write to `{shown}` (mode {mode:04o})\nhint: chmod go-w {shown}")
        }
        Some(Exposure::Everyone) => {
            format!("every user may write to `{shown}` (mode {mode:04o})\nhint: chmod go-w {shown}")
        }
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn only_root_and_the_own_user_may_be_able_to_change_a_part() {
        let (owner, group, everyone) =
            (|uid| Some(Exposure::Owner(uid)), |gid| Some(Exposure::Group(gid)), Some(Exposure::Everyone));
        for (part, uid, gid, mode, user, wanted) in [
            (Part::File, 0, 0, 0o644, 0, None),
            (Part::File, 0, 0, 0o600, 1000, None),
            (Part::File, 1000, 1000, 0o644, 1000, None),
            (Part::File, 1000, 1000, 0o644, 0, owner(1000)),
            (Part::File, 1001, 1000, 0o600, 1000, owner(1001)),
            // The groups of root and of the user alone, which a umask of 002 relies on.
            (Part::File, 0, 0, 0o664, 0, None),
            (Part::File, 1000, 1000, 0o664, 1000, None),
            (Part::File, 1000, 100, 0o664, 1000, group(100)),
            (Part::File, 0, 1000, 0o660, 0, group(1000)),
            (Part::File, 0, 0, 0o666, 0, everyone),
            (Part::File, 0, 0, 0o602, 0, everyone),
            (Part::File, 0, 0, 0o1666, 0, everyone),
            (Part::Link, 0, 0, 0o777, 0, None),
            (Part::Link, 1000, 0, 0o777, 0, owner(1000)),
            (Part::Folder, 0, 0, 0o755, 0, None),
            (Part::Folder, 0, 0, 0o777, 0, everyone),
            (Part::Folder, 0, 4, 0o775, 0, group(4)),
            (Part::Folder, 0, 0, 0o1777, 0, None),
            (Part::Folder, 1000, 0, 0o1777, 0, owner(1000)),
            (Part::Collection, 0, 0, 0o755, 0, None),
            // Other users may add entries.
            (Part::Collection, 0, 0, 0o1777, 0, everyone),
            (Part::Collection, 1000, 1000, 0o755, 0, owner(1000)),
        ] {
            assert_eq!(
                exposure(part, Ownership { uid, gid, mode }, user),
                wanted,
                "{part:?} {uid}:{gid} {mode:o} {user}"
            );
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refused(checked: io::Result<()>) -> String {
        let error = checked.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        error.to_string()
    }

    #[test]
    fn a_file_that_everyone_may_change_is_refused_with_its_name_its_mode_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o644);
        open(&path).unwrap();
        set_mode(&path, 0o646);
        let shown = path.display();
        let told = format!("every user may write to `{shown}` (mode 0646)\nhint: chmod go-w {shown}");
        assert_eq!(refused(open(&path).map(drop)), told);
        assert_eq!(refused(check_program(&path)), told);
    }

    #[test]
    fn a_secret_that_every_user_may_read_is_refused_and_is_the_one_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "hunter2\r\n").unwrap();
        set_mode(&path, 0o604);
        let refusal = refused(read_secret("passwordFile", &path, 512).map(drop));
        assert!(refusal.contains("every user may read passwordFile `") && refusal.contains("(mode 0604)"), "{refusal}");
        set_mode(&path, 0o640);
        assert_eq!(*read_secret("passwordFile", &path, 512).unwrap(), "hunter2");
        fs::write(&path, "x".repeat(600)).unwrap();
        assert!(read_secret("passwordFile", &path, 512).unwrap().len() > 512, "a longer one is not cut to a valid one");
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_secret("passwordFile", &path, 512).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_in_a_folder_where_everyone_may_exchange_it_is_refused_through_a_link_as_well() {
        let [folder, elsewhere] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (path, link) = (folder.path().join("config.yaml"), elsewhere.path().join("config.yaml"));
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o644);
        symlink(&path, &link).unwrap();
        open(&link).unwrap();
        for (folder, mode, is_refused) in [
            (folder.path(), 0o777, [true, true]),
            (folder.path(), 0o1777, [false, false]),
            (elsewhere.path(), 0o777, [false, true]),
            (elsewhere.path(), 0o700, [false, false]),
        ] {
            set_mode(folder, mode);
            assert_eq!([&path, &link].map(|path| open(path).is_err()), is_refused, "{mode:o}");
            if mode == 0o777 {
                set_mode(folder, 0o700);
            }
        }
    }

    #[test]
    fn a_config_map_of_kubernetes_is_read_through_its_links() {
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir(volume.path().join("..2026_11_22")).unwrap();
        let path = volume.path().join("..2026_11_22/config.yaml");
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o644);
        symlink("..2026_11_22", volume.path().join("..data")).unwrap();
        symlink("..data/config.yaml", volume.path().join("config.yaml")).unwrap();
        open(&volume.path().join("config.yaml")).unwrap();
        set_mode(&volume.path().join("..2026_11_22"), 0o777);
        assert!(refused(open(&volume.path().join("config.yaml")).map(drop)).contains("..2026_11_22`"));
    }

    #[test]
    fn a_folder_to_which_everyone_may_add_is_refused_sticky_or_not() {
        let folder = tempfile::tempdir().unwrap();
        check_folder(folder.path()).unwrap();
        for mode in [0o777, 0o1777, 0o703] {
            set_mode(folder.path(), mode);
            assert!(refused(check_folder(folder.path())).contains(&format!("(mode {mode:04o})")));
        }
    }

    #[test]
    fn a_pipe_without_a_name_is_read_and_what_is_not_there_is_not_found() {
        let (reader, _writer) = io::pipe().unwrap();
        open(Path::new(&format!("/proc/self/fd/{}", reader.as_raw_fd()))).unwrap();
        assert_eq!(open(Path::new("/nonexistent/file")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
