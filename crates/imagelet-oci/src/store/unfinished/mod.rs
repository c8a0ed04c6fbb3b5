//! Layers that a pull has begun to unpack, and that the next pull continues.

mod journal;
mod partial_layer;

pub(super) use self::partial_layer::{PartialGuard, written_at, written_bytes};
pub(crate) use self::{
    journal::{Checkpoint, JournalWriter, Packing, Record},
    partial_layer::{PartialStaging, ResumableBytes, ResumedLayer},
};
