//! The vectors of collections, each through `ImageGc` over a scripted runtime, with both algorithms.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_vectors::{VectorCase, VectorRun, Way};
use serde_json::{Value, json};

use crate::{
    disks::{DiskProbe, DiskUse},
    error::RuntimeError,
    gc::*,
    image::{ByteSize, Image, ImageId, ImageKey, ImageSpec, ImageUser},
    ports::{
        Container, ContainerImage, ContainerService, ContainerState, ImageFilesystems, ImageService, Listing, Progress,
        PullRequest, Sandbox,
    },
    testing::{FakeRuntime, WaySettings as _},
};

/// The runtime of a vector: its images, users and failures.
#[derive(Debug, Default)]
pub(super) struct Scripted {
    pub(super) images: Mutex<Vec<Value>>,
    used: Vec<(String, String)>,
    list_error: Option<String>,
    stats_error: Option<String>,
    pub(super) removals: Mutex<Vec<ImageSpec>>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

fn failing(error: Option<&String>) -> Result<(), RuntimeError> {
    error.map_or(Ok(()), |error| Err(RuntimeError::other(error.clone())))
}

/// The key of an image, which a vector names by key, or by id and handler.
fn key(value: &Value) -> ImageKey {
    match value["key"].as_str() {
        Some(key) => ImageKey::parse(key),
        None => ImageKey::new(ImageId::new(text(&value["id"])), text(&value["runtime_handler"])),
    }
}

fn image(value: &Value) -> Image {
    Image {
        id: key(value).id().clone(),
        tags: Vec::new(),
        digests: Vec::new(),
        size: ByteSize(value["size"].as_u64().unwrap()),
        user: ImageUser::Unset,
        spec: ImageSpec { runtime_handler: text(&value["runtime_handler"]), ..ImageSpec::default() },
        pinned: value["pinned"].as_bool().unwrap_or(false),
        artifact: None,
    }
}

impl Scripted {
    pub(super) fn holding(images: Vec<Value>) -> Self {
        Self { images: Mutex::new(images), ..Self::default() }
    }

    fn removed(&self) -> Vec<String> {
        self.removals.lock().unwrap().iter().map(|spec| spec.image.clone()).collect()
    }
}

#[async_trait]
impl ImageService for Scripted {
    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        failing(self.list_error.as_ref())?;
        Ok(self.images.lock().unwrap().iter().map(|it| Arc::new(image(it))).collect())
    }
    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let is_it = |it: &Image| it.id.as_str() == spec.image && it.spec.runtime_handler == spec.runtime_handler;
        Ok(self.images.lock().unwrap().iter().map(image).rfind(is_it))
    }
    async fn pull(&self, _request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        Err(RuntimeError::unsupported("scripted"))
    }
    /// Removes the image of the named handler; without one, the last image of the id.
    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let mut images = self.images.lock().unwrap();
        let is_meant = |it: &Value| {
            let (image, handler) = (image(it), &spec.runtime_handler);
            image.id.as_str() == spec.image && (handler.is_empty() || image.spec.runtime_handler == *handler)
        };
        let place = images.iter().rposition(is_meant).ok_or_else(|| RuntimeError::other("no such image"))?;
        if let Some(error) = images[place]["delete_error"].as_str() {
            return Err(RuntimeError::other(error));
        }
        images.remove(place);
        self.removals.lock().unwrap().push(spec.clone());
        Ok(())
    }
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        failing(self.stats_error.as_ref())?;
        FakeRuntime::new().filesystem().await
    }
}

#[async_trait]
impl ContainerService for Scripted {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let container = |(number, (id, handler)): (usize, &(String, String))| Container {
            id: format!("container-{number}"),
            sandbox_id: "sandbox".to_owned(),
            name: format!("container-{number}"),
            image: ContainerImage {
                spec: ImageSpec { runtime_handler: handler.clone(), ..ImageSpec::default() },
                reference: String::new(),
                id: id.clone(),
            },
            state: ContainerState::Running,
            created_at: SystemTime::UNIX_EPOCH,
            labels: BTreeMap::new(),
        };
        Ok(self.used.iter().enumerate().map(container).collect())
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }
    async fn mounted_images(&self, _container_id: &str) -> Result<Vec<String>, RuntimeError> {
        Ok(Vec::new())
    }
}

#[derive(Debug)]
struct FixedDisk(DiskUse);

impl DiskProbe for FixedDisk {
    fn look(&self, _directory: &Path) -> io::Result<DiskUse> {
        Ok(self.0.clone())
    }
}

/// Zero of the vectors' clock: far enough from 1970 for negative times, and for null at 250 years before.
const ZERO: Duration = Duration::from_hours(250 * 365 * 24);

/// Nanoseconds on the vectors' clock; null is earlier than all times.
fn time(value: &Value) -> Option<SystemTime> {
    value.as_i64().map(|nanos| {
        let (zero, span) = (SystemTime::UNIX_EPOCH + ZERO, Duration::from_nanos(nanos.unsigned_abs()));
        if nanos < 0 { zero - span } else { zero + span }
    })
}

fn first_seen(value: &Value) -> SystemTime {
    time(&value["first_detected"]).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn nanos(value: &Value) -> Duration {
    Duration::from_nanos(value.as_u64().unwrap_or(0))
}

fn events_text(events: &[GcEvent]) -> Value {
    events.iter().map(|event| format!("Warning {} {}", event.reason, event.message)).collect()
}

/// A node with the ages and uses of a vector, and its collector.
struct Node {
    scripted: Arc<Scripted>,
    gc: ImageGc,
    now: SystemTime,
    way: Way,
}

impl Node {
    fn new(scripted: Scripted, disk: DiskUse, watched_since: SystemTime, now: SystemTime, way: Way) -> Self {
        let remembered: Vec<_> = scripted
            .images
            .lock()
            .unwrap()
            .iter()
            .map(|it| (key(it), first_seen(it), time(&it["last_used"])))
            .collect();
        let scripted = Arc::new(scripted);
        let runtime = RuntimeManager::new(scripted.clone(), scripted.clone());
        let inventory = Arc::new(Inventory::watching(runtime.clone(), watched_since, now, remembered));
        let gc = ImageGc::new(runtime, inventory).with_probe(Arc::new(FixedDisk(disk)));
        Self { scripted, gc, now, way }
    }

    async fn collect(&self, policy: GcPolicy, goal: GcGoal) -> Result<GcReport, GcError> {
        let request = GcRequest { policy: self.way.collecting(policy), goal, dry_run: false };
        self.gc.run(&request, self.now).await
    }
}

fn ended(collected: &Result<GcReport, GcError>) -> (Option<String>, Vec<GcEvent>) {
    match collected {
        Ok(report) => (report.failure(), report.events.clone()),
        Err(error) => (Some(error.to_string()), error.event().into_iter().collect()),
    }
}

/// The ids for the pruning of records; the kubelet's are those for its hooks.
fn handed_on(report: &GcReport, way: Way) -> Option<Vec<String>> {
    let ids = if way == Way::Kubelet { &report.hook } else { &report.present };
    ids.as_ref().map(|ids| ids.iter().map(ToString::to_string).collect())
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_room_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("gc-free-space.json", way);
        while let Some(case) = run.next_case() {
            let input = &case.input;
            let scripted = Scripted::holding(input["candidates"].as_array().unwrap().clone());
            let (goal, marks, disk) = goal_of(input["bytes_to_free"].as_i64().unwrap());
            let now = time(&input["free_time"]).unwrap();
            let node = Node::new(scripted, disk, now, now, way);
            let policy = GcPolicy::new(marks, marks, nanos(&input["min_age"]), None).unwrap();
            let report = node.collect(policy, goal).await.unwrap();
            let found = json!({
                "deleted": node.scripted.removed(), "freed": report.sizes.claimed.0, "error": report.failure(),
                "remaining": handed_on(&report, way),
            });
            run.compare(&case, &found);
        }
        run.end();
    }
}

/// A collection with this goal, as percentages of a disk; only equal thresholds can want zero or less.
fn goal_of(bytes: i64) -> (GcGoal, i64, DiskUse) {
    const AVAILABLE: u64 = 1000;
    let half_full = |capacity| (50, DiskUse::of(ByteSize(capacity), ByteSize(AVAILABLE)));
    match bytes {
        i64::MAX => (GcGoal::AllUnused, 100, DiskUse::default()),
        1.. => (GcGoal::Free(ByteSize(bytes.unsigned_abs())), 100, DiskUse::default()),
        _ => {
            let (marks, disk) = half_full(2 * (AVAILABLE - bytes.unsigned_abs()));
            (GcGoal::Threshold, marks, disk)
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_age_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("gc-max-age.json", way);
        while let Some(case) = run.next_case() {
            let input = &case.input;
            let scripted = Scripted::holding(input["candidates"].as_array().unwrap().clone());
            let [began, now] = ["began_gc", "free_time"].map(|field| time(&input[field]).unwrap());
            let disk = DiskUse::of(ByteSize(1000), ByteSize(1000));
            let node = Node::new(scripted, disk, began, now, way);
            let policy = GcPolicy::new(85, 80, Duration::ZERO, Some(nanos(&input["max_age"]))).unwrap();
            let report = node.collect(policy, GcGoal::Threshold).await.unwrap();
            let left: Vec<String> = report.present.iter().flatten().map(ToString::to_string).collect();
            let found = json!({
                "deleted": node.scripted.removed(), "remaining": left, "error": report.failure(),
            });
            run.compare(&case, &found);
        }
        run.end();
    }
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_the_order_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("gc-eviction-order.json", way);
        while let Some(case) = run.next_case() {
            let input = &case.input;
            let used = texts(&input["in_use"])
                .iter()
                .map(|used| ImageKey::parse(used))
                .map(|used| (used.id().to_string(), used.handler().to_owned()))
                .collect();
            let images = input["records"].as_array().unwrap().clone();
            let scripted = Scripted { used, ..Scripted::holding(images) };
            let now = time(&json!(1_000_000)).unwrap();
            let node = Node::new(scripted, DiskUse::default(), now, now, way);
            let policy = GcPolicy::new(85, 80, Duration::ZERO, None).unwrap();
            let report = node.collect(policy, GcGoal::AllUnused).await.unwrap();
            let order = node.scripted.removed();
            let mut found = json!({"order": order, "events": events_text(&report.events)});
            if let Some(groups) = case.expected["unordered_groups"].as_array() {
                // The kubelet's order among these is arbitrary; here it is by key.
                let groups: Vec<Vec<String>> = groups.iter().map(texts).collect();
                let group = |group: &Vec<String>| -> Vec<String> {
                    order.iter().filter(|id| group.contains(id)).cloned().collect()
                };
                found["unordered_groups"] = json!(groups.iter().map(group).collect::<Vec<_>>());
            }
            run.compare(&case, &found);
        }
        run.end();
    }
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_whole_collections_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("gc-garbage-collect.json", way);
        while let Some(case) = run.next_case() {
            let found = whole_collection(&case, way).await;
            run.compare(&case, &found);
        }
        run.end();
    }
}

async fn whole_collection(case: &VectorCase, way: Way) -> Value {
    let VectorCase { input, expected, .. } = case;
    let policy = &input["policy"];
    let percent = |field: &str| policy[field].as_i64().unwrap();
    let policy = GcPolicy::new(
        percent("high_threshold_percent"),
        percent("low_threshold_percent"),
        nanos(&policy["min_age"]),
        Some(nanos(&policy["max_age"])),
    )
    .unwrap();
    let bytes = |field: &str| ByteSize(input["stats"][field].as_u64().unwrap_or(0));
    let containers = input["pods"].as_array().unwrap().iter().flat_map(|pod| pod["containers"].as_array().unwrap());
    let now = time(&json!(0)).unwrap();
    let began = now - nanos(&input["loop_started_before"]);
    // All are present since the loop started.
    let mut images = input["images"].as_array().unwrap().clone();
    for image in &mut images {
        image["first_detected"] = json!(-i64::try_from(now.duration_since(began).unwrap().as_nanos()).unwrap());
    }
    let scripted = Scripted {
        used: containers.map(|it| (text(&it["image_id"]), String::new())).collect(),
        list_error: input["list_images_error"].as_str().map(str::to_owned),
        stats_error: input["stats"]["error"].as_str().map(str::to_owned),
        ..Scripted::holding(images)
    };
    let disk = DiskUse::of(bytes("capacity_bytes"), bytes("available_bytes"));
    let node = Node::new(scripted, disk, began, now, way);
    let goal = match input["operation"].as_str() {
        Some("DeleteUnusedImages") => GcGoal::AllUnused,
        _ => GcGoal::Threshold,
    };
    let collected = node.collect(policy, goal).await;
    let (error, events) = ended(&collected);
    let mut removals = node.scripted.removed();
    let mut found = json!({
        "error": error,
        "hooks_run": collected.as_ref().is_ok_and(|report| handed_on(report, way).is_some()),
    });
    // Each vector names the removals in one of these forms.
    let removals_as = ["deleted", "remove_calls", "deleted_unordered"].into_iter().find(|it| !expected[it].is_null());
    if removals_as == Some("deleted_unordered") {
        removals.sort();
    }
    found[removals_as.unwrap()] = json!(removals);
    match expected.get("events") {
        Some(_) => found["events"] = events_text(&events),
        None => assert_eq!(events, [], "{}", case.name),
    }
    found
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_thresholds_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("gc-thresholds.json", way);
        while let Some(case) = run.next_case() {
            let input = &case.input;
            let number = |field: &str| input[field].as_u64();
            let percent = |field: &str| input[field].as_i64().unwrap();
            let (capacity, available) = (number("capacity_bytes"), number("available_bytes"));
            let policy = GcPolicy::new(
                percent("high_threshold_percent"),
                percent("low_threshold_percent"),
                Duration::ZERO,
                None,
            );
            let found = match way {
                Way::Kubelet => kubelets_threshold(policy.unwrap(), capacity, available),
                Way::Shipped => threshold(policy.unwrap(), capacity, available).await,
            };
            run.compare(&case, &found);
        }
        run.end();
    }
}

/// The steps of the kubelet's collection, whose amount may be negative.
fn kubelets_threshold(policy: GcPolicy, capacity: Option<u64>, available: Option<u64>) -> Value {
    let (capacity, available) = (ByteSize(capacity.unwrap_or(0)), ByteSize(available.unwrap_or(0)));
    let disk = DiskUse::of(capacity, available);
    let mut found = json!({"clamped": disk.available < available});
    if capacity == ByteSize::ZERO {
        return failed_threshold(found, &GcError::NoCapacity);
    }
    let is_triggered = disk.used_percent() >= policy.high().get();
    (found["usage_percent"], found["triggered"]) = (disk.used_percent().into(), is_triggered.into());
    if is_triggered {
        found["amount_to_free"] = policy.excess(&disk).into();
    }
    found
}

/// A whole collection of a node without images, with or without a goal.
async fn threshold(policy: GcPolicy, capacity: Option<u64>, available: Option<u64>) -> Value {
    let (capacity, available) = (ByteSize(capacity.unwrap_or(0)), ByteSize(available.unwrap_or(0)));
    let disk = DiskUse::of(capacity, available);
    let mut found = json!({"clamped": disk.available < available});
    let now = time(&json!(0)).unwrap();
    let node = Node::new(Scripted::default(), disk, now, now, Way::Shipped);
    match node.collect(policy, GcGoal::Threshold).await {
        Err(error) => failed_threshold(found, &error),
        Ok(report) => {
            found["usage_percent"] = report.disk_before.used_percent().into();
            found["triggered"] = report.sizes.goal.is_some().into();
            if let Some(goal) = report.sizes.goal {
                found["amount_to_free"] = goal.0.into();
            }
            found
        }
    }
}

fn failed_threshold(mut found: Value, error: &GcError) -> Value {
    found["error"] = error.to_string().into();
    found["event"] = events_text(&error.event().into_iter().collect::<Vec<_>>())[0].take();
    found
}
