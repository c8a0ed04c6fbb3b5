//! Bad input and broken surroundings: one clear error each, and a store that is as it was.

use std::{fs, path::Path, time::Duration};

use rustix::process::Signal;

use crate::{
    fake_registry::{Answer, FakeRegistry},
    images::{Image, Layer, OCI_MANIFEST, noise},
    program::{Daemon, Outcome, program, run, with_store, write_store_config},
    testbed::{Disk, Registry, scratch},
    tree::{self, Tree},
};

/// Content as a store has it: indexes and locks may be touched by a failed pull, trees and blobs may not.
const REST_MAX: u64 = 1 << 20;

/// A store with one good image, and what it looked like then.
struct Kept {
    folder: tempfile::TempDir,
    registry: FakeRegistry,
    good: String,
    bytes: u64,
}

impl Kept {
    fn new() -> Self {
        let (folder, registry) = (scratch(), FakeRegistry::start());
        let good = registry.put("good:v1", &Image::marked("good", 100_000));
        with_store(&folder.path().join("store"), ["pull", &good]).ok();
        let bytes = tree::disk_usage(&folder.path().join("store"));
        Self { folder, registry, good, bytes }
    }

    fn store(&self) -> std::path::PathBuf {
        self.folder.path().join("store")
    }

    /// A pull of `name` fails once, tells `words`, and leaves the store as it was.
    fn refuses(&self, name: &str, words: &[&str]) {
        self.is_left_by(with_store(&self.store(), ["pull", name]), name, words);
    }

    /// The same, by a daemon that gives up soon what may be an outage.
    fn refuses_soon(&self, name: &str, words: &[&str]) {
        let (config, store) = (write_store_config(self.folder.path(), ""), self.store());
        let daemon =
            Daemon::start(self.folder.path(), ["--config", &config, "--store", store.to_str().expect("plain")]);
        let outcome = daemon.run(["pull", name]);
        assert!(daemon.stop(Signal::TERM).success());
        self.is_left_by(outcome, name, words);
    }

    fn is_left_by(&self, outcome: Outcome, name: &str, words: &[&str]) {
        let stderr = outcome.refused(words);
        assert!(stderr.contains(name.split('@').next().unwrap()), "the image is not named:\n{stderr}");
        assert_eq!(with_store(&self.store(), ["inspect", "-q", name]).code, 1, "`{name}` is there after a failure");
        let listed = with_store(&self.store(), ["ls", "-q", "--all"]).ok();
        assert_eq!(listed.lines().count(), 1, "only the good image is listed:\n{listed}");
        let after = tree::disk_usage(&self.store());
        assert!(after <= self.bytes + REST_MAX, "{} bytes before, {after} after `{name}`", self.bytes);
        with_store(&self.store(), ["pull", "--policy", "Always", &self.good]).ok();
    }
}

#[test]
fn a_layer_with_other_bytes_than_its_digest_says_is_refused() {
    let kept = Kept::new();
    let image = Image::marked("spoiled", 2_000_000);
    let name = kept.registry.put("spoiled:v1", &image);
    let digest = &image.layers[0].digest;
    // Same length, other bytes, still a gzip stream.
    let other = Image::marked("another", 2_000_000).layers[0].bytes.clone();
    kept.registry.spoil("spoiled", digest, |answer| {
        let length = answer.body.len();
        answer.body = other;
        answer.body.resize(length, 0);
    });
    kept.refuses(&name, &[&digest[..19]]);
}

#[test]
fn a_config_with_other_bytes_than_its_digest_says_is_refused() {
    let kept = Kept::new();
    let image = Image::marked("config", 1000);
    let name = kept.registry.put("config:v1", &image);
    let digest = image.config.digest.clone();
    kept.registry.spoil("config", &digest, |answer| answer.body[2] ^= 1);
    kept.refuses(&name, &[&digest[..19]]);
}

#[test]
fn a_layer_that_always_ends_early_is_refused() {
    let kept = Kept::new();
    let image = Image::marked("short", 2_000_000);
    let name = kept.registry.put("short:v1", &image);
    let digest = image.layers[0].digest.clone();
    kept.registry.spoil("short", &digest, |answer| answer.cut_at = Some(700_000));
    kept.refuses_soon(&name, &[&digest[..19]]);
}

#[test]
fn a_diff_id_that_is_not_the_layers_is_refused() {
    let kept = Kept::new();
    let mut image = Image::marked("diff", 1000);
    let text = String::from_utf8(image.config.bytes.clone()).unwrap();
    let at = text.find("diff_ids").unwrap() + "diff_ids\":[\"sha256:".len();
    let mut bytes = text.into_bytes();
    bytes[at..at + 8].copy_from_slice(b"00000000");
    image.config = crate::images::Blob::new(bytes, &image.config.media_type);
    let (digest, size) = (image.config.digest.clone(), image.config.bytes.len());
    let image = image.with_manifest(|manifest| {
        manifest["config"]["digest"] = digest.into();
        manifest["config"]["size"] = size.into();
    });
    let name = kept.registry.put("diff:v1", &image);
    kept.refuses(&name, &["diff"]);
}

#[test]
fn an_unknown_layer_type_is_refused_and_named() {
    let kept = Kept::new();
    let image = Image::marked("odd", 1000)
        .with_manifest(|manifest| manifest["layers"][0]["mediaType"] = "application/vnd.example.odd.v1".into());
    let name = kept.registry.put("odd:v1", &image);
    kept.refuses(&name, &["application/vnd.example.odd.v1"]);
}

#[test]
fn a_page_that_is_no_manifest_is_refused_by_its_type() {
    let kept = Kept::new();
    kept.registry.answer("/v2/page/manifests/v1", Answer::ok("text/html", b"<html>please log in</html>"));
    kept.refuses(&kept.registry.name("page:v1"), &["text/html"]);
}

#[test]
fn a_digest_that_is_none_is_refused_before_any_blob_is_asked_for() {
    let kept = Kept::new();
    let image = Image::marked("climbing", 1000)
        .with_manifest(|manifest| manifest["layers"][0]["digest"] = "sha256:../../../../etc/passwd".into());
    let name = kept.registry.put("climbing:v1", &image);
    kept.refuses(&name, &[]);
    let asked = kept.registry.requests();
    assert!(!asked.iter().any(|request| request.contains("/v2/climbing/blobs/")), "{asked:?}");
}

#[test]
fn a_manifest_whose_digest_is_not_the_one_asked_for_is_refused() {
    let kept = Kept::new();
    let image = Image::marked("pinned", 1000);
    let wrong = format!("sha256:{}", "a".repeat(64));
    kept.registry.answer(&format!("/v2/pinned/manifests/{wrong}"), Answer::ok(OCI_MANIFEST, &image.manifest.bytes));
    kept.refuses(&kept.registry.name(&format!("pinned@{wrong}")), &["aaaaaaaa"]);
}

#[test]
fn a_missing_manifest_is_not_found() {
    let kept = Kept::new();
    kept.refuses(&kept.registry.name("missing:v1"), &["not found", "manifest unknown", "hint:"]);
}

#[test]
fn a_registry_that_is_down_is_named() {
    let kept = Kept::new();
    let gone = FakeRegistry::start();
    let name = gone.name("app:v1");
    drop(gone);
    std::thread::sleep(Duration::from_millis(100));
    kept.refuses(&name, &[name.split('/').next().unwrap()]);
}

#[test]
fn a_wrong_password_is_refused_and_never_told() {
    let registry = Registry::start_with_login("bob:open-sesame-17");
    let image = Image::marked("private", 1000);
    let name = registry.push("private:v1", &image);
    let folder = scratch();
    let store = folder.path().join("store");
    let none = with_store(&store, ["pull", &name]).refused(&[&name]);
    let wrong = with_store(&store, ["pull", "--creds", "bob:shut-sesame-18", &name]).refused(&[&name]);
    for stderr in [none, wrong] {
        assert!(!stderr.contains("sesame"), "{stderr}");
    }
    let right = with_store(&store, ["pull", "--creds", "bob:open-sesame-17", &name]);
    assert!(!right.stderr.contains("sesame"), "{}", right.stderr);
    assert_eq!(right.ok().trim(), image.id());
    let by_environment = scratch();
    let mut command = program();
    command.env("IMAGELET_CREDS", "bob:open-sesame-17").arg("--store").arg(by_environment.path());
    assert_eq!(run(command.args(["pull", &name])).ok().trim(), image.id());
}

/// Layers that reach for a file of the host; the canary's folder stands for any place outside.
fn climbing(outside: &Path) -> Vec<(&'static str, Vec<Layer>)> {
    let absolute = outside.to_str().unwrap();
    let victim = format!("{absolute}/canary");
    let up = "../".repeat(12);
    let relative = format!("{up}{}", victim.trim_start_matches('/'));
    vec![
        ("climbing-name", vec![Layer::gzip().file(&relative, "owned", 0o644)]),
        ("absolute-name", vec![Layer::gzip().file(&victim, "owned", 0o644)]),
        ("through-absolute-link", vec![Layer::gzip().symlink("out", absolute).file("out/canary", "owned", 0o644)]),
        (
            "through-relative-link",
            vec![Layer::gzip().symlink("out", &format!("{up}{}", &absolute[1..])).file("out/canary", "owned", 0o644)],
        ),
        (
            "across-two-layers",
            vec![Layer::gzip().symlink("out", absolute), Layer::gzip().file("out/canary", "owned", 0o644)],
        ),
        ("over-a-link", vec![Layer::gzip().symlink("canary", &victim).file("canary", "owned", 0o644)]),
        ("chmod-a-link", vec![Layer::gzip().symlink("out", absolute).directory("out", 0o777).owned_by(7, 7)]),
        ("hardlink-absolute", vec![Layer::gzip().hardlink("mine", &victim).file("mine", "owned", 0o644)]),
        ("hardlink-climbing", vec![Layer::gzip().hardlink("mine", &relative).file("mine", "owned", 0o644)]),
        (
            "hardlink-through-link",
            vec![Layer::gzip().symlink("out", absolute).hardlink("mine", "out/canary").file("mine", "owned", 0o644)],
        ),
        ("whiteout-through-link", vec![Layer::gzip().symlink("out", absolute).whiteout("out/canary")]),
        ("opaque-through-link", vec![Layer::gzip().symlink("out", absolute).opaque("out")]),
    ]
}

#[test]
fn no_layer_reaches_outside_its_directory() {
    let (outside, folder, registry) = (tempfile::tempdir_in("/tmp").unwrap(), scratch(), FakeRegistry::start());
    fs::write(outside.path().join("canary"), "alive").unwrap();
    let untouched: Tree = tree::read(outside.path());
    let mode = |path: &Path| std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
    let mode_before = mode(outside.path());
    let root = rustix::process::geteuid().is_root();
    for (kind, layers) in climbing(outside.path()) {
        let name = registry.put(&format!("{kind}:v1"), &Image::oci(&layers));
        let outcome = with_store(folder.path(), ["pull", &name]);
        assert!(!outcome.stderr.contains("panicked"), "{kind}: {}", outcome.stderr);
        match outcome.code {
            0 if root => look_inside(folder.path(), &name),
            0 => {}
            1 => assert!(outcome.stderr.contains(&name), "{kind}: the image is not named: {}", outcome.stderr),
            code => panic!("{kind}: exit code {code}: {}", outcome.stderr),
        }
        tree::assert_same(&tree::read(outside.path()), &untouched);
        assert_eq!(mode(outside.path()), mode_before, "{kind} changed the mode of the folder outside");
    }
}

/// Mounts and unmounts: a contained image stays usable.
fn look_inside(store: &Path, name: &str) {
    let mountpoint = scratch();
    let target = mountpoint.path().to_str().unwrap();
    with_store(store, ["mount", name, target]).ok();
    with_store(store, ["unmount", target]).ok();
}

/// Content that gzip makes about ten times smaller.
fn compressible(seed: &str, length: usize) -> Vec<u8> {
    let mut content = noise(seed, length);
    content.chunks_mut(1000).for_each(|chunk| chunk.iter_mut().skip(100).for_each(|byte| *byte = 0));
    content
}

#[test]
fn a_full_disk_fails_the_pull_and_keeps_what_was_there() {
    let (disk, registry) = (Disk::new(48), FakeRegistry::start());
    let store = disk.path().join("store");
    let small = registry.put("small:v1", &Image::marked("small", 100_000));
    // Packed it has room, so that the pull is let in.
    let one_file = Layer::gzip().file("large", compressible("large", 80 << 20), 0o644);
    let files = compressible("many", 60 << 20);
    let many_files = files
        .chunks(1 << 20)
        .enumerate()
        .fold(Layer::gzip(), |layer, (number, content)| layer.file(&format!("file-{number}"), content, 0o644));
    with_store(&store, ["pull", &small]).ok();
    let before = tree::disk_usage(&store);
    for (name, layer) in [("large:v1", one_file), ("many:v1", many_files)] {
        let large = registry.put(name, &Image::oci(&[layer]));
        with_store(&store, ["pull", &large]).refused(&[&large, "no space", " free, of which", "hint:"]);
        with_store(&store, ["inspect", "-q", &small]).ok();
        assert_eq!(with_store(&store, ["inspect", "-q", &large]).code, 1);
        let after = tree::disk_usage(&store);
        assert!(after <= before + REST_MAX, "{before} bytes before, {after} after `{large}`");
    }
    with_store(&store, ["rm", &small]).ok();
}

#[test]
fn usage_errors_end_with_2_and_say_nothing_on_stdout() {
    for arguments in [&["pull"][..], &["frob"], &["-o", "xml", "ls"], &["gc", "--high", "101"]] {
        let outcome = run(program().args(arguments));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{arguments:?}: {}", outcome.stderr);
    }
}
