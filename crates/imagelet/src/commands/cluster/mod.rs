//! Commands that use the API server of a cluster, and no node.

mod controller;
mod prefetch;

use imagelet_kube::ApiAccess;

pub(super) use self::{controller::run as run_controller, prefetch::run as run_prefetch};
use crate::cli::ClusterAccess;
use imagelet_node::{config::Environment, failure::Failure};

/// Finds the access to the API server: by the given kubeconfig, this pod's service account, or the user's kubeconfig.
fn access(given: &ClusterAccess, environment: &Environment) -> Result<ApiAccess, Failure> {
    if let Some(path) = &given.kubeconfig {
        return Ok(ApiAccess::Kubeconfig(std::path::absolute(path)?));
    }
    if environment.is_in_cluster() {
        return Ok(ApiAccess::InCluster);
    }
    let of_user = environment.folders.home.as_ref().map(|home| home.join(".kube/config")).filter(|path| path.exists());
    of_user.map(ApiAccess::Kubeconfig).ok_or_else(|| {
        Failure::invalid("there is no kubeconfig, and imagelet does not run in a pod")
            .or_hint("use `--kubeconfig FILE`")
    })
}
