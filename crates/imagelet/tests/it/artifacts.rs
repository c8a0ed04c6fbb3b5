//! OCI artifacts as directories of files: pulled for a pod's image volume, mounted, kept in use and removed.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use serde_json::{Value, json};

use crate::{
    fake_registry::FakeRegistry,
    images::{Blob, Compression, Image, Layer, OCI_MANIFEST},
    program::{Daemon, with_store},
    testbed::{require_root, scratch},
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
fn artifact_of(blobs: Vec<(Blob, Value)>) -> Image {
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
