//! Measures the gauges at the time of a scrape: images, disks, and the process itself.

use std::{
    collections::BTreeSet,
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use MetricKind::{Counter, Gauge};
use imagelet_core::{
    credentials,
    disks::FsStats,
    inventory::ImageEntry,
    manager,
    metrics::{Family, MetricKind, Metrics, families},
    ports, records,
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

use super::{LocalNode, gc};
use crate::{api::since_epoch, traces};

/// How long a scrape waits for the measurement of the disks. After it, the gauges of the disks keep their last values.
const DISKS_MAX: Duration = Duration::from_secs(2);

families! {
    BUILD = "imagelet_build_info", "1, with the version of the program as label.", Gauge, &["version"];
    START_TIME = "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", Gauge, &[];
    CPU = "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", Counter, &[];
    RESIDENT = "process_resident_memory_bytes", "Resident memory size in bytes.", Gauge, &[];
    VIRTUAL = "process_virtual_memory_bytes", "Virtual memory size in bytes.", Gauge, &[];
    THREADS = "process_threads", "Number of threads of the process.", Gauge, &[];
    FILES = "process_open_fds", "Number of open file descriptors.", Gauge, &[];
    FILES_MAX = "process_max_fds", "Maximum number of open file descriptors.", Gauge, &[];
    IMAGES = "imagelet_images", "Images on the node at the last pass.", Gauge, &[];
    IMAGES_IN_USE = "imagelet_images_in_use", "Images that a container or a mount uses.", Gauge, &[];
    IMAGES_PINNED = "imagelet_images_pinned", "Images that no collection takes.", Gauge, &[];
    IMAGES_BYTES = "imagelet_images_bytes", "Sizes of all images as listed; shared layers count in each.", Gauge, &[];
    ARTIFACTS = "imagelet_images_artifacts", "Images that are artifacts, such as models.", Gauge, &[];
    ARTIFACTS_BYTES = "imagelet_images_artifacts_bytes", "Sizes of these images as listed.", Gauge, &[];
    HELD_BACK = "imagelet_images_held_back", "Images that are held back because their pulls failed.", Gauge, &[];
    SNAPSHOT_TIME = "imagelet_inventory_timestamp_seconds", "When the last pass over the images succeeded.", Gauge, &[];
    FS_CAPACITY = "imagelet_filesystem_capacity_bytes",
        "Size of the file system of images, and of the one of writable layers (containers).", Gauge, &["filesystem"];
    FS_AVAILABLE = "imagelet_filesystem_available_bytes", "Bytes of that file system that an ordinary user can still write.",
        Gauge, &["filesystem"];
    FS_USED = "imagelet_filesystem_used_bytes", "Bytes that images, or writable layers, take on it.",
        Gauge, &["filesystem"];
    FS_INODES = "imagelet_filesystem_inodes", "Inodes of that file system, where it has a fixed number.",
        Gauge, &["filesystem"];
    FS_INODES_FREE = "imagelet_filesystem_inodes_free", "Inodes of it that are free.", Gauge, &["filesystem"];
    THRESHOLD = "imagelet_gc_threshold_percent", "How full the disk is where collecting begins (high) and ends (low).",
        Gauge, &["threshold"];
}

fn families() -> impl Iterator<Item = &'static Family> {
    let of_core = manager::metric_families()
        .chain(records::metric_families())
        .chain(ports::metric_families())
        .chain(credentials::metric_families())
        .chain(imagelet_kube::metric_families());
    let of_node = [gc::FAMILIES, FAMILIES].into_iter().flatten().copied();
    of_core.chain(of_node).chain([&traces::SPANS])
}

/// Exports all metric families before their first update.
pub fn declare(metrics: &Metrics) {
    families().for_each(|family| metrics.declare(family));
}

impl LocalNode {
    pub async fn measure(&self) {
        let (metrics, images) = (&self.status.metrics, &self.pulls.images);
        measure_process(metrics, self.status.started_at);
        if let Some(snapshot) = images.inventory.snapshot() {
            let entries = &snapshot.entries;
            let count = |is_counted: fn(&ImageEntry) -> bool| entries.iter().filter(|it| is_counted(it)).count() as f64;
            metrics.set(&IMAGES, &[], entries.len() as f64);
            metrics.set(&IMAGES_IN_USE, &[], count(|entry| !entry.usage.used_by.is_empty()));
            metrics.set(&IMAGES_PINNED, &[], count(|entry| !entry.pinned_by.is_empty()));
            let bytes = |is_counted: fn(&&Arc<ImageEntry>) -> bool| {
                entries.iter().filter(is_counted).map(|entry| entry.image.size.0 as f64).sum()
            };
            metrics.set(&IMAGES_BYTES, &[], bytes(|_| true));
            metrics.set(&ARTIFACTS, &[], count(|entry| entry.image.artifact.is_some()));
            metrics.set(&ARTIFACTS_BYTES, &[], bytes(|entry| entry.image.artifact.is_some()));
            metrics.set(&SNAPSHOT_TIME, &[], since_epoch(snapshot.taken_at).as_secs_f64());
        }
        metrics.set(&gc::LOST, &[], images.log.lost() as f64);
        self.status.pod_starts.count_finished();
        let held_back = self.pulls.manager.status().held_back;
        let held_back: BTreeSet<&str> = held_back.iter().map(|held| held.image.as_str()).collect();
        metrics.set(&HELD_BACK, &[], held_back.len() as f64);
        let settings = images.settings();
        for (name, percent) in [("high", settings.collection.policy.high()), ("low", settings.collection.policy.low())]
        {
            metrics.set(&THRESHOLD, &[name], f64::from(percent.get()));
        }
        if let Ok(Ok(disks)) = tokio::time::timeout(DISKS_MAX, images.disks()).await {
            show_filesystem(metrics, "images", &disks.images);
            show_filesystem(metrics, "containers", &disks.containers);
        }
    }
}

pub(crate) fn measure_process(metrics: &Metrics, started_at: SystemTime) {
    metrics.set(&BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
    metrics.set(&START_TIME, &[], since_epoch(started_at).as_secs_f64());
    let files = fs::read_dir("/proc/self/fd").map(|files| files.count().saturating_sub(1));
    if let Ok(files) = files {
        metrics.set(&FILES, &[], files as f64);
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        metrics.set(&FILES_MAX, &[], limit as f64);
    }
    let stat = fs::read_to_string("/proc/self/stat").ok().and_then(|text| process_stat(&text));
    let Some([ticks, threads, virtual_bytes, resident_pages]) = stat else { return };
    // The kernel counts the CPU time, so the counter is set to the kernel's value.
    metrics.set(&CPU, &[], ticks as f64 / clock_ticks_per_second() as f64);
    metrics.set(&RESIDENT, &[], resident_pages as f64 * page_size() as f64);
    metrics.set(&VIRTUAL, &[], virtual_bytes as f64);
    metrics.set(&THREADS, &[], threads as f64);
}

fn show_filesystem(metrics: &Metrics, name: &str, stats: &FsStats) {
    metrics.set(&FS_USED, &[name], stats.used.0 as f64);
    let Some(disk) = &stats.disk else { return };
    metrics.set(&FS_CAPACITY, &[name], disk.capacity.0 as f64);
    metrics.set(&FS_AVAILABLE, &[name], disk.available.0 as f64);
    for (family, inodes) in [(&FS_INODES, disk.inodes), (&FS_INODES_FREE, disk.inodes_free)] {
        if let Some(inodes) = inodes {
            metrics.set(family, &[name], inodes as f64);
        }
    }
}

/// Returns CPU ticks, threads, virtual bytes and resident pages. The program's name before them may contain `)`.
fn process_stat(text: &str) -> Option<[u64; 4]> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    // `fields` starts with field 3 of proc(5): fields 1 and 2 are the process id and the program's name.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some([field(14)? + field(15)?, field(20)?, field(23)?, field(24)?])
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Write as _};

    use super::*;

    const PAGE: &str = "../../docs/metrics.md";
    const MARK: &str =
        "<!-- metrics: written by `IMAGELET_UPDATE=1 cargo test --workspace --lib --bins -- metrics` -->";

    #[test]
    fn the_fields_of_a_process_are_read_behind_any_name() {
        let text =
            "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 100 123456789 2048 18446744073709551615";
        assert_eq!(process_stat(text), Some([300, 7, 123_456_789, 2048]));
        for broken in ["", "42 (a", "42 (a) S 1 2"] {
            assert_eq!(process_stat(broken), None, "{broken}");
        }
    }

    #[test]
    fn this_process_is_measured() {
        let metrics = Metrics::new();
        measure_process(&metrics, SystemTime::UNIX_EPOCH);
        for (family, least) in [(&RESIDENT, 1e6), (&VIRTUAL, 1e6), (&THREADS, 1.0), (&FILES, 3.0), (&FILES_MAX, 64.0)] {
            assert!(metrics.value(family, &[]) >= least, "{}", metrics.render());
        }
    }

    #[test]
    fn the_page_of_metrics_has_each_of_them_as_the_code_does() {
        let mut by_name = BTreeMap::new();
        for family in families().chain(imagelet_kube::controller_metric_families()) {
            assert!(by_name.insert(family.name, family).is_none(), "{} is declared twice", family.name);
            assert!(family.help.len() > 10, "{} says nothing", family.name);
        }
        let mut table = String::from("| metric | type | labels | what it is |\n|---|---|---|---|\n");
        for family in by_name.values() {
            let kind = match family.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram(_) => "histogram",
            };
            let labels = family.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
            let help = family.help.replace('|', "\\|");
            writeln!(table, "| `{}` | {kind} | {labels} | {help} |", family.name).expect("a text takes all");
        }
        let page = fs::read_to_string(PAGE).expect("the page is there");
        let head = page.split(MARK).next().expect("a first part");
        let tail = page.split("<!-- metrics: end -->").nth(1).expect("the page has its end mark");
        let wanted = format!("{head}{MARK}\n\n{table}<!-- metrics: end -->{tail}");
        if std::env::var_os("IMAGELET_UPDATE").is_some() {
            fs::write(PAGE, &wanted).expect("the page is written");
        }
        assert_eq!(page, wanted, "docs/metrics.md is not what the code says");
    }
}
