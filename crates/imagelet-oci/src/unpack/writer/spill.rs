//! Stores directories' attributes until the end of the layer in an unnamed file, so that memory does not grow with
//! them.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

use crate::scarce::patiently;
use crate::unpack::{archive::Xattrs, error::Fault};

const NAMES_MAX: u32 = 100;

#[derive(Debug)]
pub(crate) struct Spill {
    root: OwnedFd,
    file: Option<File>,
    end: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spilled {
    offset: u64,
    length: u32,
}

impl Spill {
    pub(crate) fn new(root: BorrowedFd<'_>) -> Result<Self, Fault> {
        let root = patiently(|| root.try_clone_to_owned().map_err(|error| errno(&error)))
            .map_err(Fault::io("open the root for"))?;
        Ok(Self { root, file: None, end: 0 })
    }

    pub(crate) fn size(xattrs: &Xattrs) -> usize {
        xattrs.iter().map(|(name, value)| 8 + name.len() + value.len()).sum()
    }

    pub(crate) fn put(&mut self, xattrs: &Xattrs) -> Result<Spilled, Fault> {
        let failed = |error: std::io::Error| Fault::Io { action: "set aside the attributes of", errno: errno(&error) };
        let mut bytes = Vec::with_capacity(Self::size(xattrs));
        for text in xattrs.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend_from_slice(&length(text).to_le_bytes());
            bytes.extend_from_slice(text);
        }
        let place = Spilled { offset: self.end, length: length(&bytes) };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(unnamed(self.root.as_fd()).map_err(Fault::io("set aside the attributes of"))?),
        };
        file.seek(SeekFrom::Start(self.end)).and_then(|_| file.write_all(&bytes)).map_err(failed)?;
        self.end += bytes.len() as u64;
        Ok(place)
    }

    pub(crate) fn get(&mut self, place: Spilled) -> Result<Xattrs, Fault> {
        let failed = |error: std::io::Error| Fault::Io { action: "read again the attributes of", errno: errno(&error) };
        let file = self.file.as_mut().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
        let mut bytes = vec![0; place.length as usize];
        file.seek(SeekFrom::Start(place.offset)).and_then(|_| file.read_exact(&mut bytes)).map_err(failed)?;
        let mut rest = &bytes[..];
        let mut text = || -> Option<Vec<u8>> {
            let (length, behind) = rest.split_first_chunk()?;
            let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = behind;
            Some(text.to_vec())
        };
        Ok(std::iter::from_fn(|| Some((text()?, text()?))).collect())
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("headers are bounded")
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
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
    use super::*;

    #[test]
    fn attributes_come_back_as_they_were_and_nothing_has_a_name_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let root = File::open(folder.path()).unwrap();
        let mut spill = Spill::new(root.as_fd()).unwrap();
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
