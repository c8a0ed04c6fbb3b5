//! The flags of `serve`, among them those of a kubelet's unit, each of which sets one key of the configuration.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use imagelet_core::text::GoDuration;
use serde_json::Value;

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
    /// Reach the API server by this kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) kubelet: KubeletFlags,
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
    #[arg(long, hide_short_help = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
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
}

impl KubeletFlags {
    /// Those that were given: the flag, its key and the value.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, &'static str, Value)> {
        // A burst of 0 lets no pull begin, ever; in a file it becomes the default, too.
        let duration = |given: Option<GoDuration>| Some(given?.to_string().into());
        let burst = self.registry_burst.filter(|burst| *burst != 0);
        [
            ("--image-gc-high-threshold", "imageGCHighThresholdPercent", self.image_gc_high_threshold.map(Value::from)),
            ("--image-gc-low-threshold", "imageGCLowThresholdPercent", self.image_gc_low_threshold.map(Value::from)),
            ("--minimum-image-ttl-duration", "imageMinimumGCAge", duration(self.minimum_image_ttl_duration)),
            ("--maximum-image-ttl-duration", "imageMaximumGCAge", duration(self.maximum_image_ttl_duration)),
            ("--serialize-image-pulls", "serializeImagePulls", self.serialize_image_pulls.map(Value::from)),
            ("--registry-qps", "registryPullQPS", self.registry_qps.map(Value::from)),
            ("--registry-burst", "registryBurst", burst.map(Value::from)),
            ("--max-parallel-image-pulls", "maxParallelImagePulls", self.max_parallel_image_pulls.map(Value::from)),
        ]
        .into_iter()
        .filter_map(|(flag, key, value)| Some((flag, key, value?)))
    }
}
