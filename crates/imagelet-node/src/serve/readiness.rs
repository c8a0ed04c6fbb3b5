//! The node while it opens: a service manager's socket may exist before it.

use std::{sync::Arc, time::Duration};

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};
use tokio::sync::SetOnce;

use crate::node::LocalNode;

/// How long a call waits for the start, which takes a fraction of a second.
const START_MAX: Duration = Duration::from_secs(5);

/// The node, once it is open.
#[derive(Clone, Debug, Default)]
pub(super) struct Readiness(pub(super) Arc<SetOnce<Arc<LocalNode>>>);

impl Readiness {
    pub(super) async fn node(&self) -> Result<Arc<LocalNode>, RuntimeError> {
        let opened = tokio::time::timeout(START_MAX, self.0.wait()).await;
        let late = |_| RuntimeError::new(RuntimeErrorKind::Unavailable, "server is not initialized yet");
        opened.cloned().map_err(late)
    }
}
