//! Pulls that trickle, and those that wait for a place behind them.

use std::{sync::Arc, time::Duration};

use imagelet_oci::{EngineConfig, RegistryConfig, Trickle};

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
    slow.trickle(true);
    let folder = tempfile::tempdir().expect("a folder");
    let trickle = Some(Trickle { bytes_per_second: 1 << 20, window: Duration::from_secs(1) });
    let registry = RegistryConfig { trickle, ..RegistryConfig::default() };
    let engine = open_as(EngineConfig { registry, ..EngineConfig::new(folder.path()) }).await;
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
    slow.trickle(false);
    for pull in pulls {
        tokio::time::timeout(WAIT_MAX, pull).await.expect("it ends").expect("no panic").expect("whole");
    }
    let ranges = slow.take_ranges();
    assert!(
        ranges.iter().flatten().any(|range| range.ends_with('-')),
        "what was there was not fetched again: {ranges:?}"
    );
}
