//! What a pull is made of, and what comes of it.

use std::{sync::Arc, time::Duration};

use super::circuit_breaker::CircuitKey;
use crate::{
    audit_log::{Act, PullHost},
    credentials::PullCredentials,
    image::{ByteSize, ImageKey, Reference},
    manager::request::Caller,
    runtime::{PullRequest, PullRoute, RuntimeError},
};

#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// The request for an image with its default tag, without a credential.
    pub(crate) request: PullRequest,
    pub(crate) reference: Reference,
    pub(crate) credentials: PullCredentials,
    pub(crate) tenant: Arc<str>,
    pub(crate) priority: i32,
    pub(crate) caller: Caller,
}

#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    /// The image, in the store of the handler that the runtime says.
    pub(crate) key: ImageKey,
    /// Zero when the store does not say.
    pub(crate) size: ByteSize,
    /// Compressed bytes that came over the network; its size where the store does not say.
    pub(crate) fetched: ByteSize,
    /// Without waiting for its turn.
    pub(crate) took: Duration,
    /// The attempt of [`PullCredentials`] that succeeded.
    pub(crate) attempt: usize,
    /// The hosts that sent something in it; empty where the store does not say.
    pub(crate) senders: Vec<String>,
    pub(crate) way: Option<PullRoute>,
    pub(crate) hosts: Vec<PullHost>,
}

impl Pulled {
    pub(crate) fn act(&self, act: Act) -> Act {
        let bytes = Some(self.fetched.0).filter(|size| *size > 0);
        Act { keys: vec![self.key.to_string()], bytes, hosts: self.hosts.clone(), ..act }
    }
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
