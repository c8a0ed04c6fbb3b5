//! The engine: its parts, and the services that it implements for its store.

mod archive;
mod artifact;
mod confirm;
mod durability;
mod estimate;
mod import;
mod layer_single_flight;
mod pull;
mod sharing;
mod sources;
mod space;
mod trust;
mod verify;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    hold::HoldPolicy,
    image::{ByteSize, Digest, Image, ImageId, ImageSpec, Reference, ReferenceError, counted, shown_name},
    ports::{
        ContainerService, Credentials, ExportRequest, ExportedImage, FilesystemUsage, Freed, ImageDetails,
        ImageFilesystems, ImageService, ImportOutcome, ImportRequest, LayerGraph, LayerState, Listing, LocalStore,
        MakeRoom, MountOptions, MountedImage, Progress, PullEstimate, PullEvent, PullRemains, PullRequest,
        RegistryHost, StoreMeasure, VerifyProgress, VerifyReport,
    },
};
use tokio::time::Instant;

use self::{
    estimate::Resolutions, import::layer_turns::LayerTurns, layer_single_flight::LayerSingleFlight, space::YOUNG,
};
use crate::{
    admission::{Admission, Reservations},
    confine::Confinement,
    machine::Machine,
    mount::{self, MountUses},
    pipeline::{LayerLimits, PullSlots},
    registry::{Registry, RegistryConfig},
    scarce,
    store::{Access, Durability, LockWait, StagedLayer, Store, StoreOptions, progress_of_owner},
    unpack::{UNPACK_MEMORY_DEFAULT, UnpackBudget},
};

pub use import::EngineImporter;
pub use trust::check_signature_policy;

#[cfg(feature = "fuzzing")]
pub(crate) use archive::choose as choose_archived;

const HEALTH_FILE: &str = "registry-health.json";
/// The interval between attempts to open a store in use, and the time after which the wait is reported.
const LOCK_RETRY_PERIOD: Duration = Duration::from_millis(50);
const LOCK_WAIT_QUIET: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    pub place: StorePlace,
    pub registry: RegistryConfig,
    pub durability: Durability,
    pub keep_blobs: bool,
    /// How long the content of an unfinished pull stays for the next pull. With zero, it is removed at once.
    pub resume_for: Duration,
    pub limits: LayerLimits,
    /// The rules by which a pull gives up a resource that other pulls wait for.
    pub hold: HoldPolicy,
    pub admission: Admission,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlace {
    pub root: PathBuf,
    pub access: Access,
    /// How long to wait for another process that changes the store.
    pub lock_wait: Duration,
}

impl EngineConfig {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            place: StorePlace {
                root: root.into(),
                access: Access::Write { or_create: true },
                // A cleanup thread of a pull may still use a store that this process has just closed.
                lock_wait: Duration::from_secs(2),
            },
            registry: RegistryConfig::default(),
            durability: Durability::Commit,
            keep_blobs: false,
            resume_for: Duration::from_hours(24),
            limits: LayerLimits {
                expansion_max: 200,
                expansion_free: 256 << 20,
                entries_max: 2_000_000,
                free_bytes_floor: 16 << 20,
                free_inodes_floor: 1_000,
                layers_in_flight: Machine::here().layers_in_flight(),
                memory: UNPACK_MEMORY_DEFAULT,
            },
            hold: HoldPolicy::default(),
            admission: Admission::default(),
        }
    }

    /// A text about the parallelism of a pull, and about the machine that determines it.
    pub fn sizes(&self) -> String {
        let layers = counted(self.limits.layers_in_flight as u64, "layer");
        format!("{layers} of an image at once, {} ({})", self.registry.fetch_sizes, Machine::here())
    }
}

/// The embedded image service: registry client, pipeline and store.
pub struct Engine {
    registry: Registry,
    store: Arc<Store>,
    config: EngineConfig,
    /// One entry for each layer that is being fetched: a second pull of the layer waits for the first fetch.
    fetching: LayerSingleFlight<StagedLayer>,
    turns: LayerTurns,
    places: Arc<PullSlots>,
    budget: Arc<UnpackBudget>,
    confinement: Confinement,
    pulls: AtomicU64,
    /// The lock of the early syncs, which one pull runs for all pulls.
    syncing_early: Arc<tokio::sync::Mutex<()>>,
    /// The lock for comparing an artifact's names: only one comparison at a time, because it uses memory.
    comparing_names: Arc<tokio::sync::Mutex<()>>,
    reservations: Arc<Reservations>,
    room: OnceLock<Arc<dyn MakeRoom>>,
    resolutions: Resolutions,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("root", &self.root()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens the store. With write access, this process owns the store and removes the leftovers of a crash.
    ///
    /// # Errors
    /// Another process uses the store longer than `lock_wait`, or the disk or the registry settings cannot be used.
    pub async fn open(config: EngineConfig) -> Result<Arc<Self>, RuntimeError> {
        Self::open_telling(config, &|_| {}).await
    }

    /// Opens the store, with the same errors as [`Engine::open`]. Calls `tell` once with the reason for a longer wait.
    pub async fn open_telling(
        config: EngineConfig,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Arc<Self>, RuntimeError> {
        let store = Arc::new(open_store(&config, tell).await?);
        let health_file = (!store.is_read_only()).then(|| config.place.root.join(HEALTH_FILE));
        let registry = Registry::new(RegistryConfig { health_file, ..config.registry.clone() });
        if !store.is_read_only() {
            registry.keep_documents_in(&store);
        }
        let confinement = blocking(|| Ok(Confinement::of_this_machine())).await?;
        let engine = Arc::new(Self {
            registry,
            store: Arc::clone(&store),
            budget: Arc::new(UnpackBudget::new(config.limits.memory)),
            config,
            fetching: LayerSingleFlight::default(),
            turns: LayerTurns::default(),
            places: Arc::default(),
            pulls: AtomicU64::new(0),
            confinement,
            syncing_early: Arc::default(),
            comparing_names: Arc::default(),
            reservations: Arc::default(),
            room: OnceLock::new(),
            resolutions: Resolutions::default(),
        });
        // The list of images is built in the background, because the first caller needs it.
        tokio::task::spawn_blocking({
            let store = Arc::clone(&store);
            move || drop(store.listed())
        });
        if !store.is_read_only() {
            engine.sync_background_soon();
            // The trash can be large, so the start does not wait.
            tokio::task::spawn_blocking(move || store.try_empty_trash());
        }
        Ok(engine)
    }

    pub fn root(&self) -> &Path {
        self.store.root()
    }

    /// Sets the service that frees space before a pull is rejected. Only the first call has an effect.
    pub fn ask_for_room(&self, room: Arc<dyn MakeRoom>) {
        let _ = self.room.set(room);
    }

    /// Fails if the store was opened for reading, or is on a read-only file system.
    pub fn check_writable(&self) -> Result<(), RuntimeError> {
        self.store.check_writable()
    }

    /// A service that reports the store's mounts as containers, so that their images count as used.
    pub fn container_service(&self) -> Arc<dyn ContainerService> {
        Arc::new(MountUses(Arc::clone(&self.store)))
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Store>) -> Result<T, RuntimeError> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let store = Arc::clone(&self.store);
        blocking(move || work(&store)).await
    }

    /// Removes an image or a name while no mount starts, then frees the space. After an error in freeing, the image
    /// stays removed, and the next sweep continues.
    async fn removing(
        &self,
        image: &str,
        remove: impl FnOnce(&Store) -> Result<bool, RuntimeError> + Send + 'static,
    ) -> Result<(), RuntimeError> {
        let removed = self.on_disk(move |store| {
            let turn = store.mounting();
            remove(store)?;
            drop(turn);
            // After an error, the images stay removed, and the next sweep continues.
            if let Err(error) = mount::sweep(store).and_then(|()| store.sweep()) {
                tracing::warn!(error = error.chain(), "could not free all that a removed image took");
            }
            Ok(())
        });
        removed.await.map_err(|error| match error.kind() {
            RuntimeErrorKind::InUse => error,
            _ => error.about(format!("could not remove `{image}`")),
        })
    }

    /// The space that running pulls write next. A collection does not count it as free.
    fn reserved(&self) -> Freed {
        let amount = self.reservations.open().steps();
        Freed { bytes: ByteSize(amount.bytes), inodes: amount.inodes }
    }

    fn present(&self, image: &str) -> Result<ImageId, RuntimeError> {
        self.store.resolve(image)?.ok_or_else(|| {
            RuntimeError::new(RuntimeErrorKind::NotFound, format!("image `{image}` is not present"))
                .with_hint(format!("imagelet pull {image}"))
        })
    }

    fn listed_by(&self, spec: &ImageSpec) -> Result<Option<Arc<Image>>, RuntimeError> {
        let id = self.store.resolve(&spec.image)?;
        Ok(id.and_then(|id| self.store.listed_image(&id)))
    }

    fn marking_progress(&self, progress: Progress) -> Progress {
        let store = Arc::clone(&self.store);
        Arc::new(move |event| {
            if matches!(event, PullEvent::Resolved { .. } | PullEvent::Layer { .. } | PullEvent::Committing) {
                store.record_progress();
            }
            progress(event);
        })
    }
}

#[async_trait]
impl ImageService for Engine {
    fn local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }

    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        match filter.filter(|spec| !spec.image.is_empty()) {
            Some(spec) => Ok(self.listed_by(spec)?.into_iter().collect()),
            None => Ok(self.store.listed()),
        }
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(self.listed_by(spec)?.map(Arc::unwrap_or_clone))
    }

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        let Some(id) = self.store.resolve(&spec.image)? else { return Ok(None) };
        self.on_disk(move |store| confirm::details(store, &id)).await
    }

    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        let progress = self.marking_progress(progress);
        scarce::retried(|| self.pull_once(request, &progress)).await
    }

    async fn registry_hosts(&self, image: &Reference) -> Vec<RegistryHost> {
        self.registry.other_hosts(image).await
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let found = self.store.resolve(&spec.image)?.or_else(|| self.store.resolve_damaged(&spec.image));
        let Some(id) = found else { return Ok(()) };
        let name = spec.image.clone();
        let remove = move |store: &Store| {
            refuse_if_mounted(store, &id, &name)?;
            store.remove_image(&id)
        };
        self.removing(&spec.image, remove).await
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        let now = SystemTime::now();
        // One store serves all handlers and the writable layers.
        let all = StoreMeasure {
            store: String::new(),
            bytes: ByteSize(self.store.takes().bytes + self.store.unfinished_bytes()),
            inodes: self.store.takes().inodes,
            at: now,
        };
        let roots = [(String::new(), self.store.disk_place().to_owned())].into();
        let images = FilesystemUsage::by_store("", &roots, &[all], now);
        Ok(ImageFilesystems { containers: images.clone(), images, reserved: self.reserved() })
    }
}

#[async_trait]
impl LocalStore for Engine {
    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        self.estimated(request).await.map(Some)
    }

    async fn untag(&self, name: &str) -> Result<(), RuntimeError> {
        let reference = parse_reference(name)?;
        let remove = move |store: &Store| {
            let name = reference.canonical().to_string();
            let image = store.resolve(&name)?.and_then(|id| store.image(&id).map(|(_, names)| (id, names)));
            if let Some((id, names)) = image
                && names.iter().filter(|other| !other.contains('@')).all(|other| *other == name)
            {
                // The removal of the last tag removes the image.
                refuse_if_mounted(store, &id, &name)?;
            }
            store.remove_name(&name)
        };
        self.removing(name, remove).await
    }

    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        self.on_disk(|store| {
            let mounted = mount::mounts(store)?.iter().map(|mounted| ImageId::new(&mounted.image)).collect();
            Ok(Some(store.graph(&mounted)))
        })
        .await
    }

    fn damaged(&self, image: &str) -> Option<ImageId> {
        self.store.resolve_damaged(image)
    }

    async fn sweep(&self, remains: PullRemains) -> Result<(), RuntimeError> {
        self.on_disk(move |store| {
            mount::sweep(store)?;
            store.sweep()?;
            let spared = match remains {
                PullRemains::Keep => return Ok(()),
                PullRemains::KeepYoung => Some(YOUNG),
                PullRemains::Remove => None,
            };
            store.free_unfinished(u64::MAX, &[], spared).map(drop)
        })
        .await
    }

    async fn flush(&self) -> Result<(), RuntimeError> {
        self.on_disk(|store| store.sync_background()).await
    }

    async fn mount(
        &self,
        image: &ImageSpec,
        directory: &Path,
        options: MountOptions,
    ) -> Result<MountedImage, RuntimeError> {
        let (id, directory) = (self.present(&image.image)?, directory.to_owned());
        self.on_disk(move |store| mount::mount(store, &id, &directory, options)).await
    }

    async fn unmount(&self, directory: &Path, force: bool) -> Result<MountedImage, RuntimeError> {
        let directory = directory.to_owned();
        self.on_disk(move |store| mount::unmount_image(store, &directory, force)).await
    }

    async fn verify(&self, image: Option<&str>, progress: VerifyProgress) -> Result<VerifyReport, RuntimeError> {
        self.verified(image, progress).await
    }

    async fn repair(
        &self,
        id: &ImageId,
        credentials: &Credentials<'_>,
        progress: &Progress,
    ) -> Result<(), RuntimeError> {
        self.repaired(id, credentials, &self.marking_progress(Arc::clone(progress))).await
    }

    async fn export(
        &self,
        request: &ExportRequest,
        credentials: &Credentials<'_>,
        progress: &Progress,
    ) -> Result<ExportedImage, RuntimeError> {
        self.exported(request, credentials, progress).await
    }

    async fn import(&self, request: &ImportRequest, progress: &Progress) -> Result<Vec<ImportOutcome>, RuntimeError> {
        self.imported(request, &self.marking_progress(Arc::clone(progress))).await
    }

    async fn repair_store(&self, report: &VerifyReport) -> Result<(), RuntimeError> {
        let (names, blobs) = (!report.store.is_empty(), report.blobs.damaged.clone());
        self.on_disk(move |store| {
            if names {
                store.restore_names()?;
            }
            for blob in &blobs {
                store.discard_blob(blob);
            }
            Ok(())
        })
        .await
    }
}

async fn open_store(config: &EngineConfig, report: &(dyn Fn(&str) + Send + Sync)) -> Result<Store, RuntimeError> {
    let (begun, wait_max, mut is_reported) = (Instant::now(), config.place.lock_wait, false);
    let mut wait = LockWait::new(wait_max, begun);
    loop {
        let EngineConfig { place: StorePlace { root, access, .. }, durability, resume_for, .. } = config.clone();
        let options = StoreOptions { access, durability, resume_for };
        let opened = blocking(move || match Store::open(&root, options) {
            Err(error) if error.kind() == RuntimeErrorKind::InUse => Ok(Err((error, progress_of_owner(&root)))),
            opened => opened.map(Ok),
        });
        let (in_use, progress) = match opened.await? {
            Ok(store) => return Ok(store),
            Err(in_use) => in_use,
        };
        let left = wait.left(progress, Instant::now());
        if left.is_zero() {
            return Err(in_use);
        }
        if begun.elapsed() >= LOCK_WAIT_QUIET && !is_reported {
            let after = if progress.is_some() { " after its last byte" } else { "" };
            report(&format!("{in_use}; waiting for it for at most {} s{after}", wait_max.as_secs_f32()));
            is_reported = true;
        }
        tokio::time::sleep(LOCK_RETRY_PERIOD.min(left)).await;
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    tokio::task::spawn_blocking(work).await?
}

fn report_present(progress: &Progress, layer: &Digest) {
    progress(PullEvent::Layer { digest: layer.clone(), state: LayerState::Present });
}

fn parse_reference(name: &str) -> Result<Reference, RuntimeError> {
    name.parse().map_err(|error: ReferenceError| {
        let message = format!("`{}` names no image", shown_name(name));
        let hint = error.hint().map(str::to_owned);
        let refused = RuntimeError::new(RuntimeErrorKind::InvalidArgument, message).caused_by(error);
        hint.into_iter().fold(refused, RuntimeError::with_hint)
    })
}

/// Rejects the removal of a mounted image. The caller holds the store's mount lock, so that no mount starts meanwhile.
fn refuse_if_mounted(store: &Store, id: &ImageId, name: &str) -> Result<(), RuntimeError> {
    let Some(mounted) = mount::mounts(store)?.into_iter().find(|mounted| mounted.image == id.as_str()) else {
        return Ok(());
    };
    let target = mounted.target.display();
    let refused = RuntimeError::new(RuntimeErrorKind::InUse, format!("image `{name}` is mounted on `{target}`"));
    Err(refused.with_hint(mounted.hint()))
}
