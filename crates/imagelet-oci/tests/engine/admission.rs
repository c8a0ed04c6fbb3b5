//! A pull without room is refused before its first layer byte, with the arithmetic.
//!
//! Free space is what the machine has, so these stories move the floors; real small disks stand in the program's tests.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use imagelet_core::{
    image::ByteSize,
    runtime::{Freed, ImageService as _, MakeRoom, RoomMade, RoomWanted, RuntimeErrorKind},
};
use imagelet_oci::{Admission, Engine, EngineConfig};

use crate::{
    blobs::noise,
    fixture::{Layer, TestRegistry},
    open_as, pull, settled,
};

/// More than any disk has.
const WHOLE_DISK: u64 = 1 << 60;

struct Scene {
    registry: TestRegistry,
    folder: tempfile::TempDir,
    engine: Arc<Engine>,
}

/// An engine for an image of two layers, one of them twice.
async fn scene(change: impl FnOnce(&mut EngineConfig)) -> Scene {
    let registry = TestRegistry::start().await;
    let layer = Layer::new().file("a", &vec![7; 100_000]).gzip();
    registry.image("a", "v1", &[layer.clone(), Layer::new().file("b", b"b").plain(), layer]);
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = EngineConfig::new(folder.path());
    change(&mut config);
    Scene { registry, engine: open_as(config).await, folder }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_cannot_fit_asks_for_no_layer_and_leaves_nothing() {
    type Change = fn(&mut EngineConfig);
    let cases: [(Change, [&str; 4]); 3] = [
        (
            |config| config.limits.free_bytes_floor = WHOLE_DISK,
            ["free space", "needs at least", "2 layers not here", "kept by freeBytesFloor"],
        ),
        (
            |config| {
                config.limits.free_bytes_floor = WHOLE_DISK;
                config.admission = Admission::Strict;
            },
            ["free space", "needs ", "2 layers not here", "assumed"],
        ),
        (
            |config| config.limits.free_inodes_floor = WHOLE_DISK,
            ["free inodes", "at least 12 inodes", "2 layers not here", "kept by freeInodesFloor"],
        ),
    ];
    for (change, words) in cases {
        let scene = scene(change).await;
        let error = pull(&scene.engine, &scene.registry.name("a:v1")).await.expect_err("there is no room");
        assert_eq!(error.kind(), RuntimeErrorKind::DiskFull);
        assert!(error.hint().is_some_and(|hint| hint.contains("imagelet gc")), "{:?}", error.hint());
        for word in words {
            assert!(error.chain().contains(word), "{word:?} is not in: {}", error.chain());
        }
        assert_eq!(scene.registry.take_layer_requests(), 0, "{}", error.chain());
        assert_eq!(settled(scene.folder.path()).await, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off_the_disk_itself_tells() {
    let scene = scene(|config| {
        config.limits.free_bytes_floor = WHOLE_DISK;
        config.admission = Admission::Off;
    })
    .await;
    let error = pull(&scene.engine, &scene.registry.name("a:v1")).await.expect_err("unpacking stops at the floor");
    assert_eq!(error.kind(), RuntimeErrorKind::DiskFull);
    assert!(scene.registry.take_layer_requests() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_here_needs_no_room() {
    let scene = scene(|_| {}).await;
    let name = scene.registry.name("a:v1");
    pull(&scene.engine, &name).await.expect("there is room");
    drop(scene.engine);
    let mut config = EngineConfig::new(scene.folder.path());
    config.limits.free_bytes_floor = WHOLE_DISK;
    pull(&*open_as(config).await, &name).await.expect("nothing is fetched");
}

/// Says what it was told to say, and keeps what it was asked for.
#[derive(Debug)]
struct Collector {
    asked: Mutex<Vec<RoomWanted>>,
    answers: Mutex<Vec<RoomMade>>,
}

#[async_trait]
impl MakeRoom for Collector {
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade> {
        self.asked.lock().expect("no panic").push(wanted);
        self.answers.lock().expect("no panic").pop()
    }
}

async fn asked_with(mut answers: Vec<RoomMade>) -> (Vec<RoomWanted>, String) {
    let scene = scene(|config| config.limits.free_bytes_floor = WHOLE_DISK).await;
    answers.reverse();
    let collector = Arc::new(Collector { asked: Mutex::default(), answers: Mutex::new(answers) });
    scene.engine.ask_for_room(Arc::clone(&collector) as Arc<dyn MakeRoom>);
    let error = pull(&scene.engine, &scene.registry.name("a:v1")).await.expect_err("there is no room");
    assert_eq!(scene.registry.take_layer_requests(), 0);
    let asked = std::mem::take(&mut *collector.asked.lock().expect("no panic"));
    (asked, error.chain())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_collector_is_asked_before_a_refusal_and_again_while_it_helps() {
    let made = |freed, could_free| RoomMade { freed: ByteSize(freed), could_free: ByteSize(could_free) };
    let (asked, told) = asked_with(vec![made(0, 3 << 20)]).await;
    assert_eq!(asked.len(), 1);
    assert!(asked[0].bytes > asked[0].least && asked[0].least > ByteSize(WHOLE_DISK / 2), "{asked:?}");
    assert!(told.contains("a collection could free at most 3.15MB more"), "{told}");

    let (asked, told) = asked_with(vec![made(5, 9), made(5, 4), made(5, 2), made(5, 1)]).await;
    assert_eq!(asked.len(), 3, "the rounds are bounded");
    assert!(told.contains("could free at most 2B more"), "{told}");

    let (asked, told) = asked_with(Vec::new()).await;
    assert_eq!(asked.len(), 1);
    assert!(!told.contains("a collection"), "nobody collects for pulls: {told}");

    let (asked, told) = asked_with(vec![made(5, 9), made(0, 0)]).await;
    assert_eq!(asked.len(), 2, "what does not help is not repeated");
    assert!(told.contains("could free nothing more"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failed_and_a_dropped_pull_have_reserved_is_free_again() {
    let registry = TestRegistry::start().await;
    let large = Layer::new().file("a", &vec![7; 3 << 20]).plain();
    registry.image("bad", "v1", &[large.clone().serving(|bytes| bytes[600] = 8)]);
    registry.image("slow", "v1", &[large.stalling_at(1 << 20)]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open_as(EngineConfig::new(folder.path())).await;
    pull(&engine, &registry.name("bad:v1")).await.expect_err("the layer is wrong");
    assert_eq!(reserved_by(&engine).await, Freed::default());
    let name = registry.name("slow:v1");
    let reserved = async {
        loop {
            let bytes = reserved_by(&engine).await.bytes;
            if bytes > ByteSize::ZERO && bytes < ByteSize(4 << 20) {
                return bytes;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        bytes = reserved => assert!(bytes > ByteSize(2 << 20), "{bytes:?}: what landed is not reserved, the rest is"),
        _ = pull(&engine, &name) => panic!("the registry stalls"),
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("nothing landed: {:?}", reserved_by(&engine).await),
    }
    assert_eq!(reserved_by(&engine).await, Freed::default());
}

async fn reserved_by(engine: &Engine) -> Freed {
    engine.filesystem().await.expect("it is measured").reserved
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_an_artifact_are_expected_as_they_are_whatever_their_types_say() {
    let registry = TestRegistry::start().await;
    let file = noise(1, 400_000);
    let tar = "application/vnd.oci.image.layer.v1.tar+gzip";
    registry.artifact_typed("model", "v1", tar, &[("weights", &file)]);
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = EngineConfig::new(folder.path());
    config.limits.free_bytes_floor = WHOLE_DISK;
    config.admission = Admission::Strict;
    let engine = open_as(config).await;
    let error = pull(&engine, &registry.name("model:v1")).await.expect_err("there is no room");
    assert!(error.chain().contains("x 1.2 assumed"), "{}", error.chain());
}
