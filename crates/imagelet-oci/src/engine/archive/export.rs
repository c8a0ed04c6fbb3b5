//! Exports an image to an archive: documents and kept blobs from the store, the other layers from a registry.

use std::{
    collections::BTreeMap,
    io::Read as _,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use imagelet_core::{
    credentials::Credential,
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Digest, ImageId, Reference},
    ports::{Credentials, ExportRequest, ExportedImage, LayerState, Patience, Progress, PullEvent},
};

use super::super::{Engine, blocking, confirm::lost, sources::first_source};
use crate::{
    image_archive::{
        blob_name,
        write::{LayoutWriter, tables},
    },
    manifest::{BlobLayout, Descriptor, Manifest, corrupt},
    registry::{BlobSource, ImageDocument},
};

const PIECE: usize = 256 << 10;
const CONFIG: &str = "config.json";

struct Source {
    id: ImageId,
    names: Vec<String>,
    root: ImageDocument,
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
        let id = self.present(&request.image)?;
        let failed = |error: RuntimeError| error.about(format!("could not export `{}`", request.image));
        let source = self.source(id).await.map_err(failed)?;
        let place = request.place.clone();
        let writer = blocking(move || LayoutWriter::create(&place)).await?;
        self.write_archive(&source, exported_names(&request.image, &source.names), writer, credentials, progress)
            .await
            .map_err(failed)
    }

    async fn source(&self, id: ImageId) -> Result<Source, RuntimeError> {
        let gone = || RuntimeError::new(RuntimeErrorKind::NotFound, "the image was removed meanwhile");
        let (record, names) = self.store.image(&id).ok_or_else(gone)?;
        let (root, chosen, manifest) = self.recorded(&record, None).await?;
        let config = self.kept(&id, CONFIG, record.config()).await.ok_or_else(|| lost(CONFIG))?;
        let documents = [&root, &chosen].map(|document| (document.digest.clone(), document.bytes.clone()));
        let read = move || documents.into_iter().map(|(digest, bytes)| Ok((digest, bytes.read()?))).collect();
        let mut documents: BTreeMap<Digest, Bytes> = blocking(read).await?;
        documents.insert(record.config().clone(), config.into());
        Ok(Source { id, names, root, documents, manifest })
    }

    async fn write_archive(
        &self,
        source: &Source,
        names: Vec<String>,
        writer: LayoutWriter,
        credentials: &Credentials<'_>,
        progress: &Progress,
    ) -> Result<ExportedImage, RuntimeError> {
        let mut layers = source.layers()?;
        layers.sort_by_key(|(layer, _)| &layer.digest);
        layers.dedup_by_key(|(layer, _)| &layer.digest);
        progress(PullEvent::Resolved {
            manifest: source.root.digest.clone(),
            layers: layers.iter().map(|(layer, _)| (layer.digest.clone(), ByteSize(layer.size))).collect(),
        });
        let writer = Arc::new(Mutex::new(writer));
        let files = source.files(&names);
        let mut bytes = ByteSize(source.documents.values().map(|bytes| bytes.len() as u64).sum());
        on_writer(&writer, move |writer| files.iter().try_for_each(|(name, bytes)| writer.file(name, bytes))).await?;
        for (layer, file) in layers {
            if !self.copy_layer(layer, file, &writer).await? {
                self.fetch_into(layer, &source.names, credentials, &writer).await?;
            }
            bytes.0 += layer.size;
            progress(PullEvent::Layer { digest: layer.digest.clone(), state: LayerState::Done });
        }
        progress(PullEvent::Committing);
        let writer = Arc::into_inner(writer).and_then(|writer| writer.into_inner().ok());
        let writer = writer.expect("all threads that wrote have ended");
        blocking(move || writer.finish()).await?;
        Ok(ExportedImage { id: source.id.clone(), digest: source.root.digest.clone(), bytes })
    }

    async fn copy_layer(&self, layer: &Descriptor, file: Option<BlobFile>, to: &Writer) -> Result<bool, RuntimeError> {
        let (store, Descriptor { digest, size, .. }) = (Arc::clone(&self.store), layer.clone());
        on_writer(to, move |writer| {
            writer.blob(&digest, size)?;
            let of_artifact = || file.and_then(|(key, path)| store.open_layer_file(&key, &path, size));
            let Some(kept) = store.open_blob(&digest, size).or_else(of_artifact) else { return Ok(false) };
            let (mut file, mut piece) = (kept.file.take(kept.length), vec![0; PIECE]);
            while let Ok(read @ 1..) = file.read(&mut piece) {
                writer.write(&piece[..read])?;
            }
            let is_whole = writer.end_blob(&digest)?.is_none();
            if !is_whole {
                tracing::warn!(blob = %digest, "could not read a kept blob, or it has another digest; asking the registry");
            }
            Ok(is_whole)
        })
        .await
    }

    async fn fetch_into(
        &self,
        layer: &Descriptor,
        names: &[String],
        credentials: &Credentials<'_>,
        to: &Writer,
    ) -> Result<(), RuntimeError> {
        let fetch = |reference: Reference, shown: Vec<Credential>| async move {
            let session = self.registry.session(&reference, &shown, Patience::FULL).await?;
            write_blob(&session.blob(layer), layer, to).await
        };
        first_source(names, credentials, &self.registry, fetch).await.unwrap_or_else(|error| {
            let message = format!("layer `{}` is not kept in the store, and no registry sent it", layer.digest);
            let hint = "pull with `store.keepBlobs: true`, or export while the registry answers";
            Err(error.about(&message).with_hint(hint))
        })
    }
}

type Writer = Arc<Mutex<LayoutWriter>>;

async fn on_writer<T: Send + 'static>(
    writer: &Writer,
    work: impl FnOnce(&mut LayoutWriter) -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    let writer = Arc::clone(writer);
    blocking(move || work(&mut writer.lock().expect("no thread panics while it writes"))).await
}

/// The place in the store of an artifact's blob that is a file: the key of its layer, and its path in the layer.
type BlobFile = (Digest, String);

impl Source {
    fn layers(&self) -> Result<Vec<(&Descriptor, Option<BlobFile>)>, RuntimeError> {
        let config = self.manifest.read_config(&self.documents[&self.manifest.config.digest])?;
        let file = |layer, key| match self.manifest.layout(layer) {
            Some(BlobLayout::File(path)) => Some((key, path)),
            None | Some(BlobLayout::Archive { .. }) => None,
        };
        Ok(self.manifest.layers.iter().zip(config.diff_ids).map(|(layer, key)| (layer, file(layer, key))).collect())
    }

    fn files(&self, names: &[String]) -> Vec<(String, Bytes)> {
        let ImageDocument { media_type, digest, bytes } = &self.root;
        let root = Descriptor::new(media_type, digest.clone(), bytes.len() as u64);
        let layers = self.manifest.layers.iter().map(|layer| blob_name(&layer.digest)).collect();
        // Only an image gets a list for Docker, because `docker load` reads only images.
        let is_image = self.manifest.artifact_kind().is_none();
        let small = tables(&root, names, is_image.then(|| (blob_name(&self.manifest.config.digest), layers)));
        let small = small.into_iter().map(|(name, bytes)| (name, Bytes::from(bytes)));
        let documents = self.documents.iter().map(|(digest, bytes)| (blob_name(digest), bytes.clone()));
        small.chain(documents).collect()
    }
}

/// The names to export: the requested name, else all tags, else all names with a digest.
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

/// Fetches a blob into the archive. The outer error is from the registry, the inner error from the archive's disk.
async fn write_blob(
    source: &BlobSource,
    layer: &Descriptor,
    to: &Writer,
) -> Result<Result<(), RuntimeError>, RuntimeError> {
    loop {
        let mut stream = source.stream(0..layer.size);
        let mut ready = stream.ready().await;
        while ready.is_ok() {
            let piece = match stream.next().await {
                Ok(Some(piece)) => piece,
                ended => {
                    ready = ended.map(drop);
                    break;
                }
            };
            if let Err(error) = on_writer(to, move |writer| writer.write(&piece)).await {
                return Ok(Err(error));
            }
        }
        let digest = layer.digest.clone();
        let found = match on_writer(to, move |writer| writer.end_blob(&digest)).await {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        let mismatch = found.map(|found| corrupt(format!("layer `{}` arrived as `{found}`", layer.digest)));
        match ready.and(mismatch.map_or(Ok(()), Err)) {
            Err(error) if error.kind() == RuntimeErrorKind::Corrupt && source.distrust_senders(&error) => {}
            fetched => return fetched.map(Ok),
        }
    }
}
