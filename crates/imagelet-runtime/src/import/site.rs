//! The site of imports into containerd: the runtime's properties, the engine that stages layers, and containerd's API.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ImageId, Reference},
    lock::locked,
    ports::{ForwardReason, Freed, ImageService, MakeRoom, Progress, PullRequest, RegistryHost},
};
use imagelet_oci::{Access, Engine, EngineConfig, EngineImporter, ImportError, ImportStage, StorePlace};

use super::{
    service::ImportSite,
    sink::{Containerd, ContainerdConfig},
};
use crate::cri::{RegistrySettings, RemoteContainerService, RuntimeInfo, SnapshotterPlace};

/// Maximum wait for a stopping daemon that still owns the staging folder.
const LOCK_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct RuntimeSite {
    pub containers: RemoteContainerService,
    pub images: Arc<dyn ImageService>,
    pub socket: PathBuf,
    /// Settings for fetching and unpacking. The runtime's root and registry folders replace the configured folders.
    pub engine: EngineConfig,
    /// Sandbox images in addition to those that the runtime reports.
    pub sandbox_images: Vec<String>,
    /// Set after the node is open.
    pub room: OnceLock<Arc<dyn MakeRoom>>,
    pub opened: Mutex<Opened>,
}

/// At most one engine owns the staging folder.
#[derive(Debug, Default)]
pub struct Opened {
    engine: Option<(EngineConfig, Arc<Engine>)>,
    containerd: Option<Containerd>,
    importer: Option<Arc<EngineImporter>>,
}

impl RuntimeSite {
    async fn open_engine(&self, config: EngineConfig) -> Result<Arc<Engine>, ForwardReason> {
        {
            let mut opened = locked(&self.opened);
            match &opened.engine {
                Some((before, engine)) if *before == config => return Ok(Arc::clone(engine)),
                // The old engine releases the staging folder after its running imports have ended.
                _ => (opened.engine, opened.importer) = (None, None),
            }
        }
        let engine = Engine::open(config.clone()).await.map_err(|error| ForwardReason::Staging(error.chain()))?;
        if let Some(room) = self.room.get() {
            engine.ask_for_room(Arc::clone(room));
        }
        locked(&self.opened).engine = Some((config, Arc::clone(&engine)));
        Ok(engine)
    }

    fn importer(&self) -> Option<Arc<EngineImporter>> {
        locked(&self.opened).importer.clone()
    }
}

#[async_trait]
impl ImportSite for RuntimeSite {
    async fn survey(&self) -> Result<RuntimeInfo, RuntimeError> {
        let runtime = self.containers.version().await?;
        if !runtime.is_containerd() {
            // Other runtimes are not queried further, because CRI-O reads all its files to report its disk usage.
            return Ok(runtime);
        }
        let (mut configuration, filesystems) =
            tokio::try_join!(self.containers.configuration(), self.images.filesystem())?;
        configuration.sandbox_images.extend(self.sandbox_images.iter().cloned());
        Ok(RuntimeInfo { places: SnapshotterPlace::all(&filesystems), configuration, ..runtime })
    }

    fn socket(&self) -> &Path {
        &self.socket
    }

    /// The identity of the socket file. A runtime creates a new socket at each start.
    fn incarnation(&self) -> Option<String> {
        let socket = fs::metadata(&self.socket).ok()?;
        Some(format!("{} {} {}.{}", socket.dev(), socket.ino(), socket.ctime(), socket.ctime_nsec()))
    }

    async fn open(&self, runtime: &RuntimeInfo) -> Result<(), ForwardReason> {
        let place = runtime.place().ok_or(ForwardReason::SnapshotterUnknown)?;
        let config = ContainerdConfig {
            socket: self.socket.clone(),
            place: place.clone(),
            version: runtime.version.clone(),
            keep_blobs: self.engine.keep_blobs,
            cri: Arc::clone(&self.images),
            rebases: None,
        };
        let containerd = Containerd::connect(config).await?;
        let (root, access) = (containerd.staging(), Access::Write { or_create: true });
        let place = StorePlace { root, access, lock_wait: LOCK_WAIT };
        let mut config = EngineConfig { place, ..self.engine.clone() };
        if let RegistrySettings::Reported { folders, .. } = &runtime.configuration.registries {
            config.registry.hosts_dirs.clone_from(folders);
        }
        let engine = self.open_engine(config).await?;
        // This process owns the staging folder, so no other process imports, and all other leases are stale.
        let released = containerd.release_stale().await.map_err(|error| ForwardReason::of_api(&error))?;
        if released > 0 {
            tracing::info!(released, "the runtime released what imports of a former run held");
        }
        let mut opened = locked(&self.opened);
        opened.importer = Some(engine.importer(Arc::new(containerd.clone())));
        opened.containerd = Some(containerd);
        Ok(())
    }

    async fn import(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, ImportError> {
        let Some(importer) = self.importer() else {
            let why = RuntimeError::new(RuntimeErrorKind::Unavailable, "the runtime changed while the import began");
            return Err(ImportStage::Fetch.failed(why));
        };
        importer.import(request, progress).await
    }

    async fn registry_hosts(&self, image: &Reference) -> Vec<RegistryHost> {
        match self.importer() {
            Some(importer) => importer.registry_hosts(image).await,
            None => Vec::new(),
        }
    }

    fn reserved(&self) -> Freed {
        self.importer().map_or_else(Freed::default, |importer| importer.reserved())
    }

    async fn close(&self) {
        let containerd = locked(&self.opened).containerd.clone();
        if let Some(containerd) = containerd {
            containerd.released().await;
        }
    }
}
