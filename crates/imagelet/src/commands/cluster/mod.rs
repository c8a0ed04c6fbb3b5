//! Commands that talk to the API server of a cluster, and to no node.

mod controller;
mod prefetch;

use std::process::ExitCode;

use imagelet_kube::{ApiAccess, ApiClient, DaemonSetRollout, RolloutProgress};

pub(super) use self::{controller::run as run_controller, prefetch::run as run_prefetch};
use crate::cli::{ClusterAccess, PodRemoveArgs};
use imagelet_node::{config::Environment, failure::Failure};

/// The container that sets a host up.
const INSTALL_CONTAINER: &str = "install";

/// `pod remove`: the hosts of a cluster are taken back before its installation is removed.
pub(super) async fn remove_from_hosts(
    arguments: PodRemoveArgs,
    environment: &Environment,
) -> Result<ExitCode, Failure> {
    let PodRemoveArgs { daemon_set, namespace, access: given, arguments } = arguments;
    let access = access(&given, environment)?;
    access.connect().await?;
    let rollout = DaemonSetRollout::new(ApiClient::new(access), &namespace, &daemon_set);
    if !rollout.set_arguments(INSTALL_CONTAINER, &arguments).await? {
        tracing::info!(daemon_set, namespace, "there is no such DaemonSet with a container that sets hosts up");
        return Ok(ExitCode::SUCCESS);
    }
    let report = |RolloutProgress { nodes, done }| tracing::info!(nodes, done, "hosts are taken back");
    rollout.wait(report).await?;
    Ok(ExitCode::SUCCESS)
}

/// The way to the API server: a kubeconfig, the service account of this pod, or the user's kubeconfig.
fn access(given: &ClusterAccess, environment: &Environment) -> Result<ApiAccess, Failure> {
    if let Some(path) = &given.kubeconfig {
        return Ok(ApiAccess::Kubeconfig(std::path::absolute(path)?));
    }
    if environment.is_in_cluster() {
        return Ok(ApiAccess::InCluster);
    }
    let of_user = environment.home.as_ref().map(|home| home.join(".kube/config")).filter(|path| path.exists());
    of_user.map(ApiAccess::Kubeconfig).ok_or_else(|| {
        Failure::new("InvalidArgument", "there is no kubeconfig, and imagelet does not run in a pod")
            .or_hint("use `--kubeconfig FILE`")
    })
}
