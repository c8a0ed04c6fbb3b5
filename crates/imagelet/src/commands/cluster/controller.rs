//! `controller`: runs the controller of prefetch until it is stopped.

use std::hash::{BuildHasher as _, RandomState};

use imagelet_kube::PrefetchController;

use super::access;
use crate::{cli::ControllerArgs, config::Environment, failure::Failure};

pub(crate) async fn run(arguments: ControllerArgs, environment: &Environment) -> Result<(), Failure> {
    let access = access(&arguments.access, environment)?;
    // A wrong kubeconfig ends the command, and not only a line in its log.
    access.connect().await.map_err(|error| Failure::of(&error))?;
    let identity = arguments.identity.unwrap_or_else(own_identity);
    tracing::info!(identity, namespace = arguments.namespace, "the controller of prefetch waits for its lease");
    PrefetchController::new(access, &arguments.namespace, &identity).run().await;
    Ok(())
}

/// The name of the host and a random number: two controllers on one host that had one identity would both hold the lease.
fn own_identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:016x}", RandomState::new().hash_one(host.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_controller_has_an_identity_of_its_own_that_names_its_host() {
        let [one, other] = [own_identity(), own_identity()];
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert_ne!(one, other);
        assert!(one.starts_with(&format!("{host}_")), "{one}");
    }
}
