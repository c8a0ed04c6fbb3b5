//! The decisions of a node's image manager: when to pull an image, which callers may use it, which image to remove.
//!
//! The crate opens no socket and speaks no protocol. It calls two ports, [`ports::ImageService`] and
//! [`ports::ContainerService`], and uses only local files and child processes.

pub mod audit_log;
pub mod bounded_map;
pub mod credentials;
pub mod disks;
pub mod durable;
pub mod error;
pub mod events;
pub mod failpoint;
pub mod gc;
pub mod hold;
pub mod image;
pub mod inventory;
pub mod leases;
pub mod lock;
pub mod manager;
pub mod metrics;
pub mod node_policy;
pub mod ports;
pub mod printable;
pub mod records;
pub mod retry_wait;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
pub mod text;
pub mod trusted_files;
