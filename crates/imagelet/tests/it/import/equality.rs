//! An imported image beside the same one that containerd pulled: equal record by record, and entry by entry.

use std::collections::BTreeSet;

use super::{
    dump::{self, dump},
    mounted::{self, chain, shown},
    node::{DEFAULT, IMPORTS, KEEPS_BLOBS, Node, import},
    samples,
};
use crate::{fake_registry::FakeRegistry, images::Image, relay::in_runtime, testbed::ContainerdRelease};

/// Two nodes with one version of containerd: one pulls by itself, imagelet pulls for the other.
struct Twins {
    release: ContainerdRelease,
    native: Node,
    imported: Node,
    daemon: crate::program::Daemon,
    /// Digests of all layers that were pulled.
    layers: BTreeSet<String>,
}

impl Twins {
    fn start(release: &ContainerdRelease, settings: &str) -> Self {
        let [native, imported] = [(); 2].map(|()| Node::start(release, "unused:v1"));
        let daemon = imported.daemon(settings);
        Self { release: release.clone(), native, imported, daemon, layers: BTreeSet::new() }
    }

    /// Pulls by both.
    async fn pull(&mut self, name: &str, image: &Image) {
        self.layers.extend(image.layers.iter().map(|blob| blob.digest.clone()));
        let natively = self.native.pull_natively(name).await;
        assert_eq!(import(&self.daemon, name).await, natively, "{}: {name}", self.release);
    }

    /// Fails where one has what the other has not; layer blobs are the one thing that an import leaves out.
    async fn have_equal_records(&self, what: &str) {
        let [found, expected] = [dump(&self.imported, &self.layers).await, dump(&self.native, &self.layers).await];
        let differences = dump::differences(&found, &expected);
        assert!(differences.is_empty(), "{}: after {what}:\n{}", self.release, differences.join("\n"));
        assert!(!expected.is_empty(), "{what}: nothing was compared");
        let blobs = self.imported.client().contents().await.unwrap();
        assert!(
            blobs.iter().all(|blob| !self.layers.contains(&blob.digest)),
            "{}: layer blobs: {blobs:?}",
            self.release
        );
    }
}

#[test]
fn imported_images_equal_those_that_containerd_pulls_in_every_record_and_entry() {
    let registry = FakeRegistry::start();
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let mut twins = Twins::start(&release, IMPORTS);
            for sample in samples::all() {
                let name = registry.put(sample.name, &sample.image);
                twins.pull(&name, &sample.image).await;
                twins.have_equal_records(sample.name).await;
                let (mut trees, chain) = (Vec::new(), chain(&sample.image.diff_ids()));
                for node in [&twins.imported, &twins.native] {
                    trees.push(shown(&node.client(), &node.containerd.root(), chain.last().unwrap()).await);
                }
                let differences = mounted::differences(&trees[0], &trees[1], &sample.timeless());
                assert!(differences.is_empty(), "{release}: {}:\n{}", sample.name, differences.join("\n"));
            }
            for sample in samples::all() {
                for node in [&twins.imported, &twins.native] {
                    node.remove(sample.image.id()).await;
                }
            }
            twins.imported.is_empty(&format!("{release}: removed as a kubelet does")).await;
            twins.native.is_empty(&format!("{release}: pulled and removed by containerd")).await;
        });
    }
}

#[test]
fn every_way_to_name_an_image_leaves_the_records_that_containerd_leaves() {
    let registry = FakeRegistry::start();
    let marked = |text: &str| Image::marked(text, 2000);
    let (one, other, arm) = (marked("one"), marked("other"), marked("arm"));
    let docker = Image::docker(&[crate::images::Layer::gzip().file("docker", "d", 0o644)]);
    let steps: Vec<(String, &Image)> = vec![
        (registry.put("plain/one:v1", &one), &one),
        // Another tag, another repository: labels of the blobs name both.
        (registry.put("plain/one:v2", &one), &one),
        (registry.put("elsewhere/one:v1", &one), &one),
        (format!("{}@{}", registry.name("plain/one"), one.manifest.digest), &one),
        (registry.put("docker:v1", &docker), &docker),
        (registry.put_index("multi:v1", &other, &[(&arm, "arm64"), (&one, "s390x")]), &other),
        (format!("{}@{}", registry.name("multi"), other.index(&[(&arm, "arm64"), (&one, "s390x")]).digest), &other),
        // The manifest of an image that came by its index.
        (format!("{}@{}", registry.name("multi"), other.manifest.digest), &other),
        // By tag and digest at once.
        (format!("{}@{}", registry.put("both:v1", &other), other.manifest.digest), &other),
    ];
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let mut twins = Twins::start(&release, IMPORTS);
            for (name, image) in &steps {
                twins.pull(name, image).await;
                twins.have_equal_records(name).await;
            }
            // A tag that means another image from now on.
            registry.put("plain/one:v1", &docker);
            twins.pull(&registry.name("plain/one:v1"), &docker).await;
            twins.have_equal_records("a tag that moved").await;
            registry.put("plain/one:v1", &one);
        });
    }
}

#[test]
fn where_blobs_are_kept_not_even_those_of_layers_are_missing() {
    let registry = FakeRegistry::start();
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let mut twins = Twins::start(&release, KEEPS_BLOBS);
            for sample in samples::all() {
                twins.pull(&registry.put(sample.name, &sample.image), &sample.image).await;
            }
            let none = BTreeSet::new();
            let differences = dump::differences(&dump(&twins.imported, &none).await, &dump(&twins.native, &none).await);
            assert!(differences.is_empty(), "{release}:\n{}", differences.join("\n"));
            for sample in samples::all() {
                twins.imported.remove(sample.image.id()).await;
            }
            twins.imported.is_empty(&release.to_string()).await;
        });
    }
}

#[test]
fn an_image_on_layers_that_containerd_pulled_itself_adds_only_its_own() {
    let registry = FakeRegistry::start();
    let mut above = Image::busybox("above");
    above.append(Image::marked("own", 3000));
    let (base, above_name) = (registry.put("base:v1", &Image::busybox("above")), registry.put("above:v1", &above));
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let node = Node::start(&release, "unused:v1");
            let daemon = node.daemon(DEFAULT);
            node.pull_natively(&base).await;
            let asked = registry.requests().len();
            assert_eq!(import(&daemon, &above_name).await, above.id());
            let blobs: Vec<String> = registry.requests()[asked..].to_vec();
            let fetched = |digest: &str| blobs.iter().any(|request| request.ends_with(digest));
            assert!(above.layers[..2].iter().all(|layer| !fetched(&layer.digest)), "{release}: {blobs:?}");
            assert!(fetched(&above.layers[2].digest), "{release}: {blobs:?}");
            // And the other way round: containerd pulls upon what was imported.
            node.remove(Image::busybox("above").id()).await;
            node.pull_natively(&base).await;
            for id in [above.id(), Image::busybox("above").id()] {
                node.remove(id).await;
            }
            node.is_empty(&format!("{release}: both removed")).await;
        });
    }
}
