//! The configuration: its keys, all their defaults, and where each value came from.
//!
//! Layers from weak to strong: defaults, a kubelet's file, our own file, flags of the command line. What comes out is
//! a checked [`Settings`]; the rest of the program reads no file and no environment.

mod callers;
mod document;
mod duration;
mod environment;
pub(crate) mod gc;
mod kubelet;
mod layers;
mod pulls;
#[cfg(test)]
mod reference;
mod store;
mod validate;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use imagelet_core::{
    image::{Percent, PinnedNames},
    inventory::PinPattern,
    manager::Compatibility,
    runtime::ImportMode,
};
use serde::{Deserialize, Serialize};

use callers::CallersFile;
pub(crate) use callers::CriCallers;
pub(crate) use duration::{DurationError, GoDuration};
pub(crate) use environment::{Environment, Surroundings};
use gc::{Ages, Collection, GcFile};
pub(crate) use gc::{CollectionMode, CollectionOrder};
pub(crate) use kubelet::NodeSettings;
use kubelet::{FeatureGatesFile, TracingFile};
pub(crate) use layers::{Layers, Source, Sourced};
pub(crate) use pulls::PullPatience;
use pulls::PullsFile;
use store::StoreFile;
pub(crate) use store::StoreSettings;

/// What `apiVersion` must say.
pub(crate) const API_VERSION: &str = "imagelet.dev/v1alpha1";
/// What `kind` must say.
pub(crate) const KIND: &str = "ImageletConfiguration";
/// What `kind` says in a kubelet's file.
const KUBELET_KIND: &str = "KubeletConfiguration";
/// The kubelet's.
const AGE_MIN_DEFAULT: GoDuration = GoDuration::minutes(2);
/// The kubelet's, which it does not let anybody change.
const DETECTION_DEFAULT: GoDuration = GoDuration::minutes(5);
/// A configuration file longer than this is none.
const FILE_LENGTH_MAX: u64 = 1 << 20;

/// Why a configuration cannot be used. Prints one complaint a line, each with its place where that is known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("could not read the configuration `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// It is no YAML, or has a key or a type that is not ours.
    #[error("{place}: {message}")]
    Parse { place: String, message: String },
    /// Values break rules; all of them, in the order the kubelet finds them.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

/// The file as it is written: each key may be absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Version of this format: `imagelet.dev/v1alpha1`.
    #[serde(rename = "apiVersion", skip_serializing_if = "Option::is_none")]
    api_version: Option<String>,
    /// Kind of this document: `ImageletConfiguration`.
    #[serde(rename = "kind", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,

    // The kubelet's keys, to the letter; `--kubelet-config` reads these and no others.
    /// Start collecting when the image filesystem is this full, in percent. 100 never collects for room.
    #[serde(rename = "imageGCHighThresholdPercent", skip_serializing_if = "Option::is_none")]
    gc_high_percent: Option<i32>,
    /// Collect until it is no fuller than this, in percent. Must be lower than the high threshold.
    #[serde(rename = "imageGCLowThresholdPercent", skip_serializing_if = "Option::is_none")]
    gc_low_percent: Option<i32>,
    /// An image is not collected before it was known for this long. An explicit 0 becomes the default.
    #[serde(rename = "imageMinimumGCAge", skip_serializing_if = "Option::is_none")]
    gc_age_min: Option<GoDuration>,
    /// An image unused for longer than this is collected even when there is room. 0 is off.
    #[serde(rename = "imageMaximumGCAge", skip_serializing_if = "Option::is_none")]
    gc_age_max: Option<GoDuration>,
    /// Pull one image at a time. Defaults to false when `maxParallelImagePulls` is 2 or more.
    #[serde(rename = "serializeImagePulls", skip_serializing_if = "Option::is_none")]
    pulls_serial: Option<bool>,
    /// At most this many images are pulled at once; absent is no bound. Larger than 1 needs `serializeImagePulls: false`.
    #[serde(rename = "maxParallelImagePulls", skip_serializing_if = "Option::is_none")]
    pulls_parallel_max: Option<i32>,
    /// At most this many pulls start per second on average; 0 is no bound.
    #[serde(rename = "registryPullQPS", skip_serializing_if = "Option::is_none")]
    pulls_per_second: Option<i32>,
    /// This many pulls may start at once before the rate holds them. An explicit 0 becomes the default.
    #[serde(rename = "registryBurst", skip_serializing_if = "Option::is_none")]
    pulls_burst: Option<i32>,
    /// How long a runtime may take for any call but a pull. An explicit 0 becomes the default.
    #[serde(rename = "runtimeRequestTimeout", skip_serializing_if = "Option::is_none")]
    runtime_request_timeout: Option<GoDuration>,
    /// When a present image needs a pull to prove that its asker may use it: `NeverVerify`,
    /// `NeverVerifyPreloadedImages`, `NeverVerifyAllowlistedImages` or `AlwaysVerify`.
    #[serde(rename = "imagePullCredentialsVerificationPolicy", skip_serializing_if = "Option::is_none")]
    verification_policy: Option<String>,
    /// Images that `NeverVerifyAllowlistedImages` trusts: names without tag and digest, or prefixes that end in `/*`.
    #[serde(rename = "preloadedImagesVerificationAllowlist", skip_serializing_if = "Option::is_none")]
    verification_allowlist: Option<Vec<String>>,
    /// The kubelet's feature gates that are about images.
    #[serde(rename = "featureGates", skip_serializing_if = "Option::is_none")]
    feature_gates: Option<FeatureGatesFile>,

    /// How many pods may run on the node. The pull records kept in memory are sized by it; 0 is the default.
    #[serde(rename = "maxPods", skip_serializing_if = "Option::is_none")]
    pods_max: Option<i32>,
    /// How many images the Node's status lists, the largest first; -1 is all. `imagelet status -o json` shows that list.
    #[serde(rename = "nodeStatusMaxImages", skip_serializing_if = "Option::is_none")]
    status_images_max: Option<i32>,
    /// How often the kubelet computes the Node's status. An explicit 0 becomes the default.
    #[serde(rename = "nodeStatusUpdateFrequency", skip_serializing_if = "Option::is_none")]
    status_update: Option<GoDuration>,
    /// How often the kubelet sends it although nothing changed. Defaults to `nodeStatusUpdateFrequency` where that is given.
    #[serde(rename = "nodeStatusReportFrequency", skip_serializing_if = "Option::is_none")]
    status_report: Option<GoDuration>,
    /// Where the kubelet asks for containers. Taken from a kubelet's file, checked and shown. In a file of ours it has to be `imageService.cri.endpoint` or `store.runtimeEndpoint` as well: it alone makes imagelet ask nothing.
    #[serde(rename = "containerRuntimeEndpoint", skip_serializing_if = "Option::is_none")]
    runtime_endpoint: Option<String>,
    /// Where the kubelet asks for images; empty is the endpoint above. Shown, and never asked by imagelet: it may be imagelet.
    #[serde(rename = "imageServiceEndpoint", skip_serializing_if = "Option::is_none")]
    image_endpoint: Option<String>,
    /// When the kubelet evicts at once, by signal, such as `imagefs.available: 15%`. Checked, and compared with the node in `imagelet status -o json`; imagelet evicts nothing.
    #[serde(rename = "evictionHard", skip_serializing_if = "Option::is_none")]
    eviction_hard: Option<BTreeMap<String, String>>,
    /// When it evicts after a time.
    #[serde(rename = "evictionSoft", skip_serializing_if = "Option::is_none")]
    eviction_soft: Option<BTreeMap<String, String>>,
    /// After which time, for each of `evictionSoft`.
    #[serde(rename = "evictionSoftGracePeriod", skip_serializing_if = "Option::is_none")]
    eviction_soft_grace: Option<BTreeMap<String, String>>,
    /// How much must be free beyond a threshold until it is over.
    #[serde(rename = "evictionMinimumReclaim", skip_serializing_if = "Option::is_none")]
    eviction_reclaim_min: Option<BTreeMap<String, String>>,
    /// How long the kubelet goes on to call the node short. An explicit 0 becomes the default.
    #[serde(rename = "evictionPressureTransitionPeriod", skip_serializing_if = "Option::is_none")]
    pressure_transition: Option<GoDuration>,
    /// Whether `evictionHard` leaves the defaults of the signals that it does not name in force.
    #[serde(rename = "mergeDefaultEvictionSettings", skip_serializing_if = "Option::is_none")]
    merge_eviction_defaults: Option<bool>,
    /// Whether the kubelet counts what pods write. Shown.
    #[serde(rename = "localStorageCapacityIsolation", skip_serializing_if = "Option::is_none")]
    storage_isolation: Option<bool>,
    /// How many events the kubelet records a second. Shown; imagelet keeps its last thousand.
    #[serde(rename = "eventRecordQPS", skip_serializing_if = "Option::is_none")]
    events_per_second: Option<i32>,
    /// And how many at once. An explicit 0 becomes the default. Shown.
    #[serde(rename = "eventBurst", skip_serializing_if = "Option::is_none")]
    events_burst: Option<i32>,
    /// Where the kubelet sends its traces.
    #[serde(rename = "tracing", skip_serializing_if = "Option::is_none")]
    tracing: Option<TracingFile>,

    // The kubelet has these three as flags; the first is one of older kubelets.
    /// The image that sandboxes ("pause" containers) are started from. Read as `sandboxImage` is, from a kubelet's file, too.
    #[serde(rename = "podInfraContainerImage", skip_serializing_if = "Option::is_none")]
    pod_infra_image: Option<String>,
    /// What credential providers there are: a file of kind `CredentialProviderConfig`, or a folder of such files; read again on SIGHUP. Empty: none. See [credentials](credentials.md).
    #[serde(rename = "imageCredentialProviderConfigPath", skip_serializing_if = "Option::is_none")]
    providers_config: Option<PathBuf>,
    /// The folder of the credential providers' executables; goes with the key above.
    #[serde(rename = "imageCredentialProviderBinDir", skip_serializing_if = "Option::is_none")]
    providers_binaries: Option<PathBuf>,

    // Our own keys.
    /// A credential provider that takes longer is ended, with all its children.
    #[serde(rename = "credentialProviderTimeout", skip_serializing_if = "Option::is_none")]
    provider_timeout: Option<GoDuration>,
    /// Where the daemon listens for CRI and for `imagelet` commands: a path of at most 107 bytes.
    #[serde(rename = "socket", skip_serializing_if = "Option::is_none")]
    socket: Option<PathBuf>,
    /// What the daemon tells over HTTP.
    #[serde(rename = "http", skip_serializing_if = "Option::is_none")]
    http: Option<HttpFile>,
    /// What whoever calls that socket over CRI may do.
    #[serde(rename = "cri", skip_serializing_if = "Option::is_none")]
    callers: Option<CallersFile>,
    /// The embedded store, used when no CRI endpoint is given. What it says of pulls holds for imports into a runtime as well.
    #[serde(rename = "store", skip_serializing_if = "Option::is_none")]
    store: Option<StoreFile>,
    /// Another store of images, used in place of the embedded one.
    #[serde(rename = "imageService", skip_serializing_if = "Option::is_none")]
    image_service: Option<ImageServiceFile>,
    /// Whether pulls of images of a runtime are fetched and unpacked by imagelet and imported into the runtime's own stores: `auto`, wherever that is possible, which is beside an unmodified containerd with the snapshotter `overlayfs`, and else the runtime pulls; `never`; `require`, what cannot be imported fails. See [containerd](containerd.md).
    #[serde(rename = "runtimeImport", skip_serializing_if = "Option::is_none")]
    runtime_import: Option<String>,
    /// The image that the runtime starts sandboxes ("pause" containers) from, such as `registry.k8s.io/pause:3.10`: no collection takes it. Empty: what the runtime itself reports, which containerd and CRI-O do. Not with `compatibility: kubelet`. See [keep rules](keep.md).
    #[serde(rename = "sandboxImage", skip_serializing_if = "Option::is_none")]
    sandbox_image: Option<String>,
    /// How registries are reached.
    #[serde(rename = "registry", skip_serializing_if = "Option::is_none")]
    registry: Option<RegistryFile>,
    /// Whose credentials the node itself has.
    #[serde(rename = "credentials", skip_serializing_if = "Option::is_none")]
    credentials: Option<CredentialsFile>,
    /// How pulls are carried on.
    #[serde(rename = "pulls", skip_serializing_if = "Option::is_none")]
    pulls: Option<PullsFile>,
    /// When images are looked for.
    #[serde(rename = "detection", skip_serializing_if = "Option::is_none")]
    detection: Option<DetectionFile>,
    /// Whose way is gone where the kubelet's has a weakness: `kubelet` is its way to the letter, `imagelet` the better one. The differences are told in [compatibility](compatibility.md).
    #[serde(rename = "compatibility", skip_serializing_if = "Option::is_none")]
    compatibility: Option<String>,
    /// A pull record that did not change for longer than this lets nobody in: whoever wants the image proves its right to the registry again, each for itself. 0 is never, as with the kubelet.
    #[serde(rename = "credentialRecordMaxAge", skip_serializing_if = "Option::is_none")]
    record_age_max: Option<GoDuration>,
    /// What the policy `Always` does while a registry is away.
    #[serde(rename = "staleOnOutage", skip_serializing_if = "Option::is_none")]
    stale: Option<StaleFile>,
    /// When images are collected, and which.
    #[serde(rename = "gc", skip_serializing_if = "Option::is_none")]
    gc: Option<GcFile>,
}

impl File {
    /// Whether what is pulled is put on record.
    fn is_recorded(&self) -> bool {
        self.feature_gates.as_ref().and_then(|gates| gates.ensure_secret_pulled_images).unwrap_or(true)
    }
}

/// `http` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HttpFile {
    /// `HOST:PORT` for `/metrics`, `/healthz` and `/readyz`; absent or empty is off. There is no authentication: keep it on loopback.
    #[serde(rename = "address", skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

/// `imageService` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ImageServiceFile {
    /// A runtime that speaks CRI.
    #[serde(rename = "cri", skip_serializing_if = "Option::is_none")]
    cri: Option<CriFile>,
    /// Images that no collection takes while they have one of these names, whichever store they are in: whole names, `BEGINNING*` and `*WORD*`, as in CRI-O; or a map of whole names, as in containerd. `imagelet pin` pins more.
    #[serde(rename = "pinnedImages", skip_serializing_if = "Option::is_none")]
    pinned_images: Option<PinnedFile>,
}

/// `imageService.pinnedImages` in the file, in either notation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum PinnedFile {
    Patterns(Vec<String>),
    Names(BTreeMap<String, String>),
}

/// `imageService.cri` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CriFile {
    /// The socket of a CRI runtime, such as `unix:///run/containerd/containerd.sock`; absent or empty uses the embedded store.
    #[serde(rename = "endpoint", skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// A pull of the runtime is given up when it has shown no sign of life for this long, at least 1s: it answers nothing; or it is a containerd whose folders this process can read, and nothing is written there. A pull that is only slow goes on, and so does one of a runtime that answers and shows no more. 0 waits without end.
    #[serde(rename = "pullStallTimeout", skip_serializing_if = "Option::is_none")]
    pull_stall: Option<GoDuration>,
}

/// `registry` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RegistryFile {
    /// Directories with `HOST/hosts.toml` below, as containerd reads them; several are separated by `:`.
    #[serde(rename = "configPath", skip_serializing_if = "Option::is_none")]
    config_path: Option<String>,
}

/// `credentials` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CredentialsFile {
    /// A docker configuration (`config.json`) with the node's own registry credentials; read again every five minutes and on SIGHUP. Absent: `$DOCKER_CONFIG/config.json` where that is set; else a command reads `~/.docker/config.json`, and the daemon looks where the kubelet looks, see [credentials](credentials.md).
    #[serde(rename = "dockerConfig", skip_serializing_if = "Option::is_none")]
    docker_config: Option<PathBuf>,
}

/// `detection` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DetectionFile {
    /// How often the node looks which images are there and in use. With `imageMaximumGCAge` this or `gc.period` has to be shorter than 1h: for a use that nobody would have seen, no image is called old.
    #[serde(rename = "period", skip_serializing_if = "Option::is_none")]
    period: Option<GoDuration>,
}

/// `staleOnOutage` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StaleFile {
    /// Under pull policy `Always`, while a registry cannot be reached, is busy or broken: use the image that it last named to this node for that tag, if the asker may use it by the pull records.
    #[serde(rename = "enabled", skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
    /// For this long after the registry last named it, at least 1m.
    #[serde(rename = "maxAge", skip_serializing_if = "Option::is_none")]
    age_max: Option<GoDuration>,
}

impl File {
    /// What holds where nothing else is said. Some defaults depend on other keys; `given` has those.
    fn defaults(given: &File, environment: &Environment) -> Self {
        let parallel = given.pulls_parallel_max.unwrap_or(0) >= 2;
        let like_kubelet = given.compatibility.as_deref() == Some(Compatibility::Kubelet.name());
        Self {
            api_version: Some(API_VERSION.into()),
            kind: Some(KIND.into()),
            gc_high_percent: Some(85),
            gc_low_percent: Some(80),
            gc_age_min: Some(AGE_MIN_DEFAULT),
            gc_age_max: Some(GoDuration(0)),
            pulls_serial: Some(!parallel),
            pulls_parallel_max: None,
            pulls_per_second: Some(5),
            pulls_burst: Some(10),
            runtime_request_timeout: Some(GoDuration::minutes(2)),
            verification_policy: Some(if given.is_recorded() { "NeverVerifyPreloadedImages" } else { "" }.into()),
            verification_allowlist: Some(Vec::new()),
            feature_gates: Some(FeatureGatesFile {
                ensure_secret_pulled_images: Some(true),
                image_maximum_gc_age: Some(true),
            }),
            pods_max: Some(110),
            status_images_max: Some(50),
            status_update: Some(GoDuration::seconds(10)),
            status_report: Some(given.status_update.unwrap_or(GoDuration::minutes(5))),
            runtime_endpoint: Some("unix:///run/containerd/containerd.sock".into()),
            image_endpoint: Some(String::new()),
            eviction_hard: Some(imagelet_core::eviction::defaults()),
            eviction_soft: Some(BTreeMap::new()),
            eviction_soft_grace: Some(BTreeMap::new()),
            eviction_reclaim_min: Some(BTreeMap::new()),
            pressure_transition: Some(GoDuration::minutes(5)),
            merge_eviction_defaults: Some(false),
            storage_isolation: Some(true),
            events_per_second: Some(50),
            events_burst: Some(100),
            tracing: None,
            pod_infra_image: Some(String::new()),
            providers_config: Some(PathBuf::new()),
            providers_binaries: Some(PathBuf::new()),
            provider_timeout: Some(GoDuration::minutes(1)),
            socket: Some(environment.socket_default()),
            callers: Some(CallersFile::defaults()),
            http: Some(HttpFile { address: Some(String::new()) }),
            store: Some(StoreFile::defaults(environment.store_default())),
            image_service: Some(ImageServiceFile {
                cri: Some(CriFile { endpoint: Some(String::new()), pull_stall: Some(GoDuration::minutes(5)) }),
                pinned_images: Some(PinnedFile::Patterns(Vec::new())),
            }),
            runtime_import: Some(ImportMode::default().name().into()),
            sandbox_image: Some(String::new()),
            registry: Some(RegistryFile { config_path: Some("/etc/containerd/certs.d".into()) }),
            credentials: Some(CredentialsFile::default()),
            compatibility: Some(Compatibility::default().name().into()),
            record_age_max: Some(GoDuration(0)),
            pulls: Some(PullsFile::defaults()),
            detection: Some(DetectionFile { period: Some(DETECTION_DEFAULT) }),
            stale: Some(StaleFile { enabled: Some(false), age_max: Some(GoDuration::minutes(24 * 60)) }),
            gc: Some(GcFile::defaults(given.gc.as_ref(), like_kubelet, given.ages())),
        }
    }

    /// The times that leases go by, with their defaults.
    fn ages(&self) -> Ages {
        let detection = self.detection.as_ref().and_then(|detection| detection.period);
        Ages { age_min: self.gc_age_min.unwrap_or(AGE_MIN_DEFAULT), detection: detection.unwrap_or(DETECTION_DEFAULT) }
    }

    /// The kubelet's defaulting turns an explicit 0, or an empty text, of these keys into their default.
    fn drop_zeros(&mut self) {
        self.gc_age_min = self.gc_age_min.filter(|age| age.0 != 0);
        self.pods_max = self.pods_max.filter(|pods| *pods != 0);
        self.pulls_burst = self.pulls_burst.filter(|burst| *burst != 0);
        self.events_burst = self.events_burst.filter(|burst| *burst != 0);
        for span in [&mut self.status_update, &mut self.status_report, &mut self.pressure_transition] {
            *span = span.filter(|span| span.0 != 0);
        }
        self.runtime_request_timeout = self.runtime_request_timeout.filter(|span| span.0 != 0);
        self.verification_policy = self.verification_policy.take().filter(|policy| !policy.is_empty());
        self.runtime_endpoint = self.runtime_endpoint.take().filter(|endpoint| !endpoint.is_empty());
    }
}

/// The configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// When to collect: the kubelet's thresholds and ages.
    pub(crate) gc: GcSettings,
    /// What else collection goes by.
    pub(crate) collection: Collection,
    /// What the kubelet does with images.
    pub(crate) node: NodeSettings,
    /// How to pull.
    pub(crate) pulls: PullLimits,
    /// Whose way is gone where the kubelet's has a weakness.
    pub(crate) compatibility: Compatibility,
    /// When to ask for proof.
    pub(crate) verification: Verification,
    /// For how long a proof holds; `None`: for good.
    pub(crate) record_age_max: Option<Duration>,
    /// How long a runtime may take.
    pub(crate) runtime_request_timeout: Duration,
    /// Where the daemon listens.
    pub(crate) socket: PathBuf,
    /// What callers over CRI may do.
    pub(crate) callers: CriCallers,
    /// Where it speaks HTTP, if at all.
    pub(crate) http: Option<String>,
    /// What it keeps images in.
    pub(crate) backend: Backend,
    /// Names whose images are pinned.
    pub(crate) pinned: PinnedNames,
    /// Names of the images that sandboxes are started from; `None`: as the kubelet, which does not ask.
    pub(crate) sandbox_images: Option<Vec<PinPattern>>,
    /// Directories of `HOST/hosts.toml`.
    pub(crate) hosts_dirs: Vec<PathBuf>,
    /// The node's own docker configuration; `None`: wherever it is.
    pub(crate) docker_config: Option<PathBuf>,
    /// Programs that know credentials, where there are any.
    pub(crate) providers: Option<ProviderSettings>,
    /// What the process was started in, as far as credentials are concerned.
    pub(crate) surroundings: Surroundings,
    /// How often images are looked for.
    pub(crate) detection_period: Duration,
    /// For how long an image is used under `Always` while its registry is away; `None`: not at all.
    pub(crate) stale_max: Option<Duration>,
}

/// Where programs that know credentials are, and how long they may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderSettings {
    /// The file or folder that says which there are.
    pub(crate) config: PathBuf,
    /// The folder of the programs.
    pub(crate) binaries: PathBuf,
    /// After this time one is ended.
    pub(crate) timeout: Duration,
}

/// When images are collected, and how far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GcSettings {
    /// Start when the filesystem is this full.
    pub(crate) high: Percent,
    /// Stop when it is no fuller than this.
    pub(crate) low: Percent,
    /// No image younger than this is collected.
    pub(crate) age_min: Duration,
    /// Images unused for longer are collected. `None`: age alone removes nothing.
    pub(crate) age_max: Option<Duration>,
}

/// How many pulls, how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PullLimits {
    /// One at a time.
    pub(crate) serial: bool,
    /// So many at once; `None`: no bound.
    pub(crate) parallel_max: Option<usize>,
    /// So many starts a second; `None`: no bound.
    pub(crate) per_second: Option<u32>,
    /// So many starts at once before the rate holds them.
    pub(crate) burst: u32,
    /// How long they may take for nothing.
    pub(crate) patience: PullPatience,
}

/// When a present image needs proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// Nothing is put on record: the feature gate is off.
    Off,
    /// `NeverVerify`
    Never,
    /// `NeverVerifyPreloadedImages`
    NeverPreloaded,
    /// `NeverVerifyAllowlistedImages`, with the patterns.
    NeverAllowlisted(Vec<String>),
    /// `AlwaysVerify`
    Always,
}

/// A runtime that images are kept in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeSettings {
    /// Its CRI endpoint.
    pub(crate) endpoint: String,
    /// For so long a pull may show no sign of life; `None`: without end.
    pub(crate) stall_max: Option<Duration>,
    /// Whether pulls are imported.
    pub(crate) import: ImportMode,
    /// How imports work; state of our own is in the directory.
    pub(crate) store: StoreSettings,
}

/// What images are kept in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Our own store.
    Embedded(StoreSettings),
    /// A runtime.
    Cri(RuntimeSettings),
}
