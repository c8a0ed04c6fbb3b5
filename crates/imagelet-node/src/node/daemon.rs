//! The node of a daemon, and the running calls that a stop ends.

use std::sync::Arc;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::LocalNode;
use crate::failure::Failure;

#[derive(Clone, Debug)]
pub struct Daemon {
    pub node: Arc<LocalNode>,
    pub calls: Calls,
}

#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// Cancelled when the daemon stops accepting calls. Running event streams and actions then end.
    pub accepting: CancellationToken,
    /// Cancelled when the grace period of a stop ends. All running calls then end.
    pub working: CancellationToken,
    actions: TaskTracker,
}

impl Calls {
    /// A disconnect of the client does not end the action, because an interrupted collection would not be recorded.
    pub(crate) async fn act<T: Send + 'static>(
        &self,
        action: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let stop = self.accepting.clone();
        let task = self.actions.spawn(async move {
            let stopping = || Failure::new("Unavailable", "the daemon is stopping");
            stop.run_until_cancelled(action).await.unwrap_or_else(|| Err(stopping()))
        });
        task.await.unwrap_or_else(|error| Err(Failure::of(&error)))
    }

    pub(crate) async fn end_actions(&self) {
        self.actions.close();
        self.actions.wait().await;
    }
}

pub(crate) async fn unless_stopped<T>(
    stop: &CancellationToken,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let stopping = || Failure::new("Cancelled", "the daemon is stopping and gave the command up");
    stop.run_until_cancelled(work).await.unwrap_or_else(|| Err(stopping()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_mins(10);

    #[tokio::test(start_paused = true)]
    async fn an_action_runs_to_its_end_although_its_client_disconnects() {
        let calls = Calls::default();
        let (sender, done) = oneshot::channel();
        let action = calls.act(async move {
            tokio::time::sleep(LONG).await;
            let _ = sender.send("done");
            Ok(())
        });
        tokio::time::timeout(Duration::from_secs(1), action).await.unwrap_err();
        assert_eq!(done.await.unwrap(), "done");
        calls.end_actions().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_actions() {
        let calls = Calls::default();
        let running = calls.clone();
        let action = tokio::spawn(async move { running.act(std::future::pending::<Result<(), Failure>>()).await });
        tokio::task::yield_now().await;
        calls.accepting.cancel();
        calls.end_actions().await;
        assert_eq!(action.await.unwrap().unwrap_err().reason, "Unavailable");
    }
}
