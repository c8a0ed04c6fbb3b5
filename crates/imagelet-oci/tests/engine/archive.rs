//! Archives: what is exported comes back with every digest, and a hostile archive changes nothing.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use imagelet_core::{
    credentials::Credential,
    error::{RuntimeError, RuntimeErrorKind},
    image::{Digest, DigestAlgorithm, ImageId, ImageSpec},
    ports::{
        ArchivePlace, ExportRequest, ExportedImage, ImageService as _, ImportOutcome, ImportRequest, LayerState,
        LocalStore as _, Progress, PullEvent, PullRemains, no_progress,
    },
};
use imagelet_oci::{Engine, EngineConfig};
use serde_json::{Value, json};

use crate::{
    fixture::{Layer, TestRegistry},
    open, open_as, pull,
};

fn tar_at(path: PathBuf) -> ArchivePlace {
    ArchivePlace { path, is_folder: false }
}

fn folder_at(path: PathBuf) -> ArchivePlace {
    ArchivePlace { path, is_folder: true }
}

async fn export(engine: &Engine, image: &str, place: &ArchivePlace) -> Result<ExportedImage, RuntimeError> {
    let request = ExportRequest { image: image.into(), place: place.clone() };
    let anonymous = |_: &str| -> Vec<Credential> { Vec::new() };
    engine.export(&request, &anonymous, no_progress_ref()).await
}

fn no_progress_ref() -> &'static Progress {
    static NONE: std::sync::OnceLock<Progress> = std::sync::OnceLock::new();
    NONE.get_or_init(no_progress)
}

async fn import(engine: &Engine, place: &ArchivePlace) -> Result<Vec<ImportOutcome>, RuntimeError> {
    engine.import(&ImportRequest { place: place.clone(), ..ImportRequest::default() }, no_progress_ref()).await
}

/// The only image of an archive.
async fn import_one(engine: &Engine, place: &ArchivePlace) -> Result<(String, bool), RuntimeError> {
    let mut images = import(engine, place).await?;
    assert_eq!(images.len(), 1);
    images.remove(0).outcome.map(|(id, present)| (id.to_string(), present))
}

async fn keeping(root: &Path) -> Arc<Engine> {
    open_as(EngineConfig { keep_blobs: true, ..EngineConfig::new(root) }).await
}

async fn names(engine: &Engine, image: &str) -> (Vec<String>, Vec<String>) {
    let image = engine.status(&ImageSpec::new(image)).await.expect("it answers").expect("it is present");
    (image.tags, image.digests)
}

fn two_layers() -> [Layer; 2] {
    [Layer::new().file("base", b"base").gzip(), Layer::new().file("app", &vec![7; 100_000]).zstd()]
}

#[tokio::test]
async fn an_image_by_sha512_is_whole_to_a_check_an_export_and_a_repair() {
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let by_sha512 = |bytes: &[u8]| {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA512, bytes);
        Digest::from_hash(DigestAlgorithm::Sha512, hash.as_ref()).to_string()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    registry.image("app", "v1", &two_layers());
    let mut manifest: Value = serde_json::from_slice(&registry.file("app/manifests/v1")).expect("JSON");
    let config = registry.file(&format!("app/blobs/{}", manifest["config"]["digest"].as_str().expect("a digest")));
    let id = by_sha512(&config);
    manifest["config"]["digest"] = id.clone().into();
    registry.put(&format!("app/blobs/{id}"), "config", config, None);
    let manifest = serde_json::to_vec(&manifest).expect("JSON");
    let name = registry.name(&format!("app@{}", by_sha512(&manifest)));
    registry.put(&format!("app/manifests/{}", by_sha512(&manifest)), MANIFEST, manifest, None);

    let engine = keeping(&folder.path().join("source")).await;
    assert_eq!(pull(&engine, &name).await.expect("pulled").as_str(), id);
    let is_whole = async |engine: &Engine| {
        let report = engine.verify(None, Arc::new(|_, _| {})).await.expect("checked");
        report.images.len() == 1 && report.images.iter().all(|image| !image.is_damaged())
    };
    assert!(is_whole(&engine).await);
    let place = tar_at(folder.path().join("file.tar"));
    export(&engine, &name, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let target = open(&folder.path().join("target")).await;
    let imported = import_one(&target, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(imported, (id.clone(), false));

    drop(engine);
    let hex = id.split_once(':').expect("a digest").1;
    std::fs::write(folder.path().join("source/images").join(hex).join("image.json"), b"rotten").expect("written");
    let engine = keeping(&folder.path().join("source")).await;
    engine.sweep(PullRemains::Keep).await.expect("swept");
    registry.take_layer_requests();
    let anonymous = |_: &str| -> Vec<Credential> { Vec::new() };
    let repaired = engine.repair(&ImageId::new(&id), &anonymous, no_progress_ref()).await;
    repaired.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(is_whole(&engine).await);
    assert_eq!(registry.take_layer_requests(), 0, "its configuration names the layers that are here");
}

#[tokio::test]
async fn an_export_comes_back_with_every_digest_and_name_from_a_file_and_from_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    registry.image("app", "v1", &two_layers());
    for keeps in [true, false] {
        let at = |name: &str| folder.path().join(format!("{name}-{keeps}"));
        let source = if keeps { keeping(&at("source")).await } else { open(&at("source")).await };
        let name = registry.name("app:v1");
        let id = pull(&source, &name).await.expect("pulled");
        registry.take_layer_requests();
        for place in [tar_at(at("file.tar")), folder_at(at("layout"))] {
            let exported = export(&source, &name, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
            assert_eq!(exported.id, id);
            let fetched = registry.take_layer_requests();
            assert_eq!(fetched, if keeps { 0 } else { 2 }, "only what is not kept comes from the registry");

            let target = keeping(&folder.path().join(format!("target-{keeps}-{}", place.is_folder))).await;
            let (imported, present) =
                import_one(&target, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
            assert_eq!((imported.as_str(), present), (id.as_str(), false));
            assert_eq!(names(&target, id.as_str()).await, names(&source, id.as_str()).await);
            assert!(
                target
                    .verify(None, Arc::new(|_, _| {}))
                    .await
                    .expect("checked")
                    .images
                    .iter()
                    .all(|image| !image.is_damaged())
            );
            assert!(import_one(&target, &place).await.expect("again").1, "nothing is unpacked again");

            // The imported blobs are kept, so the copy of the copy is the same archive.
            if !place.is_folder {
                let copy = tar_at(at("copy.tar"));
                export(&target, &name, &copy).await.expect("exported");
                assert_eq!(std::fs::read(&copy.path).expect("a file"), std::fs::read(&place.path).expect("a file"));
            }
        }
    }
    assert_eq!(registry.take_layer_requests(), 0, "no import asks the registry");
}

#[tokio::test]
async fn a_layer_of_no_bytes_is_pulled_exported_and_imported_like_any_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    registry.image("app", "v1", &[two_layers()[0].clone(), Layer::new()]);
    let name = registry.name("app:v1");
    for keeps in [true, false] {
        let at = |name: &str| folder.path().join(format!("{name}-{keeps}"));
        let source = if keeps { keeping(&at("source")).await } else { open(&at("source")).await };
        let id = pull(&source, &name).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        for place in [tar_at(at("file.tar")), folder_at(at("layout"))] {
            export(&source, &name, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
            for keep_blobs in [true, false] {
                let root = at(&format!("target-{keep_blobs}-{}", place.is_folder));
                let target = open_as(EngineConfig { keep_blobs, ..EngineConfig::new(root) }).await;
                let imported = import_one(&target, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
                assert_eq!(imported, (id.to_string(), false));
            }
        }
    }
}

#[tokio::test]
async fn an_index_is_exported_and_imported_with_its_digest() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    registry.image("app", "one", &two_layers());
    let manifest = registry.file("app/manifests/one");
    let other = Digest::of(b"another platform");
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": other.as_str(), "size": 5,
             "platform": {"os": "plan9", "architecture": architecture}},
            {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": Digest::of(&manifest).as_str(),
             "size": manifest.len(), "platform": {"os": "linux", "architecture": architecture}},
        ],
    })
    .to_string();
    registry.put("app/manifests/v1", "application/vnd.oci.image.index.v1+json", index.clone().into_bytes(), None);
    let source = keeping(&folder.path().join("source")).await;
    pull(&source, &registry.name("app:v1")).await.expect("pulled");
    let place = tar_at(folder.path().join("app.tar"));
    let exported = export(&source, &registry.name("app:v1"), &place).await.expect("exported");
    assert_eq!(exported.digest, Digest::of(index.as_bytes()));
    let target = open(&folder.path().join("target")).await;
    import_one(&target, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let (_, digests) = names(&target, &registry.name("app:v1")).await;
    assert_eq!(digests, [registry.name(&format!("app@{}", Digest::of(index.as_bytes())))]);
}

#[tokio::test]
async fn a_layer_that_is_nowhere_is_named_and_leaves_no_archive() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    let layers = two_layers();
    registry.image("app", "v1", &layers);
    let source = open(&folder.path().join("source")).await;
    let name = registry.name("app:v1");
    pull(&source, &name).await.expect("pulled");
    registry.forget(&format!("app/blobs/{}", Digest::of(layers[1].blob())));
    for place in [tar_at(folder.path().join("out/app.tar")), folder_at(folder.path().join("out/app"))] {
        std::fs::create_dir_all(folder.path().join("out")).expect("a folder");
        let error = export(&source, &name, &place).await.expect_err("a layer is gone");
        assert!(error.chain().contains("is not kept in the store, and no registry sent it"), "{}", error.chain());
        assert!(error.chain().contains(Digest::of(layers[1].blob()).as_str()), "{}", error.chain());
        assert_eq!(std::fs::read_dir(folder.path().join("out")).expect("a folder").count(), 0, "nothing is left");
    }
}

#[tokio::test]
async fn a_damaged_kept_blob_is_replaced_by_the_registrys_and_a_wrong_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    let layers = two_layers();
    registry.image("app", "v1", &layers);
    let root = folder.path().join("source");
    let source = keeping(&root).await;
    let name = registry.name("app:v1");
    pull(&source, &name).await.expect("pulled");
    let digest = Digest::of(layers[1].blob());
    let kept = root.join("blobs/sha256").join(digest.hex());
    let mut bytes = std::fs::read(&kept).expect("it is kept");
    bytes[20] ^= 1;
    std::fs::write(&kept, &bytes).expect("it is damaged");
    let place = tar_at(folder.path().join("app.tar"));
    export(&source, &name, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let target = open(&folder.path().join("target")).await;
    import_one(&target, &place).await.expect("the archive is whole");

    registry.put(&format!("app/blobs/{digest}"), "layer", bytes, None);
    let before = std::fs::read(&place.path).expect("a file");
    let error = export(&source, &name, &place).await.expect_err("no source is right");
    assert!(error.chain().contains("arrived as"), "{}", error.chain());
    assert_eq!(std::fs::read(&place.path).expect("a file"), before, "the older archive stays");
}

#[tokio::test]
async fn an_export_replaces_an_archive_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    registry.image("app", "v1", &two_layers());
    let source = keeping(&folder.path().join("source")).await;
    let name = registry.name("app:v1");
    pull(&source, &name).await.expect("pulled");
    let full = folder.path().join("full");
    std::fs::create_dir_all(full.join("inside")).expect("a folder");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).expect("a link");
    for (place, why) in [
        (folder_at(full.clone()), "not empty"),
        (tar_at(full.clone()), "no regular file"),
        (tar_at(link), "no regular file"),
    ] {
        let error = export(&source, &name, &place).await.expect_err(why);
        assert!(error.chain().contains(why), "{}", error.chain());
    }
    let error = export(&source, "absent:v1", &tar_at(folder.path().join("x"))).await.expect_err("absent");
    assert_eq!(error.kind(), RuntimeErrorKind::NotFound);
}

/// A tar file with these entries.
fn tar_of(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &bytes[..]).expect("memory takes it");
    }
    builder.into_inner().expect("memory takes it")
}

fn entries_of(tar: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().expect("an archive");
    entries
        .map(|entry| {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a path").to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).expect("its bytes");
            (name, bytes)
        })
        .collect()
}

/// What `docker save` writes of two images that share a layer.
fn docker_save() -> Vec<(String, Vec<u8>)> {
    let base = Layer::new().file("base", b"base").plain();
    let own = Layer::new().file("own", b"own").plain();
    let packed = Layer::new().file("packed", b"packed").gzip();
    let config = |layers: &[&Layer]| {
        let diff_ids: Vec<String> = layers.iter().map(|layer| layer.diff_id().to_string()).collect();
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        json!({"architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}})
            .to_string()
            .into_bytes()
    };
    let (one, two) = (config(&[&base, &own]), config(&[&base, &packed]));
    let file = |bytes: &[u8]| format!("{}.json", Digest::of(bytes).hex());
    let list = json!([
        {"Config": file(&one), "RepoTags": ["shop/one:v1", "shop/one:latest"], "Layers": ["a/layer.tar", "b/layer.tar"]},
        {"Config": file(&two), "RepoTags": ["shop/two:v1"], "Layers": ["a/layer.tar", "c/layer.tar"]},
    ]);
    vec![
        ("a/layer.tar".into(), base.blob().to_vec()),
        ("b/layer.tar".into(), own.blob().to_vec()),
        ("c/layer.tar".into(), packed.blob().to_vec()),
        (file(&one), one),
        (file(&two), two),
        ("manifest.json".into(), list.to_string().into_bytes()),
    ]
}

#[tokio::test]
async fn several_images_of_docker_save_are_imported_also_compressed() {
    let folder = tempfile::tempdir().expect("a folder");
    let tar = tar_of(&docker_save());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).expect("memory takes it");
    let zstd = zstd::encode_all(&tar[..], 1).expect("it compresses");
    let mut found = Vec::new();
    for (number, bytes) in [tar, gzip.finish().expect("memory takes it"), zstd].into_iter().enumerate() {
        let place = tar_at(folder.path().join(format!("{number}.tar")));
        std::fs::write(&place.path, bytes).expect("written");
        let engine = open(&folder.path().join(format!("store-{number}"))).await;
        let images = import(&engine, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let images: Vec<_> = images
            .into_iter()
            .map(|image| (image.names, image.outcome.unwrap_or_else(|error| panic!("{}", error.chain())).0))
            .collect();
        assert_eq!(images[0].0, ["docker.io/shop/one:v1", "docker.io/shop/one:latest"]);
        assert_eq!(names(&engine, "docker.io/shop/one:v1").await.0.len(), 2);
        names(&engine, "docker.io/shop/two:v1").await;
        assert_eq!(std::fs::read_dir(engine.root().join("tmp")).expect("a folder").count(), 0, "no copy is left");
        found.push(images);
    }
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test]
async fn a_hostile_archive_changes_nothing_and_says_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = docker_save();
    let changed = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut entries = good.clone();
        let entry = entries.iter_mut().find(|(found, _)| found.contains(name)).expect("an entry");
        change(&mut entry.1);
        tar_of(&entries)
    };
    let without = |name: &str| tar_of(&good.iter().filter(|(found, _)| found != name).cloned().collect::<Vec<_>>());
    let list = |text: &'static str| changed("manifest.json", &move |bytes| *bytes = text.as_bytes().to_vec());
    let whole = tar_of(&good);
    let bomb = {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for _ in 0..64 {
            gzip.write_all(&vec![0; 1 << 20]).expect("memory takes it");
        }
        gzip.finish().expect("memory takes it")
    };
    for (what, bytes, why) in [
        ("a changed layer", changed("a/layer.tar", &|bytes| bytes[600] ^= 1), "layer"),
        ("a missing layer", without("b/layer.tar"), "does not have"),
        ("a missing list", without("manifest.json"), "neither"),
        ("an empty list", list("[]"), "no image"),
        ("an object", list("{}"), "cannot be read"),
        ("a way out", list(r#"[{"Config":"../../../etc/passwd","Layers":[]}]"#), "does not have"),
        ("an absolute path", list(r#"[{"Config":"/etc/passwd","Layers":[]}]"#), "does not have"),
        ("a cut file", whole[..1000].to_vec(), "truncated"),
        ("no archive", vec![b'x'; 4096], "no tar archive"),
        ("an empty file", Vec::new(), "neither"),
        ("a bomb", bomb, "inflates to more than"),
        ("a cut gzip file", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0], "does not decompress"),
    ] {
        let mut config = EngineConfig::new(folder.path().join("store"));
        (config.limits.expansion_max, config.limits.expansion_free) = (10, 1 << 20);
        let engine = open_as(config).await;
        let place = tar_at(folder.path().join("hostile.tar"));
        std::fs::write(&place.path, bytes).expect("written");
        let error = match import(&engine, &place).await {
            Err(error) => error,
            Ok(mut images) => images.remove(0).outcome.expect_err(what),
        };
        assert!(error.chain().contains(why), "{what}: {}", error.chain());
        assert!(
            engine
                .list(None)
                .await
                .expect("listed")
                .iter()
                .all(|image| !image.tags.iter().any(|tag| tag.contains("one"))),
            "{what}"
        );
        engine.sweep(PullRemains::Remove).await.expect("swept");
    }
}

#[tokio::test]
async fn an_archive_packed_in_a_way_that_is_not_taken_is_refused_by_that_way_and_with_the_command_to_unpack_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(&folder.path().join("store")).await;
    for (magic, name, command) in [
        (&b"\xfd7zXZ\0"[..], "xz", "xz -d"),
        (b"BZh91AY&SY", "bzip2", "bzip2 -d"),
        (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
        (b"\x02\x21\x4c\x18", "lz4", "lz4 -d"),
        (b"\x5d\0\0\x80\0\xff\xff\xff", "lzma", "xz -d"),
        (b"LZIP\x01", "lzip", "lzip -d"),
        (b"\x89LZO\0\r\n\x1a\n", "lzop", "lzop -d"),
        (b"\x1f\x9d\x90", "compress", "uncompress"),
        (b"PK\x03\x04\x14\0", "zip", "unzip"),
        (b"7z\xbc\xaf\x27\x1c", "7z", "7z x"),
    ] {
        // Compressed bytes, and as a layer in an archive of `docker save`.
        let packed = [magic, &[0x5a; 2000]].concat();
        let mut saved = docker_save();
        saved.iter_mut().find(|(name, _)| name == "b/layer.tar").expect("a layer").1 = packed.clone();
        for bytes in [packed, tar_of(&saved)] {
            let place = tar_at(folder.path().join("app.tar"));
            std::fs::write(&place.path, bytes).expect("written");
            let error = import(&engine, &place).await.expect_err(name);
            assert_eq!(error.kind(), RuntimeErrorKind::Unacceptable, "{name}: {}", error.chain());
            assert!(error.chain().contains(&format!("`{name}`")), "{name}: {}", error.chain());
            assert!(error.chain().contains("app.tar"), "{name}: {}", error.chain());
            let mut causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
            let hint = causes.find_map(|cause| cause.downcast_ref::<RuntimeError>()?.hint());
            assert!(hint.is_some_and(|hint| hint.contains(command)), "{name}: {hint:?}");
        }
    }
    // A name that looks like a packed file's first bytes is a name.
    let mut saved = docker_save();
    saved.insert(0, ("BZh9".into(), b"a file".to_vec()));
    let place = tar_at(folder.path().join("app.tar"));
    std::fs::write(&place.path, tar_of(&saved)).expect("written");
    assert_eq!(import(&engine, &place).await.expect("an archive").len(), 2);
}

#[tokio::test]
async fn images_that_fail_on_one_file_of_an_archive_are_not_all_tried() {
    const IMAGES: usize = 60;
    let folder = tempfile::tempdir().expect("a folder");
    let layer = Layer::new().file("base", &vec![7; 100_000]).plain();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    // Each configuration lies about the layer in its own way.
    let config = |number: usize| {
        let diff_ids = [Digest::of(&number.to_le_bytes()).to_string()];
        json!({"architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}})
            .to_string()
            .into_bytes()
    };
    let configs: Vec<Vec<u8>> = (0..IMAGES).map(config).collect();
    let layout = || {
        let blob = |bytes: &[u8]| format!("blobs/sha256/{}", Digest::of(bytes).hex());
        let mut entries = vec![(blob(layer.blob()), layer.blob().to_vec())];
        let mut listed = Vec::new();
        for (number, config) in configs.iter().enumerate() {
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "size": config.len(),
                    "digest": Digest::of(config).as_str()},
                "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "size": layer.blob().len(),
                    "digest": Digest::of(layer.blob()).as_str()}],
            });
            let manifest = manifest.to_string().into_bytes();
            listed.push(json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": Digest::of(&manifest).as_str(),
                "size": manifest.len(), "annotations": {"io.containerd.image.name": format!("reg.io/a:v{number}")},
            }));
            entries.extend([(blob(config), config.clone()), (blob(&manifest), manifest)]);
        }
        entries.push(("index.json".into(), json!({"schemaVersion": 2, "manifests": listed}).to_string().into_bytes()));
        entries
    };
    let docker = || {
        let mut entries = vec![("layer".to_owned(), layer.blob().to_vec())];
        let image = |number| json!({"Config": format!("{number}"), "RepoTags": [format!("reg.io/a:v{number}")], "Layers": ["layer"]});
        let list: Vec<Value> = (0..IMAGES).map(image).collect();
        entries.extend(configs.iter().enumerate().map(|(number, config)| (number.to_string(), config.clone())));
        entries.push(("manifest.json".into(), json!(list).to_string().into_bytes()));
        entries
    };
    for entries in [layout(), docker()] {
        let engine = open(&folder.path().join("store")).await;
        let place = tar_at(folder.path().join("hostile.tar"));
        std::fs::write(&place.path, tar_of(&entries)).expect("written");
        let images = import(&engine, &place).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let failures: Vec<String> =
            images.into_iter().map(|image| image.outcome.expect_err("it lies").chain()).collect();
        assert_eq!(failures.len(), IMAGES);
        let tried = failures.iter().filter(|why| !why.contains("images that failed read")).count();
        assert!((5..30).contains(&tried), "{tried} of {IMAGES} images had the layer read: {}", failures[0]);
    }
}

#[tokio::test]
async fn a_layout_that_lies_about_a_digest_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = TestRegistry::start().await;
    registry.image("app", "v1", &two_layers());
    let source = keeping(&folder.path().join("source")).await;
    let name = registry.name("app:v1");
    let id = pull(&source, &name).await.expect("pulled");
    let place = tar_at(folder.path().join("app.tar"));
    let exported = export(&source, &name, &place).await.expect("exported");
    let good = entries_of(&std::fs::read(&place.path).expect("a file"));
    let blob = |digest: &str| format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"));
    let flipped = |name: String| {
        let mut entries = good.clone();
        let entry = entries.iter_mut().find(|(found, _)| *found == name).expect("an entry");
        let last = entry.1.len() - 1;
        entry.1[last] ^= 1;
        entries
    };
    let renamed = |name: &str| {
        let mut entries = good.clone();
        let index = &mut entries.iter_mut().find(|(found, _)| found == "index.json").expect("an index").1;
        let mut document: Value = serde_json::from_slice(index).expect("JSON");
        document["manifests"][0]["annotations"] = json!({"io.containerd.image.name": name});
        *index = document.to_string().into_bytes();
        entries
    };
    let other = Digest::of(b"other");
    for (what, entries, why) in [
        ("its manifest", flipped(blob(exported.digest.as_str())), "of the archive is"),
        ("its configuration", flipped(blob(id.as_str())), "of the archive is"),
        ("a layer", flipped(blob(Digest::of(two_layers()[0].blob()).as_str())), "layer"),
        ("a digest in its name", renamed(&format!("reg.io/app@{other}")), "the image named"),
        ("no name", renamed(""), "no name for the image"),
        ("a bare tag", renamed("v1"), "only the tag `v1`"),
        ("an invalid name", renamed("reg.io/../app:v1"), "names no image"),
    ] {
        let place = tar_at(folder.path().join("lie.tar"));
        std::fs::write(&place.path, tar_of(&entries)).expect("written");
        let engine = open(&folder.path().join("target")).await;
        let error = import_one(&engine, &place).await.expect_err(what);
        assert!(error.chain().contains(why), "{what}: {}", error.chain());
        assert_eq!(engine.list(None).await.expect("listed").len(), 0, "{what}");
    }
    let engine = open(&folder.path().join("named")).await;
    let request = ImportRequest { place, name: Some("reg.io/mine:v2".parse().expect("a name")), platform: None };
    let images = engine.import(&request, no_progress_ref()).await.expect("an archive");
    assert_eq!(images[0].names, ["reg.io/mine:v2"]);
    assert_eq!(names(&engine, "reg.io/mine:v2").await.0, ["reg.io/mine:v2"]);
}

#[tokio::test]
async fn layers_that_are_here_are_not_unpacked_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(&folder.path().join("store")).await;
    let place = tar_at(folder.path().join("saved.tar"));
    std::fs::write(&place.path, tar_of(&docker_save())).expect("written");
    let states: Arc<Mutex<Vec<LayerState>>> = Arc::default();
    let heard = Arc::clone(&states);
    let progress: Progress = Arc::new(move |event| {
        if let PullEvent::Layer { state: state @ (LayerState::Present | LayerState::Done), .. } = event {
            heard.lock().expect("no panic").push(state);
        }
    });
    let request = ImportRequest { place, ..ImportRequest::default() };
    for image in engine.import(&request, &progress).await.expect("an archive") {
        image.outcome.expect("imported");
    }
    let done = |states: &[LayerState]| states.iter().filter(|state| **state == LayerState::Done).count();
    let seen = std::mem::take(&mut *states.lock().expect("no panic"));
    assert_eq!((seen.len(), done(&seen)), (4, 3), "the shared layer is unpacked once");
    engine.import(&request, &progress).await.expect("an archive");
    let seen = std::mem::take(&mut *states.lock().expect("no panic"));
    assert_eq!((seen.len(), done(&seen)), (4, 0));
}
