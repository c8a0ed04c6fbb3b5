//! A node whose parts are in this process: store or runtime, inventory, manager, collector.

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    audit_log::AuditLog,
    credentials::{NodeKeyring, Providers},
    events::{Event, EventKind, EventSink as _, EventSubject, LogEvents},
    gc::{GcRuns, ImageGc, RunMessage},
    image::{ByteSize, Image, ImageId, ImageSpec, Reference, shown_name},
    inventory::{Inventory, Snapshot},
    manager::{ImageManager, PodStarts},
    metrics::Metrics,
    runtime::{LocalStore, RuntimeManager},
};
use imagelet_kube::NodeAgent;
use imagelet_runtime::ImportingImages;
use tokio::sync::Semaphore;

use super::{
    disk_history::DiskHistory,
    images::{KnownSizes, row, row_without_uses},
};
use crate::{
    api::{ImageRow, LastCollection},
    config::Settings,
    failure::Failure,
    traces::Tracer,
};

/// Concurrent followers; each may buffer a few hundred messages of at most 8 KiB.
pub(super) const FOLLOWERS_MAX: usize = 32;
/// How long the end of a command waits for a runtime's image list.
const LAST_PASS_MAX: Duration = Duration::from_secs(5);

#[expect(missing_debug_implementations, reason = "its parts print much, and secrets are near")]
pub struct NodeParts {
    pub runtime: RuntimeManager,
    pub inventory: Arc<Inventory>,
    pub manager: Arc<ImageManager>,
    pub tracer: Tracer,
    pub pod_starts: Arc<PodStarts>,
    pub events: Arc<LogEvents>,
    pub keyring: Arc<NodeKeyring>,
    pub providers: Arc<Providers>,
    pub gc: ImageGc,
    pub decisions: Arc<AuditLog>,
    pub metrics: Arc<Metrics>,
    /// Follows the pods of the node, in a daemon of a cluster.
    pub agent: Option<Arc<NodeAgent>>,
    /// Sandbox of the threads that unpack layers; absent for a runtime.
    pub unpacking: Option<String>,
    pub is_read_only: bool,
    /// The directory of the node's own state.
    pub state: PathBuf,
    /// Imports of a daemon into its runtime.
    pub imports: Option<Arc<ImportingImages>>,
    /// `store DIR` or `runtime URI`.
    pub backend: String,
    pub is_daemon: bool,
    /// `false`: uses are unknown, so nothing may be collected.
    pub uses_known: bool,
    /// The next pass is the first on this node, whose inventory is empty: it takes adopted images over.
    pub first_run_adopts: AtomicBool,
}

pub struct LocalNode {
    pub parts: NodeParts,
    settings: RwLock<Arc<Settings>>,
    pub(super) last_collection: Mutex<Option<LastCollection>>,
    pub disk_history: DiskHistory,
    pub started_at: SystemTime,
    pub followers: Semaphore,
    gc_runs: Mutex<GcRuns>,
    /// Images whose unreadable pull record was reported.
    pub unreadable_records: Mutex<BTreeSet<ImageId>>,
}

impl LocalNode {
    pub fn new(parts: NodeParts, settings: Settings) -> Self {
        parts.gc.set_rules(settings.collection.rules.clone());
        parts.inventory.protect_sandbox_images(settings.images.sandbox_images.clone());
        Self {
            unreadable_records: Mutex::default(),
            parts,
            settings: RwLock::new(Arc::new(settings)),
            last_collection: Mutex::default(),
            disk_history: DiskHistory::default(),
            started_at: SystemTime::now(),
            followers: Semaphore::new(FOLLOWERS_MAX),
            gc_runs: Mutex::default(),
        }
    }

    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the settings; thresholds, ages and periods apply from the next pass on.
    pub(crate) fn replace_settings(&self, settings: Settings) {
        self.parts.gc.set_rules(settings.collection.rules.clone());
        self.parts.inventory.protect_sandbox_images(settings.images.sandbox_images.clone());
        self.parts.inventory.leases.start(settings.collection.lease_for, SystemTime::now());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Writes what a single command learned to disk; a daemon does so periodically.
    pub async fn close(&self) {
        if self.parts.is_read_only {
            return;
        }
        // An embedded store answers at once. A runtime is listed only when an image arrived that no pass has seen:
        // otherwise its pull would not be recorded.
        if self.local().is_some() || self.parts.inventory.awaits_pass() {
            match tokio::time::timeout(LAST_PASS_MAX, self.refresh()).await {
                Ok(Ok(_)) => {}
                Ok(Err(failure)) => {
                    tracing::warn!(error = failure.to_string(), "could not take stock of the images");
                }
                Err(_) => tracing::warn!("the runtime takes too long to list its images"),
            }
        }
        let inventory = Arc::clone(&self.parts.inventory);
        match tokio::task::spawn_blocking(move || inventory.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = Failure::of(&error).to_string(), "the last uses are not on disk"),
            Err(error) => tracing::error!(%error, "the last uses are not on disk"),
        }
        self.flush_decisions().await;
        // Last, because it takes as long as the disk and may be cut short.
        if let Some(store) = self.local()
            && let Err(error) = store.flush().await
        {
            tracing::error!(error = error.chain(), "pulled images are not durable");
        }
    }

    /// Records an event of the node itself.
    pub(crate) fn record_event(&self, kind: EventKind, reason: &'static str, message: String) {
        let subject = EventSubject::Node;
        self.parts.events.record(Event { kind, reason, message, note: None, subject, cause: None });
    }

    pub(crate) fn collection_ended(&self, result: Result<(), &str>) -> RunMessage {
        self.gc_runs.lock().unwrap_or_else(PoisonError::into_inner).ended(result)
    }

    pub async fn refresh(&self) -> Result<Arc<Snapshot>, Failure> {
        Ok(self.parts.inventory.refresh(SystemTime::now()).await?)
    }

    /// Bytes of the embedded store. A runtime's figure does not measure its images: containerd counts snapshots without
    /// content, CRI-O the metadata of its images without their layers.
    pub(crate) async fn store_bytes(&self) -> Result<Option<ByteSize>, Failure> {
        if self.local().is_none() {
            return Ok(None);
        }
        let usages = self.parts.runtime.filesystem().await?.images;
        Ok(usages.first().map(|usage| usage.used))
    }

    pub async fn sizes(&self) -> Result<KnownSizes, Failure> {
        let layers = match self.parts.runtime.layers().await {
            Err(error) if self.local().is_none() => {
                tracing::warn!(error = error.chain(), "sizes of images are those that the runtime lists");
                None
            }
            layers => layers?,
        };
        Ok(KnownSizes { store_bytes: self.store_bytes().await?, layers })
    }

    pub async fn rows(&self) -> Result<Vec<ImageRow>, Failure> {
        let sizes = self.sizes().await?;
        self.listed(false, &sizes).await
    }

    /// All images; a brief row has no shared size and, where it has a tag, no digests.
    pub async fn listed(&self, brief: bool, sizes: &KnownSizes) -> Result<Vec<ImageRow>, Failure> {
        let refreshed = self.refresh().await;
        let shares = sizes.shares();
        let mut rows: Vec<ImageRow> = match refreshed {
            Ok(snapshot) => snapshot.entries.iter().map(|entry| row(entry, &shares)).collect(),
            Err(failure) if self.local().is_none() => return Err(failure),
            // From the store alone, while the runtime that runs containers from it does not answer.
            Err(failure) => {
                tracing::warn!(error = failure.to_string(), "it is not known which images are in use");
                let images = self.parts.runtime.list(None).await?.into_images();
                images.iter().map(|image| row_without_uses(image, &shares)).collect()
            }
        };
        if brief {
            rows.iter_mut().filter(|row| !row.names.is_empty()).for_each(|row| row.digests.clear());
        }
        rows.sort_by(|a, b| (a.shown_names(), &a.id).cmp(&(b.shown_names(), &b.id)));
        Ok(rows)
    }

    /// Finds an image by any spelling of its name or a prefix of its id.
    pub async fn find(&self, text: &str) -> Result<Image, Failure> {
        let found = self.look(text).await?;
        found.ok_or_else(|| {
            Failure::new("NotFound", format!("no image `{}`", shown_name(text)))
                .or_hint("`imagelet ls` lists what is present")
        })
    }

    pub async fn look(&self, text: &str) -> Result<Option<Image>, Failure> {
        if text.is_empty() {
            return Err(Failure::new("InvalidArgument", "an empty text names no image"));
        }
        if let Some(image) = self.parts.runtime.status(&ImageSpec::new(text)).await? {
            return Ok(Some(image));
        }
        // Runtimes look names up literally; users omit the registry and the tag.
        match text.parse::<Reference>() {
            Ok(reference) if reference.to_string() != text => {
                Ok(self.parts.runtime.status(&ImageSpec::new(reference.canonical().to_string())).await?)
            }
            _ => Ok(None),
        }
    }

    pub fn local(&self) -> Option<&dyn LocalStore> {
        self.parts.runtime.local()
    }

    pub fn store(&self, what: &str) -> Result<&dyn LocalStore, Failure> {
        self.local().ok_or_else(|| {
            Failure::new("Unsupported", format!("{what} needs the embedded store, this is {}", self.parts.backend))
                .or_hint("use `--store DIR`")
        })
    }
}

impl fmt::Debug for LocalNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalNode").field("backend", &self.parts.backend).finish_non_exhaustive()
    }
}
