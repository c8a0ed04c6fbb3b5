//! What is damaged in a store is found, told, kept out of sight, and made whole with as little as possible.

mod fixture;

use std::{
    fs,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use fixture::{Layer, TestRegistry, files};
use imagelet_core::{
    error::RuntimeErrorKind,
    image::{Digest, ImageSpec},
    ports::{
        Finding, ImageService as _, LocalStore as _, MountOptions, PullRemains, PullRequest, VerifyReport, no_progress,
    },
};
use imagelet_oci::{Engine, EngineConfig};

/// A store with one image `app:v1` of two layers, and the registry it came from.
struct Site {
    registry: TestRegistry,
    folder: tempfile::TempDir,
    engine: Option<Arc<Engine>>,
    layers: Vec<Digest>,
    keep_blobs: bool,
}

fn lower() -> Vec<u8> {
    Layer::new()
        .directory("etc", 0o750)
        .file("etc/conf", b"one line\n")
        .file("etc/empty", b"")
        .file("implied/deep/file", &vec![7; 300_000])
        .hard_link("etc/same", "etc/conf")
        .symlink("link", "etc/conf")
        .fifo("pipe")
        .device("null", 1, 3)
        .file("replaced/was", b"a directory")
        .file("replaced", b"a file now")
        .file("twice", b"first")
        .file("twice", b"second")
        .with_xattr("marked", "user.note", b"kept")
        .sparse("holes", 1 << 36, 1 << 35, b"far out")
        .tar()
}

fn upper() -> Vec<u8> {
    Layer::new().file(".wh.link", b"").file("etc/.wh..wh..opq", b"").file("etc/new", b"upper").tar()
}

impl Site {
    async fn new() -> Self {
        Self::with(false).await
    }

    async fn with(keep_blobs: bool) -> Self {
        let registry = TestRegistry::start().await;
        let layers = registry.image("app", "v1", &[lower(), upper()]);
        let folder = tempfile::tempdir().expect("a folder");
        let mut site = Self { registry, folder, engine: None, layers, keep_blobs };
        site.open().await;
        site.pull("app:v1").await;
        site.registry.asked();
        site
    }

    async fn open(&mut self) {
        self.engine = None;
        let config = EngineConfig { keep_blobs: self.keep_blobs, ..EngineConfig::new(self.folder.path()) };
        let engine = Engine::open(config).await;
        self.engine = Some(engine.unwrap_or_else(|error| panic!("open: {}", error.chain())));
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it is open")
    }

    async fn pull(&self, name: &str) {
        let request = PullRequest { image: ImageSpec::new(self.registry.name(name)), ..PullRequest::default() };
        self.engine().pull(&request, no_progress()).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    }

    async fn verify(&self) -> VerifyReport {
        let report = self.engine().verify(None, Arc::new(|_, _| {})).await;
        report.unwrap_or_else(|error| panic!("verify: {}", error.chain()))
    }

    async fn repair(&self, report: &VerifyReport) {
        for image in report.images.iter().filter(|image| image.is_damaged()) {
            let repaired = self.engine().repair(&image.id, &|_| Vec::new(), &no_progress()).await;
            repaired.unwrap_or_else(|error| panic!("repair: {}", error.chain()));
        }
        self.engine().repair_store(report).await.unwrap_or_else(|error| panic!("mend: {}", error.chain()));
    }

    /// The tags that are listed, without the registry.
    async fn tags(&self) -> Vec<String> {
        let images = self.engine().list(None).await.expect("a list");
        let tags = images.iter().flat_map(|image| image.tags.clone());
        let mut tags: Vec<String> = tags.map(|tag| tag.rsplit('/').next().expect("a part").to_owned()).collect();
        tags.sort();
        tags
    }

    fn layer(&self, number: usize) -> PathBuf {
        self.folder.path().join("layers").join(self.layers[number].hex())
    }

    /// Takes the marks of earlier damage back, as no program does.
    fn unmark(&self) {
        for folder in ["layers", "images"] {
            for entry in fs::read_dir(self.folder.path().join(folder)).expect("a folder") {
                drop(fs::remove_file(entry.expect("an entry").path().join("damaged")));
            }
        }
    }
}

/// Where, the word for it, how it is done, and how it is taken back.
type Change<'a> = (&'a str, &'a str, Box<dyn Fn() + 'a>, Box<dyn Fn() + 'a>);

/// All findings of a report.
fn findings(report: &VerifyReport) -> Vec<Finding> {
    let mut found = report.store.first.clone();
    found.extend(report.blobs.findings.first.clone());
    for image in &report.images {
        found.extend(image.documents.first.clone());
        found.extend(image.layers.iter().flat_map(|(_, check)| check.findings.first.clone()));
    }
    found
}

/// Changes a file and hides it, as a failing disk does.
fn change(path: &Path, change: impl FnOnce(&fs::File)) {
    let metadata = fs::symlink_metadata(path).expect("it is there");
    let file = fs::File::options().write(true).open(path).expect("it opens");
    change(&file);
    let times = fs::FileTimes::new()
        .set_modified(metadata.modified().expect("a time"))
        .set_accessed(metadata.accessed().expect("a time"));
    file.set_times(times).expect("it takes times");
}

fn flip(path: &Path, at: u64) {
    change(path, |file| {
        let mut byte = [0];
        let read = fs::File::open(path).expect("it opens").read_at(&mut byte, at).expect("it reads");
        assert_eq!(read, 1, "there is a byte at {at}");
        file.write_all_at(&[byte[0] ^ 0x20], at).expect("it is written");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_as_it_was_pulled_is_whole() {
    let mut site = Site::new().await;
    for _ in 0..2 {
        let report = site.verify().await;
        assert_eq!(findings(&report), []);
        let [image] = &report.images[..] else { panic!("one image") };
        assert!(!image.is_damaged(), "{image:?}");
        assert_eq!(image.layers.len(), 2);
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(image.layers[0].1.files, if is_root { 14 } else { 13 });
        assert!((300_000..400_000).contains(&image.layers[0].1.bytes), "holes are not read: {image:?}");
        // The same after a restart.
        site.open().await;
    }
    assert_eq!(site.registry.asked(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_or_missing_byte_of_any_file_is_found() {
    let mut site = Site::new().await;
    let whole = files(site.folder.path());
    let checked: Vec<&String> = whole.keys().filter(|path| *path != "lock").collect();
    for name in [
        "names.json",
        "layer.json",
        "files.list",
        "implicit.json",
        "image.json",
        "manifest.json",
        "config.json",
        "index.json",
        "fs/twice",
    ] {
        assert!(checked.iter().any(|path| path.ends_with(name)), "{name} is not in {checked:?}");
    }
    for path in checked {
        let (place, bytes) = (site.folder.path().join(path), &whole[path]);
        let length = bytes.len() as u64;
        let mut places = vec![0, 1, length / 3, length / 2, length.saturating_sub(2), length.saturating_sub(1)];
        places.retain(|at| *at < length);
        places.dedup();
        let cut = (length > 0).then_some(None);
        for at in places.into_iter().map(Some).chain(cut) {
            match at {
                Some(at) => flip(&place, at),
                None => change(&place, |file| file.set_len(length - 1).expect("it is cut")),
            }
            let report = site.verify().await;
            let found = findings(&report);
            let tail = path.split_once('/').map_or(path.as_str(), |(_, tail)| tail);
            let tail = tail.split_once('/').map_or(tail, |(_, tail)| tail);
            // A hard link has the damage of the file under both names.
            let told = found.iter().any(|finding| finding.path == tail);
            assert!(told, "{path} at {at:?}: {found:?}");
            let shown = site.tags().await.len();
            assert_eq!(shown, usize::from(path == "names.json"), "{path} at {at:?} is still shown");
            change(&place, |file| {
                file.write_all_at(bytes, 0).expect("it is written back");
            });
            site.unmark();
            site.open().await;
        }
    }
    assert_eq!(findings(&site.verify().await), [], "all was put back");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_is_told_by_its_word() {
    let is_root = rustix::process::geteuid().is_root();
    let mut site = Site::new().await;
    let folder = site.layer(0).join("fs");
    let at = |path: &str| folder.join(path);
    let mode = |path: &str, mode| {
        fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).expect("chmod");
    };
    let changes: Vec<Change<'_>> = vec![
        ("fs/etc/empty", "mode", Box::new(|| mode("etc/empty", 0o600)), Box::new(|| mode("etc/empty", 0o644))),
        (
            "fs/etc/conf",
            "mtime",
            Box::new(|| {
                let file = fs::File::options().write(true).open(at("etc/conf")).expect("it opens");
                file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("it takes times");
            }),
            Box::new(|| {
                let file = fs::File::options().write(true).open(at("etc/conf")).expect("it opens");
                let then = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
                file.set_modified(then).expect("it takes times");
            }),
        ),
        (
            "fs/marked",
            "xattrs",
            Box::new(|| set_xattr(&at("marked"), b"gone")),
            Box::new(|| set_xattr(&at("marked"), b"kept")),
        ),
        (
            "fs/marked",
            "xattrs",
            Box::new(|| rename_xattr(&at("marked"), "user.note", "user.nota")),
            Box::new(|| rename_xattr(&at("marked"), "user.nota", "user.note")),
        ),
        (
            "fs/marked",
            "xattrs",
            Box::new(|| {
                long_names(|name| rustix::fs::setxattr(at("marked"), name, b"x", rustix::fs::XattrFlags::empty()));
            }),
            Box::new(|| long_names(|name| rustix::fs::removexattr(at("marked"), name))),
        ),
        (
            "fs/holes",
            "content",
            Box::new(|| change(&at("holes"), |file| file.write_all_at(b"x", 1 << 20).expect("it is written"))),
            Box::new(|| change(&at("holes"), |file| file.write_all_at(b"\0", 1 << 20).expect("it is written"))),
        ),
        (
            "fs/extra",
            "extra",
            Box::new(|| in_folder(&folder, || fs::write(at("extra"), b"x").expect("it is written"))),
            Box::new(|| in_folder(&folder, || fs::remove_file(at("extra")).expect("it goes"))),
        ),
        (
            "fs/twice",
            "missing",
            Box::new(|| in_folder(&folder, || fs::rename(at("twice"), at("../aside")).expect("it moves"))),
            Box::new(|| in_folder(&folder, || fs::rename(at("../aside"), at("twice")).expect("it moves"))),
        ),
        (
            "fs/replaced",
            "type",
            Box::new(|| {
                in_folder(&folder, || {
                    fs::rename(at("replaced"), at("../aside")).expect("it moves");
                    fs::create_dir(at("replaced")).expect("it is made");
                });
            }),
            Box::new(|| {
                in_folder(&folder, || {
                    fs::remove_dir(at("replaced")).expect("it goes");
                    fs::rename(at("../aside"), at("replaced")).expect("it moves");
                });
            }),
        ),
        (
            "fs/link",
            "target",
            Box::new(|| {
                in_folder(&folder, || {
                    fs::rename(at("link"), at("../aside")).expect("it moves");
                    std::os::unix::fs::symlink("elsewhere", at("link")).expect("it is made");
                });
            }),
            Box::new(|| in_folder(&folder, || fs::rename(at("../aside"), at("link")).expect("it moves"))),
        ),
    ];
    for (path, word, damage, mend) in &changes {
        damage();
        let found = findings(&site.verify().await);
        assert!(found.iter().any(|finding| finding.path == *path && finding.what == *word), "{path} {word}: {found:?}");
        let others = found.iter().filter(|finding| finding.path != *path && finding.path != "fs/etc/same");
        assert_eq!(others.count(), 0, "{path} {word}: {found:?}");
        mend();
        site.unmark();
        site.open().await;
        assert_eq!(findings(&site.verify().await), [], "{path} {word} was put back");
    }
    if is_root {
        std::os::unix::fs::chown(at("etc/new"), Some(1), None).expect_err("that one is in the upper layer");
        std::os::unix::fs::chown(at("etc/empty"), Some(1), None).expect("chown");
        let found = findings(&site.verify().await);
        assert!(found.iter().any(|finding| finding.what == "owner"), "{found:?}");
    }
}

fn set_xattr(path: &Path, value: &[u8]) {
    rustix::fs::setxattr(path, "user.note", value, rustix::fs::XattrFlags::empty()).expect("it takes attributes");
}

/// Changes what is in a folder and leaves the folder's times as they were.
/// Names of attributes that no short list holds.
fn long_names(each: impl Fn(String) -> rustix::io::Result<()>) {
    for letter in ["a", "b", "c"] {
        each(format!("user.{}", letter.repeat(200))).expect("the attribute changes");
    }
}

fn rename_xattr(path: &Path, from: &str, to: &str) {
    rustix::fs::removexattr(path, from).expect("it has the attribute");
    rustix::fs::setxattr(path, to, b"kept", rustix::fs::XattrFlags::empty()).expect("it takes attributes");
}

fn in_folder(folder: &Path, change: impl FnOnce()) {
    let before = fs::metadata(folder).expect("it is there").modified().expect("a time");
    change();
    let times = fs::FileTimes::new().set_modified(before);
    fs::File::open(folder).expect("it opens").set_times(times).expect("it takes times");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_outlives_a_restart_and_a_repair_asks_for_the_damaged_layer_alone() {
    let mut site = Site::new().await;
    site.pull("app:v1").await;
    site.registry.asked();
    flip(&site.layer(1).join("fs/etc/new"), 2);
    let report = site.verify().await;
    let [finding] = &findings(&report)[..] else { panic!("{report:?}") };
    assert_eq!((finding.path.as_str(), finding.what.as_str()), ("fs/etc/new", "content"));
    for _ in 0..2 {
        assert_eq!(site.tags().await, Vec::<String>::new());
        let name = site.registry.name("app:v1");
        assert!(site.engine().status(&ImageSpec::new(&name)).await.expect("a status").is_none());
        assert!(site.engine().damaged(&name).is_some(), "the name is kept");
        assert_eq!(findings(&site.verify().await), std::slice::from_ref(finding), "it is still known what was found");
        site.open().await;
    }
    site.engine().sweep(PullRemains::Keep).await.expect("a sweep");
    let report = site.verify().await;
    site.repair(&report).await;
    assert_eq!(site.registry.asked(), [site.layers[1].to_string()]);
    for _ in 0..2 {
        assert_eq!(site.tags().await, ["app:v1"]);
        assert_eq!(findings(&site.verify().await), []);
        site.open().await;
    }
    assert!(fs::read_dir(site.folder.path().join("trash")).expect("trash").count() <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_heals_and_brings_back_whatever_shares_the_layer() {
    let mut site = Site::new().await;
    let own = Layer::new().file("other", b"other").tar();
    site.registry.image("other", "v2", &[lower(), own]);
    site.pull("other:v2").await;
    assert_eq!(site.tags().await, ["app:v1", "other:v2"]);
    fs::remove_file(site.layer(0).join("fs/etc/conf")).expect("it goes");
    site.verify().await;
    assert_eq!(site.tags().await, Vec::<String>::new());
    site.open().await;
    site.registry.asked();
    site.pull("app:v1").await;
    let lower = site.layers[0].to_string();
    assert_eq!(site.registry.asked(), ["config", "index", "manifest", &lower]);
    assert_eq!(site.tags().await, ["app:v1", "other:v2"]);
    assert_eq!(findings(&site.verify().await), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_documents_are_asked_for_again_and_nothing_else() {
    let mut site = Site::new().await;
    let image = fs::read_dir(site.folder.path().join("images")).expect("images").next().expect("one").expect("one");
    for (name, asked) in [
        ("config.json", vec!["config"]),
        ("manifest.json", vec!["manifest"]),
        ("index.json", vec!["index"]),
        ("image.json", vec![]),
    ] {
        flip(&image.path().join(name), 20);
        let report = site.verify().await;
        assert_eq!(findings(&report)[0].path, name);
        assert_eq!(site.tags().await, Vec::<String>::new());
        if name == "config.json" {
            // Its layers are known from the record, and survive a restart.
            site.open().await;
        }
        site.repair(&report).await;
        assert_eq!(site.registry.asked(), asked, "{name}");
        assert_eq!(site.tags().await, ["app:v1"]);
        site.open().await;
        assert_eq!(findings(&site.verify().await), [], "{name}");
    }
    // Damage that a start finds: the record's layers are known from the configuration, and stay.
    flip(&image.path().join("image.json"), 20);
    site.open().await;
    assert_eq!(site.tags().await, Vec::<String>::new());
    let report = site.verify().await;
    site.repair(&report).await;
    assert_eq!(site.registry.asked(), ["index", "manifest"]);
    assert_eq!(site.tags().await, ["app:v1"]);
    assert_eq!(findings(&site.verify().await), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_whose_record_is_damaged_or_gone_at_a_start_is_fetched_again() {
    let mut site = Site::new().await;
    let record = site.layer(0).join("layer.json");
    for gone in [false, true] {
        if gone {
            fs::remove_file(&record).expect("it goes");
        } else {
            flip(&record, 30);
        }
        site.open().await;
        assert_eq!(site.tags().await, Vec::<String>::new());
        let report = site.verify().await;
        assert_eq!(findings(&report)[0].path, "layer.json");
        site.repair(&report).await;
        assert_eq!(site.registry.asked(), [site.layers[0].to_string()]);
        assert_eq!(site.tags().await, ["app:v1"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_repair_says_why_and_leaves_the_names() {
    let mut site = Site::new().await;
    flip(&site.layer(1).join("fs/etc/new"), 0);
    let report = site.verify().await;
    site.registry.forget("app");
    let error =
        site.engine().repair(&report.images[0].id, &|_| Vec::new(), &no_progress()).await.expect_err("no layer");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound, "{}", error.chain());
    assert!(error.chain().contains(report.images[0].id.as_str()), "{}", error.chain());
    site.registry.image("app", "v1", &[lower(), upper()]);
    site.open().await;
    let report = site.verify().await;
    site.repair(&report).await;
    assert_eq!(site.tags().await, ["app:v1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_image_can_be_removed_and_leaves_nothing() {
    let site = Site::new().await;
    flip(&site.layer(1).join("fs/etc/new"), 0);
    site.verify().await;
    site.engine().remove(&ImageSpec::new(site.registry.name("app:v1"))).await.expect("it goes");
    assert!(site.verify().await.images.is_empty());
    for folder in ["layers", "images", "trash"] {
        let left = fs::read_dir(site.folder.path().join(folder)).expect("a folder").count();
        assert_eq!(left, 0, "{folder}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_without_a_list_is_damaged_and_fetched_again() {
    let mut site = Site::new().await;
    site.engine = None;
    let record = site.layer(0).join("layer.json");
    let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&record).expect("a record")).expect("JSON");
    for field in ["sealed", "check", "sums"] {
        fields.as_object_mut().expect("an object").remove(field);
    }
    fs::write(&record, fields.to_string()).expect("it is written");
    fs::remove_file(site.layer(0).join("files.list")).expect("it goes");
    site.open().await;
    let report = site.verify().await;
    assert_eq!(findings(&report)[0].path, "files.list");
    site.repair(&report).await;
    assert_eq!(site.registry.asked(), [site.layers[0].to_string()]);
    assert_eq!(findings(&site.verify().await), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_written_again_and_damaged_blobs_go() {
    let mut site = Site::with(true).await;
    let blobs = site.folder.path().join("blobs/sha256");
    let (good, bad) = (blobs.join(site.layers[0].hex()), blobs.join(site.layers[1].hex()));
    assert_eq!(site.verify().await.blobs.count, 2);
    flip(&bad, 700);
    flip(&site.folder.path().join("names.json"), 40);
    let report = site.verify().await;
    let paths: Vec<String> = findings(&report).into_iter().map(|finding| finding.path).collect();
    assert_eq!(paths, ["names.json".to_owned(), format!("blobs/sha256/{}", site.layers[1].hex())]);
    site.repair(&report).await;
    assert!(good.exists() && !bad.exists());
    assert_eq!(findings(&site.verify().await), []);
    site.open().await;
    assert_eq!(site.tags().await, ["app:v1"]);
    assert_eq!(site.registry.asked(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_layer_is_not_taken_from_under_its_mount() {
    assert!(rustix::process::geteuid().is_root(), "mounting needs root: run the tests as root");
    let site = Site::new().await;
    let target = tempfile::tempdir().expect("a folder");
    let spec = ImageSpec::new(site.registry.name("app:v1"));
    site.engine()
        .mount(&spec, target.path(), MountOptions::default())
        .await
        .unwrap_or_else(|error| panic!("{}", error.chain()));
    flip(&site.layer(1).join("fs/etc/new"), 0);
    let report = site.verify().await;
    let repaired = site.engine().repair(&report.images[0].id, &|_| Vec::new(), &no_progress()).await;
    let error = repaired.expect_err("it is mounted");
    assert_eq!(error.kind(), RuntimeErrorKind::InUse, "{}", error.chain());
    assert!(error.hint().is_some_and(|hint| hint.contains("unmount")), "{error:?}");
    let request = PullRequest { image: spec.clone(), ..PullRequest::default() };
    let error = site.engine().pull(&request, no_progress()).await.expect_err("it is mounted");
    assert_eq!(error.kind(), RuntimeErrorKind::InUse, "{}", error.chain());
    assert!(target.path().join("etc/new").exists(), "the mount still shows it");
    site.engine().unmount(target.path(), false).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    site.repair(&report).await;
    assert_eq!(findings(&site.verify().await), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_image_that_is_asked_for_is_checked() {
    let site = Site::new().await;
    site.registry.image("other", "v2", &[Layer::new().file("other", b"other").tar()]);
    site.pull("other:v2").await;
    flip(&site.layer(1).join("fs/etc/new"), 0);
    let other = site.registry.name("other:v2");
    let report = site.engine().verify(Some(&other), Arc::new(|_, _| {})).await.expect("a report");
    assert_eq!((report.images.len(), findings(&report)), (1, vec![]));
    assert_eq!(site.tags().await, ["app:v1", "other:v2"]);
    let error = site.engine().verify(Some("none:v9"), Arc::new(|_, _| {})).await.expect_err("no such image");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound);
}
