//! Whether the unfinished content of a pull stays for the next one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};

/// Shared by all that a pull stages; allowed from its start until an error that a further attempt would meet again.
#[derive(Clone, Debug)]
pub(crate) struct Resumption(Arc<AtomicBool>);

impl Resumption {
    pub(crate) fn new(is_allowed: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_allowed)))
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends it where the image is refused, or its content takes the space that others need.
    pub(crate) fn heed(&self, error: &RuntimeError) {
        if ends_it(error.kind()) {
            self.0.store(false, Ordering::Relaxed);
        }
    }
}

fn ends_it(kind: RuntimeErrorKind) -> bool {
    match kind {
        RuntimeErrorKind::Corrupt
        | RuntimeErrorKind::Unacceptable
        | RuntimeErrorKind::Unsupported
        | RuntimeErrorKind::InvalidArgument
        | RuntimeErrorKind::SignatureInvalid
        | RuntimeErrorKind::DiskFull
        | RuntimeErrorKind::Defect => true,
        // Whatever interrupts a pull: the registry, the network, the caller, the store.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_leaves_what_a_refusal_removes() {
        use RuntimeErrorKind::{
            Cancelled, Corrupt, Denied, DiskFull, NotFound, Other, RegistryUnavailable, SignatureInvalid, TimedOut,
            Unacceptable, Unavailable, Unsupported,
        };
        for (kind, stays) in [
            (RegistryUnavailable, true),
            (TimedOut, true),
            (Cancelled, true),
            (Unavailable, true),
            (Denied, true),
            (NotFound, true),
            (Other, true),
            (Corrupt, false),
            (Unacceptable, false),
            (Unsupported, false),
            (SignatureInvalid, false),
            (DiskFull, false),
        ] {
            let resumption = Resumption::new(true);
            let shared = resumption.clone();
            resumption.heed(&RuntimeError::new(kind, "it failed"));
            assert_eq!(shared.is_allowed(), stays, "{kind:?}");
        }
        assert!(!Resumption::new(false).is_allowed());
    }
}
