//! Directories of the layer: finds, creates and replaces them, always below the root.
//!
//! **Invariant:** no path of more than one component reaches the kernel. Each directory is opened with `O_NOFOLLOW`
//! below its parent's descriptor. Links are resolved as in a container: `/` is the layer's root, and `..` of the root
//! is the root. So no link can leave the layer.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, Stat},
    io::Errno,
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    deferred_metadata::DeferredMetadata,
    whiteout::{Opacity, look},
};
use crate::unpack::{
    UnpackOptions,
    budget::MemoryReservation,
    error::{Fault, shown},
    name,
};
use crate::{layer_folders::DIRECTORY, scarce::patiently};

/// Maximum directories that one layer keeps open. The total of all layers has a limit, too.
const OPEN_MAX: usize = 32;
const LINKS_MAX: u32 = 40;
const STEPS_MAX: usize = 1024;
const REMOVE: &str = "remove the directory replaced by";
const IMPLICIT_MODE: u32 = 0o755;
/// Memory, in addition to the bytes, of the name of a directory that is still to be removed.
const REMEMBERED_COST: usize = 48;

#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    /// The real path with all links resolved; empty for the root.
    pub(crate) path: Vec<u8>,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Report,
}

struct Walk {
    missing: Missing,
    links: u32,
    steps: usize,
}

impl Walk {
    fn count_step(&mut self) -> Result<(), Fault> {
        self.steps = self.steps.checked_sub(1).ok_or_else(|| Fault::limit("its parents have too many links"))?;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freed {
    pub(crate) bytes: u64,
    pub(crate) disk_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Tree<'a> {
    options: &'a UnpackOptions,
    root: Rc<Directory>,
    /// Open directories, by path as in entries, links unresolved. The removal of any directory or link clears the map.
    open: HashMap<Vec<u8>, (Rc<Directory>, OwnedSemaphorePermit)>,
    pub(crate) deferred: DeferredMetadata,
    removal: MemoryReservation,
    /// The disk usage of new directories that have no entry. The writer has not counted it yet.
    pub(crate) made_bytes: u64,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(root: BorrowedFd<'_>, options: &'a UnpackOptions) -> Result<Self, Fault> {
        let fd = open_directory(root, b".").map_err(Fault::io("open the root for"))?;
        Ok(Tree {
            options,
            root: Rc::new(Directory { fd, path: Vec::new() }),
            open: HashMap::new(),
            deferred: DeferredMetadata::new(MemoryReservation::on(&options.memory)),
            removal: MemoryReservation::on(&options.memory),
            made_bytes: 0,
        })
    }

    /// Opens the directory of a clean path, and follows links inside the layer; `None` if a component is missing.
    pub(crate) fn directory(&mut self, path: &[u8], missing: Missing) -> Result<Option<Rc<Directory>>, Fault> {
        let steps = STEPS_MAX + self.options.limits.depth_max;
        self.walk(path, &mut Walk { missing, links: LINKS_MAX, steps })
    }

    pub(crate) fn real_directory(&mut self, path: &[u8]) -> Result<Option<Rc<Directory>>, Fault> {
        let steps = STEPS_MAX + self.options.limits.depth_max;
        self.walk(path, &mut Walk { missing: Missing::Report, links: 0, steps })
    }

    pub(crate) fn remove(&mut self, parent: &Directory, name: &[u8]) -> Result<Freed, Fault> {
        let Some(stat) = look(parent.as_fd(), name)? else {
            return Ok(Freed::default());
        };
        let mut freed = Freed::default();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                self.open.clear();
                let removed = remove_tree(parent.as_fd(), name, &self.options.cancelled, &mut self.removal, &mut freed);
                self.removal.clear();
                removed?;
            }
            kind => {
                if kind == FileType::Symlink {
                    self.open.clear();
                }
                unlink(parent.as_fd(), name, &stat, &mut freed)?;
            }
        }
        self.deferred.forget(&name::join(&parent.path, name));
        Ok(freed)
    }

    fn walk(&mut self, path: &[u8], walk: &mut Walk) -> Result<Option<Rc<Directory>>, Fault> {
        let mut known = path;
        let mut here = loop {
            if known.is_empty() {
                break Rc::clone(&self.root);
            }
            if let Some((directory, _)) = self.open.get(known) {
                break Rc::clone(directory);
            }
            known = name::split(known).0;
        };
        let mut at = known.len();
        while at < path.len() {
            let start = if at == 0 { 0 } else { at + 1 };
            let end = path[start..].iter().position(|&byte| byte == b'/').map_or(path.len(), |slash| start + slash);
            let Some(next) = self.step(&here, &path[start..end], walk)? else {
                return Ok(None);
            };
            here = next;
            self.keep(&path[..end], &here);
            at = end;
        }
        Ok(Some(here))
    }

    fn keep(&mut self, path: &[u8], directory: &Rc<Directory>) {
        if self.open.len() >= OPEN_MAX {
            self.open.clear();
        }
        let budget = &self.options.memory.budget;
        let permit = budget.directory().or_else(|| {
            self.open.clear();
            budget.directory()
        });
        if let Some(permit) = permit {
            self.open.insert(path.to_vec(), (Rc::clone(directory), permit));
        }
    }

    fn step(&mut self, here: &Rc<Directory>, name: &[u8], walk: &mut Walk) -> Result<Option<Rc<Directory>>, Fault> {
        walk.count_step()?;
        let errno = match open_directory(here.as_fd(), name) {
            Ok(fd) => return self.opened(here, name, fd).map(Some),
            Err(errno) => errno,
        };
        match errno {
            Errno::NOENT if walk.missing == Missing::Report => Ok(None),
            Errno::NOENT => self.make(here, name, Opacity::Merged).map(Some),
            Errno::NOTDIR | Errno::LOOP => match rustix::fs::readlinkat(here, name, Vec::new()) {
                Ok(target) => self.follow(here, name, target.to_bytes(), walk),
                Err(Errno::INVAL) => self.enter_whiteout(here, name, walk.missing),
                Err(errno) => Err(Fault::io("read a link above")(errno)),
            },
            errno => Err(Fault::io("open the directory of")(errno)),
        }
    }

    fn opened(&self, here: &Directory, name: &[u8], fd: OwnedFd) -> Result<Rc<Directory>, Fault> {
        // Names are bounded, but links let short names lead to deeper and deeper directories.
        let path = name::join(&here.path, name);
        let limits = &self.options.limits;
        if path.len() > limits.path_max || path.split(|&byte| byte == b'/').count() > limits.depth_max {
            return Err(Fault::limit("it lies too deep in the layer"));
        }
        Ok(Rc::new(Directory { fd, path }))
    }

    fn make(&mut self, here: &Directory, name: &[u8], opacity: Opacity) -> Result<Rc<Directory>, Fault> {
        let action = "make the directory of";
        rustix::fs::mkdirat(here, name, Mode::from_raw_mode(IMPLICIT_MODE)).map_err(Fault::io(action))?;
        let fd = open_directory(here.as_fd(), name).map_err(Fault::io(action))?;
        // The mode must not depend on the umask.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(IMPLICIT_MODE)).map_err(Fault::io(action))?;
        let directory = self.opened(here, name, fd)?;
        self.made_bytes += crate::unpack::DIRECTORY_COST;
        self.deferred.implicit(&directory.path, opacity)?;
        Ok(directory)
    }

    fn enter_whiteout(
        &mut self,
        here: &Directory,
        name: &[u8],
        missing: Missing,
    ) -> Result<Option<Rc<Directory>>, Fault> {
        let path = name::join(&here.path, name);
        let whiteout = self.deferred.notes.get(&path).is_some_and(|note| note.whiteout);
        match (whiteout, missing) {
            (true, Missing::Report) => Ok(None),
            (true, Missing::Create) => {
                rustix::fs::unlinkat(here, name, AtFlags::empty()).map_err(Fault::io("replace a whiteout above"))?;
                self.make(here, name, Opacity::Opaque).map(Some)
            }
            (false, _) => Err(Fault::refused(format!("`{}` above it is no directory", shown(&path)))),
        }
    }

    fn follow(
        &mut self,
        here: &Rc<Directory>,
        name: &[u8],
        target: &[u8],
        walk: &mut Walk,
    ) -> Result<Option<Rc<Directory>>, Fault> {
        let Some(links) = walk.links.checked_sub(1) else {
            let (link, target) = (shown(&name::join(&here.path, name)), shown(target));
            let reason = format!("`{link}` above it is a symbolic link to `{target}`, one link too many");
            return Err(Fault::refused(reason));
        };
        walk.links = links;
        let mut here = Rc::clone(if target.first() == Some(&b'/') { &self.root } else { here });
        for component in target.split(|&byte| byte == b'/') {
            let next = match component {
                b"" | b"." => continue,
                b".." if here.path.is_empty() => continue,
                b".." => {
                    walk.count_step()?;
                    let above = name::split(&here.path).0.to_vec();
                    self.walk(&above, walk)?
                }
                _ => self.step(&here, component, walk)?,
            };
            let Some(next) = next else {
                return Ok(None);
            };
            here = next;
        }
        Ok(Some(here))
    }
}

fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    patiently(|| rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()))
}

/// Removes a directory and everything below it, with two descriptors at any depth and one scan of each directory.
fn remove_tree(
    parent: BorrowedFd<'_>,
    name: &[u8],
    cancelled: &AtomicBool,
    memory: &mut MemoryReservation,
    freed: &mut Freed,
) -> Result<(), Fault> {
    let open = |at: BorrowedFd<'_>, name: &[u8]| open_directory(at, name).map_err(Fault::io(REMOVE));
    let mut here = open(parent, name)?;
    // For each directory from the top to the current one, the subdirectories still to remove.
    let mut below = vec![remove_files(here.as_fd(), memory, freed)?];
    while let Some(left) = below.last() {
        if cancelled.load(Ordering::Relaxed) {
            return Err(Fault::cancelled());
        }
        if let Some(child) = left.last() {
            here = open(here.as_fd(), child)?;
            below.push(remove_files(here.as_fd(), memory, freed)?);
            continue;
        }
        below.pop();
        freed.disk_bytes += crate::unpack::DIRECTORY_COST;
        if let Some(siblings) = below.last_mut() {
            // No other process moves directories in the layer, so `..` is the parent directory.
            here = open(here.as_fd(), b"..")?;
            let empty = siblings.pop().expect("it has the one we come from");
            memory.shrink(empty.len() + REMEMBERED_COST);
            rustix::fs::unlinkat(&here, empty, AtFlags::REMOVEDIR).map_err(Fault::io(REMOVE))?;
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(Fault::io(REMOVE))
}

fn remove_files(
    directory: BorrowedFd<'_>,
    memory: &mut MemoryReservation,
    freed: &mut Freed,
) -> Result<Vec<Vec<u8>>, Fault> {
    let mut found = Vec::new();
    for entry in patiently(|| Dir::read_from(directory)).map_err(Fault::io(REMOVE))? {
        let entry = entry.map_err(Fault::io(REMOVE))?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match look(directory, name)? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                memory.grow(name.len() + REMEMBERED_COST)?;
                found.push(name.to_vec());
            }
            Some(stat) => unlink(directory, name, &stat, freed)?,
            None => {}
        }
    }
    Ok(found)
}

fn unlink(parent: BorrowedFd<'_>, name: &[u8], stat: &Stat, freed: &mut Freed) -> Result<(), Fault> {
    rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(Fault::io("replace what stood at"))?;
    if stat.st_nlink == 1 && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        let size = stat.st_size.cast_unsigned();
        freed.bytes += size;
        // Counts the size, not the blocks: a new file may have no blocks yet, and a sparse file has fewer.
        freed.disk_bytes += crate::unpack::disk_size(size);
    }
    Ok(())
}

/// The umask of the process, read without a change; if it is unreadable, all bits, so that each entry gets a `chmod`.
pub(crate) fn process_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    umask.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o777)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::unpack::LayerMemory;

    const LIMIT: usize = 80 << 10;

    fn opened(path: &Path) -> OwnedFd {
        rustix::fs::open(path, DIRECTORY, Mode::empty()).expect("a directory")
    }

    #[test]
    fn what_a_removal_remembers_is_claimed_to_the_byte_and_given_back() {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..5 {
            let inner = folder.path().join(format!("old/directory{number}/inner"));
            fs::create_dir_all(&inner).expect("a directory");
            fs::write(inner.join("file"), "content").expect("a file");
        }
        let memory = LayerMemory::of_its_own(64 << 10);
        let is_free = |bytes: usize| MemoryReservation::on(&memory).grow(bytes).is_ok();
        let (mut claim, mut freed) = (MemoryReservation::on(&memory), Freed::default());
        let old = opened(&folder.path().join("old"));
        let found = remove_files(old.as_fd(), &mut claim, &mut freed).expect("it reads");
        let taken = 5 * ("directory0".len() + REMEMBERED_COST);
        assert!(found.len() == 5 && is_free(LIMIT - taken) && !is_free(LIMIT - taken + 1), "{found:?}");
        claim.clear();
        let root = opened(folder.path());
        remove_tree(root.as_fd(), b"old", &AtomicBool::new(false), &mut claim, &mut freed).expect("it goes");
        assert!(is_free(LIMIT), "all memory is given back");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
