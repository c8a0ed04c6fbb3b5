//! The flags of `install`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// What the host is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Beside the runtime: inventory, pins and collection. The kubelet is not changed.
    Node,
    /// Between the kubelet and the runtime: the kubelet's image calls go to imagelet.
    Between,
}

#[derive(Debug, Args)]
#[group(id = "direction", required = true, args = ["role", "uninstall"])]
pub(crate) struct InstallArgs {
    /// What the host is for.
    #[arg(long, value_enum)]
    pub(crate) role: Option<Role>,
    /// Remove what an installation wrote, unless it was changed since.
    #[arg(long)]
    pub(crate) uninstall: bool,
    /// The runtime that keeps the images; needed where several or none are found.
    #[arg(long, value_name = "URI", conflicts_with = "uninstall")]
    pub(crate) runtime_endpoint: Option<String>,
    /// Keep the images that pods of this Node wait for.
    #[arg(long, value_name = "NAME", conflicts_with = "uninstall", requires = "kubeconfig")]
    pub(crate) node_name: Option<String>,
    /// Reach the API server by this kubeconfig.
    #[arg(long, value_name = "FILE", requires = "node_name")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Where the kubelet's drop-in is written; that of the running kubelet's `--config-dir` unless given.
    #[arg(long, value_name = "DIR")]
    pub(crate) kubelet_config_dir: Option<PathBuf>,
    /// Prepare another root file system, such as that of an image of a machine: nothing is started.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Show the steps, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}
