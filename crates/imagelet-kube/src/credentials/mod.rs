//! The credentials of pods and sets: their pull secrets and service accounts, each read by its name.
//!
//! Nothing is listed or watched: an object is read when a pod of the node or a set names it. Those of pods are kept for a minute.

mod cluster_tokens;
mod object_cache;
mod pull_secrets;
mod secret_api;
mod secret_object;

pub use self::cluster_tokens::ClusterTokens;
pub(crate) use self::pull_secrets::{PullSecrets, read_set_secret};
