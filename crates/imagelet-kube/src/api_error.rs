//! Why a request to the API server failed, as text for users.

use std::{error::Error as StdError, time::Duration};

use imagelet_core::{image::ByteSize, printable::one_line};
use kube::runtime::watcher;

const MESSAGE_LENGTH_MAX: usize = 512;

/// Maximum length of one line of an answer. A line is a page of a list, or one event of a watch.
pub(crate) const LINE_LENGTH_MAX: usize = 64 << 20;

pub(crate) type Cause = Box<dyn StdError + Send + Sync>;

/// The printed text includes all causes.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("could not {what}: {}", chain(&**.source))]
    Credentials { what: String, source: Cause },
    #[error("{}", text(.0))]
    Request(#[from] kube::Error),
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the answer of the API server is larger than {}", ByteSize(LINE_LENGTH_MAX as u64))]
    TooLarge,
    #[error("the API server sent an object without a resource version")]
    NoResourceVersion,
    #[error("the API server lists more than {max} objects")]
    TooMany { max: usize },
    /// The answer is not the requested secret or token. The error contains nothing of the answer.
    #[error("the API server sent an invalid {what}: {why}")]
    SecretInvalid { what: &'static str, why: String },
}

impl ApiError {
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Request(error) => code(error),
            _ => None,
        }
    }

    /// The error for an undecodable answer with a secret. It omits the decoder's text, which quotes the value.
    pub(crate) fn undecodable(what: &'static str, error: &serde_json::Error) -> Self {
        Self::SecretInvalid { what, why: format!("line {} column {}", error.line(), error.column()) }
    }
}

pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// A short text of the error. The library's own text contains the status twice, with all its fields.
pub(crate) fn text(error: &kube::Error) -> String {
    let unreachable = |cause| format!("could not reach the API server: {cause}");
    match error {
        kube::Error::Api(status) => {
            let end = status.message.floor_char_boundary(MESSAGE_LENGTH_MAX);
            format!("the API server answered {}: {}", status.code, one_line(&status.message[..end]))
        }
        kube::Error::Service(cause) => match cause.downcast_ref::<ApiError>() {
            Some(error) => error.to_string(),
            None => unreachable(chain(&**cause)),
        },
        kube::Error::SerdeError(error) => format!("could not decode the answer of the API server: {error}"),
        error => unreachable(error.source().map_or_else(|| error.to_string(), chain)),
    }
}

pub(crate) fn of_watch(error: watcher::Error) -> kube::Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error,
        watcher::Error::WatchError(status) => kube::Error::Api(status),
        watcher::Error::NoResourceVersion => kube::Error::Service(ApiError::NoResourceVersion.into()),
    }
}

fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |error| (*error).source()) {
        let next = cause.to_string();
        // Some libraries repeat the cause in their own text.
        if !text.ends_with(&next) {
            text.extend([": ", &next]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_version_is_an_answer() {
        let error = text(&of_watch(watcher::Error::NoResourceVersion));
        assert_eq!(error, "the API server sent an object without a resource version");
    }
}
