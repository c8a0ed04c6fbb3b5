//! What a power cut, a failed sync, a removal or damage beside a pull may take, and what not.

use std::{
    cell::{Cell, RefCell},
    fs, io,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use imagelet_core::image::{Digest, ImageId};
use imagelet_core::runtime::Findings;
use tempfile::TempDir;

use super::{
    BlobPurpose, Durability, ImageRecord, LayerEnd, LayerEntry, LayerRecord, NewImage, PartialKey, Resumption,
    StagedBlob, StagedLayer, Store, StoreOptions, SyncView, files::sync_observer, record::disk_usage::DiskUsage,
};
use crate::manifest::Descriptor;

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

    fn is_marked(root: &Path, layer: &str) -> bool {
        let record = root.join("layers").join(layer_id(layer).hex()).join("layer.json");
        super::record::checksum::open::<LayerRecord>(&fs::read(record).unwrap()).unwrap().unsettled.is_some()
    }
}

fn record(name: &str, layers: &[&str]) -> ImageRecord {
    let entry = |layer: &&str| LayerEntry {
        blob: Some(Digest::of(BLOB)),
        size: BLOB.len() as u64,
        diff_id: layer_id(layer),
        media_type: "application/vnd.oci.image.layer.v1.tar".into(),
    };
    ImageRecord {
        artifact: None,
        id: image_id(name).as_str().parse().unwrap(),
        manifest: Digest::of(name.as_bytes()),
        index: None,
        layers: layers.iter().map(entry).collect(),
        metadata_size: 1,
        user: String::new(),
        platform: "linux/amd64".into(),
        pulled_at: 7,
        allocated: DiskUsage::default(),
        names: Vec::new(),
    }
}

fn staged(store: &Arc<Store>, view: &Arc<SyncView>, layer: &str, blob: Option<StagedBlob>) -> Arc<StagedLayer> {
    let staging = store.stage().unwrap();
    fs::create_dir(staging.path().join("fs")).unwrap();
    let record = serde_json::json!({ "diff_id": layer_id(layer), "entries": 1, "disk_bytes": 1 });
    let record =
        LayerRecord { unsettled: store.unsettled_mark(LayerEnd::Store), ..serde_json::from_value(record).unwrap() };
    let packed = Descriptor {
        media_type: "application/vnd.oci.image.layer.v1.tar".into(),
        digest: Digest::of(BLOB),
        size: BLOB.len() as u64,
        platform: None,
        annotations: None,
    };
    let staged = StagedLayer::new(staging, &packed, record, Arc::clone(view)).unwrap();
    Arc::new(staged.with_blob(blob))
}

fn pull(store: &Arc<Store>, name: &str, layers: &[&str], brought: &[&str]) -> Result<ImageId, String> {
    let view = store.sync_view().unwrap();
    let brought: Vec<_> = brought.iter().map(|layer| staged(store, &view, layer, None)).collect();
    let new =
        NewImage { record: record(name, layers), files: vec![("config.json", b"{}".into())], names: vec![tag(name)] };
    store.commit(new, &brought, &view).map_err(|error| error.chain())
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
    sync_observer::observe(move |folder| {
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
    assert!(has(&bed.open_after_power_cut(), "app"));
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
    let left = |folder: &str| fs::read_dir(bed.root.join(folder)).unwrap().count();
    assert_eq!((left("images"), left("layers")), (0, 0));
}

#[test]
fn an_image_that_the_disk_refused_to_keep_is_not_believed_by_a_later_sync() {
    let bed = Bed::new();
    let store = bed.open(Durability::Background);
    pull(&store, "app", &["base"], &["base"]).unwrap();
    assert!(has(&store, "app"));
    // The kernel reports a write error once; the next sync succeeds.
    let failed = Cell::new(false);
    sync_observer::observe(
        move |_| if failed.replace(true) { Ok(()) } else { Err(io::Error::other("the disk is gone")) },
    );
    let error = store.sync_background().unwrap_err();
    assert!(error.chain().contains("the disk is gone"), "{}", error.chain());
    assert!(!has(&store, "app") && store.layer(&layer_id("base")).is_none(), "its content may be lost");
    let left = |folder: &str| fs::read_dir(bed.root.join(folder)).unwrap().count();
    assert_eq!(["images", "layers", "trash"].map(left), [0; 3], "a full disk may be why it was refused");
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
        .write_blob(&PartialKey::new(&blob, None), 0, (BlobPurpose::Keep, &Resumption::new(true)))
        .unwrap()
        .unwrap();
    writer.write(BLOB).unwrap();
    let layer = staged(&store, &view, "base", StagedBlob::of(writer));
    let (synced, root) = (Rc::new(RefCell::new(Vec::new())), bed.root.clone());
    let (seen, home) = (Rc::clone(&synced), store.blob_path(&blob));
    sync_observer::observe(move |folder| {
        if let Some(folder) = folder {
            let folder = folder.strip_prefix(&root).unwrap().display().to_string();
            seen.borrow_mut().push((folder, home.exists()));
        }
        Ok(())
    });
    let new = NewImage { record: record("app", &["base"]), files: Vec::new(), names: vec![tag("app")] };
    store.commit(new, &[layer], &view).unwrap();
    let synced = synced.borrow();
    let synced: Vec<_> = synced.iter().map(|(folder, is_kept)| (folder.as_str(), *is_kept)).collect();
    assert_eq!(
        synced,
        [("blobs", true), ("blobs/sha256", true), ("layers", true), ("images", true), ("", true)],
        "the folder of each rename, the names last"
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
    assert_eq!(store.sweep().unwrap().layers, 2, "a lease that ended holds nothing");
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
