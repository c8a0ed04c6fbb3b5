//! One import: layers become snapshots from the bottom up, then documents and image records name them.

mod layers;
mod naming;

use std::sync::Arc;

use async_trait::async_trait;
use imagelet_core::{
    image::ImageId,
    runtime::{ImportError, ImportStage, ImportedImage, LayerImport, RuntimeError, StagedTree, Taken},
};
use tokio::sync::Mutex;

use self::{layers::ImportRun, naming::DocumentWrites};
use crate::parts::ContainerdParts;

/// How often something is tried again that another client of containerd's made, or removed, at the same moment.
const TRIES_MAX: usize = 3;

/// An import under way.
#[derive(Debug)]
pub(crate) struct ContainerdImport {
    run: Arc<ImportRun>,
    /// Held while the image is named: the lease must not end before that has.
    documents: Arc<Mutex<DocumentWrites>>,
}

impl ContainerdImport {
    pub(crate) async fn begin(
        containerd: Arc<ContainerdParts>,
        image: Arc<ImportedImage>,
    ) -> Result<Self, RuntimeError> {
        let run = Arc::new(ImportRun::begin(containerd, image).await?);
        let mut documents = DocumentWrites::new();
        documents.spawn({
            let run = Arc::clone(&run);
            async move { run.write_documents().await }
        });
        Ok(Self { run, documents: Arc::new(Mutex::new(documents)) })
    }
}

#[async_trait]
impl LayerImport for ContainerdImport {
    fn present(&self) -> usize {
        self.run.present
    }

    async fn holds(&self, index: usize) -> Result<bool, RuntimeError> {
        self.run.holds(index).await
    }

    async fn take(&self, index: usize, tree: StagedTree) -> Result<Taken, RuntimeError> {
        self.run.take(index, tree).await
    }

    async fn finish(&self) -> Result<ImageId, ImportError> {
        // On its own: an image record that arrives after the end of the lease would name what is collected already. So
        // what is begun here ends as a whole image, or with an error, even when nothing waits for it any more.
        let (run, documents) = (Arc::clone(&self.run), Arc::clone(&self.documents));
        let named = tokio::spawn(async move {
            let mut documents = documents.lock().await;
            run.name(&mut documents).await
        });
        named.await.unwrap_or_else(|error| {
            let cause = RuntimeError::defect("the naming of an image broke off").caused_by(error);
            Err(ImportStage::Recorded.failed(cause))
        })
    }

    async fn abandon(&self) {
        self.run.break_off();
        let mut documents = self.documents.lock().await;
        documents.shutdown().await;
        if let Err(error) = self.run.lease.end(true).await {
            tracing::warn!(error = error.chain(), "an import was given up, and its lease could not be ended yet");
        }
    }
}
