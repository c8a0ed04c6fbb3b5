//! The wait of one attempt for the head of a response, seen by the request that made the attempt.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use imagelet_core::runtime::{ErrorClass, Fault, Stage};
use tokio::time::Instant;

use super::reception::Silent;
use crate::registry::{
    error::{Failure, unavailable},
    locked,
};

tokio::task_local! {
    static OF_ATTEMPT: Arc<HeadWait>;
}

/// Whether an attempt waits for a head, and for which one. While it does, its request decides how long.
#[derive(Debug, Default)]
pub(crate) struct HeadWait(Mutex<Option<AwaitedHead>>);

#[derive(Clone, Debug)]
pub(crate) struct AwaitedHead {
    /// Host and port of the server.
    pub(crate) place: String,
    pub(crate) stage: Stage,
    /// The server is the target of a redirect.
    pub(crate) is_redirected: bool,
    /// When the request was sent.
    pub(crate) since: Instant,
}

impl HeadWait {
    /// Runs an attempt whose waits for heads this one shows.
    pub(crate) async fn of<F: Future>(self: Arc<Self>, attempt: F) -> F::Output {
        OF_ATTEMPT.scope(self, attempt).await
    }

    pub(crate) fn awaited(&self) -> Option<AwaitedHead> {
        locked(&self.0).clone()
    }
}

/// Notes the wait for a head in the attempt that runs now, until the guard is dropped. `None`: no request watches it.
pub(crate) fn awaits(head: AwaitedHead) -> Option<HeadWaitEnd> {
    let wait = OF_ATTEMPT.try_with(Arc::clone).ok()?;
    *locked(&wait.0) = Some(head);
    Some(HeadWaitEnd(wait))
}

/// Ends the wait when it is dropped.
#[derive(Debug)]
pub(crate) struct HeadWaitEnd(Arc<HeadWait>);

impl Drop for HeadWaitEnd {
    fn drop(&mut self) {
        locked(&self.0.0).take();
    }
}

impl AwaitedHead {
    /// The head has not come within a limit.
    pub(crate) fn late(&self, limit: Duration) -> Failure {
        no_answer(&self.place, self.stage, Silent::Connection(limit)).of_redirect(self.is_redirected)
    }
}

/// A server took a request and sent nothing.
pub(crate) fn no_answer(place: &str, stage: Stage, silent: Silent) -> Failure {
    let error = unavailable(format!("registry `{place}` did not answer")).caused_by(silent);
    Failure { error: error.with_fault(Fault::new(ErrorClass::TimedOut, stage)), retry: silent.retry() }
}
