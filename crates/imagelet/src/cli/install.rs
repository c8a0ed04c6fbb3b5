//! The flags of `install`, and of `pod`. The containers of the Helm chart run `pod`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// What the host is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Beside the runtime: inventory, pins and collection. The kubelet is not changed.
    Node,
    /// Between the kubelet and the runtime: the kubelet's image calls go to imagelet.
    Between,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub(crate) struct InstallArgs {
    /// What the host is for.
    #[arg(long, value_enum, required_unless_present = "uninstall")]
    pub(crate) role: Option<Role>,
    /// Remove what an installation wrote, unless it was changed since.
    #[arg(long, conflicts_with = "role")]
    pub(crate) uninstall: bool,
    /// The runtime that keeps the images.
    ///
    /// Needed where the sockets of several runtimes are found, or of none.
    #[arg(long, value_name = "URI", conflicts_with = "uninstall")]
    pub(crate) runtime_endpoint: Option<String>,
    /// Keep the images that pods of this Node wait for.
    #[arg(long, value_name = "NAME", conflicts_with = "uninstall", requires = "kubeconfig", hide_short_help = true)]
    pub(crate) node_name: Option<String>,
    /// Reach the API server by this kubeconfig.
    #[arg(long, value_name = "FILE", requires = "node_name", hide_short_help = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Where the kubelet's drop-in is written; that of the running kubelet's `--config-dir` unless given.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) kubelet_config_dir: Option<PathBuf>,
    /// Keys for the daemon's configuration, besides those of the runtime and the node.
    #[arg(long, value_name = "FILE", conflicts_with = "uninstall", hide_short_help = true)]
    pub(crate) base_configuration: Option<PathBuf>,
    /// Restart neither daemon nor kubelet where their files are as wanted.
    #[arg(long, conflicts_with = "uninstall", hide_short_help = true)]
    pub(crate) keep_running: bool,
    /// Prepare another root file system, and start nothing.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Show the steps, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// A pod sets its host up.
    #[arg(skip)]
    pub(crate) is_from_pod: bool,
}

/// What a container of the chart does.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one value in a process")]
pub(crate) enum PodCommand {
    /// Copy the program to the host of this pod, and run `install` there.
    Install(PodInstallArgs),
    /// Wait until the pod is stopped.
    Wait,
}

#[derive(Debug, Args)]
pub(crate) struct PodInstallArgs {
    /// The mount namespace of the host: `/proc/1/ns/mnt` there.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["root", "dry_run", "keep_running"])]
    pub(crate) host_namespace: PathBuf,
    /// Copy this token to the host, as `/opt/imagelet/http-token`.
    #[arg(long, value_name = "FILE", conflicts_with = "uninstall")]
    pub(crate) http_token: Option<PathBuf>,
    /// Copy this password to the host, as `/opt/imagelet/proxy-password`, for `registry.proxies` of the configuration.
    #[arg(long, value_name = "FILE", conflicts_with = "uninstall")]
    pub(crate) proxy_password: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) install: InstallArgs,
}
