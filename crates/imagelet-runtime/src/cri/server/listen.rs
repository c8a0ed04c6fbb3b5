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

use crate::cri::endpoint::SOCKET_PATH_BYTES_MAX;

/// Only the socket's owner and group may connect, because file permissions are the only authentication.
const SOCKET_MODE: u32 = 0o660;

const DIRECTORY_MODE: u32 = 0o750;

const CREATE: &str = "failed to create temporary file";
const REMOVE: &str = "failed to remove temporary file";

/// Time limit of a connection that probes a socket. A timeout means that a daemon listens and its queue is full.
const PROBE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ListenError {
    message: String,
    source: Option<io::Error>,
}

fn refused(message: String) -> ListenError {
    ListenError { message, source: None }
}

fn failed(message: impl Into<String>) -> impl FnOnce(io::Error) -> ListenError {
    move |source| ListenError { message: message.into(), source: Some(source) }
}

/// Listens on a unix socket. Creates the directory, and replaces a stale socket without a listening daemon.
///
/// A temporary socket listens and has its mode before it is renamed to `path`. After a failure, it is removed.
///
/// # Errors
/// If another daemon is listening, the path cannot be a socket, or a system call fails.
pub async fn listen(path: &Path) -> Result<UnixListener, ListenError> {
    let (Some(directory), true, Some(_)) = (path.parent(), path.is_absolute(), path.file_name()) else {
        return Err(refused(format!("`{}` is not the absolute path of a socket", path.display())));
    };
    if path.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX {
        let shown = path.display();
        return Err(refused(format!("the socket path `{shown}` is longer than {SOCKET_PATH_BYTES_MAX} bytes")));
    }
    refuse_to_replace(path).await?;
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(directory)
        .map_err(failed(format!("error creating socket directory {}", quoted(&directory.to_string_lossy()))))?;
    let name = format!(".{:08x}.sock", std::process::id());
    let temporary = Temporary(directory.join(&name));
    temporary.remove().map_err(failed(REMOVE))?;
    // `bind` gets a short path through the directory's descriptor, because the full path may exceed the kernel's limit.
    let opened = File::open(directory).map_err(failed(CREATE))?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()));
    let listener = UnixListener::bind(&short).map_err(failed(CREATE))?;
    fs::set_permissions(&temporary.0, Permissions::from_mode(SOCKET_MODE)).map_err(failed(CREATE))?;
    fs::rename(&temporary.0, path)
        .map_err(failed(format!("failed to move temporary file to addr {}", quoted(&path.to_string_lossy()))))?;
    Ok(listener)
}

async fn refuse_to_replace(path: &Path) -> Result<(), ListenError> {
    let shown = path.display();
    let probe = failed(format!("it is unknown whether a daemon is listening on `{shown}`"));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(refused(format!("`{shown}` exists and is not a socket")));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(probe(error)),
    }
    match tokio::time::timeout(PROBE_MAX, UnixStream::connect(path)).await {
        Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(probe(error)),
        _ => Err(refused(format!("another daemon is listening on `{shown}`"))),
    }
}

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
        assert!(listen(&path).await.unwrap_err().to_string().starts_with("another daemon is listening on"));
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
        assert!(listen(&file).await.unwrap_err().to_string().ends_with("exists and is not a socket"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        assert!(listen(&file.join("x.sock")).await.is_err());
        assert!(listen(Path::new("x.sock")).await.unwrap_err().to_string().contains("not the absolute path"));
        let long = folder.path().join("x".repeat(107));
        assert!(listen(&long).await.unwrap_err().to_string().contains("longer than 107 bytes"));
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[tokio::test]
    async fn a_refusal_is_said_in_the_words_people_search_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a\"file");
        fs::write(&file, "").unwrap();
        let error = listen(&file.join("below/x.sock")).await.unwrap_err();
        assert!(error.to_string().starts_with("it is unknown whether a daemon is listening on"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
        let taken = folder.path().join("taken.sock");
        let temporary = folder.path().join(format!(".{:08x}.sock", std::process::id()));
        fs::create_dir(&temporary).unwrap();
        assert_eq!(listen(&taken).await.unwrap_err().to_string(), "failed to remove temporary file");
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
