//! Why the API server did not answer, in words for people.

use std::{error::Error as StdError, time::Duration};

use imagelet_core::{image::ByteSize, printable::one_line};
use kube::{core::Status, runtime::watcher};

/// Most of a server's message that is shown.
const MESSAGE_LENGTH_MAX: usize = 512;

/// The longest line, which is a page of a list, or one event of a watch.
pub(crate) const LINE_LENGTH_MAX: usize = 64 << 20;

pub(crate) type Cause = Box<dyn StdError + Send + Sync>;

/// Why a request to the API server failed. `Display` has the causes as well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The credentials are missing, invalid, or not to be trusted.
    #[error("could not {what}: {}", chain(&**.source))]
    Credentials {
        /// What failed: `use the kubeconfig …`.
        what: String,
        source: Cause,
    },
    #[error("{}", text(.0))]
    Request(#[from] kube::Error),
    #[error("the API server lists more than {max} objects")]
    TooMany { max: usize },
    /// The answer is not the secret or token that was requested. Shows nothing of it.
    #[error("the API server sent an invalid {what}: {why}")]
    SecretInvalid {
        /// `secret` or `token`.
        what: &'static str,
        why: String,
    },
}

/// What a server that answered too little, or too much, did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the answer of the API server is larger than {}", ByteSize(LINE_LENGTH_MAX as u64))]
    TooLarge,
}

impl ApiError {
    /// The HTTP status by which the API server rejected the request.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Request(error) => code(error),
            _ => None,
        }
    }

    /// The error of an answer that holds a secret: the decoder's own text quotes the value.
    pub(crate) fn undecodable(what: &'static str, error: &serde_json::Error) -> Self {
        Self::SecretInvalid { what, why: format!("line {} column {}", error.line(), error.column()) }
    }
}

/// The HTTP status by which the API server rejected a request.
pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The texts of the library show a status twice, with all fields.
pub(crate) fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => rejected(status),
        kube::Error::Service(cause) => match cause.downcast_ref::<ApiError>() {
            Some(error) => error.to_string(),
            None if cause.is::<AnswerError>() => cause.to_string(),
            None => format!("could not reach the API server: {}", chain(&**cause)),
        },
        kube::Error::SerdeError(_) => format!("could not decode the answer of the API server: {}", source(error)),
        error => format!("could not reach the API server: {}", source(error)),
    }
}

/// Why a watch, or the list before it, failed.
pub(crate) fn watch_text(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => text(error),
        watcher::Error::WatchError(status) => rejected(status),
        watcher::Error::NoResourceVersion => "the API server sent an object without a resource version".to_owned(),
    }
}

/// The HTTP status by which the API server rejected or ended a watch, or the list before it.
pub(crate) fn watch_code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => code(error),
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::NoResourceVersion => None,
    }
}

fn rejected(status: &Status) -> String {
    let end = status.message.floor_char_boundary(MESSAGE_LENGTH_MAX);
    format!("the API server answered {}: {}", status.code, one_line(&status.message[..end]))
}

fn source(error: &kube::Error) -> String {
    error.source().map_or_else(|| error.to_string(), chain)
}

fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some libraries repeat the cause in their own text.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
