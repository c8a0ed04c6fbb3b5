//! The agent of a node against an API server, on a clock that does not wait.

mod gating;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    prefetch::{
        objects::testing::set,
        testing::{FakeNode, GROUP, NODES, REPORTS, SETS},
    },
    testing::{ApiFault, FakeApi, FakeApiOptions, server},
};

struct TestAgent {
    fake: FakeApi,
    node: FakeNode,
    agent: Option<JoinHandle<()>>,
}

impl TestAgent {
    async fn start(node: FakeNode) -> Self {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        fake.install(GROUP);
        fake.put(NODES, json!({"metadata": {"name": "node-1", "labels": {"pool": "gpu"}}}));
        let mut test = Self { fake, node, agent: None };
        test.restart();
        test
    }

    fn restart(&mut self) {
        self.stop();
        let client = server(self.fake.client());
        let agent = PrefetchAgent::new(client, "node-1", Arc::new(self.node.clone()));
        self.agent = Some(tokio::spawn(async move { agent.run().await }));
    }

    fn stop(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.abort();
        }
    }

    fn apply(&self, name: &str, spec: &Value) {
        self.fake.put(SETS, json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec}));
    }

    fn apply_in(&self, namespace: &str, name: &str, references: &[&str]) {
        let spec = json!({"images": images(references)});
        self.fake.put(SETS, json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}));
    }

    fn report(&self) -> Value {
        self.fake.object(REPORTS, "", "node-1").unwrap_or_default()
    }

    fn phase(&self) -> String {
        self.report()["sets"][0]["phase"].as_str().unwrap_or_default().to_owned()
    }

    /// Requests besides the watches, which each begin anew after some minutes.
    fn requests(&self) -> usize {
        self.fake.requests().iter().filter(|request| !request.contains("watch=true")).count()
    }

    fn writes(&self) -> usize {
        self.fake
            .requests()
            .iter()
            .filter(|request| request.starts_with("PATCH ") && request.contains("nodeimages"))
            .count()
    }
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn images(references: &[&str]) -> Value {
    references.iter().map(|reference| json!({"reference": reference})).collect()
}

#[tokio::test(start_paused = true)]
async fn the_images_of_a_set_are_fetched_and_reported_in_two_writes() {
    let test = TestAgent::start(FakeNode::taking(Duration::from_secs(1))).await;
    test.apply("web", &json!({"images": images(&["a:1", "b:1", "c:1"])}));
    seconds(60).await;
    assert_eq!(test.node.asked(), ["a:1", "b:1", "c:1"]);
    assert_eq!(test.phase(), "Ready");
    let report = test.report();
    assert_eq!(report["sets"][0]["images"][0], json!({"reference": "a:1", "phase": "Present"}));
    assert_eq!((&report["sets"][0]["kind"], &report["sets"][0]["name"]), (&json!("ImageSet"), &json!("web")));
    let node = test.fake.object(NODES, "", "node-1").unwrap();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node["metadata"]["uid"]}]);
    assert_eq!(report["metadata"]["ownerReferences"], owner, "the cluster removes the report with its Node");
    assert!(test.writes() <= 2, "{:?}", test.fake.requests());
    let requests = test.requests();
    seconds(200).await;
    assert_eq!(test.requests(), requests, "an agent whose sets are ready asks and writes nothing");
    let request = &test.node.requests()[0];
    assert_eq!(request.caller, Caller::Prefetch { own_credentials: false });
    assert_eq!((request.priority, request.secrets.len()), (i32::MIN, 0));
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_has_ended_when_its_turn_is_over_gives_way_to_nothing() {
    let node = FakeNode::default();
    let agent = PrefetchAgent::new(FakeApi::start(FakeApiOptions::default()).await.client(), "node-1", Arc::new(node));
    let image = set("web", &["a:1"]).spec.images[0].clone();
    let key = TaskKey { uid: "uid-web".into(), generation: 0, image };
    let task = AbortOnDropHandle::new(tokio::spawn(async { Ok(()) }));
    let mut running = RunningPull { key, bytes: PullBytes::new(Instant::now()), task };
    let waiting = Waiting { image: "b:1".into(), are_all_slow: false };
    seconds(600).await;
    let ended = agent.pull_ended(Some(&mut running), &BTreeMap::new(), Some(&waiting)).await;
    assert!(matches!(ended, Some(Ok(()))));
}

#[tokio::test(start_paused = true)]
async fn pins_follow_the_sets_and_end_with_them() {
    let test = TestAgent::start(FakeNode::default()).await;
    test.apply("web", &json!({"images": images(&["a:1"]), "keep": true}));
    test.apply("other", &json!({"images": images(&["b:1"]), "keep": true, "nodeSelector": {"pool": "cpu"}}));
    seconds(20).await;
    assert_eq!(test.node.pins(), ["a:1 by ImageSet shop/web"]);
    test.fake.put(NODES, json!({"metadata": {"name": "node-1", "labels": {"pool": "cpu"}}}));
    seconds(20).await;
    assert_eq!(test.node.pins(), ["a:1 by ImageSet shop/web", "b:1 by ImageSet shop/other"]);
    test.fake.delete(SETS, "shop", "web");
    seconds(20).await;
    assert_eq!(test.node.pins(), ["b:1 by ImageSet shop/other"]);
    assert_eq!(test.report()["sets"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_pull_secret_is_read_from_the_namespace_of_its_set_and_a_missing_one_is_the_images_failure() {
    let test = TestAgent::start(FakeNode::default()).await;
    let spec = json!({"images": [{"reference": "a:1", "pullSecret": "login"}, {"reference": "b:1"}]});
    test.apply("web", &spec);
    seconds(20).await;
    assert_eq!(test.node.asked(), ["b:1"], "the other image does not wait");
    let image = test.report()["sets"][0]["images"][0].clone();
    assert_eq!((&image["class"], &image["hop"]), (&json!("credentials-unreadable"), &json!("credentials")));
    assert!(image["message"].as_str().unwrap().starts_with("cannot read the pull secret `shop/login`"), "{image}");
    let document = BASE64_STANDARD.encode(r#"{"auths":{"a":{"auth":"hidden"}}}"#);
    test.fake.put(
        "/api/v1/secrets",
        json!({
            "metadata": {"namespace": "shop", "name": "login"},
            "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": document},
        }),
    );
    seconds(120).await;
    assert_eq!(test.phase(), "Ready");
    let request = test.node.requests().pop().unwrap();
    assert_eq!(
        (request.secrets[0].identity.namespace.as_str(), request.secrets[0].identity.name.as_str()),
        ("shop", "login")
    );
    assert!(!test.report().to_string().contains("hidden"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_image_is_reported_with_its_class_and_tried_again_ever_more_rarely() {
    let test = TestAgent::start(FakeNode::default()).await;
    test.node.fail("a:1", Some(ErrorClass::Forbidden));
    test.apply("web", &json!({"images": images(&["a:1"])}));
    seconds(15).await;
    assert_eq!(
        (test.phase().as_str(), &test.report()["sets"][0]["images"][0]["class"]),
        ("Failed", &json!("forbidden"))
    );
    seconds(3600).await;
    let attempts = test.node.asked().len();
    assert!((6..=14).contains(&attempts), "{attempts} attempts in an hour");
    let [event, ..] = &test.node.events()[..] else { panic!("no event") };
    assert_eq!((event.reason, event.message.as_str()), ("PrefetchFailed", "could not prefetch `a:1`: denied"));
    let note = "could not prefetch an image from registry `docker.io`: forbidden at token";
    assert_eq!(event.note.as_deref(), Some(note), "it names neither the image nor the set");
    assert_eq!(test.node.events().len(), attempts);
    assert!(test.writes() <= 2, "a failure that stays is written once, and not with each attempt: {}", test.writes());
    test.node.fail("a:1", None);
    seconds(900 + 20).await;
    assert_eq!(test.phase(), "Ready");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_restarts_fetches_and_writes_nothing_again() {
    let mut test = TestAgent::start(FakeNode::default()).await;
    test.apply("web", &json!({"images": images(&["a:1", "b:1"])}));
    seconds(30).await;
    let (asked, writes) = (test.node.asked().len(), test.writes());
    test.restart();
    seconds(120).await;
    assert_eq!((test.node.asked().len(), test.writes()), (asked, writes));
    // A set that was deleted meanwhile is released.
    test.stop();
    test.fake.delete(SETS, "shop", "web");
    test.restart();
    seconds(30).await;
    assert_eq!(test.report()["sets"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn while_the_api_server_is_away_pins_stay_and_the_report_is_written_afterwards() {
    let test = TestAgent::start(FakeNode::taking(Duration::from_secs(30))).await;
    test.apply("web", &json!({"images": images(&["a:1"]), "keep": true}));
    seconds(10).await;
    test.fake.plant_lasting(Some(ApiFault::Status(500, "etcd is away".into())));
    test.fake.cut_connections();
    seconds(600).await;
    assert_eq!(test.node.asked(), ["a:1"], "a pull that runs goes on");
    assert_eq!(test.node.pins(), ["a:1 by ImageSet shop/web"]);
    let failed = test.fake.requests().len();
    assert!(failed < 150, "{failed} requests in ten minutes");
    test.fake.plant_lasting(None);
    seconds(200).await;
    assert_eq!(test.phase(), "Ready");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_kinds_is_asked_rarely_and_used_once_it_has_them() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    fake.put(NODES, json!({"metadata": {"name": "node-1"}}));
    let node = FakeNode::default();
    let agent = PrefetchAgent::new(fake.client(), "node-1", Arc::new(node.clone()));
    let agent = tokio::spawn(async move { agent.run().await });
    seconds(3600).await;
    let requests = fake.requests().iter().filter(|request| request.contains("imagesets")).count();
    assert!((40..=100).contains(&requests), "{requests} requests of two watches in an hour");
    fake.install(GROUP);
    fake.put(SETS, json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"images": images(&["a:1"])}}));
    seconds(200).await;
    assert_eq!(node.asked(), ["a:1"]);
    agent.abort();
}

#[tokio::test(start_paused = true)]
async fn a_set_that_ends_cancels_its_pull() {
    let test = TestAgent::start(FakeNode::taking(Duration::from_hours(1))).await;
    test.apply("web", &json!({"images": images(&["a:1"])}));
    seconds(10).await;
    assert_eq!(test.phase(), "Pulling");
    test.fake.delete(SETS, "shop", "web");
    seconds(7200).await;
    assert_eq!(test.node.asked(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_set_that_ends_in_the_middle_of_its_pull_makes_room_for_the_next_one_at_once() {
    let test = TestAgent::start(FakeNode::taking(Duration::from_secs(1))).await;
    test.node.send("slow:1", 1 << 20, 1 << 40);
    test.apply("web", &json!({"images": images(&["slow:1"])}));
    seconds(2).await;
    test.apply_in("other", "next", &["a:1"]);
    seconds(1).await;
    assert_eq!(test.node.begun(), ["slow:1"]);
    test.fake.delete(SETS, "shop", "web");
    seconds(2).await;
    assert_eq!(test.node.asked(), ["a:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_trickling_set_gives_way_to_others_within_ten_seconds_and_continues_where_it_was() {
    for rate in [100, 20 << 10] {
        let test = TestAgent::start(FakeNode::taking(Duration::from_secs(1))).await;
        let size = rate * 300;
        test.node.send("slow:1", rate, size);
        test.apply("web", &json!({"images": images(&["slow:1"])}));
        seconds(100).await;
        assert_eq!(test.node.begun(), ["slow:1"], "nothing else waits");
        test.apply_in("other", "next", &["a:1", "b:1", "c:1"]);
        // Alone they take three seconds.
        seconds(3 + 6).await;
        assert_eq!(test.node.asked(), ["a:1", "b:1", "c:1"], "{rate}");
        // Again, while the slow one is in its second turn.
        test.apply_in("third", "next", &["d:1"]);
        seconds(1 + 11).await;
        assert_eq!(test.node.asked(), ["a:1", "b:1", "c:1", "d:1"], "{rate}");
        seconds(200).await;
        assert_eq!(test.node.asked().last().map(String::as_str), Some("slow:1"), "{:?}", test.node.begun());
        assert_eq!(test.node.begun().iter().filter(|image| *image == "slow:1").count(), 3, "{:?}", test.node.begun());
        assert_eq!(test.node.received("slow:1"), size, "what came before its turns ended was not sent again");
        assert_eq!(test.report()["sets"][0]["phase"], "Ready");
        assert_eq!(test.node.events().len(), 0, "nothing failed");
        test.fake.cut_connections();
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_pull_and_one_behind_those_of_pods_keep_their_turn_although_others_wait() {
    let test = TestAgent::start(FakeNode::taking(Duration::from_secs(1))).await;
    test.node.send("good:1", 512 << 10, 60 * (512 << 10));
    test.apply("web", &json!({"images": images(&["good:1"])}));
    seconds(2).await;
    test.apply_in("other", "next", &["a:1"]);
    seconds(80).await;
    assert_eq!(test.node.asked(), ["good:1", "a:1"]);
    test.node.queue(true);
    test.node.send("queued:1", 512 << 10, 512 << 10);
    test.apply("queued", &json!({"images": images(&["queued:1"])}));
    seconds(2).await;
    test.apply_in("other", "last", &["b:1"]);
    seconds(600).await;
    assert_eq!(test.node.begun(), ["good:1", "a:1", "queued:1"]);
    test.node.queue(false);
    seconds(10).await;
    assert_eq!(test.node.asked(), ["good:1", "a:1", "queued:1", "b:1"]);
}

#[tokio::test(start_paused = true)]
async fn slow_sets_share_the_node_and_each_comes_to_its_end() {
    let test = TestAgent::start(FakeNode::default()).await;
    for (namespace, image) in [("a", "a:1"), ("b", "b:1"), ("c", "c:1")] {
        test.node.send(image, 100, 100 * 100);
        test.apply_in(namespace, "slow", &[image]);
    }
    seconds(20).await;
    assert_eq!(&test.node.begun()[..4], ["a:1", "b:1", "c:1", "a:1"]);
    seconds(60).await;
    let report = test.report();
    let images = report["sets"].as_array().unwrap().iter().map(|set| &set["images"][0]);
    let waiting =
        images.filter(|image| image["message"] == "gave way to other sets that wait; it continues in its turn");
    assert_eq!(waiting.filter(|image| image["phase"] == "Pending").count(), 2, "{report}");
    seconds(340).await;
    let mut fetched = test.node.asked();
    fetched.sort();
    assert_eq!(fetched, ["a:1", "b:1", "c:1"]);
    assert!(test.node.begun().len() <= 15, "turns of slow sets become longer: {:?}", test.node.begun());
    assert!(test.writes() <= 12, "{} writes in seven minutes", test.writes());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_sets_crowds_out_neither_pins_nor_pulls_of_another_one() {
    let test = TestAgent::start(FakeNode::taking(Duration::from_secs(1))).await;
    for at in 0..1000 {
        let spec = json!({"images": images(&[&format!("many:{at}")]), "keep": true});
        let metadata = json!({"namespace": "a", "name": format!("set-{at}")});
        test.fake.put(SETS, json!({"metadata": metadata, "spec": spec}));
    }
    let spec = json!({"images": images(&["wanted:1"]), "keep": true});
    test.fake.put(SETS, json!({"metadata": {"namespace": "z", "name": "web"}, "spec": spec}));
    seconds(10).await;
    assert!(test.node.pins().contains(&"wanted:1 by ImageSet z/web".to_owned()));
    assert_eq!(test.node.pins().len(), 101);
    assert!(test.node.asked().contains(&"wanted:1".to_owned()), "{:?}", test.node.asked());
}

#[tokio::test(start_paused = true)]
async fn pulls_go_on_and_give_way_while_the_api_server_does_not_answer() {
    let test = TestAgent::start(FakeNode::taking(Duration::from_secs(1))).await;
    test.node.send("slow:1", 100, 100 * 1000);
    test.apply("web", &json!({"images": images(&["slow:1"])}));
    seconds(1).await;
    test.fake.plant_lasting(Some(ApiFault::Hang));
    test.apply_in("other", "next", &["a:1", "b:1"]);
    // The first report is due, and is not answered.
    seconds(10).await;
    assert!(test.fake.requests().last().is_some_and(|request| request.starts_with("PATCH")));
    assert_eq!(test.node.asked(), ["a:1", "b:1"]);
    test.fake.plant_lasting(None);
    seconds(200).await;
    let report = test.report();
    assert_eq!(report["sets"].as_array().map(Vec::len), Some(2), "{report}");
}
