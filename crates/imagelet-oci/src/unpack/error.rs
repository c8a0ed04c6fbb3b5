//! The errors of unpacking a layer, with the entry's name.

use std::{fmt::Write as _, io};

use imagelet_core::printable::is_unprintable;
use rustix::io::Errno;

use super::budget::MemoryError;

const NAME_SHOWN_MAX: usize = 256;

/// An error of unpacking a layer. The caller removes the partial directory.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct UnpackError {
    pub(crate) kind: UnpackErrorKind,
    /// Names of entries in the message come from the archive; they are escaped and shortened.
    message: String,
    #[source]
    pub(crate) source: Option<io::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnpackErrorKind {
    Malformed,
    /// A well-formed entry that would leave the layer, or that has no meaning in a layer.
    Refused,
    Limit,
    Full,
    Io,
    /// The reader of the tar stream has failed, not the file system.
    Read,
    /// Other layers use the memory. The layer can be retried.
    Busy,
    Cancelled,
}

#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: UnpackErrorKind,
    /// The reason. For [`UnpackErrorKind::Io`], the failed action, which completes "could not … tar entry".
    reason: String,
    source: Option<io::Error>,
}

impl From<MemoryError> for Fault {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Limit(_) => Fault::limit(error.to_string()),
            MemoryError::Busy => {
                Fault { source: Some(io::Error::other(error)), ..Fault::new(UnpackErrorKind::Busy, "") }
            }
            MemoryError::Cancelled => Fault::cancelled(),
        }
    }
}

impl Fault {
    pub(crate) fn new(kind: UnpackErrorKind, reason: impl Into<String>) -> Fault {
        Fault { kind, reason: reason.into(), source: None }
    }

    pub(crate) fn malformed(reason: impl Into<String>) -> Fault {
        Fault::new(UnpackErrorKind::Malformed, reason)
    }

    pub(crate) fn refused(reason: impl Into<String>) -> Fault {
        Fault::new(UnpackErrorKind::Refused, reason)
    }

    pub(crate) fn limit(reason: impl Into<String>) -> Fault {
        Fault::new(UnpackErrorKind::Limit, reason)
    }

    pub(crate) fn cancelled() -> Fault {
        Fault::new(UnpackErrorKind::Cancelled, "")
    }

    pub(crate) fn read(error: io::Error) -> Fault {
        Fault { source: Some(error), ..Fault::new(UnpackErrorKind::Read, "") }
    }

    pub(crate) fn io<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> Fault {
        move |error| Fault { source: Some(error.into()), ..Fault::new(UnpackErrorKind::Io, action) }
    }

    pub(crate) fn errno(&self) -> Option<Errno> {
        self.source.as_ref().and_then(Errno::from_io_error)
    }

    pub(crate) fn at(self, entry: &[u8]) -> UnpackError {
        let Fault { kind, reason, source } = self;
        let entry = shown(entry);
        let message = match kind {
            UnpackErrorKind::Malformed => format!("tar entry `{entry}` is malformed: {reason}"),
            UnpackErrorKind::Refused => format!("tar entry `{entry}` is refused: {reason}"),
            UnpackErrorKind::Limit => format!("tar entry `{entry}` is over the limit: {reason}"),
            UnpackErrorKind::Full => format!("no space for tar entry `{entry}`: {reason}"),
            UnpackErrorKind::Io => format!("could not {reason} tar entry `{entry}`"),
            UnpackErrorKind::Read => format!("could not read the layer at tar entry `{entry}`"),
            UnpackErrorKind::Busy => format!("could not unpack tar entry `{entry}` beside other layers"),
            UnpackErrorKind::Cancelled => "unpacking was cancelled".to_owned(),
        };
        UnpackError { kind, message, source }
    }
}

pub(crate) fn shown(name: &[u8]) -> String {
    let cut = &name[..name.len().min(NAME_SHOWN_MAX)];
    let mut text = String::with_capacity(cut.len());
    for chunk in cut.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '`' | '\\' => text.extend(['\\', letter]),
                _ if is_unprintable(letter) => text.extend(letter.escape_default()),
                _ => text.push(letter),
            }
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
        assert_eq!(shown("a\u{202e}gpj.exe\u{2028}".as_bytes()), r"a\u{202e}gpj.exe\u{2028}");
        let longest = "x".repeat(NAME_SHOWN_MAX);
        assert_eq!(shown(longest.as_bytes()), longest);
        assert_eq!(shown(format!("{longest}x").as_bytes()), format!("{longest}…"));
    }
}
