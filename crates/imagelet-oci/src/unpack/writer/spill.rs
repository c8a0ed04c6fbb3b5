//! Stores directories' attributes until the end of the layer in an unnamed file, so that memory does not grow with
//! them.

use std::{
    fs::File,
    io,
    os::{fd::BorrowedFd, unix::fs::FileExt as _},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

use crate::scarce::patiently;
use crate::unpack::{archive::Xattrs, error::Fault};

const NAMES_MAX: u32 = 100;

#[derive(Debug)]
pub(crate) struct Spill<'a> {
    root: BorrowedFd<'a>,
    file: Option<File>,
    end: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spilled {
    offset: u64,
    length: usize,
}

impl<'a> Spill<'a> {
    pub(crate) fn new(root: BorrowedFd<'a>) -> Self {
        Self { root, file: None, end: 0 }
    }

    pub(crate) fn size(xattrs: &Xattrs) -> usize {
        xattrs.iter().map(|(name, value)| 8 + name.len() + value.len()).sum()
    }

    pub(crate) fn put(&mut self, xattrs: &Xattrs) -> Result<Spilled, Fault> {
        let bytes = postcard::to_stdvec(xattrs).expect("memory takes all");
        let place = Spilled { offset: self.end, length: bytes.len() };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(unnamed(self.root).map_err(Fault::io("set aside the attributes of"))?),
        };
        file.write_all_at(&bytes, self.end).map_err(Fault::io("set aside the attributes of"))?;
        self.end += bytes.len() as u64;
        Ok(place)
    }

    pub(crate) fn get(&self, place: Spilled) -> Result<Xattrs, Fault> {
        let read = || {
            let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
            let mut bytes = vec![0; place.length];
            file.read_exact_at(&mut bytes, place.offset)?;
            postcard::from_bytes(&bytes).map_err(io::Error::other)
        };
        read().map_err(Fault::io("read again the attributes of"))
    }
}

/// An unlinked file below the layer's root.
fn unnamed(root: BorrowedFd<'_>) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for number in 0..NAMES_MAX {
        let name = format!(".imagelet-{number}");
        match patiently(|| rustix::fs::openat(root, &name, flags, Mode::RUSR | Mode::WUSR)) {
            // The layer has a file of that name.
            Err(Errno::EXIST) => {}
            opened => {
                let file = opened?;
                rustix::fs::unlinkat(root, name, AtFlags::empty())?;
                return Ok(file.into());
            }
        }
    }
    Err(Errno::EXIST)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn attributes_come_back_as_they_were_and_nothing_has_a_name_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let root = File::open(folder.path()).unwrap();
        let mut spill = Spill::new(root.as_fd());
        let many: Vec<Xattrs> = vec![
            vec![(b"user.a".to_vec(), b"1".to_vec()), (b"user.b".to_vec(), vec![7; 65_536])],
            vec![(b"user.empty".to_vec(), Vec::new())],
            Vec::new(),
        ];
        let places: Vec<Spilled> = many.iter().map(|xattrs| spill.put(xattrs).unwrap()).collect();
        for (xattrs, place) in many.iter().zip(places).rev() {
            assert_eq!(&spill.get(place).unwrap(), xattrs);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
