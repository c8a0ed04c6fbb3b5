//! Partial layers, which the next pull continues, and the names of all unfinished content.

mod journal;
mod partial_layer;

pub(super) use self::partial_layer::{PARTIAL_SUFFIX, partial_layer_modified, partial_layer_size};
pub(crate) use self::{
    journal::{Checkpoint, JournalRecord, JournalWriter, StreamFormat},
    partial_layer::{PartialKey, PartialLayer, ResumableBytes, ResumedLayer},
};
