//! Usage of the node's disks, and the kubelet's eviction thresholds that it crosses.

use std::path::Path;

use imagelet_core::{
    disks::{DiskProbe as _, DiskStats, DiskUse, StatVfs},
    eviction::{Layout, Signal, Threshold},
    runtime::ImageFilesystems,
};

use crate::{api::ThresholdRow, node::LocalNode};

/// The kubelet's root; without it, `/` is measured.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

#[derive(Debug)]
pub(crate) struct Pressure {
    pub(crate) stats: DiskStats,
    pub(crate) layout: Layout,
    pub(crate) thresholds: Vec<ThresholdRow>,
}

/// Measures the disks now; `Err`: why that failed.
pub(crate) async fn pressure(node: &LocalNode) -> Result<Pressure, String> {
    let settings = node.settings();
    // The kubelet assumes one file system for a CRI runtime, except for CRI-O, which it detects by its socket.
    let splits = !settings.compatibility.is_kubelet() || settings.node.splits_disks;
    let reported = node.parts.runtime.filesystem().await.map_err(|error| error.chain())?;
    let thresholds = settings.node.thresholds.clone();
    let judged = tokio::task::spawn_blocking(move || judge(&reported, splits, thresholds)).await;
    judged.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

fn judge(reported: &ImageFilesystems, splits: bool, thresholds: Vec<Threshold>) -> Result<Pressure, String> {
    let stats = DiskStats::measure(reported, &StatVfs, splits).map_err(|error| error.to_string())?;
    let kubelet_root = if Path::new(KUBELET_ROOT).exists() { KUBELET_ROOT } else { "/" };
    let root = StatVfs.look(Path::new(kubelet_root)).ok();
    // Where a disk is not visible, it counts as the same.
    let is_dedicated = root.as_ref().is_some_and(|root| stats.has_dedicated_images(&root.device));
    let layout = Layout::of(is_dedicated, stats.images != stats.containers);
    let (thresholds, warning) = layout.with_containerfs(thresholds);
    if let Some(warning) = warning {
        tracing::warn!(warning, "the thresholds of the writable layers' file system follow from others");
    }
    let rows = thresholds.iter().filter_map(|it| row(it, layout, &stats, root.as_ref())).collect();
    Ok(Pressure { stats, layout, thresholds: rows })
}

/// `None`: the signal is not measured here, as memory and processes.
fn row(threshold: &Threshold, layout: Layout, stats: &DiskStats, root: Option<&DiskUse>) -> Option<ThresholdRow> {
    let bytes = |disk: &DiskUse| Some((disk.capacity.0, disk.available.0));
    let inodes = |disk: &DiskUse| disk.inodes.zip(disk.inodes_free);
    let (images, containers) = (stats.images.disk.as_ref(), stats.containers.disk.as_ref());
    let (capacity, available) = match threshold.signal {
        Signal::ImagefsAvailable => images.and_then(bytes),
        Signal::ImagefsInodesFree => images.and_then(inodes),
        Signal::ContainerfsAvailable => containers.and_then(bytes),
        Signal::ContainerfsInodesFree => containers.and_then(inodes),
        Signal::NodefsAvailable => root.and_then(bytes),
        Signal::NodefsInodesFree => root.and_then(inodes),
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => None,
    }?;
    let met = threshold.is_met(capacity, available);
    let reclaims = if met { layout.reclaims(threshold.signal) } else { &[] };
    Some(ThresholdRow {
        signal: threshold.signal.to_string(),
        less_than: threshold.text.clone(),
        grace_seconds: threshold.grace.map(|grace| grace.as_secs()),
        met,
        reclaims: reclaims.iter().map(|it| (*it).into()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use imagelet_core::{
        disks::FsStats,
        eviction::{SignalTexts, ThresholdTexts, thresholds},
        image::ByteSize,
    };

    use super::*;

    #[test]
    fn a_crossed_threshold_names_what_would_be_reclaimed() {
        let disk = DiskUse { inodes: Some(100), inodes_free: Some(50), ..DiskUse::of(ByteSize(1000), ByteSize(149)) };
        let images =
            FsStats { measured_at: SystemTime::UNIX_EPOCH, used: ByteSize(1), inodes_used: None, disk: Some(disk) };
        let stats = DiskStats { containers: images.clone(), images };
        let texts = [("imagefs.available", "15%"), ("imagefs.inodesFree", "50"), ("memory.available", "1")];
        let hard = texts.into_iter().map(|(signal, text)| (signal.to_owned(), text.to_owned())).collect();
        let none = SignalTexts::new();
        let texts = ThresholdTexts { hard: &hard, soft: &none, soft_grace: &none, reclaim_min: &none };
        let limits = thresholds(texts).expect("thresholds");
        let rows: Vec<ThresholdRow> =
            limits.iter().filter_map(|it| row(it, Layout::DedicatedImages, &stats, None)).collect();
        let shown = rows.iter().map(|it| (it.signal.as_str(), it.less_than.as_str(), it.met, it.reclaims.len()));
        let expected = [("imagefs.available", "15%", true, 2), ("imagefs.inodesFree", "50", false, 0)];
        assert!(shown.eq(expected), "memory is not measured: {rows:?}");
    }
}
