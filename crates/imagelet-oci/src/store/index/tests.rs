//! Names of images as the vectors have them, and a store that changes while it is read.

use std::{cell::Cell, collections::BTreeSet};

use imagelet_core::image::{ByteSize, Image, ImageSpec, ImageUser, PinnedNames, split_names};
use imagelet_vectors::vectors;
use serde_json::{Value, json};

use super::*;

fn record(id: &str, size: u64) -> ImageRecord {
    let record = json!({
        "id": id, "manifest": id, "layers": [], "metadata_size": size, "platform": "linux/amd64", "pulled_at": 0,
    });
    serde_json::from_value(record).unwrap()
}

/// The table as a vector writes it, images in the order of their ids.
fn table(index: &Index) -> Value {
    let images = index.images.iter();
    images
        .map(|(id, record)| json!({ "id": id, "references": index.names_of(id), "size": record.metadata_size }))
        .collect()
}

fn add(index: &mut Index, image: &Value) {
    let id = image["id"].as_str().unwrap();
    index.images.entry(ImageId::new(id)).or_insert_with(|| record(id, image["size"].as_u64().unwrap()));
    for name in image["references"].as_array().unwrap() {
        index.names.insert(name.as_str().unwrap().to_owned(), ImageId::new(id));
    }
}

#[test]
fn names_come_move_and_go_as_the_vectors_say() {
    let cases = vectors("cri-image-store.json");
    assert_eq!(cases.len(), 7);
    for case in cases {
        let (input, expected, name) = (&case["input"], &case["expected"], &case["name"]);
        if input.get("steps").is_some() {
            pins(input, expected);
            continue;
        }
        let mut index = Index::default();
        input["store"].as_array().unwrap().iter().for_each(|image| add(&mut index, image));
        let before = table(&index);
        assert_eq!(before, input["store"], "{name}");
        let update = &input["update"];
        let reference = update["reference"].as_str().unwrap();
        if update["image"].is_null() {
            index.names.remove(reference);
        } else {
            assert_eq!(update["image"]["references"], json!([reference]), "{name}");
            add(&mut index, &update["image"]);
        }
        index.remove_unreferenced();
        assert_eq!(table(&index), expected["store_unordered"], "{name}");
        // A repeated update changes nothing.
        if !update["image"].is_null() {
            add(&mut index, &update["image"]);
            index.remove_unreferenced();
            assert_eq!(table(&index), expected["store_unordered"], "{name}");
        }
    }
}

fn pins(input: &Value, expected: &Value) {
    let id = ImageId::new(input["image_id"].as_str().unwrap());
    let (steps, wanted) = (input["steps"].as_array().unwrap(), expected["after_each_step"].as_array().unwrap());
    assert_eq!(steps.len(), wanted.len());
    // Stored names are full names.
    let full = |name: &str| format!("docker.io/library/{name}:latest");
    let (mut index, mut pinned) = (Index::default(), BTreeSet::new());
    index.images.insert(id.clone(), record(id.as_str(), 1));
    for (step, wanted) in steps.iter().zip(wanted) {
        let name = full(step["ref"].as_str().unwrap());
        match step["op"].as_str().unwrap() {
            "add" => {
                index.names.insert(name.clone(), id.clone());
                if step["pinned"] == true {
                    pinned.insert(name);
                }
            }
            "pin" => drop(pinned.insert(name)),
            "unpin" => drop(pinned.remove(&name)),
            "pin+delete" => {
                pinned.insert(name.clone());
                index.names.remove(&name);
            }
            other => panic!("no such step: {other}"),
        }
        index.remove_unreferenced();
        let names = PinnedNames::exactly(pinned.iter().map(String::as_str));
        let (tags, digests) = split_names(index.names_of(&id).iter().map(String::as_str));
        let mut image = Image {
            id: id.clone(),
            tags,
            digests,
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        };
        names.mark(&mut image);
        assert_eq!(Value::from(image.pinned), wanted["image_pinned"], "{step}");
        let by_name: serde_json::Map<String, Value> = ["ref-1", "ref-2"]
            .into_iter()
            .filter(|short| image.tags.contains(&full(short)))
            .map(|short| (short.to_owned(), names.pins(&full(short)).into()))
            .collect();
        assert_eq!(Value::Object(by_name), wanted["ref_pinned"], "{step}");
    }
}

#[test]
fn a_store_that_changes_while_it_is_read_is_read_again_and_not_without_end() {
    for (changes, looks, torn) in [(0, 1, false), (3, 4, false), (1000, READS_MAX, true)] {
        let (left, seen, number) = (Cell::new(changes), Cell::new(0), Cell::new(0));
        let read = || {
            seen.set(seen.get() + 1);
            if left.get() > 0 {
                left.set(left.get() - 1);
                number.set(number.get() + 1);
            }
            Ok(StoreContents::default())
        };
        let (_, is_torn) = StoreContents::read_concurrently(|| number.get(), read).unwrap();
        assert_eq!((seen.get(), is_torn), (looks, torn), "{changes} changes");
    }
}
