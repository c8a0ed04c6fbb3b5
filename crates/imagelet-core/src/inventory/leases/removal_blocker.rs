//! What stands between an image and its removal.

use std::time::SystemTime;

/// An obstacle between an image and its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemovalBlocker {
    /// The image is absent.
    Gone,
    /// The image is in use.
    InUse(Vec<String>),
    /// Pinned by these patterns or by the runtime.
    Pinned(Vec<String>),
    /// Requested after the entry was built.
    Touched,
    /// Leased until this time.
    Leased(SystemTime),
    /// First seen without its last container at this time; a second pass has to confirm it.
    Released(SystemTime),
    /// Another caller removes it, or pauses removals.
    Busy,
    /// The runtime lists no container after it listed some for the snapshot.
    Doubtful,
}
