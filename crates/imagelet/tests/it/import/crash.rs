//! Ends imagelet at every step of an import, and containerd in the middle of one: what is left is whole, and goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::{net::UnixStream, process::ExitStatusExt as _},
    thread,
    time::Duration,
};

use imagelet_runtime::cri::{Endpoint, RemoteImageService};
use rustix::process::Signal;
use serde_json::json;

use super::{
    dump::{self, Dump, dump},
    mounted::{self, Shown, chain, shown},
    node::{DEFAULT, IMPORTS, KEEPS_BLOBS, Node, SNAPSHOTTER, import},
    samples::Sample,
};
use crate::{
    artifacts::artifact_of,
    failpoints::steps_in_sources,
    fake_registry::FakeRegistry,
    images::{Blob, Image, Layer, Random, noise},
    program::Daemon,
    relay::{connect, in_runtime, pull, request},
    soundness::small_layer,
    testbed::{ContainerdRelease, wait_until},
};

/// How long a call to imagelet may take.
const CALL_MAX: Duration = Duration::from_mins(1);
/// Moments at which containerd is killed, beside those at which a layer is waited for.
const MOMENTS: usize = 6;

/// An image or an artifact of three blobs, and all that a containerd has after its import.
struct Scene {
    registry: FakeRegistry,
    name: String,
    image: Image,
    timeless: Vec<String>,
    node: Node,
    whole: Whole,
    release: ContainerdRelease,
}

/// What an import leaves, when it is the only one.
struct Whole {
    id: String,
    snapshots: BTreeSet<String>,
    records: Dump,
    tree: Shown,
}

impl Whole {
    async fn import(node: &Node, daemon: &Daemon, name: &str) -> Self {
        let id = import(daemon, name).await;
        let client = node.client();
        let snapshots = client.snapshots(SNAPSHOTTER).await.unwrap();
        let parents: BTreeSet<&str> = snapshots.iter().map(|snapshot| snapshot.parent.as_str()).collect();
        let tops: Vec<_> = snapshots.iter().filter(|snapshot| !parents.contains(snapshot.name.as_str())).collect();
        let [top] = tops[..] else { panic!("{name} has not one snapshot on top: {tops:?}") };
        let tree = shown(&client, &node.containerd.root(), &top.name).await;
        let records = dump(node, &BTreeSet::new()).await;
        Self { id, snapshots: snapshots.iter().map(|snapshot| snapshot.name.clone()).collect(), records, tree }
    }

    fn blobs(&self) -> impl Iterator<Item = &str> {
        self.records.keys().filter_map(|record| record.strip_prefix("blob "))
    }
}

impl Scene {
    /// An image on every containerd, and an artifact where pods mount one.
    fn all(release: &ContainerdRelease) -> Vec<Self> {
        let layers = ["first", "second", "third"].map(|seed| small_layer(seed, 30_000));
        let sample = Sample::new("app:v1", layers.into());
        let of_image = Self::start(release, sample.image.clone(), sample.timeless());
        assert_eq!(of_image.whole.id, sample.image.id());
        assert_eq!(of_image.whole.snapshots, chain(&sample.image.diff_ids()).into_iter().collect());
        let members = Layer::gzip().file("bin/run", noise("third", 30_000), 0o755).symlink("start", "bin/run");
        let packed = Image::oci(&[members]).layers.remove(0).bytes;
        let of_artifact = release.has_image_volumes().then(|| {
            let title = |title: &str| json!({"org.opencontainers.image.title": title});
            let artifact = artifact_of(vec![
                (Blob::new(noise("first", 30_000), "application/x-part"), title("first")),
                (Blob::new(noise("second", 30_000), "application/x-part"), title("folder/second")),
                (Blob::new(packed, "application/vnd.cncf.model.code.v1.tar+gzip"), json!({})),
            ]);
            Self::start(release, artifact, vec![String::new()])
        });
        std::iter::once(of_image).chain(of_artifact).collect()
    }

    fn start(release: &ContainerdRelease, image: Image, timeless: Vec<String>) -> Self {
        let registry = FakeRegistry::start();
        let name = registry.put("app:v1", &image);
        let node = Node::start(release, "unused:v1");
        let daemon = node.daemon(IMPORTS);
        let whole = in_runtime(async {
            let whole = Whole::import(&node, &daemon, &name).await;
            node.remove(&whole.id).await;
            node.is_empty("the first import").await;
            whole
        });
        assert!(daemon.stop(Signal::TERM).success());
        Self { registry, name, image, timeless, node, whole, release: release.clone() }
    }

    /// A daemon with its failpoints armed by `armed`, once it can be asked or has ended.
    fn armed(&self, settings: &str, armed: &str) -> Daemon {
        let config = self.node.configure(self.node.folder.path(), settings);
        let environment = [("IMAGELET_FAILPOINT", armed)];
        let mut daemon = Daemon::spawn_with(self.node.folder.path(), ["--config", &config], &environment);
        let socket = self.node.folder.path().join("imagelet.sock");
        wait_until("the daemon's socket, or its end", || {
            daemon.part.ended().is_some() || UnixStream::connect(&socket).is_ok()
        });
        daemon
    }

    /// The steps that an import reaches, with how often.
    fn reached(&self, settings: &str) -> BTreeMap<String, usize> {
        let log = self.node.folder.path().join("steps");
        let daemon = self.armed(settings, &format!("log:{}", log.display()));
        fs::write(&log, "").unwrap();
        in_runtime(async {
            import(&daemon, &self.name).await;
            self.node.remove(&self.whole.id).await;
        });
        assert!(daemon.stop(Signal::TERM).success());
        let mut steps = BTreeMap::new();
        for step in fs::read_to_string(&log).unwrap().lines() {
            *steps.entry(step.to_owned()).or_default() += 1;
        }
        steps
    }

    /// Ends a daemon at this step of an import; the next start and the next pull find nothing that is half.
    fn crash(&self, settings: &str, armed: &str) {
        let what = format!("{}: imagelet, cut off at {armed}", self.release);
        let mut daemon = self.armed(settings, armed);
        let endpoint: Endpoint = daemon.endpoint().parse().unwrap();
        let answered = in_runtime(async {
            // It may die before it is asked.
            let images = RemoteImageService::connect(&endpoint, CALL_MAX).await?;
            pull(&images, &request(&self.name)).await
        });
        let answered = answered.is_ok();
        wait_until("the daemon to die", || daemon.part.ended().is_some());
        let status = daemon.part.ended().expect("it ended");
        assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{what}: ended by {status}");
        self.heals(&what, answered);
    }

    /// After the next start nothing holds what broke off, nothing is half, and the image comes as if it were the first.
    fn heals(&self, what: &str, answered: bool) {
        let daemon = self.node.daemon(IMPORTS);
        in_runtime(async {
            // Whatever is asked for makes imagelet look at the runtime.
            drop(pull(&connect(&daemon).await, &request(&self.registry.name("absent:v1"))).await);
            self.node.has_no_lease(what).await;
            self.is_sound(what, answered).await;
            let found = Whole::import(&self.node, &daemon, &self.name).await;
            assert_eq!(found.id, self.whole.id, "{what}");
            let mut differences = dump::differences(&found.records, &self.whole.records);
            differences.extend(mounted::differences(&found.tree, &self.whole.tree, &self.timeless));
            assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
            self.node.remove(&self.whole.id).await;
            self.node.is_empty(what).await;
        });
        assert!(daemon.stop(Signal::TERM).success(), "{what}");
    }

    /// Every record of an image stands on blobs and snapshots that are there, and without one nothing is there.
    async fn is_sound(&self, what: &str, answered: bool) {
        let client = self.node.client();
        let names: Vec<String> = client.images().await.unwrap().into_iter().map(|image| image.name).collect();
        let blobs: BTreeSet<String> = client.contents().await.unwrap().into_iter().map(|blob| blob.digest).collect();
        let snapshots = client.snapshots(SNAPSHOTTER).await.unwrap();
        let snapshots: BTreeSet<String> = snapshots.into_iter().map(|snapshot| snapshot.name).collect();
        assert!(names.contains(&self.name) || !answered, "{what}: it was answered, and is not there: {names:?}");
        if names.is_empty() {
            self.node.is_empty_but_for_staged_layers(what).await;
            return;
        }
        for digest in self.whole.blobs() {
            assert!(blobs.contains(digest), "{what}: {names:?} have no {digest}");
        }
        assert_eq!(snapshots, self.whole.snapshots, "{what}: {names:?}");
    }
}

#[test]
fn each_step_of_an_import_may_be_the_last_one_of_imagelet() {
    for release in ContainerdRelease::all() {
        let scenes = Scene::all(&release);
        let reached: Vec<_> = scenes.iter().map(|scene| (scene.reached(IMPORTS), scene.reached(KEEPS_BLOBS))).collect();
        let is_own = |step: &str| step.starts_with("import.");
        let own = steps_in_sources()
            .into_iter()
            .filter(|step| is_own(step) && (release.has_image_volumes() || !step.contains("artifact")));
        let met = reached.iter().flat_map(|(some, more)| some.keys().chain(more.keys()));
        let met: BTreeSet<String> = met.filter(|step| is_own(step)).cloned().collect();
        assert_eq!(met, own.collect(), "{release}: steps of an import that none reaches");
        // Steps that other stories are about, too, are taken once.
        let mut taken = BTreeSet::new();
        for (scene, (steps, with_blobs)) in scenes.iter().zip(reached) {
            let more = with_blobs.into_iter().filter(|(step, _)| !steps.contains_key(step)).collect();
            for (settings, steps) in [(IMPORTS, steps.clone()), (KEEPS_BLOBS, more)] {
                for (step, count) in steps {
                    // Records of pulls are another story.
                    let is_other = ["record.", "state.", "decision."].iter().any(|room| step.starts_with(room));
                    if is_other || !is_own(&step) && !taken.insert(step.clone()) {
                        continue;
                    }
                    for nth in 1..=if is_own(&step) { count } else { 1 } {
                        scene.crash(settings, &format!("{step}:{nth}"));
                    }
                }
            }
        }
    }
}

#[test]
fn containerd_may_die_in_the_middle_of_an_import() {
    for mut scene in ContainerdRelease::all().iter().flat_map(Scene::all) {
        let mut random = Random::new(&scene.release.to_string());
        let moments = (0..3).map(Some).chain((0..MOMENTS).map(|_| None));
        for held in moments {
            let daemon = scene.node.daemon(IMPORTS);
            let waited = held.map(|layer: usize| scene.registry.hold("app", &scene.image.layers[layer].digest));
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let (client, asked) = (runtime.block_on(connect(&daemon)), request(&scene.name));
            let pulling = runtime.spawn(async move { pull(&client, &asked).await });
            let what = if let Some(waited) = &waited {
                waited.until_asked();
                format!("{}, killed while layer {held:?} of {} is fetched", scene.release, scene.whole.id)
            } else {
                let moment = Duration::from_millis(random.below(150));
                thread::sleep(moment);
                format!("{}, killed after {moment:?} of {}", scene.release, scene.whole.id)
            };
            scene.node.containerd.kill();
            drop(waited);
            // It may have been quicker.
            drop(runtime.block_on(pulling).unwrap());
            scene.node.restart();
            // The daemon that was there goes on by itself.
            wait_until("a pull after the restart", || {
                in_runtime(async { pull(&connect(&daemon).await, &request(&scene.name)).await }).is_ok()
            });
            in_runtime(async { scene.node.has_no_lease(&what).await });
            assert!(daemon.stop(Signal::TERM).success(), "{what}");
            scene.heals(&what, true);
        }
    }
}

#[test]
fn an_imported_image_runs_pods_after_containerd_was_killed_at_once_and_after_imagelet_is_gone() {
    let registry = FakeRegistry::start();
    let (pause, image) = (Image::busybox("pause"), Image::busybox("application"));
    let (pause_name, name) = (registry.put("pause:3.9", &pause), registry.put("application:v1", &image));
    for release in ContainerdRelease::all() {
        let mut node = Node::start(&release, &pause_name);
        let daemon = node.daemon(DEFAULT);
        in_runtime(async {
            import(&daemon, &pause_name).await;
            import(&daemon, &name).await;
        });
        node.restart();
        in_runtime(async {
            assert!(!node.has_layer_blobs(&image).await, "{release}: containerd pulled it itself");
            // As with `imagePullPolicy: Never`: nothing pulls.
            let asked = registry.requests().len();
            node.runs(&name).await;
            node.runs(image.id()).await;
            assert_eq!(registry.requests().len(), asked, "{release}: a registry was asked");
        });
        assert!(daemon.stop(Signal::TERM).success());
        // Uninstalled: its settings, state and staging are deleted.
        for folder in [node.folder.path().join("state"), node.staging()] {
            fs::remove_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        }
        node.restart();
        in_runtime(async {
            node.runs(&name).await;
            for id in [image.id(), pause.id()] {
                node.remove(id).await;
            }
            node.is_empty(&format!("{release}: removed without imagelet")).await;
        });
    }
}
