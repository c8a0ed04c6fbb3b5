//! The credentials of pods: their pull secrets and service accounts, each read by its name.
//!
//! Nothing is listed or watched: an object is read when a pod of the node names it, and kept for a minute.

mod cluster_tokens;
mod object_cache;
mod pull_secrets;
mod secret_object;
mod service_account;

pub use self::cluster_tokens::ClusterTokens;
pub(crate) use self::pull_secrets::PullSecrets;
