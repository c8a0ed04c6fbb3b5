//! `status`: the state of the node in one reply.

use std::{sync::Arc, time::Duration};

use futures_util::future::OptionFuture;
use imagelet_core::{disks::DiskUse, inventory::node_images};

use super::LocalNode;
use crate::{
    api::{ImportStatus, Queue, Status, moment},
    config::{Backend, StoreSettings},
    failure::Failure,
};

/// How long `status` waits for the runtime. A command's timeout is longer, so that the reply can name a silent runtime.
const STATUS_WAIT_MAX: Duration = Duration::from_secs(4);

impl LocalNode {
    pub(crate) async fn report(&self) -> Result<Status, Failure> {
        let (images, place) = (&self.pulls.images, &self.pulls.images.place);
        let mut problems = Vec::new();
        let seen = async { (images.refresh().await, images.inventory.image_list().await) };
        let imports = OptionFuture::from(self.status.imports.as_deref().map(ImportStatus::of));
        let (seen, disks, runtime_import) = tokio::join!(
            tokio::time::timeout(STATUS_WAIT_MAX, seen),
            tokio::time::timeout(STATUS_WAIT_MAX, images.disks()),
            imports
        );
        let silence = |source: &str| format!("no answer within {} s from {source}", STATUS_WAIT_MAX.as_secs());
        let (snapshot, listed) = match seen {
            Ok((Ok(snapshot), listed)) => (Some(snapshot), listed),
            Ok((Err(failure), listed)) => {
                problems.push(failure.to_string());
                (None, listed)
            }
            Err(_) => {
                // An embedded store lists its images at once, so the containers' runtime is the silent part.
                problems.push(match &images.settings().images.backend {
                    Backend::Embedded(StoreSettings { runtime: Some((endpoint, _)), .. }) => {
                        silence(&endpoint.to_string())
                    }
                    _ => silence(&place.backend),
                });
                (None, Arc::default())
            }
        };
        let disks = disks.unwrap_or_else(|_| Err(silence(&place.backend)));
        let disks = disks.map_err(|problem| problems.push(problem)).ok();
        let disk = disks.as_ref().and_then(|disks| disks.images.disk.as_ref());
        let settings = images.settings();
        let Queue { pulls, held_back, registries, .. } = self.pulls.queue();
        let entries = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.entries);
        problems.dedup();
        Ok(Status {
            runtime_import,
            version: env!("CARGO_PKG_VERSION").into(),
            backend: place.backend.clone(),
            unpacking: self.status.unpacking.clone(),
            sizes: self.status.sizes.clone(),
            process: if place.is_daemon { "daemon" } else { "command" }.into(),
            pid: std::process::id(),
            started_at: moment(self.status.started_at),
            images: entries.len() as u64,
            images_unknown: snapshot.is_none(),
            in_use: entries.iter().filter(|entry| !entry.usage.used_by.is_empty()).count() as u64,
            used_percent: disk.map(DiskUse::used_percent),
            image_fs: disks.as_ref().map(|disks| (&disks.images).into()),
            container_fs: disks.as_ref().map(|disks| (&disks.containers).into()),
            node_images: node_images(&listed, settings.node.status_images_max),
            pull_rate_min: settings.hold().rate_min,
            gc_high_percent: settings.collection.policy.high().get(),
            gc_low_percent: settings.collection.policy.low().get(),
            gc_mode: settings.collection.mode.name().into(),
            last_collection: self.collection.last(),
            decisions_lost: images.log.lost(),
            pulls,
            held_back,
            registries,
            problems,
        })
    }
}
