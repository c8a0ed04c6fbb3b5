//! Lets a test observe the disk at each sync, and make the sync fail.

use std::{cell::RefCell, io, path::Path};

/// Observes one sync: of a folder, or with `None` of the whole file system.
type Observer = Box<dyn FnMut(Option<&Path>) -> io::Result<()>>;

thread_local! {
    /// Tests of the store run on one thread each, and so do their syncs.
    static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

/// Observes each further sync of this thread.
pub(crate) fn observe(observer: impl FnMut(Option<&Path>) -> io::Result<()> + 'static) {
    OBSERVER.set(Some(Box::new(observer)));
}

pub(crate) fn synced(folder: Option<&Path>) -> io::Result<()> {
    OBSERVER.with_borrow_mut(|observer| observer.as_mut().map_or(Ok(()), |observer| observer(folder)))
}
