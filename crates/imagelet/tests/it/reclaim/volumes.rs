//! Artifacts that containers beside containerd mount: held as long as they are mounted, and counted to the byte.

use std::time::Duration;

use serde_json::{Value, json};

use super::containerd::Beside;
use crate::{
    artifacts::artifact_of,
    images::{Blob, Image, noise},
    program::Daemon,
    testbed::{ContainerdRelease, wait_until_within},
    wire::pods::{TestPods, image_volume},
};

const COLLECT: [&str; 5] = ["gc", "--all-unused", "--now", "-o", "json"];

/// An artifact of some files of this seed, one of them in a folder, and of one that all have.
fn artifact(seed: &str, kibibytes: usize) -> Image {
    let part = |name: &str, seed: &str, length: usize| {
        let title = json!({"org.opencontainers.image.title": name});
        (Blob::new(noise(seed, length), "application/x-part"), title)
    };
    artifact_of(vec![
        part("weights", seed, kibibytes << 10),
        part("conf/small", &format!("{seed} small"), 100),
        part("common", "common", 1 << 20),
    ])
}

/// The row of an image in a list.
fn row(daemon: &Daemon, name: &str) -> Option<Value> {
    let listed = daemon.run(["ls", "--all", "-o", "json"]).json();
    let rows = listed["images"].as_array().unwrap();
    rows.iter().find(|row| row["names"].as_array().unwrap().contains(&json!(name))).cloned()
}

/// Collects, and fails unless what was planned is what was freed, to the byte, and this is removed and nothing else.
fn collects(beside: &Beside, removed: &str, what: &str) {
    let frees = |options: &[&str]| beside.daemon.run([&COLLECT[..], options].concat()).json()["frees"].clone();
    let id = row(&beside.daemon, removed).unwrap_or_else(|| panic!("{what}: no {removed}"))["id"].clone();
    let usage = beside.usage();
    let takes = usage["images"].as_array().unwrap().iter().find(|row| row["id"] == id).unwrap()["unique"].clone();
    let (before, planned) = (beside.takes(), frees(&["--dry-run"]));
    assert_eq!(planned, takes, "{what}: planned, and what it takes alone");
    assert_eq!(frees(&[]), planned, "{what}");
    let planned = planned.as_u64().unwrap();
    assert_eq!(beside.freed(before, planned), planned, "{what}");
    assert_eq!(row(&beside.daemon, removed), None, "{what}");
}

#[test]
fn a_model_stays_while_a_container_mounts_it_and_its_removal_frees_what_was_predicted_to_the_byte() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for release in ContainerdRelease::all().iter().filter(|release| release.has_image_volumes()) {
        let beside = Beside::start(release, "overlayfs");
        let app = beside.registry.put("app:v1", &Image::busybox("app"));
        let [model, spare] = [("model", 5000), ("spare", 3000)]
            .map(|(name, size)| beside.registry.put(&format!("{name}:v1"), &artifact(name, size)));
        for name in [&app, &model, &beside.registry.name("pause:3.9")] {
            beside.daemon.run(["pull", "-q", name]).ok();
        }
        let (pods, anchor) = runtime.block_on(async {
            let pods = TestPods::connect(&beside.endpoint(), beside.folder.path()).await.unwrap();
            // That there are no containers at all any more would not be believed at once: this one stays.
            let anchor = pods.run_sandbox("anchor").await.unwrap();
            pods.run_container(&anchor, &app, &["/bin/sleep", "3600"]).await.unwrap();
            (pods, anchor)
        });
        let before = beside.takes();
        beside.daemon.run(["pull", "-q", &spare]).ok();
        let mounting = runtime.block_on(async {
            let mounting = pods.run_sandbox("mounting").await.unwrap();
            let volumes = [image_volume(&model, "/model", "")];
            Box::pin(pods.run_with_volumes(&mounting, &app, &["/bin/sleep", "3600"], &volumes)).await.unwrap();
            mounting
        });
        collects(&beside, &spare, &format!("{release}: what no container mounts"));
        let used = row(&beside.daemon, &model).unwrap_or_else(|| panic!("{release}: a mounted model was removed"));
        assert_eq!(used["inUseBy"], json!(["default/mounting/main (volume)"]), "{used:#}");
        beside.daemon.run(["rm", &model]).refused(&["default/mounting/main"]);
        runtime.block_on(pods.remove_sandbox(&mounting)).unwrap();
        // containerd takes the files of a pod away some time after it has answered.
        wait_until_within(Duration::from_secs(30), || beside.takes() == before);
        collects(&beside, &model, &format!("{release}: what a container has mounted"));
        runtime.block_on(pods.remove_sandbox(&anchor)).unwrap();
    }
}
