//! Test equipment: an API server in this process, as far as the agent of a node needs one.

mod fake_api;
mod named_objects;
mod object_log;

pub use fake_api::{ApiFault, FakeApi, FakeApiOptions};
