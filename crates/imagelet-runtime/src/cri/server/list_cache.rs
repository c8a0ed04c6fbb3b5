//! A cache of the encoded `ListImages` answer. Encoding 10,000 images takes longer than sending them.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use imagelet_core::{lock::locked, ports::Listing};

#[derive(Clone, Debug, Default)]
pub(super) struct ListCache(Arc<Mutex<Option<(Listing, EncodedList)>>>);

impl ListCache {
    /// The cached encoding, if `listing` equals the cached list. Unchanged images share an `Arc` and compare fast.
    pub(super) fn get(&self, listing: &Listing) -> Option<EncodedList> {
        locked(&self.0).as_ref().filter(|(of, _)| of == listing).map(|(_, list)| list.clone())
    }

    pub(super) fn set(&self, listing: Listing, list: EncodedList) {
        *locked(&self.0) = Some((listing, list));
    }
}

/// A `ListImagesResponse` with encoded images, because bytes and messages have the same wire format.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EncodedList {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) images: Vec<Bytes>,
}
