//! A store that others own, that holds what is not its own, that is damaged, or that comes from the future.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::ImageSpec,
    ports::{ImageService as _, LocalStore as _, PullRemains},
};
use imagelet_oci::{Engine, EngineConfig};

use super::{
    case::{pull, scratch},
    child,
    image::{ARCHITECTURE, Image},
    registry::Registry,
};

/// Told as tests of their own below.
pub(crate) const STORIES: &[&str] = &["B112", "B113", "B115"];

async fn open(root: &Path) -> Result<Arc<Engine>, RuntimeError> {
    Engine::open(EngineConfig::new(root)).await
}

async fn opened(root: &Path) -> Arc<Engine> {
    open(root).await.unwrap_or_else(|error| panic!("open: {}", error.chain()))
}

/// A store with one image below an index, closed again.
async fn store_with_image(root: &Path, registry: &Registry) -> (String, Image) {
    let image = Image::good("stored").below_index(&serde_json::json!({"os": "linux", "architecture": ARCHITECTURE}));
    let name = registry.put("stored", &image);
    let engine = opened(root).await;
    pull(&engine, &name).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    (name, image)
}

#[test]
fn a_second_process_is_refused_and_told_who_the_first_is() {
    const TEST: &str = "store::a_second_process_is_refused_and_told_who_the_first_is";
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some(mark) = child::mark() {
        let (owner, root) = mark.split_once(' ').expect("the owner and the store");
        let opening = runtime.block_on(open(Path::new(root)));
        if owner == "nobody" {
            assert!(opening.is_ok(), "the first has gone");
            return;
        }
        let error = opening.expect_err("the first owns it");
        assert_eq!(error.kind(), RuntimeErrorKind::InUse);
        assert!(error.to_string().contains(&format!("pid {owner}")), "{error}");
        assert!(error.to_string().contains(root) && error.hint().is_some(), "{error}");
        return;
    }
    let folder = scratch();
    let root = folder.path().join("store").display().to_string();
    let engine = runtime.block_on(opened(Path::new(&root)));
    assert!(child::run(TEST, &format!("{} {root}", std::process::id())).success());
    drop(engine);
    // The blocking thread that emptied the trash may hold the store a moment longer.
    drop(runtime);
    assert!(child::run(TEST, &format!("nobody {root}")).success());
}

/// Every path below a folder with its content; links as they stand.
fn all(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let kind = fs::symlink_metadata(&path).expect("it is there").file_type();
            let content = if kind.is_dir() {
                folders.push(path.clone());
                b"folder".to_vec()
            } else if kind.is_symlink() {
                fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).expect("a file")
            };
            found.insert(path, content);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_stores_is_left_alone_and_disturbs_nothing() {
    let (folder, outside, registry) = (scratch(), scratch(), Registry::start().await);
    let root = folder.path().join("store");
    let (name, _) = store_with_image(&root, &registry).await;
    fs::write(outside.path().join("theirs"), "theirs").expect("a file");
    for place in ["", "images", "layers", "mounts", "tmp", "trash"] {
        let place = root.join(place);
        fs::write(place.join("README"), "ours to keep").expect("a file");
        fs::write(place.join(".hidden"), "").expect("a file");
        fs::create_dir_all(place.join("lost+found/deep")).expect("a folder");
        fs::write(place.join("lost+found/deep/#12"), "found").expect("a file");
        symlink(outside.path(), place.join("elsewhere")).expect("a link");
        symlink("nowhere", place.join("dangling")).expect("a link");
        fs::write(place.join("backup-2024"), "b").expect("a file");
    }
    let theirs: BTreeMap<PathBuf, Vec<u8>> = all(&root)
        .into_iter()
        .filter(|(path, _)| {
            let text = path.strip_prefix(&root).expect("below").display().to_string();
            ["README", ".hidden", "lost+found", "elsewhere", "dangling", "backup"]
                .iter()
                .any(|part| text.contains(part))
        })
        .collect();
    assert_eq!(theirs.len(), 6 * 8);
    for round in 0..2 {
        let engine = opened(&root).await;
        assert_eq!(engine.list(None).await.expect("a list").len(), 1);
        let other = registry.put(&format!("round-{round}"), &Image::good(&format!("round-{round}")));
        pull(&engine, &other).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        engine.remove(&ImageSpec::new(&other)).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        engine.sweep(PullRemains::Keep).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        assert!(engine.status(&ImageSpec::new(&name)).await.expect("a status").is_some());
        assert_eq!(engine.container_service().containers().await.expect("the mounts").len(), 0);
        drop(engine);
        let now = all(&root);
        for (path, content) in &theirs {
            assert_eq!(now.get(path), Some(content), "{} in round {round}", path.display());
        }
        assert_eq!(fs::read(outside.path().join("theirs")).expect("it is there"), b"theirs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_may_be_a_link_and_its_folders_may_not() {
    let (folder, registry) = (scratch(), Registry::start().await);
    let (root, link) = (folder.path().join("store"), folder.path().join("link"));
    symlink(&root, &link).expect("a link");
    let error = open(&link).await.expect_err("it leads nowhere");
    assert!(error.chain().contains("link"), "{}", error.chain());
    assert!(!root.exists(), "nothing is made behind a link that leads nowhere");

    let (name, _) = store_with_image(&root, &registry).await;
    {
        let engine = opened(&link).await;
        assert_eq!(engine.root(), root.canonicalize().expect("it is there"), "the link is followed once, at the start");
        assert!(engine.status(&ImageSpec::new(&name)).await.expect("a status").is_some());
    }
    for inner in ["layers", "images", "tmp", "trash", "mounts"] {
        let (home, away) = (root.join(inner), folder.path().join(format!("away-{inner}")));
        fs::rename(&home, &away).expect("a rename");
        symlink(&away, &home).expect("a link");
        let error = open(&root).await.expect_err(inner);
        assert_eq!(error.kind(), RuntimeErrorKind::Unavailable, "{}", error.chain());
        assert!(error.chain().contains(home.to_str().expect("text")) && error.hint().is_some(), "{}", error.chain());
        fs::remove_file(&home).expect("the link");
        fs::write(&home, "a file").expect("a file");
        let error = open(&root).await.expect_err(inner);
        assert!(error.chain().contains(home.to_str().expect("text")), "{}", error.chain());
        assert_eq!(fs::read(&home).expect("it is there"), b"a file");
        fs::remove_file(&home).expect("the file");
        fs::rename(&away, &home).expect("a rename");
    }
    let file = folder.path().join("file");
    fs::write(&file, "a file").expect("a file");
    assert!(open(&file).await.expect_err("a file").chain().contains("file"));
    assert!(opened(&root).await.status(&ImageSpec::new(&name)).await.expect("a status").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_a_newer_version_is_refused_and_left_as_it_is() {
    let (folder, registry) = (scratch(), Registry::start().await);
    let root = folder.path().join("store");
    store_with_image(&root, &registry).await;
    for names in [
        r#"{"version":2,"names":{}}"#,
        r#"{"version":2,"names":[["a","b"]]}"#,
        r#"{"version":2}"#,
        r#"{"names":"elsewhere","version":4294967295}"#,
        r#"{"version":99999999999999999999,"pages":[1,2,3]}"#,
    ] {
        fs::write(root.join("names.json"), names).expect("names");
        let before = all(&root);
        let error = open(&root).await.expect_err(names);
        assert_eq!(error.kind(), RuntimeErrorKind::Unavailable, "{names}: {}", error.chain());
        assert!(error.chain().contains("newer imagelet") && error.hint().is_some(), "{names}: {}", error.chain());
        let mut after = all(&root);
        after.insert(root.join("lock"), before[&root.join("lock")].clone());
        assert_eq!(after, before, "{names}: something was changed");
    }
}

/// What may have happened to a file.
const DAMAGES: [&str; 7] = ["gone", "empty", "cut", "flipped", "longer", "a folder", "a link to nowhere"];

fn damage(path: &Path, how: &str) -> io::Result<()> {
    let mut bytes = fs::read(path)?;
    let middle = bytes.len() / 2;
    fs::remove_file(path)?;
    match how {
        "gone" => return Ok(()),
        "a folder" => return fs::create_dir(path),
        "a link to nowhere" => return symlink("nowhere", path),
        "empty" => bytes.clear(),
        "cut" => bytes.truncate(middle),
        "flipped" => bytes[middle] ^= 0x01,
        "longer" => bytes.extend_from_slice(b"\0\0\0\0"),
        _ => panic!("{how}"),
    }
    fs::write(path, bytes)
}

/// The files a store keeps of its one image.
fn documents(root: &Path, image: &Image) -> Vec<PathBuf> {
    let hex = |digest: &str| digest.split_once(':').expect("a digest").1.to_owned();
    let folder = root.join("images").join(hex(&image.config_digest()));
    let layer = root.join("layers").join(hex(&image.layers[0].diff_id));
    vec![folder.join("image.json"), layer.join("layer.json"), root.join("names.json")]
}

/// Whether what is listed is also whole: its documents are those that were pulled, and its file is there.
async fn is_whole_or_not_listed(engine: &Engine, name: &str, image: &Image, what: &str) -> bool {
    let Some(listed) = engine.status(&ImageSpec::new(name)).await.expect("a status") else { return false };
    assert_eq!(listed.id.as_str(), image.config_digest(), "{what}");
    match engine.details(&ImageSpec::new(name)).await {
        Ok(Some(details)) => {
            assert_eq!(
                details.config.expect("it has one").as_str().as_bytes(),
                image.config_bytes(),
                "{what}: another configuration is reported"
            );
            true
        }
        Ok(None) => panic!("{what}: it is listed without details"),
        Err(error) => {
            assert_eq!(error.kind(), RuntimeErrorKind::Corrupt, "{what}: {}", error.chain());
            assert!(error.chain().contains(&image.config_digest()), "{what}: {}", error.chain());
            assert!(error.hint().is_some(), "{what}: {}", error.chain());
            let again = engine.status(&ImageSpec::new(name)).await.expect("a status");
            assert!(again.is_none(), "{what}: it is still listed after it was found damaged");
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_document_is_found_and_the_next_pull_heals_it() {
    let (folder, registry) = (scratch(), Registry::start().await);
    let root = folder.path().join("store");
    let (name, image) = store_with_image(&root, &registry).await;
    let mut found = 0;
    for document in documents(&root, &image) {
        for how in DAMAGES {
            // Once looked at before the pull that heals, once not.
            for looked_at in [true, false] {
                let what = format!("{} {how}", document.strip_prefix(&root).expect("below").display());
                damage(&document, how).unwrap_or_else(|error| panic!("{what}: {error}"));
                let engine = open(&root).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
                if looked_at && !is_whole_or_not_listed(&engine, &name, &image, &what).await {
                    found += 1;
                }
                pull(&engine, &name).await.unwrap_or_else(|error| panic!("{what}: the next pull: {}", error.chain()));
                assert!(is_whole_or_not_listed(&engine, &name, &image, &what).await, "{what}: it was not healed");
                drop(engine);
                let again = opened(&root).await;
                assert!(is_whole_or_not_listed(&again, &name, &image, &what).await, "{what}: not healed for good");
                let folder = documents(&root, &image)[0].parent().expect("a folder").to_owned();
                let stored = |name| fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(stored("manifest.json"), image.chosen(), "{what}: the manifest");
                assert_eq!(stored("config.json"), image.config_bytes(), "{what}: the configuration");
            }
        }
    }
    assert!(found >= 8, "only {found} damages were found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_names_other_layers_than_a_present_configuration_is_refused() {
    let (folder, registry) = (scratch(), Registry::start().await);
    let root = folder.path().join("store");
    let engine = opened(&root).await;
    let good = Image::good("present");
    pull(&engine, &registry.put("present", &good)).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    for (name, other) in [
        ("none", good.clone().manifest(|manifest| manifest["layers"] = serde_json::json!([]))),
        (
            "twice",
            good.clone().manifest(|manifest| {
                let layer = manifest["layers"][0].clone();
                manifest["layers"].as_array_mut().expect("a list").push(layer);
            }),
        ),
    ] {
        let name = registry.put(name, &other);
        let error = pull(&engine, &name).await.expect_err("it is refused as it is on an empty node");
        assert_eq!(error.kind(), RuntimeErrorKind::Corrupt, "{}", error.chain());
        assert!(engine.status(&ImageSpec::new(&name)).await.expect("a status").is_none());
    }
}
