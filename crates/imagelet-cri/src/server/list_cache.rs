//! `ListImages`, encoded once per change of the store: ten thousand images take longer to encode than to send.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, BufMut, Bytes};
use imagelet_core::runtime::Listing;
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, skip_field},
};
use tonic::{Request, Status};

use super::{ImageServer, fitting, to_wire};
use crate::{
    convert,
    v1::{ListImagesRequest, ListImagesResponse},
};

/// The encoded list of all images. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ListCache {
    server: ImageServer,
    encoded: Arc<Mutex<Option<(Listing, EncodedList)>>>,
}

impl ListCache {
    pub(super) fn new(server: ImageServer) -> Self {
        Self { server, encoded: Arc::default() }
    }

    /// Encodes the list, or returns the last encoding for an equal list: equal images of one store are the same objects.
    pub(super) async fn list(self, request: Request<ListImagesRequest>) -> Result<EncodedList, Status> {
        let (metadata, _, request) = request.into_parts();
        let list = async {
            let filter = convert::filter_from_wire(request.filter);
            let listing = self.server.listed(filter.as_ref()).await?;
            if let Some((of, list)) = self.lock().as_ref()
                && *of == listing
            {
                return Ok(list.clone());
            }
            let images = to_wire(listing.clone());
            let list = EncodedList(fitting(ListImagesResponse { images }).encode_to_vec().into());
            if filter.is_none() {
                *self.lock() = Some((listing, list.clone()));
            }
            Ok(list)
        };
        self.server.answer("ListImages", &metadata, list).await
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Listing, EncodedList)>> {
        self.encoded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An encoded `ListImagesResponse`.
#[derive(Clone, Debug, Default)]
pub(super) struct EncodedList(Bytes);

impl Message for EncodedList {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, tag, buffer, context)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
