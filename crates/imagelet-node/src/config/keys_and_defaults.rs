//! The keys of a configuration file. The comments of the keys are the text of `docs/configuration.md`.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize, Serializer};

use imagelet_core::{gc::GcOrder, text::GoDuration};
use imagelet_oci::{Admission, Durability};
use imagelet_runtime::ImportMode;

use super::{environment::Environment, settings::CollectionMode};

pub(super) const API_VERSION: &str = "imagelet.dev/v1alpha1";
pub(super) const KIND: &str = "ImageletConfiguration";
/// The default of several periods. The kubelet detects and collects images with the same period, which is a constant.
const FIVE_MINUTES: GoDuration = GoDuration::minutes(5);
/// The default of `gc.leaseFor`. The kubelet creates a container seconds after a pull, or retries within 5 minutes.
const LEASE_DEFAULT: GoDuration = GoDuration::minutes(10);
/// The default of `gc.outOfReachIdle`. An image that was used within this time is likely to be pulled again soon.
const IDLE_DEFAULT: GoDuration = GoDuration::minutes(60);
/// The default of `gc.critical`. By its defaults, the kubelet evicts pods and taints the node at 85 to 95 %.
const CRITICAL_DEFAULT: i32 = 95;
/// The longest lease of an image that no container uses.
pub(super) const LEASE_MAX: GoDuration = GoDuration::minutes(7 * 24 * 60);

/// The key that may have a map as its value. The names in the map are not keys of the file, and may contain dots.
pub(super) const MAP: &str = "imageService.pinnedImages";

/// The kubelet's keys about evictions. Any value is accepted and ignored.
pub(super) const IGNORED: [&str; 6] = [
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "mergeDefaultEvictionSettings",
];

/// The keys whose 0 or empty text means the default, as in the kubelet.
pub(super) const ZERO_IS_DEFAULT: [&str; 9] = [
    "imageMinimumGCAge",
    "maxPods",
    "registryBurst",
    "eventBurst",
    "nodeStatusUpdateFrequency",
    "nodeStatusReportFrequency",
    "runtimeRequestTimeout",
    "imagePullCredentialsVerificationPolicy",
    "containerRuntimeEndpoint",
];

/// The key whose 0 in imagelet's file means 0 and not the default, as with the kubelet's flag.
pub(super) const ZERO_IS_MEANT: &str = "imageMinimumGCAge";

/// The sections of a file. A key without `= DEFAULT` defaults to the empty value, 0 or `false`.
macro_rules! sections {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty $(= $default:expr)?,)* })*) => {$(
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[allow(unreachable_pub, reason = "some are settings as they are")]
        $(#[$meta])*
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: sections!(@ $($default)?),)* }
            }
        }
    )*};
    (@) => { Default::default() };
    (@ $default:expr) => { $default.into() };
}

sections! {
    File {
        /// Version of this format: `imagelet.dev/v1alpha1`.
        api_version: String = API_VERSION,
        /// Kind of this document: `ImageletConfiguration`.
        kind: String = KIND,
        #[serde(flatten)]
        kubelet: KubeletKeys,
        #[serde(flatten)]
        own: OwnKeys,
    }
    /// The kubelet's keys, to the letter; `--kubelet-config` reads these and no others.
    KubeletKeys {
        /// Start collecting when the image filesystem is this full, in percent. 100 never collects for room.
        #[serde(rename = "imageGCHighThresholdPercent")]
        image_gc_high_threshold_percent: i32 = 85,
        /// Collect until it is no fuller than this, in percent. Must be lower than the high threshold.
        #[serde(rename = "imageGCLowThresholdPercent")]
        image_gc_low_threshold_percent: i32 = 80,
        /// An image is not collected before it was known for this long. 0 is no minimum here and as a flag; in a kubelet's file it becomes the default, as with the kubelet.
        #[serde(rename = "imageMinimumGCAge")]
        image_minimum_gc_age: GoDuration = GoDuration::minutes(2),
        /// An image unused for longer than this is collected even when there is room. 0 is off.
        #[serde(rename = "imageMaximumGCAge")]
        image_maximum_gc_age: GoDuration,
        /// Pull one image at a time. Defaults to false when `maxParallelImagePulls` is 2 or more.
        serialize_image_pulls: bool = true,
        /// At most this many images are pulled at once; absent is no bound. Larger than 1 needs `serializeImagePulls: false`.
        max_parallel_image_pulls: Option<i32>,
        /// At most this many pulls start per second on average; 0 is no bound.
        #[serde(rename = "registryPullQPS")]
        registry_pull_qps: i32 = 5,
        /// This many pulls may start at once before the rate holds them. An explicit 0 becomes the default.
        registry_burst: i32 = 10,
        /// How long a runtime may take for any call but a pull. An explicit 0 becomes the default.
        runtime_request_timeout: GoDuration = GoDuration::minutes(2),
        /// When a present image needs a pull to prove that the pod may use it: `NeverVerify`,
        /// `NeverVerifyPreloadedImages`, `NeverVerifyAllowlistedImages` or `AlwaysVerify`.
        image_pull_credentials_verification_policy: String = "NeverVerifyPreloadedImages",
        /// Images that `NeverVerifyAllowlistedImages` trusts: names without tag and digest, or prefixes that end in `/*`.
        preloaded_images_verification_allowlist: Vec<String>,
        /// The kubelet's feature gates that are about images.
        feature_gates: FeatureGateKeys,
        /// How many pods may run on the node: accepted, and without effect on images.
        max_pods: i32 = 110,
        /// How many images the Node's status lists, the largest first; -1 is all. `imagelet status -o json` shows that list.
        node_status_max_images: i32 = 50,
        /// How often the kubelet computes the Node's status. An explicit 0 becomes the default.
        node_status_update_frequency: GoDuration = GoDuration::seconds(10),
        /// How often the kubelet sends it although nothing changed. Defaults to `nodeStatusUpdateFrequency` where that is given.
        node_status_report_frequency: GoDuration = FIVE_MINUTES,
        /// Where the kubelet asks for containers. Taken from a kubelet's file, checked and shown. In a file of ours it has to be `imageService.cri.endpoint` or `store.runtimeEndpoint` as well: on its own it makes imagelet ask nothing.
        container_runtime_endpoint: String = "unix:///run/containerd/containerd.sock",
        /// Where the kubelet asks for images; empty is the endpoint above. Shown, and never asked by imagelet: it may be imagelet.
        image_service_endpoint: String,
        /// Whether the kubelet counts what pods write. Shown.
        local_storage_capacity_isolation: bool = true,
        /// How many events the kubelet records a second. Shown; imagelet keeps its last thousand.
        #[serde(rename = "eventRecordQPS")]
        event_record_qps: i32 = 50,
        /// And how many at once. An explicit 0 becomes the default. Shown.
        event_burst: i32 = 100,
        /// Where traces are sent: the kubelet's, and imagelet's.
        tracing: TracingKeys,
        /// The image that sandboxes ("pause" containers) are started from. Read as `sandboxImage` is, from a kubelet's file, too.
        pod_infra_container_image: String,
    }
    /// The keys of imagelet.
    OwnKeys {
        /// What credential providers there are: a file of kind `CredentialProviderConfig`, or a folder of such files; read again on SIGHUP. Empty: none. See [credentials](credentials.md).
        image_credential_provider_config_path: PathBuf,
        /// The folder of the credential providers' executables; needs the key above.
        image_credential_provider_bin_dir: PathBuf,
        /// A credential provider that takes longer is ended, with all its children.
        credential_provider_timeout: GoDuration = GoDuration::minutes(1),
        /// Where the daemon listens for CRI and for `imagelet` commands: a path of at most 107 bytes.
        socket: PathBuf,
        /// HTTP of the daemon.
        http: HttpKeys,
        /// What callers of that socket may do over CRI.
        cri: CriCallers,
        /// The embedded store, used when no CRI endpoint is given. Its keys about pulls hold for imports into a runtime as well.
        store: StoreKeys,
        /// Another store of images, used in place of the embedded one.
        image_service: ImageServiceKeys,
        /// Whether pulls of images of a runtime are fetched and unpacked by imagelet and imported into the runtime's own stores: `auto`, wherever that is possible, which is beside an unmodified containerd with the snapshotter `overlayfs`, and else the runtime pulls; `never`; `require`, what cannot be imported fails. See [containerd](containerd.md).
        runtime_import: ImportMode = ImportMode::Auto,
        /// The image that the runtime starts sandboxes ("pause" containers) from, such as `registry.k8s.io/pause:3.10`: no collection takes it. Empty: what the runtime itself reports, which containerd and CRI-O do. Not with `compatibility: kubelet`. See [keep rules](collection.md#rules).
        sandbox_image: String,
        /// How registries are reached.
        registry: RegistryKeys,
        /// The node's own credentials.
        credentials: CredentialsKeys,
        /// How long pulls may take.
        pulls: PullsKeys,
        /// A folder whose archives are imported, for nodes without a registry.
        import_folder: ImportFolder,
        /// How often images are detected.
        detection: DetectionKeys,
        /// Which behavior holds where the kubelet's has a weakness: `kubelet`, the kubelet's to the letter; `imagelet`, the improved one. [Compatibility](compatibility.md) lists the differences.
        compatibility: Compatibility = Compatibility::Imagelet,
        /// A pull record that did not change for longer than this expires: each pod that wants the image has to prove its right to the registry again. 0 is never, as with the kubelet.
        credential_record_max_age: GoDuration,
        /// What the policy `Always` does during an outage of a registry.
        stale_on_outage: StaleKeys,
        /// The Kubernetes cluster of the node. See [Kubernetes](kubernetes.md).
        kubernetes: KubernetesKeys,
        /// When images are collected, and which.
        gc: GcKeys,
    }
    HttpKeys {
        /// `HOST:PORT` for metrics, health, the JSON API and the dashboard; empty is off. An address that is not loopback needs `http.tokenFile`. See [http](http.md).
        address: String,
        /// A file with the token that every request but a probe has to present: one line of 32 to 512 characters without spaces. Refused while other users may read or change it; read again on SIGHUP. Empty: no token, loopback only.
        token_file: PathBuf,
        /// Names under which clients reach the address, besides `localhost`, IP addresses and the host of `http.address`. A request for another name is refused: a page of a foreign site may have made it (DNS rebinding).
        host_names: Vec<String>,
        /// Whether the API also changes the node: collections and pins. Needs `http.tokenFile`.
        actions: bool,
    }
    ImageServiceKeys {
        /// A runtime that speaks CRI.
        cri: RuntimeKeys,
        /// Images that no collection takes while they have one of these names, whichever store they are in: whole names, `BEGINNING*` and `*WORD*`, as in CRI-O; or a map of whole names, as in containerd. `imagelet pin` pins more.
        pinned_images: PinnedKeys,
    }
    RuntimeKeys {
        /// The socket of a CRI runtime, such as `unix:///run/containerd/containerd.sock`; empty uses the embedded store.
        endpoint: String,
        /// A pull of the runtime is cancelled after this long without a sign of life, at least 1s: the runtime does not answer; or it is a containerd whose folders this process can read, and nothing is written there. A slow pull continues, and so does one of a runtime that answers and shows no more. 0: no limit.
        pull_stall_timeout: GoDuration = FIVE_MINUTES,
    }
    RegistryKeys {
        /// Directories with `HOST/hosts.toml` below, as containerd reads them, files `registries.conf` of Podman and CRI-O, or files `registries.yaml` of k3s; several are separated by `:`. See [registries](registries.md).
        config_path: String = "/etc/containerd/certs.d",
        /// A policy file in the format of containers-policy.json: which images need a signature, by which keys. It is read for each pull. Empty: no signature is checked. Beside a runtime only with `runtimeImport: require`. See [trust](trust.md).
        signature_policy: PathBuf,
        /// At most this many connections to one host are open at once, over all pulls of the embedded store, 1 to 1000. Further requests wait in the order in which they came.
        connections_per_host: i32 = 48,
        /// A host has this long to begin its answer to a request of the embedded store, at least 1s. A registry that fetches on demand, or reads a blob whole before it sends it, may need longer; `pulls.progressDeadline` must be no shorter. Before another host that can be asked, one that has not begun after 10s is not waited for alone. See [deadlines](registries.md#deadlines).
        head_timeout: GoDuration = GoDuration::seconds(30),
        /// The proxies of some registries, before `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` of the environment: a list, the first entry with the host decides. See [proxies](registries.md#proxies).
        proxies: Vec<ProxyKeys>,
    }
    /// An entry of `registry.proxies`.
    #[serde(deny_unknown_fields, expecting = "a mapping")]
    ProxyKeys {
        /// Hosts, in the form of `NO_PROXY`: names with their subdomains, `.suffixes`, addresses, networks, each perhaps with a port, or `*`.
        hosts: Vec<String>,
        /// The URL of their proxy, `http://`, `https://`, `socks5://` or `socks5h://`, perhaps with user and password, which are never shown; `none` or empty: they are reached directly.
        proxy: ProxyUrl,
        /// A file with the password of the user that the URL names, on one line. Refused while every user may read it or another one may change it; read again on SIGHUP.
        password_file: Option<PathBuf>,
    }
    CredentialsKeys {
        /// A docker configuration (`config.json`) with the node's own registry credentials; read again every five minutes and on SIGHUP. Absent: `$DOCKER_CONFIG/config.json` where that is set; else a command reads `~/.docker/config.json`, and the daemon looks where the kubelet looks, see [credentials](credentials.md).
        docker_config: Option<PathBuf>,
    }
    #[derive(PartialEq, Eq)]
    ImportFolder {
        /// The daemon imports archives that appear here, and moves them to `done` or `failed` in it: an absolute path, of a folder that only root or the daemon's user may write to. Empty: none. Only with the embedded store. See [air gap](air-gap.md#a-watched-folder).
        directory: PathBuf,
        /// Pin the imported names, so that no collection removes them.
        pin: bool = true,
    }
    DetectionKeys {
        /// How often the node detects which images are present and in use. With `imageMaximumGCAge` this or `gc.period` has to be shorter than 1h: otherwise uses between two detections could be missed.
        period: GoDuration = FIVE_MINUTES,
    }
    KubernetesKeys {
        /// The name of this node, as `kubectl get nodes` shows it: the daemon [watches its pods](kubernetes.md). Empty: no API server is contacted.
        node_name: String,
        /// How the API server is reached: the current context of a kubeconfig. Empty: the service account of the pod that imagelet runs in.
        kubeconfig: PathBuf,
        /// How many images are [fetched ahead](kubernetes.md#fetching-ahead) at once, at most 256; 0: none. Read there what it means to a kubelet that verifies credentials. Off with `compatibility: kubelet`.
        look_ahead_max: i32,
        /// Whether warnings about what imagelet itself decides become [events](kubernetes.md#events) of the Node.
        events: bool = true,
        /// Whether a pod that waits longer than 15 s for a pull gets an [event](kubernetes.md#events) about its progress.
        progress_events: bool = true,
    }
    StaleKeys {
        /// Under pull policy `Always`, while a registry cannot be reached, is busy or broken: use the image that it last resolved for that tag on this node, if the pull records grant it to the pod.
        enabled: bool,
        /// For this long after the registry last resolved it, at least 1m.
        max_age: GoDuration = GoDuration::minutes(24 * 60),
    }
    GcKeys {
        /// Whether the daemon collects on its own; `imagelet gc` works either way.
        enabled: bool = true,
        /// How often it checks whether to collect.
        period: GoDuration = FIVE_MINUTES,
        /// Whether a pull into the embedded store, or an import into a runtime, that finds too little space starts a collection under the usual rules. Defaults to false where `enabled` is, or where `compatibility` is `kubelet`.
        for_pulls: bool = true,
        /// `enforce` removes the selected images. `shadow` selects and reports, and removes nothing unless `imagelet gc --enforce` says so: for a node whose kubelet still collects. See [shadow mode](collection.md#shadow-mode).
        mode: CollectionMode = CollectionMode::Enforce,
        /// Which removable images are removed first: `cost`, those whose loss costs least for the bytes that only they take; `lru`, the least recently used, as the kubelet. Defaults to `lru` where `compatibility` is `kubelet`, which allows no other.
        policy: GcOrder = GcOrder::Cost,
        /// Start collecting when so many of the image filesystem's inodes are in use, in percent, 1 to 100. 100 is off, which is the default where `compatibility` is `kubelet`; collection that is switched off by `imageGCHighThresholdPercent: 100` ignores inodes as well.
        inodes_high_percent: i32 = 95,
        /// Collect until no more than this are in use, in percent. Must be lower than the high one, unless that is off.
        inodes_low_percent: i32 = 90,
        /// Where all removable images are not enough to come below the thresholds, images are removed that were idle for at least this long; see [out of reach](collection.md#out-of-reach). No effect where `compatibility` is `kubelet`, which removes all.
        out_of_reach_idle: GoDuration = IDLE_DEFAULT,
        /// From this usage of the image filesystem on, in percent, 0 to 100, all removable images are removed where they are not enough to come below the thresholds, until less is in use; inodes count as well where they are watched. No effect where `compatibility` is `kubelet`.
        critical: i32 = CRITICAL_DEFAULT,
        /// Images that are kept although unused: a list of rules, see [keep rules](collection.md#rules). Each has exactly one of `repository` (with `lastTags`), `label`, `namespace` and `image`, and may have `for`.
        keep: Vec<KeepKeys>,
        /// Collect only images that imagelet pulled or adopted (`gc.adoptFrom`): images that other programs pulled are kept.
        only_owned: bool,
        /// The data root of a kubelet on this node: images of a runtime that are in its pull records count as adopted, and are at least as old as its record when imagelet takes the node over. Empty: no kubelet is read.
        adopt_from: PathBuf = "/var/lib/kubelet",
        /// How long no collection takes an image after its presence was last reported to a pod or a caller over CRI; the lease ends earlier once the pod's containers are seen. 0 is off, and the only value where `compatibility` is `kubelet`; else no shorter than `detection.period` and `imageMinimumGCAge`, and at most 168h. Defaults to the longest of these two and 10m.
        lease_for: GoDuration = LEASE_DEFAULT,
        /// The log of decisions.
        decisions: DecisionsKeys,
    }
    /// A rule of `gc.keep`.
    #[serde(deny_unknown_fields, expecting = "a mapping")]
    KeepKeys {
        /// A glob over names of repositories, in full or as people shorten them: in each of them the last tags are kept.
        repository: Option<String>,
        /// How many, 1 to 10000; tags of one image count once, versions and other tags apart.
        last_tags: Option<i64>,
        /// `KEY` or `KEY=GLOB`: images whose configuration has such a label.
        label: Option<String>,
        /// A glob over namespaces: images last used by a pod there.
        namespace: Option<String>,
        /// A reference, a glob, or 12 or more digits of an id or digest. Without `for` this is a pin, as `imagelet pin` makes them.
        image: Option<String>,
        /// Keep it only for so long after its last use, or after it was first seen where it was never used.
        r#for: Option<GoDuration>,
    }
    DecisionsKeys {
        /// How much of the disk the log of decisions may take, such as `16Mi`; the oldest entries are dropped first. 0: no log.
        max_bytes: String = "16Mi",
    }
    #[derive(Copy, PartialEq, Eq)]
    CriCallers {
        /// Whether `serializeImagePulls`, `maxParallelImagePulls`, `registryPullQPS` and `registryBurst` hold for pulls over CRI, too. A kubelet has limited its pulls already: a second limit would only delay them. Shared pulls, admission and circuit breakers are independent of this.
        limit_pulls: bool,
        /// Whether callers may remove an image that a container holds, running or exited, or that is mounted into one. `false`: refused with `FailedPrecondition`. `true`: the runtime is asked to, and containerd removes the names while its containers keep their files. An image that `imagelet mount` has mounted stays in the embedded store either way.
        remove_in_use: bool,
    }
    FeatureGateKeys {
        /// Record which credentials each image was pulled with, and grant it to no other pod. `false`: every pod may use every image of the node.
        #[serde(rename = "KubeletEnsureSecretPulledImages")]
        kubelet_ensure_secret_pulled_images: bool = true,
        /// Whether `imageMaximumGCAge` may be set; the kubelet has locked this gate on.
        #[serde(rename = "ImageMaximumGCAge")]
        image_maximum_gc_age: bool = true,
    }
    TracingKeys {
        /// The collector of traces, by OTLP without TLS: `HOST:PORT` or `unix:PATH` for gRPC, and `http://HOST:PORT` for protobuf over HTTP, which a kubelet's file does not know. Absent: none, or `localhost:4317` where the rate below is above 0. See [traces](metrics.md#traces).
        endpoint: Option<String>,
        /// Of a million requests for images so many are traced; one whose caller has a sampled trace always is.
        sampling_rate_per_million: Option<i32>,
    }
    PullsKeys {
        /// How long the daemon continues a pull after its last request was cancelled, so that a retry finds it further. 0 ends it at once.
        grace: GoDuration = GoDuration::seconds(2),
        /// How long what an unfinished pull has received stays for the next one, at least 1s: unpacked layers, and the files or first bytes of unfinished ones. A pull without space, a collection that frees too little (after 10m) and `gc --all-unused` remove it earlier. 0: it is removed at once.
        resume_for: GoDuration = GoDuration::minutes(24 * 60),
        /// A pull of the embedded store fails when none of its connections received a byte for this long, retries included, at least 1s. 0: it fails when `pulls.retryBudget` is spent; a connection that is silent for 20s is closed either way.
        progress_deadline: GoDuration = GoDuration::minutes(1),
        /// Time that all requests of a pull of the embedded store may together spend on retries, waits that a registry requests included. 0: nothing is retried after a wait; other hosts are tried either way.
        retry_budget: GoDuration = GoDuration::minutes(1),
        /// A layer of the embedded store or of an import that receives fewer bytes a second than this, such as `256Ki`, gives what other pulls wait for (unpack memory, a place, a prefetch) to them within 10s, and continues later. 0: never. See [what pulls share](operations.md#what-pulls-share).
        rate_min: String = "256Ki",
        /// Bytes a second that all pulls of the embedded store receive together, such as `10Mi`, at least `1Ki`. SIGHUP changes it for running pulls, too. 0: no limit.
        bandwidth: String = "0",
    }
    StoreKeys {
        /// Directory of the embedded store and of the node's state, changed by one process at a time.
        directory: PathBuf,
        /// At most this many layers of one image are fetched and unpacked at once, 1 to 64. By default one for each core, at least 4 and at most 16, but no more than one for each 32Mi of memory; `imagelet status -v` shows it.
        layers_in_flight: i32 = 4,
        /// `commit`: a pull returns when every file of the image is on the disk. `background`: it returns earlier and syncs afterwards; the image survives the end of the process at any moment, but a power cut may lose the whole pull, never part of it.
        durability: Durability = Durability::Commit,
        /// Keep the compressed blobs as well, so that a layer can be unpacked again without the registry. Beside a runtime: imports put them into its content store, as its own pulls do.
        keep_blobs: bool,
        /// When a pull is rejected before its first layer for lack of space: `compressed`, when not even its compressed layers fit; `strict`, when they do not fit as large as they are expected to become; `off`, never. See [admission](admission.md).
        admission: Admission = Admission::Compressed,
        /// The socket of a CRI runtime that runs containers from images of this store, such as `unix:///run/containerd/containerd.sock`: images that its containers use, running or exited, stay, and while it does not answer nothing is removed. Empty: none.
        runtime_endpoint: String,
        /// Memory limit for unpacking the layers of all pulls, at least `48Mi`. A layer that needs more than its share is rejected. See [the store](store.md).
        unpack_memory: String = "160Mi",
        /// Limits of a layer.
        limits: LimitsKeys,
    }
    LimitsKeys {
        /// A layer may inflate to this many times its compressed size, 1 to 100000; gzip reaches 1032 on zeros alone.
        expansion_max: i32 = 200,
        /// The layers of an image may together inflate to this size beyond that, such as `256Mi`.
        expansion_free: String = "256Mi",
        /// Entries in one layer, 1 to 100000000.
        entries_max: i32 = 2_000_000,
        /// Unpacking stops before less than this is free on the store's filesystem, such as `16Mi`.
        free_bytes_floor: String = "16Mi",
        /// Unpacking stops before fewer inodes than this are free on the store's filesystem, 0 to 1000000000.
        free_inodes_floor: i32 = 1_000,
    }
}

/// A list of patterns, or a map of names.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum PinnedKeys {
    Patterns(Vec<String>),
    Names(BTreeMap<String, String>),
}

/// The URL of a proxy. `Debug` and `Serialize` omit user and password.
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct ProxyUrl(pub(super) String);

impl ProxyUrl {
    fn shown(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let place = rest.rsplit('@').next().unwrap_or_default();
        if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Serialize for ProxyUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.shown())
    }
}

impl Default for PinnedKeys {
    fn default() -> Self {
        Self::Patterns(Vec::new())
    }
}

impl OwnKeys {
    pub(super) fn is_like_kubelet(&self) -> bool {
        self.compatibility == Compatibility::Kubelet
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compatibility {
    Kubelet,
    Imagelet,
}

impl File {
    /// The defaults that depend on no other key.
    pub(super) fn defaults(environment: &Environment) -> Self {
        let mut file = Self::default();
        file.own.socket = environment.socket_default();
        file.own.store.directory = environment.store_default();
        if let Some(machine) = environment.machine {
            file.own.store.layers_in_flight = i32::try_from(machine.layers_in_flight()).unwrap_or(i32::MAX);
        }
        file
    }

    /// Sets the defaults that depend on other keys.
    pub(super) fn derive_defaults(&mut self, is_given: impl Fn(&str) -> bool) {
        let like_kubelet = self.own.is_like_kubelet();
        let lease = if like_kubelet { GoDuration(0) } else { LEASE_DEFAULT.max(self.lease_min()) };
        let Self { kubelet, own: OwnKeys { gc, .. }, .. } = self;
        if !is_given("serializeImagePulls") {
            kubelet.serialize_image_pulls = kubelet.max_parallel_image_pulls.is_none_or(|parallel| parallel < 2);
        }
        let policy = "imagePullCredentialsVerificationPolicy";
        if !is_given(policy) && !kubelet.feature_gates.kubelet_ensure_secret_pulled_images {
            kubelet.image_pull_credentials_verification_policy.clear();
        }
        if !is_given("nodeStatusReportFrequency") && is_given("nodeStatusUpdateFrequency") {
            kubelet.node_status_report_frequency = kubelet.node_status_update_frequency;
        }
        if !is_given("gc.forPulls") {
            gc.for_pulls = gc.enabled && !like_kubelet;
        }
        if !is_given("gc.policy") && like_kubelet {
            gc.policy = GcOrder::Lru;
        }
        if !is_given("gc.inodesHighPercent") && like_kubelet {
            gc.inodes_high_percent = 100;
        }
        if !is_given("gc.leaseFor") {
            gc.lease_for = lease;
        }
    }

    /// The minimum of a lease. A shorter lease would end before its container is detected, or within the minimum age.
    pub(super) fn lease_min(&self) -> GoDuration {
        self.kubelet.image_minimum_gc_age.max(self.own.detection.period).min(LEASE_MAX)
    }
}
