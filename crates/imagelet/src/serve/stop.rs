//! How the daemon stops: its socket goes, its calls are given up, whoever started it is told.

use std::{
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _, net::UnixDatagram},
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Handler, Refusal, Replies},
    config::Environment,
    failure::Failure,
    node::LocalNode,
};

/// Removes the daemon's socket when dropped, unless another has taken its place.
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

/// Commands over the socket, given up when the daemon has waited long enough.
pub(super) struct Stoppable {
    node: Arc<LocalNode>,
    working: CancellationToken,
}

impl Stoppable {
    pub(super) fn new(node: Arc<LocalNode>, working: CancellationToken) -> Self {
        Self { node, working }
    }
}

#[async_trait]
impl Handler for Stoppable {
    async fn handle(&self, command: &str, body: &[u8], replies: Replies) -> Result<Vec<u8>, Refusal> {
        tokio::select! {
            answer = self.node.handle(command, body, replies) => answer,
            () = self.working.cancelled() => {
                let failure = Failure::new("Cancelled", "the daemon is stopping and gave the command up");
                Err(Refusal::Failed(serde_json::to_vec(&failure).unwrap_or_default()))
            }
        }
    }
}

/// Tells systemd where it asked to be told.
pub(super) fn notify(environment: &Environment, state: &str) {
    let Some(address) = &environment.notify_socket else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| match address.as_bytes() {
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(state.as_bytes(), &address)
        }
        _ => socket.send_to(state.as_bytes(), address),
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "could not notify the service manager");
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

    #[test]
    fn the_service_manager_is_told() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        let environment = Environment { notify_socket: Some(path.into_os_string()), ..Environment::default() };
        notify(&environment, "READY=1");
        let mut word = [0; 16];
        let length = manager.recv(&mut word).expect("a word");
        assert_eq!(&word[..length], b"READY=1");
    }
}
