//! The stop of the daemon: removes its socket, then cancels its calls.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::readiness::Readiness;
use crate::{
    api::{EventsRequest, Handler, Refusal, Replies},
    failure::Failure,
};

/// Removes the daemon's socket when dropped, unless another process has replaced it.
#[derive(Debug)]
pub(super) struct SocketGuard {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl SocketGuard {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        if self.identity.is_some()
            && identity(&self.path) == self.identity
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(socket = %self.path.display(), %error, "could not remove the socket");
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Commands over the socket, cancelled when the grace period ends.
pub(super) struct Stoppable {
    pub(super) node: Readiness,
    pub(super) working: CancellationToken,
    /// Cancelled when no more calls are accepted: a stream of events does not delay the stop.
    pub(super) accepting: CancellationToken,
}

#[async_trait]
impl Handler for Stoppable {
    async fn handle(&self, command: &str, body: &[u8], replies: Replies) -> Result<Bytes, Refusal> {
        let node = self.node.node().await.map_err(Failure::from)?;
        let stopped = if command == EventsRequest::NAME { &self.accepting } else { &self.working };
        tokio::select! {
            answer = node.handle(command, body, replies) => answer,
            () = stopped.cancelled() => {
                Err(Failure::new("Cancelled", "the daemon is stopping and gave the command up").into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_goes_with_its_daemon_and_another_ones_stays() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("s");
        std::fs::write(&path, "").expect("a file");
        drop(SocketGuard::new(&path));
        assert!(!path.exists());

        std::fs::write(&path, "").expect("a file");
        let guard = SocketGuard::new(&path);
        std::fs::write(folder.path().join("other"), "").expect("a file");
        std::fs::rename(folder.path().join("other"), &path).expect("a rename");
        drop(guard);
        assert!(path.exists());
    }
}
