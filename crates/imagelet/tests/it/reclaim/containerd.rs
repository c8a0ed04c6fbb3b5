//! The same beside containerd, whose own records say what each image takes: to the byte, whichever way it was pulled.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::{
    image::{ImageId, ImageSpec},
    ports::{Certainty, ImageService as _, LayerGraph, LayerSource as _, PullRequest, no_progress},
};
use imagelet_runtime::cri::{Endpoint, RemoteImageService};
use imagelet_runtime::{ContainerdSizes, containerd::ContainerdClient};
use serde_json::{Value, json};

use super::{DISK_MEBIBYTES, layer};
use crate::{
    fake_registry::{Answer, FakeRegistry},
    images::{Image, Layer, Random},
    program::{Daemon, program, run},
    scripted::{self, Runtime, Script},
    testbed::{Containerd, ContainerdRelease, ContainerdSetup, Disk, scratch, wait_until_within},
    tree,
    wire::pods::TestPods,
};

/// Random sets of images that are removed, on each version.
const SETS: usize = 20;
/// Images that the sets are taken from.
const IMAGES: usize = 14;
/// What one call, or a look at all images, may take here.
const CALL_MAX: Duration = Duration::from_mins(1);

/// A containerd on a disk of its own, with a daemon before it.
pub(super) struct Beside {
    pub(super) daemon: Daemon,
    pub(super) containerd: Containerd,
    pub(super) registry: FakeRegistry,
    pub(super) folder: tempfile::TempDir,
    snapshotter: &'static str,
    _disk: Disk,
}

impl Beside {
    pub(super) fn start(release: &ContainerdRelease, snapshotter: &'static str) -> Self {
        let (disk, registry, folder) = (Disk::new(DISK_MEBIBYTES), FakeRegistry::start(), scratch());
        let pause = registry.put("pause:3.9", &Image::busybox("pause"));
        let containerd = ContainerdSetup::new(release, &pause).snapshotter(snapshotter).start(disk.path());
        let config = folder.path().join("config.yaml");
        // A pull that was not imported would be no other case than containerd's own.
        let import = if snapshotter == "overlayfs" { "require" } else { "auto" };
        let settings =
            format!("imageMinimumGCAge: 1ms\ngc: {{enabled: false, leaseFor: 0s}}\nruntimeImport: {import}\n");
        std::fs::write(&config, settings).unwrap();
        let arguments = ["--runtime-endpoint", &containerd.endpoint(), "--config", config.to_str().unwrap()];
        let daemon = Daemon::start(folder.path(), arguments);
        Self { daemon, containerd, registry, folder, snapshotter, _disk: disk }
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.containerd.endpoint().parse().unwrap()
    }

    pub(super) fn root(&self) -> PathBuf {
        self.endpoint().path().parent().map(Path::to_owned).unwrap().join("root")
    }

    /// What the disk has of blobs and snapshots, in whole blocks.
    pub(super) fn takes(&self) -> u64 {
        let root = self.root();
        let blobs = root.join("io.containerd.content.v1.content/blobs/sha256");
        let snapshots = root.join(format!("io.containerd.snapshotter.v1.{}/snapshots", self.snapshotter));
        tree::disk_usage(&blobs) + tree::disk_usage(&snapshots)
    }

    /// What the disk has again, once containerd took the files away: it says so of an image some time before.
    pub(super) fn freed(&self, before: u64, predicted: u64) -> u64 {
        wait_until_within(Duration::from_secs(30), || before.saturating_sub(self.takes()) >= predicted);
        before.saturating_sub(self.takes())
    }

    fn sizes(&self) -> ContainerdSizes {
        ContainerdSizes::new(ContainerdClient::new(self.endpoint().path()), CALL_MAX)
    }

    pub(super) fn usage(&self) -> Value {
        self.daemon.run(["df", "-o", "json"]).json()
    }
}

async fn look(sizes: &ContainerdSizes) -> LayerGraph {
    let graph = sizes.layers().await.unwrap().expect("containerd answers its own interface");
    assert_eq!(graph.certainty, Certainty::Exact);
    graph
}

/// Images of some layers out of nine with every kind of entry, in some order; every fourth image is behind an index.
fn put_images(registry: &FakeRegistry, random: &mut Random) -> Vec<String> {
    let layers: Vec<Layer> = (0..9_usize)
        .map(|number| {
            let mut layer = layer(&format!("layer-{number}"), 3 + 17 * number).directory("many", 0o755);
            for file in 0..9 * number {
                let name = format!("many/{number}-{file}");
                layer = layer.file(&name, name.repeat(file * file), 0o644);
            }
            layer.symlink(&format!("link-{number}"), &"far/".repeat(20)).directory(&format!("empty-{number}"), 0o700)
        })
        .collect();
    let put = |number: usize| {
        let count = usize::try_from(1 + random.below(4)).unwrap();
        let mut own: Vec<Layer> =
            (0..count).map(|_| layers[usize::try_from(random.below(9)).unwrap()].clone()).collect();
        own.push(Layer::gzip().file("number", number.to_string(), 0o644));
        let (name, image) = (format!("image-{number}"), Image::oci(&own));
        let reference = registry.put(&format!("{name}:v1"), &image);
        if number.is_multiple_of(4) {
            put_index(registry, &name, &image);
        }
        reference
    };
    (0..IMAGES).map(put).collect()
}

/// Puts an index of two platforms in place of the manifest; the manifest of the other platform is not at the registry.
fn put_index(registry: &FakeRegistry, repository: &str, image: &Image) {
    let manifest = |architecture: &str, digest: &str| {
        json!({
            "mediaType": image.manifest.media_type, "digest": digest, "size": image.manifest.bytes.len(),
            "platform": {"os": "linux", "architecture": architecture}
        })
    };
    let ours = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let media_type = "application/vnd.oci.image.index.v1+json";
    let absent = imagelet_core::image::Digest::of(repository.as_bytes()).to_string();
    let index = json!({
        "schemaVersion": 2, "mediaType": media_type,
        "manifests": [manifest("s390x", &absent), manifest(ours, &image.manifest.digest)]
    });
    let bytes = serde_json::to_vec(&index).unwrap();
    let digest = imagelet_core::image::Digest::of(&bytes);
    for reference in ["v1".to_owned(), digest.to_string()] {
        registry.answer(&format!("/v2/{repository}/manifests/{reference}"), Answer::ok(media_type, &bytes));
    }
}

#[test]
fn removals_beside_containerd_free_what_was_predicted_to_the_byte() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for release in ContainerdRelease::all() {
        for (snapshotter, sets) in [("overlayfs", SETS), ("native", SETS / 5)] {
            for line in runtime.block_on(random_sets(&release, snapshotter, sets)) {
                println!("{release}, {snapshotter}: {line}");
            }
        }
    }
}

/// Returns a line for each set.
async fn random_sets(release: &ContainerdRelease, snapshotter: &'static str, sets: usize) -> Vec<String> {
    let beside = Beside::start(release, snapshotter);
    let mut random = Random::new("sets");
    let names = put_images(&beside.registry, &mut random);
    let (sizes, images) = (beside.sizes(), RemoteImageService::connect(&beside.endpoint(), CALL_MAX).await.unwrap());
    let (mut present, mut said) = (vec![false; names.len()], Vec::new());
    for set in 0..sets {
        // Half of them by containerd itself, half by imagelet, each image now this way and now that.
        for (number, name) in names.iter().enumerate().filter(|(number, _)| !present[*number]) {
            if (set + number).is_multiple_of(2) {
                let request = PullRequest { image: ImageSpec::new(name), ..PullRequest::default() };
                images.pull(&request, no_progress()).await.unwrap();
            } else {
                beside.daemon.run(["pull", "-q", name]).ok();
            }
        }
        present.fill(true);
        let mut chosen: Vec<(ImageId, &String)> = Vec::new();
        for (number, name) in names.iter().enumerate() {
            if random.below(3) == 0 {
                let image = images.status(&ImageSpec::new(name)).await.unwrap().expect("it was pulled");
                chosen.push((image.id, name));
                present[number] = false;
            }
        }
        let predicted = look(&sizes).await.freed_by(chosen.iter().map(|(id, _)| id)).bytes.0;
        let before = beside.takes();
        for (_, name) in &chosen {
            beside.daemon.run(["rm", name]).ok();
        }
        let freed = beside.freed(before, predicted);
        said.push(format!("{} of {} images, {predicted} bytes predicted, {freed} freed", chosen.len(), names.len()));
        assert_eq!(freed, predicted, "{release}, {snapshotter}, set {set}: {chosen:?}");
    }
    // The commands say the same of all, asked of the daemon or run alone.
    for name in &names {
        beside.daemon.run(["pull", "-q", name]).ok();
    }
    let usage = beside.usage();
    let alone = run(program().args(["--endpoint", &beside.containerd.endpoint(), "df", "-o", "json"])).json();
    let graph = look(&sizes).await;
    let all = graph.freed_by(graph.images.keys()).bytes.0;
    for usage in [&usage, &alone] {
        assert_eq!(usage["imagesSize"], json!(graph.total().0), "{usage:#}");
        for (id, share) in graph.shares() {
            let row = usage["images"].as_array().unwrap().iter().find(|row| row["id"] == id.as_str());
            let row = row.unwrap_or_else(|| panic!("{id} is not in {usage:#}"));
            assert_eq!((&row["unique"], &row["shared"]), (&json!(share.unique.0), &json!(share.shared.0)), "{row:#}");
        }
    }
    assert_eq!((&usage["reclaimable"], &usage["certainty"]), (&json!(all), &json!("exact")), "{usage:#}");
    let (before, planned) =
        (beside.takes(), beside.daemon.run(["gc", "--dry-run", "--all-unused", "--now", "-o", "json"]).json());
    let done = beside.daemon.run(["gc", "--all-unused", "--now", "-o", "json"]).json();
    for collected in [&planned, &done] {
        assert_eq!((&collected["frees"], &collected["certainty"]), (&json!(all), &json!("exact")), "{collected:#}");
    }
    assert_eq!(beside.freed(before, all), all, "{release}, {snapshotter}");
    said
}

#[test]
fn what_a_container_runs_from_beside_containerd_is_held() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for release in ContainerdRelease::all() {
        runtime.block_on(a_running_container(&release));
    }
}

async fn a_running_container(release: &ContainerdRelease) {
    let beside = Beside::start(release, "overlayfs");
    let mut image = Image::busybox("used");
    image.append(Image::oci(&[layer("payload", 3 << 10)]));
    let name = beside.registry.put("used:v1", &image);
    beside.daemon.run(["pull", "-q", &name]).ok();
    let (id, sizes) = (ImageId::new(image.id()), beside.sizes());
    let whole = look(&sizes).await.freed_by([&id]).bytes.0;
    assert!(whole > 3 << 20, "{whole}");
    let row = |usage: &Value| {
        let rows = usage["images"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["id"] == image.id()).unwrap_or_else(|| panic!("{usage:#}"))
    };
    let unused = row(&beside.usage());

    let pods = TestPods::connect(&beside.endpoint(), beside.folder.path()).await.unwrap();
    let sandbox = pods.run_sandbox("web").await.unwrap();
    let container = pods.run_container(&sandbox, &name, &["/bin/sleep", "3600"]).await.unwrap();
    let graph = look(&sizes).await;
    let chain: Vec<_> = graph.parts(&id).unwrap().filter(|part| part.id.starts_with("overlayfs:")).collect();
    assert_eq!(chain.len(), 3);
    assert!(chain.iter().all(|part| part.held), "{chain:#?}");
    // With the image of the sandbox, which has some of the same layers.
    let blobs = graph.layers.iter().filter(|part| part.id.starts_with("blob:")).map(|part| part.bytes).sum();
    let freed = graph.freed_by(graph.images.keys()).bytes;
    assert_eq!(freed, blobs, "containers keep their file systems, and nothing keeps the blobs");
    let used = row(&beside.usage());
    let takes = |row: &Value| row["unique"].as_u64().unwrap() + row["shared"].as_u64().unwrap();
    assert_eq!((takes(&used), takes(&unused)), (whole, whole), "it takes what it took");
    assert_ne!(used["inUseBy"], json!([]), "{used:#}");

    pods.stop_container(&container).await.unwrap();
    pods.remove_container(&container).await.unwrap();
    pods.remove_sandbox(&sandbox).await.unwrap();
    let images = RemoteImageService::connect(&beside.endpoint(), CALL_MAX).await.unwrap();
    images.remove(&ImageSpec::new(beside.registry.name("pause:3.9"))).await.unwrap();
    assert_eq!(look(&sizes).await.freed_by([&id]).bytes.0, whole);
}

#[test]
fn beside_a_runtime_with_cri_alone_sizes_are_as_listed_and_that_is_said() {
    let (registry, store, beside) = (FakeRegistry::start(), scratch(), scratch());
    let name = registry.put("app:v1", &Image::oci(&[layer("app", 300)]));
    // It speaks CRI and nothing of containerd's, as CRI-O does.
    let runtime = Daemon::start(store.path(), ["--store", store.path().join("store").to_str().unwrap()]);
    runtime.run(["pull", "-q", &name]).ok();
    let listed = runtime.run(["ls", "-o", "json"]).json()["images"][0]["size"].clone();
    let daemon = Daemon::start(beside.path(), ["--runtime-endpoint", &runtime.endpoint()]);
    let usage = daemon.run(["df", "-o", "json"]).json();
    let row = &usage["images"][0];
    assert_eq!((&row["size"], &row["unique"], &row["shared"]), (&listed, &Value::Null, &Value::Null), "{usage:#}");
    assert_eq!(usage["certainty"], "claimed", "{usage:#}");
    assert_eq!((&usage["imagesSize"], &usage["imagesCertainty"]), (&listed, &json!("claimed")), "{usage:#}");
    assert!(daemon.run(["df"]).ok().contains("(sizes as the runtime claims)"));
    let planned = daemon.run(["gc", "--dry-run", "--all-unused", "--now", "-o", "json"]).json();
    assert_eq!(planned["certainty"], "claimed", "{planned:#}");
}

#[test]
fn what_a_runtime_says_of_its_file_system_is_not_taken_for_the_size_of_its_images() {
    let (folder, beside) = (scratch(), scratch());
    // CRI-O measures the folder with the documents of its images, and lists each image with all its layers.
    let images = vec![scripted::image("reg.test/app:v1", 20_000_000), scripted::image("reg.test/base:v1", 8_000_000)];
    let runtime = Runtime::start(folder.path(), Script { images, used_bytes: Some(70_000), ..Script::default() });
    let config = beside.path().join("config.yaml");
    fs::write(&config, "imageMinimumGCAge: 1ms\n").unwrap();
    let arguments = ["--runtime-endpoint", &runtime.endpoint(), "--config", config.to_str().unwrap()];
    let daemon = Daemon::start(beside.path(), arguments);
    daemon.run(["ls"]).ok();
    let text = daemon.run(["df"]).ok();
    assert!(text.contains("2 (28MB as the runtime lists them; what they take on the disk is not known)"), "{text}");
    let usage = || daemon.run(["df", "-o", "json"]).json();
    let planned = || daemon.run(["gc", "--all-unused", "--dry-run", "-o", "json"]).json()["frees"].clone();
    let told = usage();
    assert_eq!((&told["imagesCertainty"], &told["certainty"]), (&json!("claimed"), &json!("claimed")), "{told:#}");
    assert_eq!(told["reclaimable"], planned(), "{told:#}");
    assert_eq!((&told["imagesSize"], &told["reclaimable"]), (&json!(28_000_000), &json!(28_000_000)), "{told:#}");

    // Layers that are shared count in each image: no disk has more again than is in use on it.
    runtime.with(|script| script.images.push(scripted::image("reg.test/huge:v1", 1 << 60)));
    daemon.run(["ls"]).ok();
    let told = usage();
    let (capacity, available) = (told["capacity"].as_u64().unwrap(), told["available"].as_u64().unwrap());
    for claimed in [told["reclaimable"].as_u64().unwrap(), planned().as_u64().unwrap()] {
        // Other tests write to this disk between two looks at it.
        assert!(claimed <= capacity && claimed.abs_diff(capacity - available) < capacity / 10, "{claimed}: {told:#}");
    }
}
