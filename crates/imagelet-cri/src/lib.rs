//! The Container Runtime Interface `runtime.v1`, both ways: client, server, and the conversion between wire and words.

mod secrets;
pub mod v1;
