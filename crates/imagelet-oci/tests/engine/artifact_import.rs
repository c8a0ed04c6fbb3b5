//! Imports of artifacts into a sink: the image that is made of one, what proves a right to it, and what stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use imagelet_core::{
    error::{ErrorClass, RuntimeErrorKind, Stage},
    image::{Artifact, Digest, ImageId},
    ports::no_progress,
};
use imagelet_oci::{DocumentBytes, ImageDocument, ImportError, ImportStage, ImportedImage};
use serde_json::{Value, json};

use crate::{
    artifact::{expected, files, model, typed},
    blobs::noise,
    fixture::Layer,
    import::{Bed, import, whole},
    settled, tree,
};

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

fn read(document: &ImageDocument) -> Value {
    let DocumentBytes::Memory(bytes) = &document.bytes else { panic!("it is made in memory") };
    assert_eq!(Digest::of(bytes), document.digest);
    serde_json::from_slice(bytes).expect("JSON")
}

/// Path and content of each file, also through a link.
fn content(root: &Path) -> BTreeMap<String, Vec<u8>> {
    tree(root).into_keys().map(|path| (path.clone(), std::fs::read(root.join(path)).expect("a file"))).collect()
}

impl Bed {
    /// The image and the tree of its only layer.
    fn artifact(&self, id: &ImageId) -> (std::sync::Arc<ImportedImage>, BTreeMap<String, Vec<u8>>) {
        let image = self.sink.image(id).expect("it is named");
        let [chain] = &image.chains()[..] else { panic!("{:?}", image.layers) };
        let content = content(&self.sink.tree(chain.as_str()).expect("the layer is there"));
        (image, content)
    }

    fn requested_blobs(&self) -> BTreeSet<String> {
        let config = Digest::of(b"{}").to_string();
        let paths = self.registry.take_paths().into_iter();
        paths.filter(|path| path.contains("/blobs/") && !path.ends_with(&config)).collect()
    }
}

fn refused(imported: Result<ImageId, ImportError>, what: &str) -> (ImportStage, RuntimeErrorKind, String) {
    let error = imported.expect_err(what);
    assert!(error.is_artifact, "{what}");
    (error.stage, error.cause.kind(), error.cause.chain())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_is_imported_as_one_layer_of_its_files_with_names_that_resolve() {
    let bed = Bed::new(|_| {}).await;
    let digest: Digest = bed.registry.artifact("model", "v1", &files()).parse().expect("a digest");
    let id = whole(bed.import("model:v1").await);
    let (image, found) = bed.artifact(&id);
    assert_eq!(found, expected());
    let [by_tag, by_digest] = ["model:v1".to_owned(), format!("model@{digest}")].map(|name| bed.registry.name(&name));
    assert_eq!(image.names, [by_digest, by_tag]);
    assert_eq!(image.config.digest.as_str(), id.as_str());

    let (config, manifest) = (read(&image.config), read(&image.manifest));
    let of_artifact = Artifact { kind: "application/vnd.example.model".into(), manifest: digest.clone(), files: 4 };
    assert_eq!(image.artifact, Some(of_artifact.clone()));
    assert_eq!(config["config"]["Labels"], json!(of_artifact.labels()));
    assert_eq!(config["rootfs"]["diff_ids"], json!([image.layers[0].diff_id]));
    assert_eq!((&config["os"], config["architecture"].is_string()), (&json!("linux"), true));
    let (bytes, size) = (files().iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), image.config.bytes.len());
    let described = json!({"mediaType": CONFIG, "digest": image.config.digest, "size": size});
    assert_eq!((&manifest["config"], &manifest["layers"][0]["size"]), (&described, &json!(bytes)));
    assert_eq!((&image.root.digest, image.index_entries.len()), (&image.manifest.digest, 0));

    let root = bed.sink.tree(image.chains()[0].as_str()).expect("the layer is there");
    for (path, mode) in [("tokens", 0o40755), ("tokens/merges.txt", 0o100_644), ("model.bin", 0o100_644)] {
        let metadata = std::fs::metadata(root.join(path)).expect(path);
        let found = (metadata.mode(), metadata.uid(), metadata.gid(), metadata.mtime());
        assert_eq!(found, (mode, 0, 0, 0), "{path}");
        assert!(metadata.is_dir() || metadata.nlink() == 1, "{path} has no other name");
    }
    assert_eq!(bed.sink.take_log(), ["begin", "take 0", "finish"]);
    assert_eq!(bed.left(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_give_an_artifact_the_same_id_and_another_artifact_another_one() {
    let (bed, other) = (Bed::new(|_| {}).await, Bed::new(|_| {}).await);
    let mut ids = BTreeSet::new();
    for bed in [&bed, &other] {
        bed.registry.artifact("model", "v1", &files());
        ids.insert(whole(bed.import("model:v1").await).as_str().to_owned());
    }
    assert_eq!(ids.len(), 1);
    for (tag, files) in [("renamed", [("b", b"1")]), ("changed", [("a", b"2")]), ("first", [("a", b"1")])] {
        bed.registry.artifact("model", tag, &files.map(|(name, bytes)| (name, &bytes[..])));
        ids.insert(whole(bed.import(&format!("model:{tag}")).await).as_str().to_owned());
    }
    assert_eq!((ids.len(), bed.sink.layers()), (4, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_in_an_artifact_are_unpacked_into_the_same_tree_and_no_name_is_there_twice() {
    let bed = Bed::new(|_| {}).await;
    let (blobs, files) = model();
    bed.registry.artifact_of("model", "v1", blobs);
    let id = whole(bed.import("model:v1").await);
    assert_eq!(bed.artifact(&id).1, files);
    let tar = |layer: Layer| typed("application/vnd.cncf.model.weight.v1.tar", &layer.plain());
    let both = vec![tar(Layer::new().file("a/b", b"1")), tar(Layer::new().file("a/b", b"2"))];
    bed.registry.artifact_of("model", "twice", both);
    let (stage, kind, message) = refused(bed.import("model:twice").await, "one name is in two archives");
    assert_eq!((stage, kind), (ImportStage::Fetch, RuntimeErrorKind::Unacceptable));
    assert!(message.contains("`a/b`") && message.contains("model:twice"), "{message}");
    assert_eq!(bed.sink.layers(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_module_is_not_imported_as_files_because_shims_read_its_blobs() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.artifact("module", "v1", &[("module.wasm", b"\0asm")]);
    let manifest = String::from_utf8(bed.registry.file("module/manifests/v1")).expect("JSON");
    let manifest = manifest.replace("application/vnd.oci.empty.v1+json", "application/vnd.wasm.config.v0+json");
    bed.registry.put("module/manifests/v1", "application/vnd.oci.image.manifest.v1+json", manifest.into(), None);
    let error = bed.import("module:v1").await.expect_err("the runtime pulls it");
    let fault = error.cause.fault();
    assert_eq!(
        (error.stage, fault.class, fault.stage),
        (ImportStage::Fetch, ErrorClass::Unacceptable, Stage::Manifest)
    );
    assert!(!error.is_artifact && error.cause.chain().contains("WebAssembly"), "{}", error.cause.chain());
    assert_eq!((bed.requested_blobs(), bed.sink.layers()), (BTreeSet::new(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_file_twice_is_fetched_once_and_no_file_at_all_is_an_empty_folder() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.artifact("model", "v1", &[("a", b"1"), ("d/b", b"1"), ("a", b"1")]);
    bed.registry.artifact("model", "none", &[]);
    let id = whole(bed.import("model:v1").await);
    let (image, found) = bed.artifact(&id);
    assert_eq!(found, ["a", "d/b"].map(|name| (name.to_owned(), b"1".to_vec())).into());
    assert_eq!(image.artifact.as_ref().map(|artifact| artifact.files), Some(2));
    let id = whole(bed.import("model:none").await);
    assert_eq!(bed.artifact(&id).1, BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_present_artifact_is_named_without_its_files_and_another_repository_has_to_send_them() {
    let bed = Bed::new(|_| {}).await;
    let digest = bed.registry.artifact("model", "v1", &files());
    bed.registry.artifact("model", "latest", &files());
    bed.registry.artifact("stolen", "v1", &files());
    let id = whole(bed.import("model:v1").await);
    bed.registry.take_paths();
    for name in ["model:v1", "model:latest", &format!("model@{digest}")] {
        assert_eq!(whole(bed.import(name).await), id, "{name}");
        assert_eq!(bed.requested_blobs(), BTreeSet::new(), "{name}");
    }
    // The other repository has the manifest, and one of the files is only claimed.
    let claimed = format!("stolen/blobs/{}", Digest::of(b"unnamed"));
    let file = bed.registry.file(&claimed);
    bed.registry.forget(&claimed);
    refused(bed.import("stolen:v1").await, "the file is not there");
    refused(bed.import("stolen:v1").await, "the first attempt proves nothing");
    bed.registry.put(&claimed, "layer", file, None);
    bed.registry.take_paths();
    assert_eq!(whole(bed.import("stolen:v1").await), id);
    assert!(!bed.requested_blobs().is_empty());
    assert_eq!((bed.sink.layers(), bed.left()), (1, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_without_image_volumes_gets_nothing_of_an_artifact_and_still_gets_images() {
    let bed = Bed::new(|_| {}).await;
    bed.sink.mount_no_artifacts();
    bed.registry.artifact("model", "v1", &files());
    bed.registry.image("app", "v1", &[Layer::new().file("a", b"a").gzip()]);
    let (stage, _, message) = refused(bed.import("model:v1").await, "no pod could mount it");
    assert_eq!(stage, ImportStage::Unusable);
    assert!(message.contains("model:v1") && message.contains("the sink mounts no artifacts"), "{message}");
    assert_eq!((bed.sink.take_log(), bed.requested_blobs()), (Vec::new(), BTreeSet::new()));
    whole(bed.import("app:v1").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_with_an_unsafe_name_is_refused_before_its_first_file() {
    let bed = Bed::new(|_| {}).await;
    for (tag, name) in [("climbs", "../x"), ("absolute", "/x"), ("whiteout", ".wh.x")] {
        bed.registry.artifact("model", tag, &[("good", b"1"), (name, b"2")]);
        let (stage, kind, message) = refused(bed.import(&format!("model:{tag}")).await, name);
        assert_eq!((stage, kind), (ImportStage::Fetch, RuntimeErrorKind::Unacceptable), "{name}");
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
    assert_eq!((bed.sink.take_log(), bed.requested_blobs()), (Vec::new(), BTreeSet::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_the_runtime_did_not_take_are_there_for_the_next_attempt_also_of_another_process() {
    let (bed, large) = (Bed::new(|_| {}).await, noise(21, 300_000));
    bed.registry.artifact("model", "v1", &[("d/large", &large), ("small", b"1")]);
    bed.sink.fail("take 0");
    let (stage, ..) = refused(bed.import("model:v1").await, "the sink fails");
    assert_eq!(stage, ImportStage::Handover);
    let bed = bed.restarted(|_| {}).await;
    bed.registry.take_paths();
    let id = whole(bed.import("model:v1").await);
    assert_eq!(bed.requested_blobs(), BTreeSet::new());
    let files = [("d/large".to_owned(), large), ("small".to_owned(), b"1".to_vec())];
    assert_eq!((bed.artifact(&id).1, bed.left()), (files.into(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_the_runtime_has_keep_no_space_once_it_writes_its_records() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.artifact("model", "v1", &files());
    bed.sink.fail("finish");
    let (stage, ..) = refused(bed.import("model:v1").await, "the runtime does not list it");
    assert_eq!((stage, bed.left()), (ImportStage::Recorded, Vec::new()));

    // Another process ends in between.
    bed.registry.artifact("model", "v2", &[("a", b"1"), ("d/b", b"2")]);
    bed.sink.stall(Some("finish"));
    let (importer, name) = (std::sync::Arc::clone(&bed.importer), bed.registry.name("model:v2"));
    bed.sink.take_log();
    let importing = tokio::spawn(async move { import(&importer, &name, no_progress()).await });
    bed.sink.called("finish").await;
    importing.abort();
    importing.await.expect_err("it is cancelled");
    bed.sink.stall(None);
    let bed = bed.restarted(|_| {}).await;
    // The trash is emptied in the background.
    assert_eq!(settled(&bed.folder.path().join("staging")).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_imports_of_one_artifact_at_once_fetch_each_file_once() {
    let (bed, large_bytes) = (Bed::new(|_| {}).await, noise(22, 600_000));
    bed.registry.artifact("model", "v1", &[("large", &large_bytes), ("small", b"1")]);
    bed.registry.artifact("model", "v2", &[("large", &large_bytes), ("more", b"2")]);
    bed.registry.trickle(1_000_000, 0);
    let (one, two, other) = tokio::join!(bed.import("model:v1"), bed.import("model:v1"), bed.import("model:v2"));
    let (one, other) = ([whole(one), whole(two)], whole(other));
    assert_eq!(one[0], one[1]);
    let requested = bed.registry.take_paths();
    let asked = requested.iter().filter(|path| path.ends_with(Digest::of(&large_bytes).as_str())).count();
    assert_eq!(asked, 1, "{requested:?}");
    let mut inodes = BTreeSet::new();
    for (id, name) in [(&one[0], "small"), (&other, "more")] {
        let (image, found) = bed.artifact(id);
        let large = bed.sink.tree(image.chains()[0].as_str()).expect("the layer is there").join("large");
        let metadata = std::fs::metadata(large).expect("the file");
        inodes.insert(metadata.ino());
        assert_eq!(metadata.nlink(), 1, "its removal frees its space");
        assert_eq!((found.get("large"), found.contains_key(name), found.len()), (Some(&large_bytes), true, 2));
    }
    assert_eq!(inodes.len(), 2);
    assert_eq!(bed.left(), Vec::<String>::new());
}
