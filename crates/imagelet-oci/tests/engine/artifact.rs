//! Artifacts: each blob is a file of the mounted directory, unchanged and named by its title, or an archive of files.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use imagelet_core::{
    credentials::Credential,
    error::RuntimeErrorKind,
    image::ImageSpec,
    ports::{
        ArchivePlace, ExportRequest, ImageService as _, ImportRequest, LocalStore as _, PullProgress, PullRequest,
        no_progress,
    },
};
use imagelet_oci::{Engine, EngineConfig, RegistryConfig, RegistryTimeouts};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    blobs::noise,
    fixture::{Layer, TestRegistry},
    open, open_as, pull, tree,
};

/// A gzip header, so that an inflater would take the file for compressed.
const PACKED: &[u8] = b"\x1f\x8b\x08 and no more";

pub(crate) fn files() -> Vec<(&'static str, &'static [u8])> {
    vec![("model.bin", PACKED), ("tokens/vocabulary.txt", b"a b c\n"), ("tokens/merges.txt", b""), ("", b"unnamed")]
}

/// Path and content of all files of all layers.
fn stored(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let paths = tree(&root.join("layers")).into_keys();
    let files = paths.filter_map(|path| {
        let (_, below) = path.split_once("/fs/")?;
        Some((below.to_owned(), std::fs::read(root.join("layers").join(&path)).expect("a file")))
    });
    files.collect()
}

pub(crate) fn expected() -> BTreeMap<String, Vec<u8>> {
    let unnamed = imagelet_core::image::Digest::of(b"unnamed").hex().to_owned();
    let name = |title: &str| if title.is_empty() { unnamed.clone() } else { title.to_owned() };
    files().into_iter().map(|(title, bytes)| (name(title), bytes.to_vec())).collect()
}

async fn findings(engine: &Engine) -> String {
    let report = engine.verify(None, Arc::new(|_, _| {})).await.expect("a check");
    let damaged = report.images.iter().filter(|image| {
        !image.documents.is_empty() || image.layers.iter().any(|(_, check)| !check.findings.is_empty())
    });
    damaged.map(|image| format!("{image:?}")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_is_pulled_as_files_and_identified_by_its_manifest() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let digest = registry.artifact("model", "v1", &files());
    let (engine, name) = (open(folder.path()).await, registry.name("model:v1"));
    let id = pull(&engine, &name).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(id.as_str(), digest);
    assert_eq!(stored(folder.path()), expected());

    let details = engine.details(&ImageSpec::new(&name)).await.expect("it answers").expect("it is present");
    let pulled = details.pulled.expect("the store records it");
    assert_eq!(pulled.artifact.as_ref().map(|artifact| artifact.kind.as_str()), Some("application/vnd.example.model"));
    assert_eq!((pulled.platform.as_str(), pulled.layers.len()), ("", 4));
    assert!(details.image.size.0 > 0, "its files count");
    assert_eq!(findings(&engine).await, "");

    // Another artifact with the same configuration is another image, and shares the files of the same name.
    let other = registry.artifact("model", "v2", &[("model.bin", PACKED), ("more", b"more")]);
    registry.take_layer_requests();
    assert_eq!(pull(&engine, &registry.name("model:v2")).await.expect("pulled").as_str(), other);
    assert_eq!(registry.take_layer_requests(), 1);
    assert_eq!(engine.list(None).await.expect("a list").len(), 2);

    // After a restart it is present, and its removal frees its files but the shared one.
    drop(engine);
    let engine = open(folder.path()).await;
    registry.take_layer_requests();
    assert_eq!(pull(&engine, &name).await.expect("present").as_str(), digest);
    assert_eq!(registry.take_layer_requests(), 0);
    engine.remove(&ImageSpec::new(&name)).await.expect("removed");
    assert_eq!(stored(folder.path()).into_keys().collect::<Vec<_>>(), ["model.bin", "more"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_names_a_file_of_another_repository_does_not_get_it() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    registry.artifact("private", "v1", &[("key", b"secret")]);
    registry.artifact("public", "v1", &[("key", b"secret")]);
    let path = format!("public/blobs/{}", imagelet_core::image::Digest::of(b"secret"));
    registry.forget(&path);
    let engine = open(folder.path()).await;
    pull(&engine, &registry.name("private:v1")).await.expect("pulled");
    let error = pull(&engine, &registry.name("public:v1")).await.expect_err("its registry has no such blob");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{}", error.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_and_wrong_sizes_of_a_file_are_refused_and_leave_nothing() {
    let registry = TestRegistry::start().await;
    for served in [&b"other!"[..], b"cut", b"longer than announced", b""] {
        let folder = tempfile::tempdir().expect("a folder");
        registry.artifact("model", "v1", &[("file", b"right!")]);
        let path = format!("model/blobs/{}", imagelet_core::image::Digest::of(b"right!"));
        registry.put(&path, "layer", served.to_vec(), None);
        let engine = open(folder.path()).await;
        pull(&engine, &registry.name("model:v1")).await.expect_err("the bytes are wrong");
        assert_eq!(stored(folder.path()), BTreeMap::new());
        assert!(engine.list(None).await.expect("a list").is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_of_an_artifact_is_found_and_repaired_also_without_its_record() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    registry.artifact("model", "v1", &files());
    let name = registry.name("model:v1");
    let engine = open(folder.path()).await;
    let id = pull(&engine, &name).await.expect("pulled");
    let hex = id.as_str().split_once(':').expect("a digest").1.to_owned();
    let anonymous = |_: &str| -> Vec<Credential> { Vec::new() };
    let file = tree(folder.path()).into_keys().find(|path| path.ends_with("fs/model.bin")).expect("it is stored");
    std::fs::write(folder.path().join(file), b"rotten").expect("written");
    assert!(findings(&engine).await.contains("model.bin"));
    engine.repair(&id, &anonymous, &no_progress()).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((stored(folder.path()), findings(&engine).await), (expected(), String::new()));

    drop(engine);
    std::fs::write(folder.path().join("images").join(hex).join("image.json"), b"rotten").expect("written");
    let engine = open(folder.path()).await;
    assert_eq!(engine.damaged(&name).as_ref(), Some(&id));
    engine.repair(&id, &anonymous, &no_progress()).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((stored(folder.path()), findings(&engine).await), (expected(), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_crosses_an_air_gap_without_its_registry_and_without_kept_blobs() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let digest = registry.artifact("model", "v1", &files());
    let name = registry.name("model:v1");
    let (source, target) = (open(&folder.path().join("source")).await, open(&folder.path().join("target")).await);
    pull(&source, &name).await.expect("pulled");
    drop(registry);
    let anonymous = |_: &str| -> Vec<Credential> { Vec::new() };
    for is_folder in [false, true] {
        let place = ArchivePlace { path: folder.path().join(format!("archive-{is_folder}")), is_folder };
        let request = ExportRequest { image: name.clone(), place: place.clone() };
        let exported = source.export(&request, &anonymous, &no_progress()).await;
        assert_eq!(exported.unwrap_or_else(|error| panic!("{}", error.chain())).digest.as_str(), digest);
        let request = ImportRequest { place, ..ImportRequest::default() };
        let imported = target.import(&request, &no_progress()).await.expect("an archive");
        let (id, present) = imported[0].outcome.as_ref().unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!((id.as_str(), *present), (digest.as_str(), is_folder));
        assert_eq!(stored(&folder.path().join("target")), expected());
    }
}

/// A blob with its descriptor.
type Described = (Value, Vec<u8>);

pub(crate) fn typed(media_type: &str, layer: &Layer) -> Described {
    (
        json!({"mediaType": media_type, "annotations": {"org.cncf.model.filepath": "/in/no/way/used"}}),
        layer.blob().to_vec(),
    )
}

/// A folder as `oras push` packs it.
fn folder(title: &str, layer: &Layer) -> Described {
    let annotations = json!({
        "org.opencontainers.image.title": title, "io.deis.oras.content.unpack": "true",
        "io.deis.oras.content.digest": layer.diff_id(),
    });
    let media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
    (json!({"mediaType": media_type, "annotations": annotations}), layer.blob().to_vec())
}

/// A model of archives, a folder, a raw file and a blob without a name, and its files.
pub(crate) fn model() -> (Vec<Described>, BTreeMap<String, Vec<u8>>) {
    let config = Layer::new().special("conf/", b'5').file("conf/config.json", b"{}").file("README.md", b"read");
    let docs = Layer::new().special("docs", b'5').file("docs/a/b.txt", b"text").link("docs/c", "a/b.txt");
    let raw = json!({
        "mediaType": "application/vnd.cncf.model.weight.v1.raw",
        "annotations": {"org.cncf.model.filepath": "conf/weights.bin"},
    });
    let blobs = vec![
        typed("application/vnd.cncf.model.weight.config.v1.tar", &config.plain()),
        typed("application/vnd.cnai.model.doc.v1.tar+gzip", &Layer::new().file("LICENSE", b"all").gzip()),
        typed("application/vnd.cncf.model.dataset.v1.tar+zstd", &Layer::new().file("conf/data/1", b"one").zstd()),
        typed("application/vnd.kitops.modelkit.code.v1.tar+gzip", &Layer::new().file("./run.py", b"run").gzip()),
        folder("docs", &docs.gzip()),
        (raw, b"weights".to_vec()),
        (json!({"mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip"}), b"chart".to_vec()),
    ];
    let unnamed = imagelet_core::image::Digest::of(b"chart").hex().to_owned();
    let files: [(&str, &[u8]); 9] = [
        ("conf/config.json", b"{}"),
        ("README.md", b"read"),
        ("LICENSE", b"all"),
        ("conf/data/1", b"one"),
        ("run.py", b"run"),
        ("docs/a/b.txt", b"text"),
        ("docs/c", b"text"),
        ("conf/weights.bin", b"weights"),
        (&unnamed, b"chart"),
    ];
    (blobs, files.map(|(path, bytes)| (path.to_owned(), bytes.to_vec())).into())
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_of_models_and_folders_of_oras_are_unpacked_beside_plain_files() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let (blobs, files) = model();
    let digest = registry.artifact_of("model", "v1", blobs);
    let (engine, name) = (open(folder.path()).await, registry.name("model:v1"));
    let id = pull(&engine, &name).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((id.as_str(), stored(folder.path())), (&*digest, files.clone()));
    assert_eq!(findings(&engine).await, "");

    let details = engine.details(&ImageSpec::new(&name)).await.expect("it answers").expect("it is present");
    let paths: Vec<_> = details.layers.iter().map(|layer| layer.path.as_deref().unwrap_or_default()).collect();
    let unnamed = imagelet_core::image::Digest::of(b"chart").hex().to_owned();
    assert_eq!(paths, ["./", "./", "./", "./", "docs/", "conf/weights.bin", &unnamed]);

    // The members have no owner, mode or time of their own.
    let member = tree(folder.path()).into_keys().find(|path| path.ends_with("fs/conf/config.json")).expect("a member");
    let metadata = std::fs::metadata(folder.path().join(&member)).expect("a member");
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o644, 0));

    // A damaged archive is fetched again, and its names are found in the other blobs again.
    let anonymous = |_: &str| -> Vec<Credential> { Vec::new() };
    std::fs::write(folder.path().join(member), b"rotten").expect("written");
    assert!(findings(&engine).await.contains("conf/config.json"));
    engine.repair(&id, &anonymous, &no_progress()).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((stored(folder.path()), findings(&engine).await), (files.clone(), String::new()));

    // An export has the blobs as the registry has them.
    let place = ArchivePlace { path: folder.path().join("archive"), is_folder: true };
    let request = ExportRequest { image: name.clone(), place: place.clone() };
    engine.export(&request, &anonymous, &no_progress()).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let target = open(&folder.path().join("target")).await;
    let request = ImportRequest { place, ..ImportRequest::default() };
    let imported = target.import(&request, &no_progress()).await.expect("an archive");
    imported[0].outcome.as_ref().unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(stored(&folder.path().join("target")), files);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_under_two_names_is_two_files_and_an_artifact_without_blobs_is_an_empty_folder() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let large = vec![7; 3 << 20];
    registry.artifact("model", "v1", &[("a", &large), ("d/b", &large), ("a", &large), ("", b""), ("", b"")]);
    registry.artifact("model", "v2", &[]);
    let engine = open(folder.path()).await;
    pull(&engine, &registry.name("model:v1")).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let empty = imagelet_core::image::Digest::of(b"").hex().to_owned();
    let files = [("a".to_owned(), large.clone()), ("d/b".to_owned(), large), (empty, Vec::new())];
    assert_eq!((stored(folder.path()), findings(&engine).await), (files.into(), String::new()));
    pull(&engine, &registry.name("model:v2")).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(findings(&engine).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_of_an_archive_of_an_artifact_is_that_of_a_layer() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let layer = Layer::new().file("a", &vec![7; 1_000_000]).plain();
    let size = layer.blob().len() as u64;
    registry.artifact_of("model", "v1", vec![typed("application/vnd.cncf.model.weight.v1.tar", &layer)]);
    let engine = open(folder.path()).await;
    let request = PullRequest { image: ImageSpec::new(registry.name("model:v1")), ..PullRequest::default() };
    let estimate = engine.estimate(&request).await.expect("it answers").expect("the store knows");
    assert_eq!(estimate.bytes_unpacked.0, size * 3 / 2 + (64 << 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_of_an_artifact_is_its_size_also_on_the_disk() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    registry.artifact("model", "v1", &[("large", &vec![7; 1_000_000]), ("small", b"1")]);
    let engine = open(folder.path()).await;
    let request = PullRequest { image: ImageSpec::new(registry.name("model:v1")), ..PullRequest::default() };
    let estimate = engine.estimate(&request).await.expect("it answers").expect("the store knows");
    assert_eq!((estimate.bytes_missing.0, estimate.layers_missing), (1_000_001, 2));
    // Each has its records beside it.
    assert_eq!(estimate.bytes_unpacked.0, 1_000_001 + 2 * (64 << 10));

    // A blob under another name is fetched, once for all its names.
    pull(&engine, &registry.name("model:v1")).await.expect("pulled");
    registry.artifact(
        "model",
        "v2",
        &[("renamed", &vec![7; 1_000_000]), ("again", &vec![7; 1_000_000]), ("small", b"1")],
    );
    let request = PullRequest { image: ImageSpec::new(registry.name("model:v2")), ..PullRequest::default() };
    let estimate = engine.estimate(&request).await.expect("it answers").expect("the store knows");
    assert_eq!((estimate.bytes_total.0, estimate.bytes_missing.0, estimate.layers_missing), (1_000_001, 1_000_000, 2));
    assert_eq!(estimate.bytes_unpacked.0, 2 * (1_000_000 + (64 << 10)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_is_written_once_and_continues_where_it_broke_off_also_in_another_process() {
    let (mib, bytes) = (1 << 20, noise(11, 12 << 20));
    for (keep_blobs, restarts) in [(false, false), (true, true)] {
        let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
        registry.artifact("a", "v1", &[("weights/big", &bytes)]);
        let blob = format!("a/blobs/{}", imagelet_core::image::Digest::of(&bytes));
        registry.put(&blob, "layer", bytes.clone(), Some(10 * mib));
        let settings = RegistryConfig {
            timeouts: RegistryTimeouts {
                progress: Duration::from_secs(1),
                retry_budget: Duration::from_secs(1),
                ..RegistryTimeouts::default()
            },
            ..RegistryConfig::default()
        };
        let config = EngineConfig { keep_blobs, registry: settings, ..EngineConfig::new(folder.path()) };
        let mut engine = open_as(config.clone()).await;
        pull(&engine, &registry.name("a:v1")).await.expect_err("it stalls");
        if restarts {
            drop(engine);
            engine = open_as(config).await;
        }
        let large = || tree(folder.path()).into_iter().filter(|(_, size)| *size > 1 << 20).collect::<Vec<_>>();
        let [(path, size)] = &large()[..] else { panic!("the file is there once: {:?}", large()) };
        assert!(path.starts_with("ingest/") && *size >= 9 << 20, "{path}: {size}");
        let inode = |path: &str| std::fs::metadata(folder.path().join(path)).expect("a file").ino();
        let before = inode(path);

        registry.put(&blob, "layer", bytes.clone(), None);
        registry.take_ranges();
        pull(&engine, &registry.name("a:v1")).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let range = registry.take_ranges().pop().flatten().expect("the rest is requested");
        assert_eq!(range, format!("bytes={size}-"));
        assert_eq!(stored(folder.path()), BTreeMap::from([("weights/big".to_owned(), bytes.clone())]));
        let [(path, _)] = &large()[..] else { panic!("the file is there once: {:?}", large()) };
        assert!(path.starts_with("layers/") && inode(path) == before, "{path} is a copy");
        assert_eq!(findings(&engine).await, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_blob_under_two_names_is_two_files_also_while_both_arrive() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let bytes = noise(12, 300_000);
    registry.artifact("a", "v1", &[("one", &bytes), ("two", &bytes)]);
    registry.trickle(1_000_000, 0);
    let engine = open(folder.path()).await;
    let seen: Arc<Mutex<PullProgress>> = Arc::default();
    let progress = Arc::clone(&seen);
    let request = PullRequest { image: ImageSpec::new(registry.name("a:v1")), ..PullRequest::default() };
    registry.take_layer_requests();
    let progress = Arc::new(move |event| progress.lock().expect("no panic").apply(event, Instant::now()));
    engine.pull(&request, progress).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((registry.take_layer_requests(), seen.lock().expect("no panic").traffic.received), (1, 300_000));
    let expected = ["one", "two"].map(|name| (name.to_owned(), bytes.clone()));
    assert_eq!(stored(folder.path()), BTreeMap::from(expected));
    let left: Vec<_> = tree(folder.path()).into_keys().filter(|path| path.starts_with("ingest/")).collect();
    assert_eq!((left, findings(&engine).await), (Vec::new(), String::new()));
}
