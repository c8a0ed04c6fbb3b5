//! Why a call to containerd failed, with what a caller acts on.

use std::{error::Error, path::Path};

use imagelet_core::{
    printable::is_unprintable,
    runtime::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    text::quoted,
};
use tonic::{Code, Status};

const TEXT_BYTES_MAX: usize = 1 << 10;

/// containerd reports a full disk under any code.
const DISK_FULL: [&str; 2] = ["no space left on device", "disk quota exceeded"];

/// A kind of refusal that some caller handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerdRefusal {
    AlreadyExists,
    NotFound,
    /// The call is unknown.
    Unknown,
    /// containerd cannot be reached.
    Away,
    TimedOut,
    DiskFull,
    Other,
}

/// A failed call. Prints the call, its subject, the socket and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ContainerdError {
    refusal: ContainerdRefusal,
    message: String,
}

impl ContainerdError {
    pub(crate) fn new(refusal: ContainerdRefusal, socket: &Path, call: &str, subject: &str, why: &str) -> Self {
        let of = if subject.is_empty() { String::new() } else { format!(" of `{subject}`") };
        let message = format!("{call}{of} failed at containerd's socket `{}`: {why}", socket.display());
        Self { refusal, message }
    }

    pub(crate) fn of_status(socket: &Path, call: &str, subject: &str, status: &Status) -> Self {
        let (refusal, why) = match innermost(status) {
            Some(cause) => (ContainerdRefusal::Away, cause.to_string()),
            None => (refusal(status), status.message().to_owned()),
        };
        Self::new(refusal, socket, call, subject, &shown(&why))
    }

    pub fn refusal(&self) -> ContainerdRefusal {
        self.refusal
    }
}

impl From<ContainerdError> for RuntimeError {
    fn from(error: ContainerdError) -> Self {
        let (kind, class, stage) = match error.refusal {
            ContainerdRefusal::Unknown => (RuntimeErrorKind::Unsupported, ErrorClass::Unsupported, Stage::Runtime),
            ContainerdRefusal::Away => (RuntimeErrorKind::Unavailable, ErrorClass::RuntimeUnavailable, Stage::Runtime),
            ContainerdRefusal::TimedOut => (RuntimeErrorKind::TimedOut, ErrorClass::TimedOut, Stage::Runtime),
            ContainerdRefusal::DiskFull => (RuntimeErrorKind::DiskFull, ErrorClass::DiskFull, Stage::Disk),
            // An absent object of containerd is no absent image of a registry.
            ContainerdRefusal::AlreadyExists | ContainerdRefusal::NotFound | ContainerdRefusal::Other => {
                (RuntimeErrorKind::Other, ErrorClass::Other, Stage::Runtime)
            }
        };
        RuntimeError::new(kind, error.to_string()).with_fault(Fault::new(class, stage))
    }
}

/// The root cause of a status that the client made because the peer is away.
fn innermost(status: &Status) -> Option<&(dyn Error + 'static)> {
    let mut cause = status.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause)
}

fn refusal(status: &Status) -> ContainerdRefusal {
    match status.code() {
        Code::AlreadyExists => ContainerdRefusal::AlreadyExists,
        Code::NotFound => ContainerdRefusal::NotFound,
        Code::Unimplemented => ContainerdRefusal::Unknown,
        Code::Unavailable => ContainerdRefusal::Away,
        Code::DeadlineExceeded => ContainerdRefusal::TimedOut,
        _ if DISK_FULL.iter().any(|text| status.message().contains(text)) => ContainerdRefusal::DiskFull,
        _ => ContainerdRefusal::Other,
    }
}

/// containerd's text for a log: of bounded length, on one line.
fn shown(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    if text.contains(is_unprintable) { quoted(text) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(status: &Status) -> ContainerdError {
        ContainerdError::of_status(Path::new("/run/c.sock"), "Snapshots.Stat", "x", status)
    }

    #[test]
    fn a_status_becomes_what_callers_act_on() {
        for (status, refusal, kind) in [
            (Status::already_exists("x"), ContainerdRefusal::AlreadyExists, RuntimeErrorKind::Other),
            (Status::not_found("x"), ContainerdRefusal::NotFound, RuntimeErrorKind::Other),
            (Status::unimplemented("x"), ContainerdRefusal::Unknown, RuntimeErrorKind::Unsupported),
            (Status::unavailable("x"), ContainerdRefusal::Away, RuntimeErrorKind::Unavailable),
            (Status::deadline_exceeded("x"), ContainerdRefusal::TimedOut, RuntimeErrorKind::TimedOut),
            (
                Status::unknown("write: no space left on device"),
                ContainerdRefusal::DiskFull,
                RuntimeErrorKind::DiskFull,
            ),
            (Status::unknown("x"), ContainerdRefusal::Other, RuntimeErrorKind::Other),
        ] {
            let error = error(&status);
            assert_eq!(error.refusal(), refusal, "{status:?}");
            assert_eq!(RuntimeError::from(error).kind(), kind, "{status:?}");
        }
    }

    #[test]
    fn a_message_names_call_socket_and_cause_and_has_an_end() {
        assert_eq!(
            error(&Status::unknown("no\nsuch thing")).to_string(),
            "Snapshots.Stat of `x` failed at containerd's socket `/run/c.sock`: \"no\\nsuch thing\""
        );
        assert!(error(&Status::unknown("ä".repeat(10_000))).to_string().len() < 2 * TEXT_BYTES_MAX);
        let fault = RuntimeError::from(error(&Status::not_found("manifest unknown: 404 not found"))).fault();
        assert_eq!(
            fault,
            Fault::new(ErrorClass::Other, Stage::Runtime),
            "no text of containerd stands for a registry's"
        );
    }
}
