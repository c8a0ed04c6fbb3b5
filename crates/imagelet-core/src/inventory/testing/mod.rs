//! What the model tests run an inventory with.

mod model_disk;

pub(crate) use self::model_disk::{ModelDisk, step};
