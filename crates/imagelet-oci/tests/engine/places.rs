//! Layers that hold what others wait for: places while they trickle, memory, and requests at a host.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use imagelet_core::{
    image::ImageSpec,
    ports::{ImageService as _, LayerState, Progress, PullEvent, PullRequest},
};
use imagelet_oci::{EngineConfig, RegistryConfig, RegistryTimeouts, UNPACK_MEMORY_MIN};

use crate::{
    blobs::noise,
    fixture::{Layer, TestRegistry},
    open_as, pull,
};

const WAIT_MAX: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread")]
async fn pulls_that_trickle_make_way_for_a_healthy_one_and_end_whole_themselves() {
    let (slow, healthy) = (TestRegistry::start().await, TestRegistry::start().await);
    let layer = |seed| Layer::new().file(&format!("f{seed}"), &noise(seed, 40_000)).gzip();
    // As many as hold all places that a tenant and a registry may have.
    for image in 0..30 {
        slow.image(&format!("slow{image}"), "v1", &[layer(2 * image + 1), layer(2 * image + 2)]);
    }
    for registry in [&slow, &healthy] {
        registry.image("app", "v1", &[layer(1001), layer(1002), layer(1003)]);
    }
    slow.trickle(160, 0);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open_as(EngineConfig::new(folder.path())).await;
    let pulls: Vec<_> = (0..30)
        .map(|image| {
            let (engine, name) = (Arc::clone(&engine), slow.name(&format!("slow{image}:v1")));
            tokio::spawn(async move { pull(&engine, &name).await })
        })
        .collect();
    let mut requests = 0;
    tokio::time::timeout(WAIT_MAX, async {
        while requests < 36 {
            requests += slow.take_layer_requests();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("the places fill");
    tokio::time::timeout(WAIT_MAX, pull(&engine, &healthy.name("app:v1")))
        .await
        .expect("it does not wait behind those that trickle")
        .expect("it is healthy");
    assert!(pulls.iter().all(|pull| !pull.is_finished()), "they trickle on");
    slow.take_ranges();
    slow.trickle(0, 0);
    for pull in pulls {
        tokio::time::timeout(WAIT_MAX, pull).await.expect("it ends").expect("no panic").expect("whole");
    }
    let ranges = slow.take_ranges();
    assert!(
        ranges.iter().flatten().any(|range| range.ends_with('-')),
        "what was there was not fetched again: {ranges:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_that_wait_for_memory_let_the_one_that_has_it_continue_at_the_same_host() {
    const MIB: usize = 1 << 20;
    let registry = TestRegistry::start().await;
    let layer = |seed, length: usize| Layer::new().file(&format!("f{seed}"), &noise(seed, length));
    // Larger than what fits between the socket and the inflater.
    let waiting = [layer(2, 3 * MIB).zstd(), layer(3, 3 * MIB).zstd()];
    registry.image("waiting", "v1", &waiting);
    // It takes the whole memory, and has to request its rest again.
    let holder = layer(1, 6 * MIB).zstd_with_window(24);
    registry.image("holder", "v1", &[holder.clone().stalling_at(5 * MIB)]);
    let folder = tempfile::tempdir().expect("a folder");
    let progress_timeout = Duration::from_secs(2);
    let connections_per_host = NonZeroUsize::new(2).expect("not zero");
    let registry_config = RegistryConfig {
        connections_per_host,
        timeouts: RegistryTimeouts { progress: progress_timeout, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    let mut config = EngineConfig { registry: registry_config, ..EngineConfig::new(folder.path()) };
    config.limits.memory = UNPACK_MEMORY_MIN;
    let engine = open_as(config).await;
    let (unpacks, mut unpacking) = tokio::sync::mpsc::unbounded_channel();
    let progress: Progress = Arc::new(move |event| {
        if let PullEvent::Layer { state: LayerState::Fetching { received }, .. } = event
            && received.0 >= 4 << 20
        {
            let _ = unpacks.send(());
        }
    });
    let request = PullRequest { image: ImageSpec::new(registry.name("holder:v1")), ..PullRequest::default() };
    let holding = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { engine.pull(&request, progress).await })
    };
    unpacking.recv().await.expect("it unpacks");
    registry.image("holder", "v1", &[holder]);
    let both = async {
        let waiting = pull(&engine, &registry.name("waiting:v1")).await;
        waiting.expect("it gets memory once the other has ended");
        holding.await.expect("no panic").expect("it continues");
    };
    tokio::time::timeout(WAIT_MAX, both).await.expect("they do not wait for one another");
}

/// The nice values of all layers' threads in this process.
fn nice_values() -> Vec<i64> {
    let threads = std::fs::read_dir("/proc/self/task").expect("the threads");
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    // The fields after the name, from the third on; the nice value is the nineteenth.
    let nice = |stat: String| stat.split_once(" (layer) ")?.1.split(' ').nth(16)?.parse().ok();
    stats.filter_map(nice).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inflater_of_the_largest_layer_precedes_all_other_threads_of_layers() {
    assert!(rustix::process::geteuid().is_root(), "only root lowers a nice value: run the tests as root");
    let registry = TestRegistry::start().await;
    let layer = |seed, length: usize| Layer::new().file("f", &noise(seed, length)).gzip().stalling_at(length / 2);
    registry.image("app", "v1", &[layer(1, 100_000), layer(2, 200_000)]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open_as(EngineConfig::new(folder.path())).await;
    let own = i64::from(rustix::process::getpriority_process(None).expect("it has one"));
    let expected = [own - 5, own, own + 10].map(|nice| nice.clamp(-20, 19));
    let all_run = async {
        while !expected.iter().all(|nice| nice_values().contains(nice)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let name = registry.name("app:v1");
    tokio::select! {
        () = all_run => {}
        ended = pull(&engine, &name) => panic!("the registry stalls: {ended:?}"),
        () = tokio::time::sleep(WAIT_MAX) => panic!("{:?}, not {expected:?}", nice_values()),
    }
}
