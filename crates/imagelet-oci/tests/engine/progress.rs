//! What a pull reports on the way: every byte that came over the network, and none that was here.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    audit_log::PullHost,
    image::ImageSpec,
    ports::{ImageService as _, LayerState, Progress, PullEvent, PullRequest},
};
use imagelet_oci::{Engine, EngineConfig, RegistryConfig, RegistryTimeouts};

use crate::{
    blobs::noise,
    fixture::{Layer, TestRegistry},
    open_as, pull,
};

/// Pulls; answers what the hosts sent, in each report, and whether the pull failed.
async fn hosts(engine: &Engine, name: &str) -> (Vec<Vec<PullHost>>, bool) {
    let heard: Arc<Mutex<Vec<Vec<PullHost>>>> = Arc::default();
    let progress: Progress = {
        let heard = Arc::clone(&heard);
        Arc::new(move |event| {
            if let PullEvent::Hosts(hosts) = event {
                heard.lock().expect("no panic").push(hosts);
            }
        })
    };
    let request = PullRequest { image: ImageSpec::new(name), ..PullRequest::default() };
    let failed = engine.pull(&request, progress).await.is_err();
    let heard = std::mem::take(&mut *heard.lock().expect("no panic"));
    (heard, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_shows_its_progress_to_processes_that_wait_for_the_store() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("a", &noise(7, 100_000)).gzip()]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open_as(EngineConfig::new(folder.path())).await;
    let lock = std::fs::File::options().write(true).open(folder.path().join("lock")).expect("the lock");
    lock.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
    pull(&engine, &registry.name("a:v1")).await.expect("a pull");
    assert!(lock.metadata().and_then(|about| about.modified()).expect("a time") > SystemTime::UNIX_EPOCH);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_fails_before_its_first_layer_reports_its_hosts_once() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("a", b"a").gzip()]);
    let (name, folder) = (registry.name("a:v1"), tempfile::tempdir().expect("a folder"));
    let policy = folder.path().join("policy.json");
    let accepting = |kind: &str| format!(r#"{{"default": [{{"type": "{kind}"}}]}}"#);
    std::fs::write(&policy, accepting("reject")).expect("written");
    let registry_config = RegistryConfig {
        signature_policy: Some(policy.clone()),
        timeouts: RegistryTimeouts { retry_budget: Duration::ZERO, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    let config = EngineConfig { registry: registry_config, ..EngineConfig::new(folder.path().join("store")) };
    let engine = open_as(config).await;
    let (reports, failed) = hosts(&engine, &name).await;
    assert!(failed && matches!(&reports[..], [hosts] if hosts[0].manifest), "a refused signature: {reports:?}");
    std::fs::write(&policy, accepting("insecureAcceptAnything")).expect("written");
    pull(&engine, &name).await.expect("accepted");
    registry.answer_head(503, false);
    let (reports, failed) = hosts(&engine, &name).await;
    assert!(failed && matches!(&reports[..], [hosts] if !hosts[0].failures.is_empty()), "an outage: {reports:?}");
    registry.answer_head(0, true);
    let (reports, failed) = hosts(&engine, &name).await;
    assert!(!failed && reports.len() == 1, "one session for both ways: {reports:?}");
}

/// Pulls; answers the bytes that progress says were received, of all layers together, and whether each check of what an
/// earlier pull left was reported with its end.
async fn received(engine: &Engine, name: &str) -> (u64, Vec<bool>) {
    type Heard = (BTreeMap<String, u64>, Vec<bool>);
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let progress: Progress = {
        let heard = Arc::clone(&heard);
        Arc::new(move |event| {
            let mut heard = heard.lock().expect("no panic");
            match event {
                PullEvent::Layer { digest, state: LayerState::Fetching { received } } => {
                    heard.0.insert(digest.to_string(), received.0);
                }
                PullEvent::Recheck { is_over, .. } => heard.1.push(is_over),
                _ => {}
            }
        })
    };
    let request = PullRequest { image: ImageSpec::new(name), ..PullRequest::default() };
    engine.pull(&request, progress).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let heard = heard.lock().expect("no panic");
    (heard.0.values().sum(), heard.1.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_counts_the_last_bytes_of_each_layer_and_those_of_small_ones() {
    let registry = TestRegistry::start().await;
    // Read in one piece, in ranges, and smaller than a step of progress.
    let layers: Vec<Layer> = [(1, 3_300_000), (2, 20_000_000), (3, 70_000), (4, 1)]
        .map(|(seed, size)| Layer::new().file(&format!("f{seed}"), &noise(seed, size)).plain())
        .into();
    registry.image("a", "v1", &layers);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open_as(EngineConfig::new(folder.path())).await;
    let sent: usize = layers.iter().map(|layer| layer.blob().len()).sum();
    assert_eq!(received(&engine, &registry.name("a:v1")).await, (sent as u64, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broken_pull_left_on_the_disk_is_not_counted_as_fetched_and_its_check_is_told() {
    // The compressed bytes, and the files, where the layer is large.
    for (keep_blobs, mib) in [(true, 12), (false, 18)] {
        left_is_not_counted(keep_blobs, mib).await;
    }
}

async fn left_is_not_counted(keep_blobs: bool, mib: usize) {
    const MIB: usize = 1 << 20;
    let registry = TestRegistry::start().await;
    let layer = Layer::new().file("big", &noise(4, mib * MIB)).plain();
    registry.image("a", "v1", &[layer.clone().stalling_at((mib - 2) * MIB)]);
    let folder = tempfile::tempdir().expect("a folder");
    let quick = RegistryConfig {
        timeouts: RegistryTimeouts {
            progress: Duration::from_secs(1),
            retry_budget: Duration::ZERO,
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    let config = EngineConfig { keep_blobs, registry: quick, ..EngineConfig::new(folder.path()) };
    let engine = open_as(config).await;
    pull(&engine, &registry.name("a:v1")).await.expect_err("it stalls");
    registry.image("a", "v1", std::slice::from_ref(&layer));
    registry.take_ranges();
    let (received, rechecks) = received(&engine, &registry.name("a:v1")).await;
    let range = registry.take_ranges().remove(0).expect("the rest alone");
    let offset: u64 = range.strip_prefix("bytes=").and_then(|range| range.split('-').next()).unwrap().parse().unwrap();
    assert!(offset > 0);
    assert_eq!((received, rechecks), (layer.blob().len() as u64 - offset, vec![false, true]), "{keep_blobs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_layer_reports_what_came_before_it_has_a_step_of_progress() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("f", &noise(5, 700_000)).plain()]);
    registry.trickle(1000, 0);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open_as(EngineConfig::new(folder.path())).await;
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let progress: Progress = Arc::new(move |event| {
        if let PullEvent::Layer { state: LayerState::Fetching { received }, .. } = event {
            let _ = sender.send(received.0);
        }
    });
    let name = registry.name("a:v1");
    let request = PullRequest { image: ImageSpec::new(&name), ..PullRequest::default() };
    let pulling = tokio::spawn(async move { engine.pull(&request, progress).await });
    let three = async { [heard.recv().await, heard.recv().await, heard.recv().await] };
    let received = tokio::time::timeout(Duration::from_secs(30), three).await.expect("it reports while it trickles");
    assert!(received.is_sorted_by(|a, b| a < b) && received[2] < Some(700_000), "{received:?}");
    registry.trickle(0, 0);
    pulling.await.expect("no panic").expect("the rest comes");
}
