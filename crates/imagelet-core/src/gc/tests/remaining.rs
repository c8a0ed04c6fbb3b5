//! Images that stay after the runtime accepted their removal, and parts on another disk than the measured one.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;
use crate::{
    ports::{
        Certainty, ImageDetails, ImageFilesystems, LayerFacts, LayerGraph, LayerSource, Listing, Progress, PullRequest,
        RemovableNames,
    },
    testing::FakeRuntime,
};

const LEFT: &str = "docker.io/library/import-2026-11-28@sha256:a";

fn outcome<'a>(report: &'a GcReport, id: &ImageId) -> (&'a GcOutcome, &'static str) {
    let decision = report.decisions.iter().find(|decision| decision.entry.image.id == *id).unwrap();
    (&decision.outcome, decision.reason.code())
}

#[tokio::test]
async fn an_image_that_is_still_there_after_its_removal_is_not_removed_and_is_spared_until_its_names_change() {
    for way in [Way::Shipped, Way::Kubelet] {
        let node = Node::new(0);
        let (stays, goes) = (node.idle("stays:1", 100, 10).await, node.idle("goes:1", 250, 20).await);
        node.fake.keep_after_removal(&stays, &[LEFT]);
        let first = node.collect_in(way, GcGoal::AllUnused).await;
        assert_eq!(outcome(&first, &stays), (&GcOutcome::Kept, "remains"), "{way:?}");
        let why = reason(&first, &stays);
        assert_eq!(why, format!("cannot be removed: the runtime accepted its removal and still lists it as `{LEFT}`"));
        assert_eq!(first.removed().map(|it| it.entry.image.id.clone()).collect::<Vec<_>>(), [goes], "{way:?}");
        assert_eq!(first.sizes.claimed, ByteSize(250), "{way:?}");
        assert!(first.failures.is_empty(), "{way:?}: {:?}", first.failures);
        assert_eq!(node.removals().len(), 2, "{way:?}");

        for _ in 0..2 {
            let later = node.collect_in(way, GcGoal::AllUnused).await;
            assert_eq!(outcome(&later, &stays), (&GcOutcome::Kept, "remains"), "{way:?}");
            assert_eq!(node.removals(), Vec::<String>::new(), "{way:?}");
        }
        // In use it stays for that.
        let container = node.fake.run("web", "main", "stays:1", &stays, ContainerState::Running);
        assert_eq!(outcome(&node.collect_in(way, GcGoal::AllUnused).await, &stays).1, "in_use", "{container}");
        node.fake.stop_all();

        node.fake.preload("stays:2", "stays:1", 100);
        node.inventory.refresh(at(10_000)).await.unwrap();
        let policy = way.collecting(GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap());
        let request = GcRequest { policy, goal: GcGoal::AllUnused, dry_run: false };
        node.gc.run(&request, at(20_000)).await.unwrap();
        assert_eq!(node.removals(), [format!("remove {stays}")], "{way:?}: a new name may be removable");
    }
}

#[tokio::test]
async fn another_image_goes_where_the_chosen_one_is_still_there() {
    let node = Node::new(0);
    let (stays, goes) = (node.idle("stays:1", 300, 10).await, node.idle("goes:1", 250, 20).await);
    node.fake.keep_after_removal(&stays, &[LEFT]);
    let report = node.collect(GcGoal::Free(ByteSize(200))).await;
    assert_eq!(node.removals(), [format!("remove {stays}"), format!("remove {goes}")]);
    assert_eq!((report.sizes.freed.bytes, report.sizes.measured), (ByteSize(250), Some(ByteSize(250))));
}

#[tokio::test]
async fn a_requested_removal_of_an_image_that_stays_fails_and_no_collection_repeats_it() {
    let node = Node::new(0);
    let stays = node.idle("stays:1", 300, 10).await;
    node.fake.keep_after_removal(&stays, &[LEFT]);
    let removed = node.gc.remove_ordered(&ImageSpec::new("stays:1"), UsedImages::Stay, at(100)).await;
    let error = removed.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Remains, "{error:?}");
    node.removals();
    assert_eq!(outcome(&node.collect(GcGoal::AllUnused).await, &stays).1, "remains");
    assert_eq!(node.removals(), Vec::<String>::new());
}

#[tokio::test]
async fn a_failed_removal_of_all_unused_images_names_no_impossible_number_of_bytes() {
    let node = Node::new(0);
    node.idle("a:1", 300, 10).await;
    node.fake.fail("remove", RuntimeErrorKind::Other, "no");
    let text = node.collect(GcGoal::AllUnused).await.failure().unwrap();
    let expected = "all unused images wanted, 0B freed, and these removals failed: no";
    assert_eq!(text, expected);
}

#[tokio::test]
async fn an_image_that_stays_is_removed_again_once_it_was_used_or_asked_for() {
    for is_used in [true, false] {
        let node = Node::new(0);
        let stays = node.idle("stays:1", 100, 10).await;
        node.fake.keep_after_removal(&stays, &[LEFT]);
        node.collect(GcGoal::AllUnused).await;
        if is_used {
            node.fake.run("web", "main", "stays:1", &stays, ContainerState::Running);
            node.inventory.refresh(at(10_000)).await.unwrap();
            node.collect(GcGoal::AllUnused).await;
            node.fake.stop_all();
            node.inventory.refresh(at(10_100)).await.unwrap();
        } else {
            node.inventory.touch(&ImageKey::new(stays.clone(), String::new()), at(10_001));
        }
        node.removals();
        let policy = GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap();
        let request = GcRequest { policy, goal: GcGoal::AllUnused, dry_run: false };
        node.gc.run(&request, at(20_000)).await.unwrap();
        assert_eq!(node.removals(), [format!("remove {stays}")], "used: {is_used}");
    }
}

/// The names of a runtime, and what happens while they are replaced.
struct Names(Mutex<Option<Preparation>>);

type Preparation = Box<dyn FnOnce() -> Result<(), RuntimeError> + Send>;

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

#[async_trait]
impl RemovableNames for Names {
    async fn make_removable(&self, _: &ImageId) -> Result<(), RuntimeError> {
        self.0.lock().unwrap().take().map_or(Ok(()), |once| once())
    }
}

impl Node {
    /// Once, before a removal.
    fn preparing(self, once: impl FnOnce() -> Result<(), RuntimeError> + Send + 'static) -> Self {
        let names = Arc::new(Names(Mutex::new(Some(Box::new(once)))));
        let runtime = RuntimeManager::new(Arc::new(self.fake.clone()), self.trapped.clone());
        let runtime = RuntimeManager { names: Some(names), ..runtime };
        Self { gc: ImageGc::new(runtime, Arc::clone(&self.inventory)), ..self }
    }
}

#[tokio::test]
async fn a_pod_that_starts_while_the_names_of_its_image_are_replaced_keeps_the_image() {
    for is_ordered in [true, false] {
        let node = Node::new(0);
        let id = node.idle("app:1", 100, 10).await;
        let (fake, used) = (node.fake.clone(), id.clone());
        let node = node.preparing(move || {
            fake.run("web", "main", "app:1", &used, ContainerState::Running);
            Ok(())
        });
        if is_ordered {
            let removed = node.gc.remove_ordered(&ImageSpec::new("app:1"), UsedImages::Stay, at(100)).await;
            assert!(removed.as_ref().is_err_and(|error| error.kind() == RuntimeErrorKind::InUse), "{removed:?}");
        } else {
            let report = node.collect(GcGoal::AllUnused).await;
            assert_eq!(reason(&report, &id), "in use by default/web/main");
        }
        assert_eq!(node.removals(), [""; 0], "ordered: {is_ordered}");
    }
}

#[tokio::test]
async fn an_image_that_a_name_keeps_is_spared_in_that_collection_alone() {
    let refused = || Err(RuntimeError::new(RuntimeErrorKind::Remains, "its name is another image's"));
    let node = Node::new(0).preparing(refused);
    let id = node.idle("app:1", 100, 10).await;
    let report = node.collect(GcGoal::AllUnused).await;
    assert_eq!(outcome(&report, &id), (&GcOutcome::Kept, "remains"));
    assert_eq!(node.removals(), [""; 0]);
    node.collect(GcGoal::AllUnused).await;
    assert_eq!(node.removals(), [format!("remove {id}")]);

    let node = Node::new(0).preparing(refused);
    let id = node.idle("app:1", 100, 10).await;
    node.gc.remove_ordered(&ImageSpec::new("app:1"), UsedImages::Stay, at(100)).await.unwrap_err();
    node.collect(GcGoal::AllUnused).await;
    assert_eq!(node.removals(), [format!("remove {id}")]);
}

/// After a removal this many looks fail.
#[derive(Debug)]
struct Unanswering {
    fake: FakeRuntime,
    looks: usize,
    left: AtomicUsize,
}

#[async_trait]
impl ImageService for Unanswering {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        self.fake.list(filter).await
    }
    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let is_left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if is_left.is_ok() { Err(RuntimeError::other("no answer")) } else { self.fake.status(spec).await }
    }
    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        self.fake.details(spec).await
    }
    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        self.fake.pull(request, progress).await
    }
    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.left.store(self.looks, Ordering::SeqCst);
        self.fake.remove(spec).await
    }
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.fake.filesystem().await
    }
}

#[tokio::test]
async fn a_removal_that_nothing_confirms_failed() {
    let why = "the runtime accepted its removal and does not answer whether it is gone: no answer";
    for (looks, expected) in [(1, GcOutcome::Removed), (2, GcOutcome::Failed(why.to_owned()))] {
        let node = Node::new(0);
        let id = node.idle("app:1", 100, 10).await;
        let images = Arc::new(Unanswering { fake: node.fake.clone(), looks, left: AtomicUsize::new(0) });
        let runtime = RuntimeManager::new(images, node.trapped.clone());
        let node = Node { gc: ImageGc::new(runtime, Arc::clone(&node.inventory)), ..node };
        let report = node.collect(GcGoal::AllUnused).await;
        assert_eq!(outcome(&report, &id).0, &expected, "{looks}");
        let claimed = if looks == 1 { 100 } else { 0 };
        assert_eq!((report.sizes.claimed, report.failures.len()), (ByteSize(claimed), looks - 1), "{looks}");
    }
}

/// Two disks: the folders of snapshots and of blobs.
#[derive(Debug)]
struct Devices(BTreeMap<PathBuf, &'static str>);

impl DiskProbe for Devices {
    fn look(&self, directory: &Path) -> io::Result<DiskUse> {
        let device = self.0.get(directory).ok_or(io::ErrorKind::NotFound)?;
        Ok(DiskUse { device: (*device).to_owned(), ..DiskUse::of(ByteSize(1000), ByteSize(500)) })
    }
}

#[derive(Debug)]
struct Parts(LayerGraph);

#[async_trait]
impl LayerSource for Parts {
    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        Ok(Some(self.0.clone()))
    }
}

#[tokio::test]
async fn parts_on_another_disk_than_the_measured_one_free_nothing_there() {
    for (measured, blobs, snapshots, expected) in [
        ("1:1", Some("1:1"), Some("1:1"), 70),
        ("1:1", Some("2:2"), Some("1:1"), 60),
        ("1:1", Some("1:1"), Some("2:2"), 10),
        ("1:1", None, Some("1:1"), 70),
        ("", Some("2:2"), Some("1:1"), 70),
    ] {
        let fake = FakeRuntime::new();
        let id = fake.preload("app:1", "app", 100);
        let part = |bytes: u64, folder: &str| LayerFacts {
            id: folder.into(),
            bytes: ByteSize(bytes),
            inodes: Some(1),
            held: false,
            folder: Some(Path::new(folder).into()),
        };
        let layers = vec![part(10, "/blobs"), part(60, "/snapshots")];
        let graph = LayerGraph { layers, images: [(id, vec![0, 1])].into(), certainty: Certainty::Exact };
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake));
        let runtime = RuntimeManager { layers: Some(Arc::new(Parts(graph))), ..runtime };
        let inventory = Arc::new(Inventory::open(runtime.clone(), None).unwrap());
        inventory.refresh(at(0)).await.unwrap();
        let devices = [("/", Some(measured)), ("/blobs", blobs), ("/snapshots", snapshots)];
        let devices = devices.into_iter().filter_map(|(folder, device)| Some((PathBuf::from(folder), device?)));
        let gc = ImageGc::new(runtime, inventory).with_probe(Arc::new(Devices(devices.collect())));
        let policy = GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap();
        let request = GcRequest { policy, goal: GcGoal::AllUnused, dry_run: true };
        let report = gc.run(&request, at(10_000)).await.unwrap();
        assert_eq!(report.sizes.freed.bytes, ByteSize(expected), "{measured:?} {blobs:?} {snapshots:?}");
    }
}
