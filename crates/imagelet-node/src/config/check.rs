//! Checks the configuration: first by the kubelet's rules, with its texts and in its order, then by imagelet's rules.

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use imagelet_core::{
    credentials::{ProviderOptions, Secret},
    gc::{GcMarks, GcOrder, GcPolicy},
    hold::HoldPolicy,
    image::{PinnedNames, Reference},
    inventory::{PinPattern, WATCH_GAP_MAX},
    manager::{PullRate, PullSettings},
    node_policy::NodePolicy,
    records::{Allowlist, VerificationPolicy},
    text::{GoDuration, quoted},
    trusted_files,
};
use imagelet_oci::{
    Bandwidth, EngineConfig, LayerLimits, ProxyConfig, ProxyRule, ProxyRules, RegistryConfig, RegistryTimeouts,
    UNPACK_MEMORY_MIN,
};
use imagelet_runtime::{
    ImportMode,
    cri::{Endpoint, EndpointError},
};

use super::{
    check_gc, check_interfaces,
    environment::Environment,
    keys_and_defaults::{
        API_VERSION, File, ImportFolder, KIND, OwnKeys, PinnedKeys, ProxyKeys, ProxyUrl, PullsKeys, StoreKeys,
    },
    settings::{
        Backend, CredentialSettings, ImageSettings, Interfaces, NodeSettings, RecordRules, RuntimeSettings, Settings,
        StoreSettings,
    },
    violations::{Violation, Violations},
};

const SOCKET_LENGTH_MAX: usize = 107;
/// The minimum of `pulls.bandwidth`. A smaller value probably has a wrong unit.
const BANDWIDTH_MIN: u64 = 1 << 10;
/// More layers in flight do not increase the throughput.
const LAYERS_IN_FLIGHT_MAX: i32 = 64;
/// Each request searches all rules.
const PROXY_RULES_MAX: usize = 100;
/// Proxies limit the length of a header.
const PASSWORD_BYTES_MAX: usize = 4 << 10;
/// The minimum of periods and timeouts. A shorter timeout would end pulls that only start slowly.
const SECOND: GoDuration = GoDuration::seconds(1);
/// The retries of a pull already cover a shorter outage.
const STALE_MIN: GoDuration = GoDuration::minutes(1);

pub(super) fn check(file: &File, environment: &Environment) -> Result<Settings, Vec<Violation>> {
    let mut violations = Violations::default();
    let found = &mut violations;
    let File { kubelet, own, .. } = file;
    for (key, given, wanted) in [("apiVersion", &file.api_version, API_VERSION), ("kind", &file.kind, KIND)] {
        found.rule(given == wanted, key, format!("is `{given}`,"), format!("this program reads `{wanted}`"));
    }
    let policy = thresholds(file, found);
    let node_policy = if own.is_like_kubelet() { NodePolicy::KUBELET } else { NodePolicy::IMAGELET };
    let pulls = pulls(file, node_policy, found);
    let (status_images_max, image_endpoint) = check_interfaces::kubelet(kubelet, found);
    let verification = verification(file, found);
    let request_timeout = found.positive("runtimeRequestTimeout", kubelet.runtime_request_timeout);
    let interfaces = interfaces(file, found);
    let age_max = positive(found.not_negative("credentialRecordMaxAge", own.credential_record_max_age));
    let images = images(file, environment, node_policy, found);
    let collection = check_gc::check(file, policy, node_policy, found);
    let look = images.detection_period.min(collection.period.unwrap_or(Duration::MAX));
    if collection.policy.age_max.is_some() && look >= WATCH_GAP_MAX {
        found.add_of(
            &["detection.period", "gc.period", "imageMaximumGCAge"],
            "imageMaximumGCAge needs detection.period or gc.period to be shorter than 1h",
        );
    }
    let kubernetes = check_interfaces::kubernetes(&own.kubernetes, environment, found);
    if let Some(path) = &own.credentials.docker_config {
        found.absolute("credentials.dockerConfig", path);
    }
    let settings = Settings {
        collection,
        pulls,
        records: RecordRules { verification, age_max },
        interfaces,
        images,
        node: NodeSettings { status_images_max, image_endpoint, request_timeout, kubernetes },
        credentials: CredentialSettings {
            docker_config: own.credentials.docker_config.clone(),
            providers: providers(own, environment, found),
        },
        environment: environment.clone(),
    };
    if violations.0.is_empty() { Ok(settings) } else { Err(violations.0) }
}

fn interfaces(file: &File, found: &mut Violations) -> Interfaces {
    let socket = file.own.socket.clone();
    found.absolute("socket", &socket);
    let length = socket.as_os_str().len();
    let limit = format!("the limit for the path of a unix socket is {SOCKET_LENGTH_MAX}");
    found.rule(length <= SOCKET_LENGTH_MAX, "socket", format!("has {length} bytes;"), limit);
    let http = check_interfaces::http(&file.own.http, found);
    let traces = check_interfaces::traces(&file.kubelet.tracing, found);
    Interfaces { socket, callers: file.own.cri, http, traces }
}

fn images(file: &File, environment: &Environment, node_policy: NodePolicy, found: &mut Violations) -> ImageSettings {
    let (own, stale) = (&file.own, &file.own.stale_on_outage);
    let backend = backend(file, found);
    let pinned = pinned(&own.image_service.pinned_images, found);
    let sandbox_images = sandbox_images(file, found);
    let detection_period = found.at_least("detection.period", own.detection.period, SECOND);
    let stale_max = found.at_least("staleOnOutage.maxAge", stale.max_age, STALE_MIN);
    ImageSettings {
        import_folder: import_folder(own, found),
        backend,
        pinned,
        sandbox_images: node_policy.inventory.pins_sandbox_images.then_some(sandbox_images),
        registry: registry(own, environment, found),
        detection_period,
        stale_max: stale.enabled.then_some(stale_max),
    }
}

fn import_folder(own: &OwnKeys, found: &mut Violations) -> Option<ImportFolder> {
    const KEY: &str = "importFolder.directory";
    let directory = found.path(KEY, &own.import_folder.directory)?;
    let is_embedded = own.image_service.cri.endpoint.is_empty();
    let shown = format!("`{}`", directory.display());
    found.rule(is_embedded, KEY, &shown, "needs the embedded store: images of a runtime are imported by its own tools");
    found.rule(!directory.starts_with(&own.store.directory), KEY, &shown, "must not be in store.directory");
    Some(own.import_folder.clone())
}

/// Converts 0, which disables a feature, to `None`.
fn positive(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

fn thresholds(file: &File, found: &mut Violations) -> GcPolicy {
    const HIGH: &str = "imageGCHighThresholdPercent (--image-gc-high-threshold)";
    const LOW: &str = "imageGCLowThresholdPercent (--image-gc-low-threshold)";
    let keys = &file.kubelet;
    let (high, low) = (keys.image_gc_high_threshold_percent, keys.image_gc_low_threshold_percent);
    let (age_min, age_max) = (keys.image_minimum_gc_age, keys.image_maximum_gc_age);
    let marks = (found.percent(HIGH, high, 0), found.percent(LOW, low, 0));
    if low >= high {
        let keys = ["imageGCLowThresholdPercent", "imageGCHighThresholdPercent"];
        found.add_of(&keys, format!("{LOW} {low} must be less than {HIGH} {high}"));
    }
    found.not_negative("imageMinimumGCAge", age_min);
    found.not_negative("imageMaximumGCAge", age_max);
    if age_max.0 > 0 && age_max <= age_min {
        let keys = ["imageMaximumGCAge", "imageMinimumGCAge"];
        found.add_of(&keys, format!("imageMaximumGCAge {age_max} must be greater than imageMinimumGCAge {age_min}"));
    }
    GcPolicy {
        bytes: GcMarks::new(marks.0, marks.1),
        inodes: None,
        age_min: age_min.to_std(),
        age_max: positive(age_max.to_std()),
        order: GcOrder::default(),
        pressure_relief: None,
        rules: NodePolicy::IMAGELET.gc,
    }
}

fn pulls(file: &File, node_policy: NodePolicy, found: &mut Violations) -> PullSettings {
    let (keys, parallel) = (&file.kubelet, file.kubelet.max_parallel_image_pulls);
    let (burst, rate) = (keys.registry_burst, keys.registry_pull_qps);
    found.rule(burst >= 0, "registryBurst (--registry-burst)", burst, "must not be a negative number");
    found.rule(rate >= 0, "registryPullQPS (--registry-qps)", rate, "must not be a negative number");
    if let Some(parallel) = parallel {
        found.rule(parallel > 0, "maxParallelImagePulls", parallel, "must be a positive number");
    }
    if keys.serialize_image_pulls && parallel > Some(1) {
        found.add_of(
            &["maxParallelImagePulls", "serializeImagePulls"],
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is \
             set to false",
        );
    }
    let slots = if keys.serialize_image_pulls { Some(1) } else { parallel };
    let rate = u32::try_from(rate).ok().and_then(NonZeroU32::new);
    PullSettings {
        slots: slots.and_then(|slots| NonZeroUsize::new(usize::try_from(slots).ok()?)),
        rate: rate.map(|rate| PullRate { qps: rate.get() as f32, burst: u32::try_from(burst).unwrap_or_default() }),
        grace: found.not_negative("pulls.grace", file.own.pulls.grace),
        node_policy,
        ..PullSettings::default()
    }
}

fn verification(file: &File, found: &mut Violations) -> Option<VerificationPolicy> {
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    const ALLOWLIST: &str = "preloadedImagesVerificationAllowlist";
    let policy = file.kubelet.image_pull_credentials_verification_policy.as_str();
    let patterns = &file.kubelet.preloaded_images_verification_allowlist;
    if !file.kubelet.feature_gates.kubelet_ensure_secret_pulled_images {
        for (key, is_set) in [(POLICY, !policy.is_empty()), (ALLOWLIST, !patterns.is_empty())] {
            if is_set {
                let gate = "KubeletEnsureSecretPulledImages feature gate";
                found.add(key, format!("`{key}` must not be set if {gate} is not enabled"));
            }
        }
        return None;
    }
    let is_allowlist = policy == "NeverVerifyAllowlistedImages";
    let chosen = match policy {
        "NeverVerify" => VerificationPolicy::NeverVerify,
        "NeverVerifyPreloadedImages" => VerificationPolicy::NeverVerifyPreloadedImages,
        "AlwaysVerify" => VerificationPolicy::AlwaysVerify,
        _ if is_allowlist => match Allowlist::new(patterns.iter().map(String::as_str)) {
            Ok(list) => VerificationPolicy::NeverVerifyAllowlistedImages(list),
            Err(error) => {
                found.add(ALLOWLIST, format!("invalid image pattern in `{ALLOWLIST}`: {error}"));
                return None;
            }
        },
        other => {
            let valid = "\"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \
                         \"AlwaysVerify\"";
            found.add(POLICY, format!("option {} specified for {POLICY}. Valid options are {valid}", quoted(other)));
            return None;
        }
    };
    if !patterns.is_empty() && !is_allowlist {
        // The kubelet's message has this misspelling, and users search for the message.
        let policy = "imagePullCredentialsVertificationPolicy";
        let message = format!("can't set `{ALLOWLIST}` if `{policy}` is not \"NeverVerifyAllowlistedImages\"");
        found.add(ALLOWLIST, message);
    }
    Some(chosen)
}

fn backend(file: &File, found: &mut Violations) -> Backend {
    let (store, cri, pulls) = (&file.own.store, &file.own.image_service.cri, &file.own.pulls);
    let engine = EngineConfig {
        resume_for: found.off_or_second("pulls.resumeFor", pulls.resume_for),
        hold: HoldPolicy { rate_min: found.size("pulls.rateMin", &pulls.rate_min).unwrap_or_default() },
        ..engine(store, found)
    };
    let stall_max = positive(found.off_or_second("imageService.cri.pullStallTimeout", cri.pull_stall_timeout));
    let mut endpoint = |key: &str, text: &str| -> Option<Endpoint> {
        let parsed = (!text.is_empty()).then(|| text.parse())?;
        parsed.map_err(|error: EndpointError| found.add(key, format!("{key}: {error}"))).ok()
    };
    let of_images = endpoint("imageService.cri.endpoint", &cri.endpoint);
    let of_containers = endpoint("store.runtimeEndpoint", &store.runtime_endpoint);
    if let Some(endpoint) = of_images {
        return Backend::Cri(RuntimeSettings { endpoint, stall_max, import: file.own.runtime_import, engine });
    }
    let timeout = file.kubelet.runtime_request_timeout.to_std();
    Backend::Embedded(StoreSettings { engine, runtime: of_containers.map(|endpoint| (endpoint, timeout)) })
}

fn engine(keys: &StoreKeys, found: &mut Violations) -> EngineConfig {
    found.absolute("store.directory", &keys.directory);
    let layers = found.count("store.layersInFlight", keys.layers_in_flight, 1..=LAYERS_IN_FLIGHT_MAX);
    let unpack_memory = found.size("store.unpackMemory", &keys.unpack_memory).unwrap_or(UNPACK_MEMORY_MIN);
    found.rule(
        unpack_memory >= UNPACK_MEMORY_MIN,
        "store.unpackMemory",
        format!("`{}`", keys.unpack_memory),
        format!("must be at least {}Mi", UNPACK_MEMORY_MIN >> 20),
    );
    EngineConfig {
        durability: keys.durability,
        keep_blobs: keys.keep_blobs,
        admission: keys.admission,
        limits: layer_limits(keys, (layers, unpack_memory), found),
        ..EngineConfig::new(&keys.directory)
    }
}

fn layer_limits(store: &StoreKeys, (layers, memory): (u64, u64), found: &mut Violations) -> LayerLimits {
    let keys = &store.limits;
    LayerLimits {
        expansion_max: found.count("store.limits.expansionMax", keys.expansion_max, 1..=100_000),
        entries_max: found.count("store.limits.entriesMax", keys.entries_max, 1..=100_000_000),
        free_inodes_floor: found.count("store.limits.freeInodesFloor", keys.free_inodes_floor, 0..=1_000_000_000),
        expansion_free: found.size("store.limits.expansionFree", &keys.expansion_free).unwrap_or_default(),
        free_bytes_floor: found.size("store.limits.freeBytesFloor", &keys.free_bytes_floor).unwrap_or_default(),
        layers_in_flight: usize::try_from(layers).unwrap_or(1),
        memory,
    }
}

fn registry(own: &OwnKeys, environment: &Environment, found: &mut Violations) -> RegistryConfig {
    const POLICY: &str = "registry.signaturePolicy";
    let PullsKeys { progress_deadline, retry_budget, bandwidth, .. } = &own.pulls;
    let silence_max = positive(found.off_or_second("pulls.progressDeadline", *progress_deadline));
    let retry_budget = found.not_negative("pulls.retryBudget", *retry_budget);
    let head_timeout = own.registry.head_timeout;
    let header_timeout = found.at_least("registry.headTimeout", head_timeout, SECOND);
    // The default head timeout may exceed the progress deadline. The deadline then ends the pull, as configured.
    let is_default = header_timeout == RegistryTimeouts::default().header;
    let is_in_deadline = is_default || silence_max.is_none_or(|deadline| header_timeout <= deadline);
    let rule = format!("must not exceed pulls.progressDeadline of {progress_deadline}, which ends the pull before");
    found.rule(is_in_deadline, "registry.headTimeout", head_timeout, rule);
    let limit = found.size("pulls.bandwidth", bandwidth).unwrap_or_default();
    let is_limit = limit == 0 || limit >= BANDWIDTH_MIN;
    found.rule(is_limit, "pulls.bandwidth", format!("`{bandwidth}`"), "must be 0 or at least 1Ki");
    let connections = found.count("registry.connectionsPerHost", own.registry.connections_per_host, 1..=1000);
    let hosts_dirs: Vec<PathBuf> =
        own.registry.config_path.split(':').filter(|part| !part.is_empty()).map(PathBuf::from).collect();
    for path in &hosts_dirs {
        found.absolute("registry.configPath", path);
    }
    let signature_policy = found.path(POLICY, &own.registry.signature_policy);
    if let Some(path) = &signature_policy {
        let is_enforced = own.image_service.cri.endpoint.is_empty() || own.runtime_import == ImportMode::Require;
        let rule = "needs `runtimeImport: require` beside a runtime, whose own pulls check no signature";
        found.rule(is_enforced, POLICY, format!("`{}`", path.display()), rule);
    }
    let connections = usize::try_from(connections).ok().and_then(NonZeroUsize::new);
    RegistryConfig {
        hosts_dirs,
        signature_policy,
        proxies: ProxyConfig { rules: proxy_rules(&own.registry.proxies, found), ..environment.proxies.clone() },
        connections_per_host: connections.unwrap_or(NonZeroUsize::MIN),
        bandwidth: Bandwidth::new(NonZeroU64::new(limit)),
        timeouts: RegistryTimeouts { header: header_timeout, silence_max, retry_budget, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    }
}

/// Converts the proxy rules. Each invalid entry adds one violation, at the line of the entry.
fn proxy_rules(entries: &[ProxyKeys], found: &mut Violations) -> ProxyRules {
    const KEY: &str = "registry.proxies";
    let count = format!("has {} entries;", entries.len());
    found.rule(entries.len() <= PROXY_RULES_MAX, KEY, count, format!("the limit is {PROXY_RULES_MAX}"));
    let mut rules = Vec::new();
    for (index, entry) in entries.iter().take(PROXY_RULES_MAX).enumerate() {
        match proxy_rule(entry) {
            Ok(rule) => rules.push(rule),
            Err(error) => found.add(&format!("{KEY}[{index}]"), format!("{KEY}[{index}]: {error}")),
        }
    }
    ProxyRules::new(rules)
}

fn proxy_rule(entry: &ProxyKeys) -> Result<ProxyRule, String> {
    let ProxyKeys { hosts, proxy: ProxyUrl(proxy), password_file } = entry;
    let rule = |password| ProxyRule::new(hosts, proxy, password);
    let Some(path) = password_file else { return rule(None) };
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!("passwordFile `{shown}` must be an absolute path"));
    }
    let password = trusted_files::read_secret("passwordFile", path, PASSWORD_BYTES_MAX).map_err(|error| {
        // The first line is the error, and the other lines are a hint.
        let text = error.to_string();
        format!("could not read passwordFile `{shown}`: {}", text.lines().next().unwrap_or_default())
    })?;
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err(format!("passwordFile `{shown}` must hold one line of 1 to {PASSWORD_BYTES_MAX} bytes"));
    }
    rule(Some(&Secret::new(password.as_str())))
}

fn pinned(keys: &PinnedKeys, found: &mut Violations) -> PinnedNames {
    const KEY: &str = "imageService.pinnedImages";
    match keys {
        PinnedKeys::Names(names) => PinnedNames::exactly(names.values().map(String::as_str)),
        PinnedKeys::Patterns(texts) => PinnedNames::patterns(texts.iter().map(String::as_str))
            .map_err(|error| found.add(KEY, format!("{KEY}: {error}")))
            .unwrap_or_default(),
    }
}

fn sandbox_images(file: &File, found: &mut Violations) -> Vec<PinPattern> {
    let given = [
        ("podInfraContainerImage", &file.kubelet.pod_infra_container_image),
        ("sandboxImage", &file.own.sandbox_image),
    ];
    let mut patterns = Vec::new();
    for (key, name) in given.into_iter().filter(|(_, name)| !name.is_empty()) {
        // A sandbox image is one name, so a pattern with `*` is invalid.
        let pattern = name.parse::<Reference>().ok().and_then(|_| name.parse().ok());
        found.rule(pattern.is_some(), key, format!("`{name}`"), "must be the name of an image");
        patterns.extend(pattern);
    }
    patterns
}

fn providers(own: &OwnKeys, environment: &Environment, found: &mut Violations) -> Option<ProviderOptions> {
    const CONFIG: &str = "imageCredentialProviderConfigPath";
    const BINARIES: &str = "imageCredentialProviderBinDir";
    let limit = found.positive("credentialProviderTimeout", own.credential_provider_timeout);
    let config = found.path(CONFIG, &own.image_credential_provider_config_path);
    let binaries = found.path(BINARIES, &own.image_credential_provider_bin_dir);
    match (config, binaries) {
        (Some(config), Some(binaries)) => {
            Some(ProviderOptions { config, binaries, limit, environment: environment.variables.clone() })
        }
        (config, binaries) => {
            found.rule(config.is_none(), CONFIG, "needs", BINARIES);
            found.rule(binaries.is_none(), BINARIES, "needs", CONFIG);
            None
        }
    }
}
