//! The agent against an API server: the fake one, or with `IMAGELET_TEST_KUBECONFIG` a real one as well.

mod ended_pods;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use imagelet_core::{
    disks::{DiskProbe, DiskUse},
    gc::{GcGoal, GcPolicy, GcRequest, ImageGc},
    image::{ByteSize, ImageId},
    inventory::Inventory,
    manager::{ManagerParts, PullSettings},
    metrics::Metrics,
    ports::{ContainerState, RuntimeManager},
    records::PullRecords,
    testing::FakeRuntime,
};
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    ApiAccess,
    pods::PodObject,
    testing::{ApiFault, FakeApi, FakeApiOptions, server},
    watch::WatchReport,
};

/// How the names of the tests are written in full.
const LIBRARY: &str = "docker.io/library/";
/// A condition that is not met by then never is.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// An API server, and a namespace of it.
struct Cluster {
    client: Client,
    /// The node of the test, which no kubelet runs.
    node: String,
    /// Begins the names of the test's pods.
    prefix: String,
}

impl Cluster {
    /// Each API server that the suite runs against.
    async fn all(test: &str) -> Vec<(Self, Option<FakeApi>)> {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        let mut all = vec![(Self::of(&fake, test), Some(fake))];
        if let Some(kubeconfig) = std::env::var_os("IMAGELET_TEST_KUBECONFIG") {
            all.push((Self::at(ApiAccess::Kubeconfig(PathBuf::from(kubeconfig)).client(), test), None));
        }
        all
    }

    /// Without a socket, so that the clock of a test may stand still.
    fn of(fake: &FakeApi, test: &str) -> Self {
        Self::at(server(fake.client()), test)
    }

    fn at(client: Client, test: &str) -> Self {
        let prefix = format!("{test}-{}", std::process::id());
        Self { client, node: format!("node-{prefix}"), prefix }
    }

    async fn send(&self, method: &str, path: &str, content: &str, body: &Value) {
        let request = http::Request::builder().method(method).uri(path).header("content-type", content);
        let request = request.body(serde_json::to_vec(body).unwrap()).unwrap();
        self.client.request_text(request).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    }

    fn path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/default/pods/{}-{name}", self.prefix)
    }

    fn full_name(&self, name: &str) -> String {
        format!("default/{}-{name}", self.prefix)
    }

    /// Creates a pod that is bound to this node.
    async fn create_on(&self, node: &str, name: &str, images: &[&str]) {
        let containers: Vec<Value> = (0..images.len())
            .map(|at| json!({"name": format!("c{at}"), "image": images[at], "imagePullPolicy": "IfNotPresent"}))
            .collect();
        let name = format!("{}-{name}", self.prefix);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": node, "containers": containers,
                "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            },
        });
        self.send("POST", "/api/v1/namespaces/default/pods", "application/json", &pod).await;
    }

    async fn create(&self, name: &str, images: &[&str]) {
        self.create_on(&self.node, name, images).await;
    }

    async fn set_phase(&self, name: &str, phase: &str, states: &[Value]) {
        let status = |(at, state): (usize, &Value)| {
            json!({
                "name": format!("c{at}"), "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state,
            })
        };
        let statuses: Vec<Value> = states.iter().enumerate().map(status).collect();
        let patch = json!({"status": {"phase": phase, "containerStatuses": statuses}});
        self.send("PATCH", &format!("{}/status", self.path(name)), "application/merge-patch+json", &patch).await;
    }

    async fn delete(&self, name: &str) {
        self.send("DELETE", &self.path(name), "application/json", &json!({"gracePeriodSeconds": 0})).await;
    }
}

fn running() -> Value {
    json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
}

fn backs_off() -> Value {
    json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}})
}

/// A disk without free space.
#[derive(Debug)]
struct FullDisk;

impl DiskProbe for FullDisk {
    fn look(&self, _directory: &std::path::Path) -> std::io::Result<DiskUse> {
        Ok(DiskUse::of(ByteSize(1000), ByteSize(0)))
    }
}

/// A node with an agent.
struct TestNode {
    runtime: FakeRuntime,
    inventory: Arc<Inventory>,
    gc: ImageGc,
    manager: Arc<ImageManager>,
    metrics: Arc<Metrics>,
    health: Arc<WatchHealth>,
    agent: JoinHandle<()>,
}

impl TestNode {
    fn new(client: &Client, node: &str) -> Self {
        let fake = FakeRuntime::new();
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
        let inventory = Arc::new(Inventory::open(runtime.clone(), None).unwrap());
        let manager = ManagerParts::new(runtime.clone(), Arc::new(PullRecords::off()));
        let settings = PullSettings { grace: Duration::from_mins(10), ..PullSettings::default() };
        let manager = Arc::new(ImageManager::new(ManagerParts { settings, ..manager }));
        let gc = ImageGc::new(runtime, Arc::clone(&inventory)).with_probe(Arc::new(FullDisk));
        let metrics = Arc::new(Metrics::new());
        inventory.leases.start(Duration::from_mins(10), SystemTime::now());
        let parts = NodeAgentParts {
            node: node.to_owned(),
            inventory: Arc::clone(&inventory),
            manager: Arc::clone(&manager),
            metrics: Arc::clone(&metrics),
            starts: Arc::new(PodStarts::new(Arc::clone(&metrics))),
            look_ahead: None,
            events: None,
            progress_events: false,
        };
        let agent = NodeAgent::new(client.clone(), parts);
        let health = agent.health();
        let agent = tokio::spawn(async move { agent.run().await });
        Self { runtime: fake, inventory, gc, manager, metrics, health, agent }
    }

    fn image(&self, name: &str) -> ImageId {
        self.runtime.preload(name, name, 100)
    }

    /// Collects all that may go, and on a full disk. Returns the names of the images that are left.
    async fn collect(&self) -> Vec<String> {
        let policy = GcPolicy::new(90, 80, Duration::ZERO, None).unwrap();
        for goal in [GcGoal::Threshold, GcGoal::AllUnused] {
            self.gc.run(&GcRequest { policy, goal, dry_run: false }, SystemTime::now()).await.unwrap();
        }
        let snapshot = self.inventory.refresh(SystemTime::now()).await.unwrap();
        let tags = snapshot.entries.iter().flat_map(|entry| &entry.image.tags);
        let mut names: Vec<String> = tags.map(|tag| tag.trim_start_matches(LIBRARY).to_owned()).collect();
        names.sort();
        names
    }

    async fn awaited_by(&self, name: &str) -> Vec<String> {
        let snapshot = self.inventory.refresh(SystemTime::now()).await.unwrap();
        let entry = snapshot.entries.iter().find(|entry| entry.image.tags.contains(&format!("{LIBRARY}{name}")));
        entry.unwrap_or_else(|| panic!("no image `{name}`")).awaited_by.clone()
    }

    async fn until_awaited(&self, name: &str, pods: &[String]) {
        let until = std::time::SystemTime::now() + WAIT_MAX;
        loop {
            let found = self.awaited_by(name).await;
            if found == pods {
                return;
            }
            assert!(
                SystemTime::now() < until,
                "`{name}` is awaited by {found:?} and not by {pods:?}: {:?}",
                self.health.report()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn until(&self, what: &str, is_met: impl Fn(&WatchReport) -> bool) -> WatchReport {
        let until = SystemTime::now() + WAIT_MAX;
        loop {
            let report = self.health.report();
            if is_met(&report) {
                return report;
            }
            assert!(SystemTime::now() < until, "not {what}: {report:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn until_synced(&self) -> WatchReport {
        self.until("in sync", |report| report.in_sync).await
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.agent.abort();
    }
}

#[tokio::test]
async fn images_of_bound_pods_are_kept_until_their_containers_exist_or_the_pod_is_gone() {
    for (cluster, _fake) in Cluster::all("kept").await {
        let node = TestNode::new(&cluster.client, &cluster.node);
        let pod = cluster.full_name("web");
        let app = node.image("app:v1");
        node.image("sidecar:v1");
        node.image("unwanted:v1");
        node.until_synced().await;
        cluster.create("web", &["app:v1", "sidecar:v1"]).await;
        node.until_awaited("app:v1", std::slice::from_ref(&pod)).await;
        assert_eq!(node.awaited_by("sidecar:v1").await, std::slice::from_ref(&pod));
        assert_eq!(node.awaited_by("unwanted:v1").await, [""; 0]);
        assert_eq!(node.collect().await, ["app:v1", "sidecar:v1"], "a pod that is bound is never overtaken");

        // In back-off, for as long as it lasts.
        cluster.set_phase("web", "Pending", &[backs_off(), backs_off()]).await;
        assert_eq!(node.collect().await, ["app:v1", "sidecar:v1"]);

        // One container runs: the runtime lists it, and the other one still waits.
        node.runtime.run(&pod, "c0", "app:v1", &app, ContainerState::Running);
        cluster.set_phase("web", "Pending", &[running(), backs_off()]).await;
        node.until_awaited("app:v1", &[]).await;
        assert_eq!(node.collect().await, ["app:v1", "sidecar:v1"]);

        cluster.delete("web").await;
        node.until_awaited("sidecar:v1", &[]).await;
        assert_eq!(node.collect().await, ["app:v1"], "its container still uses it");
    }
}

#[tokio::test]
async fn a_pod_that_is_finished_releases_its_images() {
    for (cluster, _fake) in Cluster::all("finished").await {
        let node = TestNode::new(&cluster.client, &cluster.node);
        node.image("job:v1");
        // Bound before the agent's first list, or after it: both are seen.
        cluster.create("job", &["job:v1"]).await;
        node.until_awaited("job:v1", &[cluster.full_name("job")]).await;
        assert_eq!(node.collect().await, ["job:v1"]);
        cluster.set_phase("job", "Failed", &[]).await;
        node.until_awaited("job:v1", &[]).await;
        assert_eq!(node.collect().await, [""; 0]);
        cluster.delete("job").await;
    }
}

#[tokio::test]
async fn pods_of_other_nodes_and_those_without_a_node_lease_nothing() {
    for (cluster, _fake) in Cluster::all("elsewhere").await {
        let node = TestNode::new(&cluster.client, &cluster.node);
        node.image("app:v1");
        node.image("here:v1");
        node.until_synced().await;
        cluster.create_on("another-node", "there", &["app:v1"]).await;
        cluster.create("here", &["here:v1"]).await;
        node.until_awaited("here:v1", &[cluster.full_name("here")]).await;
        assert_eq!(node.awaited_by("app:v1").await, [""; 0]);
        assert_eq!(node.collect().await, ["here:v1"]);
        cluster.delete("there").await;
        cluster.delete("here").await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_api_server_is_away_nothing_is_released_and_then_the_watch_resumes() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "away");
    let node = TestNode::new(&cluster.client, &cluster.node);
    node.image("app:v1");
    cluster.create("web", &["app:v1"]).await;
    node.until_awaited("app:v1", &[cluster.full_name("web")]).await;

    fake.plant_lasting(Some(ApiFault::Status(500, "etcd is away".into())));
    fake.cut_connections();
    let report = node.until("out of sync", |report| !report.in_sync && report.restarts > 3).await;
    assert_eq!(report.failure.as_deref(), Some("the API server answered 500: etcd is away"));
    assert_eq!((report.is_listed, report.pods, report.waiting), (true, 1, 1));
    assert_eq!(node.collect().await, ["app:v1"]);

    // An hour later, with few requests of a node meanwhile.
    tokio::time::sleep(Duration::from_hours(1)).await;
    let requests = fake.requests().len();
    assert!((60..150).contains(&requests), "{requests}");

    // A pod that went meanwhile is seen afterwards, by the events since the last version and without a list.
    fake.remove("default", cluster.full_name("web").trim_start_matches("default/"));
    let lists = |fake: &FakeApi| fake.requests().iter().filter(|request| request.contains("limit=")).count();
    let before = lists(&fake);
    fake.plant_lasting(None);
    node.until_awaited("app:v1", &[]).await;
    assert!(node.until_synced().await.failure.is_none());
    assert_eq!(lists(&fake), before);
    assert_eq!(node.collect().await, [""; 0]);
    assert!(node.metrics.render().contains("imagelet_kubernetes_watch_restarts_total{cause=\"failed\"}"));
}

#[tokio::test(start_paused = true)]
async fn before_the_first_list_nothing_is_taken_although_no_pod_is_known() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "first");
    fake.plant_lasting(Some(ApiFault::Status(503, "starting".into())));
    let node = TestNode::new(&cluster.client, &cluster.node);
    node.image("app:v1");
    node.until("tried", |report| report.restarts > 2).await;
    assert!(!node.health.report().is_listed);
    assert_eq!(node.collect().await, ["app:v1"]);
    tokio::time::sleep(Duration::from_hours(1)).await;
    let requests = fake.requests().len();
    assert!((60..150).contains(&requests), "{requests}: the waits between attempts to list grow, too");
    fake.plant_lasting(None);
    node.until_synced().await;
    assert_eq!(node.collect().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_forgotten_leads_to_a_new_list() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "gone");
    let node = TestNode::new(&cluster.client, &cluster.node);
    node.image("app:v1");
    node.image("old:v1");
    cluster.create("old", &["old:v1"]).await;
    node.until_awaited("old:v1", &[cluster.full_name("old")]).await;

    fake.plant_lasting(Some(ApiFault::Status(500, "restarting".into())));
    fake.cut_connections();
    node.until("out of sync", |report| !report.in_sync).await;
    fake.remove("default", cluster.full_name("old").trim_start_matches("default/"));
    fake.forget_history();
    fake.plant_lasting(None);
    node.until_awaited("old:v1", &[]).await;
    cluster.create("web", &["app:v1"]).await;
    node.until_awaited("app:v1", &[cluster.full_name("web")]).await;
    let expired = |count: u32| format!("imagelet_kubernetes_watch_restarts_total{{cause=\"expired\"}} {count}\n");
    assert!(node.metrics.render().contains(&expired(1)), "{}", node.metrics.render());

    // A watch that runs ends so from time to time: this is no failure.
    node.until_synced().await;
    fake.forget_history();
    node.image("next:v1");
    cluster.create("next", &["next:v1"]).await;
    node.until_awaited("next:v1", &[cluster.full_name("next")]).await;
    assert!(node.metrics.render().contains(&expired(2)), "{}", node.metrics.render());
    let report = node.health.report();
    assert_eq!((report.in_sync, report.failure), (true, None));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_the_server_does_not_have_yet_leads_to_a_new_list() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "newer");
    let node = TestNode::new(&cluster.client, &cluster.node);
    node.until_synced().await;
    fake.plant(ApiFault::Status(504, "Timeout: Too large resource version".into()));
    fake.cut_connections();
    node.until("rejected", |report| report.restarts > 0).await;
    node.until_synced().await;
    let lists = fake.requests().iter().filter(|request| request.contains("limit=")).count();
    assert_eq!(lists, 2, "{:#?}", fake.requests());
}

#[tokio::test]
async fn large_pods_are_listed_in_pages_and_kept_as_far_as_they_are_about_images() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "pages");
    let megabyte = "x".repeat(1 << 20);
    for at in 0..45 {
        fake.apply(json!({
            "metadata": {
                "name": format!("p{at}"), "namespace": "default", "annotations": {"large": megabyte},
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
            },
            "spec": {"nodeName": cluster.node, "containers": [{"name": "c", "image": format!("app:v{at}")}]},
        }));
    }
    let node = TestNode::new(&cluster.client, &cluster.node);
    let report = node.until("listed", |report| report.is_listed).await;
    assert_eq!((report.pods, report.waiting), (45, 45));
    let pages = fake.requests().iter().filter(|request| request.contains("limit=20")).count();
    assert_eq!(pages, 3, "{:#?}", fake.requests());
    let pod: PodObject = serde_json::from_value(fake.object("/api/v1/pods", "default", "p0").unwrap()).unwrap();
    assert!(format!("{pod:?}").len() < 4096, "{pod:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_moves_the_version_from_which_the_watch_resumes() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "bookmark");
    let node = TestNode::new(&cluster.client, &cluster.node);
    node.until_synced().await;
    let restarts = node.health.report().restarts;
    fake.bookmark();
    // Events are in order: what is seen after the bookmark comes after it.
    node.image("app:v1");
    cluster.create("web", &["app:v1"]).await;
    node.until_awaited("app:v1", &[cluster.full_name("web")]).await;
    fake.bookmark();
    tokio::time::sleep(Duration::from_millis(50)).await;
    fake.cut_connections();
    node.until("watching again", |report| report.restarts > restarts && report.in_sync).await;
    let resumed = |fake: &FakeApi| {
        fake.requests().iter().any(|request| request.contains("watch=true") && request.contains("resourceVersion=121"))
    };
    let until = SystemTime::now() + WAIT_MAX;
    while !resumed(&fake) {
        assert!(SystemTime::now() < until, "{:#?}", fake.requests());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_every_watch_at_once_is_not_asked_in_a_hot_loop() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "hot");
    fake.plant_lasting(Some(ApiFault::EmptyWatch));
    let _node = TestNode::new(&cluster.client, &cluster.node);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let requests = fake.requests().len();
    assert!((10..15).contains(&requests), "one list, and a watch each five seconds: {requests}");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_of_an_api_server_is_reported_and_releases_nothing() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "broken");
    let node = TestNode::new(&cluster.client, &cluster.node);
    node.image("app:v1");
    cluster.create("web", &["app:v1"]).await;
    node.until_awaited("app:v1", &[cluster.full_name("web")]).await;
    for (fault, failure) in [
        (ApiFault::Text("<html>a login page</html>\n".into()), "could not decode the answer of the API server"),
        (
            ApiFault::Status(403, "pods is forbidden: User \"x\" cannot list".into()),
            "the API server answered 403: pods is forbidden",
        ),
    ] {
        fake.plant_lasting(Some(fault));
        fake.cut_connections();
        node.until(failure, |report| report.failure.as_ref().is_some_and(|text| text.starts_with(failure))).await;
        assert_eq!(node.collect().await, ["app:v1"]);
    }
    fake.plant_lasting(None);
    node.until_synced().await;
    assert_eq!(node.awaited_by("app:v1").await, [cluster.full_name("web")]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up_and_asked_again() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    let cluster = Cluster::of(&fake, "silent");
    fake.plant(ApiFault::Hang);
    let node = TestNode::new(&cluster.client, &cluster.node);
    let silent = |report: &WatchReport| report.failure.as_deref() == Some("the API server did not answer within 60 s");
    node.until("silent", silent).await;
    node.until_synced().await;
    let restarts = node.health.report().restarts;
    // It sends no bookmark.
    node.until("silent again", |report| report.restarts > restarts).await;
    node.until_synced().await;
}

#[tokio::test]
async fn tls_and_a_token_are_taken_from_the_kubeconfig_and_a_new_token_from_its_next_version() {
    let options = FakeApiOptions { token: Some("right".into()), tls: true };
    let fake = FakeApi::start(options).await;
    let folder = tempfile::tempdir().unwrap();
    let access = ApiAccess::Kubeconfig(fake.kubeconfig_with(folder.path(), "wrong"));
    let node = TestNode::new(&access.client(), "node-a");
    let rejected =
        |report: &WatchReport| report.failure.as_deref() == Some("the API server answered 401: Unauthorized");
    node.until("rejected", rejected).await;
    fake.kubeconfig(folder.path());
    node.until_synced().await;
    assert!(!format!("{node:?}", node = node.health).contains("right"));
}

#[tokio::test]
async fn a_kubeconfig_that_is_missing_broken_or_open_to_others_is_named() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let path: &Path = &folder.path().join("kubeconfig");
    let failure = async || {
        let error = ApiAccess::Kubeconfig(path.to_owned()).connect().await.err().expect("it is refused");
        error.to_string()
    };
    let named = format!("could not use the kubeconfig `{}`: ", path.display());
    assert!(failure().await.starts_with(&named));
    std::fs::write(path, "clusters: 5").unwrap();
    assert!(failure().await.starts_with(&named));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let reported = failure().await;
    assert!(reported.contains("every user may write to"), "{reported}");
}
