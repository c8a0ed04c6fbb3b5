//! Hostile images, all around the tar: how they are packed, called, described and served, and a store on a bad disk.
//!
//! The ids are those of the catalogue of bad inputs. Each instance is really pulled, by the engine, from a registry in
//! this process; afterwards nothing may be left, and the engine must still pull.

mod artifacts;
mod bombs;
mod case;
mod child;
mod compression;
mod configs;
mod digests;
mod disk;
mod foreign;
mod image;
mod manifests;
mod media;
mod registry;
mod scarce;
mod store;

use std::collections::BTreeSet;

#[test]
fn every_id_of_the_catalogue_has_an_instance() {
    let tables = [
        compression::cases(),
        bombs::cases(),
        media::cases(),
        artifacts::cases(),
        digests::cases(),
        manifests::cases(),
        configs::cases(),
        foreign::cases(),
    ];
    let mut tried: BTreeSet<&str> = tables.iter().flatten().map(|case| case.id).collect();
    // Those that are told as a test of their own.
    for stories in [bombs::STORIES, manifests::STORIES, configs::STORIES, disk::STORIES, store::STORIES] {
        tried.extend(stories);
    }
    let wanted = (42..=68).chain(112..=115).map(|number| format!("B{number:03}"));
    let missing: Vec<String> = wanted.filter(|id| !tried.contains(id.as_str())).collect();
    assert!(missing.is_empty(), "no instance of {missing:?}");
    let names: BTreeSet<(&str, &str)> = tables.iter().flatten().map(|case| (case.id, case.name)).collect();
    assert_eq!(names.len(), tables.iter().map(Vec::len).sum::<usize>(), "two instances have one name");
}
