//! Test equipment for implementations and callers of the ports: a fake and the conformance suite.

#![allow(clippy::missing_panics_doc, reason = "a test helper panics to fail its test")]

mod debug_text;
pub(crate) mod dice;
mod fake;
mod way;

pub mod conformance;
pub mod interleavings;

pub use debug_text::debug_text;
pub use fake::FakeRuntime;
pub use way::WaySettings;
#[cfg(test)]
pub(crate) use way::in_order;
