//! The flags of `serve`, among them those of a kubelet's unit, each of which sets one key of the configuration.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use imagelet_core::text::GoDuration;
use serde_json::Value;

use super::kubelet_options::{Gates, gate, parse_go_bool};

const ENSURE_SECRET: &str = "featureGates.KubeletEnsureSecretPulledImages";
const MAXIMUM_AGE: &str = "featureGates.ImageMaximumGCAge";

/// Which files and places the daemon uses.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Configuration file; read again on SIGHUP.
    ///
    /// A file of `kind: ImageletConfiguration`. The variable IMAGELET_CONFIG stands for it; commands that need no daemon read
    /// the file that the variable names.
    #[arg(long, env = "IMAGELET_CONFIG", value_name = "FILE", hide_env = true)]
    pub(crate) config: Option<PathBuf>,
    /// Take the image settings from a kubelet's configuration file.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubelet_config: Option<PathBuf>,
    /// And from the drop-ins of its `--config-dir`, the `*.conf` files of this folder.
    #[arg(long, alias = "config-dir", value_name = "DIR", hide_short_help = true)]
    pub(crate) kubelet_config_dir: Option<PathBuf>,
    /// Listen on this unix socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Serve metrics, health, API and dashboard over HTTP.
    ///
    /// An address that is not loopback needs `http.tokenFile` in the configuration.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http: Option<String>,
    /// What credential providers there are: a file of kind `CredentialProviderConfig`, or a folder of such files.
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    pub(crate) image_credential_provider_config: Option<PathBuf>,
    /// The folder of the credential providers' executables.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) image_credential_provider_bin_dir: Option<PathBuf>,
    /// Keep images in this CRI runtime instead of the embedded store.
    #[arg(long, value_name = "URI")]
    pub(crate) runtime_endpoint: Option<String>,
    /// Keep the images that pods of this Node wait for.
    ///
    /// Without `--kubeconfig` the API server is reached by the service account of the pod that imagelet runs in.
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Reach the API server by this kubeconfig; without the node's name it is ignored.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) kubelet: KubeletFlags,
    /// Options of a kubelet's unit that say nothing about images.
    #[arg(skip)]
    pub(crate) ignored: Vec<String>,
}

impl ServeArgs {
    /// Warnings that name the options without effect; `has_node`: flags or files name the node.
    pub(crate) fn ignored_options(&self, has_node: bool) -> impl Iterator<Item = String> {
        let names = self.ignored.join(", ");
        let names = (!names.is_empty())
            .then(|| format!("options of the kubelet that say nothing about images are ignored: {names}"));
        let kubeconfig = self.kubeconfig.as_ref().filter(|_| !has_node);
        let kubeconfig =
            kubeconfig.map(|_| "--kubeconfig is ignored: neither --node-name nor a file names the node".to_owned());
        names.into_iter().chain(kubeconfig)
    }
}

/// Flags of the daemon in the kubelet's words. They win over both files.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Kubelet's options, which win over both files")]
pub(crate) struct KubeletFlags {
    /// `imageGCHighThresholdPercent`.
    #[arg(long, hide_short_help = true, value_name = "PERCENT", allow_negative_numbers = true)]
    image_gc_high_threshold: Option<i32>,
    /// `imageGCLowThresholdPercent`.
    #[arg(long, hide_short_help = true, value_name = "PERCENT", allow_negative_numbers = true)]
    image_gc_low_threshold: Option<i32>,
    /// `imageMinimumGCAge`; 0 holds here.
    #[arg(long, hide_short_help = true, value_name = "DURATION", allow_hyphen_values = true)]
    minimum_image_ttl_duration: Option<GoDuration>,
    /// `imageMaximumGCAge`; 0 is off.
    #[arg(long, hide_short_help = true, value_name = "DURATION", allow_hyphen_values = true)]
    maximum_image_ttl_duration: Option<GoDuration>,
    /// `serializeImagePulls`; without a value it is true.
    #[arg(long, hide_short_help = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_go_bool, action = ArgAction::Set)]
    serialize_image_pulls: Option<bool>,
    /// `registryPullQPS`; 0 is no bound.
    #[arg(long, hide_short_help = true, value_name = "NUMBER", allow_negative_numbers = true)]
    registry_qps: Option<i32>,
    /// `registryBurst`; 0 is the default.
    #[arg(long, hide_short_help = true, value_name = "NUMBER", allow_negative_numbers = true)]
    registry_burst: Option<i32>,
    /// `maxParallelImagePulls`; from 2 on, pulls are not serialized unless that is asked for.
    #[arg(long, hide_short_help = true, value_name = "NUMBER", allow_negative_numbers = true)]
    max_parallel_image_pulls: Option<i32>,
    /// `podInfraContainerImage`.
    #[arg(long, hide_short_help = true, value_name = "REF")]
    pod_infra_container_image: Option<String>,
    /// `featureGates`: `KubeletEnsureSecretPulledImages=false`; gates that are not about images are ignored.
    #[arg(long, hide_short_help = true, value_name = "PAIRS", value_parser = Gates::parse)]
    feature_gates: Vec<Gates>,
    /// `maxPods`; 0 is the default.
    #[arg(long, hide_short_help = true, value_name = "NUMBER", allow_negative_numbers = true)]
    max_pods: Option<i32>,
    /// `runtimeRequestTimeout`; 0 is the default.
    #[arg(long, hide_short_help = true, value_name = "DURATION", allow_hyphen_values = true)]
    runtime_request_timeout: Option<GoDuration>,
    /// `nodeStatusMaxImages`.
    #[arg(long, hide_short_help = true, value_name = "NUMBER", allow_negative_numbers = true)]
    node_status_max_images: Option<i32>,
    /// `nodeStatusUpdateFrequency`; 0 is the default.
    #[arg(long, hide_short_help = true, value_name = "DURATION", allow_hyphen_values = true)]
    node_status_update_frequency: Option<GoDuration>,
    /// `localStorageCapacityIsolation`; without a value it is true.
    #[arg(long, hide_short_help = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_go_bool, action = ArgAction::Set)]
    local_storage_capacity_isolation: Option<bool>,
    /// `eventRecordQPS`.
    #[arg(long, hide_short_help = true, value_name = "NUMBER", allow_negative_numbers = true)]
    event_qps: Option<i32>,
    /// `eventBurst`; 0 is the default.
    #[arg(long, hide_short_help = true, value_name = "NUMBER", allow_negative_numbers = true)]
    event_burst: Option<i32>,
    /// `containerRuntimeEndpoint`: where the kubelet asks for containers; it makes imagelet ask nothing.
    #[arg(long, hide_short_help = true, value_name = "URI")]
    container_runtime_endpoint: Option<String>,
    /// `imageServiceEndpoint`.
    #[arg(long, hide_short_help = true, value_name = "URI")]
    image_service_endpoint: Option<String>,
}

impl KubeletFlags {
    /// Those that were given: the flag, its key and the value.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, &'static str, Value)> {
        let duration = |given: Option<GoDuration>| Some(given?.to_string().into());
        // A burst of 0 lets no pull begin, ever; in a file it becomes the default, too, and so do the others.
        let count = |given: Option<i32>| given.filter(|given| *given != 0).map(Value::from);
        let time = |given: Option<GoDuration>| duration(given.filter(|given| given.0 != 0));
        let text = |given: &Option<String>| given.clone().filter(|given| !given.is_empty()).map(Value::from);
        [
            ("--image-gc-high-threshold", "imageGCHighThresholdPercent", self.image_gc_high_threshold.map(Value::from)),
            ("--image-gc-low-threshold", "imageGCLowThresholdPercent", self.image_gc_low_threshold.map(Value::from)),
            ("--minimum-image-ttl-duration", "imageMinimumGCAge", duration(self.minimum_image_ttl_duration)),
            ("--maximum-image-ttl-duration", "imageMaximumGCAge", duration(self.maximum_image_ttl_duration)),
            ("--serialize-image-pulls", "serializeImagePulls", self.serialize_image_pulls.map(Value::from)),
            ("--registry-qps", "registryPullQPS", self.registry_qps.map(Value::from)),
            ("--registry-burst", "registryBurst", count(self.registry_burst)),
            ("--max-parallel-image-pulls", "maxParallelImagePulls", self.max_parallel_image_pulls.map(Value::from)),
            ("--pod-infra-container-image", "podInfraContainerImage", text(&self.pod_infra_container_image)),
            ("--feature-gates", ENSURE_SECRET, gate(&self.feature_gates, ENSURE_SECRET)),
            ("--feature-gates", MAXIMUM_AGE, gate(&self.feature_gates, MAXIMUM_AGE)),
            ("--max-pods", "maxPods", count(self.max_pods)),
            ("--runtime-request-timeout", "runtimeRequestTimeout", time(self.runtime_request_timeout)),
            ("--node-status-max-images", "nodeStatusMaxImages", self.node_status_max_images.map(Value::from)),
            ("--node-status-update-frequency", "nodeStatusUpdateFrequency", time(self.node_status_update_frequency)),
            (
                "--local-storage-capacity-isolation",
                "localStorageCapacityIsolation",
                self.local_storage_capacity_isolation.map(Value::from),
            ),
            ("--event-qps", "eventRecordQPS", self.event_qps.map(Value::from)),
            ("--event-burst", "eventBurst", count(self.event_burst)),
            ("--container-runtime-endpoint", "containerRuntimeEndpoint", text(&self.container_runtime_endpoint)),
            ("--image-service-endpoint", "imageServiceEndpoint", text(&self.image_service_endpoint)),
        ]
        .into_iter()
        .filter_map(|(flag, key, value)| Some((flag, key, value?)))
    }
}
