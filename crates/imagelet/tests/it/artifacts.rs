//! OCI artifacts as directories of files: pulled for a pod's image volume, shown, mounted, kept in use and removed.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    fake_registry::FakeRegistry,
    http_api::get,
    images::{Blob, Compression, Image, Layer, OCI_MANIFEST},
    ports::Port,
    program::{Daemon, program, run, with_store},
    testbed::{Containerd, ContainerdRelease, ContainerdSetup, require_root, scratch},
};

const KIND: &str = "application/vnd.example.model";

/// An artifact as `oras push` writes it, with these files by title.
pub(crate) fn artifact(files: &[(&str, &[u8])]) -> Image {
    let blob = |(title, bytes): &(&str, &[u8])| {
        (Blob::new(bytes.to_vec(), "application/x-part"), json!({"org.opencontainers.image.title": title}))
    };
    artifact_of(files.iter().map(blob).collect())
}

/// An artifact of blobs with annotations.
pub(crate) fn artifact_of(blobs: Vec<(Blob, Value)>) -> Image {
    let (layers, annotations): (Vec<Blob>, Vec<Value>) = blobs.into_iter().unzip();
    let described = layers.iter().zip(annotations).map(|(blob, annotations)| {
        json!({
            "mediaType": blob.media_type, "digest": blob.digest, "size": blob.bytes.len(), "annotations": annotations,
        })
    });
    let config = Blob::new(b"{}".to_vec(), "application/vnd.oci.empty.v1+json");
    let manifest = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": KIND,
        "config": {"mediaType": config.media_type, "digest": config.digest, "size": 2},
        "layers": described.collect::<Vec<_>>(),
    });
    Image { layers, config, manifest: Blob::new(manifest.to_string().into_bytes(), OCI_MANIFEST) }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_pods_image_volume_gets_an_artifact_that_mounts_as_files_and_stays_while_it_is_mounted() {
    require_root("mounting");
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = artifact(&[("model.bin", &[0x1f, 0x8b, 8, 0]), ("conf/tokens.txt", b"a b\n")]);
    let name = registry.put("model:v1", &image);
    let (store, target, pod) = (folder.path().join("store"), folder.path().join("mnt"), folder.path().join("pod.yaml"));
    fs::create_dir(&target).unwrap();
    fs::write(
        &pod,
        format!(
            "kind: Pod\nmetadata: {{name: p, uid: p}}\nspec:\n  containers: []\n  volumes:\n  - {{name: m, image: {{reference: '{name}'}}}}\n"
        ),
    )
    .unwrap();
    with_store(&store, ["ensure", "-q", "-f", text(&pod)]).ok();
    let found = with_store(&store, ["inspect", "-o", "json", &name]).json();
    assert_eq!(found["image"]["id"].as_str(), Some(&*image.manifest.digest));
    assert_eq!(found["details"]["artifactType"].as_str(), Some(KIND), "{found}");
    assert!(with_store(&store, ["inspect", &name]).ok().contains(KIND));

    with_store(&store, ["mount", &name, text(&target)]).ok();
    assert_eq!(fs::read(target.join("model.bin")).unwrap(), [0x1f, 0x8b, 8, 0]);
    assert_eq!(fs::read(target.join("conf/tokens.txt")).unwrap(), b"a b\n");
    with_store(&store, ["gc", "--all-unused", "--now"]).ok();
    with_store(&store, ["inspect", "-q", &name]).ok();
    with_store(&store, ["unmount", text(&target)]).ok();
    with_store(&store, ["verify"]).ok();
    with_store(&store, ["rm", &name]).ok();
    assert_eq!(with_store(&store, ["ls", "-q", "--all"]).ok(), "");
    assert_eq!(fs::read_dir(store.join("layers")).unwrap().count(), 0);
}

#[test]
fn a_models_archives_and_files_mount_as_one_tree_that_inspect_lists_and_an_empty_artifact_as_an_empty_folder() {
    require_root("mounting");
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let config = Layer::gzip().file("conf/config.json", "{}", 0o600).owned_by(1000, 1000).symlink("start", "bin/run");
    let tools = Layer::new(Compression::Zstd).directory("bin", 0o700).file("bin/run", "#!/bin/sh", 0o4711);
    let packed = Image::oci(&[config, tools]).layers;
    let typed = |number: usize, media_type: &str| (Blob::new(packed[number].bytes.clone(), media_type), json!({}));
    let weights = Blob::new(vec![7; 3 << 20], "application/vnd.cncf.model.weight.v1.raw");
    let image = artifact_of(vec![
        typed(0, "application/vnd.cncf.model.weight.config.v1.tar+gzip"),
        typed(1, "application/vnd.cnai.model.code.v1.tar+zstd"),
        (weights.clone(), json!({"org.cncf.model.filepath": "conf/weights.bin"})),
        (weights, json!({"org.opencontainers.image.title": "same"})),
    ]);
    let (name, empty) = (registry.put("model:v1", &image), registry.put("empty:v1", &artifact(&[])));
    let (store, target) = (folder.path().join("store"), folder.path().join("mnt"));
    fs::create_dir(&target).unwrap();
    with_store(&store, ["pull", "-q", &name]).ok();
    let shown = with_store(&store, ["inspect", &name]).ok();
    for line in ["Files:", "./ (an archive of ", "conf/weights.bin 3.15MB", "same 3.15MB"] {
        assert!(shown.contains(line), "`{line}`: {shown}");
    }
    let found = with_store(&store, ["inspect", "-o", "json", &name]).json();
    assert_eq!(found["details"]["layers"][2]["path"], "conf/weights.bin", "{found}");

    with_store(&store, ["mount", &name, text(&target)]).ok();
    let mode = |path: &str| {
        let metadata = fs::symlink_metadata(target.join(path)).unwrap();
        (metadata.mode() & 0o7777, metadata.uid(), metadata.gid(), metadata.mtime())
    };
    for (path, expected) in [("conf", 0o755), ("bin", 0o755), ("bin/run", 0o755), ("conf/config.json", 0o644)] {
        assert_eq!((mode(path).0, mode(path).1, mode(path).2), (expected, 0, 0), "{path}");
    }
    assert_eq!((mode("bin/run").3, mode("same").3), (0, 0));
    assert_eq!(fs::read(target.join("start")).unwrap(), b"#!/bin/sh");
    for path in ["conf/weights.bin", "same"] {
        assert!(fs::read(target.join(path)).unwrap() == vec![7; 3 << 20], "{path}");
    }
    assert_eq!(fs::read_dir(target.join("conf")).unwrap().count(), 2);
    assert!(fs::write(target.join("new"), "").is_err(), "it is read-only");
    with_store(&store, ["unmount", text(&target)]).ok();
    with_store(&store, ["verify"]).ok();

    with_store(&store, ["pull", "-q", &empty]).ok();
    with_store(&store, ["mount", &empty, text(&target)]).ok();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    with_store(&store, ["unmount", text(&target)]).ok();
    with_store(&store, ["rm", &name, &empty]).ok();
    assert_eq!(fs::read_dir(store.join("layers")).unwrap().count(), 0);
}

#[test]
fn a_daemon_pulls_an_artifact_and_refuses_one_whose_file_would_leave_its_directory() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let name = registry.put("model:v1", &artifact(&[("weights", b"w")]));
    let hostile = registry.put("hostile:v1", &artifact(&[("../../../etc/cron.d/x", b"* * * * *")]));
    let daemon = Daemon::start(folder.path(), ["--store", text(&folder.path().join("store"))]);
    daemon.run(["pull", "-q", &name]).ok();
    daemon.run(["pull", "-q", &hostile]).refused(&["the artifact's file name `../../../etc/cron.d/x`", "`..`"]);
    assert!(!registry.requests().iter().any(|request| request.contains("/hostile/blobs/")));
    assert_eq!(daemon.run(["ls", "-q"]).ok().lines().count(), 1);
}

/// A daemon over images of its own, or beside a containerd.
struct Node {
    what: String,
    daemon: Daemon,
    http: Port,
    containerd: Option<Containerd>,
    folder: TempDir,
}

impl Node {
    /// The daemon collects nothing by itself, and a collection takes what was pulled just now.
    fn start(what: String, folder: TempDir, containerd: Option<Containerd>, settings: &str) -> Self {
        let (config, http) = (folder.path().join("config.yaml"), Port::choose());
        let settings = format!("imageMinimumGCAge: 1ms\ngc: {{enabled: false, leaseFor: 0s}}\n{settings}");
        fs::write(&config, settings).unwrap();
        let daemon = Daemon::start(folder.path(), ["--config", text(&config), "--http", &http.address()]);
        Self { what, daemon, http, containerd, folder }
    }

    /// One over the embedded store, and one for each containerd whose pods mount images.
    fn all() -> Vec<Self> {
        let folder = scratch();
        let store = format!("store: {{directory: {}}}\n", folder.path().join("store").display());
        let embedded = Self::start("the embedded store".to_owned(), folder, None, &store);
        let beside = |release: ContainerdRelease| {
            let folder = scratch();
            let containerd = ContainerdSetup::new(&release, "unused:v1").start(folder.path());
            let settings = format!(
                "runtimeImport: require\nimageService: {{cri: {{endpoint: '{}'}}}}\nstore: {{directory: {}}}\n",
                containerd.endpoint(),
                folder.path().join("state").display()
            );
            Self::start(release.to_string(), folder, Some(containerd), &settings)
        };
        let releases = ContainerdRelease::all().into_iter().filter(ContainerdRelease::has_image_volumes);
        std::iter::once(embedded).chain(releases.map(beside)).collect()
    }
}

#[test]
fn an_artifact_is_shown_by_its_type_manifest_and_files_wherever_images_are_shown() {
    let registry = FakeRegistry::start();
    let image = artifact(&[("a", &[1; 5000]), ("b", b"2")]);
    let name = registry.put("model:v1", &image);
    let plain = registry.put("app:v1", &Image::marked("app", 100));
    let shown = json!({"type": KIND, "manifest": image.manifest.digest, "files": 2});
    let summary = format!("{KIND}, 2 files");
    let line = |of: &str, table: &str| table.lines().find(|line| line.contains(of)).unwrap_or_default().to_owned();
    let of_both = |images: &Value| -> Vec<Value> {
        images.as_array().unwrap().iter().map(|row| row["artifact"].clone()).collect()
    };
    for Node { what, daemon, http, containerd, .. } in &Node::all() {
        for name in [&name, &plain] {
            daemon.run(["pull", "-q", name]).ok();
        }
        let table = daemon.run(["ls"]).ok();
        assert!(line("NAME", &table).contains("ARTIFACT"), "{what}: {table}");
        assert!(line("model:v1", &table).contains(KIND), "{what}: {table}");
        assert!(!line("app:v1", &table).contains(KIND), "{what}: {table}");
        let listed = of_both(&daemon.run(["ls", "-o", "json"]).json()["images"]);
        assert!(listed.len() == 2 && listed.contains(&Value::Null) && listed.contains(&shown), "{what}: {listed:?}");
        if let Some(containerd) = containerd {
            let alone = run(program().args(["--endpoint", &containerd.endpoint(), "ls", "-o", "json"])).json();
            assert!(of_both(&alone["images"]).contains(&shown), "{what}: without a daemon: {alone:#}");
        }
        let by_digest = format!("{}@{}", name.trim_end_matches(":v1"), image.manifest.digest);
        for name in [&name, &by_digest] {
            let inspected = daemon.run(["inspect", name]).ok();
            assert!(line("Artifact:", &inspected).contains(&summary), "{what}: {inspected}");
            assert!(line("Manifest:", &inspected).contains(&image.manifest.digest), "{what}: {inspected}");
        }
        let why = daemon.run(["why", &name]).ok();
        assert!(line("Artifact:", &why).contains(&summary), "{what}: {why}");

        let usage = daemon.run(["df", "-o", "json"]).json();
        let rows = usage["images"].as_array().unwrap();
        let row = rows.iter().find(|row| row["artifact"] == shown).unwrap_or_else(|| panic!("{what}: {usage:#}"));
        let takes = row["unique"].as_u64().unwrap() + row["shared"].as_u64().unwrap();
        assert_eq!(
            (&usage["artifactsCount"], &usage["artifactsSize"]),
            (&json!(1), &json!(takes)),
            "{what}: {usage:#}"
        );
        let table = daemon.run(["df", "-v"]).ok();
        assert!(line("Artifacts:", &table).contains("1 of the images ("), "{what}: {table}");
        assert!(line("model:v1", &table).contains(KIND), "{what}: {table}");
        let plan = ["gc", "--dry-run", "--all-unused", "--now"];
        let planned = daemon.run(plan).ok();
        assert!(line("model:v1", &planned).contains(KIND), "{what}: {planned}");
        let planned = daemon.run(plan.into_iter().chain(["-o", "json"])).json();
        assert!(of_both(&planned["images"]).contains(&shown), "{what}: {planned:#}");

        let page: Value = serde_json::from_str(&get(&http.address(), "/api/v1/images").body).unwrap();
        assert!(of_both(&page["images"]).contains(&shown), "{what}: {page:#}");
        let metrics = get(&http.address(), "/metrics").body;
        let bytes = format!("imagelet_images_artifacts_bytes {}\n", row["size"]);
        for line in ["imagelet_images 2\n", "imagelet_images_artifacts 1\n", &bytes] {
            assert!(metrics.contains(line), "{what}: {line}: {metrics}");
        }
        daemon.run(["rm", &name]).ok();
        assert!(!daemon.run(["ls"]).ok().contains("ARTIFACT"), "{what}: a table of images alone has no such column");
    }
}

#[test]
fn pins_keep_an_artifact_and_of_a_pods_volumes_the_one_that_fails_is_named() {
    let registry = FakeRegistry::start();
    let name = registry.put("model:v1", &artifact(&[("weights", b"w")]));
    let absent = registry.name("absent:v1");
    let volume = |volume: &str, image: &str| format!("{{name: {volume}, image: {{reference: '{image}'}}}}");
    let volumes = [volume("good", &name), volume("bad", &absent)].join(", ");
    let spec =
        format!("{{containers: [{{name: app, image: '{name}', imagePullPolicy: Never}}], volumes: [{volumes}]}}");
    let set = format!("kind: StatefulSet\nmetadata: {{name: s}}\nspec: {{template: {{spec: {spec}}}}}\n");
    for Node { what, daemon, folder, .. } in &Node::all() {
        let pod = folder.path().join("pod.yaml");
        fs::write(&pod, &set).unwrap();
        let ensured = daemon.run(["ensure", "-f", text(&pod)]);
        assert_eq!(ensured.code, 1, "{what}: {ensured:?}");
        let row = |field: &str| ensured.stdout.lines().find(|line| line.contains(field)).unwrap_or_default().to_owned();
        assert!(row("volumes{good}").ends_with("pulled"), "{what}: {ensured:?}");
        assert!(row("volumes{bad}").ends_with("ErrImagePull"), "{what}: {ensured:?}");
        assert!(ensured.stderr.contains(&absent), "{what}: {ensured:?}");

        let code = || {
            let plan = daemon.run(["gc", "--dry-run", "--all-unused", "--now", "-o", "json"]).json();
            plan["images"][0]["code"].clone()
        };
        daemon.run(["pin", &name]).ok();
        assert_eq!(code(), json!("pinned"), "{what}");
        daemon.run(["unpin", &name]).ok();
        assert_ne!(code(), json!("pinned"), "{what}");
        daemon.run(["gc", "--all-unused", "--now"]).ok();
        assert_eq!(daemon.run(["ls", "-q", "--all"]).ok(), "", "{what}");
    }
}
