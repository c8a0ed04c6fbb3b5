//! The documents of present images, read from the disk. A pull uses them if the registry confirms the digest or tag.

use std::{path::Path, sync::Arc};

use imagelet_core::{
    error::{RuntimeError, Stage},
    image::{ByteSize, Digest, ImageId},
    ports::{ImageDetails, JsonText, LayerDetails},
};

use super::{Engine, estimate::PullTarget};
use crate::{
    hash::Hash,
    manifest::{BlobLayout, Manifest, ManifestDocument, corrupt},
    registry::{ImageDocument, PullSession, Resolved},
    store::{DocumentBytes, ImageRecord, Store, could_not},
};

type Read = (ImageDocument, ManifestDocument);

impl Engine {
    /// Resolves a digest or tag of a present image, if the registry confirms it by `HEAD` for the request's credential.
    /// A registry counts a `GET` of a manifest as a pull, but not a `HEAD`. Returns `None` if the caller must fetch,
    /// which also gives a more precise error.
    pub(super) async fn confirmed(
        &self,
        target: &PullTarget,
        session: &PullSession,
    ) -> Result<Option<Resolved>, RuntimeError> {
        let Some(digest) = self.digest_here(target) else { return Ok(None) };
        let Some(resolved) = self.resolved_here(target, session, &digest).await else { return Ok(None) };
        match session.confirm(&target.reference, &digest).await {
            Ok(true) => Ok(Some(resolved)),
            Ok(false) => Ok(None),
            // A fetch would fail with the same error, so the caller need not try.
            Err(error) if error.is_outage() || error.fault().stage == Stage::Token => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn digest_here(&self, target: &PullTarget) -> Option<Digest> {
        if let Some(digest) = target.reference.digest() {
            return Some(digest.clone());
        }
        let id = self.store.resolve(&target.reference.to_string()).ok()??;
        let (record, _) = self.store.image(&id)?;
        Some(record.index.as_ref().unwrap_or(&record.pulled.digest).clone())
    }

    /// The documents from a digest to the image for the platform, and whether an index names the platform. Returns
    /// `None` if a document is not on the disk.
    async fn resolved_here(&self, target: &PullTarget, session: &PullSession, digest: &Digest) -> Option<Resolved> {
        let (_, name) = target.reference.names_of(digest);
        let id = self.store.resolve(&name).ok()??;
        let resolved = |root, (chosen, read), is_named| match read {
            ManifestDocument::Image(manifest) => {
                Some(Resolved { session: session.clone(), root, chosen, manifest, is_named })
            }
            ManifestDocument::Index(_) => None,
        };
        if let Some((root, read)) = self.document_here(&id, "manifest.json", digest).await {
            return resolved(root.clone(), (root, read), false);
        }
        let (root, ManifestDocument::Index(index)) = self.document_here(&id, "index.json", digest).await? else {
            return None;
        };
        let (entry, is_named) = index.chosen_alone(&target.platform)?;
        resolved(root, self.document_here(&id, "manifest.json", &entry.digest).await?, is_named)
    }

    /// The documents that an image's record names. A document that the disk has lost is fetched in `session`.
    pub(super) async fn recorded(
        &self,
        record: &ImageRecord,
        session: Option<&PullSession>,
    ) -> Result<(ImageDocument, ImageDocument, Manifest), RuntimeError> {
        let (chosen, read) = self.document(record, "manifest.json", &record.pulled.digest, session).await?;
        let ManifestDocument::Image(manifest) = read else {
            return Err(corrupt("the manifest of the record is an index"));
        };
        let root = match &record.index {
            Some(index) => self.document(record, "index.json", index, session).await?.0,
            None => chosen.clone(),
        };
        Ok((root, chosen, manifest))
    }

    async fn document(
        &self,
        record: &ImageRecord,
        name: &'static str,
        digest: &Digest,
        session: Option<&PullSession>,
    ) -> Result<Read, RuntimeError> {
        match (self.kept(&record.image_id(), name, digest).await, session) {
            (Some(bytes), _) => self.read_document(digest.clone(), bytes).await,
            (None, Some(session)) => {
                session.fetch_manifest(session.reference().with_digest(digest.clone()), None).await
            }
            (None, None) => Err(lost(name)),
        }
    }

    async fn document_here(&self, id: &ImageId, name: &'static str, digest: &Digest) -> Option<Read> {
        let bytes = self.kept(id, name, digest).await?;
        self.read_document(digest.clone(), bytes).await.ok()
    }

    async fn read_document(&self, digest: Digest, bytes: Vec<u8>) -> Result<Read, RuntimeError> {
        let (read, media_type) = ManifestDocument::parse_named(&bytes, "")?;
        let bytes = self.on_disk(move |store| DocumentBytes::of(bytes.into(), store)).await?;
        Ok((ImageDocument { digest, media_type, bytes }, read))
    }

    pub(super) async fn kept(&self, id: &ImageId, name: &'static str, digest: &Digest) -> Option<Vec<u8>> {
        let (id, wanted) = (id.clone(), digest.clone());
        let read = self.on_disk(move |store| {
            let bytes = store.image_file(&id, name).unwrap_or_default();
            Ok(Hash::matches(&wanted, &bytes).then_some(bytes))
        });
        read.await.unwrap_or_default()
    }
}

pub(crate) fn details(store: &Store, id: &ImageId) -> Result<Option<ImageDetails>, RuntimeError> {
    let Some(((record, _), image)) = store.image(id).zip(store.listed_image(id)) else { return Ok(None) };
    let image = Arc::unwrap_or_clone(image);
    let bytes =
        store.image_file(id, "config.json").map_err(could_not("read the configuration of", Path::new(id.as_str())))?;
    let mut details = match (String::from_utf8(bytes).ok().and_then(JsonText::new), &record.pulled.artifact) {
        (Some(config), None) => ImageDetails::of_config(image, config),
        (config, Some(_)) => {
            let layers = files_of(store, &record, id);
            ImageDetails { config, layers, ..ImageDetails::bare(image) }
        }
        (None, None) => ImageDetails::bare(image),
    };
    for layer in &mut details.layers {
        layer.bytes = store.layer(&layer.diff_id).map(|layer| ByteSize(layer.disk_bytes));
    }
    let packed: u64 = record.pulled.layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    details.compressed = Some(ByteSize(packed.saturating_add(record.metadata_size)));
    details.pulled = Some(record.pulled);
    Ok(Some(details))
}

fn files_of(store: &Store, record: &ImageRecord, id: &ImageId) -> Vec<LayerDetails> {
    let bytes = store.image_file(id, "manifest.json").unwrap_or_default();
    if !Hash::matches(&record.pulled.digest, &bytes) {
        return Vec::new();
    }
    let Ok(ManifestDocument::Image(manifest)) = ManifestDocument::parse(&bytes, "") else { return Vec::new() };
    let files = manifest.artifact_files().unwrap_or_default().into_iter().map(|file| LayerDetails {
        path: Some(match &file.layout {
            BlobLayout::File(path) => path.clone(),
            BlobLayout::Archive { folder, .. } if folder.is_empty() => "./".to_owned(),
            BlobLayout::Archive { folder, .. } => format!("{folder}/"),
        }),
        diff_id: file.key,
        bytes: None,
    });
    files.collect()
}

pub(super) fn lost(name: &str) -> RuntimeError {
    corrupt(format!("its `{name}` in the store is damaged")).with_hint("imagelet verify --repair")
}
