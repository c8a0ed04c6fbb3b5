//! Durability in the background: shown at once, kept through the end of the process, all or nothing after a power cut.

use std::{fs, path::Path, sync::Arc};

use imagelet_core::{
    image::ImageSpec,
    ports::{ImageService as _, LocalStore as _},
};
use imagelet_oci::{Durability, Engine, EngineConfig};

use crate::{
    content,
    fixture::{Layer, TestRegistry},
    open, open_as, pull,
};

async fn in_background(root: &Path) -> Arc<Engine> {
    let config = EngineConfig { durability: Durability::Background, ..EngineConfig::new(root) };
    open_as(config).await
}

async fn is_here(engine: &Engine, name: &str) -> bool {
    engine.status(&ImageSpec::new(name)).await.expect("a status").is_some()
}

/// What the disk may hold after a power cut: records and names of the last boot, without the content of the files.
fn cut_power(root: &Path) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot has an id");
    let age = |path: &Path| {
        let text = fs::read_to_string(path).expect("the file is there");
        fs::write(path, text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000")).expect("it can be written");
    };
    for layer in fs::read_dir(root.join("layers")).expect("there are layers") {
        let layer = layer.expect("a layer").path();
        if fs::read_to_string(layer.join("layer.json")).expect("a record").contains(boot.trim()) {
            age(&layer.join("layer.json"));
            for file in fs::read_dir(layer.join("fs")).expect("a tree") {
                fs::File::create(file.expect("a file").path()).expect("it is emptied");
            }
        }
    }
    let names = root.join("names.unsettled.json");
    if names.exists() {
        age(&names);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_in_the_background_survives_the_process_and_settles() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("a", b"a").gzip(), Layer::new().file("b", b"b").gzip()]);
    let (folder, name) = (tempfile::tempdir().expect("a folder"), registry.name("a:v1"));
    let engine = in_background(folder.path()).await;
    let id = pull(&engine, &name).await.expect("a pull");
    let durable_names = || fs::read_to_string(folder.path().join("names.json")).expect("a new store has names");
    assert!(!durable_names().contains("/a:v1"), "nothing is durable yet");
    assert!(is_here(&engine, &name).await);
    drop(engine);

    // The end of the process, at any moment: whoever comes next finds it, also without the background mode.
    let engine = open(folder.path()).await;
    assert_eq!(engine.status(&ImageSpec::new(&name)).await.expect("a status").expect("it is here").id, id);
    engine.flush().await.expect("it settles");
    assert!(!folder.path().join("names.unsettled.json").exists());
    assert!(durable_names().contains("/a:v1"));
    drop(engine);
    cut_power(folder.path());
    let engine = open(folder.path()).await;
    assert!(is_here(&engine, &name).await, "settled is durable");
    registry.take_layer_requests();
    pull(&engine, &name).await.expect("a pull");
    assert_eq!(registry.take_layer_requests(), 0);
    engine.remove(&ImageSpec::new(&name)).await.expect("it goes");
    assert_eq!(content(folder.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_takes_an_unsettled_pull_whole_and_nothing_else() {
    let registry = TestRegistry::start().await;
    let base = Layer::new().file("base", b"base").gzip();
    registry.image("old", "v1", std::slice::from_ref(&base));
    registry.image("new", "v1", &[base.clone(), Layer::new().file("top", b"top").gzip()]);
    let (folder, old, new) = (tempfile::tempdir().expect("a folder"), registry.name("old:v1"), registry.name("new:v1"));
    pull(&*open(folder.path()).await, &old).await.expect("a durable pull");
    let engine = in_background(folder.path()).await;
    pull(&engine, &new).await.expect("a pull");
    drop(engine);

    cut_power(folder.path());
    let engine = in_background(folder.path()).await;
    assert!(is_here(&engine, &old).await, "what was durable stays");
    assert!(!is_here(&engine, &new).await, "a pull that was not durable is gone as a whole");
    registry.take_layer_requests();
    pull(&engine, &new).await.expect("a pull");
    assert_eq!(registry.take_layer_requests(), 1, "only what was lost is fetched again");
    engine.remove(&ImageSpec::new(&new)).await.expect("it goes");
    engine.remove(&ImageSpec::new(&old)).await.expect("it goes");
    assert_eq!(content(folder.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_moved_in_the_background_is_where_it_was_after_a_power_cut() {
    let registry = TestRegistry::start().await;
    registry.image("a", "v1", &[Layer::new().file("a", b"before").gzip()]);
    let (folder, name) = (tempfile::tempdir().expect("a folder"), registry.name("a:v1"));
    let before = pull(&*open(folder.path()).await, &name).await.expect("a durable pull");
    registry.image("a", "v1", &[Layer::new().file("a", b"after").gzip()]);
    let engine = in_background(folder.path()).await;
    let after = pull(&engine, &name).await.expect("a pull");
    assert_ne!(before, after);
    drop(engine);

    cut_power(folder.path());
    let engine = open(folder.path()).await;
    let found = engine.status(&ImageSpec::new(&name)).await.expect("a status").expect("it is here");
    assert_eq!(found.id, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_pull_over_unsettled_layers_makes_them_durable_first() {
    let registry = TestRegistry::start().await;
    let base = Layer::new().file("base", b"base").gzip();
    registry.image("one", "v1", std::slice::from_ref(&base));
    registry.image("two", "v1", &[base, Layer::new().file("top", b"top").gzip()]);
    let (folder, one, two) = (tempfile::tempdir().expect("a folder"), registry.name("one:v1"), registry.name("two:v1"));
    let engine = in_background(folder.path()).await;
    pull(&engine, &one).await.expect("a pull");
    drop(engine);
    let engine = open(folder.path()).await;
    pull(&engine, &two).await.expect("a durable pull");
    drop(engine);

    cut_power(folder.path());
    let engine = open(folder.path()).await;
    assert!(is_here(&engine, &two).await && is_here(&engine, &one).await);
}
