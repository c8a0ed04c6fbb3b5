//! One running import: layers become snapshots from the base up, then documents and image records name them.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::ImageId,
    lock::locked,
};
use imagelet_oci::{ImportError, ImportStage, ImportedImage, LayerImport, StagedTree, Taken};
use tokio::task::JoinHandle;

use super::{layers::ImportRun, leases::ContainerdParts};

#[derive(Debug)]
pub(crate) struct ContainerdImport {
    run: Arc<ImportRun>,
    /// The task that writes the documents. The image is named after this task has ended.
    documents: Mutex<Option<JoinHandle<Result<(), RuntimeError>>>>,
}

impl ContainerdImport {
    pub(crate) async fn begin(
        containerd: Arc<ContainerdParts>,
        image: Arc<ImportedImage>,
    ) -> Result<Self, RuntimeError> {
        let run = Arc::new(ImportRun::begin(containerd, image).await?);
        let writing = Arc::clone(&run);
        let write = async move { writing.uninterrupted(|run| async move { run.write_documents().await }).await };
        Ok(Self { run, documents: Mutex::new(Some(tokio::spawn(write))) })
    }
}

#[async_trait]
impl LayerImport for ContainerdImport {
    fn present(&self) -> usize {
        self.run.present
    }

    async fn holds(&self, index: usize) -> Result<bool, RuntimeError> {
        if self.run.count() > index {
            return Ok(true);
        }
        let is_there = self.run.hold(index).await?;
        if is_there {
            self.run.has(index);
        }
        Ok(is_there)
    }

    async fn take(&self, index: usize, tree: StagedTree) -> Result<Taken, RuntimeError> {
        let taken = self.run.put_layer(index, tree).await;
        self.run.record(index, &taken);
        taken
    }

    async fn finish(&self) -> Result<ImageId, ImportError> {
        let documents = locked(&self.documents).take();
        let broke_off = |error| Err(RuntimeError::defect("the write of documents broke off").caused_by(error));
        let written = match documents {
            Some(documents) => documents.await.unwrap_or_else(broke_off),
            None => Err(RuntimeError::defect("an image is named once")),
        };
        written.map_err(|cause| ImportStage::Handover.failed(cause))?;
        // The naming runs to its end: a record from after the end of the lease would refer to removed content.
        let named = self.run.uninterrupted(|run| async move { Ok(run.name().await) });
        named.await.unwrap_or_else(|cause| {
            let is_given_up = cause.kind() == RuntimeErrorKind::Cancelled;
            let stage = if is_given_up { ImportStage::Handover } else { ImportStage::Recorded };
            Err(stage.failed(cause))
        })
    }

    async fn abandon(&self) {
        self.run.break_off();
        let _all_ended = self.run.running.write().await;
        self.run.lease.end(true).await;
    }
}

impl Drop for ContainerdImport {
    fn drop(&mut self) {
        // Running calls keep the lease alive, so the lease ends after these calls.
        self.run.break_off();
    }
}
