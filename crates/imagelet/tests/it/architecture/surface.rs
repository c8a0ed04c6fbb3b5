//! Fails on public functions and constants of a library crate that nothing outside of the crate's own code names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{crate_folders, is_generated};
use crate::source::{repository, rust_files, without_comments_and_strings, without_tests};

#[test]
fn what_is_public_is_used_by_another_crate_an_example_or_a_test_or_is_on_the_page_for_callers() {
    let mut unused = Vec::new();
    let page = fs::read_to_string(repository().join("docs/library.md")).unwrap();
    for folder in crate_folders().into_iter().filter(|folder| folder != "imagelet") {
        let own = repository().join("crates").join(&folder).join("src");
        let mut named: BTreeSet<String> = words(&page).collect();
        for place in ["crates", "tests", "xtask", "fuzz"] {
            for file in rust_files(&repository().join(place)) {
                if !file.starts_with(&own) || file.components().any(|part| part.as_os_str() == "testing") {
                    named.extend(words(&fs::read_to_string(file).unwrap()));
                }
            }
        }
        for (name, file) in public_items(&own) {
            if !named.contains(&name) {
                unused.push(format!("{file}: {name}"));
            }
        }
    }
    assert_eq!(unused, Vec::<String>::new(), "not used outside: make them `pub(crate)`");
}

#[test]
fn public_functions_and_constants_are_found_and_no_others() {
    let code = "pub fn one() {}\n    pub async fn two() {}\npub const fn three() {}\npub const FOUR: u8 = 4;\n\
                pub(crate) fn five() {}\nfn six() {}\npub struct Seven;\npub use eight::nine;";
    assert_eq!(code.lines().filter_map(public_item).collect::<Vec<_>>(), ["one", "two", "three", "FOUR"]);
}

/// Names and the files that define them.
fn public_items(folder: &Path) -> BTreeMap<String, String> {
    let mut items = BTreeMap::new();
    for file in rust_files(folder) {
        let text = fs::read_to_string(&file).unwrap();
        if is_generated(&text) || file.components().any(|part| part.as_os_str() == "testing") {
            continue;
        }
        let shown = file.strip_prefix(repository()).unwrap().display().to_string();
        let code = without_tests(&without_comments_and_strings(&text));
        items.extend(code.lines().filter_map(public_item).map(|name| (name.to_owned(), shown.clone())));
    }
    items
}

fn public_item(line: &str) -> Option<&str> {
    let mut rest = line.trim_start().strip_prefix("pub ")?;
    for modifier in ["const fn ", "async fn ", "fn ", "const ", "static "] {
        if let Some(named) = rest.strip_prefix(modifier) {
            rest = named;
            return Some(&rest[..rest.find(|it: char| !is_of_word(it)).unwrap_or(rest.len())]);
        }
    }
    None
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|it: char| !is_of_word(it)).filter(|word| !word.is_empty()).map(str::to_owned)
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}
