//! The choice of the next event, in tables, and agents with pulls and an API server on a clock that does not wait.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc};

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, Stage},
    hold::{PullWait, SharedThing},
    image::ByteSize,
    manager::{EnsureRequest, ManagerParts, PullPolicy, PullSettings, PullState, PullTurn},
    ports::{ForwardReason, LayerState, NoContainers, PullEvent, PullProgress, PullTimes, RuntimeManager, unwatched},
    records::PullRecords,
    testing::FakeRuntime,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::testing::{ApiFault, FakeApi, FakeApiOptions};

const KUBELET: Caller = Caller::Client { own_credentials: false, is_limited: false };
const EVENTS: &str = "/api/v1/events";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A pod by `NAMESPACE/NAME`.
fn pod(text: &str) -> PodIdentity {
    let (namespace, name) = text.split_once('/').unwrap();
    PodIdentity { namespace: namespace.into(), name: name.into(), uid: format!("uid-{name}").into() }
}

/// A running pull of `r.io/IMAGE` that began at `start`, with its clients: pod, caller, and the second of its request.
fn pull(start: Instant, image: &str, clients: &[(&str, Caller, u64)]) -> PullStatus {
    let client = |(name, caller, at): &(&str, Caller, u64)| PullClient {
        pod: pod(name),
        caller: *caller,
        since: start + seconds(*at),
    };
    PullStatus {
        number: u64::from(image.bytes().next().unwrap()),
        image: format!("r.io/{image}"),
        pod: PodIdentity::default(),
        turn: PullTurn { state: PullState::Running, since: start, place: None },
        clients: clients.iter().map(client).collect(),
        priority: 0,
        progress: PullProgress {
            times: PullTimes { began: Some(start), ..PullTimes::default() },
            ..PullProgress::default()
        },
    }
}

fn ended(mut pull: PullStatus, at: Instant, end: PullEnd) -> PullStatus {
    pull.progress.finish(end, at);
    pull
}

/// `NAMESPACE/NAME NOTE` of the event that is due, after events of these pods at these seconds.
fn due(start: Instant, pulls: &[PullStatus], sent: &[(&str, u64, bool)], at: u64) -> Option<String> {
    let sent = sent.iter().map(|(name, at, is_refused)| {
        let (at, first) = (start + seconds(*at), Timestamp::UNIX_EPOCH);
        (pod(name), SentEvent { at, first, count: 1, is_refused: *is_refused })
    });
    let due = due_event(pulls, &sent.collect(), start + seconds(at))?;
    Some(format!("{}/{} {}", due.pod.namespace, due.pod.name, due.note))
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_its_first_event_after_15_s_and_further_ones_at_growing_intervals_up_to_a_minute() {
    let start = Instant::now();
    let pulls = [pull(start, "app:v1", &[("shop/web", KUBELET, 5)])];
    // The second of the last event, and the first second at which the next one is due. The pod waits since second 5.
    for (sent, expected) in [
        (None, 20),
        (Some(20), 35),
        (Some(35), 50),
        (Some(50), 65),
        (Some(65), 85),
        (Some(85), 112),
        (Some(185), 245),
        (Some(500), 560),
    ] {
        let sent: Vec<_> = sent.map(|at| ("shop/web", at, false)).into_iter().collect();
        let after = sent.first().map_or(0, |it| it.1);
        let first = (after..600).find(|at| due(start, &pulls, &sent, *at).is_some());
        assert_eq!(first, Some(expected), "{sent:?}");
    }
    let note = due(start, &pulls, &[], 20).unwrap();
    assert_eq!(note, "shop/web image r.io/app:v1: asking the registry for 20 s");
}

#[tokio::test(start_paused = true)]
async fn the_kubelet_or_a_look_ahead_waits_for_a_pod_and_no_other_client_does() {
    let start = Instant::now();
    let prefetch = Caller::Prefetch { own_credentials: false };
    for (name, caller, is_due) in [
        ("shop/web", KUBELET, true),
        ("shop/web", Caller::LookAhead, true),
        ("shop/web", Caller::Pod, false),
        ("shop/web", Caller::Command, false),
        ("shop/web", prefetch, false),
        ("/", KUBELET, false),
        ("shop/..", KUBELET, false),
        ("a/b/c", KUBELET, false),
        ("Shop/web", KUBELET, false),
    ] {
        let pulls = [pull(start, "app:v1", &[(name, caller, 0)])];
        assert_eq!(due(start, &pulls, &[], 60).is_some(), is_due, "{name} {caller:?}");
    }
    let mut without_uid = pull(start, "app:v1", &[("shop/web", KUBELET, 0)]);
    without_uid.clients[0].pod.uid = "".into();
    assert_eq!(due(start, &[without_uid], &[], 60), None);
    assert_eq!(due(start, &[pull(start, "app:v1", &[])], &[], 60), None, "a pull in its grace");
}

#[tokio::test(start_paused = true)]
async fn an_event_names_the_images_of_its_own_pod_alone() {
    let start = Instant::now();
    let mut other = pull(start, "b-secret:v1", &[("bank/api", KUBELET, 0)]);
    let holder = Some("r.io/c-other:v1".to_owned());
    let wait = PullWait { thing: SharedThing::Layer, holder };
    other.progress.apply(PullEvent::Waits { layer: Digest::of(b"a"), wait: Some(wait) }, start);
    let pulls = [
        pull(start, "a-app:v1", &[("shop/web", Caller::LookAhead, 0), ("shop/web", KUBELET, 2)]),
        other,
        pull(start, "d-model:v1", &[("shop/web", Caller::LookAhead, 1), ("bank/api", KUBELET, 30)]),
        // It waits for less than 15 s.
        pull(start, "e-late:v1", &[("shop/web", KUBELET, 50)]),
    ];
    let of_shop = "shop/web image r.io/a-app:v1: asking the registry for 60 s; \
                   image r.io/d-model:v1: asking the registry for 60 s";
    let of_bank = "bank/api image r.io/b-secret:v1: waits for a layer that another pull fetches; \
                   image r.io/d-model:v1: asking the registry for 60 s";
    assert_eq!(due(start, &pulls, &[("bank/api", 59, false)], 60).as_deref(), Some(of_shop));
    assert_eq!(due(start, &pulls, &[("shop/web", 59, false)], 60).as_deref(), Some(of_bank));
    assert_eq!(due(start, &pulls, &[("shop/web", 40, false), ("bank/api", 20, false)], 60).as_deref(), Some(of_bank));
    assert_eq!(due(start, &pulls, &[("shop/web", 50, false), ("bank/api", 50, false)], 60), None);
}

#[tokio::test(start_paused = true)]
async fn each_pod_of_an_artifact_without_files_is_warned_once_in_its_own_namespace_and_reads_no_text_of_a_registry() {
    let (start, api) = (Instant::now(), FakeApi::start(FakeApiOptions::default()).await);
    let clients = [("shop/web", KUBELET, 0), ("shop/web", Caller::LookAhead, 0), ("bank/api", KUBELET, 1)];
    let fault = Fault::new(ErrorClass::Forbidden, Stage::Manifest);
    let reason = ForwardReason::Failed { fault, text: "a text of the registry".into() };
    let of_route = |image, route, end: Option<PullEnd>| {
        let mut pull = pull(start, image, &clients);
        pull.progress.apply(PullEvent::Route(route), start);
        end.into_iter().fold(pull, |pull, end| ended(pull, start, end))
    };
    let artifact = PullRoute::ForwardedArtifact(reason.clone());
    let model = of_route("model:v1", artifact.clone(), Some(PullEnd::Pulled));
    let pulls = [
        of_route("app:v1", PullRoute::Forwarded(reason), Some(PullEnd::Pulled)),
        of_route("running:v1", artifact, None),
        model.clone(),
    ];
    let mut warnings = ArtifactWarnings::default();
    let found: Vec<_> = std::iter::from_fn(|| warnings.next(&pulls)).collect();
    let pods: Vec<_> = found.iter().map(|due| due.pod.clone()).collect();
    assert_eq!(pods, [pod("bank/api"), pod("shop/web")]);
    let note = "image r.io/model:v1: the runtime pulled an artifact without its files (import-failed); \
                a volume of it is empty";
    assert!(found.iter().all(|due| due.note == note && due.reason == FORWARDED), "{found:?}");
    let of_another = PullStatus { number: 1, ..model };
    assert!(warnings.next(&[of_another]).is_some(), "a later pull warns again");

    let event = SentEvent { at: start, first: Timestamp::UNIX_EPOCH, count: 1, is_refused: false };
    apply(&api.client(), "node-1", &found[1], &event, Timestamp::UNIX_EPOCH).await.expect("it is taken");
    let objects = api.objects(EVENTS);
    let [object] = &objects[..] else { panic!("{objects:?}") };
    assert_eq!((&object["type"], &object["reason"]), (&json!("Warning"), &json!(FORWARDED)));
    assert_eq!((&object["metadata"]["namespace"], &object["message"]), (&json!("shop"), &json!(note)));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_pull_is_said_only_where_no_kubelet_says_it() {
    let start = Instant::now();
    let error = || PullEnd::Failed(Arc::new(RuntimeError::other("a text of the registry")));
    let ahead = [("shop/web", Caller::LookAhead, 0)];
    let joined = [("shop/web", Caller::LookAhead, 0), ("shop/web", KUBELET, 30)];
    for (clients, end, sent, expected) in [
        (&ahead[..], PullEnd::Pulled, Some(20), Some("image r.io/app:v1: pulled in 40 s")),
        (&ahead, error(), Some(20), Some("image r.io/app:v1: failed: ")),
        (&ahead, PullEnd::Cancelled, Some(20), None),
        (&ahead, PullEnd::Pulled, Some(41), None),
        (&ahead, PullEnd::Pulled, Some(10), None),
        (&ahead, PullEnd::Pulled, None, None),
        (&joined, PullEnd::Pulled, Some(20), None),
        (&joined, error(), Some(20), None),
    ] {
        let case = format!("{clients:?} {end:?} {sent:?}");
        let pulls = [ended(pull(start, "app:v1", clients), start + seconds(40), end)];
        let sent: Vec<_> = sent.map(|at| ("shop/web", at, false)).into_iter().collect();
        let note = due(start, &pulls, &sent, 42);
        let is_expected = match expected {
            Some(expected) => note.as_ref().is_some_and(|note| note.starts_with(&format!("shop/web {expected}"))),
            None => note.is_none(),
        };
        assert!(is_expected && !format!("{note:?}").contains("a text"), "{case}: {note:?}");
    }
    let running = pull(start, "app:v1", &ahead);
    let other = pull(start, "base:v1", &ahead);
    let twice = [running.clone(), other, ended(running, start + seconds(40), PullEnd::Pulled)];
    let note = due(start, &twice, &[("shop/web", 20, false)], 42).unwrap();
    let expected = "shop/web image r.io/app:v1: pulled in 40 s; image r.io/base:v1: asking the registry for 42 s";
    assert_eq!(note, expected, "a pull that ends between two reads is in both");
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_event_is_refused_waits_a_minute_and_delays_no_other_pod() {
    let start = Instant::now();
    let pulls = [pull(start, "app:v1", &[("gone/web", KUBELET, 0), ("shop/api", KUBELET, 0)])];
    assert_eq!(due(start, &pulls[..], &[("gone/web", 15, true), ("shop/api", 18, false)], 32), None);
    let next = due(start, &pulls, &[("gone/web", 15, true), ("shop/api", 18, false)], 33).unwrap();
    assert!(next.starts_with("shop/api "), "{next}");
    let next = due(start, &pulls, &[("gone/web", 15, true), ("shop/api", 66, false)], 75).unwrap();
    assert!(next.starts_with("gone/web "), "{next}");
}

#[tokio::test(start_paused = true)]
async fn a_note_has_the_length_that_the_api_permits() {
    let start = Instant::now();
    let pulls: Vec<_> = ('a'..='z')
        .map(|first| pull(start, &format!("{first}{}", "ü".repeat(100)), &[("shop/web", KUBELET, 0)]))
        .collect();
    let note = due_event(&pulls, &HashMap::new(), start + seconds(60)).unwrap().note;
    assert!((NOTE_LENGTH_MAX - 1..=NOTE_LENGTH_MAX).contains(&note.len()), "{}", note.len());
}

/// A node whose pulls take long, with an agent.
struct TestNode {
    runtime: FakeRuntime,
    manager: Arc<ImageManager>,
    tasks: JoinSet<()>,
}

impl TestNode {
    fn start(api: &FakeApi, node: &str, slots: Option<usize>) -> Self {
        let runtime = FakeRuntime::new();
        let manager = RuntimeManager::new(Arc::new(runtime.clone()), Arc::new(NoContainers));
        let settings = PullSettings { slots: slots.and_then(NonZeroUsize::new), ..PullSettings::default() };
        let parts = ManagerParts { settings, ..ManagerParts::new(manager, Arc::new(PullRecords::in_memory())) };
        let mut test = Self { runtime, manager: Arc::new(ImageManager::new(parts)), tasks: JoinSet::new() };
        test.start_agent(api, node);
        test
    }

    fn start_agent(&mut self, api: &FakeApi, node: &str) {
        let (client, node, manager) = (api.client(), node.to_owned(), Arc::clone(&self.manager));
        self.tasks.spawn(async move { send_pod_events(&client, &node, &manager).await });
    }

    /// A request of the kubelet for a pod, for a pull that takes this long.
    fn request(&mut self, pod: PodIdentity, image: &str, takes: Duration) {
        self.runtime.offer(image, image, 1000);
        self.runtime.set_pull_takes(takes);
        let caller = Caller::Client { own_credentials: false, is_limited: true };
        let mut request = EnsureRequest { caller, ..EnsureRequest::new(image, PullPolicy::Always) };
        request.pull.pod = pod;
        let manager = Arc::clone(&self.manager);
        self.tasks.spawn(async move { drop(manager.ensure(&request, unwatched()).await) });
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_of_a_minute_is_one_event_of_its_pod_that_is_sent_at_least_three_times() {
    let api = FakeApi::start(FakeApiOptions::default()).await;
    let mut node = TestNode::start(&api, "node-1", None);
    node.request(pod("shop/web"), "app:v1", seconds(60));
    let mut counts = Vec::new();
    for _ in 0..90 {
        tokio::time::sleep(seconds(1)).await;
        let events = api.objects(EVENTS);
        assert!(events.len() < 2, "{events:#?}");
        counts.extend(events.first().map(|event| event["count"].as_u64().unwrap()));
    }
    counts.dedup();
    assert!(counts.starts_with(&[1, 2, 3]), "{counts:?}");
    let event = &api.objects(EVENTS)[0];
    let regarding = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "uid-web"});
    assert_eq!((&event["involvedObject"], &event["reason"]), (&regarding, &json!("PullProgress")));
    assert_eq!((&event["metadata"]["namespace"], &event["type"]), (&json!("shop"), &json!("Normal")));
    assert_eq!(event["message"], "image app:v1: 0.0 of 1.0 kB, no bytes arrive");
    assert_eq!(event["source"], json!({"component": "imagelet.dev/node-agent", "host": "node-1"}));
    assert!(event["firstTimestamp"].is_string() && event["lastTimestamp"].is_string(), "{event}");
    let before = api.requests().len();
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!(api.requests().len(), before, "an idle node sends nothing");
}

#[tokio::test(start_paused = true)]
async fn the_chart_grants_the_requests_for_events_of_pods_and_nothing_besides() {
    let api = FakeApi::start(FakeApiOptions::default()).await;
    let mut node = TestNode::start(&api, "node-1", None);
    node.request(pod("shop/web"), "app:v1", seconds(60));
    tokio::time::sleep(seconds(60)).await;
    let is_apply = |request: &String| request.starts_with("PATCH /api/v1/namespaces/shop/events/web.");
    assert!(api.requests().len() > 2 && api.requests().iter().all(is_apply), "{:?}", api.requests());
    let chart = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/imagelet.yaml")).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&chart).unwrap();
    let role =
        documents.iter().find(|it| it["kind"] == "ClusterRole" && it["metadata"]["name"] == "imagelet-pull-progress");
    // An apply creates an absent object.
    let rules = json!([{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]);
    assert_eq!(role.unwrap()["rules"], rules);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_continues_the_event_of_a_pod_and_another_pod_of_its_name_gets_another() {
    let api = FakeApi::start(FakeApiOptions::default()).await;
    let mut node = TestNode::start(&api, "node-1", None);
    node.request(pod("shop/web"), "app:v1", seconds(600));
    tokio::time::sleep(seconds(40)).await;
    node.start_agent(&api, "node-1");
    tokio::time::sleep(seconds(40)).await;
    assert_eq!(api.objects(EVENTS).len(), 1);
    node.request(PodIdentity { uid: "uid-second".into(), ..pod("shop/web") }, "app:v1", seconds(600));
    tokio::time::sleep(seconds(40)).await;
    assert_eq!(api.objects(EVENTS).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pull_in_the_queue_says_how_many_are_before_it_and_a_shared_one_is_an_event_of_each_pod() {
    let api = FakeApi::start(FakeApiOptions::default()).await;
    let mut node = TestNode::start(&api, "node-1", Some(1));
    for (name, image) in [("shop/a", "a:1"), ("shop/b", "b:1"), ("bank/c", "c:1"), ("bank/d", "c:1")] {
        node.request(pod(name), image, seconds(600));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(seconds(30)).await;
    let events = api.objects(EVENTS);
    let notes: BTreeMap<&str, &str> = events
        .iter()
        .map(|event| (event["involvedObject"]["name"].as_str().unwrap(), event["message"].as_str().unwrap()))
        .collect();
    let waiting = "image c:1: waits for a place behind 2 pulls";
    let expected = [("b", "image b:1: waits for a place behind 1 pull"), ("c", waiting), ("d", waiting)];
    assert_eq!(
        (notes.len(), notes.range("b"..).map(|(name, note)| (*name, *note)).collect::<Vec<_>>()),
        (4, expected.to_vec())
    );
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_or_does_not_answer_gets_few_requests_and_the_events_after_that() {
    for fault in [ApiFault::Status(403, "events is forbidden".into()), ApiFault::Hang] {
        let api = FakeApi::start(FakeApiOptions::default()).await;
        let mut node = TestNode::start(&api, "node-1", None);
        api.plant_lasting(Some(fault.clone()));
        node.request(pod("shop/web"), "app:v1", seconds(600));
        tokio::time::sleep(seconds(200)).await;
        assert_eq!((api.requests().len(), api.objects(EVENTS)), (4, vec![Value::Null; 0]), "{fault:?}");
        api.plant_lasting(None);
        tokio::time::sleep(seconds(70)).await;
        assert!(api.objects(EVENTS).len() == 1 && node.manager.status().pulls.len() == 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_about_a_pod_with_the_longest_name_is_valid() {
    let api = FakeApi::start(FakeApiOptions::default()).await;
    let mut node = TestNode::start(&api, "node-1", None);
    let name = format!("{}-{}", "p".repeat(REGARDING_LENGTH_MAX - 1), "p".repeat(17));
    node.request(pod(&format!("shop/{name}")), "app:v1", seconds(60));
    tokio::time::sleep(seconds(30)).await;
    let event = &api.objects(EVENTS)[0];
    assert!(is_name(event["metadata"]["name"].as_str().unwrap(), NAME_LENGTH_MAX), "{event}");
    assert_eq!(event["involvedObject"]["name"], name);
}

#[tokio::test(start_paused = true)]
async fn five_hundred_agents_send_twenty_events_a_minute_each_at_most_and_nothing_when_idle() {
    let api = FakeApi::start(FakeApiOptions::default()).await;
    let mut nodes: Vec<TestNode> =
        (0..500).map(|number| TestNode::start(&api, &format!("node-{number}"), None)).collect();
    for (number, node) in nodes.iter_mut().enumerate() {
        for of_node in 0..30 {
            node.request(pod(&format!("shop/n{number}-{of_node}")), &format!("app:{of_node}"), seconds(100));
        }
    }
    let mut seen = 0;
    for minute in 0..3 {
        tokio::time::sleep(seconds(60)).await;
        let requests = api.requests();
        let mut of_nodes: BTreeMap<&str, usize> = BTreeMap::new();
        for request in &requests[seen..] {
            let node = request.split_once("/n").and_then(|(_, rest)| rest.split_once("/n")?.1.split_once('-'));
            *of_nodes.entry(node.map_or(request.as_str(), |(node, _)| node)).or_default() += 1;
        }
        let most = of_nodes.values().max().copied().unwrap_or_default();
        assert!(most <= 20, "minute {minute}: {most}");
        assert!(minute == 2 || of_nodes.len() == 500, "minute {minute}: {of_nodes:?}");
        seen = requests.len();
    }
    assert_eq!(api.objects(EVENTS).len(), 500 * 29, "each pod has one, in turn");
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!(api.requests().len(), seen, "idle nodes send nothing");
}

#[test]
fn a_fetch_says_its_bytes_and_its_rate() {
    let start = Instant::now();
    let mut pull = pull(start, "app:v1", &[("shop/web", KUBELET, 0)]);
    let layer = Digest::of(b"a");
    let layers = vec![(layer.clone(), ByteSize(2_800_000_000))];
    let fetching = |received| LayerState::Fetching { received: ByteSize(received) };
    let events = [
        (0, PullEvent::Resolved { manifest: Digest::of(b"m"), layers }),
        (10, PullEvent::Layer { digest: layer.clone(), state: fetching(870_000_000) }),
        (20, PullEvent::Layer { digest: layer, state: fetching(1_220_000_000) }),
    ];
    for (at, event) in events {
        pull.progress.apply(event, start + seconds(at));
    }
    let note = due(start, &[pull], &[], 20);
    assert_eq!(note.as_deref(), Some("shop/web image r.io/app:v1: 1.2 of 2.8 GB, 35 MB/s, about 45 s left"));
}
