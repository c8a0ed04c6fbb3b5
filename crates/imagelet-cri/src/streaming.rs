//! Whether lists come in a stream, of which none is too long for one message (`docs/spec/cri.md §3.1`).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};

/// Off unless switched on, and off for good once the runtime says that it has no streams. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streaming(Arc<AtomicBool>);

impl Streaming {
    pub(crate) fn on() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// A list in a stream if that is on, else whole. What came in a stream that failed is dropped.
    pub(crate) async fn list<T>(
        &self,
        streamed: impl Future<Output = Result<Vec<T>, RuntimeError>>,
        whole: impl Future<Output = Result<Vec<T>, RuntimeError>>,
    ) -> Result<Vec<T>, RuntimeError> {
        if !self.0.load(Ordering::Relaxed) {
            return whole.await;
        }
        match streamed.await {
            Err(error) if error.kind() == RuntimeErrorKind::Unsupported => {
                tracing::info!("the runtime does not stream lists; asking for whole ones from now on");
                self.0.store(false, Ordering::Relaxed);
                whole.await
            }
            streamed => streamed,
        }
    }
}
