//! `pod remove`: the hosts of a cluster are taken back before its installation is removed.

use std::process::ExitCode;

use imagelet_kube::{ApiError, DaemonSetRollout, RolloutProgress};

use super::access;
use crate::{cli::PodRemoveArgs, config::Environment, failure::Failure};

/// The container that sets a host up.
const CONTAINER: &str = "install";

pub(crate) async fn run(arguments: PodRemoveArgs, environment: &Environment) -> Result<ExitCode, Failure> {
    let PodRemoveArgs { daemon_set, namespace, access: given, arguments } = arguments;
    let access = access(&given, environment)?;
    access.connect().await.map_err(|error| failed(&error))?;
    let rollout = DaemonSetRollout::new(access, &namespace, &daemon_set);
    if !rollout.set_arguments(CONTAINER, &arguments).await.map_err(|error| failed(&error))? {
        tracing::info!(daemon_set, namespace, "there is no such DaemonSet with a container that sets hosts up");
        return Ok(ExitCode::SUCCESS);
    }
    let report = |RolloutProgress { nodes, done }| tracing::info!(nodes, done, "hosts are taken back");
    rollout.wait(report).await.map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}

fn failed(error: &ApiError) -> Failure {
    Failure::of(error)
}
