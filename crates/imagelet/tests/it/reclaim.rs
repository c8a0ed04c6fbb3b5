//! What a collection says it frees is what the disk has again, on a real file system and with layers shared every way.

mod containerd;
mod remaining;
mod split_disk;
mod volumes;

use std::{
    fs::{self, File},
    path::Path,
};

use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::{Compression, Image, Layer, noise},
    program::{Daemon, program, run},
    testbed::{Disk, scratch},
};

const MIB: usize = 1 << 20;
/// The image file system: 4 GiB, as in the reports of collections that freed nothing.
const DISK_MEBIBYTES: u64 = 4096;

fn layer(name: &str, kibibytes: usize) -> Layer {
    Layer::new(Compression::None).file(name, noise(name, kibibytes << 10), 0o644)
}

/// Few large files and many small ones, links, and directories of several blocks.
fn base() -> Layer {
    let mut layer = layer("base", 10 << 10).directory("many", 0o755);
    for number in 0..600 {
        let name = format!("many/{number:04}-{}", "x".repeat(40));
        layer = layer.file(&name, noise(&name, 1_000 + 13 * number), 0o644);
    }
    layer.hardlink("many/again", &format!("many/0599-{}", "x".repeat(40))).symlink("link", &"far/".repeat(20))
}

/// Thirteen images: a stack of three, four on one base, three that share in pairs, three alone.
fn images() -> Vec<(String, Image)> {
    let (base, middle, top) = (base(), layer("middle", 3 << 10), layer("top", 1 << 10));
    let floor = layer("floor", 8 << 10);
    let (x, y, z) = (layer("x", 4 << 10), layer("y", 4_100), layer("z", 4_200));
    let mut images = vec![
        ("stack-1".to_owned(), Image::oci(std::slice::from_ref(&base))),
        ("stack-2".to_owned(), Image::oci(&[base.clone(), middle.clone()])),
        ("stack-3".to_owned(), Image::oci(&[base, middle, top])),
        ("pair-1".to_owned(), Image::oci(&[x.clone(), y.clone()])),
        ("pair-2".to_owned(), Image::oci(&[y, z.clone()])),
        ("pair-3".to_owned(), Image::oci(&[x, z])),
    ];
    for number in 1..=4 {
        let own = layer(&format!("own-{number}"), 2_000 + 300 * number);
        images.push((format!("floor-{number}"), Image::oci(&[floor.clone(), own])));
    }
    for number in 1..=3 {
        images
            .push((format!("alone-{number}"), Image::oci(&[layer(&format!("alone-{number}"), 5_000 + 700 * number)])));
    }
    images
}

struct Node {
    disk: Disk,
    daemon: Daemon,
    _folder: tempfile::TempDir,
}

impl Node {
    fn start(rules: &str) -> Self {
        Self::start_on(DISK_MEBIBYTES, rules)
    }

    fn start_on(mebibytes: u64, rules: &str) -> Self {
        let (disk, folder) = (Disk::new(mebibytes), scratch());
        let text = format!(
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\n{rules}\n"
        );
        let config = folder.path().join("config.yaml");
        fs::write(&config, text).unwrap();
        let store = disk.path().join("store");
        let daemon =
            Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()]);
        Self { disk, daemon, _folder: folder }
    }

    fn pull(&self, names: &[String]) {
        for name in names {
            self.daemon.run(["pull", "-q", name]).ok();
        }
        // Seen once, they are old enough.
        self.daemon.run(["ls"]).ok();
    }

    fn available(&self) -> u64 {
        File::open(self.disk.path()).and_then(|root| Ok(rustix::fs::syncfs(&root)?)).unwrap();
        available(self.disk.path())
    }

    fn gc(&self, arguments: &[&str]) -> Value {
        self.daemon.run([&["gc", "-o", "json"], arguments].concat()).json()
    }

    /// A collection that does not reach its goal: it fails, and says all the same what it did.
    fn gc_in_vain(&self, arguments: &[&str]) -> Value {
        let done = self.daemon.run([&["gc", "-o", "json"], arguments].concat());
        assert_eq!(done.code, 1, "{}", done.stderr);
        assert!(done.stderr.starts_with("warning: Insufficient free disk space"), "{}", done.stderr);
        serde_json::from_str(&done.stdout).unwrap()
    }

    /// Fills the disk with a file of something else until so many percent are in use.
    fn fill(&self, percent: u64) {
        self.available();
        let stat = rustix::fs::statvfs(self.disk.path()).unwrap();
        let available = stat.f_bavail * stat.f_frsize;
        let wanted = stat.f_blocks * stat.f_frsize / 200 * (201 - 2 * percent);
        let path = self.disk.path().join("other");
        let other = File::options().create(true).append(true).open(path).unwrap();
        let len = (other.metadata().unwrap().len() + available).checked_sub(wanted).unwrap();
        other.set_len(len).unwrap();
        rustix::fs::fallocate(&other, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
    }

    fn short_events(&self) -> Vec<String> {
        let log = self.daemon.part.log();
        log.lines().filter(|line| line.contains("FreeDiskSpaceFailed")).map(str::to_owned).collect()
    }

    fn count(&self) -> usize {
        self.daemon.run(["ls", "-q", "--all"]).ok().lines().count()
    }
}

fn available(place: &Path) -> u64 {
    let stat = rustix::fs::statvfs(place).unwrap();
    stat.f_bavail * stat.f_frsize
}

fn verdicts(collected: &Value, verdict: &str) -> usize {
    collected["images"].as_array().unwrap().iter().filter(|row| row["verdict"] == verdict).count()
}

#[test]
fn the_disk_has_again_what_was_planned_to_the_hundredth() {
    let node = Node::start("imageGCHighThresholdPercent: 100");
    let registry = FakeRegistry::start();
    let images = images();
    let names: Vec<String> = images.iter().map(|(name, image)| registry.put(&format!("{name}:v1"), image)).collect();
    node.pull(&names);
    assert_eq!(node.count(), images.len());

    for mebibytes in [8, 13, 21, 34, 45, 55] {
        let wanted = mebibytes * MIB as u64;
        let free = format!("{mebibytes}Mi");
        let planned = node.gc(&["--dry-run", "--free", &free]);
        let before = node.available();
        let done = node.gc(&["--free", &free]);
        let measured = node.available() - before;
        let predicted = planned["frees"].as_u64().unwrap();
        let off = 100.0 * (measured as f64 - predicted as f64) / predicted as f64;
        println!(
            "{mebibytes} MiB wanted: {} images go, {predicted} bytes predicted, {measured} measured, {off:+.3} % off",
            verdicts(&done, "removed")
        );
        assert_eq!((&done["frees"], &done["certainty"]), (&planned["frees"], &Value::from("exact")));
        assert_eq!(verdicts(&done, "removed"), verdicts(&planned, "remove"));
        assert!(predicted >= wanted, "{predicted} is not {wanted}");
        assert!(off.abs() <= 1.0, "{predicted} predicted, {measured} measured");
        node.pull(&names);
    }

    // More than all of them: nothing goes in vain.
    let asked = node.gc(&["--dry-run", "--free", "1Gi"]);
    assert!(asked["shortfall"].as_str().unwrap().contains("and none would be deleted"), "{asked:#}");
    let done = node.gc_in_vain(&["--free", "1Gi"]);
    assert_eq!((verdicts(&done, "removed"), done["frees"].as_u64(), node.count()), (0, Some(0), images.len()));
    let most = done["couldFree"].as_u64().unwrap();
    let told = done["shortfall"].as_str().unwrap();
    assert!(told.contains("and none was deleted") && told.contains("by unused images"), "{told}");
    // No threshold is reached, and all that is asked says the same of what could go.
    let idle = node.gc(&["--dry-run"]);
    let usage = node.daemon.run(["df", "-o", "json"]).json();
    let taken = usage["imagesSize"].as_u64().unwrap();
    let used = usage["capacity"].as_u64().unwrap() - usage["available"].as_u64().unwrap();
    assert!(most <= taken && taken <= used, "{usage:#}");
    assert_eq!((idle["couldFree"].as_u64(), usage["reclaimable"].as_u64()), (Some(most), Some(most)), "{usage:#}");
    let before = node.available();
    node.gc(&["--all-unused", "--now"]);
    let measured = node.available() - before;
    println!("all: {most} bytes predicted, {measured} measured");
    assert!(measured.abs_diff(most) * 100 <= most, "{most} predicted, {measured} measured");
}

#[test]
fn a_threshold_out_of_reach_is_one_event_and_takes_no_image_that_was_just_used() {
    let node = Node::start("imageGCHighThresholdPercent: 5\nimageGCLowThresholdPercent: 4");
    let registry = FakeRegistry::start();
    let names: Vec<String> =
        images().iter().take(3).map(|(name, image)| registry.put(&format!("{name}:v1"), image)).collect();
    node.pull(&names);
    node.daemon.run(["pin", &names[1]]).ok();
    let other = File::create(node.disk.path().join("other")).unwrap();
    rustix::fs::fallocate(&other, rustix::fs::FallocateFlags::empty(), 0, 400 << 20).unwrap();
    for _ in 0..3 {
        let done = node.gc_in_vain(&[]);
        assert_eq!((verdicts(&done, "removed"), done["failures"].as_array().unwrap().len()), (0, 0), "{done:#}");
        assert!(done["shortfall"].as_str().unwrap().starts_with("Insufficient free disk space"), "{done:#}");
    }
    assert_eq!(node.count(), 3);
    let status = node.daemon.run(["status"]).ok();
    assert!(status.contains("by command: removed nothing, which was not enough"), "{status}");
    let events = node.short_events();
    assert_eq!(events.len(), 1, "{events:#?}");
    assert!(events[0].contains("by pinned images") && events[0].contains("by anything but images"), "{}", events[0]);
}

fn codes(collected: &Value, code: &str) -> usize {
    collected["images"].as_array().unwrap().iter().filter(|row| row["code"] == code).count()
}

/// Three images that share nothing, of 19 MB together.
fn put_alone(registry: &FakeRegistry) -> Vec<String> {
    let alone = images().into_iter().filter(|(name, _)| name.starts_with("alone"));
    alone.map(|(name, image)| registry.put(&format!("{name}:v1"), &image)).collect()
}

#[test]
fn a_disk_that_something_else_fills_is_relieved_of_images_when_it_is_nearly_full() {
    let (node, registry) = (Node::start_on(512, ""), FakeRegistry::start());
    node.pull(&put_alone(&registry));
    node.fill(97);
    let asked = node.gc(&["--dry-run"]);
    let done = node.gc_in_vain(&[]);
    // All of them would leave it above 85 percent; two of them bring it below 95.
    assert_eq!((verdicts(&done, "removed"), codes(&done, "recent"), node.count()), (2, 1, 1), "{done:#}");
    assert_eq!((verdicts(&asked, "remove"), &asked["frees"]), (2, &done["frees"]), "{asked:#}");
    assert_eq!((&done["usedPercentBefore"], &done["outOfReach"]), (&97.into(), &true.into()), "{done:#}");
    assert!(done["usedPercentAfter"].as_u64().unwrap() < 95, "{done:#}");
    let told = done["shortfall"].as_str().unwrap();
    assert!(told.contains("was freed by removing unused images, and") && told.contains("more must go"), "{told}");

    // Not nearly full: what was used within the hour stays, which is news once.
    node.fill(88);
    for _ in 0..3 {
        let done = node.gc_in_vain(&[]);
        assert_eq!((verdicts(&done, "removed"), codes(&done, "recent")), (0, 1), "{done:#}");
    }
    let plan = node.daemon.run(["gc", "--dry-run"]).ok();
    assert!(plan.contains("idle for less than 1h0m0s, and the goal is out of reach"), "{plan}");
    let events = node.short_events();
    assert_eq!(events.len(), 2, "{events:#?}");
}

#[test]
fn where_the_goal_is_out_of_reach_what_was_idle_for_long_enough_goes() {
    let (node, registry) = (Node::start_on(512, "gc: {outOfReachIdle: 1ms}"), FakeRegistry::start());
    let names = put_alone(&registry);
    node.pull(&names);
    node.daemon.run(["pin", &names[0]]).ok();
    node.fill(90);
    let done = node.gc_in_vain(&[]);
    assert_eq!((verdicts(&done, "removed"), codes(&done, "pinned"), node.count()), (2, 1, 1), "{done:#}");
    let again = node.gc_in_vain(&[]);
    assert_eq!(verdicts(&again, "removed"), 0, "{again:#}");
    let events = node.short_events();
    assert_eq!(events.len(), 1, "{events:#?}");
    assert!(events[0].contains("Used now: ") && !events[0].contains("by unused images"), "{}", events[0]);
}

#[test]
fn all_unused_images_go_once_they_are_old_enough_and_at_once_where_that_is_ordered() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("app:v1", &Image::oci(&[layer("app", 300)]));
    let store = folder.path().join("store");
    let alone = |arguments: &[&str]| run(program().args([&["--store", store.to_str().unwrap()], arguments].concat()));
    let told = |collected: &Value| {
        let row = &collected["images"][0];
        (row["verdict"].as_str().unwrap().to_owned(), row["code"].as_str().unwrap().to_owned())
    };
    let young = ("keep".to_owned(), "young".to_owned());
    // Without a daemon and with one.
    alone(&["pull", "-q", &name]).ok();
    assert_eq!(told(&alone(&["gc", "--all-unused", "--dry-run", "-o", "json"]).json()), young);
    assert_eq!(told(&alone(&["gc", "--all-unused", "-o", "json"]).json()), young);
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    assert_eq!(told(&daemon.run(["gc", "--all-unused", "-o", "json"]).json()), young);
    let plan = daemon.run(["gc", "--all-unused", "--dry-run"]).ok();
    assert!(plan.contains("younger than 2m0s") && plan.contains("would remove 0 of 1 image"), "{plan}");
    assert_eq!(daemon.run(["df", "-o", "json"]).json()["reclaimable"], 0);

    let refused = daemon.run(["gc", "--now"]);
    assert!(refused.code == 2 && refused.stderr.contains("--all-unused"), "{}", refused.stderr);
    let planned = daemon.run(["gc", "--all-unused", "--now", "--dry-run", "-o", "json"]).json();
    assert_eq!(told(&planned), ("remove".to_owned(), "unused".to_owned()));
    let done = daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json();
    assert_eq!((verdicts(&done, "removed"), &done["frees"]), (1, &planned["frees"]), "{done:#}");
}
