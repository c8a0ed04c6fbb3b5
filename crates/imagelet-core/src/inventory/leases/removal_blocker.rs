//! What stands between an image and its removal.

use std::time::SystemTime;

/// What stands between an image and its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemovalBlocker {
    /// It is not there any more.
    Gone,
    /// These use it.
    InUse(Vec<String>),
    /// These patterns, or the runtime, keep it.
    Pinned(Vec<String>),
    /// Somebody asked for it after the entry was drawn.
    Touched,
    /// Somebody may start a container from it until then.
    Leased(SystemTime),
    /// Its last container was gone for the first time then, which a second look has to confirm.
    Released(SystemTime),
    /// Somebody else removes it, or waits for removals to end.
    Busy,
    /// The runtime lists no container at all where it listed some for the snapshot.
    Doubtful,
}
