//! The kubelet's options that `serve` accepts: some set a key, and the others do not concern images and are ignored.

use clap::{Arg, ArgAction, ArgMatches, Command, builder::OsStringValueParser, parser::ValueSource};
use imagelet_core::text::{GoDuration, PlainError};
use serde_json::{Map, Value};

use self::OptionKind::{Bool, Count, Duration, Gates, Number, Percent, Reference, Time, Uri};

const HEADING: &str = "Kubelet's options, which win over both files";
const PARALLEL: &str = "; from 2 on, pulls are not serialized unless that is asked for";
const GATES: &str = ": `KubeletEnsureSecretPulledImages=false`; gates that are not about images are ignored";
const RUNTIME: &str = ": where the kubelet asks for containers; it makes imagelet ask nothing";

/// A kubelet option, the configuration key that it sets, the kind of its value, and the help text after the key's name.
type KubeletOption = (&'static str, &'static str, OptionKind, &'static str);

const OPTIONS: [KubeletOption; 20] = [
    ("--image-gc-high-threshold", "imageGCHighThresholdPercent", Percent, ""),
    ("--image-gc-low-threshold", "imageGCLowThresholdPercent", Percent, ""),
    ("--minimum-image-ttl-duration", "imageMinimumGCAge", Duration, "; 0 holds here"),
    ("--maximum-image-ttl-duration", "imageMaximumGCAge", Duration, "; 0 is off"),
    ("--serialize-image-pulls", "serializeImagePulls", Bool, "; without a value it is true"),
    ("--registry-qps", "registryPullQPS", Number, "; 0 is no bound"),
    ("--registry-burst", "registryBurst", Count, "; 0 is the default"),
    ("--max-parallel-image-pulls", "maxParallelImagePulls", Number, PARALLEL),
    ("--pod-infra-container-image", "podInfraContainerImage", Reference, ""),
    ("--feature-gates", "featureGates.KubeletEnsureSecretPulledImages", Gates, GATES),
    ("--feature-gates", "featureGates.ImageMaximumGCAge", Gates, GATES),
    ("--max-pods", "maxPods", Count, "; 0 is the default"),
    ("--runtime-request-timeout", "runtimeRequestTimeout", Time, "; 0 is the default"),
    ("--node-status-max-images", "nodeStatusMaxImages", Number, ""),
    ("--node-status-update-frequency", "nodeStatusUpdateFrequency", Time, "; 0 is the default"),
    ("--local-storage-capacity-isolation", "localStorageCapacityIsolation", Bool, "; without a value it is true"),
    ("--event-qps", "eventRecordQPS", Number, ""),
    ("--event-burst", "eventBurst", Count, "; 0 is the default"),
    ("--container-runtime-endpoint", "containerRuntimeEndpoint", Uri, RUNTIME),
    ("--image-service-endpoint", "imageServiceEndpoint", Uri, ""),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum OptionKind {
    Percent,
    Number,
    /// A number. 0 means the default: if it were used as a burst, it would allow no pull.
    Count,
    Duration,
    Time,
    Bool,
    Reference,
    Uri,
    Gates,
}

/// Options that are ignored and need a value. They exist in current or in earlier kubelets.
const WITH_VALUE: &str = "
    address allowed-unsafe-sysctls application-metrics-count-limit authentication-token-webhook-cache-ttl
    authorization-mode authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl
    azure-container-registry-config boot-id-file bootstrap-checkpoint-path bootstrap-kubeconfig cadvisor-port cert-dir
    cgroup-driver cgroup-root client-ca-file cloud-config cloud-provider cluster-dns cluster-domain cni-bin-dir
    cni-cache-dir cni-conf-dir container-hints container-log-max-files container-log-max-size container-runtime containerd
    containerd-namespace cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options cpu-manager-reconcile-period
    docker docker-endpoint docker-env-metadata-whitelist docker-root docker-tls-ca docker-tls-cert docker-tls-key
    dynamic-config-dir enforce-node-allocatable event-storage-age-limit event-storage-event-limit
    eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim eviction-pressure-transition-period eviction-soft
    eviction-soft-grace-period experimental-bootstrap-kubeconfig experimental-mounter-path file-check-frequency
    global-housekeeping-interval hairpin-mode healthz-bind-address healthz-port host-ipc-sources host-network-sources
    host-pid-sources hostname-override housekeeping-interval http-check-frequency image-pull-progress-deadline
    init-config-dir iptables-drop-bit iptables-masquerade-bit kube-api-burst kube-api-content-type kube-api-qps
    kube-reserved kube-reserved-cgroup kubelet-cgroups lock-file log-backtrace-at log-dir log-file log-file-max-size
    log-flush-frequency log-json-info-buffer-size log-text-info-buffer-size logging-format machine-id-file manifest-url
    manifest-url-header master-service-namespace max-open-files maximum-dead-containers
    maximum-dead-containers-per-container memory-manager-policy minimum-container-ttl-duration network-plugin
    network-plugin-mtu node-ip node-labels non-masquerade-cidr oom-score-adj pod-cidr pod-manifest-path pod-max-pids
    pods-per-core port provider-id qos-reserved read-only-port register-with-taints reserved-cpus reserved-memory
    resolv-conf root-dir runtime-cgroups stderrthreshold storage-driver-buffer-duration storage-driver-db
    storage-driver-host storage-driver-password storage-driver-table storage-driver-user
    streaming-connection-idle-timeout sync-frequency system-cgroups system-reserved system-reserved-cgroup tls-cert-file
    tls-cipher-suites tls-min-version tls-private-key-file topology-manager-policy topology-manager-policy-options
    topology-manager-scope v vmodule volume-plugin-dir volume-stats-agg-period";

/// Options that are ignored and may have a value, as in `--runonce` or `--runonce=true`.
const SWITCHES: &str = "
    add-dir-header allow-privileged alsologtostderr anonymous-auth authentication-token-webhook cgroups-per-qos
    contention-profiling cpu-cfs-quota docker-only docker-tls enable-cadvisor-json-endpoints
    enable-controller-attach-detach enable-debugging-handlers enable-load-reader enable-server exit-on-lock-contention
    experimental-allocatable-ignore-eviction experimental-check-node-capabilities-before-mount
    experimental-kernel-memcg-notification fail-cgroupv1 fail-swap-on keep-terminated-pod-volumes
    kernel-memcg-notification log-cadvisor-usage log-text-split-stream logtostderr make-iptables-util-chains one-output
    protect-kernel-defaults redirect-container-streaming register-node register-schedulable rotate-certificates
    rotate-server-certificates runonce seccomp-default skip-headers skip-log-headers storage-driver-secure";

/// Adds the kubelet options that set a key to the daemon's flags. Only `imagelet help` shows them, not `--help`.
pub(super) fn add_options(command: Command) -> Command {
    let mut rows = OPTIONS.to_vec();
    rows.dedup_by_key(|(name, ..)| *name);
    of_daemon(command, |command| command.next_help_heading(HEADING).args(rows.iter().map(option)))
}

/// Accepts the ignored options. The last of repeated options applies, because scripts append options to a unit.
pub(super) fn accept_ignored(command: Command) -> Command {
    of_daemon(command, |command| command.args(ignored_options()).args_override_self(true))
}

fn of_daemon(command: Command, change: impl Fn(Command) -> Command) -> Command {
    command.mut_subcommand("serve", &change).mut_subcommand("config", |config| config.mut_subcommand("show", &change))
}

fn option(&(name, key, kind, more): &KubeletOption) -> Arg {
    let key = key.split('.').next().unwrap_or_default();
    let option = Arg::new(name).long(&name[2..]).help(format!("`{key}`{more}")).hide_short_help(true);
    let option = option.action(ArgAction::Append).value_parser(move |text: &str| kind.read(text));
    match kind {
        Percent => option.value_name("PERCENT").allow_negative_numbers(true),
        Number | Count => option.value_name("NUMBER").allow_negative_numbers(true),
        Duration | Time => option.value_name("DURATION").allow_hyphen_values(true),
        Bool => option.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true"),
        Reference => option.value_name("REF"),
        Uri => option.value_name("URI"),
        Gates => option.value_name("PAIRS"),
    }
}

impl OptionKind {
    /// Parses the text of an option into the value of its key. A null value means the key's default.
    fn read(self, text: &str) -> Result<Value, String> {
        Ok(match self {
            Percent | Number | Count => match text.parse::<i32>().map_err(|error| error.to_string())? {
                0 if self == Count => Value::Null,
                number => number.into(),
            },
            Duration | Time => match text.parse().map_err(|error: PlainError| error.to_string())? {
                GoDuration(0) if self == Time => Value::Null,
                duration => duration.to_string().into(),
            },
            Bool => go_bool(text)?.into(),
            Reference | Uri if text.is_empty() => Value::Null,
            Reference | Uri => text.into(),
            Gates => {
                let gate = |part: &str| {
                    let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not `NAME=VALUE`"))?;
                    Ok((name.trim().to_owned(), go_bool(value.trim())?.into()))
                };
                let parts = text.split(',').filter(|part| !part.is_empty());
                Value::Object(parts.map(gate).collect::<Result<Map<_, _>, String>>()?)
            }
        })
    }
}

fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

pub(super) fn given(matches: &ArgMatches) -> Vec<(&'static str, &'static str, Value)> {
    let Some(matches) = daemon_matches(matches) else { return Vec::new() };
    let value = |&(name, key, kind, _): &KubeletOption| {
        let mut values = matches.get_many::<Value>(name)?;
        let value = match key.strip_prefix("featureGates.") {
            Some(gate) if kind == Gates => values.rev().find_map(|gates| gates.get(gate)),
            _ => values.next_back(),
        };
        Some((name, key, value.filter(|value| !value.is_null())?.clone()))
    };
    OPTIONS.iter().filter_map(value).collect()
}

pub(super) fn ignored(matches: &ArgMatches) -> Vec<String> {
    let Some(matches) = daemon_matches(matches) else { return Vec::new() };
    let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let names = WITH_VALUE.split_whitespace().chain(SWITCHES.split_whitespace());
    names.filter(is_given).map(|name| format!("--{name}")).collect()
}

fn daemon_matches(matches: &ArgMatches) -> Option<&ArgMatches> {
    match matches.subcommand()? {
        ("serve", daemon) => Some(daemon),
        (_, config) => config.subcommand_matches("show"),
    }
}

fn ignored_options() -> impl Iterator<Item = Arg> {
    let option = |name: &'static str| {
        let option =
            Arg::new(name).long(name).hide(true).action(ArgAction::Append).value_parser(OsStringValueParser::new());
        if name == "v" { option.short('v') } else { option }
    };
    let valued = WITH_VALUE.split_whitespace().map(move |name| option(name).allow_hyphen_values(true));
    let switches = SWITCHES.split_whitespace().map(move |name| option(name).num_args(0..=1).require_equals(true));
    valued.chain(switches)
}
