//! The credentials of pods and sets: pull secrets and service accounts.
//!
//! Secrets and accounts are only read by name, never listed or watched. Those of pods are cached for a minute.

mod cluster_tokens;
mod object_cache;
mod pull_secrets;
mod secret_api;
mod secret_object;

pub use self::cluster_tokens::ClusterTokens;
pub(crate) use self::pull_secrets::{PullSecrets, read_set_secret};
