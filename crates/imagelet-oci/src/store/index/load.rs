//! Reads the folders of a store: records, marks, folder names. Damaged content is reported, not used.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    num::NonZeroUsize,
    path::Path,
};

use imagelet_core::ports::Findings;
use imagelet_core::{error::RuntimeError, image::Digest};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use serde::de::DeserializeOwned;

use crate::store::{could_not, record::checksum};

/// Maximum bytes to read from a file of the store. All files that the store writes are smaller.
const FILE_SIZE_MAX: u64 = 256 * 1024 * 1024;
/// Maximum number of reader threads. More threads do not speed up a disk or the page cache.
const READERS_MAX: usize = 4;
/// Minimum folders for one reader thread. The start of a thread takes longer than the reads of fewer folders.
const FOLDERS_PER_THREAD_MIN: usize = 256;

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    checksum::open(&read_whole(open_regular(path)?)?)
}

/// Opens without blocking. A pipe, link or device is an error.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::LOOP => io::Error::new(io::ErrorKind::InvalidData, "it is a link"),
        other => other.into(),
    })?;
    let file = File::from(opened);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a file"))
    }
}

pub(crate) fn read_whole(file: File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len().min(FILE_SIZE_MAX);
    let mut bytes = Vec::with_capacity(usize::try_from(length + 1).unwrap_or_default());
    file.take(FILE_SIZE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The record in a folder, or the findings about its damage. A folder that is only marked as damaged has both.
pub(crate) type ReadRecord<T> = Result<T, (Option<T>, Findings)>;

/// Reads the record in each folder named after a digest. The reads are parallel: a start waits for up to 10 000.
pub(crate) fn read_folders<T: DeserializeOwned + Send>(
    place: &Path,
    file: &str,
    is_own: impl Fn(&Path, &Digest, &T) -> bool + Sync,
) -> Result<Vec<(Digest, ReadRecord<T>)>, RuntimeError> {
    let digests = named_folders(place)?;
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(READERS_MAX);
    let each = digests.len().div_ceil(threads).max(FOLDERS_PER_THREAD_MIN);
    let read = |digest: &Digest| {
        let folder = place.join(digest.hex());
        let read = read_record(&folder, file, |record| is_own(&folder, digest, record));
        // A folder that another process has removed after the listing does not count as damaged.
        (read.is_ok() || fs::symlink_metadata(&folder).is_ok()).then(|| (digest.clone(), read))
    };
    let read_part = |part: &[Digest]| part.iter().filter_map(read).collect::<Vec<_>>();
    Ok(std::thread::scope(|scope| {
        let parts: Vec<_> = digests.chunks(each).map(|part| scope.spawn(move || read_part(part))).collect();
        let joined = parts.into_iter().map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.flatten().collect()
    }))
}

fn read_record<T: DeserializeOwned>(folder: &Path, file: &str, is_own: impl Fn(&T) -> bool) -> ReadRecord<T> {
    let marked = mark_on(folder);
    let (record, why) = match read_json::<T>(&folder.join(file)) {
        Ok(record) if is_own(&record) => (Some(record), String::new()),
        Ok(_) => (None, "the record does not belong to the folder".to_owned()),
        Err(error) => (None, error.to_string()),
    };
    match (record, marked) {
        (Some(record), None) => Ok(record),
        (record, marked) => Err((record, marked.unwrap_or_else(|| Findings::of(file, "content", why)))),
    }
}

fn named_folders(path: &Path) -> Result<Vec<Digest>, RuntimeError> {
    let named = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_str().and_then(digest_named));
    let digests = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(|entries| entries.filter_map(|entry| named(entry).transpose()).collect()),
    };
    digests.map_err(could_not("read", path))
}

pub(crate) fn digest_named(folder: &str) -> Option<Digest> {
    let algorithm = match folder.len() {
        64 => "sha256",
        96 => "sha384",
        128 => "sha512",
        _ => return None,
    };
    format!("{algorithm}:{folder}").parse().ok()
}

pub(crate) fn blobs(root: &Path) -> BTreeMap<Digest, u64> {
    let mut found = BTreeMap::new();
    for algorithm in ["sha256", "sha384", "sha512"] {
        let Ok(entries) = fs::read_dir(root.join("blobs").join(algorithm)) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let digest = entry.file_name().to_str().and_then(|hex| format!("{algorithm}:{hex}").parse().ok());
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file);
            if let (Some(digest), Some(metadata)) = (digest, metadata) {
                found.insert(digest, metadata.len());
            }
        }
    }
    found
}

/// The file in a damaged folder, with the findings.
pub(crate) const MARK: &str = "damaged";

/// The findings in the mark on a folder; `None` if the folder has no mark. An unreadable mark counts as a mark.
fn mark_on(folder: &Path) -> Option<Findings> {
    match fs::read(folder.join(MARK)) {
        Ok(bytes) => match checksum::open::<Findings>(&bytes) {
            Ok(findings) if !findings.is_empty() => Some(findings),
            _ => Some(Findings::of(MARK, "content", "it was found damaged, and what was found does not read")),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Findings::of(MARK, "unreadable", error.to_string())),
    }
}
