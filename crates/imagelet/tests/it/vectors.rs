//! The conformance vectors are all here, whole, and each file is run by some test.

use std::{collections::BTreeMap, fs};

use crate::source::{repository, rust_files};

/// The files on pulling, and how many cases each has. A test of the room that a file is about runs its cases.
const PULL_FILES: [(&str, usize); 30] = [
    ("pull-allowlist.json", 58),
    ("pull-backoff.json", 8),
    ("pull-config-validation.json", 41),
    ("pull-credential-provider-cache.json", 20),
    ("pull-credential-provider-config-read.json", 42),
    ("pull-credential-provider-config-validate.json", 27),
    ("pull-credential-provider-exec.json", 43),
    ("pull-default-registry.json", 8),
    ("pull-docker-config.json", 60),
    ("pull-ensure-image.json", 42),
    ("pull-error-classification.json", 13),
    ("pull-image-volumes.json", 8),
    ("pull-keyring.json", 39),
    ("pull-lock-stripes.json", 6),
    ("pull-policy-decision.json", 14),
    ("pull-records-filename.json", 29),
    ("pull-records-files.json", 20),
    ("pull-records-gauges.json", 2),
    ("pull-records-gc-interplay.json", 3),
    ("pull-records-lifecycle.json", 37),
    ("pull-records-memory-cache.json", 18),
    ("pull-records-merge.json", 25),
    ("pull-records-must-attempt.json", 45),
    ("pull-reference.json", 270),
    ("pull-scheduling.json", 5),
    ("pull-size-label.json", 25),
    ("pull-startup-latency.json", 12),
    ("pull-throttle.json", 5),
    ("pull-url-glob.json", 84),
    ("pull-with-secrets.json", 10),
];

/// The files on collection and inventory.
const GC_FILES: [(&str, usize); 21] = [
    ("gc-allowlist-patterns.json", 22),
    ("gc-config-defaults.json", 14),
    ("gc-config-validation.json", 34),
    ("gc-containerfs-thresholds.json", 5),
    ("gc-detect.json", 19),
    ("gc-duration-text.json", 20),
    ("gc-eviction-order.json", 13),
    ("gc-eviction-thresholds.json", 23),
    ("gc-format-size.json", 18),
    ("gc-free-space.json", 25),
    ("gc-garbage-collect.json", 13),
    ("gc-image-tuple.json", 6),
    ("gc-imagefs-stats.json", 13),
    ("gc-loop-events.json", 7),
    ("gc-max-age.json", 10),
    ("gc-metric-size-label.json", 35),
    ("gc-node-reclaim.json", 24),
    ("gc-node-status-images.json", 12),
    ("gc-policy.json", 10),
    ("gc-prune-records.json", 7),
    ("gc-thresholds.json", 20),
];

/// The files on the Container Runtime Interface.
const CRI_FILES: [(&str, usize); 18] = [
    ("cri-client.json", 16),
    ("cri-crictl-output.json", 26),
    ("cri-critest.json", 19),
    ("cri-endpoint-parse.json", 36),
    ("cri-image-rpcs.json", 6),
    ("cri-image-store.json", 7),
    ("cri-image-user.json", 10),
    ("cri-imagefs-info.json", 1),
    ("cri-list-streaming.json", 9),
    ("cri-local-resolve.json", 22),
    ("cri-parse-auth.json", 9),
    ("cri-pinning-and-handler.json", 23),
    ("cri-pull-error-mapping.json", 8),
    ("cri-references.json", 3),
    ("cri-response-checks.json", 19),
    ("cri-runtime-layer.json", 24),
    ("cri-truncated-id.json", 13),
    ("cri-wire.json", 106),
];

#[test]
fn every_file_on_cri_is_here_with_all_its_cases() {
    assert_here("cri-", &CRI_FILES, 357);
}

#[test]
fn every_file_on_collection_is_here_with_all_its_cases() {
    assert_here("gc-", &GC_FILES, 350);
}

#[test]
fn every_file_on_pulling_is_here_with_all_its_cases() {
    assert_here("pull-", &PULL_FILES, 1_019);
}

#[test]
fn every_file_is_run_by_a_test() {
    let tests = tests_source();
    let unread: Vec<String> =
        cases_by_file().into_keys().filter(|file| !tests.contains(&format!("\"{file}\""))).collect();
    assert_eq!(unread, Vec::<String>::new(), "no test names these");
}

fn assert_here(prefix: &str, files: &[(&str, usize)], all: usize) {
    let here: BTreeMap<String, usize> =
        cases_by_file().into_iter().filter(|(file, _)| file.starts_with(prefix)).collect();
    let wanted: BTreeMap<String, usize> = files.iter().map(|(file, cases)| ((*file).to_owned(), *cases)).collect();
    assert_eq!(here, wanted);
    assert_eq!(here.values().sum::<usize>(), all);
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
