//! What is reported of pulls that fail, that callers leave, and that several callers share.

use super::*;
use crate::audit_log::{Act, ActCode, AuditLog};

/// A node whose pulls go on record.
struct Recorded {
    node: TestNode,
    log: Arc<AuditLog>,
    _folder: tempfile::TempDir,
}

impl Recorded {
    fn new(fake: &FakeRuntime, grace: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = Arc::new(AuditLog::new(folder.path(), 1 << 20));
        let settings = PullSettings { grace, ..Wanted::default().settings };
        let wanted = Wanted { settings, decisions: Arc::clone(&log), ..Wanted::default() };
        let node = TestNode::new(Arc::new(fake.clone()), wanted);
        Self { node, log, _folder: folder }
    }

    fn reasons(&self) -> Vec<&'static str> {
        self.node.reported().into_iter().map(|(_, reason, _)| reason).collect()
    }

    fn happened(&self, image: &str) -> Vec<Act> {
        self.log.history(image).unwrap().images.into_iter().flat_map(|image| image.acts).collect()
    }

    fn codes(&self, image: &str) -> Vec<&'static str> {
        self.happened(image).into_iter().map(|act| act.code.name()).collect()
    }
}

/// Lets a caller go.
async fn abort<T: std::fmt::Debug>(caller: tokio::task::JoinHandle<T>) {
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn the_pull_of_a_look_ahead_is_recorded_with_its_pod() {
    let fake = FakeRuntime::new();
    let recorded = Recorded::new(&fake, Duration::ZERO);
    fake.offer("reg.io/app:v1", "app", 1000);
    recorded.node.ensure(&EnsureRequest { caller: Caller::LookAhead, ..request("reg.io/app:v1") }).await.unwrap();
    let by: Vec<_> = recorded.happened("reg.io/app:v1").into_iter().map(|it| (it.code, it.by)).collect();
    assert_eq!(by, [(ActCode::Pulled, "look-ahead for pod default/web".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn each_failed_pull_is_recorded_under_its_name() {
    let fake = FakeRuntime::new();
    let recorded = Recorded::new(&fake, Duration::ZERO);
    for _ in 0..3 {
        recorded.node.ensure(&request("reg.io/app:v1")).await.unwrap_err();
        assert_eq!(recorded.node.ensure(&request("reg.io/app:v1")).await.unwrap_err().reason(), "ImagePullBackOff");
        advance(Duration::from_mins(5)).await;
    }
    let failed = recorded.happened("reg.io/app:v1");
    assert_eq!(failed.len(), 3, "{failed:?}");
    let is_whole =
        |act: &Act| act.code == ActCode::PullFailed && act.by == "pod default/web" && !act.details.why.is_empty();
    assert!(failed.iter().all(is_whole), "{failed:?}");
    fake.offer("reg.io/app:v1", "app", 1000);
    recorded.node.ensure(&request("reg.io/app:v1")).await.unwrap();
    assert_eq!(recorded.codes("reg.io/app:v1"), ["pull_failed", "pull_failed", "pull_failed", "pulled"]);
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_its_caller_leaves_ends_with_an_event_and_is_recorded() {
    let fake = FakeRuntime::new();
    fake.offer("reg.io/app:v1", "app", 1000);
    fake.set_pull_takes(Duration::from_mins(1));
    for grace in [Duration::ZERO, Duration::from_secs(2)] {
        let recorded = Recorded::new(&fake, grace);
        let caller = recorded.node.begin(&request("reg.io/app:v1")).await;
        advance(Duration::from_secs(5)).await;
        abort(caller).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(recorded.reasons(), ["Pulling", "PullGivenUp"]);
        let (_, _, message) = recorded.node.reported().pop().expect("two events");
        assert!(message.starts_with("Gave up pulling image \"reg.io/app:v1\" after "), "{message}");
        assert_eq!(recorded.codes("reg.io/app:v1"), ["pull_given_up"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_ends_after_its_caller_was_gone_is_reported_as_pulled() {
    let fake = FakeRuntime::new();
    fake.offer("reg.io/app:v1", "app", 1000);
    fake.set_pull_takes(Duration::from_secs(10));
    let recorded = Recorded::new(&fake, Duration::from_secs(2));
    let caller = recorded.node.begin(&request("reg.io/app:v1")).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    abort(caller).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let reported = recorded.node.reported();
    assert_eq!(recorded.reasons(), ["Pulling", "Pulled"], "{reported:?}");
    assert!(reported[1].2.contains("after its caller was gone"), "{reported:?}");
    assert_eq!(recorded.codes("reg.io/app:v1"), ["pulled"]);
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_fails_or_is_refused_is_not_given_up_as_well() {
    let fake = FakeRuntime::new();
    let recorded = Recorded::new(&fake, Duration::from_secs(2));
    recorded.node.ensure(&request("reg.io/app:v1")).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(recorded.reasons(), ["Pulling", "Failed"]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_joins_a_pull_is_charged_no_more_time_than_it_waited() {
    let fake = FakeRuntime::new();
    fake.offer("app:v1", "app", 1000);
    fake.set_pull_takes(Duration::from_secs(10));
    let node = TestNode::new(Arc::new(fake.clone()), Wanted::default());
    let first = node.begin(&request("app:v1")).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    let second = node.begin(&request("app:v1")).await;
    first.await.unwrap().unwrap();
    let joined = second.await.unwrap().unwrap();
    let pulled: Vec<String> = node.reported().into_iter().filter(|(_, it, _)| *it == "Pulled").map(|it| it.2).collect();
    assert!(pulled[0].contains(" in 10s (10s including waiting)"), "{pulled:?}");
    assert!(pulled[1].contains(" in 3s (3s including waiting)"), "{pulled:?}");
    assert!(matches!(joined.origin, Origin::Pulled { took, .. } if took == Duration::from_secs(3)));
}

#[tokio::test(start_paused = true)]
async fn a_preloaded_image_is_present_for_every_pod_also_after_a_pull_with_a_secret_under_another_name() {
    let fake = FakeRuntime::new();
    fake.preload("app:v1", "app", 10);
    let private = "reg.test/team/app:v1";
    fake.offer_to(private, "app", 10, Some(("ada", "word")));
    let node = TestNode::new(Arc::new(fake.clone()), Wanted { records: PullRecords::in_memory(), ..Wanted::default() });
    let mark = node.records.mark(SystemTime::now());
    let listed = fake.list(None).await.unwrap();
    node.records.remember_preloaded(listed.iter().map(|image| &**image), &mark).unwrap();
    let never = |image: &str| EnsureRequest { policy: PullPolicy::Never, ..request(image) };
    node.ensure(&never("app:v1")).await.unwrap();
    let document = json!({"auths": {"reg.test": {"username": "ada", "password": "word"}}}).to_string();
    let with_secret = EnsureRequest { secrets: vec![secret("registry", &document)], ..request(private) };
    let pulled = node.ensure(&with_secret).await.unwrap();
    assert!(matches!(pulled.origin, Origin::Pulled { .. }));
    assert_eq!(node.ensure(&never("app:v1")).await.unwrap().id, pulled.id);
    assert_eq!(node.ensure(&never(private)).await.unwrap_err().reason(), "ErrImageNeverPull");
}
