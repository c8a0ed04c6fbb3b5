//! The disk usage of images, the space that a collection would free, and the forecast for the disk.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    disks::DiskUse,
    gc::GcGoal,
    image::{Digest, ImageId},
    inventory::Snapshot,
    ports::Certainty,
};

use super::{
    Collection,
    disk_history::{forecast, thinned},
};
use crate::{
    api::{Disk, DiskRequest, DiskSample, ImageRow, Usage, at_most, since_epoch},
    failure::Failure,
    node::{Images, predict_all},
};

/// How long a reply waits for the runtime's disk. After it, the reply reports that the runtime does not answer.
const DISK_WAIT_MAX: Duration = Duration::from_secs(4);
/// The age from which a pass is repeated. A pass lists all images and pods, and clients may poll each second.
const PASS_AGE_MAX: Duration = Duration::from_secs(10);
const SAMPLES_MAX: u64 = 1440;

impl Collection {
    pub(crate) async fn usage(&self) -> Result<Usage, Failure> {
        let sizes = self.images.sizes().await?;
        let mut images = self.images.listed(&sizes).await?;
        predict_all(self, &mut images).await;
        let (mountpoint, disk) = self.images.disk().await?;
        let plan = self.plan(GcGoal::AllUnused).await.inspect_err(|error| {
            tracing::warn!(%error, "could not compute the reclaimable bytes");
        });
        let (reclaimable, certainty) =
            plan.map_or((0, Certainty::Claimed), |plan| (plan.sizes.freed.bytes.0, plan.sizes.certainty));
        let (images_size, images_certainty) =
            sizes.total().unwrap_or_else(|| (listed(images.iter()), Certainty::Claimed));
        let artifacts: Vec<&ImageRow> = images.iter().filter(|image| image.artifact.is_some()).collect();
        let artifacts_count = artifacts.len() as u64;
        let artifacts_size = match &sizes.layers {
            Some(graph) => graph.total_of(&artifacts.iter().map(|image| ImageId::new(&image.id)).collect::<Vec<_>>()).0,
            None => listed(artifacts),
        };
        let store = sizes.store_bytes.zip(sizes.layers).map(|(total, graph)| {
            // Only layers have a digest as id. The graph also contains the documents of each image and the kept blobs.
            let layers = graph.layers.iter().filter(|layer| layer.id.parse::<Digest>().is_ok()).count();
            serde_json::json!({ "total": total.0, "layers": layers })
        });
        Ok(Usage {
            mountpoint,
            capacity: disk.as_ref().map_or(0, |disk| disk.capacity.0),
            available: disk.as_ref().map_or(0, |disk| disk.available.0),
            used_percent: disk.as_ref().map_or(0, DiskUse::used_percent),
            images_size,
            images_certainty: images_certainty.name().to_owned(),
            images_count: images.len() as u64,
            artifacts_count,
            artifacts_size,
            reclaimable,
            certainty: certainty.name().to_owned(),
            images,
            store,
        })
    }

    pub(crate) async fn disk(&self, request: DiskRequest) -> Result<Disk, Failure> {
        let max = request.samples.map(|max| at_most("samples", max, SAMPLES_MAX)).transpose()?.unwrap_or(usize::MAX);
        let (measured, snapshot) = tokio::join!(measured(&self.images), seen(&self.images));
        let (mountpoint, disk) = measured?;
        let settings = self.images.settings();
        let samples = self.disk_history.all();
        let capacity = disk.as_ref().map_or(0, |disk| disk.capacity.0);
        let high = u64::try_from(u128::from(capacity) * u128::from(settings.collection.policy.high().get()) / 100)
            .unwrap_or(0);
        let forecast = forecast(&samples, disk.as_ref().map(|disk| disk.used().0), capacity, high);
        let entries = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.entries);
        let mut held = [0_u64; 3];
        for entry in entries {
            let by = if !entry.usage.used_by.is_empty() { 0 } else { usize::from(entry.pinned_by.is_empty()) + 1 };
            held[by] = held[by].saturating_add(entry.image.size.0);
        }
        let [in_use_size, pinned_size, unused_size] = held;
        Ok(Disk {
            mountpoint,
            capacity,
            available: disk.as_ref().map_or(0, |disk| disk.available.0),
            used_percent: disk.as_ref().map(DiskUse::used_percent),
            high_percent: settings.collection.policy.high().get(),
            low_percent: settings.collection.policy.low().get(),
            growth_per_hour: forecast.growth_per_hour,
            hours_to_high: forecast.hours_to_high,
            history: thinned(samples, max),
            last_collection: self.last(),
            gc_mode: settings.collection.mode.name().into(),
            in_use_size,
            pinned_size,
            unused_size,
        })
    }

    pub(crate) async fn sample_disk(&self) {
        match measured(&self.images).await {
            Ok((_, Some(disk))) => {
                let at = since_epoch(SystemTime::now()).as_secs();
                self.disk_history.record(DiskSample { at, used: disk.used().0 });
            }
            Ok((_, None)) => {}
            Err(failure) => tracing::debug!(error = failure.to_string(), "could not measure the disk"),
        }
    }
}

/// The sum of the listed sizes of images. An image with rows for several runtime handlers is added once.
fn listed<'a>(images: impl IntoIterator<Item = &'a ImageRow>) -> u64 {
    let sizes: BTreeMap<&str, u64> = images.into_iter().map(|image| (image.id.as_str(), image.size)).collect();
    sizes.into_values().fold(0, u64::saturating_add)
}

async fn measured(images: &Images) -> Result<(String, Option<DiskUse>), Failure> {
    tokio::time::timeout(DISK_WAIT_MAX, images.disk()).await.unwrap_or_else(|_| {
        let seconds = DISK_WAIT_MAX.as_secs();
        Err(Failure::new("TimedOut", format!("no answer within {seconds} s from {}", images.place.backend)))
    })
}

async fn seen(images: &Images) -> Option<Arc<Snapshot>> {
    let last = images.inventory.snapshot();
    let taken_at = last.as_ref().map(|snapshot| snapshot.taken_at);
    if !is_pass_due(taken_at, images.inventory.awaits_pass(), SystemTime::now()) {
        return last;
    }
    tokio::time::timeout(DISK_WAIT_MAX, images.refresh()).await.ok().and_then(Result::ok).or(last)
}

/// Whether a new pass is due. `awaits_pass`: an image was returned to a caller and is not in the last pass.
fn is_pass_due(taken_at: Option<SystemTime>, awaits_pass: bool, now: SystemTime) -> bool {
    let age = taken_at.and_then(|taken_at| now.duration_since(taken_at).ok());
    awaits_pass || age.is_none_or(|age| age >= PASS_AGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_several_handlers_is_listed_once() {
        let row = |id: &str, size| ImageRow { id: id.to_owned(), size, ..ImageRow::default() };
        assert_eq!(listed(&[row("a", 5), row("a", 5), row("b", 7)]), 12);
        assert_eq!(listed(&[row("a", u64::MAX), row("b", 7)]), u64::MAX);
    }

    #[test]
    fn the_images_of_the_disk_are_listed_anew_after_a_pull_and_after_a_few_seconds() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (taken_at, awaits_pass, is_due) in [
            (Some(100), false, false),
            (Some(91), false, false),
            (Some(90), false, true),
            (Some(100), true, true),
            (None, false, true),
            // The clock was set back.
            (Some(101), false, true),
        ] {
            assert_eq!(is_pass_due(taken_at.map(at), awaits_pass, at(100)), is_due, "{taken_at:?} {awaits_pass}");
        }
    }
}
