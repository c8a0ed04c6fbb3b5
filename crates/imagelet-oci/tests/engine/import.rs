//! Imports into a sink: what the sink gets, in which order, and what two imports share.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    error::RuntimeErrorKind,
    image::{Digest, ImageId, ImageSpec},
    ports::{ImageService as _, LayerState, Progress, PullEvent, PullRequest, no_progress},
};
use imagelet_oci::{DocumentBytes, EngineImporter, ImageDocument, ImportError, ImportStage};
use imagelet_oci::{Engine, EngineConfig};

use crate::{
    content,
    fake_sink::{FakeSink, chains},
    fixture::{Layer, TestRegistry},
    import_ends::until,
    open_as, tree,
};

/// An engine over a staging folder, and the sink of its imports.
pub(crate) struct Bed {
    pub(crate) registry: TestRegistry,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) sink: FakeSink,
    pub(crate) engine: Arc<Engine>,
    pub(crate) importer: Arc<EngineImporter>,
}

impl Bed {
    pub(crate) async fn new(change: impl FnOnce(&mut EngineConfig)) -> Self {
        assert!(rustix::process::geteuid().is_root(), "unpacking for a sink needs root: run the tests as root");
        let folder = tempfile::tempdir().expect("a folder");
        let (registry, sink) = (TestRegistry::start().await, FakeSink::new());
        let engine = engine(folder.path(), change).await;
        let importer = engine.importer(sink.port());
        Self { registry, folder, sink, engine, importer }
    }

    /// The next process over the same folder.
    pub(crate) async fn restarted(self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let Self { registry, folder, sink, engine, importer } = self;
        drop((engine, importer));
        let engine = self::engine(folder.path(), change).await;
        let importer = engine.importer(sink.port());
        Self { registry, folder, sink, engine, importer }
    }

    pub(crate) async fn import(&self, name: &str) -> Result<ImageId, ImportError> {
        import(&self.importer, &self.registry.name(name), no_progress()).await
    }

    /// Every file in the staging folder but the store's own.
    pub(crate) fn left(&self) -> Vec<String> {
        content(&self.folder.path().join("staging"))
    }
}

async fn engine(root: &Path, change: impl FnOnce(&mut EngineConfig)) -> Arc<Engine> {
    let mut config = EngineConfig::new(root.join("staging"));
    change(&mut config);
    open_as(config).await
}

pub(crate) async fn import(
    importer: &Arc<EngineImporter>,
    name: &str,
    progress: Progress,
) -> Result<ImageId, ImportError> {
    let request = PullRequest { image: ImageSpec::new(name), ..PullRequest::default() };
    let imported = tokio::time::timeout(Duration::from_mins(2), importer.import(&request, progress)).await;
    imported.expect("an import that does not hang")
}

pub(crate) fn whole(imported: Result<ImageId, ImportError>) -> ImageId {
    imported.unwrap_or_else(|error| panic!("{:?}: {}", error.stage, error.cause.chain()))
}

pub(crate) fn chains_of(layers: &[Layer]) -> Vec<String> {
    chains(layers.iter().map(Layer::diff_id))
}

/// What happened to layers, in order.
fn watched() -> (Progress, Arc<Mutex<Vec<String>>>) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&seen);
    let progress: Progress = Arc::new(move |event| {
        let said = match event {
            PullEvent::Resolved { layers, .. } => format!("resolved {}", layers.len()),
            PullEvent::Layer { state: LayerState::Present, .. } => "present".into(),
            PullEvent::Layer { state: LayerState::Done, .. } => "done".into(),
            PullEvent::Committing => "committing".into(),
            _ => return,
        };
        heard.lock().expect("no panic").push(said);
    });
    (progress, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_gets_the_documents_and_every_layer_and_nothing_is_left() {
    let bed = Bed::new(|_| {}).await;
    let layers = [
        Layer::new().file("etc/kept", b"1").file("etc/gone", b"1").gzip(),
        Layer::new().special("etc/", b'5').raw("etc/.wh.gone", b"").file("own", b"22").zstd(),
        Layer::new().file("deep/er/file", b"333").plain(),
    ];
    bed.registry.image("a", "v1", &layers);
    let (progress, seen) = watched();
    let id = whole(import(&bed.importer, &bed.registry.name("a:v1"), progress).await);
    let image = bed.sink.image(&id).expect("it is named");
    assert_eq!(Digest::of(&bytes_of(&image.config)).as_str(), id.as_str());
    assert_eq!(Digest::of(&bytes_of(&image.manifest)), image.manifest.digest);
    assert_eq!((&image.root.digest, image.index_entries.len()), (&image.manifest.digest, 0));
    assert_eq!(image.manifest.media_type, "application/vnd.oci.image.manifest.v1+json");
    let chains = chains_of(&layers);
    for (chain, (files, implicit)) in chains.iter().zip([
        (vec![("etc/gone", 1), ("etc/kept", 1)], vec!["", "etc"]),
        (vec![("etc/gone", 0), ("own", 2)], vec![""]),
        (vec![("deep/er/file", 3)], vec!["", "deep", "deep/er"]),
    ]) {
        let found = tree(&bed.sink.tree(chain).expect("the layer is there"));
        let found: Vec<_> = found.iter().map(|(path, size)| (path.as_str(), *size)).collect();
        assert_eq!((found, bed.sink.came(chain).0), (files, implicit.into_iter().map(String::from).collect()));
    }
    assert_eq!(bed.sink.take_log(), ["begin", "take 0", "take 1", "take 2", "finish"]);
    assert_eq!(bed.left(), Vec::<String>::new());
    let seen = std::mem::take(&mut *seen.lock().expect("no panic"));
    assert_eq!(seen, ["resolved 3", "done", "done", "done", "committing"]);
    assert_eq!(bed.engine.filesystem().await.unwrap().reserved, imagelet_core::ports::Freed::default());
}

fn bytes_of(document: &ImageDocument) -> Vec<u8> {
    match &document.bytes {
        DocumentBytes::Memory(bytes) => bytes.to_vec(),
        DocumentBytes::Staged(file) => std::fs::read((**file).as_ref()).expect("it stays for as long as the image"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_gets_a_large_document_as_a_file() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.image("a", "v1", &[Layer::new().file("a", b"a").gzip()]);
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&bed.registry.file("a/manifests/v1")).expect("a manifest");
    manifest["annotations"] = serde_json::json!({"comment": "x".repeat(1 << 20)});
    let media_type = manifest["mediaType"].as_str().expect("a type").to_owned();
    let manifest = serde_json::to_vec(&manifest).expect("JSON");
    bed.registry.put("a/manifests/large", &media_type, manifest.clone(), None);
    let id = whole(bed.import("a:large").await);
    let image = bed.sink.image(&id).expect("it is named");
    assert!(
        matches!(image.manifest.bytes, DocumentBytes::Staged(_))
            && matches!(image.config.bytes, DocumentBytes::Memory(_))
    );
    assert_eq!((image.manifest.bytes.len() as u64, bytes_of(&image.manifest)), (manifest.len() as u64, manifest));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_comes_with_all_that_it_lists_and_an_index_of_indexes_is_refused() {
    let bed = Bed::new(|_| {}).await;
    bed.registry.image("a", "plain", &[Layer::new().file("a", b"a").gzip()]);
    let manifest = bed.registry.file("a/manifests/plain");
    let index_type = "application/vnd.oci.image.index.v1+json";
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let entry = |bytes: &[u8], media_type: &str, architecture: &str| {
        serde_json::json!({ "mediaType": media_type, "digest": Digest::of(bytes).as_str(), "size": bytes.len(),
                            "platform": { "os": "linux", "architecture": architecture } })
    };
    let put = |tag: &str, entries: &[serde_json::Value]| {
        let bytes = serde_json::to_vec(
            &serde_json::json!({ "schemaVersion": 2, "mediaType": index_type, "manifests": entries }),
        );
        let bytes = bytes.expect("JSON");
        bed.registry.put(&format!("a/manifests/{tag}"), index_type, bytes.clone(), None);
        bed.registry.put(&format!("a/manifests/{}", Digest::of(&bytes)), index_type, bytes.clone(), None);
        bytes
    };
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let other = entry(b"another manifest", manifest_type, "s390x");
    let index = put("index", &[other, entry(&manifest, manifest_type, architecture)]);
    let id = whole(bed.import("a:index").await);
    let image = bed.sink.image(&id).expect("it is named");
    assert_eq!((&bytes_of(&image.root)[..], image.root.media_type.as_str()), (&index[..], index_type));
    assert_eq!(image.manifest.digest, Digest::of(&manifest));
    assert_eq!(image.index_entries, [Digest::of(b"another manifest"), Digest::of(&manifest)]);

    bed.sink.take_log();
    put("nested", &[entry(&index, index_type, architecture)]);
    let error = bed.import("a:nested").await.expect_err("its records are not made");
    assert_eq!((error.stage, error.cause.kind()), (ImportStage::Fetch, RuntimeErrorKind::Unsupported));
    assert_eq!(bed.sink.take_log(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_that_the_sink_has_are_not_fetched() {
    let bed = Bed::new(|_| {}).await;
    let (base, top) = (Layer::new().file("base", b"b").gzip(), Layer::new().file("top", b"t").gzip());
    bed.registry.image("base", "v1", std::slice::from_ref(&base));
    bed.registry.image("top", "v1", &[base.clone(), top.clone()]);
    whole(bed.import("base:v1").await);
    assert_eq!(bed.registry.take_layer_requests(), 1);
    let (progress, seen) = watched();
    whole(import(&bed.importer, &bed.registry.name("top:v1"), progress).await);
    assert_eq!(bed.registry.take_layer_requests(), 1);
    assert_eq!(*seen.lock().expect("no panic"), ["resolved 2", "present", "done", "committing"]);
    bed.sink.take_log();
    whole(bed.import("top:v1").await);
    assert_eq!((bed.registry.take_layer_requests(), bed.sink.take_log()), (0, vec!["begin".into(), "finish".into()]));
    // The same layer on another base is another one for the sink.
    bed.registry.image("turned", "v1", &[top, base]);
    whole(bed.import("turned:v1").await);
    assert_eq!((bed.registry.take_layer_requests(), bed.sink.layers()), (2, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_twice_in_an_image_is_taken_twice() {
    for keep_blobs in [false, true] {
        let bed = Bed::new(|config| config.keep_blobs = keep_blobs).await;
        let layer = Layer::new().file("file", &vec![7; 100_000]).gzip();
        let layers = [layer.clone(), Layer::new().file("between", b"b").gzip(), layer];
        bed.registry.image("a", "v1", &layers);
        whole(bed.import("a:v1").await);
        assert_eq!(bed.sink.layers(), 3);
        let chains = chains_of(&layers);
        let blobs: Vec<_> = chains.iter().map(|chain| bed.sink.came(chain).1).collect();
        for (blob, layer) in blobs.iter().zip(&layers) {
            assert!(blob.as_ref().is_none_or(|blob| blob == layer.blob()));
        }
        assert_eq!(blobs[1].is_some(), keep_blobs);
        assert_eq!(blobs[0].is_some() || blobs[2].is_some(), keep_blobs);
        assert_eq!(bed.left(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_imports_at_once_bring_what_they_share_once() {
    for layers_in_flight in [1, 4] {
        let bed = Bed::new(|config| config.limits.layers_in_flight = layers_in_flight).await;
        let base: Vec<Layer> = (0..8)
            .map(|number| Layer::new().file(&format!("base-{number}"), &vec![number; 300_000 >> number]).gzip())
            .collect();
        for name in ["x", "y", "z"] {
            let own = Layer::new().file(name, &vec![b'o'; 200_000]).gzip();
            bed.registry.image(name, "v1", &[&base[..], &[own]].concat());
        }
        let (x, y, z) = tokio::join!(bed.import("x:v1"), bed.import("y:v1"), bed.import("z:v1"));
        for imported in [x, y, z] {
            whole(imported);
        }
        assert_eq!((bed.registry.take_layer_requests(), bed.sink.layers()), (11, 11), "eight shared and three own");
        assert_eq!(bed.left(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_waits_for_another_one_does_not_keep_its_own_layers_from_coming() {
    let bed = Bed::new(|config| config.limits.layers_in_flight = 2).await;
    let slow = Layer::new().file("slow", &vec![1; 2_000_000]).plain();
    let base: Vec<Layer> =
        (0..4).map(|number| Layer::new().file(&format!("base-{number}"), &vec![number; 1_000_000]).plain()).collect();
    let own = Layer::new().file("own", b"own").gzip();
    // Of one repository: they wait for each other however long it takes.
    bed.registry.image("app", "own", &[std::slice::from_ref(&slow), &base[..], std::slice::from_ref(&own)].concat());
    bed.registry.image("app", "slow", &[&[slow.clone().stalling_at(1_000_000)], &base[..]].concat());
    // The first import has all five shared layers and stands still in the lowest.
    let first = {
        let (importer, name) = (Arc::clone(&bed.importer), bed.registry.name("app:slow"));
        tokio::spawn(async move { import(&importer, &name, no_progress()).await })
    };
    let (own_came, came) = (Arc::new(AtomicBool::new(false)), Digest::of(own.blob()));
    let progress: Progress = {
        let own_came = Arc::clone(&own_came);
        Arc::new(move |event| {
            if let PullEvent::Layer { digest, state: LayerState::Done } = event {
                own_came.fetch_or(digest == came, Ordering::SeqCst);
            }
        })
    };
    let second = {
        let (importer, name) = (Arc::clone(&bed.importer), bed.registry.name("app:own"));
        // It comes after the first.
        while bed.registry.take_layer_requests() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::spawn(async move { import(&importer, &name, progress).await })
    };
    until(|| own_came.load(Ordering::SeqCst)).await;
    assert!(!first.is_finished() && !second.is_finished(), "its own layer came, and the lowest did not");
    // The first is given up: the second fetches the layer itself.
    bed.registry.image("app", "own", &[&[slow], &base[..], &[Layer::new().file("own", b"own").gzip()]].concat());
    first.abort();
    assert!(first.await.expect_err("it was given up").is_cancelled());
    whole(second.await.expect("no panic"));
    assert_eq!(bed.sink.layers(), 6);
}
