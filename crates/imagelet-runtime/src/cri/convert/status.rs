//! Converts errors to gRPC statuses and back (`docs/spec/cri.md §3.2`, §5.10).
//!
//! Only this file parses a peer's error texts.

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind, kind_of_pull_text},
    text::split_grpc_error,
};
use tonic::{Code, Status, codegen::http::uri::PathAndQuery};

use crate::wire::innermost;

/// The message prefix for an unreachable registry. gRPC has no code for this error.
const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";

const SIGNATURE_INVALID: &str = "SignatureValidationFailed";

/// A status message is sent as a percent-encoded header, and peers accept 16 KiB of headers.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// A method of CRI. The meaning of a status text depends on the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Pull,
    Remove,
    Image(&'static str),
    Runtime(&'static str),
}

impl Call {
    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::Pull => "PullImage",
            Self::Remove => "RemoveImage",
            Self::Image(method) | Self::Runtime(method) => method,
        }
    }

    pub(crate) fn path(self) -> PathAndQuery {
        let service = if matches!(self, Self::Runtime(_)) { "RuntimeService" } else { "ImageService" };
        let path = format!("/runtime.v1.{service}/{}", self.method());
        path.try_into().expect("names of methods are letters")
    }
}

pub(crate) fn status_from_error(error: &RuntimeError) -> Status {
    let chain = error.chain();
    let (relayed, text) = undecorated(&chain);
    let message = match error.kind() {
        RuntimeErrorKind::RegistryUnavailable => prefixed(REGISTRY_UNAVAILABLE, text),
        RuntimeErrorKind::SignatureInvalid => prefixed(SIGNATURE_INVALID, text),
        _ => text.to_owned(),
    };
    Status::new(code(error.kind(), relayed), shortened(&message))
}

/// `relayed` is the code of a peer's error. This code is used for the kind `Other`.
fn code(kind: RuntimeErrorKind, relayed: Option<Code>) -> Code {
    match kind {
        RuntimeErrorKind::InvalidArgument => Code::InvalidArgument,
        RuntimeErrorKind::NotFound => Code::NotFound,
        RuntimeErrorKind::Denied => Code::PermissionDenied,
        RuntimeErrorKind::Corrupt => Code::DataLoss,
        RuntimeErrorKind::Unacceptable => Code::OutOfRange,
        RuntimeErrorKind::InUse | RuntimeErrorKind::Remains => Code::FailedPrecondition,
        RuntimeErrorKind::DiskFull => Code::ResourceExhausted,
        RuntimeErrorKind::Unavailable => Code::Unavailable,
        RuntimeErrorKind::Unsupported => Code::Unimplemented,
        RuntimeErrorKind::TimedOut => Code::DeadlineExceeded,
        RuntimeErrorKind::Cancelled => Code::Cancelled,
        RuntimeErrorKind::Defect => Code::Internal,
        RuntimeErrorKind::Other => relayed.unwrap_or(Code::Unknown),
        // The kubelet removes `rpc error: …` from a message only for `Unknown`. It then finds the prefix in the message.
        _ => Code::Unknown,
    }
}

pub(crate) fn error_from_status(call: Call, status: &Status) -> RuntimeError {
    if let Some(cause) = innermost(status) {
        return if status.code() == Code::Cancelled && cause.is::<tonic::TimeoutExpired>() {
            RuntimeError::new(RuntimeErrorKind::TimedOut, "the runtime did not answer in time")
        } else {
            RuntimeError::new(RuntimeErrorKind::Unavailable, "the runtime cannot be reached")
                .caused_by(cause.to_string())
        };
    }
    let message = if call == Call::Pull && status.code() == Code::Unknown {
        status.message().to_owned()
    } else {
        format!("rpc error: code = {} desc = {}", code_name(status.code()), status.message())
    };
    RuntimeError::new(kind(call, status), message)
}

fn kind(call: Call, status: &Status) -> RuntimeErrorKind {
    let text = status.message();
    match status.code() {
        Code::Unknown | Code::Internal | Code::Aborted => kind_of_text(call, text).unwrap_or(RuntimeErrorKind::Other),
        Code::Unavailable => kind_of_text(call, text).unwrap_or(RuntimeErrorKind::Unavailable),
        Code::FailedPrecondition if call == Call::Remove => RuntimeErrorKind::InUse,
        Code::FailedPrecondition => kind_of_text(call, text).unwrap_or(RuntimeErrorKind::Other),
        Code::ResourceExhausted | Code::OutOfRange if is_message_too_long(text) => RuntimeErrorKind::Other,
        Code::ResourceExhausted => RuntimeErrorKind::DiskFull,
        Code::OutOfRange => RuntimeErrorKind::Unacceptable,
        Code::InvalidArgument => RuntimeErrorKind::InvalidArgument,
        Code::NotFound => RuntimeErrorKind::NotFound,
        Code::PermissionDenied | Code::Unauthenticated => RuntimeErrorKind::Denied,
        Code::DataLoss => RuntimeErrorKind::Corrupt,
        Code::Unimplemented => RuntimeErrorKind::Unsupported,
        Code::DeadlineExceeded => RuntimeErrorKind::TimedOut,
        Code::Cancelled => RuntimeErrorKind::Cancelled,
        Code::Ok | Code::AlreadyExists => RuntimeErrorKind::Other,
    }
}

fn kind_of_text(call: Call, text: &str) -> Option<RuntimeErrorKind> {
    if text.starts_with(REGISTRY_UNAVAILABLE) {
        return Some(RuntimeErrorKind::RegistryUnavailable);
    }
    if text.starts_with(SIGNATURE_INVALID) {
        return Some(RuntimeErrorKind::SignatureInvalid);
    }
    let lower = text.to_ascii_lowercase();
    let has = |part: &str| lower.contains(part);
    match call {
        Call::Pull => kind_of_pull_text(text),
        Call::Remove if has("image is in use by") || has("image used by") => Some(RuntimeErrorKind::InUse),
        _ if has("ambiguous") => Some(RuntimeErrorKind::InvalidArgument),
        _ if has("no space left on device") => Some(RuntimeErrorKind::DiskFull),
        _ => None,
    }
}

fn is_message_too_long(text: &str) -> bool {
    text.contains("message length too large") || text.contains("message larger than max")
}

pub(crate) fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Splits a text into the code of its prefix `rpc error: …` and the rest. Otherwise each server would add a prefix.
fn undecorated(text: &str) -> (Option<Code>, &str) {
    let (name, relayed) = split_grpc_error(text);
    let code = (1..=16).map(Code::from_i32).find(|code| name == Some(code_name(*code).as_str()));
    (code, relayed)
}

fn prefixed(prefix: &str, text: &str) -> String {
    if text.starts_with(prefix) { text.to_owned() } else { format!("{prefix}: {text}") }
}

fn shortened(text: &str) -> String {
    if text.len() <= MESSAGE_BYTES_MAX {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [RuntimeErrorKind; 13] = [
        RuntimeErrorKind::InvalidArgument,
        RuntimeErrorKind::NotFound,
        RuntimeErrorKind::Denied,
        RuntimeErrorKind::RegistryUnavailable,
        RuntimeErrorKind::SignatureInvalid,
        RuntimeErrorKind::Corrupt,
        RuntimeErrorKind::Unacceptable,
        RuntimeErrorKind::DiskFull,
        RuntimeErrorKind::Unavailable,
        RuntimeErrorKind::Unsupported,
        RuntimeErrorKind::TimedOut,
        RuntimeErrorKind::Cancelled,
        RuntimeErrorKind::Other,
    ];

    #[test]
    fn every_kind_crosses_the_wire() {
        for kind in KINDS {
            let status = status_from_error(&RuntimeError::new(kind, "it broke"));
            assert_eq!(error_from_status(Call::Pull, &status).kind(), kind);
        }
        let held = status_from_error(&RuntimeError::new(RuntimeErrorKind::InUse, "it is held"));
        assert_eq!(error_from_status(Call::Remove, &held).kind(), RuntimeErrorKind::InUse);
    }

    #[test]
    fn a_code_without_a_kind_is_passed_on_as_it_came_and_a_defect_is_internal() {
        assert_eq!(
            [0, 1, 5, 16].map(|code| code_name(Code::from_i32(code))),
            ["OK", "Canceled", "NotFound", "Unauthenticated"]
        );
        for code in [Code::Internal, Code::Aborted, Code::AlreadyExists, Code::FailedPrecondition, Code::Unknown] {
            for call in [Call::Pull, Call::Image("ListImages")] {
                let error = error_from_status(call, &Status::new(code, "odd"));
                assert_eq!(error.kind(), RuntimeErrorKind::Other, "{code:?}");
                let relayed = status_from_error(&error.copied());
                assert_eq!((relayed.code(), relayed.message()), (code, "odd"));
            }
        }
        // An error that claims success is still an error.
        let lie = Status::unknown("rpc error: code = OK desc = nothing");
        assert_eq!(status_from_error(&error_from_status(Call::Pull, &lie)).code(), Code::Unknown);
        assert_eq!(status_from_error(&RuntimeError::other("odd")).code(), Code::Unknown);
        assert_eq!(status_from_error(&RuntimeError::defect("a thread ended early")).code(), Code::Internal);
    }

    #[test]
    fn the_two_conditions_without_a_code_are_told_by_their_prefix_once() {
        let error = RuntimeError::new(RuntimeErrorKind::RegistryUnavailable, "dial").caused_by("connection refused");
        let status = status_from_error(&error);
        assert_eq!((status.code(), status.message()), (Code::Unknown, "RegistryUnavailable: dial: connection refused"));
        let passed_on = status_from_error(&error_from_status(Call::Pull, &status));
        assert_eq!((passed_on.code(), passed_on.message()), (Code::Unknown, status.message()));
        let status = status_from_error(&RuntimeError::new(RuntimeErrorKind::SignatureInvalid, "no key"));
        assert_eq!((status.code(), status.message()), (Code::Unknown, "SignatureValidationFailed: no key"));
    }

    #[test]
    fn a_pull_loses_the_decoration_of_an_unknown_code_alone() {
        let text = |call, code, message| error_from_status(call, &Status::new(code, message)).to_string();
        assert_eq!(text(Call::Pull, Code::Unknown, "no signal"), "no signal");
        assert_eq!(text(Call::Pull, Code::NotFound, "not here"), "rpc error: code = NotFound desc = not here");
        assert_eq!(text(Call::Remove, Code::Unknown, "x"), "rpc error: code = Unknown desc = x");
        let relayed = status_from_error(&error_from_status(Call::Pull, &Status::not_found("not here")));
        assert_eq!((relayed.code(), relayed.message()), (Code::NotFound, "not here"));
    }

    #[test]
    fn texts_of_other_runtimes_are_told_apart() {
        for (text, kind) in [
            (
                "failed to pull and unpack image \"r/a:v1\": failed to resolve reference \"r/a:v1\": r/a:v1: not found",
                RuntimeErrorKind::NotFound,
            ),
            (
                "pull access denied, repository does not exist or may require authorization: server message: \
                 insufficient_scope: authorization failed",
                RuntimeErrorKind::Denied,
            ),
            ("failed to fetch anonymous token: unexpected status: 401 Unauthorized", RuntimeErrorKind::Denied),
            ("dial tcp 127.0.0.1:1: connect: connection refused", RuntimeErrorKind::RegistryUnavailable),
            ("dial tcp: lookup r.test: no such host", RuntimeErrorKind::RegistryUnavailable),
            ("dial tcp 10.0.0.1:443: i/o timeout", RuntimeErrorKind::RegistryUnavailable),
            ("failed to copy: write /x: no space left on device", RuntimeErrorKind::DiskFull),
            ("commit failed: unexpected commit digest sha256:a", RuntimeErrorKind::Corrupt),
            ("pinging container registry r/app-401:not-found: odd", RuntimeErrorKind::Other),
        ] {
            assert_eq!(error_from_status(Call::Pull, &Status::unknown(text)).kind(), kind, "{text}");
        }
        let kind = |call, status: Status| error_from_status(call, &status).kind();
        let used = Status::unknown("the image is in use by c1");
        assert_eq!(kind(Call::Remove, used), RuntimeErrorKind::InUse);
        assert_eq!(kind(Call::Remove, Status::unknown("odd")), RuntimeErrorKind::Other);
        for call in [Call::Remove, Call::Image("ImageStatus")] {
            assert_eq!(kind(call, Status::unknown("the id is ambiguous")), RuntimeErrorKind::InvalidArgument);
            assert_eq!(kind(call, Status::unknown("no space left on device")), RuntimeErrorKind::DiskFull);
        }
        assert_eq!(kind(Call::Image("ListImages"), Status::unknown("connection refused")), RuntimeErrorKind::Other);
        let long =
            Status::out_of_range("Error, decoded message length too large: found 2 bytes, the limit is: 1 bytes");
        assert_eq!(kind(Call::Image("ListImages"), long), RuntimeErrorKind::Other);
    }

    #[test]
    fn a_status_of_our_own_side_says_that_the_runtime_is_away_and_why() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        // As when a connection ends amid a call.
        let mut cancelled = Status::cancelled("the call ended");
        cancelled.set_source(std::sync::Arc::new(refused()));
        for status in [Status::from_error(Box::new(refused())), cancelled] {
            let error = error_from_status(Call::Pull, &status);
            assert_eq!(error.kind(), RuntimeErrorKind::Unavailable);
            assert_eq!(error.chain(), "the runtime cannot be reached: connection refused");
        }
    }

    #[test]
    fn a_call_that_reached_our_own_time_limit_is_no_runtime_that_is_away() {
        let status = Status::from_error(Box::new(tonic::TimeoutExpired(())));
        assert_eq!(error_from_status(Call::Pull, &status).kind(), RuntimeErrorKind::TimedOut);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let longest = "a".repeat(MESSAGE_BYTES_MAX);
        assert_eq!(status_from_error(&RuntimeError::other(longest.clone())).message(), longest);
        let status = status_from_error(&RuntimeError::other("ä".repeat(4000)));
        assert!(status.message().len() <= MESSAGE_BYTES_MAX + 3);
        assert!(status.message().ends_with("ä…"));
    }
}
