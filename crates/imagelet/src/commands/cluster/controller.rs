//! `controller`: runs the controller of prefetch until it is stopped.

use imagelet_kube::PrefetchController;

use super::access;
use crate::{cli::ControllerArgs, config::Environment, failure::Failure};

pub(crate) async fn run(arguments: ControllerArgs, environment: &Environment) -> Result<(), Failure> {
    let access = access(&arguments.access, environment)?;
    // A wrong kubeconfig ends the command, and not only a line in its log.
    access.connect().await.map_err(|error| Failure::of(&error))?;
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let identity = arguments.identity.unwrap_or_else(host);
    tracing::info!(identity, namespace = arguments.namespace, "the controller of prefetch waits for its lease");
    PrefetchController::new(access, &arguments.namespace, &identity).run().await;
    Ok(())
}
