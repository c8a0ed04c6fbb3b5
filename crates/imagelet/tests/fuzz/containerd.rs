//! containerd's lists: each image has the parts that a plain walk reaches from its records, held where another root reaches
//! them, whatever the order of the lists.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::Path,
};

use imagelet_core::{
    image::{ByteSize, Digest, Reference},
    ports::{Certainty, Freed, LayerGraph},
};
use imagelet_runtime::{
    containerd::v1::{content, images, leases, snapshots},
    fuzzing::containerd::{Listed, lease_has_ended, source_label},
};
use prost::Message;

use super::{
    messages::{self, Field, fields},
    mutation::Dice,
};

/// Fields of an input: an image record, a blob, the snapshotter of the snapshots that follow, a snapshot, a leased
/// resource, a blob of another namespace.
const IMAGE: u64 = 1;
const BLOB: u64 = 2;
const SNAPSHOTTER: u64 = 3;
const SNAPSHOT: u64 = 4;
const LEASED: u64 = 5;
const ELSEWHERE: u64 = 6;

const COMMITTED: i32 = 3;
const LABEL_BYTES_MAX: usize = 4096;
const BLOCK: u64 = 4096;
const CONTENT: &str = "containerd.io/gc.ref.content";
const CONFIG: &str = "containerd.io/gc.ref.content.config";
const SNAPSHOT_LABEL: &str = "containerd.io/gc.ref.snapshot.";
const EXPIRES: &str = "containerd.io/gc.expire";
const STAYS: [&str; 4] = ["containerd.io/gc.root", EXPIRES, "containerd.io/gc.bref.", "containerd.io/gc.cond."];
const WORDS: [&[u8]; 24] = [
    b"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    b"sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
    b"sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",
    b"sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
    b"sha256:eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee",
    b"sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    b"containerd.io/gc.ref.content",
    b"containerd.io/gc.ref.content.config",
    b"containerd.io/gc.ref.content.l.0",
    b"containerd.io/gc.ref.content.m.0",
    b"containerd.io/gc.ref.content/x",
    b"containerd.io/gc.ref.contents",
    b"containerd.io/gc.ref.snapshot.overlayfs",
    b"containerd.io/gc.ref.snapshot.overlayfs/x",
    b"containerd.io/gc.ref.snapshot.stargz",
    b"containerd.io/gc.root",
    b"containerd.io/gc.expire",
    b"2026-01-02T03:04:05Z",
    b"-009999-01-01T00:00:00Z",
    b"overlayfs",
    b"native",
    b"content",
    b"snapshots/overlayfs",
    b"a.example/app:v1",
];

/// A blob by digest, or a snapshot by snapshotter and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Blob(String),
    Snapshot(String, String),
}

impl Part {
    fn id(&self) -> String {
        match self {
            Self::Blob(digest) => format!("blob:{digest}"),
            Self::Snapshot(snapshotter, name) => format!("{snapshotter}:{name}"),
        }
    }
}

/// Reads the bytes as containerd's lists.
pub(crate) fn check(bytes: &[u8], _: &Path) {
    let lists = lists(bytes);
    let graph = layer_graph(&lists);
    assert_within_bounds(&graph, &lists);

    // containerd lists nothing twice; what two of one name mean is open.
    let lists = without_doubles(lists);
    let graph = layer_graph(&lists);
    let mut turned = lists.clone();
    turned.images.reverse();
    turned.contents.reverse();
    turned.leased.reverse();
    turned.snapshots.values_mut().for_each(|snapshots| snapshots.reverse());
    let other = layer_graph(&turned);
    assert_eq!(named(&graph), named(&other), "the order of the lists means something");
    assert_eq!(graph.certainty, other.certainty);
    let model = Model::of(&lists);
    assert_eq!(named(&graph), model.images(&lists), "an image has other parts than a walk finds");

    check_labels(&lists);
}

/// The parts of the lists, with the usages of their committed snapshots.
fn layer_graph(lists: &Listed) -> LayerGraph {
    let mut listed = lists.clone();
    let committed = listed.committed().expect("a short input has few references");
    let measured = committed.into_iter().filter_map(|snapshot| {
        let (bytes, inodes) = usage(&snapshot.snapshotter, &snapshot.name)?;
        Some((snapshot, Freed { bytes: ByteSize(bytes), inodes }))
    });
    listed.usages = measured.collect();
    listed.graph().expect("a short input has few references")
}

/// Bytes and inodes of a snapshot; some are not known.
fn usage(snapshotter: &str, name: &str) -> Option<(u64, u64)> {
    let number = super::fingerprint([snapshotter, name].concat().as_bytes());
    match number % 5 {
        0 => None,
        1 => Some((u64::MAX, u64::MAX)),
        _ => Some((number % 100_000, number % 100)),
    }
}

fn assert_within_bounds(graph: &LayerGraph, lists: &Listed) {
    let snapshots: usize = lists.snapshots.values().map(Vec::len).sum();
    let most = lists.contents.len() + snapshots;
    assert!(graph.layers.len() <= most, "{} parts of {most} objects", graph.layers.len());
    for (image, parts) in &graph.images {
        assert!(parts.iter().all(|part| usize::try_from(*part).is_ok_and(|part| part < graph.layers.len())));
        assert_eq!(parts.iter().collect::<BTreeSet<_>>().len(), parts.len(), "{image:?} has a part twice");
    }
    if let Certainty::Partial { measured, layers } = graph.certainty {
        assert!(measured < layers, "{measured} of {layers} parts are measured");
    }
    for layer in graph.layers.iter().filter(|layer| layer.id.starts_with("blob:")) {
        assert!(layer.inodes == Some(1) && (layer.bytes.0.is_multiple_of(BLOCK) || layer.bytes.0 == u64::MAX));
    }
}

/// The parts of each image by name, and whether they are held.
type Named = BTreeMap<String, BTreeSet<(String, bool)>>;

fn named(graph: &LayerGraph) -> Named {
    let part = |place: &u32| {
        let layer = &graph.layers[usize::try_from(*place).expect("a place in a list")];
        (layer.id.to_string(), layer.held)
    };
    graph.images.iter().map(|(id, parts)| (id.as_str().to_owned(), parts.iter().map(part).collect())).collect()
}

/// What refers to what, as containerd's collector has it.
struct Model {
    references: BTreeMap<Part, Vec<Part>>,
    configs: BTreeMap<Part, String>,
    committed: BTreeSet<Part>,
    held: BTreeSet<Part>,
}

impl Model {
    fn of(lists: &Listed) -> Self {
        let (mut references, mut configs) = (BTreeMap::new(), BTreeMap::new());
        let (mut committed, mut roots) = (BTreeSet::new(), Vec::new());
        let stays = |labels: &BTreeMap<String, String>| {
            labels.keys().any(|key| STAYS.iter().any(|label| key.starts_with(label)))
        };
        for blob in &lists.contents {
            let part = Part::Blob(blob.digest.clone());
            if stays(&blob.labels) || lists.elsewhere.contains(&blob.digest) {
                roots.push(part.clone());
            }
            configs.extend(blob.labels.get(CONFIG).map(|config| (part.clone(), config.clone())));
            references.insert(part, referred(&blob.labels));
        }
        for (snapshotter, snapshot) in
            lists.snapshots.iter().flat_map(|(name, all)| all.iter().map(move |snapshot| (name, snapshot)))
        {
            let part = Part::Snapshot(snapshotter.clone(), snapshot.name.clone());
            if snapshot.kind == COMMITTED {
                committed.insert(part.clone());
            }
            if snapshot.kind != COMMITTED || stays(&snapshot.labels) {
                roots.push(part.clone());
            }
            configs.extend(snapshot.labels.get(CONFIG).map(|config| (part.clone(), config.clone())));
            let parent = Part::Snapshot(snapshotter.clone(), snapshot.parent.clone());
            references.insert(part, referred(&snapshot.labels).into_iter().chain([parent]).collect());
        }
        roots.extend(lists.leased.iter().filter_map(|resource| match resource.r#type.as_str() {
            "content" => Some(Part::Blob(resource.id.clone())),
            other => Some(Part::Snapshot(other.strip_prefix("snapshots/")?.to_owned(), resource.id.clone())),
        }));
        let mut model = Self { references, configs, committed, held: BTreeSet::new() };
        model.held = model.reach(roots);
        // A removal of images leaves the record.
        let ownerless = lists.images.iter().filter(|record| model.owners(record, lists).is_empty());
        let reached: Vec<Part> = ownerless.flat_map(|record| model.reach(Self::roots(record))).collect();
        model.held.extend(reached);
        model
    }

    fn roots(record: &images::Image) -> Vec<Part> {
        let target = record.target.iter().map(|target| Part::Blob(target.digest.clone()));
        referred(&record.labels).into_iter().chain(target).collect()
    }

    fn reach(&self, roots: Vec<Part>) -> BTreeSet<Part> {
        let (mut found, mut open) = (BTreeSet::new(), roots);
        while let Some(part) = open.pop() {
            if let Some(references) = self.references.get(&part)
                && found.insert(part)
            {
                open.extend(references.iter().cloned());
            }
        }
        found
    }

    /// The ids of the images that a record belongs to.
    fn owners(&self, record: &images::Image, lists: &Listed) -> BTreeSet<String> {
        let is_id = |name: &str| name.parse::<Digest>().is_ok();
        if is_id(&record.name) {
            return BTreeSet::from([record.name.clone()]);
        }
        let reached = self.reach(Self::roots(record));
        let configs: BTreeSet<String> = reached.iter().filter_map(|part| self.configs.get(part)).cloned().collect();
        let is_shown = |config: &&String| is_id(config) && lists.images.iter().any(|image| image.name == **config);
        let shown: BTreeSet<String> = configs.iter().filter(is_shown).cloned().collect();
        if shown.is_empty() { configs } else { shown }
    }

    fn images(&self, lists: &Listed) -> Named {
        let mut images = Named::new();
        for record in &lists.images {
            let parts = self.reach(Self::roots(record)).into_iter();
            let parts = parts.filter(|part| matches!(part, Part::Blob(_)) || self.committed.contains(part));
            let parts: Vec<(String, bool)> = parts.map(|part| (part.id(), self.held.contains(&part))).collect();
            for owner in self.owners(record, lists) {
                images.entry(owner).or_default().extend(parts.clone());
            }
        }
        images
    }
}

/// What labels refer to.
fn referred(labels: &BTreeMap<String, String>) -> Vec<Part> {
    let refer = |(key, value): (&String, &String)| {
        if let Some(rest) = key.strip_prefix(SNAPSHOT_LABEL) {
            let snapshotter = rest.split_once('/').map_or(rest, |(snapshotter, _)| snapshotter);
            return Some(Part::Snapshot(snapshotter.to_owned(), value.clone()));
        }
        let rest = key.strip_prefix(CONTENT)?;
        (rest.is_empty() || rest.starts_with('.') || rest.starts_with('/')).then(|| Part::Blob(value.clone()))
    };
    labels.iter().filter_map(refer).collect()
}

/// Labels of blobs, as those of a lease and as those of a blob that is pulled once more.
fn check_labels(lists: &Listed) {
    let reference: Reference = "a.example:5000/team/app:v1".parse().expect("a reference");
    for labels in lists.contents.iter().map(|blob| &blob.labels) {
        let ended = [-230_000_000_000, 0, 1_000_000_000, 253_000_000_000];
        let ended: Vec<bool> = ended.iter().filter_map(|now| lease_has_ended(labels.clone(), *now)).collect();
        assert!(ended.is_sorted(), "a lease has ended, and then has not: {labels:?}");
        assert!(labels.contains_key(EXPIRES) || !ended.contains(&true), "ended without an end: {labels:?}");
        if let Some((key, value)) = source_label(&reference, labels) {
            assert!(key.len() + value.len() <= LABEL_BYTES_MAX);
            assert!(value.split(',').any(|repository| repository == reference.path()), "{value}");
            let again = BTreeMap::from([(key.clone(), value.clone())]);
            assert_eq!(source_label(&reference, &again), Some((key, value)), "written once more");
        }
    }
}

fn lists(bytes: &[u8]) -> Listed {
    let (mut lists, mut snapshotter) = (Listed::default(), "overlayfs".to_owned());
    for field in fields(bytes).unwrap_or_default() {
        let Field::Bytes(number, content) = field else { continue };
        let text = || String::from_utf8_lossy(&content).into_owned();
        match number {
            IMAGE => lists.images.extend(images::Image::decode(&content[..])),
            BLOB => lists.contents.extend(content::Info::decode(&content[..])),
            SNAPSHOTTER => {
                snapshotter = text();
                lists.snapshots.entry(snapshotter.clone()).or_default();
            }
            SNAPSHOT => {
                let snapshots = lists.snapshots.entry(snapshotter.clone()).or_default();
                snapshots.extend(snapshots::Info::decode(&content[..]));
            }
            LEASED => lists.leased.extend(leases::Resource::decode(&content[..])),
            ELSEWHERE => {
                lists.elsewhere.insert(text());
            }
            _ => {}
        }
    }
    lists
}

fn without_doubles(mut lists: Listed) -> Listed {
    let mut seen = HashSet::new();
    lists.images.retain(|record| seen.insert(record.name.clone()));
    seen.clear();
    lists.contents.retain(|blob| seen.insert(blob.digest.clone()));
    for snapshots in lists.snapshots.values_mut() {
        seen.clear();
        snapshots.retain(|snapshot| seen.insert(snapshot.name.clone()));
    }
    lists
}

/// Changes records, and inserts digests, names and labels.
pub(crate) fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    messages::mutate(bytes, dice, &WORDS);
}
