//! Imports end as whole images, or as nothing.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::PathBuf, sync::Arc};

use imagelet_core::{
    image::{Digest, ImageSpec},
    ports::{ForwardReason, ImageService as _},
};
use imagelet_oci::{ImportStage, ImportedImage, LayerImport, LayerSink as _, Taken};
use imagelet_runtime::{Containerd, ContainerdConfig, containerd::LeaseId, cri::SnapshotterPlace};

use crate::{
    cri::CriImages,
    node::Node,
    staged::{archive, artifact, image, unpack, unpack_whole},
};

const NAME: &str = "reg.test:5000/team/app:v1";
const LAYERS: [&str; 3] = ["one", "two", "three"];

async fn connect(node: &Node, keep_blobs: bool) -> Containerd {
    Containerd::connect(config(node, keep_blobs)).await.unwrap()
}

fn config(node: &Node, keep_blobs: bool) -> ContainerdConfig {
    ContainerdConfig {
        socket: node.socket(),
        place: SnapshotterPlace::of(&node.snapshotter()).unwrap(),
        version: Node::version(),
        keep_blobs,
        cri: Arc::new(CriImages::of(node)),
        rebases: None,
    }
}

/// Imports all layers that are not there, from the top, as if the lowest came last.
async fn import(containerd: &Containerd, image: &Arc<ImportedImage>, layers: &[&str]) {
    let import = containerd.begin(Arc::clone(image)).await.unwrap();
    take_all(containerd, &import, layers).await;
    let id = import.finish().await.unwrap();
    assert_eq!(id.as_str(), image.config.digest.as_str());
}

async fn take_all(containerd: &Containerd, import: &Arc<dyn LayerImport>, layers: &[&str]) {
    let takes = (import.present()..layers.len()).rev().map(|index| {
        let (import, tree) = (Arc::clone(import), unpack(containerd, layers[index]));
        tokio::spawn(async move { import.take(index, tree).await })
    });
    for take in takes.collect::<Vec<_>>() {
        assert_eq!(take.await.unwrap().unwrap(), Taken::Committed);
    }
}

/// Every collection that is due runs with the end of a lease.
async fn collect(containerd: &Containerd) {
    let lease = LeaseId::unique();
    containerd.client().create_lease(&lease, std::time::Duration::from_hours(1)).await.unwrap();
    containerd.client().delete_lease(&lease, true).await.unwrap();
}

/// All that containerd keeps: records, blobs, snapshots, leases, and folders of snapshots.
async fn kept(node: &Node) -> [usize; 5] {
    let client = node.client();
    [
        client.images().await.unwrap().len(),
        client.contents().await.unwrap().len(),
        client.snapshots("overlayfs").await.unwrap().len(),
        client.leases().await.unwrap().len(),
        fs::read_dir(node.snapshotter().join("snapshots")).map_or(0, Iterator::count),
    ]
}

fn chains(image: &ImportedImage) -> Vec<String> {
    image.chains().iter().map(ToString::to_string).collect()
}

/// The folder of a layer, found by its file.
fn folder_of(node: &Node, layer: &str) -> PathBuf {
    let snapshots = fs::read_dir(node.snapshotter().join("snapshots")).unwrap();
    let mut folders = snapshots.map(|entry| entry.unwrap().path().join("fs"));
    folders.find(|folder| folder.join(layer).exists()).unwrap_or_else(|| panic!("no snapshot has `{layer}`"))
}

#[tokio::test]
async fn an_import_is_an_image_that_cri_shows_and_removes_without_a_rest() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let image = image(NAME, "first", &LAYERS);
    import(&containerd, &image, &LAYERS).await;
    collect(&containerd).await;
    assert_eq!(kept(&node).await, [3, 3, 3, 0, 3]);
    assert_eq!(fs::read_dir(containerd.staging()).unwrap().count(), 0);

    let cri = CriImages::of(&node);
    let by_digest = format!("reg.test:5000/team/app@{}", image.root.digest);
    for name in [NAME, &by_digest, image.config.digest.as_str()] {
        let shown = cri.status(&ImageSpec::new(name)).await.unwrap().unwrap_or_else(|| panic!("{name} is not shown"));
        assert_eq!(shown.id.as_str(), image.config.digest.as_str());
        assert_eq!((shown.tags, shown.digests), (vec![NAME.to_owned()], vec![by_digest.clone()]));
    }

    let client = node.client();
    for (record, chain) in chains(&image).iter().enumerate().map(|(index, chain)| (index, chain.clone())) {
        let snapshot = client.snapshot("overlayfs", &chain).await.unwrap().unwrap();
        let parent = record.checked_sub(1).map_or(String::new(), |below| chains(&image)[below].clone());
        assert_eq!(snapshot.parent, parent);
        assert_eq!(snapshot.labels["containerd.io/snapshot.ref"], chain);
    }
    let labels: Vec<BTreeMap<String, String>> = {
        let mut labels = Vec::new();
        for digest in [&image.config.digest, &image.manifest.digest, &image.root.digest] {
            labels.push(client.content(digest.as_str()).await.unwrap().unwrap().labels);
        }
        labels
    };
    assert!(labels.iter().all(|labels| labels["containerd.io/distribution.source.reg.test"] == "team/app"));
    assert_eq!(labels.iter().map(BTreeMap::len).collect::<Vec<_>>(), [2, 5, 3]);
    assert_eq!(labels[0]["containerd.io/gc.ref.snapshot.overlayfs"], chains(&image)[2]);

    for layer in LAYERS {
        let folder = folder_of(&node, layer);
        assert_eq!(fs::read(folder.join(layer)).unwrap(), archive(layer));
        assert_eq!(fs::metadata(folder.join("etc")).unwrap().mode() & 0o7777, 0o700, "as the lowest layer has it");
    }

    cri.remove(&ImageSpec::new(NAME)).await.unwrap();
    node.until("all is removed", async || kept(&node).await == [0; 5]).await;
}

#[tokio::test]
async fn an_artifact_is_found_by_the_record_of_its_manifest_and_has_its_labels_on_the_configuration() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let model = artifact(NAME, "manifest", "one");
    let by_digest = format!("reg.test:5000/team/app@{}", Digest::of(b"manifest"));
    assert_eq!(containerd.named_artifact(&by_digest).await.unwrap(), None);
    import(&containerd, &model, &LAYERS[..1]).await;
    collect(&containerd).await;
    assert_eq!(kept(&node).await, [3, 2, 1, 0, 1]);
    let (manifest, layer) = (model.manifest.digest.clone(), model.layers[0].digest.clone());
    for name in [NAME, &by_digest] {
        let found = containerd.named_artifact(name).await.unwrap();
        assert_eq!(found, Some((manifest.clone(), layer.clone())), "{name}");
        let shown = CriImages::of(&node).status(&ImageSpec::new(name)).await.unwrap();
        assert_eq!(shown.expect("it is shown").id.as_str(), model.config.digest.as_str(), "{name}");
    }
    let labels = node.client().content(model.config.digest.as_str()).await.unwrap().unwrap().labels;
    let wanted = model.artifact.as_ref().unwrap().labels();
    assert!(wanted.iter().all(|(name, value)| labels.get(name) == Some(value)), "{labels:?}");

    // An image of an index has no layer of its own.
    let other = image("reg.test:5000/other:v1", "other", &LAYERS[..1]);
    import(&containerd, &other, &LAYERS[..1]).await;
    assert_eq!(containerd.named_artifact("reg.test:5000/other:v1").await.unwrap(), None);
}

#[tokio::test]
async fn layers_and_documents_that_are_there_are_held_and_not_imported_again() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let first = image(NAME, "first", &LAYERS[..2]);
    import(&containerd, &first, &LAYERS[..2]).await;
    // The same image from elsewhere.
    let elsewhere = image("other.test/copy:v1", "first", &LAYERS[..2]);
    let again = containerd.begin(Arc::clone(&elsewhere)).await.unwrap();
    assert_eq!(again.present(), 2);
    assert!(again.holds(1).await.unwrap());
    again.finish().await.unwrap();
    let labels = node.client().content(first.config.digest.as_str()).await.unwrap().unwrap().labels;
    assert_eq!(labels["containerd.io/distribution.source.reg.test"], "team/app");
    assert_eq!(labels["containerd.io/distribution.source.other.test"], "copy");
    // A name that moves.
    let second = image(NAME, "second", &LAYERS);
    let more = containerd.begin(Arc::clone(&second)).await.unwrap();
    assert_eq!(more.present(), 2);
    // What it stands on is removed meanwhile, and stays.
    let cri = CriImages::of(&node);
    cri.remove(&ImageSpec::new(first.config.digest.as_str())).await.unwrap();
    collect(&containerd).await;
    assert!(!more.holds(2).await.unwrap());
    take_all(&containerd, &more, &LAYERS).await;
    assert!(more.holds(2).await.unwrap());
    more.finish().await.unwrap();
    let shown = cri.status(&ImageSpec::new(NAME)).await.unwrap().unwrap();
    assert_eq!(shown.id.as_str(), second.config.digest.as_str());
    assert_eq!(kept(&node).await, [3, 3, 3, 0, 3]);
}

#[tokio::test]
async fn layers_with_an_entry_for_each_folder_come_in_any_order() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let image = image(NAME, "first", &LAYERS);
    let import = containerd.begin(Arc::clone(&image)).await.unwrap();
    let take = |index: usize| {
        let (import, tree) = (Arc::clone(&import), unpack_whole(&containerd, LAYERS[index]));
        tokio::spawn(async move { import.take(index, tree).await })
    };
    let above = [take(2), take(1)];
    if containerd.rebases() {
        // Both are in their places before the lowest has come.
        let client = node.client();
        let is_filled = async || (fs::read_dir(containerd.staging()).unwrap().count(), kept(&node).await[2]) == (0, 2);
        node.until("both are moved", is_filled).await;
        assert_eq!(client.snapshot("overlayfs", &chains(&image)[1]).await.unwrap(), None);
    }
    assert_eq!(take(0).await.unwrap().unwrap(), Taken::Committed);
    for above in above {
        assert_eq!(above.await.unwrap().unwrap(), Taken::Committed);
    }
    import.finish().await.unwrap();
    collect(&containerd).await;
    assert_eq!(kept(&node).await, [3, 3, 3, 0, 3]);
    let top = node.client().snapshot("overlayfs", &chains(&image)[2]).await.unwrap().unwrap();
    assert_eq!(top.parent, chains(&image)[1]);
}

#[tokio::test]
async fn a_containerd_that_ignores_the_parent_of_a_commit_keeps_no_orphan() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    if containerd.rebases() {
        return;
    }
    let rebasing = ContainerdConfig { rebases: Some(true), ..config(&node, false) };
    let rebasing = Containerd::connect(rebasing).await.unwrap();
    let import = rebasing.begin(image(NAME, "first", &LAYERS)).await.unwrap();
    assert_eq!(import.take(0, unpack_whole(&containerd, "one")).await.unwrap(), Taken::Committed);
    let error = import.take(1, unpack_whole(&containerd, "two")).await.unwrap_err();
    assert!(error.to_string().contains("does not stand on"), "{error}");
    let second = &chains(&image(NAME, "first", &LAYERS))[1];
    assert_eq!(node.client().snapshot("overlayfs", second).await.unwrap(), None);
    import.abandon().await;
    assert_eq!(kept(&node).await, [0; 5]);
}

#[tokio::test]
async fn takes_that_nothing_waits_for_leave_nothing_behind_the_lease() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    for round in 0..24 {
        let import = containerd.begin(image(NAME, "first", &LAYERS)).await.unwrap();
        let takes = [0, 1, 2].map(|index| {
            let (import, tree) = (Arc::clone(&import), unpack_whole(&containerd, LAYERS[index]));
            tokio::spawn(async move { import.take(index, tree).await })
        });
        tokio::time::sleep(std::time::Duration::from_micros(500 * round)).await;
        for take in takes {
            take.abort();
            let _ = take.await;
        }
        if round % 2 == 0 {
            import.abandon().await;
        }
        drop(import);
        containerd.released().await;
        assert_eq!(kept(&node).await, [0; 5], "round {round}");
        // What no take has moved is the caller's.
        for entry in fs::read_dir(containerd.staging()).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    }
}

#[tokio::test]
async fn an_import_whose_naming_is_not_waited_for_is_whole_or_absent() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    for round in 0..8 {
        let image = image(NAME, &format!("round {round}"), &LAYERS);
        let import = containerd.begin(Arc::clone(&image)).await.unwrap();
        take_all(&containerd, &import, &LAYERS).await;
        let finish = tokio::spawn({
            let import = Arc::clone(&import);
            async move { import.finish().await }
        });
        tokio::time::sleep(std::time::Duration::from_millis(2 * round)).await;
        finish.abort();
        let _ = finish.await;
        if round % 2 == 0 {
            import.abandon().await;
        }
        drop(import);
        containerd.released().await;
        collect(&containerd).await;
        let kept_now = kept(&node).await;
        assert!([[0; 5], [3, 3, 3, 0, 3]].contains(&kept_now), "{kept_now:?}");
        CriImages::of(&node).remove(&ImageSpec::new(image.config.digest.as_str())).await.unwrap();
        node.until("all is removed", async || kept(&node).await == [0; 5]).await;
    }
}

#[tokio::test]
async fn collections_without_a_pause_take_nothing_of_imports() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let collections = tokio::spawn({
        let containerd = containerd.clone();
        async move {
            loop {
                collect(&containerd).await;
            }
        }
    });
    let cri = CriImages::of(&node);
    for round in 0..10 {
        let image = image(NAME, &format!("round {round}"), &LAYERS);
        import(&containerd, &image, &LAYERS).await;
        assert!(kept(&node).await.iter().zip([3, 3, 3, 0, 3]).all(|(kept, needed)| *kept >= needed));
        for chain in chains(&image) {
            assert!(node.client().snapshot("overlayfs", &chain).await.unwrap().is_some(), "{chain}");
        }
        cri.remove(&ImageSpec::new(NAME)).await.unwrap();
    }
    collections.abort();
}

#[tokio::test]
async fn a_collection_at_any_step_takes_nothing_of_an_import() {
    let node = Node::start().await;
    let containerd = connect(&node, true).await;
    let image = image(NAME, "first", &LAYERS);
    let import = containerd.begin(Arc::clone(&image)).await.unwrap();
    collect(&containerd).await;
    for (index, layer) in LAYERS.iter().enumerate() {
        let mut tree = unpack(&containerd, layer);
        let blob = node.root().join(format!("blob-{layer}"));
        fs::write(&blob, archive(layer)).unwrap();
        tree.blob = Some(blob);
        assert_eq!(import.take(index, tree).await.unwrap(), Taken::Committed);
        collect(&containerd).await;
    }
    node.until("the documents are written", async || kept(&node).await == [0, 6, 3, 1, 3]).await;
    collect(&containerd).await;
    import.finish().await.unwrap();
    collect(&containerd).await;
    assert_eq!(kept(&node).await, [3, 6, 3, 0, 3], "the packed layers are kept");
    let packed = node.client().content(image.layers[2].digest.as_str()).await.unwrap().unwrap();
    assert_eq!(packed.labels["containerd.io/uncompressed"], image.layers[2].diff_id.as_str());
}

#[tokio::test]
async fn an_import_that_ends_early_leaves_nothing() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let image = image(NAME, "first", &LAYERS);
    for taken in 0..=LAYERS.len() {
        for is_awaited in [true, false] {
            let import = containerd.begin(Arc::clone(&image)).await.unwrap();
            for (index, layer) in LAYERS.iter().enumerate().take(taken) {
                import.take(index, unpack(&containerd, layer)).await.unwrap();
            }
            if taken < LAYERS.len() {
                let error = import.finish().await.unwrap_err();
                assert_eq!(error.stage, ImportStage::Handover, "{error:?}");
            }
            if is_awaited {
                import.abandon().await;
                assert_eq!(kept(&node).await, [0; 5], "after {taken} layers");
            }
            drop(import);
            containerd.released().await;
            assert_eq!(kept(&node).await, [0; 5], "after {taken} layers");
        }
    }
}

#[tokio::test]
async fn a_layer_that_does_not_come_ends_the_wait_of_those_above() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let import = containerd.begin(image(NAME, "first", &LAYERS)).await.unwrap();
    let above = tokio::spawn({
        let (import, tree) = (Arc::clone(&import), unpack(&containerd, "three"));
        async move { import.take(2, tree).await }
    });
    let mut tree = unpack(&containerd, "one");
    tree.folder = containerd.staging().join("nowhere");
    let error = import.take(0, tree).await.unwrap_err();
    assert!(error.chain().contains("cannot move layer"), "{}", error.chain());
    let error = above.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "a layer below layer 2 did not get into containerd");
    import.abandon().await;
    assert_eq!(kept(&node).await, [0; 5]);
}

#[tokio::test]
async fn a_base_that_is_gone_is_said_so_to_all_layers_above() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let import = containerd.begin(image(NAME, "first", &LAYERS)).await.unwrap();
    assert_eq!(import.take(0, unpack(&containerd, "one")).await.unwrap(), Taken::Committed);
    let chain = chains(&image(NAME, "first", &LAYERS))[0].clone();
    // By hand: no collection does this.
    node.client().remove_snapshot("overlayfs", &chain).await.unwrap();
    let above = tokio::spawn({
        let (import, tree) = (Arc::clone(&import), unpack(&containerd, "three"));
        async move { import.take(2, tree).await }
    });
    assert_eq!(import.take(1, unpack(&containerd, "two")).await.unwrap(), Taken::BaseGone);
    assert_eq!(above.await.unwrap().unwrap(), Taken::BaseGone);
    import.abandon().await;
    assert_eq!(kept(&node).await, [0; 5]);
}

#[tokio::test]
async fn two_imports_of_one_image_at_the_same_time_both_succeed() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let image = image(NAME, "first", &LAYERS);
    let one = containerd.begin(Arc::clone(&image)).await.unwrap();
    let two = containerd.begin(Arc::clone(&image)).await.unwrap();
    let (first, second) = tokio::join!(
        async {
            take_all(&containerd, &one, &LAYERS).await;
            one.finish().await.unwrap()
        },
        async {
            take_all(&containerd, &two, &LAYERS).await;
            two.finish().await.unwrap()
        },
    );
    assert_eq!(first, second);
    collect(&containerd).await;
    assert_eq!(kept(&node).await, [3, 3, 3, 0, 3]);
}

#[tokio::test]
async fn leases_of_a_process_that_is_gone_are_ended_and_those_of_running_imports_are_not() {
    let node = Node::start().await;
    let containerd = connect(&node, false).await;
    let image = image(NAME, "first", &LAYERS);
    let running = containerd.begin(Arc::clone(&image)).await.unwrap();
    assert_eq!(running.take(0, unpack(&containerd, "one")).await.unwrap(), Taken::Committed);
    // As a process leaves them that was killed.
    let stale = LeaseId::unique();
    let client = node.client();
    client.create_lease(&stale, std::time::Duration::from_hours(1)).await.unwrap();
    let bytes = b"left behind";
    let digest = Digest::of(bytes);
    let written = client.under(&stale).write_content(digest.as_str(), 11, &bytes[..], BTreeMap::new()).await;
    written.unwrap();
    assert_eq!(containerd.release_stale().await.unwrap(), 1);
    node.until("the running import's documents alone are there", async || kept(&node).await == [0, 3, 1, 1, 1]).await;
    take_all_above(&containerd, &running).await;
    running.finish().await.unwrap();
    assert_eq!(containerd.release_stale().await.unwrap(), 0);
}

async fn take_all_above(containerd: &Containerd, import: &Arc<dyn LayerImport>) {
    for index in [1, 2] {
        assert_eq!(import.take(index, unpack(containerd, LAYERS[index])).await.unwrap(), Taken::Committed);
    }
}

#[tokio::test]
async fn a_lease_that_could_not_be_ended_is_ended_before_the_next_import() {
    let mut node = Node::start().await;
    let containerd = connect(&node, false).await;
    let image = image(NAME, "first", &LAYERS);
    let import = containerd.begin(Arc::clone(&image)).await.unwrap();
    import.take(0, unpack(&containerd, "one")).await.unwrap();
    node.kill();
    import.abandon().await;
    assert!(containerd.begin(Arc::clone(&image)).await.is_err(), "containerd is away");
    node.restart().await;
    assert_eq!(kept(&node).await[3], 1);
    let next = containerd.begin(Arc::clone(&image)).await.unwrap();
    assert_eq!((next.present(), &kept(&node).await[2..]), (0, &[0, 1, 0][..]));
}

#[tokio::test]
async fn what_is_in_the_way_of_imports_is_found_before_one_begins() {
    let node = Node::start().await;
    let word = async |config: ContainerdConfig| Containerd::connect(config).await.unwrap_err().code();
    let place = |root: PathBuf, snapshotter: &str| SnapshotterPlace { root, snapshotter: snapshotter.into() };
    let native = place(node.root(), "native");
    assert_eq!(word(ContainerdConfig { place: native, ..config(&node, false) }).await, "api-closed");
    let nowhere = node.root().join("nowhere.sock");
    assert_eq!(word(ContainerdConfig { socket: nowhere, ..config(&node, false) }).await, "api-closed");
    let other = place("/other".into(), "overlayfs");
    assert_eq!(word(ContainerdConfig { place: other, ..config(&node, false) }).await, "api-closed");

    // Two bind mounts of one file system.
    let snapshotter = node.snapshotter();
    rustix::mount::mount_bind(&snapshotter, &snapshotter).unwrap();
    let obstacle = Containerd::connect(config(&node, false)).await;
    rustix::mount::unmount(&snapshotter, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(matches!(&obstacle, Err(ForwardReason::Staging(why)) if why.contains("not on one mount")), "{obstacle:?}");
    assert_eq!(fs::read_dir(node.root().join("imagelet-staging")).unwrap().count(), 0);
    connect(&node, false).await;
}
