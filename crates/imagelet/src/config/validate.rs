//! Rules of the configuration: the kubelet's, in its words and order, then our own.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::{
    image::{ByteSize, Percent, PinnedNames, Reference},
    inventory::PinPattern,
    manager::Compatibility,
    records::Allowlist,
    runtime::ImportMode,
    text::quoted,
};
use imagelet_cri::Endpoint;
use imagelet_oci::{Admission, Durability, LayerLimits, LayerSharing};

use super::{
    API_VERSION, Backend, File, GcSettings, GoDuration, KIND, PinnedFile, ProviderSettings, PullLimits,
    RuntimeSettings, Settings, StoreSettings, Surroundings, Verification, gc, kubelet, store::LimitsFile,
};
use crate::size::parse_size;

/// A unix socket's path is at most this long.
const SOCKET_LENGTH_MAX: usize = 107;
/// More layers in flight than this help nobody.
const LAYERS_IN_FLIGHT_MAX: i32 = 64;
/// A loop that runs more often than this only burns the processor.
const PERIOD_MIN: GoDuration = GoDuration::seconds(1);
/// A runtime that does nothing for less than this has not stopped.
const STALL_MIN: GoDuration = GoDuration::seconds(1);
/// Uses in a gap as long as this may have been missed, and no image is called old for not having been used in it.
const WATCH_GAP_MAX: Duration = imagelet_core::inventory::WATCH_GAP_MAX;
/// An outage that is over sooner is waited out.
const STALE_MIN: GoDuration = GoDuration::minutes(1);

/// A key that breaks a rule, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    /// Its path in the file, and those of the keys it does not go with.
    pub(super) keys: Vec<Cow<'static, str>>,
    /// What is wrong.
    pub(super) message: String,
}

/// Checks a file in which every key has its value.
pub(super) fn check(file: &File) -> Result<Settings, Vec<Complaint>> {
    let mut complaints = Complaints::default();
    document(file, &mut complaints);
    let gc = thresholds(file, &mut complaints);
    let pulls = pulls(file, &mut complaints);
    let node = kubelet::check(file, &mut complaints);
    let verification = verification(file, &mut complaints);
    let timeout = file.runtime_request_timeout.unwrap_or_default();
    if timeout.0 <= 0 {
        complaints.add("runtimeRequestTimeout", format!("runtimeRequestTimeout {timeout} must be positive"));
    }
    let socket = file.socket.clone().unwrap_or_default();
    check_socket(&socket, &mut complaints);
    let http = file.http.as_ref().and_then(|http| http.address.clone()).filter(|address| !address.is_empty());
    if let Some(address) = &http
        && address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
    {
        complaints.add("http.address", format!("http.address `{address}` must be HOST:PORT"));
    }
    let compatibility = compatibility(file.compatibility.as_deref(), &mut complaints);
    let record_age_max = file.record_age_max.unwrap_or_default();
    if record_age_max.0 < 0 {
        complaints
            .add("credentialRecordMaxAge", format!("credentialRecordMaxAge {record_age_max} must not be negative"));
    }
    let backend = backend(file, &mut complaints);
    let pinned = pinned(file, &mut complaints);
    let sandbox_images = sandbox_images(file, &mut complaints);
    let detection = file.detection.clone().unwrap_or_default();
    let detection_period = period("detection.period", detection.period, &mut complaints);
    let collection = gc::check(&file.gc.clone().unwrap_or_default(), compatibility, file.ages(), &mut complaints);
    watched(gc.as_ref(), detection_period, collection.period, &mut complaints);
    let stale = file.stale.clone().unwrap_or_default();
    let stale_max = stale.age_max.unwrap_or_default();
    if stale_max < STALE_MIN {
        complaints
            .add("staleOnOutage.maxAge", format!("staleOnOutage.maxAge {stale_max} must be at least {STALE_MIN}"));
    }
    let config_path = file.registry.as_ref().and_then(|registry| registry.config_path.clone()).unwrap_or_default();

    let hosts_dirs: Vec<PathBuf> = config_path.split(':').filter(|part| !part.is_empty()).map(PathBuf::from).collect();
    for path in &hosts_dirs {
        check_path("registry.configPath", path, &mut complaints);
    }
    let docker_config = file.credentials.as_ref().and_then(|credentials| credentials.docker_config.clone());
    if let Some(path) = &docker_config {
        check_path("credentials.dockerConfig", path, &mut complaints);
    }
    let providers = providers(file, &mut complaints);
    match (gc, complaints.0.is_empty()) {
        (Some(gc), true) => Ok(Settings {
            gc,
            collection,
            node,
            pulls,
            compatibility,
            verification,
            record_age_max: (record_age_max.0 > 0).then(|| record_age_max.to_std()),
            runtime_request_timeout: timeout.to_std(),
            socket,
            callers: file.callers.clone().unwrap_or_default().checked(),
            http,
            backend,
            pinned,
            sandbox_images: (!compatibility.is_kubelet()).then_some(sandbox_images),
            hosts_dirs,
            docker_config,
            providers,
            surroundings: Surroundings::default(),
            detection_period,
            stale_max: stale.enabled.unwrap_or_default().then(|| stale_max.to_std()),
        }),
        _ => Err(complaints.0),
    }
}

/// Images do not become old while nobody looks often enough to see their uses; a collection looks, too.
fn watched(gc: Option<&GcSettings>, detection: Duration, collection: Option<Duration>, complaints: &mut Complaints) {
    let by_age = gc.is_some_and(|gc| gc.age_max.is_some());
    if by_age && collection.unwrap_or(Duration::MAX).min(detection) >= WATCH_GAP_MAX {
        complaints.add_of(
            &["detection.period", "gc.period", "imageMaximumGCAge"],
            "imageMaximumGCAge needs detection.period or gc.period to be shorter than 1h",
        );
    }
}

fn pinned(file: &File, complaints: &mut Complaints) -> PinnedNames {
    let said = file.image_service.as_ref().and_then(|service| service.pinned_images.as_ref());
    let read = match said {
        None => return PinnedNames::default(),
        Some(PinnedFile::Names(names)) => return PinnedNames::exactly(names.values().map(String::as_str)),
        Some(PinnedFile::Patterns(texts)) => PinnedNames::patterns(texts.iter().map(String::as_str)),
    };
    read.unwrap_or_else(|error| {
        complaints.add("imageService.pinnedImages", format!("imageService.pinnedImages: {error}"));
        PinnedNames::default()
    })
}

/// The names of the images that sandboxes are started from.
fn sandbox_images(file: &File, complaints: &mut Complaints) -> Vec<PinPattern> {
    let given = [("podInfraContainerImage", &file.pod_infra_image), ("sandboxImage", &file.sandbox_image)];
    let given = given.map(|(key, name)| (key, name.clone().unwrap_or_default()));
    let mut names = Vec::new();
    for (key, name) in given.iter().filter(|(_, name)| !name.is_empty()) {
        // One image is meant: a pattern with `*` is none.
        match name.parse::<Reference>().ok().and_then(|_| name.parse().ok()) {
            Some(pattern) => names.push(pattern),
            None => complaints.add(*key, format!("{key} `{name}` must be the name of an image")),
        }
    }
    names
}

/// What is found wrong, in order.
#[derive(Debug, Default)]
pub(super) struct Complaints(Vec<Complaint>);

impl Complaints {
    /// A value that cannot stand.
    pub(super) fn add(&mut self, key: impl Into<Cow<'static, str>>, message: impl std::fmt::Display) {
        let message = format!("invalid configuration: {message}");
        self.0.push(Complaint { keys: vec![key.into()], message });
    }

    /// Values that do not go together: the first of them that somebody gave is where to mend it.
    pub(super) fn add_of(&mut self, keys: &[&'static str], message: impl std::fmt::Display) {
        let keys = keys.iter().copied().map(Cow::Borrowed).collect();
        self.0.push(Complaint { keys, message: format!("invalid configuration: {message}") });
    }

    /// One of the few that the kubelet tells without its usual beginning.
    pub(super) fn add_bare(&mut self, key: &'static str, message: String) {
        self.0.push(Complaint { keys: vec![key.into()], message });
    }
}

fn document(file: &File, complaints: &mut Complaints) {
    for (key, given, wanted) in [("apiVersion", &file.api_version, API_VERSION), ("kind", &file.kind, KIND)] {
        if given.as_deref() != Some(wanted) {
            let given = given.as_deref().unwrap_or_default();
            complaints.add(key, format!("{key} is `{given}`, this program reads `{wanted}`"));
        }
    }
}

fn thresholds(file: &File, complaints: &mut Complaints) -> Option<GcSettings> {
    let high = file.gc_high_percent.unwrap_or_default();
    let low = file.gc_low_percent.unwrap_or_default();
    let age_min = file.gc_age_min.unwrap_or_default();
    let age_max = file.gc_age_max.unwrap_or_default();
    let mut percent = |key: &'static str, flag: &str, value: i32| {
        let checked = Percent::new(i64::from(value)).ok();
        if checked.is_none() {
            complaints.add(key, format!("{key} ({flag}) {value} must be between 0 and 100, inclusive"));
        }
        checked
    };
    let high_checked = percent("imageGCHighThresholdPercent", "--image-gc-high-threshold", high);
    let low_checked = percent("imageGCLowThresholdPercent", "--image-gc-low-threshold", low);
    if low >= high {
        complaints.add_of(
            &["imageGCLowThresholdPercent", "imageGCHighThresholdPercent"],
            format!(
                "imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than \
                 imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
            ),
        );
    }
    if age_min.0 < 0 {
        complaints.add("imageMinimumGCAge", format!("imageMinimumGCAge {age_min} must not be negative"));
    }
    if age_max.0 < 0 {
        complaints.add("imageMaximumGCAge", format!("imageMaximumGCAge {age_max} must not be negative"));
    }
    if age_max.0 > 0 && age_max <= age_min {
        complaints.add_of(
            &["imageMaximumGCAge", "imageMinimumGCAge"],
            format!("imageMaximumGCAge {age_max} must be greater than imageMinimumGCAge {age_min}"),
        );
    }
    Some(GcSettings {
        high: high_checked?,
        low: low_checked?,
        age_min: age_min.to_std(),
        age_max: (age_max.0 > 0).then(|| age_max.to_std()),
    })
}

fn pulls(file: &File, complaints: &mut Complaints) -> PullLimits {
    let burst = file.pulls_burst.unwrap_or_default();
    let rate = file.pulls_per_second.unwrap_or_default();
    let serial = file.pulls_serial.unwrap_or(true);
    if burst < 0 {
        complaints
            .add("registryBurst", format!("registryBurst (--registry-burst) {burst} must not be a negative number"));
    }
    if rate < 0 {
        complaints
            .add("registryPullQPS", format!("registryPullQPS (--registry-qps) {rate} must not be a negative number"));
    }
    if let Some(parallel) = file.pulls_parallel_max {
        if parallel < 1 {
            complaints
                .add("maxParallelImagePulls", format!("maxParallelImagePulls {parallel} must be a positive number"));
        }
        if serial && parallel > 1 {
            complaints.add_of(
                &["maxParallelImagePulls", "serializeImagePulls"],
                "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) \
                 is set to false",
            );
        }
    }
    PullLimits {
        serial,
        parallel_max: file.pulls_parallel_max.and_then(|parallel| usize::try_from(parallel).ok()),
        per_second: u32::try_from(rate).ok().filter(|rate| *rate > 0),
        burst: u32::try_from(burst).unwrap_or_default(),
        patience: file.pulls.clone().unwrap_or_default().checked(complaints),
    }
}

fn verification(file: &File, complaints: &mut Complaints) -> Verification {
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    const ALLOWLIST: &str = "preloadedImagesVerificationAllowlist";
    let policy = file.verification_policy.as_deref().unwrap_or_default();
    let patterns = file.verification_allowlist.clone().unwrap_or_default();
    if !file.is_recorded() {
        for (key, is_set) in [(POLICY, !policy.is_empty()), (ALLOWLIST, !patterns.is_empty())] {
            if is_set {
                let gate = "KubeletEnsureSecretPulledImages feature gate";
                complaints.add(key, format!("`{key}` must not be set if {gate} is not enabled"));
            }
        }
        return Verification::Off;
    }
    let chosen = match policy {
        "NeverVerify" => Verification::Never,
        "NeverVerifyPreloadedImages" => Verification::NeverPreloaded,
        "NeverVerifyAllowlistedImages" => Verification::NeverAllowlisted(patterns.clone()),
        "AlwaysVerify" => Verification::Always,
        other => {
            complaints.add(
                POLICY,
                format!(
                    "option {} specified for {POLICY}. Valid options are \"NeverVerify\", \
                     \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\"",
                    quoted(other)
                ),
            );
            return Verification::Always;
        }
    };
    if !patterns.is_empty() && !matches!(chosen, Verification::NeverAllowlisted(_)) {
        complaints.add(
            ALLOWLIST,
            // The misspelling is the kubelet's, and what people search for.
            format!(
                "can't set `{ALLOWLIST}` if `imagePullCredentialsVertificationPolicy` is not \
                 \"NeverVerifyAllowlistedImages\""
            ),
        );
    } else if let Err(error) = Allowlist::new(patterns.iter().map(String::as_str)) {
        complaints.add(ALLOWLIST, format!("invalid image pattern in `{ALLOWLIST}`: {error}"));
    }
    chosen
}

fn check_socket(socket: &Path, complaints: &mut Complaints) {
    let length = socket.as_os_str().len();
    check_path("socket", socket, complaints);
    if socket.is_absolute() && length > SOCKET_LENGTH_MAX {
        complaints
            .add("socket", format!("socket has {length} bytes, a unix socket's path has at most {SOCKET_LENGTH_MAX}"));
    }
}

/// The daemon's own directory is nobody's business, and the kernel ends a path at a NUL.
fn providers(file: &File, complaints: &mut Complaints) -> Option<ProviderSettings> {
    const CONFIG: &str = "imageCredentialProviderConfigPath";
    const BINARIES: &str = "imageCredentialProviderBinDir";
    let timeout = file.provider_timeout.unwrap_or_default();
    if timeout.0 <= 0 {
        complaints.add("credentialProviderTimeout", format!("credentialProviderTimeout {timeout} must be positive"));
    }
    let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let (config, binaries) = (given(&file.providers_config), given(&file.providers_binaries));
    for (key, path) in [(CONFIG, &config), (BINARIES, &binaries)] {
        if let Some(path) = path {
            check_path(key, path, complaints);
        }
    }
    match (config, binaries) {
        (Some(config), Some(binaries)) => Some(ProviderSettings { config, binaries, timeout: timeout.to_std() }),
        (None, None) => None,
        (Some(_), None) => {
            complaints.add(CONFIG, format!("{CONFIG} needs {BINARIES}"));
            None
        }
        (None, Some(_)) => {
            complaints.add(BINARIES, format!("{BINARIES} needs {CONFIG}"));
            None
        }
    }
}

fn check_path(key: &'static str, path: &Path, complaints: &mut Complaints) {
    if !path.is_absolute() {
        complaints.add(key, format!("{key} `{}` must be an absolute path", path.display()));
    } else if path.as_os_str().as_encoded_bytes().contains(&0) {
        complaints.add(key, format!("{key} has a NUL in it"));
    }
}

fn backend(file: &File, complaints: &mut Complaints) -> Backend {
    let store = file.store.clone().unwrap_or_default();
    let directory = store.directory.unwrap_or_default();
    check_path("store.directory", &directory, complaints);
    let layers = store.layers_in_flight.unwrap_or(1);
    if !(1..=LAYERS_IN_FLIGHT_MAX).contains(&layers) {
        complaints.add(
            "store.layersInFlight",
            format!("store.layersInFlight {layers} must be between 1 and {LAYERS_IN_FLIGHT_MAX}, inclusive"),
        );
    }
    let durability = durability(store.durability.as_deref(), complaints);
    let sharing = layer_sharing(store.share_layers.as_deref(), complaints);
    let admission = admission(store.admission.as_deref(), complaints);
    let unpack_memory = unpack_memory(store.unpack_memory.as_deref(), complaints);
    let limits = layer_limits(&store.limits.unwrap_or_default(), complaints);
    let cri = file.image_service.as_ref().and_then(|service| service.cri.clone()).unwrap_or_default();
    let endpoint = cri.endpoint.filter(|endpoint| !endpoint.is_empty());
    let stall = cri.pull_stall.unwrap_or_default();
    if stall.0 != 0 && stall < STALL_MIN {
        const KEY: &str = "imageService.cri.pullStallTimeout";
        complaints.add(KEY, format!("{KEY} {stall} must be 0, or at least {STALL_MIN}"));
    }
    if let Some(Err(error)) = endpoint.as_deref().map(str::parse::<Endpoint>) {
        complaints.add("imageService.cri.endpoint", format!("imageService.cri.endpoint: {error}"));
    }
    let runtime = store.runtime_endpoint.filter(|endpoint| !endpoint.is_empty());
    if let Some(Err(error)) = runtime.as_deref().map(str::parse::<Endpoint>) {
        complaints.add("store.runtimeEndpoint", format!("store.runtimeEndpoint: {error}"));
    }
    let timeout = file.runtime_request_timeout.unwrap_or_default().to_std();
    let import = runtime_import(file.runtime_import.as_deref(), complaints);
    let store = StoreSettings {
        directory,
        layers_in_flight: usize::try_from(layers).unwrap_or(1),
        durability,
        keep_blobs: store.keep_blobs.unwrap_or_default(),
        sharing,
        admission,
        unpack_memory,
        limits,
        runtime: runtime.map(|endpoint| (endpoint, timeout)),
    };
    match endpoint {
        Some(endpoint) => {
            let stall_max = (stall.0 > 0).then(|| stall.to_std());
            Backend::Cri(RuntimeSettings { endpoint, stall_max, import, store })
        }
        None => Backend::Embedded(store),
    }
}

fn runtime_import(text: Option<&str>, complaints: &mut Complaints) -> ImportMode {
    let Some(text) = text else { return ImportMode::default() };
    ImportMode::ALL.into_iter().find(|mode| mode.name() == text).unwrap_or_else(|| {
        let names = ImportMode::ALL.map(ImportMode::name);
        complaints.add("runtimeImport", format!("runtimeImport `{text}` must be one of {names:?}"));
        ImportMode::default()
    })
}

fn compatibility(text: Option<&str>, complaints: &mut Complaints) -> Compatibility {
    let known = [Compatibility::Kubelet, Compatibility::Imagelet];
    let Some(text) = text else { return Compatibility::default() };
    known.into_iter().find(|one| one.name() == text).unwrap_or_else(|| {
        let names = known.map(Compatibility::name);
        complaints.add("compatibility", format!("compatibility `{text}` must be one of {names:?}"));
        Compatibility::default()
    })
}

fn admission(text: Option<&str>, complaints: &mut Complaints) -> Admission {
    match text {
        None | Some("compressed") => Admission::Compressed,
        Some("strict") => Admission::Strict,
        Some("off") => Admission::Off,
        Some(other) => {
            complaints.add(
                "store.admission",
                format!("store.admission `{other}` must be one of [\"strict\", \"compressed\", \"off\"]"),
            );
            Admission::Compressed
        }
    }
}

fn unpack_memory(text: Option<&str>, complaints: &mut Complaints) -> u64 {
    const KEY: &str = "store.unpackMemory";
    let least = ByteSize(imagelet_oci::UNPACK_MEMORY_MIN);
    match text.map_or(Ok(ByteSize(imagelet_oci::UNPACK_MEMORY_DEFAULT)), parse_size) {
        Ok(size) if size >= least => return size.0,
        Ok(_) => {
            let written = text.unwrap_or_default();
            complaints.add(KEY, format!("{KEY} `{written}` must be at least {}Mi", least.0 >> 20));
        }
        Err(error) => complaints.add(KEY, format!("{KEY}: {error}")),
    }
    least.0
}

fn durability(text: Option<&str>, complaints: &mut Complaints) -> Durability {
    match text {
        None | Some("commit") => Durability::Commit,
        Some("background") => Durability::Background,
        Some(other) => {
            complaints.add(
                "store.durability",
                format!("store.durability `{other}` must be one of [\"commit\", \"background\"]"),
            );
            Durability::Commit
        }
    }
}

fn layer_sharing(text: Option<&str>, complaints: &mut Complaints) -> LayerSharing {
    match text {
        None | Some("node") => LayerSharing::Node,
        Some("repository") => LayerSharing::Repository,
        Some(other) => {
            complaints.add(
                "store.shareLayers",
                format!("store.shareLayers `{other}` must be one of [\"node\", \"repository\"]"),
            );
            LayerSharing::default()
        }
    }
}

fn layer_limits(file: &LimitsFile, complaints: &mut Complaints) -> LayerLimits {
    let mut count = |key: &'static str, value: Option<i32>, least: i32, most: i32| {
        let value = value.unwrap_or(least);
        if !(least..=most).contains(&value) {
            complaints.add(key, format!("{key} {value} must be between {least} and {most}, inclusive"));
        }
        u64::try_from(value).unwrap_or_default()
    };
    let expansion_max = count("store.limits.expansionMax", file.expansion_max, 1, 100_000);
    let entries_max = count("store.limits.entriesMax", file.entries_max, 1, 100_000_000);
    let free_inodes_floor = count("store.limits.freeInodesFloor", file.free_inodes_floor, 0, 1_000_000_000);
    let mut size = |key: &'static str, text: Option<&str>| match text.map_or(Ok(ByteSize(0)), parse_size) {
        Ok(size) => size.0,
        Err(error) => {
            complaints.add(key, format!("{key}: {error}"));
            0
        }
    };
    LayerLimits {
        expansion_max,
        entries_max,
        free_inodes_floor,
        expansion_free: size("store.limits.expansionFree", file.expansion_free.as_deref()),
        free_bytes_floor: size("store.limits.freeBytesFloor", file.free_bytes_floor.as_deref()),
    }
}

/// A time between two runs of a loop.
pub(super) fn period(key: &'static str, period: Option<GoDuration>, complaints: &mut Complaints) -> Duration {
    let period = period.unwrap_or_default();
    if period < PERIOD_MIN {
        complaints.add(key, format!("{key} {period} must be at least {PERIOD_MIN}"));
    }
    period.to_std()
}
