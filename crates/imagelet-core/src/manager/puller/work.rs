//! What a pull is made of, and what comes of it.

use std::{sync::Arc, time::Duration};

use super::circuit_breaker::CircuitKey;
use crate::{
    credentials::PullCredentials,
    error::RuntimeError,
    image::{ByteSize, ImageKey, Reference},
    manager::{Caller, EnsureRequest},
    ports::PullRequest,
};

#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Of the request: its pull with the default tag, its caller and its priority. Its pull secrets would wait with it.
    pub(crate) request: EnsureRequest,
    pub(crate) reference: Reference,
    pub(crate) credentials: PullCredentials,
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
            image: self.request.image().to_owned(),
        }
    }

    /// The pull of an attempt.
    pub(crate) fn attempt(&self, attempt: usize) -> PullRequest {
        PullRequest {
            credential: self.credentials.of_registry(attempt).map(|tracked| tracked.credential.clone()),
            host_credentials: self.credentials.of_hosts(attempt),
            ..self.request.pull.clone()
        }
    }

    pub(super) fn is_limited(&self) -> bool {
        !matches!(self.request.caller, Caller::Client { is_limited: false, .. })
    }
}
