//! The node while it opens: a service manager's socket may exist before it.

use std::{sync::Arc, time::Duration};

use imagelet_core::runtime::{RuntimeError, RuntimeErrorKind};
use tokio::sync::watch;

use crate::node::LocalNode;

/// How long a call waits for the start, which takes a fraction of a second.
const START_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct Readiness(watch::Receiver<Option<Arc<LocalNode>>>);

impl Readiness {
    /// A node that is not open yet, and the sender that sets it.
    pub(super) fn pending() -> (watch::Sender<Option<Arc<LocalNode>>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    pub(super) fn now(&self) -> Option<Arc<LocalNode>> {
        self.0.borrow().clone()
    }

    pub(super) async fn node(&self) -> Result<Arc<LocalNode>, RuntimeError> {
        let mut opening = self.0.clone();
        let opened = tokio::time::timeout(START_MAX, opening.wait_for(Option::is_some)).await;
        let opened = opened.ok().and_then(Result::ok).and_then(|node| node.clone());
        opened.ok_or_else(|| RuntimeError::new(RuntimeErrorKind::Unavailable, "server is not initialized yet"))
    }
}
