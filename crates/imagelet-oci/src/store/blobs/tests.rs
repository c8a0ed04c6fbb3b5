//! Tests of partial blobs: what stays of them, for which pull, and how they are continued.

use imagelet_core::error::RuntimeErrorKind;

use super::*;
use crate::store::{Checkpoint, LayerEnd, StoreOptions, StreamFormat};

static PIECE: [u8; 1 << 20] = [7; 1 << 20];

fn key() -> PartialKey {
    PartialKey::new(&Digest::of(b"blob"), None)
}

/// Writes nine pieces for a resumption, in a file system where `space` says what is free.
fn written(
    store: &Arc<Store>,
    resumption: &Resumption,
    space: impl Fn(u64) -> bool + Send + Sync + 'static,
) -> BlobWriter {
    let purpose = (BlobPurpose::Resume(Arc::new(space)), resumption);
    let mut writer = store.write_blob(&key(), 0, purpose).unwrap().expect("no other writer");
    (0..9).for_each(|_| writer.write(&PIECE).unwrap());
    writer
}

#[test]
fn the_first_bytes_stay_unless_they_are_refused_revoked_or_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&folder.path().join("store"), StoreOptions::for_tests()).unwrap());
    let allowed = Resumption::new(true);
    let writer = written(&store, &allowed, |_| true);
    assert!(store.write_blob(&key(), 0, (BlobPurpose::Keep(0), &allowed)).unwrap().is_none(), "one writer");
    assert_eq!(store.remove_partials(|_| true).unwrap(), 0, "it is being written");
    drop(writer);
    assert_eq!(store.open_partial(&key(), 20 << 20).map(|kept| kept.length), Some(9 << 20));
    assert_eq!(store.free_unfinished(1, &[key()], None).unwrap(), 0, "the pull that asks continues it");
    let continued = ContinuedPartials::new(&store, 1);
    assert_eq!(continued.add(&key(), 20 << 20, false).packed, 0, "an archive's layer is unpacked from its first byte");
    let added = [0; 2].map(|_| continued.add(&key(), 20 << 20, true).written);
    assert_eq!(added, [9 << 20, 0]);
    assert_eq!(ContinuedPartials::new(&store, 2).add(&key(), 20 << 20, true).packed, 0, "one pull counts on it");
    store.discard_partial(&key(), 2);
    assert_eq!(store.free_unfinished(u64::MAX, &[], None).unwrap(), 0, "an admitted pull continues it");
    assert_eq!(store.remove_partials(|_| true).unwrap(), 0);
    drop(continued);
    assert_eq!(store.free_unfinished(1, &[], None).unwrap(), 9 << 20);
    assert_eq!(store.partial_bytes(), 0);

    drop(written(&store, &allowed, |_| false));
    assert_eq!(store.partial_bytes(), 0, "others have reserved the space");

    let mut writer = written(&store, &allowed, |_| true);
    let path = store.partial_path(&key());
    assert_eq!(store.revoke_partials().unwrap(), 9 << 20);
    assert!(!emptied(&path).unwrap(), "a layer that becomes whole meanwhile has removed its own");
    assert_eq!(store.partial_bytes(), 0, "at once");
    writer.write(&PIECE).unwrap();
    drop(writer);
    assert_eq!(store.partial_bytes(), 0);

    let refused = Resumption::new(true);
    let writer = written(&store, &refused, |_| true);
    refused.heed(&RuntimeError::new(RuntimeErrorKind::Corrupt, "it is wrong"));
    drop(writer);
    assert_eq!(store.partial_bytes(), 0);
}

/// Writes nine pieces of an artifact's file.
fn unfinished(store: &Arc<Store>) -> BlobWriter {
    let purpose = (BlobPurpose::Keep(0), &Resumption::new(true));
    let mut writer = store.write_blob(&key(), 0, purpose).unwrap().expect("no other writer");
    (0..9).for_each(|_| writer.write(&PIECE).unwrap());
    writer
}

#[test]
fn a_file_whose_first_bytes_the_disk_has_lost_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&folder.path().join("store"), StoreOptions::for_tests()).unwrap());
    drop(unfinished(&store));
    failpoint::observe_syncs(|path| match path {
        Some(path) if path.extension().is_some_and(|end| end == "partial") => Err(io::Error::other("lost")),
        _ => Ok(()),
    });
    let start = |known| store.write_blob(&key(), known, (BlobPurpose::Keep(0), &Resumption::new(true))).unwrap();
    assert!(start(9 << 20).is_none());
    assert_eq!(store.partial_bytes(), 0);
    assert!(start(0).is_some());
}

#[test]
fn a_full_disk_leaves_the_first_bytes_of_a_file_for_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&folder.path().join("store"), StoreOptions::for_tests()).unwrap());
    let mut writer = unfinished(&store);
    (writer.purpose, writer.measured) = (BlobPurpose::Keep(u64::MAX), None);
    writer.write(&PIECE).expect_err("the floor is reached");
    drop(writer);
    assert_eq!(store.open_partial(&key(), 20 << 20).map(|kept| kept.length), Some(9 << 20));
    // A blob that has another writer is not continued.
    let _writer = unfinished(&store);
    let again = store.write_blob_again(&key(), BlobPurpose::Keep(0)).unwrap().expect("a file of its own");
    assert!(!again.resumption.is_allowed());
}

#[test]
fn a_file_name_says_which_pulls_may_continue_it() {
    let digest = Digest::of(b"blob");
    let keys = [None, Some("registry.example/a"), Some("registry.example/b")];
    let keys = keys.map(|repository| PartialKey::new(&digest, repository));
    assert!(keys.iter().all(|key| keys.iter().filter(|other| other.file_name == key.file_name).count() == 1));
}

#[test]
fn a_wrong_partial_layer_is_not_continued_though_another_pull_counts_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&folder.path().join("store"), StoreOptions::for_tests()).unwrap());
    let (view, allowed) = (store.sync_view().unwrap(), Resumption::new(true));
    let stage = |reads| store.stage_partial((&key(), 1 << 30), (LayerEnd::Store, &view), (&allowed, reads)).unwrap();
    let mut partial = stage(true).expect("no other writer");
    assert!(stage(true).is_none(), "one writer");
    std::fs::create_dir(partial.staging.path().join("fs")).unwrap();
    let checkpoint = |at| Checkpoint { packed: at, plain: at, format: StreamFormat::Plain };
    partial.journal.announce(checkpoint(PIECE.len() as u64));
    partial.journal.add_bytes(&PIECE);
    partial.journal.announce(checkpoint(2 * PIECE.len() as u64));
    assert!(partial.journal.has_checkpoint.load(Ordering::Relaxed));
    drop(partial);
    assert_eq!(store.partial_bytes(), PIECE.len() as u64);
    let continued = ContinuedPartials::new(&store, 1);
    assert_eq!(continued.add(&key(), 1 << 30, false).packed, PIECE.len() as u64);
    assert_eq!(stage(true).and_then(|partial| partial.resumed).map(|from| from.offset()), Some(PIECE.len() as u64));
    store.discard_partial(&key(), 2);
    assert!(store.partial_bytes() > 0, "another pull counts on it");
    assert!(stage(false).expect("no other writer").resumed.is_none());
    drop(continued);
    // A configuration that keeps blobs writes a file in its place.
    drop(stage(true));
    assert!(store.write_blob(&key(), 0, (BlobPurpose::Keep(0), &allowed)).unwrap().is_some());
}
