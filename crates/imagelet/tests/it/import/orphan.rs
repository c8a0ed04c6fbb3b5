//! The folder of a snapshot that containerd's database lacks, as a power cut may leave it: an import steps over it.

use std::{fs, path::Path};

use imagelet_core::error::RuntimeError;
use rustix::process::Signal;

use super::{
    node::{IMPORTS, Node, SNAPSHOTTER, import},
    samples::Sample,
};
use crate::{
    fake_registry::FakeRegistry,
    relay::{in_runtime, pull, request},
    soundness::small_layer,
    testbed::ContainerdRelease,
};

/// What imagelet logs where it repeats the call.
const REPEATED: &str = "the call is repeated once";

/// The number of the newest snapshot's folder; numbers are not used twice.
fn newest(snapshots: &Path) -> u64 {
    let names = fs::read_dir(snapshots).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).max().expect("a snapshot")
}

impl Node {
    /// Removes an image and restarts containerd over a folder where its next snapshot will be.
    fn orphan_the_next_snapshot(&mut self, id: &str) {
        let snapshots = self.containerd.root().join(format!("io.containerd.snapshotter.v1.{SNAPSHOTTER}/snapshots"));
        let next = snapshots.join((newest(&snapshots) + 1).to_string());
        in_runtime(async {
            self.remove(id).await;
            self.is_empty("before the power cut").await;
        });
        self.containerd.kill();
        fs::create_dir_all(next.join("fs/stale")).unwrap();
        self.restart();
        assert!(next.join("fs/stale").exists(), "containerd removes it at its start");
    }

    async fn try_natively(&self, name: &str) -> Result<String, RuntimeError> {
        pull(&self.images().await, &request(name)).await
    }
}

#[test]
fn a_folder_where_the_next_snapshot_of_containerd_will_be_stops_no_import() {
    for release in ContainerdRelease::all() {
        let registry = FakeRegistry::start();
        let sample = Sample::new("app:v1", ["first", "second"].map(|seed| small_layer(seed, 3_000)).into());
        let (name, id) = (registry.put(sample.name, &sample.image), sample.image.id());
        let mut node = Node::start(&release, "unused:v1");

        // containerd's own pull fails in this state and removes the folder, so that the next one succeeds.
        in_runtime(node.pull_natively(&name));
        node.orphan_the_next_snapshot(id);
        let refused = in_runtime(node.try_natively(&name)).unwrap_err().to_string();
        assert!(refused.contains("file exists"), "{release}: {refused}");
        assert_eq!(in_runtime(node.pull_natively(&name)), id, "{release}");

        node.orphan_the_next_snapshot(id);
        let daemon = node.daemon(IMPORTS);
        assert_eq!(in_runtime(import(&daemon, &name)), id, "{release}");
        assert!(
            daemon.part.log().contains(REPEATED),
            "{release}: the folder was not in the way\n{}",
            daemon.part.log()
        );
        in_runtime(async {
            assert!(!node.has_layer_blobs(&sample.image).await, "{release}: containerd pulled it itself");
            node.remove(id).await;
            node.is_empty(&format!("{release}: after the import")).await;
        });
        assert!(daemon.stop(Signal::TERM).success(), "{release}");
    }
}
