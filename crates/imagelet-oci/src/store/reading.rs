//! Reads what lies in the folders of a store: records, marks, names of folders. What is damaged is told, not believed.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    num::NonZeroUsize,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use imagelet_core::{image::Digest, runtime::RuntimeError};
use rustix::{
    fs::{Access, AtFlags, Mode, OFlags},
    io::Errno,
};
use serde::de::DeserializeOwned;

use super::{
    copies::{Copies, Kind},
    damage::{MARK, mark_on},
    record::{ImageRecord, LayerRecord},
    seal,
    verify::Findings,
};

/// No file of ours is larger; what is, is damaged.
const FILE_SIZE_MAX: u64 = 256 * 1024 * 1024;
/// Threads that read a store; the disk, or the memory in front of it, keeps no more busy.
const READERS_MAX: usize = 4;
/// Fewer folders are read before a thread has begun.
const FOLDERS_WORTH_A_THREAD: usize = 256;
/// A pipe in the place of a file must not hold a start up.
const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    json_of(fs::OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?)
}

fn json_of<T: DeserializeOwned>(file: File) -> io::Result<T> {
    seal::open(&bytes_of(file)?)
}

fn bytes_of(file: File) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a file"));
    }
    // With room for its end, which is then seen without asking again and again.
    let length = metadata.len().min(FILE_SIZE_MAX) + 1;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(FILE_SIZE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A folder of folders. The way to it is walked once, not for each file below it.
pub(super) struct Place<'a> {
    pub(super) path: PathBuf,
    /// `None`: it does not open, which whoever reads below it learns.
    folder: Option<File>,
    kind: Kind,
    copies: &'a Copies,
}

impl<'a> Place<'a> {
    pub(super) fn open(path: PathBuf, kind: Kind, copies: &'a Copies) -> Self {
        Self { folder: File::open(&path).ok(), path, kind, copies }
    }

    /// The record of a folder that carries no mark, if a copy of it holds.
    fn copied<T: DeserializeOwned>(&self, folder: &str) -> Option<T> {
        let bytes = self.copies.of(self.kind, self.folder.as_ref(), folder)?;
        // Whatever its own seal says: the copies have one of their own, and the record was whole when it was copied.
        serde_json::from_slice(bytes).inspect_err(|_| self.copies.regret()).ok()
    }

    /// The mark of a folder in it.
    fn mark_on(&self, folder: &str) -> Option<Findings> {
        if let Some(place) = &self.folder
            && let Err(Errno::NOENT) =
                rustix::fs::accessat(place, format!("{folder}/{MARK}"), Access::EXISTS, AtFlags::empty())
        {
            return None;
        }
        mark_on(&self.path.join(folder))
    }

    fn bytes(&self, folder: &str) -> io::Result<Vec<u8>> {
        let name = self.kind.file();
        let Some(place) = &self.folder else {
            let path = self.path.join(folder).join(name);
            return bytes_of(fs::OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?);
        };
        let flags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
        bytes_of(File::from(rustix::fs::openat(place, format!("{folder}/{name}"), flags, Mode::empty())?))
    }

    /// The record of a folder, read from its own file.
    fn record<T: DeserializeOwned>(&self, folder: &str) -> io::Result<T> {
        seal::open(&self.bytes(folder)?)
    }
}

/// A layer's record, or what is wrong with it.
pub(super) fn read_layer(layers: &Place<'_>, folder: &str) -> Result<(Digest, LayerRecord), Findings> {
    // What stands in the folder has not changed since it was copied, so its tree is there.
    if let Some(record) = layers.copied::<LayerRecord>(folder)
        && let Some(diff_id) = diff_id_of(&record, folder)
    {
        return Ok((diff_id, record));
    }
    if let Some(findings) = layers.mark_on(folder) {
        return Err(findings);
    }
    let record = layers
        .record::<LayerRecord>(folder)
        .map_err(|error| Findings::of("layer.json", "content", error.to_string()))?;
    match diff_id_of(&record, folder) {
        Some(diff_id) if layers.path.join(folder).join("fs").is_dir() => Ok((diff_id, record)),
        _ => Err(Findings::of("layer.json", "content", "the record does not belong to the layer")),
    }
}

/// The key of a layer, if its record belongs to the folder.
fn diff_id_of(record: &LayerRecord, folder: &str) -> Option<Digest> {
    record.diff_id.parse::<Digest>().ok().filter(|diff_id| diff_id.hex() == folder)
}

/// An image's record, and what is wrong with the image: one that carries a mark may have a sound record, which names its
/// layers.
pub(super) fn read_image(images: &Place<'_>, folder: &str) -> (Option<ImageRecord>, Option<Findings>) {
    // It was sound when it was copied.
    if let Some(record) = images.copied::<ImageRecord>(folder).filter(|record| record.is_of(folder)) {
        return (Some(record), None);
    }
    let marked = images.mark_on(folder);
    let why = match images.record::<ImageRecord>(folder) {
        Ok(record) if record.is_sound(folder) => return (Some(record), marked),
        Ok(_) => "it does not belong to the image".to_owned(),
        Err(error) => error.to_string(),
    };
    (None, Some(marked.unwrap_or_else(|| Findings::of("image.json", "content", why))))
}

/// The bytes of a record that nothing is wrong with.
pub(super) fn record_to_copy(path: &Path, kind: Kind, folder: &str) -> Option<Vec<u8>> {
    let nothing = Copies::default();
    let place = Place::open(path.to_owned(), kind, &nothing);
    let is_sound = match kind {
        Kind::Layer => read_layer(&place, folder).is_ok(),
        Kind::Image => matches!(read_image(&place, folder), (Some(_), None)),
    };
    if is_sound { place.bytes(folder).ok() } else { None }
}

/// Reads what lies in each folder, in the order of the folders. A node has ten thousand of them, and waits for its socket.
pub(super) fn each_read<T: Send>(folders: Vec<String>, read: impl Fn(&str) -> T + Sync) -> Vec<(String, T)> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(READERS_MAX);
    let each = folders.len().div_ceil(threads).max(FOLDERS_WORTH_A_THREAD);
    let read_part = |part: &[String]| part.iter().map(|folder| read(folder)).collect::<Vec<T>>();
    let found: Vec<T> = std::thread::scope(|scope| {
        let (own, others) = folders.split_at(each.min(folders.len()));
        let others: Vec<_> = others.chunks(each).map(|part| scope.spawn(move || read_part(part))).collect();
        let mut found = read_part(own);
        for part in others {
            found.extend(part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        found
    });
    folders.into_iter().zip(found).collect()
}

/// The names of the digest-named folders in a folder.
pub(super) fn folders(path: &Path) -> Result<Vec<String>, RuntimeError> {
    let refused = |error| super::storage_error(format!("could not read `{}`", path.display()), error);
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refused(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Ok(name) = entry.map_err(refused)?.file_name().into_string()
            && is_hex_of_digest(&name)
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// The digest that a folder is named after, by the number of its digits.
pub(super) fn digest_named(folder: &str) -> Option<Digest> {
    let algorithm = match folder.len() {
        64 => "sha256",
        96 => "sha384",
        128 => "sha512",
        _ => return None,
    };
    format!("{algorithm}:{folder}").parse().ok()
}

/// Whether a folder's name is that of a layer or an image.
pub(super) fn is_hex_of_digest(name: &str) -> bool {
    name.len() >= 64 && name.bytes().all(is_lower_hex)
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}
