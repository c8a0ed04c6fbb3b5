//! The flags of `serve`.

use std::path::PathBuf;

use clap::Args;
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
    /// Options in the kubelet's words: option, key and value. They win over both files.
    #[arg(skip)]
    pub(crate) kubelet: Vec<(&'static str, &'static str, Value)>,
    /// Options of a kubelet's unit that say nothing about images.
    #[arg(skip)]
    pub(crate) ignored: Vec<String>,
}

impl ServeArgs {
    /// Returns warnings about options without effect. `has_node`: the node has a name, so `--kubeconfig` has an effect.
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
