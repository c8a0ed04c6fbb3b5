//! Runs the actions of HTTP requests to their end, also when their clients disconnect: half a collection has no record.

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::failure::Failure;

/// The running actions. A stop of the daemon ends them, as it ends its jobs.
#[derive(Clone, Debug)]
pub(super) struct Actions {
    running: TaskTracker,
    stop: CancellationToken,
}

impl Actions {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { running: TaskTracker::new(), stop }
    }

    /// Runs an action in a task of its own, and returns its answer.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        action: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let stop = self.stop.clone();
        let task = self.running.spawn(async move {
            tokio::select! {
                answer = action => answer,
                () = stop.cancelled() => Err(Failure::new("Unavailable", "the daemon is stopping")),
            }
        });
        task.await.unwrap_or_else(|error| Err(Failure::of(&error)))
    }

    /// Waits until all have ended.
    pub(super) async fn end(self) {
        self.running.close();
        self.running.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_mins(10);

    #[tokio::test(start_paused = true)]
    async fn an_action_runs_to_its_end_although_its_client_disconnects() {
        let actions = Actions::new(CancellationToken::new());
        let (sender, done) = oneshot::channel();
        let action = actions.run(async move {
            tokio::time::sleep(LONG).await;
            let _ = sender.send("done");
            Ok(())
        });
        tokio::time::timeout(Duration::from_secs(1), action).await.unwrap_err();
        assert_eq!(done.await.unwrap(), "done");
        actions.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_actions() {
        let stop = CancellationToken::new();
        let actions = Actions::new(stop.clone());
        let running = actions.clone();
        let action = tokio::spawn(async move { running.run(std::future::pending::<Result<(), Failure>>()).await });
        tokio::task::yield_now().await;
        stop.cancel();
        actions.end().await;
        assert_eq!(action.await.unwrap().unwrap_err().reason, "Unavailable");
    }
}
