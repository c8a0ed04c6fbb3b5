//! What the model tests read of the leases, and the mistakes that they make in them.

use std::fmt;

use super::Leases;
use crate::image::ImageId;

impl Leases {
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    pub(crate) fn digest(&self, mark: u64) -> impl fmt::Debug {
        let kept: Vec<_> = self.kept.iter().map(|(id, (until, _))| (id.clone(), *until)).collect();
        (self.images.clone(), kept, self.all_until, self.removals(mark))
    }

    pub(crate) fn removals(&self, mark: u64) -> impl fmt::Debug {
        let newer = self.ended.iter().filter(|(begun, _)| *begun > mark);
        let ended: Vec<_> = newer.map(|(begun, id)| (begun - mark, id.clone())).collect();
        let begun = if mark == u64::MAX { 0 } else { self.begun - mark };
        (self.removing.clone(), ended, begun)
    }

    pub(crate) fn end(&mut self, id: &ImageId) {
        self.images.remove(id);
    }

    pub(crate) fn forget_removals(&mut self, id: &ImageId) {
        self.removing.remove(id);
        self.ended.clear();
    }

    pub(crate) fn unmark(&mut self, id: &ImageId) {
        self.removing.remove(id);
        self.begun -= 1;
    }
}
