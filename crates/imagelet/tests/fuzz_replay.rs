//! Replays what fuzzers start from and what they once found, and seeded mutations of all of it.

use std::{
    fs,
    io::Read as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

mod fuzz;

use self::fuzz::{TARGETS, Target};

/// Mutations of a target's files in one run.
const MUTATIONS: u64 = 3000;
/// Mutations of mutations: how far an input may wander from its file.
const GENERATIONS: u64 = 4;

#[test]
fn tar_archives_stay_in_their_folder_and_are_reported_as_they_are() {
    replay("tar");
}

#[test]
fn manifests_keep_their_limits() {
    replay("manifest");
}

#[test]
fn files_of_artifacts_have_safe_names_and_their_links_stay_in_the_artifact() {
    replay("artifact");
}

#[test]
fn compressed_layers_inflate_as_reference_decoders_have_it() {
    replay("framing");
}

#[test]
fn whiteouts_show_what_the_layer_means() {
    replay("whiteouts");
}

#[test]
fn references_are_written_as_they_are_read() {
    replay("reference");
}

#[test]
fn challenges_are_written_as_they_are_read() {
    replay("challenge");
}

#[test]
fn files_of_registries_are_bounded_and_read_the_same_twice() {
    replay("registries");
}

#[test]
fn signature_policies_accept_what_they_say_and_no_more() {
    replay("policy");
}

#[test]
fn archives_to_import_are_bounded_and_a_folder_means_what_a_tar_file_means() {
    replay("import");
}

#[test]
fn docker_configurations_mean_what_their_json_says_and_no_error_shows_a_password() {
    replay("logins");
}

#[test]
fn answers_of_plugins_and_helpers_mean_what_their_json_says() {
    replay("plugins");
}

#[test]
fn a_token_is_a_text_of_its_answer() {
    replay("tokens");
}

#[test]
fn pull_records_are_written_as_they_are_read() {
    replay("records");
}

#[test]
fn a_ledger_is_written_as_it_is_read() {
    replay("ledger");
}

#[test]
fn a_damaged_log_of_decisions_is_read_to_its_end() {
    replay("decisions");
}

#[test]
fn configurations_mean_the_same_when_they_are_written_back() {
    replay("configuration");
}

#[test]
fn messages_of_cri_survive_the_way_to_a_runtime_and_back() {
    replay("cri");
}

#[test]
fn lists_of_containerd_give_each_image_the_parts_that_it_reaches() {
    replay("containerd");
}

#[test]
fn every_target_is_replayed_and_has_a_binary() {
    let mut archives: Vec<_> = names(&fuzz().join("seeds"));
    let mut binaries = names(&fuzz().join("fuzz_targets"));
    let mut targets: Vec<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    targets.sort();
    archives.sort();
    binaries.sort();
    assert_eq!(archives, targets.iter().map(|name| format!("{name}.tar")).collect::<Vec<_>>());
    assert_eq!(binaries, targets.iter().map(|name| format!("{name}.rs")).collect::<Vec<_>>());
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let tests = include_str!("fuzz_replay.rs");
    for name in targets {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "`{name}` has no binary in `fuzz/Cargo.toml`");
        assert!(tests.contains(&format!("replay(\"{name}\")")), "`{name}` is not replayed");
    }
}

#[test]
fn a_finding_is_kept_and_named() {
    fn panics(bytes: &[u8]) {
        assert!(bytes.len() < 3, "found");
    }
    let home = tempfile::tempdir().unwrap();
    assert_eq!(attempt(panics, b"ab", &home.path().join("kept")), None);
    let report = attempt(panics, b"abc", &home.path().join("kept")).expect("a finding");
    assert!(report.contains("kept"), "{report}");
    assert_eq!(fs::read(home.path().join("kept")).unwrap(), b"abc");
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let run = |bytes: &[u8]| target.run(bytes, home.path());
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
    let files = files(name);
    for (path, bytes) in &files {
        if let Some(report) = attempt(run, bytes, &kept) {
            panic!("`{}`: {report}", path.display());
        }
    }
    let count = u64::try_from(files.len()).unwrap();
    let rounds = MUTATIONS.div_ceil(count * GENERATIONS);
    for round in 0..rounds {
        for (path, bytes) in &files {
            mutate(target, path, bytes.clone(), round, (&run, &kept));
        }
    }
}

/// Runs some generations of mutations of one file.
fn mutate(target: &Target, path: &Path, mut bytes: Vec<u8>, round: u64, (run, kept): (&impl Fn(&[u8]), &Path)) {
    for generation in 0..GENERATIONS {
        target.mutate(&mut bytes, round * GENERATIONS + generation);
        if let Some(report) = attempt(run, &bytes, kept) {
            panic!("`{}`, mutation {generation} of round {round}: {report}", path.display());
        }
    }
}

/// Runs one check. A finding is written to a file and reported.
fn attempt(run: impl Fn(&[u8]), bytes: &[u8], kept: &Path) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| run(bytes))).err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref().copied());
    fs::write(kept, bytes).unwrap();
    Some(format!("{} (the input is kept in `{}`)", text.unwrap_or("a panic"), kept.display()))
}

/// Seeds and findings of a target; a target without seeds is a mistake.
fn files(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let seeds = fuzz().join("seeds").join(format!("{name}.tar"));
    let mut archive = tar::Archive::new(fs::File::open(&seeds).unwrap());
    let mut found = Vec::new();
    for entry in archive.entries().unwrap() {
        let (mut entry, mut bytes) = (entry.unwrap(), Vec::new());
        entry.read_to_end(&mut bytes).unwrap();
        found.push((seeds.join(entry.path().unwrap()), bytes));
    }
    assert!(!found.is_empty(), "`{}` is empty", seeds.display());
    let regressions = fuzz().join("regressions").join(name);
    if regressions.exists() {
        let paths = names(&regressions).into_iter().map(|file| regressions.join(file));
        found.extend(paths.map(|path| (path.clone(), fs::read(&path).unwrap())));
    }
    found.sort();
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("`{}`: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}
