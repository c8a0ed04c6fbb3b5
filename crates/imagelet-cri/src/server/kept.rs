//! The list of all images as it was sent last, to be sent again for as long as it is true.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonic::codegen::Bytes;

/// One list, at most as long as a message may be. Cheap to clone; all clones keep the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptList(Arc<Mutex<Option<(u64, Bytes)>>>);

impl KeptList {
    /// What was sent of this edition of the store.
    pub(super) fn of(&self, edition: u64) -> Option<Bytes> {
        self.lock().as_ref().filter(|(of, _)| *of == edition).map(|(_, message)| message.clone())
    }

    /// Keeps the list of an edition, unless a later one is here.
    pub(super) fn keep(&self, edition: u64, message: Bytes) {
        let mut kept = self.lock();
        if kept.as_ref().is_none_or(|(of, _)| *of < edition) {
            *kept = Some((edition, message));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(u64, Bytes)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_sent_again_for_its_edition_alone_and_an_old_one_drives_none_out() {
        let kept = KeptList::default();
        assert_eq!(kept.of(0), None);
        kept.keep(3, Bytes::from_static(b"three"));
        assert_eq!(kept.of(3).as_deref(), Some(b"three".as_slice()));
        assert_eq!((kept.of(2), kept.of(4)), (None, None));
        kept.keep(2, Bytes::from_static(b"two"));
        assert_eq!(kept.clone().of(3).as_deref(), Some(b"three".as_slice()));
        kept.keep(4, Bytes::from_static(b"four"));
        assert_eq!((kept.of(3), kept.of(4).as_deref()), (None, Some(b"four".as_slice())));
    }
}
