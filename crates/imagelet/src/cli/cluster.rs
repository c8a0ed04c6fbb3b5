//! The arguments of the commands for a cluster: `prefetch` and `controller`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// How the API server is reached.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClusterAccess {
    /// Reach the API server by this kubeconfig.
    ///
    /// Without it, by the service account of the pod that imagelet runs in, or by `~/.kube/config`. The variable KUBECONFIG
    /// stands for it.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", hide_env = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// Sets of images that the nodes of a cluster fetch: `ImageSet` and `ClusterImageSet` objects.
#[derive(Debug, Subcommand)]
pub(crate) enum PrefetchCommand {
    /// Create or change sets.
    #[command(after_help = "Example: imagelet prefetch apply -f images.yaml")]
    Apply {
        /// Sets in YAML or JSON, any number in a file; `-` reads stdin.
        #[arg(short, long = "file", value_name = "SET.yaml", required = true)]
        files: Vec<PathBuf>,
        /// The namespace of sets that name none.
        #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
        namespace: String,
        #[command(flatten)]
        access: ClusterAccess,
    },
    /// Show sets: how many nodes are ready, and the first failures of each class.
    #[command(after_help = "Example: imagelet prefetch status -n shop")]
    Status {
        /// Only sets of this name.
        name: Option<String>,
        /// Only sets of this namespace, and those of the cluster.
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
        #[command(flatten)]
        access: ClusterAccess,
    },
    /// Delete a set. Images that it pinned are collected like others from then on.
    #[command(after_help = "Example: imagelet prefetch rm -n shop web")]
    Rm {
        /// The name of the set.
        name: String,
        /// Its namespace.
        #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
        namespace: String,
        /// It is a `ClusterImageSet`.
        #[arg(long, conflicts_with = "namespace")]
        cluster: bool,
        #[command(flatten)]
        access: ClusterAccess,
    },
    /// Print the CustomResourceDefinitions, for `kubectl apply -f -`.
    #[command(after_help = "Example: imagelet prefetch crds")]
    Crds,
}

/// How the controller runs.
#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// The namespace of the lease by which one of several controllers leads.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(crate) namespace: String,
    /// The name of this controller among all.
    ///
    /// By default the name of the host, which in a pod is that of the pod, with a random number.
    #[arg(long, value_name = "NAME")]
    pub(crate) identity: Option<String>,
    /// Serve metrics and health over HTTP.
    ///
    /// An address that is not loopback needs `--http-token-file`.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http: Option<String>,
    /// The file with the token that every HTTP request but a probe needs.
    #[arg(long, value_name = "FILE")]
    pub(crate) http_token_file: Option<PathBuf>,
    /// Serve `/livez` and `/readyz` on this port of all addresses, for the probes of a kubelet.
    ///
    /// They show no details, and need no token. Nothing else is served there.
    #[arg(long, value_name = "PORT")]
    pub(crate) health: Option<u16>,
    #[command(flatten)]
    pub(crate) access: ClusterAccess,
}
