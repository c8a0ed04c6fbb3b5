//! Writes an image's documents and compressed layers into containerd's content store.

use std::path::Path;

use imagelet_core::{error::RuntimeError, failpoint, image::Digest};
use tokio::{fs::File, io::AsyncRead};
use tonic::Code;

use super::{
    TRIES_MAX,
    layers::ImportRun,
    records::{Labels, source_label},
};

impl ImportRun {
    pub(super) async fn write_blob(&self, index: usize, blob: &Path) -> Result<(), RuntimeError> {
        let layer = &self.image.layers[index];
        let unpacked = Labels::from([("containerd.io/uncompressed".to_owned(), layer.diff_id.to_string())]);
        self.write_content(Content::File(blob), &layer.digest, layer.size, unpacked).await?;
        failpoint!("import.blob");
        Ok(())
    }

    /// Writes content with its labels. If the content exists, only the labels are added.
    pub(super) async fn write_content(
        &self,
        content: Content<'_>,
        digest: &Digest,
        size: u64,
        labels: Labels,
    ) -> Result<(), RuntimeError> {
        let labelled = |before: &Labels| {
            let mut labels = labels.clone();
            labels.extend(source_label(&self.image.reference, before));
            labels
        };
        for _ in 0..TRIES_MAX {
            let bytes = content.open().await?;
            match self.client.write_content(digest.as_str(), size, bytes, labelled(&Labels::new())).await {
                Err(error) if error.code() == Code::AlreadyExists => {}
                written => return Ok(written?),
            }
            self.client.hold(&self.lease.id, "content", digest.as_str()).await?;
            let Some(found) = self.client.content(digest.as_str()).await? else { continue };
            match self.client.label_content(digest.as_str(), labelled(&found.labels)).await {
                Err(error) if error.code() == Code::NotFound => {}
                added => return Ok(added?),
            }
        }
        Err(RuntimeError::other(format!("containerd's content `{digest}` came and went {TRIES_MAX} times")))
    }
}

pub(super) enum Content<'a> {
    Document(&'a [u8]),
    File(&'a Path),
}

impl<'a> Content<'a> {
    async fn open(&self) -> Result<Box<dyn AsyncRead + Send + Unpin + 'a>, RuntimeError> {
        match *self {
            Self::Document(bytes) => Ok(Box::new(bytes)),
            Self::File(path) => match File::open(path).await {
                Ok(file) => Ok(Box::new(file)),
                Err(error) => {
                    let why = format!("cannot read `{}`, which is to be imported", path.display());
                    Err(RuntimeError::other(why).caused_by(error))
                }
            },
        }
    }
}
