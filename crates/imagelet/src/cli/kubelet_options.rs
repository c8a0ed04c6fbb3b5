//! The options of a kubelet's unit that `serve` accepts: feature gates, and those that say nothing about
//! images, which are ignored.

use clap::{Arg, ArgAction, ArgMatches, Command, builder::OsStringValueParser, parser::ValueSource};
use serde_json::Value;

/// Ignored options with a value: those of current kubelets, and of earlier ones that units still have.
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

/// Ignored options whose value may be left out.
const SWITCHES: &str = "
    add-dir-header allow-privileged alsologtostderr anonymous-auth authentication-token-webhook cgroups-per-qos
    contention-profiling cpu-cfs-quota docker-only docker-tls enable-cadvisor-json-endpoints
    enable-controller-attach-detach enable-debugging-handlers enable-load-reader enable-server exit-on-lock-contention
    experimental-allocatable-ignore-eviction experimental-check-node-capabilities-before-mount
    experimental-kernel-memcg-notification fail-cgroupv1 fail-swap-on keep-terminated-pod-volumes
    kernel-memcg-notification log-cadvisor-usage log-text-split-stream logtostderr make-iptables-util-chains one-output
    protect-kernel-defaults redirect-container-streaming register-node register-schedulable rotate-certificates
    rotate-server-certificates runonce seccomp-default skip-headers skip-log-headers storage-driver-secure";

/// Lets the commands that read a daemon's options accept the ignored ones, without help, and of a repeated option take the
/// last value, as the kubelet does: scripts append their options to those of a unit.
pub(super) fn accept_ignored(command: Command) -> Command {
    let serve = |command: Command| command.args(ignored_options()).args_override_self(true);
    command.mut_subcommand("serve", serve).mut_subcommand("config", |config| config.mut_subcommand("show", serve))
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

/// The ignored options of a command line, as `--NAME`.
pub(super) fn ignored(matches: &ArgMatches) -> Vec<String> {
    let Some((name, below)) = matches.subcommand() else { return Vec::new() };
    if name == "config" {
        return ignored(below);
    }
    let is_given =
        |name: &&str| below.try_contains_id(name).is_ok() && below.value_source(name) == Some(ValueSource::CommandLine);
    let names = WITH_VALUE.split_whitespace().chain(SWITCHES.split_whitespace());
    names.filter(is_given).map(|name| format!("--{name}")).collect()
}

/// Gates as the kubelet's flag has them: `NAME=true,NAME=false`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gates(Vec<(String, bool)>);

impl Gates {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let gate = |part: &str| {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not `NAME=VALUE`"))?;
            let value = go_bool(value.trim()).ok_or_else(|| format!("`{part}` is neither true nor false"))?;
            Ok((name.trim().to_owned(), value))
        };
        text.split(',').filter(|part| !part.is_empty()).map(gate).collect::<Result<_, _>>().map(Self)
    }
}

/// The gate that a key names, of `--feature-gates`.
pub(super) fn gate(given: &[Gates], key: &str) -> Option<Value> {
    let is_named = |(name, _): &&(String, bool)| key.strip_prefix("featureGates.") == Some(name);
    given.iter().flat_map(|gates| &gates.0).rfind(is_named).map(|(_, value)| (*value).into())
}

pub(super) fn parse_go_bool(text: &str) -> Result<bool, String> {
    go_bool(text).ok_or_else(|| format!("`{text}` is neither true nor false"))
}

fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
