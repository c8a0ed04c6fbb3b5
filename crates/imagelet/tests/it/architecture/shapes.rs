//! Fails on wide structs that are handed around, on traits with one implementation, and on test code inside product functions.

use std::{collections::BTreeMap, fs, path::PathBuf};

use super::{is_generated, words::product_files};
use crate::source::{repository, rust_files, without_comments_and_strings, without_tests};

/// More fields than this are a bag: a function that gets it does not say what it needs.
const FIELDS_MAX: usize = 8;
/// Rows of a document, flags of a command line and keys of a file are as wide as what they describe.
const DESCRIBING: [&str; 5] = ["Serialize", "Deserialize", "Args", "Parser", "CustomResource"];

#[test]
fn no_struct_that_is_handed_around_has_more_than_eight_public_fields() {
    let mut wide = Vec::new();
    for path in product_files().into_iter().filter(|path| path.components().all(|part| part.as_os_str() != "testing")) {
        let text = fs::read_to_string(&path).unwrap();
        if !is_generated(&text) {
            let shown = path.strip_prefix(repository()).unwrap().display().to_string();
            let structs = wide_structs(&without_tests(&without_comments_and_strings(&text)));
            wide.extend(structs.into_iter().map(|(name, fields)| format!("{shown}: {name} has {fields}")));
        }
    }
    assert_eq!(wide, Vec::<String>::new(), "group the fields that belong together");
}

#[test]
fn each_trait_has_two_implementations_a_fake_of_the_tests_counted() {
    let code_of = |path: &PathBuf| without_comments_and_strings(&fs::read_to_string(path).unwrap());
    let traits: Vec<String> = product_files().iter().flat_map(|path| declared_traits(&code_of(path))).collect();
    assert!(traits.len() > 10, "the sources were not read");
    let mut implementations: BTreeMap<String, usize> = traits.into_iter().map(|name| (name, 0)).collect();
    for code in rust_files(&repository().join("crates")).iter().map(code_of) {
        for (name, of_all) in implemented_traits(&code) {
            // What every type has names a sum of bounds, and hides no type. A macro implements it for each of its lines.
            implementations.entry(name).and_modify(|count| *count += if of_all { 2 } else { 1 });
        }
    }
    implementations.retain(|_, count| *count < 2);
    assert_eq!(implementations, BTreeMap::new(), "call the one type by its name");
}

#[test]
fn product_functions_have_no_test_branches() {
    let mut found = Vec::new();
    for path in product_files() {
        let code = without_comments_and_strings(&fs::read_to_string(&path).unwrap());
        let lines = test_branches(&code).into_iter();
        found.extend(lines.map(|line| format!("{}:{line}", path.strip_prefix(repository()).unwrap().display())));
    }
    assert_eq!(found, Vec::<String>::new(), "tests reach in through a port, a failpoint or an argument");
}

#[test]
fn planted_bags_lone_traits_and_test_branches_are_found() {
    let fields = (0..9).fold(String::new(), |fields, number| {
        fields
            + &format!(
                "    pub field_{number}: u8,
"
            )
    });
    let bag = format!("#[derive(Debug)]\npub struct Bag {{\n{fields}}}\n");
    assert_eq!(wide_structs(&bag), [("Bag".to_owned(), 9)]);
    assert_eq!(wide_structs(&bag.replace("Debug", "Debug, Serialize")), []);
    assert_eq!(wide_structs(&bag.replace("    pub field_0: u8,\n", "    field_0: u8,\n")), []);
    assert_eq!(declared_traits("pub(crate) trait Port: Send {}\nfn is_trait() {}"), ["Port"]);
    let implemented = "impl Port for A {}\nimpl<T: Copy> super::Port<T> for B<T> {}\nimpl A {}\n\
                       impl<T: Copy> Sum for T {}\nimpl Row for $row {}";
    let found = [("Port", false), ("Port", false), ("Sum", true), ("Row", true)];
    let found = found.map(|(name, of_all)| (name.to_owned(), of_all));
    assert_eq!(implemented_traits(implemented), found);
    let code = "fn a() {\n    #[cfg(test)]\n    stop();\n}\nimpl A {\n    #[cfg(test)]\n    pub fn b() {}\n    if cfg!(test) {}\n}";
    assert_eq!(test_branches(code), [2, 8]);
}

/// Names and public fields of the structs that are neither documents nor arguments.
fn wide_structs(code: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("struct ") {
        let head = code[..at].rfind(['}', ';']).map_or(0, |end| end + 1);
        let rest = &code[at + "struct ".len()..];
        let name: String = rest.chars().take_while(|it| it.is_alphanumeric() || *it == '_').collect();
        let (Some(open), Some(end)) = (rest.find('{'), rest.find("\n}")) else { continue };
        let is_bare = rest.find([';', '(']).is_some_and(|other| other < open);
        if is_bare || open > end || DESCRIBING.iter().any(|word| code[head..at].contains(word)) {
            continue;
        }
        let fields = rest[open..end].lines().filter(|line| line.trim_start().starts_with("pub")).count();
        if fields > FIELDS_MAX {
            found.push((name, fields));
        }
    }
    found
}

fn declared_traits(code: &str) -> Vec<String> {
    let name_of = |line: &str| {
        let line = line.trim_start();
        let visible = line.strip_prefix("pub").map_or(line, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
        let name = visible.strip_prefix("trait ")?;
        Some(name.chars().take_while(|it| it.is_alphanumeric()).collect())
    };
    code.lines().filter_map(name_of).filter(|name: &String| !name.is_empty()).collect()
}

/// The last segment of each trait that a type of this code implements, and whether every type does.
fn implemented_traits(code: &str) -> Vec<(String, bool)> {
    let implementation = |line: &str| {
        let (head, of) = line.trim_start().strip_prefix("impl")?.split_once(" for ")?;
        // Behind the parameters of the implementation, before those of the trait.
        let head = if head.starts_with('<') { head.split_once("> ")?.1 } else { head };
        let name = head.split('<').next()?.trim().rsplit("::").next()?;
        Some((name.to_owned(), of.split_whitespace().next() == Some("T") || of.starts_with('$')))
    };
    code.lines().filter_map(implementation).collect()
}

/// Lines where the build for tests changes what a product function does; items for tests alone are none of them.
fn test_branches(code: &str) -> Vec<usize> {
    let lines: Vec<&str> = code.lines().map(str::trim_start).collect();
    let is_item = |line: &str| {
        let words = [
            "pub", "fn ", "async fn", "const ", "static ", "mod ", "use ", "impl", "struct ", "enum ", "type ", "macro",
        ];
        line.starts_with("#[") || words.iter().any(|word| line.starts_with(word))
    };
    let is_branch = |at: usize| {
        lines[at].contains("cfg!(test)")
            || (lines[at].starts_with("#[cfg(test)]")
                && lines[at + 1..].iter().find(|next| !next.is_empty()).is_some_and(|next| !is_item(next)))
    };
    (0..lines.len()).filter(|at| is_branch(*at)).map(|at| at + 1).collect()
}
