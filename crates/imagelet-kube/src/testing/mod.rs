//! Test equipment: an API server in this process, as far as agents and the controller need one.

mod fake_api;
mod object_store;
mod requests;

pub use fake_api::{ApiFault, FakeApi, FakeApiOptions};

/// The client of a fake server that has no socket, with the limits of the agents' client.
#[cfg(test)]
pub(crate) fn server(client: kube::Client) -> kube::Client {
    crate::client::lazy(move || Box::pin(std::future::ready(Ok(client.clone()))))
}
