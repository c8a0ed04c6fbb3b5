//! Clients that have decided themselves: a kubelet that asks for a pull over CRI, and the pods that it asks for.

use super::*;
use crate::inventory::WaitingPod;

/// By which digest the fake lists an image.
fn by_digest(id: &ImageId) -> String {
    format!("reg.test/app@{}", crate::image::Digest::of(id.as_str().as_bytes()))
}

fn client(image: &str, policy: PullPolicy) -> EnsureRequest {
    let caller = Caller::Client { own_credentials: false, is_limited: false };
    EnsureRequest { caller, ..EnsureRequest::new(image, policy) }
}

fn login(user: &str) -> Credential {
    Credential {
        kind: CredentialKind::Basic { username: user.into(), password: Secret::new("word") },
        server_address: String::new(),
    }
}

fn with_records() -> Wanted {
    Wanted { records: PullRecords::in_memory(), ..Wanted::default() }
}

#[tokio::test(start_paused = true)]
async fn a_client_is_not_held_back_for_its_own_failures_and_a_pod_is() {
    let runtime = FakeRuntime::new();
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted::default());
    for _ in 0..5 {
        let error = node.ensure(&client("reg.test/absent:v1", PullPolicy::Always)).await.unwrap_err();
        assert_eq!(error.into_runtime_error().kind(), RuntimeErrorKind::NotFound);
    }
    assert_eq!(runtime.pull_requests().len(), 5);
    node.ensure(&request("reg.test/absent:v1")).await.unwrap_err();
    let held = node.ensure(&request("reg.test/absent:v1")).await.unwrap_err();
    assert_eq!(held.reason(), "ImagePullBackOff");
}

#[tokio::test(start_paused = true)]
async fn a_command_is_held_back_by_nothing_and_its_outcome_counts_for_the_pods_that_wait() {
    for node_policy in [NodePolicy::IMAGELET, NodePolicy::KUBELET] {
        let runtime = FakeRuntime::new();
        runtime.fail(
            "pull",
            RuntimeErrorKind::RegistryUnavailable,
            "dial tcp 10.0.0.1:443: connect: connection refused",
        );
        let settings = PullSettings { node_policy, ..PullSettings::default() };
        let node = TestNode::new(Arc::new(runtime.clone()), Wanted { settings, ..Wanted::default() });
        let pod = |uid: &str, image: &str| {
            let pod = PodIdentity { namespace: "default".into(), name: uid.into(), uid: uid.into() };
            of_pod(pod, EnsureRequest::new(image, PullPolicy::Always))
        };
        let command = |image: &str| EnsureRequest {
            caller: Caller::Command,
            ..EnsureRequest::new(image, PullPolicy::IfNotPresent)
        };
        for uid in ["a", "b", "c"] {
            node.ensure(&pod(uid, "reg.test/app")).await.unwrap_err();
        }
        node.ensure(&pod("a", "reg.test/other:v1")).await.unwrap_err();
        let remaining = |uid: &str, image: &str| {
            let held = node.manager.status().held_back;
            held.into_iter()
                .find(|held| &*held.pod_uid == uid && held.image == image)
                .map(|held| held.remaining.as_secs())
        };
        for round in 1..=3 {
            runtime.take_calls();
            node.ensure(&command("reg.test/app:latest")).await.unwrap_err();
            let asked = runtime.take_calls().iter().filter(|call| call.starts_with("pull")).count();
            assert_eq!(asked, 1, "round {round}, {node_policy:?}");
            assert_eq!(remaining("a", "reg.test/app"), Some(10 << round), "a failure counts, {node_policy:?}");
        }
        assert_eq!(remaining("", "reg.test/app:latest"), None, "a command waits for nothing itself");
        let open: Vec<String> = node.manager.status().open_circuits.into_iter().map(|open| open.registry).collect();
        assert_eq!(open, if !node_policy.pulls.circuit_breaker { vec![] } else { vec!["reg.test".to_owned()] });

        runtime.heal();
        runtime.offer("reg.test/app:latest", "app", 10);
        runtime.offer("reg.test/other:v1", "other", 10);
        assert_eq!(node.ensure(&pod("a", "reg.test/app")).await.unwrap_err().reason(), "ImagePullBackOff");
        node.ensure(&command("reg.test/app:latest")).await.unwrap();
        assert_eq!((remaining("a", "reg.test/app"), node.manager.status().open_circuits), (None, vec![]));
        for uid in ["a", "b", "c", "d"] {
            node.ensure(&pod(uid, "reg.test/app")).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_prefetch_waits_for_open_circuits_and_its_failure_holds_no_pod_back() {
    let runtime = FakeRuntime::new();
    runtime.fail("pull", RuntimeErrorKind::RegistryUnavailable, "dial tcp 10.0.0.1:443: connect: connection refused");
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted::default());
    let prefetch = |image: &str| EnsureRequest {
        caller: Caller::Prefetch { own_credentials: false },
        ..EnsureRequest::new(image, PullPolicy::IfNotPresent)
    };
    let mut classes = Vec::new();
    for _ in 0..6 {
        classes.push(node.ensure(&prefetch("reg.test/app:v1")).await.unwrap_err().class());
    }
    assert!(classes.contains(&crate::error::ErrorClass::HeldBack), "the circuit never opened: {classes:?}");
    assert!(node.manager.status().held_back.is_empty(), "only pods are held back");
    runtime.heal();
    runtime.offer("reg.test/app:v1", "app", 10);
    tokio::time::advance(std::time::Duration::from_mins(10)).await;
    let ensured = node.ensure(&prefetch("reg.test/app:v1")).await.unwrap();
    assert!(matches!(ensured.origin, Origin::Pulled { .. }));
    assert_eq!(node.ensure(&prefetch("reg.test/app:v1")).await.unwrap().origin, Origin::AlreadyPresent);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_is_an_unavailable_registry_for_a_client() {
    let runtime = FakeRuntime::new();
    runtime.fail("pull", RuntimeErrorKind::RegistryUnavailable, "dial tcp 10.0.0.1:443: connect: connection refused");
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted::default());
    let mut asked = Vec::new();
    for _ in 0..6 {
        let error = node.ensure(&client("reg.test/app:v1", PullPolicy::Always)).await.unwrap_err();
        let error = error.into_runtime_error();
        assert_eq!(error.kind(), RuntimeErrorKind::RegistryUnavailable, "{error}");
        asked.push(runtime.take_calls().iter().filter(|call| call.starts_with("pull")).count());
    }
    let reached = asked.iter().filter(|asked| **asked > 0).count();
    assert!((1..6).contains(&reached), "the circuit never opened: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn what_a_digest_names_is_answered_at_once_to_whom_the_registry_let_in_before() {
    let runtime = FakeRuntime::new();
    let name = by_digest(&runtime.offer("reg.test/app:v1", "app", 10));
    runtime.offer_to(&name, "app", 10, Some(("alice", "word")));
    let node = TestNode::new(Arc::new(runtime.clone()), with_records());
    let asks = |user: Option<&str>| {
        let mut asked = client(&name, PullPolicy::IfNotPresent);
        asked.pull.credential = user.map(login);
        asked
    };
    node.ensure(&asks(Some("alice"))).await.unwrap();
    assert_eq!(runtime.pull_requests().len(), 1);
    let again = node.ensure(&asks(Some("alice"))).await.unwrap();
    assert_eq!((again.origin, runtime.pull_requests().len()), (Origin::AlreadyPresent, 1));
    // The registry says no to the others, not we.
    for other in [Some("mallory"), None] {
        let refused = node.ensure(&asks(other)).await.unwrap_err();
        assert_eq!(refused.into_runtime_error().kind(), RuntimeErrorKind::Denied);
    }
    assert_eq!(runtime.pull_requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_was_never_pulled_proves_no_right_to_a_client() {
    for records in [PullRecords::in_memory(), PullRecords::in_memory_with(VerificationPolicy::NeverVerify)] {
        let runtime = FakeRuntime::new();
        let name = by_digest(&runtime.preload("reg.test/app:v1", "app", 10));
        let node = TestNode::new(Arc::new(runtime.clone()), Wanted { records, ..Wanted::default() });
        let pod = node.ensure(&request(&name)).await.unwrap();
        assert_eq!((pod.origin, runtime.pull_requests().len()), (Origin::AlreadyPresent, 0));
        // The registry is asked, and says who may.
        let asked = node.ensure(&client(&name, PullPolicy::IfNotPresent)).await.unwrap();
        assert!(matches!(asked.origin, Origin::Pulled { .. }), "{asked:?}");
        assert_eq!(runtime.pull_requests().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_ask_the_same_share_a_pull_and_other_credentials_have_their_own() {
    for node_policy in [NodePolicy::IMAGELET, NodePolicy::KUBELET] {
        let runtime = FakeRuntime::new();
        runtime.offer("reg.test/app:v1", "app", 10);
        runtime.set_pull_takes(Duration::from_secs(5));
        let settings = PullSettings { node_policy, ..PullSettings::default() };
        let node = TestNode::new(Arc::new(runtime.clone()), Wanted { settings, ..Wanted::default() });
        let mut callers = Vec::new();
        for _ in 0..50 {
            callers.push(node.begin(&client("reg.test/app:v1", PullPolicy::Always)).await);
        }
        let alice = with_credential(login("alice"), client("reg.test/app:v1", PullPolicy::Always));
        callers.push(node.begin(&alice).await);
        advance(Duration::from_secs(6)).await;
        for caller in callers {
            caller.await.unwrap().unwrap();
        }
        assert_eq!(runtime.pull_requests().len(), 2, "{node_policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_pull_of_clients_ends_with_the_last_of_them() {
    let runtime = FakeRuntime::new();
    runtime.offer("reg.test/app:v1", "app", 10);
    runtime.set_pull_takes(Duration::from_mins(1));
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted::default());
    let one = node.begin(&client("reg.test/app:v1", PullPolicy::Always)).await;
    let other = node.begin(&client("reg.test/app:v1", PullPolicy::Always)).await;
    one.abort();
    yield_now().await;
    assert_eq!(runtime.pulls_running(), 1);
    other.abort();
    let _ = (one.await, other.await);
    assert_eq!(runtime.pulls_running(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_nodes_own_credentials_are_shown_for_a_client_only_where_that_is_wanted() {
    for (own_credentials, outcome) in [(true, true), (false, false)] {
        let runtime = FakeRuntime::new();
        runtime.offer_to("reg.test/app:v1", "app", 10, Some(("node", "word")));
        let mut keyring = Keyring::new();
        let document = r#"{"auths": {"reg.test": {"username": "node", "password": "word"}}}"#;
        let document = DockerConfig::parse(PullSecretKind::DockerConfigJson, document.as_bytes()).unwrap();
        keyring.add(&CredentialSource::Node, document);
        let node = TestNode::new(Arc::new(runtime), Wanted { keyring, ..Wanted::default() });
        let caller = Caller::Client { own_credentials, is_limited: false };
        let asked = EnsureRequest { caller, ..EnsureRequest::new("reg.test/app:v1", PullPolicy::Always) };
        assert_eq!(node.ensure(&asked).await.is_ok(), outcome);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_none_is_refused_in_the_words_of_runtimes() {
    let node = TestNode::new(Arc::new(FakeRuntime::new()), Wanted::default());
    let error = node.ensure(&client("reg.test/UPPER:v1", PullPolicy::Always)).await.unwrap_err().into_runtime_error();
    assert_eq!(error.kind(), RuntimeErrorKind::InvalidArgument);
    assert!(error.to_string().starts_with("failed to parse image reference \"reg.test/UPPER:v1\": "), "{error}");
}

fn strict(node_policy: NodePolicy) -> Wanted {
    let rate = Some(PullRate { qps: 0.001, burst: 1 });
    let settings = PullSettings { slots: NonZeroUsize::new(1), rate, node_policy, ..PullSettings::default() };
    Wanted { settings, ..Wanted::default() }
}

#[tokio::test(start_paused = true)]
async fn what_a_client_asks_for_waits_for_no_slot_and_no_rate_unless_that_is_wanted() {
    for node_policy in [NodePolicy::IMAGELET, NodePolicy::KUBELET] {
        for is_limited in [false, true] {
            let runtime = FakeRuntime::new();
            runtime.set_pull_takes(Duration::from_mins(1));
            let node = TestNode::new(Arc::new(runtime.clone()), strict(node_policy));
            let caller = Caller::Client { own_credentials: false, is_limited };
            let mut callers = Vec::new();
            for index in 0..20 {
                let name = format!("reg.test/app{index}:v1");
                runtime.offer(&name, &name, 10);
                let asked = EnsureRequest { caller, ..client(&name, PullPolicy::Always) };
                callers.push(node.begin(&asked).await);
            }
            let running = if is_limited { 1 } else { 20 };
            assert_eq!(runtime.pulls_running(), running, "{node_policy:?}");
            callers.iter().for_each(tokio::task::JoinHandle::abort);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_with_a_pod_takes_it_along_and_leaves_the_pods_slot_alone() {
    let runtime = FakeRuntime::new();
    runtime.set_pull_takes(Duration::from_mins(1));
    for name in ["one", "two", "three"] {
        runtime.offer(&format!("reg.test/{name}:v1"), name, 10);
    }
    let node = TestNode::new(Arc::new(runtime.clone()), strict(NodePolicy::IMAGELET));
    let asks = |name: &str| request(&format!("reg.test/{name}:v1"));
    let (_one, _two) = (node.begin(&asks("one")).await, node.begin(&asks("two")).await);
    let _client = node.begin(&client("reg.test/three:v1", PullPolicy::Always)).await;
    assert_eq!(runtime.pulls_running(), 2, "the first of the pods, and the client beside it");
    let states: Vec<PullState> = node.manager.status().pulls.iter().map(|pull| pull.turn.state).collect();
    assert_eq!(states.iter().filter(|state| **state == PullState::Running).count(), 2, "{states:?}");
    // The second waits for its slot, until an unlimited client asks for the same.
    let _too = node.begin(&client("reg.test/two:v1", PullPolicy::Always)).await;
    assert_eq!((runtime.pulls_running(), runtime.pull_requests().len()), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_of_a_handler_uses_is_known_under_the_handler_that_the_runtime_says() {
    let runtime = FakeRuntime::new();
    runtime.offer("reg.test/app:v1", "app", 10);
    let manager = RuntimeManager::new(Arc::new(runtime.clone()), Arc::new(NoContainers));
    let inventory = Arc::new(Inventory::open(manager, None).unwrap());
    let wanted = Wanted { inventory: Some(Arc::clone(&inventory)), ..Wanted::default() };
    let node = TestNode::new(Arc::new(runtime.clone()), wanted);
    for (policy, uses) in [(PullPolicy::Always, 1), (PullPolicy::IfNotPresent, 2)] {
        let mut asked = EnsureRequest::new("reg.test/app:v1", policy.clone());
        asked.pull.image.runtime_handler = "kata".into();
        let ensured = node.ensure(&asked).await.unwrap();
        let listed = Arc::clone(&runtime.list(None).await.unwrap()[0]);
        assert_eq!((&ensured.id, &ensured.handler), (&listed.id, &listed.spec.runtime_handler));
        let snapshot = inventory.refresh(SystemTime::now()).await.unwrap();
        assert_eq!(
            (snapshot.entries[0].key(), snapshot.entries[0].usage.history.uses),
            (listed.key(), uses),
            "{policy:?}"
        );
    }
    assert_eq!(runtime.pull_requests()[0].image.runtime_handler, "kata", "the runtime gets the handler");
}

const IMAGE: &str = "reg.test/app:v1";

fn pod(uid: &str) -> PodIdentity {
    PodIdentity { namespace: "shop".into(), name: "web".into(), uid: uid.into() }
}

fn of(caller: Caller, uid: &str) -> EnsureRequest {
    of_pod(pod(uid), EnsureRequest { caller, ..EnsureRequest::new(IMAGE, PullPolicy::Always) })
}

fn kubelet(uid: &str) -> EnsureRequest {
    of(Caller::Client { own_credentials: true, is_limited: false }, uid)
}

fn slow_node(grace: Duration) -> (FakeRuntime, TestNode) {
    let runtime = FakeRuntime::new();
    runtime.offer(IMAGE, "app", 10);
    runtime.set_pull_takes(Duration::from_mins(5));
    let settings = PullSettings { grace, ..PullSettings::default() };
    let records = PullRecords::in_memory();
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted { settings, records, ..Wanted::default() });
    (runtime, node)
}

impl TestNode {
    fn ends(&self, uid: &str, end: PodEnd) {
        self.manager.pods_changed(PodChanges { ended: vec![(uid.into(), end)], ..PodChanges::default() });
    }
}

async fn few_moments() {
    for _ in 0..20 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_without_a_pod_has_no_grace_and_is_no_failure_of_the_registry() {
    let (runtime, node) = slow_node(Duration::from_mins(1));
    for round in 1..=5 {
        let uid = format!("u{round}");
        let pull = node.begin(&kubelet(&uid)).await;
        assert_eq!(runtime.pulls_running(), 1);
        node.ends(&uid, PodEnd::Deleted);
        let error = pull.await.unwrap().unwrap_err();
        assert_eq!(error.message(), "the pull of `reg.test/app:v1` ended, because the pod `shop/web` is being deleted");
        assert_eq!(error.into_runtime_error().kind(), RuntimeErrorKind::Cancelled);
        few_moments().await;
        assert_eq!(runtime.pulls_running(), 0, "no grace");
    }
    assert_idle(&node.manager.status());
    let last = node.reported().into_iter().rfind(|(_, reason, _)| *reason == "PullGivenUp");
    assert!(last.is_some_and(|(_, _, text)| text.ends_with(": the pod is being deleted")), "{:?}", node.reported());
    // The image may have arrived: its intent stays until a check.
    assert_eq!(node.records.counts(), (1, 0));
    let next = node.begin(&kubelet("u6")).await;
    next.await.unwrap().unwrap();
    assert_eq!(node.records.counts().1, 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_in_the_queue_ends_with_its_pod_and_frees_its_place() {
    let runtime = FakeRuntime::new();
    for image in ["reg.test/first:v1", IMAGE] {
        runtime.offer(image, image, 10);
    }
    runtime.set_pull_takes(Duration::from_mins(5));
    let settings = PullSettings { slots: NonZeroUsize::new(1), ..PullSettings::default() };
    let node = TestNode::new(Arc::new(runtime.clone()), Wanted { settings, ..Wanted::default() });
    let caller = Caller::Client { own_credentials: true, is_limited: true };
    let first = EnsureRequest { caller, ..EnsureRequest::new("reg.test/first:v1", PullPolicy::Always) };
    let first = node.begin(&of_pod(pod("u1"), first)).await;
    let waits = node.begin(&of(caller, "u2")).await;
    assert_eq!(node.manager.status().waiting(), 1);
    node.ends("u2", PodEnd::Finished);
    waits.await.unwrap().unwrap_err();
    assert_eq!((node.manager.status().waiting(), runtime.pull_requests().len()), (0, 1));
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pull_goes_on_for_each_other_client_and_ends_with_the_last_pod() {
    let (runtime, node) = slow_node(Duration::from_mins(1));
    let set = node.begin(&of(Caller::Prefetch { own_credentials: true }, "")).await;
    let pulls = [node.begin(&kubelet("u1")).await, node.begin(&kubelet("u2")).await];
    let [first, second] = pulls;
    node.ends("u1", PodEnd::Removed);
    first.await.unwrap().unwrap_err();
    set.abort();
    few_moments().await;
    assert_eq!((runtime.pulls_running(), runtime.pull_requests().len()), (1, 1), "the second pod waits for it");
    node.ends("u2", PodEnd::Removed);
    second.await.unwrap().unwrap_err();
    few_moments().await;
    assert_eq!(runtime.pulls_running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pull_without_clients_keeps_its_grace_until_its_pod_has_ended_and_no_other_pod_waits_for_the_image() {
    let waiting = || vec![WaitingPod { pod: "shop/other".into(), images: vec![IMAGE.into()] }];
    let ended = || vec![("u1".into(), PodEnd::Deleted)];
    for request in [kubelet("u1"), of(Caller::LookAhead, "u1")] {
        for ends_first in [true, false] {
            let (runtime, node) = slow_node(Duration::from_mins(1));
            let pull = node.begin(&request).await;
            let leave = async || {
                pull.abort();
                few_moments().await;
            };
            if !ends_first {
                leave().await;
                assert_eq!(runtime.pulls_running(), 1, "the grace");
            }
            let changes = PodChanges { ended: ended(), waiting: waiting(), ..PodChanges::default() };
            node.manager.pods_changed(changes);
            leave().await;
            assert_eq!(runtime.pulls_running(), 1, "the other pod waits: {request:?}");
            node.manager.pods_changed(PodChanges::default());
            few_moments().await;
            assert_eq!(runtime.pulls_running(), 0, "{request:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_and_a_pod_of_another_orchestrator_end_with_no_pod_of_the_cluster() {
    let (_, node) = slow_node(Duration::ZERO);
    node.ends("u1", PodEnd::Deleted);
    for caller in [Caller::Command, Caller::Pod] {
        node.ensure(&of(caller, "u1")).await.unwrap();
    }
}
