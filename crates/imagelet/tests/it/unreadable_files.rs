//! Each file of a store beside the layers' own gives EIO, one after the other: a look says so or needs it not, and changes
//! nothing; a pull gives the whole image.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    fake_registry::FakeRegistry,
    program::{Outcome, program, with_store},
    soundness::{Sample, assert_whole, listing, small_layer},
    testbed::{require_root, scratch},
    trace::under_strace,
};

/// The files that a start reads.
const READ: [&str; 5] = ["image.json", "layer.json", "ledger", "names.json", "pulled"];

/// Runs a command that cannot read this file. Answers also how often it tried.
fn run_without(file: &Path, store: &Path, arguments: &[&str]) -> (Outcome, usize) {
    const FAILING: &[&str] = &["-qq", "-e", "trace=read,pread64", "-e", "inject=read,pread64:error=EIO", "-P"];
    let options = [FAILING, &[file.to_str().unwrap()][..]].concat();
    let (outcome, calls) = under_strace(program().arg("--store").arg(store).args(arguments), &options);
    (outcome, calls.matches("(INJECTED)").count())
}

/// All files beside the layers' own ones, and what they hold. A lock holds the last process.
fn contents(store: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut pending) = (BTreeMap::new(), vec![store.to_owned()]);
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                pending.extend((name != "fs").then_some(path));
            } else if name != "lock" {
                found.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    found
}

/// The name of a file in [`READ`].
fn kind(file: &Path) -> Option<&'static str> {
    let of = |name: &&str| file.ends_with(name) || file.parent().is_some_and(|folder| folder.ends_with(name));
    READ.into_iter().find(of)
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_costs_no_image() {
    require_root("strace on a command");
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let store = folder.path().join("store");
    let sample = Sample::put(&registry, "app:v1", vec![small_layer("lower", 9_000), small_layer("upper", 3_000)]);
    let listed = || listing(with_store(&store, ["ls", "--all", "-o", "json"]));
    with_store(&store, ["pull", "-q", &sample.name]).ok();
    let mut met = BTreeSet::new();
    for file in contents(&store).into_keys() {
        let before = contents(&store);
        assert!(before.contains_key(&file), "{} is gone", file.display());
        for look in [["ls", "--all"], ["df", "-v"]] {
            let what = format!("{look:?} without {}", file.display());
            let (outcome, tried) = run_without(&file, &store, &look);
            met.extend(kind(&file).filter(|_| tried > 0));
            assert!(outcome.code <= 1 && !outcome.stderr.contains("panicked"), "{what}: {outcome:?}");
            let is_told = outcome.stderr.contains("os error 5");
            assert!(is_told || (outcome.code == 0 && outcome.stdout.contains("app")), "{what}: {outcome:?}");
            assert!(contents(&store) == before, "{what} has changed the store");
        }
        assert!(listed().contains_key(sample.id()), "it was only not read");
        let what = format!("a pull without {}", file.display());
        let (pulled, _) = run_without(&file, &store, &["pull", "-q", &sample.name]);
        assert!(pulled.code == 0 || pulled.stderr.contains("os error 5"), "{what}: {pulled:?}");
        assert_whole(&store, &listed(), &[&sample], &[&sample], &what);
        with_store(&store, ["verify"]).ok();
    }
    assert_eq!(met.into_iter().collect::<Vec<_>>(), READ, "files that no look reads");
}
