//! Removals that a runtime accepts and does not make: read-only stores, and records whose names CRI does not delete.

use std::{path::Path, process::Command};

use imagelet_runtime::containerd::ContainerdClient;
use serde_json::Value;

use super::{containerd::Beside, layer};
use crate::{
    between::before,
    images::Image,
    scripted::{self, Runtime, Script},
    testbed::{ContainerdRelease, scratch, wait_until},
};

const SETTINGS: &str = "imageMinimumGCAge: 1ms\ngc: {enabled: false, leaseFor: 0s}\n";
const COLLECT: [&str; 5] = ["gc", "--all-unused", "--now", "-o", "json"];

/// The verdict on an image, and its reason.
fn verdict(document: &Value, id: &str) -> (String, String) {
    let row = document["images"].as_array().unwrap().iter().find(|row| row["id"] == id);
    let row = row.unwrap_or_else(|| panic!("{id} is not in {document:#}"));
    (row["verdict"].as_str().unwrap().to_owned(), row["reason"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn an_image_of_a_read_only_store_is_not_reported_as_removed_and_is_spared_until_its_names_change() {
    let folder = scratch();
    let (kept, other) = ("reg.test/shared:v1", "reg.test/own:v1");
    let script = Script {
        images: vec![scripted::image(kept, 3000), scripted::image(other, 2000)],
        kept: [scripted::id_of(kept)].into(),
        ..Script::default()
    };
    let runtime = Runtime::start(folder.path(), script);
    let daemon = before(folder.path(), &runtime.endpoint(), "", SETTINGS);
    let removals = || runtime.with(|script| std::mem::take(&mut script.calls).len());
    let id = scripted::id_of(kept);

    let first = daemon.run(COLLECT).json();
    let (verdict_of_kept, why) = verdict(&first, &id);
    assert_eq!(verdict_of_kept, "keep", "{first:#}");
    assert!(why.contains("still lists it as `reg.test/shared:v1`"), "{why}");
    assert_eq!(verdict(&first, &scripted::id_of(other)).0, "removed");
    assert_eq!((first["claimed"].as_u64(), removals()), (Some(2000), 2), "{first:#}");
    let second = daemon.run(COLLECT).json();
    assert_eq!((verdict(&second, &id).0.as_str(), removals()), ("keep", 0), "{second:#}");
    let events = daemon.run(["events", "-o", "json"]).ok();
    assert_eq!(events.matches("ImagesCollected").count(), 1, "{events}");
    assert!(!events.contains(&format!("removed `{kept}`")), "{events}");
    daemon.run(["rm", kept]).refused(&["cannot be removed", "still lists it as `reg.test/shared:v1`"]);
    removals();

    runtime.with(|script| {
        script.images[0].repo_tags.push("reg.test/shared:v2".to_owned());
        script.kept.clear();
    });
    assert_eq!(verdict(&daemon.run(COLLECT).json(), &id).0, "removed");
    assert_eq!(removals(), 1);
}

fn ctr(beside: &Beside, arguments: &[&str]) -> String {
    let mut command = Command::new("ctr");
    command.arg("-a").arg(beside.endpoint().path()).args(["-n", "k8s.io", "images"]).args(arguments);
    let output = command.output().expect("ctr comes with containerd");
    assert!(output.status.success(), "ctr {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Loads an image as `kind load docker-image` does; returns its id.
fn kind_load(beside: &Beside, name: &str, image: &Image) -> String {
    let source = beside.registry.put("source:v1", image);
    let archive = beside.folder.path().join("loaded.tar");
    let _ = std::fs::remove_file(&archive);
    let copied = Command::new("skopeo")
        .args(["--insecure-policy", "copy", "-q", "--src-tls-verify=false", &format!("docker://{source}")])
        .arg(format!("docker-archive:{}:{name}", archive.display()))
        .status();
    assert!(copied.expect("`make parts` installs skopeo").success());
    ctr(beside, &["import", "--all-platforms", "--digests", "--snapshotter", "overlayfs", path(&archive)]);
    wait_until("CRI to list what was loaded", || {
        let listed = beside.daemon.run(["ls", "-o", "json"]);
        listed.code == 0 && listed.stdout.contains(name)
    });
    let listed = beside.daemon.run(["inspect", name, "-o", "json"]).json();
    listed["image"]["id"].as_str().unwrap().to_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn an_image_of_a_kind_load_goes_with_its_bytes_although_cri_does_not_delete_all_its_names() {
    for release in ContainerdRelease::all() {
        let beside = Beside::start(&release, "overlayfs");
        for (number, by_collection) in [true, false].into_iter().enumerate() {
            let image = Image::oci(&[layer(&format!("loaded-{number}"), 3 << 10)]);
            let name = format!("docker.io/library/loaded:v{number}");
            let id = kind_load(&beside, &name, &image);
            for short in [format!("short:v{number}"), format!("bare{number}"), format!("Odd{number}")] {
                ctr(&beside, &["tag", &name, &short]);
            }
            let records = ctr(&beside, &["ls", "-q"]);
            assert!(records.contains("\nimport-") || records.starts_with("import-"), "{release}: {records}");
            let before = beside.takes();
            assert!(before > 6 << 20, "{release}: blobs and snapshots of {before} bytes");
            if by_collection {
                let planned = beside.daemon.run(["gc", "--all-unused", "--now", "--dry-run", "-o", "json"]).json();
                let done = beside.daemon.run(COLLECT).json();
                assert_eq!(verdict(&done, &id).0, "removed", "{release}: {done:#}");
                assert_eq!(done["frees"], planned["frees"], "{release}");
            } else {
                assert_eq!(beside.daemon.run(["rm", &name]).ok().trim(), id, "{release}");
            }
            wait_until("containerd to collect what is removed", || beside.takes() < 100 << 10);
            assert_eq!(ctr(&beside, &["ls", "-q"]).trim(), "", "{release}");
            assert_eq!(beside.daemon.run(["ls", "-q", "--all"]).ok().trim(), "", "{release}: no image without bytes");
        }
    }
}

#[test]
fn a_short_name_that_reads_as_the_name_of_another_image_costs_that_image_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _reactor = runtime.enter();
    for release in ContainerdRelease::all() {
        let beside = Beside::start(&release, "overlayfs");
        let loaded = |tag: &str| {
            let image = Image::oci(&[layer(tag, 300)]);
            kind_load(&beside, &format!("docker.io/library/{tag}:v1"), &image)
        };
        let (other, odd) = (loaded("other"), loaded("odd"));
        ctr(&beside, &["tag", "docker.io/library/odd:v1", "other:v1"]);
        let client = ContainerdClient::new(beside.endpoint().path());
        wait_until("CRI to see the short name", || {
            let record = runtime.block_on(client.image("other:v1")).unwrap();
            record.is_some_and(|record| !record.labels.is_empty())
        });
        beside
            .daemon
            .run(["rm", "docker.io/library/odd:v1"])
            .refused(&["CRI reads its name `other:v1` as `docker.io/library/other:v1`", "the name of another image"]);
        for (name, id) in [("docker.io/library/other:v1", &other), ("docker.io/library/odd:v1", &odd)] {
            let found = beside.daemon.run(["inspect", name, "-o", "json"]).json();
            assert_eq!(found["image"]["id"].as_str(), Some(&**id), "{release}: {name}");
        }
        beside.daemon.run(["pin", "docker.io/library/other:v1"]).ok();
        let collected = beside.daemon.run(COLLECT).json();
        for id in [&odd, &other] {
            assert_eq!(verdict(&collected, id).0, "keep", "{release}: {collected:#}");
        }
        // With the other image the obstacle goes, before or after this one's turn.
        beside.daemon.run(["unpin", "docker.io/library/other:v1"]).ok();
        beside.daemon.run(COLLECT).ok();
        beside.daemon.run(COLLECT).ok();
        assert_eq!(beside.daemon.run(["ls", "-q", "--all"]).ok().trim(), "", "{release}");
    }
}
