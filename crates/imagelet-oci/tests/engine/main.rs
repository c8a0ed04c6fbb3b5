//! The engine against a registry in this process: its promises, its refusals, and what it leaves on the disk.

mod access;
mod admission;
mod archive;
mod artifact;
mod artifact_import;
mod background;
mod blobs;
mod estimate;
mod fake_sink;
mod fetch;
mod fixture;
mod import;
mod import_ends;
mod listing;
mod places;
mod platforms;
mod progress;
mod resume;
mod slow_tenants;
mod trust;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use fixture::{Layer, TestRegistry};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ImageId, ImageSpec},
    ports::{
        ImageService as _, LayerState, LocalStore as _, MountOptions, Progress, PullEvent, PullRemains, PullRequest,
        no_progress,
    },
    testing::conformance,
};
use imagelet_oci::{Engine, EngineConfig};

async fn open(root: &Path) -> Arc<Engine> {
    open_as(EngineConfig::new(root)).await
}

async fn open_as(config: EngineConfig) -> Arc<Engine> {
    Engine::open(config).await.unwrap_or_else(|error| panic!("open: {}", error.chain()))
}

async fn pull(engine: &Engine, name: &str) -> Result<ImageId, RuntimeError> {
    engine.pull(&PullRequest { image: ImageSpec::new(name), ..PullRequest::default() }, no_progress()).await
}

/// Path and size of everything below a folder.
fn tree(root: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        // A folder can go between two looks: what a failed pull left is removed by its threads as they end.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let entry = entry.expect("the entry can be read");
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(root).expect("below it").display().to_string(), metadata.len());
            }
        }
    }
    found
}

/// What is left when nothing is: the lock, an empty table of names and the health of registries.
fn content(root: &Path) -> Vec<String> {
    let is_content = |path: &String| !["lock", "names.json", "registry-health.json"].contains(&path.as_str());
    tree(root).into_keys().filter(is_content).collect()
}

/// The content once the threads of a pull that was given up have ended, or after two seconds.
async fn settled(root: &Path) -> Vec<String> {
    for _ in 0..100 {
        if content(root).is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    content(root)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_keeps_every_promise() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("bin/a", b"a").gzip(), Layer::new().file("etc/a", b"x").zstd()]);
    registry.image("a", "v2", &[Layer::new().file("bin/a", b"a").gzip(), Layer::new().file("etc/a", b"x").zstd()]);
    registry.image("b", "v1", &[Layer::new().file("bin/b", &vec![7; 300_000]).plain()]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let images = conformance::PromisedImages {
        first: registry.name("a:v1"),
        first_again: registry.name("a:v2"),
        second: registry.name("b:v1"),
        absent: registry.name("none:v1"),
        reports_progress: true,
        untags: true,
        reports_layers: true,
        reports_configs: true,
    };
    conformance::run(&*engine, &images).await;
    engine.sweep(PullRemains::Keep).await.expect("a sweep");
    assert_eq!(content(folder.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_is_here_is_never_fetched_again_in_whatever_stacking() {
    let registry = TestRegistry::start().await;
    let (base, one, two) = (
        Layer::new().file("base", b"b").gzip(),
        Layer::new().file("one", b"1").gzip(),
        Layer::new().file("two", b"2").gzip(),
    );
    registry.image("first", "v1", &[base.clone(), one.clone(), two.clone()]);
    registry.image("second", "v1", &[base, two, one]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    pull(&engine, &registry.name("first:v1")).await.expect("the first");
    registry.take_layer_requests();
    pull(&engine, &registry.name("second:v1")).await.expect("the second");
    assert_eq!(registry.take_layer_requests(), 0, "all layers were here");

    let states = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink: Progress = {
        let states = Arc::clone(&states);
        Arc::new(move |event| {
            if let PullEvent::Layer { state, .. } = event {
                states.lock().expect("no other user").push(state);
            }
        })
    };
    let request = PullRequest { image: ImageSpec::new(registry.name("first:v1")), ..PullRequest::default() };
    engine.pull(&request, sink).await.expect("again");
    assert_eq!(*states.lock().expect("no other user"), [LayerState::Present; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pulls_of_one_layer_at_once_fetch_it_once() {
    let registry = TestRegistry::start().await;
    let shared = Layer::new().file("shared", &vec![3; 2_000_000]).gzip();
    for name in ["x", "y", "z"] {
        registry.image(name, "v1", &[shared.clone(), Layer::new().file(name, b"own").gzip()]);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let (x, y, z) = (registry.name("x:v1"), registry.name("y:v1"), registry.name("z:v1"));
    let (x, y, z) = tokio::join!(pull(&engine, &x), pull(&engine, &y), pull(&engine, &z));
    for result in [x, y, z] {
        result.unwrap_or_else(|error| panic!("{}", error.chain()));
    }
    assert_eq!(registry.take_layer_requests(), 4, "one shared layer and three own");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_has_one_clear_error_and_leaves_nothing() {
    let registry = TestRegistry::start().await;
    let good = Layer::new().file("good", b"g").gzip();
    let big = Layer::new().file("big", &vec![1; 500_000]).plain();
    registry.image("wrong-digest", "v1", &[good.clone(), big.clone().serving(|bytes| bytes[1000] ^= 1)]);
    registry.image("truncated", "v1", &[good.clone(), big.clone().serving(|bytes| bytes.truncate(200_000))]);
    registry.image("longer", "v1", &[good.clone(), big.clone().serving(|bytes| bytes.extend([0; 100]))]);
    registry.image("wrong-diff-id", "v1", &[good.clone(), big.clone().with_diff_id_of(b"other")]);
    registry.image("bomb", "v1", &[Layer::new().file("zeros", &vec![0; 8 << 20]).gzip()]);
    registry.image("unknown-type", "v1", &[good.clone(), big.clone().typed("application/x-unknown")]);
    registry.image("climbs", "v1", &[good.clone(), Layer::new().raw("../../climbed", b"x").gzip()]);
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = EngineConfig::new(folder.path());
    config.limits.expansion_free = 1 << 20;
    config.limits.expansion_max = 50;
    let engine = Engine::open(config).await.expect("an engine");
    let empty = content(folder.path());
    for (name, kind, words) in [
        ("wrong-digest", RuntimeErrorKind::Corrupt, "sha256:"),
        ("truncated", RuntimeErrorKind::Corrupt, "sha256:"),
        ("longer", RuntimeErrorKind::Corrupt, "sha256:"),
        ("wrong-diff-id", RuntimeErrorKind::Corrupt, "configuration says"),
        ("bomb", RuntimeErrorKind::Unacceptable, "limit"),
        ("unknown-type", RuntimeErrorKind::Unacceptable, "application/x-unknown"),
        ("climbs", RuntimeErrorKind::Corrupt, "climbed"),
        ("none", RuntimeErrorKind::NotFound, "none"),
    ] {
        let error = pull(&engine, &registry.name(&format!("{name}:v1"))).await.expect_err(name);
        assert_eq!(error.kind(), kind, "{name}: {}", error.chain());
        assert!(error.chain().contains(words), "{name}: {}", error.chain());
        assert!(engine.list(None).await.expect("a list").is_empty(), "{name} is listed");
        engine.sweep(PullRemains::Keep).await.expect("a sweep");
        assert_eq!(settled(folder.path()).await, empty, "{name} left something");
    }
    // A container's root is the layer's: these are fine, and stay inside.
    let inside = Layer::new().raw("/imagelet-absolute", b"x").link("out", "/tmp").raw("out/imagelet-through", b"x");
    registry.image("inside", "v1", &[inside.gzip()]);
    pull(&engine, &registry.name("inside:v1")).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let shown = content(folder.path());
    for (path, host) in
        [("fs/imagelet-absolute", "/imagelet-absolute"), ("tmp/imagelet-through", "/tmp/imagelet-through")]
    {
        assert!(shown.iter().any(|found| found.ends_with(path)), "{shown:?}");
        assert!(!Path::new(host).exists(), "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_pull_stops_and_leaves_nothing() {
    let registry = TestRegistry::start().await;
    registry.image("stalls", "v1", &[Layer::new().file("big", &vec![1; 4_000_000]).plain().stalling_at(1_500_000)]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    let name = registry.name("stalls:v1");
    let unpacks = async {
        while std::fs::read_dir(folder.path().join("tmp")).expect("a folder").next().is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        pulled = pull(&engine, &name) => panic!("it stalls: {pulled:?}"),
        () = unpacks => {}
    }
    assert_eq!(settled(folder.path()).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_reopens_with_what_was_committed_and_without_what_was_not() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("bin/a", b"a").gzip()]);
    registry.image("b", "v1", &[Layer::new().file("bin/b", b"b").gzip()]);
    let folder = tempfile::tempdir().expect("a folder");
    let (a, before) = {
        let engine = open(folder.path()).await;
        let a = pull(&engine, &registry.name("a:v1")).await.expect("a");
        pull(&engine, &registry.name("b:v1")).await.expect("b");
        (a, engine.list(None).await.expect("a list"))
    };
    std::fs::create_dir_all(folder.path().join("tmp/999-1/fs")).expect("a leftover");
    std::fs::create_dir_all(folder.path().join("layers").join("ab".repeat(32)).join("fs")).expect("half a layer");
    {
        let engine = open(folder.path()).await;
        assert_eq!(engine.list(None).await.expect("a list"), before);
        assert!(std::fs::read_dir(folder.path().join("tmp")).expect("tmp").next().is_none());
    }
    std::fs::write(folder.path().join("names.json"), b"{ torn").expect("a torn write");
    let engine = open(folder.path()).await;
    assert_eq!(engine.list(None).await.expect("a list"), before, "the names were rebuilt from the records");
    drop(engine);
    let layer = std::fs::read_dir(folder.path().join("layers")).expect("layers").next().expect("one").expect("one");
    std::fs::remove_file(layer.path().join("layer.json")).expect("a lost record");
    let engine = open(folder.path()).await;
    assert_eq!(engine.list(None).await.expect("a list").len(), 1, "an image that lacks a layer is dropped");
    pull(&engine, &registry.name("a:v1")).await.expect("a pull heals");
    pull(&engine, &registry.name("b:v1")).await.expect("a pull heals");
    assert!(engine.list(None).await.expect("a list").iter().any(|image| image.id == a));
    assert_eq!(engine.list(None).await.expect("a list").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_owner_is_told_who_the_first_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let _engine = open(folder.path()).await;
    let error = Engine::open(EngineConfig::new(folder.path())).await.expect_err("it is taken");
    assert_eq!(error.kind(), RuntimeErrorKind::InUse);
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
    assert!(error.hint().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_others_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let error = Engine::open(EngineConfig::new(folder.path())).await.expect_err("anybody may write");
    assert!(error.to_string().contains("777"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_shows_the_merged_tree_and_holds_its_image() {
    let registry = TestRegistry::start().await;
    registry.image(
        "merged",
        "v1",
        &[
            Layer::new().file("kept", b"1").file("gone", b"1").file("dir/old", b"1").file("over", b"1").gzip(),
            Layer::new()
                .raw(".wh.gone", b"")
                .raw("dir/.wh..wh..opq", b"")
                .file("dir/new", b"2")
                .file("over", b"2")
                .zstd(),
        ],
    );
    registry.image(
        "hidden",
        "v1",
        &[Layer::new().file("below", b"1").gzip(), Layer::new().raw(".wh..wh..opq", b"").file("top", b"2").gzip()],
    );
    let (folder, target) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let engine = open(folder.path()).await;
    let (merged, hidden) = (registry.name("merged:v1"), registry.name("hidden:v1"));
    pull(&engine, &merged).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    pull(&engine, &hidden).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let spec = ImageSpec::new(&merged);
    let mounted = engine.mount(&spec, target.path(), MountOptions::default()).await;
    if !rustix::process::geteuid().is_root() {
        assert!(mounted.expect_err("mounting needs root").hint().is_some());
        return;
    }
    mounted.unwrap_or_else(|error| panic!("{}", error.chain()));
    let shown: Vec<String> = tree(target.path()).into_keys().collect();
    assert_eq!(shown, ["dir/new", "kept", "over"]);
    assert_eq!(std::fs::read(target.path().join("over")).expect("a file"), b"2");
    assert!(std::fs::write(target.path().join("kept"), b"x").is_err(), "it is read-only");
    let uses = engine.container_service().containers().await.expect("uses");
    assert_eq!(uses.len(), 1);
    assert_eq!(engine.remove(&spec).await.expect_err("it is in use").kind(), RuntimeErrorKind::InUse);
    assert_eq!(engine.untag(&merged).await.expect_err("its last name").kind(), RuntimeErrorKind::InUse);
    assert_eq!(std::fs::read(target.path().join("over")).expect("a file"), b"2");
    assert_eq!(
        engine.mount(&spec, target.path(), MountOptions::default()).await.expect_err("taken").kind(),
        RuntimeErrorKind::InUse
    );
    engine.unmount(target.path(), false).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(tree(target.path()).is_empty());

    engine
        .mount(&ImageSpec::new(&hidden), target.path(), MountOptions { writable: true, ..MountOptions::default() })
        .await
        .unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(tree(target.path()).into_keys().collect::<Vec<_>>(), ["top"]);
    std::fs::write(target.path().join("top"), b"written").expect("it is writable");
    engine.unmount(target.path(), false).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    engine.mount(&ImageSpec::new(&hidden), target.path(), MountOptions::default()).await.expect("again");
    assert_eq!(std::fs::read(target.path().join("top")).expect("a file"), b"2", "what was written went with the mount");
    engine.unmount(target.path(), false).await.expect("unmount");
    for name in [&merged, &hidden] {
        engine.remove(&ImageSpec::new(name)).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    }
    assert_eq!(content(folder.path()), Vec::<String>::new());
}
