//! The Container Runtime Interface `runtime.v1`: client, server, and the conversion of wire messages to core types.
//!
//! **Invariant:** only `convert` knows the meaning of wire fields and parses status messages.

mod address;
pub(crate) mod bounded;
mod channel;
mod client;
pub(crate) mod convert;
mod endpoint;
mod runtime_info;
pub(crate) mod server;
mod stall;
mod trace;

pub use address::{Address, AddressError, AddressPlatform, client_target};
pub use client::{RemoteContainerService, RemoteImageService};
pub use convert::Handlers;
pub use endpoint::{Endpoint, EndpointError};
pub(crate) use runtime_info::OVERLAYFS;
pub use runtime_info::{RegistrySettings, RuntimeConfiguration, RuntimeInfo, SnapshotterPlace};
pub use server::{ListenError, RuntimeServer, listen, routes};
pub use trace::{CallerTrace, current_trace};

#[allow(clippy::all, clippy::pedantic, unreachable_pub)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
}
