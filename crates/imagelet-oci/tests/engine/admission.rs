//! A pull without room is refused before its first layer byte, with the arithmetic.
//!
//! Free space is what the machine has, so most stories move the floors; those of several tenants have a small disk.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    events::PodIdentity,
    image::{ByteSize, ImageId, ImageSpec},
    ports::{Freed, ImageService as _, MakeRoom, Progress, PullEvent, PullRequest, RemovedImage, RoomMade, RoomWanted},
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
    let made =
        |freed, could_free| RoomMade { freed: ByteSize(freed), could_free: ByteSize(could_free), removed: Vec::new() };
    let (asked, told) = asked_with(vec![made(0, 3 << 20)]).await;
    assert_eq!(asked.len(), 1);
    assert!(asked[0].whole >= asked[0].now && asked[0].now > ByteSize(WHOLE_DISK / 2), "{asked:?}");
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

const MIB: u64 = 1 << 20;

/// A memory file system of its own.
struct Disk {
    mountpoint: PathBuf,
    _folder: tempfile::TempDir,
}

impl Disk {
    fn new(mebibytes: u64) -> Self {
        assert!(rustix::process::geteuid().is_root(), "a disk of its own needs root: run the tests as root");
        let folder = tempfile::tempdir().expect("a folder");
        let mountpoint = folder.path().join("disk");
        fs::create_dir(&mountpoint).expect("a folder");
        let options = std::ffi::CString::new(format!("size={mebibytes}m,mode=0700")).expect("no zero in it");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &mountpoint, "tmpfs", flags, Some(options.as_c_str())).expect("a tmpfs");
        Self { mountpoint, _folder: folder }
    }

    fn config(&self) -> EngineConfig {
        EngineConfig::new(self.mountpoint.join("store"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.mountpoint, rustix::mount::UnmountFlags::DETACH);
    }
}

async fn pull_as(engine: &Engine, name: &str, namespace: &str, progress: Progress) -> Result<ImageId, RuntimeError> {
    let pod = PodIdentity { namespace: namespace.into(), ..PodIdentity::default() };
    engine.pull(&PullRequest { image: ImageSpec::new(name), pod, ..PullRequest::default() }, progress).await
}

fn quiet() -> Progress {
    Arc::new(|_| {})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_never_comes_refuses_no_pull_of_another_tenant() {
    let registry = TestRegistry::start().await;
    registry.image("claims", "v1", &[Layer::new().file("a", b"a").plain().claiming(470 << 20)]);
    registry.image("small", "v1", &[Layer::new().file("b", &vec![7; 20 << 20]).plain()]);
    let (claims, small) = (registry.name("claims:v1"), registry.name("small:v1"));
    let disk = Disk::new(512);
    let engine = open_as(disk.config()).await;
    let claiming = {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { pull_as(&engine, &claims, "a", quiet()).await })
    };
    tokio::time::timeout(Duration::from_mins(1), async {
        while registry.take_layer_requests() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the claim is let in");
    assert_eq!(reserved_by(&engine).await.bytes, ByteSize(64 * MIB), "what a collection leaves to it");
    let refused = pull_as(&engine, &small, "a", quiet()).await.expect_err("its own tenant sees the whole claim");
    assert!(refused.chain().contains("reserved by 1 pull"), "{}", refused.chain());
    let pulled = pull_as(&engine, &small, "b", quiet()).await;
    pulled.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(!claiming.is_finished());
    claiming.abort();
}

/// Images that take space, as files beside a store, and a collector that removes them by the rules of the port.
#[derive(Debug)]
struct Cached {
    folder: PathBuf,
    each: u64,
    asked: Mutex<Vec<RoomWanted>>,
}

impl Cached {
    fn new(disk: &Disk, number: u64, each: u64) -> Arc<Self> {
        let folder = disk.mountpoint.join("cached");
        fs::create_dir(&folder).expect("a folder");
        for image in 0..number {
            let file = fs::File::create(folder.join(image.to_string())).expect("a file");
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, flags, 0, each).expect("there is space");
        }
        Arc::new(Self { folder, each, asked: Mutex::default() })
    }

    fn left(&self) -> u64 {
        fs::read_dir(&self.folder).expect("a folder").count() as u64
    }

    fn asked(&self) -> Vec<RoomWanted> {
        self.asked.lock().expect("no panic").clone()
    }
}

#[async_trait]
impl MakeRoom for Cached {
    async fn make_room(&self, wanted: RoomWanted) -> Option<RoomMade> {
        self.asked.lock().expect("no panic").push(wanted);
        let mut made = RoomMade { could_free: ByteSize(self.left() * self.each), ..RoomMade::default() };
        let is_reachable = made.could_free >= wanted.whole;
        while is_reachable && made.freed < wanted.now {
            let image = (self.left() - 1).to_string();
            fs::remove_file(self.folder.join(&image)).expect("it is there");
            made.removed.push(RemovedImage { names: vec![image], bytes: ByteSize(self.each) });
            (made.freed, made.could_free) = (made.freed + ByteSize(self.each), ByteSize(self.left() * self.each));
        }
        Some(made)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_removed_for_a_pull_as_its_bytes_come_and_the_pull_names_them() {
    let registry = TestRegistry::start().await;
    registry.image("large", "v1", &[Layer::new().file("a", &vec![7; 130 << 20]).plain()]);
    registry.image("claims", "v1", &[Layer::new().file("b", b"b").plain().claiming(150 << 20)]);
    let disk = Disk::new(256);
    let engine = open_as(disk.config()).await;
    let cached = Cached::new(&disk, 3, 50 * MIB);
    engine.ask_for_room(Arc::clone(&cached) as Arc<dyn MakeRoom>);

    // 90 MiB can be had: the first step fits.
    let claims = registry.name("claims:v1");
    let claiming = pull_as(&engine, &claims, "a", quiet());
    let bounded = tokio::time::timeout(Duration::from_secs(2), claiming).await;
    bounded.expect_err("no byte comes");
    let asked = cached.asked();
    assert!(asked.iter().all(|wanted| wanted.now == ByteSize::ZERO) && !asked.is_empty(), "{asked:?}");
    assert_eq!(cached.left(), 3, "a claim removes nothing");

    let removed = Arc::new(Mutex::new(Vec::new()));
    let progress: Progress = {
        let removed = Arc::clone(&removed);
        Arc::new(move |event| {
            if let PullEvent::Removed(image) = event {
                removed.lock().expect("no panic").push(image);
            }
        })
    };
    let pulled = pull_as(&engine, &registry.name("large:v1"), "a", progress).await;
    pulled.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(cached.left(), 2, "one makes enough room: {:?}", cached.asked());
    let named = [RemovedImage { names: vec!["2".into()], bytes: ByteSize(50 * MIB) }];
    assert_eq!(*removed.lock().expect("no panic"), named);
}

#[tokio::test(flavor = "multi_thread")]
async fn for_a_pull_that_turns_out_not_to_fit_nothing_is_removed_and_for_one_that_does_what_is_needed() {
    let registry = TestRegistry::start().await;
    // Packed there is room for both with what is removable, expected for none.
    let chunks = |seed, zeros: usize| {
        let noisy = noise(seed, 19 << 20);
        let chunks = noisy.chunks(32 << 10).flat_map(|noise| [noise, &vec![0; zeros]].concat()).collect::<Vec<u8>>();
        Layer::new().file("a", &chunks).gzip()
    };
    registry.image("expands", "v1", &[chunks(1, 64 << 10)]);
    registry.image("fits", "v1", &[chunks(2, 0)]);
    let disk = Disk::new(64);
    let engine = open_as(disk.config()).await;
    let cached = Cached::new(&disk, 3, 10 * MIB);
    engine.ask_for_room(Arc::clone(&cached) as Arc<dyn MakeRoom>);
    let refused = pull(&engine, &registry.name("expands:v1")).await.expect_err("57 MiB do not fit into 48");
    assert_eq!(refused.kind(), RuntimeErrorKind::DiskFull);
    assert!(refused.chain().contains("not enough free space"), "{}", refused.chain());
    assert_eq!(cached.left(), 3, "{:?}", cached.asked());
    assert_eq!(settled(&disk.config().place.root).await, Vec::<String>::new());

    pull(&engine, &registry.name("fits:v1")).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(cached.left(), 2, "{:?}", cached.asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_removed_for_a_layer_whose_end_expands_far_more_than_its_beginning() {
    let registry = TestRegistry::start().await;
    let text: Vec<u8> = b"weights and biases ".iter().copied().cycle().take(45 << 20).collect();
    let content = [noise(3, 70 << 20), text].concat();
    registry.image("uneven", "v1", &[Layer::new().file("a", &content).gzip()]);
    let disk = Disk::new(256);
    let engine = open_as(disk.config()).await;
    let cached = Cached::new(&disk, 3, 50 * MIB);
    engine.ask_for_room(Arc::clone(&cached) as Arc<dyn MakeRoom>);
    // 90 MiB are free, and the ratio of the first 70 says that it fits.
    let pulled = pull(&engine, &registry.name("uneven:v1")).await;
    pulled.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(cached.left(), 2, "{:?}", cached.asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_has_just_broken_off_stays_while_unused_images_can_be_removed() {
    let registry = TestRegistry::start().await;
    let layer = |byte, mib: usize| Layer::new().file("a", &vec![byte; mib << 20]).plain();
    registry.image("broken", "v1", &[layer(1, 40).stalling_at(30 << 20)]);
    registry.image("other", "v1", &[layer(2, 80)]);
    registry.image("larger", "v1", &[layer(3, 110)]);
    let disk = Disk::new(256);
    let mut config = disk.config();
    config.registry.timeouts.silence_max = Some(Duration::from_secs(1));
    let engine = open_as(config).await;
    let cached = Cached::new(&disk, 3, 50 * MIB);
    engine.ask_for_room(Arc::clone(&cached) as Arc<dyn MakeRoom>);
    pull(&engine, &registry.name("broken:v1")).await.expect_err("it stalls");
    let partials = || fs::read_dir(disk.config().place.root.join("ingest")).expect("a folder").count();
    assert_eq!(partials(), 1);
    // 60 MiB are free.
    pull(&engine, &registry.name("other:v1")).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((partials(), cached.left()), (1, 2), "{:?}", cached.asked());
    // Without a collector the space has to come from it.
    fs::remove_dir_all(&cached.folder).and_then(|()| fs::create_dir(&cached.folder)).expect("removed");
    let filler = fs::File::create(disk.mountpoint.join("filler")).expect("a file");
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, 35 * MIB).expect("there is space");
    pull(&engine, &registry.name("larger:v1")).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(partials(), 0);
}
