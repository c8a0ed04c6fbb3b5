//! Tests of changes between plan and removal: pins, names and users; and of plans that are made during a collection.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::{
    image::{Image, ImageUser},
    inventory::WaitingPod,
    ports::ContainerState,
};

/// An idle image with exactly these names.
async fn called(node: &Node, id: &str, tags: &[&str], digests: &[&str]) -> Image {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let image = Image {
        id: ImageId::new(format!("sha256:{}", id.repeat(64))),
        tags: texts(tags),
        digests: texts(digests),
        size: ByteSize(100),
        user: ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    };
    node.fake.insert(image.clone());
    node.inventory.refresh(at(10)).await.unwrap();
    image
}

#[tokio::test]
async fn a_pin_of_another_process_that_comes_after_the_plan_keeps_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::keeping(0, Some(folder.path()));
    let id = node.idle("base:1", 100, 10).await;
    let path = folder.path().to_owned();
    // The first listing is the plan's.
    node.before_listing(1, move |fake| {
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
        assert!(Inventory::open(runtime, Some(&path)).unwrap().pin("base:1").unwrap());
    });
    let report = node.collect(GcGoal::AllUnused).await;
    assert_eq!(node.removals(), [""; 0]);
    assert_eq!(reason(&report, &id), "pinned by `base:1`");
}

#[tokio::test]
async fn a_pin_of_the_runtime_that_comes_after_the_plan_keeps_the_image() {
    let node = Node::new(0);
    let id = node.idle("base:1", 100, 10).await;
    let pinned = id.clone();
    node.before_listing(1, move |fake| fake.set_pinned(&pinned, true));
    let report = node.collect(GcGoal::AllUnused).await;
    assert_eq!(node.removals(), [""; 0]);
    assert_eq!(reason(&report, &id), "pinned by the runtime");
}

fn waiting(image: &str) -> [WaitingPod; 1] {
    [WaitingPod { pod: "default/web".into(), images: vec![image.into()] }]
}

#[tokio::test]
async fn no_collection_takes_an_image_that_a_pod_of_the_node_waits_for_however_long_it_waits() {
    let node = Node::new(900);
    let id = node.idle("base:1", 100, 10).await;
    node.inventory.lease_to_pods(&waiting("base:1"));
    for goal in [GcGoal::Threshold, GcGoal::AllUnused, GcGoal::Free(ByteSize(50))] {
        let report = node.collect(goal).await;
        assert_eq!(node.removals(), [""; 0]);
        assert_eq!(reason(&report, &id), "awaited by default/web", "{goal:?}");
    }
    node.inventory.lease_to_pods(&[]);
    node.collect(GcGoal::AllUnused).await;
    assert_eq!(node.removals(), [format!("remove {id}")]);
}

#[tokio::test]
async fn a_pod_that_is_bound_after_the_plan_keeps_its_image() {
    let node = Node::new(0);
    let id = node.idle("base:1", 100, 10).await;
    let inventory = Arc::clone(&node.inventory);
    node.before_listing(1, move |_| inventory.lease_to_pods(&waiting("base:1")));
    let report = node.collect(GcGoal::AllUnused).await;
    assert_eq!(node.removals(), [""; 0]);
    assert_eq!(reason(&report, &id), "awaited by default/web");
}

#[tokio::test]
async fn other_image_managers_see_an_awaited_image_as_pinned() {
    let node = Node::new(0);
    node.idle("base:1", 100, 10).await;
    let listed = async || {
        let listing = ImageService::list(&node.fake, None).await.unwrap();
        node.inventory.mark_all_pinned(listing)[0].pinned
    };
    assert!(!listed().await);
    node.inventory.lease_to_pods(&waiting("base:1"));
    assert!(listed().await);
    node.inventory.lease_to_pods(&[]);
    assert!(!listed().await);
}

#[tokio::test]
async fn a_name_that_an_image_gets_after_the_plan_puts_it_under_its_pin() {
    let digest = format!("keep.example/app@sha256:{}", "d".repeat(64));
    for (tags, digests) in [(vec!["keep.example/app:v1"], Vec::new()), (Vec::new(), vec![digest.as_str()])] {
        let node = Node::new(0);
        node.inventory.pin("keep.example/*").unwrap();
        let image = called(&node, "a", &["app.example/app:v1"], &[]).await;
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let named = Image { tags: texts(&tags), digests: texts(&digests), ..image.clone() };
        node.before_listing(1, move |fake| fake.insert(named));
        let report = node.collect(GcGoal::AllUnused).await;
        assert_eq!(node.removals(), [""; 0], "{tags:?} {digests:?}");
        assert_eq!(reason(&report, &image.id), "pinned by `keep.example/*`");
    }
}

#[tokio::test]
async fn a_pin_that_comes_after_the_plan_holds_an_image_by_a_name_that_it_has_just_lost() {
    let digest = format!("keep.example/app@sha256:{}", "d".repeat(64));
    for (tags, digests) in [(vec!["keep.example/app:v1"], Vec::new()), (Vec::new(), vec![digest.as_str()])] {
        let node = Node::new(0);
        let image = called(&node, "a", &tags, &digests).await;
        let nameless = Image { tags: Vec::new(), digests: Vec::new(), ..image.clone() };
        let inventory = Arc::clone(&node.inventory);
        node.before_listing(1, move |fake| {
            fake.insert(nameless);
            inventory.pin("keep.example/*").unwrap();
        });
        let report = node.collect(GcGoal::AllUnused).await;
        assert_eq!(node.removals(), [""; 0], "{tags:?} {digests:?}");
        assert_eq!(reason(&report, &image.id), "pinned by `keep.example/*`");
    }
}

/// Three stacked images and one independent: 600 + 20 + 10 and 100 bytes.
async fn stacked(others: u64) -> (Node, [ImageId; 4]) {
    let node = Node::new(others);
    let ids = [
        node.idle("base:1", 600, 10).await,
        node.idle("middle:1", 620, 20).await,
        node.idle("top:1", 630, 30).await,
        node.idle("own:1", 100, 9_500).await,
    ];
    let layers = [("base", 600), ("middle", 20), ("top", 10)];
    for (id, count) in ids.iter().zip(1..=3) {
        node.fake.set_layers(id, &layers[..count]);
    }
    node.fake.set_layers(&ids[3], &[("own", 100)]);
    (node, ids)
}

/// Uses the base image after the plan of the next collection.
fn use_after_plan(node: &Node, base: ImageId) {
    node.before_listing(1, move |fake| {
        fake.run("web", "app", "base:1", &base, ContainerState::Created);
    });
}

#[tokio::test]
async fn what_only_a_stale_plan_would_take_stays_once_its_first_image_came_into_use() {
    let (node, [base, middle, top, own]) = stacked(0).await;
    use_after_plan(&node, base);
    let policy = GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap();
    let request = GcRequest { policy, goal: GcGoal::Free(ByteSize(105)), dry_run: false };
    let report = node.gc.run(&request, at(10_000)).await.unwrap();
    assert_eq!(
        node.removals(),
        [format!("remove {top}"), format!("remove {own}")],
        "without the base {middle} frees 20"
    );
    assert_eq!((report.sizes.freed.bytes, report.sizes.measured), (ByteSize(110), Some(ByteSize(110))));
}

#[tokio::test]
async fn room_that_did_not_come_free_is_not_counted_where_the_base_of_old_images_came_into_use() {
    let (node, [base, middle, top, own]) = stacked(270).await;
    // Watched for longer than the maximum age, and used within it.
    node.inventory.touch(&ImageKey::new(own.clone(), String::new()), at(9_750));
    node.inventory.refresh(at(9_750)).await.unwrap();
    use_after_plan(&node, base);
    let policy = GcPolicy::new(90, 80, Duration::from_mins(2), Some(Duration::from_mins(5))).unwrap();
    let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run: false };
    let report = node.gc.run(&request, at(10_000)).await.unwrap();
    let removed: Vec<String> = [&middle, &top, &own].iter().map(|id| format!("remove {id}")).collect();
    assert_eq!(node.removals(), removed, "30 bytes came free by age, so room is still wanted");
    assert_eq!((report.sizes.freed.bytes, report.sizes.measured), (ByteSize(130), Some(ByteSize(130))));
}

/// A disk whose first measurement reports its start and waits for its release.
#[derive(Debug)]
struct GatedDisk(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl DiskProbe for GatedDisk {
    fn look(&self, _directory: &Path) -> io::Result<DiskUse> {
        let gate = self.0.lock().unwrap().take();
        if let Some((began, release)) = gate {
            began.send(()).unwrap();
            let _ = release.recv();
        }
        Ok(DiskUse::of(ByteSize(1000), ByteSize(50)))
    }
}

/// Bound of a run that has to end although another one does not.
const ENDS_WITHIN: Duration = Duration::from_mins(1);

fn all_unused(dry_run: bool) -> GcRequest {
    let policy = GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap();
    GcRequest { policy, goal: GcGoal::AllUnused, dry_run }
}

/// Runs the second request while the first one measures the disk.
async fn amid(first: GcRequest, second: GcRequest) -> [GcReport; 2] {
    let node = Node::new(0);
    node.idle("base:1", 100, 10).await;
    let ((began, begins), (release, released)) = (channel(), channel());
    let disk = Arc::new(GatedDisk(Mutex::new(Some((began, released)))));
    let gc = Arc::new(node.gc.with_probe(disk));
    let running = tokio::spawn({
        let gc = Arc::clone(&gc);
        async move { gc.run(&first, at(10_000)).await.unwrap() }
    });
    tokio::task::spawn_blocking(move || begins.recv().unwrap()).await.unwrap();
    let second = tokio::time::timeout(ENDS_WITHIN, gc.run(&second, at(10_000))).await;
    drop(release);
    [running.await.unwrap(), second.expect("it does not wait for the other one").unwrap()]
}

#[tokio::test]
async fn a_plan_does_not_wait_for_a_running_collection() {
    let [collected, planned] = amid(all_unused(false), all_unused(true)).await;
    assert_eq!(planned.decisions[0].outcome, GcOutcome::Chosen);
    assert_eq!(collected.decisions[0].outcome, GcOutcome::Removed);
}

#[tokio::test]
async fn a_collection_does_not_wait_for_a_plan_that_is_being_made() {
    let [planned, collected] = amid(all_unused(true), all_unused(false)).await;
    assert_eq!(planned.decisions[0].outcome, GcOutcome::Chosen);
    assert_eq!(collected.decisions[0].outcome, GcOutcome::Removed);
}

#[tokio::test]
async fn two_collections_wait_for_each_other() {
    let node = Node::new(0);
    let running = node.gc.turn.lock().await;
    let request = all_unused(false);
    let mut waiting = Box::pin(node.gc.run(&request, at(10_000)));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    let mut ended = Box::pin(node.gc.wait_for_running());
    assert!(futures_util::poll!(&mut ended).is_pending(), "a pull plans after the removals that it would count again");
    drop(running);
    waiting.await.unwrap();
    ended.await;
}
