//! The pulls of a node: of one image or of a pod's images, and their progress.

mod ensure;
mod pull_rows;

use std::sync::Arc;

use imagelet_core::{credentials::Providers, image::Reference, manager::ImageManager};
use tokio::time::Instant;

use super::Images;
use crate::{api::PullProgressRow, traces::Tracer};
use pull_rows::progress_row;
pub(crate) use pull_rows::{held_back_of, pulls_of};

#[derive(Clone, Debug)]
pub struct Pulls {
    pub images: Images,
    pub manager: Arc<ImageManager>,
    pub tracer: Tracer,
    pub providers: Arc<Providers>,
}

impl Pulls {
    /// The current version, and the pulls that run, wait or ended after `version`. Version 0 omits ended pulls.
    pub(crate) fn since(&self, version: u64) -> (u64, Vec<PullProgressRow>) {
        let ((version, pulls), now) = (self.manager.pulls_since(version), Instant::now());
        let is_silent = self.images.local().is_none();
        let row = |pull| {
            let row = progress_row(pull, is_silent, now);
            PullProgressRow { bytes_estimated: self.estimated(&row), ..row }
        };
        (version, pulls.into_iter().map(row).collect())
    }

    /// The size of the previous image with this name, as an estimate for a runtime that reports no size.
    fn estimated(&self, pull: &PullProgressRow) -> Option<u64> {
        if pull.bytes_total.is_some() {
            return None;
        }
        let name = pull.image.parse::<Reference>().ok()?.canonical().to_string();
        let snapshot = self.images.inventory.snapshot()?;
        let known = snapshot.entries.iter().find(|entry| entry.image.tags.contains(&name));
        known.map(|entry| entry.image.size.0).filter(|size| *size > 0)
    }
}
