//! The inventory's leases: requests for an image, holds on it, and its removal.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::image::{Image, ImageId, ImageKey};
use crate::inventory::{
    HandedOut, ImageEntry, Inventory, InventoryState,
    detect::Survey,
    leases::{AHEAD_MAX, ReadMark, RemovalBlocker},
    observation_window::VANISHED_WAIT,
};

/// Prevents the removal of one image until dropped.
#[derive(Debug)]
#[must_use = "it holds only while it lives"]
pub struct Hold {
    inventory: Arc<Inventory>,
    id: ImageId,
    work: &'static str,
}

/// A running removal: requests for the image wait until this is dropped and then look again.
#[derive(Debug)]
#[must_use = "the removal ends with it"]
pub struct Removal<'a> {
    inventory: &'a Inventory,
    id: ImageId,
}

impl Inventory {
    /// Enables leases of this duration; zero disables them.
    ///
    /// Leases of an earlier process are restored. If their file is unreadable, every image counts as leased.
    pub fn start_leases(&self, lasts: Duration, now: SystemTime) {
        let found = self.lease_file.read();
        let mut state = self.lock();
        state.leases.lasts = lasts;
        match found {
            Ok(found) => state.leases.restore(found, now, true),
            Err(error) => {
                tracing::error!(%error, "cannot read the leases; every image counts as leased for the time of a lease");
                state.leases.all_until = Some(now + lasts);
            }
        }
    }

    /// Queries a store on behalf of a pod, by uid or empty, and leases the image it finds: no collection removes the
    /// image before the lease ends.
    ///
    /// `ask` is a look or a pull; `key` extracts the found image. If a removal intervenes between the answer and the
    /// lease, `ask` runs again, so the returned image is present. Concurrent requests share one write to the disk, and
    /// a repeated request within seconds writes nothing.
    ///
    /// # Errors
    /// The error of `ask`.
    pub async fn leased<T, E, F>(
        &self,
        pod: &str,
        now: SystemTime,
        mut ask: impl FnMut() -> F,
        key: impl Fn(&T) -> Option<ImageKey>,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let began = Instant::now();
        loop {
            let look = self.lock().leases.look();
            let answer = ask().await?;
            let Some(key) = key(&answer) else { return Ok(answer) };
            if let Some(version) = self.lease(&key, pod, look, now + began.elapsed()) {
                self.keep_leases(version).await;
                // A requested removal takes a leased image, too, and may have done so during the write.
                if !self.lock().leases.is_overtaken(key.id(), look) {
                    return Ok(answer);
                }
            }
            tracing::debug!(image = %key, "a removal of the image ran meanwhile; looking again");
            self.removal_ended(key.id()).await;
        }
    }

    /// Leases an image seen since the look, and returns the version with which the disk has it; `None` if a removal
    /// intervened.
    fn lease(&self, key: &ImageKey, pod: &str, look: ReadMark, now: SystemTime) -> Option<u64> {
        let mut state = self.lock();
        #[cfg(test)]
        state.mutate_before_lease(key.id());
        if state.leases.is_overtaken(key.id(), look) {
            return None;
        }
        let version = state.leases.lease(key.id(), pod, now);
        #[cfg(test)]
        state.mutate_after_lease(key.id());
        drop(state);
        // A pod's manager has recorded the use itself.
        let handed = HandedOut { key: key.clone(), user: None, pulled: None };
        self.record(&handed, u64::from(pod.is_empty()), false, now);
        Some(version)
    }

    /// Prevents the removal of an image during work on it, after waiting for a running removal.
    ///
    /// The image may be absent: look after this call.
    pub async fn hold(self: &Arc<Self>, id: &ImageId, work: &'static str) -> Hold {
        loop {
            if self.lock().leases.hold(id, work) {
                return Hold { inventory: Arc::clone(self), id: id.clone(), work };
            }
            self.removal_ended(id).await;
        }
    }

    /// The end of the image's last lease.
    pub fn leased_until(&self, id: &ImageId, now: SystemTime) -> Option<SystemTime> {
        self.lock().leases.until(id, now)
    }

    /// Starts a requested removal: leases and pins do not prevent it, running work does. Waits for another removal of
    /// the image.
    ///
    /// # Errors
    /// The work that holds the image.
    pub(crate) async fn order_removal(&self, id: &ImageId) -> Result<Removal<'_>, RemovalBlocker> {
        loop {
            match self.lock().leases.begin_ordered_removal(id) {
                Ok(()) => return Ok(Removal { inventory: self, id: id.clone() }),
                Err(RemovalBlocker::Busy) => {}
                Err(blocker) => return Err(blocker),
            }
            self.removal_ended(id).await;
        }
    }

    /// Starts the removal of an image that the runtime reports as unused, unless it was pinned, requested or used
    /// since. All checks share one lock, because each can change until the last moment.
    pub(crate) fn begin_removal(
        &self,
        entry: &ImageEntry,
        image: &Image,
        now: SystemTime,
    ) -> Result<Removal<'_>, RemovalBlocker> {
        let key = &entry.key();
        let mut state = self.lock();
        #[cfg(test)]
        state.mutate_before_removal(key.id());
        // A concurrent pass may have seen the container and ended its lease.
        let seen = state.snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.entries);
        let first = seen.get(seen.partition_point(|entry| entry.image.id < *key.id()));
        if let Some(entry) = first.filter(|entry| entry.image.id == *key.id() && !entry.in_use_by.is_empty()) {
            return Err(RemovalBlocker::InUse(entry.in_use_by.clone()));
        }
        if let Some(released_at) = state.unsettled(key, now) {
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
        if state.memory.requested_at(key) > entry.leased_at {
            return Err(RemovalBlocker::Touched);
        }
        let begun = state.leases.begin_removal(key.id(), now);
        #[cfg(test)]
        state.mutate_after_removal_began(key.id(), begun.is_ok());
        begun.map(|()| Removal { inventory: self, id: key.id().clone() })
    }

    async fn removal_ended(&self, id: &ImageId) {
        loop {
            let mut ended = std::pin::pin!(self.removals.notified());
            // Enabled before the look, so that no notification is missed.
            ended.as_mut().enable();
            if !self.lock().leases.removing.contains(id) {
                return;
            }
            ended.await;
        }
    }

    /// Writes the leases up to this version; after a failure they hold for this process alone.
    async fn keep_leases(&self, wanted: u64) {
        #[cfg(test)]
        if !self.lock().keeps_leases() {
            return;
        }
        let due = || {
            let mut state = self.lock();
            (state.leases.version, state.leases.due(AHEAD_MAX), state.leases.lasts)
        };
        if let Err(error) = self.lease_file.keep(wanted, due).await {
            tracing::warn!(%error, "could not write the leases; a crash now may lose a request for an image");
        }
    }

    pub(crate) async fn reload_leases(&self, now: SystemTime) {
        match self.lease_file.reload().await {
            Ok(found) => self.lock().leases.restore(found, now, false),
            Err(error) => tracing::warn!(%error, "could not read the leases; keeping those known"),
        }
    }
}

impl InventoryState {
    /// Ends the leases of pods whose containers are listed.
    pub(crate) fn serve_leases(&mut self, survey: &Survey) {
        let pods = self.leases.open_pods();
        let mut served = Vec::new();
        for pod in survey.pods.iter().filter(|pod| pods.contains(pod.uid.as_str())) {
            for container in pod.containers.iter().filter(|container| !self.mounts.contains_key(&container.id)) {
                served.push((ImageId::new(&container.image_id), pod.uid.clone(), container.created_at));
            }
        }
        #[cfg(test)]
        self.mutate_before_serving(survey);
        for (id, pod, created_at) in served {
            self.leases.serve(&id, &pod, created_at);
        }
    }

    /// The release time of an image, if too recent to trust.
    fn unsettled(&self, key: &ImageKey, now: SystemTime) -> Option<SystemTime> {
        let released_at = self.memory.images.get(key)?.released_at?;
        (now.duration_since(released_at).unwrap_or_default() < self.settling()).then_some(released_at)
    }

    /// How long a list without an image's last container is not trusted.
    pub(crate) fn settling(&self) -> Duration {
        VANISHED_WAIT.min(self.leases.lasts)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inventory.lock().leases.release(&self.id, self.work);
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.inventory.lock().leases.end_removal(&self.id);
        self.inventory.removals.notify_waiters();
    }
}
