//! A pull told in one function, and the store behind the one seam.

mod admit;
mod confirm;
mod estimate;
mod fetch;
mod listed;
mod open;
mod repair;
mod sharing;
mod sync;
mod verify;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use imagelet_core::{
    image::{ByteSize, Digest, Image, ImageId, ImageSpec, ImageUser, Platform, Reference},
    runtime::{
        ContainerService, FilesystemUsage, Freed, ImageDetails, ImageFilesystems, ImageService, LayerGraph, LayerState,
        Listing, MakeRoom, Progress, PullEstimate, PullEvent, PullRequest, RuntimeError, RuntimeErrorKind,
        StoreMeasure,
    },
};

use self::{
    estimate::Resolutions,
    fetch::{LayerSlot, largest_first},
};
use crate::{
    admission::{Admission, Ledger},
    confine::Confinement,
    manifest::{CONFIG_BYTES_MAX, ImageConfig, printable},
    mount::{self, MountOptions, MountUses, MountedImage, UnmountedImage},
    pipeline::{Allowance, Claim, LayerJob, LayerLimits, Places, Tenant},
    registry::{Registry, RegistryConfig, Resolved, about},
    scarce,
    store::{Access, Durability, ImageRecord, LayerEntry, NewImage, StagedLayer, Store, SweepReport},
    unpack::{UNPACK_MEMORY_DEFAULT, UnpackBudget},
    usage::{StoreUsage, StoredImage, occupied, stored, usage},
};

pub use repair::Credentials;
pub use sharing::LayerSharing;
pub use verify::{BlobsCheck, ImageCheck, LayerName, VerifyProgress, VerifyReport};

/// How an engine works.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where the store is.
    pub root: PathBuf,
    /// What for.
    pub access: Access,
    /// How long a process that changes the store is waited for.
    pub lock_wait: Duration,
    /// How registries are asked.
    pub registry: RegistryConfig,
    /// Layers of one image that are fetched and unpacked side by side.
    pub layers_in_flight: usize,
    /// When a pull may answer.
    pub durability: Durability,
    /// Keep the compressed blobs as well.
    pub keep_blobs: bool,
    /// Which layers that are here a pull need not fetch.
    pub sharing: LayerSharing,
    /// What a layer may do to the node.
    pub limits: LayerLimits,
    /// What unpacking all layers may hold of the process's memory, in bytes.
    pub unpack_memory: u64,
    /// When a pull is refused for want of room before it begins.
    pub admission: Admission,
    /// How long a pull that may not fit beside others waits for them at most.
    pub admission_wait: Duration,
}

impl EngineConfig {
    /// The usual settings for a store at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            access: Access::Write { or_create: true },
            // A store that was just closed in this process may still be held by a thread that clears up after a pull.
            lock_wait: Duration::from_secs(2),
            registry: RegistryConfig::default(),
            layers_in_flight: 4,
            durability: Durability::Commit,
            keep_blobs: false,
            sharing: LayerSharing::default(),
            limits: LayerLimits {
                expansion_max: 200,
                expansion_free: 256 << 20,
                entries_max: 2_000_000,
                free_bytes_floor: 16 << 20,
                free_inodes_floor: 1_000,
            },
            unpack_memory: UNPACK_MEMORY_DEFAULT,
            admission: Admission::default(),
            admission_wait: Duration::from_mins(1),
        }
    }
}

/// The embedded image service: registry client, pipeline and store.
#[derive(Debug)]
pub struct Engine {
    registry: Registry,
    store: Arc<Store>,
    config: EngineConfig,
    /// One entry for each layer that is fetched, and those among whom it is shared: the second pull waits for it.
    fetching: Mutex<HashMap<(Digest, String), Arc<LayerSlot>>>,
    /// For the layers of all pulls.
    places: Arc<Places>,
    budget: Arc<UnpackBudget>,
    confinement: Confinement,
    /// Numbers the pulls.
    pulls: AtomicU64,
    /// One pull's early syncs serve all.
    writing_back: Arc<tokio::sync::Mutex<()>>,
    /// What running pulls have reserved on the disk.
    ledger: Arc<Ledger>,
    /// Who is asked for room before a pull is refused.
    room: OnceLock<Arc<dyn MakeRoom>>,
    /// What estimates have resolved, for the pulls right after them.
    resolutions: Resolutions,
}

impl Engine {
    /// Opens the store. To change it makes this process its owner, and clears what a crash left.
    ///
    /// # Errors
    /// When another process changes the store for longer than is waited, or the disk or the registry settings refuse.
    pub async fn open(config: EngineConfig) -> Result<Arc<Self>, RuntimeError> {
        Self::open_telling(config, &|_| {}).await
    }

    /// The same; says once what is waited for, where that is not over in a moment.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub async fn open_telling(
        config: EngineConfig,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Arc<Self>, RuntimeError> {
        let registry = Registry::new(config.registry.clone())?;
        let store = Arc::new(open::open(&config, tell).await?);
        let confinement = blocking(|| Ok(Confinement::of_this_machine())).await?;
        let engine = Arc::new(Self {
            registry,
            store: Arc::clone(&store),
            budget: Arc::new(UnpackBudget::new(config.unpack_memory)),
            config,
            fetching: Mutex::default(),
            places: Arc::default(),
            pulls: AtomicU64::new(0),
            confinement,
            writing_back: Arc::default(),
            ledger: Arc::default(),
            room: OnceLock::new(),
            resolutions: Resolutions::default(),
        });
        // The first caller wants the list: it is made while the rest of the start goes on.
        tokio::task::spawn_blocking({
            let store = Arc::clone(&store);
            move || drop(store.listed())
        });
        if !store.is_read_only() {
            engine.settle_soon();
            engine.copy_records_soon();
            // The trash can be large; nobody has to wait for it.
            tokio::task::spawn_blocking(move || {
                if let Err(error) = store.empty_trash() {
                    tracing::warn!(error = error.chain(), "could not empty the trash");
                }
            });
        }
        Ok(engine)
    }

    /// Where the store is.
    pub fn root(&self) -> &Path {
        self.store.root()
    }

    /// Asks this for room from now on before a pull is refused; only the first that is told counts.
    pub fn ask_for_room(&self, room: Arc<dyn MakeRoom>) {
        let _ = self.room.set(room);
    }

    /// Removes the content that no name reaches any more.
    pub async fn sweep(&self) -> Result<SweepReport, RuntimeError> {
        let store = Arc::clone(&self.store);
        blocking(move || {
            mount::sweep(&store)?;
            store.sweep()
        })
        .await
    }

    /// Removes what came of blobs whose pulls broke off. Answers the bytes it took.
    pub async fn discard_partial_blobs(&self) -> Result<ByteSize, RuntimeError> {
        let store = Arc::clone(&self.store);
        blocking(move || {
            let freed = store.discard_partials()?;
            store.empty_trash()?;
            Ok(ByteSize(freed))
        })
        .await
    }

    /// What each image takes, alone and shared.
    pub async fn disk_usage(&self) -> Result<StoreUsage, RuntimeError> {
        let store = Arc::clone(&self.store);
        blocking(move || Ok(usage(&store))).await
    }

    /// One image as the store keeps it.
    pub async fn stored(&self, spec: &ImageSpec) -> Result<Option<StoredImage>, RuntimeError> {
        let Some(id) = self.store.resolve(&spec.image)? else { return Ok(None) };
        let store = Arc::clone(&self.store);
        blocking(move || stored(&store, &id)).await
    }

    /// Shows an image as a directory tree.
    pub async fn mount(
        &self,
        spec: &ImageSpec,
        target: &Path,
        options: MountOptions,
    ) -> Result<MountedImage, RuntimeError> {
        let id = self.store.resolve(&spec.image)?.ok_or_else(|| {
            RuntimeError::new(RuntimeErrorKind::NotFound, format!("image `{}` is not present", spec.image))
                .with_hint(format!("imagelet pull {}", spec.image))
        })?;
        let (store, target) = (Arc::clone(&self.store), target.to_owned());
        blocking(move || mount::mount(&store, &id, &target, options)).await
    }

    /// Takes a mount away, and what was written into it. `force` gives up one that this mount namespace does not show.
    pub async fn unmount(&self, target: &Path, force: bool) -> Result<UnmountedImage, RuntimeError> {
        let (store, target) = (Arc::clone(&self.store), target.to_owned());
        blocking(move || mount::unmount_image(&store, &target, force)).await
    }

    /// Refuses when the store was opened for reading, or is on a file system that takes no writes.
    ///
    /// # Errors
    /// Then, and it says so.
    pub fn check_writable(&self) -> Result<(), RuntimeError> {
        self.store.check_writable()
    }

    /// What is mounted, here or elsewhere.
    pub async fn mounts(&self) -> Result<Vec<MountedImage>, RuntimeError> {
        let store = Arc::clone(&self.store);
        blocking(move || mount::mounts(&store)).await
    }

    /// The store's mounts, as uses of its images.
    pub fn container_service(&self) -> Arc<dyn ContainerService> {
        Arc::new(MountUses(Arc::clone(&self.store)))
    }

    /// Fetches what is missing of a resolved image and commits it.
    async fn fetch(
        &self,
        reference: &Reference,
        platform: &Platform,
        resolved: Resolved,
        tenant: Arc<Tenant>,
        progress: &Progress,
    ) -> Result<ImageId, RuntimeError> {
        let id = ImageId::new(resolved.manifest.config.digest.as_str());
        let (by_tag, by_digest) = reference.names_of(&resolved.root.digest);
        let names: Vec<String> = by_tag.into_iter().chain([by_digest]).collect();
        let layers = &resolved.manifest.layers;
        // A kind of layer that cannot be unpacked is refused before a byte of any other is fetched.
        resolved.manifest.check_is_image()?;
        progress(PullEvent::Resolved {
            manifest: resolved.chosen.digest.clone(),
            layers: layers.iter().map(|layer| (layer.digest.clone(), ByteSize(layer.size))).collect(),
        });
        // Elsewhere a digest in a manifest proves nothing: the registry has to send the configuration, which alone says
        // what the image is made of.
        if self.store.is_named_in(&id, resolved.session.reference().repository()) {
            self.check_present(&id, layers.len(), platform)?;
            if self.already_here(&id, &names, layers, progress).await? {
                return Ok(id);
            }
        }
        let config_bytes =
            self.registry.fetch_blob_bytes(&resolved.session, &resolved.manifest.config, CONFIG_BYTES_MAX).await?;
        ImageConfig::parse(&config_bytes)
            .and_then(|config| config.check_platform(platform))
            .map_err(|error| about(error, &format!("the configuration `{id}` is refused")))?;
        self.fetch_layers(&id, &resolved, &config_bytes, names, tenant, progress).await
    }

    /// Fetches the layers that are not here and commits the image.
    async fn fetch_layers(
        &self,
        id: &ImageId,
        resolved: &Resolved,
        config_bytes: &[u8],
        names: Vec<String>,
        tenant: Arc<Tenant>,
        progress: &Progress,
    ) -> Result<ImageId, RuntimeError> {
        let layers = &resolved.manifest.layers;
        let config = ImageConfig::parse(config_bytes)?;
        check_layers(id, layers.len(), config.diff_ids.len())?;
        self.refuse_if_mounted(&config.diff_ids).await?;
        let lease = self.store.lease(&config.diff_ids);
        // Held until the image is committed or what came of it is on its way to the trash.
        let reservation = self.admit(resolved.session.reference(), layers, &config.diff_ids).await?;
        let allowance = Arc::new(Allowance::new(self.config.limits.expansion_free));
        let view = {
            let store = Arc::clone(&self.store);
            blocking(move || store.sync_view()).await?
        };
        let claim = Claim {
            registry: resolved.session.reference().domain().to_owned(),
            tenant,
            pull: self.pulls.fetch_add(1, Ordering::Relaxed),
        };
        let jobs = largest_first(layers.iter().zip(&config.diff_ids).map(|(descriptor, diff_id)| LayerJob {
            registry: self.registry.clone(),
            session: resolved.session.clone(),
            descriptor: descriptor.clone(),
            diff_id: diff_id.clone(),
            store: Arc::clone(&self.store),
            keep_blobs: self.config.keep_blobs,
            trusts_disk: self.may_share(resolved.session.reference(), diff_id),
            limits: self.config.limits,
            allowance: Arc::clone(&allowance),
            budget: Arc::clone(&self.budget),
            confinement: self.confinement.clone(),
            view: Arc::clone(&view),
            landing: reservation.landing(diff_id),
            claim: claim.clone(),
        }));
        let _write_back = self.write_back();
        let staged: Vec<Option<Arc<StagedLayer>>> = stream::iter(jobs)
            .map(|job| self.fetch_reserved(job, &reservation, progress))
            .buffer_unordered(self.config.layers_in_flight.max(1))
            .try_collect()
            .await?;
        if ImageUser::of_config(&config.user).is_out_of_range() {
            tracing::warn!(image = %id, user = printable(&config.user), "the image's user is a number that no system has");
        }
        progress(PullEvent::Committing);
        let staged: Vec<Arc<StagedLayer>> = staged.into_iter().flatten().collect();
        let entries = self.entries(layers, &config.diff_ids, &staged);
        let new = NewImage { names, ..new_image(id, resolved, &config, config_bytes, entries) };
        let store = Arc::clone(&self.store);
        let committed = blocking(move || {
            let committed = store.commit(new, &staged, &view);
            drop(lease);
            // Layers that were already in their place when the commit failed belong to nobody.
            if committed.is_err()
                && let Err(error) = store.sweep()
            {
                tracing::warn!(
                    error = error.chain(),
                    "could not clear what a failed commit left; the next sweep takes it"
                );
            }
            committed
        })
        .await;
        self.settle_soon();
        self.copy_records_soon();
        committed
    }

    /// Refuses of a present image what would be refused if it were not: the answer must not depend on what is here.
    fn check_present(&self, id: &ImageId, layers: usize, platform: &Platform) -> Result<(), RuntimeError> {
        let Some((record, _)) = self.store.image(id) else { return Ok(()) };
        let (os, architecture) = record.platform.split_once('/').unwrap_or_default();
        // The record does not say the variant; what was taken once is taken again.
        let variant = platform.variant.clone().unwrap_or_default();
        let config =
            ImageConfig { os: os.into(), architecture: architecture.into(), variant, ..ImageConfig::default() };
        config.check_platform(platform)?;
        check_layers(id, layers, record.layers.len())
    }

    async fn already_here(
        &self,
        id: &ImageId,
        names: &[String],
        layers: &[crate::manifest::Descriptor],
        progress: &Progress,
    ) -> Result<bool, RuntimeError> {
        let (store, image, names) = (Arc::clone(&self.store), id.clone(), names.to_vec());
        let here = blocking(move || store.add_names(&image, &names)).await?;
        if here {
            for layer in layers {
                progress(PullEvent::Layer { digest: layer.digest.clone(), state: LayerState::Present });
            }
        }
        Ok(here)
    }
}

impl Engine {
    fn listed_by(&self, spec: &ImageSpec) -> Result<Option<Arc<Image>>, RuntimeError> {
        let id = self.store.resolve(&spec.image)?;
        Ok(id.and_then(|id| self.store.listed_image(&id)))
    }
}

#[async_trait]
impl ImageService for Engine {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        match filter.filter(|spec| !spec.image.is_empty()) {
            Some(spec) => Ok(self.listed_by(spec)?.into_iter().collect()),
            None => Ok(self.store.listed()),
        }
    }

    fn edition(&self) -> Option<u64> {
        Some(self.store.edition())
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(self.listed_by(spec)?.map(Arc::unwrap_or_clone))
    }

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        let Some(id) = self.store.resolve(&spec.image)? else { return Ok(None) };
        let store = Arc::clone(&self.store);
        blocking(move || listed::details(&store, &id)).await
    }

    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        scarce::retried(|| self.pull_once(request, &progress)).await
    }

    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        self.estimated(request).await.map(Some)
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let found = self.store.resolve(&spec.image)?.or_else(|| self.store.resolve_damaged(&spec.image));
        let Some(id) = found else { return Ok(()) };
        let failed = |error| removal_error(&spec.image, error);
        let (store, name) = (Arc::clone(&self.store), spec.image.clone());
        blocking(move || {
            let turn = store.mounting();
            refuse_if_mounted(&store, &id, &name)?;
            store.remove_image(&id)?;
            drop(turn);
            free(&store);
            Ok(())
        })
        .await
        .map_err(failed)
    }

    async fn untag(&self, name: &str) -> Result<(), RuntimeError> {
        let reference: Reference = name.parse().map_err(|error| {
            RuntimeError::new(
                RuntimeErrorKind::InvalidArgument,
                format!("`{}` names no image", imagelet_core::image::shown_name(name)),
            )
            .caused_by(error)
        })?;
        let store = Arc::clone(&self.store);
        blocking(move || {
            let name = reference.canonical().to_string();
            let turn = store.mounting();
            let image = store.resolve(&name)?.and_then(|id| store.image(&id).map(|(_, names)| (id, names)));
            if let Some((id, names)) = image
                && names.iter().filter(|other| !other.contains('@')).all(|other| *other == name)
            {
                // The image goes with its last name.
                refuse_if_mounted(&store, &id, &name)?;
            }
            store.remove_name(&name)?;
            drop(turn);
            free(&store);
            Ok(())
        })
        .await
        .map_err(|error| removal_error(name, error))
    }

    fn reserved(&self) -> Freed {
        let (amount, _) = self.ledger.open().reserved();
        Freed { bytes: ByteSize(amount.bytes), inodes: amount.inodes }
    }

    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        let store = Arc::clone(&self.store);
        blocking(move || {
            let mounted = mount::mounts(&store)?.iter().map(|mounted| ImageId::new(&mounted.image)).collect();
            Ok(Some(store.graph(&mounted)))
        })
        .await
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        let now = SystemTime::now();
        // One store serves all handlers, and writable layers live in it, too.
        let all = StoreMeasure {
            store: String::new(),
            bytes: occupied(&self.store),
            inodes: self.store.takes().inodes,
            at: now,
        };
        let roots = [(String::new(), self.store.disk_place().to_owned())].into();
        let images = FilesystemUsage::by_store("", &roots, &[all], now);
        Ok(ImageFilesystems { containers: images.clone(), images })
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| RuntimeError::defect("a thread of the store ended early").caused_by(error))?
}

/// Under the store's turn of mounting, in which nobody mounts it meanwhile.
fn refuse_if_mounted(store: &Store, id: &ImageId, name: &str) -> Result<(), RuntimeError> {
    let Some(mounted) = mount::mounts(store)?.into_iter().find(|mounted| mounted.image == id.as_str()) else {
        return Ok(());
    };
    let target = mounted.target.display();
    let refused = RuntimeError::new(RuntimeErrorKind::InUse, format!("image `{name}` is mounted on `{target}`"));
    Err(refused.with_hint(mounted.hint()))
}

/// Frees what a removal has left. The removal is done, whatever the disk says to this: the next sweep goes on.
fn free(store: &Store) {
    if let Err(error) = mount::sweep(store).and_then(|()| store.sweep()) {
        tracing::warn!(error = error.chain(), "could not free all that a removed image took");
    }
}

fn removal_error(image: &str, error: RuntimeError) -> RuntimeError {
    if error.kind() == RuntimeErrorKind::InUse {
        return error;
    }
    let hint = error.hint().map(str::to_owned);
    let told = RuntimeError::new(error.kind(), format!("could not remove `{image}`")).caused_by(error);
    match hint {
        Some(hint) => told.with_hint(hint),
        None => told,
    }
}

fn check_layers(id: &ImageId, layers: usize, diff_ids: usize) -> Result<(), RuntimeError> {
    if layers == diff_ids {
        return Ok(());
    }
    let message = format!("the manifest has {layers} layers and the configuration `{id}` {diff_ids}");
    Err(RuntimeError::new(RuntimeErrorKind::Corrupt, message))
}

fn new_image(
    id: &ImageId,
    resolved: &Resolved,
    config: &ImageConfig,
    config_bytes: &[u8],
    layers: Vec<LayerEntry>,
) -> NewImage {
    let manifest = resolved.chosen.bytes.to_vec();
    let record = ImageRecord {
        id: id.to_string(),
        manifest: resolved.chosen.digest.to_string(),
        index: (resolved.root.digest != resolved.chosen.digest).then(|| resolved.root.digest.to_string()),
        layers,
        metadata_size: (manifest.len() + config_bytes.len()) as u64,
        user: config.user.clone(),
        allocated: None,
        platform: format!("{}/{}", config.os, config.architecture),
        pulled_at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        names: Vec::new(),
    };
    let mut files = vec![("manifest.json", manifest), ("config.json", config_bytes.to_vec())];
    if resolved.root.digest != resolved.chosen.digest {
        files.push(("index.json", resolved.root.bytes.to_vec()));
    }
    NewImage { record, files, names: Vec::new() }
}
