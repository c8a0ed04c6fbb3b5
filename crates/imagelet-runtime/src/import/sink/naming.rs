//! Writes the documents and image records that name the layers of one import, and waits until CRI shows the image.

use std::time::Duration;

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    failpoint,
    image::{ImageId, ImageSpec, counted},
};
use imagelet_oci::{DocumentBytes, ImportError, ImportStage};
use tokio::time::Instant;
use tonic::Code;

use super::{content::Content, layers::ImportRun, records};
use crate::cri::OVERLAYFS;

const SHOWN_MAX: Duration = Duration::from_secs(5);
/// The first and the maximum interval between two checks. The interval doubles after each check.
const CHECK_WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

impl ImportRun {
    pub(super) async fn name(&self) -> Result<ImageId, ImportError> {
        let count = self.count();
        if count < self.chains.len() {
            let why = format!("containerd has {count} of {} of the image", counted(self.chains.len(), "layer"));
            return Err(ImportStage::Handover.failed(RuntimeError::defect(why)));
        }
        self.write_images().await.map_err(|cause| ImportStage::Recorded.failed(cause))?;
        let id = self.wait_shown().await.map_err(|cause| ImportStage::Recorded.failed(cause))?;
        failpoint!("import.shown");
        // The records now protect the image. If the lease stays, the next import ends the lease.
        self.lease.end(false).await;
        failpoint!("import.released");
        Ok(id)
    }

    pub(super) async fn write_documents(&self) -> Result<(), RuntimeError> {
        for (document, references) in records::documents(&self.image, &self.chains, OVERLAYFS) {
            self.check_whole()?;
            let content = match &document.bytes {
                DocumentBytes::Memory(bytes) => Content::Document(bytes),
                DocumentBytes::Staged(file) => Content::File((**file).as_ref()),
            };
            self.write_content(content, &document.digest, document.bytes.len() as u64, references).await?;
            failpoint!("import.document");
        }
        Ok(())
    }

    async fn write_images(&self) -> Result<(), RuntimeError> {
        for image in records::images(&self.image) {
            match self.client.create_image(image.clone()).await {
                Err(error) if error.code() == Code::AlreadyExists => {
                    self.client.update_image(image).await?;
                }
                created => created?,
            }
            failpoint!("import.image");
        }
        Ok(())
    }

    async fn wait_shown(&self) -> Result<ImageId, RuntimeError> {
        let wanted = ImageId::new(self.image.config.digest.as_str());
        let name = self.image.names.first().map_or(wanted.as_str(), String::as_str);
        let spec = ImageSpec::new(name);
        let end = Instant::now() + SHOWN_MAX;
        let mut wait = CHECK_WAIT.0;
        loop {
            let seen = match tokio::time::timeout_at(end, self.containerd.config.cri.status(&spec)).await {
                Ok(Ok(Some(image))) if image.id == wanted => return Ok(wanted),
                Ok(Ok(Some(image))) => format!("it shows `{}`", image.id.as_str()),
                Ok(Ok(None)) => "it shows none".to_owned(),
                Ok(Err(error)) => error.chain(),
                Err(_) => "it does not answer".to_owned(),
            };
            if Instant::now() + wait >= end {
                let wanted = wanted.as_str();
                let why = format!("the runtime does not show `{name}` as `{wanted}` within {SHOWN_MAX:?}: {seen}");
                let fault = Fault::new(ErrorClass::TimedOut, Stage::Runtime);
                return Err(RuntimeError::new(RuntimeErrorKind::TimedOut, why).with_fault(fault));
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(CHECK_WAIT.1);
        }
    }
}
