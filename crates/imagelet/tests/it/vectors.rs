//! The conformance vectors are all here, whole; each file is run as it is listed, and the documents say so.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use imagelet_vectors::differences_table;

use self::Runs::{Both, Never, Once};
use crate::source::{repository, rust_files};

/// How the cases of a file are run. A test of the room that a file is about runs them.
#[derive(Clone, Copy)]
enum Runs {
    /// With `compatibility: kubelet` and as shipped, and compared as a whole with what is expected in each way.
    Both,
    /// Once: what is run knows no way.
    Once,
    /// Not at all, because of this.
    Never(&'static str),
}

const EVICTION: &str = "evictions are the kubelet's: imagelet reads none of their settings";

/// The files, and how many cases each has.
const FILES: [(&str, usize, Runs); 69] = [
    // Pulling.
    ("pull-allowlist.json", 58, Once),
    ("pull-backoff.json", 8, Once),
    ("pull-config-validation.json", 41, Once),
    ("pull-credential-provider-cache.json", 20, Once),
    ("pull-credential-provider-config-read.json", 42, Once),
    ("pull-credential-provider-config-validate.json", 27, Once),
    ("pull-credential-provider-exec.json", 43, Once),
    ("pull-default-registry.json", 8, Once),
    ("pull-docker-config.json", 60, Once),
    ("pull-ensure-image.json", 42, Both),
    ("pull-error-classification.json", 13, Both),
    ("pull-image-volumes.json", 8, Both),
    ("pull-keyring.json", 39, Once),
    ("pull-lock-stripes.json", 6, Never("one lock orders the changes of a folder of records: there are no stripes")),
    ("pull-policy-decision.json", 14, Both),
    ("pull-records-filename.json", 29, Once),
    ("pull-records-files.json", 20, Once),
    ("pull-records-gauges.json", 2, Once),
    ("pull-records-gc-interplay.json", 3, Both),
    ("pull-records-lifecycle.json", 37, Both),
    (
        "pull-records-memory-cache.json",
        18,
        Never("all records are in memory: there is no cache that could be incomplete"),
    ),
    ("pull-records-merge.json", 25, Once),
    ("pull-records-must-attempt.json", 45, Both),
    ("pull-reference.json", 270, Once),
    ("pull-scheduling.json", 5, Both),
    ("pull-size-label.json", 25, Once),
    ("pull-startup-latency.json", 12, Once),
    ("pull-throttle.json", 5, Once),
    ("pull-url-glob.json", 84, Once),
    ("pull-with-secrets.json", 10, Both),
    // Collection and inventory.
    ("gc-allowlist-patterns.json", 22, Once),
    ("gc-config-defaults.json", 14, Once),
    ("gc-config-validation.json", 34, Once),
    ("gc-containerfs-thresholds.json", 5, Never(EVICTION)),
    ("gc-detect.json", 19, Both),
    ("gc-duration-text.json", 20, Once),
    ("gc-eviction-order.json", 13, Both),
    ("gc-eviction-thresholds.json", 23, Never(EVICTION)),
    ("gc-format-size.json", 18, Once),
    ("gc-free-space.json", 25, Both),
    ("gc-garbage-collect.json", 13, Both),
    ("gc-image-tuple.json", 6, Once),
    ("gc-imagefs-stats.json", 13, Once),
    ("gc-loop-events.json", 7, Once),
    ("gc-max-age.json", 10, Both),
    ("gc-metric-size-label.json", 35, Once),
    ("gc-node-reclaim.json", 24, Never(EVICTION)),
    ("gc-node-status-images.json", 12, Once),
    ("gc-policy.json", 10, Once),
    ("gc-prune-records.json", 7, Both),
    ("gc-thresholds.json", 20, Both),
    // The Container Runtime Interface.
    ("cri-client.json", 16, Once),
    (
        "cri-crictl-output.json",
        26,
        Never("crictl's own columns, filters and arguments: no code of imagelet makes them"),
    ),
    (
        "cri-critest.json",
        19,
        Never("each is a story of the same name over both backends in `critest.rs`, which has its own inputs"),
    ),
    ("cri-endpoint-parse.json", 36, Once),
    ("cri-image-rpcs.json", 6, Once),
    ("cri-image-store.json", 7, Once),
    ("cri-image-user.json", 10, Once),
    ("cri-imagefs-info.json", 1, Once),
    ("cri-list-streaming.json", 9, Once),
    ("cri-local-resolve.json", 22, Once),
    ("cri-parse-auth.json", 9, Once),
    ("cri-pinning-and-handler.json", 23, Once),
    ("cri-pull-error-mapping.json", 8, Once),
    ("cri-references.json", 3, Once),
    ("cri-response-checks.json", 19, Once),
    ("cri-runtime-layer.json", 24, Once),
    ("cri-truncated-id.json", 13, Once),
    ("cri-wire.json", 106, Once),
];

/// Between these lines a page is written by its test.
const BEGIN: &str = "<!-- vectors: written by `IMAGELET_UPDATE=1 cargo test -p imagelet --test it -- vectors` -->\n";
const END: &str = "<!-- vectors: end -->\n";

#[test]
fn every_file_is_here_with_all_its_cases() {
    let wanted: BTreeMap<String, usize> = FILES.iter().map(|(file, cases, _)| ((*file).to_owned(), *cases)).collect();
    assert_eq!(cases_by_file(), wanted);
    assert_eq!([cases("pull-", |_| true), cases("gc-", |_| true), cases("cri-", |_| true)], [1_019, 350, 357]);
}

#[test]
fn every_file_is_run_as_it_is_listed() {
    let tests = tests_source();
    for (file, _, runs) in FILES {
        let in_ways = tests.contains(&format!("VectorRun::of(\"{file}\", way)"));
        let is_named = [format!("vectors(\"{file}\")"), format!("VectorRun::once(\"{file}\"")];
        let is_named = is_named.iter().any(|text| tests.contains(text));
        match runs {
            Both => assert!(in_ways, "no test runs {file} in both ways"),
            Once => assert!(is_named && !in_ways, "{file} is run once"),
            Never(_) => assert!(!in_ways, "{file} is run"),
        }
    }
}

#[test]
fn the_table_of_differences_is_what_the_second_run_shows() {
    let (pull, gc) = (cases("pull-", |_| true), cases("gc-", |_| true));
    let is_both = |runs| matches!(runs, Both);
    let both = cases("pull-", is_both) + cases("gc-", is_both);
    let is_once = |runs| matches!(runs, Once);
    let once = cases("pull-", is_once) + cases("gc-", is_once);
    assert_written(
        "docs/compatibility.md",
        &format!(
            "Of {} cases on pulling and collection, {both} are run in both ways through the program's own code, and \
             {once} once, because they do not depend on the setting.\nThe expected result of a case as shipped is the kubelet's, \
             changed by the rows below.\n\n{}",
            pull + gc,
            differences_table(),
        ),
    );
}

#[test]
fn the_page_on_testing_lists_what_is_not_run() {
    let mut text = String::from("| file | cases | how it is run |\n|---|---:|---|\n");
    for (file, count, runs) in FILES {
        if let Never(reason) = runs {
            writeln!(text, "| `{file}` | {count} | not: {reason} |").unwrap();
        }
    }
    let all = |is: fn(Runs) -> bool| ["pull-", "gc-", "cri-"].map(|prefix| cases(prefix, is)).iter().sum::<usize>();
    let (once, twice) = (all(|runs| matches!(runs, Once)), all(|runs| matches!(runs, Both)));
    writeln!(text, "| others | {once} | once: independent of the setting |").unwrap();
    writeln!(text, "| others | {twice} | twice: with `compatibility: kubelet`, and as shipped |").unwrap();
    assert_written("docs/testing.md", &text);
}

/// How many cases are in the files that begin so and are run so.
fn cases(prefix: &str, is: impl Fn(Runs) -> bool) -> usize {
    FILES.iter().filter(|(file, _, runs)| file.starts_with(prefix) && is(*runs)).map(|(_, cases, _)| cases).sum()
}

/// A page has this text between its two lines.
fn assert_written(page: &str, text: &str) {
    let path = repository().join(page);
    let kept = fs::read_to_string(&path).unwrap();
    let (before, rest) = kept.split_once(BEGIN).expect("the page has the first line");
    let (_, after) = rest.split_once(END).expect("the page has the last line");
    let wanted = format!("{before}{BEGIN}\n{text}\n{END}{after}");
    if std::env::var_os("IMAGELET_UPDATE").is_some() {
        fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(kept == wanted, "{page} is old: run IMAGELET_UPDATE=1 cargo test -p imagelet --test it -- vectors");
}

fn cases_by_file() -> BTreeMap<String, usize> {
    let folder = repository().join("tests/vectors");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    files
        .map(|path| {
            let document: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let cases = document["vectors"].as_array().map_or(0, Vec::len);
            (path.file_name().unwrap().to_string_lossy().into_owned(), cases)
        })
        .collect()
}

/// All code that may run a vector: everything but this file.
fn tests_source() -> String {
    let files = rust_files(&repository().join("crates"));
    let others = files.into_iter().filter(|path| !path.ends_with("it/vectors.rs"));
    others.map(|path| fs::read_to_string(path).unwrap()).collect()
}
