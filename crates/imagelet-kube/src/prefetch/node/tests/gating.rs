//! The condition of a node with gated sets, and the sets that select a node by its pods.

use http::{Request, Response, StatusCode};
use imagelet_core::{
    inventory::Inventory,
    manager::{ImageManager, ManagerParts, PodStarts},
    metrics::Metrics,
    ports::RuntimeManager,
    records::PullRecords,
    testing::FakeRuntime,
};
use kube::client::Body;
use tokio::sync::watch;

use super::*;
use crate::{
    agent::NodeAgentParts,
    pods::{BoundPod, bound_pod},
    testing::ApiFault::Status,
};

const TYPE: &str = "imagelet.dev/ImagesReady";

/// A node whose kubelet has written a condition of its own.
async fn gated_node(node: FakeNode) -> TestAgent {
    let test = TestAgent::start(node).await;
    test.fake.put(NODES, of_kubelet("node-1"));
    test
}

fn of_kubelet(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"pool": "gpu"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "images": [{"names": ["app"]}]},
    })
}

fn gated(references: &[&str]) -> Value {
    json!({"images": images(references), "gate": true})
}

impl TestAgent {
    /// The status, the reason and the message of the condition. The condition of the kubelet is checked.
    fn images_ready(&self) -> Option<[String; 3]> {
        let node = self.fake.object(NODES, "", "node-1").unwrap();
        let conditions = node["status"]["conditions"].as_array().unwrap();
        assert!(conditions.contains(&json!({"type": "Ready", "status": "True"})), "{node}");
        assert_eq!(node["status"]["images"], json!([{"names": ["app"]}]), "{node}");
        let found = conditions.iter().find(|condition| condition["type"] == TYPE)?;
        Some(["status", "reason", "message"].map(|field| found[field].as_str().unwrap_or_default().to_owned()))
    }

    fn restart_with(&mut self, pods: &PodsReceiver) {
        self.stop();
        let agent = PrefetchAgent::new(server(self.fake.client()), "node-1", Arc::new(self.node.clone()));
        let agent = PrefetchAgent { pods: Some(pods.clone()), ..agent };
        self.agent = Some(tokio::spawn(async move { agent.run().await }));
    }

    fn status(&self) -> String {
        self.images_ready().map(|[status, ..]| status).unwrap_or_default()
    }

    fn condition_writes(&self) -> usize {
        self.fake.requests().iter().filter(|request| request.starts_with("PATCH /api/v1/nodes/node-1/status")).count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_is_ready_when_its_gated_sets_are_complete_and_without_one_has_no_condition() {
    let test = gated_node(FakeNode::default()).await;
    test.apply("other", &json!({"images": images(&["c:1"])}));
    test.apply("elsewhere", &json!({"images": images(&["d:1"]), "gate": true, "nodeSelector": {"pool": "cpu"}}));
    seconds(100).await;
    assert_eq!((test.images_ready(), test.condition_writes()), (None, 0));

    for image in ["a:1", "b:1"] {
        test.node.fail(image, Some(ErrorClass::Forbidden));
    }
    test.apply("web", &gated(&["a:1", "b:1"]));
    seconds(10).await;
    let missing = |message: &str| Some(["False", "ImagesMissing", message].map(str::to_owned));
    let both = "missing 2 of 2 images of gated sets: a:1 (forbidden at token), b:1 (forbidden at token)";
    assert_eq!(test.images_ready(), missing(both));
    test.node.fail("a:1", None);
    seconds(120).await;
    assert_eq!(test.images_ready(), missing("missing 1 of 2 images of gated sets: b:1 (forbidden at token)"));
    test.node.fail("b:1", None);
    seconds(300).await;
    let ready = Some(["True", "ImagesPresent", "all images of 1 gated set are present"].map(str::to_owned));
    assert_eq!(test.images_ready(), ready);
    assert_eq!(test.node.pins(), ["a:1 by ImageSet shop/web", "b:1 by ImageSet shop/web"]);
    let writes = test.condition_writes();
    assert!(writes <= 4, "{writes} writes");
    seconds(3600).await;
    assert_eq!(test.condition_writes(), writes, "a condition that stays is not written again");

    // A kubelet under pressure removes it: the node is not ready until it is there again.
    test.node.fail("a:1", Some(ErrorClass::Forbidden));
    test.node.lose("a:1");
    seconds(50).await;
    assert_eq!(test.status(), "False");
    test.node.fail("a:1", None);
    // Longer than the back-off after the failures of those seconds, whatever its random share is.
    seconds(300).await;
    assert_eq!(test.status(), "True");
    test.fake.delete(SETS, "shop", "web");
    seconds(20).await;
    assert_eq!(test.images_ready(), None);
}

#[tokio::test(start_paused = true)]
async fn a_gated_set_of_twenty_images_takes_few_writes() {
    let test = gated_node(FakeNode::taking(Duration::from_secs(2))).await;
    let names: Vec<String> = (0..20).map(|at| format!("app:{at}")).collect();
    test.apply("web", &gated(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    seconds(120).await;
    assert_eq!((test.status().as_str(), test.phase().as_str()), ("True", "Ready"));
    assert!(test.writes() <= 3 && test.condition_writes() <= 2, "{} {}", test.writes(), test.condition_writes());
}

#[tokio::test(start_paused = true)]
async fn the_condition_follows_the_facts_over_a_restart_an_outage_and_changes_of_others() {
    let mut test = gated_node(FakeNode::default()).await;
    test.apply("web", &gated(&["a:1"]));
    seconds(30).await;
    assert_eq!((test.status().as_str(), test.condition_writes()), ("True", 1));
    test.restart();
    seconds(120).await;
    assert_eq!((test.status().as_str(), test.condition_writes()), ("True", 1), "the API has it already");

    // The image goes while the agent is away. Before a pass, the agent that starts does not know it.
    test.stop();
    test.node.lose("a:1");
    test.node.fail("a:1", Some(ErrorClass::Forbidden));
    test.node.list(false);
    test.restart();
    seconds(60).await;
    assert_eq!((test.status().as_str(), test.condition_writes()), ("True", 1));
    test.node.list(true);
    seconds(60).await;
    assert_eq!(test.status(), "False");

    // The image arrives while the API server is away.
    test.fake.plant_lasting(Some(Status(500, "etcd is away".into())));
    test.fake.cut_connections();
    test.node.fail("a:1", None);
    seconds(1200).await;
    assert_eq!(test.status(), "False");
    test.fake.plant_lasting(None);
    seconds(200).await;
    assert_eq!(test.status(), "True");

    // Another client removes the condition, and then the Node is created again.
    test.fake.put(NODES, of_kubelet("node-1"));
    assert_eq!(test.images_ready(), None);
    seconds(20).await;
    assert_eq!(test.status(), "True");
    test.fake.delete(NODES, "", "node-1");
    test.fake.put(NODES, of_kubelet("node-1"));
    seconds(200).await;
    assert_eq!(test.status(), "True");

    // The last gated set ends while the agent is away.
    test.stop();
    test.fake.delete(SETS, "shop", "web");
    test.restart();
    seconds(30).await;
    assert_eq!(test.images_ready(), None);
}

#[tokio::test(start_paused = true)]
async fn without_the_right_the_sets_are_fetched_and_the_condition_is_tried_a_few_times_an_hour() {
    let mut test = gated_node(FakeNode::default()).await;
    test.stop();
    let fake = test.fake.client();
    let service = tower::service_fn(move |request: Request<Body>| {
        let fake = fake.clone();
        async move {
            if !request.uri().path().ends_with("/status") {
                return fake.send(request).await;
            }
            // The request is counted.
            let counted = http::Method::OPTIONS;
            let (mut head, body) = request.into_parts();
            head.method = counted;
            fake.send(Request::from_parts(head, body)).await?;
            let forbidden = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "nodes \"node-1\" is forbidden: cannot patch nodes/status"});
            let answer = Response::builder().status(StatusCode::FORBIDDEN);
            Ok::<_, kube::Error>(answer.body(Body::from(forbidden.to_string().into_bytes())).unwrap())
        }
    });
    let agent = PrefetchAgent::new(Client::new(service, "default"), "node-1", Arc::new(test.node.clone()));
    test.agent = Some(tokio::spawn(async move { agent.run().await }));
    test.apply("web", &gated(&["a:1", "b:1"]));
    seconds(60).await;
    assert_eq!(test.phase(), "Ready");
    seconds(3600).await;
    let tries = test.fake.requests().iter().filter(|request| request.starts_with("OPTIONS")).count();
    assert!((2..=6).contains(&tries), "{tries} tries in an hour");
    assert_eq!(test.images_ready(), None);
}

#[tokio::test(start_paused = true)]
async fn a_gated_set_beyond_a_limit_holds_the_node_back_and_says_why() {
    let test = gated_node(FakeNode::default()).await;
    for at in 0..=100 {
        let name = format!("set-{at:03}");
        test.apply(&name, &json!({"images": images(&["a:1"]), "gate": at == 100}));
    }
    seconds(30).await;
    let why = "1 gated set beyond the limits of prefetch, as ImageSet shop/set-100: no node fetches the images";
    assert_eq!(test.images_ready(), Some(["False", "ImagesMissing", why].map(str::to_owned)));
    test.fake.delete(SETS, "shop", "set-000");
    seconds(30).await;
    assert_eq!(test.status(), "True");
}

fn bound(pods: &[(&str, &str)]) -> Vec<Arc<BoundPod>> {
    let pod = |(namespace, app): &(&str, &str)| {
        let metadata = json!({"namespace": namespace, "name": app, "uid": app, "labels": {"app": app}});
        let spec = json!({"nodeName": "node-1", "containers": [{"name": "c", "image": "x:1"}]});
        bound_pod(&serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).map(Arc::new)
    };
    pods.iter().filter_map(pod).collect()
}

#[tokio::test(start_paused = true)]
async fn a_set_that_selects_by_pods_is_fetched_where_such_a_pod_is_bound_and_released_after_it() {
    let mut test = gated_node(FakeNode::default()).await;
    let (sender, receiver) = watch::channel(Vec::new());
    test.restart_with(&receiver);
    let spec = json!({"images": images(&["a:1"]), "gate": true, "podSelector": {"matchLabels": {"app": "web"}}});
    test.apply("by-pods", &spec);
    test.apply("by-nodes", &json!({"images": images(&["b:1"])}));
    seconds(30).await;
    assert_eq!(test.node.asked(), [""; 0], "the pods are not known yet");
    sender.send_replace(bound(&[("shop", "db"), ("bank", "web")]));
    seconds(30).await;
    assert_eq!((test.node.asked(), test.images_ready()), (vec!["b:1".to_owned()], None));
    sender.send_replace(bound(&[("shop", "db"), ("shop", "web")]));
    seconds(30).await;
    assert_eq!((test.node.asked().len(), test.status().as_str()), (2, "True"));
    assert_eq!(test.node.pins(), ["a:1 by ImageSet shop/by-pods"]);

    // A pod that is replaced, and an agent that starts with the pods of its node.
    let writes = test.writes();
    sender.send_replace(bound(&[("shop", "db")]));
    seconds(100).await;
    sender.send_replace(bound(&[("shop", "web")]));
    test.restart_with(&receiver);
    seconds(200).await;
    assert_eq!((test.node.asked().len(), test.writes(), test.status().as_str()), (2, writes, "True"));
    sender.send_replace(Vec::new());
    seconds(100).await;
    assert_eq!(test.node.pins(), ["a:1 by ImageSet shop/by-pods"]);
    seconds(60).await;
    assert_eq!((test.node.pins(), test.images_ready()), (vec![], None));
    let report = test.report();
    assert_eq!(report["sets"].as_array().map(Vec::len), Some(1), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_releases_no_set_that_selects_by_pods_before_the_pods_are_listed_again() {
    let mut test = gated_node(FakeNode::default()).await;
    let (sender, receiver) = watch::channel(bound(&[]));
    test.restart_with(&receiver);
    let spec = json!({"images": images(&["a:1"]), "gate": true, "podSelector": {"matchLabels": {"app": "web"}}});
    test.apply("by-pods", &spec);
    sender.send_replace(bound(&[("shop", "web")]));
    seconds(60).await;
    assert_eq!(test.status(), "True");
    let (sender, receiver) = watch::channel(Vec::new());
    test.restart_with(&receiver);
    seconds(600).await;
    assert_eq!((test.node.pins().len(), test.status().as_str()), (1, "True"));
    sender.send_replace(Vec::new());
    seconds(80).await;
    assert_eq!((test.node.pins().len(), test.status().as_str()), (1, "True"));
    seconds(60).await;
    assert_eq!((test.node.pins(), test.images_ready()), (vec![], None), "the pod has ended");
}

#[tokio::test(start_paused = true)]
async fn the_agent_of_the_pods_gives_their_labels_to_the_agent_of_the_sets() {
    let mut test = gated_node(FakeNode::default()).await;
    test.stop();
    let fake = FakeRuntime::new();
    let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake));
    let metrics = Arc::new(Metrics::new());
    let manager = ManagerParts::new(runtime.clone(), Arc::new(PullRecords::off()));
    let parts = NodeAgentParts {
        node: "node-1".into(),
        inventory: Arc::new(Inventory::open(runtime, None).unwrap()),
        manager: Arc::new(ImageManager::new(manager)),
        metrics: Arc::clone(&metrics),
        starts: Arc::new(PodStarts::new(metrics)),
        look_ahead: None,
        events: None,
        progress_events: false,
    };
    let of_pods = NodeAgent::new(server(test.fake.client()), parts);
    let of_sets = PrefetchAgent::new(server(test.fake.client()), "node-1", Arc::new(test.node.clone()));
    let of_sets = of_sets.with_pods_of(&of_pods);
    test.agent = Some(tokio::spawn(async move {
        tokio::join!(of_pods.run(), of_sets.run());
    }));
    let selector = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]});
    test.apply("web", &json!({"images": images(&["a:1"]), "podSelector": selector}));
    let pod = |app: &str, node: &str| {
        json!({
            "metadata": {"namespace": "shop", "name": app, "labels": {"app": app}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x:1"}]},
        })
    };
    test.fake.apply(pod("db", "node-1"));
    test.fake.apply(pod("web", "node-2"));
    seconds(60).await;
    assert_eq!(test.node.asked(), [""; 0]);
    test.fake.apply(pod("api", "node-1"));
    seconds(30).await;
    assert_eq!(test.node.asked(), ["a:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_pods_cannot_be_listed_fetches_the_sets_that_select_it_by_labels() {
    let mut test = gated_node(FakeNode::default()).await;
    let (_sender, receiver) = watch::channel(Vec::new());
    test.restart_with(&receiver);
    test.apply("by-pods", &json!({"images": images(&["a:1"]), "podSelector": {}}));
    test.apply("by-nodes", &json!({"images": images(&["b:1"])}));
    seconds(50).await;
    assert_eq!(test.node.asked(), [""; 0]);
    seconds(30).await;
    assert_eq!(test.node.asked(), ["b:1"]);
}
