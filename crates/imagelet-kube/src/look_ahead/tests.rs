//! The look-ahead over a runtime in memory, with the secrets of an API server.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use imagelet_core::{
    events::{EventSubject, LogEvents},
    manager::{ManagerParts, PullSettings},
    ports::{ImageService as _, NoContainers},
    records::PullRecords,
    testing::FakeRuntime,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::{
    ApiAccess,
    pods::{BoundPod, bound_pod},
    testing::{ApiFault, FakeApi, FakeApiOptions},
};

/// A condition that is not met by then never is.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A node with a registry, a cluster, and pods that are bound to it.
struct TestNode {
    runtime: FakeRuntime,
    api: FakeApi,
    metrics: Arc<Metrics>,
    events: Arc<LogEvents>,
    pods: watch::Sender<Vec<Arc<BoundPod>>>,
    running: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl TestNode {
    async fn new(images_max: usize) -> Self {
        Self::with(images_max, PullSettings::default()).await
    }

    async fn with(images_max: usize, settings: PullSettings) -> Self {
        let api = FakeApi::start(FakeApiOptions { token: Some("a-token".into()), tls: false }).await;
        let folder = tempfile::tempdir().unwrap();
        let access = ApiAccess::Kubeconfig(api.kubeconfig(folder.path()));
        let fake = FakeRuntime::new();
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(NoContainers));
        let records = Arc::new(PullRecords::in_memory());
        let manager = ManagerParts { settings, ..ManagerParts::new(runtime.clone(), records) };
        let manager = Arc::new(ImageManager::new(manager));
        let images_max = NonZeroUsize::new(images_max).unwrap();
        let metrics = Arc::new(Metrics::new());
        let events = Arc::new(LogEvents::new(NonZeroUsize::new(100).unwrap()));
        let parts = LookAheadParts { manager, runtime, images_max, events: Arc::clone(&events) as Arc<dyn EventSink> };
        let look_ahead = LookAhead::new(parts, access.client(), Arc::clone(&metrics));
        let (pods, receiver) = watch::channel(Vec::new());
        let running = tokio::spawn(async move { look_ahead.run(receiver).await });
        Self { runtime: fake, api, metrics, events, pods, running, _folder: folder }
    }

    fn bind(&self, pods: &[Value]) {
        let pods = pods.iter().filter_map(|pod| bound_pod(&serde_json::from_value(pod.clone()).unwrap()));
        self.pods.send_replace(pods.map(Arc::new).collect());
    }

    /// Creates a pull secret for a user of the registry.
    fn secret(&self, name: &str, user: &str) {
        let document = json!({"auths": {"reg.test": {"username": user, "password": "word"}}});
        self.api.put(
            "/api/v1/secrets",
            json!({
                "metadata": {"namespace": "shop", "name": name},
                "type": "kubernetes.io/dockerconfigjson",
                "data": {".dockerconfigjson": BASE64_STANDARD.encode(document.to_string())},
            }),
        );
    }

    async fn present(&self) -> Vec<String> {
        let images = self.runtime.list(None).await.unwrap();
        let mut names: Vec<String> = images.iter().flat_map(|image| image.tags.clone()).collect();
        names.sort();
        names
    }

    /// Waits for so many fetches with this outcome.
    async fn until(&self, outcome: &str, count: usize) {
        let line = format!("imagelet_look_ahead_images_total{{outcome=\"{outcome}\"}} {count}\n");
        until(&line, || self.metrics.render().contains(&line)).await;
    }

    fn pulls(&self) -> usize {
        self.runtime.pull_requests().len()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn until(what: &str, is_met: impl Fn() -> bool) {
    let waiting = async {
        while !is_met() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, waiting).await.unwrap_or_else(|_| panic!("not {what}"));
}

fn pod(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}")}, "spec": spec})
}

fn containers(images: &[&str]) -> Value {
    let container = |(at, image): (usize, &&str)| json!({"name": format!("c{at}"), "image": image});
    images.iter().enumerate().map(container).collect()
}

#[tokio::test]
async fn every_image_that_a_pod_waits_for_is_fetched_and_none_under_never() {
    let node = TestNode::new(8).await;
    for image in ["init:v1", "app:v1", "tools", "model:v1", "never:v1"] {
        node.runtime.offer(&format!("reg.test/{image}"), image, 10);
    }
    node.runtime.preload("reg.test/here:v1", "here", 10);
    node.bind(&[pod(
        "web",
        &json!({
            "initContainers": [{"name": "init", "image": "reg.test/init:v1"}],
            "containers": [
                {"name": "app", "image": "reg.test/app:v1"},
                {"name": "tools", "image": "reg.test/tools"},
                {"name": "never", "image": "reg.test/never:v1", "imagePullPolicy": "Never"},
                {"name": "here", "image": "reg.test/here:v1"},
            ],
            "volumes": [{"name": "model", "image": {"reference": "reg.test/model:v1"}}],
        }),
    )]);
    node.until("pulled", 4).await;
    node.until("present", 1).await;
    let present = ["app:v1", "here:v1", "init:v1", "model:v1", "tools:latest"].map(|name| format!("reg.test/{name}"));
    assert_eq!(node.present().await, present);
    assert_eq!(node.pulls(), 4);
    let pod = node.runtime.pull_requests()[0].pod.clone();
    assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("shop", "web", "uid-web"));
}

#[tokio::test]
async fn an_image_is_fetched_with_the_secrets_of_its_own_pod_and_of_no_other() {
    let node = TestNode::new(8).await;
    for user in ["ada", "bob"] {
        node.runtime.offer_to(&format!("reg.test/{user}:v1"), user, 10, Some((user, "word")));
        node.secret(user, user);
    }
    let wanted =
        |secret: &str| json!({"containers": containers(&["reg.test/ada:v1"]), "imagePullSecrets": [{"name": secret}]});
    node.bind(&[
        pod("other", &wanted("bob")),
        pod("without", &json!({"containers": containers(&["reg.test/bob:v1"]), "serviceAccountName": "default"})),
        // As a pod of a kubelet's own manifest.
        pod("static", &json!({"containers": containers(&["reg.test/bob:v1"])})),
        pod("absent", &wanted("gone")),
    ]);
    node.until("failed", 4).await;
    assert_eq!(node.present().await, [""; 0]);
    node.bind(&[pod("own", &wanted("ada"))]);
    node.until("pulled", 1).await;
    assert_eq!(node.present().await, ["reg.test/ada:v1"]);

    // Each is read by its name, once.
    let mut read: Vec<String> = node.api.requests();
    read.sort();
    let expected = ["secrets/ada", "secrets/bob", "secrets/gone", "serviceaccounts/default"];
    assert_eq!(read, expected.map(|path| format!("GET /api/v1/namespaces/shop/{path}")));
}

#[tokio::test]
async fn a_pod_that_names_no_secrets_has_those_of_its_service_account() {
    let node = TestNode::new(8).await;
    node.runtime.offer_to("reg.test/ada:v1", "ada", 10, Some(("ada", "word")));
    node.secret("ada", "ada");
    node.secret("bob", "bob");
    let account = json!({
        "metadata": {"namespace": "shop", "name": "builder"}, "imagePullSecrets": [{"name": "ada"}],
    });
    node.api.put("/api/v1/serviceaccounts", account);
    let wanted = |secrets: &Value| {
        json!({
            "containers": containers(&["reg.test/ada:v1"]),
            "serviceAccountName": "builder", "imagePullSecrets": secrets,
        })
    };
    node.bind(&[pod("own", &wanted(&json!([{"name": "bob"}])))]);
    node.until("failed", 1).await;
    node.bind(&[pod("inherited", &wanted(&json!([])))]);
    node.until("pulled", 1).await;
}

#[tokio::test]
async fn what_cannot_be_read_of_the_api_server_keeps_no_public_image_back() {
    for fault in [
        ApiFault::Status(403, "secrets \"ada\" is forbidden".into()),
        ApiFault::Status(404, "secrets \"ada\" not found".into()),
        ApiFault::Status(500, "etcd is away".into()),
        ApiFault::Text("<html>a login page</html>".into()),
        ApiFault::Text(
            json!({"metadata": {}, "type": "kubernetes.io/dockercfg", "data": {".dockercfg": "?"}}).to_string(),
        ),
        ApiFault::Text("x".repeat(3 << 20)),
    ] {
        let node = TestNode::new(8).await;
        node.runtime.offer("reg.test/app:v1", "app", 10);
        node.api.plant_lasting(Some(fault));
        let spec = json!({"containers": containers(&["reg.test/app:v1"]), "imagePullSecrets": [{"name": "ada"}]});
        node.bind(&[pod("web", &spec)]);
        node.until("pulled", 1).await;
    }
}

#[tokio::test]
async fn a_secret_that_the_api_server_grants_a_moment_after_the_pod_is_bound_is_used() {
    let node = TestNode::new(8).await;
    node.runtime.offer_to("reg.test/ada:v1", "ada", 10, Some(("ada", "word")));
    node.secret("ada", "ada");
    // As the node authorizer, whose own watch has not brought the pod yet.
    let message = "no relationship found between node 'node-1' and this object";
    node.api.plant(ApiFault::Status(403, message.into()));
    let spec = json!({"containers": containers(&["reg.test/ada:v1"]), "imagePullSecrets": [{"name": "ada"}]});
    node.bind(&[pod("web", &spec)]);
    node.until("pulled", 1).await;
}

#[tokio::test]
async fn a_secret_is_read_again_after_a_new_token_of_the_agent() {
    let node = TestNode::new(8).await;
    node.runtime.offer_to("reg.test/ada:v1", "ada", 10, Some(("ada", "word")));
    node.secret("ada", "ada");
    let spec = json!({"containers": containers(&["reg.test/ada:v1"]), "imagePullSecrets": [{"name": "ada"}]});
    node.api.plant(ApiFault::Status(401, "Unauthorized".into()));
    node.bind(&[pod("first", &spec)]);
    node.until("failed", 1).await;
    // Another secret of the same name is another object; this one was not readable a moment ago.
    node.secret("second", "ada");
    let spec = json!({"containers": containers(&["reg.test/ada:v1"]), "imagePullSecrets": [{"name": "second"}]});
    node.bind(&[pod("second", &spec)]);
    node.until("pulled", 1).await;
}

#[tokio::test]
async fn the_fetches_of_a_deleted_pod_are_cancelled_and_those_of_others_are_not() {
    let node = TestNode::new(8).await;
    node.runtime.set_pull_takes(Duration::from_hours(1));
    for image in ["a:v1", "b:v1", "c:v1"] {
        node.runtime.offer(&format!("reg.test/{image}"), image, 10);
    }
    let deleted = pod("deleted", &json!({"containers": containers(&["reg.test/a:v1", "reg.test/b:v1"])}));
    let stays = pod("stays", &json!({"containers": containers(&["reg.test/c:v1"])}));
    node.bind(&[deleted, stays.clone()]);
    until("three pulls", || node.runtime.pulls_running() == 3).await;
    node.bind(std::slice::from_ref(&stays));
    node.until("cancelled", 2).await;
    until("one pull", || node.runtime.pulls_running() == 1).await;

    // Its container exists: the kubelet did without the look-ahead.
    let mut started = stays;
    started["status"] = json!({"containerStatuses": [{"name": "c0", "state": {"running": {}}}]});
    node.bind(&[started]);
    node.until("cancelled", 3).await;
    until("no pull", || node.runtime.pulls_running() == 0).await;
}

#[tokio::test]
async fn no_more_images_than_the_budget_are_fetched_at_once_and_all_in_the_end() {
    let node = TestNode::new(2).await;
    node.runtime.set_pull_takes(Duration::from_millis(20));
    let images: Vec<String> = (0..7).map(|at| format!("reg.test/app{at}:v1")).collect();
    for image in &images {
        node.runtime.offer(image, image, 10);
    }
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    node.bind(&[
        pod("a", &json!({"containers": containers(&images[..4])})),
        pod("b", &json!({"containers": containers(&images[4..])})),
    ]);
    node.until("pulled", 7).await;
    assert_eq!(node.runtime.pulls_running_max(), 2);
}

#[tokio::test]
async fn a_fetch_that_failed_is_not_repeated_while_its_pod_lives() {
    let node = TestNode::new(8).await;
    let spec = json!({"containers": containers(&["reg.test/absent:v1"])});
    node.bind(&[pod("web", &spec)]);
    node.until("failed", 1).await;
    let [failed] = &node.events.recent()[..] else { panic!("{:?}", node.events.recent()) };
    assert_eq!((failed.event.reason, &failed.event.subject), ("LookAheadFailed", &EventSubject::Node));
    let message = "could not fetch `reg.test/absent:v1` ahead for the pod `shop/web`: ";
    assert!(failed.event.message.starts_with(message), "{}", failed.event.message);
    let note = failed.event.note.as_deref().unwrap();
    assert!(note.starts_with("could not fetch an image ahead from registry `reg.test`: "), "{note}");
    assert!(!note.contains("absent") && !note.contains("shop"), "{note}");
    node.runtime.offer("reg.test/app:v1", "app", 10);
    // The change of another pod leads to another plan.
    node.bind(&[pod("web", &spec), pod("next", &json!({"containers": containers(&["reg.test/app:v1"])}))]);
    node.until("pulled", 1).await;
    assert_eq!(node.pulls(), 2);
}
