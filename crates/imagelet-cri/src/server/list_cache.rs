//! `ListImages`, encoded once per change of the store: ten thousand images take longer to encode than to send.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, skip_field},
};
use tonic::{Request, Status};

use super::ImageServer;
use crate::{
    convert,
    v1::{ListImagesRequest, image_service_server::ImageService as _},
};

/// The encoded list of all images. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ListCache {
    server: ImageServer,
    /// The store's edition of the encoded list, and the list.
    encoded: Arc<Mutex<Option<(u64, EncodedList)>>>,
}

impl ListCache {
    pub(super) fn new(server: ImageServer) -> Self {
        Self { server, encoded: Arc::default() }
    }

    /// Answers from the cache if the store has not changed.
    pub(super) async fn list(self, request: Request<ListImagesRequest>) -> Result<EncodedList, Status> {
        let is_of_all = convert::filter_from_wire(request.get_ref().filter.clone()).is_none();
        let edition = if is_of_all { self.server.images.edition() } else { None };
        if let Some((of, list)) = self.lock().as_ref()
            && Some(*of) == edition
        {
            return Ok(list.clone());
        }
        let list = EncodedList(self.server.list_images(request).await?.into_inner().encode_to_vec().into());
        // A list during a change may or may not contain the change.
        if let Some(edition) = edition
            && self.server.images.edition() == Some(edition)
        {
            let mut encoded = self.lock();
            if encoded.as_ref().is_none_or(|(of, _)| *of < edition) {
                *encoded = Some((edition, list.clone()));
            }
        }
        Ok(list)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(u64, EncodedList)>> {
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
