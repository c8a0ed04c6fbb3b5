//! The controller with agents and an API server, on a clock that does not wait.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::{
    prefetch::{
        PrefetchAgent,
        objects::REPORTED_SETS_MAX,
        testing::{FakeNode, GROUP, NODES, REPORTS, SETS},
    },
    testing::{ApiFault, FakeApi, FakeApiOptions},
};

/// Nodes of the fleet, and how long the API server is away. A debug build takes half a minute of a processor for it.
const FLEET: (usize, Duration) = (500, Duration::from_mins(2));
/// The variable is another number of nodes, as the 5000 that Kubernetes supports, with an outage of an hour.
const NODES_VARIABLE: &str = "IMAGELET_TEST_NODES";
/// Images of the set of the large cluster.
const IMAGES_OF_SET: usize = 20;

/// An API server with the kinds of prefetch, agents, and controllers.
struct Cluster {
    fake: FakeApi,
    nodes: Vec<FakeNode>,
    agents: JoinSet<()>,
    controllers: JoinSet<()>,
}

impl Cluster {
    async fn of(nodes: usize, takes: Duration) -> Self {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        fake.install(GROUP);
        for at in 0..nodes {
            fake.put(NODES, json!({"metadata": {"name": format!("node-{at}"), "labels": {"pool": "all"}}}));
        }
        let nodes = (0..nodes).map(|_| FakeNode::taking(takes)).collect();
        let mut cluster = Self { fake, nodes, agents: JoinSet::new(), controllers: JoinSet::new() };
        cluster.start_agents();
        cluster.start_controller("first");
        cluster
    }

    fn start_agents(&mut self) {
        for (at, node) in self.nodes.iter().enumerate() {
            let client = self.fake.client();
            let agent = PrefetchAgent::new(client, &format!("node-{at}"), Arc::new(node.clone()));
            self.agents.spawn(async move { agent.run().await });
        }
    }

    fn start_controller(&mut self, identity: &str) {
        let client = self.fake.client();
        let controller = PrefetchController::new(client, "kube-system", identity, Arc::default());
        self.controllers.spawn(async move { controller.run().await });
    }

    fn apply(&self, name: &str, spec: &Value) {
        self.fake.put(SETS, json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec}));
    }

    fn set(&self, name: &str) -> Value {
        self.fake.object(SETS, "shop", name).unwrap_or_default()
    }

    fn counts(&self, name: &str) -> [u64; 3] {
        let nodes = &self.set(name)["status"]["nodes"];
        ["wanted", "ready", "failed"].map(|field| nodes[field].as_u64().unwrap_or_default())
    }

    /// Requests that are no lease, which a leader renews for ever, and no watch, which begins anew after some minutes.
    fn requests(&self) -> Vec<String> {
        let is_steady = |request: &String| request.contains("/leases") || request.contains("watch=true");
        self.fake.requests().into_iter().filter(|request| !is_steady(request)).collect()
    }

    fn writes(&self) -> usize {
        self.requests().iter().filter(|request| !request.starts_with("GET")).count()
    }

    /// Nodes that have fetched something, or have begun to.
    fn fetched(&self) -> usize {
        self.nodes.iter().filter(|node| node.present() > 0).count()
    }
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn images(count: usize) -> Value {
    (0..count).map(|at| json!({"reference": format!("app:{at}")})).collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_begin_in_waves_and_the_status_counts_them() {
    let cluster = Cluster::of(10, Duration::from_mins(1)).await;
    cluster.apply("web", &json!({"images": images(1), "maxConcurrentNodes": 2}));
    seconds(70).await;
    assert_eq!(cluster.fetched(), 2, "{:#}", cluster.set("web")["status"]);
    let mut most = 0;
    for _ in 0..60 {
        let before = cluster.fetched();
        seconds(10).await;
        most = most.max(cluster.fetched() - before);
    }
    assert!(most <= 2, "{most} nodes finished within ten seconds");
    assert_eq!(cluster.counts("web"), [10, 10, 0]);
    let status = &cluster.set("web")["status"];
    assert_eq!(
        (&status["conditions"][0]["type"], &status["conditions"][0]["status"]),
        (&json!("Complete"), &json!("True"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_says_nothing_holds_the_wave_up_for_a_quarter_of_an_hour_only() {
    let mut cluster = Cluster::of(3, Duration::from_secs(1)).await;
    cluster.agents.abort_all();
    cluster.apply("web", &json!({"images": images(1), "maxConcurrentNodes": 1}));
    seconds(60).await;
    let cut = |cluster: &Cluster| cluster.set("web")["status"]["wave"]["cut"].as_u64().unwrap_or_default();
    let first = cut(&cluster);
    seconds(700).await;
    assert_eq!(cut(&cluster), first);
    seconds(300).await;
    assert!(cut(&cluster) > first);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_restarts_in_the_middle_of_a_wave_continues_it_and_admits_each_node_once() {
    let mut cluster = Cluster::of(8, Duration::from_secs(40)).await;
    cluster.apply("web", &json!({"images": images(1), "maxConcurrentNodes": "25%"}));
    for at in 0..12 {
        seconds(17).await;
        cluster.controllers.abort_all();
        while cluster.controllers.join_next().await.is_some() {}
        cluster.start_controller(&format!("controller-{at}"));
        // The lease of the last one has to expire.
        seconds(45).await;
    }
    assert_eq!(cluster.counts("web"), [8, 8, 0]);
    assert_eq!(cluster.nodes.iter().map(|node| node.asked().len()).collect::<Vec<_>>(), [1; 8]);
}

#[tokio::test(start_paused = true)]
async fn of_two_controllers_one_acts_and_the_other_takes_over() {
    let mut cluster = Cluster::of(1, Duration::from_secs(1)).await;
    seconds(30).await;
    cluster.start_controller("second");
    cluster.apply("web", &json!({"images": images(1)}));
    seconds(60).await;
    let lists = |cluster: &Cluster| {
        cluster.requests().iter().filter(|it| it.contains("nodeimages?") && it.contains("limit=")).count()
    };
    assert_eq!(lists(&cluster), 1, "the second one does not even list");
    let leases = "/apis/coordination.k8s.io/v1/leases";
    let holder = |cluster: &Cluster| {
        let lease = cluster.fake.object(leases, "kube-system", "imagelet-controller").unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(holder(&cluster), "first");
    let mut lease = cluster.fake.object(leases, "kube-system", "imagelet-controller").unwrap();
    lease["spec"]["holderIdentity"] = "another".into();
    cluster.fake.put(leases, lease);
    seconds(100).await;
    assert!(["first", "second"].contains(&holder(&cluster).as_str()), "a lease without renewals is taken");
}

#[tokio::test(start_paused = true)]
async fn the_controller_counts_what_it_knows_writes_and_fails_at() {
    let cluster = Cluster::of(2, Duration::from_secs(1)).await;
    seconds(60).await;
    let metrics = Arc::new(Metrics::new());
    let client = cluster.fake.client();
    let controller = Arc::new(PrefetchController::new(client, "kube-system", "second", Arc::clone(&metrics)));
    let report = |has_answer, leads, is_listed| ControllerReport { has_answer, leads, is_listed };
    assert_eq!(controller.report(), report(false, false, false));
    let running = tokio::spawn({
        let controller = Arc::clone(&controller);
        async move { controller.run().await }
    });
    seconds(20).await;
    assert_eq!(controller.report(), report(true, false, false), "the first one leads");
    drop(cluster.controllers);
    let set = |name: &str, spec: Value| json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec});
    cluster.fake.put(SETS, set("web", json!({"images": images(1)})));
    seconds(60).await;
    assert_eq!(controller.report(), report(true, true, true));
    let counted = |line: &str| assert!(metrics.render().lines().any(|it| it == line), "{line}: {}", metrics.render());
    for line in ["imagelet_controller_leader 1", "imagelet_controller_sets 1", "imagelet_controller_reports 2"] {
        counted(line);
    }
    cluster.fake.put(SETS, set("short", json!({"images": images(1), "ttlAfterFinished": "1ms"})));
    seconds(100).await;
    cluster.fake.plant_lasting(Some(ApiFault::Status(500, "etcd is away".into())));
    cluster.fake.cut_connections();
    seconds(120).await;
    for line in [
        "imagelet_controller_leader 0",
        "imagelet_controller_sets 0",
        "imagelet_controller_writes_total{write=\"delete_set\"} 1",
    ] {
        counted(line);
    }
    let failed =
        metrics.render().lines().any(|line| line.starts_with("imagelet_controller_api_errors_total{cause=\"500\"} "));
    assert!(
        failed && metrics.render().contains("imagelet_controller_writes_total{write=\"status\"} "),
        "{}",
        metrics.render()
    );
    assert_eq!(controller.report(), report(true, false, false));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_set_beyond_a_limit_says_so_in_its_status_until_a_place_is_free() {
    let cluster = Cluster::of(1, Duration::ZERO).await;
    for at in 0..=100 {
        cluster.apply(&format!("set-{at:03}"), &json!({"images": images(1)}));
    }
    seconds(60).await;
    let limited = |name: &str| {
        let conditions = cluster.set(name)["status"]["conditions"].clone();
        let found = conditions.as_array().into_iter().flatten().find(|it| it["type"] == "Limited").cloned();
        found.map(|it| it["reason"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!((limited("set-100").as_deref(), limited("set-099")), (Some("NamespaceLimit"), None));
    assert_eq!((cluster.counts("set-100"), cluster.counts("set-099")), ([1, 0, 0], [1, 1, 0]));
    cluster.fake.delete(SETS, "shop", "set-007");
    seconds(60).await;
    assert_eq!((limited("set-100"), cluster.counts("set-100")), (None, [1, 1, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_set_that_selects_by_pods_says_that_a_node_may_have_no_space_for_it_in_its_report() {
    let cluster = Cluster::of(0, Duration::ZERO).await;
    cluster.fake.put(NODES, json!({"metadata": {"name": "node-0"}}));
    let others: Value = (0..REPORTED_SETS_MAX).map(|at| json!({"uid": at.to_string()})).collect();
    cluster.fake.put(REPORTS, json!({"metadata": {"name": "node-0"}, "sets": others}));
    cluster.apply("web", &json!({"images": images(1), "podSelector": {}}));
    seconds(60).await;
    let conditions = cluster.set("web")["status"]["conditions"].to_string();
    assert!(conditions.contains("ReportLimit"), "{conditions}");
}

#[tokio::test(start_paused = true)]
async fn a_pass_writes_a_bounded_number_of_sets_and_the_next_one_continues() {
    let cluster = Cluster::of(0, Duration::ZERO).await;
    seconds(30).await;
    for at in 0..2 * WRITES_MAX {
        cluster.apply(&format!("set-{at}"), &json!({"images": images(1)}));
    }
    let (mut written, mut most) = (cluster.writes(), 0);
    for _ in 0..30 {
        seconds(1).await;
        let last = std::mem::replace(&mut written, cluster.writes());
        most = most.max(written - last);
    }
    assert!(most <= WRITES_MAX, "{most} writes of one pass");
    assert!((0..2 * WRITES_MAX).all(|at| cluster.set(&format!("set-{at}"))["status"].is_object()));
}

#[tokio::test(start_paused = true)]
async fn what_is_finished_is_deleted_after_its_time() {
    let cluster = Cluster::of(2, Duration::from_secs(1)).await;
    cluster.apply("web", &json!({"images": images(1), "ttlAfterFinished": "1ms"}));
    seconds(60).await;
    assert_eq!(cluster.set("web"), Value::Null);
    assert_eq!(cluster.fake.objects(REPORTS).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_fetches_a_set_in_three_writes_a_node_is_idle_afterwards_and_loses_nothing_in_an_outage() {
    let number =
        |text: std::ffi::OsString| text.to_str().and_then(|text| text.parse().ok()).expect("a number of nodes");
    let (fleet, outage) =
        std::env::var_os(NODES_VARIABLE).map_or(FLEET, |text| (number(text), Duration::from_hours(1)));
    let mut cluster = Cluster::of(fleet, Duration::from_millis(400)).await;
    seconds(30).await;
    let spec = json!({"images": images(IMAGES_OF_SET), "maxConcurrentNodes": "20%", "keep": true});
    cluster.apply("web", &spec);
    seconds(60).await;
    // In the middle of the waves the API server is away, and then agents and controller start anew.
    let before = cluster.fetched();
    assert!(before > 0 && before < fleet, "{before}");
    cluster.fake.plant_lasting(Some(ApiFault::Status(500, "etcd is away".into())));
    cluster.fake.cut_connections();
    let asked = cluster.fake.requests().len();
    tokio::time::sleep(outage).await;
    let asked = cluster.fake.requests().len() - asked;
    // Four watches of an agent, a minute between two attempts of each in the long run, and the writes of its report.
    let minutes = usize::try_from(outage.as_secs() / 60).expect("it is short");
    assert!(asked <= fleet * (4 * (2 * minutes + 10)), "{asked} requests in the outage");
    cluster.fake.plant_lasting(None);
    seconds(60).await;
    cluster.agents.abort_all();
    cluster.controllers.abort_all();
    while cluster.agents.join_next().await.is_some() {}
    while cluster.controllers.join_next().await.is_some() {}
    cluster.start_agents();
    cluster.start_controller("second");
    seconds(900).await;

    let nodes = fleet as u64;
    assert_eq!(cluster.counts("web"), [nodes, nodes, 0]);
    assert!(cluster.nodes.iter().all(|node| node.present() == IMAGES_OF_SET && node.pins().len() == IMAGES_OF_SET));
    let asked: usize = cluster.nodes.iter().map(|node| node.asked().len()).sum();
    // What no written report names is asked for again: at most all images of the nodes that began in the outage, a fifth.
    assert!(asked <= fleet * IMAGES_OF_SET * 12 / 10, "{asked} pulls");
    let of_reports = cluster.fake.changes(REPORTS);
    assert!(of_reports <= 3 * fleet, "{of_reports} writes of {fleet} nodes, the outage included");
    let of_status = cluster.requests().iter().filter(|it| it.contains("/imagesets/web/status")).count();
    println!("{fleet} nodes: {asked} pulls, {of_reports} reports, {of_status} writes of the status");
    assert!(of_status <= 60, "{of_status} writes of the status");

    let (writes, requests) = (cluster.writes(), cluster.requests().len());
    seconds(200).await;
    assert_eq!((cluster.writes(), cluster.requests().len()), (writes, requests), "the fleet is not idle");
}
