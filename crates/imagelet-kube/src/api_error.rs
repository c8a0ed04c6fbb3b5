//! Why the API server did not answer, with what the watch acts on.

use std::time::Duration;

use imagelet_core::{image::ByteSize, printable::one_line};
use serde::Deserialize;

/// Most of a server's message that is kept.
const MESSAGE_LENGTH_MAX: usize = 512;

pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a request to the API server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The credentials are missing, invalid, or not to be trusted.
    #[error("could not {what}")]
    Credentials {
        /// What failed: `use the kubeconfig …`.
        what: String,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The API server cannot be reached, or the connection broke.
    #[error("could not reach the API server")]
    Unreachable(#[source] Cause),
    /// No answer in this time.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The resource version is too old, or unknown: the objects have to be listed again.
    #[error("the API server no longer has the resource version of the list")]
    Expired,
    /// The API server rejected the request.
    #[error("the API server answered {code}: {message}")]
    Rejected {
        /// The HTTP status.
        code: u16,
        /// Its message, cut.
        message: String,
    },
    /// An answer, or one event, is larger than its limit.
    #[error("the answer of the API server is larger than {}", ByteSize(*.max as u64))]
    TooLarge {
        /// The limit.
        max: usize,
    },
    /// A list has more objects than are read.
    #[error("the API server lists more than {max} objects")]
    TooMany {
        /// The limit.
        max: u32,
    },
    /// The answer is not the secret or token that was requested. Shows nothing of it.
    #[error("the API server sent an invalid {what}: {why}")]
    SecretInvalid {
        /// `secret` or `token`.
        what: &'static str,
        /// What is wrong, and where.
        why: String,
    },
    /// The answer is not what the API promises.
    #[error("could not decode the answer of the API server")]
    Decode(#[source] serde_json::Error),
}

impl ApiError {
    /// The error of an answer that holds a secret: the decoder's own text quotes the value.
    pub(crate) fn undecodable(what: &'static str, error: &serde_json::Error) -> Self {
        Self::SecretInvalid { what, why: format!("line {} column {}", error.line(), error.column()) }
    }

    /// Whether the next request needs a new connection: this one failed, or the API server refuses the credentials that it
    /// has (401), which may be newer in their files. Any other answer came over a connection that works.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Silent(_) | Self::Rejected { code: 401, .. })
    }

    /// The cause in one word, or the status of HTTP.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Rejected { code, .. } => code.to_string(),
            Self::Expired => "expired".to_owned(),
            Self::Unreachable(_) => "unreachable".to_owned(),
            Self::Silent(_) => "silent".to_owned(),
            Self::Credentials { .. } => "credentials".to_owned(),
            Self::TooLarge { .. } | Self::TooMany { .. } | Self::SecretInvalid { .. } | Self::Decode(_) => {
                "invalid".to_owned()
            }
        }
    }

    /// The error with its causes.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
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
}

/// The answer of the API server when there is no other: `Status` of `meta/v1`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiStatus {
    code: u16,
    message: String,
    reason: String,
}

impl ApiStatus {
    /// The error of an answer with this HTTP status.
    pub(crate) fn into_error(self, http_status: u16) -> ApiError {
        let code = if self.code == 0 { http_status } else { self.code };
        // A server whose cache is behind the version asks for patience; a list without a version needs none.
        let is_ahead = code == 504 && self.message.contains("Too large resource version");
        if code == 410 || is_ahead || matches!(self.reason.as_str(), "Expired" | "Gone") {
            return ApiError::Expired;
        }
        let end = self.message.floor_char_boundary(MESSAGE_LENGTH_MAX);
        ApiError::Rejected { code, message: one_line(&self.message[..end]) }
    }
}
