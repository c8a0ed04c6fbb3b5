//! Compressed blobs: kept where that is wanted, gone with their images, taken up where a pull broke off.

use std::{path::Path, sync::Arc, time::Duration};

use imagelet_core::{
    image::{Digest, ImageSpec},
    ports::{ImageService as _, LocalStore as _, PullRemains},
};
use imagelet_oci::{Engine, EngineConfig, RegistryConfig, RegistryTimeouts};

use crate::{
    content,
    fixture::{Layer, TestRegistry},
    open_as, pull, settled, tree,
};

const MIB: usize = 1 << 20;

async fn open(root: &Path, keep_blobs: bool) -> Arc<Engine> {
    let registry = RegistryConfig {
        timeouts: RegistryTimeouts {
            progress: Duration::from_secs(1),
            retry_budget: Duration::from_secs(2),
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    let config = EngineConfig { keep_blobs, registry, ..EngineConfig::new(root) };
    open_as(config).await
}

/// Bytes that do not compress, and are others for each seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(next).flat_map(u64::to_le_bytes).take(length).collect()
}

/// Files below `blobs/` and `ingest/`, with their sizes.
fn kept(root: &Path) -> Vec<(String, u64)> {
    tree(root).into_iter().filter(|(path, _)| path.starts_with("blobs/") || path.starts_with("ingest/")).collect()
}

fn partial(root: &Path) -> Option<(std::path::PathBuf, u64)> {
    kept(root).into_iter().find(|(path, _)| path.ends_with(".partial")).map(|(path, size)| (root.join(path), size))
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_blobs_are_what_the_registry_sent_and_go_with_their_last_image() {
    let registry = TestRegistry::start().await;
    let (shared, own) =
        (Layer::new().file("s", &noise(1, 300_000)).gzip(), Layer::new().file("o", &noise(2, 50_000)).zstd());
    registry.image("a", "v1", &[shared.clone(), own.clone()]);
    registry.image("b", "v1", std::slice::from_ref(&shared));
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let engine = open(root, true).await;
    pull(&engine, &registry.name("a:v1")).await.expect("a");
    pull(&engine, &registry.name("b:v1")).await.expect("b");
    let path = |layer: &Layer| format!("blobs/sha256/{}", Digest::of(layer.blob()).hex());
    for layer in [&shared, &own] {
        assert_eq!(std::fs::read(root.join(path(layer))).expect("it is kept"), layer.blob());
    }
    assert_eq!(kept(root).len(), 2);

    let graph = engine.layers().await.expect("a graph").expect("of an engine");
    let (shared_size, own_size) = (shared.blob().len() as u64, own.blob().len() as u64);
    let listed = engine.list(None).await.expect("a list");
    let shares = graph.shares();
    for (id, share) in &shares {
        assert!(share.shared.0 >= 300_000 + shared_size, "layer and blob are shared: {share:?}");
        let same = listed.iter().find(|listed| listed.id == **id).expect("it is listed");
        assert_eq!(same.size, share.unique + share.shared);
    }
    assert!(used(&engine).await >= 350_000 + shared_size + own_size, "{graph:?}");
    let unique = shares.values().map(|share| share.unique.0).max().expect("two");
    // The layer's two folders, its list and its record take a block each, as do the image's folder and its documents.
    assert!((50_000 + own_size..100_000 + own_size).contains(&unique), "{graph:?}");

    drop(engine);
    let engine = open(root, true).await;
    assert_eq!(engine.layers().await.expect("a graph"), Some(graph), "a start forgets nothing");
    engine.remove(&ImageSpec::new(registry.name("a:v1"))).await.expect("removed");
    assert_eq!(kept(root).into_iter().map(|(path, _)| path).collect::<Vec<_>>(), [path(&shared)]);
    engine.remove(&ImageSpec::new(registry.name("b:v1"))).await.expect("removed");
    assert_eq!(content(root), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_layer_is_unpacked_from_its_kept_blob_and_one_that_is_wrong_is_fetched_again() {
    let registry = TestRegistry::start().await;
    let layer = Layer::new().file("s", &noise(3, 300_000)).gzip();
    registry.image("a", "v1", std::slice::from_ref(&layer));
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    pull(&*open(root, true).await, &registry.name("a:v1")).await.expect("a");
    let blob = root.join(&kept(root)[0].0);
    for (damage, requests) in [(false, 0), (true, 1)] {
        std::fs::remove_dir_all(root.join("layers").join(layer.diff_id().hex())).expect("it was there");
        if damage {
            let mut bytes = layer.blob().to_vec();
            bytes[1000] ^= 1;
            std::fs::write(&blob, bytes).expect("written");
        }
        registry.take_layer_requests();
        let engine = open(root, true).await;
        pull(&engine, &registry.name("a:v1")).await.expect("a again");
        assert_eq!(registry.take_layer_requests(), requests, "{damage}");
        assert_eq!(std::fs::read(&blob).expect("it is kept"), layer.blob());
        assert_eq!(kept(root).len(), 1);
    }
    // What is whole of a damaged image stays for its repair, and goes with its names.
    std::fs::remove_dir_all(root.join("layers").join(layer.diff_id().hex())).expect("it was there");
    let engine = open(root, true).await;
    assert_eq!(kept(root).len(), 1);
    engine.sweep(PullRemains::Keep).await.expect("a sweep");
    assert_eq!(kept(root).len(), 1);
    engine.remove(&ImageSpec::new(registry.name("a:v1"))).await.expect("removed");
    assert_eq!(content(root), Vec::<String>::new());
}

/// Pulls `a:v1`, whose layer stalls, and gives up when enough came, by dropping the pull or by waiting for its end.
async fn break_off(engine: &Arc<Engine>, registry: &TestRegistry, root: &Path, waits: bool) {
    let name = registry.name("a:v1");
    let pulling = {
        let engine = Arc::clone(engine);
        tokio::spawn(async move { pull(&engine, &name).await })
    };
    if waits {
        let error = pulling.await.expect("no panic").expect_err("it never comes to its end");
        assert_eq!(error.kind(), imagelet_core::error::RuntimeErrorKind::TimedOut, "{}", error.chain());
        return;
    }
    for _ in 0..500 {
        if tree(root).iter().any(|(path, size)| path.ends_with("/big") && *size > 9 << 20) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pulling.abort();
    let _ = pulling.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_broke_off_goes_on_where_it_broke() {
    for waits in [false, true] {
        let registry = TestRegistry::start().await;
        let layer = Layer::new().file("big", &noise(4, 12 * MIB)).plain();
        registry.image("a", "v1", &[layer.clone().stalling_at(10 * MIB)]);
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let engine = open(root, true).await;
        break_off(&engine, &registry, root, waits).await;
        // What is left is left by a process that ends, too.
        let engine = if waits {
            drop(engine);
            open(root, true).await
        } else {
            engine
        };
        registry.image("a", "v1", std::slice::from_ref(&layer));
        registry.take_ranges();
        pull(&engine, &registry.name("a:v1")).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let ranges = registry.take_ranges();
        let offset =
            ranges[0].as_deref().and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let offset: usize = offset.unwrap_or_else(|| panic!("it began anew: {ranges:?}"));
        assert!((9 * MIB..=10 * MIB).contains(&offset) && ranges.len() == 1, "{ranges:?}");
        assert_eq!(
            kept(root),
            [(format!("blobs/sha256/{}", Digest::of(layer.blob()).hex()), layer.blob().len() as u64)]
        );
        assert_eq!(std::fs::read(root.join(&kept(root)[0].0)).expect("it is kept"), layer.blob());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_broke_off_is_never_believed() {
    let registry = TestRegistry::start().await;
    let layer = Layer::new().file("big", &noise(5, 12 * MIB)).plain();
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let engine = open(root, true).await;
    for damage in ["flipped", "longer", "another"] {
        registry.image("a", "v1", &[layer.clone().stalling_at(10 * MIB)]);
        break_off(&engine, &registry, root, true).await;
        let (path, size) = partial(root).expect("it broke off");
        assert_eq!(used(&engine).await, size, "it is counted");
        let mut bytes = std::fs::read(&path).expect("readable");
        match damage {
            "flipped" => bytes[9 * MIB] ^= 1,
            "longer" => bytes.resize(13 * MIB, 7),
            _ => bytes = noise(6, 9 * MIB),
        }
        std::fs::write(&path, bytes).expect("written");
        registry.image("a", "v1", std::slice::from_ref(&layer));
        pull(&engine, &registry.name("a:v1")).await.unwrap_or_else(|error| panic!("{damage}: {}", error.chain()));
        assert_eq!(std::fs::read(root.join(&kept(root)[0].0)).expect("it is kept"), layer.blob(), "{damage}");
        engine.remove(&ImageSpec::new(registry.name("a:v1"))).await.expect("removed");
        assert_eq!(content(root), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_broke_off_goes_when_nobody_comes_back_for_it() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("big", &noise(7, 12 * MIB)).plain().stalling_at(10 * MIB)]);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let mut engine = open(root, true).await;
    for way in ["a sweep", "a start", "on request", "too little"] {
        break_off(&engine, &registry, root, true).await;
        engine.sweep(PullRemains::Keep).await.expect("a sweep");
        let (path, size) = partial(root).expect("a young one stays");
        let age = |hours: u64| {
            let file = std::fs::File::options().write(true).open(&path).expect("it is there");
            let time = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
            file.set_modified(time).expect("it is ours");
        };
        match way {
            "a sweep" => {
                age(23);
                engine.sweep(PullRemains::Keep).await.expect("a sweep");
                assert!(path.exists());
                age(25);
                engine.sweep(PullRemains::Keep).await.expect("a sweep");
            }
            "a start" => {
                age(25);
                drop(engine);
                engine = open(root, false).await;
                drop(engine);
                engine = open(root, true).await;
            }
            "on request" => {
                assert_eq!(used(&engine).await, size);
                engine.sweep(PullRemains::Remove).await.expect("a sweep");
                assert_eq!(used(&engine).await, 0);
            }
            _ => {
                drop(engine);
                std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 20)).expect("cut");
                std::fs::write(root.join("ingest/stranger"), b"?").expect("written");
                std::fs::create_dir_all(root.join("blobs/sha256/stranger")).expect("made");
                engine = open(root, true).await;
            }
        }
        assert_eq!(settled(root).await, Vec::<String>::new(), "{way}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_kept_blobs_a_pull_that_breaks_off_leaves_nothing() {
    let registry = TestRegistry::start().await;
    let layer = Layer::new().file("big", &noise(8, 12 * MIB)).plain();
    registry.image("a", "v1", &[layer.clone().stalling_at(10 * MIB)]);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let engine = open(root, false).await;
    for waits in [false, true] {
        break_off(&engine, &registry, root, waits).await;
        assert_eq!(settled(root).await, Vec::<String>::new());
    }
    registry.image("a", "v1", std::slice::from_ref(&layer));
    pull(&engine, &registry.name("a:v1")).await.expect("whole");
    assert_eq!(kept(root), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_layer_leaves_no_part_behind() {
    let registry = TestRegistry::start().await;
    let layer = Layer::new().file("big", &noise(9, 12 * MIB)).plain().serving(|bytes| bytes[11 * MIB] ^= 1);
    registry.image("a", "v1", &[layer]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path(), true).await;
    pull(&engine, &registry.name("a:v1")).await.expect_err("it is wrong");
    assert_eq!(registry.take_layer_requests(), 2, "a second try");
    assert_eq!(settled(folder.path()).await, Vec::<String>::new());
}

async fn used(engine: &Engine) -> u64 {
    engine.filesystem().await.expect("it is measured").images[0].used.0
}
