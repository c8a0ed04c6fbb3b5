//! Writes a new OCI layout, as a tar file or a folder, beside its target. The layout is then synced and renamed.

use std::{
    fs::{self, File},
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Digest, DigestAlgorithm},
    ports::ArchivePlace,
};
use serde_json::json;

use super::{LayoutName, blob_name, layout::INDEX};
use crate::{
    hash::Hash,
    manifest::Descriptor,
    store::{SyncView, remove_tree, storage_error},
};

const MODE: u32 = 0o644;
const BLOCK: usize = 512;

/// Writes an OCI layout. A drop before [`Self::finish`] removes the written files.
pub(crate) struct LayoutWriter {
    place: ArchivePlace,
    beside: PathBuf,
    view: SyncView,
    file: File,
    /// The offset of the current file's data, and its size so far.
    start: u64,
    size: u64,
    hash: Hash,
    is_finished: bool,
}

impl LayoutWriter {
    /// Starts a layout. Fails if the target is anything but an older archive, or if its folder cannot be written.
    pub(crate) fn create(place: &ArchivePlace) -> Result<Self, RuntimeError> {
        check_place(place)?;
        let (path, is_folder) = (&place.path, place.is_folder);
        let create = || {
            let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
            let beside = folder.join(format!(".{name}.{}.partial", std::process::id()));
            remove_tree(&beside)?;
            let view = SyncView::open(folder)?;
            let file = if is_folder {
                fs::create_dir(&beside)?;
                File::open(&beside)?
            } else {
                File::create_new(&beside)?
            };
            Ok((beside, view, file))
        };
        let (beside, view, file) = create().map_err(|error| unwritten(path, error))?;
        let hash = Hash::new(DigestAlgorithm::Sha256);
        Ok(Self { place: place.clone(), beside, view, file, start: 0, size: 0, hash, is_finished: false })
    }

    pub(crate) fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.begin(name, bytes.len() as u64)?;
        self.write(bytes)?;
        self.end()
    }

    /// Starts the file of a blob. The caller writes exactly `size` bytes before [`Self::end_blob`].
    pub(crate) fn blob(&mut self, digest: &Digest, size: u64) -> Result<(), RuntimeError> {
        self.hash = Hash::new(digest.algorithm());
        self.begin(&blob_name(digest), size)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.hash.update(bytes);
        self.file.write_all(bytes).map_err(|error| unwritten(&self.place.path, error))
    }

    /// Ends the file of a blob. If the bytes have another digest, removes the bytes and returns their digest, so that
    /// the caller can write the blob from another source.
    pub(crate) fn end_blob(&mut self, digest: &Digest) -> Result<Option<Digest>, RuntimeError> {
        let found = std::mem::replace(&mut self.hash, Hash::new(digest.algorithm())).finish();
        if found == *digest {
            return self.end().map(|()| None);
        }
        let restarted = self.file.set_len(self.start).and_then(|()| self.file.seek(SeekFrom::Start(self.start)));
        restarted.map(|_| Some(found)).map_err(|error| unwritten(&self.place.path, error))
    }

    fn begin(&mut self, name: &str, size: u64) -> Result<(), RuntimeError> {
        let begun = if self.place.is_folder { self.begin_file(name) } else { self.begin_entry(name, size) };
        self.size = size;
        begun.map_err(|error| unwritten(&self.place.path, error))
    }

    fn end(&mut self) -> Result<(), RuntimeError> {
        if self.place.is_folder {
            return Ok(());
        }
        let padding = self.size.next_multiple_of(BLOCK as u64) - self.size;
        self.write(&[0; BLOCK][..usize::try_from(padding).unwrap_or_default()])
    }

    pub(crate) fn finish(mut self) -> Result<(), RuntimeError> {
        if !self.place.is_folder {
            self.write(&[0; 2 * BLOCK])?;
        }
        let path = &self.place.path;
        let finished = self.view.sync().and_then(|()| fs::rename(&self.beside, path)).and_then(|()| self.view.sync());
        finished.map_err(|error| unwritten(path, error))?;
        self.is_finished = true;
        Ok(())
    }

    fn begin_file(&mut self, name: &str) -> io::Result<()> {
        let path = self.beside.join(name);
        fs::create_dir_all(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        self.file = File::create_new(path)?;
        Ok(())
    }

    fn begin_entry(&mut self, name: &str, size: u64) -> io::Result<()> {
        // All other fields are fixed: equal images give equal bytes.
        let mut header = tar::Header::new_gnu();
        header.set_mode(MODE);
        header.set_size(size);
        header.set_uid(0);
        header.set_gid(0);
        // A sha384 or sha512 name does not fit into a header, so the builder writes a GNU long-name entry before it.
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_data(&mut header, name, io::empty())?;
        let ended = builder.into_inner()?;
        self.file.write_all(&ended[..ended.len() - 2 * BLOCK])?;
        self.start = self.file.stream_position()?;
        Ok(())
    }
}

impl Drop for LayoutWriter {
    fn drop(&mut self) {
        if !self.is_finished
            && let Err(error) = remove_tree(&self.beside)
        {
            tracing::warn!(path = %self.beside.display(), %error, "could not remove an unfinished archive");
        }
    }
}

fn check_place(place: &ArchivePlace) -> Result<(), RuntimeError> {
    let path = place.path.display();
    let refuse = |what: &str| {
        Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("`{path}` {what}"))
            .with_hint("name another place"))
    };
    match (fs::symlink_metadata(&place.path), place.is_folder) {
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        (Err(error), _) => Err(unwritten(&place.path, error)),
        (Ok(found), false) if found.is_file() => Ok(()),
        (Ok(_), false) => refuse("exists and is no regular file"),
        (Ok(found), true) if found.is_dir() => match fs::read_dir(&place.path).map(|mut entries| entries.next()) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => refuse("exists and is not empty"),
            Err(error) => Err(unwritten(&place.path, error)),
        },
        (Ok(_), true) => refuse("exists and is no folder"),
    }
}

fn unwritten(path: &Path, error: io::Error) -> RuntimeError {
    storage_error(format!("could not write the archive `{}`", path.display()), error)
}

/// The small files of a layout: version, index and, in a tar file, the list for older versions of Docker.
pub(crate) fn tables(
    root: &Descriptor,
    names: &[String],
    docker: Option<(String, Vec<String>)>,
) -> Vec<(String, Vec<u8>)> {
    let entry = |name: Option<&String>| {
        let tag = name.and_then(|name| name.rsplit_once(':')).map(|(_, tag)| tag.to_owned());
        let is_digest = name.is_some_and(|name| name.contains('@'));
        let annotations = LayoutName { full: name.cloned(), reference: tag.filter(|_| !is_digest) };
        json!({
            "mediaType": root.media_type,
            "digest": root.digest.as_str(),
            "size": root.size,
            "annotations": annotations,
        })
    };
    let entries: Vec<_> =
        if names.is_empty() { vec![entry(None)] } else { names.iter().map(|name| entry(Some(name))).collect() };
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": entries,
    });
    let mut files = vec![
        ("oci-layout".to_owned(), json!({"imageLayoutVersion": "1.0.0"}).to_string().into_bytes()),
        (INDEX.to_owned(), index.to_string().into_bytes()),
    ];
    if let Some((config, layers)) = docker {
        let tags: Vec<_> = names.iter().filter(|name| !name.contains('@')).collect();
        let list = json!([{"Config": config, "RepoTags": tags, "Layers": layers}]);
        files.push(("manifest.json".to_owned(), list.to_string().into_bytes()));
    }
    files
}
