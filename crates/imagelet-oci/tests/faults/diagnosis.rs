//! What the walk along the path of a pull reports of each fault.

use futures_util::{StreamExt as _, stream};
use imagelet_core::error::Stage;
use imagelet_oci::testing::{FAULTS, RegistryFault};

use crate::scene::Scene;

/// Walks at the same time.
const CONCURRENT: usize = 12;
/// Faults after the first byte of a layer, which the walk does not read.
const AFTER_THE_FIRST_BYTE: [&str; 6] = [
    "layer-cut",
    "layer-range-ignored-and-cut",
    "layer-reset",
    "layer-stall",
    "layer-wrong-bytes",
    "target-wrong-bytes",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_walk_names_class_and_stage_of_each_fault_at_the_host_that_has_it() {
    let faults = FAULTS.iter().filter(|fault| fault.expected.is_some() && !AFTER_THE_FIRST_BYTE.contains(&fault.name));
    let outcomes = stream::iter(faults)
        .map(|fault| async move { (fault.name, check(fault).await) })
        .buffer_unordered(CONCURRENT)
        .collect::<Vec<_>>()
        .await;
    assert!(outcomes.len() >= 60, "{} faults", outcomes.len());
    let wrong = outcomes.into_iter().filter_map(|(name, outcome)| Some(format!("{name}: {}", outcome.err()?)));
    let mut wrong: Vec<String> = wrong.collect();
    wrong.sort();
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

async fn check(fault: &RegistryFault) -> Result<(), String> {
    // The second host is healthy: it is walked, too, and is not blamed.
    let scene = Scene::start(fault, 2).await;
    let (steps, found) = scene.check_path().await;
    if !found.is_served || found.layer_bytes.is_none() {
        return Err(format!("the healthy host does not serve: {steps:?}"));
    }
    let failed: Vec<_> = steps.iter().filter_map(|step| Some((step, step.error.as_ref()?.fault()))).collect();
    let [(step, reported)] = &failed[..] else { return Err(format!("{} steps fail: {failed:?}", failed.len())) };
    let expected = fault.expected.expect("it fails");
    if (reported.class, reported.stage) != expected {
        return Err(format!("reported as {reported:?}"));
    }
    if step.host != scene.hosts[0].address() {
        return Err(format!("blames `{}`", step.host));
    }
    match scene.leaks() {
        leaks if leaks.is_empty() => Ok(()),
        leaks => Err(format!("secrets reached other origins: {leaks:?}")),
    }
}

#[tokio::test]
async fn the_walk_along_a_healthy_path_names_each_step() {
    let healthy = FAULTS.iter().find(|fault| fault.name == "redirect-to-storage").expect("a fault of this name");
    let scene = Scene::start(healthy, 1).await;
    let (steps, found) = scene.check_path().await;
    assert!(found.is_served, "{steps:?}");
    assert!(steps.iter().all(|step| step.error.is_none()), "{steps:?}");
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    let (dns, connect, token, manifest, blob) =
        (Stage::Dns.name(), Stage::Connect.name(), Stage::Token.name(), Stage::Manifest.name(), Stage::Blob.name());
    // The first layer is at another origin.
    let expected = ["mirrors", dns, connect, token, manifest, blob, "platform", dns, connect, blob, blob];
    assert_eq!(names, expected);
}
