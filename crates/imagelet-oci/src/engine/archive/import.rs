//! Images of an archive: their layers take the way of a pull, with the archive as the source of all bytes.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use futures_util::FutureExt as _;
use imagelet_core::{
    hold::HoldMeter,
    image::{ByteSize, Digest, ImageId, Platform, Reference, counted},
    runtime::{ArchivePlace, ImportOutcome, ImportRequest, Patience, Progress, RuntimeError, RuntimeErrorKind},
};
use tokio::time::Instant;

use super::super::{
    CancelOnDrop, Engine, blocking,
    estimate::PullTarget,
    pull::{announce, check_layers},
    sharing::only_from,
};
use crate::{
    image_archive::{
        ArchiveBlobs, ArchiveFiles, ArchivedImage, ImageArchive, open_file, references,
        spool::{self, SpoolLimits},
        without_links,
    },
    manifest::{
        CONFIG_BYTES_MAX, Descriptor, DocumentSource, ImageConfig, Index, MANIFEST_BYTES_MAX, Manifest,
        ManifestDocument, Selected, corrupt, select, unacceptable,
    },
    pipeline::LayerLimits,
    registry::{Document, Resolved, about},
    store::DocumentBytes,
    unpack::LayerMemory,
};

impl Engine {
    pub(in crate::engine) async fn imported(
        &self,
        request: &ImportRequest,
        progress: &Progress,
    ) -> Result<Vec<ImportOutcome>, RuntimeError> {
        self.store.check_writable()?;
        let path = request.place.path.clone();
        let place = blocking(move || without_links(&path)).await?;
        // The policy accepts what is opened: no link changes in between.
        let place = ArchivePlace { path: place, ..request.place.clone() };
        let archive = self.open_archive(&place).await?;
        self.check_archive(&place, archive.format).await?;
        let count = archive.images.len();
        if request.name.is_some() && count != 1 {
            let message = format!("the archive has {}, and one name is given", counted(count, "image"));
            return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, message)
                .with_hint("leave out `--name`: each image gets its own names"));
        }
        let (mut imported, mut failed_bytes) = (Vec::new(), 0);
        for image in archive.images {
            let read_before = archive.blobs.reads().in_all;
            let found = references(&image.names, request.name.as_ref());
            let names = found.iter().flatten().map(ToString::to_string).collect();
            let outcome = match found {
                Ok(_) if failed_bytes > archive.blobs.reads().failed_max() => Err(unacceptable(format!(
                    "images that failed read {} of the archive; the limit is {}",
                    ByteSize(failed_bytes),
                    ByteSize(archive.blobs.reads().failed_max())
                ))),
                Ok(references) => self
                    .import_one(&archive.blobs, image, &references, request, progress)
                    .await
                    .map_err(|error| about(error, &format!("could not import `{}`", references[0]))),
                Err(error) => Err(error),
            };
            if outcome.is_err() {
                failed_bytes += archive.blobs.reads().in_all - read_before;
            }
            imported.push(ImportOutcome { names, outcome });
        }
        Ok(imported)
    }

    fn archive_memory(&self, place: &ArchivePlace) -> Arc<LayerMemory> {
        let meter = Arc::new(HoldMeter::new(Instant::now()));
        self.budget.layer(&Arc::default(), &place.path.display().to_string().into(), &meter)
    }

    async fn open_archive(&self, place: &ArchivePlace) -> Result<ImageArchive, RuntimeError> {
        let (place, memory) = (place.clone(), self.archive_memory(place));
        let LayerLimits { expansion_max, expansion_free, free_bytes_floor, .. } = self.config.limits;
        let limits = SpoolLimits { expansion_max, expansion_free, free_bytes_floor };
        let cancelled = Arc::new(AtomicBool::new(false));
        let _cancel = CancelOnDrop(Arc::clone(&cancelled));
        self.on_disk(move |store| {
            let entries = if place.is_folder {
                ArchiveFiles::of_folder(&place.path)?
            } else {
                let staging = store.stage()?;
                let folder: &Path = staging.path();
                let plain = spool::plain(open_file(&place.path)?, folder, limits, &cancelled)
                    .map_err(|error| about(error, &format!("could not read the archive `{}`", place.path.display())))?;
                ArchiveFiles::of_tar(plain, &place.path, &memory)?
            };
            ImageArchive::read(entries, &cancelled)
        })
        .await
    }

    async fn import_one(
        &self,
        blobs: &Arc<ArchiveBlobs>,
        image: ArchivedImage,
        references: &[Reference],
        request: &ImportRequest,
        progress: &Progress,
    ) -> Result<(ImageId, bool), RuntimeError> {
        let target = PullTarget {
            reference: references[0].clone(),
            platform: request.platform.clone().unwrap_or_else(Platform::host),
            is_platform_given: request.platform.is_some(),
            credentials: Vec::new(),
            patience: Patience::FULL,
        };
        let (archive, wanted) = (Arc::clone(blobs), request.platform.clone());
        let found = self.on_disk(move |store| {
            let mut found = choose(&archive, image.roots, wanted.as_ref())?;
            for document in [&mut found.first, &mut found.chosen] {
                document.bytes = DocumentBytes::of(document.bytes.read()?, store)?;
            }
            Ok(found)
        });
        let found = found.await?;
        check_digests(references, &found.first.digest)?;
        let session = self.registry.archive_session(&references[0], Arc::clone(blobs));
        session.report_to(progress);
        let Selected { first, chosen, manifest, is_named } = found;
        let resolved = Resolved { session, root: first, chosen, manifest, is_named };
        announce(&resolved, progress)?;
        let id = resolved.image_id();
        let names: Vec<String> = references
            .iter()
            .flat_map(|reference| {
                let (by_tag, by_digest) = reference.names_of(&resolved.root.digest);
                by_tag.into_iter().chain([by_digest])
            })
            .collect();
        let config = self.configuration(&resolved, &target).await?;
        check_layers(&resolved, config.1.diff_ids.len())?;
        let may_share = only_from(&resolved.manifest, &references[0]).is_none()
            || references.iter().all(|reference| self.store.is_named_in(&id, reference.repository()));
        if may_share && self.already_here(&resolved, &names, progress).await? {
            return Ok((id, true));
        }
        Ok((self.fetch_layers(&resolved, config, names, Arc::default(), progress).await?, false))
    }
}

/// The documents from a root to the image for the platform; `None`: that of this machine.
///
/// As in the runtimes, the only root is taken whatever platform the archive gives it, unless the caller names one.
pub(crate) fn choose(
    blobs: &ArchiveBlobs,
    mut roots: Vec<Descriptor>,
    platform: Option<&Platform>,
) -> Result<Selected<Document>, RuntimeError> {
    let wanted = platform.cloned().unwrap_or_else(Platform::host);
    let only = Index { manifests: roots.clone() };
    if let ([root], None, None) = (&mut roots[..], platform, only.chosen_alone(&wanted)) {
        root.platform = None;
    }
    let selected = select(blobs, Index { manifests: roots }, 0, &wanted);
    selected.now_or_never().expect("an archive answers at once")
}

impl DocumentSource for ArchiveBlobs {
    type Document = Document;

    fn may_have(&self, entry: &Descriptor) -> bool {
        self.has(&entry.digest)
    }

    async fn manifest(&self, entry: &Descriptor) -> Result<(Document, ManifestDocument), RuntimeError> {
        document(self, entry)
    }

    async fn config(&self, manifest: &Manifest) -> Result<ImageConfig, RuntimeError> {
        ImageConfig::parse(&self.read(&manifest.config, CONFIG_BYTES_MAX)?)
    }
}

fn document(blobs: &ArchiveBlobs, descriptor: &Descriptor) -> Result<(Document, ManifestDocument), RuntimeError> {
    let bytes = blobs.read(descriptor, MANIFEST_BYTES_MAX)?;
    let (read, media_type) = ManifestDocument::parse_named(&bytes, &descriptor.media_type)
        .map_err(|error| about(error, &format!("`{}` is no usable manifest", descriptor.digest)))?;
    Ok((Document { digest: descriptor.digest.clone(), media_type, bytes: DocumentBytes::Memory(bytes) }, read))
}

/// A name by digest in an archive has to be true.
fn check_digests(references: &[Reference], root: &Digest) -> Result<(), RuntimeError> {
    match references.iter().find(|reference| reference.digest().is_some_and(|digest| digest != root)) {
        Some(wrong) => Err(corrupt(format!("the image named `{wrong}` is `{root}`"))),
        None => Ok(()),
    }
}
