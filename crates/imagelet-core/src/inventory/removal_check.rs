//! The check of an image immediately before its removal.

use std::{sync::Arc, time::SystemTime};

use tokio::time::Instant;

use crate::inventory::{
    ImageEntry, Inventory, InventoryError,
    detect::{Survey, users},
    observation_window::{VANISHED_WAIT, settling},
};
use crate::{
    error::RuntimeErrorKind,
    image::{Image, ImageSpec},
    leases::{Removal, RemovalBlocker},
    ports::Pod,
};

impl Inventory {
    /// Checks before a requested removal that no container uses the image. Requests for the image wait until the result
    /// is dropped. Pins and leases are ignored. With `takes_used`, containers are ignored, too.
    pub(crate) async fn check_requested_removal(
        &self,
        image: &Image,
        takes_used: bool,
    ) -> Result<Result<Removal<'_>, RemovalBlocker>, InventoryError> {
        // The removal begins before the listing, so that a later request for the image waits until the removal ends.
        let removal = self.leases.order_removal(&image.id).await;
        if takes_used {
            return Ok(Ok(removal));
        }
        let pods = match self.runtime.pods().await {
            // A store that cannot list pods runs no containers, so its images have no users.
            Err(error) if error.kind() == RuntimeErrorKind::Unsupported => Vec::new(),
            pods => pods.map_err(InventoryError::List)?,
        };
        let containers = {
            let state = self.lock();
            let is_recent = state.passed_at.is_some_and(|at| at.elapsed() < VANISHED_WAIT);
            state.snapshot.as_ref().filter(|_| is_recent).map_or(0, |seen| seen.containers)
        };
        let blocker = self.blocked_by_users(&Arc::new(image.clone()), pods, containers).await?;
        Ok(blocker.map_or(Ok(removal), Err))
    }

    /// What prevents the removal: users in these pods, or a doubtful list. `containers`: their number in an earlier
    /// list.
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
        if containers > 0 && survey.runtime_containers() == 0 {
            return Ok(Some(RemovalBlocker::Doubtful));
        }
        Ok(users(&survey, |_| false).0.remove(&image.key()).map(|uses| RemovalBlocker::InUse(uses.by)))
    }

    /// Checks an entry of a snapshot again: against the runtime, the pins and the leases. The snapshot has `containers`
    /// containers. On success the removal starts, and later requests for the image wait until the removal ends.
    pub(crate) async fn check_removable(
        &self,
        entry: &ImageEntry,
        containers: usize,
        now: SystemTime,
    ) -> Result<Result<Removal<'_>, RemovalBlocker>, InventoryError> {
        let began = Instant::now();
        let found = self.found_removable(entry, containers).await?;
        self.leases.reload(now + began.elapsed()).await;
        Ok(found.and_then(|image| self.begin_removal(entry, &image, now + began.elapsed())))
    }

    /// Queries the runtime again. Returns the current image, or what prevents its removal.
    async fn found_removable(
        &self,
        entry: &ImageEntry,
        containers: usize,
    ) -> Result<Result<Arc<Image>, RemovalBlocker>, InventoryError> {
        let pods = self.runtime.pods().await.map_err(InventoryError::List)?;
        let spec = ImageSpec { image: entry.image.id.to_string(), ..entry.image.spec.clone() };
        let Some(found) = self.runtime.status(&spec).await.map_err(InventoryError::List)? else {
            return Ok(Err(RemovalBlocker::Gone));
        };
        // Tags may have moved since the snapshot, so both the old and the new names are checked.
        let image = Arc::new(merged(&entry.image, found));
        if let Some(blocker) = self.blocked_by_users(&image, pods, containers).await? {
            return Ok(Err(blocker));
        }
        self.reload_pins().await;
        Ok(Ok(image))
    }
}

impl Inventory {
    /// Starts the removal of an image that the runtime reports as unused, unless it was pinned, requested or used since
    /// then. The state stays locked until the removal has started, so that the checks stay valid.
    fn begin_removal(&self, entry: &ImageEntry, image: &Image, now: SystemTime) -> Result<Removal<'_>, RemovalBlocker> {
        let key = &entry.key();
        let state = self.lock();
        // A concurrent pass may have listed a new container of the image and ended its lease.
        let seen = state.snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.entries);
        let first = seen.get(seen.partition_point(|entry| entry.image.id < *key.id()));
        if let Some(entry) = first.filter(|entry| entry.image.id == *key.id() && !entry.usage.used_by.is_empty()) {
            return Err(RemovalBlocker::InUse(entry.usage.used_by.clone()));
        }
        // If the last container vanished recently, a list without it is not trusted yet.
        let released_at = state.memory.images.get(key).and_then(|usage| usage.times.released_at);
        let settling = settling(self.leases.lock().lasts);
        if let Some(released_at) = released_at.filter(|at| now.duration_since(*at).unwrap_or_default() < settling) {
            return Err(RemovalBlocker::Released(released_at));
        }
        let pinned_by = state.pinned_by(image);
        if !pinned_by.is_empty() {
            return Err(RemovalBlocker::Pinned(pinned_by));
        }
        let awaited_by = state.pod_leases.pods_of(image);
        if !awaited_by.is_empty() {
            return Err(RemovalBlocker::Awaited(awaited_by));
        }
        if state.memory.requested_at(key) > entry.usage.times.requested_at {
            return Err(RemovalBlocker::Touched);
        }
        self.leases.begin_removal(key.id(), now)
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
