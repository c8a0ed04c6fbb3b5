//! Records and intents that could not be written: what they guard, and when they are forgotten.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::SystemTime};

use super::{DEFAULT, allowed, files, image, node_wide, open_on};
use crate::{
    image::{Image, ImageId},
    records::{Absent, Guard, PullRecords, RecordsSettings, UNRECORDED_MAX, faults::Faults},
};

/// The record of `sha256:1` could not be written. The kubelet's way has no second guard on the disk.
fn unrecorded(root: &Path, before: impl FnOnce(&PullRecords)) -> Arc<PullRecords> {
    let faults = Faults::new();
    let records = open_on(&faults, root, Guard::Spelling);
    before(&records);
    let intent = records.intend("app:v1").unwrap();
    faults.fail_in(1);
    intent.fulfil(&ImageId::new("sha256:1"), &node_wide(), SystemTime::now()).unwrap_err();
    records
}

#[test]
fn an_image_without_its_record_rejects_every_client_under_every_name() {
    let root = tempfile::tempdir().unwrap();
    let records = unrecorded(root.path(), |_| {});
    assert!(!allowed(&records, "other:v1", "sha256:1"));
    assert!(allowed(&records, "other:v1", "sha256:2"), "another image is not affected");
    records.learn("other:v1", &ImageId::new("sha256:1"), &node_wide(), SystemTime::now()).unwrap();
    assert!(allowed(&records, "other:v1", "sha256:1"));
}

#[test]
fn an_image_counts_as_unrecorded_until_a_pull_or_a_check_has_written_its_record() {
    let none: [Image; 0] = [];
    let now = SystemTime::now();
    let root = tempfile::tempdir().unwrap();
    let records = unrecorded(root.path(), |_| {});
    records.resolve_open_intents(&none, now, Absent::Removed).unwrap();
    assert!(records.has_open_intents(), "the intent is gone, the image is still without a record");
    records.learn("app:v1", &ImageId::new("sha256:1"), &node_wide(), now).unwrap();
    assert!(!records.has_open_intents(), "by a pull");

    let root = tempfile::tempdir().unwrap();
    let records = unrecorded(root.path(), |_| {});
    records.resolve_open_intents(&[image("sha256:1", "app:v1")], now, Absent::Removed).unwrap();
    assert!(!records.has_open_intents(), "by a check");
    assert!(!allowed(&records, "app:v1", "sha256:1"), "which knows of no client");
}

#[test]
fn pruning_forgets_no_unrecorded_image_that_is_present_or_newer_than_the_list() {
    let present = BTreeSet::from([ImageId::new("sha256:1")]);
    let root = tempfile::tempdir().unwrap();
    let records = unrecorded(root.path(), |_| {});
    records.prune(&present, &records.mark(SystemTime::now()));
    assert!(!allowed(&records, "other:v1", "sha256:1"), "present");

    let (root, mut mark) = (tempfile::tempdir().unwrap(), None);
    let records = unrecorded(root.path(), |records| mark = Some(records.mark(SystemTime::now())));
    records.prune(&BTreeSet::new(), &mark.unwrap());
    assert!(!allowed(&records, "other:v1", "sha256:1"), "newer");
    records.prune(&BTreeSet::new(), &records.mark(SystemTime::now()));
    assert!(allowed(&records, "other:v1", "sha256:1"), "gone");
}

#[test]
fn more_unrecorded_images_than_memory_holds_reject_every_client_of_any_unrecorded_image() {
    let settings = RecordsSettings { guard: Guard::Spelling, ..RecordsSettings::new(DEFAULT) };
    let records = PullRecords::in_memory_with(settings);
    for number in 0..UNRECORDED_MAX {
        records.keep_unrecorded(&ImageId::new(number.to_string()), "app:v1");
    }
    assert!(allowed(&records, "other:v1", "preloaded") && !allowed(&records, "other:v1", "7"));
    records.keep_unrecorded(&ImageId::new("one more"), "app:v1");
    assert!(!allowed(&records, "other:v1", "preloaded"), "it may be the one that found no place");
    assert!(!allowed(&records, "other:v1", "7"));
}

#[test]
fn the_intent_of_a_cut_off_pull_outlives_a_later_one_that_is_given_up_or_cannot_begin() {
    for guard in [Guard::Image, Guard::Spelling] {
        let (root, faults) = (tempfile::tempdir().unwrap(), Faults::new());
        let records = open_on(&faults, root.path(), guard);
        drop(records.intend("app:v1").unwrap());
        records.intend("app:v1").unwrap().withdraw().unwrap();
        assert_eq!(files(root.path(), "pulling"), 1, "given up");
        faults.fail_in(1);
        records.intend("app:v1").unwrap_err();
        assert_eq!(files(root.path(), "pulling"), 1, "cannot begin");
        assert!(!allowed(&records, "app:v1", "sha256:1"));

        let none: [Image; 0] = [];
        records.resolve_open_intents(&none, SystemTime::now(), Absent::Removed).unwrap();
        let running = records.intend("app:v1").unwrap();
        faults.fail_in(1);
        records.intend("app:v1").unwrap_err();
        assert_eq!(files(root.path(), "pulling"), 1, "of a pull that runs");
        running.withdraw().unwrap();
        assert_eq!(files(root.path(), "pulling"), 0, "a check ended what was cut off");
    }
}
