//! Finds or creates the root folder of a store, and checks that the folder belongs only to its owner.
//!
//! A user that can write to the store can put any file into a container. So each step of the path is checked from the
//! top. A folder or link must belong to root or to the user of this process. A folder to which other users can write
//! must be sticky. So no other user can change a checked step, or put a link into the store.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Component, Path, PathBuf},
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    failpoint,
    trusted_files::{Exposure, folder_exposure},
};
use rustix::{
    fs::{FileType, Stat, StatVfsMountFlags, lstat},
    io::Errno,
};

use crate::store::could_not;

const FOLDERS: [&str; 7] = ["blobs", "images", "ingest", "layers", "mounts", "tmp", "trash"];
/// Maximum number of links on the path to a store, as in the kernel.
const LINKS_MAX: usize = 40;
const WRITE_GROUP: u32 = 0o020;
const WRITE_OTHER: u32 = 0o002;
/// The user id that the kernel reports for a file whose owner has no mapping in the user namespace.
const UNMAPPED: u32 = 65_534;

#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) is_writable: bool,
}

impl Place {
    pub(crate) fn find(path: &Path, make: bool) -> Result<Option<Self>, RuntimeError> {
        let user = rustix::process::geteuid().as_raw();
        let Some(path) = walk(path, user, make)? else { return Ok(None) };
        let about = lstat(&path).map_err(could_not("open the store", &path))?;
        refuse_strange(&path, "the store", &about, user)?;
        for path in FOLDERS.map(|name| path.join(name)) {
            // A missing folder is created later. An unreadable folder is reported when the store uses it.
            let Ok(inner) = lstat(&path) else { continue };
            refuse_elsewhere(&path, &inner, about.st_dev)?;
            refuse_strange(&path, "the folder", &inner, user)?;
        }
        let disk = rustix::fs::statvfs(&path).map_err(could_not("open the store", &path))?;
        let is_writable = !disk.f_flag.contains(StatVfsMountFlags::RDONLY);
        Ok(Some(Self { path, is_writable }))
    }

    pub(crate) fn is_store(&self) -> bool {
        let has = |name: &str| self.path.join(name).symlink_metadata().is_ok();
        has("names.json") || (has("images") && has("layers"))
    }

    pub(crate) fn make_folders(&self) -> io::Result<()> {
        failpoint!("open.folder");
        for name in FOLDERS {
            make_private(&self.path.join(name))?;
            failpoint!("open.folder");
        }
        Ok(())
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn walk(store: &Path, user: u32, make: bool) -> Result<Option<PathBuf>, RuntimeError> {
    let failed = could_not("open the store", store);
    let path = std::path::absolute(store).map_err(&failed)?;
    let failed = |errno: Errno| failed(errno.into());
    let (mut at, mut links, mut rest) = (PathBuf::from("/"), 0, steps(&path));
    let top = lstat(&at).map_err(failed)?;
    // While a link is followed, the number of path names after the link; otherwise `usize::MAX`.
    let mut linked = usize::MAX;
    while let Some(name) = rest.pop() {
        if rest.len() < linked {
            linked = usize::MAX;
        }
        if name == ".." {
            at.pop();
            continue;
        }
        if let Some(to) = exposure(&lstat(&at).map_err(failed)?, &top, user) {
            return Err(refuse_exposed(store, &at, to));
        }
        at.push(&name);
        let found = match lstat(&at) {
            Err(Errno::NOENT) if !make => return Ok(None),
            // No folder is created behind a dangling link.
            Err(Errno::NOENT) if linked == usize::MAX => {
                make_private(&at).map_err(could_not("create the store", store))?;
                lstat(&at)
            }
            found => found,
        };
        let about = found.map_err(failed)?;
        match FileType::from_raw_mode(about.st_mode) {
            FileType::Directory => {}
            FileType::Symlink if links < LINKS_MAX => {
                links += 1;
                if about.st_uid != 0 && about.st_uid != user {
                    let (store, link, owner) = (store.display(), at.display(), about.st_uid);
                    let message =
                        format!("the way to the store `{store}` leads through `{link}`, a link of user {owner}");
                    return Err(refused(message, "name the folder itself with --store DIR"));
                }
                let target = fs::read_link(&at).map_err(could_not("open the store", store))?;
                at.pop();
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                linked = linked.min(rest.len());
                rest.extend(steps(&target));
            }
            FileType::Symlink => return Err(failed(Errno::LOOP)),
            _ => return Err(failed(Errno::NOTDIR)),
        }
    }
    Ok(Some(at))
}

fn steps(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|step| match step {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

/// The other users that can replace a folder's content. If root has no mapping, the owner of `/` counts as root.
fn exposure(folder: &Stat, top: &Stat, user: u32) -> Option<Exposure> {
    let mut folder = *folder;
    if folder.st_uid == UNMAPPED && top.st_uid == UNMAPPED {
        folder.st_uid = 0;
    }
    folder_exposure(&folder, user)
}

fn refused(message: String, hint: impl Into<String>) -> RuntimeError {
    RuntimeError::new(RuntimeErrorKind::Unavailable, message).with_hint(hint)
}

fn refuse_exposed(store: &Path, folder: &Path, to: Exposure) -> RuntimeError {
    let (store, folder) = (store.display(), folder.display());
    let (by, remedy) = match to {
        Exposure::Owner(user) => (format!("user {user}, the owner of `{folder}`"), format!("chown root {folder}")),
        _ => (format!("others with write access to `{folder}`"), format!("chmod go-w {folder}")),
    };
    let message = format!("the store `{store}` can be replaced by {by}");
    refused(message, format!("{remedy}, or name another place with --store DIR"))
}

fn refuse_strange(path: &Path, what: &str, about: &Stat, user: u32) -> Result<(), RuntimeError> {
    let (path, owner) = (path.display(), about.st_uid);
    if owner != user {
        return Err(refused(
            format!("{what} `{path}` belongs to user {owner}, not to user {user}"),
            format!("run as user {owner}, or name another place with --store DIR"),
        ));
    }
    if about.st_mode & (WRITE_GROUP | WRITE_OTHER) != 0 {
        let message = format!("{what} `{path}` can be written by others (mode {:o})", about.st_mode & 0o7777);
        return Err(refused(message, format!("chmod go-w {path}")));
    }
    Ok(())
}

/// Rejects a folder on another file system: no rename can move a layer into it, and the store's sync does not cover it.
fn refuse_elsewhere(path: &Path, about: &Stat, device: u64) -> Result<(), RuntimeError> {
    let what = match FileType::from_raw_mode(about.st_mode) {
        FileType::Symlink => "is a link",
        FileType::Directory if about.st_dev == device => return Ok(()),
        FileType::Directory => "is on another file system",
        _ => "is not a folder",
    };
    Err(refused(
        format!("`{}` {what}, and a store is one tree on one file system", path.display()),
        "move the whole store and name its new place with --store DIR, or make the root a link to it",
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    fn scratch() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refused(path: &Path) -> String {
        Place::find(path, true).expect_err("it is refused").to_string()
    }

    #[test]
    fn a_place_is_made_for_its_owner_alone_and_found_again() {
        let (_folder, path) = scratch();
        let wanted = path.join("a/b");
        assert!(Place::find(&wanted, false).unwrap().is_none());
        assert!(!path.join("a").exists(), "looking makes nothing");
        let place = Place::find(&wanted, true).unwrap().unwrap();
        assert_eq!(fs::metadata(&wanted).unwrap().mode() & 0o7777, 0o700);
        assert!(!place.is_store());
        place.make_folders().unwrap();
        assert!(place.is_store());
        // Through a link of ours, and with `..`, the place is the same.
        symlink("a", path.join("link")).unwrap();
        let again = Place::find(&path.join("a/../link/./b"), false).unwrap().unwrap();
        assert_eq!(again.path, wanted);
        // A folder is made below a link, but not behind a dangling one.
        assert_eq!(Place::find(&path.join("link/c"), true).unwrap().unwrap().path, path.join("a/c"));
        symlink("none/at/all", path.join("dangling")).unwrap();
        assert!(refused(&path.join("dangling/d")).contains("could not open the store"));
        assert!(!path.join("none").exists());
        fs::write(path.join("file"), "").unwrap();
        assert!(refused(&path.join("file")).contains("could not open the store"));
        symlink("circle", path.join("circle")).unwrap();
        assert!(refused(&path.join("circle")).contains("could not open the store"));
    }

    #[test]
    fn a_place_that_others_can_replace_or_write_to_is_refused() {
        let (_folder, path) = scratch();
        let (parent, wanted) = (path.join("parent"), path.join("parent/store"));
        Place::find(&wanted, true).unwrap().unwrap().make_folders().unwrap();
        for (refusal, changed, bits) in [
            ("can be replaced by others", &parent, 0o777),
            ("can be written by others (mode 777)", &wanted, 0o777),
            ("can be written by others (mode 770)", &wanted, 0o770),
            ("layers` can be written by others", &wanted.join("layers"), 0o720),
        ] {
            mode(changed, bits);
            assert!(refused(&wanted).contains(refusal), "{refusal}: {}", refused(&wanted));
            mode(changed, 0o700);
        }
        // As in /tmp, where only the owner of a folder may move it.
        mode(&parent, 0o1777);
        Place::find(&wanted, false).unwrap().unwrap();
    }

    #[test]
    fn what_another_user_put_there_is_refused() {
        assert!(rustix::process::geteuid().is_root(), "giving files away needs root");
        let (_folder, path) = scratch();
        mode(&path, 0o1777);
        let (store, other) = (path.join("store"), Some(4711));
        // A link in a world-writable folder leads to a private folder.
        fs::create_dir(path.join("ours")).unwrap();
        mode(&path.join("ours"), 0o700);
        symlink("ours", &store).unwrap();
        lchown(&store, other, other).unwrap();
        assert!(refused(&store).contains("a link of user 4711"), "{}", refused(&store));
        assert_eq!(fs::read_dir(path.join("ours")).unwrap().count(), 0, "something was written behind the link");
        fs::remove_file(&store).unwrap();
        fs::create_dir(&store).unwrap();
        chown(&store, other, other).unwrap();
        assert!(refused(&store).contains("belongs to user 4711"), "{}", refused(&store));
        chown(&store, Some(0), Some(0)).unwrap();
        mode(&store, 0o700);
        Place::find(&store, true).unwrap().unwrap().make_folders().unwrap();
        chown(store.join("tmp"), other, other).unwrap();
        assert!(refused(&store).contains("tmp` belongs to user 4711"), "{}", refused(&store));
    }

    #[test]
    fn a_store_below_a_folder_of_another_user_is_refused_with_the_folder_and_the_remedy() {
        let (_folder, path) = scratch();
        let (home, wanted) = (path.join("home"), path.join("home/ours/store"));
        Place::find(&wanted, true).unwrap().unwrap().make_folders().unwrap();
        chown(&home, Some(4711), Some(4711)).unwrap();
        mode(&home, 0o755);
        let error = Place::find(&wanted, true).expect_err("its owner can rename what is in it");
        let (store, home) = (wanted.display(), home.display());
        assert_eq!(
            error.to_string(),
            format!("the store `{store}` can be replaced by user 4711, the owner of `{home}`")
        );
        let remedy = format!("chown root {home}, or name another place with --store DIR");
        assert_eq!(error.hint(), Some(remedy.as_str()));
        // Sticky or not, its owner can replace it.
        mode(&path.join("home"), 0o1755);
        assert!(refused(&wanted).contains("the owner of"), "{}", refused(&wanted));
        chown(path.join("home"), Some(0), Some(0)).unwrap();
        Place::find(&wanted, false).unwrap().unwrap();
    }

    #[test]
    fn only_who_could_replace_a_store_makes_a_folder_on_its_way_unfit() {
        let about = |mode: u32, user: u32, group: u32| {
            let mut about = rustix::fs::stat("/").unwrap();
            (about.st_mode, about.st_uid, about.st_gid) = (0o040_000 | mode, user, group);
            about
        };
        for (mode, user, group, top, expected) in [
            (0o755, 0, 0, 0, false),
            (0o775, 0, 0, 0, false),
            (0o775, 0, 1000, 0, false),
            (0o775, 0, 1001, 0, true),
            (0o777, 0, 1000, 0, true),
            (0o1777, 0, 1001, 0, false),
            (0o755, 1000, 1000, 0, false),
            (0o755, 1001, 1000, 0, true),
            (0o1777, 1001, 1001, 0, true),
            // Without root in the user namespace.
            (0o755, UNMAPPED, UNMAPPED, UNMAPPED, false),
            (0o777, UNMAPPED, UNMAPPED, UNMAPPED, true),
            (0o755, UNMAPPED, UNMAPPED, 0, true),
            (0o755, 1001, 1001, UNMAPPED, true),
        ] {
            let exposure = exposure(&about(mode, user, group), &about(0o755, top, top), 1000);
            assert_eq!(exposure.is_some(), expected, "{mode:o} of user {user} and group {group} below {top}");
        }
    }
}
