//! Sizes as a real containerd's records say them.

use std::{collections::BTreeMap, process::Command, time::Duration};

use imagelet_core::{
    image::{Artifact, Digest, ImageId},
    ports::{Certainty, LayerGraph, LayerSource as _},
};
use imagelet_runtime::{
    ContainerdSizes,
    containerd::{
        ContainerdClient, LeaseId,
        v1::{images::Image, snapshots, types::Descriptor},
    },
};

use crate::node::Node;

const OVERLAYFS: &str = "overlayfs";
const LOOK_MAX: Duration = Duration::from_mins(1);

/// Puts a text as a blob, and returns its digest.
async fn blob(client: &ContainerdClient, text: &str, labels: BTreeMap<String, String>) -> String {
    let digest = Digest::of(text.as_bytes()).to_string();
    if client.content(&digest).await.unwrap().is_none() {
        client.write_content(&digest, text.len() as u64, text.as_bytes(), labels).await.unwrap();
    }
    digest
}

/// Puts a chain of empty layers, lowest first, and returns the name of the top.
async fn chain(client: &ContainerdClient, layers: &[String]) -> String {
    let mut top = String::new();
    for layer in layers {
        let name = Digest::of(format!("{top} {layer}").as_bytes()).to_string();
        if client.snapshot(OVERLAYFS, &name).await.unwrap().is_none() {
            let (snapshotter, key) = (OVERLAYFS.to_owned(), format!("extract {name}"));
            let message = snapshots::PrepareSnapshotRequest {
                snapshotter: snapshotter.clone(),
                key: key.clone(),
                parent: top,
                ..Default::default()
            };
            client.prepare(message).await.unwrap();
            let message =
                snapshots::CommitSnapshotRequest { snapshotter, key, name: name.clone(), ..Default::default() };
            client.commit(message).await.unwrap();
        }
        top = name;
    }
    top
}

/// Puts an image of empty layers with one packed blob each and the three records of CRI; returns its id.
pub(crate) async fn put(client: &ContainerdClient, name: &str, layers: &[String]) -> ImageId {
    put_labelled(client, name, layers, BTreeMap::new()).await
}

/// The same, with labels of its configuration.
async fn put_labelled(
    client: &ContainerdClient,
    name: &str,
    layers: &[String],
    labels: BTreeMap<String, String>,
) -> ImageId {
    let top = chain(client, layers).await;
    let refers = |kind: &str, digest: String| (format!("containerd.io/gc.ref.{kind}"), digest);
    let labels = labels.into_iter().chain([refers("snapshot.overlayfs", top)]).collect();
    let config = blob(client, &format!("config of {name}"), labels).await;
    let mut labels = BTreeMap::from([refers("content.config", config.clone())]);
    for (at, layer) in layers.iter().enumerate() {
        labels.extend([refers(&format!("content.l.{at}"), blob(client, layer, BTreeMap::new()).await)]);
    }
    let manifest = blob(client, &format!("manifest of {name}"), labels).await;
    let index = blob(client, &format!("index of {name}"), [refers("content.m.0", manifest)].into()).await;
    for name in [format!("{name}:v1"), format!("{name}@{index}"), config.clone()] {
        let media_type = "application/vnd.oci.image.index.v1+json".to_owned();
        let target = Descriptor { media_type, digest: index.clone(), size: 1 };
        client.create_image(Image { name, target: Some(target), ..Image::default() }).await.unwrap();
    }
    ImageId::new(config)
}

async fn look(sizes: &ContainerdSizes) -> LayerGraph {
    let graph = sizes.layers().await.unwrap().expect("it answers its own interface");
    assert_eq!(graph.certainty, Certainty::Exact);
    graph
}

#[tokio::test]
async fn what_leases_and_other_namespaces_keep_is_held() {
    let node = Node::start().await;
    let client = node.client();
    let sizes = ContainerdSizes::new(node.client(), LOOK_MAX);
    assert_eq!(look(&sizes).await, LayerGraph { certainty: Certainty::Exact, ..LayerGraph::default() });
    let lease = LeaseId::unique();
    client.create_lease(&lease, Duration::from_hours(1)).await.unwrap();
    let id = put(&client.under(&lease), "registry/app", &["one".to_owned(), "two".to_owned()]).await;
    assert_eq!(look(&sizes).await.freed_by([&id]).bytes.0, 0, "the lease of its pull keeps all of it");
    client.delete_lease(&lease, true).await.unwrap();

    // Two snapshots of three folders each, and five blobs.
    let freed = look(&sizes).await.freed_by([&id]);
    assert_eq!((freed.bytes.0, freed.inodes), (2 * 3 * 4096 + 5 * 4096, 2 * 3 + 5));
    let mut ctr = Command::new("ctr");
    ctr.arg("-a").arg(node.socket()).args(["-n", "another", "content", "ingest", "one"]);
    ctr.stdin(std::process::Stdio::piped());
    let mut ingest = ctr.spawn().expect("ctr comes with containerd");
    std::io::Write::write_all(&mut ingest.stdin.take().unwrap(), b"one").unwrap();
    assert!(ingest.wait().unwrap().success());
    let freed = look(&sizes).await.freed_by([&id]);
    assert_eq!(
        (freed.bytes.0, freed.inodes),
        (2 * 3 * 4096 + 4 * 4096, 2 * 3 + 4),
        "the other namespace keeps the blob"
    );

    let leased = client.under(&lease);
    client.create_lease(&lease, Duration::from_hours(1)).await.unwrap();
    let other = put(&leased, "registry/other", &["one".to_owned()]).await;
    client.delete_lease(&lease, true).await.unwrap();
    let graph = look(&sizes).await;
    assert_eq!(graph.freed_by([&id]).bytes.0, 3 * 4096 + 4 * 4096, "the lower layer is of both images");
    // The end of the lease was a collection, of every namespace: nothing referred to the other namespace's blob.
    assert_eq!(graph.freed_by([&id, &other]).bytes.0, 2 * 3 * 4096 + 8 * 4096);
}

#[tokio::test]
async fn an_artifact_is_known_by_the_labels_of_its_configuration_also_while_containerd_is_away() {
    let node = Node::start().await;
    let (client, lease) = (node.client(), LeaseId::unique());
    client.create_lease(&lease, Duration::from_hours(1)).await.unwrap();
    let leased = client.under(&lease);
    let artifact = Artifact { kind: "a/model".to_owned(), manifest: Digest::of(b"manifest"), files: 7 };
    let model = put_labelled(&leased, "registry/model", &["one".to_owned()], artifact.labels()).await;
    let app = put(&leased, "registry/app", &["two".to_owned()]).await;
    let sizes = ContainerdSizes::new(node.client(), LOOK_MAX);
    let found = sizes.artifacts(&[&model, &app]).await;
    assert_eq!(
        found.into_iter().map(|(id, found)| (id, (*found).clone())).collect::<Vec<_>>(),
        [(model.clone(), artifact)]
    );
    // What an image is never changes, so containerd is not asked again.
    drop(node);
    assert_eq!(sizes.artifacts(&[&app, &model]).await.len(), 1);
    assert!(sizes.artifacts(&[&app]).await.is_empty());
    assert!(ContainerdSizes::new(client, LOOK_MAX).artifacts(&[&model]).await.is_empty());
}
