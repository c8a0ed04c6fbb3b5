//! Stories of turns: who waits for whom, who shares, and who goes away.

use super::{link::Link, *};
use crate::error::Stage;

fn node(images: impl ImageService + 'static, settings: PullSettings) -> TestNode {
    TestNode::new(Arc::new(images), Wanted { settings, ..Wanted::default() })
}

fn serial(node_policy: NodePolicy) -> PullSettings {
    PullSettings { slots: NonZeroUsize::new(1), node_policy, ..Wanted::default().settings }
}

fn of(namespace: &str, image: &str) -> EnsureRequest {
    let mut request = request(image);
    request.pull.pod.namespace = namespace.into();
    request
}

/// Asks after a while, and answers how long it took from then on.
async fn timed(node: &TestNode, wait: Duration, request: &EnsureRequest) -> Duration {
    tokio::time::sleep(wait).await;
    let began = Instant::now();
    node.ensure(request).await.expect("this pull succeeds");
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn every_scheduling_vector_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("pull-scheduling.json", way);
        while let Some(case) = run.next_case() {
            let found = scheduled(&case, way).await;
            run.compare(&case, &found);
        }
        run.end();
    }
}

async fn scheduled(case: &VectorCase, way: Way) -> Value {
    let VectorCase { input, expected, name } = case;
    let max = input["max_parallel"].as_u64().and_then(|max| NonZeroUsize::new(usize::try_from(max).expect("small")));
    let slots = if input["mode"] == "serial" { NonZeroUsize::new(1) } else { max };
    let fake = FakeRuntime::new();
    fake.set_pull_takes(Duration::from_mins(1));
    let node = node(fake.clone(), PullSettings { slots, rate: None, ..way.pull_settings() });
    let (mut submitted, mut asked, mut calls) = (0, VecDeque::new(), Vec::new());
    for step in input["steps"].as_array().expect("steps") {
        for _ in 0..step["submit"].as_u64().unwrap_or_default() {
            let image = format!("image{submitted}:v1");
            fake.offer(&image, &image, 1000);
            asked.push_back(node.begin(&request(&image)).await);
            submitted += 1;
            // So that each ends at a moment of its own.
            advance(Duration::from_millis(1)).await;
        }
        for _ in 0..step["finish"].as_u64().unwrap_or_default() {
            asked.pop_front().expect("one runs").await.expect("no panic").expect("it succeeds");
        }
        for _ in 0..20 {
            yield_now().await;
        }
        calls.push(fake.pull_requests().len());
    }
    let order: Vec<String> = (0..submitted).map(|index| format!("image{index}:v1")).collect();
    let begun: Vec<String> = fake.pull_requests().into_iter().map(|request| request.image.image).collect();
    assert_eq!(begun, order[..begun.len()], "{name}: of equals the first to come is the first to be served");
    let mut found = json!({"runtime_pull_calls_after_each": calls});
    if expected.get("queued").is_some() {
        let status = node.manager.status();
        found["queued"] = status.waiting().into();
        found["callers_blocked_on_submit"] = (submitted - status.running() - status.waiting()).into();
    }
    found
}

#[tokio::test(start_paused = true)]
async fn five_gigabytes_never_delay_twenty_megabytes_by_more_than_three_seconds() {
    let alone = Duration::from_millis(400);
    for wait in [1, 100, 1000, 1900, 2500, 50_000].map(Duration::from_millis) {
        let node = node(Link::default(), serial(NodePolicy::IMAGELET));
        let large = node.begin(&of("a", "large-5000:v1")).await;
        let took = timed(&node, wait, &of("b", "small-20:v1")).await;
        large.abort();
        assert!(took <= alone + Duration::from_secs(3), "{took:?} after {wait:?}");
    }
    let node = node(Link::default(), serial(NodePolicy::KUBELET));
    let (large, small) = (of("a", "large-5000:v1"), of("b", "small-20:v1"));
    let (_, took) = tokio::join!(timed(&node, Duration::ZERO, &large), timed(&node, Duration::from_millis(1), &small));
    assert!(took > Duration::from_secs(99), "the kubelet's one slot is one slot: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn thirty_small_pulls_beside_a_large_one_are_as_late_as_one() {
    let run = async |with_large: bool| {
        let link = Link::default();
        let node = Arc::new(node(link.clone(), serial(NodePolicy::IMAGELET)));
        let large = {
            let node = Arc::clone(&node);
            tokio::spawn(async move {
                if with_large {
                    node.ensure(&of("a", "large-5000:v1")).await.expect("it succeeds");
                }
            })
        };
        tokio::time::sleep(Duration::from_secs(5)).await;
        let began = Instant::now();
        let small = (0..30).map(|index| {
            let node = Arc::clone(&node);
            async move { node.ensure(&of("b", &format!("small{index}-20:v1"))).await.expect("it succeeds") }
        });
        futures_util::future::join_all(small).await;
        let took = began.elapsed();
        large.abort();
        (took, link.active_max())
    };
    let (with, active_with) = run(true).await;
    let (without, _) = run(false).await;
    assert!(with <= without + Duration::from_secs(4), "{with:?} beside the large one, {without:?} alone");
    assert_eq!(active_with, 5, "those beside it are counted");
}

#[tokio::test(start_paused = true)]
async fn the_higher_priority_goes_first_and_raises_the_pull_it_joins() {
    let link = Link::default();
    let node = node(link.clone(), serial(NodePolicy::IMAGELET));
    let with = |image: &str, priority| EnsureRequest { priority, ..request(image) };
    let mut tasks = Vec::new();
    for (image, priority) in [("first-200:v1", 0), ("low-300:v1", -5), ("raised-300:v1", 0), ("high-300:v1", 5)] {
        tasks.push(node.begin(&with(image, priority)).await);
    }
    tasks.push(node.begin(&with("raised-300:v1", 9)).await);
    let status = node.manager.status();
    let reported: Vec<(&str, Option<usize>, i32, usize)> = status
        .pulls
        .iter()
        .map(|pull| (pull.image.as_str(), pull.turn.place.map(|it| it.position), pull.priority, pull.clients.len()))
        .collect();
    assert_eq!(
        reported,
        [
            ("first-200:v1", None, 0, 1),
            ("low-300:v1", Some(3), -5, 1),
            ("raised-300:v1", Some(1), 9, 2),
            ("high-300:v1", Some(2), 5, 1),
        ]
    );
    for task in tasks {
        task.await.expect("no panic").expect("it succeeds");
    }
    assert_eq!(link.began(), ["first-200:v1", "raised-300:v1", "high-300:v1", "low-300:v1"]);
}

#[tokio::test(start_paused = true)]
async fn a_pull_beyond_the_rate_waits_in_sight_or_fails_as_the_kubelets_does() {
    let rate = Some(PullRate { qps: 0.5, burst: 1 });
    let fake = FakeRuntime::new();
    for name in ["a:v1", "b:v1", "c:v1"] {
        fake.offer(name, name, 1000);
    }
    let node = node(fake.clone(), PullSettings { rate, ..Wanted::default().settings });
    let began = Instant::now();
    node.ensure(&request("a:v1")).await.unwrap();
    let second = node.begin(&request("b:v1")).await;
    let third = node.begin(&request("c:v1")).await;
    let status = node.manager.status();
    let reported: Vec<_> = status
        .pulls
        .iter()
        .map(|pull| (pull.image.as_str(), pull.turn.state, pull.turn.place.map(|it| it.position)))
        .collect();
    let waiting = PullState::WaitingForRate;
    assert_eq!(reported, [("b:v1", waiting, Some(1)), ("c:v1", waiting, Some(2))]);
    // Who gives up takes no token with it.
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    third.await.unwrap().unwrap();
    assert_eq!(began.elapsed().as_secs(), 2);
    let waited = node.metrics.value(&meters::WAIT_SECONDS, &[]);
    assert!((waited - 2.0).abs() < 0.1, "two pulls began: {waited}");
    assert!(node.metrics.render().contains("imagelet_pulls_waiting 0\n"));

    let settings = PullSettings { rate, node_policy: NodePolicy::KUBELET, ..Wanted::default().settings };
    let node = TestNode::new(Arc::new(fake), Wanted { settings, ..Wanted::default() });
    let always = |image: &str| EnsureRequest { policy: PullPolicy::Always, ..request(image) };
    node.ensure(&always("a:v1")).await.unwrap();
    let error = node.ensure(&always("b:v1")).await.unwrap_err();
    assert_eq!((&*error.reason(), error.message().as_str()), ("ErrImagePull", "pull QPS exceeded"));
    assert!(error.hint().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_pull_goes_on_for_a_grace_and_a_newcomer_joins_it() {
    let fake = FakeRuntime::new();
    fake.offer("app:v1", "app", 1000);
    fake.set_pull_takes(Duration::from_mins(1));
    let grace = Duration::from_secs(2);
    let node = node(fake.clone(), PullSettings { grace, ..serial(NodePolicy::IMAGELET) });
    let first = node.begin(&request("app:v1")).await;
    advance(Duration::from_secs(30)).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    advance(Duration::from_secs(1)).await;
    assert_eq!((fake.pulls_running(), node.manager.status().pulls[0].clients.len()), (1, 0));
    let second = node.begin(&request("app:v1")).await;
    advance(Duration::from_secs(5)).await;
    assert_eq!((fake.pulls_running(), node.manager.status().pulls[0].clients.len()), (1, 1));
    second.await.unwrap().unwrap();
    assert_eq!(fake.pull_requests().len(), 1, "the newcomer joined the pull of who had gone");

    // No caller joins: it ends, its slot is free, and nothing is recorded. A waiting pull frees its place at once.
    let always = EnsureRequest { policy: PullPolicy::Always, ..request("app:v1") };
    let running = node.begin(&always).await;
    let waiting = node.begin(&request("other:v1")).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(node.manager.status().waiting(), 0);
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    tokio::time::sleep(grace.mul_f64(0.999)).await;
    assert_eq!(fake.pulls_running(), 1);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(fake.pulls_running(), 0);
    assert_idle(&node.manager.status());
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_ends_in_its_grace_is_recorded_for_its_caller() {
    let fake = FakeRuntime::new();
    let id = fake.offer_to("reg.io/app:v1", "app", 1000, Some(("ada", "smash")));
    fake.set_pull_takes(Duration::from_secs(10));
    let settings = PullSettings { grace: Duration::from_secs(2), ..Wanted::default().settings };
    let wanted = Wanted { settings, records: PullRecords::in_memory(), ..Wanted::default() };
    let node = TestNode::new(Arc::new(fake.clone()), wanted);
    let document = r#"{"auths": {"reg.io": {"username": "ada", "password": "smash"}}}"#;
    let entitled = EnsureRequest { secrets: vec![secret("s", document)], ..request("reg.io/app:v1") };
    let asked = node.begin(&entitled).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(node.records.counts(), (0, 1));
    let record = node.records.record(&id).expect("it was recorded");
    let access = record.mapping.values().next().expect("for this image");
    assert!(!access.node_pods_accessible, "the image is here, and not open to all");
    assert_eq!(access.kubernetes_secrets[0].name, "s");
    assert_eq!(node.ensure(&entitled).await.unwrap().origin, Origin::AlreadyPresent);
    assert_eq!(node.ensure(&request("reg.io/app:v1")).await.unwrap_err().reason(), "ErrImagePull");
}

#[tokio::test(start_paused = true)]
async fn two_secrets_of_the_same_content_share_a_pull_and_each_is_recorded() {
    let fake = FakeRuntime::new();
    let id = fake.offer_to("reg.io/app:v1", "app", 1000, Some(("ada", "smash")));
    fake.set_pull_takes(Duration::from_secs(10));
    let wanted = Wanted { records: PullRecords::in_memory(), ..Wanted::default() };
    let node = TestNode::new(Arc::new(fake.clone()), wanted);
    let document = r#"{"auths": {"reg.io": {"username": "ada", "password": "smash"}}}"#;
    let mut tasks = Vec::new();
    for name in ["s", "t"] {
        let asked = EnsureRequest { secrets: vec![secret(name, document)], ..of(name, "reg.io/app:v1") };
        tasks.push(node.begin(&asked).await);
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(fake.pull_requests().len(), 1);
    let record = node.records.record(&id).expect("it was recorded");
    let access = record.mapping.values().next().expect("for this image");
    let mut names: Vec<&str> = access.kubernetes_secrets.iter().map(|secret| secret.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["s", "t"]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_says_what_went_wrong_and_where_and_is_counted_by_it() {
    let fake = FakeRuntime::new();
    let text =
        "failed to do request: Head \"https://reg.io/v2/app/manifests/v1\": dial tcp: lookup reg.io: no such host";
    fake.fail("pull reg.io/app:v1", RuntimeErrorKind::Other, text);
    let node = node(fake, serial(NodePolicy::KUBELET));
    let error = node.ensure(&request("reg.io/app:v1")).await.unwrap_err();
    assert_eq!((error.class(), error.stage()), (ErrorClass::HostNotFound, Stage::Dns));
    assert_eq!(error.message(), text, "the kubelet's words stay");
    let failed = node.events.recent().pop().expect("it was reported").event;
    let cause = failed.cause.map(|(class, stage)| (class.name(), stage.name()));
    assert_eq!((failed.reason, cause), ("Failed", Some(("host-not-found", "dns"))));
    assert_eq!(node.ensure(&request("reg.io/app:v1")).await.unwrap_err().class(), ErrorClass::HeldBack);
    let counted = |class, stage| node.metrics.value(&meters::FAILURES, &[class, stage]);
    assert!((counted("host-not-found", "dns") - 1.0).abs() < 0.1 && (counted("held-back", "queue") - 1.0).abs() < 0.1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_registry_is_asked_now_and_then_and_not_by_each_of_a_thousand_pods() {
    let fake = FakeRuntime::new();
    let image = |index: usize| format!("dead.io/app{index}:v1");
    for index in 0..1000 {
        let kind = RuntimeErrorKind::RegistryUnavailable;
        fake.fail(&format!("pull {}", image(index)), kind, "could not reach registry `dead.io`");
    }
    fake.offer("alive.io/app:v1", "app", 1000);
    let node = node(fake.clone(), Wanted::default().settings);
    let pod = |index: usize| {
        let mut request = EnsureRequest { policy: PullPolicy::Always, ..request(&image(index)) };
        request.pull.pod.uid = format!("uid-{index}").into();
        request
    };
    for index in 0..1000 {
        let error = node.ensure(&pod(index)).await.unwrap_err();
        let wanted = if index < 3 { "RegistryUnavailable" } else { "ImagePullBackOff" };
        assert_eq!(error.reason(), wanted, "pod {index}: {}", error.message());
        let reported = "circuit open for registry `dead.io` after 3 failures (unreachable); next attempt in ";
        assert!(index < 3 || error.message().contains(reported), "{}", error.message());
    }
    assert_eq!(fake.take_calls().len(), 3, "one for each of the first pods");
    node.ensure(&request("alive.io/app:v1")).await.expect("another registry is not punished");

    // It is back: one probe finds out, and all pulls are admitted again.
    fake.heal();
    (0..3).for_each(|index| drop(fake.offer(&image(index), "app", 1000)));
    advance(Duration::from_secs(11)).await;
    for index in 0..3 {
        node.ensure(&pod(index)).await.expect("it answers");
    }
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_opens_is_one_event_about_the_node_that_names_no_image() {
    for (node_policy, expected) in [
        (
            NodePolicy::IMAGELET,
            &["circuit opened for registry `dead.io` (all-pulls) for 10 s: unreachable at connect"][..],
        ),
        (NodePolicy::KUBELET, &[]),
    ] {
        let fake = FakeRuntime::new();
        fake.fail("pull", RuntimeErrorKind::RegistryUnavailable, "could not reach registry `dead.io`");
        let node = node(fake, PullSettings { node_policy, ..Wanted::default().settings });
        for index in 0..9 {
            let mut request = request(&format!("dead.io/secret{index}:v1"));
            request.pull.pod.uid = format!("uid-{index}").into();
            node.ensure(&request).await.unwrap_err();
        }
        let events = node.events.recent().into_iter().map(|recorded| recorded.event);
        let opened: Vec<Event> = events.filter(|event| event.reason == "CircuitOpened").collect();
        assert!(opened.iter().all(|event| event.subject == EventSubject::Node && event.note.is_none()));
        let texts: Vec<&str> = opened.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(texts, expected, "{node_policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_secret_is_tried_at_once() {
    let fake = FakeRuntime::new();
    fake.offer_to("reg.io/app:v1", "app", 1000, Some(("ada", "smash")));
    let node = node(fake, Wanted::default().settings);
    let with = |password: &str| {
        let document = format!(r#"{{"auths": {{"reg.io": {{"username": "ada", "password": "{password}"}}}}}}"#);
        EnsureRequest { secrets: vec![secret("s", &document)], ..request("reg.io/app:v1") }
    };
    assert_eq!(node.ensure(&with("old")).await.unwrap_err().reason(), "ErrImagePull");
    assert_eq!(node.ensure(&with("old")).await.unwrap_err().reason(), "ImagePullBackOff");
    node.ensure(&with("smash")).await.expect("the new one opens it");
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_shows_no_tenant_what_another_tenant_pulls() {
    for class in ["no such host", "503 Service Unavailable", "429 Too Many Requests: slow down"] {
        let fake = FakeRuntime::new();
        let secret_text = format!("could not pull `reg.io/team-a/secret-project:v7` of `kim`: {class}");
        fake.fail("pull", RuntimeErrorKind::RegistryUnavailable, &secret_text);
        let node = node(fake.clone(), Wanted::default().settings);
        for index in 0..3 {
            // Answers to one repository hold back no other.
            let mut own = request(&format!("reg.io/team-a/secret-project{}:v7", index % 2));
            own.pull.pod =
                PodIdentity { namespace: "team-a".into(), name: "a".into(), uid: format!("a-{index}").into() };
            let error = node.ensure(&own).await.unwrap_err();
            assert!(error.message().contains("secret-project"), "its own failure: {}", error.message());
        }
        let began = node.reported().len();
        fake.take_calls();
        let mut other = request("reg.io/team-b/app:v1");
        other.pull.pod = PodIdentity { namespace: "team-b".into(), name: "b".into(), uid: "b".into() };
        let held = node.ensure(&other).await.unwrap_err();
        let client = EnsureRequest {
            caller: Caller::Client { own_credentials: false, is_limited: false },
            ..EnsureRequest::new("reg.io/team-b/app:v1", PullPolicy::Always)
        };
        let refused = node.ensure(&client).await.unwrap_err().into_runtime_error();
        assert!(fake.take_calls().iter().all(|call| !call.starts_with("pull")), "the circuit is open");
        let word = held.message();
        assert!(word.contains("circuit open for registry `reg.io` after 3 failures ("), "{word}");
        assert!(word.contains("next attempt in 10 s") || word.contains("next attempt in 11 s"), "{word}");
        let events = node.reported().split_off(began).into_iter().map(|(_, _, message)| message);
        for text in events.chain([word, format!("{held:?}"), refused.chain(), format!("{refused:?}")]) {
            for private in ["secret-project", "team-a", "kim", class] {
                assert!(!text.contains(private), "`{private}` of another tenant in: {text}");
            }
        }
    }
}

/// Where the runtime is given the pod, it may decide by namespace: the answer to one proves nothing for another.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_the_runtime_refuses_gets_no_image_through_the_pull_of_another() {
    for (is_given_the_pod, pulls) in [(true, 2), (false, 1)] {
        let fake = FakeRuntime::new();
        fake.offer("reg.io/app:v1", "app", 1000);
        fake.set_pull_takes(Duration::from_secs(5));
        let node = node(fake.clone(), Wanted::default().settings);
        let mut tasks = Vec::new();
        for namespace in ["team-a", "team-a", "team-b"] {
            let mut asked = request("reg.io/app:v1");
            asked.pull.pod = PodIdentity { namespace: namespace.into(), name: "p".into(), uid: namespace.into() };
            asked.pull.encoded_pod = is_given_the_pod.then(|| EncodedPod::new(&[1]));
            tasks.push(node.begin(&asked).await);
        }
        advance(Duration::from_secs(6)).await;
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let asked = fake.pull_requests();
        assert_eq!(asked.len(), pulls, "the runtime is given the pod: {is_given_the_pod}");
    }
}
