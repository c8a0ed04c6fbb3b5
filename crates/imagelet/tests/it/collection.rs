//! A node over its own store, and beside containerd with real pods: ensured, listed and collected alike.

use std::{fs, path::Path};

use imagelet_runtime::cri::Endpoint;
use serde_json::Value;

use crate::{
    images::{Image, Layer, noise},
    program::Daemon,
    testbed::{Containerd, Disk, Registry, scratch},
    wire::pods::TestPods,
};

/// The image file system of these stories.
const DISK_MEBIBYTES: u64 = 2048;
/// Enough of each image to lift that disk over one percent.
const PAYLOAD: usize = 24 << 20;

/// The images of the Pod, one for each policy, and one that nobody uses.
struct Names {
    if_not_present: String,
    always: String,
    never: String,
    spare: String,
}

impl Names {
    fn all(&self) -> [&str; 4] {
        [&self.if_not_present, &self.always, &self.never, &self.spare]
    }
}

fn runnable(marker: &str) -> Image {
    let mut image = Image::busybox(marker);
    let payload = Image::oci(&[Layer::gzip().file("payload", noise(marker, PAYLOAD), 0o644)]);
    image.append(payload);
    image
}

fn push(registry: &Registry) -> Names {
    let push = |name: &str| registry.push(&format!("{name}:v1"), &runnable(name));
    Names { if_not_present: push("if-not-present"), always: push("always"), never: push("never"), spare: push("spare") }
}

fn write_pod(folder: &Path, names: &Names) -> String {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: default, uid: pod-1}}\nspec:\n  initContainers:\n  \
         - {{name: first, image: '{}', imagePullPolicy: IfNotPresent}}\n  containers:\n  \
         - {{name: second, image: '{}', imagePullPolicy: Always}}\n  \
         - {{name: third, image: '{}', imagePullPolicy: Never}}\n",
        names.if_not_present, names.always, names.never
    );
    let path = folder.join("pod.yaml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Images may go as soon as they are there: the tests wait out neither the kubelet's two minutes nor a lease.
fn write_config(folder: &Path) -> String {
    let text =
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\ngc: {leaseFor: 0s}\n";
    let path = folder.join("config.yaml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn rows(document: &Value) -> &Vec<Value> {
    document["images"].as_array().unwrap_or_else(|| panic!("no images in {document:#}"))
}

fn row<'a>(document: &'a Value, name: &str) -> &'a Value {
    let named = |row: &&Value| row["names"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
    rows(document).iter().find(named).unwrap_or_else(|| panic!("`{name}` is not in {document:#}"))
}

fn verdicts(collected: &Value, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| row(collected, name)["verdict"].as_str().unwrap().to_owned()).collect()
}

fn present(daemon: &Daemon, name: &str) -> bool {
    daemon.run(["inspect", "-q", name]).code == 0
}

/// Ensures the Pod under its three policies; what is never pulled must be there before.
fn ensure(daemon: &Daemon, folder: &Path, names: &Names) {
    let pod = write_pod(folder, names);
    let stderr = daemon.run(["ensure", "-f", &pod]).refused(&[&names.never, "Never"]);
    assert!(stderr.contains("not present"), "{stderr}");
    daemon.run(["pull", &names.never]).ok();
    daemon.run(["ensure", "-f", &pod]).ok();
    daemon.run(["pull", &names.spare]).ok();
    let listed = daemon.run(["ls", "-o", "json"]).json();
    for name in names.all() {
        let row = row(&listed, name);
        assert!(row["size"].as_u64().unwrap() > PAYLOAD as u64 / 2, "{row:#}");
        assert!(row["lastUsed"].is_string() && row["firstSeen"].is_string(), "{row:#}");
        assert_eq!(row["inUseBy"], serde_json::json!([]), "{row:#}");
    }
}

/// Under a forced threshold all go but `kept` and what is pinned; the plan says so before, the log after.
fn collect(daemon: &Daemon, kept: &[&str], pinned: &str, gone: &[&str]) -> Value {
    daemon.run(["pin", pinned]).ok();
    let listed = daemon.run(["ls", "-o", "json"]).json();
    for name in kept {
        assert_ne!(row(&listed, name)["inUseBy"], serde_json::json!([]), "`{name}` is in use: {listed:#}");
    }
    assert_ne!(row(&listed, pinned)["pinnedBy"], serde_json::json!([]), "`{pinned}` is pinned: {listed:#}");

    let plan = daemon.run(["gc", "--dry-run", "--high", "1", "--low", "0", "-o", "json"]).json();
    assert!(verdicts(&plan, kept).iter().all(|verdict| verdict == "keep"), "{plan:#}");
    assert_eq!(verdicts(&plan, &[pinned]), ["keep"], "{plan:#}");
    assert!(verdicts(&plan, gone).iter().all(|verdict| verdict == "remove"), "{plan:#}");
    for row in rows(&plan) {
        assert!(row["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "a verdict without a reason: {row:#}");
    }
    assert!(gone.iter().all(|name| present(daemon, name)), "a dry run removed something");

    let done = daemon.run(["gc", "--high", "1", "--low", "0", "-o", "json"]).json();
    assert!(verdicts(&done, gone).iter().all(|verdict| verdict == "removed"), "{done:#}");
    assert!(gone.iter().all(|name| !present(daemon, name)), "{done:#}");
    assert!(kept.iter().chain([&pinned]).all(|name| present(daemon, name)), "{done:#}");
    let log = daemon.part.log();
    for name in gone {
        let id = row(&done, name)["id"].as_str().unwrap();
        assert!(log.contains(name) || log.contains(id), "the log does not tell why `{name}` went:\n{log}");
    }
    daemon.run(["unpin", pinned]).ok();
    listed
}

fn over_the_store() -> Value {
    let (disk, registry, folder, mountpoint) = (Disk::new(DISK_MEBIBYTES), Registry::start(), scratch(), scratch());
    let names = push(&registry);
    let (store, config) = (disk.path().join("store"), write_config(folder.path()));
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", &config]);
    ensure(&daemon, folder.path(), &names);
    let target = mountpoint.path().to_str().unwrap();
    daemon.run(["mount", &names.if_not_present, target]).ok();
    let listed = collect(&daemon, &[&names.if_not_present], &names.never, &[&names.always, &names.spare]);

    assert_eq!(fs::read_to_string(mountpoint.path().join("marker")).unwrap(), "if-not-present");
    daemon.run(["unmount", target]).ok();
    let stderr = daemon.run(["gc", "--free", "1000G"]).refused(&["Insufficient free disk space"]);
    assert!(stderr.contains("and none was deleted"), "{stderr}");
    let document: Value = serde_json::from_str(&daemon.run(["gc", "--free", "1000G", "-o", "json"]).stdout).unwrap();
    let failure = &document["failure"];
    assert_eq!((&document["outOfReach"], &failure["reason"]), (&true.into(), &"FreeDiskSpaceFailed".into()));
    assert_eq!(failure["message"], document["shortfall"], "{document:#}");
    assert!(names.all().iter().any(|name| present(&daemon, name)), "an image went in vain");
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    assert!(names.all().iter().all(|name| !present(&daemon, name)), "an image outlived its last use and its pin");
    listed
}

async fn beside_containerd() -> Value {
    let (disk, registry, folder) = (Disk::new(DISK_MEBIBYTES), Registry::start(), scratch());
    registry.push("pause:3.9", &Image::busybox("pause"));
    let names = push(&registry);
    let containerd = Containerd::start(disk.path(), &registry);
    let config = write_config(folder.path());
    let daemon = Daemon::start(folder.path(), ["--runtime-endpoint", &containerd.endpoint(), "--config", &config]);
    ensure(&daemon, folder.path(), &names);

    let endpoint: Endpoint = containerd.endpoint().parse().unwrap();
    let pods = TestPods::connect(&endpoint, folder.path()).await.unwrap();
    let sandbox = pods.run_sandbox("web").await.unwrap();
    pods.run_container(&sandbox, &names.if_not_present, &["/bin/sleep", "3600"]).await.unwrap();
    let other = pods.run_sandbox("job").await.unwrap();
    let exited = pods.run_container(&other, &names.always, &["/bin/sleep", "3600"]).await.unwrap();
    pods.stop_container(&exited).await.unwrap();
    let listed = collect(&daemon, &[&names.if_not_present, &names.always], &names.never, &[&names.spare]);

    pods.remove_container(&exited).await.unwrap();
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    let left: Vec<bool> = names.all().iter().map(|name| present(&daemon, name)).collect();
    assert_eq!(left, [true, false, false, false], "only the running pod still holds its image");
    pods.remove_sandbox(&other).await.unwrap();
    pods.remove_sandbox(&sandbox).await.unwrap();
    listed
}

/// The keys of the document and of its first row.
fn shape(listed: &Value) -> Vec<String> {
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    [keys(listed), keys(&rows(listed)[0])].concat()
}

#[test]
fn a_store_and_a_runtime_are_listed_and_collected_alike() {
    let store = over_the_store();
    let runtime = tokio::runtime::Runtime::new().unwrap().block_on(beside_containerd());
    assert_eq!(shape(&store), shape(&runtime));
}
