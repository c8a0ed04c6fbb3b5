//! What the dashboard and the HTTP API show: the disk and what holds it, the queue, running pulls.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    disks::DiskUse,
    inventory::{ImageEntry, Snapshot},
};

use super::{
    command::Command,
    disk_history::{forecast, thinned},
    events::pulls_since,
    images::disk_of_images,
    local::LocalNode,
    pulls::queue,
};
use crate::{
    api::{Disk, DiskRequest, DiskSample, PullsRequest, Queue, QueueRequest, RunningPulls, Steps, since_epoch},
    failure::Failure,
};

/// A runtime that takes longer is reported as silent; the other answers of a view do not wait for it.
const DISK_WAIT_MAX: Duration = Duration::from_secs(4);
/// A client may request the disk each second, and a pass lists all images and pods.
const PASS_AGE_MAX: Duration = Duration::from_secs(10);

impl Command for DiskRequest {
    const NAME: &'static str = "disk";
    type Answer = Disk;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Disk, Failure> {
        let (measured, snapshot) = tokio::join!(measured(node), seen(node));
        let (mountpoint, disk) = measured?;
        let settings = node.settings();
        let samples = node.disk_history.all();
        let capacity = disk.as_ref().map_or(0, |disk| disk.capacity.0);
        let high = u64::try_from(u128::from(capacity) * u128::from(settings.collection.policy.high().get()) / 100)
            .unwrap_or(0);
        let used = disk.as_ref().map(|disk| disk.used().0);
        let forecast = forecast(&samples, used, capacity, high);
        let entries = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.entries);
        let held = |entry: &Arc<ImageEntry>| {
            (!entry.usage.used_by.is_empty(), !entry.pinned_by.is_empty(), entry.image.size.0)
        };
        let max = self.samples.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        let disk = Disk {
            mountpoint,
            capacity,
            available: disk.as_ref().map_or(0, |disk| disk.available.0),
            used_percent: disk.as_ref().map(DiskUse::used_percent),
            high_percent: settings.collection.policy.high().get(),
            low_percent: settings.collection.policy.low().get(),
            growth_per_hour: forecast.growth_per_hour,
            hours_to_high: forecast.hours_to_high,
            history: thinned(samples, max),
            last_collection: node.last_collection(),
            gc_mode: settings.collection.mode.name().into(),
            ..Disk::default()
        };
        Ok(disk.held_by(entries.iter().map(held)))
    }
}

impl Command for PullsRequest {
    const NAME: &'static str = "pulls";
    type Answer = RunningPulls;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<RunningPulls, Failure> {
        Ok(RunningPulls { pulls: pulls_since(node, 0).1 })
    }
}

impl Command for QueueRequest {
    const NAME: &'static str = "queue";
    type Answer = Queue;

    async fn run(self, node: &LocalNode, _steps: Steps) -> Result<Queue, Failure> {
        Ok(queue(node.parts.manager.status()))
    }
}

/// Records the present usage of the disk, for the dashboard.
pub(crate) async fn sample_disk(node: &LocalNode) {
    match measured(node).await {
        Ok((_, Some(disk))) => {
            let at = since_epoch(SystemTime::now()).as_secs();
            node.disk_history.record(DiskSample { at, used: disk.used().0 });
        }
        Ok((_, None)) => {}
        Err(failure) => tracing::debug!(error = failure.to_string(), "could not measure the disk"),
    }
}

/// The directory of the images and its disk; `None` where it is not visible from here.
async fn measured(node: &LocalNode) -> Result<(String, Option<DiskUse>), Failure> {
    tokio::time::timeout(DISK_WAIT_MAX, disk_of_images(node)).await.unwrap_or_else(|_| {
        let seconds = DISK_WAIT_MAX.as_secs();
        Err(Failure::new("TimedOut", format!("no answer within {seconds} s from {}", node.parts.backend)))
    })
}

/// The images of the last pass, or of a new one where the last is of another moment than the usage of the disk.
async fn seen(node: &LocalNode) -> Option<Arc<Snapshot>> {
    let inventory = &node.parts.inventory;
    let last = inventory.snapshot();
    let taken_at = last.as_ref().map(|snapshot| snapshot.taken_at);
    if !is_pass_due(taken_at, inventory.awaits_pass(), SystemTime::now()) {
        return last;
    }
    match tokio::time::timeout(DISK_WAIT_MAX, node.refresh()).await {
        Ok(Ok(snapshot)) => Some(snapshot),
        Ok(Err(_)) | Err(_) => last,
    }
}

/// Whether the last pass, if any, misses a pull of this node, or is too old.
fn is_pass_due(taken_at: Option<SystemTime>, awaits_pass: bool, now: SystemTime) -> bool {
    let age = taken_at.and_then(|taken_at| now.duration_since(taken_at).ok());
    awaits_pass || age.is_none_or(|age| age >= PASS_AGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
