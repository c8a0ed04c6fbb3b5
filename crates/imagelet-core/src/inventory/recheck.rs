//! How an image stands right now: the last question before it is removed.

use std::{sync::Arc, time::SystemTime};

use tokio::time::Instant;

use crate::inventory::{
    ImageEntry, Inventory, InventoryError, Removal,
    detect::{Survey, users},
    leases::removal_blocker::RemovalBlocker,
    observation_window::VANISHED_WAIT,
};
use crate::{
    image::{Image, ImageSpec},
    runtime::RuntimeErrorKind,
};

/// Whether an image may go.
#[derive(Debug)]
pub(crate) enum RemovalPermit<'a> {
    /// It may, while this lives.
    Free(Removal<'a>),
    /// It may not.
    Kept(RemovalBlocker),
}

/// Whether an image may go that somebody ordered to.
#[derive(Debug)]
pub(crate) enum RequestedRemoval<'a> {
    /// It may, while this lives.
    Free(Removal<'a>),
    /// These use it.
    InUse(Vec<String>),
    /// The runtime lists no container at all where it listed some a moment ago.
    Doubtful,
}

impl Inventory {
    /// Asks the runtime afresh who uses an image that somebody wants removed; pins and leases do not count, and where
    /// `takes_used` is set only who works with it in this process does.
    pub(crate) async fn clear_ordered(
        &self,
        image: &Image,
        takes_used: bool,
        now: SystemTime,
    ) -> Result<RequestedRemoval<'_>, InventoryError> {
        // From before the question: who asks for the image from here on waits until it is gone.
        let removal = match self.order_removal(&image.id).await {
            Ok(removal) => removal,
            Err(works) => return Ok(RequestedRemoval::InUse(works.into_iter().map(str::to_owned).collect())),
        };
        if takes_used {
            return Ok(RequestedRemoval::Free(removal));
        }
        let pods = match self.runtime.pods().await {
            // Who keeps images and runs no containers has none that use them.
            Err(error) if error.kind() == RuntimeErrorKind::Unsupported => Vec::new(),
            pods => pods.map_err(InventoryError::List)?,
        };
        let mounts = self.mounts(&pods).await?;
        let sandboxes = self.sandbox_images(&pods).await?;
        let images = [image.clone()].into_iter().collect();
        let survey = Survey { images, pods, mounts, sandboxes, missing_are_gone: false };
        let seen = self.snapshot().filter(|seen| now.duration_since(seen.taken_at).unwrap_or_default() < VANISHED_WAIT);
        if seen.is_some_and(|seen| seen.containers > 0) && survey.runtime_containers() == 0 {
            return Ok(RequestedRemoval::Doubtful);
        }
        Ok(match users(&survey).remove(&image.key()) {
            Some(users) => RequestedRemoval::InUse(users),
            None => RequestedRemoval::Free(removal),
        })
    }

    /// Asks the runtime and the operator's pins afresh about one entry of a snapshot that had so many containers.
    ///
    /// Where the image is free its removal has begun with the answer: who asks for it from then on waits for the end of
    /// it. Who was there before is part of the answer.
    pub(crate) async fn clear(
        &self,
        entry: &ImageEntry,
        containers: usize,
        now: SystemTime,
    ) -> Result<RemovalPermit<'_>, InventoryError> {
        let began = Instant::now();
        let found = self.recheck(entry, containers).await?;
        self.reload_leases(now + began.elapsed()).await;
        let begun = found.and_then(|image| self.begin_removal(entry, &image, now + began.elapsed()));
        Ok(begun.map_or_else(RemovalPermit::Kept, RemovalPermit::Free))
    }

    /// The image as it is now, where the runtime knows of nothing against its removal.
    async fn recheck(
        &self,
        entry: &ImageEntry,
        containers: usize,
    ) -> Result<Result<Image, RemovalBlocker>, InventoryError> {
        let pods = self.runtime.pods().await.map_err(InventoryError::List)?;
        let mounts = self.mounts(&pods).await?;
        let sandboxes = self.sandbox_images(&pods).await?;
        let spec = ImageSpec { image: entry.image.id.to_string(), ..entry.image.spec.clone() };
        let Some(found) = self.runtime.status(&spec).await.map_err(InventoryError::List)? else {
            return Ok(Err(RemovalBlocker::Gone));
        };
        // Tags may have moved since: both what it was called and what it is called now count.
        let image = merged(&entry.image, found);
        let image = Arc::new(image);
        let images = [Arc::clone(&image)].into_iter().collect();
        let survey = Survey { images, pods, mounts, sandboxes, missing_are_gone: false };
        if containers > 0 && survey.runtime_containers() == 0 {
            return Ok(Err(RemovalBlocker::Doubtful));
        }
        if let Some(users) = users(&survey).remove(&survey.images[0].key()) {
            return Ok(Err(RemovalBlocker::InUse(users)));
        }
        self.reload_pins().await;
        drop(survey);
        Ok(Ok(Arc::unwrap_or_clone(image)))
    }
}

fn merged(planned: &Image, found: Image) -> Image {
    let both = |planned: &[String], found: Vec<String>| {
        let mut names = found;
        names.extend(planned.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
        names
    };
    Image {
        tags: both(&planned.tags, found.tags),
        digests: both(&planned.digests, found.digests),
        pinned: found.pinned,
        ..planned.clone()
    }
}
