//! Each call does what its name says.

use std::{collections::BTreeMap, path::Path, time::Duration};

use imagelet_core::image::Digest;
use imagelet_runtime::containerd::{
    ContainerdClient, LeaseId,
    v1::{images::Image, snapshots, types::Descriptor},
};

use crate::node::Node;
use tonic::Code;

const OVERLAYFS: &str = "overlayfs";
/// `Kind` of a prepared snapshot.
const ACTIVE: i32 = 2;

fn labels<const N: usize>(labels: [(&str, &str); N]) -> BTreeMap<String, String> {
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn prepare(key: &str, parent: &str, target: &str) -> snapshots::PrepareSnapshotRequest {
    snapshots::PrepareSnapshotRequest {
        snapshotter: OVERLAYFS.to_owned(),
        key: key.to_owned(),
        parent: parent.to_owned(),
        labels: labels([("containerd.io/snapshot.ref", target)]),
    }
}

fn commit(key: &str, name: &str) -> snapshots::CommitSnapshotRequest {
    snapshots::CommitSnapshotRequest {
        snapshotter: OVERLAYFS.to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
        ..snapshots::CommitSnapshotRequest::default()
    }
}

#[tokio::test]
async fn what_a_lease_holds_stays_until_the_lease_ends() {
    let node = Node::start().await;
    let client = node.client();
    let lease = LeaseId::unique();
    client.create_lease(&lease, Duration::from_hours(1)).await.unwrap();
    assert_eq!(client.leases().await.unwrap()[0].id, lease.as_str());
    let leased = client.under(&lease);

    let bytes = vec![b' '; (1 << 20) + 7];
    let digest = Digest::of(&bytes);
    let size = bytes.len() as u64;
    leased.write_content(digest.as_str(), size, &bytes[..], labels([("a", "b")])).await.unwrap();
    let again = leased.write_content(digest.as_str(), size, &bytes[..], BTreeMap::new()).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists, "{again}");
    let other = Digest::of(b"other");
    let wrong = leased.write_content(other.as_str(), 2, &b"no"[..], BTreeMap::new()).await.unwrap_err().to_string();
    assert!(wrong.contains("unexpected commit digest"), "{wrong}");
    let short = leased.write_content(other.as_str(), 7, &b"other"[..], BTreeMap::new()).await.unwrap_err().to_string();
    assert!(short.contains("the bytes cannot be read: early eof"), "{short}");
    client.label_content(digest.as_str(), labels([("c", "d")])).await.unwrap();
    let info = client.content(digest.as_str()).await.unwrap().unwrap();
    assert_eq!((info.size, info.labels), ((1 << 20) + 7, labels([("a", "b"), ("c", "d")])));

    let mounts = leased.prepare(prepare("key one", "", "one")).await.unwrap();
    assert_eq!((mounts.len(), mounts[0].r#type.as_str()), (1, "bind"));
    leased.commit(commit("key one", "one")).await.unwrap();
    let refusal = leased.prepare(prepare("key again", "", "one")).await.unwrap_err().code();
    assert_eq!(refusal, Code::AlreadyExists);
    let refusal = leased.prepare(prepare("key", "none", "two")).await.unwrap_err().code();
    assert_eq!(refusal, Code::NotFound);
    let mounts = leased.prepare(prepare("key two", "one", "two")).await.unwrap();
    assert_eq!((mounts.len(), mounts[0].r#type.as_str()), (1, "overlay"));
    let two = client.snapshot(OVERLAYFS, "key two").await.unwrap().unwrap();
    assert_eq!((two.kind, two.parent.as_str()), (ACTIVE, "one"));

    // Another lease's end collects nothing of this one's; what it has not made it holds when asked.
    let other = LeaseId::unique();
    client.create_lease(&other, Duration::from_hours(1)).await.unwrap();
    let refusal = client.hold(&LeaseId::unique(), "content", "x").await.unwrap_err().code();
    assert_eq!(refusal, Code::NotFound, "no lease");
    client.hold(&other, "snapshots/overlayfs", "one").await.unwrap();
    client.hold(&other, "content", digest.as_str()).await.unwrap();
    client.delete_lease(&lease, true).await.unwrap();
    let names = async || {
        let all = client.snapshots(OVERLAYFS).await.unwrap();
        all.into_iter().map(|snapshot| snapshot.name).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["one"]);
    assert!(client.usage(OVERLAYFS, "one").await.unwrap().unwrap().size > 0);
    assert_eq!(client.contents().await.unwrap().len(), 1);
    client.delete_lease(&other, true).await.unwrap();
    client.delete_lease(&other, true).await.unwrap();
    assert_eq!(names().await, Vec::<String>::new());
    assert_eq!(client.contents().await.unwrap(), Vec::new());
    assert_eq!(client.snapshot(OVERLAYFS, "one").await.unwrap(), None);
    assert_eq!(client.usage(OVERLAYFS, "one").await.unwrap(), None);
    assert_eq!(client.content(digest.as_str()).await.unwrap(), None);
    client.remove_snapshot(OVERLAYFS, "one").await.unwrap();
}

#[tokio::test]
async fn image_records_are_made_once_and_changed_after() {
    let node = Node::start().await;
    let client = node.client();
    let image = |digest: &str, key: &str| Image {
        name: "reg.test/app:v1".to_owned(),
        labels: labels([(key, "1")]),
        target: Some(Descriptor {
            media_type: "application/vnd.oci.image.manifest.v1+json".to_owned(),
            digest: Digest::of(digest.as_bytes()).to_string(),
            size: 7,
        }),
    };
    client.create_image(image("one", "a")).await.unwrap();
    let refusal = client.create_image(image("two", "b")).await.unwrap_err().code();
    assert_eq!(refusal, Code::AlreadyExists);
    client.update_image(image("two", "b")).await.unwrap();
    let kept = Image { labels: labels([("a", "1"), ("b", "1")]), ..image("two", "b") };
    assert_eq!(client.images().await.unwrap(), std::slice::from_ref(&kept));
    assert_eq!(client.image("reg.test/app:v1").await.unwrap(), Some(kept));
    assert_eq!(client.image("reg.test/app:v2").await.unwrap(), None);
    let overlayfs = client.snapshotters().await.unwrap().into_iter().find(|plugin| plugin.id == OVERLAYFS).unwrap();
    assert_eq!(overlayfs.exports["root"], node.root().join("io.containerd.snapshotter.v1.overlayfs").to_str().unwrap());
}

#[tokio::test]
async fn a_socket_without_containerd_is_away() {
    let error = ContainerdClient::new(Path::new("/nowhere/containerd.sock")).images().await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let message = error.to_string();
    assert!(message.starts_with("Images.List failed at containerd's socket `/nowhere/containerd.sock`: "), "{message}");
    assert!(message.contains("No such file"), "{message}");
}
