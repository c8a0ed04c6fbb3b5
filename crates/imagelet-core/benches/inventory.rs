//! What it costs to find, date and hold all images of a node against its pods, and to plan a collection from that.
//!
//! One figure is one collection in a dry run over the runtime in memory, after a first pass: list images, sandboxes and
//! containers, bring the inventory up to them, and decide about every image. No socket, no disk, no decision log, as a
//! dry run puts nothing on record. All is as the daemon has it where nobody configures anything: ages by the machine's
//! clock, images that cost least go first. The clock is this thread's processor time. `lru` is the same in the order of
//! last use, `kubelet` in the kubelet's way of collecting, `churn` where since the last pass one image of a hundred went
//! and as many came.
//!
//! The list is made anew for each pass, as a runtime behind a socket answers: making it is work of the runtime and
//! happens before the clock starts. `milliseconds` is until the report is there and dropped; the former list is freed by
//! another thread meanwhile, and `all_threads` has that too. Prints one JSON object a line, and fails above its bounds
//! with `--check`. An argument selects the figures with that text in their names.

#![allow(clippy::print_stdout, reason = "a benchmark tells its figures")]

use std::{
    alloc::System,
    hint::black_box,
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    disks::{DiskProbe, DiskUse},
    error::RuntimeError,
    gc::{GcGoal, GcOrder, GcPolicy, GcRequest, ImageGc},
    image::{ByteSize, Digest, Image, ImageId, ImageSpec, ImageUser},
    inventory::Inventory,
    node_policy::NodePolicy,
    ports::{
        ContainerState, ImageFilesystems, ImageService, LayerGraph, Listing, LocalStore, Progress, PullRequest,
        RuntimeManager,
    },
    testing::FakeRuntime,
};
use rustix::time::ClockId;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Images, and the milliseconds that detection and plan may take; the kubelet's own code takes 10.1 and 175.
const BOUNDS: [(u64, f64); 2] = [(10_000, 10.0), (100_000, 120.0)];
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

/// How a node is asked to collect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Default,
    Lru,
    Kubelet,
    Churn,
}

impl Way {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Default, ""), (Self::Lru, "/lru"), (Self::Kubelet, "/kubelet"), (Self::Churn, "/churn")];

    /// Whether it is what the bounds are for.
    fn is_bound(self) -> bool {
        matches!(self, Self::Default | Self::Lru | Self::Kubelet)
    }
}

/// The fake, whose next answer may be ready before it is asked.
#[derive(Clone, Debug)]
struct Prepared {
    fake: FakeRuntime,
    next: Arc<Mutex<Option<Listing>>>,
    filesystems: ImageFilesystems,
}

impl Prepared {
    /// Nothing in an answer from a socket is shared with anybody.
    async fn prepare(&self) {
        let images = self.fake.list(None).await.expect("the fake answers");
        let anew = |image: &Arc<Image>| Image { id: ImageId::new(image.id.as_str()), ..Image::clone(image) };
        *self.next.lock().expect("no thread panics while it holds the lock") =
            Some(images.iter().map(anew).map(Arc::new).collect());
    }

    /// Of a hundred images one goes and another comes.
    async fn churn(&self, turn: u64, images: u64) {
        let step = images / 100;
        for number in turn * step..(turn + 1) * step {
            let id = image(number).id;
            // The first is in use, and so are others.
            if number % (images / PODS) != 0 {
                self.fake.remove(&ImageSpec::new(id.as_str())).await.expect("the fake removes");
                self.fake.insert(image(images + number));
            }
        }
    }
}

#[async_trait]
impl ImageService for Prepared {
    fn local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }

    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let prepared = self.next.lock().expect("no thread panics while it holds the lock").take();
        match prepared {
            Some(images) if filter.is_none() => Ok(images),
            _ => self.fake.list(filter).await,
        }
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        self.fake.status(spec).await
    }

    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        self.fake.pull(request, progress).await
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.fake.remove(spec).await
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(self.filesystems.clone())
    }
}

#[async_trait]
impl LocalStore for Prepared {
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        LocalStore::layers(&self.fake).await
    }
}

/// As a runtime lists it. The fake's own way of putting images in looks for the name in all others each time.
fn image(number: u64) -> Image {
    let repository = format!("registry.example.com/team-{}/app-{}", number % 7, number % 500);
    let id = Digest::of(number.to_string().as_bytes());
    Image {
        tags: vec![format!("{repository}:v{number}")],
        digests: vec![format!("{repository}@{}", Digest::of(id.as_str().as_bytes()))],
        id: ImageId::new(id.as_str()),
        size: ByteSize((number % 900 + 100) << 20),
        user: ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    }
}

fn main() {
    let is_checked = std::env::args().any(|argument| argument == "--check");
    let word = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .build()
        .expect("a runtime starts");
    let mut is_over = false;
    for (images, milliseconds_max) in BOUNDS {
        for (way, name) in Way::ALL {
            let figure = format!("inventory/{images}{name}");
            if !figure.contains(&word) {
                continue;
            }
            let Cost { whole, all_threads, allocations } = runtime.block_on(measure(images, way));
            println!(
                r#"{{"figure": "{figure}", "milliseconds": {whole:.3}, "all_threads": {all_threads:.3}, "allocations": {allocations:.2}}}"#
            );
            is_over |= way.is_bound() && whole > milliseconds_max;
        }
    }
    assert!(!(is_checked && is_over), "above {BOUNDS:?}");
}

/// Detection and plan.
struct Cost {
    /// Milliseconds of the calling thread.
    whole: f64,
    /// Milliseconds of all threads, until the former list is freed.
    all_threads: f64,
    /// By image.
    allocations: f64,
}

async fn measure(images: u64, way: Way) -> Cost {
    let fake = FakeRuntime::new();
    let all: Vec<Image> = (0..images).map(image).collect();
    for pod in 0..PODS {
        let number = usize::try_from(pod * images / PODS).expect("it is one of them");
        let used = &all[number];
        fake.run(&format!("pod-{pod}"), "app", &used.tags[0], &used.id, ContainerState::Running);
    }
    for image in all {
        fake.insert(image);
    }
    let filesystems = fake.filesystem().await.expect("the fake answers");
    let prepared = Prepared { fake: fake.clone(), next: Arc::default(), filesystems };
    let manager = RuntimeManager::new(Arc::new(prepared.clone()), Arc::new(fake.clone()));
    let inventory = Inventory::open(manager.clone(), None)
        .expect("an inventory without files opens")
        .forgetful(way == Way::Kubelet);
    let inventory = Arc::new(inventory);
    let gc = ImageGc::new(manager, Arc::clone(&inventory)).with_probe(Arc::new(Full));
    // Nobody can make an image older than it is.
    let policy = GcPolicy::new(85, 80, Duration::ZERO, None).expect("a policy");
    let order = match way {
        Way::Default | Way::Churn => GcOrder::Cost,
        Way::Lru => GcOrder::Lru,
        Way::Kubelet => GcOrder::ListedSizes,
    };
    let rules = if way == Way::Kubelet { NodePolicy::KUBELET } else { NodePolicy::IMAGELET }.gc;
    let policy = GcPolicy { order, rules, ..policy };
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: true };
    // Sees everything for the first time.
    inventory.refresh(SystemTime::now()).await.expect("the fake answers");

    prepared.prepare().await;
    let region = Region::new(ALLOCATOR);
    let report = gc.run(&request, SystemTime::now()).await.expect("the fake answers");
    let allocations = region.change().allocations as f64 / images as f64;
    assert_eq!(report.decisions.len() as u64, images, "every image is decided about");
    assert!(report.sizes.claimed > ByteSize(100 * GIB), "and enough of them go");
    drop(report);

    let (mut whole, mut all_threads) = (Vec::new(), Vec::new());
    for turn in 0..SAMPLES {
        if way == Way::Churn {
            prepared.churn(turn as u64, images).await;
        }
        prepared.prepare().await;
        let (began, all_began) = (processor_time(ClockId::ThreadCPUTime), processor_time(ClockId::ProcessCPUTime));
        black_box(gc.run(&request, SystemTime::now()).await.expect("the fake answers"));
        whole.push(milliseconds(processor_time(ClockId::ThreadCPUTime).saturating_sub(began)));
        // There is one such thread, so this comes after the former list.
        tokio::task::spawn_blocking(|| ()).await.expect("it does nothing");
        all_threads.push(milliseconds(processor_time(ClockId::ProcessCPUTime).saturating_sub(all_began)));
    }
    Cost { whole: middle(whole), all_threads: middle(all_threads), allocations }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn middle(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// What this thread or process has had of a processor: a machine that has other work too does not make a pass dearer.
fn processor_time(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
