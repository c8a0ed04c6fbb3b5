//! The same beside a runtime that tells layers and not what they take: what is planned there was learned by watching.

use std::{
    fs::{self, File},
    time::Duration,
};

use serde_json::Value;

use super::{DISK_MEBIBYTES, MIB, available, images, verdicts};
use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::Daemon,
    testbed::{Containerd, Disk, Registry, scratch, wait_until_within},
};

#[test]
fn beside_containerd_what_is_planned_was_measured_before() {
    let (disk, pauses, registry, folder) =
        (Disk::new(DISK_MEBIBYTES), Registry::start(), FakeRegistry::start(), scratch());
    pauses.push("pause:3.9", &Image::busybox("pause"));
    let containerd = Containerd::start(disk.path(), &pauses);
    let config = folder.path().join("config.yaml");
    fs::write(&config, "imageMinimumGCAge: 1ms\ngc: {leaseFor: 0s}\nimageGCHighThresholdPercent: 100\n").unwrap();
    let arguments = ["--runtime-endpoint", &containerd.endpoint(), "--config", config.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    let gc = |arguments: &[&str]| daemon.run([&["gc", "-o", "json"], arguments].concat()).json();
    let measure = || {
        File::open(disk.path()).and_then(|root| Ok(rustix::fs::syncfs(&root)?)).unwrap();
        available(disk.path())
    };

    // Without those that have one layer on two others: such a layer is one blob in containerd, and two trees.
    let names: Vec<String> = images()
        .iter()
        .filter(|(name, _)| !name.starts_with("pair"))
        .map(|(name, image)| registry.put(&format!("{name}:v1"), image))
        .collect();
    let pull = || {
        for name in &names {
            daemon.run(["pull", "-q", name]).ok();
        }
        daemon.run(["ls"]).ok();
    };
    pull();
    let guessed = gc(&["--dry-run", "--free", "8Mi"]);
    assert_eq!(guessed["certainty"], "learned", "{guessed:#}");
    gc(&["--all-unused"]);
    pull();
    for mebibytes in [8, 13, 21, 34, 45] {
        let free = format!("{mebibytes}Mi");
        let planned = gc(&["--dry-run", "--free", &free]);
        let before = measure();
        let done = gc(&["--free", &free]);
        let predicted = planned["frees"].as_u64().unwrap();
        // containerd says that an image is gone, and some of its files go after that.
        wait_until_within(Duration::from_secs(20), || measure().saturating_sub(before) >= predicted / 20 * 19);
        let measured = measure() - before;
        let off = 100.0 * (measured as f64 - predicted as f64) / predicted as f64;
        println!(
            "{mebibytes} MiB wanted: {} images go, {predicted} bytes predicted, {measured} measured, {off:+.3} % off",
            verdicts(&done, "removed")
        );
        assert!(verdicts(&done, "removed") > 0 && measured >= mebibytes * MIB as u64, "{done:#}");
        assert_eq!(
            (&done["certainty"], verdicts(&done, "removed")),
            (&Value::from("learned"), verdicts(&planned, "remove"))
        );
        assert!(off.abs() <= 5.0, "{predicted} predicted, {measured} measured");
        pull();
    }
}
