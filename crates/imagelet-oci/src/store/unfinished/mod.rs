//! Partial layers, which the next pull continues, and the names of all unfinished content.

mod journal;
mod partial_key;
mod partial_layer;

pub(crate) use self::{
    journal::{Checkpoint, JournalRecord, JournalWriter, StreamFormat},
    partial_key::PartialKey,
    partial_layer::{PartialLayer, ResumableBytes, ResumedLayer},
};
pub(super) use self::{
    partial_key::PARTIAL_SUFFIX,
    partial_layer::{partial_layer_modified, partial_layer_size},
};
