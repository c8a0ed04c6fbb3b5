//! The Container Runtime Interface `runtime.v1`, both ways: client, server, and the conversion between wire and words.
//!
//! **Invariant:** no code outside `convert` knows what a wire field means, or looks into a status message.

mod address;
mod backoff;
mod bounded;
mod channel;
mod client;
mod convert;
mod endpoint;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod server;
mod stall;
mod trace;
pub mod v1;

pub use address::{Address, AddressError, AddressPlatform, client_target};
pub use client::{RemoteContainerService, RemoteImageService, RuntimeVersion};
pub use convert::Handlers;
pub use endpoint::{Endpoint, EndpointError};
pub use server::{ListenError, RuntimeServer, listen, routes};
pub use trace::{CallerTrace, current_trace};

/// The longest message in either direction; the interface's own limit.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
