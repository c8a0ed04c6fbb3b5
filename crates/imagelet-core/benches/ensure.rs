//! What it costs to ensure an image that is there: time and allocations of one call over the runtime in memory.
//!
//! The node's part alone: no socket, no disk. `ensure/off` keeps no records; `ensure/on` verifies each caller against a
//! record that names a secret which the pod presents. Prints one JSON object a line, and fails above its bounds with
//! `--check`.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{
    alloc::System,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    credentials::{ObjectIdentity, PullSecret, PullSecretKind, Secret},
    events::{Event, EventSink, PodIdentity},
    manager::{EnsureRequest, ImageManager, ManagerParts, ManagerReports, Origin, PullPolicy},
    metrics::Metrics,
    ports::{PullWatcher, RuntimeManager, unwatched},
    records::{PullRecords, VerificationPolicy},
    testing::FakeRuntime,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Half of what the kubelet's own code takes.
const MICROSECONDS_MAX: f64 = 2.0;
/// The kubelet's own code makes 22.
const ALLOCATIONS_MAX: f64 = 12.0;

/// Calls in one sample, and samples, of which the middle one is told.
const CALLS: u32 = 5_000;
const SAMPLES: usize = 41;

const IMAGE: &str = "registry.example.com/team/app:v1.2.3";

/// Takes events and keeps none.
#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl EventSink for Counted {
    fn record(&self, event: Event) {
        black_box(&event);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Bed {
    manager: ImageManager,
    runtime: FakeRuntime,
    request: EnsureRequest,
    progress: PullWatcher,
    events: Arc<Counted>,
}

/// One figure.
struct Figure {
    name: &'static str,
    microseconds: f64,
    allocations: f64,
}

fn main() {
    let is_checked = std::env::args().any(|argument| argument == "--check");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime starts");
    let mut is_over = false;
    for (name, records) in [
        ("ensure/off", PullRecords::off()),
        ("ensure/on", PullRecords::in_memory_with(VerificationPolicy::NeverVerifyPreloadedImages)),
    ] {
        let figure = runtime.block_on(measure(name, records));
        let Figure { name, microseconds, allocations } = figure;
        println!(r#"{{"figure": "{name}", "microseconds": {microseconds:.3}, "allocations": {allocations:.2}}}"#);
        is_over |= microseconds > MICROSECONDS_MAX || allocations > ALLOCATIONS_MAX;
    }
    assert!(!(is_checked && is_over), "above {MICROSECONDS_MAX} µs or {ALLOCATIONS_MAX} allocations");
}

async fn measure(name: &'static str, records: PullRecords) -> Figure {
    let bed = Bed::new(records).await;
    bed.run(CALLS).await;
    let region = Region::new(ALLOCATOR);
    bed.run(CALLS).await;
    let allocations = region.change().allocations as f64 / f64::from(CALLS);
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        let took = bed.run(CALLS).await;
        samples.push(took.as_secs_f64() * 1e6 / f64::from(CALLS));
    }
    samples.sort_by(f64::total_cmp);
    assert_eq!(
        bed.events.0.load(Ordering::Relaxed),
        (SAMPLES + 2) * CALLS as usize + 2,
        "one event a call, two a pull"
    );
    Figure { name, microseconds: samples[SAMPLES / 2], allocations }
}

impl Bed {
    /// A node on which a pod's secret has brought the image.
    async fn new(records: PullRecords) -> Self {
        let runtime = FakeRuntime::new();
        runtime.offer_to(IMAGE, "app", 40_000_000, Some(("user", "password")));
        let metrics = Arc::new(Metrics::new());
        let events = Arc::new(Counted::default());
        let images = RuntimeManager::new(Arc::new(runtime.clone()), Arc::new(runtime.clone()));
        let manager = ImageManager::new(ManagerParts {
            reports: ManagerReports {
                events: Arc::clone(&events) as _,
                metrics: Arc::clone(&metrics),
                ..ManagerReports::default()
            },
            ..ManagerParts::new(images.measured(metrics), Arc::new(records))
        });
        let document = r#"{"auths": {"registry.example.com": {"username": "user", "password": "password"}}}"#;
        let secret = PullSecret {
            identity: ObjectIdentity { uid: "3f5c".into(), namespace: "default".into(), name: "pull".into() },
            kind: PullSecretKind::DockerConfigJson,
            document: Secret::new(document),
        };
        let mut request = EnsureRequest {
            container: "spec.containers{app}".into(),
            secrets: vec![secret],
            ..EnsureRequest::new(IMAGE, PullPolicy::IfNotPresent)
        };
        request.pull.pod = PodIdentity { namespace: "default".into(), name: "web-0".into(), uid: "8a1e".into() };
        let bed = Self { manager, runtime, request, progress: unwatched(), events };
        let first = bed.manager.ensure(&bed.request, Arc::clone(&bed.progress)).await.expect("it is pulled");
        assert!(matches!(first.origin, Origin::Pulled { .. }));
        bed
    }

    async fn run(&self, calls: u32) -> Duration {
        let began = processor_time();
        for _ in 0..calls {
            let ensured = self.manager.ensure(&self.request, Arc::clone(&self.progress)).await.expect("it is there");
            assert_eq!(ensured.origin, Origin::AlreadyPresent);
            black_box(ensured);
        }
        let took = processor_time().saturating_sub(began);
        // The fake remembers what it was asked.
        drop(self.runtime.take_calls());
        took
    }
}

/// What this thread has had of a processor: a machine that has other work too does not make a call dearer.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
