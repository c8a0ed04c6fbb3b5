//! Collections of a node: on request, by timer, and for a pull that lacks space.

mod collect;
mod disk_history;
mod gc_audit;
mod usage;

use std::sync::{Arc, Mutex};

use imagelet_core::{
    gc::{GcRuns, ImageGc, RunMessage},
    lock::locked,
    metrics::Metrics,
};

use super::Images;
use crate::api::LastCollection;
pub(crate) use collect::SpaceByCollection;
use disk_history::DiskHistory;
pub(super) use gc_audit::{FAMILIES, LOST};

#[derive(Debug)]
pub struct Collection {
    pub images: Images,
    pub gc: ImageGc,
    pub metrics: Arc<Metrics>,
    disk_history: DiskHistory,
    last: Mutex<Option<LastCollection>>,
    runs: Mutex<GcRuns>,
}

impl Collection {
    pub fn new(images: Images, gc: ImageGc, metrics: Arc<Metrics>) -> Self {
        let (disk_history, last, runs) = (DiskHistory::default(), Mutex::default(), Mutex::default());
        Self { images, gc, metrics, disk_history, last, runs }
    }

    pub fn last(&self) -> Option<LastCollection> {
        locked(&self.last).clone()
    }

    pub(crate) fn ended(&self, result: Result<(), &str>) -> RunMessage {
        locked(&self.runs).ended(result)
    }
}
