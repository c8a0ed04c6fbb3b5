//! The credentials of pods and sets: their pull secrets and service accounts, read by name.
//!
//! No object is listed or watched. An object is read when a pod of the node or a set names it. Objects of pods are
//! cached for a minute.

mod cluster_tokens;
mod object_cache;
mod pull_secrets;
mod secret_api;
mod secret_object;

pub use self::cluster_tokens::ClusterTokens;
pub(crate) use self::pull_secrets::{PullSecrets, read_set_secret};
