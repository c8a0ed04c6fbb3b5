//! The flags of `serve`.

use std::path::PathBuf;

use clap::Args;

use super::KubeletFlags;

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
