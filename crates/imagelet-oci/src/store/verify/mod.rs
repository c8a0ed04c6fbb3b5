//! Verification: reads all content again, and reports content that differs from the written content.
//!
//! Compares documents and kept blobs with their digests, the store's records with their checksums, and a layer's tree
//! with its file manifest. The verification changes nothing; `corruption` handles the damage.

mod compare;
mod tree;

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use imagelet_core::{
    image::{Digest, DigestAlgorithm, ImageId},
    ports::{Findings, LayerCheck},
};
use rustix::{
    fs::{Advice, fadvise},
    io::Errno,
};

use super::{
    Store,
    file_manifest::{FileManifestReader, LIST},
    index::load::{open_regular, read_whole},
    record::{ImageRecord, LayerRecord, TREE, checksum},
};
use crate::hash::Hash;

const BUFFER: usize = 128 << 10;
/// Files beside a layer's manifest. The layer's record may have their digests.
const SIDE_FILES: [&str; 2] = ["implicit.json", "ownership.json"];
const OTHER_RECORD: &str = "it is not the record that the store was opened with";

/// The function that a check calls with the bytes of each read, or zero. Its error `Interrupted` cancels the check.
pub(crate) type Watch = dyn Fn(u64) -> io::Result<()> + Send + Sync;

/// Whether an error concerns the check itself: the check is cancelled, or the process lacks a resource.
fn ends_check(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::Interrupted
        || errno.is_some_and(|errno| matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

impl Store {
    /// Compares a layer with its record and manifest. An error means a failed check; damage is in the result.
    pub(crate) fn check_layer(&self, layer: &Digest, watch: &Watch) -> io::Result<LayerCheck> {
        let mut check = LayerCheck::default();
        let folder = self.layer_folder(layer);
        let Some(record) = read_record::<LayerRecord>(&folder, "layer.json", &mut check.findings) else {
            return Ok(check);
        };
        // A sync may have made the layer durable during the check.
        let durable = |record: LayerRecord| LayerRecord { unsettled: None, ..record };
        if self.layer(layer).map(durable) != Some(durable(record.clone())) {
            check.findings.add("layer.json".into(), "content", OTHER_RECORD.into());
            return Ok(check);
        }
        let Some(digest) = record.sums.get(LIST) else {
            check.findings.add(LIST.into(), "missing", "the layer's record has no digest of it".into());
            return Ok(check);
        };
        for name in SIDE_FILES {
            check.bytes += check_side_file(&folder, name, record.sums.get(name), watch, &mut check.findings)?;
        }
        let opened = open_cold(&folder.join(LIST)).and_then(|file| {
            check.bytes += file.metadata()?.len();
            FileManifestReader::open(file, digest, || watch(0))
        });
        match opened {
            Ok(mut manifest) => tree::check(&folder.join(TREE), &mut manifest, watch, &mut check)?,
            Err(error) if ends_check(&error) => return Err(error),
            Err(error) => check.findings.unreadable(LIST, &error),
        }
        Ok(check)
    }

    pub(crate) fn check_documents(&self, id: &ImageId, record: &ImageRecord, watch: &Watch) -> io::Result<Findings> {
        let folder = self.image_folder(id);
        let mut findings = Findings::default();
        if let Some(found) = read_record::<ImageRecord>(&folder, "image.json", &mut findings)
            && found != *record
        {
            findings.add("image.json".into(), "content", OTHER_RECORD.into());
        }
        for (name, digest) in record.documents() {
            check_side_file(&folder, name, Some(digest), watch, &mut findings)?;
        }
        Ok(findings)
    }

    pub(crate) fn check_names(&self) -> Findings {
        let index = self.index();
        let mut findings = Findings::default();
        match open_cold(&self.root.join("names.json")).and_then(read_whole) {
            // The file may be missing, because the first durable name creates it.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && (index.names.is_empty() || index.is_unsettled()) => {}
            Err(error) => findings.unreadable("names.json", &error),
            // If the store is read-only, another process may have written other names.
            Ok(found)
                if checksum::open::<serde::de::IgnoredAny>(&found).is_err()
                    || (!self.is_read_only() && !index.is_written_in(&found)) =>
            {
                findings.add("names.json".into(), "content", "it is not what was written".into());
            }
            Ok(_) => {}
        }
        findings
    }

    pub(crate) fn check_blob(&self, digest: &Digest, watch: &Watch) -> io::Result<Findings> {
        let name = format!("blobs/{}/{}", digest.algorithm().name(), digest.hex());
        let mut findings = Findings::default();
        match open_cold(&self.blob_path(digest)).and_then(|file| digest_of(file, digest.algorithm(), watch)) {
            Ok((found, _)) if found == *digest => {}
            Ok(_) => findings.add(name, "content", "its digest is another one".into()),
            Err(error) if ends_check(&error) => return Err(error),
            // A sweep may have removed the blob.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.has_blob(digest) => {}
            Err(error) => findings.unreadable(&name, &error),
        }
        Ok(findings)
    }
}

fn read_record<T: serde::de::DeserializeOwned>(folder: &Path, name: &str, findings: &mut Findings) -> Option<T> {
    let read = open_cold(&folder.join(name)).and_then(read_whole).and_then(|bytes| checksum::open(&bytes));
    read.inspect_err(|error| findings.unreadable(name, error)).ok()
}

/// Compares a file with its digest; if `wanted` is `None`, the file must not exist. Returns the number of bytes read.
fn check_side_file(
    folder: &Path,
    name: &str,
    wanted: Option<&Digest>,
    watch: &Watch,
    findings: &mut Findings,
) -> io::Result<u64> {
    let algorithm = wanted.map_or(DigestAlgorithm::Sha256, Digest::algorithm);
    match (open_cold(&folder.join(name)).and_then(|file| digest_of(file, algorithm, watch)), wanted) {
        (Ok((found, bytes)), Some(wanted)) if found == *wanted => return Ok(bytes),
        (Ok((_, bytes)), Some(wanted)) => {
            findings.add(name.into(), "content", format!("its digest is not `{wanted}`"));
            return Ok(bytes);
        }
        (Ok(_), None) => findings.add(name.into(), "extra", "the record knows of no such file".into()),
        (Err(error), _) if ends_check(&error) => return Err(error),
        (Err(error), None) if error.kind() == io::ErrorKind::NotFound => {}
        (Err(error), _) => findings.unreadable(name, &error),
    }
    Ok(0)
}

fn open_cold(path: &Path) -> io::Result<File> {
    open_regular(path).inspect(forget_cached)
}

/// Drops a file's page cache, because cached pages do not prove the disk's content. Pages mapped by a process stay.
fn forget_cached(file: &File) {
    // The call is a hint; file systems without a cache reject it.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

fn digest_of(mut file: File, algorithm: DigestAlgorithm, watch: &Watch) -> io::Result<(Digest, u64)> {
    let mut hash = Hash::new(algorithm);
    let mut buffer = vec![0; BUFFER];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                hash.update(&buffer[..read]);
                bytes += read as u64;
                watch(read as u64)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    forget_cached(&file);
    Ok((hash.finish(), bytes))
}
