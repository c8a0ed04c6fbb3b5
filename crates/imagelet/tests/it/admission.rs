//! Pulls that have no room: refused before their first layer byte, let in beside others, or helped by a collection.

use std::{
    fs::{self, File},
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Layer, noise},
    program::{Daemon, with_store},
    testbed::{Disk, scratch, wait_until},
};

const MEBIBYTE: usize = 1 << 20;

fn image(marker: &str, mebibytes: usize) -> Image {
    Image::oci(&[Layer::gzip().file(marker, noise(marker, mebibytes * MEBIBYTE), 0o644)])
}

/// How often a layer of the image was asked for.
fn asked(registry: &FakeRegistry, image: &Image) -> usize {
    let requests = registry.requests();
    requests.iter().filter(|request| request.ends_with(&image.layers[0].digest)).count()
}

/// A daemon on a small disk, with several pulls at once and images that may go at once.
struct Node {
    disk: Disk,
    folder: tempfile::TempDir,
    registry: FakeRegistry,
    daemon: Daemon,
}

impl Node {
    fn start(mebibytes: u64, more: &str) -> Self {
        let (disk, folder, registry) = (Disk::new(mebibytes), scratch(), FakeRegistry::start());
        let text = format!(
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\n\
             imageGCHighThresholdPercent: 100\nserializeImagePulls: false\n{more}\n"
        );
        let config = folder.path().join("config.yaml");
        fs::write(&config, text).unwrap();
        let store = disk.path().join("store");
        let daemon =
            Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()]);
        Self { disk, folder, registry, daemon }
    }

    fn pull(&self, name: &str) -> crate::program::Outcome {
        self.daemon.run(["pull", name])
    }

    /// A pull that runs by itself.
    fn pulling(&self, name: &str) -> Child {
        let log = File::create(self.folder.path().join("pull.log")).unwrap();
        let mut command = self.daemon.command();
        command.args(["pull", name]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().unwrap()
    }

    fn has(&self, name: &str) -> bool {
        self.daemon.run(["inspect", "-q", name]).code == 0
    }

    fn staged(&self) -> usize {
        fs::read_dir(self.disk.path().join("store/tmp")).unwrap().count()
    }
}

fn ended(mut child: Child) -> bool {
    let mut status = None;
    wait_until("the pull to end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.expect("it ended").success()
}

#[test]
fn a_pull_that_cannot_fit_is_refused_before_a_layer_is_asked_for() {
    let (disk, registry) = (Disk::new(48), FakeRegistry::start());
    let store = disk.path().join("store");
    let large = image("large", 60);
    let name = registry.put("large:v1", &large);
    let stderr = with_store(&store, ["pull", &name]).refused(&[
        &name,
        "not enough free space",
        "MB (1 layer not here, 6",
        "at x 3.0 assumed",
        "of which 16.8MB kept by freeBytesFloor",
        "a collection could free nothing more",
        "hint: ",
    ]);
    assert_eq!(asked(&registry, &large), 0, "{stderr}");
    let small = registry.put("small:v1", &image("small", 1));
    with_store(&store, ["pull", &small]).ok();
}

#[test]
fn a_disk_without_inodes_takes_no_pull() {
    let (disk, registry) = (Disk::new(48), FakeRegistry::start());
    let store = disk.path().join("store");
    let first = registry.put("first:v1", &image("first", 0));
    let filled = disk.path().join("filled");
    fs::create_dir(&filled).unwrap();
    let favail = || rustix::fs::statvfs(disk.path()).unwrap().f_favail;
    for number in 0..favail() - 1_000 {
        File::create(filled.join(number.to_string())).unwrap();
    }
    // The store itself takes inodes, too.
    let stderr = with_store(&store, ["pull", &first]).refused(&[
        "not enough free inodes",
        "needs at least 6 inodes (1 layer not here",
        "kept by freeInodesFloor",
    ]);
    assert_eq!(asked(&registry, &image("first", 0)), 0, "{stderr}");
    fs::remove_dir_all(&filled).unwrap();
    with_store(&store, ["pull", &first]).ok();
}

#[test]
fn pulls_see_what_others_have_reserved_and_get_it_when_those_end() {
    // About 40 MiB can be had: enough for either, not for both.
    let rules = "gc: {enabled: false}\npulls: {grace: 0s}\nstore: {limits: {freeBytesFloor: 12Mi}}";
    let node = Node::start(64, rules);
    let (first, second) = (image("first", 22), image("second", 22));
    let (name, other) = (node.registry.put("first:v1", &first), node.registry.put("second:v1", &second));
    let held = node.registry.hold("first", &first.layers[0].digest);
    let mut running = node.pulling(&name);
    held.until_asked();
    let stderr = node.pull(&other).refused(&["not enough free space", "reserved by 1 pull and 12.6MB kept by"]);
    assert!(!stderr.contains("a collection"), "nothing is collected for pulls here: {stderr}");
    assert_eq!(asked(&node.registry, &second), 0, "{stderr}");

    // Given up, its reservation is free.
    running.kill().unwrap();
    running.wait().unwrap();
    drop(held);
    wait_until("the first pull to be given up", || node.staged() == 0);
    let again = node.registry.put("second:again", &second);
    node.pull(&again).ok();
    let again = node.registry.put("first:again", &first);
    let stderr = node.pull(&again).refused(&["not enough free space", "MB free of which 12.6MB kept by"]);
    assert!(!stderr.contains("reserved"), "a pull that is over reserves nothing: {stderr}");
    node.daemon.run(["rm", &node.registry.name("second:again")]).ok();
    node.pull(&node.registry.put("first:once-more", &first)).ok();
}

#[test]
fn a_pull_waits_where_only_a_guess_of_another_stands_in_the_way() {
    // Each is expected to take 36 MiB and takes 12: only one is expected to fit into the 48 MiB at a time.
    let node = Node::start(64, "gc: {enabled: false}\nstore: {limits: {freeBytesFloor: 0}}");
    let (first, second) = (image("first", 12), image("second", 12));
    let (name, other) = (node.registry.put("first:v1", &first), node.registry.put("second:v1", &second));
    let held = node.registry.hold("first", &first.layers[0].digest);
    let running = node.pulling(&name);
    held.until_asked();
    let waiting = node.pulling(&other);
    wait_until("the second pull to wait", || node.daemon.part.log().contains("waits for the space"));
    thread::sleep(Duration::from_millis(200));
    assert_eq!(asked(&node.registry, &second), 0);
    drop(held);
    assert!(ended(running), "the first pull failed");
    assert!(ended(waiting), "the second pull failed: {}", node.daemon.part.log());
    assert!(node.has(&name) && node.has(&other));
}

#[test]
fn a_collection_makes_room_for_a_pull_under_the_usual_rules() {
    let node = Node::start(48, "");
    let (old, new) = (image("old", 20), image("new", 20));
    let (name, other) = (node.registry.put("old:v1", &old), node.registry.put("new:v1", &new));
    node.pull(&name).ok();
    // Seen once, it is old enough.
    node.daemon.run(["ls"]).ok();

    node.daemon.run(["pin", &name]).ok();
    let stderr = node.pull(&other).refused(&["not enough free space", "a collection could free nothing more"]);
    assert_eq!(asked(&node.registry, &new), 0, "{stderr}");
    assert!(node.has(&name), "what is pinned stays");

    node.daemon.run(["unpin", &name]).ok();
    let large = image("large", 45);
    let large_name = node.registry.put("large:v1", &large);
    node.pull(&large_name).refused(&["not enough free space", "a collection could free at most 21MB more"]);
    assert!(node.has(&name), "an image went for a pull that was refused all the same");

    let other = node.registry.put("new:again", &new);
    let outcome = node.daemon.run(["pull", "-o", "json", &other]);
    let removal = format!("{other}: removed {name} (21");
    assert!(outcome.stderr.contains(&removal) && outcome.stderr.contains(") to make room"), "{}", outcome.stderr);
    let removed = &outcome.json()["images"][0]["removed"];
    assert_eq!(removed[0]["names"], serde_json::json!([name]), "{removed}");
    assert!(removed[0]["bytes"].as_u64() > Some(20 << 20) && removed.as_array().unwrap().len() == 1, "{removed}");
    assert!(node.has(&other) && !node.has(&name), "{}", node.daemon.part.log());
    assert!(node.daemon.part.log().contains("made room for a pull"), "{}", node.daemon.part.log());
    node.daemon.stop(Signal::TERM);
}

#[test]
fn no_image_is_removed_for_a_pull_that_turns_out_not_to_fit() {
    let node = Node::start(64, "");
    let names = ["one:v1", "two:v1"].map(|name| node.registry.put(name, &image(name, 10)));
    for name in &names {
        node.pull(name).ok();
    }
    node.daemon.run(["ls"]).ok();
    // Packed it fits if both are removed; unpacked it is three times as large as the layers before let expect.
    let noise = noise("large", 22 * MEBIBYTE);
    let zeros = vec![0; 64 << 10];
    let content = noise.chunks(32 << 10).flat_map(|part| [part, &zeros].concat()).collect::<Vec<u8>>();
    let large = node.registry.put("large:v1", &Image::oci(&[Layer::gzip().file("large", content, 0o644)]));
    let outcome = node.daemon.run(["pull", "-o", "json", &large]);
    let answer: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(answer["failures"][0]["removed"], serde_json::json!([]), "{answer}");
    let stderr = outcome.refused(&["not enough free space"]);
    assert!(!stderr.contains("removed"), "{stderr}");
    assert!(names.iter().all(|name| node.has(name)), "{}", node.daemon.part.log());
}

#[test]
fn the_kubelets_way_makes_no_room_unless_it_is_told_to() {
    for (more, makes_room) in
        [("compatibility: kubelet", false), ("compatibility: kubelet\ngc: {forPulls: true}", true)]
    {
        let node = Node::start(48, more);
        let (name, other) =
            (node.registry.put("old:v1", &image("old", 20)), node.registry.put("new:v1", &image("new", 20)));
        node.pull(&name).ok();
        node.daemon.run(["ls"]).ok();
        if makes_room {
            node.pull(&other).ok();
        } else {
            let stderr = node.pull(&other).refused(&["not enough free space"]);
            assert!(!stderr.contains("a collection"), "{stderr}");
        }
        assert_eq!((node.has(&name), node.has(&other)), (!makes_room, makes_room), "{more}");
    }
}

#[test]
fn a_single_command_asks_for_room_as_well_and_young_images_stay() {
    let (disk, registry) = (Disk::new(48), FakeRegistry::start());
    let store = disk.path().join("store");
    let (name, other) = (registry.put("old:v1", &image("old", 20)), registry.put("new:v1", &image("new", 20)));
    with_store(&store, ["pull", &name]).ok();
    with_store(&store, ["pull", &other]).refused(&["a collection could free nothing more"]);
    with_store(&store, ["inspect", "-q", &name]).ok();
}
