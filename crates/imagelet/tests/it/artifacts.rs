//! OCI artifacts as directories of files: pulled for a pod's image volume, mounted, kept in use and removed.

use std::{fs, path::Path};

use serde_json::json;

use crate::{
    fake_registry::FakeRegistry,
    images::{Blob, Image, OCI_MANIFEST},
    program::{Daemon, with_store},
    testbed::{require_root, scratch},
};

const KIND: &str = "application/vnd.example.model";

/// An artifact as `oras push` writes it, with these files by title.
fn artifact(files: &[(&str, &[u8])]) -> Image {
    let layers: Vec<Blob> = files.iter().map(|(_, bytes)| Blob::new(bytes.to_vec(), "application/x-part")).collect();
    let described = layers.iter().zip(files).map(|(blob, (title, _))| {
        json!({
            "mediaType": blob.media_type, "digest": blob.digest, "size": blob.bytes.len(),
            "annotations": {"org.opencontainers.image.title": title},
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
