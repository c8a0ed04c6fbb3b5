//! What the model tests run an inventory with: a disk in memory and deliberate mistakes.

mod in_memory_disk;
mod mutations;

pub(crate) use self::{
    in_memory_disk::{InMemoryDisk, step},
    mutations::Mutation,
};
