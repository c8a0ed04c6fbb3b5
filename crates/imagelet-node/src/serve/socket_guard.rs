//! The file of the daemon's socket, which the end of the daemon removes.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Removes the file of the socket when it is dropped, but keeps the file if another process has replaced it.
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
