//! What an unfinished pull leaves for the next one, and what never stays.

use std::{os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use imagelet_core::{
    error::RuntimeErrorKind,
    image::{Digest, ImageSpec},
    ports::{ImageService as _, LocalStore as _, PullRemains},
};
use imagelet_oci::{Engine, EngineConfig, RegistryConfig, RegistryTimeouts};

use crate::{
    blobs::noise,
    content,
    fixture::{Layer, TestRegistry},
    import::{Bed, chains_of, whole},
    open_as, pull, settled, tree,
};

fn config(root: &Path) -> EngineConfig {
    let registry = RegistryConfig {
        timeouts: RegistryTimeouts {
            progress: Duration::from_secs(1),
            retry_budget: Duration::from_secs(1),
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    EngineConfig { registry, ..EngineConfig::new(root) }
}

/// Registers `NAME:v1` of a small layer and one that never ends.
fn stalling(registry: &TestRegistry, name: &str) -> (Layer, Layer) {
    let (small, large) = (Layer::new().file("small", &noise(1, 100_000)).gzip(), Layer::new().file("l", &[7; 9_000]));
    let large = large.plain();
    registry.image(name, "v1", &[small.clone(), large.clone().stalling_at(4_000)]);
    (small, large)
}

fn spares(root: &Path) -> usize {
    tree(root).into_keys().filter(|path| path.starts_with("tmp/") && path.ends_with("/layer.json")).count()
}

/// Pulls until the small layer is whole, and drops the pull.
async fn cancel(engine: &Arc<Engine>, root: &Path, name: String) {
    let pulling = {
        let engine = Arc::clone(engine);
        tokio::spawn(async move { pull(&engine, &name).await })
    };
    while spares(root) == 0 {
        assert!(!pulling.is_finished(), "it stalls");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pulling.abort();
    assert!(pulling.await.is_err());
}

async fn used(engine: &Engine) -> u64 {
    engine.filesystem().await.expect("it is measured").images[0].used.0
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpacked_layer_of_an_unfinished_pull_serves_the_next_one() {
    for way in ["failed", "cancelled", "another process", "another image"] {
        let registry = TestRegistry::start().await;
        let (small, large) = stalling(&registry, "a");
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let mut engine = open_as(config(root)).await;
        if way == "failed" {
            let error = pull(&engine, &registry.name("a:v1")).await.expect_err("it stalls");
            assert_eq!(error.kind(), RuntimeErrorKind::TimedOut, "{}", error.chain());
        } else {
            cancel(&engine, root, registry.name("a:v1")).await;
        }
        if way == "another process" {
            drop(engine);
            engine = open_as(config(root)).await;
        }
        assert_eq!(spares(root), 1, "{way}");
        // A pull that was dropped hands the layer over in a thread of its own.
        let counted = async {
            while used(&engine).await < 100_000 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), counted).await.unwrap_or_else(|_| panic!("{way}: it is counted"));
        let name = if way == "another image" { "b" } else { "a" };
        registry.image(name, "v1", &[small.clone(), large.clone()]);
        registry.take_layer_requests();
        pull(&engine, &registry.name(&format!("{name}:v1"))).await.unwrap_or_else(|e| panic!("{way}: {}", e.chain()));
        assert_eq!(registry.take_layer_requests(), 1, "{way}: the large layer alone is fetched");
        let layers: Vec<String> = tree(root).into_keys().filter(|path| path.ends_with("/layer.json")).collect();
        assert!(layers.len() == 2 && layers.iter().all(|path| path.starts_with("layers/")), "{way}: {layers:?}");
        assert!(!tree(root).into_keys().any(|path| path.ends_with("spare.json")), "{way}");
        let report = engine.verify(None, Arc::new(|_, _| {})).await.expect("a report");
        assert!(!report.images.iter().any(imagelet_core::ports::ImageCheck::is_damaged), "{way}: {report:?}");
        engine.remove(&ImageSpec::new(registry.name(&format!("{name}:v1")))).await.expect("removed");
        assert_eq!(content(root), Vec::<String>::new(), "{way}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_an_artifact_is_no_spare_for_another_repository() {
    let registry = TestRegistry::start().await;
    let (small, large) = (noise(1, 100_000), noise(2, 9_000));
    let files = [("small", &small[..]), ("large", &large[..])];
    registry.artifact("a", "v1", &files);
    registry.artifact("b", "v1", &files);
    registry.put(&format!("a/blobs/{}", Digest::of(&large)), "layer", large.clone(), Some(4_000));
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open_as(config(folder.path())).await;
    cancel(&engine, folder.path(), registry.name("a:v1")).await;
    registry.take_layer_requests();
    pull(&engine, &registry.name("b:v1")).await.expect("b");
    assert_eq!(registry.take_layer_requests(), 2, "it sends its files itself");
    registry.artifact("a", "v2", &files);
    pull(&engine, &registry.name("a:v2")).await.expect("a");
    assert_eq!(registry.take_layer_requests(), 1, "its own file was written before");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_unfinished_pull_left_goes_on_request_after_its_time_and_for_a_refusal() {
    let registry = TestRegistry::start().await;
    let (small, large) = stalling(&registry, "a");
    registry.image("wrong", "v1", &[small, large.serving(|bytes| bytes[1000] ^= 1)]);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let mut engine = open_as(config(root)).await;
    for way in ["on request", "expired", "at a start", "refused", "off"] {
        if way == "off" {
            drop(engine);
            engine = open_as(EngineConfig { resume_for: Duration::ZERO, ..config(root) }).await;
        }
        cancel(&engine, root, registry.name("a:v1")).await;
        match way {
            "on request" => {
                engine.sweep(PullRemains::Keep).await.expect("a sweep");
                assert_eq!(spares(root), 1, "a young one stays");
                engine.sweep(PullRemains::Remove).await.expect("a sweep");
            }
            "expired" => {
                drop(engine);
                engine = open_as(EngineConfig { resume_for: Duration::from_nanos(1), ..config(root) }).await;
                engine.sweep(PullRemains::Keep).await.expect("a sweep");
            }
            "at a start" => {
                drop(engine);
                engine = open_as(config(root)).await;
                cancel(&engine, root, registry.name("a:v1")).await;
                let mark = tree(root).into_keys().find(|path| path.ends_with("spare.json")).expect("a spare has one");
                drop(engine);
                std::fs::write(root.join(mark), "{}").expect("written");
                engine = open_as(config(root)).await;
            }
            "refused" => {
                let error = pull(&engine, &registry.name("wrong:v1")).await.expect_err("its digest is wrong");
                assert_eq!(error.kind(), RuntimeErrorKind::Corrupt, "{}", error.chain());
            }
            _ => {}
        }
        assert_eq!(settled(root).await, Vec::<String>::new(), "{way}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_an_admitted_pull_stays_while_it_waits_for_its_turn_and_space_is_freed() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let (first, second) = (vec![7; 13 << 20], vec![8; 12 << 20]);
    registry.artifact("a", "v1", &[("second", &second)]);
    registry.artifact("a", "v2", &[("first", &first), ("second", &second)]);
    for (bytes, stall) in [(&first, 1 << 20), (&second, 10 << 20)] {
        registry.put(&format!("a/blobs/{}", Digest::of(bytes)), "layer", bytes.clone(), Some(stall));
    }
    let files = || tree(folder.path()).into_iter().filter(|(path, _)| path.starts_with("ingest/")).collect::<Vec<_>>();
    let engine = open_as(config(folder.path())).await;
    pull(&engine, &registry.name("a:v1")).await.expect_err("it stalls");
    drop(engine);
    let [(partial, size)] = &files()[..] else { panic!("the file is there in part: {:?}", files()) };

    let mut config = EngineConfig::new(folder.path());
    config.limits.layers_in_flight = 1;
    let engine = open_as(config).await;
    let pulling = {
        let (engine, name) = (Arc::clone(&engine), registry.name("a:v2"));
        tokio::spawn(async move { pull(&engine, &name).await })
    };
    while files().len() < 2 {
        assert!(!pulling.is_finished(), "it stalls");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.sweep(PullRemains::Remove).await.expect("space is freed");
    assert!(files().contains(&(partial.clone(), *size)), "the pull counts on it: {:?}", files());
    pulling.abort();
    assert!(pulling.await.is_err());
    while files().iter().any(|(path, _)| path != partial) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.sweep(PullRemains::Remove).await.expect("space is freed");
    assert_eq!(files(), []);
}

const MIB: usize = 1 << 20;

/// Bytes that gzip packs, so that its blocks begin at any bit.
fn text(seed: u64, length: usize) -> Vec<u8> {
    noise(seed, length).into_iter().map(|byte| byte & 0x1f).collect()
}

/// A layer of 36 MiB, and of 24 MiB packed, with small files, links and large files.
fn layer_of_many_files() -> Layer {
    // All folders have entries, so that two pulls give them the same times.
    let folders = ["./", "small"].into_iter().fold(Layer::new(), |layer, folder| layer.special(folder, b'5'));
    let mut layer = folders.file("first", &text(10, 3 * MIB));
    for number in 0..200 {
        layer = layer.file(&format!("small/{number}"), &text(100 + number, 5_000)).special(&format!("f{number}"), b'6');
    }
    let layer = layer.hard_link("hard", "first").link("soft", "first");
    layer.file("large", &text(11, 24 * MIB)).file("last", &text(12, 8 * MIB))
}

/// The folder of a layer that is not whole.
fn partial_layer(root: &Path) -> Option<std::path::PathBuf> {
    let mut entries = std::fs::read_dir(root.join("ingest")).expect("a folder").map(|entry| entry.unwrap().path());
    entries.find(|path| path.is_dir())
}

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap_or_else(|_| panic!("{}", path.display())))
}

fn first_byte(range: Option<&str>) -> usize {
    let first = range.and_then(|range| range.strip_prefix("bytes=")?.split('-').next()?.parse().ok());
    first.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_broke_off_is_continued_from_its_files_and_is_the_same() {
    let packings: [fn(Layer) -> Layer; 2] = [Layer::plain, |layer| layer.gzip_in_two(9 * MIB + 13)];
    for (number, packed) in packings.into_iter().enumerate() {
        let registry = TestRegistry::start().await;
        let layer = packed(layer_of_many_files());
        let folder = tempfile::tempdir().expect("a folder");
        let (root, fresh) = (&folder.path().join("root"), &folder.path().join("fresh"));
        registry.image("whole", "v1", std::slice::from_ref(&layer));
        pull(&*open_as(config(fresh)).await, &registry.name("whole:v1")).await.expect("it is pulled at once");
        let home = Path::new("layers").join(layer.diff_id().hex());
        let list = std::fs::read(fresh.join(&home).join("files.list")).expect("a list");
        let (mut engine, mut known, mut first_inode) = (open_as(config(root)).await, 0, 0);
        // Among the small files, in the large one twice, and at a registry that answers nothing.
        for (cut, reopens) in [(3 * MIB + 700_000, false), (11 * MIB, true), (11 * MIB, true), (16 * MIB + 5, false)] {
            registry.image("a", "v1", &[layer.clone().stalling_at(cut)]);
            registry.take_ranges();
            let error = pull(&engine, &registry.name("a:v1")).await.expect_err("it stalls");
            assert_eq!(error.kind(), RuntimeErrorKind::TimedOut, "{}", error.chain());
            let begun = registry.take_ranges();
            let first = first_byte(begun[0].as_deref());
            assert!(first + MIB >= known && first <= known, "{number}: {begun:?} after {known}");
            known = cut;
            let partial = partial_layer(root).unwrap_or_else(|| panic!("{number}: it stays after {cut}"));
            assert!(used(&engine).await + 2 * MIB as u64 > cut as u64, "{number}: its files are counted");
            let is_linked = partial.join("fs/first").exists();
            let files = if is_linked { "fs" } else { "previous" };
            let inode = inode(&partial.join(files).join("first"));
            assert!(first_inode == 0 || first_inode == inode, "{number}: the bytes are written once");
            first_inode = inode;
            if reopens {
                drop(engine);
                engine = open_as(config(root)).await;
            }
        }
        registry.image("a", "v1", std::slice::from_ref(&layer));
        pull(&engine, &registry.name("a:v1")).await.unwrap_or_else(|error| panic!("{number}: {}", error.chain()));
        let ranges = registry.take_ranges();
        assert!(first_byte(ranges[0].as_deref()) + MIB >= known, "{number}: {ranges:?}");
        assert_eq!(inode(&root.join(&home).join("fs/first")), first_inode, "{number}: the bytes are written once");
        assert!(std::fs::read(root.join(&home).join("files.list")).expect("a list") == list, "{number}: it differs");
        let names = |root: &Path| tree(&root.join(&home)).into_keys().collect::<Vec<_>>();
        assert_eq!(names(root), names(fresh), "{number}: nothing of the unfinished layer stays");
        assert_eq!(partial_layer(root), None);
        let report = engine.verify(None, Arc::new(|_, _| {})).await.expect("a report");
        assert!(!report.images.iter().any(imagelet_core::ports::ImageCheck::is_damaged), "{number}: {report:?}");
        engine.remove(&ImageSpec::new(registry.name("a:v1"))).await.expect("removed");
        assert_eq!(content(root), Vec::<String>::new(), "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_partial_layer_is_fetched_from_its_first_byte() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 7] = [
        ("a byte of a file", |partial| {
            let mut bytes = std::fs::read(partial.join("fs/first")).unwrap();
            bytes[1000] ^= 1;
            std::fs::write(partial.join("fs/first"), bytes).unwrap();
        }),
        ("a file that is gone", |partial| std::fs::remove_file(partial.join("fs/small/7")).unwrap()),
        ("a link in place of a file", |partial| {
            std::fs::remove_file(partial.join("fs/small/7")).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", partial.join("fs/small/7")).unwrap();
        }),
        ("a tree that is gone", |partial| std::fs::remove_dir_all(partial.join("fs")).unwrap()),
        ("a torn journal", |partial| {
            let journal = std::fs::File::options().write(true).open(partial.join("journal")).unwrap();
            journal.set_len(journal.metadata().unwrap().len() / 2 + 3).unwrap();
        }),
        ("a wrong journal", |partial| {
            let mut journal = std::fs::read(partial.join("journal")).unwrap();
            for at in (40..journal.len()).step_by(97) {
                journal[at] ^= 0x55;
            }
            std::fs::write(partial.join("journal"), journal).unwrap();
        }),
        ("an earlier boot", |partial| std::fs::write(partial.join("resume.json"), "{}").unwrap()),
    ];
    let registry = TestRegistry::start().await;
    let layer = layer_of_many_files().gzip_in_two(9 * MIB);
    for (what, damage) in damages {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let engine = open_as(config(root)).await;
        registry.image("a", "v1", &[layer.clone().stalling_at(11 * MIB)]);
        pull(&engine, &registry.name("a:v1")).await.expect_err("it stalls");
        damage(&partial_layer(root).expect("it stays"));
        registry.image("a", "v1", std::slice::from_ref(&layer));
        pull(&engine, &registry.name("a:v1")).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        let report = engine.verify(None, Arc::new(|_, _| {})).await.expect("a report");
        assert!(!report.images.iter().any(imagelet_core::ports::ImageCheck::is_damaged), "{what}: {report:?}");
        engine.remove(&ImageSpec::new(registry.name("a:v1"))).await.expect("removed");
        assert_eq!(content(root), Vec::<String>::new(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_writes_a_path_twice_begins_anew() {
    let registry = TestRegistry::start().await;
    let layer = Layer::new().file("twice", &noise(1, 4 * MIB)).file("twice", &noise(2, 20 * MIB)).plain();
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open_as(config(folder.path())).await;
    registry.image("a", "v1", &[layer.clone().stalling_at(12 * MIB)]);
    pull(&engine, &registry.name("a:v1")).await.expect_err("it stalls");
    assert_eq!(content(folder.path()), Vec::<String>::new(), "its first file is gone");
    registry.image("a", "v1", std::slice::from_ref(&layer));
    pull(&engine, &registry.name("a:v1")).await.expect("it begins anew");
}

/// Each path of a tree with its kind, mode, owner, links, time and content.
fn described(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.unwrap().path()) {
            let metadata = std::fs::symlink_metadata(&path).expect("it is there");
            let content = if metadata.is_file() {
                Digest::of(&std::fs::read(&path).expect("readable")).to_string()
            } else {
                String::new()
            };
            let (name, mode, owner) = (path.strip_prefix(root).unwrap().display(), metadata.mode(), metadata.uid());
            let (links, time) = (metadata.nlink(), metadata.mtime());
            let mut names = Vec::with_capacity(1000);
            let more = rustix::fs::llistxattr(&path, rustix::buffer::spare_capacity(&mut names)).expect("a list");
            found.push(format!("{name} {mode:o} {owner} {links} {time} {more} {content}"));
            if metadata.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_gets_the_same_tree_of_a_layer_that_broke_off() {
    let layer = layer_of_many_files().gzip_in_two(9 * MIB);
    let chain = chains_of(std::slice::from_ref(&layer)).remove(0);
    let short = |engine: &mut EngineConfig| engine.registry = config(Path::new("")).registry;
    let (fresh, bed) = (Bed::new(short).await, Bed::new(short).await);
    fresh.registry.image("a", "v1", std::slice::from_ref(&layer));
    whole(fresh.import("a:v1").await);
    bed.registry.image("a", "v1", &[layer.clone().stalling_at(12 * MIB)]);
    bed.import("a:v1").await.expect_err("it stalls");
    // As if bytes that no digest proved had said more of a file: entries after the checkpoint may have changed it.
    let partial = partial_layer(&bed.folder.path().join("staging")).expect("it stays");
    let file = std::fs::File::open(partial.join("fs/first")).expect("it is there");
    rustix::fs::fsetxattr(&file, "user.more", b"1", rustix::fs::XattrFlags::empty()).expect("it is set");
    std::os::unix::fs::fchown(&file, Some(1000), Some(1000)).expect("it is set");
    std::fs::set_permissions(partial.join("fs/first"), std::fs::Permissions::from_mode(0o4777)).expect("it is set");
    let bed = bed.restarted(short).await;
    bed.registry.image("a", "v1", std::slice::from_ref(&layer));
    bed.registry.take_ranges();
    whole(bed.import("a:v1").await);
    let ranges = bed.registry.take_ranges();
    assert!(first_byte(ranges[0].as_deref()) >= 11 * MIB, "{ranges:?}");
    let trees = [&fresh, &bed].map(|bed| described(&bed.sink.tree(&chain).expect("the sink has it")));
    assert_eq!(trees[0], trees[1]);
    assert_eq!(bed.left(), Vec::<String>::new());
}
