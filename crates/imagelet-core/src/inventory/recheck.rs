//! The recheck of an image right before its removal.

use std::{sync::Arc, time::SystemTime};

use tokio::time::Instant;

use crate::inventory::{
    ImageEntry, Inventory, InventoryError, Removal,
    detect::{Survey, users},
    leases::RemovalBlocker,
    observation_window::VANISHED_WAIT,
};
use crate::{
    image::{Image, ImageSpec},
    runtime::{Pod, RuntimeErrorKind},
};

impl Inventory {
    /// Checks the users of an image before a requested removal, which may proceed while the result lives. Pins and leases
    /// do not count; with `takes_used` only work in this process counts.
    pub(crate) async fn check_requested_removal(
        &self,
        image: &Image,
        takes_used: bool,
        now: SystemTime,
    ) -> Result<Result<Removal<'_>, RemovalBlocker>, InventoryError> {
        // Started before the listing: a later request for the image waits until the removal ends.
        let removal = self.order_removal(&image.id).await;
        if takes_used || removal.is_err() {
            return Ok(removal);
        }
        let pods = match self.runtime.pods().await {
            // A store that runs no containers has no users.
            Err(error) if error.kind() == RuntimeErrorKind::Unsupported => Vec::new(),
            pods => pods.map_err(InventoryError::List)?,
        };
        let seen = self.snapshot().filter(|seen| now.duration_since(seen.taken_at).unwrap_or_default() < VANISHED_WAIT);
        let containers = seen.map_or(0, |seen| seen.containers);
        let blocker = self.blocked_by_users(&Arc::new(image.clone()), pods, containers).await?;
        Ok(blocker.map_or(removal, Err))
    }

    /// The users of an image in these pods, of which some had this many containers before.
    async fn blocked_by_users(
        &self,
        image: &Arc<Image>,
        pods: Vec<Pod>,
        containers: usize,
    ) -> Result<Option<RemovalBlocker>, InventoryError> {
        let mounts = self.mounts(&pods).await?;
        let sandboxes = self.sandbox_images(&pods).await?;
        let images = [Arc::clone(image)].into_iter().collect();
        let survey = Survey { images, pods, mounts, sandboxes, missing_are_gone: false };
        #[cfg(test)]
        let survey = self.lock().mutate_survey(survey);
        if containers > 0 && survey.runtime_containers() == 0 {
            return Ok(Some(RemovalBlocker::Doubtful));
        }
        Ok(users(&survey, |_| false).0.remove(&image.key()).map(|uses| RemovalBlocker::InUse(uses.by)))
    }

    /// Checks one entry of a snapshot with this many containers again, against the runtime and the operator's pins.
    ///
    /// For an unused image the removal starts with the result: later requests wait for its end, and earlier ones are
    /// part of the result.
    pub(crate) async fn clear(
        &self,
        entry: &ImageEntry,
        containers: usize,
        now: SystemTime,
    ) -> Result<Result<Removal<'_>, RemovalBlocker>, InventoryError> {
        let began = Instant::now();
        let found = self.recheck(entry, containers).await?;
        self.reload_leases(now + began.elapsed()).await;
        Ok(found.and_then(|image| self.begin_removal(entry, &image, now + began.elapsed())))
    }

    /// The current image, if the runtime reports no obstacle to its removal.
    async fn recheck(
        &self,
        entry: &ImageEntry,
        containers: usize,
    ) -> Result<Result<Arc<Image>, RemovalBlocker>, InventoryError> {
        let pods = self.runtime.pods().await.map_err(InventoryError::List)?;
        let spec = ImageSpec { image: entry.image.id.to_string(), ..entry.image.spec.clone() };
        let Some(found) = self.runtime.status(&spec).await.map_err(InventoryError::List)? else {
            return Ok(Err(RemovalBlocker::Gone));
        };
        // Tags may have moved since: both the old and the new names count.
        let image = Arc::new(merged(&entry.image, found));
        #[cfg(test)]
        let image = self.lock().mutate_names(&entry.image, image);
        if let Some(blocker) = self.blocked_by_users(&image, pods, containers).await? {
            return Ok(Err(blocker));
        }
        self.reload_pins().await;
        Ok(Ok(image))
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
