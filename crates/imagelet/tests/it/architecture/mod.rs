//! Fails on every arrow the house does not have: between crates, between rooms, and from outside to the wire.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

mod documents;
mod files;
mod messages;
mod pages;
mod shapes;
mod surface;
mod words;

use crate::source::{first_segments, repository, rust_files, without_comments_and_strings, without_tests};

/// A file longer than this hides a second purpose.
const LINES_MAX: usize = 600;

/// The rooms of the core, top storey first. A room sees only rooms on lower storeys.
const CORE_STOREYS: [&[&str]; 7] = [
    &["manager", "gc"],
    &["disks", "inventory"],
    &["leases", "ports", "records"],
    &["audit_log", "credentials", "events"],
    &["durable", "trusted_files"],
    &["bounded_map", "error", "failpoint", "hold", "image", "metrics", "node_policy", "retry_wait"],
    &["lock", "printable", "text"],
];

/// The rooms of the CRI adapter that may name a wire type.
const WIRE_ROOMS: [&str; 3] = ["client", "convert", "server"];

/// `from → to`, once for every pair.
type Arrows = BTreeSet<(String, String)>;

/// The source of a crate: its rooms' names, and the code of each room.
type Rooms = BTreeMap<String, String>;

#[test]
fn crates_point_from_the_binary_to_the_adapters_to_the_core() {
    let mut arrows = Arrows::new();
    for folder in crate_folders() {
        let manifest = fs::read_to_string(repository().join("crates").join(&folder).join("Cargo.toml")).unwrap();
        arrows.extend(dependencies(&manifest).into_iter().map(|to| (folder.clone(), to)));
    }
    for (name, folder) in [("xtask", "xtask"), ("imagelet-vectors", "tests/vector-runs")] {
        let manifest = fs::read_to_string(repository().join(folder).join("Cargo.toml")).unwrap();
        arrows.extend(dependencies(&manifest).into_iter().map(|to| (name.to_owned(), to)));
    }
    assert!(arrows.contains(&("imagelet".to_owned(), "imagelet-core".to_owned())), "the manifests were not read");
    assert_eq!(forbidden_crate_arrows(&arrows), Vec::<String>::new());
}

#[test]
fn a_planted_crate_arrow_is_found() {
    let sideways = "[package]\nname = \"imagelet-kube\"\n[dependencies]\nimagelet-core.workspace = true\n\
                    [dev-dependencies]\nimagelet-runtime = { workspace = true }\n[dependencies.renamed]\npackage = \"imagelet\"";
    let arrows = dependencies(sideways).into_iter().map(|to| ("imagelet-kube".to_owned(), to)).collect();
    assert_eq!(forbidden_crate_arrows(&arrows), ["imagelet-kube → imagelet", "imagelet-kube → imagelet-runtime"]);
}

#[test]
fn rooms_of_the_core_see_only_lower_storeys() {
    let rooms = rooms_of("imagelet-core");
    assert!(rooms.contains_key("ports"), "the core was not read");
    assert_eq!(forbidden_core_arrows(&arrows_of(&rooms)), Vec::<String>::new());
}

#[test]
fn a_planted_core_arrow_is_found() {
    let rooms = Rooms::from([
        ("gc".to_owned(), "use crate::{image::ImageKey, manager::Ensure};".to_owned()),
        ("manager".to_owned(), "use crate::inventory::Inventory;".to_owned()),
        ("inventory".to_owned(), String::new()),
        ("image".to_owned(), "fn f() { crate::testing::fake() }".to_owned()),
        ("testing".to_owned(), "use crate::gc::plan;".to_owned()),
    ]);
    assert_eq!(forbidden_core_arrows(&arrows_of(&rooms)), ["gc → manager", "image → testing"]);
}

#[test]
fn no_crate_has_a_circle_between_rooms() {
    for folder in crate_folders() {
        let circle = circle(&arrows_of(&rooms_of(&folder)));
        assert_eq!(circle, None, "rooms of {folder} stand in a circle");
    }
}

#[test]
fn a_planted_circle_is_found() {
    let rooms = Rooms::from([
        ("engine".to_owned(), "use crate::store::Store;".to_owned()),
        ("store".to_owned(), "use crate::unpack;".to_owned()),
        ("unpack".to_owned(), "fn f() { crate::engine::pull() }".to_owned()),
    ]);
    let found = circle(&arrows_of(&rooms)).expect("the circle is found");
    assert_eq!(found.len(), 3, "{found:?}");
    let open: Arrows = arrows_of(&rooms).into_iter().filter(|(from, _)| from != "unpack").collect();
    assert_eq!(circle(&open), None);
}

#[test]
fn wire_types_stay_in_the_cri_adapter() {
    let cri = rooms_in(&repository().join("crates/imagelet-runtime/src/cri"));
    assert!(cri.contains_key("convert"), "the room was not read");
    assert_eq!(rooms_naming_the_wire("cri", &cri), Vec::<String>::new());
    for folder in crate_folders() {
        let named = rooms_naming_the_wire(&folder, &rooms_of(&folder));
        assert_eq!(named, Vec::<String>::new(), "rooms of {folder} name a wire type");
    }
}

#[test]
fn a_planted_wire_type_is_found() {
    let rooms = Rooms::from([
        ("convert".to_owned(), "use crate::v1::Image;".to_owned()),
        ("endpoint".to_owned(), "fn f(image: v1::Image) {}".to_owned()),
    ]);
    assert_eq!(rooms_naming_the_wire("cri", &rooms), ["endpoint"]);
    let outside = Rooms::from([("serve".to_owned(), "use imagelet_runtime::cri::v1;".to_owned())]);
    assert_eq!(rooms_naming_the_wire("imagelet", &outside), ["serve"]);
}

#[test]
fn every_file_opens_with_its_purpose_and_has_room_for_one() {
    let mut wrong = Vec::new();
    for root in ["crates", "xtask"] {
        for path in rust_files(&repository().join(root)) {
            let text = fs::read_to_string(&path).unwrap();
            if !is_generated(&text) {
                wrong.extend(complaint(&text).map(|complaint| format!("{}: {complaint}", path.display())));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn a_planted_long_or_purposeless_file_is_found() {
    assert_eq!(complaint("use std::fs;\n"), Some("does not open with a `//!` line"));
    assert_eq!(complaint(&format!("//! Purpose.\n{}", "\n".repeat(LINES_MAX))), Some("is longer than 600 lines"));
    assert_eq!(complaint("//! Purpose.\n"), None);
}

fn complaint(text: &str) -> Option<&'static str> {
    if !text.starts_with("//!") {
        Some("does not open with a `//!` line")
    } else if text.lines().count() > LINES_MAX {
        Some("is longer than 600 lines")
    } else {
        None
    }
}

fn is_generated(text: &str) -> bool {
    text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.starts_with("//! Generated from "))
}

fn crate_folders() -> Vec<String> {
    let mut folders: Vec<String> = fs::read_dir(repository().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    folders.sort();
    assert!(folders.len() >= 5, "crates found: {folders:?}");
    folders
}

/// The crates of this workspace that a manifest names in any dependency table.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines() {
        let line = line.split('#').next().unwrap_or_default();
        if line.starts_with('[') {
            inside = line.contains("dependencies");
        }
        if inside {
            let words = line.split(|letter: char| !(letter.is_alphanumeric() || letter == '-' || letter == '_'));
            found.extend(words.filter(|word| *word == "imagelet" || word.starts_with("imagelet-")).map(str::to_owned));
        }
    }
    found
}

fn forbidden_crate_arrows(arrows: &Arrows) -> Vec<String> {
    let storey = |name: &str| match name {
        "imagelet" => 4,
        "imagelet-node" => 3,
        "imagelet-kube" | "imagelet-runtime" => 2,
        "imagelet-oci" => 1,
        "imagelet-core" => 0,
        // The vectors of the tests: below all, because the tests of all read them.
        "imagelet-vectors" => -1,
        "xtask" => -2,
        other => panic!("the crate `{other}` has no storey"),
    };
    // A crate may name itself in its dev-dependencies, to switch on a feature for its own tests.
    let forbidden = arrows.iter().filter(|(from, to)| {
        from != to && (storey(from) <= storey(to) || (from.as_str(), to.as_str()) == ("imagelet-kube", "imagelet-oci"))
    });
    forbidden.map(|(from, to)| format!("{from} → {to}")).collect()
}

fn forbidden_core_arrows(arrows: &Arrows) -> Vec<String> {
    let storey = |room: &str| CORE_STOREYS.iter().position(|storey| storey.contains(&room));
    let allowed = |from: &str, to: &str| match (storey(from), storey(to)) {
        (Some(from), Some(to)) => from < to,
        // The fake and the conformance suite see everything; nothing sees them.
        _ => from == "testing" && storey(to).is_some(),
    };
    arrows.iter().filter(|(from, to)| !allowed(from, to)).map(|(from, to)| format!("{from} → {to}")).collect()
}

/// Reads the code of each room of a crate, tests left out. `lib.rs` and `main.rs` are the door, not a room.
fn rooms_of(folder: &str) -> Rooms {
    rooms_in(&repository().join("crates").join(folder).join("src"))
}

fn rooms_in(source: &Path) -> Rooms {
    let mut rooms = Rooms::new();
    for path in rust_files(source) {
        let relative = path.strip_prefix(source).unwrap();
        let depth = relative.components().count();
        let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
        let name = first.strip_suffix(".rs").unwrap_or(first);
        let is_tests = |name: &str| name == "tests.rs" || name.ends_with("_tests.rs");
        let is_test_module = relative.file_name().is_some_and(|name| name.to_str().is_some_and(is_tests))
            || relative.components().any(|part| part.as_os_str() == "tests");
        if matches!(name, "lib" | "main" | "bin") || is_test_module {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = without_tests(&without_comments_and_strings(&text));
        let is_door = relative.ends_with("mod.rs") || depth == 1;
        let climbs = depth - usize::from(is_door && depth > 1);
        rooms.entry(name.to_owned()).or_default().push_str(&from_the_crate_root(&code, climbs));
    }
    rooms
}

/// Spells paths that climb with `super::` out of the room as `crate::`.
fn from_the_crate_root(code: &str, climbs: usize) -> String {
    let climbing = "super::".repeat(climbs);
    let mut named: Vec<String> = first_segments(code, &climbing).into_iter().collect();
    named.retain(|segment| segment != "super");
    let arrows: Vec<String> = named.iter().map(|segment| format!("crate::{segment};")).collect();
    format!("{code}\n{}\n", arrows.join("\n"))
}

/// Which room names which. A name of the crate root that is no room is an arrow to whatever it is: it has two paths.
fn arrows_of(rooms: &Rooms) -> Arrows {
    let mut arrows = Arrows::new();
    for (from, code) in rooms {
        let named = first_segments(code, "crate::").into_iter().filter(|to| to != from);
        arrows.extend(named.filter(|to| rooms.contains_key(to) || is_type(to)).map(|to| (from.clone(), to)));
    }
    arrows
}

fn is_type(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_uppercase())
}

/// One circle of rooms, if there is any: each names the next, the last names the first.
fn circle(arrows: &Arrows) -> Option<Vec<String>> {
    let starts: BTreeSet<&String> = arrows.iter().map(|(from, _)| from).collect();
    starts.into_iter().find_map(|start| way_back(arrows, start, &mut vec![start.clone()], &mut BTreeSet::new()))
}

fn way_back(arrows: &Arrows, start: &str, way: &mut Vec<String>, seen: &mut BTreeSet<String>) -> Option<Vec<String>> {
    let here = way.last().expect("the way has a start").clone();
    for (_, to) in arrows.iter().filter(|(from, _)| *from == here) {
        if to == start {
            return Some(way.clone());
        }
        if seen.insert(to.clone()) {
            way.push(to.clone());
            if let Some(found) = way_back(arrows, start, way, seen) {
                return Some(found);
            }
            way.pop();
        }
    }
    None
}

fn rooms_naming_the_wire(folder: &str, rooms: &Rooms) -> Vec<String> {
    let names_it = |room: &str, code: &str| match folder {
        "cri" => !WIRE_ROOMS.contains(&room) && (code.contains("v1::") || code.contains("::v1")),
        "imagelet-runtime" => !["cri", "fuzzing"].contains(&room) && code.contains("cri::v1"),
        _ => code.contains("imagelet_runtime::cri::v1"),
    };
    rooms.iter().filter(|(room, code)| names_it(room, code)).map(|(room, _)| room.clone()).collect()
}
