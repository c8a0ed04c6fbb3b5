//! Creates a socket without interrupting a running daemon (`docs/spec/cri.md §1.3`).

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::{
            ffi::OsStrExt as _,
            fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::text::quoted;
use tokio::net::{UnixListener, UnixStream};

use crate::endpoint::SOCKET_PATH_BYTES_MAX;

/// Owner and group may connect; file access is the only authentication.
const SOCKET_MODE: u32 = 0o660;

const DIRECTORY_MODE: u32 = 0o750;

/// The limit of a probe; a full queue of connections counts as a listening daemon.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The path is relative, or names no file.
    #[error("`{}` is not the absolute path of a socket", .0.display())]
    Relative(PathBuf),
    /// Longer than the kernel's limit.
    #[error("the socket path `{}` is longer than {SOCKET_PATH_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
    /// A daemon listens there.
    #[error("another daemon is listening on `{}`", .0.display())]
    Live(PathBuf),
    /// The file is not a stale socket.
    #[error("`{}` exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// Whether a daemon listens there cannot be determined.
    #[error("cannot tell whether a daemon is listening on `{}`", path.display())]
    Probe {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The directory is absent and cannot be created.
    #[error("error creating socket directory {}", quoted(&path.to_string_lossy()))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The temporary socket cannot be created.
    #[error("failed to create temporary file")]
    Create(#[source] io::Error),
    /// The temporary file of an earlier attempt cannot be removed.
    #[error("failed to remove temporary file")]
    Remove(#[source] io::Error),
    /// The socket cannot be moved into place.
    #[error("failed to move temporary file to addr {}", quoted(&path.to_string_lossy()))]
    Move {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Listens on a unix socket. Creates its directory, and replaces the stale socket of a dead daemon.
///
/// The socket appears by a rename, with its mode set and its queue open; a failure leaves no file behind.
///
/// # Errors
/// If another daemon is listening, the path cannot be a socket, or a system call fails.
pub async fn listen(path: &Path) -> Result<UnixListener, ListenError> {
    let (Some(directory), true, Some(_)) = (path.parent(), path.is_absolute(), path.file_name()) else {
        return Err(ListenError::Relative(path.to_owned()));
    };
    if path.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX {
        return Err(ListenError::TooLong(path.to_owned()));
    }
    refuse_to_replace(path).await?;
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(directory)
        .map_err(|source| ListenError::Directory { path: directory.to_owned(), source })?;
    let name = format!(".{:08x}.sock", std::process::id());
    let temporary = Temporary(directory.join(&name));
    temporary.remove().map_err(ListenError::Remove)?;
    // Through the open directory's descriptor the path fits the kernel's limit.
    let opened = File::open(directory).map_err(ListenError::Create)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()));
    let listener = UnixListener::bind(&short).map_err(ListenError::Create)?;
    fs::set_permissions(&temporary.0, Permissions::from_mode(SOCKET_MODE)).map_err(ListenError::Create)?;
    fs::rename(&temporary.0, path).map_err(|source| ListenError::Move { path: path.to_owned(), source })?;
    Ok(listener)
}

/// Only a socket without a listening daemon is replaced.
async fn refuse_to_replace(path: &Path) -> Result<(), ListenError> {
    let probe = |source| ListenError::Probe { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(ListenError::NotASocket(path.to_owned())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(probe(error)),
    }
    match tokio::time::timeout(PROBE_MAX, UnixStream::connect(path)).await {
        Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(probe(error)),
        _ => Err(ListenError::Live(path.to_owned())),
    }
}

/// A socket not yet in place; removed on drop, unless it was moved.
struct Temporary(PathBuf);

impl Temporary {
    fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(path = %self.0.display(), %error, "a temporary socket stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_socket_is_made_with_its_directory_and_modes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/imagelet.sock");
        let _listener = listen(&path).await.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o660);
        assert_eq!(mode(path.parent().unwrap()) & !0o750, 0);
        assert_eq!(names(path.parent().unwrap()), ["imagelet.sock"]);
    }

    #[tokio::test]
    async fn a_running_daemon_is_not_cut_off_and_a_dead_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imagelet.sock");
        let first = listen(&path).await.unwrap();
        assert!(matches!(listen(&path).await, Err(ListenError::Live(_))));
        UnixStream::connect(&path).await.unwrap();
        drop(first);
        let _second = listen(&path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
        assert_eq!(names(folder.path()), ["imagelet.sock"]);
    }

    #[tokio::test]
    async fn a_path_that_is_no_place_for_a_socket_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "kept").unwrap();
        assert!(matches!(listen(&file).await, Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        assert!(matches!(
            listen(&file.join("x.sock")).await,
            Err(ListenError::Probe { .. } | ListenError::Directory { .. })
        ));
        assert!(matches!(listen(Path::new("x.sock")).await, Err(ListenError::Relative(_))));
        let long = folder.path().join("x".repeat(107));
        assert!(listen(&long).await.unwrap_err().to_string().contains("longer than 107 bytes"));
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_refusal_is_said_in_the_words_people_search_for() {
        let source = || io::Error::from_raw_os_error(13);
        let path = PathBuf::from("/run/im\"agelet/x.sock");
        for (error, message) in [
            (
                ListenError::Directory { path: path.clone(), source: source() },
                "error creating socket directory \"/run/im\\\"agelet/x.sock\"",
            ),
            (ListenError::Create(source()), "failed to create temporary file"),
            (ListenError::Remove(source()), "failed to remove temporary file"),
            (
                ListenError::Move { path, source: source() },
                "failed to move temporary file to addr \"/run/im\\\"agelet/x.sock\"",
            ),
        ] {
            assert_eq!(error.to_string(), message);
            let cause = std::error::Error::source(&error).expect("why");
            assert_eq!(cause.to_string(), source().to_string());
        }
    }

    #[tokio::test]
    async fn the_longest_path_the_kernel_takes_is_listened_on() {
        let folder = tempfile::tempdir().unwrap();
        let room = SOCKET_PATH_BYTES_MAX - folder.path().as_os_str().len() - 1;
        let path = folder.path().join(format!("{}/s", "d".repeat(room - 2)));
        let _listener = listen(&path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
    }
}
