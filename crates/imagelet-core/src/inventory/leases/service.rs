//! Asking for an image so that it is still there when the container comes.
//!
//! ```text
//! STATE_DIR/leases.log   one line per request, with its time; the last line of an image counts. Not synced: after a
//!                        power cut all containers start again and request their images again. A torn last line is
//!                        ignored; with other damage every image counts as requested
//! ```

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::image::{Image, ImageId, ImageKey};
use crate::inventory::{
    ImageEntry, Inventory, InventoryState,
    boot_clock::moved,
    detect::{Survey, Users, is_mount},
    leases::{AHEAD_MAX, LookMark, Obstacle, removal_blocker::RemovalBlocker},
    ledger::files::{self, StateDir},
    observation_window::VANISHED_WAIT,
};

const LEASES: &str = "leases.log";
/// A file longer than this, and than a bound per lease, is rewritten without expired leases.
const LEASES_BYTES_MAX: u64 = 256 << 10;
const LEASE_BYTES_MAX: u64 = 512;
/// Looks that a removal may invalidate before a request waits for removals.
const LOOKS_MAX: usize = 3;

/// Prevents the removal of one image until dropped.
#[must_use = "it holds only while it lives"]
pub struct Hold {
    inventory: Arc<Inventory>,
    id: ImageId,
    work: &'static str,
}

/// A running removal: requests for the image wait until this is dropped and then look again.
#[must_use = "the removal ends with it"]
pub struct Removal<'a> {
    inventory: &'a Inventory,
    id: ImageId,
}

/// No removal starts while this lives.
pub(in crate::inventory) struct Pause<'a>(&'a Inventory);

#[derive(Debug, Default)]
pub(in crate::inventory) struct LeaseFile {
    path: Option<PathBuf>,
    /// Held while the file is written.
    turn: tokio::sync::Mutex<()>,
    written: AtomicU64,
    /// Leases that this process has written, so that only new ones are appended.
    reported: Mutex<BTreeMap<ImageId, SystemTime>>,
    #[cfg(test)]
    pub(in crate::inventory) memory: Option<Arc<crate::inventory::testing::InMemoryDisk>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct LeaseLine<'a> {
    #[serde(borrow)]
    image: Cow<'a, str>,
    asked: u64,
}

impl Inventory {
    /// [`Self::start_leases`] as a builder.
    #[must_use]
    pub fn leasing(self, lasts: Duration, now: SystemTime) -> Self {
        self.start_leases(lasts, now);
        self
    }

    /// Enables leases of this duration; zero disables them.
    ///
    /// Leases of an earlier process are restored. If their file is unreadable, every image counts as leased.
    pub fn start_leases(&self, lasts: Duration, now: SystemTime) {
        let found = self.lease_file.read();
        let mut state = self.lock();
        let now = state.clock.now(now);
        state.leases.lasts = lasts;
        match found {
            Ok(found) => state.leases.restore(found, now),
            Err(error) => {
                tracing::error!(%error, "the leases cannot be read; for as long as one runs each image counts as leased");
                state.leases.lease_all(now);
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
        let mut pause = None;
        for round in 1.. {
            if round > LOOKS_MAX && pause.is_none() {
                pause = Some(self.pause_removals().await);
            }
            let look = self.lock().leases.look();
            let answer = ask().await?;
            let Some(key) = key(&answer) else { return Ok(answer) };
            if let Some(version) = self.lease(&key, pod, look, now + began.elapsed()) {
                drop(pause);
                self.keep_leases(version).await;
                return Ok(answer);
            }
            tracing::debug!(image = %key, "an image was being removed while it was asked for; looking again");
            self.removal_ended(key.id()).await;
        }
        unreachable!("the rounds do not end by themselves")
    }

    /// Leases an image seen since the look, and returns the version with which the disk has it; `None` if a removal
    /// intervened.
    fn lease(&self, key: &ImageKey, pod: &str, look: LookMark, now: SystemTime) -> Option<u64> {
        let mut state = self.lock();
        #[cfg(test)]
        state.mutate_before_lease(key.id());
        if state.leases.is_overtaken(key.id(), look) {
            return None;
        }
        let at = state.clock.now(now);
        let version = state.leases.lease(key.id(), pod, at);
        #[cfg(test)]
        state.mutate_after_lease(key.id());
        drop(state);
        self.touch(key, now);
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
        let state = self.lock();
        let steady = state.clock.now(now);
        let shift = state.shift;
        state.leases.until(id, steady).map(|until| moved(until, shift))
    }

    /// Starts a requested removal: leases and pins do not prevent it, running work does. Waits for another removal of
    /// the image and for a pause of removals.
    ///
    /// # Errors
    /// The work that holds the image.
    pub async fn order_removal(&self, id: &ImageId) -> Result<Removal<'_>, Vec<&'static str>> {
        loop {
            let mut ended = std::pin::pin!(self.removals.notified());
            // Enabled before the look, so that no notification is missed.
            ended.as_mut().enable();
            match self.lock().leases.begin_ordered_removal(id) {
                Ok(()) => return Ok(Removal { inventory: self, id: id.clone() }),
                Err(Obstacle::Held(works)) => return Err(works),
                Err(Obstacle::Leased(_) | Obstacle::Busy) => {}
            }
            ended.await;
        }
    }

    /// Starts the removal of an image that the runtime reports as unused, unless it was pinned, requested or used
    /// since. All checks share one lock, because each can change until the last moment.
    pub(in crate::inventory) fn begin_removal(
        &self,
        entry: &ImageEntry,
        image: &Image,
        now: SystemTime,
    ) -> Result<Removal<'_>, RemovalBlocker> {
        let key = &entry.key();
        let mut state = self.lock();
        #[cfg(test)]
        state.mutate_before_removal(key.id());
        let now = state.clock.now(now);
        // A concurrent pass may have seen the container and ended its lease.
        let seen = state.snapshot.as_ref().and_then(|it| it.first_of(key.id()));
        let seen = seen.filter(|entry| !entry.in_use_by.is_empty());
        if let Some(entry) = seen {
            return Err(RemovalBlocker::InUse(entry.in_use_by.clone()));
        }
        if let Some(released_at) = state.unsettled(key, now) {
            return Err(RemovalBlocker::Released(released_at));
        }
        let pinned_by = state.pinned_by(image);
        if !pinned_by.is_empty() {
            return Err(RemovalBlocker::Pinned(pinned_by));
        }
        if state.leased_at(key).is_some_and(|leased_at| Some(leased_at) > entry.leased_at) {
            return Err(RemovalBlocker::Touched);
        }
        let begun = state.leases.begin_removal(key.id(), now);
        #[cfg(test)]
        state.mutate_after_removal_began(key.id(), begun.is_ok());
        match begun {
            Ok(()) => Ok(Removal { inventory: self, id: key.id().clone() }),
            Err(Obstacle::Held(works)) => Err(RemovalBlocker::InUse(works.into_iter().map(str::to_owned).collect())),
            Err(Obstacle::Leased(until)) => Err(RemovalBlocker::Leased(until)),
            Err(Obstacle::Busy) => Err(RemovalBlocker::Busy),
        }
    }

    async fn removal_ended(&self, id: &ImageId) {
        self.removals_done(|state| !state.leases.is_removing(id)).await;
    }

    /// Prevents new removals, and waits for running ones.
    pub(in crate::inventory) async fn pause_removals(&self) -> Pause<'_> {
        self.lock().leases.pause();
        let pause = Pause(self);
        self.removals_done(|state| !state.leases.is_removing_any()).await;
        pause
    }

    async fn removals_done(&self, is_done: impl Fn(&InventoryState) -> bool) {
        loop {
            let mut ended = std::pin::pin!(self.removals.notified());
            // Enabled before the look, so that no notification is missed.
            ended.as_mut().enable();
            if is_done(&self.lock()) {
                return;
            }
            ended.await;
        }
    }

    /// Writes the leases up to this version; after a failure they hold for this process alone.
    async fn keep_leases(&self, wanted: u64) {
        #[cfg(test)]
        if let Some(memory) = &self.lease_file.memory {
            let mut state = self.lock();
            if state.keeps_leases() {
                memory.leases.lock().unwrap().extend(state.leases.due(AHEAD_MAX));
            }
        }
        if self.lease_file.path.is_none() || self.lease_file.written.load(Ordering::Acquire) >= wanted {
            return;
        }
        let _turn = self.lease_file.turn.lock().await;
        if self.lease_file.written.load(Ordering::Acquire) >= wanted {
            return;
        }
        let (version, leases, directory) = {
            let mut state = self.lock();
            (state.leases.version(), state.leases.due(AHEAD_MAX), self.directory.clone())
        };
        let lasts = self.lock().leases.lasts;
        let Some(directory) = directory else { return };
        let bytes_max = LEASES_BYTES_MAX.max(LEASE_BYTES_MAX * leases.len() as u64);
        let (is_first, fresh): (bool, BTreeMap<ImageId, SystemTime>) = {
            let mut reported = self.lease_file.reported.lock().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut *reported, leases.clone());
            let fresh = leases.into_iter().filter(|(id, asked_at)| before.get(id) != Some(asked_at));
            (before.is_empty(), fresh.collect())
        };
        // The first write repairs a damaged file.
        let bytes_max = if is_first { 0 } else { bytes_max };
        let written = tokio::task::spawn_blocking(move || write(&directory, &fresh, lasts, bytes_max)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%error, "could not keep the leases; a crash now may forget who asked for an image");
            self.lease_file.reported.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        self.lease_file.written.fetch_max(version, Ordering::AcqRel);
    }

    /// Restores the leases of other processes.
    pub(in crate::inventory) async fn reload_leases(&self, now: SystemTime) {
        #[cfg(test)]
        if self.lease_file.memory.is_some() {
            // Reading a file takes time in which other tasks run.
            crate::inventory::testing::step().await;
        }
        let Some(path) = self.lease_file.path.clone() else { return };
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(found) => {
                let mut state = self.lock();
                let now = state.clock.now(now);
                state.leases.restore(found, now);
            }
            Err(error) => tracing::warn!(%error, "could not read the leases; keeping those known"),
        }
    }
}

impl InventoryState {
    /// The users of an image, with the work on it in this process.
    pub(in crate::inventory) fn users_of(&self, id: &ImageId, users: Option<&Vec<String>>) -> Vec<String> {
        let works = self.leases.works(id).iter().map(|work| (*work).to_owned());
        users.cloned().unwrap_or_default().into_iter().chain(works).collect()
    }

    /// Images in use at the last pass, of this process or an earlier one.
    pub(in crate::inventory) fn used_before(&self) -> BTreeSet<ImageKey> {
        if let Some(snapshot) = &self.snapshot {
            let is_used = |users: &[String]| users.iter().any(|user| !is_mount(user));
            let used = snapshot.entries.iter().filter(|entry| is_used(&entry.in_use_by));
            return used.map(|entry| entry.key()).collect();
        }
        let Some(last_pass) = self.watch.last_pass.filter(|_| self.watch.containers > 0) else {
            return BTreeSet::new();
        };
        let used = self.records.iter().filter(|(_, record)| record.last_used >= Some(last_pass));
        used.map(|(key, _)| key.clone()).collect()
    }

    /// Ends the leases of pods whose containers are listed.
    pub(in crate::inventory) fn serve_leases(&mut self, survey: &Survey) {
        let pods = self.leases.open_pods();
        let mut served = Vec::new();
        for pod in survey.pods.iter().filter(|pod| pods.contains(pod.uid.as_str())) {
            for container in pod.containers.iter().filter(|container| !self.mounts.contains_key(&container.id)) {
                served.push((
                    ImageId::new(&container.image_id),
                    pod.uid.clone(),
                    moved(container.created_at, -self.shift),
                ));
            }
        }
        #[cfg(test)]
        self.mutate_before_serving(survey);
        for (id, pod, created_at) in served {
            self.leases.serve(&id, &pod, created_at);
        }
    }

    /// Records images that have lost their last container.
    pub(in crate::inventory) fn note_released(
        &mut self,
        used_before: BTreeSet<ImageKey>,
        users: &Users,
        now: SystemTime,
    ) {
        let lasts = self.settling();
        self.released.retain(|key, released_at| {
            let is_settled = now.duration_since(*released_at).unwrap_or_default() >= lasts;
            if is_settled {
                // The ledger records it as in use until now: see [`InventoryState::batch`].
                self.memory.change(key);
            }
            !is_settled && !users.contains_key(key)
        });
        let released = used_before.into_iter().filter(|key| !users.contains_key(key));
        for key in released {
            self.released.entry(key).or_insert(now);
        }
    }

    /// The release time of an image, if too recent to trust.
    fn unsettled(&self, key: &ImageKey, now: SystemTime) -> Option<SystemTime> {
        let released_at = *self.released.get(key)?;
        (now.duration_since(released_at).unwrap_or_default() < self.settling()).then_some(released_at)
    }

    /// How long a list without an image's last container is not trusted.
    fn settling(&self) -> Duration {
        VANISHED_WAIT.min(self.leases.lasts)
    }
}

impl LeaseFile {
    pub(in crate::inventory) fn of(directory: Option<&StateDir>) -> Self {
        Self { path: directory.map(|directory| directory.path().join(LEASES)), ..Self::default() }
    }

    fn read(&self) -> io::Result<BTreeMap<ImageId, SystemTime>> {
        #[cfg(test)]
        if let Some(memory) = &self.memory {
            return Ok(memory.leases.lock().unwrap().clone());
        }
        self.path.as_ref().map_or_else(|| Ok(BTreeMap::new()), |path| read(path))
    }
}

fn read(path: &Path) -> io::Result<BTreeMap<ImageId, SystemTime>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text?,
    };
    // A writer finishes its line before it returns.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let line = |line: &str| {
        let LeaseLine { image, asked } = serde_json::from_str(line).map_err(io::Error::other)?;
        Ok((ImageId::new(image), files::time(asked)))
    };
    whole.lines().map(line).collect()
}

/// Appends these leases to those of all processes, or rewrites a long file.
fn write(
    directory: &StateDir,
    fresh: &BTreeMap<ImageId, SystemTime>,
    lasts: Duration,
    bytes_max: u64,
) -> io::Result<()> {
    let path = directory.path().join(LEASES);
    let _lock = directory.lock()?;
    let mut file = fs::OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
    let length = file.metadata()?.len();
    if length > bytes_max || !ends_with_a_line(&file, length)? {
        let now = fresh.values().max().copied().unwrap_or(SystemTime::UNIX_EPOCH);
        let mut asked = read(&path).unwrap_or_default();
        asked.retain(|_, asked_at| *asked_at + lasts > now);
        asked.extend(fresh.iter().map(|(id, asked_at)| (id.clone(), *asked_at)));
        let beside = directory.path().join(".leases.log.new");
        fs::write(&beside, lines(&asked)?)?;
        return fs::rename(&beside, &path);
    }
    // One call: a crash leaves whole lines, except for the last.
    file.write_all(&lines(fresh)?)
}

fn ends_with_a_line(file: &fs::File, length: u64) -> io::Result<bool> {
    let mut last = [0];
    match length.checked_sub(1) {
        Some(at) => Ok(file.read_at(&mut last, at)? == 1 && last == *b"\n"),
        None => Ok(true),
    }
}

fn lines(leases: &BTreeMap<ImageId, SystemTime>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for (id, asked_at) in leases {
        let line = LeaseLine { image: id.as_str().into(), asked: files::nanos(*asked_at) };
        serde_json::to_writer(&mut text, &line).map_err(io::Error::other)?;
        text.push(b'\n');
    }
    Ok(text)
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

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.lock().leases.resume();
        // Requested removals wait for it, too.
        self.0.removals.notify_waiters();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("id", &self.id).field("work", &self.work).finish_non_exhaustive()
    }
}

impl fmt::Debug for Removal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Removal").field("id", &self.id).finish_non_exhaustive()
    }
}
