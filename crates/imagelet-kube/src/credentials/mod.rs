//! The credentials of pods and sets: their pull secrets and service accounts, each read by its name.
//!
//! Nothing is listed or watched: an object is read when a pod of the node or a set names it. Those of pods are kept for a minute.

mod cluster_tokens;
mod object_cache;
mod pull_secrets;
pub(crate) mod secret_api;
mod secret_object;
mod service_account;

pub use self::cluster_tokens::ClusterTokens;
pub(crate) use self::{object_cache::ObjectName, pull_secrets::PullSecrets, secret_object::read_secret};
