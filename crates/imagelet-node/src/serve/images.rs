//! Serves the node's images over CRI, with the same parts as commands.
//!
//! A pull runs through the manager: equal requests share a pull, registries with an open circuit are skipped, and the
//! pull is recorded. Only with `limitPulls` a pull waits in the queue, because a kubelet has its own limits. The
//! credential of a call is used only for its pull. Operator pins are reported as pins of the runtime, so that a kubelet
//! keeps the images. A removal over CRI removes a pinned image and records an event. It removes an image in use only
//! with `removeInUse`.

use std::{path::PathBuf, time::SystemTime};

use async_trait::async_trait;
use imagelet_core::{
    audit_log::ActCode,
    error::{RuntimeError, RuntimeErrorKind},
    events::EventKind,
    gc::UsedImages,
    image::{Image, ImageId, ImageSpec, Reference, shown_name},
    manager::{Caller, EnsureRequest, PullPolicy},
    ports::{ImageDetails, ImageFilesystems, ImageService, Listing, Progress, PullRequest, unwatched},
};

use super::{filesystems::FilesystemAnswers, start::Start};
use crate::{
    config::CriCallers,
    node::{Daemon, Images, Pulls, act_now},
};

const NAMES_MAX: usize = 10;

#[derive(Debug)]
pub(super) struct ServedImages {
    start: Start,
    filesystems: FilesystemAnswers,
}

impl ServedImages {
    pub(super) fn new(start: Start, place: PathBuf) -> Self {
        Self { start, filesystems: FilesystemAnswers::new(place) }
    }

    /// Each pull contacts the registry, even for a digest, because the registry may have revoked the credential.
    fn request(asked: &PullRequest, is_embedded: bool, callers: CriCallers) -> EnsureRequest {
        // An embedded store does not read the pod and its annotations. Without them, more requests share a pull.
        let mut pull = asked.clone();
        if is_embedded {
            (pull.encoded_pod, pull.image.annotations) = (None, Vec::new());
            // A short name is completed, so that all forms of a name share a pull. A runtime completes names itself.
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

    /// Removes a damaged image, which the store does not list. If the image is absent, the removal succeeds.
    async fn remove_unlisted(images: &Images, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let damaged = match images.local() {
            // The image is removed by id, because a pull may add another image with this name at any moment.
            Some(store) => store.damaged(&spec.image).map(|id| ImageSpec::new(id.as_str())),
            None => Some(spec.clone()),
        };
        let Some(spec) = damaged else { return Ok(()) };
        images.runtime.remove(&spec).await
    }
}

#[async_trait]
impl ImageService for ServedImages {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let Images { runtime, inventory, .. } = &self.start.daemon().await?.node.pulls.images;
        Ok(inventory.mark_all_pinned(runtime.list(filter).await?))
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let Images { runtime, inventory, .. } = &self.start.daemon().await?.node.pulls.images;
        // A client that sees the image may start a container from it, so the image gets a lease.
        let key = |found: &Option<Image>| found.as_ref().map(Image::key);
        let mut image = inventory.leased("", SystemTime::now(), || runtime.usable(spec), key).await?;
        if let Some(image) = &mut image {
            inventory.mark_pinned(image);
        }
        Ok(image)
    }

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        let Images { runtime, inventory, .. } = &self.start.daemon().await?.node.pulls.images;
        let key = |found: &Option<ImageDetails>| found.as_ref().map(|details| details.image.key());
        let mut details = inventory.leased("", SystemTime::now(), || runtime.usable_details(spec), key).await?;
        if let Some(details) = &mut details {
            inventory.mark_pinned(&mut details.image);
        }
        Ok(details)
    }

    async fn pull(&self, asked: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        let Daemon { node, calls } = self.start.daemon().await?;
        let Pulls { images, manager, tracer, .. } = &node.pulls;
        let request = Self::request(asked, images.local().is_some(), images.settings().interfaces.callers);
        let ensure = |watcher| manager.ensure(&request, watcher);
        let ensure = tracer.ensure(request.image(), unwatched(), ensure);
        let Some(ensured) = calls.working.run_until_cancelled(Box::pin(ensure)).await else {
            let message = format!("the pull of `{}` was given up: the daemon is stopping", asked.image.image);
            return Err(RuntimeError::new(RuntimeErrorKind::Cancelled, message));
        };
        let ensured = ensured.map_err(imagelet_core::manager::EnsureError::into_runtime_error)?;
        self.filesystems.invalidate();
        Ok(ensured.id)
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let node = &self.start.daemon().await?.node;
        let images = &node.pulls.images;
        let used = if images.settings().interfaces.callers.remove_in_use { UsedImages::Go } else { UsedImages::Stay };
        // Requests for the image that arrive during the removal wait for its end.
        let removed = node.collection.gc.remove_ordered(spec, used, SystemTime::now()).await;
        let Some(image) = removed? else {
            return Self::remove_unlisted(images, spec).await;
        };
        let pins = images.inventory.pins_of(&image);
        self.filesystems.invalidate();
        images.log.act(act_now(ActCode::RemovedOnRequest, &[image.key()], image.names(), "CRI"));
        // A kubelet removes by id, so the event names the image.
        let names: Vec<_> = image.names().iter().take(NAMES_MAX).map(|name| shown_name(name)).collect();
        let name = if names.is_empty() { shown_name(&spec.image).into_owned() } else { names.join("`, `") };
        let removed = format!("Removed image `{name}` ({}) as asked over CRI", image.id);
        match &pins[..] {
            [] => images.record_event(EventKind::Normal, "Removed", removed),
            pins => {
                let message = format!("{removed}, although it is pinned by {}", pins.join(", "));
                images.record_event(EventKind::Warning, "PinnedImageRemoved", message);
            }
        }
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        // A kubelet does not start without an answer, so a store that is still opening reports no images.
        let Some(started) = self.start.0.get() else { return Ok(self.filesystems.last()) };
        self.filesystems.answer(started.daemon.node.pulls.images.runtime.filesystem()).await
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::ports::Patience;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn during_the_start_file_systems_are_answered_at_once_and_all_else_is_unavailable() {
        let images = ServedImages::new(Start::default(), "/store".into());
        let begun = tokio::time::Instant::now();
        let answer = images.filesystem().await.unwrap();
        assert!(!answer.images.is_empty() && !answer.containers.is_empty() && begun.elapsed().is_zero());
        let refused = images.list(None).await.unwrap_err();
        assert_eq!(refused.kind(), RuntimeErrorKind::Unavailable);
    }

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
