//! The arguments of `pod`: what the containers of the Helm chart run.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{cluster::ClusterAccess, install::InstallArgs};

/// What a container of the chart does.
#[derive(Debug, Subcommand)]
pub(crate) enum PodCommand {
    /// Copy the program to the host of this pod, and run `install` there.
    Install(PodInstallArgs),
    /// Wait until the pod is stopped.
    Wait,
    /// Have all pods of a DaemonSet take their hosts back, and wait until each has done so.
    Remove(PodRemoveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PodInstallArgs {
    /// The mount namespace of the host: `/proc/1/ns/mnt` there.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["root", "dry_run", "keep_running"])]
    pub(crate) host_namespace: PathBuf,
    /// Copy this token to the host, as `/opt/imagelet/http-token`.
    #[arg(long, value_name = "FILE", conflicts_with = "uninstall")]
    pub(crate) http_token: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) install: InstallArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PodRemoveArgs {
    /// The DaemonSet whose pods set hosts up.
    #[arg(long, value_name = "NAME")]
    pub(crate) daemon_set: String,
    /// Its namespace.
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) access: ClusterAccess,
    /// What the container `install` of its pods runs from now on: `pod install --uninstall ...`.
    #[arg(last = true, required = true, value_name = "ARGUMENT")]
    pub(crate) arguments: Vec<String>,
}
