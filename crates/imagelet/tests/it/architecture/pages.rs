//! Fails where a document links to a file or heading that does not exist, or the book leaves a page out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use crate::source::repository;

/// Every document, by its path from the repository.
type Pages = BTreeMap<PathBuf, String>;

#[test]
fn every_link_of_the_documents_leads_to_a_file_and_a_heading() {
    let pages = pages();
    let is_file = |path: &Path| repository().join(path).exists();
    let mut found = Vec::new();
    let mut count = 0;
    for (path, text) in &pages {
        for link in links(text) {
            count += 1;
            found.extend(wrong_link(&pages, path, &link, is_file).map(|wrong| format!("{}: {wrong}", path.display())));
        }
    }
    assert_eq!(found, Vec::<String>::new(), "links that lead nowhere");
    assert!(count > 200, "{count} links: the documents were not read");
}

#[test]
fn the_book_has_every_page_once() {
    let pages = pages();
    let mut listed = links(&pages[Path::new("docs/SUMMARY.md")]);
    listed.sort();
    let is_page = |path: &&PathBuf| path.starts_with("docs") && !path.ends_with("SUMMARY.md");
    let all: Vec<String> =
        pages.keys().filter(is_page).map(|path| path.strip_prefix("docs").unwrap().display().to_string()).collect();
    assert_eq!(listed.iter().collect::<BTreeSet<_>>(), all.iter().collect(), "docs/SUMMARY.md and docs/ differ");
    assert_eq!(listed.len(), all.len(), "a page is twice in docs/SUMMARY.md");
}

#[test]
fn each_class_of_errors_leads_to_the_section_that_names_it() {
    let pages = pages();
    let (errors, symptoms) = (&pages[Path::new("docs/errors.md")], &pages[Path::new("docs/troubleshooting.md")]);
    let rows = |part: &str| part.lines().filter(|line| line.starts_with("| `")).map(str::to_owned).collect::<Vec<_>>();
    let [_, classes, by_symptom, _] = errors.split("\n## ").collect::<Vec<_>>()[..] else { panic!("four parts") };
    let classes = rows(classes).iter().map(|row| code(row).next().unwrap()).collect::<Vec<_>>();
    assert!(classes.len() > 30, "{classes:?}");
    let mut led = Vec::new();
    for row in rows(by_symptom) {
        let anchor = links(&row).pop().and_then(|link| Some(link.split_once('#')?.1.to_owned())).unwrap();
        let section =
            symptoms.split("\n## ").find(|section| anchors(&format!("## {section}")).contains(&anchor)).unwrap();
        let named =
            section.lines().find_map(|line| line.strip_prefix("Classes: ")).expect("a section names its classes");
        let named = code(named).collect::<Vec<_>>();
        assert_eq!(code(&row).collect::<Vec<_>>(), named, "docs/troubleshooting.md#{anchor}");
        led.extend(named);
    }
    led.sort();
    let mut all = classes.clone();
    all.sort();
    assert_eq!(led, all, "each class leads to one section");
}

#[test]
fn planted_links_that_lead_nowhere_are_found() {
    let page = "# One\n\n## A `key`, and more\n\n```sh\n# no heading [x](gone.md)\n```\n<a id=\"own\"></a>\n";
    let pages: Pages = [("docs/one.md", page), ("docs/spec/two.md", "# Two\n"), ("README.md", "")]
        .map(|(path, text)| (path.into(), text.to_owned()))
        .into();
    let from = |path: &str, link: &str| wrong_link(&pages, Path::new(path), link, |path| path.ends_with("picture.svg"));
    for link in ["one.md", "#a-key-and-more", "one.md#own", "spec/two.md#two", "picture.svg", "https://example.com/x"] {
        assert_eq!(from("docs/one.md", link), None, "{link}");
    }
    assert_eq!(from("docs/spec/two.md", "../one.md#one"), None);
    assert_eq!(from("docs/one.md", "gone.md").as_deref(), Some("`gone.md` does not exist"));
    assert_eq!(from("docs/one.md", "#no-heading").as_deref(), Some("`#no-heading` is no heading of docs/one.md"));
    assert_eq!(from("docs/one.md", "../README.md").as_deref(), Some("`../README.md` is outside the book"));
    assert_eq!(from("docs/one.md", "spec").as_deref(), Some("`spec` is a folder, which is no page of the book"));
    assert_eq!(from("README.md", "docs/one.md#two").as_deref(), Some("`docs/one.md#two` is no heading of docs/one.md"));
    assert_eq!(links("[a](b.md), `[c](d.md)` ![e](f.svg)\n"), ["b.md", "f.svg"]);
    assert_eq!(links(page), Vec::<String>::new());
}

/// The documents of the root, of docs/ and of docs/spec/.
fn pages() -> Pages {
    let files = ["", "docs", "docs/spec"].into_iter().flat_map(|folder| {
        let entries = fs::read_dir(repository().join(folder)).unwrap();
        entries.map(move |entry| Path::new(folder).join(entry.unwrap().file_name()))
    });
    let documents = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.map(|path| (path.clone(), fs::read_to_string(repository().join(path)).unwrap())).collect()
}

/// What a link of a page has wrong.
fn wrong_link(pages: &Pages, page: &Path, link: &str, is_file: impl Fn(&Path) -> bool) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_path_buf() } else { joined(page.parent().unwrap(), file) };
    if page.starts_with("docs") && !target.starts_with("docs") {
        return Some(format!("`{link}` is outside the book"));
    }
    if page.starts_with("docs") && target.extension().is_none() {
        return Some(format!("`{link}` is a folder, which is no page of the book"));
    }
    let Some(text) = pages.get(&target) else {
        return (!is_file(&target)).then(|| format!("`{link}` does not exist"));
    };
    let is_known = anchor.is_empty() || anchors(text).contains(anchor);
    (!is_known).then(|| format!("`{link}` is no heading of {}", target.display()))
}

/// A folder and a path from there, without `.` and `..`.
fn joined(folder: &Path, file: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The targets of a page's links and pictures; code has none.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        for part in without_code(line).split("](").skip(1) {
            found.extend(part.split_once(')').map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// What a line has between backticks.
fn code(line: &str) -> impl Iterator<Item = String> {
    line.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// A line without its code: what is between two backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("")
}

/// The ids of a page's headings, as web pages make them, and those it sets itself.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    });
    let own = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned);
    headings.chain(own).collect()
}

/// The lines outside blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}
