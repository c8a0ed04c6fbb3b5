//! A store whose file system takes no writes: what is there can be looked at and used, all else is refused by name.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use imagelet_core::image::Digest;
use rustix::process::Signal;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{self, Daemon, Outcome, with_store, write_store_config},
    testbed::{Containerd, Disk, Registry, require_root, scratch},
};

/// Kind, size, times and number of everything below a folder.
pub(crate) type Census = BTreeMap<PathBuf, (u32, u64, i64, i64, u64)>;

pub(crate) fn census(folder: &Path) -> Census {
    let mut found = Census::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            if about.is_dir() {
                folders.push(path.clone());
            }
            let facts = (about.mode(), about.size(), about.mtime(), about.mtime_nsec(), about.ino());
            found.insert(path, facts);
        }
    }
    found
}

/// A read-only view of a folder, by a bind mount; taken away when dropped.
struct View(PathBuf);

impl View {
    fn of(folder: &Path, at: &Path) -> Self {
        fs::create_dir(at).unwrap();
        let mount = |arguments: &[&str]| {
            let status = Command::new("mount").args(arguments).status().expect("mount is installed");
            assert!(status.success(), "mount {arguments:?}");
        };
        mount(&["--bind", folder.to_str().unwrap(), at.to_str().unwrap()]);
        let view = Self(at.to_owned());
        mount(&["-o", "remount,bind,ro", at.to_str().unwrap()]);
        view
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A store with two images, one of them pinned.
struct Stocked {
    registry: FakeRegistry,
    name: String,
    pinned: String,
}

impl Stocked {
    fn new(store: &Path) -> Self {
        let registry = FakeRegistry::start();
        let name = registry.put("app:v1", &Image::marked("read-only", 1000));
        let pinned = registry.put("base:v1", &Image::marked("pinned", 1000));
        for image in [&name, &pinned] {
            with_store(store, ["pull", "-q", image]).ok();
        }
        with_store(store, ["pin", &pinned]).ok();
        Self { registry, name, pinned }
    }

    /// Everything that only looks works, and everything else is refused with the store's path and why.
    fn check(&self, store: &Path, run: impl Fn(&[&str]) -> Outcome) {
        let (name, pinned) = (self.name.as_str(), self.pinned.as_str());
        assert_eq!(run(&["ls", "-q", "--all"]).ok().lines().count(), 2);
        for looking in [&["df", "-v"][..], &["inspect", name], &["verify"], &["verify", name], &["status"]] {
            run(looking).ok();
        }
        assert!(run(&["pins"]).ok().contains(pinned), "a pin is not seen");
        let plan = run(&["gc", "--all-unused", "--now", "--dry-run", "-o", "json"]).json();
        let planned: Vec<_> =
            plan["images"].as_array().unwrap().iter().filter(|row| row["verdict"] == "remove").collect();
        assert_eq!(planned.len(), 1, "what is pinned stays: {plan}");
        assert!(run(&["pull", "-q", name]).ok().starts_with("sha256:"), "what is there is there");

        let other = self.registry.put("other:v1", &Image::marked("other", 1000));
        for refused in [
            &["pull", other.as_str()][..],
            &["pull", "--policy", "Always", pinned],
            &["rm", name],
            &["untag", name],
            &["gc", "--all-unused", "--now"],
            &["verify", "--repair"],
            &["pin", "x"],
            &["unpin", pinned],
        ] {
            let told = run(refused).refused(&[store.to_str().unwrap()]);
            assert!(told.to_lowercase().contains("read-only"), "{refused:?} does not say why:\n{told}");
        }
        assert_eq!(run(&["inspect", "-q", &other]).code, 1, "it is there after a failure");
        assert_eq!(run(&["ls", "-q", "--all"]).ok().lines().count(), 2);
    }

    /// An image can be seen as a directory, and counts as in use meanwhile.
    fn check_mount(&self, store: &Path, run: impl Fn(&[&str]) -> Outcome) {
        let target = scratch();
        let place = target.path().to_str().unwrap();
        run(&["mount", &self.name, place, "--rw"]).refused(&["read-only"]);
        run(&["mount", &self.name, place]).ok();
        assert!(fs::read_dir(target.path()).unwrap().next().is_some(), "nothing is shown");
        assert!(fs::write(target.path().join("new"), "").is_err(), "it can be written");
        let used = run(&["inspect", "-o", "json", &self.name]).json();
        assert!(used.to_string().contains(place), "its use is not seen: {used}");
        run(&["mount", &self.pinned, place]).refused(&["already shows"]);
        run(&["unmount", place]).ok();
        assert!(fs::read_dir(target.path()).unwrap().next().is_none(), "it is still shown");
        let store = Digest::of(store.as_os_str().as_encoded_bytes());
        assert!(!Path::new("/run/imagelet/mounts").join(store.hex()).exists(), "a folder of notes is left");
    }
}

#[test]
fn a_read_only_disk_is_looked_at_and_left_as_it_is() {
    let disk = Disk::new(64);
    let store = disk.path().join("store");
    let stocked = Stocked::new(&store);
    disk.read_only(true);
    let before = census(&store);
    let run = |arguments: &[&str]| with_store(&store, arguments);
    stocked.check(&store, run);
    stocked.check_mount(&store, run);
    assert_eq!(census(&store), before, "something was changed");
    disk.read_only(false);
    with_store(&store, ["rm", &stocked.name]).ok();
    assert_eq!(with_store(&store, ["ls", "-q", "--all"]).ok().lines().count(), 1);
}

#[test]
fn a_daemon_over_a_read_only_disk_lists_and_refuses() {
    let (disk, folder) = (Disk::new(64), scratch());
    let store = disk.path().join("store");
    let stocked = Stocked::new(&store);
    disk.read_only(true);
    let before = census(&store);
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let run = |arguments: &[&str]| daemon.run(arguments);
    stocked.check(&store, run);
    stocked.check_mount(&store, run);
    assert!(daemon.stop(Signal::TERM).success());
    assert_eq!(census(&store), before, "something was changed");
}

#[test]
fn a_read_only_view_of_another_ones_store_takes_nothing_from_it() {
    require_root("a bind mount");
    let folder = scratch();
    let store = folder.path().join("store");
    let stocked = Stocked::new(&store);
    let view = View::of(&store, &folder.path().join("view"));
    // Its owner works on, and is not in the way.
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap()]);
    let run = |arguments: &[&str]| with_store(&view.0, arguments);
    stocked.check(&view.0, run);
    stocked.check_mount(&view.0, run);
    daemon.run(["rm", &stocked.name]).ok();
    assert_eq!(run(&["ls", "-q", "--all"]).ok().lines().count(), 1, "the view shows what its owner did");
    assert!(daemon.stop(Signal::TERM).success());
}

#[test]
fn images_of_a_runtime_are_not_verified_and_it_is_said_why() {
    let (folder, registry) = (scratch(), Registry::start());
    let containerd = Containerd::start(folder.path(), &registry);
    let endpoint = containerd.endpoint();
    let direct = program::run(program::program().args(["--endpoint", &endpoint, "verify"]));
    let config = write_store_config(folder.path(), &format!("directory: {}", folder.path().join("state").display()));
    let daemon = Daemon::start(folder.path(), ["--runtime-endpoint", &endpoint, "--config", &config]);
    for outcome in [direct, daemon.run(["verify"]), daemon.run(["verify", "--repair"])] {
        outcome.refused(&["verifying needs the embedded store", "runtime unix://", "hint:"]);
    }
}
