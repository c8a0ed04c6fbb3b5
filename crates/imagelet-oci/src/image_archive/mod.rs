//! Archives of images: OCI layouts in a tar file or a folder, and the files of `docker save`.
//!
//! An archive is untrusted. No entry is extracted by its name. A blob is found by its digest, and its bytes are trusted
//! only after they are hashed. Lists, documents, names and nesting are bounded.

mod docker;
mod files;
mod layout;
pub(crate) mod spool;
pub(crate) mod write;

use std::{
    collections::HashMap,
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    image::{ByteSize, Digest, Reference},
};

use self::files::{FileSource, FoundFile};
pub(crate) use self::{
    files::{ArchiveFiles, open_file, without_links},
    layout::{LayoutName, blob_name},
};
use crate::{
    hash::Hash,
    manifest::{Descriptor, corrupt, printable, unacceptable},
    signature::Transport,
};

const NAMES_MAX: usize = 256;
const NAMES_SHOWN_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct ImageArchive {
    pub(crate) blobs: Arc<ArchiveBlobs>,
    pub(crate) images: Vec<ArchivedImage>,
    pub(crate) transport: Transport,
}

#[derive(Debug)]
pub(crate) struct ArchivedImage {
    pub(crate) names: Vec<String>,
    /// The index or manifest of the image; several if the archive has a manifest for each platform.
    pub(crate) roots: Vec<Descriptor>,
}

#[derive(Debug)]
pub(crate) struct ArchiveBlobs {
    files: ArchiveFiles,
    /// Names of the blobs that are not at the path of an OCI layout.
    places: HashMap<Digest, String>,
    /// Documents that the archive lacks and that were made from its content.
    made: HashMap<Digest, Bytes>,
}

impl ImageArchive {
    /// Reads the table of contents of an OCI layout, or else of `docker save`, whose compressed layers are then hashed.
    pub(crate) fn read(files: ArchiveFiles, cancelled: &AtomicBool) -> Result<Self, RuntimeError> {
        if let Some(index) = files.read(layout::INDEX, layout::INDEX_BYTES_MAX)? {
            let is_folder = matches!(files.source, FileSource::Folder(_));
            let transport = if is_folder { Transport::Oci } else { Transport::OciArchive };
            let blobs = ArchiveBlobs { files, places: HashMap::new(), made: HashMap::new() };
            return Ok(Self { blobs: blobs.into(), images: layout::images(&index)?, transport });
        }
        let Some(list) = files.read(docker::MANIFEST, docker::LIST_BYTES_MAX)? else {
            return Err(corrupt("it has neither `index.json` (an OCI layout) nor `manifest.json` (`docker save`)"));
        };
        let docker::DockerArchive { images, places, made, .. } = docker::images(&files, &list, cancelled)?;
        let blobs = Arc::new(ArchiveBlobs { files, places, made });
        Ok(Self { blobs, images, transport: Transport::DockerArchive })
    }
}

impl ArchiveBlobs {
    pub(crate) fn reads(&self) -> (u64, u64) {
        self.files.reads()
    }

    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.made.contains_key(digest) || matches!(self.files.find(&self.name_of(digest)), Ok(Some(_)))
    }

    fn name_of(&self, digest: &Digest) -> String {
        self.places.get(digest).cloned().unwrap_or_else(|| layout::blob_name(digest))
    }

    /// Opens a blob at its first byte. The size is checked; the digest is not verified.
    pub(crate) fn open(&self, descriptor: &Descriptor) -> Result<File, RuntimeError> {
        let (digest, place) = (&descriptor.digest, &self.files.place);
        let name = self.name_of(digest);
        let Some(FoundFile { file, size, .. }) = self.files.open(&name)? else {
            return Err(corrupt(format!("the archive `{place}` lacks blob `{digest}`, at `{}`", printable(&name))));
        };
        if size != descriptor.size {
            let described = descriptor.size;
            return Err(corrupt(format!("blob `{digest}` of the archive `{place}` has {size} bytes, not {described}")));
        }
        Ok(file)
    }

    pub(crate) fn read(&self, descriptor: &Descriptor, limit: u64) -> Result<Bytes, RuntimeError> {
        let Descriptor { digest, size, .. } = descriptor;
        if let Some(made) = self.made.get(digest) {
            return Ok(made.clone());
        }
        if *size > limit {
            let (size, limit) = (ByteSize(*size), ByteSize(limit));
            return Err(unacceptable(format!("blob `{digest}` has {size}; the limit is {limit}")));
        }
        let bytes = files::read_span(self.open(descriptor)?, *size)
            .map_err(|error| corrupt(format!("could not read blob `{digest}` of the archive")).caused_by(error))?;
        let found = Hash::digest(digest.algorithm(), &bytes);
        if found == *digest {
            return Ok(bytes.into());
        }
        let fault = Fault::new(ErrorClass::DigestMismatch, Stage::Digest);
        Err(corrupt(format!("blob `{digest}` of the archive is `{found}`")).with_fault(fault))
    }
}

/// The references under which an image of an archive is stored: `wanted`, or the names in the archive. A layout may
/// have only a tag, which names no repository.
pub(crate) fn references(names: &[String], wanted: Option<&Reference>) -> Result<Vec<Reference>, RuntimeError> {
    if let Some(wanted) = wanted {
        return Ok(vec![wanted.clone()]);
    }
    if names.len() > NAMES_MAX {
        return Err(unacceptable(format!("the image has {} names; more than {NAMES_MAX} are refused", names.len())));
    }
    let mut references = Vec::new();
    for name in names.iter().filter(|name| name.contains(['/', ':', '@'])) {
        let reference: Reference = name.parse().map_err(|error| {
            corrupt(format!("`{}` in the archive names no image", printable(name))).caused_by(error)
        })?;
        if !references.contains(&reference) {
            references.push(reference);
        }
    }
    if references.is_empty() {
        let known = names.iter().take(NAMES_SHOWN_MAX).map(|name| format!("`{}`", printable(name)));
        let known = known.collect::<Vec<_>>().join(", ");
        let more = if names.len() > NAMES_SHOWN_MAX { ", …" } else { "" };
        let known = if known.is_empty() { String::new() } else { format!(", only the tag {known}{more}") };
        return Err(unacceptable(format!("the archive has no name for the image{known}"))
            .with_hint("name it: imagelet import --name REF"));
    }
    Ok(references)
}

fn check_cancelled(cancelled: &AtomicBool) -> Result<(), RuntimeError> {
    if cancelled.load(Ordering::Relaxed) {
        return Err(RuntimeError::new(RuntimeErrorKind::Cancelled, "the import was cancelled"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_gets_the_wanted_name_or_those_of_the_archive() {
        let wanted: Reference = "reg.io/b:v2".parse().expect("a name");
        for (names, expected) in [
            (&["reg.io/a:v1"][..], Some(vec!["reg.io/a:v1"])),
            (&["nginx:1.25", "docker.io/library/nginx:1.25"], Some(vec!["docker.io/library/nginx:1.25"])),
            (&["v1", "reg.io/a:v1"], Some(vec!["reg.io/a:v1"])),
            (&["v1"], None),
            (&[], None),
            (&["../../etc:v1"], None),
        ] {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let found = references(&names, None).ok();
            let found = found.map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>());
            assert_eq!(found, expected.map(|names| names.iter().map(ToString::to_string).collect()), "{names:?}");
            assert_eq!(references(&names, Some(&wanted)).ok(), Some(vec![wanted.clone()]));
        }
        let error = references(&["v1".into()], None).expect_err("a tag alone");
        assert!(error.chain().contains("`v1`") && error.hint().is_some_and(|hint| hint.contains("--name")));
        let error = references(&vec!["x".repeat(1000); NAMES_MAX], None).expect_err("tags alone");
        assert!(error.chain().len() < 2000 && error.chain().ends_with("`, …"), "{}", error.chain());
    }
}
