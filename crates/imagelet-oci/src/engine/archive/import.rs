//! Imports the images of an archive: as in a pull, with the archive as the source of all bytes.

use std::sync::{Arc, atomic::AtomicBool};

use futures_util::FutureExt as _;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    hold::HoldMeter,
    image::{ByteSize, ImageId, Platform, Reference, counted},
    ports::{ArchivePlace, ImportOutcome, ImportRequest, Patience, Progress},
};
use tokio::time::Instant;

use super::super::{
    Engine, blocking,
    estimate::PullTarget,
    pull::{announce, check_layers},
    sharing::only_from,
};
use crate::{
    image_archive::{
        ArchiveBlobs, ArchiveFiles, ArchivedImage, ImageArchive, open_file, references, spool, without_links,
    },
    manifest::{
        CONFIG_BYTES_MAX, Descriptor, DocumentSource, ImageConfig, Index, MANIFEST_BYTES_MAX, Manifest,
        ManifestDocument, Selected, corrupt, select, unacceptable,
    },
    pipeline::{CancelOnDrop, LayerLimits},
    registry::{ImageDocument, PullSession, Resolved},
    store::DocumentBytes,
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
        // The policy checks the same path that is opened. Without links, the path cannot change between check and open.
        let place = ArchivePlace { path: place, ..request.place.clone() };
        let archive = self.open_archive(&place).await?;
        self.check_archive(&place.path, archive.transport).await?;
        let count = archive.images.len();
        if request.name.is_some() && count != 1 {
            let message = format!("the archive has {}, and one name is given", counted(count, "image"));
            return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, message)
                .with_hint("leave out `--name`: each image gets its own names"));
        }
        let (mut imported, mut failed_bytes) = (Vec::new(), 0);
        for image in archive.images {
            let (read_before, failed_max) = archive.blobs.reads();
            let found = references(&image.names, request.name.as_ref());
            let names = found.iter().flatten().map(ToString::to_string).collect();
            let outcome = match found {
                Ok(_) if failed_bytes > failed_max => Err(unacceptable(format!(
                    "images that failed read {} of the archive; the limit is {}",
                    ByteSize(failed_bytes),
                    ByteSize(failed_max)
                ))),
                Ok(references) => self
                    .import_one(&archive.blobs, image, &references, request, progress)
                    .await
                    .map_err(|error| error.about(format!("could not import `{}`", references[0]))),
                Err(error) => Err(error),
            };
            if outcome.is_err() {
                failed_bytes += archive.blobs.reads().0 - read_before;
            }
            imported.push(ImportOutcome { names, outcome });
        }
        Ok(imported)
    }

    async fn open_archive(&self, place: &ArchivePlace) -> Result<ImageArchive, RuntimeError> {
        let meter = Arc::new(HoldMeter::new(Instant::now()));
        let memory = self.budget.layer(&Arc::default(), &place.path.display().to_string().into(), &meter);
        let place = place.clone();
        let LayerLimits { expansion_max, expansion_free, free_bytes_floor, .. } = self.config.limits;
        let bounds = (expansion_max, expansion_free, free_bytes_floor);
        let cancelled = Arc::new(AtomicBool::new(false));
        let _cancel = CancelOnDrop(Arc::clone(&cancelled));
        self.on_disk(move |store| {
            let read = |files| ImageArchive::read(files, &cancelled);
            let read = if place.is_folder {
                read(ArchiveFiles::of_folder(&place.path)?)
            } else {
                let (file, staging) = (open_file(&place.path)?, store.stage()?);
                let plain = spool::plain(file, staging.path(), bounds, &cancelled);
                plain.and_then(|plain| ArchiveFiles::of_tar(plain, &place.path, &memory)).and_then(read)
            };
            read.map_err(|error| error.about(format!("could not read the archive `{}`", place.path.display())))
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
        let root = &found.first.digest;
        if let Some(wrong) = references.iter().find(|name| name.digest().is_some_and(|digest| digest != root)) {
            return Err(corrupt(format!("the image named `{wrong}` is `{root}`")));
        }
        let session = PullSession::of_archive(&self.registry, &references[0], Arc::clone(blobs));
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

/// The documents from a root to the image for `platform`. If `platform` is `None`, that is this machine's platform, but
/// a single root is accepted with any platform, as in the runtimes.
pub(crate) fn choose(
    blobs: &ArchiveBlobs,
    mut roots: Vec<Descriptor>,
    platform: Option<&Platform>,
) -> Result<Selected<ImageDocument>, RuntimeError> {
    let wanted = platform.cloned().unwrap_or_else(Platform::host);
    let only = Index { manifests: roots.clone() };
    if let ([root], None, None) = (&mut roots[..], platform, only.chosen_alone(&wanted)) {
        root.platform = None;
    }
    let selected = select(blobs, Index { manifests: roots }, 0, &wanted);
    selected.now_or_never().expect("an archive answers at once")
}

impl DocumentSource for ArchiveBlobs {
    type Document = ImageDocument;

    fn may_have(&self, entry: &Descriptor) -> bool {
        self.has(&entry.digest)
    }

    async fn manifest(&self, entry: &Descriptor) -> Result<(ImageDocument, ManifestDocument), RuntimeError> {
        let bytes = self.read(entry, MANIFEST_BYTES_MAX)?;
        let (read, media_type) = ManifestDocument::parse_named(&bytes, &entry.media_type)
            .map_err(|error| error.about(format!("`{}` is no usable manifest", entry.digest)))?;
        let bytes = DocumentBytes::Memory(bytes);
        Ok((ImageDocument { digest: entry.digest.clone(), media_type, bytes }, read))
    }

    async fn config(&self, manifest: &Manifest) -> Result<ImageConfig, RuntimeError> {
        ImageConfig::parse(&self.read(&manifest.config, CONFIG_BYTES_MAX)?)
    }
}
