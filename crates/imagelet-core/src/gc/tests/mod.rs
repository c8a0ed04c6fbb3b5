//! Stories of a full disk over the fake runtime.

mod audit;
mod concurrency;
mod layers;
mod model;
mod records;
mod remaining;
mod vectors;

use std::{
    fmt, io,
    path::Path,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use self::vectors::Scripted;
use super::*;
use crate::{
    disks::DiskUse,
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Image, ImageId, ImageKey, ImageSpec, ImageUser},
    inventory::{ImageEntry, ImageOrigin, ImageUsage, Reason, UseTimes},
    ports::{Container, ContainerService, ContainerState, ImageService, Sandbox},
    testing::{FakeRuntime, WaySettings as _, in_order},
};
use async_trait::async_trait;
use imagelet_vectors::Way;

/// A disk of fixed size that holds the fake's images and a fixed amount of other data.
#[derive(Debug)]
struct TestDisk {
    fake: FakeRuntime,
    capacity: u64,
    others: u64,
    /// All and free inodes; `None`: the disk does not count them.
    inodes: Option<(u64, u64)>,
}

impl DiskProbe for TestDisk {
    fn look(&self, _directory: &Path) -> io::Result<DiskUse> {
        let images = self.fake.disk_bytes();
        let available = self.capacity.saturating_sub(self.others + images.0);
        let (inodes, inodes_free) = self.inodes.unzip();
        Ok(DiskUse { inodes, inodes_free, ..DiskUse::of(ByteSize(self.capacity), ByteSize(available)) })
    }
}

/// An image of this id, handler and size without a name.
pub(crate) fn image(id: &str, handler: &str, bytes: u64) -> Image {
    Image {
        id: ImageId::new(id),
        tags: Vec::new(),
        digests: Vec::new(),
        size: ByteSize(bytes),
        user: ImageUser::Unset,
        spec: ImageSpec { runtime_handler: handler.to_owned(), ..ImageSpec::default() },
        pinned: false,
        artifact: None,
    }
}

/// The inventory's entry of an image that was never used and has no keep reason.
pub(crate) fn unused(image: Image, first_seen: SystemTime) -> ImageEntry {
    let times = UseTimes { first_seen: Some(first_seen), ..UseTimes::default() };
    let usage = ImageUsage { times, origin: ImageOrigin::Pulled, ..ImageUsage::default() };
    ImageEntry { image: Arc::new(image), usage, leased_until: None, awaited_by: Vec::new(), pinned_by: Vec::new() }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

/// Actions at the n-th call of a kind.
type Trap = Box<dyn FnOnce(&FakeRuntime) + Send>;

/// The fake with an action at a later listing of containers.
struct Trapped {
    fake: FakeRuntime,
    /// Listings to skip, and the action.
    trap: Mutex<Option<(usize, Trap)>>,
}

impl fmt::Debug for Trapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trapped")
    }
}

#[async_trait]
impl ContainerService for Trapped {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let sprung = {
            let mut trap = self.trap.lock().unwrap();
            match trap.take() {
                Some((0, act)) => Some(act),
                Some((left, act)) => {
                    *trap = Some((left - 1, act));
                    None
                }
                None => None,
            }
        };
        if let Some(act) = sprung {
            act(&self.fake);
        }
        self.fake.containers().await
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        self.fake.sandboxes().await
    }
    async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
        self.fake.mounted_images(container_id).await
    }
}

struct Node {
    fake: FakeRuntime,
    trapped: Arc<Trapped>,
    inventory: Arc<Inventory>,
    gc: ImageGc,
}

impl Node {
    fn new(others: u64) -> Self {
        Self::keeping(others, None)
    }

    fn keeping(others: u64, directory: Option<&Path>) -> Self {
        let fake = FakeRuntime::new();
        let trapped = Arc::new(Trapped { fake: fake.clone(), trap: Mutex::new(None) });
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), trapped.clone());
        let inventory = Arc::new(Inventory::open(runtime.clone(), directory).unwrap());
        let disk = TestDisk { fake: fake.clone(), capacity: 1000, others, inodes: None };
        let gc = ImageGc::new(runtime, Arc::clone(&inventory)).with_probe(Arc::new(disk));
        Self { fake, trapped, inventory, gc }
    }

    async fn idle(&self, name: &str, size: u64, since: u64) -> ImageId {
        let id = self.fake.preload(name, name, size);
        self.inventory.touch(&ImageKey::new(id.clone(), String::new()), at(since));
        self.inventory.refresh(at(since)).await.unwrap();
        id
    }

    /// Skips this many listings of containers and acts before the next.
    fn before_listing(&self, passed: usize, act: impl FnOnce(&FakeRuntime) + Send + 'static) {
        *self.trapped.trap.lock().unwrap() = Some((passed, Box::new(act)));
    }

    fn with_inodes(self, all: u64, free: u64) -> Self {
        let disk = TestDisk { fake: self.fake.clone(), capacity: 1000, others: 0, inodes: Some((all, free)) };
        Self { gc: self.gc.with_probe(Arc::new(disk)), ..self }
    }

    async fn collect(&self, goal: GcGoal) -> GcReport {
        let policy = GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap();
        self.gc.run(&GcRequest { policy, goal, dry_run: false }, at(10_000)).await.unwrap()
    }

    async fn collect_in(&self, way: Way, goal: GcGoal) -> GcReport {
        let policy = way.collecting(GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap());
        self.gc.run(&GcRequest { policy, goal, dry_run: false }, at(10_000)).await.unwrap()
    }

    fn removals(&self) -> Vec<String> {
        self.fake.take_calls().into_iter().filter(|call| call.starts_with("remove")).collect()
    }

    async fn left(&self) -> Vec<String> {
        let mut tags: Vec<String> =
            self.fake.list(None).await.unwrap().iter().flat_map(|image| image.tags.clone()).collect();
        tags.sort();
        tags
    }
}

fn reason(report: &GcReport, id: &ImageId) -> String {
    report.decisions.iter().find(|decision| decision.entry.image.id == *id).unwrap().reason.to_string()
}

#[tokio::test]
async fn the_longest_idle_go_until_the_low_threshold_is_met() {
    let node = Node::new(300);
    let (a, b, c) = (node.idle("a:1", 250, 30).await, node.idle("b:1", 250, 10).await, node.idle("c:1", 150, 20).await);
    let report = node.collect(GcGoal::Threshold).await;
    assert_eq!(node.removals(), [format!("remove {b}")]);
    assert_eq!(report.sizes.goal, Some(ByteSize(150)));
    assert_eq!((report.sizes.claimed, report.sizes.measured), (ByteSize(250), Some(ByteSize(250))));
    assert_eq!((report.disk_before.used_percent(), report.disk_after.as_ref().unwrap().used_percent()), (95, 70));
    assert_eq!((reason(&report, &a), reason(&report, &c)), ("not needed".to_owned(), "not needed".to_owned()));
    assert_eq!(report.present.as_ref().unwrap().len(), 2);
    assert_eq!(report.failure(), None);
}

#[tokio::test]
async fn images_in_use_by_running_or_exited_containers_and_pinned_ones_stay() {
    let node = Node::new(0);
    let running = node.idle("run:1", 200, 1).await;
    let exited = node.idle("exit:1", 200, 2).await;
    let pinned = node.idle("pin:1", 200, 3).await;
    let kept = node.idle("kept:1", 200, 4).await;
    let free = node.idle("free:1", 200, 5).await;
    node.fake.run("web", "app", "run:1", &running, ContainerState::Running);
    node.fake.run("job", "once", "exit:1", &exited, ContainerState::Exited);
    node.inventory.pin("pin:*").unwrap();
    node.fake.set_pinned(&kept, true);
    let report = node.collect(GcGoal::Threshold).await;
    assert_eq!(node.removals(), [format!("remove {free}")]);
    assert_eq!(reason(&report, &running), "in use by default/web/app");
    assert_eq!(reason(&report, &exited), "in use by default/job/once");
    assert_eq!(reason(&report, &pinned), "pinned by `pin:*`");
    assert_eq!(reason(&report, &kept), "pinned by the runtime");
    assert_eq!(report.events, []);
}

#[tokio::test]
async fn nothing_goes_in_vain_where_all_that_may_go_is_not_enough() {
    let node = Node::new(300);
    let used = node.idle("run:1", 600, 1).await;
    let free = node.idle("free:1", 100, 5).await;
    node.fake.run("web", "app", "run:1", &used, ContainerState::Running);
    let report = node.collect(GcGoal::Threshold).await;
    assert_eq!(node.removals(), [""; 0]);
    assert_eq!(reason(&report, &free), Reason::NotEnough.to_string());
    assert_eq!(report.events[0].reason, "FreeDiskSpaceFailed");
    assert!(report.events[0].message.contains("(100% of 1kB used). 110B must go"), "{}", report.events[0].message);
    let GcError::OutOfReach { shortfall, .. } = &report.failures[0] else { panic!("{:?}", report.failures) };
    assert_eq!((shortfall.in_use, shortfall.free, shortfall.others), (ByteSize(600), ByteSize(100), ByteSize(300)));
}

#[tokio::test]
async fn an_image_taken_into_use_after_the_plan_stays_and_the_next_goes() {
    let node = Node::new(500);
    let (a, b) = (node.idle("a:1", 200, 10).await, node.idle("b:1", 250, 20).await);
    let used = a.clone();
    // The first listing is the plan's.
    node.before_listing(1, move |fake| {
        fake.run("web", "app", "a:1", &used, ContainerState::Created);
    });
    let report = node.collect(GcGoal::Threshold).await;
    assert_eq!(node.removals(), [format!("remove {b}")]);
    assert_eq!(reason(&report, &a), "in use by default/web/app");
}

#[tokio::test]
async fn an_image_pinned_or_asked_for_after_the_plan_stays() {
    let node = Node::new(500);
    let (a, b) = (node.idle("a:1", 200, 10).await, node.idle("b:1", 250, 20).await);
    let (inventory, key) = (Arc::clone(&node.inventory), ImageKey::new(a.clone(), String::new()));
    node.before_listing(1, move |_| {
        inventory.touch(&key, at(10_000));
        inventory.pin("b:1").unwrap();
    });
    let report = node.collect(GcGoal::Threshold).await;
    assert_eq!(node.removals(), [""; 0]);
    assert_eq!(reason(&report, &a), "used since the collection began");
    assert_eq!(reason(&report, &b), "pinned by `b:1`");
}

#[tokio::test]
async fn a_failed_removal_is_reported_and_the_next_image_is_removed() {
    let node = Node::new(500);
    let (a, b) = (node.idle("a:1", 200, 10).await, node.idle("b:1", 250, 20).await);
    node.fake.fail(&format!("remove {a}"), RuntimeErrorKind::Other, "busy");
    let report = node.collect(GcGoal::Threshold).await;
    assert_eq!(node.removals(), [format!("remove {a}"), format!("remove {b}")]);
    assert_eq!(report.decisions[0].outcome, GcOutcome::Failed("busy".to_owned()));
    assert_eq!((&report.decisions[1].outcome, report.sizes.claimed), (&GcOutcome::Removed, ByteSize(250)));
    let failure = "150B wanted, 250B freed, and these removals failed: busy";
    assert_eq!(report.failure().as_deref(), Some(failure));
    assert_eq!(report.events, []);
}

#[tokio::test]
async fn an_empty_or_failing_list_of_containers_ends_the_removals() {
    for (passed, is_empty) in [(0, true), (1, true), (1, false)] {
        let node = Node::new(300);
        let used = node.idle("used:1", 100, 1).await;
        node.idle("a:1", 300, 10).await;
        node.idle("b:1", 300, 20).await;
        node.fake.run("web", "app", "used:1", &used, ContainerState::Running);
        node.inventory.refresh(at(9_990)).await.unwrap();
        node.before_listing(passed, move |fake| {
            if is_empty { fake.stop_all() } else { fake.fail("containers", RuntimeErrorKind::Unavailable, "down") }
        });
        let report = node.collect(GcGoal::AllUnused).await;
        assert_eq!(node.removals(), [""; 0]);
        assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
        assert_eq!(node.left().await.len(), 3);
    }
}

#[tokio::test]
async fn a_dry_run_touches_nothing() {
    let node = Node::new(500);
    let (a, b) = (node.idle("a:1", 200, 10).await, node.idle("b:1", 250, 20).await);
    node.fake.take_calls();
    let policy = GcPolicy::new(90, 80, Duration::ZERO, None).unwrap();
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: true };
    let report = node.gc.run(&request, at(10_000)).await.unwrap();
    assert_eq!(node.removals(), [""; 0]);
    assert_eq!((report.removed().count(), report.sizes.claimed, report.sizes.measured), (0, ByteSize(200), None));
    assert_eq!(reason(&report, &a), "room is wanted: last used 2h46m30s ago");
    assert_eq!(reason(&report, &b), "not needed");
}

#[tokio::test]
async fn a_young_image_stays_even_when_all_unused_shall_go() {
    let node = Node::new(0);
    node.idle("old:1", 100, 10).await;
    let young = node.idle("young:1", 100, 9_900).await;
    let report = node.collect(GcGoal::AllUnused).await;
    assert_eq!(node.left().await, ["docker.io/library/young:1"]);
    assert_eq!(reason(&report, &young), "younger than 2m0s");
}

#[tokio::test]
async fn only_as_much_goes_as_was_asked_for() {
    let node = Node::new(0);
    node.idle("a:1", 100, 10).await;
    node.idle("b:1", 100, 20).await;
    node.idle("c:1", 100, 30).await;
    assert_eq!(node.collect(GcGoal::Free(ByteSize(150))).await.sizes.claimed, ByteSize(200));
    assert_eq!(node.collect(GcGoal::Free(ByteSize(0))).await.sizes.claimed, ByteSize::ZERO);
    assert_eq!(node.left().await, ["docker.io/library/c:1"]);
}

#[tokio::test]
async fn a_removal_names_the_handler_of_its_image_and_the_kubelets_the_id_alone() {
    for (order, handler) in [(GcOrder::Lru, "kata"), (GcOrder::ListedSizes, "")] {
        let image = serde_json::json!({"id": "sha256:a", "size": 1, "runtime_handler": "kata"});
        let scripted = Arc::new(Scripted::holding(vec![image]));
        let runtime = RuntimeManager::new(scripted.clone(), scripted.clone());
        let inventory = Arc::new(Inventory::open(runtime.clone(), None).unwrap());
        let policy = in_order(order, GcPolicy::new(85, 80, Duration::ZERO, None).unwrap());
        let request = GcRequest { policy, goal: GcGoal::AllUnused, dry_run: false };
        let report = ImageGc::new(runtime, inventory).run(&request, at(10_000)).await.unwrap();
        assert_eq!(report.decisions[0].key().to_string(), "sha256:a,kata", "{order:?}: the record is of both");
        let named = ImageSpec { runtime_handler: handler.to_owned(), ..ImageSpec::new("sha256:a") };
        assert_eq!(*scripted.removals.lock().unwrap(), [named], "{order:?}");
    }
}
