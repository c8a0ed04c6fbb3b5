//! The check of an image immediately before its removal.

use std::{sync::Arc, time::SystemTime};

use tokio::time::Instant;

use crate::inventory::{
    ImageEntry, Inventory, InventoryError, Reason,
    detect::{Survey, users},
    observation_window::{VANISHED_WAIT, settling},
};
use crate::{
    error::RuntimeErrorKind,
    image::{Image, ImageSpec},
    leases::Removal,
    ports::Pod,
};

impl Inventory {
    /// Checks before a requested removal that no container uses the image. Requests for the image wait until the result
    /// is dropped. Pins and leases are ignored. With `takes_used`, containers are ignored, too. The inner error has the
    /// users of the image.
    pub(crate) async fn check_requested_removal(
        &self,
        image: &Image,
        takes_used: bool,
    ) -> Result<Result<Removal<'_>, Vec<String>>, InventoryError> {
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
        let users = self.users_of(&Arc::new(image.clone()), pods, containers).await?;
        Ok(users.map_or(Ok(removal), Err))
    }

    /// The users of an image in these pods, or `None` if it is unused. `containers`: their number in an earlier list.
    async fn users_of(
        &self,
        image: &Arc<Image>,
        pods: Vec<Pod>,
        containers: usize,
    ) -> Result<Option<Vec<String>>, InventoryError> {
        let mounts = self.mounts(&pods).await?;
        let sandboxes = self.sandbox_images(&pods).await?;
        let images = [Arc::clone(image)].into_iter().collect();
        let survey = Survey { images, pods, mounts, sandboxes, missing_are_gone: false };
        if containers > 0 && survey.runtime_containers() == 0 {
            return Err(InventoryError::ContainersVanished);
        }
        Ok(users(&survey, |_| false).0.remove(&image.key()).map(|users| users.by))
    }

    /// Checks an entry of a snapshot again: against the runtime, the pins and the leases. The snapshot has `containers`
    /// containers. On success the removal starts, and later requests for the image wait until the removal ends.
    pub(crate) async fn check_removable(
        &self,
        entry: &ImageEntry,
        containers: usize,
        now: SystemTime,
    ) -> Result<Result<Removal<'_>, Reason>, InventoryError> {
        let began = Instant::now();
        let pods = self.runtime.pods().await.map_err(InventoryError::List)?;
        let spec = ImageSpec { image: entry.image.id.to_string(), ..entry.image.spec.clone() };
        let Some(found) = self.runtime.status(&spec).await.map_err(InventoryError::List)? else {
            return Ok(Err(Reason::Gone));
        };
        // Tags may have moved since the snapshot, so both the old and the new names are checked.
        let image = Arc::new(merged(&entry.image, found));
        if let Some(users) = self.users_of(&image, pods, containers).await? {
            return Ok(Err(Reason::InUse(users)));
        }
        self.reload_pins().await;
        self.leases.reload(now + began.elapsed()).await;
        Ok(self.begin_removal(entry, &image, now + began.elapsed()))
    }

    /// Starts the removal of an image that the runtime reports as unused, unless it was pinned, requested or used since
    /// then. The state stays locked until the removal has started, so that the checks stay valid.
    fn begin_removal(&self, entry: &ImageEntry, image: &Image, now: SystemTime) -> Result<Removal<'_>, Reason> {
        let key = &entry.key();
        let state = self.lock();
        // A concurrent pass may have listed a new container of the image and ended its lease.
        let seen = state.snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.entries);
        let first = seen.get(seen.partition_point(|entry| entry.image.id < *key.id()));
        if let Some(entry) = first.filter(|entry| entry.image.id == *key.id() && !entry.usage.used_by.is_empty()) {
            return Err(Reason::InUse(entry.usage.used_by.clone()));
        }
        // If the last container vanished recently, a list without it is not trusted yet.
        let released_at = state.memory.images.get(key).and_then(|usage| usage.times.released_at);
        let settling = settling(self.leases.lock().lasts);
        if released_at.is_some_and(|at| now.duration_since(at).unwrap_or_default() < settling) {
            return Err(Reason::Released);
        }
        let pinned_by = state.pinned_by(image);
        if !pinned_by.is_empty() {
            return Err(Reason::Pinned(pinned_by));
        }
        let awaited_by = state.pod_leases.pods_of(image);
        if !awaited_by.is_empty() {
            return Err(Reason::PodWaits(awaited_by));
        }
        if state.memory.requested_at(key) > entry.usage.times.requested_at {
            return Err(Reason::JustUsed);
        }
        self.leases.begin_removal(key.id(), now).map_err(|until| until.map_or(Reason::Awaited(None), Reason::awaited))
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
