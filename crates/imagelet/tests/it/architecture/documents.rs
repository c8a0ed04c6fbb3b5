//! Fails where the documents and the tree differ: the list of rooms, their size, and citations of the specification.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use crate::source::{repository, rust_files};

use super::crate_folders;

/// A folder that holds more files than this is more than one room.
const FILES_MAX: usize = 12;

/// Where ARCHITECTURE.md has its list of rooms.
const ROOMS: [&str; 2] = [
    "<!-- rooms: written by `IMAGELET_UPDATE=1 cargo test -p imagelet --test it -- architecture` -->",
    "<!-- rooms: end -->",
];

#[test]
fn no_room_holds_more_than_twelve_files() {
    let mut files = BTreeMap::<PathBuf, usize>::new();
    for folder in crate_folders() {
        for path in rust_files(&repository().join("crates").join(folder).join("src")) {
            *files.entry(path.parent().unwrap().to_path_buf()).or_default() += 1;
        }
    }
    assert!(files.len() > 30, "{} folders: the sources were not read", files.len());
    files.retain(|_, count| *count > FILES_MAX);
    assert_eq!(files, BTreeMap::new(), "folders with more than {FILES_MAX} files");
}

#[test]
fn the_architecture_names_every_room() {
    let path = repository().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(ROOMS[0]).expect("ARCHITECTURE.md has a list of rooms");
    let (listed, behind) = rest.split_once(ROOMS[1]).expect("the list of rooms ends");
    let made = format!("\n\n{}\n", rooms());
    if env::var_os("IMAGELET_UPDATE").is_some() {
        fs::write(&path, [before, ROOMS[0], &made, ROOMS[1], behind].concat()).unwrap();
    } else {
        assert_eq!(listed, made, "the tree has other rooms: `IMAGELET_UPDATE=1` writes the list anew");
    }
}

/// A table of the rooms of each crate and of what each opens with.
fn rooms() -> String {
    let mut lines = vec!["| room | what it is |".to_owned(), "|---|---|".to_owned()];
    for folder in crate_folders() {
        let source = repository().join("crates").join(&folder).join("src");
        let names: BTreeSet<String> = fs::read_dir(&source)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().trim_end_matches(".rs").to_owned())
            .collect();
        for name in names.iter().filter(|name| !matches!(name.as_str(), "lib" | "main")) {
            let doors = [source.join(name).join("mod.rs"), source.join(format!("{name}.rs"))];
            let door = doors.iter().find(|door| door.exists()).unwrap_or_else(|| panic!("{folder}/{name} has no door"));
            lines.push(format!("| `{}/{name}` | {} |", folder.trim_start_matches("imagelet-"), opening(door)));
        }
    }
    lines.join("\n")
}

/// The first sentence of a file's `//!` lines.
fn opening(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//! ")).map(|line| &line[4..]).collect();
    let head = head.join(" ");
    let sentence = head.find(". ").map_or(head.as_str(), |end| &head[..=end]);
    sentence.replace('|', "\\|")
}

#[test]
fn every_citation_of_the_specification_resolves() {
    let headings: BTreeMap<&str, BTreeSet<String>> =
        ["pull", "gc", "cri", "containerd"].map(|name| (name, numbered_headings(name))).into();
    let (mut found, mut cited) = (Vec::new(), 0);
    for path in cited_from() {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            // A part of the specification cites itself by the number alone.
            let own = path
                .parent()
                .is_some_and(|folder| folder.ends_with("docs/spec"))
                .then(|| path.file_stem().unwrap().to_str().unwrap());
            let line = own.map_or_else(|| line.to_owned(), |own| format!("docs/spec/{own}.md: {line}"));
            let (count, wrong) = wrong_citations(&line, &headings);
            cited += count;
            found.extend(wrong.into_iter().map(|wrong| format!("{}:{}: {wrong}", path.display(), number + 1)));
        }
    }
    assert_eq!(found, Vec::<String>::new(), "citations that lead nowhere");
    assert!(cited > 50, "{cited} citations: the sources were not read");
}

#[test]
fn planted_citations_that_lead_nowhere_are_found() {
    let headings = BTreeMap::from([("gc", BTreeSet::from(["7".to_owned(), "7.4".to_owned()]))]);
    let wrong = |line: &str| wrong_citations(line, &headings);
    assert_eq!(wrong("//! Ages (`docs/spec/gc.md §7`, §7.4); RFC 9110 §15 is another one's."), (2, Vec::new()));
    assert_eq!(wrong("//! Ages (`docs/spec/gc.md §8`)."), (1, vec!["docs/spec/gc.md has no §8".to_owned()]));
    assert_eq!(wrong("//! Ages (§7)."), (1, vec!["§7 names no document".to_owned()]));
    assert_eq!(wrong("//! Ages (`spec/gc.md §7`)."), (1, vec!["`spec/gc.md` lies in docs/".to_owned()]));
}

/// The sources and documents that may cite the specification; this file cites what is not there.
fn cited_from() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        ["crates", "fuzz", "xtask"].iter().flat_map(|root| rust_files(&repository().join(root))).collect();
    for folder in ["", "docs", "docs/spec"] {
        let entries = fs::read_dir(repository().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    files.retain(|path| !path.ends_with(file!()));
    files
}

/// How many sections of our specification a line cites, and what is wrong with them.
fn wrong_citations(line: &str, headings: &BTreeMap<&str, BTreeSet<String>>) -> (usize, Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    for (at, _) in line.match_indices('§') {
        let number: String = line[at + '§'.len_utf8()..]
            .chars()
            .take_while(|letter| letter.is_ascii_digit() || *letter == '.')
            .collect();
        let number = number.trim_end_matches('.');
        let before = &line[..at];
        let ours = headings.keys().filter_map(|name| Some((before.rfind(&format!("{name}.md"))?, *name))).max();
        let foreign = before.rfind("RFC ").max(before.rfind("KEP-"));
        match ours {
            _ if foreign.is_some() && foreign > ours.map(|(at, _)| at) => {}
            None => {
                count += 1;
                wrong.push(format!("§{number} names no document"));
            }
            Some((at, name)) => {
                count += 1;
                // Documents link by paths of their own; other tests hold those.
                if line.trim_start().starts_with("//") && !before[..at].ends_with("docs/spec/") {
                    wrong.push(format!("`spec/{name}.md` lies in docs/"));
                } else if !headings[name].contains(number) {
                    wrong.push(format!("docs/spec/{name}.md has no §{number}"));
                }
            }
        }
    }
    (count, wrong)
}

/// The numbers of the headings of one part of the specification: `7`, `7.4`, `7.4.1`.
fn numbered_headings(name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(repository().join("docs/spec").join(name).with_extension("md")).unwrap();
    let heads = text.lines().filter(|line| line.starts_with("##")).map(|line| line.trim_start_matches('#').trim());
    let numbers = heads.map(|head| head.split(' ').next().unwrap_or_default().trim_end_matches('.').to_owned());
    numbers.filter(|number| number.starts_with(|letter: char| letter.is_ascii_digit())).collect()
}
