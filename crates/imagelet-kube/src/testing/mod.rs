//! Test equipment: an API server in this process, as far as agents and the controller need one.

mod fake_api;
mod object_store;
mod requests;

pub use fake_api::{ApiFault, FakeApi, FakeApiOptions};
