//! What holds of a store after any crash or fault: every listed image is whole, and nothing else is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::image::Digest;
use tokio::time::Instant;

use crate::{
    artifacts::artifact,
    fake_registry::FakeRegistry,
    images::{Image, Kind, Layer, noise},
    program::{Outcome, with_store},
    testbed::wait_until_within,
    tree::{self, Content, Node, Tree},
};

/// How soon a store is usable again, whatever happened to it.
pub(crate) const START_MAX: Duration = Duration::from_secs(1);
/// How soon after a start nothing is left of what was interrupted.
pub(crate) const CLEAN_MAX: Duration = Duration::from_secs(10);
/// What a store may take besides its images: indexes and records, not content.
const REST_MAX: u64 = 1 << 20;

/// An image in a registry, with all that its store must show of it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) image: Image,
    layers: Vec<Layer>,
}

/// Image id → its names.
pub(crate) type Listing = BTreeMap<String, Vec<String>>;

impl Sample {
    /// Serves an image of these layers.
    pub(crate) fn put(registry: &FakeRegistry, name: &str, layers: Vec<Layer>) -> Self {
        let image = Image::oci(&layers);
        Self { name: registry.put(name, &image), image, layers }
    }

    /// Serves an artifact of these files.
    pub(crate) fn put_artifact(registry: &FakeRegistry, name: &str, files: &[(&str, &[u8])]) -> Self {
        let image = artifact(files);
        Self { name: registry.put(name, &image), image, layers: Vec::new() }
    }

    /// Serves it under one more name.
    pub(crate) fn put_again(&self, registry: &FakeRegistry, name: &str) -> String {
        registry.put(name, &self.image)
    }

    pub(crate) fn id(&self) -> &str {
        if self.layers.is_empty() { &self.image.manifest.digest } else { self.image.id() }
    }

    /// What its layers merge to.
    pub(crate) fn merged(&self) -> Tree {
        let mut tree = tree::merged(&self.layers);
        for entry in self.layers.iter().flat_map(|layer| &layer.entries) {
            imply(&mut tree, &entry.path);
        }
        tree
    }

    /// Why the store's copy is not this image; empty when it is, to the byte.
    pub(crate) fn damage(&self, store: &Path) -> Vec<String> {
        let folder = store.join("images").join(hex(self.id()));
        let mut damage = Vec::new();
        for (file, digest) in
            [("manifest.json", &self.image.manifest.digest), ("config.json", &self.image.config.digest)]
        {
            match fs::read(folder.join(file)) {
                Ok(bytes) if Digest::of(&bytes).as_str() == digest => {}
                Ok(bytes) => damage.push(format!("{file} of {} has {} other bytes", self.name, bytes.len())),
                Err(error) => damage.push(format!("{file} of {}: {error}", self.name)),
            }
        }
        if self.layers.is_empty() {
            damage.extend(self.damaged_files(store));
            return damage;
        }
        for (diff_id, layer) in self.image.diff_ids().iter().zip(&self.layers) {
            let path = store.join("layers").join(hex(diff_id)).join("fs");
            if !path.is_dir() {
                damage.push(format!("layer {diff_id} of {} is missing", self.name));
                continue;
            }
            let mut found = tree::read(&path);
            for node in found.values_mut().filter(|node| node.content == Content::Special) {
                // A whiteout is as old as its unpacking.
                node.mtime = None;
            }
            let differences = tree::differences(&found, &unpacked(layer));
            damage.extend(differences.into_iter().map(|what| format!("layer {diff_id} of {}: {what}", self.name)));
        }
        damage
    }

    /// The files of an artifact that are not as its registry has them.
    fn damaged_files(&self, store: &Path) -> Vec<String> {
        let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).expect("JSON");
        let record = json(&fs::read(store.join("images").join(hex(self.id())).join("image.json")).expect("a record"));
        let manifest = json(&self.image.manifest.bytes);
        let files = self.image.layers.iter().enumerate().filter_map(|(number, blob)| {
            let title = manifest["layers"][number]["annotations"]["org.opencontainers.image.title"].as_str()?;
            let folder = store.join("layers").join(hex(record["layers"][number]["diff_id"].as_str()?)).join("fs");
            let is_same = fs::read(folder.join(title)).is_ok_and(|bytes| bytes == blob.bytes);
            (!is_same).then(|| format!("file {title} of {} has other bytes, or is missing", self.name))
        });
        files.collect()
    }
}

/// A layer of some files, a directory it only implies, and `extra`.
pub(crate) fn small_layer(seed: &str, size: usize) -> Layer {
    Layer::gzip()
        .directory(seed, 0o750)
        .owned_by(7, 8)
        .file(&format!("{seed}/text"), seed, 0o640)
        .file(&format!("{seed}/noise"), noise(seed, size), 0o755)
        .symlink(&format!("{seed}/link"), "text")
        .hardlink(&format!("{seed}/again"), &format!("{seed}/text"))
        .file(&format!("implied/{seed}"), seed, 0o600)
        .whiteout(&format!("{seed}-below"))
}

/// A layer as the store keeps it: whiteouts are devices, implied directories are plain.
fn unpacked(layer: &Layer) -> Tree {
    let mut tree = tree::merged(std::slice::from_ref(layer));
    for entry in &layer.entries {
        if matches!(entry.kind, Kind::Whiteout) {
            tree.insert(entry.path.clone(), plain(Content::Special, 0));
        }
        imply(&mut tree, &entry.path);
    }
    tree
}

/// Adds the directories that a path lies in.
fn imply(tree: &mut Tree, path: &str) {
    for (at, _) in path.match_indices('/') {
        tree.entry(path[..at].to_owned()).or_insert(plain(Content::Directory, 0o755));
    }
}

fn plain(content: Content, mode: u32) -> Node {
    Node { content, mode, owner: (0, 0), mtime: None, xattrs: BTreeMap::new(), links: 1 }
}

/// What `ls --all -o json` printed.
pub(crate) fn listing(outcome: Outcome) -> Listing {
    let document = outcome.json();
    let texts = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let rows = document["images"].as_array().expect("a list of images");
    rows.iter()
        .map(|row| {
            (row["id"].as_str().expect("an id").to_owned(), [texts(&row["names"]), texts(&row["digests"])].concat())
        })
        .collect()
}

/// Opens the store by a command that may change it, in time, and lists it.
pub(crate) fn reopen(store: &Path, what: &str) -> Listing {
    let started = Instant::now();
    with_store(store, ["pin", "nothing"]).ok();
    assert_in_time(started.elapsed(), what);
    listing(with_store(store, ["ls", "--all", "-o", "json"]))
}

/// Fails when a start took too long, unless this machine is too busy to start anything.
pub(crate) fn assert_in_time(took: Duration, what: &str) {
    if took > START_MAX {
        let idle = tempfile::tempdir().unwrap();
        let started = Instant::now();
        with_store(idle.path(), ["pin", "nothing"]).ok();
        let usual = started.elapsed();
        assert!(took < usual * 10, "{what}: the store opened after {took:?}; an empty one does in {usual:?}");
    }
}

/// Every listed image is one of `known` and whole, all of `kept` are listed, and soon nothing else lies in the store but
/// whole layers of an unfinished pull.
pub(crate) fn assert_sound(store: &Path, listed: &Listing, known: &[&Sample], kept: &[&Sample], what: &str) {
    assert_whole(store, listed, known, kept, what);
    let ids: BTreeSet<&str> = listed.keys().map(String::as_str).collect();
    let unfinished = entries(&store.join("tmp")).into_iter().filter(|folder| folder.join("spare.json").is_file());
    assert_holds(store, &referenced(store, &ids).into_iter().chain(unfinished).collect(), what);
}

/// The same, whatever else lies in the store.
pub(crate) fn assert_whole(store: &Path, listed: &Listing, known: &[&Sample], kept: &[&Sample], what: &str) {
    for id in listed.keys() {
        let sample = known.iter().find(|sample| sample.id() == id);
        let sample = sample.unwrap_or_else(|| panic!("{what}: {id} is listed and nobody pulled it"));
        let damage = sample.damage(store);
        assert!(damage.is_empty(), "{what}: a listed image is not whole:\n{}", damage.join("\n"));
    }
    for sample in kept {
        assert!(listed.contains_key(sample.id()), "{what}: {} was acknowledged and is gone: {listed:?}", sample.name);
    }
}

/// Within [`CLEAN_MAX`] the store holds these images and nothing else.
pub(crate) fn assert_clean(store: &Path, ids: &BTreeSet<&str>, what: &str) {
    assert_holds(store, &referenced(store, ids), what);
}

fn assert_holds(store: &Path, referenced: &BTreeSet<PathBuf>, what: &str) {
    let mut left = Vec::new();
    let cleaned = wait_until_within(CLEAN_MAX, || {
        left = strays(store, referenced);
        left.is_empty()
    });
    assert!(cleaned, "{what}: nothing will free {left:#?}");
    let (total, wanted) = (tree::disk_usage(store), referenced.iter().map(|path| tree::disk_usage(path)).sum::<u64>());
    assert!(total <= wanted + REST_MAX, "{what}: the images take {wanted} bytes, the store {total}");
}

/// What lies in the store and is not referenced.
fn strays(store: &Path, referenced: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let mut strays = Vec::new();
    for folder in ["tmp", "trash", "ingest", "layers", "images", "blobs/sha256", "blobs/sha512"] {
        strays.extend(entries(&store.join(folder)).into_iter().filter(|path| !referenced.contains(path)));
    }
    let notes: BTreeSet<PathBuf> = entries(&store.join("mounts"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    strays.extend(
        entries(&store.join("mounts")).into_iter().filter(|path| !notes.contains(&path.with_extension("json"))),
    );
    let known = [
        "blobs",
        "images",
        "ingest",
        "layers",
        "lock",
        "mounts",
        "names.json",
        "names.unsettled.json",
        "state",
        "tmp",
        "trash",
    ];
    strays.extend(entries(store).into_iter().filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        !known.contains(&name.as_str()) && !name.starts_with("names.json.corrupt-")
    }));
    for entry in entries(&store.join("state/inventory")) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !["ledger", "pins.json", "pins.lock", ".ledger.new", ".pins.json.new"].contains(&name.as_str()) {
            strays.push(entry);
        }
    }
    strays
}

/// The folders of images and of their layers.
fn referenced(store: &Path, ids: &BTreeSet<&str>) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    for id in ids {
        let folder = store.join("images").join(hex(id));
        let record = fs::read(folder.join("image.json"))
            .ok()
            .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
        for layer in record.as_ref().and_then(|record| record["layers"].as_array()).into_iter().flatten() {
            paths.extend(layer["diff_id"].as_str().map(|diff_id| store.join("layers").join(hex(diff_id))));
            paths.extend(layer["blob"].as_str().map(|blob| store.join("blobs").join(blob.replace(':', "/"))));
        }
        paths.insert(folder);
    }
    paths
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => panic!("read {}: {error}", folder.display()),
    }
}

/// Whether it is on record who may use a present image: without a record it would count as preloaded (C4).
pub(crate) fn is_on_record(store: &Path, id: &str) -> bool {
    let name = format!("sha256-{}", Digest::of(id.as_bytes()).hex());
    store.join("state/image_manager/pulled").join(name).is_file()
}

fn hex(digest: &str) -> &str {
    digest.strip_prefix("sha256:").expect("a digest")
}
