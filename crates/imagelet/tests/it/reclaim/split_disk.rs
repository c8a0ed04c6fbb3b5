//! Snapshots and blobs on two disks: what a collection promises is what the measured one has again.

use std::{process::Command, time::Duration};

use imagelet_runtime::cri::RemoteImageService;
use serde_json::json;

use super::{containerd::Beside, layer};
use crate::{
    images::Image,
    relay::{in_runtime, pull, request},
    testbed::{ContainerdRelease, Disk, run, wait_until},
};

#[test]
fn where_snapshots_have_a_disk_of_their_own_a_collection_promises_what_that_disk_has_again() {
    for release in ContainerdRelease::all() {
        let disk = Disk::new(512);
        let mut beside = Beside::start(&release, "overlayfs");
        let snapshotter = beside.root().join("io.containerd.snapshotter.v1.overlayfs");
        beside.containerd.kill();
        run(Command::new("mount").arg("--bind").arg(disk.path()).arg(&snapshotter), "mount");
        beside.containerd.restart();
        let name = beside.registry.put("app:v1", &Image::oci(&[layer("app", 8 << 10)]));
        // containerd's own pull keeps the blobs.
        in_runtime(async {
            let images = RemoteImageService::connect(&beside.endpoint(), Duration::from_mins(1)).await.unwrap();
            pull(&images, &request(&name)).await.unwrap();
        });
        beside.daemon.run(["ls"]).ok();

        let available = || super::available(disk.path());
        let before = available();
        let all = beside.daemon.run(["df", "-o", "json"]).json();
        assert!(all["imagesSize"].as_u64().unwrap() > 16 << 20, "both copies: {all:#}");
        let planned = beside.daemon.run(["gc", "--free", "7Mi", "--dry-run", "-o", "json"]).json();
        let frees = planned["frees"].as_u64().unwrap();
        assert!((8 << 20..9 << 20).contains(&frees), "{release}: {planned:#}");
        assert_eq!(planned["certainty"], json!("exact"), "{release}");
        let too_much = beside.daemon.run(["gc", "--free", "12Mi", "--dry-run", "-o", "json"]).json();
        assert_eq!(too_much["outOfReach"], json!(true), "{release}: no image frees as much there: {too_much:#}");
        let done = beside.daemon.run(["gc", "--free", "7Mi", "-o", "json"]).json();
        assert_eq!(done["frees"].as_u64(), Some(frees), "{release}");
        wait_until("the disk of the snapshots to have the bytes again", || available().saturating_sub(before) >= frees);
        assert!(available() - before < frees + (1 << 20), "{release}");
    }
}
