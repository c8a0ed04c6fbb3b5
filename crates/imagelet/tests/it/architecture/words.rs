//! Fails on names that an engineer of the field cannot guess: of files, of items, and of two public types alike.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use super::is_generated;
use crate::source::{defined_items, public_types, repository, rust_files, without_comments_and_strings, without_tests};

/// Words that no name of a file or an item holds. ARCHITECTURE.md has the ones that are used instead.
const WORDS: [&str; 55] = [
    "absorb",
    "apart",
    "asker",
    "asking",
    "believes",
    "beside",
    "board",
    "brief",
    "brought",
    "calm",
    "choice",
    "departure",
    "doorman",
    "doubt",
    "essence",
    "flaw",
    "flaws",
    "foretell",
    "fullness",
    "ghosts",
    "glance",
    "keepsake",
    "landing",
    "lenient",
    "manner",
    "mend",
    "newcomer",
    "nobody",
    "odd",
    "packed",
    "recall",
    "regret",
    "regroup",
    "revive",
    "settle",
    "settled",
    "shelf",
    "shortage",
    "sieve",
    "somebody",
    "spoil",
    "starved",
    "steady",
    "stirred",
    "stray",
    "strangers",
    "tell",
    "tells",
    "told",
    "trouble",
    "upkeep",
    "verdicts",
    "who",
    "whoever",
    "worth",
];

/// Words that say nothing as the whole name of a file: everything has them.
const FILES: [&str; 22] = [
    "changes", "common", "copies", "document", "entries", "facts", "learned", "helpers", "kept", "listed", "misc",
    "others", "reading", "ready", "rest", "room", "rows", "things", "time", "util", "utils", "words",
];

/// Words that say nothing as the whole name of a type.
const TYPES: [&str; 15] = [
    "Among", "Asked", "Entry", "Flight", "Flights", "Held", "Kept", "Kind", "Lane", "Names", "Seen", "Span", "State",
    "Told", "Visitor",
];

#[test]
fn names_are_words_of_the_field() {
    let mut found = Vec::new();
    let mut items_read = 0;
    for path in product_files() {
        let text = fs::read_to_string(&path).unwrap();
        if is_generated(&text) {
            continue;
        }
        let file = path.file_stem().unwrap().to_str().unwrap();
        let items = defined_items(&without_tests(&without_comments_and_strings(&text)));
        items_read += items.len();
        let names = items.iter().map(String::as_str).filter(|name| is_banned(name)).collect::<BTreeSet<_>>();
        let file = (is_banned(file) || FILES.contains(&file)).then_some("the file itself");
        found.extend(names.into_iter().chain(file).map(|name| format!("{}: {name}", path.display())));
    }
    assert_eq!(found, Vec::<String>::new(), "names that say nothing to an engineer of the field");
    assert!(items_read > 3000, "{items_read} items: the sources were not read");
}

#[test]
fn planted_words_are_found() {
    for name in ["tell_all", "KeepsakeOf", "Flight", "State", "NOBODY", "is_apart"] {
        assert!(is_banned(name), "{name}");
    }
    for name in ["PullState", "teller", "kept_by_rule", "boards"] {
        assert!(!is_banned(name), "{name}");
    }
}

#[test]
fn public_types_have_names_of_their_own() {
    let mut homes = BTreeMap::<String, Vec<String>>::new();
    for path in product_files() {
        let text = fs::read_to_string(&path).unwrap();
        if is_generated(&text) {
            continue;
        }
        for name in public_types(&without_tests(&without_comments_and_strings(&text))) {
            homes.entry(name).or_default().push(path.strip_prefix(repository()).unwrap().display().to_string());
        }
    }
    assert!(homes.len() > 100, "{} types: the sources were not read", homes.len());
    homes.retain(|_, files| files.len() > 1);
    assert_eq!(homes, BTreeMap::new(), "public types that share a name");
}

/// The sources of all crates; files of tests are left out.
pub(super) fn product_files() -> Vec<std::path::PathBuf> {
    let is_of_tests = |path: &std::path::Path| {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        stem == "tests"
            || stem.ends_with("_tests")
            || path.components().any(|part| {
                let part = part.as_os_str().to_str().unwrap();
                part == "tests" || part == "benches" || part.ends_with("_tests")
            })
    };
    rust_files(&repository().join("crates")).into_iter().filter(|path| !is_of_tests(path)).collect()
}

fn is_banned(name: &str) -> bool {
    TYPES.contains(&name) || words_of(name).iter().any(|word| WORDS.contains(&word.as_str()))
}

/// The words of a name in snake, camel or capital letters, in small ones.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && before.is_lowercase()) {
            words.push(String::new());
        }
        if letter != '_' {
            words.last_mut().expect("never empty").extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}
