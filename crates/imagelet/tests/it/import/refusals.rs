//! Where an import cannot be, or must not succeed: containerd pulls instead, or the pull fails and leaves nothing.

use std::{fs, path::Path, process::Command};

use imagelet_core::error::RuntimeErrorKind;

use super::node::{DEFAULT, IMPORTS, Node, SNAPSHOTTER, import};
use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Layer, noise},
    relay::{connect, in_runtime, pull, request},
    soundness::small_layer,
    testbed::{ContainerdRelease, ContainerdSetup, Disk, run, scratch, wait_until},
};

/// How large the disk of a full node is, in MiB.
const DISK: u64 = 64;

/// Fails unless containerd pulled by itself in the default mode, and the pull is refused with `reason` where import is required.
async fn forwards(node: &Node, name: &str, image: &Image, snapshotter: &str, reason: &str) {
    let daemon = node.daemon(DEFAULT);
    assert_eq!(import(&daemon, name).await, image.id());
    assert!(node.has_layer_blobs(image).await, "{reason}: it was imported");
    let top = super::mounted::chain(&image.diff_ids()).pop().unwrap();
    assert!(node.client().snapshot(snapshotter, &top).await.unwrap().is_some(), "{reason}");
    node.has_no_lease(reason).await;
    drop(daemon);
    let daemon = node.daemon(IMPORTS);
    let refused = pull(&connect(&daemon).await, &request(name)).await.unwrap_err().to_string();
    assert!(refused.contains(reason), "`{reason}` is not said: {refused}");
}

#[test]
fn over_another_snapshotter_containerd_pulls_itself() {
    let registry = FakeRegistry::start();
    let image = Image::oci(&[small_layer("first", 1000), small_layer("second", 1000)]);
    let name = registry.put("app:v1", &image);
    for release in ContainerdRelease::all() {
        let folder = scratch();
        let containerd = ContainerdSetup::new(&release, "unused:v1").snapshotter("native").start(folder.path());
        let node = Node { containerd, folder, was_killed: false };
        in_runtime(forwards(&node, &name, &image, "native", "native"));
        assert!(!node.staging().exists(), "{release}: nothing is staged where nothing is imported");
    }
}

/// A folder on a file system of its own, as long as it lives.
pub(super) struct OtherFileSystem<'a>(&'a Path);

impl<'a> OtherFileSystem<'a> {
    pub(super) fn at(folder: &'a Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(folder), "mount");
        Self(folder)
    }
}

impl Drop for OtherFileSystem<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn where_a_staged_layer_cannot_be_moved_to_the_snapshots_containerd_pulls_itself() {
    let registry = FakeRegistry::start();
    let image = Image::oci(&[small_layer("first", 1000), small_layer("second", 1000)]);
    let name = registry.put("app:v1", &image);
    for release in ContainerdRelease::all() {
        let node = Node::start(&release, "unused:v1");
        let staging = node.staging();
        let _mounted = OtherFileSystem::at(&staging);
        in_runtime(forwards(&node, &name, &image, SNAPSHOTTER, "imagelet-staging"));
    }
}

#[test]
fn a_layer_of_other_bytes_fails_the_pull_is_not_asked_for_again_and_leaves_nothing() {
    let registry = FakeRegistry::start();
    let image = Image::oci(&["first", "second", "third"].map(|seed| small_layer(seed, 30_000)));
    let name = registry.put("spoilt:v1", &image);
    registry.spoil("spoilt", &image.layers[1].digest, |answer| {
        let middle = answer.body.len() / 2;
        answer.body[middle] ^= 1;
    });
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let node = Node::start(&release, "unused:v1");
            let daemon = node.daemon(DEFAULT);
            let asked = registry.requests().len();
            let error = pull(&connect(&daemon).await, &request(&name)).await.unwrap_err();
            assert!(error.to_string().contains(&image.layers[1].digest), "{release}: {error}");
            let requests = registry.requests();
            let manifests =
                requests[asked..].iter().filter(|one| one.ends_with("/manifests/v1") && one.starts_with("GET"));
            assert_eq!(manifests.count(), 1, "{release}: it was forwarded: {requests:?}");
            node.is_empty_but_for_staged_layers(&format!("{release}: another digest")).await;
        });
    }
}

#[test]
fn a_pull_that_its_caller_gives_up_leaves_nothing_wherever_it_is() {
    let registry = FakeRegistry::start();
    for release in ContainerdRelease::all() {
        let node = Node::start(&release, "unused:v1");
        let daemon = node.daemon(IMPORTS);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for held in 0..3 {
            // Layers of its own: what is staged of one does not serve the others.
            let seeds = [0, 1, 2].map(|layer| format!("{held}{layer}"));
            let image = Image::oci(&seeds.map(|seed| small_layer(&seed, 30_000)));
            let repository = format!("app{held}");
            let name = registry.put(&format!("{repository}:v1"), &image);
            let waited = registry.hold(&repository, &image.layers[held].digest);
            let (client, asked) = (runtime.block_on(connect(&daemon)), request(&name));
            let caller = runtime.spawn(async move { pull(&client, &asked).await });
            waited.until_asked();
            caller.abort();
            let pulls = || daemon.run(["status", "-o", "json"]).json()["pulls"].as_array().unwrap().len();
            wait_until("the end of the pull", || pulls() == 0);
            let what = format!("{release}: given up at layer {held}");
            runtime.block_on(node.is_empty_but_for_staged_layers(&what));
            drop(waited);
            runtime.block_on(async {
                assert_eq!(import(&daemon, &name).await, image.id(), "{what}");
                node.remove(image.id()).await;
                node.is_empty(&what).await;
            });
        }
    }
}

#[test]
fn an_image_for_which_the_disk_has_no_room_is_refused_and_leaves_nothing() {
    let registry = FakeRegistry::start();
    let (small, large) = (Image::marked("small", 1 << 20), Image::marked("large", 80 << 20));
    // Its archive says little of what it takes.
    let zeros = Layer::gzip().file("zeros", vec![0; 90 << 20], 0o644);
    let unforeseen = Image::oci(&[Layer::gzip().file("first", noise("first", 1 << 20), 0o644), zeros]);
    let names = [("small:v1", &small), ("large:v1", &large), ("unforeseen:v1", &unforeseen)];
    let names = names.map(|(name, image)| registry.put(name, image));
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let (disk, folder) = (Disk::new(DISK), scratch());
            let containerd = ContainerdSetup::new(&release, "unused:v1").start(disk.path());
            let node = Node { containerd, folder, was_killed: false };
            let daemon = node.daemon(DEFAULT);
            for name in &names[1..] {
                let asked = registry.requests().len();
                let error = pull(&connect(&daemon).await, &request(name)).await.unwrap_err();
                assert_eq!(error.kind(), RuntimeErrorKind::DiskFull, "{release}: {error}");
                let manifests = registry.requests()[asked..].iter().filter(|one| one.contains("/manifests/")).count();
                assert!(manifests <= 2, "{release}: it was forwarded");
                node.is_empty_but_for_staged_layers(&format!("{release}: {name}")).await;
            }
            assert_eq!(import(&daemon, &names[0]).await, small.id(), "{release}");
            assert!(!node.has_layer_blobs(&small).await, "{release}: it was forwarded");
            node.remove(small.id()).await;
            node.is_empty(&format!("{release}: a small one after large ones")).await;
            drop((daemon, node));
        });
    }
}

#[test]
fn the_sandbox_image_is_pinned_as_containerd_pins_it() {
    let registry = FakeRegistry::start();
    let pause = Image::busybox("pause");
    let name = registry.put("pause:3.9", &pause);
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let [native, node] = [(); 2].map(|()| Node::start(&release, &name));
            // containerd 2 does not report the image of its sandboxes.
            let is_reported = release.number() < (2, 0);
            let settings = if is_reported { DEFAULT.to_owned() } else { format!("sandboxImage: '{name}'\n") };
            let daemon = node.daemon(&settings);
            native.pull_natively(&name).await;
            import(&daemon, &name).await;
            let mut labels = Vec::new();
            for one in [&native, &node] {
                let mut images = one.client().images().await.unwrap();
                images.sort_by(|one, other| one.name.cmp(&other.name));
                labels.push(images.into_iter().map(|image| (image.name, image.labels)).collect::<Vec<_>>());
            }
            assert_eq!(labels[1], labels[0], "{release}");
        });
    }
}
