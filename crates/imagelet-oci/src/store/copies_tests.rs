//! Copies of records: what is believed of them, and every way in which they are not.

use std::{os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc, thread};

use imagelet_core::image::Digest;
use tempfile::TempDir;

use super::*;
use crate::store::{Access, Durability, ImageRecord, LayerEntry, LayerRecord, damage::MARK, seal, verify::Findings};

/// A store of images of one layer each, as pulls leave it.
struct Bed {
    folder: TempDir,
}

fn digest(what: &str, number: usize) -> Digest {
    Digest::of(format!("{what} {number}").as_bytes())
}

fn layer_record(number: usize, disk_bytes: u64) -> LayerRecord {
    let diff_id = digest("layer", number).to_string();
    serde_json::from_value(
        serde_json::json!({ "diff_id": diff_id, "entries": 1, "bytes": 1, "disk_bytes": disk_bytes }),
    )
    .unwrap()
}

fn image_record(number: usize, metadata_size: u64) -> ImageRecord {
    ImageRecord {
        id: digest("image", number).to_string(),
        manifest: digest("manifest", number).to_string(),
        index: None,
        layers: vec![LayerEntry {
            blob: digest("blob", number).to_string(),
            size: 3,
            diff_id: digest("layer", number).to_string(),
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip".into(),
        }],
        metadata_size,
        user: String::new(),
        platform: "linux/amd64".into(),
        pulled_at: 7,
        allocated: None,
        names: vec![name(number)],
    }
}

fn name(number: usize) -> String {
    format!("registry.example/app:v{number}")
}

impl Bed {
    fn with(images: usize) -> Self {
        let bed = Self { folder: TempDir::new().unwrap() };
        fs::create_dir(bed.root()).unwrap();
        fs::set_permissions(bed.root(), fs::Permissions::from_mode(0o700)).unwrap();
        drop(bed.open());
        let mut names = serde_json::Map::new();
        for number in 0..images {
            let layer = bed.layer(number);
            fs::create_dir_all(layer.join("fs")).unwrap();
            fs::write(layer.join("layer.json"), layer_record(number, 10).to_bytes()).unwrap();
            let image = bed.image(number);
            fs::create_dir(&image).unwrap();
            fs::write(image.join("image.json"), seal::seal(&image_record(number, 1))).unwrap();
            names.insert(name(number), digest("image", number).to_string().into());
        }
        let names = serde_json::json!({ "version": 1, "generation": 1, "names": names });
        fs::write(bed.root().join("names.json"), seal::seal(&names)).unwrap();
        bed
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn layer(&self, number: usize) -> PathBuf {
        self.root().join("layers").join(digest("layer", number).hex())
    }

    fn image(&self, number: usize) -> PathBuf {
        self.root().join("images").join(digest("image", number).hex())
    }

    fn file(&self) -> PathBuf {
        self.root().join(COPIES)
    }

    fn open(&self) -> Arc<Store> {
        Arc::new(Store::open(&self.root(), Access::Write { or_create: true }, Durability::Commit).unwrap())
    }

    /// Writes the copies without waiting for the moment to pass.
    fn copy(&self) -> usize {
        write(&self.root(), Duration::ZERO).unwrap()
    }

    /// The metadata sizes of the images that a start shows, and how many records it did not find copied.
    fn shown(&self) -> (Vec<u64>, usize) {
        let store = self.open();
        let mut shown: Vec<(String, u64)> =
            store.images().into_iter().map(|(record, names)| (names.join(","), record.metadata_size)).collect();
        shown.sort();
        (shown.into_iter().map(|(_, size)| size).collect(), store.uncopied.load(Ordering::Relaxed))
    }
}

/// Changes a file until the change can be seen: within one tick of the clock two changes look like one.
fn change(path: &Path, act: impl Fn()) {
    let stamp = || Stamp::of(&File::open(path.parent().unwrap()).unwrap(), path.file_name().unwrap().to_str().unwrap());
    let before = stamp();
    while {
        act();
        stamp() == before
    } {
        thread::yield_now();
    }
}

#[test]
fn a_start_takes_all_records_from_the_copies_and_shows_the_same() {
    let bed = Bed::with(5);
    let (shown, uncopied) = bed.shown();
    assert_eq!((shown.as_slice(), uncopied), ([1; 5].as_slice(), 10));
    assert_eq!(bed.copy(), 10);
    assert_eq!(bed.shown(), (shown, 0));
    // And a copy of the copies is as good.
    assert_eq!(bed.copy(), 10);
    assert_eq!(bed.shown(), (vec![1; 5], 0));
}

#[test]
fn what_changed_within_the_last_moment_is_not_copied() {
    let bed = Bed::with(2);
    assert_eq!(write(&bed.root(), Duration::from_hours(1)).unwrap(), 0);
    assert_eq!(bed.shown(), (vec![1; 2], 4));
}

#[test]
fn a_record_that_was_written_over_in_place_wins() {
    let bed = Bed::with(3);
    bed.copy();
    // Of the same length, so that only the time tells.
    let path = bed.image(0).join("image.json");
    change(&path, || fs::write(&path, seal::seal(&image_record(0, 9))).unwrap());
    assert_eq!(bed.shown(), (vec![9, 1, 1], 1));
    let path = bed.layer(1).join("layer.json");
    change(&path, || fs::write(&path, layer_record(1, 70).to_bytes()).unwrap());
    let (_, uncopied) = bed.shown();
    assert_eq!(uncopied, 2);
    let layer = bed.open().layer(&digest("layer", 1)).unwrap();
    assert_eq!(layer.disk_bytes, 70);
}

#[test]
fn a_record_that_was_replaced_or_restored_with_its_old_times_wins() {
    let bed = Bed::with(2);
    bed.copy();
    let (path, beside) = (bed.image(0).join("image.json"), bed.image(0).join("image.new"));
    let times = fs::metadata(&path).unwrap();
    let times = fs::FileTimes::new().set_modified(times.modified().unwrap()).set_accessed(times.accessed().unwrap());
    fs::write(&beside, seal::seal(&image_record(0, 8))).unwrap();
    File::options().write(true).open(&beside).unwrap().set_times(times).unwrap();
    fs::rename(&beside, &path).unwrap();
    assert_eq!(bed.shown(), (vec![8, 1], 1));
}

#[test]
fn a_damaged_or_lost_record_is_found_as_without_copies() {
    let bed = Bed::with(3);
    bed.copy();
    let path = bed.image(0).join("image.json");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 5;
    bytes[last] ^= 1;
    change(&path, || fs::write(&path, &bytes).unwrap());
    fs::remove_file(bed.image(1).join("image.json")).unwrap();
    let store = bed.open();
    assert_eq!(store.images().len(), 1);
    assert_eq!(store.damaged_images().len(), 2);
}

#[test]
fn a_mark_made_after_the_copy_holds() {
    let bed = Bed::with(3);
    bed.copy();
    let store = bed.open();
    let findings = || Findings::of("fs/a", "content", "for a test");
    store.mark_layer(&digest("layer", 0), &findings()).unwrap();
    store.mark_image(&image_record(1, 1).image_id(), &findings()).unwrap();
    drop(store);
    assert!(bed.layer(0).join(MARK).exists() && bed.image(1).join(MARK).exists());
    let store = bed.open();
    assert_eq!(store.images().len(), 1);
    assert!(store.marked(&digest("layer", 0)).is_some());
    drop(store);
    // What is marked is not copied either.
    assert_eq!(bed.copy(), 4);
    assert_eq!(bed.open().images().len(), 1);
}

#[test]
fn a_tree_that_is_gone_is_missed_although_its_record_was_copied() {
    let bed = Bed::with(2);
    bed.copy();
    fs::remove_dir(bed.layer(0).join("fs")).unwrap();
    assert_eq!(bed.open().images().len(), 1);
}

#[test]
fn what_was_removed_after_the_copy_does_not_come_back() {
    let bed = Bed::with(3);
    bed.copy();
    let store = bed.open();
    store.remove_image(&image_record(0, 1).image_id()).unwrap();
    store.sweep().unwrap();
    drop(store);
    assert_eq!(bed.shown(), (vec![1; 2], 2));
    // The whole folder taken away by hand, its name left.
    fs::remove_dir_all(bed.image(1)).unwrap();
    let store = bed.open();
    assert_eq!((store.images().len(), store.damaged_images().len()), (1, 1));
}

#[test]
fn an_image_that_came_after_the_copy_is_shown() {
    let (few, many) = (Bed::with(2), Bed::with(3));
    few.copy();
    for folder in ["layers", "images"] {
        let name = |path: PathBuf| path.file_name().unwrap().to_owned();
        let new = if folder == "layers" { name(many.layer(2)) } else { name(many.image(2)) };
        fs::rename(many.root().join(folder).join(&new), few.root().join(folder).join(&new)).unwrap();
    }
    fs::copy(many.root().join("names.json"), few.root().join("names.json")).unwrap();
    assert_eq!(few.shown(), (vec![1; 3], 2));
}

#[test]
fn any_changed_or_missing_byte_makes_the_file_worthless_and_harmless() {
    let bed = Bed::with(1);
    bed.copy();
    let whole = fs::read(bed.file()).unwrap();
    let inode = fs::metadata(bed.root()).unwrap().ino();
    assert_eq!(Copies::parse(whole.clone(), inode).unwrap().places.len(), 2);
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x20;
        assert!(Copies::parse(flipped, inode).is_none(), "byte {at}");
        assert!(Copies::parse(whole[..at].to_vec(), inode).is_none(), "cut at {at}");
    }
    for text in [&b""[..], b"{}", MAGIC] {
        fs::write(bed.file(), text).unwrap();
        assert_eq!(bed.shown(), (vec![1], 2));
    }
}

#[test]
fn a_file_whose_checksum_holds_but_whose_content_lies_is_found_out_by_the_stamps() {
    let bed = Bed::with(2);
    bed.copy();
    let (whole, inode) = (fs::read(bed.file()).unwrap(), fs::metadata(bed.root()).unwrap().ino());
    let copies = Copies::parse(whole, inode).unwrap();
    let folder = digest("image", 0).hex().to_owned();
    let place = File::open(bed.root().join("images")).unwrap();
    assert!(copies.of(Kind::Image, Some(&place), &folder).is_some());
    assert!(copies.of(Kind::Layer, Some(&place), &folder).is_none(), "another kind");
    assert!(copies.of(Kind::Image, Some(&place), digest("image", 7).hex()).is_none(), "never copied");
    assert!(copies.of(Kind::Image, None, &folder).is_none(), "nobody can look");
    // A whole store copied elsewhere has other inodes, even with hard links.
    let other = Bed::with(0);
    fs::create_dir(other.image(0)).unwrap();
    fs::hard_link(bed.image(0).join("image.json"), other.image(0).join("image.json")).unwrap();
    let place = File::open(other.root().join("images")).unwrap();
    assert!(copies.of(Kind::Image, Some(&place), &folder).is_none());
    // Cut off within an entry, but summed up rightly.
    let mut short = copies.bytes[..copies.bytes.len() - 3].to_vec();
    short.extend_from_slice(&Hasher::oneshot(&short).to_le_bytes());
    assert!(Copies::parse(short, inode).is_none());
}

#[test]
fn the_file_of_another_store_is_not_believed() {
    let (one, other) = (Bed::with(2), Bed::with(2));
    one.copy();
    let path = other.image(0).join("image.json");
    fs::write(&path, seal::seal(&image_record(0, 6))).unwrap();
    fs::copy(one.file(), other.file()).unwrap();
    assert_eq!(other.shown(), (vec![6, 1], 4));
}

#[test]
fn what_stands_in_the_place_of_the_file_holds_no_start_up() {
    let bed = Bed::with(1);
    fs::create_dir(bed.file()).unwrap();
    assert_eq!(bed.shown(), (vec![1], 2));
    assert!(write(&bed.root(), Duration::ZERO).is_err());
    assert!(!bed.root().join(COPIES_NEW).exists(), "what did not become the file is left");
    fs::remove_dir(bed.file()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, bed.file(), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(bed.shown(), (vec![1], 2));
    assert_eq!(bed.copy(), 2);
    assert_eq!(bed.shown(), (vec![1], 0));
}

#[test]
fn a_crash_while_the_file_is_written_leaves_nothing() {
    let bed = Bed::with(1);
    bed.copy();
    fs::write(bed.root().join(COPIES_NEW), b"half of i").unwrap();
    assert_eq!(bed.shown(), (vec![1], 0));
    assert!(!bed.root().join(COPIES_NEW).exists());
}

#[test]
fn the_file_is_written_when_many_records_are_missing_in_it_and_not_before() {
    let bed = Bed::with(UNCOPIED_MIN / 2);
    let store = bed.open();
    assert!(store.wants_copies());
    store.copy_records().unwrap();
    assert!(bed.file().exists() && !store.wants_copies());
    fs::remove_file(bed.file()).unwrap();
    store.note_uncopied(UNCOPIED_MIN - 1);
    store.copy_records().unwrap();
    assert!(!bed.file().exists());
    store.note_uncopied(1);
    store.copy_records().unwrap();
    assert!(bed.file().exists());
}
