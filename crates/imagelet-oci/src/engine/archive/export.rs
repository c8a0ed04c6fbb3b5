//! An image to an archive: documents and kept blobs from the store, the other layers from a registry.

use std::{collections::BTreeMap, io::Read as _};

use bytes::Bytes;
use imagelet_core::{
    credentials::Credential,
    image::{ByteSize, Digest, ImageId, Reference},
    runtime::{
        Credentials, ExportRequest, ExportedImage, LayerState, Progress, PullEvent, RuntimeError, RuntimeErrorKind,
    },
};
use tokio::sync::mpsc;

use super::super::{Engine, blocking, confirm::read_document, verify::repair::sources};
use crate::{
    hash::Hash,
    image_archive::{
        blob_name,
        write::{LayoutWriter, tables},
    },
    manifest::{Descriptor, Manifest, ManifestDocument, corrupt},
    registry::{BlobSource, Document, about},
    store::{ImageRecord, KeptBytes},
};

/// Size of a read from the store, and pieces that wait to be written.
const PIECE: usize = 256 << 10;
const PIECES_QUEUED: usize = 4;

/// An image with its documents, all verified.
struct Source {
    id: ImageId,
    names: Vec<String>,
    root: Document,
    documents: BTreeMap<Digest, Bytes>,
    manifest: Manifest,
}

impl Engine {
    pub(in crate::engine) async fn exported(
        &self,
        request: &ExportRequest,
        credentials: &Credentials<'_>,
        progress: &Progress,
    ) -> Result<ExportedImage, RuntimeError> {
        let id = self.store.resolve(&request.image)?.ok_or_else(|| {
            RuntimeError::new(RuntimeErrorKind::NotFound, format!("image `{}` is not present", request.image))
                .with_hint(format!("imagelet pull {}", request.image))
        })?;
        let failed = |error| about(error, &format!("could not export `{}`", request.image));
        let source = self.source(id).await.map_err(failed)?;
        let place = request.place.clone();
        let writer = blocking(move || LayoutWriter::create(&place)).await?;
        self.write_archive(&source, exported_names(&request.image, &source.names), writer, credentials, progress)
            .await
            .map_err(failed)
    }

    async fn source(&self, id: ImageId) -> Result<Source, RuntimeError> {
        let gone = || RuntimeError::new(RuntimeErrorKind::NotFound, "the image was removed meanwhile");
        let (record, names): (ImageRecord, _) = self.store.image(&id).ok_or_else(gone)?;
        let lost =
            |name: &str| corrupt(format!("its `{name}` in the store is damaged")).with_hint("imagelet verify --repair");
        let mut documents = BTreeMap::new();
        let files = [
            ("manifest.json", Some(&record.manifest)),
            ("config.json", Some(record.config())),
            ("index.json", record.index.as_ref()),
        ];
        for (name, digest) in files.into_iter().filter_map(|(name, digest)| Some((name, digest?))) {
            let bytes = self.kept(&id, name, digest).await.ok_or_else(|| lost(name))?;
            documents.insert(digest.clone(), Bytes::from(bytes));
        }
        let read = |digest: &Digest| read_document(digest.clone(), documents[digest].to_vec());
        let (chosen, ManifestDocument::Image(manifest)) = read(&record.manifest)? else {
            return Err(corrupt("the manifest of the record is an index"));
        };
        let root = match &record.index {
            Some(index) => read(index)?.0,
            None => chosen,
        };
        Ok(Source { id, names, root, documents, manifest })
    }

    async fn write_archive(
        &self,
        source: &Source,
        names: Vec<String>,
        mut writer: LayoutWriter,
        credentials: &Credentials<'_>,
        progress: &Progress,
    ) -> Result<ExportedImage, RuntimeError> {
        let mut layers: Vec<(&Descriptor, Option<BlobFile>)> = source.layers()?;
        layers.sort_by_key(|(layer, _)| &layer.digest);
        layers.dedup_by_key(|(layer, _)| &layer.digest);
        progress(PullEvent::Resolved {
            manifest: source.root.digest.clone(),
            layers: layers.iter().map(|(layer, _)| (layer.digest.clone(), ByteSize(layer.size))).collect(),
        });
        let mut bytes = ByteSize::ZERO;
        let files = source.files(&names);
        bytes.0 += source.documents.values().map(|bytes| bytes.len() as u64).sum::<u64>();
        writer = blocking(move || {
            files.iter().try_for_each(|(name, bytes)| writer.file(name, bytes))?;
            Ok(writer)
        })
        .await?;
        let mut fetches = Fetches { engine: self, names: &source.names, credentials };
        for (layer, file) in layers {
            writer = self.write_layer(layer, file, writer, &mut fetches).await?;
            bytes.0 += layer.size;
            progress(PullEvent::Layer { digest: layer.digest.clone(), state: LayerState::Done });
        }
        progress(PullEvent::Committing);
        blocking(move || writer.finish()).await?;
        Ok(ExportedImage { id: source.id.clone(), digest: source.root.digest.clone(), bytes })
    }

    /// From the store, else from the registries in turn.
    async fn write_layer(
        &self,
        layer: &Descriptor,
        file: Option<BlobFile>,
        writer: LayoutWriter,
        fetches: &mut Fetches<'_>,
    ) -> Result<LayoutWriter, RuntimeError> {
        let wanted = layer.clone();
        let (mut writer, is_written) = self
            .on_disk(move |store| {
                let mut writer = writer;
                writer.begin(&blob_name(&wanted.digest), wanted.size)?;
                let of_artifact = || file.and_then(|file| store.open_layer_file(&file.key, &file.path, wanted.size));
                let Some(kept) = store.open_blob(&wanted.digest, wanted.size).or_else(of_artifact) else {
                    return Ok((writer, false));
                };
                let is_whole = copy_kept(kept, &wanted.digest, &mut writer)?;
                if is_whole {
                    writer.end()?;
                } else {
                    tracing::warn!(blob = %wanted.digest, "a kept blob does not have its digest; asking the registry");
                    writer.restart()?;
                }
                Ok((writer, is_whole))
            })
            .await?;
        if !is_written {
            writer = fetches.fetch(layer, writer).await?;
        }
        Ok(writer)
    }
}

/// The file of an artifact in the store, which is a whole blob.
struct BlobFile {
    key: Digest,
    path: String,
}

impl Source {
    fn layers(&self) -> Result<Vec<(&Descriptor, Option<BlobFile>)>, RuntimeError> {
        let config = self.manifest.read_config(&self.documents[&self.manifest.config.digest])?;
        let file = |layer, key| self.manifest.file_path(layer).map(|path| BlobFile { key, path });
        Ok(self.manifest.layers.iter().zip(config.diff_ids).map(|(layer, key)| (layer, file(layer, key))).collect())
    }

    /// All files but the layers; blobs in the order of their digests.
    fn files(&self, names: &[String]) -> Vec<(String, Bytes)> {
        let root = Descriptor {
            media_type: self.root.media_type.clone(),
            digest: self.root.digest.clone(),
            size: self.root.bytes.len() as u64,
            platform: None,
            annotations: None,
        };
        let layers = self.manifest.layers.iter().map(|layer| blob_name(&layer.digest)).collect();
        // `docker load` reads images only.
        let is_image = self.manifest.artifact_kind().is_none();
        let small = tables(&root, names, is_image.then(|| (blob_name(&self.manifest.config.digest), layers)));
        let small = small.into_iter().map(|(name, bytes)| (name, Bytes::from(bytes)));
        let documents = self.documents.iter().map(|(digest, bytes)| (blob_name(digest), bytes.clone()));
        small.chain(documents).collect()
    }
}

/// The name that was requested, else all tags, else all names by digest.
fn exported_names(requested: &str, names: &[String]) -> Vec<String> {
    let spelled = requested.parse::<Reference>().map(|reference| reference.canonical().to_string());
    if let Ok(name) = spelled
        && names.contains(&name)
    {
        return vec![name];
    }
    let (by_digest, tags): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| name.contains('@'));
    if tags.is_empty() { by_digest } else { tags }
}

/// Copies a kept blob. `false`: it has another digest, or cannot be read.
fn copy_kept(kept: KeptBytes, digest: &Digest, writer: &mut LayoutWriter) -> Result<bool, RuntimeError> {
    let mut hash = Hash::new(digest.algorithm());
    let mut file = kept.file.take(kept.length);
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(hash.finish() == *digest),
            Ok(read) => {
                hash.update(&piece[..read]);
                writer.write(&piece[..read])?;
            }
            Err(error) => {
                tracing::warn!(blob = %digest, %error, "could not read a kept blob");
                return Ok(false);
            }
        }
    }
}

/// The registries that an image may come from.
struct Fetches<'a> {
    engine: &'a Engine,
    names: &'a [String],
    credentials: &'a Credentials<'a>,
}

impl Fetches<'_> {
    async fn fetch(&self, layer: &Descriptor, mut writer: LayoutWriter) -> Result<LayoutWriter, RuntimeError> {
        let mut last = RuntimeError::new(RuntimeErrorKind::NotFound, "no name of it says where it came from");
        for reference in sources(self.names) {
            let credentials = (self.credentials)(&reference);
            let anonymous = credentials.is_empty().then_some(None);
            for credential in credentials.iter().map(Some).chain(anonymous) {
                let (rest, fetched) = self.attempt(layer, &reference, credential, writer).await?;
                writer = rest;
                match fetched {
                    Ok(()) => return Ok(writer),
                    Err(error) => last = error,
                }
                // Another credential may have access.
                if !matches!(last.kind(), RuntimeErrorKind::Denied | RuntimeErrorKind::NotFound) {
                    break;
                }
            }
        }
        let message = format!("layer `{}` is not kept in the store, and no registry sent it", layer.digest);
        Err(about(last, &message).with_hint("pull with `store.keepBlobs: true`, or export while the registry answers"))
    }

    /// The outer error is one of the archive's disk; the inner one of the registry.
    async fn attempt(
        &self,
        layer: &Descriptor,
        reference: &Reference,
        credential: Option<&Credential>,
        mut writer: LayoutWriter,
    ) -> Result<(LayoutWriter, Result<(), RuntimeError>), RuntimeError> {
        let source = match self.engine.registry.session(reference, credential).await {
            Ok(session) => session.blob(layer),
            Err(error) => return Ok((writer, Err(error))),
        };
        loop {
            let (pieces, received) = mpsc::channel(PIECES_QUEUED);
            let digest = layer.digest.clone();
            let written = tokio::task::spawn_blocking(move || write_pieces(received, &digest, writer));
            let sent = send_pieces(&source, layer.size, pieces).await;
            let (rest, found) = written
                .await
                .map_err(|error| RuntimeError::defect("a thread of the export ended early").caused_by(error))??;
            writer = rest;
            let fetched = sent.and(found);
            let Err(error) = fetched else { return Ok((writer, Ok(()))) };
            if error.kind() != RuntimeErrorKind::Corrupt || !source.distrust_senders(&error) {
                return Ok((writer, Err(error)));
            }
        }
    }
}

async fn send_pieces(source: &BlobSource, size: u64, pieces: mpsc::Sender<Bytes>) -> Result<(), RuntimeError> {
    let mut stream = source.stream(0..size);
    stream.ready().await?;
    while let Some(bytes) = stream.next().await? {
        if pieces.send(bytes).await.is_err() {
            // The writer knows the cause.
            break;
        }
    }
    Ok(())
}

type Written = (LayoutWriter, Result<(), RuntimeError>);

/// Writes until the channel closes; bytes of another digest are taken back.
fn write_pieces(
    mut received: mpsc::Receiver<Bytes>,
    digest: &Digest,
    mut writer: LayoutWriter,
) -> Result<Written, RuntimeError> {
    let mut hash = Hash::new(digest.algorithm());
    while let Some(bytes) = received.blocking_recv() {
        hash.update(&bytes);
        writer.write(&bytes)?;
    }
    let found = hash.finish();
    if found == *digest {
        writer.end()?;
        return Ok((writer, Ok(())));
    }
    writer.restart()?;
    Ok((writer, Err(corrupt(format!("layer `{digest}` arrived as `{found}`")))))
}
