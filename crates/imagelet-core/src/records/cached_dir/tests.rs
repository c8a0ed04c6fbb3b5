//! The vectors of the cache in front of the files, over real files.

use std::{collections::BTreeSet, path::Path};

use imagelet_vectors::vectors;
use serde_json::Value;

use super::*;
use crate::records::{PullIntent, faults::Faults};

fn name(number: u64) -> String {
    format!("image:{number}")
}

fn put(root: &Path, image: &str) {
    std::fs::write(root.join(file_name(image)), PullIntent::new(image).encode()).unwrap();
}

fn shelf(root: &Path, capacity: u64) -> CachedDir<PullIntent> {
    let capacity = usize::try_from(capacity).unwrap();
    CachedDir::open(Folder::open(root.to_owned(), false).unwrap(), capacity, 1)
}

/// A file that makes each listing fail in part.
fn break_list(root: &Path) {
    std::fs::write(root.join(file_name("broken")), "{").unwrap();
}

fn is_complete(shelf: &CachedDir<PullIntent>) -> bool {
    shelf.memory().is_complete()
}

fn remembered(shelf: &CachedDir<PullIntent>) -> BTreeSet<String> {
    shelf.memory().values().map(|begun| begun.image.clone()).collect()
}

#[test]
fn every_vector_of_the_cache_in_memory_holds() {
    let cases = vectors("pull-records-memory-cache.json");
    for case in &cases {
        let (input, expected) = (&case["input"], &case["expected"]);
        let place = case["name"].as_str().expect("a name");
        let root = tempfile::tempdir().unwrap();
        match input["op"].as_str() {
            Some("start") => start_vector_holds(place, root.path(), input, expected),
            Some("list") => list_vector_holds(place, root.path(), input, expected),
            Some("exists") => exists_vector_holds(place, root.path(), input, expected),
            Some("write") => write_vector_holds(place, root.path(), input, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(cases.len(), 18);
}

fn is(value: &Value) -> bool {
    value.as_bool().expect("a bool")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn start_vector_holds(place: &str, root: &Path, input: &Value, expected: &Value) {
    for index in 0..number(&input["listed"]) {
        put(root, &name(index));
    }
    if is(&input["list_error"]) {
        break_list(root);
    }
    let shelf = shelf(root, number(&input["max"]));
    assert_eq!(is_complete(&shelf), is(&expected["authoritative"]), "{place}");
    assert_eq!(remembered(&shelf).len() as u64, number(&expected["cached"]), "{place}");
}

fn list_vector_holds(place: &str, root: &Path, input: &Value, expected: &Value) {
    let (complete, fails) = (is(&input["authoritative_before"]), is(&input["list_error"]));
    if !complete {
        break_list(root);
    }
    for index in 0..number(&input["cached_before"]) {
        put(root, &name(index));
    }
    let shelf = shelf(root, 50);
    let before = remembered(&shelf);
    assert_eq!((is_complete(&shelf), before.len() as u64), (complete, number(&input["cached_before"])));
    for index in 10..13 {
        put(root, &name(index));
    }
    if fails {
        break_list(root);
    } else if !complete {
        std::fs::remove_file(root.join(file_name("broken"))).unwrap();
    }
    let listed = shelf.list();
    assert_eq!(expected["result"], "what the disk returned, with its error");
    assert_eq!((listed.whole.len(), listed.failures.len()), (before.len() + 3, usize::from(fails)), "{place}");
    assert_eq!(is_complete(&shelf), is(&expected["authoritative_after"]), "{place}");
    let after = remembered(&shelf);
    let everything: BTreeSet<String> = listed.whole.iter().map(|begun| begun.image.clone()).collect();
    let wanted = if is(&expected["cache_replaced_by_list"]) { everything } else { before };
    assert_eq!(after, wanted, "{place}");
}

fn exists_vector_holds(place: &str, root: &Path, input: &Value, expected: &Value) {
    let (image, path) = (name(1), root.join(file_name(&name(1))));
    if !is(&input["authoritative"]) {
        break_list(root);
    }
    if is(&input["in_memory"]) {
        put(root, &image);
    }
    let shelf = shelf(root, 50);
    assert_eq!(is_complete(&shelf), is(&input["authoritative"]), "{place}");
    match input["on_disk"].as_bool() {
        Some(true) => put(root, &image),
        Some(false) => assert!(!path.exists(), "{place}"),
        // A hit in memory does not read the disk, so its content does not matter.
        None if is(&input["in_memory"]) => std::fs::remove_file(&path).unwrap(),
        None => {}
    }
    if is(&input["disk_error"]) {
        std::fs::create_dir(&path).unwrap();
    }
    let found = shelf.find(&image);
    assert_eq!(found.is_err(), is(&expected["error"]), "{place}: {found:?}");
    assert_eq!(matches!(found, Ok(Some(_))), is(&expected["exists"]), "{place}");
    assert_eq!(remembered(&shelf).contains(&image), is(&expected["in_memory_after"]), "{place}");
    assert_eq!(is_complete(&shelf), is(&expected["authoritative_after"]), "{place}");
}

fn write_vector_holds(place: &str, root: &Path, input: &Value, expected: &Value) {
    let (cached, max) = (number(&input["cached_before"]), number(&input["max"]));
    let complete = is(&input["authoritative_before"]);
    if !complete {
        break_list(root);
    }
    let faults = Faults::arm();
    let shelf = shelf(root, max);
    Faults::disarm();
    for index in 0..cached {
        shelf.write(PullIntent::new(name(index))).unwrap();
    }
    assert_eq!((is_complete(&shelf), remembered(&shelf).len() as u64), (complete, cached), "{place}");
    let image = name(if is(&input["key_already_cached"]) { 0 } else { cached });
    assert_eq!(remembered(&shelf).contains(&image), is(&input["key_already_cached"]), "{place}");
    if is(&input["disk_error"]) {
        faults.fail_in(1);
    }
    let effects = faults.effects();
    let written = shelf.write(PullIntent::new(image.as_str()));
    assert_eq!(written.is_err(), is(&expected["error"]), "{place}");
    // Memory follows the disk: after a failed disk access memory has nothing.
    assert_eq!(faults.effects() > effects, is(&expected["disk_written_first"]), "{place}");
    assert_eq!(remembered(&shelf).contains(&image), written.is_ok(), "{place}");
    assert_eq!(root.join(file_name(&image)).exists(), written.is_ok(), "{place}");
    assert_eq!(remembered(&shelf).len() as u64, number(&expected["cached_after"]), "{place}");
    assert_eq!(is_complete(&shelf), is(&expected["authoritative_after"]), "{place}");
    if cached == max {
        assert!(!remembered(&shelf).contains(&name(0)), "{place}: the oldest goes");
    }
}
