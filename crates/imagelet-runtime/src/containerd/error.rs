//! The error of a call to containerd, with a gRPC code.

use std::path::Path;

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    printable::is_unprintable,
    text::quoted,
};
use tonic::{Code, Status};

use crate::wire::innermost;

const TEXT_BYTES_MAX: usize = 1 << 10;

/// containerd has no code for a full disk, so the error text is searched for these texts.
const DISK_FULL: [&str; 2] = ["no space left on device", "disk quota exceeded"];

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ContainerdError {
    code: Code,
    message: String,
}

impl ContainerdError {
    pub(crate) fn new(code: Code, socket: &Path, call: &str, subject: &str, why: &str) -> Self {
        let of = if subject.is_empty() { String::new() } else { format!(" of `{subject}`") };
        let message = format!("{call}{of} failed at containerd's socket `{}`: {why}", socket.display());
        Self { code, message }
    }

    pub(crate) fn of_status(socket: &Path, call: &str, subject: &str, status: &Status) -> Self {
        let (code, why) = match innermost(status) {
            Some(cause) => (Code::Unavailable, cause.to_string()),
            None => (code(status), status.message().to_owned()),
        };
        Self::new(code, socket, call, subject, &shown(&why))
    }

    /// `Unavailable`: containerd is unreachable. `Unimplemented`: containerd does not know the call.
    /// `ResourceExhausted`: the disk is full. `DeadlineExceeded`, `AlreadyExists` and `NotFound` have their usual
    /// meaning. Any other error is `Unknown`.
    pub fn code(&self) -> Code {
        self.code
    }
}

impl From<ContainerdError> for RuntimeError {
    fn from(error: ContainerdError) -> Self {
        let (kind, class, stage) = match error.code {
            Code::Unimplemented => (RuntimeErrorKind::Unsupported, ErrorClass::Unsupported, Stage::Runtime),
            Code::Unavailable => (RuntimeErrorKind::Unavailable, ErrorClass::RuntimeUnavailable, Stage::Runtime),
            Code::DeadlineExceeded => (RuntimeErrorKind::TimedOut, ErrorClass::TimedOut, Stage::Runtime),
            Code::ResourceExhausted => (RuntimeErrorKind::DiskFull, ErrorClass::DiskFull, Stage::Disk),
            // `NotFound` means that containerd lacks an object. It says nothing about the image in the registry.
            _ => (RuntimeErrorKind::Other, ErrorClass::Other, Stage::Runtime),
        };
        RuntimeError::new(kind, error.to_string()).with_fault(Fault::new(class, stage))
    }
}

fn code(status: &Status) -> Code {
    use Code::{AlreadyExists, DeadlineExceeded, NotFound, Unavailable, Unimplemented};
    match status.code() {
        code @ (AlreadyExists | NotFound | Unimplemented | Unavailable | DeadlineExceeded) => code,
        _ if DISK_FULL.iter().any(|text| status.message().contains(text)) => Code::ResourceExhausted,
        _ => Code::Unknown,
    }
}

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
        for (status, code, kind) in [
            (Status::already_exists("x"), Code::AlreadyExists, RuntimeErrorKind::Other),
            (Status::not_found("x"), Code::NotFound, RuntimeErrorKind::Other),
            (Status::unimplemented("x"), Code::Unimplemented, RuntimeErrorKind::Unsupported),
            (Status::unavailable("x"), Code::Unavailable, RuntimeErrorKind::Unavailable),
            (Status::deadline_exceeded("x"), Code::DeadlineExceeded, RuntimeErrorKind::TimedOut),
            (Status::unknown("write: no space left on device"), Code::ResourceExhausted, RuntimeErrorKind::DiskFull),
            (Status::unknown("x"), Code::Unknown, RuntimeErrorKind::Other),
        ] {
            let error = error(&status);
            assert_eq!(error.code(), code, "{status:?}");
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
