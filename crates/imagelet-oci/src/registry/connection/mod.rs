//! One request to one origin: its connection, its redirects, and how long no byte came.

mod connector;
mod dial;
mod failure;
pub(super) mod host_slots;
mod http_error;
pub(super) mod origin;
pub(super) mod proxy;
pub(super) mod reception;
pub(super) mod settings;
mod stream;
pub(super) mod tls;
pub(super) mod transport;
