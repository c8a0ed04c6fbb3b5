//! Messages that a real containerd and its own client exchanged read, and are written, as they were.

use std::{collections::BTreeMap, fmt::Debug};

use imagelet_runtime::containerd::{
    Many, One,
    v1::{content, images, introspection, leases, snapshots, types},
};
use prost::Message;

const LOWER: &str = "sha256:0942a73735c6829d188e0dbf85726630a3eac1afb3184340ed1e1c583728d7ab";
const UPPER: &str = "sha256:17dc32a6092ac7fdcbeb8fb95b1f55a83856d82b2633b7d3f698353c5c8e086f";
const MANIFEST: &str = "sha256:dcc34516c5f91ca0abdbefd1242b530238afd5a044ea7f94b10d29ad82718c28";
const SNAPSHOTS: &str = "/tmp/containerd/root/io.containerd.snapshotter.v1.overlayfs/snapshots";

fn recorded(call: &str, side: &str) -> Vec<u8> {
    let line = include_str!("../recorded/calls.txt").lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.next() == Some(call) && words.next() == Some(side)).then(|| words.next().unwrap_or_default())
    });
    let hex = line.unwrap_or_else(|| panic!("no {side} of {call} is recorded"));
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn answer<A: Message + Default>(call: &str) -> A {
    A::decode(&recorded(call, "response")[..]).unwrap_or_else(|error| panic!("{call}: {error}"))
}

fn labels<const N: usize>(labels: [(&str, &str); N]) -> BTreeMap<String, String> {
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// What is asked is the same to the byte, with no field left out.
fn asks<Q: Message + Default + Debug + PartialEq>(call: &str, wanted: &Q) {
    assert_eq!(Q::decode(&recorded(call, "request")[..]).as_ref(), Ok(wanted), "{call}");
    assert_eq!(wanted.encode_to_vec(), recorded(call, "request"), "{call}");
}

#[test]
fn questions_are_written_as_containerds_own_client_writes_them() {
    let expiry = labels([("containerd.io/gc.expire", "2026-11-23T21:24:28Z")]);
    asks("Leases.Create", &leases::CreateRequest { id: "337627016-YOX1".to_owned(), labels: expiry });
    asks("Leases.Delete", &leases::DeleteRequest { id: "imagelet-x".to_owned(), sync: true });
    let digest = "sha256:6a7a77bb5c8d596aae02b819c89d7ebc66ba84d8113bdd5b5cd57a78c3cf3c07".to_owned();
    asks("Content.Info", &digest);
    let commit = content::WriteContentRequest { action: 2, total: 10240, offset: 10240, ..Default::default() };
    asks("Content.Write", &commit);
    let overlayfs = || "overlayfs".to_owned();
    asks(
        "Snapshots.Prepare",
        &snapshots::PrepareSnapshotRequest {
            snapshotter: overlayfs(),
            key: format!("extract-498925194-yl2N {UPPER}"),
            parent: LOWER.to_owned(),
            labels: BTreeMap::new(),
        },
    );
    asks(
        "Snapshots.Commit",
        &snapshots::CommitSnapshotRequest {
            snapshotter: overlayfs(),
            name: LOWER.to_owned(),
            key: format!("extract-478795333-mm_G {LOWER}"),
            ..Default::default()
        },
    );
    asks("Snapshots.Stat", &snapshots::SnapshotRequest { snapshotter: overlayfs(), key: LOWER.to_owned() });
    asks("Snapshots.Usage", &snapshots::SnapshotRequest { snapshotter: overlayfs(), key: LOWER.to_owned() });
    asks("Snapshots.Remove", &snapshots::SnapshotRequest { snapshotter: overlayfs(), key: "spare".to_owned() });
    let filters = vec!["type==io.containerd.snapshotter.v1,id==overlayfs".to_owned()];
    asks("Introspection.Plugins", &introspection::PluginsRequest { filters });
}

#[test]
fn changes_name_their_fields_as_containerds_own_client_names_them() {
    // They carry times, too, that no change here needs.
    let update = content::UpdateRequest::decode(&recorded("Content.Update", "request")[..]).unwrap();
    let info = update.info.unwrap();
    let paths: Vec<String> = info.labels.keys().map(|key| format!("labels.{key}")).collect();
    assert_eq!((info.digest.as_str(), info.labels.len()), (MANIFEST, 3));
    assert_eq!(update.update_mask, Some(types::FieldMask { paths }));
    let update = images::UpdateImageRequest::decode(&recorded("Images.Update", "request")[..]).unwrap();
    assert_eq!(update.update_mask, Some(types::FieldMask { paths: vec!["target".to_owned()] }));
    let create = One::<images::Image>::decode(&recorded("Images.Create", "request")[..]).unwrap();
    assert_eq!(create.item, update.image);
}

#[test]
fn answers_read_as_they_were_meant() {
    let list = answer::<Many<leases::Lease>>("Leases.List").items;
    assert_eq!(list[0].id, "imagelet-x");
    assert_eq!(list[0].labels, labels([("containerd.io/gc.expire", "2026-11-23T21:24:28Z")]));
    answer::<()>("Leases.Create");

    let info = answer::<One<content::Info>>("Content.Info").item.unwrap();
    assert_eq!((info.digest.as_str(), info.size, info.labels.len()), (MANIFEST, 572, 3));
    assert_eq!(info.labels["containerd.io/gc.ref.content.l.0"], LOWER);
    let all = answer::<Many<content::Info>>("Content.List").items;
    assert_eq!(all.len(), 5);
    assert!(all.iter().any(|blob| blob.digest == LOWER && blob.size == 10240), "{all:?}");
    let config = all.iter().find(|blob| blob.labels.contains_key("containerd.io/gc.ref.snapshot.overlayfs"));
    assert_eq!(config.unwrap().labels["containerd.io/gc.ref.snapshot.overlayfs"], UPPER);
    let written: content::WriteContentResponse = answer("Content.Write");
    assert_eq!((written.action, written.digest.as_str()), (2, LOWER));

    let records = answer::<Many<images::Image>>("Images.List").items;
    assert_eq!(records[0].name, "reg.test/app:v1");
    assert_eq!(records[0].labels, labels([("io.cri-containerd.image", "managed")]));
    let target = records[0].target.clone().unwrap();
    assert_eq!(target.media_type, "application/vnd.oci.image.manifest.v1+json");
    assert_eq!((target.digest.as_str(), target.size), (MANIFEST, 572));

    let prepared = answer::<Many<types::Mount>>("Snapshots.Prepare").items;
    let options = [
        "index=off".to_owned(),
        format!("workdir={SNAPSHOTS}/2/work"),
        format!("upperdir={SNAPSHOTS}/2/fs"),
        format!("lowerdir={SNAPSHOTS}/1/fs"),
    ];
    assert_eq!((prepared.len(), prepared[0].r#type.as_str()), (1, "overlay"));
    assert_eq!((prepared[0].source.as_str(), &prepared[0].options[..]), ("overlay", &options[..]));
    let found = answer::<One<snapshots::Info>>("Snapshots.Stat").item.unwrap();
    assert_eq!((found.name.as_str(), found.parent.as_str(), found.kind), (LOWER, "", 3));
    let all = answer::<Many<snapshots::Info>>("Snapshots.List").items;
    let parents: Vec<(&str, &str)> = all.iter().map(|info| (info.name.as_str(), info.parent.as_str())).collect();
    assert_eq!(parents, [(LOWER, ""), (UPPER, LOWER)]);
    let used: snapshots::UsageResponse = answer("Snapshots.Usage");
    assert_eq!((used.size, used.inodes), (8192, 2));

    let plugin = answer::<Many<introspection::Plugin>>("Introspection.Plugins").items.remove(0);
    assert_eq!(plugin.id, "overlayfs");
    assert_eq!(plugin.exports["root"], SNAPSHOTS.trim_end_matches("/snapshots"));
    assert_eq!((plugin.capabilities.len(), plugin.init_err), (0, None));
}
