//! Serves the node's images over CRI, through the same parts as commands.
//!
//! A pull passes the manager: equal requests share it, it skips registries with an open circuit, and it is recorded.
//! It waits in the queue only with `limitPulls`: a kubelet has limits of its own. The credential of a call is used for
//! that pull and not kept. Operator pins are reported as the runtime's own, so that a kubelet skips those images. A
//! removal over CRI is executed, as the interface requires; that of a pinned image records an event. An image in use is
//! not removed unless that is configured.

use std::{path::PathBuf, time::SystemTime};

use async_trait::async_trait;
use imagelet_core::{
    audit_log::ActCode,
    events::EventKind,
    gc::{OrderError, UsedImages},
    image::{Image, ImageId, ImageSpec, Reference, shown_name},
    manager::{Caller, EnsureRequest, PullPolicy},
    runtime::{
        ImageDetails, ImageFilesystems, ImageService, Listing, Progress, PullRequest, RuntimeError, RuntimeErrorKind,
        unwatched,
    },
};
use tokio_util::sync::CancellationToken;

use super::{filesystems::FilesystemAnswers, readiness::Readiness};
use crate::{config::CriCallers, node::LocalNode};

const NAMES_MAX: usize = 10;

#[derive(Debug)]
pub(super) struct ServedImages {
    readiness: Readiness,
    working: CancellationToken,
    filesystems: FilesystemAnswers,
}

impl ServedImages {
    pub(super) fn new(readiness: Readiness, place: PathBuf, working: CancellationToken) -> Self {
        Self { readiness, working, filesystems: FilesystemAnswers::new(place) }
    }

    /// The request to the manager. The registry is always contacted, for a digest as for a tag: it may have revoked a
    /// credential since.
    fn request(asked: &PullRequest, is_embedded: bool, callers: CriCallers) -> EnsureRequest {
        // A runtime receives the caller's whole pod with its annotations; an embedded store reads none of it, and pods that
        // differ in it share a pull.
        let mut pull = asked.clone();
        if is_embedded {
            (pull.encoded_pod, pull.image.annotations) = (None, Vec::new());
            // Equal names in other spellings share a pull. A runtime resolves short names itself.
            if let Ok(reference) = pull.image.image.parse::<Reference>() {
                pull.image.image = reference.canonical().to_string();
            }
        }
        EnsureRequest {
            pull,
            policy: PullPolicy::Always,
            caller: Caller::Client { own_credentials: is_embedded, is_limited: callers.limit_pulls },
            ..EnsureRequest::default()
        }
    }

    fn refused(name: &str, error: OrderError) -> RuntimeError {
        match error {
            OrderError::InUse { by, .. } => {
                let user = by.first().map_or("a container", String::as_str);
                RuntimeError::new(RuntimeErrorKind::InUse, format!("the image is in use by {user}"))
            }
            OrderError::Runtime(error) => error,
            unknown => {
                let message = format!("could not find out what uses `{}`", shown_name(name));
                RuntimeError::new(RuntimeErrorKind::Unavailable, message).caused_by(unknown)
            }
        }
    }

    /// Removes a damaged image, which is not listed. Absent is success.
    async fn remove_unlisted(node: &LocalNode, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let damaged = match node.local() {
            // By id, because an image of this name may arrive at any moment.
            Some(store) => store.damaged(&spec.image).map(|id| ImageSpec::new(id.as_str())),
            None => Some(spec.clone()),
        };
        let Some(spec) = damaged else { return Ok(()) };
        node.parts.runtime.remove(&spec).await
    }
}

#[async_trait]
impl ImageService for ServedImages {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let node = self.readiness.node().await?;
        let listing = node.parts.runtime.list(filter).await?;
        Ok(node.parts.inventory.mark_all_pinned(listing))
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let node = self.readiness.node().await?;
        let parts = &node.parts;
        // A caller that sees the image may start a container from it.
        let key = |found: &Option<Image>| found.as_ref().map(Image::key);
        let ask = || parts.runtime.usable(spec);
        let mut image = parts.inventory.leased("", SystemTime::now(), ask, key).await?;
        if let Some(image) = &mut image {
            parts.inventory.mark_pinned(image);
        }
        Ok(image)
    }

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        let node = self.readiness.node().await?;
        let parts = &node.parts;
        let key = |found: &Option<ImageDetails>| found.as_ref().map(|details| details.image.key());
        let ask = || parts.runtime.usable_details(spec);
        let mut details = parts.inventory.leased("", SystemTime::now(), ask, key).await?;
        if let Some(details) = &mut details {
            parts.inventory.mark_pinned(&mut details.image);
        }
        Ok(details)
    }

    async fn pull(&self, asked: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        let node = self.readiness.node().await?;
        let request = Self::request(asked, node.local().is_some(), node.settings().interfaces.callers);
        let ensure = |watcher| node.parts.manager.ensure(&request, watcher);
        let ensure = node.parts.tracer.ensure(request.image(), unwatched(), ensure);
        let ensured = tokio::select! {
            ensured = ensure => ensured,
            () = self.working.cancelled() => {
                let message = format!("the pull of `{}` was given up: the daemon is stopping", asked.image.image);
                return Err(RuntimeError::new(RuntimeErrorKind::Cancelled, message));
            }
        };
        let ensured = ensured.map_err(imagelet_core::manager::EnsureError::into_runtime_error)?;
        self.filesystems.invalidate();
        Ok(ensured.id)
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let node = self.readiness.node().await?;
        let parts = &node.parts;
        let used = if node.settings().interfaces.callers.remove_in_use { UsedImages::Go } else { UsedImages::Stay };
        // Later requests for the image wait until it is removed or kept.
        let removed = parts.gc.remove_ordered(spec, used, SystemTime::now()).await;
        let Some(image) = removed.map_err(|error| Self::refused(&spec.image, error))? else {
            return Self::remove_unlisted(&node, spec).await;
        };
        let pins = parts.inventory.pins_of(&image);
        node.removed_on_request(ActCode::RemovedOnRequest, &image, image.names(), "CRI", None);
        self.filesystems.invalidate();
        // A kubelet removes by id; the event names the image.
        let names: Vec<_> = image.names().iter().take(NAMES_MAX).map(|name| shown_name(name)).collect();
        let name = if names.is_empty() { shown_name(&spec.image).into_owned() } else { names.join("`, `") };
        let (kind, reason, although) = match &pins[..] {
            [] => (EventKind::Normal, "Removed", String::new()),
            pins => {
                (EventKind::Warning, "PinnedImageRemoved", format!(", although it is pinned by {}", pins.join(", ")))
            }
        };
        let message = format!("Removed image `{name}` ({}) as asked over CRI{although}", image.id);
        node.record_event(kind, reason, message);
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        // A kubelet does not start without an answer; a store that is still opening has one soon.
        let Some(node) = self.readiness.0.get() else { return Ok(self.filesystems.last()) };
        self.filesystems.answer(node.parts.runtime.filesystem()).await
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::runtime::Patience;

    use super::*;

    #[test]
    fn an_embedded_store_gets_the_canonical_name_and_none_of_the_pods_annotations() {
        let annotations = vec![("team".to_owned(), "shop".to_owned())];
        let image = ImageSpec { annotations: annotations.clone(), ..ImageSpec::new("app:v1") };
        let asked = PullRequest { image, patience: Patience::ONE_RETRY, ..PullRequest::default() };
        let callers = CriCallers { limit_pulls: false, remove_in_use: false };
        for (is_embedded, name, expected) in
            [(true, "docker.io/library/app:v1", vec![]), (false, "app:v1", annotations)]
        {
            let request = ServedImages::request(&asked, is_embedded, callers);
            assert_eq!((request.image(), &request.pull.image.annotations), (name, &expected));
            assert_eq!(request.pull.patience, Patience::ONE_RETRY, "as the caller asked");
        }
    }
}
