//! The input and the result of a pull.

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
    /// The client's request, with the default tag. It has no pull secrets, so that no secrets wait in the queue.
    pub(crate) request: EnsureRequest,
    pub(crate) reference: Reference,
    pub(crate) credentials: PullCredentials,
}

#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    /// The image, and the handler whose store has it, as the runtime reports them.
    pub(crate) key: ImageKey,
    /// The size of the image; zero if the store reports no size.
    pub(crate) size: ByteSize,
    /// How long the pull took, without the wait in the queue.
    pub(crate) took: Duration,
    /// The index of the successful attempt of [`PullCredentials`].
    pub(crate) attempt: usize,
    /// The hosts that sent data in the successful attempt; empty if the store does not report hosts.
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
