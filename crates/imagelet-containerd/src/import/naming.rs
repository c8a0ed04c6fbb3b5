//! What names the layers of one import: documents, image records, and a look whether CRI shows them.

use std::{path::Path, time::Duration};

use imagelet_core::{
    image::{Digest, ImageId, ImageSpec},
    runtime::{ErrorClass, Fault, ImportError, ImportStage, RuntimeError, RuntimeErrorKind, Stage},
};
use tokio::{fs::File, io::AsyncRead, time::Instant};

use super::{TRIES_MAX, layers::ImportRun};
use crate::{
    ContainerdRefusal, Hold,
    failpoint::Step,
    place::OVERLAYFS,
    records::{self, Labels, source_label},
};

/// How long CRI may take until it shows an image that is recorded.
const SHOWN_MAX: Duration = Duration::from_secs(5);
/// The wait between two looks: from this, doubled each time, to that.
const LOOK_WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

impl ImportRun {
    /// Writes image records, looks until CRI shows the image, and ends the lease.
    pub(super) async fn name(&self) -> Result<ImageId, ImportError> {
        let count = self.count();
        if count < self.chains.len() {
            let why = format!("containerd has {count} of the image's {} layers", self.chains.len());
            return Err(ImportStage::Handover.failed(RuntimeError::defect(why)));
        }
        self.write_images().await.map_err(|cause| ImportStage::Recorded.failed(cause))?;
        let id = self.wait_shown().await.map_err(|cause| ImportStage::Recorded.failed(cause))?;
        Step::ImportShown.reach();
        // The records keep the image from here on; a lease that stays is ended by the next import.
        if let Err(error) = self.lease.end(false).await {
            tracing::warn!(error = error.chain(), "an image is imported, and its lease could not be ended yet");
        }
        Step::ImportReleased.reach();
        Ok(id)
    }

    /// Writes content with its labels, or adds them where it is there already.
    pub(super) async fn write(
        &self,
        content: ContentSource<'_>,
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
                Err(error) if error.refusal() == ContainerdRefusal::AlreadyExists => {}
                written => return Ok(written?),
            }
            self.client.hold(self.lease.id(), Hold::Content(digest.as_str())).await?;
            let Some(found) = self.client.content(digest.as_str()).await? else { continue };
            match self.client.label_content(digest.as_str(), labelled(&found.labels)).await {
                Err(error) if error.refusal() == ContainerdRefusal::NotFound => {}
                added => return Ok(added?),
            }
        }
        Err(RuntimeError::other(format!("containerd's content `{digest}` came and went {TRIES_MAX} times")))
    }

    pub(super) async fn write_documents(&self) -> Result<(), RuntimeError> {
        for labelled in records::documents(&self.image, &self.chains, OVERLAYFS) {
            self.check_whole()?;
            let document = labelled.document;
            let size = document.bytes.len() as u64;
            self.write(ContentSource::Document(&document.bytes), &document.digest, size, labelled.references).await?;
            Step::ImportDocument.reach();
        }
        Ok(())
    }

    async fn write_images(&self) -> Result<(), RuntimeError> {
        for image in records::images(&self.image) {
            match self.client.create_image(image.clone()).await {
                Err(error) if error.refusal() == ContainerdRefusal::AlreadyExists => {
                    self.client.update_image(image).await?;
                }
                created => created?,
            }
            Step::ImportImage.reach();
        }
        Ok(())
    }

    /// Looks until CRI shows the image.
    async fn wait_shown(&self) -> Result<ImageId, RuntimeError> {
        let wanted = ImageId::new(self.image.config.digest.as_str());
        let (by_tag, by_digest) = self.image.reference.names_of(&self.image.root.digest);
        let name = by_tag.unwrap_or(by_digest);
        let spec = ImageSpec::new(&name);
        let end = Instant::now() + SHOWN_MAX;
        let mut wait = LOOK_WAIT.0;
        loop {
            let seen = match tokio::time::timeout_at(end, self.containerd.cri.status(&spec)).await {
                Ok(Ok(Some(image))) if image.id == wanted => return Ok(wanted),
                Ok(Ok(Some(image))) => Ok(format!("it shows `{}`", image.id.as_str())),
                Ok(Ok(None)) => Ok("it shows none".to_owned()),
                Ok(Err(error)) => Err(error),
                Err(_) => Ok("it does not answer".to_owned()),
            };
            if Instant::now() + wait >= end {
                let message =
                    format!("the runtime does not show `{name}` as `{}` within {SHOWN_MAX:?}", wanted.as_str());
                let fault = Fault::new(ErrorClass::TimedOut, Stage::Runtime);
                let error = match seen {
                    Ok(seen) => RuntimeError::new(RuntimeErrorKind::TimedOut, format!("{message}: {seen}")),
                    Err(error) => RuntimeError::new(RuntimeErrorKind::TimedOut, message).caused_by(error),
                };
                return Err(error.with_fault(fault));
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LOOK_WAIT.1);
        }
    }
}

/// Where content comes from.
pub(super) enum ContentSource<'a> {
    Document(&'a [u8]),
    /// A packed layer.
    Blob(&'a Path),
}

impl<'a> ContentSource<'a> {
    async fn open(&self) -> Result<Box<dyn AsyncRead + Send + Unpin + 'a>, RuntimeError> {
        match *self {
            Self::Document(bytes) => Ok(Box::new(bytes)),
            Self::Blob(path) => match File::open(path).await {
                Ok(file) => Ok(Box::new(file)),
                Err(error) => {
                    let why = format!("cannot read the packed layer `{}`", path.display());
                    Err(RuntimeError::other(why).caused_by(error))
                }
            },
        }
    }
}
