//! All that a containerd has of images: its own records, its blobs, its snapshots, and what CRI shows of them.

use std::collections::{BTreeMap, BTreeSet};

use super::node::{Node, SNAPSHOTTER};
use crate::wire::{ImageServiceClient, v1};

/// What it is → all that is recorded of it.
pub(super) type Dump = BTreeMap<String, String>;

/// Everything but leases, times and blobs of these digests.
pub(super) async fn dump(node: &Node, layers: &BTreeSet<String>) -> Dump {
    let client = node.client();
    let mut dump = Dump::new();
    for image in client.images().await.unwrap() {
        let (target, labels) = (image.target.unwrap(), sorted(&image.labels));
        dump.insert(format!("image {}", image.name), format!("{labels:?} {target:?}"));
    }
    for blob in client.contents().await.unwrap() {
        if !layers.contains(&blob.digest) {
            dump.insert(format!("blob {}", blob.digest), format!("{} bytes {:?}", blob.size, sorted(&blob.labels)));
        }
    }
    for snapshot in client.snapshots(SNAPSHOTTER).await.unwrap() {
        let usage = client.usage(SNAPSHOTTER, &snapshot.name).await.unwrap().unwrap();
        dump.insert(
            format!("snapshot {}", snapshot.name),
            format!(
                "{:?} on {:?}, {} inodes, {:?}",
                snapshot.kind,
                snapshot.parent,
                usage.inodes,
                sorted(&snapshot.labels)
            ),
        );
    }
    dump_cri(node, &mut dump).await;
    dump
}

/// The lists and the verbose status by every name.
async fn dump_cri(node: &Node, dump: &mut Dump) {
    let channel = tonic::transport::Endpoint::new(node.containerd.endpoint()).unwrap().connect().await.unwrap();
    let mut cri: ImageServiceClient = ImageServiceClient::new(channel);
    let listed = cri.list_images(v1::ListImagesRequest::default()).await.unwrap().into_inner().images;
    for image in listed {
        let names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
        for name in names {
            let image = Some(v1::ImageSpec { image: name.clone(), ..v1::ImageSpec::default() });
            let request = v1::ImageStatusRequest { image, verbose: true };
            let status = cri.image_status(request).await.unwrap().into_inner();
            let shown = status.image.unwrap_or_else(|| panic!("{name} is listed and not shown"));
            dump.insert(format!("status of {name}"), format!("{:?} {:?}", ordered(shown), sorted(&status.info)));
        }
        dump.insert(format!("listed {}", image.id), format!("{:?}", ordered(image)));
    }
}

/// containerd tells names in the order in which it met them.
fn ordered(mut image: v1::Image) -> v1::Image {
    image.repo_tags.sort();
    image.repo_digests.sort();
    image
}

fn sorted<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> BTreeMap<&'a String, &'a String> {
    labels.into_iter().collect()
}

/// A line for each record that differs.
pub(super) fn differences(found: &Dump, expected: &Dump) -> Vec<String> {
    let all: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let differ = all.into_iter().filter(|key| found.get(*key) != expected.get(*key));
    differ
        .map(|key| format!("{key}:\n  expected {}\n  found    {}", text(expected.get(key)), text(found.get(key))))
        .collect()
}

fn text(record: Option<&String>) -> &str {
    record.map_or("nothing", String::as_str)
}
