//! What the model tests run an inventory with: a disk and deliberate mistakes.

mod model_disk;
mod mutations;

pub(crate) use self::{
    model_disk::{ModelDisk, step},
    mutations::Mutation,
};
