//! `controller`: runs the prefetch controller until it is stopped.

use std::{process::ExitCode, sync::Arc, time::SystemTime};

use futures_util::future::OptionFuture;
use imagelet_core::{metrics::Metrics, retry_wait::random};
use imagelet_kube::PrefetchController;

use super::access;
use crate::cli::ControllerArgs;
use imagelet_node::{
    config::{Environment, HttpSettings},
    failure::Failure,
    http::{self, HttpAccess, MeasuredController},
};

pub(crate) async fn run(arguments: ControllerArgs, environment: &Environment) -> Result<ExitCode, Failure> {
    let ControllerArgs { namespace, identity, http: address, http_token_file: token_file, health, access: given } =
        arguments;
    let access = access(&given, environment)?;
    let settings = HttpSettings { address: address.clone(), token_file, ..HttpSettings::default() };
    let policy = HttpAccess::load(&settings)?;
    let listener = address.as_deref().map(|address| http::bind(address, policy.has_token()));
    let listener = OptionFuture::from(listener).await.transpose()?;
    let for_probes = OptionFuture::from(health.map(http::bind_all)).await.transpose()?;
    // Connects first, because an invalid kubeconfig must end the command. The controller would only log this error.
    access.connect().await?;
    let identity = identity.unwrap_or_else(own_identity);
    tracing::info!(identity, namespace, http = address, "the controller of prefetch waits for its lease");
    let (metrics, started_at) = (Arc::new(Metrics::new()), SystemTime::now());
    let controller = Arc::new(PrefetchController::new(access.client(), &namespace, &identity, Arc::clone(&metrics)));
    let measured = MeasuredController { controller: Arc::clone(&controller), metrics, started_at };
    let serving = listener.map(|listener| http::serve_controller(listener, measured, policy));
    let probed = for_probes.map(|listener| http::serve_health(listener, Arc::clone(&controller)));
    tokio::join!(controller.run(), OptionFuture::from(serving), OptionFuture::from(probed));
    Ok(ExitCode::SUCCESS)
}

/// The host name and a random number. Without the number, two controllers on one host would both hold the lease.
fn own_identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:016x}", random())
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
