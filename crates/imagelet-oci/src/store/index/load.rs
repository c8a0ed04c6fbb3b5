//! Reads what lies in the folders of a store: records, marks, names of folders. What is damaged is reported, not used.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    num::NonZeroUsize,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use imagelet_core::{
    image::{Digest, DigestAlgorithm},
    runtime::RuntimeError,
};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::store::{
    record::{ImageRecord, LayerRecord, checksum},
    verify::Findings,
};

/// Larger than any file that the store writes; a longer one is damaged.
const FILE_SIZE_MAX: u64 = 256 * 1024 * 1024;
/// Reader threads; more do not speed up a disk or the page cache.
const READERS_MAX: usize = 4;
/// Below this, starting a thread takes longer than the reads.
const FOLDERS_PER_THREAD_MIN: usize = 256;
/// A pipe in the place of a file must not block a start.
const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let file = fs::OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a file"));
    }
    // One byte more, so that the end of the file shows without another read.
    let length = metadata.len().min(FILE_SIZE_MAX) + 1;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(FILE_SIZE_MAX).read_to_end(&mut bytes)?;
    checksum::open(&bytes)
}

pub(crate) fn read_layer(layers: &Path, folder: &str) -> Result<(Digest, LayerRecord), Findings> {
    let path = layers.join(folder);
    if let Some(findings) = mark_on(&path) {
        return Err(findings);
    }
    let record: LayerRecord = read_json(&path.join("layer.json"))
        .map_err(|error| Findings::of("layer.json", "content", error.to_string()))?;
    match record.diff_id.parse::<Digest>() {
        Ok(diff_id) if diff_id.hex() == folder && path.join("fs").is_dir() => Ok((diff_id, record)),
        _ => Err(Findings::of("layer.json", "content", "the record does not belong to the layer")),
    }
}

/// An image's record and its findings: a marked image may have a sound record, which names its layers.
pub(crate) fn read_image(images: &Path, folder: &str) -> (Option<ImageRecord>, Option<Findings>) {
    let path = images.join(folder);
    let marked = mark_on(&path);
    let why = match read_json::<ImageRecord>(&path.join("image.json")) {
        Ok(record) if record.is_sound(folder) => return (Some(record), marked),
        Ok(_) => "it does not belong to the image".to_owned(),
        Err(error) => error.to_string(),
    };
    (None, Some(marked.unwrap_or_else(|| Findings::of("image.json", "content", why))))
}

/// Reads each folder in order, in parallel: a node has ten thousand of them, and the socket waits for this.
pub(crate) fn each_read<T: Send>(folders: Vec<String>, read: impl Fn(&str) -> T + Sync) -> Vec<(String, T)> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(READERS_MAX);
    let each = folders.len().div_ceil(threads).max(FOLDERS_PER_THREAD_MIN);
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

pub(crate) fn folders(path: &Path) -> Result<Vec<String>, RuntimeError> {
    let refused = |error| crate::store::storage_error(format!("could not read `{}`", path.display()), error);
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

/// The digest that a folder is named after; its length gives the algorithm.
pub(crate) fn digest_named(folder: &str) -> Option<Digest> {
    let algorithm = match folder.len() {
        64 => "sha256",
        96 => "sha384",
        128 => "sha512",
        _ => return None,
    };
    format!("{algorithm}:{folder}").parse().ok()
}

pub(crate) fn is_hex_of_digest(name: &str) -> bool {
    name.len() >= 64 && name.bytes().all(is_lower_hex)
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// The plain files in `blobs/` that have a digest for a name.
pub(crate) fn blobs(root: &Path) -> BTreeMap<Digest, u64> {
    let mut found = BTreeMap::new();
    for algorithm in [DigestAlgorithm::Sha256, DigestAlgorithm::Sha384, DigestAlgorithm::Sha512] {
        let Ok(entries) = fs::read_dir(root.join("blobs").join(algorithm.name())) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let digest = entry.file_name().to_str().and_then(|hex| format!("{}:{hex}", algorithm.name()).parse().ok());
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file);
            if let (Some(digest), Some(metadata)) = (digest, metadata) {
                found.insert(digest, metadata.len());
            }
        }
    }
    found
}

pub(crate) const MARK: &str = "damaged";

/// Content of the mark; its presence alone counts.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) found_at: u64,
    pub(crate) findings: Findings,
}

/// The mark on a folder, if any. An unreadable one counts.
fn mark_on(folder: &Path) -> Option<Findings> {
    match fs::read(folder.join(MARK)) {
        Ok(bytes) => match checksum::open::<Mark>(&bytes) {
            Ok(mark) if !mark.findings.is_empty() => Some(mark.findings),
            _ => Some(Findings::of(MARK, "content", "it was found damaged, and what was found does not read")),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Findings::of(MARK, "unreadable", error.to_string())),
    }
}
