//! Ensures that an image is present and that its client may use it (`docs/spec/pull.md §2`).

mod ended_pods;
mod ensure;
mod error;
mod meters;
mod pod;
mod pull_backoff;
mod puller;
mod request;
mod startup_latency;
mod status;

use std::{
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use tokio::time::Instant;

use ended_pods::EndedPods;
pub use ended_pods::{PodChanges, PodEnd};
use ensure::Ensuring;
pub use ensure::StaleUse;
pub use error::EnsureError;
pub use pod::{PodImage, PodOutcome, PodRequest, PodRole};
use pull_backoff::Backoff;
use puller::Puller;
pub use puller::{
    circuit_breaker::{CircuitScope, OpenCircuit},
    throttle::PullRate,
};
pub use request::{Caller, EnsureRequest, Ensured, Origin, PullPolicy, PullSettings};
pub use startup_latency::{ImageEnd, PodStarts, PullRecorder};
pub use status::{HeldBack, ManagerStatus, PullClient, PullState, PullStatus, PullTurn, QueuePlace};

use crate::{
    audit_log::AuditLog,
    credentials::{CredentialProvider, Keyring, NoProviders, NodeKeyring},
    events::{EventSink, LogEvents},
    image::{ImageKey, Reference},
    inventory::Inventory,
    lock::locked,
    metrics::{Family, Metrics},
    node_policy::NodePolicy,
    ports::{PullEstimate, PullWatcher, RuntimeManager},
    records::PullRecords,
};

pub fn metric_families() -> impl Iterator<Item = &'static Family> {
    meters::FAMILIES.iter().copied().chain([&startup_latency::POD_IMAGES])
}

/// The parts of a manager. [`ManagerParts::new`] has defaults for all parts except the first two.
#[derive(Debug)]
pub struct ManagerParts {
    pub runtime: RuntimeManager,
    pub records: Arc<PullRecords>,
    pub settings: PullSettings,
    pub keyring: Arc<NodeKeyring>,
    /// Their credentials are tried after the node's.
    pub providers: Arc<dyn CredentialProvider>,
    pub reports: ManagerReports,
    /// Records the use of images, and leases the images of pods until their containers are created.
    pub inventory: Option<Arc<Inventory>>,
    /// Permits the use of present images under `Always` during an outage. `None`: no such use is permitted.
    pub stale: Option<StaleUse>,
}

#[derive(Clone, Debug)]
pub struct ManagerReports {
    pub events: Arc<dyn EventSink>,
    pub metrics: Arc<Metrics>,
    pub recorder: Option<Arc<dyn PullRecorder>>,
    pub decisions: Arc<AuditLog>,
}

impl Default for ManagerReports {
    fn default() -> Self {
        let (events, decisions) = (Arc::new(LogEvents::new(NonZeroUsize::MIN)), Arc::new(AuditLog::off()));
        Self { events, metrics: Arc::default(), recorder: None, decisions }
    }
}

impl ManagerParts {
    pub fn new(runtime: RuntimeManager, records: Arc<PullRecords>) -> Self {
        Self {
            runtime,
            records,
            settings: PullSettings::default(),
            keyring: Arc::new(NodeKeyring::fixed(Keyring::new())),
            providers: Arc::new(NoProviders),
            reports: ManagerReports::default(),
            inventory: None,
            stale: None,
        }
    }
}

/// Ensures that images are present. A node has one manager, for any number of parallel callers.
pub struct ImageManager {
    parts: ManagerParts,
    puller: Arc<Puller>,
    backoff: Mutex<Backoff<BackoffKey>>,
    ended_pods: EndedPods,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BackoffKey {
    pod_uid: Arc<str>,
    image: String,
    canonical: Reference,
    /// The hashes of the credentials, so that a changed secret ends the back-off. Empty if only the image counts.
    credentials: Vec<String>,
}

impl BackoffKey {
    fn is_alike(&self, other: &Self) -> bool {
        self.credentials == other.credentials && self.canonical == other.canonical
    }
}

impl ImageManager {
    pub fn new(parts: ManagerParts) -> Self {
        meters::declare(&parts.reports.metrics, parts.stale.is_some());
        parts.records.export_to(Arc::clone(&parts.reports.metrics));
        let settings = &parts.settings;
        Self {
            puller: Arc::new(Puller::new(&parts, Instant::now())),
            backoff: Mutex::new(Backoff::new(settings.backoff_first, settings.backoff_max)),
            ended_pods: EndedPods::default(),
            parts,
        }
    }

    /// Ensures that an image is present and that the client may use it. If the image is removed in the meantime, the
    /// steps run again, so a returned image is present. A drop of the future frees the queue slot and cancels the pull,
    /// unless other clients wait for the pull. For a kubelet's request, the end of its pod does the same. The
    /// intent of a cancelled pull stays until the records check the image.
    pub async fn ensure(&self, request: &EnsureRequest, watcher: PullWatcher) -> Result<Ensured, EnsureError> {
        // Only a kubelet's request ends with its pod. The look-ahead drops the requests of an ended pod itself.
        if !request.caller.is_client() {
            return self.ensure_leased(request, watcher).await;
        }
        tokio::select! {
            biased;
            end = self.ended_pods.bond(request).ended() => Err(EnsureError::pod_ended(request, end)),
            ensured = self.ensure_leased(request, watcher) => ensured,
        }
    }

    /// Ends the running and the later requests that a kubelet sends for the ended pods.
    pub fn pods_changed(&self, changes: PodChanges) {
        self.ended_pods.change(changes);
    }

    async fn ensure_leased(&self, request: &EnsureRequest, watcher: PullWatcher) -> Result<Ensured, EnsureError> {
        let Some(inventory) = self.parts.inventory.as_ref().filter(|_| request.is_for_a_container()) else {
            return self.ensure_once(request, watcher).await;
        };
        let key = |ensured: &Ensured| Some(ImageKey::new(ensured.id.clone(), ensured.handler.clone()));
        let ask = || self.ensure_once(request, Arc::clone(&watcher));
        inventory.leased(&request.pull.pod.uid, SystemTime::now(), ask, key).await
    }

    /// Estimates a pull with the first credential, from manifests only. `None`: no estimate, or the pull would fail.
    pub async fn estimate(&self, request: &EnsureRequest) -> Option<PullEstimate> {
        Ensuring::new(self, request, None).estimate().await
    }

    async fn ensure_once(&self, request: &EnsureRequest, watcher: PullWatcher) -> Result<Ensured, EnsureError> {
        let ensured = Ensuring::new(self, request, Some(&self.parts.reports.metrics)).run(watcher).await;
        ensured.inspect_err(|error| meters::failed(&self.parts.reports.metrics, &error.fault()))
    }

    pub fn status(&self) -> ManagerStatus {
        let now = Instant::now();
        let mut held_back: Vec<HeldBack> = locked(&self.backoff)
            .all_held(now)
            .map(|(key, held)| HeldBack {
                image: key.image.clone(),
                pod_uid: key.pod_uid.to_string(),
                remaining: (held.since + held.window).saturating_duration_since(now),
                failure: held.failure.clone(),
            })
            .collect();
        held_back.sort_by(|a, b| (a.remaining, &a.image, &a.pod_uid).cmp(&(b.remaining, &b.image, &b.pod_uid)));
        let open_circuits = locked(&self.puller.circuits).open(now);
        ManagerStatus { pulls: self.puller.status(), held_back, open_circuits }
    }

    /// The current version, the waiting and running pulls, and the pulls that ended after `version` (for 0, no pulls).
    pub fn pulls_since(&self, version: u64) -> (u64, Vec<PullStatus>) {
        self.puller.since(version)
    }

    fn policy(&self) -> NodePolicy {
        self.parts.settings.node_policy
    }
}

impl fmt::Debug for ImageManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageManager").field("parts", &self.parts).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
