//! Fails on circles between files: two files that use one another are one file in two places.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{Arrows, crate_folders};
use crate::source::{
    Import, defined_items, imports, paths, repository, rust_files, without_comments_and_strings, without_tests,
};

/// The path of a module from the crate's root: empty for the root itself.
type Module = Vec<String>;

/// The files of a crate by their modules; tests are left out.
struct Files {
    by_module: BTreeMap<Module, File>,
}

struct File {
    name: String,
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// The paths of two and more segments that the code names outside of `use`.
    paths: Vec<Vec<String>>,
    /// Every identifier outside of `use`.
    words: BTreeSet<String>,
}

/// What a path leads to.
enum Target {
    Module(Module),
    ItemOf(Module),
}

#[test]
fn no_crate_has_a_circle_between_files() {
    let (mut arrows_found, mut found) = (0, Vec::new());
    for folder in crate_folders() {
        let arrows = Files::of_crate(&repository().join("crates").join(&folder).join("src")).arrows();
        arrows_found += arrows.len();
        found.extend(circles(&arrows).into_iter().map(|circle| format!("{folder}: {}", circle.join(", "))));
    }
    assert_eq!(found, Vec::<String>::new(), "files that use one another");
    assert!(arrows_found > 500, "{arrows_found} arrows between files: the sources were not read");
}

#[test]
fn planted_circles_between_files_are_found() {
    let two = Files::of_texts(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::Second; pub struct First(Second);"),
        ("b.rs", "pub struct Second; fn f() -> crate::a::First { loop {} }"),
    ]);
    assert_eq!(circles(&two.arrows()), [["a.rs", "b.rs"]]);
    let through_a_door = Files::of_texts(&[
        ("lib.rs", "mod room;"),
        ("room/mod.rs", "mod left; mod right; pub use left::Left; pub use right::*;"),
        ("room/left.rs", "use super::Right; pub struct Left(Right);"),
        ("room/right.rs", "use crate::room; pub struct Right; fn f(left: room::Left) {}"),
    ]);
    assert_eq!(circles(&through_a_door.arrows()), [["room/left.rs", "room/right.rs"]]);
}

#[test]
fn a_door_into_its_own_room_and_tests_make_no_circle() {
    let files = Files::of_texts(&[
        ("lib.rs", "mod room;"),
        (
            "room/mod.rs",
            "mod left; mod right; pub use left::Left; use right::Right; struct Whole(Right); #[cfg(test)] mod tests;",
        ),
        ("room/left.rs", "use super::{Right, Whole}; pub struct Left(Right, Whole);"),
        ("room/right.rs", "pub struct Right; #[cfg(test)] mod inner { use crate::room::Left; }"),
        ("room/tests.rs", "use super::Left;"),
    ]);
    let arrows = files.arrows();
    let arrow = |from: &str, to: &str| (format!("room/{from}.rs"), format!("room/{to}.rs"));
    assert_eq!(arrows.into_iter().collect::<Vec<_>>(), [arrow("left", "mod"), arrow("left", "right")]);
}

impl Files {
    fn of_crate(source: &Path) -> Self {
        let texts = rust_files(source).into_iter().map(|path| {
            let name = path.strip_prefix(source).unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(&path).unwrap())
        });
        Self::read(texts)
    }

    fn of_texts(texts: &[(&str, &str)]) -> Self {
        Self::read(texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())))
    }

    fn read(texts: impl Iterator<Item = (String, String)>) -> Self {
        let mut by_module = BTreeMap::new();
        let mut of_tests = Vec::new();
        for (name, text) in texts {
            let module = module_of(&name);
            let code = without_comments_and_strings(&text);
            of_tests.extend(modules_of_tests(&code).into_iter().map(|test| [module.clone(), vec![test]].concat()));
            let code = without_tests(&code);
            let (imports, rest) = imports(&code);
            let words =
                rest.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).map(str::to_owned).collect();
            by_module.insert(module, File { name, items: defined_items(&rest), imports, paths: paths(&rest), words });
        }
        by_module.retain(|module, _| !of_tests.iter().any(|test| module.starts_with(test)));
        Self { by_module }
    }

    /// Which file uses an item of which other file. A door may use all that lies in its room: it is what the room is made of.
    fn arrows(&self) -> BTreeSet<(String, String)> {
        let mut arrows = BTreeSet::new();
        for (module, file) in &self.by_module {
            let used = file.imports.iter().filter(|import| !import.handed_on || file.words.contains(&import.name));
            let named = used.map(|import| &import.path).chain(&file.paths);
            for path in named {
                if let Some(Target::ItemOf(home)) = self.target(module, path, &mut BTreeSet::new())
                    && !home.starts_with(module)
                {
                    arrows.insert((file.name.clone(), self.by_module[&home].name.clone()));
                }
            }
        }
        arrows
    }

    fn target(&self, from: &Module, path: &[String], asked: &mut BTreeSet<(Module, String)>) -> Option<Target> {
        let (head, mut rest) = path.split_first()?;
        let mut here = match head.as_str() {
            "crate" => Module::new(),
            "self" => from.clone(),
            "super" => parent(from)?,
            name => match self.named(from, name, asked)? {
                Target::Module(module) => module,
                item @ Target::ItemOf(_) => return Some(item),
            },
        };
        while let Some((name, behind)) = rest.split_first() {
            rest = behind;
            here = match name.as_str() {
                "super" => parent(&here)?,
                "self" => here,
                name => match self.named(&here, name, asked)? {
                    Target::Module(module) => module,
                    item @ Target::ItemOf(_) => return Some(item),
                },
            };
        }
        Some(Target::Module(here))
    }

    /// What `name` is in `module`: a module below it, an item of its file, or what the file imports by that name.
    fn named(&self, module: &Module, name: &str, asked: &mut BTreeSet<(Module, String)>) -> Option<Target> {
        let below = [module.clone(), vec![name.to_owned()]].concat();
        if self.by_module.contains_key(&below) {
            return Some(Target::Module(below));
        }
        let file = self.by_module.get(module)?;
        if file.items.contains(name) {
            return Some(Target::ItemOf(module.clone()));
        }
        // Imports that lead to one another would be followed for ever.
        if !asked.insert((module.clone(), name.to_owned())) {
            return None;
        }
        let by_name = file.imports.iter().filter(|import| import.name == name);
        let by_star = file.imports.iter().filter(|import| import.name == "*");
        by_name
            .map(|import| import.path.clone())
            .chain(by_star.map(|import| [import.path.clone(), vec![name.to_owned()]].concat()))
            .find_map(|path| self.target(module, &path, asked))
    }
}

fn parent(module: &Module) -> Option<Module> {
    Some(module.split_last()?.1.to_vec())
}

fn module_of(name: &str) -> Module {
    let mut parts: Module = name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let is_door = parts.last().is_some_and(|last| last == "mod") || matches!(name, "lib.rs" | "main.rs");
    if is_door {
        parts.pop();
    }
    parts
}

/// The modules that `#[cfg(test)] mod NAME;` declares in a file of their own.
fn modules_of_tests(code: &str) -> Vec<String> {
    let behind = code.split("#[cfg(test)]").skip(1);
    behind
        .filter_map(|item| {
            let item = item.trim_start().trim_start_matches("pub(crate)").trim_start();
            let name: String = item
                .strip_prefix("mod ")?
                .chars()
                .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
                .collect();
            item["mod ".len() + name.len()..].trim_start().starts_with(';').then_some(name)
        })
        .collect()
}

/// The groups of files of which each reaches each other one, sorted.
fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let mut used = BTreeMap::<&str, Vec<&str>>::new();
    for (from, to) in arrows {
        used.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = used.keys().map(|file| (*file, reached_from(file, &used))).collect();
    let both_ways = |one: &str, other: &str| reached[one].contains(other) && reached[other].contains(one);
    let inside = reached.keys().filter(|file| reached[*file].contains(*file));
    let groups: BTreeSet<Vec<String>> = inside
        .map(|file| reached.keys().filter(|other| both_ways(file, other)).map(|other| (*other).to_owned()).collect())
        .collect();
    groups.into_iter().collect()
}

fn reached_from<'a>(file: &'a str, used: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let (mut pending, mut reached) = (vec![file], BTreeSet::new());
    while let Some(here) = pending.pop() {
        let next = used.get(here).into_iter().flatten();
        pending.extend(next.filter(|to| reached.insert(**to)));
    }
    reached
}
