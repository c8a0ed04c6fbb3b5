//! What a pull is made of, and what comes of it.

use std::{sync::Arc, time::Duration};

use super::circuit_breaker::CircuitKey;
use crate::{
    credentials::PullCredentials,
    image::{ByteSize, ImageKey, Reference},
    manager::request::{Caller, PodIdentity},
    runtime::{PullRequest, RuntimeError},
};

#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// The request for an image with its default tag, without a credential.
    pub(crate) request: PullRequest,
    pub(crate) reference: Reference,
    pub(crate) credentials: PullCredentials,
    /// Its namespace is the tenant.
    pub(crate) pod: PodIdentity,
    pub(crate) priority: i32,
    pub(crate) caller: Caller,
}

#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    /// The image, in the store of the handler that the runtime says.
    pub(crate) key: ImageKey,
    /// Zero when the store does not say.
    pub(crate) size: ByteSize,
    /// Without waiting for its turn.
    pub(crate) took: Duration,
    /// The attempt of [`PullCredentials`] that succeeded.
    pub(crate) attempt: usize,
    /// The hosts that sent something in it; empty where the store does not say.
    pub(crate) senders: Vec<String>,
}

pub(crate) type Outcome = Result<Pulled, Arc<RuntimeError>>;

impl Work {
    pub(super) fn circuit_key(&self) -> CircuitKey {
        CircuitKey {
            registry: self.reference.domain().to_owned(),
            repository: self.reference.path().to_owned(),
            credentials: self.credentials.hashes(),
            image: self.request.image.image.clone(),
        }
    }

    pub(super) fn is_limited(&self) -> bool {
        !matches!(self.caller, Caller::Client { is_limited: false, .. })
    }
}
