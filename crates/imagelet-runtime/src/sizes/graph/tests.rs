//! The parts of images, from real and from impossible lists of containerd.

use super::*;
use crate::containerd::v1::types::{Descriptor, Timestamp};

// Kinds of snapshots that hold what they stand on.
const UNKNOWN: i32 = 0;
const VIEW: i32 = 1;
const ACTIVE: i32 = 2;

/// A digest with a readable name.
fn digest(name: &str) -> String {
    Digest::of(name.as_bytes()).to_string()
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let value = |value: &str| if value.contains(':') { value.to_owned() } else { digest(value) };
    pairs.iter().map(|(key, to)| ((*key).to_owned(), value(to))).collect()
}

fn record(name: &str, target: &str) -> images::Image {
    let target = Descriptor { digest: digest(target), ..Descriptor::default() };
    images::Image { name: name.to_owned(), labels: BTreeMap::new(), target: Some(target) }
}

fn blob(name: &str, size: i64, refers: &[(&str, &str)]) -> content::Info {
    content::Info { digest: digest(name), size, labels: labels(refers) }
}

fn snapshot(name: &str, parent: &str, kind: i32) -> snapshots::Info {
    snapshots::Info {
        name: digest(name),
        parent: if parent.is_empty() { String::new() } else { digest(parent) },
        kind,
        created_at: Some(Timestamp { seconds: 1, nanos: 2 }),
        labels: BTreeMap::new(),
    }
}

const M: &str = "containerd.io/gc.ref.content.m.0";
const CONFIG: &str = "containerd.io/gc.ref.content.config";
const L0: &str = "containerd.io/gc.ref.content.l.0";
const L1: &str = "containerd.io/gc.ref.content.l.1";
const TOP: &str = "containerd.io/gc.ref.snapshot.overlayfs";

/// Image `a` of two layers and image `b` of three with the same lower two; `a` by an index.
fn node() -> Listed {
    let config = |name: &str, top: &str| blob(name, 700, &[(TOP, top)]);
    Listed {
        images: vec![
            record("registry/a:v1", "index-a"),
            record("registry/a@sha256:1", "index-a"),
            record(&digest("config-a"), "index-a"),
            record("registry/b:v1", "manifest-b"),
            record(&digest("config-b"), "manifest-b"),
        ],
        contents: vec![
            blob("index-a", 4096, &[(M, "manifest-a"), ("containerd.io/gc.ref.content.m.1", "of another platform")]),
            blob("manifest-a", 4097, &[(CONFIG, "config-a"), (L0, "blob-1"), (L1, "blob-2")]),
            config("config-a", "2"),
            blob("manifest-b", 900, &[(CONFIG, "config-b"), (L0, "blob-1"), (L1, "blob-3")]),
            config("config-b", "3"),
            blob("blob-1", 10_000, &[("containerd.io/distribution.source.registry", "a:b")]),
            blob("blob-2", 0, &[]),
            blob("blob-3", 1, &[]),
            blob("of no image", 1 << 40, &[]),
        ],
        snapshots: BTreeMap::from([(
            "overlayfs".to_owned(),
            vec![
                snapshot("1", "", COMMITTED),
                snapshot("2", "1", COMMITTED),
                snapshot("3", "2", COMMITTED),
                snapshot("of no image", "1", COMMITTED),
            ],
        )]),
        ..Listed::default()
    }
}

/// A thousand bytes and one inode times the number in the snapshot's name.
fn usage(snapshot: &CommittedSnapshot) -> Option<Freed> {
    let number = (1..9_u64).find(|number| *snapshot.name == *digest(&number.to_string()))?;
    Some(Freed { bytes: ByteSize(1000 * number), inodes: number })
}

fn measured(listed: &Listed, usage: impl Fn(&CommittedSnapshot) -> Option<Freed>) -> LayerGraph {
    let mut listed = listed.clone();
    let committed = listed.committed().expect("it is of the size that nodes have").into_iter();
    listed.usages = committed.filter_map(|snapshot| usage(&snapshot).map(|usage| (snapshot, usage))).collect();
    listed.graph().expect("it is of the size that nodes have")
}

fn graph(listed: &Listed) -> LayerGraph {
    measured(listed, usage)
}

fn freed(graph: &LayerGraph, images: &[&str]) -> (u64, u64) {
    let ids: Vec<ImageId> = images.iter().map(|image| ImageId::new(digest(image))).collect();
    let freed = graph.freed_by(&ids);
    (freed.bytes.0, freed.inodes)
}

#[test]
fn only_snapshots_of_images_are_measured() {
    let mut names: Vec<String> = node().committed().unwrap().iter().map(|found| found.name.to_string()).collect();
    names.sort();
    let mut expected = ["1", "2", "3"].map(digest);
    expected.sort();
    assert_eq!(names, expected);
}

/// `config-a`, `manifest-a` and `index-a` with `blob-2`, which is empty.
const OF_A: (u64, u64) = (4096 + 8192 + 4096, 4);
/// `config-b`, `manifest-b`, `blob-3` and snapshot 3 with its two folders.
const OF_B: (u64, u64) = (3 * 4096 + 3000 + 8192, 3 + 3 + 2);
/// `blob-1`, snapshots 1 and 2 with two folders each.
const OF_BOTH: (u64, u64) = (3 * 4096 + 3000 + 2 * 8192, 1 + 3 + 4);

fn sum(parts: &[(u64, u64)]) -> (u64, u64) {
    parts.iter().fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
}

#[test]
fn an_image_has_its_documents_its_blobs_and_its_chain() {
    let graph = graph(&node());
    assert_eq!(graph.certainty, Certainty::Exact);
    assert_eq!(graph.images.len(), 2, "three records and two are of one image each: {:?}", graph.images);
    assert_eq!(freed(&graph, &["config-a"]), OF_A);
    assert_eq!(freed(&graph, &["config-b"]), OF_B);
    assert_eq!(freed(&graph, &["config-a", "config-b"]), sum(&[OF_A, OF_B, OF_BOTH]));
    let names: BTreeSet<&str> = graph.layers.iter().map(|part| &*part.id).collect();
    assert!(names.contains(format!("overlayfs:{}", digest("1")).as_str()) && names.len() == graph.layers.len());
    assert!(names.contains(format!("blob:{}", digest("index-a")).as_str()));
    let shares = graph.shares();
    let share = shares[&ImageId::new(digest("config-b"))];
    assert_eq!((share.unique.0, share.shared.0), (OF_B.0, OF_BOTH.0));
}

#[test]
fn what_something_else_keeps_is_held() {
    type Change = fn(&mut Listed);
    let (all, nothing) = (sum(&[OF_A, OF_B, OF_BOTH]), (0, 0));
    let (blob_1, blob_3) = ((3 * 4096, 1), (4096, 1));
    let (snapshot_1, chain_2, chain_3) = ((1000 + 8192, 3), (3000 + 2 * 8192, 3 + 4), (6000 + 3 * 8192, 6 + 6));
    let labelled =
        |listed: &mut Listed, label: &str| drop(listed.contents[7].labels.insert(label.to_owned(), "x".to_owned()));
    let frees = |case: &str, change: &dyn Fn(&mut Listed), kept: (u64, u64)| {
        let mut listed = node();
        change(&mut listed);
        let freed = freed(&graph(&listed), &["config-a", "config-b"]);
        assert_eq!(freed, (all.0 - kept.0, all.1 - kept.1), "{case}");
    };
    let cases: [(&str, Change, (u64, u64)); 9] = [
        ("nothing", |_| {}, nothing),
        ("a container", |listed| of_overlay(listed).push(snapshot("c", "2", ACTIVE)), chain_2),
        ("a view", |listed| of_overlay(listed).push(snapshot("c", "3", VIEW)), chain_3),
        ("an unknown kind", |listed| of_overlay(listed).push(snapshot("c", "1", UNKNOWN)), snapshot_1),
        (
            "a container elsewhere",
            |listed| {
                let active = snapshot("c", "3", ACTIVE);
                listed.snapshots.insert("native".to_owned(), vec![active]);
            },
            nothing,
        ),
        ("another namespace", |listed| listed.elsewhere = HashSet::from([digest("blob-1")]), blob_1),
        ("a record of no image", |listed| listed.images.push(record("odd", "blob-3")), blob_3),
        ("a record of what is gone", |listed| listed.images.push(record("odd", "absent")), nothing),
        ("an empty record", |listed| listed.images.push(images::Image::default()), nothing),
    ];
    for (case, change, kept) in cases {
        frees(case, &change, kept);
    }
    for (label, kept) in [
        ("containerd.io/gc.root", blob_3),
        ("containerd.io/gc.expire", blob_3),
        ("containerd.io/gc.bref.image", blob_3),
        ("containerd.io/gc", nothing),
        ("containerd.io/gc.ref.contents", nothing),
    ] {
        frees(label, &|listed| labelled(listed, label), kept);
    }
    for (kind, name, kept) in [
        ("content", "blob-1", blob_1),
        ("content", "config-a", sum(&[(4096, 1), chain_2])),
        ("content", "absent", nothing),
        ("snapshots/overlayfs", "1", snapshot_1),
        ("snapshots/overlayfs", "3", chain_3),
        ("snapshots/native", "3", nothing),
        ("ingests", "blob-1", nothing),
        ("", "", nothing),
    ] {
        let resource = leases::Resource { id: digest(name), r#type: kind.to_owned() };
        frees(&format!("a lease of {kind} {name}"), &|listed| listed.leased.push(resource.clone()), kept);
    }
}

fn of_overlay(listed: &mut Listed) -> &mut Vec<snapshots::Info> {
    listed.snapshots.get_mut("overlayfs").unwrap()
}

#[test]
fn an_image_whose_chain_or_content_is_gone_has_what_is_left() {
    let mut listed = node();
    of_overlay(&mut listed).retain(|snapshot| snapshot.name != digest("3"));
    assert_eq!(freed(&graph(&listed), &["config-b"]), (3 * 4096, 3), "b shares no snapshot with a any more");
    assert_eq!(freed(&graph(&listed), &["config-a"]), (OF_A.0 + 3000 + 2 * 8192, OF_A.1 + 3 + 4));
    listed.contents.retain(|blob| blob.digest != digest("manifest-b"));
    let graph = graph(&listed);
    assert_eq!(freed(&graph, &["config-b"]), (0, 0));
    assert_eq!(
        graph.parts(&ImageId::new(digest("config-b"))).map(Iterator::count),
        Some(0),
        "it is known all the same"
    );
    assert_eq!(graph.certainty, Certainty::Exact);
}

#[test]
fn an_index_with_several_platforms_belongs_to_the_image_that_is_shown() {
    let mut listed = node();
    listed.contents.push(blob("of another platform", 5, &[(CONFIG, "config-x"), (L0, "blob-x")]));
    listed.contents.push(blob("config-x", 5, &[]));
    listed.contents.push(blob("blob-x", 5, &[]));
    let both = graph(&listed);
    assert_eq!(both.images.len(), 2, "the other platform's has no record of its own");
    assert_eq!(freed(&both, &["config-a"]), (OF_A.0 + 3 * 4096, OF_A.1 + 3), "and goes with it");
    // If both are shown, either keeps all.
    listed.images.push(record(&digest("config-x"), "index-a"));
    assert_eq!(freed(&graph(&listed), &["config-a"]), (0, 0));
    // Without a record by id, the configurations identify the image.
    listed.images.retain(|record| !is_id(&record.name));
    assert_eq!(graph(&listed).images.len(), 3);
}

#[test]
fn names_of_one_image_may_have_several_targets() {
    let mut listed = node();
    listed.images.push(record("registry/again:v1", "manifest-a2"));
    listed.contents.push(blob("manifest-a2", 1, &[(CONFIG, "config-a"), (L0, "blob-z")]));
    listed.contents.push(blob("blob-z", 1, &[]));
    assert_eq!(freed(&graph(&listed), &["config-a"]), (OF_A.0 + 2 * 4096, OF_A.1 + 2));
}

#[test]
fn what_a_snapshotter_does_not_count_makes_the_sizes_partial() {
    let mut listed = node();
    listed.contents[4].labels = labels(&[("containerd.io/gc.ref.snapshot.remote", "3")]);
    let absent = graph(&listed);
    assert_eq!(absent.certainty, Certainty::Partial { measured: 10, layers: 11 }, "it did not list its snapshots");
    listed.snapshots.insert("remote".to_owned(), vec![snapshot("3", "", COMMITTED)]);
    let remote = graph(&listed);
    assert_eq!(remote.certainty, Certainty::Partial { measured: 10, layers: 11 });
    assert_eq!(freed(&remote, &["config-b"]).0, 3 * 4096 + 3000, "it counts as far as it is known");
    listed.snapshots.insert("native".to_owned(), listed.snapshots["remote"].clone());
    listed.contents[4].labels = labels(&[("containerd.io/gc.ref.snapshot.native/1", "3")]);
    let native = graph(&listed);
    assert_eq!(native.certainty, Certainty::Exact);
    assert_eq!(freed(&native, &["config-b"]), (3 * 4096 + 3000, 3 + 3), "it counts all of its folders itself");
    let silent = measured(&node(), |_| None);
    assert_eq!(silent.certainty, Certainty::Partial { measured: 8, layers: 11 });
    let mut negative = node();
    negative.contents[5].size = -1;
    assert_eq!(graph(&negative).certainty, Certainty::Partial { measured: 10, layers: 11 });
}

#[test]
fn circles_and_odd_numbers_end() {
    let mut listed = node();
    of_overlay(&mut listed)[0].parent = digest("3");
    of_overlay(&mut listed)[3].parent = digest("of no image");
    listed.contents[2].labels.extend(labels(&[(M, "index-a"), (CONFIG, "config-a")]));
    listed.contents[5].size = i64::MAX;
    let graph = graph(&listed);
    assert!(freed(&graph, &["config-a", "config-b"]).0 > 1 << 63, "the chain, in a circle or not, and the huge blob");
    let huge = measured(&node(), |_| Some(Freed { bytes: ByteSize(u64::MAX), inodes: u64::MAX }));
    assert_eq!(freed(&huge, &["config-a", "config-b"]), (u64::MAX, u64::MAX));
}

#[test]
fn lists_that_refer_to_one_another_without_end_are_refused() {
    let all: Vec<String> = (0..400).map(|number| format!("blob {number}")).collect();
    let refers: Vec<(String, &str)> =
        all.iter().enumerate().map(|(at, name)| (format!("{L0}.{at}"), name.as_str())).collect();
    let refers: Vec<(&str, &str)> = refers.iter().map(|(key, name)| (key.as_str(), *name)).collect();
    let records = |count| (0..count).map(|number| record(&format!("image {number}"), &all[number])).collect();
    let contents = all.iter().map(|name| blob(name, 1, &refers)).collect();
    let mut listed = Listed { images: records(100), contents, ..Listed::default() };
    assert!(listed.graph().is_ok());
    listed.images = records(400);
    assert!(matches!(listed.graph(), Err(TooEntangled)));
}

#[test]
fn ten_thousand_images_are_far_from_the_limit() {
    let mut listed = Listed::default();
    let names: Vec<[String; 4]> =
        (0..10_000).map(|number| ["m", "c", "x", "s"].map(|kind| format!("{kind}{number}"))).collect();
    for [manifest, config, layer, top] in &names {
        for name in [format!("registry/{manifest}:v1"), format!("registry/{manifest}@x"), digest(config)] {
            listed.images.push(record(&name, manifest));
        }
        let layers: Vec<(String, String)> =
            (0..20).map(|at| (format!("containerd.io/gc.ref.content.l.{at}"), layer.clone())).collect();
        let mut refers: Vec<(&str, &str)> = layers.iter().map(|(key, name)| (key.as_str(), name.as_str())).collect();
        refers.push((CONFIG, config));
        listed.contents.push(blob(manifest, 1, &refers));
        listed.contents.push(blob(config, 1, &[(TOP, top)]));
        listed.contents.push(blob(layer, 1, &[]));
    }
    let chain =
        |at: usize| snapshot(&names[at][3], if at.is_multiple_of(20) { "" } else { &names[at - 1][3] }, COMMITTED);
    listed.snapshots.insert("overlayfs".to_owned(), (0..names.len()).map(chain).collect());
    let graph = listed.graph().unwrap();
    let snapshots = graph.layers.iter().filter(|layer| layer.id.starts_with("overlayfs:")).count();
    assert_eq!((graph.images.len(), snapshots), (10_000, 10_000));
}

#[test]
fn snapshotters_are_those_that_labels_name() {
    let mut listed = node();
    assert_eq!(snapshotters(&listed.images, &listed.contents), BTreeSet::from(["overlayfs".to_owned()]));
    listed.images[0].labels =
        labels(&[("containerd.io/gc.ref.snapshot.native/x", "1"), ("containerd.io/gc.ref.snapshot", "1")]);
    let named = snapshotters(&listed.images, &listed.contents);
    assert_eq!(named, BTreeSet::from(["native".to_owned(), "overlayfs".to_owned()]));
}
