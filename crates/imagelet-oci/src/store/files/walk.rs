//! Walks a tree. Opened paths have one component, no link is followed, and the number of open descriptors is fixed.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Dir, Mode},
    io::Errno,
};

use crate::layer_folders::DIRECTORY;

/// Calls `visit` for each entry below `root`, with its path, its directory and its name. `visit` returns whether to
/// walk the entry, too. For an unreadable directory, `visit` gets the error. An error of `visit` ends the walk.
pub(crate) fn walk(
    root: OwnedFd,
    mut visit: impl FnMut(&[u8], Result<(BorrowedFd<'_>, &[u8]), Errno>) -> io::Result<bool>,
) -> io::Result<()> {
    let mut here = root;
    let mut path = Vec::new();
    // For each directory on the current path: its path, and the subdirectories still to visit.
    let mut levels: Vec<(Vec<u8>, Vec<Vec<u8>>)> = Vec::new();
    loop {
        let mut below = Vec::new();
        match Dir::read_from(&here) {
            Ok(entries) => {
                for entry in entries {
                    let entry = match entry {
                        Ok(entry) => entry,
                        Err(error) => {
                            visit(&path, Err(error))?;
                            break;
                        }
                    };
                    let name = entry.file_name().to_bytes();
                    if !matches!(name, b"." | b"..") && visit(&join(&path, name), Ok((here.as_fd(), name)))? {
                        below.push(name.to_vec());
                    }
                }
            }
            Err(error) => drop(visit(&path, Err(error))?),
        }
        levels.push((path, below));
        path = loop {
            let Some((around, below)) = levels.last_mut() else { return Ok(()) };
            if let Some(name) = below.pop() {
                let child = join(around, &name);
                match rustix::fs::openat(&here, name.as_slice(), DIRECTORY, Mode::empty()) {
                    Ok(directory) => {
                        here = directory;
                        break child;
                    }
                    Err(error) => drop(visit(&child, Err(error))?),
                }
            } else {
                levels.pop();
                if !levels.is_empty() {
                    // Only this process moves directories in the store, so `..` is the parent that was visited before.
                    here = rustix::fs::openat(&here, c"..", DIRECTORY, Mode::empty())?;
                }
            }
        };
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}
