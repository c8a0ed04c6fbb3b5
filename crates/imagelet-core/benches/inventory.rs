//! What it costs to find, date and hold all images of a node against its pods, and to plan a collection from that.
//!
//! One figure is one collection in a dry run over the runtime in memory, after a first pass: list images, sandboxes
//! and containers, bring the inventory up to them, decide about every image. No socket, no disk. `list` is the fake's
//! own part of it, which copies its table. Prints one JSON object a line, and fails above its bounds with `--check`.

#![allow(clippy::print_stdout, reason = "a benchmark tells its figures")]

use std::{
    alloc::System,
    hint::black_box,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    gc::{DiskProbe, DiskUse, GcGoal, GcPolicy, GcRequest, ImageGc},
    image::ByteSize,
    inventory::Inventory,
    runtime::{ContainerState, ImageService as _, RuntimeManager},
    testing::FakeRuntime,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Images, and the milliseconds that detection and plan may take; the kubelet's own code takes 10.1 and 175.
const BOUNDS: [(u64, f64); 2] = [(10_000, 4.0), (100_000, 60.0)];
const PODS: u64 = 250;
/// Passes, of which the middle one is told.
const SAMPLES: usize = 21;
const GIB: u64 = 1 << 30;

/// A full disk, so that there is something to plan.
#[derive(Debug)]
struct Full;

impl DiskProbe for Full {
    fn look(&self, _directory: &Path) -> io::Result<DiskUse> {
        Ok(DiskUse::of(ByteSize(1000 * GIB), ByteSize(50 * GIB)))
    }
}

fn main() {
    let is_checked = std::env::args().any(|argument| argument == "--check");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime starts");
    let mut is_over = false;
    for (images, milliseconds_max) in BOUNDS {
        let (whole, list, allocations) = runtime.block_on(measure(images));
        println!(
            r#"{{"figure": "inventory/{images}", "milliseconds": {whole:.3}, "list": {list:.3}, "allocations": {allocations:.2}}}"#
        );
        is_over |= whole > milliseconds_max;
    }
    assert!(!(is_checked && is_over), "above {BOUNDS:?}");
}

/// Milliseconds of detection and plan, milliseconds of the fake's listing in them, and allocations by image.
async fn measure(images: u64) -> (f64, f64, f64) {
    let fake = FakeRuntime::new();
    let ids: Vec<_> = (0..images)
        .map(|number| {
            let name = format!("registry.example.com/team-{}/app-{}:v{}", number % 7, number % 500, number);
            (fake.preload(&name, &name, (number % 900 + 100) << 20), name)
        })
        .collect();
    for pod in 0..PODS {
        let number = usize::try_from(pod * images / PODS).expect("it is one of them");
        let (id, name) = &ids[number];
        fake.run(&format!("pod-{pod}"), "app", name, id, ContainerState::Running);
    }
    let manager = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
    let inventory = Arc::new(Inventory::open(manager.clone(), None).expect("an inventory without files opens"));
    let gc = ImageGc::new(manager, Arc::clone(&inventory)).with_probe(Arc::new(Full));
    let policy = GcPolicy::new(85, 80, Duration::from_mins(2), None).expect("a policy");
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: true };
    // The first pass sees everything for the first time; the image that is removed then is old enough.
    let began = SystemTime::now() - Duration::from_hours(1);
    inventory.refresh(began).await.expect("the fake answers");

    let region = Region::new(ALLOCATOR);
    let report = gc.collect(&request, SystemTime::now()).await.expect("the fake answers");
    let allocations = region.change().allocations as f64 / images as f64;
    assert_eq!(report.decisions.len() as u64, images, "every image is decided about");
    assert!(report.claimed > ByteSize(100 * GIB), "and enough of them go");

    let mut whole = Vec::new();
    let mut list = Vec::new();
    for _ in 0..SAMPLES {
        let began = processor_time();
        black_box(gc.collect(&request, SystemTime::now()).await.expect("the fake answers"));
        whole.push(processor_time().saturating_sub(began).as_secs_f64() * 1e3);
        let began = processor_time();
        black_box(fake.list(None).await.expect("the fake answers"));
        list.push(processor_time().saturating_sub(began).as_secs_f64() * 1e3);
    }
    (middle(whole), middle(list), allocations)
}

fn middle(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// What this thread has had of a processor: a machine that has other work too does not make a pass dearer.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
