//! An import beside all else that changes the same containerd: its collector, its own pulls, other imports.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use imagelet_core::{
    image::{Digest, ImageSpec},
    ports::ImageService as _,
};
use imagelet_runtime::containerd::{ContainerdClient, LeaseId, v1::snapshots::PrepareSnapshotRequest};

use super::{
    dump::{self, dump},
    mounted::{chain, shown},
    node::{DEFAULT, IMPORTS, Node, SNAPSHOTTER, collect, import},
    samples,
};
use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::Daemon,
    relay::{connect, in_runtime, pull, request},
    soundness::small_layer,
    testbed::{ContainerdRelease, scratch, wait_until},
};

/// How long a lease of a test lives.
const LEASED: Duration = Duration::from_mins(10);

/// Forces containerd's collector again and again until it is dropped.
struct Collecting {
    stopped: Arc<AtomicBool>,
    work: tokio::task::JoinHandle<usize>,
}

impl Collecting {
    fn start(client: ContainerdClient) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopped);
        let work = tokio::spawn(async move {
            let mut rounds = 0;
            while !flag.load(Ordering::SeqCst) {
                collect(&client).await;
                rounds += 1;
            }
            rounds
        });
        Self { stopped, work }
    }

    /// How often it ran.
    async fn stop(self) -> usize {
        self.stopped.store(true, Ordering::SeqCst);
        self.work.await.unwrap()
    }
}

#[test]
fn an_import_loses_nothing_to_a_collector_that_always_runs() {
    let registry = FakeRegistry::start();
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let [native, node] = [(); 2].map(|()| Node::start(&release, "unused:v1"));
            let daemon = node.daemon(IMPORTS);
            let collecting = Collecting::start(node.client());
            let mut layers = BTreeSet::new();
            for sample in samples::all() {
                let name = registry.put(sample.name, &sample.image);
                import(&daemon, &name).await;
                native.pull_natively(&name).await;
                layers.extend(sample.image.layers.iter().map(|blob| blob.digest.clone()));
            }
            let rounds = collecting.stop().await;
            assert!(rounds > 20, "{release}: the collector ran {rounds} times only");
            let differences = dump::differences(&dump(&node, &layers).await, &dump(&native, &layers).await);
            assert!(differences.is_empty(), "{release}:\n{}", differences.join("\n"));
        });
    }
}

/// Which of two pulls waits for a layer while the other one runs from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Import,
    NativePull,
}

#[test]
fn an_import_and_a_pull_of_containerds_own_complete_whichever_waits_for_the_other() {
    let registry = FakeRegistry::start();
    let image = Image::oci(&["first", "second", "third"].map(|seed| small_layer(seed, 40_000)));
    // One image at two names, so that each pull can be held alone.
    let (ours, theirs) = (registry.put("ours:v1", &image), registry.put("theirs:v1", &image));
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let node = Node::start(&release, "unused:v1");
            let daemon = node.daemon(IMPORTS);
            let cases = (0..image.layers.len()).flat_map(|held| [(held, Waits::Import), (held, Waits::NativePull)]);
            for (held, waits) in cases {
                let what = format!("{release}, layer {held} held, {waits:?} waits");
                let (through, alone) = (connect(&daemon).await, node.images().await);
                let (slow, quick, repository) = match waits {
                    Waits::Import => ((through, request(&ours)), (alone, request(&theirs)), "ours"),
                    Waits::NativePull => ((alone, request(&theirs)), (through, request(&ours)), "theirs"),
                };
                let waited = registry.hold(repository, &image.layers[held].digest);
                let slow = tokio::spawn(async move { pull(&slow.0, &slow.1).await });
                tokio::task::block_in_place(|| waited.until_asked());
                assert_eq!(pull(&quick.0, &quick.1).await.unwrap(), image.id(), "{what}");
                drop(waited);
                assert_eq!(slow.await.unwrap().unwrap(), image.id(), "{what}");
                is_whole(&node, &image, &[&ours, &theirs], &what).await;
                node.remove(image.id()).await;
                node.is_empty(&what).await;
            }
        });
    }
}

/// Fails unless all names show the image, its tree can be mounted, and no import holds anything.
async fn is_whole(node: &Node, image: &Image, names: &[&String], what: &str) {
    node.has_no_lease(what).await;
    for name in names {
        let found = node.images().await.status(&ImageSpec::new(*name)).await.unwrap();
        assert_eq!(found.unwrap_or_else(|| panic!("{what}: no {name}")).id.as_str(), image.id(), "{what}");
    }
    let top = chain(&image.diff_ids()).pop().expect("an image has a layer");
    assert!(shown(&node.client(), &node.containerd.root(), &top).await.contains_key("third/again"), "{what}");
}

#[test]
fn two_imports_with_layers_in_common_fetch_these_once_and_both_complete() {
    let registry = FakeRegistry::start();
    let common = ["first", "second"].map(|seed| small_layer(seed, 40_000));
    let on_top = |seed: &str| Image::oci(&[common[0].clone(), common[1].clone(), small_layer(seed, 40_000)]);
    let (one, other) = (on_top("third"), on_top("other"));
    let names = [registry.put("app:v1", &one), registry.put("app:v2", &other)];
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let node = Node::start(&release, "unused:v1");
            let daemon = node.daemon(IMPORTS);
            let asked = registry.requests().len();
            let waited = registry.hold("app", &one.layers[0].digest);
            let pulls = names.clone().map(|name| {
                let client = node.folder.path().join("imagelet.sock");
                let endpoint = format!("unix://{}", client.display()).parse().unwrap();
                tokio::spawn(async move {
                    let images = imagelet_runtime::cri::RemoteImageService::connect(&endpoint, LEASED).await.unwrap();
                    pull(&images, &request(&name)).await
                })
            });
            tokio::task::block_in_place(|| {
                waited.until_asked();
                // Both know what they need before the first layer comes.
                wait_until("both manifests", || {
                    let requests = registry.requests();
                    names.iter().all(|name| requests[asked..].iter().any(|one| one.ends_with(&name[name.len() - 2..])))
                });
            });
            drop(waited);
            for (pull, image) in pulls.into_iter().zip([&one, &other]) {
                assert_eq!(pull.await.unwrap().unwrap(), image.id(), "{release}");
            }
            let requests = registry.requests();
            for layer in &one.layers[..2] {
                let fetched = requests[asked..].iter().filter(|request| request.ends_with(&layer.digest)).count();
                assert_eq!(fetched, 1, "{release}: {requests:?}");
            }
            is_whole(&node, &one, &[&names[0]], "the one").await;
            for image in [&one, &other] {
                node.remove(image.id()).await;
            }
            node.is_empty(&release.to_string()).await;
            drop(daemon);
        });
    }
}

#[test]
fn a_second_imagelet_before_the_same_containerd_pulls_beside_the_first() {
    let registry = FakeRegistry::start();
    let image = Image::oci(&["first", "second", "third"].map(|seed| small_layer(seed, 40_000)));
    let (ours, theirs) = (registry.put("ours:v1", &image), registry.put("theirs:v1", &image));
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let (node, folder) = (Node::start(&release, "unused:v1"), scratch());
            let other = Daemon::start(folder.path(), ["--config", &node.configure(folder.path(), DEFAULT)]);
            let daemons = [node.daemon(DEFAULT), other];
            for held in [1, 2] {
                let what = format!("{release}, layer {held} held");
                let waited = registry.hold("ours", &image.layers[held].digest);
                let (first, second) = (connect(&daemons[0]).await, connect(&daemons[1]).await);
                let asked = request(&ours);
                let first = tokio::spawn(async move { pull(&first, &asked).await });
                tokio::task::block_in_place(|| waited.until_asked());
                // Its lease and its staging are those of a process that lives.
                assert_eq!(pull(&second, &request(&theirs)).await.unwrap(), image.id(), "{what}");
                drop(waited);
                assert_eq!(first.await.unwrap().unwrap(), image.id(), "{what}");
                is_whole(&node, &image, &[&ours, &theirs], &what).await;
                node.remove(image.id()).await;
                node.is_empty(&what).await;
            }
        });
    }
}

#[test]
fn what_an_imagelet_that_died_elsewhere_left_is_released_at_the_next_start() {
    for release in ContainerdRelease::all() {
        in_runtime(async {
            let node = Node::start(&release, "unused:v1");
            let lease = LeaseId::unique();
            let client = node.client();
            client.create_lease(&lease, LEASED).await.unwrap();
            let bytes = b"left behind";
            let digest = Digest::of(bytes);
            client
                .under(&lease)
                .write_content(digest.as_str(), bytes.len() as u64, &bytes[..], BTreeMap::new())
                .await
                .unwrap();
            let snapshot = PrepareSnapshotRequest {
                snapshotter: SNAPSHOTTER.into(),
                key: "extract-1 left".into(),
                ..PrepareSnapshotRequest::default()
            };
            client.under(&lease).prepare(snapshot).await.unwrap();
            collect(&client).await;
            assert_eq!(client.contents().await.unwrap().len(), 1, "{release}: the lease holds");
            std::fs::create_dir_all(node.staging().join("tmp/1-1/fs/some")).unwrap();

            let daemon = node.daemon(IMPORTS);
            // Whatever is asked for makes imagelet look at the runtime.
            drop(pull(&connect(&daemon).await, &request("127.0.0.1:1/absent:v1")).await);
            node.is_empty(&format!("{release}: after a start")).await;
        });
    }
}
