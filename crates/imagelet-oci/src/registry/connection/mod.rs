//! One request to one origin: its connection, its redirects, and how long no byte came.

pub(super) mod origin;
pub(super) mod reception;
pub(super) mod tls;
pub(super) mod transport;
