//! The node while it is being opened: the socket of a service manager may exist before it.

use std::{sync::Arc, time::Duration};

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};
use tokio::sync::watch;

use crate::node::LocalNode;

/// A call waits this long for the start; it takes a fraction of a second.
const START_MAX: Duration = Duration::from_secs(5);

/// A node, once it is open. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Readiness(watch::Receiver<Option<Arc<LocalNode>>>);

impl Readiness {
    /// A node that is not open yet, and where it is put once it is.
    pub(super) fn pending() -> (watch::Sender<Option<Arc<LocalNode>>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// The node, if it is open.
    pub(super) fn now(&self) -> Option<Arc<LocalNode>> {
        self.0.borrow().clone()
    }

    /// The node; waits for it for a while.
    ///
    /// # Errors
    /// In containerd's words, where the start takes longer than [`START_MAX`].
    pub(super) async fn node(&self) -> Result<Arc<LocalNode>, RuntimeError> {
        let mut opening = self.0.clone();
        let opened = tokio::time::timeout(START_MAX, opening.wait_for(Option::is_some)).await;
        let opened = opened.ok().and_then(Result::ok).and_then(|node| node.clone());
        opened.ok_or_else(|| RuntimeError::new(RuntimeErrorKind::Unavailable, "server is not initialized yet"))
    }
}
