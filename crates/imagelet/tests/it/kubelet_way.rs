//! What shows of `compatibility: kubelet` in collections and status, seen from outside.

use std::path::Path;

use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Layer, noise},
    program::Daemon,
    testbed::{scratch, wait_until},
};

fn daemon(folder: &Path, config: &str) -> Daemon {
    let path = folder.join("imagelet.yaml");
    let head = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ncompatibility: kubelet\n";
    std::fs::write(&path, format!("{head}{config}")).unwrap();
    let store = folder.join("store");
    Daemon::start(folder, ["--config", path.to_str().unwrap(), "--store", store.to_str().unwrap()])
}

fn events(daemon: &Daemon) -> Vec<Value> {
    let told = daemon.run(["events", "-o", "json"]).ok();
    told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_second_failure_in_a_row_is_an_event_of_the_node() {
    let folder = scratch();
    // Any disk is fuller than these, and nothing is there that could go: each run fails.
    let thresholds = "imageGCHighThresholdPercent: 1\nimageGCLowThresholdPercent: 0\ngc: {period: 1s}\n";
    let daemon = daemon(folder.path(), thresholds);
    wait_until("the second failure is told", || events(&daemon).iter().any(|event| event["reason"] == "ImageGCFailed"));
    let told = events(&daemon);
    let reasons: Vec<&str> = told.iter().map(|event| event["reason"].as_str().unwrap()).collect();
    // Each failing run tells why, and the second and later ones that they fail.
    assert_eq!(reasons[..3], ["FreeDiskSpaceFailed", "FreeDiskSpaceFailed", "ImageGCFailed"], "{told:?}");
    let message = told[2]["message"].as_str().unwrap();
    assert!(message.starts_with("Insufficient free disk space on the node's image filesystem ("), "{message}");
    assert_eq!((&told[2]["kind"], &told[2]["pod"]), (&"Warning".into(), &"".into()));
}

#[test]
fn all_unused_spares_young_images_and_says_nothing_of_what_went_well() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("app:v1", &Image::marked("app", 1000));
    let daemon = daemon(folder.path(), "gc: {enabled: false}\n");
    daemon.run(["pull", &name]).ok();
    let collected = daemon.run(["gc", "--all-unused", "-o", "json"]).json();
    assert_eq!(collected["images"][0]["verdict"], "keep", "{collected}");
    assert!(events(&daemon).iter().all(|event| event["reason"] != "ImagesCollected"));
}

#[test]
fn the_status_shows_the_images_of_the_node_and_its_disk() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let small = registry.put("small:v1", &Image::marked("small", 1000));
    let large = registry.put("large:v1", &Image::marked("large", 100_000));
    let daemon = daemon(folder.path(), "nodeStatusMaxImages: 1\n");
    daemon.run(["pull", &small]).ok();
    daemon.run(["pull", &large]).ok();
    let status = daemon.run(["status", "-o", "json"]).json();
    let images = status["nodeImages"].as_array().unwrap();
    assert_eq!(images.len(), 1, "{status}");
    let names: Vec<&str> = images[0]["names"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(names[0].contains("large@sha256:"), "digests come first: {names:?}");
    assert!(images[0]["sizeBytes"].as_u64().unwrap() >= 100_000, "{status}");
    assert!(status["imageFs"]["capacityBytes"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(status["imageFs"], status["containerFs"]);
}

#[test]
fn what_a_collection_would_free_is_counted_by_the_layers() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let base = Layer::gzip().file("base", noise("base", 3 << 20), 0o644);
    let names: Vec<String> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let own = Layer::gzip().file(name, noise(name, 10_000), 0o644);
            registry.put(&format!("{name}:v1"), &Image::oci(&[base.clone(), own]))
        })
        .collect();
    let daemon = daemon(folder.path(), "gc: {enabled: false}\nimageMinimumGCAge: 1ms\n");
    for name in &names {
        daemon.run(["pull", name]).ok();
    }
    daemon.run(["ls"]).ok();
    let usage = daemon.run(["df", "-o", "json"]).json();
    let planned = daemon.run(["gc", "--all-unused", "--dry-run", "-o", "json"]).json();
    let frees = usage["reclaimable"].as_u64().unwrap();
    assert!((3 << 20..4 << 20).contains(&frees) && frees <= usage["imagesSize"].as_u64().unwrap(), "{usage:#}");
    assert_eq!((&usage["certainty"], &planned["frees"]), (&"exact".into(), &frees.into()), "{planned:#}");
    let done = daemon.run(["gc", "--all-unused", "-o", "json"]).json();
    assert_eq!((&done["frees"], done["claimed"].as_u64() > Some(9 << 20)), (&frees.into(), true), "{done:#}");
}
