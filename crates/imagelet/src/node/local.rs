//! A node whose parts are in this process: store or runtime, inventory, manager, collector.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock, atomic::AtomicUsize},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    audit_log::{ActCode, AuditLog},
    credentials::{Credential, CredentialKind, NodeKeyring, Providers, Secret},
    disks::Fullness,
    events::LogEvents,
    gc::{GcRuns, ImageGc, OrderError, RunTold, UsedImages},
    image::{Image, ImageKey, ImageSpec, Reference, shown_name},
    inventory::{Inventory, Snapshot, node_images},
    manager::{Caller, EnsureRequest, ImageManager, Origin, PodIdentity, PodStarts, PullPolicy},
    metrics::Metrics,
    records::PullRecords,
    runtime::{ImportingImages, Progress, RuntimeManager},
};
use imagelet_oci::{Engine, MountOptions, StoreUsage, UnmountedImage};

use super::adopt::Adoption;
use super::reasons::{Collections, declare};
use super::rows::{KnownSizes, details_of, row, row_without_uses};
use super::waiting::WaitingRows;
use super::{
    AnswerTime, Command, ImageList, ImageRow, ImportStatus, InspectRequest, Inspected, ListRequest, MountRequest,
    Mounted, PodStartRow, PullBoard, PullRequest, Pulled, RemoveRequest, Removed, Status, StatusRequest, Steps,
    UnmountRequest, UntagRequest,
    pods::secrets,
    pressure::{Pressure, pressure},
};
use crate::{
    config::{CollectionMode, Settings},
    failure::Failure,
};

/// How long a status waits for the runtime: shorter than a command waits for a daemon, so that it can say who is silent.
const STATUS_WAIT_MAX: Duration = Duration::from_secs(4);
/// How long the end of a command waits for a runtime to list its images.
const LAST_PASS_MAX: Duration = Duration::from_secs(5);

/// What a node is made of.
pub(crate) struct NodeParts {
    /// Store and containers behind their ports.
    pub(crate) runtime: RuntimeManager,
    /// What is there, since when, used by whom.
    pub(crate) inventory: Arc<Inventory>,
    /// Pulls.
    pub(crate) manager: ImageManager,
    /// How far pulls are.
    pub(crate) pulls: PullBoard,
    /// How long the images of pods take.
    pub(crate) pod_starts: Arc<PodStarts>,
    /// What happens.
    pub(crate) events: Arc<LogEvents>,
    /// The node's own credentials.
    pub(crate) keyring: Arc<NodeKeyring>,
    /// Programs that know credentials.
    pub(crate) providers: Arc<Providers>,
    /// Collects.
    pub(crate) gc: ImageGc,
    /// What was pulled for whom.
    pub(crate) records: Arc<PullRecords>,
    /// What was decided on images, and why.
    pub(crate) decisions: Arc<AuditLog>,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
    /// The embedded store, where there is one.
    pub(crate) engine: Option<Arc<Engine>>,
    /// A daemon's images of a runtime.
    pub(crate) imports: Option<Arc<ImportingImages>>,
    /// `store DIR` or `runtime URI`.
    pub(crate) backend: String,
    /// Whether this is the daemon, not a single command.
    pub(crate) is_daemon: bool,
    /// False where nobody can say what is in use: then nothing may be collected.
    pub(crate) uses_known: bool,
    /// Nothing was remembered of this node's images.
    pub(crate) takes_over: bool,
}

/// A node in this process.
pub(crate) struct LocalNode {
    pub(super) parts: NodeParts,
    settings: RwLock<Arc<Settings>>,
    pub(super) collections: Collections,
    started_at: SystemTime,
    /// How many follow the events.
    pub(super) followers: AtomicUsize,
    /// How the periodic collections went.
    gc_runs: Mutex<GcRuns>,
    pub(super) adoption: Adoption,
}

impl LocalNode {
    /// Puts a node together.
    pub(crate) fn new(parts: NodeParts, settings: Settings) -> Self {
        parts.gc.set_rules(settings.collection.rules());
        parts.inventory.protect_sandbox_images(settings.sandbox_images.clone());
        declare(&parts.metrics);
        Self {
            adoption: Adoption::new(parts.takes_over),
            parts,
            settings: RwLock::new(Arc::new(settings)),
            collections: Collections::default(),
            started_at: SystemTime::now(),
            followers: AtomicUsize::new(0),
            gc_runs: Mutex::default(),
        }
    }

    /// Its parts.
    pub(crate) fn parts(&self) -> &NodeParts {
        &self.parts
    }

    /// The configuration now in force.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes another configuration; thresholds, ages and periods hold from the next pass on.
    pub(crate) fn replace_settings(&self, settings: Settings) {
        self.parts.gc.set_rules(settings.collection.rules());
        self.parts.inventory.protect_sandbox_images(settings.sandbox_images.clone());
        self.parts.inventory.start_leases(settings.collection.lease_for, SystemTime::now());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Puts on disk what a single command learned; a daemon does so by the clock.
    pub(crate) async fn close(&self) {
        if let Some(engine) = &self.parts.engine
            && engine.check_writable().is_err()
        {
            return;
        }
        // A store of our own answers at once; a runtime is asked only where an image came that no pass has seen: without one
        // nothing would be remembered of its pull.
        if self.parts.engine.is_some() || self.parts.inventory.awaits_pass() {
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
        // Last, for it takes as long as the disk does, and may be cut short.
        if let Some(engine) = &self.parts.engine {
            if let Err(error) = engine.sync_background().await {
                tracing::error!(error = error.chain(), "pulled images are not durable");
            }
        }
    }

    /// Takes note of how a periodic collection ended; answers what is to be told of it.
    pub(crate) fn collection_ended(&self, result: Result<(), &str>) -> RunTold {
        self.gc_runs.lock().unwrap_or_else(PoisonError::into_inner).ended(result)
    }

    pub(super) async fn refresh(&self) -> Result<Arc<Snapshot>, Failure> {
        Ok(self.parts.inventory.refresh(SystemTime::now()).await?)
    }

    /// The store can be looked at although the runtime that runs from it is away.
    async fn without_uses(&self, failure: Failure) -> Result<Vec<Arc<Image>>, Failure> {
        if self.parts.engine.is_none() {
            return Err(failure);
        }
        tracing::warn!(error = failure.to_string(), "nobody can tell which images are in use");
        Ok(self.parts.runtime.list(None).await?.into_images())
    }

    async fn usage(&self) -> Result<Option<StoreUsage>, Failure> {
        match &self.parts.engine {
            Some(engine) => Ok(Some(engine.disk_usage().await?)),
            None => Ok(None),
        }
    }

    /// What images take. A runtime that does not offer it is asked for everything else all the same.
    pub(super) async fn sizes(&self) -> Result<KnownSizes, Failure> {
        let store = self.usage().await?;
        let layers = match &store {
            Some(_) => None,
            None => self.parts.runtime.layers().await.unwrap_or_else(|error| {
                tracing::warn!(error = error.chain(), "sizes of images are those that the runtime lists");
                None
            }),
        };
        Ok(KnownSizes { store, layers })
    }

    pub(super) async fn rows(&self) -> Result<Vec<ImageRow>, Failure> {
        let sizes = self.sizes().await?;
        self.listed(false, &sizes).await
    }

    /// All images; a brief row has neither what the image shares with others nor, where it has a tag, digests.
    pub(super) async fn listed(&self, brief: bool, sizes: &KnownSizes) -> Result<Vec<ImageRow>, Failure> {
        let refreshed = self.refresh().await;
        let shares = sizes.shares();
        let mut rows: Vec<ImageRow> = match refreshed {
            Ok(snapshot) => snapshot.entries.iter().map(|entry| row(entry, &shares)).collect(),
            Err(failure) => {
                let images = self.without_uses(failure).await?;
                images.iter().map(|image| row_without_uses(image, &shares)).collect()
            }
        };
        if brief {
            rows.iter_mut().filter(|row| !row.names.is_empty()).for_each(|row| row.digests.clear());
        }
        rows.sort_by(|a, b| (a.shown_names(), &a.id).cmp(&(b.shown_names(), &b.id)));
        Ok(rows)
    }

    /// The image a person means, by any spelling of its name or the beginning of its id.
    async fn find(&self, text: &str) -> Result<Image, Failure> {
        let found = self.look(text).await?;
        found.ok_or_else(|| {
            Failure::new("NotFound", format!("no image `{}`", shown_name(text)))
                .or_hint("`imagelet ls` lists what is present")
        })
    }

    pub(super) async fn look(&self, text: &str) -> Result<Option<Image>, Failure> {
        if text.is_empty() {
            return Err(Failure::new("InvalidArgument", "an empty text names no image"));
        }
        if let Some(image) = self.parts.runtime.status(&ImageSpec::new(text)).await? {
            return Ok(Some(image));
        }
        // Runtimes look names up as they are spelled; people leave the registry and the tag out.
        match text.parse::<Reference>() {
            Ok(reference) if reference.to_string() != text => {
                Ok(self.parts.runtime.status(&ImageSpec::new(reference.canonical().to_string())).await?)
            }
            _ => Ok(None),
        }
    }

    pub(super) fn engine(&self, what: &str) -> Result<&Arc<Engine>, Failure> {
        self.parts.engine.as_ref().ok_or_else(|| {
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

/// RFC 3339, whole seconds, UTC.
pub(super) fn moment(time: SystemTime) -> Option<String> {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Some(jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?.to_string())
}

#[async_trait]
impl Command for PullRequest {
    const NAME: &'static str = "pull";
    const TIME: AnswerTime = AnswerTime::Unlimited;
    type Answer = Pulled;

    async fn run(self, node: &LocalNode, steps: Steps) -> Result<Pulled, Failure> {
        let request = ensure_request(&self)?;
        if node.parts.engine.is_none() {
            steps(super::Step::ThroughRuntime);
        }
        let progress: Progress = Arc::new(move |event| {
            if let Some(step) = super::step(event) {
                steps(step);
            }
        });
        let ensured = node.parts.manager.ensure(&request, progress).await;
        let ensured = ensured.map_err(|error| Failure::of_ensure(&error))?;
        let (present, took, size) = match ensured.origin {
            Origin::AlreadyPresent | Origin::Stale { .. } => (true, std::time::Duration::ZERO, None),
            Origin::Pulled { took, size } => (false, took, Some(size.0).filter(|size| *size > 0)),
        };
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let warning = matches!(ensured.origin, Origin::Stale { .. }).then_some(ensured.message);
        Ok(Pulled { image: self.image, id: ensured.id.to_string(), present, size, took_ms, warning })
    }
}

fn ensure_request(asked: &PullRequest) -> Result<EnsureRequest, Failure> {
    let invalid = |why: String| Failure::new("InvalidArgument", why);
    let policy = match asked.policy.as_str() {
        "" => PullPolicy::default_for(&asked.image)
            .map_err(|error| invalid(format!("`{}` names no image: {error}", shown_name(&asked.image))))?,
        policy => {
            policy.parse().map_err(|error: imagelet_core::manager::PullPolicyError| invalid(error.to_string()))?
        }
    };
    let platform = asked.platform.as_deref().map(str::parse).transpose();
    let platform = platform.map_err(|error: imagelet_core::image::PlatformError| invalid(error.to_string()))?;
    let credentials = asked.login.iter().map(|login| Credential {
        kind: CredentialKind::Basic {
            username: login.user.clone(),
            password: login.password.as_ref().map_or_else(|| Secret::new(""), |password| password.0.clone()),
        },
        server_address: String::new(),
    });
    let pod = asked.pod.clone().unwrap_or_default();
    let is_for_a_pod = !(pod.name.is_empty() && pod.uid.is_empty());
    Ok(EnsureRequest {
        caller: if is_for_a_pod { Caller::Pod } else { Caller::Command },
        pod: PodIdentity { namespace: pod.namespace.into(), name: pod.name.into(), uid: pod.uid.into() },
        container: asked.field.as_str().into(),
        credentials: credentials.collect(),
        secrets: secrets(&asked.secrets),
        platform,
        ..EnsureRequest::new(asked.image.clone(), policy)
    })
}

#[async_trait]
impl Command for ListRequest {
    const NAME: &'static str = "list";
    type Answer = ImageList;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<ImageList, Failure> {
        let sizes = if self.brief { KnownSizes::default() } else { node.sizes().await? };
        Ok(ImageList { images: node.listed(self.brief, &sizes).await? })
    }
}

#[async_trait]
impl Command for InspectRequest {
    const NAME: &'static str = "inspect";
    type Answer = Inspected;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Inspected, Failure> {
        let Some(image) = node.look(&self.image).await? else { return Ok(Inspected::default()) };
        let rows = node.rows().await?;
        let found = rows
            .into_iter()
            .find(|row| row.id == image.id.as_str() && row.runtime_handler == image.spec.runtime_handler);
        let details = match &node.parts.engine {
            Some(engine) => engine.stored(&ImageSpec::new(image.id.as_str())).await?,
            None => None,
        };
        Ok(Inspected { image: found, details: details.as_ref().and_then(details_of) })
    }
}

#[async_trait]
impl Command for RemoveRequest {
    const NAME: &'static str = "remove";
    const TIME: AnswerTime = AnswerTime::WhileAlive;
    type Answer = Removed;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Removed, Failure> {
        if let Some(engine) = &node.parts.engine
            && node.look(&self.image).await?.is_none()
            && let Some(id) = engine.damaged(&self.image)
        {
            let before = engine.disk_usage().await?.total;
            node.parts.runtime.remove(&ImageSpec::new(id.as_str())).await?;
            let freed = before.saturating_sub(engine.disk_usage().await?.total).0;
            tracing::info!(image = %id, "removed a damaged image on request");
            return Ok(Removed { id: id.to_string(), freed: Some(freed), ..Removed::default() });
        }
        let image = node.find(&self.image).await?;
        let before = node.sizes().await?;
        let spec = ImageSpec { image: image.id.to_string(), ..image.spec.clone() };
        // Who orders it knows better than who only asked: it goes, and that is told.
        let held_until = node.parts.inventory.leased_until(&image.id, SystemTime::now()).and_then(moment);
        let pinned_by = node.parts.inventory.pins_of(&image);
        let ordered = node.parts.gc.remove_ordered(&spec, UsedImages::Stay, SystemTime::now()).await;
        ordered.map_err(|error| match error {
            OrderError::InUse { by, .. } => {
                let user = by.first().map_or("somebody", String::as_str);
                Failure::new("InUse", format!("image `{}` is in use by {user}", self.image))
            }
            OrderError::Runtime(error) => error.into(),
            other => Failure::of(&other),
        })?;
        let after = node.usage().await?;
        tracing::info!(image = %image.id, names = ?image.names(), "removed an image on request");
        let freed = match (&before.store, after) {
            (Some(before), Some(after)) => Some(before.total.saturating_sub(after.total).0),
            _ => before.freed_by(&image.id),
        };
        node.removed_on_request(ActCode::RemovedOnRequest, &image, image.names(), "command", freed);
        if let Some(until) = &held_until {
            tracing::warn!(image = %image.id, until, "the removed image was held for a container that may still come");
        }
        if !pinned_by.is_empty() {
            tracing::warn!(image = %image.id, ?pinned_by, "the removed image was pinned");
        }
        Ok(Removed { id: image.id.to_string(), names: image.names().to_vec(), freed, held_until, pinned_by })
    }
}

#[async_trait]
impl Command for UntagRequest {
    const NAME: &'static str = "untag";
    const TIME: AnswerTime = AnswerTime::WhileAlive;
    type Answer = Removed;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Removed, Failure> {
        let image = node.find(&self.image).await?;
        let name =
            [Some(self.image.clone()), self.image.parse::<Reference>().ok().map(|name| name.canonical().to_string())]
                .into_iter()
                .flatten()
                .find(|name| image.tags.contains(name) || image.digests.contains(name));
        let Some(name) = name else {
            return Err(Failure::new("InvalidArgument", format!("`{}` is an id, not a name", self.image))
                .or_hint("`imagelet rm` removes an image with all its names"));
        };
        let before = node.usage().await?;
        node.parts.runtime.untag(&name).await?;
        let after = node.usage().await?;
        tracing::info!(image = %image.id, name, "removed a name on request");
        let freed = before.zip(after).map(|(before, after)| before.total.saturating_sub(after.total).0);
        node.removed_on_request(ActCode::UntaggedOnRequest, &image, std::slice::from_ref(&name), "command", freed);
        Ok(Removed { id: image.id.to_string(), names: vec![name], freed, ..Removed::default() })
    }
}

#[async_trait]
impl Command for MountRequest {
    const NAME: &'static str = "mount";
    type Answer = Mounted;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Mounted, Failure> {
        let engine = node.engine("mounting")?;
        let image = node.find(&self.image).await?;
        let options = MountOptions { writable: self.writable, suid: self.suid, dev: self.dev };
        let mounted = engine.mount(&ImageSpec::new(image.id.as_str()), &self.directory, options).await?;
        node.parts.inventory.touch(&ImageKey::new(image.id, String::new()), SystemTime::now());
        Ok(Mounted { id: mounted.image, directory: mounted.target, writable: mounted.writable, remains: true })
    }
}

#[async_trait]
impl Command for UnmountRequest {
    const NAME: &'static str = "unmount";
    type Answer = Mounted;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Mounted, Failure> {
        let engine = node.engine("mounting")?;
        let UnmountedImage { mounted, remains } = engine.unmount(&self.directory, self.force).await?;
        Ok(Mounted { id: mounted.image, directory: mounted.target, writable: mounted.writable, remains })
    }
}

#[async_trait]
impl Command for StatusRequest {
    const NAME: &'static str = "status";
    type Answer = Status;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Status, Failure> {
        let mut problems = Vec::new();
        let seen = async {
            let snapshot = node.refresh().await;
            (snapshot, node.parts.inventory.image_list().await)
        };
        let disks = async {
            let mut problems = Vec::new();
            (pressure(node, &mut problems).await, problems)
        };
        let imports = async {
            match &node.parts.imports {
                Some(images) => Some(ImportStatus::of(images).await),
                None => None,
            }
        };
        let (seen, disks, runtime_import) = tokio::join!(
            tokio::time::timeout(STATUS_WAIT_MAX, seen),
            tokio::time::timeout(STATUS_WAIT_MAX, disks),
            imports
        );
        let silence = || format!("no answer within {} s from {}", STATUS_WAIT_MAX.as_secs(), node.parts.backend);
        let (snapshot, listed) = match seen {
            Ok((Ok(snapshot), listed)) => (Some(snapshot), listed),
            Ok((Err(failure), listed)) => {
                problems.push(failure.to_string());
                (None, listed)
            }
            Err(_) => {
                problems.push(silence());
                (None, Arc::default())
            }
        };
        let (pressure, of_disks) = disks.unwrap_or_else(|_| (Pressure::default(), vec![silence()]));
        problems.extend(of_disks);
        let images = pressure.stats.as_ref().map(|stats| &stats.images);
        let full = images.and_then(|stats| Fullness::of(stats.capacity_bytes, stats.available_bytes).ok());
        let settings = node.settings();
        let WaitingRows { pulls, held_back, registries } = WaitingRows::of(node.parts.manager.status());
        let entries = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.entries);
        problems.dedup();
        Ok(Status {
            runtime_import,
            version: env!("CARGO_PKG_VERSION").into(),
            backend: node.parts.backend.clone(),
            unpacking: node.parts.engine.as_ref().map(|engine| engine.confinement().to_string()),
            process: if node.parts.is_daemon { "daemon" } else { "command" }.into(),
            pid: std::process::id(),
            started_at: moment(node.started_at),
            images: entries.len() as u64,
            images_unknown: snapshot.is_none(),
            in_use: entries.iter().filter(|entry| !entry.in_use_by.is_empty()).count() as u64,
            used_percent: full.map(|full| full.used_percent()),
            disk_layout: pressure.layout.map(|layout| layout.name().into()),
            image_fs: pressure.stats.as_ref().map(|stats| (&stats.images).into()),
            container_fs: pressure.stats.as_ref().map(|stats| (&stats.containers).into()),
            eviction: pressure.thresholds,
            node_images: node_images(&listed, settings.node.status_images_max),
            gc_high_percent: settings.gc.high.get(),
            gc_low_percent: settings.gc.low.get(),
            gc_mode: settings.collection.mode.name().into(),
            last_collection: node.collections.last(),
            shadow: (settings.collection.mode == CollectionMode::Shadow).then(|| node.collections.shadow()),
            decisions_lost: node.parts.decisions.lost().0,
            pulls,
            held_back,
            registries,
            pod_starts: PodStartRow::all(&node.parts.pod_starts),
            problems,
        })
    }
}
