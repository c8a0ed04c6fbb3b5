//! The vectors of detection through a scripted runtime, and stories of a node over the fake one.

mod clock_steps;
mod sandboxes;

use std::{
    collections::BTreeSet,
    fs,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use imagelet_vectors::{VectorRun, Way};
use serde_json::{Value, json};

use super::*;
use crate::{
    image::{ByteSize, ImageId, ImageSpec, ImageUser},
    inventory::pins::PATTERNS_MAX,
    ports::{
        Container, ContainerImage, ContainerService, ContainerState, ImageFilesystems, ImageService, Listing, Progress,
        PullRequest, Sandbox,
    },
    testing::{FakeRuntime, WaySettings as _},
};

impl Inventory {
    /// Pins one pattern.
    pub(crate) fn pin(&self, pattern: &str) -> Result<bool, InventoryError> {
        let pinned = self.pin_all(&[pattern])?.pop().expect("one pattern has one result");
        pinned.map_err(|source| InventoryError::Pin { pattern: pattern.to_owned(), source })
    }
}

#[derive(Debug, Default)]
struct Scripted(Mutex<Value>);

impl Scripted {
    fn pass(&self) -> Value {
        self.0.lock().unwrap().clone()
    }

    fn refusal(&self, field: &str) -> Result<(), RuntimeError> {
        self.pass()[field].as_str().map_or(Ok(()), |text| Err(RuntimeError::other(text)))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[async_trait]
impl ImageService for Scripted {
    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        self.refusal("list_images_error")?;
        let image = |it: &Value| Image {
            id: ImageId::new(text(&it["id"])),
            tags: Vec::new(),
            digests: Vec::new(),
            size: ByteSize(it["size"].as_u64().unwrap()),
            user: ImageUser::Unset,
            spec: ImageSpec { runtime_handler: text(&it["runtime_handler"]), ..ImageSpec::default() },
            pinned: it["pinned"].as_bool().unwrap_or(false),
            artifact: None,
        };
        Ok(self.pass()["images"].as_array().unwrap().iter().map(|it| Arc::new(image(it))).collect())
    }
    async fn status(&self, _spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(None)
    }
    async fn pull(&self, _request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        Err(RuntimeError::unsupported("scripted"))
    }
    async fn remove(&self, _spec: &ImageSpec) -> Result<(), RuntimeError> {
        Err(RuntimeError::unsupported("scripted"))
    }
    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(ImageFilesystems::default())
    }
}

#[async_trait]
impl ContainerService for Scripted {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        self.refusal("get_pods_error")?;
        let pass = self.pass();
        let containers = pass["pods"].as_array().unwrap().iter().flat_map(|pod| pod["containers"].as_array().unwrap());
        let container = |it: &Value| Container {
            id: text(&it["id"]),
            sandbox_id: "sandbox".to_owned(),
            name: String::new(),
            image: ContainerImage {
                spec: ImageSpec {
                    image: text(&it["image"]),
                    runtime_handler: text(&it["runtime_handler"]),
                    ..ImageSpec::default()
                },
                reference: String::new(),
                id: text(&it["image_id"]),
            },
            state: ContainerState::Exited,
            created_at: SystemTime::UNIX_EPOCH,
            labels: BTreeMap::new(),
        };
        Ok(containers.map(container).collect())
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }
    async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
        let pass = self.pass();
        let mut containers =
            pass["pods"].as_array().unwrap().iter().flat_map(|pod| pod["containers"].as_array().unwrap());
        let container = containers.find(|it| it["id"] == container_id).unwrap();
        match container["status_error"].as_str() {
            Some(error) => Err(RuntimeError::other(error)),
            None => Ok(container["image_mounts"].as_array().into_iter().flatten().map(text).collect()),
        }
    }
}

fn seconds(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

/// Nanoseconds on the vectors' clock, which stands at zero then; null is 1970.
const VECTOR_ZERO: Duration = Duration::from_hours(250 * 365 * 24);

fn vector_time(value: &Value) -> SystemTime {
    let nanos = value.as_u64().map(Duration::from_nanos);
    nanos.map_or(SystemTime::UNIX_EPOCH, |nanos| SystemTime::UNIX_EPOCH + VECTOR_ZERO + nanos)
}

fn as_vector_time(time: Option<SystemTime>) -> Value {
    let since = time.map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap()).unwrap_or_default();
    since.checked_sub(VECTOR_ZERO).map_or(Value::Null, |since| u64::try_from(since.as_nanos()).unwrap().into())
}

fn as_vector_records(entries: &[Arc<ImageEntry>]) -> Value {
    let written = entries.iter().map(|entry| {
        let ImageEntry { image, usage, .. } = entry.as_ref();
        let written = json!({
            "first_detected": as_vector_time(usage.times.first_seen), "last_used": as_vector_time(usage.times.last_used),
            "runtime_handler": image.spec.runtime_handler, "size": image.size.0, "pinned": image.pinned,
        });
        (entry.key().to_string(), written)
    });
    Value::Object(written.collect())
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_detection_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("gc-detect.json", way);
        while let Some(case) = run.next_case() {
            let scripted = Arc::new(Scripted::default());
            let runtime = RuntimeManager::new(scripted.clone(), scripted.clone());
            let is_forgetful = !way.node_policy().inventory.remembers_absent_images;
            let inventory = Inventory::open(runtime, None).unwrap().forgetful(is_forgetful);
            let mut passes = Vec::new();
            for pass in case.input["passes"].as_array().unwrap() {
                scripted.0.lock().unwrap().clone_from(pass);
                passes.push(detection_pass(&inventory, pass).await);
            }
            run.compare(&case, &json!({"after_each_pass": passes}));
        }
        run.end();
    }
}

async fn detection_pass(inventory: &Inventory, pass: &Value) -> Value {
    let mut found = match inventory.survey().await {
        Ok(survey) => {
            let users = detect::users(&survey, |_| false).0;
            let in_use: BTreeSet<String> = users.keys().map(ToString::to_string).collect();
            let (asked_at, now) = (vector_time(&pass["detect_time"]), vector_time(&pass["now"]));
            inventory.lock().apply(survey, asked_at, now, &mut inventory.leases.lock());
            json!({"error": null, "in_use": in_use})
        }
        Err(error) => json!({"error": error.to_string()}),
    };
    found["records"] = as_vector_records(inventory.snapshot().as_ref().map_or(&[], |snapshot| &snapshot.entries));
    found
}

fn node(directory: Option<&Path>) -> (FakeRuntime, Inventory) {
    let fake = FakeRuntime::new();
    let inventory = over(&fake, directory);
    (fake, inventory)
}

fn over(fake: &FakeRuntime, directory: Option<&Path>) -> Inventory {
    Inventory::open(RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone())), directory).unwrap()
}

fn leasing(inventory: Inventory, now: u64) -> Inventory {
    inventory.leases.start(Duration::from_mins(10), seconds(now));
    inventory
}

fn entry(snapshot: &Snapshot, id: &ImageId) -> ImageEntry {
    ImageEntry::clone(snapshot.entries.iter().find(|entry| entry.image.id == *id).unwrap())
}

#[tokio::test]
async fn a_container_uses_its_image_however_it_is_spelled() {
    for spelling in ["app:v1", "docker.io/library/app:v1", "ID", "SHORT", "DIGEST"] {
        let (fake, inventory) = node(None);
        let id = fake.preload("app:v1", "app", 10);
        let digest = fake.list(None).await.unwrap()[0].digests[0].clone();
        let short = id.as_str()["sha256:".len()..][..12].to_owned();
        let spelled = spelling.replace("ID", id.as_str()).replace("SHORT", &short).replace("DIGEST", &digest);
        let stranger = ImageId::new("sha256:something-else");
        fake.run("web", "app", &spelled, &stranger, ContainerState::Exited);
        let snapshot = inventory.refresh(seconds(0)).await.unwrap();
        assert_eq!(entry(&snapshot, &id).usage.used_by, ["default/web/app"], "{spelling}");
        assert!(entry(&snapshot, &id).usage.times.last_used.is_some());
    }
}

#[tokio::test]
async fn a_mounted_image_is_in_use_and_each_container_is_asked_once() {
    let (fake, inventory) = node(None);
    let (app, volume) = (fake.preload("app:v1", "app", 1), fake.preload("models:v1", "models", 1));
    let container = fake.run("web", "app", "app:v1", &app, ContainerState::Running);
    fake.mount_volume(&container, "models:v1");
    let snapshot = inventory.refresh(seconds(0)).await.unwrap();
    assert_eq!(entry(&snapshot, &volume).usage.used_by, ["default/web/app (volume)"]);
    fake.take_calls();
    let snapshot = inventory.refresh(seconds(1)).await.unwrap();
    assert_eq!(entry(&snapshot, &volume).usage.used_by, ["default/web/app (volume)"]);
    assert_eq!(fake.take_calls(), ["list", "sandboxes", "containers", "config"]);
}

#[tokio::test]
async fn a_restart_keeps_first_sight_and_last_use() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    let id = fake.preload("app:v1", "app", 1);
    fake.run("web", "app", "app:v1", &id, ContainerState::Running);
    let before = entry(&inventory.refresh(seconds(0)).await.unwrap(), &id);
    inventory.flush().unwrap();
    drop(inventory);
    fake.stop_all();
    let snapshot = over(&fake, Some(directory.path())).refresh(seconds(500)).await.unwrap();
    let after = entry(&snapshot, &id);
    assert_eq!(
        (after.usage.times.first_seen, after.usage.times.last_used),
        (before.usage.times.first_seen, before.usage.times.last_used)
    );
    assert_eq!(snapshot.watched_since, before.usage.times.last_used.unwrap());
    assert!(snapshot.containers_vanished, "the empty list right after the restart is doubted");
}

/// The next crash may come before a ledger that waits for its time.
#[tokio::test]
async fn an_image_that_came_into_use_is_doubted_after_a_crash_right_after_the_pass() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    let (one, other) = (fake.preload("one:v1", "one", 1), fake.preload("other:v1", "other", 1));
    inventory.refresh(seconds(0)).await.unwrap();
    fake.run("web", "app", "one:v1", &one, ContainerState::Running);
    inventory.refresh(seconds(1)).await.unwrap();
    fake.run("db", "app", "other:v1", &other, ContainerState::Running);
    inventory.refresh(seconds(2)).await.unwrap();
    let late = fake.preload("late:v1", "late", 1);
    fake.run("job", "app", "late:v1", &late, ContainerState::Running);
    inventory.refresh(seconds(3)).await.unwrap();
    drop(inventory);
    fake.stop_all();
    let restarted = over(&fake, Some(directory.path())).refresh(seconds(4)).await.unwrap();
    assert!(restarted.containers_vanished);
    for id in [one, other, late] {
        assert_eq!(entry(&restarted, &id).usage.times.released_at, Some(restarted.taken_at));
    }
}

#[tokio::test]
async fn a_long_gap_starts_the_watch_anew() {
    let (fake, inventory) = node(None);
    fake.preload("app:v1", "app", 1);
    inventory.refresh(seconds(0)).await.unwrap();
    let later = seconds(0) + observation_window::WATCH_GAP_MAX * 2;
    assert!(inventory.refresh(later).await.unwrap().watched_since >= later);
}

#[tokio::test]
async fn an_empty_container_list_is_doubted_for_a_minute() {
    let (fake, inventory) = node(None);
    let id = fake.preload("app:v1", "app", 1);
    fake.run("web", "app", "app:v1", &id, ContainerState::Running);
    assert!(!inventory.refresh(seconds(0)).await.unwrap().containers_vanished);
    fake.stop_all();
    assert!(inventory.refresh(seconds(300)).await.unwrap().containers_vanished);
    assert!(inventory.refresh(seconds(330)).await.unwrap().containers_vanished);
    assert!(!inventory.refresh(seconds(400)).await.unwrap().containers_vanished);
}

#[tokio::test]
async fn a_clock_set_back_leaves_nothing_in_the_future() {
    let (fake, inventory) = node(None);
    let id = fake.preload("app:v1", "app", 1);
    inventory.refresh(seconds(100_000)).await.unwrap();
    inventory.touch(&ImageKey::new(id.clone(), String::new()), seconds(200_000));
    let snapshot = inventory.refresh(seconds(10)).await.unwrap();
    let entry = entry(&snapshot, &id);
    assert!(
        entry.usage.times.first_seen <= Some(snapshot.taken_at)
            && entry.usage.times.last_used <= Some(snapshot.taken_at)
    );
}

#[tokio::test]
async fn a_touch_counts_as_use_and_never_moves_back() {
    let (fake, inventory) = node(None);
    let id = fake.preload("app:v1", "app", 1);
    let key = ImageKey::new(id.clone(), String::new());
    inventory.touch(&key, seconds(20));
    inventory.touch(&key, seconds(10));
    let snapshot = inventory.refresh(seconds(30)).await.unwrap();
    assert_eq!(entry(&snapshot, &id).usage.times.last_used, Some(seconds(20)));
    assert_eq!(entry(&snapshot, &id).usage.times.requested_at, Some(seconds(20)));
}

#[tokio::test]
async fn pins_hold_across_processes_and_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    let id = fake.preload("ghcr.io/team/app:v1", "app", 1);
    inventory.refresh(seconds(0)).await.unwrap();
    let other = over(&fake, Some(directory.path()));
    assert!(other.pin("ghcr.io/team/*").unwrap());
    assert!(!inventory.pin("ghcr.io/team/*").unwrap(), "the other process pinned it");
    assert_eq!(entry(&inventory.snapshot().unwrap(), &id).pinned_by, ["ghcr.io/team/*"]);
    assert_eq!(over(&fake, Some(directory.path())).pins(), ["ghcr.io/team/*"]);
    assert!(other.unpin("ghcr.io/team/*").unwrap());
    assert!(!other.unpin("ghcr.io/team/*").unwrap());
    assert!(entry(&inventory.refresh(seconds(1)).await.unwrap(), &id).pinned_by.is_empty());
    assert_eq!(inventory.pin("*").unwrap_err().to_string(), "cannot pin `*`");
}

#[tokio::test]
async fn patterns_are_pinned_in_one_pass_and_a_rejected_one_alone_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    inventory.pin("app:v1").unwrap();
    let pinned = inventory.pin_all(&["web:v1", "*", "app:v1", "web:v1", "db:v1"]).unwrap();
    assert_eq!(pinned, [Ok(true), Err(PinError::Everything), Ok(false), Ok(false), Ok(true)]);
    assert_eq!(over(&fake, Some(directory.path())).pins(), ["app:v1", "web:v1", "db:v1"]);
    let many: Vec<String> = (0..PATTERNS_MAX).map(|number| format!("app:v{number}")).collect();
    let pinned = inventory.pin_all(&many).unwrap();
    assert_eq!((&pinned[1], pinned.iter().filter(|pinned| pinned.is_err()).count()), (&Ok(false), 2));
    assert_eq!((&pinned[PATTERNS_MAX - 1], inventory.pins().len()), (&Err(PinError::TooMuch), PATTERNS_MAX));
    assert!(!inventory.pin("db:v1").unwrap(), "an existing pin is not one too many");
    std::fs::remove_file(directory.path().join("pins.lock")).unwrap();
    std::fs::create_dir(directory.path().join("pins.lock")).unwrap();
    inventory.pin_all(&["db:v1"]).unwrap_err();
}

#[tokio::test]
async fn refreshes_that_wait_together_share_one_pass() {
    let (fake, inventory) = node(None);
    let inventory = Arc::new(inventory);
    let busy = inventory.pass.lock().await;
    let refresh = |_| {
        let inventory = Arc::clone(&inventory);
        tokio::spawn(async move { inventory.refresh(seconds(0)).await.unwrap() })
    };
    let waiting: Vec<_> = (0..5).map(refresh).collect();
    tokio::task::yield_now().await;
    drop(busy);
    for refreshed in waiting {
        refreshed.await.unwrap();
    }
    assert_eq!(fake.take_calls(), ["list", "sandboxes", "containers", "config"]);
}

#[tokio::test]
async fn a_failed_pass_changes_nothing() {
    let (fake, inventory) = node(None);
    fake.preload("app:v1", "app", 1);
    let before = inventory.refresh(seconds(0)).await.unwrap();
    fake.preload("new:v1", "new", 1);
    for call in ["list", "containers", "sandboxes"] {
        fake.fail(call, RuntimeErrorKind::Unavailable, "down");
        assert_eq!(inventory.refresh(seconds(1)).await.unwrap_err().to_string(), "down");
        fake.heal();
    }
    assert!(Arc::ptr_eq(&before, &inventory.snapshot().unwrap()));
}

#[tokio::test]
async fn a_damaged_ledger_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("ledger"), "{ torn").unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    fake.preload("app:v1", "app", 1);
    assert_eq!(inventory.refresh(seconds(0)).await.unwrap().entries.len(), 1);
    inventory.flush().unwrap();
    assert!(fs::read_to_string(directory.path().join("ledger")).unwrap().contains("first_seen"));
}

#[tokio::test]
async fn what_is_asked_for_is_leased_until_its_pod_shows_it() {
    let (fake, inventory) = node(None);
    let inventory = leasing(inventory, 0);
    let id = fake.preload("app:v1", "app", 1);
    inventory.refresh(seconds(0)).await.unwrap();
    let spec = ImageSpec::new("app:v1");
    let found = inventory.leased("uid-web", seconds(1), || fake.status(&spec), |it| Some(it.as_ref()?.key())).await;
    assert_eq!(found.unwrap().unwrap().id, id);
    assert!(entry(&inventory.refresh(seconds(2)).await.unwrap(), &id).leased_until >= Some(seconds(601)));
    fake.run("web", "app", "app:v1", &id, ContainerState::Running);
    let still = entry(&inventory.refresh(seconds(3)).await.unwrap(), &id);
    assert!(still.leased_until.is_some(), "the fake's containers are older than the asking");
    assert_eq!(entry(&inventory.refresh(seconds(700)).await.unwrap(), &id).leased_until, None);
}

#[tokio::test]
async fn a_lease_survives_a_crash_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    let inventory = leasing(inventory, 0);
    let id = fake.preload("app:v1", "app", 1);
    let spec = ImageSpec::new("app:v1");
    let ask = || inventory.leased("", seconds(1), || fake.status(&spec), |it| Some(it.as_ref()?.key()));
    futures_util::future::join_all((0..110).map(|_| ask())).await.into_iter().for_each(|found| assert!(found.is_ok()));
    // Nothing is flushed: the process ended.
    std::mem::forget(inventory);
    let restarted = leasing(over(&fake, Some(directory.path())), 30);
    let snapshot = restarted.refresh(seconds(30)).await.unwrap();
    assert!(entry(&snapshot, &id).leased_until >= Some(seconds(601)));
    let kept = restarted.check_removable(&entry(&snapshot, &id), 0, seconds(31)).await.unwrap();
    assert!(matches!(kept, Err(Reason::Awaited(Some(_)))), "{kept:?}");
}

#[tokio::test]
async fn a_lease_of_another_process_that_comes_after_the_plan_keeps_the_image() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    let inventory = leasing(inventory, 0);
    let id = fake.preload("app:v1", "app", 1);
    let planned = entry(&inventory.refresh(seconds(1)).await.unwrap(), &id);
    let command = leasing(over(&fake, Some(directory.path())), 2);
    let spec = ImageSpec::new("app:v1");
    let found = command.leased("", seconds(2), || fake.status(&spec), |it| Some(it.as_ref()?.key())).await;
    assert!(found.unwrap().is_some());
    let kept = inventory.check_removable(&planned, 0, seconds(3)).await.unwrap();
    assert!(matches!(kept, Err(Reason::Awaited(Some(_)))), "{kept:?}");
}

#[tokio::test]
async fn a_request_is_written_unless_the_disk_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    let inventory = leasing(inventory, 0);
    let [first, second, third] = ["a:v1", "b:v1", "c:v1"].map(|name| fake.preload(name, name, 1));
    let file = directory.path().join("leases.json");
    let ask = async |name: &str, at: u64| {
        let before = fs::read(&file).ok();
        let spec = ImageSpec::new(name);
        let found = inventory.leased("", seconds(at), || fake.status(&spec), |it| Some(it.as_ref()?.key())).await;
        assert!(found.unwrap().is_some());
        fs::read(&file).ok() != before
    };
    assert!(ask("a:v1", 1).await && ask("b:v1", 2).await);
    assert!(!ask("a:v1", 3).await, "a request within seconds is on the disk already");
    assert!(ask("a:v1", 40).await);
    // The file is damaged.
    fs::write(&file, b"{\"image\":\"sha25").unwrap();
    assert!(ask("c:v1", 41).await);
    let restarted = leasing(over(&fake, Some(directory.path())), 50);
    let snapshot = restarted.refresh(seconds(50)).await.unwrap();
    for (id, until) in [(&first, 640), (&second, 602), (&third, 641)] {
        assert!(entry(&snapshot, id).leased_until >= Some(seconds(until)), "{id}");
    }
}

#[tokio::test]
async fn leases_that_cannot_be_read_lease_every_image() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    let id = fake.preload("app:v1", "app", 1);
    fs::write(directory.path().join("leases.json"), "{ torn").unwrap();
    let inventory = leasing(inventory, 0);
    assert_eq!(entry(&inventory.refresh(seconds(1)).await.unwrap(), &id).leased_until, Some(seconds(600)));
    let later = inventory.refresh(seconds(601)).await.unwrap();
    assert_eq!(entry(&later, &id).leased_until, None);
}

#[tokio::test]
async fn who_asks_during_a_removal_waits_for_it_and_learns_that_the_image_is_gone() {
    let (fake, inventory) = node(None);
    let inventory = Arc::new(leasing(inventory, 0));
    let id = fake.preload("app:v1", "app", 1);
    let snapshot = inventory.refresh(seconds(0)).await.unwrap();
    let cleared = inventory.check_removable(&entry(&snapshot, &id), 0, seconds(1)).await.unwrap();
    let Ok(removal) = cleared else { panic!("{cleared:?}") };
    let spec = ImageSpec::new("app:v1");
    let mut asking = Box::pin(inventory.leased("", seconds(1), || fake.status(&spec), |it| Some(it.as_ref()?.key())));
    assert!(futures_util::poll!(asking.as_mut()).is_pending(), "it is here, and on its way out");
    fake.remove(&ImageSpec::new(id.as_str())).await.unwrap();
    drop(removal);
    assert!(asking.await.unwrap().is_none());
    let removal = inventory.leases.order_removal(&id).await;
    // Another requested removal waits for it instead of failing.
    let mut again = Box::pin(inventory.leases.order_removal(&id));
    assert!(futures_util::poll!(again.as_mut()).is_pending());
    drop(removal);
    drop(again.await);
}

#[tokio::test]
async fn an_image_whose_last_container_is_missing_from_one_list_waits_for_a_second_look() {
    let directory = tempfile::tempdir().unwrap();
    let (fake, inventory) = node(Some(directory.path()));
    let inventory = leasing(inventory, 0);
    let (id, other) = (fake.preload("app:v1", "app", 1), fake.preload("other:v1", "other", 1));
    fake.run("web", "app", "app:v1", &id, ContainerState::Running);
    inventory.refresh(seconds(0)).await.unwrap();
    inventory.flush().unwrap();
    // Half of a list: the runtime and imagelet have just restarted.
    fake.stop_all();
    fake.run("db", "app", "other:v1", &other, ContainerState::Running);
    for inventory in [&inventory, &leasing(over(&fake, Some(directory.path())), 0)] {
        let snapshot = inventory.refresh(seconds(300)).await.unwrap();
        assert_eq!(entry(&snapshot, &id).usage.times.released_at, Some(snapshot.taken_at));
        let kept = inventory.check_removable(&entry(&snapshot, &id), 1, seconds(301)).await.unwrap();
        assert!(matches!(kept, Err(Reason::Released)), "{kept:?}");
        let snapshot = inventory.refresh(seconds(361)).await.unwrap();
        assert_eq!(entry(&snapshot, &id).usage.times.released_at, None);
        let cleared = inventory.check_removable(&entry(&snapshot, &id), 1, seconds(362)).await.unwrap();
        assert!(cleared.is_ok(), "{cleared:?}");
    }
}

#[tokio::test]
async fn an_image_whose_container_the_runtime_says_is_gone_is_unused_at_once() {
    let (fake, inventory) = node(None);
    let inventory = leasing(inventory, 0);
    let (id, other) = (fake.preload("app:v1", "app", 1), fake.preload("other:v1", "other", 1));
    fake.run("web", "app", "app:v1", &id, ContainerState::Running);
    inventory.refresh(seconds(0)).await.unwrap();
    fake.stop_all();
    fake.run("db", "app", "other:v1", &other, ContainerState::Running);
    fake.report_gone_containers();
    let snapshot = inventory.refresh(seconds(300)).await.unwrap();
    assert_eq!(entry(&snapshot, &id).usage.times.released_at, None);
    assert!(inventory.check_removable(&entry(&snapshot, &id), 1, seconds(301)).await.unwrap().is_ok());
}
