//! Stores that earlier versions wrote: the present one opens them, shows what they have, verifies every byte, collects from
//! them and pulls into them.
//!
//! `tests/stores/VERSION.tar.gz` has a store with two images that share a layer, a pin, pull records, a ledger and a log of
//! decisions, and what its version printed of them. A file is added with each release that changes a format, and never
//! written again.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::with_store,
    soundness::{Sample, listing, small_layer},
    source::repository,
    testbed::{require_root, run, scratch},
};

/// The files beside a store with what its version printed.
const PRINTED: [&str; 3] = ["images.json", "pins.json", "why.json"];

const LIST: [&str; 4] = ["ls", "--all", "-o", "json"];

fn stores() -> PathBuf {
    repository().join("crates/imagelet/tests/stores")
}

/// The two images; the second has one layer more.
fn samples(registry: &FakeRegistry) -> [Sample; 2] {
    let base = || small_layer("base", 3_000);
    [
        Sample::put(registry, "team/app:v1", vec![base()]),
        Sample::put(registry, "team/tool:v1", vec![base(), small_layer("tool", 500)]),
    ]
}

/// What the commands print, of the lists and of the image that is not pinned.
fn print(store: &Path) -> [Value; 3] {
    let images = with_store(store, LIST).json();
    let app = named(&images, "team/app:v1");
    [images, with_store(store, ["pins", "-o", "json"]).json(), with_store(store, ["why", "-o", "json", &app]).json()]
}

/// The full name of an image.
fn named(images: &Value, part: &str) -> String {
    let rows = images["images"].as_array().expect("a list of images").iter();
    let mut names = rows.flat_map(|row| row["names"].as_array().expect("names")).filter_map(Value::as_str);
    names.find(|name| name.ends_with(part)).expect("an image of this name").to_owned()
}

/// The fields that every version shows in the same way.
fn facts(images: &Value) -> BTreeSet<String> {
    let rows = images["images"].as_array().expect("a list of images").iter();
    rows.map(|row| ["id", "names", "digests", "size", "pulledAt"].map(|field| row[field].to_string()).join(" "))
        .collect()
}

/// All moments in a history.
fn moments(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Array(entries) => entries.iter().flat_map(moments).collect(),
        Value::Object(fields) => {
            let own = fields.iter().filter(|(key, _)| *key == "at").map(|(_, at)| at.to_string());
            own.chain(fields.values().flat_map(moments)).collect()
        }
        _ => BTreeSet::new(),
    }
}

#[test]
fn a_store_of_an_earlier_version_is_shown_verified_collected_from_and_pulled_into() {
    require_root("whiteouts in an archive");
    let mut archives: Vec<PathBuf> = fs::read_dir(stores()).unwrap().map(|entry| entry.unwrap().path()).collect();
    archives.sort();
    assert!(!archives.is_empty(), "no store of an earlier version");
    for archive in archives {
        let what = archive.display().to_string();
        let folder = scratch();
        let mut tar = Command::new("tar");
        tar.args([
            "--extract",
            "--gzip",
            "--preserve-permissions",
            "--numeric-owner",
            "--xattrs",
            "--xattrs-include=*",
        ]);
        run(tar.arg("--file").arg(&archive).arg("--directory").arg(folder.path()), "tar");
        let store = folder.path().join("store");
        let before =
            |file: &str| -> Value { serde_json::from_slice(&fs::read(folder.path().join(file)).unwrap()).unwrap() };
        let ([images, pins, why], [images_now, pins_now, why_now]) = (PRINTED.map(before), print(&store));
        assert_eq!(facts(&images_now), facts(&images), "{what}");
        assert_eq!(pins_now["pins"], pins["pins"], "{what}");
        let (recorded, recorded_now) = (moments(&why), moments(&why_now));
        assert!(!recorded.is_empty() && recorded_now.is_superset(&recorded), "{what}: {why:#}\n{why_now:#}");
        with_store(&store, ["verify"]).ok();

        // The registry is not there, and a present image does not need it.
        let [app, tool] = ["team/app:v1", "team/tool:v1"].map(|part| named(&images, part));
        with_store(&store, ["pull", "--policy", "IfNotPresent", &app]).ok();

        // The pin holds.
        with_store(&store, ["gc", "--all-unused", "--now"]).ok();
        let left = listing(with_store(&store, LIST));
        assert!(left.values().flatten().any(|name| *name == tool), "{what}: {tool} is pinned: {left:?}");
        assert!(!left.values().flatten().any(|name| *name == app), "{what}: {app} was unused: {left:?}");

        // What was removed is pulled again, beside what stayed.
        let registry = FakeRegistry::start();
        let [app, tool] = samples(&registry);
        for sample in [&app, &tool] {
            assert_eq!(with_store(&store, ["pull", &sample.name]).ok().trim(), sample.id(), "{what}");
            assert_eq!(sample.damage(&store), Vec::<String>::new(), "{what}");
        }
        with_store(&store, ["verify"]).ok();
    }
}

#[test]
#[ignore = "writes the store of this version, once, when it is released"]
fn write_the_store_of_this_version() {
    require_root("whiteouts in an archive");
    let archive = stores().join(concat!(env!("CARGO_PKG_VERSION"), ".tar.gz"));
    assert!(!archive.exists(), "`{}` is never written again", archive.display());
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let store = folder.path().join("store");
    for sample in &samples(&registry) {
        with_store(&store, ["pull", &sample.name]).ok();
    }
    let gone = registry.put("team/gone:v1", &Image::marked("gone", 100));
    with_store(&store, ["pull", &gone]).ok();
    for pattern in ["*/team/app:*", "*/team/tool:*"] {
        with_store(&store, ["pin", pattern]).ok();
    }
    with_store(&store, ["gc", "--all-unused", "--now"]).ok();
    with_store(&store, ["unpin", "*/team/app:*"]).ok();
    for (file, printed) in PRINTED.iter().zip(print(&store)) {
        fs::write(folder.path().join(file), printed.to_string()).unwrap();
    }
    pack(folder.path(), &archive);
}

fn pack(folder: &Path, archive: &Path) {
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--gzip",
        "--format=posix",
        "--sort=name",
        "--numeric-owner",
        "--xattrs",
        "--xattrs-include=*",
    ]);
    tar.arg("--file").arg(archive).arg("--directory").arg(folder).arg("store");
    run(tar.args(PRINTED), "tar");
}
