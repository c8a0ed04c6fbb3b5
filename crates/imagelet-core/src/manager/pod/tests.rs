//! Pods over a runtime in memory, time paused: what starts together, what waits, what is reported.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use imagelet_vectors::{VectorCase, VectorRun, Way};
use serde_json::{Value, json};

use super::*;
use crate::{
    error::RuntimeErrorKind,
    events::{EventSink, LogEvents, PodIdentity},
    manager::{ManagerParts, ManagerReports, PullSettings},
    node_policy::NodePolicy,
    ports::{NoContainers, RuntimeManager, unwatched},
    records::PullRecords,
    testing::{FakeRuntime, WaySettings as _},
};

struct TestNode {
    runtime: FakeRuntime,
    manager: ImageManager,
    events: Arc<LogEvents>,
}

impl TestNode {
    fn new(node_policy: NodePolicy) -> Self {
        Self::pulling(PullSettings { node_policy, ..PullSettings::default() })
    }

    fn pulling(settings: PullSettings) -> Self {
        let (runtime, events) = (FakeRuntime::new(), Arc::new(LogEvents::new(NonZeroUsize::new(100).unwrap())));
        runtime.set_pull_takes(Duration::from_secs(1));
        let images = RuntimeManager::new(Arc::new(runtime.clone()), Arc::new(NoContainers));
        let manager = ImageManager::new(ManagerParts {
            settings,
            reports: ManagerReports { events: Arc::clone(&events) as Arc<dyn EventSink>, ..ManagerReports::default() },
            ..ManagerParts::new(images, Arc::new(PullRecords::off()))
        });
        Self { runtime, manager, events }
    }

    async fn ensure(&self, images: Vec<PodImage>) -> Vec<String> {
        let pod = PodIdentity { namespace: "default".into(), name: "web".into(), uid: "u".into() };
        let mut common = EnsureRequest::new("", PullPolicy::Never);
        common.pull.pod = pod;
        let request = PodRequest { common, images, secrets_unread: Vec::new() };
        let outcomes = self.manager.ensure_pod(&request, &|_| unwatched(), &|_, _| {}).await;
        outcomes.iter().map(word).collect()
    }

    fn pulls(&self) -> Vec<String> {
        let short = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
        self.runtime.pull_requests().iter().map(|request| short(&request.image.image)).collect()
    }

    fn reported(&self) -> Vec<String> {
        let reported = self.events.recent();
        reported
            .iter()
            .map(|one| format!("{} {}: {}", one.event.subject, one.event.reason, one.event.message))
            .collect()
    }
}

fn word(outcome: &PodOutcome) -> String {
    match outcome {
        PodOutcome::Ensured(ensured) if ensured.message.is_empty() => "pulled".into(),
        PodOutcome::Ensured(_) => "present".into(),
        PodOutcome::Failed(error) => error.reason().to_string(),
        PodOutcome::Blocked { by } => format!("blocked by {by}"),
    }
}

fn image(role: PodRole, image: &str) -> PodImage {
    let name = image.split(':').next().unwrap_or(image).to_owned();
    PodImage { role, name, position: 0, image: image.into(), policy: PullPolicy::IfNotPresent, mounts: Vec::new() }
}

fn init(name: &str) -> PodImage {
    image(PodRole::Init, name)
}

fn container(name: &str) -> PodImage {
    image(PodRole::Container, name)
}

fn three_and_two() -> Vec<PodImage> {
    vec![init("i1:v1"), init("i2:v1"), init("i3:v1"), container("c1:v1"), container("c2:v1")]
}

#[tokio::test(start_paused = true)]
async fn all_images_of_a_pod_start_together() {
    let node = TestNode::new(NodePolicy::IMAGELET);
    for one in three_and_two() {
        node.runtime.offer(&one.image, &one.image, 10);
    }
    let began = tokio::time::Instant::now();
    assert_eq!(node.ensure(three_and_two()).await, ["pulled"; 5]);
    assert_eq!((node.runtime.pulls_running_max(), began.elapsed()), (5, Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn the_kubelets_way_is_one_after_another() {
    let node = TestNode::new(NodePolicy::KUBELET);
    let mut images = three_and_two();
    images.push(image(PodRole::Ephemeral, "e:v1"));
    images.push(image(PodRole::Volume, "v:v1"));
    for one in &images {
        node.runtime.offer(&one.image, &one.image, 10);
    }
    let began = tokio::time::Instant::now();
    assert_eq!(node.ensure(images).await, ["pulled"; 7]);
    assert_eq!((node.runtime.pulls_running_max(), began.elapsed()), (1, Duration::from_secs(7)));
    assert_eq!(node.pulls(), ["v:v1", "e:v1", "i1:v1", "i2:v1", "i3:v1", "c1:v1", "c2:v1"]);
}

#[tokio::test(start_paused = true)]
async fn in_the_kubelets_way_a_failed_init_image_stops_what_follows_and_a_failed_container_does_not() {
    let node = TestNode::new(NodePolicy::KUBELET);
    for name in ["i1:v1", "i3:v1", "c1:v1", "c2:v1"] {
        node.runtime.offer(name, name, 10);
    }
    let answers = node.ensure(three_and_two()).await;
    assert_eq!(answers, ["pulled", "ErrImagePull", "blocked by 1", "blocked by 1", "blocked by 1"]);
    assert_eq!(node.pulls(), ["i1:v1", "i2:v1"]);
    let failed = node.reported().into_iter().filter(|text| text.contains("Error: ")).collect::<Vec<_>>();
    assert_eq!(failed, ["default/web/spec.initContainers{i2} Failed: Error: ErrImagePull"]);

    let node = TestNode::new(NodePolicy::KUBELET);
    node.runtime.offer("c2:v1", "c2", 10);
    assert_eq!(node.ensure(vec![container("c1:v1"), container("c2:v1")]).await, ["ErrImagePull", "pulled"]);
}

#[tokio::test(start_paused = true)]
async fn looking_ahead_a_failed_init_image_does_not_keep_the_others_from_coming() {
    let node = TestNode::new(NodePolicy::IMAGELET);
    for name in ["i1:v1", "i3:v1", "c1:v1", "c2:v1"] {
        node.runtime.offer(name, name, 10);
    }
    assert_eq!(node.ensure(three_and_two()).await, ["pulled", "ErrImagePull", "pulled", "pulled", "pulled"]);
}

#[tokio::test(start_paused = true)]
async fn one_spelling_under_one_policy_is_asked_for_once_and_answered_for_each() {
    let node = TestNode::new(NodePolicy::IMAGELET);
    node.runtime.offer("a:v1", "a", 10);
    let always = PodImage { policy: PullPolicy::Always, ..container("a:v1") };
    let images = vec![init("a:v1"), container("a:v1"), always.clone(), always, container("docker.io/library/a:v1")];
    assert_eq!(node.ensure(images).await, ["pulled", "pulled", "pulled", "pulled", "present"]);
    assert_eq!(node.pulls(), ["a:v1", "a:v1"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_never_pulled_finds_what_another_container_of_the_pod_has_fetched() {
    for node_policy in [NodePolicy::IMAGELET, NodePolicy::KUBELET] {
        let node = TestNode::new(node_policy);
        node.runtime.offer("a:v1", "a", 10);
        let never = PodImage { policy: PullPolicy::Never, ..container("a:v1") };
        assert_eq!(node.ensure(vec![never, init("a:v1")]).await, ["present", "pulled"], "{node_policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_failed_volume_of_a_container_is_reported_and_the_kubelet_does_not_ask_for_its_image() {
    let mounting = |name: &str| PodImage { mounts: vec!["v1".into(), "x".into(), "v2".into()], ..container(name) };
    for (node_policy, answers) in [
        (NodePolicy::KUBELET, ["ErrImagePull", "RegistryUnavailable", "blocked by 1", "pulled"]),
        (NodePolicy::IMAGELET, ["ErrImagePull", "RegistryUnavailable", "pulled", "pulled"]),
    ] {
        let node = TestNode::new(node_policy);
        node.runtime.offer("c1:v1", "c1", 10);
        node.runtime.offer("c2:v1", "c2", 10);
        node.runtime.fail("pull v2:v1", RuntimeErrorKind::RegistryUnavailable, "RegistryUnavailable: no route");
        let volumes = [image(PodRole::Volume, "v1:v1"), image(PodRole::Volume, "v2:v1")];
        let images = volumes.into_iter().chain([mounting("c1:v1"), container("c2:v1")]).collect();
        assert_eq!(node.ensure(images).await, answers, "{node_policy:?}");
        let failed: Vec<String> = node.reported().into_iter().filter(|text| text.contains("Error: ")).collect();
        assert_eq!(
            failed,
            [
                "default/web/spec.containers{c1} Failed: Error: ErrImagePull",
                "default/web/spec.containers{c1} Failed: Error: RegistryUnavailable",
            ],
            "{node_policy:?}"
        );
        let of_volumes = node.reported().into_iter().filter(|text| text.starts_with("default/web ")).count();
        assert_eq!(of_volumes, 4, "a volume's own events are the pod's: {:?}", node.reported());
    }
}

#[tokio::test(start_paused = true)]
async fn unread_secrets_are_reported_once_for_the_whole_pod() {
    let node = TestNode::new(NodePolicy::IMAGELET);
    node.runtime.preload("a:v1", "a", 1);
    let common = EnsureRequest::new("", PullPolicy::Never);
    let images = vec![init("a:v1"), container("a:v1")];
    let request = PodRequest { common, images, secrets_unread: vec!["one".into(), "two".into()] };
    node.manager.ensure_pod(&request, &|_| unwatched(), &|_, _| {}).await;
    let reported: Vec<_> = node.events.recent().into_iter().map(|recorded| recorded.event).collect();
    let unread: Vec<_> = reported.iter().filter(|event| event.reason == "FailedToRetrieveImagePullSecret").collect();
    assert_eq!(unread.len(), 1);
    assert_eq!(unread[0].kind, EventKind::Warning);
    assert_eq!(
        unread[0].message,
        "Unable to retrieve some image pull secrets (one, two); attempting to pull the image may not succeed."
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_given_up_ends_all_its_pulls() {
    let node = TestNode::new(NodePolicy::IMAGELET);
    for one in three_and_two() {
        node.runtime.offer(&one.image, &one.image, 10);
    }
    let given_up = tokio::time::timeout(Duration::from_millis(500), node.ensure(three_and_two())).await;
    assert!(given_up.is_err());
    assert_eq!((node.runtime.pulls_running_max(), node.runtime.pulls_running()), (5, 0));
    assert!(node.manager.status().pulls.is_empty());
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_image_volumes_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("pull-image-volumes.json", way);
        while let Some(case) = run.next_case() {
            let found = match case.input["op"].as_str() {
                Some("pull") => volumes_pulled(&case, way).await,
                Some("mount") => volumes_mounted(&case.input),
                other => panic!("unknown operation {other:?}"),
            };
            run.compare(&case, &found);
        }
        run.end();
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// The volumes of a pod, and what its one container gets of them.
async fn volumes_pulled(case: &VectorCase, way: Way) -> Value {
    let (node, mut images, mut names) = (TestNode::pulling(way.pull_settings()), Vec::new(), HashMap::new());
    let volumes = case.input["volumes"].as_array().expect("volumes");
    for volume in volumes.iter().filter(|one| one["image"].is_object()) {
        let reference = text(&volume["image"]["reference"]);
        let policy = text(&volume["image"]["pullPolicy"]).parse().expect("known");
        names.insert(node.runtime.offer(&reference, &reference, 1), reference.clone());
        images.push(PodImage { name: text(&volume["name"]), policy, ..image(PodRole::Volume, &reference) });
    }
    let common = EnsureRequest::new("", PullPolicy::Never);
    let mounts = images.iter().map(|one| one.name.clone()).collect();
    images.push(PodImage { policy: PullPolicy::Never, mounts, ..container("main") });
    let request = PodRequest { common, images, secrets_unread: Vec::new() };
    let outcomes = node.manager.ensure_pod(&request, &|_| unwatched(), &|_, _| {}).await;
    let volumes = request.images.len() - 1;
    let mut results = serde_json::Map::new();
    for (one, outcome) in request.images[..volumes].iter().zip(&outcomes) {
        let result = match outcome {
            PodOutcome::Ensured(ensured) => {
                json!({"image_ref": names[&ensured.id], "user_specified_image": one.image, "error": null})
            }
            PodOutcome::Failed(error) => json!({"error": error.reason(), "message": error.message()}),
            PodOutcome::Blocked { .. } => panic!("a volume waits for no other image: {}", case.name),
        };
        results.insert(one.name.clone(), result);
    }
    json!({"results": results})
}

/// The start of a container whose volumes came out like this.
fn volumes_mounted(input: &Value) -> Value {
    let mounts: Vec<String> = input["volume_mounts"].as_array().expect("mounts").iter().map(text).collect();
    let none = serde_json::Map::new();
    let results = input["results"].as_object().unwrap_or(&none);
    let error_of = |name: &str| results[name]["error"].as_str();
    let volumes = results.keys().map(|name| PodImage { name: name.clone(), ..image(PodRole::Volume, "m:v1") });
    let images: Vec<PodImage> = volumes.chain([PodImage { mounts: mounts.clone(), ..container("a") }]).collect();
    let outcome = |volume: &PodImage| match error_of(&volume.name) {
        Some(_) => PodOutcome::Failed(EnsureError::never_pull("m:v1")),
        None => PodOutcome::Blocked { by: 0 },
    };
    let outcomes: Vec<_> = images[..results.len()].iter().map(|volume| Some(outcome(volume))).chain([None]).collect();
    let failures = failed_mounts(&images, &outcomes, results.len());
    let failures: Vec<&str> = failures.into_iter().filter_map(|volume| error_of(&images[volume].name)).collect();
    let mounted: Vec<&String> = mounts.iter().filter(|mount| results.contains_key(*mount)).collect();
    let Some(error) = failures.last() else {
        // Where the pod has no image volumes, Go has no list instead of an empty one.
        let has_volumes = input["results"].as_object().is_some_and(|results| !results.is_empty());
        return json!({"image_volumes": has_volumes.then_some(mounted), "error": null});
    };
    // That it is a warning of this reason is proven by the story of a pod with a volume that failed.
    let event = json!({"type": "Warning", "reason": "Failed", "message": format!("Error: {}", error)});
    json!({"image_volumes": null, "error": error, "event": event})
}

#[test]
fn a_container_without_a_name_is_named_by_its_place() {
    let nameless = PodImage { name: String::new(), position: 1, ..container("a") };
    assert_eq!(nameless.field(), "spec.containers[1]");
    assert_eq!(init("b:v1").field(), "spec.initContainers{b}");
    assert_eq!(image(PodRole::Volume, "m:v1").field(), "spec.volumes{m}");
    assert_eq!(image(PodRole::Volume, "m:v1").subject_field(), "");
}
