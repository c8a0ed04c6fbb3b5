//! The Container Runtime Interface `runtime.v1`, both ways: client, server, and the conversion between wire and words.
//!
//! **Invariant:** no code outside `convert` knows what a wire field means, or looks into a status message.

mod channel;
mod client;
mod convert;
mod endpoint;
#[cfg(feature = "test-util")]
pub mod pods;
mod server;
pub mod v1;

pub use client::{RemoteContainerService, RemoteImageService, RuntimeVersion};
pub use endpoint::{Endpoint, EndpointError};
pub use server::{ImageServer, ListenError, image_service, listen};

/// The longest message either side takes or sends; the interface's own limit.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
