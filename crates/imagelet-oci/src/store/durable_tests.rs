//! What a power cut, a failed sync, a full disk, a removal or damage beside a pull may take, and which names are left.

use std::{
    cell::{Cell, RefCell},
    fs, io,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use imagelet_core::ports::{Findings, PulledLayer, PulledManifest};
use imagelet_core::{
    failpoint,
    image::{Digest, ImageId},
};
use tempfile::TempDir;

use super::{
    Access, BlobPurpose, BlobWriter, DocumentBytes, Durability, ImageRecord, LayerEnd, LayerRecord, NewImage,
    PartialKey, Resumption, StagedLayer, Store, StoreOptions, SyncView,
};
use crate::{manifest::Descriptor, unpack::DiskUsage};

/// A store in a folder of its own, with images made by hand.
struct Bed {
    _folder: TempDir,
    root: PathBuf,
}

const BLOB: &[u8] = b"blob";

fn layer_id(name: &str) -> Digest {
    Digest::of(format!("layer {name}").as_bytes())
}

fn image_id(name: &str) -> ImageId {
    ImageId::new(Digest::of(format!("image {name}").as_bytes()).to_string())
}

fn tag(name: &str) -> String {
    format!("registry.example/{name}:v1")
}

impl Bed {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let root = folder.path().join("store");
        Self { _folder: folder, root }
    }

    fn open(&self, durability: Durability) -> Arc<Store> {
        Arc::new(Store::open(&self.root, StoreOptions { durability, ..StoreOptions::for_tests() }).unwrap())
    }

    fn open_after_power_cut(&self) -> Arc<Store> {
        let boot = super::boot_id().expect("a boot has an id");
        for layer in fs::read_dir(self.root.join("layers")).unwrap() {
            let record = layer.unwrap().path().join("layer.json");
            let read: LayerRecord = super::record::checksum::open(&fs::read(&record).unwrap()).unwrap();
            if read.unsettled.as_ref() == Some(&boot) {
                let of_earlier = LayerRecord { unsettled: Some("an earlier boot".into()), ..read };
                fs::write(&record, super::record::checksum::seal(&of_earlier)).unwrap();
            }
        }
        drop(fs::remove_file(self.root.join("names.unsettled.json")));
        self.open(Durability::Commit)
    }

    /// How many images, layers and things to remove lie on the disk.
    fn left(&self) -> [usize; 3] {
        ["images", "layers", "trash"].map(|folder| fs::read_dir(self.root.join(folder)).unwrap().count())
    }

    fn is_marked(root: &Path, layer: &str) -> bool {
        let record = root.join("layers").join(layer_id(layer).hex()).join("layer.json");
        super::record::checksum::open::<LayerRecord>(&fs::read(record).unwrap()).unwrap().unsettled.is_some()
    }
}

fn record(name: &str, layers: &[&str]) -> ImageRecord {
    let entry = |layer: &&str| PulledLayer {
        blob: Some(Digest::of(BLOB)),
        size: BLOB.len() as u64,
        diff_id: layer_id(layer),
        media_type: "application/vnd.oci.image.layer.v1.tar".into(),
    };
    let id: Digest = image_id(name).as_str().parse().unwrap();
    ImageRecord {
        id,
        index: None,
        pulled: PulledManifest {
            digest: Digest::of(name.as_bytes()),
            platform: "linux/amd64".into(),
            artifact: None,
            layers: layers.iter().map(entry).collect(),
            at: 7,
        },
        metadata_size: 1,
        user: String::new(),
        allocated: DiskUsage::default(),
        names: Vec::new(),
    }
}

fn staged(store: &Arc<Store>, view: &Arc<SyncView>, layer: &str, blob: Option<BlobWriter>) -> Arc<StagedLayer> {
    let staging = store.stage().unwrap();
    fs::create_dir(staging.path().join("fs")).unwrap();
    let record = serde_json::json!({ "diff_id": layer_id(layer), "entries": 1, "disk_bytes": 1 });
    let record =
        LayerRecord { unsettled: store.unsettled_mark(LayerEnd::Store), ..serde_json::from_value(record).unwrap() };
    let media_type = "application/vnd.oci.image.layer.v1.tar";
    let packed = Descriptor::new(media_type, Digest::of(BLOB), BLOB.len() as u64);
    let staged = StagedLayer::new(store, staging, &packed, (record, None), Arc::clone(view)).unwrap();
    Arc::new(staged.with_blob(blob))
}

fn new_image(name: &str, layers: &[&str], names: &[&str]) -> NewImage {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    let record = ImageRecord { names, ..record(name, layers) };
    NewImage { record, files: vec![("config.json", DocumentBytes::Memory("{}".into()))] }
}

fn pull(store: &Arc<Store>, name: &str, layers: &[&str], brought: &[&str]) -> Result<ImageId, String> {
    let view = store.sync_view().unwrap();
    let brought: Vec<_> = brought.iter().map(|layer| staged(store, &view, layer, None)).collect();
    store.commit(new_image(name, layers, &[&tag(name)]), &brought, &view).map_err(|error| error.chain())
}

/// Commits an image without layers under these names.
fn commit_named(store: &Store, name: &str, names: &[&str]) {
    store.commit(new_image(name, &[], names), &[], &store.sync_view().unwrap()).unwrap();
}

/// Makes each further sync of this folder of the store fail, the root's for "".
fn fail_syncs(bed: &Bed, folder: &str, error: fn() -> io::Error) {
    let wanted = bed.root.join(folder);
    failpoint::observe_syncs(move |folder| if folder == Some(&wanted) { Err(error()) } else { Ok(()) });
}

fn disk_full() -> io::Error {
    rustix::io::Errno::NOSPC.into()
}

fn disk_gone() -> io::Error {
    rustix::io::Errno::IO.into()
}

fn has(store: &Store, name: &str) -> bool {
    let found = store.resolve(&tag(name)).unwrap();
    assert_eq!(found.is_some(), store.image(&image_id(name)).is_some());
    found.is_some()
}

#[test]
fn a_durable_image_is_on_the_disk_before_and_after_its_mark_is_removed() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    pull(&store, "app", &["base"], &["base"]).unwrap();
    // At each file system sync: does the layer's record still carry the boot mark?
    let marks = Rc::new(RefCell::new(Vec::new()));
    let (seen, root) = (Rc::clone(&marks), bed.root.clone());
    failpoint::observe_syncs(move |folder| {
        if folder.is_none() {
            seen.borrow_mut().push(Bed::is_marked(&root, "base"));
        }
        Ok(())
    });
    store.sync_background().unwrap();
    let mut marks = marks.take();
    marks.dedup();
    assert_eq!(marks, [true, false], "content before the mark is removed, the record after it, names last");
    drop(store);
    let store = bed.open_after_power_cut();
    assert!(has(&store, "app"));
    assert_eq!(store.image_file(&image_id("app"), "config.json").unwrap(), b"{}");
}

#[test]
fn a_name_alone_is_made_durable_too() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    pull(&store, "app", &["base"], &["base"]).unwrap();
    store.sync_background().unwrap();
    assert!(!store.is_unsettled());
    commit_named(&store, "later", &[&tag("later")]);
    assert!(store.is_unsettled(), "it brought no layer, and its name is on no disk yet");
    store.sync_background().unwrap();
    drop(store);
    assert!(has(&bed.open_after_power_cut(), "later"));
}

#[test]
fn a_first_pull_that_a_power_cut_takes_leaves_nothing() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    pull(&store, "app", &["base"], &["base"]).unwrap();
    drop(store);
    let store = bed.open_after_power_cut();
    assert!(
        !has(&store, "app") && store.resolve_damaged(&tag("app")).is_none(),
        "the whole pull is lost, never a part"
    );
    assert_eq!(bed.left()[..2], [0, 0]);
}

#[test]
fn an_image_that_the_disk_refused_to_keep_is_not_believed_by_a_later_sync() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    pull(&store, "app", &["base"], &["base"]).unwrap();
    assert!(has(&store, "app"));
    // The kernel reports a write error once; the next sync succeeds.
    let failed = Cell::new(false);
    failpoint::observe_syncs(
        move |_| if failed.replace(true) { Ok(()) } else { Err(io::Error::other("the disk is gone")) },
    );
    let error = store.sync_background().unwrap_err();
    assert!(error.chain().contains("the disk is gone"), "{}", error.chain());
    assert!(!has(&store, "app") && store.layer(&layer_id("base")).is_none(), "its content may be lost");
    assert_eq!(bed.left(), [0; 3], "a full disk may be why it was refused");
    store.sync_background().unwrap();
    assert!(!has(&store, "app"));
    drop(store);
    assert!(!has(&bed.open(Durability::Commit), "app"), "nor does the next owner believe it");
}

#[test]
fn an_image_is_durable_that_stands_on_what_an_earlier_process_had_only_shown() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    pull(&store, "one", &["base"], &["base"]).unwrap();
    drop(store);
    let store = bed.open(Durability::Commit);
    assert!(store.is_unsettled());
    pull(&store, "two", &["base", "top"], &["top"]).unwrap();
    drop(store);
    let store = bed.open_after_power_cut();
    assert!(has(&store, "two"), "it was answered as durable");
    assert!(has(&store, "one"));
}

#[test]
fn kept_blobs_are_durable_before_the_image_is_named() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    let view = store.sync_view().unwrap();
    let blob = Digest::of(BLOB);
    let mut writer = store
        .write_blob(&PartialKey::new(&blob, None), 0, (BlobPurpose::Keep(0), &Resumption::new(true)))
        .unwrap()
        .unwrap();
    writer.write(BLOB).unwrap();
    let layer = staged(&store, &view, "base", writer.whole());
    let (synced, root) = (Rc::new(RefCell::new(Vec::new())), bed.root.clone());
    let (seen, home) = (Rc::clone(&synced), store.blob_path(&blob));
    failpoint::observe_syncs(move |folder| {
        let folder = folder.map(|folder| folder.strip_prefix(&root).unwrap().display().to_string());
        seen.borrow_mut().push((folder.unwrap_or_else(|| "all files".into()), home.exists()));
        Ok(())
    });
    store.commit(new_image("app", &["base"], &[&tag("app")]), &[layer], &view).unwrap();
    let synced = synced.borrow();
    let synced: Vec<_> = synced.iter().map(|(folder, is_kept)| (folder.as_str(), *is_kept)).collect();
    assert_eq!(
        synced,
        [("all files", false), ("blobs", true), ("blobs/sha256", true), ("layers", true), ("images", true), ("", true)],
        "the content, the folder of each rename, the names last"
    );
}

#[test]
fn a_removal_beside_a_pull_leaves_the_layers_that_the_pull_counts_on() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    pull(&store, "old", &["base"], &["base"]).unwrap();
    // A pull that shares a layer has checked what is present, and fetches the rest.
    let lease = store.lease(&[layer_id("base"), layer_id("top")]);
    assert!(store.remove_image(&image_id("old")).unwrap());
    store.sweep().unwrap();
    assert!(store.layer(&layer_id("base")).is_some(), "the pull would have to fetch it again, and does not know");
    pull(&store, "new", &["base", "top"], &["top"]).unwrap();
    drop(lease);
    store.sweep().unwrap();
    assert!(has(&store, "new") && store.layer_tree(&layer_id("base")).exists());
    assert!(store.remove_image(&image_id("new")).unwrap());
    store.sweep().unwrap();
    assert_eq!(bed.left(), [0; 3], "a lease that ended holds nothing");
}

#[test]
fn an_image_over_a_layer_that_was_found_damaged_during_its_pull_is_not_shown() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    pull(&store, "old", &["base"], &["base"]).unwrap();
    // Another pull has found the layer; then a verification finds it damaged.
    let lease = store.lease(&[layer_id("base")]);
    store.mark_layer(&layer_id("base"), &Findings::of("fs/etc/passwd", "content", "other bytes")).unwrap();
    let error = pull(&store, "new", &["base", "top"], &["top"]).unwrap_err();
    assert!(
        error.contains(&format!("layer `{}` was found damaged meanwhile; pull again", layer_id("base"))),
        "{error}"
    );
    assert!(!has(&store, "new"), "containers would start on it");
    drop(lease);
    pull(&store, "new", &["base", "top"], &["base", "top"]).unwrap();
    assert!(has(&store, "new"));
}

#[test]
fn pulls_at_one_time_share_a_view_until_it_has_reported_an_error() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    let (one, two) = (store.pull_view().unwrap(), store.pull_view().unwrap());
    assert!(Arc::ptr_eq(&one, &two));
    failpoint::observe_syncs(|_| Err(io::Error::other("the disk lost bytes")));
    one.sync().unwrap_err();
    failpoint::observe_syncs(|_| Ok(()));
    let later = store.pull_view().unwrap();
    assert!(!Arc::ptr_eq(&two, &later), "it began after the error");
    two.sync().unwrap_err();
    later.sync().unwrap();
}

#[test]
fn in_the_background_the_content_of_each_pull_is_synced_through_its_own_view() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    // A layer that another pull has staged was written under that pull's view.
    let others = store.sync_view().unwrap();
    let layer = staged(&store, &others, "base", None);
    let view = store.sync_view().unwrap();
    store.commit(new_image("app", &["base"], &[&tag("app")]), &[layer], &view).unwrap();
    let syncs = Rc::new(Cell::new(0));
    let seen = Rc::clone(&syncs);
    failpoint::observe_syncs(move |folder| {
        seen.set(seen.get() + usize::from(folder.is_none()));
        Ok(())
    });
    store.sync_background().unwrap();
    // Of the store, of the layer and of the pull; once more, of the store alone, for the record without its mark.
    assert_eq!(syncs.get(), 4, "without the view of that layer, its write errors are not reported");
}

#[test]
fn what_lies_where_a_layer_or_an_image_belongs_is_freed_by_its_pull() {
    let homes = [("layers", layer_id("layer").hex().to_owned()), ("images", record("one", &[]).id.hex().to_owned())];
    for (folder, home) in homes {
        let bed = Bed::new();
        let store = bed.open(Durability::Commit);
        let stranger = bed.root.join(folder).join(home);
        fs::create_dir_all(&stranger).unwrap();
        fs::write(stranger.join("rest"), "rest").unwrap();
        pull(&store, "one", &["layer"], &["layer"]).unwrap();
        assert!(has(&store, "one") && !stranger.join("rest").exists(), "{folder}");
        assert_eq!(bed.left(), [1, 1, 0], "{folder}");
    }
}

#[test]
fn names_come_before_images_only_where_these_are_shown_before_they_are_durable() {
    for (durability, are_written) in [(Durability::Commit, false), (Durability::Background, true)] {
        let bed = Bed::new();
        drop(bed.open(durability));
        assert_eq!(bed.root.join("names.json").exists(), are_written, "{durability:?}");
    }
}

#[test]
fn a_commit_that_fails_at_its_end_takes_everything_back() {
    for folder in ["layers", "images", ""] {
        let bed = Bed::new();
        let store = bed.open(Durability::Commit);
        pull(&store, "other", &["other"], &["other"]).unwrap();
        fail_syncs(&bed, folder, disk_gone);
        let error = pull(&store, "app", &["base"], &["base"]).unwrap_err();
        assert!(error.contains("Input/output error"), "{error}");
        assert!(!has(&store, "app") && store.layer(&layer_id("base")).is_none(), "{folder:?}");
        assert_eq!(bed.left(), [1, 1, 0], "{folder:?}");
        failpoint::observe_syncs(|_| Ok(()));
        pull(&store, "app", &["base"], &[]).expect_err("its layer is not there");
        pull(&store, "app", &["base"], &["base"]).unwrap();
        assert!(has(&store, "app") && has(&store, "other"), "{folder:?}");
    }
}

#[test]
fn a_commit_in_the_background_that_cannot_write_names_gives_none() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    fs::create_dir(bed.root.join("names.unsettled.json")).unwrap();
    pull(&store, "app", &["base"], &["base"]).unwrap_err();
    assert!(!has(&store, "app"));
    assert_eq!(bed.left(), [0; 3]);
}

#[test]
fn a_pull_gives_a_damaged_image_its_old_names_back() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    pull(&store, "app", &["base"], &["base"]).unwrap();
    pull(&store, "beside", &["base"], &[]).unwrap();
    store.mark_layer(&layer_id("base"), &Findings::of("fs/etc/passwd", "content", "other bytes")).unwrap();
    assert!(!has(&store, "app") && !has(&store, "beside"));
    let view = store.sync_view().unwrap();
    let other = "registry.example/another:v1";
    let new = new_image("app", &["base"], &[other, other]);
    store.commit(new, &[staged(&store, &view, "base", None)], &view).unwrap();
    assert!(has(&store, "app"));
    assert_eq!(store.resolve(other).unwrap(), Some(image_id("app")));
    assert_eq!(store.image(&image_id("app")).unwrap().0.names, [other, &tag("app")], "in order, each once");
    assert!(has(&store, "beside"), "it stands on the same layer");
    assert_eq!(store.marked(&layer_id("base")), None, "the layer is whole again");
}

#[test]
fn an_image_that_loses_its_last_name_to_another_goes() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    commit_named(&store, "old", &["registry.example/moves:v1"]);
    commit_named(&store, "new", &["registry.example/moves:v1"]);
    assert_eq!(store.resolve("registry.example/moves:v1").unwrap(), Some(image_id("new")));
    assert!(store.image(&image_id("old")).is_none(), "nothing names it");
}

#[test]
fn with_its_last_tag_an_image_loses_its_digest_names_too() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    let digest = format!("registry.example/app@{}", Digest::of(b"app"));
    let beside = format!("registry.example/beside@{}", Digest::of(b"beside"));
    commit_named(&store, "app", &["registry.example/app:v1", "registry.example/app:v2", &digest]);
    commit_named(&store, "beside", &["registry.example/beside:v1", &beside]);
    assert!(store.remove_name("registry.example/app:v1").unwrap());
    assert_eq!(store.resolve(&digest).unwrap(), Some(image_id("app")), "another tag is left");
    assert!(store.remove_name("registry.example/app:v2").unwrap());
    assert!(store.resolve(&digest).unwrap().is_none() && store.image(&image_id("app")).is_none());
    assert_eq!(store.resolve(&beside).unwrap(), Some(image_id("beside")), "it has its own");
    assert!(!store.remove_name("registry.example/app:v2").unwrap(), "it is gone already");
}

#[test]
fn a_name_on_what_was_only_shown_makes_it_durable_first() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    pull(&store, "app", &["base"], &["base"]).unwrap();
    drop(store);
    let store = bed.open(Durability::Commit);
    assert!(store.add_names(&image_id("app"), &[tag("again")]).unwrap());
    drop(store);
    let store = bed.open_after_power_cut();
    assert_eq!(store.resolve(&tag("again")).unwrap(), Some(image_id("app")));
    assert!(has(&store, "app"));
}

#[test]
fn a_full_disk_keeps_no_image_from_being_removed() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    commit_named(&store, "app", &[&tag("app")]);
    commit_named(&store, "other", &[&tag("other")]);
    fail_syncs(&bed, "", disk_full);
    store.add_names(&image_id("app"), &[tag("again")]).unwrap_err();
    assert!(store.resolve(&tag("again")).unwrap().is_none(), "a new name takes space");
    let (removals, root) = (Rc::new(Cell::new(0)), bed.root.clone());
    let seen = Rc::clone(&removals);
    failpoint::observe_syncs(move |folder| {
        seen.set(seen.get() + usize::from(folder == Some(&root.join("images"))));
        if folder == Some(&root) { Err(disk_full()) } else { Ok(()) }
    });
    assert!(store.remove_image(&image_id("app")).unwrap());
    assert!(!has(&store, "app") && has(&store, "other"));
    assert_eq!((bed.left(), removals.get()), ([1, 0, 0], 1), "durably, before it is answered");
    drop(store);
    let store = bed.open(Durability::Commit);
    assert!(!has(&store, "app") && has(&store, "other"), "also after a restart");
}

#[test]
fn a_tag_that_frees_nothing_stays_on_a_full_disk() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    commit_named(&store, "app", &[&tag("app"), &tag("again")]);
    fail_syncs(&bed, "", disk_full);
    let error = store.remove_name(&tag("again")).unwrap_err();
    assert!(error.chain().contains("No space left"), "{}", error.chain());
    assert_eq!(store.resolve(&tag("again")).unwrap(), Some(image_id("app")), "its removal was not answered");
}

#[test]
fn a_disk_that_fails_removes_no_image() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    commit_named(&store, "app", &[&tag("app")]);
    fail_syncs(&bed, "", disk_gone);
    store.remove_image(&image_id("app")).unwrap_err();
    assert!(has(&store, "app"), "it was not answered as removed");
    assert_eq!(bed.left(), [1, 0, 0]);
    failpoint::observe_syncs(|_| Ok(()));
    assert!(store.remove_image(&image_id("app")).unwrap() && !has(&store, "app"));
}

#[test]
fn a_store_that_is_only_read_changes_no_name() {
    let bed = Bed::new();
    let store = bed.open(Durability::Commit);
    commit_named(&store, "app", &[&tag("app")]);
    let access = Access::Read { or_empty: false };
    let reader = Arc::new(Store::open(&bed.root, StoreOptions { access, ..StoreOptions::for_tests() }).unwrap());
    let names = || fs::read(bed.root.join("names.json")).unwrap();
    let before = names();
    for changed in [reader.remove_name(&tag("app")), reader.add_names(&image_id("app"), &[tag("again")])] {
        assert!(changed.unwrap_err().chain().contains("open for reading"));
    }
    assert!(has(&reader, "app") && names() == before);
}
