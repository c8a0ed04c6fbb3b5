//! Whether a loopback registry without configuration speaks TLS: plain HTTP is tried first, as containerd falls back to it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::origin::Origin;

/// Loopback registries are few; ports of tests are many.
const KNOWN_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speech {
    Plain,
    Tls,
}

/// What each loopback origin was found to speak.
#[derive(Debug, Default)]
pub(crate) struct LoopbackSpeech(Mutex<HashMap<Origin, Speech>>);

impl LoopbackSpeech {
    pub(crate) fn known(&self, origin: &Origin) -> Option<Speech> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(origin).copied()
    }

    pub(crate) fn learn(&self, origin: &Origin, speech: Speech) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(origin.clone(), speech);
    }
}
