//! Why a layer cannot be unpacked, with the entry's name.

use std::{borrow::Cow, fmt::Write as _, io};

use rustix::io::Errno;

use super::budget::MemoryError;

const NAME_SHOWN_MAX: usize = 256;

/// Why a layer cannot be unpacked. The caller removes the partial directory.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct UnpackError {
    pub(crate) kind: UnpackErrorKind,
    /// Entry names come from the archive and are escaped and cut.
    message: String,
    #[source]
    pub(crate) source: Option<io::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnpackErrorKind {
    /// The bytes are no tar archive, or a truncated one.
    Malformed,
    /// A well-formed entry that would leave the layer or has no meaning in one.
    Refused,
    Limit,
    /// The layer would leave less free space than the floor.
    Full,
    Io,
    /// The tar stream broke: the fault is the reader's, not the file system's.
    Read,
    /// Other layers hold the memory; the layer can be retried.
    Busy,
    Cancelled,
}

#[derive(Debug)]
pub(crate) enum Fault {
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
    pub(crate) fn malformed(reason: impl Into<Cow<'static, str>>) -> Fault {
        Fault::Malformed(reason.into())
    }

    pub(crate) fn refused(reason: impl Into<Cow<'static, str>>) -> Fault {
        Fault::Refused(reason.into())
    }

    pub(crate) fn limit(reason: impl Into<Cow<'static, str>>) -> Fault {
        Fault::Limit(reason.into())
    }

    /// For `map_err` after a system call: `action` completes "could not … tar entry".
    pub(crate) fn io(action: &'static str) -> impl Fn(Errno) -> Fault {
        move |errno| Fault::Io { action, errno }
    }

    pub(crate) fn at(self, entry: &[u8]) -> UnpackError {
        use UnpackErrorKind as Kind;
        let entry = shown(entry);
        let (kind, message, source) = match self {
            Fault::Malformed(reason) => (Kind::Malformed, format!("tar entry `{entry}` is malformed: {reason}"), None),
            Fault::Refused(reason) => (Kind::Refused, format!("tar entry `{entry}` is refused: {reason}"), None),
            Fault::Limit(reason) => (Kind::Limit, format!("tar entry `{entry}` is over the limit: {reason}"), None),
            Fault::Full(reason) => (Kind::Full, format!("no space for tar entry `{entry}`: {reason}"), None),
            Fault::Io { action, errno } => {
                (Kind::Io, format!("could not {action} tar entry `{entry}`"), Some(errno.into()))
            }
            Fault::Read(error) => (Kind::Read, format!("could not read the layer at tar entry `{entry}`"), Some(error)),
            Fault::Busy(error) => {
                let message = format!("could not unpack tar entry `{entry}` beside other layers");
                (Kind::Busy, message, Some(io::Error::other(error)))
            }
            Fault::Cancelled => (Kind::Cancelled, "unpacking was cancelled".to_owned(), None),
        };
        UnpackError { kind, message, source }
    }
}

/// A name from the archive for a message: escaped, at most [`NAME_SHOWN_MAX`] bytes.
pub(crate) fn shown(name: &[u8]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shown_byte_for_byte_up_to_the_bound() {
        assert_eq!(shown(b"a\xff\xfe`b\\\n"), r"a\xff\xfe\`b\\\n");
        let longest = "x".repeat(NAME_SHOWN_MAX);
        assert_eq!(shown(longest.as_bytes()), longest);
        assert_eq!(shown(format!("{longest}x").as_bytes()), format!("{longest}…"));
    }
}
