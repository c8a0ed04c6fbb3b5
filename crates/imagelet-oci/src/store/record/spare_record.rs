//! The record of a spare layer, beside that of the layer itself.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{LayerEntry, checksum};
use crate::failpoint::Step;

const SPARE_RECORD: &str = "spare.json";

/// Where a spare layer comes from, as `spare.json` beside its `layer.json` has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SpareRecord {
    /// Only this boot may use it: the layer is not synced.
    pub(crate) boot: String,
    /// The repository that sent it.
    pub(crate) repository: String,
    pub(crate) entry: LayerEntry,
}

impl SpareRecord {
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(SPARE_RECORD), checksum::seal(self))?;
        Step::LayerResumable.reach();
        Ok(())
    }

    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        checksum::open(&fs::read(folder.join(SPARE_RECORD))?)
    }

    /// Removes it from a layer that becomes part of the store.
    pub(crate) fn remove(folder: &Path) -> io::Result<()> {
        match fs::remove_file(folder.join(SPARE_RECORD)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
