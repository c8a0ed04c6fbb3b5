//! A store that decays: `verify` finds it, says where, and `--repair` fetches no more than it must.

use std::fs;

use imagelet_core::image::Digest;

use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Layer, noise},
    program::{Daemon, with_store},
    testbed::scratch,
};

#[test]
fn damage_is_found_told_and_repaired_with_the_damaged_layer_alone() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = Image::oci(&[
        Layer::gzip().file("lib/large", noise("large", 400_000), 0o644),
        Layer::gzip().directory("etc", 0o755).file("etc/deep/conf", "one line\n", 0o644),
    ]);
    let name = registry.put("app:v1", &image);
    with_store(folder.path(), ["pull", &name]).ok();
    let whole = with_store(folder.path(), ["verify"]).ok();
    assert!(whole.contains("2 ok") && whole.lines().nth(1).is_some_and(|row| row.ends_with("ok")), "{whole}");

    let conf = fs::read_dir(folder.path().join("layers")).unwrap();
    let conf = conf.map(|layer| layer.unwrap().path().join("fs/etc/deep/conf")).find(|path| path.exists()).unwrap();
    let modified = fs::metadata(&conf).unwrap().modified().unwrap();
    fs::write(&conf, "one lime\n").unwrap();
    fs::File::options().write(true).open(&conf).unwrap().set_modified(modified).unwrap();

    let found = with_store(folder.path(), ["verify", "-o", "json"]).refused(&["verify --repair"]);
    assert!(!found.contains("error:"), "damage is a result, not a failure: {found}");
    let told = with_store(folder.path(), ["inspect", "-q", &name]);
    told.refused(&[]);
    let before = registry.requests().len();
    let repaired = with_store(folder.path(), ["verify", "--repair", "-o", "json"]).json();
    assert_eq!(repaired["damaged"], false, "{repaired}");
    let row = &repaired["images"][0];
    assert_eq!(row["result"], "repaired", "{repaired}");
    assert_eq!(row["layers"][0]["result"], "ok", "{repaired}");
    let finding = &row["layers"][1]["findings"][0];
    assert_eq!((finding["path"].as_str(), finding["what"].as_str()), (Some("fs/etc/deep/conf"), Some("content")));
    let asked = registry.requests().split_off(before);
    let digest = |bytes: &[u8]| Digest::of(bytes).to_string();
    assert!(asked.iter().any(|request| request.contains(&digest(&image.layers[1].bytes))), "{asked:?}");
    assert!(!asked.iter().any(|request| request.contains(&digest(&image.layers[0].bytes))), "{asked:?}");

    assert_eq!(fs::read_to_string(&conf).unwrap(), "one line\n");
    with_store(folder.path(), ["inspect", "-q", &name]).ok();
    with_store(folder.path(), ["verify", &name]).ok();
}

#[test]
fn a_daemon_verifies_and_a_damaged_image_can_be_removed() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let name = registry.put("app:v1", &Image::oci(&[Layer::gzip().file("a", "a", 0o644)]));
    let store = folder.path().join("store");
    let store = store.to_str().unwrap();
    let daemon = Daemon::start(folder.path(), ["--store", store]);
    daemon.run(["pull", &name]).ok();
    daemon.run(["verify"]).ok();
    let layer = fs::read_dir(folder.path().join("store/layers")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(layer.join("fs/a")).unwrap();
    let told = daemon.run(["verify", &name]).refused(&["verify --repair"]);
    drop(told);
    assert!(daemon.run(["ls", "-q"]).ok().is_empty(), "it is not listed");
    daemon.run(["verify", "none:v1"]).refused(&["none:v1"]);
    daemon.run(["rm", &name]).ok();
    assert_eq!(daemon.run(["verify", "-o", "json"]).json()["images"], serde_json::json!([]));
    assert!(!layer.exists(), "its layers went with it");
}
