//! Errors of a registry, reported without its secrets.

use std::{sync::LazyLock, time::Duration};

use imagelet_core::{
    credentials::{Secret, spellings},
    error::{ErrorClass, Fault, Party, RuntimeError, RuntimeErrorKind, Stage},
    printable::is_unprintable,
};
use regex_lite::Regex;

const BODY_SHOWN_MAX: usize = 1024;
pub(crate) const ERROR_BYTES_MAX: usize = 8 << 10;
/// The longest wait that a registry may request. A request fails if the registry requests a longer wait.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);
const REDACTED: &str = "[redacted]";

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: RuntimeError,
    pub(crate) retry: Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Never,
    /// The request is repeated without a wait, up to `times` times, after the other hosts: a new answer may be right.
    Again {
        times: u32,
    },
    Soon,
    After(Duration),
}

impl Failure {
    /// Sets the stage of the request. If the connection failed, the stage of the connection is kept.
    pub(crate) fn at(self, stage: Stage) -> Self {
        let fault = self.error.fault();
        let has_stage = matches!(fault.stage, Stage::Dns | Stage::Connect | Stage::Tls | Stage::Proxy);
        let fault = if has_stage { fault } else { Fault { stage, ..fault } };
        Self { error: self.error.with_fault(fault), retry: self.retry }
    }

    pub(crate) fn of(self, party: Party) -> Self {
        let fault = Fault { party, ..self.error.fault() };
        Self { error: self.error.with_fault(fault), retry: self.retry }
    }

    pub(crate) fn of_redirect(self, is_redirected: bool) -> Self {
        if is_redirected { self.of(Party::RedirectTarget) } else { self }
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        Self { error, retry: Retry::Never }
    }
}

pub(crate) fn denied(message: impl Into<String>) -> RuntimeError {
    RuntimeError::new(RuntimeErrorKind::Denied, message)
}

pub(crate) fn unavailable(class: ErrorClass, stage: Stage, message: impl Into<String>) -> RuntimeError {
    RuntimeError::new(RuntimeErrorKind::RegistryUnavailable, message).with_fault(Fault::new(class, stage))
}

/// How a request is repeated after an HTTP status. `None` if the status is final.
pub(crate) fn status_retry(status: u16, requested_wait: Option<Duration>) -> Option<Retry> {
    matches!(status, 408 | 425 | 429 | 500..=599).then(|| match requested_wait {
        Some(wait) if wait > RETRY_AFTER_MAX => Retry::Never,
        Some(wait) => Retry::After(wait),
        None => Retry::Soon,
    })
}

pub(crate) fn status_fault(status: u16, stage: Stage, retry_after: Option<Duration>) -> Fault {
    let class = match status {
        401 => ErrorClass::Unauthorized,
        403 => ErrorClass::Forbidden,
        404 if stage == Stage::Blob => ErrorClass::BlobUnknown,
        404 => ErrorClass::ImageUnknown,
        429 => ErrorClass::RateLimited,
        408 | 425 | 500..=599 => ErrorClass::RegistryFailed,
        _ => ErrorClass::AnswerInvalid,
    };
    Fault { retry_after, ..Fault::new(class, stage) }
}

/// Makes a registry's error text safe for a message: no control characters, no secret in use, bounded length. `cut`
/// means that the text is incomplete. Then its last bytes are dropped, because they may be a part of a secret.
pub(crate) fn scrubbed(body: &[u8], cut: bool, secrets: &[Secret]) -> String {
    // Unprintable characters are removed first, because a secret that contains one would not be found.
    let bare = |text: &str| text.replace(is_unprintable, "");
    let mut text = bare(&String::from_utf8_lossy(body));
    let mut secrets: Vec<Secret> = secrets.iter().flat_map(|secret| spellings(&bare(secret.expose()))).collect();
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
    if cut {
        let unsafe_tail = secrets.first().map_or(0, |secret| secret.expose().len());
        text.truncate(text.floor_char_boundary(text.len().saturating_sub(unsafe_tail)));
    }
    for secret in &secrets {
        text = text.replace(secret.expose(), REDACTED);
    }
    text = without_queries(&without_authorization(&text));
    if text.len() > BODY_SHOWN_MAX {
        text.truncate(text.floor_char_boundary(BODY_SHOWN_MAX));
        text.push('…');
    }
    text
}

/// The message of a registry's error document, or the plain text of another answer. HTML pages are dropped.
pub(crate) fn explanation(content_type: &str, body: &[u8], cut: bool, secrets: &[Secret]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Document {
        errors: Vec<ErrorEntry>,
    }
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct ErrorEntry {
        code: String,
        message: String,
    }
    let text = match serde_json::from_slice::<Document>(body) {
        Ok(document) => {
            let parts = document.errors.iter().take(4).map(|entry| match entry.message.as_str() {
                "" => entry.code.clone(),
                message => format!("{}: {message}", entry.code),
            });
            scrubbed(parts.collect::<Vec<_>>().join("; ").as_bytes(), false, secrets)
        }
        Err(_) if content_type.starts_with("text/html") => return None,
        Err(_) => scrubbed(body, cut, secrets),
    };
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Removes the queries of URLs, because a blob store repeats a rejected URL with its signature.
fn without_queries(text: &str) -> String {
    static QUERY: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"\?[^\s"'<>`)]*=[^\s"'<>`)]*"#).expect("a regular expression"));
    QUERY.replace_all(text, format!("?{REDACTED}")).into_owned()
}

/// Removes the word after `Bearer` or `Basic`, unless the word is short or has only lower-case letters.
fn without_authorization(text: &str) -> String {
    let mut follows_scheme = false;
    let shown = text.split(' ').map(|word| {
        let is_secret = follows_scheme && word.len() >= 12 && !word.bytes().all(|byte| byte.is_ascii_lowercase());
        let bare = word.trim_matches(|character: char| !character.is_ascii_alphanumeric()).to_ascii_lowercase();
        follows_scheme = bare.ends_with("bearer") || bare.ends_with("basic");
        if is_secret { REDACTED } else { word }
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_address_is_repeated_without_its_signature() {
        for (text, kept) in [
            ("GET /a?X-Sig=s3cret&x=y failed", "GET /a?[redacted] failed"),
            ("<Url>https://s.io/a?sig=s3cret</Url>", "<Url>https://s.io/a?[redacted]</Url>"),
            ("why? because=so", "why? because=so"),
            ("a?x=1 b?y=2", "a?[redacted] b?[redacted]"),
            ("?", "?"),
        ] {
            assert_eq!(scrubbed(text.as_bytes(), false, &[]), kept);
        }
    }

    #[test]
    fn an_answer_is_repeated_without_its_secrets() {
        let secrets = ["p@ss\"word", "dXNlcjpwYXNz", "a-b/c"].map(Secret::new);
        for (body, shown) in [
            ("no a-b%2Fc or a-b%2fc here", "no [redacted] or [redacted] here"),
            ("no p@ss\"word here", "no [redacted] here"),
            ("no p@s\u{0}s\"word here", "no [redacted] here"),
            ("no p%40ss%22word here", "no [redacted] here"),
            (r#"{"pw":"p@ss\"word"}"#, r#"{"pw":"[redacted]"}"#),
            ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [redacted]"),
            ("Authorization: Bearer abcdefgh.ijklmnop", "Authorization: Bearer [redacted]"),
            ("bearer Authorization:Bearer abcdefgh.ijklmnop", "bearer [redacted] [redacted]"),
            ("the basic authentication failed", "the basic authentication failed"),
            ("a\r\nb\u{1b}[31m", "ab[31m"),
        ] {
            assert_eq!(scrubbed(body.as_bytes(), false, &secrets), shown, "{body:?}");
        }
    }

    #[test]
    fn half_a_secret_at_the_cut_is_left_out_and_long_answers_end() {
        let secrets = [Secret::new("secrettoken")];
        assert_eq!(scrubbed(b"before secrettok", true, &secrets), "befor");
        assert!(scrubbed(&[b'x'; 9000], true, &secrets).len() <= BODY_SHOWN_MAX + 4);
    }

    #[test]
    fn an_error_document_is_reduced_to_its_words() {
        let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{"Tag":"v9"}}]}"#;
        let shown = explanation("application/json", body, false, &[]);
        assert_eq!(shown.as_deref(), Some("MANIFEST_UNKNOWN: manifest unknown"));
        assert_eq!(explanation("text/html", b"<html>", false, &[]), None);
        assert_eq!(explanation("text/plain", b" gone \n", false, &[]).as_deref(), Some("gone"));
    }
}
