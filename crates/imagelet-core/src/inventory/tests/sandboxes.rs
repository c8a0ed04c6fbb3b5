//! Stories of the images that sandboxes run from, over the fake runtime.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::*;
use crate::{
    image::{ImageId, ImageKey},
    inventory::{ImageEntry, Snapshot},
    ports::{ContainerState, RuntimeManager, Sandbox},
    testing::FakeRuntime,
};

const PAUSE: &str = "registry.k8s.io/pause:3.6";

fn seconds(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn node(directory: Option<&Path>) -> (FakeRuntime, Inventory) {
    let fake = FakeRuntime::new();
    let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
    (fake, Inventory::open(runtime, directory).unwrap())
}

/// Runs a sandbox and no container.
fn run(fake: &FakeRuntime, pod: &str, is_ready: bool, image: &str) -> String {
    let id = format!("sandbox-{pod}");
    fake.add_sandbox(Sandbox {
        id: id.clone(),
        name: pod.to_owned(),
        namespace: "default".to_owned(),
        uid: format!("uid-{pod}"),
        attempt: 0,
        ready: is_ready,
        created_at: SystemTime::UNIX_EPOCH,
        runtime_handler: String::new(),
    });
    fake.set_sandbox_image(&id, image);
    id
}

fn entry(snapshot: &Snapshot, id: &ImageId) -> ImageEntry {
    ImageEntry::clone(snapshot.entries.iter().find(|entry| entry.image.id == *id).unwrap())
}

fn asked(fake: &FakeRuntime) -> usize {
    fake.take_calls().iter().filter(|call| call.starts_with("sandbox ")).count()
}

#[tokio::test]
async fn the_image_of_every_sandbox_is_in_use_ready_or_not() {
    let (fake, inventory) = node(None);
    let (pause, old) = (fake.preload(PAUSE, "pause", 1), fake.preload("registry.k8s.io/pause:3.5", "old", 1));
    run(&fake, "web", true, PAUSE);
    run(&fake, "ended", false, old.as_str());
    let snapshot = inventory.refresh(seconds(0)).await.unwrap();
    assert_eq!(entry(&snapshot, &pause).usage.used_by, ["default/web (sandbox)"]);
    assert_eq!(entry(&snapshot, &old).usage.used_by, ["default/ended (sandbox)"]);
    assert!(entry(&snapshot, &pause).usage.times.last_used.is_some());
}

#[tokio::test]
async fn each_of_250_sandboxes_is_asked_about_once() {
    let (fake, inventory) = node(None);
    let pause = fake.preload(PAUSE, "pause", 1);
    (0..250).for_each(|number| drop(run(&fake, &format!("pod-{number}"), true, PAUSE)));
    let snapshot = inventory.refresh(seconds(0)).await.unwrap();
    assert_eq!((entry(&snapshot, &pause).usage.used_by.len(), asked(&fake)), (250, 250));
    inventory.refresh(seconds(1)).await.unwrap();
    assert_eq!(asked(&fake), 0);
    run(&fake, "new", true, PAUSE);
    let snapshot = inventory.refresh(seconds(2)).await.unwrap();
    assert_eq!((entry(&snapshot, &pause).usage.used_by.len(), asked(&fake)), (251, 1));
    drop(inventory.check_removable(&entry(&snapshot, &pause), 0, seconds(3)).await.unwrap());
    assert_eq!(asked(&fake), 0, "nor before a removal");
}

#[tokio::test]
async fn a_sandbox_keeps_its_image_when_the_name_comes_to_mean_another() {
    let (fake, inventory) = node(None);
    let old = fake.preload(PAUSE, "old", 1);
    run(&fake, "web", true, PAUSE);
    inventory.refresh(seconds(0)).await.unwrap();
    let new = fake.preload(PAUSE, "new", 1);
    for now in [1, 2] {
        let snapshot = inventory.refresh(seconds(now)).await.unwrap();
        assert_eq!(entry(&snapshot, &old).usage.used_by, ["default/web (sandbox)"]);
        assert!(entry(&snapshot, &new).usage.used_by.is_empty());
    }
}

#[tokio::test]
async fn an_image_that_new_sandboxes_are_started_from_is_pinned() {
    let (fake, inventory) = node(None);
    let (reported, configured) = (fake.preload(PAUSE, "a", 1), fake.preload("mirror.example/pause:1", "b", 1));
    inventory.protect_sandbox_images(Some(vec!["mirror.example/pause:1".parse().unwrap()]));
    fake.set_default_sandbox_image(PAUSE);
    let snapshot = inventory.refresh(seconds(0)).await.unwrap();
    for id in [&reported, &configured] {
        assert_eq!(entry(&snapshot, id).pinned_by, ["sandbox image"]);
        let mut image = (*entry(&snapshot, id).image).clone();
        inventory.mark_pinned(&mut image);
        assert!(image.pinned, "a kubelet that is shown the image leaves it, too");
    }
    fake.set_default_sandbox_image("mirror.example/pause:1");
    let snapshot = inventory.refresh(seconds(1)).await.unwrap();
    assert!(entry(&snapshot, &reported).pinned_by.is_empty(), "the runtime has another setting now");
    inventory.protect_sandbox_images(Some(Vec::new()));
    assert_eq!(entry(&inventory.snapshot().unwrap(), &configured).pinned_by, ["sandbox image"], "still the runtime's");
}

#[tokio::test]
async fn in_the_kubelets_way_an_image_stays_for_no_sandbox() {
    let (fake, inventory) = node(None);
    let pause = fake.preload(PAUSE, "pause", 1);
    run(&fake, "web", true, PAUSE);
    fake.set_default_sandbox_image(PAUSE);
    assert!(!entry(&inventory.refresh(seconds(0)).await.unwrap(), &pause).usage.used_by.is_empty());
    fake.take_calls();
    inventory.protect_sandbox_images(None);
    let found = entry(&inventory.refresh(seconds(1)).await.unwrap(), &pause);
    assert_eq!((found.usage.used_by.len(), found.pinned_by.len()), (0, 0));
    assert_eq!(fake.take_calls(), ["list", "sandboxes", "containers"]);
}

#[tokio::test]
async fn a_sandbox_that_is_not_answered_for_fails_the_pass_and_a_runtime_without_the_call_does_not() {
    let (fake, inventory) = node(None);
    fake.preload(PAUSE, "pause", 1);
    run(&fake, "web", true, PAUSE);
    for call in ["sandbox", "config"] {
        fake.fail(call, RuntimeErrorKind::Other, "shim is gone");
        let error = inventory.refresh(seconds(0)).await.unwrap_err();
        assert_eq!(error.to_string(), "get sandbox image: shim is gone");
        fake.heal();
        fake.fail(call, RuntimeErrorKind::Unsupported, "unknown method");
        inventory.refresh(seconds(1)).await.unwrap();
        fake.heal();
    }
}

#[tokio::test]
async fn a_sandbox_that_came_since_the_pass_keeps_its_image_from_being_removed() {
    let (fake, inventory) = node(None);
    let pause = fake.preload(PAUSE, "pause", 1);
    let found = entry(&inventory.refresh(seconds(0)).await.unwrap(), &pause);
    run(&fake, "web", true, PAUSE);
    let cleared = inventory.check_removable(&found, 0, seconds(1)).await.unwrap();
    let user = vec!["default/web (sandbox)".to_owned()];
    assert!(matches!(cleared, Err(Reason::InUse(users)) if users == user));
    fake.fail("sandbox", RuntimeErrorKind::Unavailable, "down");
    assert!(inventory.check_removable(&found, 0, seconds(2)).await.is_err());
}

#[tokio::test]
async fn a_list_that_misses_a_sandbox_is_believed_where_the_runtime_says_that_it_is_gone() {
    for is_reported in [false, true] {
        let (fake, inventory) = node(None);
        let inventory = leasing(inventory, 0);
        let (app, pause) = (fake.preload("app:v1", "app", 1), fake.preload(PAUSE, "pause", 1));
        fake.run("other", "app", "app:v1", &app, ContainerState::Running);
        let sandbox = run(&fake, "web", true, PAUSE);
        inventory.refresh(seconds(0)).await.unwrap();
        if is_reported {
            fake.report_gone_containers();
        }
        fake.remove_sandbox(&sandbox);
        let found = entry(&inventory.refresh(seconds(1)).await.unwrap(), &pause);
        assert!(found.usage.used_by.is_empty());
        assert_eq!(found.usage.times.released_at.is_some(), !is_reported, "a list may be short");
        assert_eq!(ImageKey::new(pause, String::new()), found.key());
    }
}
