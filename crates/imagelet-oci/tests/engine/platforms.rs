//! Which document decides for which platform an image is: the index where it names one, else the configurations.

use std::path::Path;

use imagelet_core::{
    error::{ErrorClass, RuntimeError, RuntimeErrorKind},
    image::{Digest, ImageId, ImageSpec, Platform},
    ports::{ArchivePlace, ImageService as _, ImportOutcome, ImportRequest, LocalStore as _, PullRequest, no_progress},
};
use imagelet_oci::Engine;
use imagelet_oci::ImportStage;
use serde_json::{Value, json};

use crate::{
    fixture::{Layer, TestRegistry},
    import::{Bed, whole},
    open,
};

const HERE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
const OTHER: &str = if cfg!(target_arch = "aarch64") { "amd64" } else { "arm64" };
const THIRD: &str = "s390x";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// What an entry of an index leads to, and what the entry says of it.
struct Entry {
    bytes: Vec<u8>,
    described: Value,
    id: String,
}

impl Entry {
    fn of(bytes: Vec<u8>, media_type: &str, platform: &Value, id: String) -> Self {
        let mut described =
            json!({"mediaType": media_type, "digest": Digest::of(&bytes).as_str(), "size": bytes.len()});
        if !platform.is_null() {
            described["platform"] = platform.clone();
        }
        Self { bytes, described, id }
    }

    fn with(mut self, member: &str, value: Value) -> Self {
        self.described[member] = value;
        self
    }
}

/// Blobs and manifests of one repository, for a registry or an archive.
#[derive(Default)]
struct Content {
    /// Path below the repository, media type, bytes.
    files: Vec<(String, &'static str, Vec<u8>)>,
}

impl Content {
    fn blob(&mut self, kind: &'static str, bytes: &[u8]) -> Value {
        let digest = Digest::of(bytes);
        self.files.push((format!("blobs/{digest}"), kind, bytes.to_vec()));
        json!({"digest": digest.as_str(), "size": bytes.len()})
    }

    fn manifest(&mut self, document: &Value, platform: &Value, id: Option<String>) -> Entry {
        let bytes = document.to_string().into_bytes();
        let digest = Digest::of(&bytes);
        let media_type = if document["manifests"].is_null() { MANIFEST } else { INDEX };
        self.files.push((format!("manifests/{digest}"), media_type, bytes.clone()));
        Entry::of(bytes, media_type, platform, id.unwrap_or_else(|| digest.to_string()))
    }

    /// An image with one layer, whose configuration has these members.
    fn image(&mut self, config: &Value, platform: &Value) -> Entry {
        let layer = Layer::new().file("which", config.to_string().as_bytes()).gzip();
        let mut config = config.clone();
        config["rootfs"] = json!({"type": "layers", "diff_ids": [layer.diff_id().to_string()]});
        let mut of_config = self.blob("config", config.to_string().as_bytes());
        of_config["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
        let mut of_layer = self.blob("layer", layer.blob());
        of_layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip".into();
        let id = of_config["digest"].as_str().map(str::to_owned);
        let document = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": of_config, "layers": [of_layer]});
        self.manifest(&document, platform, id)
    }

    /// A list of an image's packages, as builders attach it.
    fn artifact(&mut self, platform: &Value) -> Entry {
        let mut of_config = self.blob("config", b"{}");
        of_config["mediaType"] = "application/vnd.oci.empty.v1+json".into();
        let mut of_file = self.blob("layer", b"packages");
        of_file["mediaType"] = "application/spdx+json".into();
        let document = json!({"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/spdx+json",
                              "config": of_config, "layers": [of_file]});
        self.manifest(&document, platform, None)
    }

    fn index(&mut self, entries: &[Entry], platform: &Value) -> Entry {
        let described: Vec<&Value> = entries.iter().map(|entry| &entry.described).collect();
        let document = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": described});
        self.manifest(&document, platform, None)
    }

    fn serve(&self, registry: &TestRegistry, repository: &str, root: &Entry) -> String {
        for (path, kind, bytes) in &self.files {
            registry.put(&format!("{repository}/{path}"), kind, bytes.clone(), None);
        }
        let media_type = root.described["mediaType"].as_str().expect("a type");
        registry.put(&format!("{repository}/manifests/v1"), media_type, root.bytes.clone(), None);
        registry.name(&format!("{repository}:v1"))
    }

    /// A folder with the layout of an archive.
    fn lay_out(&self, folder: &Path, roots: &[Entry]) {
        let blobs = folder.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).expect("a folder");
        for (_, _, bytes) in &self.files {
            std::fs::write(blobs.join(Digest::of(bytes).hex()), bytes).expect("written");
        }
        let described: Vec<&Value> = roots.iter().map(|root| &root.described).collect();
        let index = json!({"schemaVersion": 2, "manifests": described}).to_string();
        std::fs::write(folder.join("index.json"), index).expect("written");
        std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
    }
}

fn linux(architecture: &str) -> Value {
    json!({"os": "linux", "architecture": architecture})
}

async fn pull(engine: &Engine, name: &str, platform: Option<&str>) -> Result<ImageId, RuntimeError> {
    let platform = platform.map(|text| text.parse::<Platform>().expect("a platform"));
    let request = PullRequest { image: ImageSpec::new(name), platform, ..PullRequest::default() };
    engine.pull(&request, no_progress()).await
}

/// The id of a pulled image, or the class of the failure.
fn outcome<T: ToString>(pulled: Result<T, &RuntimeError>) -> String {
    match pulled {
        Ok(id) => id.to_string(),
        Err(error) if error.fault().class == ErrorClass::PlatformMissing => "platform-missing".into(),
        Err(error) => error.chain(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cross_built_image_is_pulled_for_the_platform_that_its_index_names_whatever_its_configuration_says() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let here = format!("linux/{HERE}");
    for (number, (named, config)) in [
        (linux(HERE), linux(OTHER)),
        (json!({"os": "linux", "architecture": HERE, "variant": ""}), json!({"os": "linux", "architecture": "pdp11"})),
        (json!({"os": "linux", "architecture": HERE}), json!({"os": "windows", "architecture": HERE})),
        (json!({"architecture": HERE}), linux(OTHER)),
    ]
    .into_iter()
    .enumerate()
    {
        let mut content = Content::default();
        let (image, other) = (content.image(&config, &named), content.image(&linux(THIRD), &linux(THIRD)));
        let id = image.id.clone();
        let root = content.index(&[other, image], &Value::Null);
        let name = content.serve(&registry, &format!("cross-{number}"), &root);
        for platform in [None, Some(&*here)] {
            let engine = open(&folder.path().join(format!("{number}-{}", platform.is_some()))).await;
            for _ in 0..2 {
                assert_eq!(outcome(pull(&engine, &name, platform).await.as_ref()), id, "{named} {config} {platform:?}");
            }
            assert!(engine.status(&ImageSpec::new(&name)).await.expect("it answers").is_some());
            let report = engine.verify(None, std::sync::Arc::new(|_, _| {})).await.expect("a check");
            assert!(report.images.iter().all(|image| !image.is_damaged()), "{report:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cross_built_image_is_imported_into_a_runtime_and_repaired_without_its_record() {
    let bed = Bed::new(|_| {}).await;
    let mut content = Content::default();
    let image = content.image(&linux(OTHER), &linux(HERE));
    let (id, other) = (image.id.clone(), content.image(&linux(THIRD), &linux(THIRD)));
    let root = content.index(&[image, other], &Value::Null);
    let name = content.serve(&bed.registry, "cross", &root);
    assert_eq!(whole(bed.import("cross:v1").await).as_str(), id);
    // containerd looks at the first of entries without a platform alone, so that it pulls such an image itself.
    let mut unnamed = |architecture: &str| content.image(&linux(architecture), &Value::Null);
    let (later, first) = ([unnamed(OTHER), unnamed(HERE)], [unnamed(HERE), unnamed(OTHER)]);
    let (later, first) = (content.index(&later, &Value::Null), content.index(&first, &Value::Null));
    content.serve(&bed.registry, "later", &later);
    content.serve(&bed.registry, "first", &first);
    let error = bed.import("later:v1").await.expect_err("its record would lead nowhere");
    assert_eq!((error.stage, error.cause.kind()), (ImportStage::Fetch, RuntimeErrorKind::Unsupported));
    whole(bed.import("first:v1").await);

    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    assert_eq!(outcome(pull(&engine, &name, None).await.as_ref()), id);
    drop(engine);
    let hex = id.split_once(':').expect("a digest").1;
    std::fs::write(folder.path().join("images").join(hex).join("image.json"), b"rotten").expect("written");
    let engine = open(folder.path()).await;
    let anonymous = |_: &_| Vec::new();
    let repaired = engine.repair(&ImageId::new(&id), &anonymous, &no_progress()).await;
    repaired.unwrap_or_else(|error| panic!("{}", error.chain()));
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_without_a_platform_are_chosen_by_their_configurations_and_an_artifact_is_not_the_image() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let (none, mut content) = (Value::Null, Content::default());
    let unknown = || json!({"os": "unknown", "architecture": "unknown"});
    let declared = |content: &mut Content| content.artifact(&none).with("artifactType", "application/spdx+json".into());
    let mut of = |what: &str| -> Entry {
        match what {
            "here" => content.image(&linux(HERE), &none),
            "here, system absent" => content.image(&json!({"architecture": HERE}), &none),
            "here, empty platform" => content.image(&linux(HERE), &json!({"os": "", "architecture": ""})),
            "here, system alone" => content.image(&linux(HERE), &json!({"os": "linux"})),
            "other" => content.image(&linux(OTHER), &none),
            "windows" => content.image(&json!({"os": "windows", "architecture": HERE}), &none),
            "nothing said" => content.image(&json!({"author": "old"}), &none),
            "named here" => content.image(&json!({"os": "linux", "architecture": HERE, "author": "n"}), &linux(HERE)),
            "named other" => content.image(&linux(OTHER), &linux(OTHER)),
            "named windows" => content.image(&linux(THIRD), &json!({"os": "windows", "architecture": HERE})),
            "attestation" => content.artifact(&unknown()),
            "artifact" => content.artifact(&none),
            "declared artifact" => declared(&mut content),
            "index of other and here" => {
                let (other, here) = (content.image(&linux(OTHER), &none), content.image(&linux(HERE), &none));
                let id = here.id.clone();
                Entry { id, ..content.index(&[other, here], &none) }
            }
            "declared image" => {
                let kind = "application/vnd.oci.image.config.v1+json";
                content.image(&linux(HERE), &none).with("artifactType", kind.into())
            }
            other => panic!("{other}"),
        }
    };
    // Which of the entries is pulled; `None`: none is for this machine.
    let cases: &[(&[&str], Option<usize>)] = &[
        (&["other", "here"], Some(1)),
        (&["here", "other"], Some(0)),
        (&["windows", "here"], Some(1)),
        (&["other", "here, system absent"], Some(1)),
        (&["other", "here, empty platform"], Some(1)),
        (&["other", "here, system alone"], Some(1)),
        (&["named other", "here"], Some(1)),
        (&["here", "named here"], Some(1)),
        (&["nothing said", "here"], Some(1)),
        (&["nothing said"], Some(0)),
        (&["nothing said", "attestation"], Some(0)),
        (&["named other", "nothing said"], None),
        (&["other", "index of other and here"], Some(1)),
        (&["declared artifact", "declared image"], Some(1)),
        (&["other"], None),
        (&["other", "windows"], None),
        (&["named windows", "other"], None),
        (&["named other", "declared artifact"], None),
        (&["declared artifact", "named other"], None),
        (&["named other", "artifact"], None),
        (&["other", "artifact"], None),
        (&["other", "declared artifact", "artifact"], None),
        (&["artifact", "here"], Some(1)),
        (&["declared artifact"], Some(0)),
        (&["declared artifact", "attestation"], Some(0)),
        (&["artifact", "artifact"], Some(0)),
    ];
    let mut served = Vec::new();
    for (entries, chosen) in cases {
        let entries: Vec<Entry> = entries.iter().map(|what| of(what)).collect();
        let expected = chosen.map_or_else(|| "platform-missing".to_owned(), |at| entries[at].id.clone());
        served.push((entries, expected));
    }
    let engine = open(folder.path()).await;
    for (number, ((what, _), (entries, expected))) in cases.iter().zip(&served).enumerate() {
        let root = content.index(entries, &none);
        let name = content.serve(&registry, &format!("unnamed-{number}"), &root);
        for _ in 0..2 {
            assert_eq!(&outcome(pull(&engine, &name, None).await.as_ref()), expected, "{what:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_without_platforms_costs_few_requests_however_long_it_is() {
    let (registry, folder) = (TestRegistry::start().await, tempfile::tempdir().expect("a folder"));
    let mut content = Content::default();
    let entries: Vec<Entry> = (0..200)
        .map(|number| content.image(&json!({"os": "linux", "architecture": OTHER, "author": number}), &Value::Null))
        .collect();
    let root = content.index(&entries, &Value::Null);
    let name = content.serve(&registry, "long", &root);
    let engine = open(folder.path()).await;
    let error = pull(&engine, &name, None).await.expect_err("none is for this machine");
    assert_eq!(error.fault().class, ErrorClass::PlatformMissing);
    assert!(error.chain().contains(&format!("linux/{OTHER}")), "{}", error.chain());
    let asked = registry.take_paths().len();
    assert!(asked <= 80, "{asked} requests");
}

async fn import(engine: &Engine, folder: &Path, platform: Option<&str>) -> Vec<ImportOutcome> {
    let platform = platform.map(|text| text.parse().expect("a platform"));
    let place = ArchivePlace { path: folder.to_owned(), is_folder: true };
    let imported = engine.import(&ImportRequest { place, platform, name: None }, &no_progress()).await;
    imported.unwrap_or_else(|error| panic!("{}", error.chain()))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_archives_manifests_of_one_name_the_one_for_the_machine_is_imported() {
    type Case<'a> = (&'a [(&'a str, &'a Value)], Option<&'a str>, Option<usize>);
    let folder = tempfile::tempdir().expect("a folder");
    let (here, other) = (format!("linux/{HERE}"), format!("linux/{OTHER}"));
    let null = Value::Null;
    let named = |entry: Entry, name: &str| entry.with("annotations", json!({"io.containerd.image.name": name}));
    // Configuration and platform in `index.json` of each manifest, `--platform`, and which of them is imported.
    let cases: &[Case<'_>] = &[
        (&[(OTHER, &null), (HERE, &null)], None, Some(1)),
        (&[(HERE, &null), (OTHER, &null)], None, Some(0)),
        (&[(HERE, &null), (OTHER, &null)], Some(&other), Some(1)),
        (&[(THIRD, &null), (OTHER, &null)], None, None),
        (&[(OTHER, &linux(HERE)), (HERE, &linux(OTHER))], None, Some(0)),
        (&[(OTHER, &linux(HERE))], Some(&here), Some(0)),
        (&[(OTHER, &linux(HERE))], None, Some(0)),
        (&[(HERE, &linux(OTHER))], Some(&here), None),
        (&[(OTHER, &linux(OTHER))], None, Some(0)),
        (&[(OTHER, &null)], None, Some(0)),
        (&[(OTHER, &null)], Some(&here), None),
    ];
    for (number, (manifests, platform, chosen)) in cases.iter().enumerate() {
        let (layout, mut content) = (folder.path().join(format!("layout-{number}")), Content::default());
        let manifests: Vec<Entry> = manifests
            .iter()
            .map(|(config, platform)| named(content.image(&linux(config), platform), "reg.io/app:v1"))
            .collect();
        // The same under a second name.
        let again = manifests.iter().map(|entry| {
            let entry = Entry { bytes: Vec::new(), described: entry.described.clone(), id: String::new() };
            named(entry, "reg.io/app:latest")
        });
        let expected = chosen.map_or_else(|| "platform-missing".to_owned(), |at: usize| manifests[at].id.clone());
        let again: Vec<Entry> = again.collect();
        content.lay_out(&layout, &manifests.into_iter().chain(again).collect::<Vec<_>>());
        let engine = open(&folder.path().join(format!("store-{number}"))).await;
        let imported = import(&engine, &layout, *platform).await;
        let outcomes: Vec<String> = imported.iter().map(|it| outcome(it.outcome.as_ref().map(|(id, _)| id))).collect();
        assert_eq!(outcomes, std::slice::from_ref(&expected), "case {number}");
        for name in ["reg.io/app:v1", "reg.io/app:latest"] {
            let found = engine.status(&ImageSpec::new(name)).await.expect("it answers");
            let found = found.map_or_else(|| "platform-missing".into(), |image| image.id.to_string());
            assert_eq!(found, expected, "case {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_images_of_one_name_that_docker_saved_the_one_for_the_machine_is_imported() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, (architectures, chosen)) in [([OTHER, HERE], 1), ([HERE, OTHER], 0)].into_iter().enumerate() {
        let saved = folder.path().join(format!("saved-{number}"));
        std::fs::create_dir(&saved).expect("a folder");
        let images = architectures.map(|architecture| {
            let layer = Layer::new().file("which", architecture.as_bytes()).plain();
            let mut config = linux(architecture);
            config["rootfs"] = json!({"type": "layers", "diff_ids": [layer.diff_id().to_string()]});
            let names = [format!("{architecture}.json"), format!("{architecture}.tar")];
            std::fs::write(saved.join(&names[0]), config.to_string()).expect("written");
            std::fs::write(saved.join(&names[1]), layer.blob()).expect("written");
            let described = json!({"Config": names[0], "RepoTags": ["reg.io/app:v1"], "Layers": [names[1]]});
            (described, Digest::of(config.to_string().as_bytes()).to_string())
        });
        let list = json!(images.each_ref().map(|(described, _)| described)).to_string();
        std::fs::write(saved.join("manifest.json"), list).expect("written");
        let engine = open(&folder.path().join(format!("store-{number}"))).await;
        let imported = import(&engine, &saved, None).await;
        let outcomes: Vec<String> = imported.iter().map(|it| outcome(it.outcome.as_ref().map(|(id, _)| id))).collect();
        assert_eq!(outcomes, [images[chosen].1.clone()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_packages_in_an_archive_is_not_imported_in_place_of_the_image() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut content = Content::default();
    let image = content.image(&linux(OTHER), &linux(OTHER));
    let artifact = content.artifact(&Value::Null).with("artifactType", "application/spdx+json".into());
    let root = content.index(&[image, artifact], &Value::Null);
    content.lay_out(
        folder.path().join("layout").as_path(),
        &[root.with("annotations", json!({"io.containerd.image.name": "reg.io/app:v1"}))],
    );
    let engine = open(&folder.path().join("store")).await;
    let imported = import(&engine, &folder.path().join("layout"), None).await;
    let outcomes: Vec<String> = imported.iter().map(|it| outcome(it.outcome.as_ref().map(|(id, _)| id))).collect();
    assert_eq!(outcomes, ["platform-missing"]);
}
