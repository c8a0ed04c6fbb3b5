//! Imports images into an unmodified containerd.
//!
//! Layers are renamed into prepared snapshots. Documents and image records then follow, as in containerd's own pull.

pub(crate) mod backing;
mod content;
mod layers;
mod leases;
mod naming;
pub(crate) mod records;
mod running;
mod snapshot_folders;
mod snapshotter_folder;

use imagelet_oci::{ImportedImage, LayerImport, LayerSink};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use imagelet_core::{
    error::RuntimeError,
    image::Digest,
    ports::{ForwardReason, ImageService},
};

use tokio::sync::watch;

use self::{leases::ContainerdParts, records::mounts_images, running::ContainerdImport};
use crate::{
    containerd::ContainerdClient,
    cri::{OVERLAYFS, SnapshotterPlace},
};

/// Maximum attempts if another client of containerd creates or removes the same object concurrently.
const TRIES_MAX: usize = 3;
const ONLY_LAYER: &str = "containerd.io/gc.ref.content.l.0";
/// The capability of a snapshotter to set the parent at the commit.
const REBASE: &str = "rebase";

#[derive(Clone, Debug)]
pub struct ContainerdConfig {
    pub socket: PathBuf,
    pub place: SnapshotterPlace,
    pub version: String,
    pub keep_blobs: bool,
    pub cri: Arc<dyn ImageService>,
    /// Whether the commit sets the parent of a snapshot. `None` means that the snapshotter's capability decides.
    pub rebases: Option<bool>,
}

/// A containerd into which images can be imported. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Containerd(Arc<ContainerdParts>);

impl Containerd {
    /// Checks that images can be imported: the API answers, the snapshotter is overlayfs, and a folder can be renamed
    /// from the staging folder. Creates the staging folder if it is absent, and changes nothing else.
    pub async fn connect(config: ContainerdConfig) -> Result<Self, ForwardReason> {
        let client = ContainerdClient::new(&config.socket);
        let reported = rebases(&client, &config.place).await?;
        let probed = config.place.clone();
        let probe = tokio::task::spawn_blocking(move || probed.probe());
        probe.await.expect("a probe ends without a panic")?;
        let rebases = config.rebases.unwrap_or(reported);
        let (has_stale, imports) = (false.into(), watch::channel(0).0);
        Ok(Self(Arc::new(ContainerdParts { config, client, rebases, has_stale, imports })))
    }

    pub fn staging(&self) -> PathBuf {
        self.0.config.place.staging()
    }

    pub fn rebases(&self) -> bool {
        self.0.rebases
    }

    pub fn client(&self) -> &ContainerdClient {
        &self.0.client
    }

    /// Ends the leases of imports that no longer run, which releases their content. Returns the number of ended leases.
    /// The caller must own the staging folder. Otherwise a running import of another process loses its lease.
    pub async fn release_stale(&self) -> Result<usize, RuntimeError> {
        self.0.release_stale().await
    }

    /// Waits until no import runs and imagelet has tried to end each lease. The caller must drop its imports before.
    pub async fn released(&self) {
        // The wait cannot fail, because `self` owns the sender.
        let _ = self.0.imports.subscribe().wait_for(|imports| *imports == 0).await;
    }
}

#[async_trait]
impl LayerSink for Containerd {
    async fn begin(&self, image: Arc<ImportedImage>) -> Result<Arc<dyn LayerImport>, RuntimeError> {
        self.0.release_left_behind().await?;
        Ok(Arc::new(ContainerdImport::begin(Arc::clone(&self.0), image).await?))
    }

    fn check_mounts_artifacts(&self) -> Result<(), RuntimeError> {
        if mounts_images(&self.0.config.version) {
            return Ok(());
        }
        let version = self.0.config.version.escape_debug();
        let why = format!(
            "it is an artifact, and containerd `{version}` has no image volumes, which need containerd 2.1 or later: \
             no pod can mount it"
        );
        Err(RuntimeError::unsupported(why))
    }

    async fn named_artifact(&self, name: &str) -> Result<Option<(Digest, Digest)>, RuntimeError> {
        let client = &self.0.client;
        let Some(target) = client.image(name).await?.and_then(|record| record.target) else { return Ok(None) };
        let manifest = client.content(&target.digest).await?;
        let layer = manifest.as_ref().and_then(|manifest| manifest.labels.get(ONLY_LAYER));
        Ok(target.digest.parse().ok().zip(layer.and_then(|layer| layer.parse().ok())))
    }
}

async fn rebases(client: &ContainerdClient, place: &SnapshotterPlace) -> Result<bool, ForwardReason> {
    let plugins = client.snapshotters().await.map_err(|error| ForwardReason::of_api(&error.into()))?;
    let failed = |why: &str| ForwardReason::ApiClosed(format!("the snapshotter `{OVERLAYFS}` is not usable: {why}"));
    let plugin = plugins.into_iter().find(|plugin| plugin.id == OVERLAYFS);
    let plugin = plugin.ok_or_else(|| failed("containerd has no such plug-in"))?;
    if let Some(error) = plugin.init_err {
        return Err(failed(&error.message.chars().take(PLUGIN_TEXT_MAX).collect::<String>()));
    }
    match plugin.exports.get("root") {
        Some(root) if Path::new(root) != place.folder() => Err(failed("its folder is not the one that CRI names")),
        _ => Ok(plugin.capabilities.iter().any(|capability| capability == REBASE)),
    }
}

const PLUGIN_TEXT_MAX: usize = 500;
