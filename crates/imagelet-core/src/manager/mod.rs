//! Ensures that an image is present and that its client may use it (`docs/spec/pull.md §2`).

mod backoff;
mod decide;
mod ensure;
mod error;
mod meters;
mod pod;
mod puller;
mod request;
mod startup_latency;
mod status;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use tokio::time::Instant;

use backoff::Backoff;
pub use ensure::StaleUse;
use ensure::{Ensuring, PullSecretCache};
pub use error::EnsureError;
use meters::{Meters, QueueMeters};
pub use pod::{NoWatch, PodImage, PodOutcome, PodRequest, PodRole, PodWatch, VolumeImage};
use puller::Puller;
pub use puller::{
    circuit_breaker::{CircuitScope, OpenCircuit},
    throttle::PullRate,
};
pub use request::{
    Caller, Compatibility, EnsureRequest, Ensured, Origin, PodIdentity, PullPolicy, PullPolicyError, PullSettings,
};
pub use startup_latency::{ImageEnd, PodImages, PodStarts, PullRecorder};
pub use status::{HeldBack, ManagerStatus, PullState, PullStatus};

use crate::{
    audit_log::AuditLog,
    credentials::{CredentialProvider, Keyring, NodeKeyring},
    events::EventSink,
    image::{ImageKey, Reference},
    inventory::{HandedOut, Inventory},
    metrics::Metrics,
    records::PullRecords,
    runtime::{Progress, RuntimeManager},
};

/// Called for each image returned as present, so that an inventory records its use.
pub type Touched = Arc<dyn Fn(&HandedOut) + Send + Sync>;

/// The parts of a manager.
pub struct ManagerParts {
    /// The image store and the runtime.
    pub runtime: RuntimeManager,
    /// The settings of pulls.
    pub settings: PullSettings,
    /// The node's own credentials.
    pub keyring: Arc<NodeKeyring>,
    /// Further credentials, after the node's.
    pub providers: Arc<dyn CredentialProvider>,
    /// The pull records.
    pub records: Arc<PullRecords>,
    /// The sink of events.
    pub events: Arc<dyn EventSink>,
    /// The metrics of pulls.
    pub metrics: Arc<Metrics>,
    /// Called for each image returned as present.
    pub touched: Option<Touched>,
    /// Receives the start of each pull and the result of each image, by pod.
    pub recorder: Option<Arc<dyn PullRecorder>>,
}

impl fmt::Debug for ManagerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerParts")
            .field("runtime", &self.runtime)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Ensures that images are present. One per node, for any number of parallel callers.
pub struct ImageManager {
    runtime: RuntimeManager,
    puller: Arc<Puller>,
    keyring: Arc<NodeKeyring>,
    providers: Arc<dyn CredentialProvider>,
    records: Arc<PullRecords>,
    events: Arc<dyn EventSink>,
    meters: Meters,
    touched: Option<Touched>,
    leased_in: Option<Arc<Inventory>>,
    recorder: Option<Arc<dyn PullRecorder>>,
    compatibility: Compatibility,
    secrets: PullSecretCache,
    /// `None`: no image is used under `Always` during an outage.
    stale: Option<StaleUse>,
    decisions: Arc<AuditLog>,
    backoff: Mutex<Backoff<BackoffKey>>,
}

/// The key of a back-off: one pod's spelling of an image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BackoffKey {
    pod_uid: Arc<str>,
    image: String,
    canonical: Reference,
    /// The credentials' hashes, so that a changed secret permits an attempt at once. Empty in the compatible mode.
    credentials: Vec<String>,
}

impl BackoffKey {
    /// Whether both share a result: the same image in any spelling, and the same credentials.
    fn is_alike(&self, other: &Self) -> bool {
        self.credentials == other.credentials && self.canonical == other.canonical
    }
}

impl ImageManager {
    /// Builds a manager.
    pub fn new(parts: ManagerParts) -> Self {
        let ManagerParts { runtime, settings, keyring, providers, records, events, metrics, touched, recorder } = parts;
        records.export_to(Arc::clone(&metrics));
        Self {
            puller: Arc::new(Puller::new(
                runtime.clone(),
                &settings,
                QueueMeters::new(Arc::clone(&metrics)),
                Instant::now(),
            )),
            backoff: Mutex::new(Backoff::new(settings.backoff_first, settings.backoff_max)),
            meters: Meters::new(metrics),
            keyring,
            providers,
            compatibility: settings.compatibility,
            secrets: PullSecretCache::default(),
            runtime,
            records,
            events,
            touched,
            leased_in: None,
            recorder,
            stale: None,
            decisions: Arc::new(AuditLog::off()),
        }
    }

    /// Records pulls in the decision log.
    #[must_use]
    pub fn with_decisions(self, decisions: Arc<AuditLog>) -> Self {
        Self { decisions, ..self }
    }

    /// Permits the use of images under `Always` during an outage.
    #[must_use]
    pub fn with_stale_use(self, stale: Option<StaleUse>) -> Self {
        if stale.is_some() {
            self.meters.declare_stale();
        }
        Self { stale, ..self }
    }

    /// Leases the images of pods in this inventory until their containers are created.
    #[must_use]
    pub fn leasing_in(self, inventory: Arc<Inventory>) -> Self {
        Self { leased_in: Some(inventory), ..self }
    }

    /// Ensures that an image is present and that the client may use it; pulls it where the policy requires that.
    ///
    /// An image returned as present stays present: a concurrent removal restarts the steps. Dropping the future frees
    /// the queue slot and cancels the pull, unless other clients wait for it. Its intent stays until a check for the
    /// image.
    pub async fn ensure(&self, request: &EnsureRequest, progress: Progress) -> Result<Ensured, EnsureError> {
        let Some(inventory) = self.leased_in.as_ref().filter(|_| request.is_for_a_container()) else {
            return self.ensure_once(request, progress).await;
        };
        let key = |ensured: &Ensured| Some(ImageKey::new(ensured.id.clone(), ensured.handler.clone()));
        let ask = || self.ensure_once(request, Arc::clone(&progress));
        inventory.leased(&request.pod.uid, SystemTime::now(), ask, key).await
    }

    async fn ensure_once(&self, request: &EnsureRequest, progress: Progress) -> Result<Ensured, EnsureError> {
        let ensured = Ensuring::new(self, request).run(progress).await;
        ensured.inspect_err(|error| self.meters.failed(&error.fault()))
    }

    /// The running pulls and the keys in back-off.
    pub fn status(&self) -> ManagerStatus {
        let now = Instant::now();
        let mut held_back: Vec<HeldBack> = self
            .backoff()
            .all_held(now)
            .map(|(key, held)| HeldBack {
                image: key.image.clone(),
                pod_uid: key.pod_uid.to_string(),
                remaining: (held.since + held.window).saturating_duration_since(now),
                failure: held.failure.clone(),
            })
            .collect();
        held_back.sort_by(|a, b| (a.remaining, &a.image, &a.pod_uid).cmp(&(b.remaining, &b.image, &b.pod_uid)));
        ManagerStatus { pulls: self.puller.status(), held_back, open_circuits: self.puller.open_circuits(now) }
    }

    /// The node's own credentials, from its files.
    pub async fn node_keyring(&self) -> Arc<Keyring> {
        self.keyring.keyring().await
    }

    fn backoff(&self) -> MutexGuard<'_, Backoff<BackoffKey>> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ImageManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageManager")
            .field("runtime", &self.runtime)
            .field("puller", &self.puller)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
