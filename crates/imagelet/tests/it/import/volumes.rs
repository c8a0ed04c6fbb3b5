//! Artifacts as volumes of real pods: a container sees each file, byte for byte, and what a runtime cannot mount is said.

use std::collections::{BTreeMap, BTreeSet};

use imagelet_core::{
    image::{Digest, ImageSpec},
    ports::ImageService as _,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    node::{DEFAULT, IMPORTS, Node, import},
    refusals::OtherFileSystem,
};
use crate::{
    artifacts::artifact_of,
    fake_registry::FakeRegistry,
    images::{Blob, Compression, Image, Layer, noise},
    relay::{connect, in_runtime, pull, request},
    testbed::{ContainerdRelease, wait_until},
    wire::pods::image_volume,
};

/// The file that both artifacts have: fetched in more than one part.
const WEIGHTS: usize = 6 << 20;
/// Writes a line for each entry below the folders that are its arguments, and whether a file can be added there.
const LOOK: &str = r#"
for place in "$@"; do
  cd "$place" || continue
  busybox find . | while IFS= read -r path; do
    if [ -L "$path" ]; then what="-> $(busybox readlink "$path")"
    elif [ -d "$path" ]; then what=$(busybox stat -c '%a %u:%g' "$path")
    else what="$(busybox stat -c '%a %u:%g %Y' "$path") $(busybox sha256sum <"$path")"
    fi
    echo "$place|$path|$what"
  done
  busybox touch new 2>/dev/null && echo "$place|./new|was added"
done
echo end
busybox sleep 3600
"#;

/// What a container sees below a folder: each path, and what is there.
type Tree = BTreeMap<String, String>;

/// An artifact, and what a container sees of it.
#[derive(Clone, Debug)]
pub(super) struct Artifact {
    pub(super) image: Image,
    tree: Tree,
}

impl Artifact {
    fn new(image: Image, entries: &[(&str, String)]) -> Self {
        let mut tree: Tree = entries.iter().map(|(path, what)| (format!("./{path}"), what.clone())).collect();
        tree.insert(".".to_owned(), FOLDER.to_owned());
        Self { image, tree }
    }

    /// What a container sees of one of the folders.
    fn below(&self, folder: &str) -> Tree {
        let folder = format!("./{folder}");
        let below = self.tree.iter().filter_map(|(path, what)| Some((path.strip_prefix(&folder)?, what)));
        below
            .filter(|(path, _)| path.is_empty() || path.starts_with('/'))
            .map(|(path, what)| (format!(".{path}"), what.clone()))
            .collect()
    }
}

const FOLDER: &str = "755 0:0";

fn file(bytes: impl AsRef<[u8]>) -> String {
    format!("644 0:0 0 {}  -", Digest::of(bytes.as_ref()).hex())
}

/// A model as `ModelPack` describes it: files by the current and the older annotation, and archives of files.
pub(super) fn model() -> Artifact {
    let weights = noise("weights", WEIGHTS);
    let code = Layer::new(Compression::None)
        .directory("code", 0o700)
        .file("code/run.sh", "#!/bin/sh\n", 0o4711)
        .owned_by(1000, 1000)
        .symlink("run", "code/run.sh");
    let docs = Layer::gzip().file("docs/a b é.md", "a model\n", 0o600);
    let packed = Image::oci(&[code, docs]).layers;
    let archive = |number: usize, kind: &str| (Blob::new(packed[number].bytes.clone(), kind), json!({}));
    let path = |path: &str| json!({"org.cncf.model.filepath": path});
    let mut image = artifact_of(vec![
        (Blob::new(weights.clone(), "application/vnd.cncf.model.weight.v1.raw"), path("weights/1.safetensors")),
        (
            Blob::new(b"{}\n".to_vec(), "application/vnd.cnai.model.weight.config.v1.raw"),
            json!({"org.cnai.model.filepath": "weights/config.json"}),
        ),
        (Blob::new(Vec::new(), "application/vnd.cncf.model.doc.v1.raw"), path("LICENSE")),
        archive(0, "application/vnd.cncf.model.code.v1.tar"),
        archive(1, "application/vnd.cncf.model.doc.v1.tar+gzip"),
    ]);
    "application/vnd.cncf.model.config.v1+json".clone_into(&mut image.config.media_type);
    let image = image
        .configured(|config| *config = json!({"descriptor": {"name": "a model"}, "config": {"format": "safetensors"}}))
        .with_manifest(|manifest| manifest["artifactType"] = "application/vnd.cncf.model.manifest.v1+json".into());
    Artifact::new(
        image,
        &[
            ("weights", FOLDER.to_owned()),
            ("weights/1.safetensors", file(&weights)),
            ("weights/config.json", file("{}\n")),
            ("LICENSE", file("")),
            ("code", FOLDER.to_owned()),
            ("code/run.sh", file("#!/bin/sh\n").replacen("644", "755", 1)),
            ("run", "-> code/run.sh".to_owned()),
            ("docs", FOLDER.to_owned()),
            ("docs/a b é.md", file("a model\n")),
        ],
    )
}

/// Files and a folder as `oras push` sends them; one of them is the model's, and one has two names.
fn files() -> Artifact {
    let weights = noise("weights", WEIGHTS);
    let folder = Layer::gzip().directory("data", 0o755).file("data/b/c", "in a folder\n", 0o644);
    let folder =
        Blob::new(Image::oci(&[folder]).layers[0].bytes.clone(), "application/vnd.oci.image.layer.v1.tar+gzip");
    let part = |bytes: &[u8]| Blob::new(bytes.to_vec(), "application/octet-stream");
    let title = |title: &str| json!({"org.opencontainers.image.title": title});
    let mut of_folder = title("data");
    of_folder["io.deis.oras.content.unpack"] = "true".into();
    let image = artifact_of(vec![
        (part(&weights), title("copy.bin")),
        (part(b"tokens\n"), title("conf/tokens.txt")),
        (part(b"tokens\n"), title("conf/same.txt")),
        (part(b"nameless"), Value::Null),
        (folder, of_folder),
    ]);
    let nameless = Digest::of(b"nameless");
    Artifact::new(
        image,
        &[
            ("copy.bin", file(&weights)),
            ("conf", FOLDER.to_owned()),
            ("conf/tokens.txt", file("tokens\n")),
            ("conf/same.txt", file("tokens\n")),
            (nameless.hex(), file("nameless")),
            ("data", FOLDER.to_owned()),
            ("data/b", FOLDER.to_owned()),
            ("data/b/c", file("in a folder\n")),
        ],
    )
}

/// An image as a volume: its name, where it is mounted, and which folder of it.
type Volume<'a> = (&'a str, &'a str, &'a str);

impl Node {
    /// What a container of this image sees of its volumes.
    async fn seen(&self, image: &str, volumes: &[Volume<'_>]) -> BTreeMap<String, Tree> {
        let pods = self.pods().await;
        let sandbox = pods.run_sandbox("volumes").await.unwrap();
        let places = volumes.iter().map(|(_, place, _)| *place);
        let command: Vec<&str> = ["/bin/sh", "-c", LOOK, "look"].into_iter().chain(places).collect();
        let mounts: Vec<_> = volumes.iter().map(|(image, place, folder)| image_volume(image, place, folder)).collect();
        let started = Box::pin(pods.run_with_volumes(&sandbox, image, &command, &mounts)).await;
        if started.is_ok() {
            wait_until("the container to look", || pods.lines(&sandbox).last().is_some_and(|line| line == "end"));
        }
        let lines = pods.lines(&sandbox);
        pods.remove_sandbox(&sandbox).await.unwrap();
        started.unwrap_or_else(|error| panic!("a container with {volumes:?}: {error}"));
        let mut seen: BTreeMap<String, Tree> = BTreeMap::new();
        for line in &lines[..lines.len() - 1] {
            let mut words = line.splitn(3, '|').map(str::to_owned);
            let (Some(place), Some(path), Some(what)) = (words.next(), words.next(), words.next()) else {
                panic!("the container wrote `{line}`");
            };
            seen.entry(place).or_default().insert(path, what);
        }
        seen
    }

    /// The names of containerd's images.
    async fn names(&self) -> BTreeSet<String> {
        self.client().images().await.unwrap().into_iter().map(|image| image.name).collect()
    }
}

/// The releases whose pods mount images, or the others.
fn releases(with_image_volumes: bool) -> impl Iterator<Item = ContainerdRelease> {
    ContainerdRelease::all().into_iter().filter(move |release| release.has_image_volumes() == with_image_volumes)
}

/// Names with the digest of the artifact's manifest.
fn by_digest(name: &str, artifact: &Artifact) -> String {
    format!("{}@{}", name.trim_end_matches(":v1"), artifact.image.manifest.digest)
}

#[test]
fn pods_mount_an_artifact_as_its_files_by_tag_digest_and_folder_after_containerd_and_imagelet_are_gone() {
    let registry = FakeRegistry::start();
    let (pause, app) = (Image::busybox("pause"), Image::busybox("application"));
    let images = [registry.put("pause:3.9", &pause), registry.put("application:v1", &app)];
    let (model, files) = (model(), files());
    let names = [registry.put("model:v1", &model.image), registry.put("files:v1", &files.image)];
    let digests = [by_digest(&names[0], &model), by_digest(&names[1], &files)];
    for release in releases(true) {
        let mut node = Node::start(&release, &images[0]);
        let daemon = node.daemon(DEFAULT);
        let ids = in_runtime(async {
            for name in &images {
                import(&daemon, name).await;
            }
            let before = node.names().await;
            let ids = [import(&daemon, &names[0]).await, import(&daemon, &names[1]).await];
            let asked = registry.requests().len();
            for (id, known) in ids.iter().zip(names.iter().zip(&digests)) {
                for name in [known.0, known.1] {
                    assert_eq!(import(&daemon, name).await, *id, "{release}: {name}, once more");
                    for images in [node.images().await, connect(&daemon).await] {
                        let found = images.status(&ImageSpec::new(name)).await.unwrap();
                        let found = found.unwrap_or_else(|| panic!("{release}: {name} is absent"));
                        assert_eq!((found.id.as_str(), found.size.0 > 0), (id.as_str(), true), "{release}: {name}");
                    }
                }
            }
            let fetched: Vec<_> = registry.requests().split_off(asked);
            let is_file = |one: &String| {
                [&model, &files].iter().any(|known| known.image.layers.iter().any(|layer| one.ends_with(&layer.digest)))
            };
            assert!(!fetched.iter().any(is_file), "{release}: fetched again: {fetched:?}");
            let expected: BTreeSet<String> = ids.iter().chain(&names).chain(&digests).cloned().collect();
            assert_eq!(&node.names().await - &before, expected, "{release}");
            for image in [&model.image, &files.image] {
                assert!(!node.has_any_layer_blob(image).await, "{release}: containerd pulled it itself");
            }
            ids
        });
        let volumes: [Volume<'_>; 5] = [
            (&ids[0], "/model", ""),
            (&names[1], "/files", ""),
            (&digests[0], "/by-digest", ""),
            (&names[0], "/weights", "weights"),
            (&digests[1], "/deep", "data/b"),
        ];
        let part = |artifact: &Artifact, folder: &str| {
            if release.has_image_sub_paths() { artifact.below(folder) } else { artifact.tree.clone() }
        };
        let trees = [&model, &files, &model].map(|artifact| artifact.tree.clone()).into_iter();
        let trees = trees.chain([part(&model, "weights"), part(&files, "data/b")]);
        let expected: BTreeMap<String, Tree> =
            volumes.iter().map(|(_, place, _)| (*place).to_owned()).zip(trees).collect();
        let look = |node: &Node, when: &str| {
            assert_eq!(in_runtime(node.seen(&images[1], &volumes)), expected, "{release}: {when}");
        };
        look(&node, "after the import");
        node.restart();
        look(&node, "after a restart of containerd");
        assert!(daemon.stop(Signal::TERM).success());
        for folder in [node.folder.path().join("state"), node.staging()] {
            std::fs::remove_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        }
        node.restart();
        look(&node, "without imagelet");

        let other = Node::start(&release, &images[0]);
        let daemon = other.daemon(DEFAULT);
        in_runtime(async {
            // Another node, in another order, where containerd has pulled it before.
            other.pull_natively(&names[1]).await;
            assert_eq!(import(&daemon, &names[1]).await, ids[1], "{release}: on another node");
            assert_eq!(import(&daemon, &names[0]).await, ids[0], "{release}: on another node");
            let found = other.images().await.status(&ImageSpec::new(&names[1])).await.unwrap();
            assert_eq!(found.expect("it is there").id.as_str(), ids[1], "{release}: after a pull of containerd's own");

            node.remove(&names[0]).await;
            let seen = node.seen(&images[1], &volumes[1..2]).await;
            assert_eq!(seen["/files"], files.tree, "{release}: without the artifact that shares a file");
            for id in [&ids[1], pause.id(), app.id()] {
                node.remove(id).await;
            }
            node.is_empty(&format!("{release}: all are removed")).await;
        });
    }
}

#[test]
fn where_pods_mount_no_images_the_pull_of_an_artifact_says_so_and_imports_nothing() {
    let registry = FakeRegistry::start();
    let (model, files) = (model(), files());
    let names = [registry.put("model:v1", &model.image), registry.put("files:v1", &files.image)];
    for release in releases(false) {
        let node = Node::start(&release, "unused:v1");
        for settings in [DEFAULT, IMPORTS] {
            let daemon = node.daemon(settings);
            in_runtime(async {
                for name in &names {
                    let refused = pull(&connect(&daemon).await, &request(name)).await.unwrap_err().to_string();
                    let (major, minor) = release.number();
                    for words in [&format!("containerd `{major}.{minor}."), "2.1", "image volumes", "artifact"] {
                        assert!(refused.contains(words), "{release}: `{words}` is not said: {refused}");
                    }
                }
                node.is_empty(&format!("{release}: {settings}")).await;
            });
            assert!(daemon.stop(Signal::TERM).success());
        }
    }
    assert!(!registry.requests().iter().any(|one| one.contains("/blobs/")), "{:?}", registry.requests());
}

#[test]
fn an_artifact_that_cannot_be_imported_is_forwarded_with_a_warning_of_the_empty_folder_or_fails() {
    let registry = FakeRegistry::start();
    let images = ["pause:3.9", "application:v1"].map(|name| registry.put(name, &Image::busybox(name)));
    // Of the media type of no image layer: with one of those containerd refuses the container.
    let file = Blob::new(b"tokens\n".to_vec(), "application/octet-stream");
    let artifact = artifact_of(vec![(file, json!({"org.opencontainers.image.title": "tokens"}))]);
    let name = registry.put("files:v1", &artifact);
    for release in releases(true) {
        let node = Node::start(&release, &images[0]);
        let staging = node.staging();
        let _mounted = OtherFileSystem::at(&staging);
        let daemon = node.daemon(DEFAULT);
        in_runtime(async {
            for name in images.iter().chain([&name]) {
                import(&daemon, name).await;
            }
            let seen = node.seen(&images[1], &[(&name, "/files", "")]).await;
            assert_eq!(seen["/files"].keys().collect::<Vec<_>>(), ["."], "{release}: as containerd mounts it");
        });
        let shown = daemon.run(["pull", "--policy", "Always", &name]).stderr;
        let events: Vec<String> =
            daemon.part.log().lines().filter(|line| line.contains("ArtifactForwarded")).map(str::to_owned).collect();
        assert_eq!(events.len(), 2, "{release}: an event for each pull: {events:?}");
        for said in [&shown, &events.concat(), &daemon.run(["why", &name]).ok()] {
            assert!(said.contains("empty folder"), "{release}: no warning of the empty folder: {said}");
        }
        assert!(!daemon.run(["why", &images[1]]).ok().contains("empty folder"), "{release}: it is an image");
        assert!(daemon.stop(Signal::TERM).success());

        let daemon = node.daemon(IMPORTS);
        let refused =
            in_runtime(async { pull(&connect(&daemon).await, &request(&name)).await.unwrap_err().to_string() });
        assert!(refused.contains("imagelet-staging"), "{release}: {refused}");
    }
}
