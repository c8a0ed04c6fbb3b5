//! Usage of the node's disks, and the kubelet's eviction thresholds that it crosses.

use std::{path::Path, sync::Arc};

use imagelet_core::{
    disks::{
        DiskStats, FsInfo, FsLookup as _, FsStats, OsLookup, StatsError, has_dedicated_images, image_device, look,
    },
    eviction::{Layout, Observation, Observations, Signal, Threshold, met, reclaim_order, with_containerfs},
};

use crate::{api::ThresholdRow, node::local::LocalNode};

/// The kubelet's root; without it, `/` is measured.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

#[derive(Debug, Default)]
pub(crate) struct Pressure {
    pub(crate) stats: Option<DiskStats>,
    pub(crate) layout: Option<Layout>,
    pub(crate) thresholds: Vec<ThresholdRow>,
}

/// Measures the disks now. A failed measurement is added to the problems.
pub(crate) async fn pressure(node: &LocalNode, problems: &mut Vec<String>) -> Pressure {
    let settings = node.settings();
    // The kubelet assumes one file system for a CRI runtime, except for CRI-O, which it detects by its socket.
    let splits = !settings.compatibility.is_kubelet() || settings.node.splits_disks;
    let stats = match look(&node.parts.runtime, Arc::new(OsLookup), splits).await {
        Ok(stats) => stats,
        Err(error) => {
            problems.push(match error {
                StatsError::Runtime(error) => error.chain(),
                other @ StatsError::Other(_) => other.to_string(),
            });
            return Pressure::default();
        }
    };
    let told = node.parts.runtime.filesystem().await.map(|told| FsInfo::from(&told)).unwrap_or_default();
    let thresholds = settings.node.thresholds.clone();
    let seen = tokio::task::spawn_blocking(move || judge(&stats, &told, thresholds)).await;
    seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

fn judge(stats: &DiskStats, told: &FsInfo, thresholds: Vec<Threshold>) -> Pressure {
    let kubelet_root = if Path::new(KUBELET_ROOT).exists() { KUBELET_ROOT } else { "/" };
    let root = OsLookup.look(Path::new(kubelet_root)).ok();
    // Where the image directory is not visible, it counts as the same disk.
    let device = image_device(told, &OsLookup).ok();
    let is_dedicated =
        root.as_ref().zip(device).is_some_and(|(root, device)| has_dedicated_images(&root.device, &device, stats));
    let layout = Layout::of(is_dedicated, stats.images != stats.containers);
    let mut observed = Observations::new();
    let mut observe = |signal, capacity: Option<u64>, available: Option<u64>| {
        if let (Some(capacity), Some(available)) = (capacity, available) {
            observed.insert(signal, Observation { capacity, available });
        }
    };
    let bytes = |stats: &FsStats| (stats.capacity_bytes, stats.available_bytes);
    let inodes = |stats: &FsStats| (stats.inodes, stats.inodes_free);
    for (signal, (capacity, available)) in [
        (Signal::ImagefsAvailable, bytes(&stats.images)),
        (Signal::ImagefsInodesFree, inodes(&stats.images)),
        (Signal::ContainerfsAvailable, bytes(&stats.containers)),
        (Signal::ContainerfsInodesFree, inodes(&stats.containers)),
        (Signal::NodefsAvailable, root.as_ref().map_or((None, None), |it| (Some(it.capacity), Some(it.available)))),
        (Signal::NodefsInodesFree, root.as_ref().map_or((None, None), |it| (it.inodes, it.inodes_free))),
    ] {
        observe(signal, capacity, available);
    }
    let (thresholds, warning) = with_containerfs(thresholds, layout);
    if let Some(warning) = warning {
        tracing::warn!(warning, "the thresholds of the writable layers' file system follow from others");
    }
    // Memory and processes are not measured here.
    let of_disks: Vec<Threshold> = thresholds.into_iter().filter(|it| observed.contains_key(&it.signal)).collect();
    let crossed = met(&of_disks, &observed, false);
    let row = |threshold: &Threshold| {
        let is_met = crossed.contains(&threshold);
        let reclaim = if is_met { reclaim_order(layout, threshold.signal) } else { &[] };
        ThresholdRow {
            signal: threshold.signal.name().into(),
            less_than: threshold.value.to_string(),
            grace_seconds: threshold.grace.map(|grace| grace.as_secs()),
            met: is_met,
            reclaims: reclaim.iter().map(|it| it.name().into()).collect(),
        }
    };
    let thresholds = of_disks.iter().map(row).collect();
    Pressure { stats: Some(stats.clone()), layout: Some(layout), thresholds }
}

#[cfg(test)]
mod tests {
    use imagelet_core::eviction::{Amount, Quantity};

    use super::*;

    fn stats(available: u64) -> DiskStats {
        let images = FsStats {
            capacity_bytes: Some(1000),
            available_bytes: Some(available),
            inodes: Some(100),
            inodes_free: Some(50),
            ..FsStats::default()
        };
        DiskStats { containers: images.clone(), images }
    }

    #[test]
    fn a_crossed_threshold_tells_what_would_be_reclaimed() {
        let threshold = |signal, value| Threshold { signal, value, grace: None, reclaim_min: None };
        let thresholds = vec![
            threshold(Signal::ImagefsAvailable, Amount::Fraction(0.15)),
            threshold(Signal::ImagefsInodesFree, Amount::Quantity(Quantity::whole(50))),
            threshold(Signal::MemoryAvailable, Amount::Quantity(Quantity::whole(1))),
        ];
        let seen = judge(&stats(149), &FsInfo::default(), thresholds);
        let told: Vec<(&str, &str, bool, usize)> = seen
            .thresholds
            .iter()
            .map(|it| (it.signal.as_str(), it.less_than.as_str(), it.met, it.reclaims.len()))
            .collect();
        // Thresholds on images apply to writable layers too: no disk is reported as separate.
        assert_eq!(told[0], ("imagefs.available", "15%", true, 2));
        assert_eq!(told[1], ("imagefs.inodesFree", "50", false, 0));
        assert!(told.iter().all(|it| !it.0.starts_with("memory")));
    }
}
