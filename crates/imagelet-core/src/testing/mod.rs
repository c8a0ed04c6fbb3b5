//! Test equipment for implementations and callers of the ports: a fake and the conformance suite.

#![allow(clippy::missing_panics_doc, reason = "a test helper panics to fail its test")]

pub(crate) mod dice;
mod fake;
mod way;

pub mod conformance;
pub mod interleavings;

pub use fake::FakeRuntime;
pub use way::WaySettings;
