//! Why a layer could not be unpacked, always with the entry's name.

use std::{borrow::Cow, fmt::Write as _, io};

use rustix::io::Errno;

use super::budget::MemoryError;

/// Names longer than this are cut in messages: a message is read by people.
const NAME_SHOWN_MAX: usize = 256;

/// Why a layer could not be unpacked. What was written so far stays in the directory, for the caller to remove.
///
/// Entry names come from the archive; they are kept escaped and cut, fit for a log line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The bytes are no tar archive, or a truncated one.
    #[error("tar entry `{entry}` is malformed: {reason}")]
    Malformed {
        /// The entry, or the last one seen before the place.
        entry: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A well-formed entry that would leave the layer or has no meaning in one.
    #[error("tar entry `{entry}` is refused: {reason}")]
    Refused {
        /// The entry.
        entry: String,
        /// Why it is refused.
        reason: String,
    },
    /// The layer wants more than it is allowed.
    #[error("tar entry `{entry}` is over the limit: {reason}")]
    Limit {
        /// The entry at which the limit was reached.
        entry: String,
        /// Which limit, and its value.
        reason: String,
    },
    /// The layer would leave less free than must stay.
    #[error("no space for tar entry `{entry}`: {reason}")]
    Full {
        /// The entry at which it showed.
        entry: String,
        /// What is wanted, what is free, and what must stay.
        reason: String,
    },
    /// The file system refused; `source` has the errno, as `ENOSPC` or `EROFS`.
    #[error("could not {action} tar entry `{entry}`")]
    Io {
        /// The entry.
        entry: String,
        /// What was tried, as a verb.
        action: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The stream of tar bytes broke: the fault is the reader's, not the file system's.
    #[error("could not read the layer at tar entry `{entry}`")]
    Read {
        /// The last entry seen.
        entry: String,
        /// What the reader said.
        #[source]
        source: io::Error,
    },
    /// Other layers hold the memory that this one would need; it can be tried again.
    #[error("could not unpack tar entry `{entry}` beside other layers")]
    Busy {
        /// The entry.
        entry: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The caller set [`super::UnpackOptions::cancelled`].
    #[error("unpacking was cancelled")]
    Cancelled,
}

impl UnpackError {
    /// The system's or the reader's error, if one is the cause.
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            UnpackError::Io { source, .. } | UnpackError::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// An error that does not know its entry yet.
#[derive(Debug)]
pub(super) enum Fault {
    Malformed(Cow<'static, str>),
    Refused(Cow<'static, str>),
    Limit(Cow<'static, str>),
    Full(String),
    Io { action: &'static str, errno: Errno },
    Read(io::Error),
    Busy(MemoryError),
    Cancelled,
}

impl From<MemoryError> for Fault {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Limit(_) => Fault::limit(error.to_string()),
            MemoryError::Busy => Fault::Busy(error),
            MemoryError::Cancelled => Fault::Cancelled,
        }
    }
}

impl Fault {
    pub(super) fn malformed(reason: impl Into<Cow<'static, str>>) -> Fault {
        Fault::Malformed(reason.into())
    }

    pub(super) fn refused(reason: impl Into<Cow<'static, str>>) -> Fault {
        Fault::Refused(reason.into())
    }

    pub(super) fn limit(reason: impl Into<Cow<'static, str>>) -> Fault {
        Fault::Limit(reason.into())
    }

    /// For `map_err` behind a system call: `action` completes "could not … tar entry".
    pub(super) fn io(action: &'static str) -> impl Fn(Errno) -> Fault {
        move |errno| Fault::Io { action, errno }
    }

    /// The error to hand out, now that the entry is known.
    pub(super) fn at(self, entry: &[u8]) -> UnpackError {
        let entry = shown(entry);
        match self {
            Fault::Malformed(reason) => UnpackError::Malformed { entry, reason: reason.into_owned() },
            Fault::Refused(reason) => UnpackError::Refused { entry, reason: reason.into_owned() },
            Fault::Full(reason) => UnpackError::Full { entry, reason },
            Fault::Limit(reason) => UnpackError::Limit { entry, reason: reason.into_owned() },
            Fault::Io { action, errno } => UnpackError::Io { entry, action, source: errno.into() },
            Fault::Read(source) => UnpackError::Read { entry, source },
            Fault::Busy(source) => UnpackError::Busy { entry, source: source.into() },
            Fault::Cancelled => UnpackError::Cancelled,
        }
    }
}

/// A name from the archive, fit for a message: escaped, at most [`NAME_SHOWN_MAX`] bytes of it.
pub(super) fn shown(name: &[u8]) -> String {
    let cut = &name[..name.len().min(NAME_SHOWN_MAX)];
    let mut text = String::with_capacity(cut.len());
    for chunk in cut.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() {
                text.extend(letter.escape_default());
                continue;
            }
            if matches!(letter, '`' | '\\') {
                text.push('\\');
            }
            text.push(letter);
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("writing to a string cannot fail");
        }
    }
    if cut.len() < name.len() {
        text.push('…');
    }
    text
}
