//! The site of imports into containerd: what the runtime is, the engine that stages layers beside it, and its own API.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use imagelet_containerd::{Containerd, ContainerdConfig, ImportObstacle};
use imagelet_core::runtime::{
    ForwardReason, ImageService, ImportSite, MakeRoom, OpenedSite, RegistrySettings, RuntimeError, RuntimeInfo,
    SnapshotterPlace, error_chain,
};
use imagelet_cri::RemoteContainerService;
use imagelet_oci::{Access, Engine, EngineConfig};

/// Another daemon that ends may still have the staging folder.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// A runtime with what imports into it need.
pub(super) struct RuntimeSite {
    parts: RuntimeSiteParts,
    /// Makes room for imports, once the node is open.
    room: OnceLock<Arc<dyn MakeRoom>>,
    opened: Mutex<Opened>,
}

/// What a site is made of.
pub(super) struct RuntimeSiteParts {
    /// Asked what the runtime is and how it is configured.
    pub(super) containers: RemoteContainerService,
    /// The runtime's images, as CRI shows them.
    pub(super) images: Arc<dyn ImageService>,
    /// The runtime's socket.
    pub(super) socket: PathBuf,
    /// How layers are fetched and unpacked; root and registry settings become those of the runtime.
    pub(super) engine: EngineConfig,
    /// Images that sandboxes are started from, beside those that the runtime reports.
    pub(super) sandbox_images: Vec<String>,
}

/// What was opened last: at most one engine owns the staging folder.
#[derive(Default)]
struct Opened {
    engine: Option<(EngineKey, Arc<Engine>)>,
    containerd: Option<Containerd>,
}

/// What an engine was opened for.
#[derive(Clone, PartialEq, Eq)]
struct EngineKey {
    staging: PathBuf,
    hosts_dirs: Vec<PathBuf>,
}

impl RuntimeSite {
    pub(super) fn new(parts: RuntimeSiteParts) -> Self {
        Self { parts, room: OnceLock::new(), opened: Mutex::default() }
    }

    /// Imports that find no room ask here. To be called once.
    pub(super) fn make_room_by(&self, room: Arc<dyn MakeRoom>) {
        if let Some((_, engine)) = &self.opened().engine {
            engine.ask_for_room(Arc::clone(&room));
        }
        self.room.get_or_init(|| room);
    }

    /// The engine that stages layers; the same one until staging or registry settings change.
    async fn engine(&self, key: EngineKey) -> Result<Arc<Engine>, ForwardReason> {
        {
            let mut opened = self.opened();
            match &opened.engine {
                Some((before, engine)) if *before == key => return Ok(Arc::clone(engine)),
                // It gives the folder back once the imports that it runs have ended.
                _ => opened.engine = None,
            }
        }
        let mut config = EngineConfig { root: key.staging.clone(), ..self.parts.engine.clone() };
        config.registry.hosts_dirs.clone_from(&key.hosts_dirs);
        config.access = Access::Write { or_create: true };
        config.lock_wait = LOCK_WAIT;
        let engine = Engine::open(config).await.map_err(|error| ForwardReason::Staging(error.chain()))?;
        if let Some(room) = self.room.get() {
            engine.ask_for_room(Arc::clone(room));
        }
        self.opened().engine = Some((key, Arc::clone(&engine)));
        Ok(engine)
    }

    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl ImportSite for RuntimeSite {
    async fn survey(&self) -> Result<RuntimeInfo, RuntimeError> {
        let version = self.parts.containers.version().await?;
        let runtime = RuntimeInfo::named(version.name, version.version);
        if !runtime.is_containerd() {
            // CRI-O walks through all its files to answer for its disks.
            return Ok(runtime);
        }
        let (mut configuration, filesystems) =
            tokio::try_join!(self.parts.containers.configuration(), self.parts.images.filesystem())?;
        configuration.sandbox_images.extend(self.parts.sandbox_images.iter().cloned());
        Ok(RuntimeInfo { places: SnapshotterPlace::all(&filesystems), configuration, ..runtime })
    }

    async fn open(&self, runtime: &RuntimeInfo) -> Result<OpenedSite, ForwardReason> {
        let place = runtime.place().ok_or(ForwardReason::Snapshotter(None))?;
        let config = ContainerdConfig {
            socket: self.parts.socket.clone(),
            image_mountpoint: place.folder(),
            version: runtime.version.clone(),
            keep_blobs: self.parts.engine.keep_blobs,
            cri: Arc::clone(&self.parts.images),
        };
        let containerd = Containerd::connect(config).await.map_err(|obstacle| reason(&obstacle))?;
        let hosts_dirs = match &runtime.configuration.registries {
            RegistrySettings::Reported { folders, .. } => folders.clone(),
            RegistrySettings::Hidden { .. } => self.parts.engine.registry.hosts_dirs.clone(),
        };
        let engine = self.engine(EngineKey { staging: containerd.staging(), hosts_dirs }).await?;
        // The owner of the staging folder runs all imports: other leases are of processes that are gone.
        let released = containerd.release_stale().await.map_err(|error| ForwardReason::ApiClosed(error.chain()))?;
        if released > 0 {
            tracing::info!(released, "the runtime released what imports of a former run held");
        }
        self.opened().containerd = Some(containerd.clone());
        let importer = engine.importer(Arc::new(containerd.clone()));
        Ok(OpenedSite { importer, backing: Arc::new(containerd) })
    }

    async fn close(&self) {
        let containerd = self.opened().containerd.clone();
        if let Some(containerd) = containerd {
            containerd.released().await;
        }
    }
}

impl fmt::Debug for RuntimeSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeSite").field("socket", &self.parts.socket).finish_non_exhaustive()
    }
}

/// What is in the way of imports, as `status` shows it.
fn reason(obstacle: &ImportObstacle) -> ForwardReason {
    let text = error_chain(obstacle);
    match obstacle {
        ImportObstacle::Snapshotter(name) => ForwardReason::Snapshotter(Some(name.clone())),
        ImportObstacle::Folder(_) => ForwardReason::RootUnreachable(text),
        ImportObstacle::Rights => ForwardReason::Rights(text),
        ImportObstacle::Staging { .. } | ImportObstacle::Mount { .. } => ForwardReason::Staging(text),
        _ => ForwardReason::ApiClosed(text),
    }
}
