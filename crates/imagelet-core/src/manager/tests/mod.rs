//! Stories of `ensure` over runtimes in memory, time paused.

mod clients;
mod link;
mod look_ahead;
mod mirrors;
mod providers;
mod rights;
mod turns;

use std::{
    collections::VecDeque,
    num::{NonZeroU32, NonZeroUsize},
    sync::MutexGuard,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_vectors::{VectorCase, VectorRun, Way, vectors};
use serde_json::{Value, json};
use tokio::{task::yield_now, time::advance};

use super::*;
use crate::{
    credentials::{
        Credential, CredentialKind, CredentialSource, DockerConfig, ObjectIdentity, PullSecret, PullSecretKind, Secret,
    },
    error::{ErrorClass, RuntimeError, RuntimeErrorKind},
    events::{Event, EventSubject, LogEvents, PodIdentity},
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser, default_tag},
    metrics::Metrics,
    ports::{EncodedPod, ImageFilesystems, ImageService, Listing, NoContainers, Progress, PullRequest, unwatched},
    records::{Absent, ImageAccess, RecordedSecret, VerificationPolicy},
    testing::{FakeRuntime, WaySettings as _},
};

/// Nothing runs, waits or is held back.
fn assert_idle(status: &ManagerStatus) {
    let ManagerStatus { pulls, held_back, open_circuits } = status;
    assert!(pulls.is_empty() && held_back.is_empty() && open_circuits.is_empty(), "{status:?}");
}

mod ensure_vectors;
mod inventory_uses;
mod runtime_layer;
mod stale;
mod story;

/// A manager over some store, and what can be seen of it.
struct TestNode {
    manager: Arc<ImageManager>,
    events: Arc<LogEvents>,
    metrics: Arc<Metrics>,
    records: Arc<PullRecords>,
}

impl ManagerStatus {
    fn running(&self) -> usize {
        self.pulls.iter().filter(|pull| pull.turn.state == PullState::Running).count()
    }

    fn waiting(&self) -> usize {
        self.pulls.len() - self.running()
    }
}

/// What of a node a test chooses.
struct Wanted {
    settings: PullSettings,
    keyring: Keyring,
    providers: Arc<dyn CredentialProvider>,
    records: PullRecords,
    inventory: Option<Arc<Inventory>>,
    stale: Option<StaleUse>,
    decisions: Arc<AuditLog>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            settings: PullSettings::default(),
            keyring: Keyring::new(),
            providers: Arc::new(NoProviders),
            records: PullRecords::off(),
            inventory: None,
            stale: None,
            decisions: Arc::new(AuditLog::off()),
        }
    }
}

impl TestNode {
    fn new(images: Arc<dyn ImageService>, wanted: Wanted) -> Self {
        let events = Arc::new(LogEvents::new(NonZeroUsize::new(100).expect("not zero")));
        let metrics = Arc::new(Metrics::new());
        let records = Arc::new(wanted.records);
        let runtime = RuntimeManager::new(images, Arc::new(NoContainers));
        let manager = ImageManager::new(ManagerParts {
            settings: wanted.settings,
            keyring: Arc::new(NodeKeyring::fixed(wanted.keyring)),
            providers: wanted.providers,
            reports: ManagerReports {
                events: Arc::clone(&events) as Arc<dyn EventSink>,
                metrics: Arc::clone(&metrics),
                decisions: wanted.decisions,
                recorder: None,
            },
            inventory: wanted.inventory,
            stale: wanted.stale,
            ..ManagerParts::new(runtime, Arc::clone(&records))
        });
        Self { manager: Arc::new(manager), events, metrics, records }
    }

    async fn ensure(&self, request: &EnsureRequest) -> Result<Ensured, EnsureError> {
        self.manager.ensure(request, unwatched()).await
    }

    /// Asks in a task of its own, and lets it go as far as it can.
    async fn begin(&self, request: &EnsureRequest) -> tokio::task::JoinHandle<Result<Ensured, EnsureError>> {
        let (manager, request) = (Arc::clone(&self.manager), request.clone());
        let task = tokio::spawn(async move { manager.ensure(&request, unwatched()).await });
        for _ in 0..20 {
            yield_now().await;
        }
        task
    }

    fn reported(&self) -> Vec<(&'static str, &'static str, String)> {
        let event = |recorded: crate::events::RecordedEvent| {
            (recorded.event.kind.name(), recorded.event.reason, recorded.event.message)
        };
        self.events.recent().into_iter().map(event).collect()
    }
}

fn request(image: &str) -> EnsureRequest {
    let pod = PodIdentity { namespace: "default".into(), name: "web".into(), uid: "uid-web".into() };
    of_pod(pod, EnsureRequest::new(image, PullPolicy::IfNotPresent))
}

fn of_pod(pod: PodIdentity, mut request: EnsureRequest) -> EnsureRequest {
    request.pull.pod = pod;
    request
}

/// The request with its own credential.
fn with_credential(credential: Credential, mut request: EnsureRequest) -> EnsureRequest {
    request.pull.credential = Some(credential);
    request
}

fn secret(name: &str, document: &str) -> PullSecret {
    PullSecret {
        identity: ObjectIdentity { uid: format!("uid-{name}"), namespace: "test-ns".into(), name: name.into() },
        kind: PullSecretKind::DockerConfigJson,
        document: Secret::new(document),
    }
}

/// A store that answers by script; an image's id is the name it was asked for by.
#[derive(Debug, Default)]
struct Scripted {
    state: Mutex<Script>,
}

#[derive(Debug, Default)]
struct Script {
    present: Vec<String>,
    size: u64,
    inspect_error: Option<String>,
    pull_error: Option<String>,
    /// Taken one after another before `pull_error`; `None` is success.
    attempts: VecDeque<Option<String>>,
    calls: Vec<&'static str>,
    shown: Vec<Option<Credential>>,
}

impl Scripted {
    fn lock(&self) -> MutexGuard<'_, Script> {
        self.state.lock().expect("no test panics while it holds the script")
    }
}

#[async_trait]
impl ImageService for Scripted {
    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        Ok(Listing::default())
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let mut script = self.lock();
        script.calls.push("status");
        if let Some(error) = &script.inspect_error {
            return Err(RuntimeError::other(error.clone()));
        }
        Ok(script.present.contains(&spec.image).then(|| Image {
            id: ImageId::new(&spec.image),
            tags: vec![spec.image.clone()],
            digests: Vec::new(),
            size: ByteSize(script.size),
            user: ImageUser::Unset,
            spec: spec.clone(),
            pinned: false,
            artifact: None,
        }))
    }

    async fn pull(&self, request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        let mut script = self.lock();
        script.calls.push("pull");
        script.shown.push(request.credential.clone());
        let failure = script.attempts.pop_front().unwrap_or_else(|| script.pull_error.clone());
        if let Some(error) = failure {
            return Err(RuntimeError::other(error));
        }
        script.present.push(request.image.image.clone());
        Ok(ImageId::new(&request.image.image))
    }

    async fn remove(&self, _spec: &ImageSpec) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(ImageFilesystems::default())
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().map(|all| all.iter().filter_map(text).collect()).unwrap_or_default()
}

fn milliseconds(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().expect("a number"))
}

fn secrets_of(value: &Value) -> Vec<PullSecret> {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .filter_map(|secret| {
            let kind = PullSecretKind::from_type(secret["type"].as_str()?)?;
            let field = |name: &str| text(&secret[name]).unwrap_or_default();
            Some(PullSecret {
                identity: ObjectIdentity { uid: field("uid"), namespace: field("namespace"), name: field("name") },
                kind,
                document: Secret::new(secret["data"][kind.key()].as_str()?),
            })
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_vector_of_pulls_with_secrets_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("pull-with-secrets.json", way);
        while let Some(case) = run.next_case() {
            let found = pull_with_secrets(&case, way).await;
            run.compare(&case, &found);
        }
        run.end();
    }
}

async fn pull_with_secrets(case: &VectorCase, way: Way) -> Value {
    let VectorCase { input, expected, .. } = case;
    let store = Arc::new(Scripted::default());
    let mut keyring = Keyring::new();
    if let Some(entries) = input.get("node_config") {
        let document = DockerConfig::parse(PullSecretKind::DockerCfg, entries.to_string().as_bytes());
        keyring.add(&CredentialSource::Node, document.expect("readable"));
    }
    for user in texts(&input["credentials"]) {
        keyring.add_credential("docker.io", CredentialSource::Node, Credential::basic("", user, Secret::new("")));
    }
    store.lock().pull_error = text(&input["runtime_error"]);
    let results = input["attempt_results"].as_array().map(Vec::as_slice).unwrap_or_default();
    store.lock().attempts = results.iter().map(text).collect();
    let wanted = Wanted { settings: way.pull_settings(), keyring, ..Wanted::default() };
    let node = TestNode::new(Arc::clone(&store) as Arc<dyn ImageService>, wanted);
    let image = text(&input["image"]).unwrap_or_else(|| "app:v1".into());
    let request =
        EnsureRequest { policy: PullPolicy::Always, secrets: secrets_of(&input["secrets"]), ..request(&image) };
    let result = node.ensure(&request).await;

    let shown = store.lock().shown.clone();
    let user = |credential: &Option<Credential>| match credential.as_ref().map(|credential| &credential.kind) {
        Some(CredentialKind::Basic { username, password }) => {
            json!({"username": username, "password": password.expose()})
        }
        None => Value::Null,
        Some(other) => panic!("no vector has this: {other:?}"),
    };
    let mut found = if expected.get("ok").is_some() {
        json!({"ok": result.is_ok(), "auth_of_first_attempt": shown.first().map(user)})
    } else {
        let attempts: Vec<Value> = shown.iter().map(|shown| user(shown)["username"].take()).collect();
        let error =
            result.as_ref().err().map(|error| std::error::Error::source(error).expect("the store's").to_string());
        let used = result.is_ok().then(|| attempts.last());
        json!({"attempts": attempts, "credential_used": used, "error": error})
    };
    if expected.get("pull_attempts").is_some() {
        found["pull_attempts"] = shown.len().into();
    }
    if let Err(error) = result
        && expected.get("reason").is_some()
    {
        found["reason"] = error.reason().into();
    }
    found
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_is_held_back_then_tried_again() {
    let fake = FakeRuntime::new();
    let node = TestNode::new(Arc::new(fake.clone()), Wanted::default());
    let request = request("app:v1");
    assert_eq!(node.ensure(&request).await.unwrap_err().reason(), "ErrImagePull");
    let held = node.ensure(&request).await.unwrap_err();
    assert_eq!(held.reason(), "ImagePullBackOff");
    assert!(held.message().starts_with("Back-off pulling image \"app:v1\": ErrImagePull: "), "{}", held.message());
    assert_eq!(fake.take_calls(), ["status app:v1", "pull app:v1", "status app:v1"]);
    let status = node.manager.status();
    assert_eq!(status.held_back[0].remaining, Duration::from_secs(10));

    advance(Duration::from_secs(10)).await;
    fake.offer("app:v1", "app", 1000);
    let ensured = node.ensure(&request).await.unwrap();
    assert!(matches!(ensured.origin, Origin::Pulled { size: ByteSize(1000), .. }));
    assert_eq!(ensured.reference, "app:v1");
    assert_eq!(node.ensure(&request).await.unwrap().origin, Origin::AlreadyPresent);
}

#[tokio::test(start_paused = true)]
async fn a_serial_manager_pulls_one_after_another_and_a_dropped_one_frees_its_slot() {
    let fake = FakeRuntime::new();
    for name in ["a:v1", "b:v1", "c:v1"] {
        fake.offer(name, name, 1000);
    }
    fake.set_pull_takes(Duration::from_mins(1));
    let settings = PullSettings { slots: NonZeroUsize::new(1), ..Wanted::default().settings };
    let wanted = Wanted { settings, records: PullRecords::in_memory(), ..Wanted::default() };
    let node = TestNode::new(Arc::new(fake.clone()), wanted);
    let [first, second, third] = ["a:v1", "b:v1", "c:v1"].map(request);
    let first = node.begin(&first).await;
    let second = node.begin(&second).await;
    let third = node.begin(&third).await;
    let status = node.manager.status();
    assert_eq!((status.running(), status.waiting()), (1, 2));
    assert_eq!(node.records.counts(), (3, 0));

    first.abort();
    second.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(second.await.unwrap_err().is_cancelled());
    for _ in 0..20 {
        yield_now().await;
    }
    let status = node.manager.status();
    assert_eq!((status.running(), status.waiting()), (1, 0), "{status:?}");
    assert_eq!(node.records.counts(), (2, 0), "a store may still finish the pull that had begun");
    for _ in 0..2 {
        node.records
            .resolve_open_intents(&fake.list(None).await.unwrap(), SystemTime::now(), Absent::RemovedAfterChecks)
            .unwrap();
    }
    assert_eq!(node.records.counts(), (1, 0), "what had begun is taken back once it was looked for");
    third.await.unwrap().unwrap();
    assert_eq!(fake.pulls_running_max(), 1);
    assert_idle(&node.manager.status());
    assert_eq!(node.records.counts(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn parallel_pulls_keep_to_their_bound() {
    let fake = FakeRuntime::new();
    fake.set_pull_takes(Duration::from_secs(1));
    let max = NonZeroUsize::new(3);
    let settings = PullSettings { slots: max, ..Wanted::default().settings };
    let node = TestNode::new(Arc::new(fake.clone()), Wanted { settings, ..Wanted::default() });
    let mut tasks = Vec::new();
    for index in 0..10 {
        let name = format!("image{index}:v1");
        fake.offer(&name, &name, 1000);
        tasks.push(node.begin(&request(&name)).await);
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(fake.pulls_running_max(), 3);
}

#[tokio::test(start_paused = true)]
async fn those_who_ask_the_same_share_one_pull_and_it_outlives_the_first_of_them() {
    let fake = FakeRuntime::new();
    fake.offer("app:v1", "app", 1000);
    fake.set_pull_takes(Duration::from_mins(1));
    let node = TestNode::new(Arc::new(fake.clone()), Wanted::default());
    let first = node.begin(&request("app:v1")).await;
    let heard = Arc::new(Mutex::new(0));
    let second = {
        let (manager, heard) = (Arc::clone(&node.manager), Arc::clone(&heard));
        tokio::spawn(async move {
            let progress: PullWatcher = Arc::new(move |_| *heard.lock().unwrap() += 1);
            manager.ensure(&request("app:v1"), progress).await
        })
    };
    yield_now().await;
    yield_now().await;
    assert_eq!(node.manager.status().pulls[0].clients.len(), 2);
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    second.await.unwrap().unwrap();
    assert_eq!(fake.pull_requests().len(), 1);
    assert!(*heard.lock().unwrap() >= 2, "a late joiner hears where the pull stands");

    let third = node.begin(&EnsureRequest { policy: PullPolicy::Always, ..request("app:v1") }).await;
    assert_eq!(fake.pulls_running(), 1);
    third.abort();
    assert!(third.await.unwrap_err().is_cancelled());
    assert_eq!(fake.pulls_running(), 0, "the last to leave ends the pull");
    assert_idle(&node.manager.status());
}

#[tokio::test(start_paused = true)]
async fn no_pull_is_shared_that_another_right_makes_possible() {
    let fake = FakeRuntime::new();
    fake.offer_to("reg.io/app:v1", "app", 1000, Some(("ada", "smash")));
    fake.set_pull_takes(Duration::from_mins(1));
    let node = TestNode::new(Arc::new(fake.clone()), Wanted::default());
    let document = r#"{"auths": {"reg.io": {"username": "ada", "password": "smash"}}}"#;
    let entitled = EnsureRequest { secrets: vec![secret("s", document)], ..request("reg.io/app:v1") };
    let entitled = node.begin(&entitled).await;
    let error = node.ensure(&request("reg.io/app:v1")).await.unwrap_err();
    assert_eq!(error.kind(), Some(RuntimeErrorKind::Denied));
    entitled.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_private_image_on_the_node_is_not_open_to_who_cannot_pull_it() {
    let fake = FakeRuntime::new();
    fake.offer_to("reg.io/app:v1", "app", 1000, Some(("ada", "smash")));
    let wanted = Wanted { records: PullRecords::in_memory(), ..Wanted::default() };
    let node = TestNode::new(Arc::new(fake.clone()), wanted);
    let document = r#"{"auths": {"reg.io": {"username": "ada", "password": "smash"}}}"#;
    let entitled = EnsureRequest { secrets: vec![secret("s", document)], ..request("reg.io/app:v1") };
    node.ensure(&entitled).await.unwrap();
    assert_eq!(node.ensure(&entitled).await.unwrap().origin, Origin::AlreadyPresent);

    let never = EnsureRequest { policy: PullPolicy::Never, ..request("reg.io/app:v1") };
    assert_eq!(node.ensure(&never).await.unwrap_err().reason(), "ErrImageNeverPull");
    assert_eq!(node.ensure(&request("reg.io/app:v1")).await.unwrap_err().kind(), Some(RuntimeErrorKind::Denied));
    // The same credential in another secret opens it, and is remembered.
    let other = EnsureRequest { secrets: vec![secret("t", document)], ..request("reg.io/app:v2") };
    assert!(node.ensure(&other).await.is_err(), "another tag is another image, and it is not there");
    let other = {
        let mut other = other;
        other.pull.image.image = "reg.io/app:v1".into();
        other
    };
    assert_eq!(node.ensure(&other).await.unwrap().origin, Origin::AlreadyPresent);
}

#[tokio::test(start_paused = true)]
async fn credentials_given_with_the_request_are_the_only_ones_shown() {
    let fake = FakeRuntime::new();
    fake.offer_to("reg.io/app:v1", "app", 1000, Some(("ada", "smash")));
    let mut keyring = Keyring::new();
    keyring.add_credential("reg.io", CredentialSource::Node, Credential::basic("", "ada", Secret::new("smash")));
    let node = TestNode::new(Arc::new(fake.clone()), Wanted { keyring, ..Wanted::default() });
    let wrong = Credential::basic("", "ada", Secret::new("guess"));
    let wrong = with_credential(wrong, request("reg.io/app:v1"));
    assert!(!format!("{wrong:?}").contains("guess"));
    assert_eq!(node.ensure(&wrong).await.unwrap_err().kind(), Some(RuntimeErrorKind::Denied));
    let other_pod = of_pod(PodIdentity::default(), request("reg.io/app:v1"));
    node.ensure(&other_pod).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_away_is_asked_once_and_not_with_each_credential() {
    let fake = FakeRuntime::new();
    fake.fail("pull reg.io/app:v1", RuntimeErrorKind::RegistryUnavailable, "could not reach `reg.io`");
    let mut keyring = Keyring::new();
    for user in ["a", "b"] {
        keyring.add_credential("reg.io", CredentialSource::Node, Credential::basic("", user, Secret::new("x")));
    }
    let node = TestNode::new(Arc::new(fake.clone()), Wanted { keyring, ..Wanted::default() });
    assert_eq!(node.ensure(&request("reg.io/app:v1")).await.unwrap_err().reason(), "RegistryUnavailable");
    assert_eq!(fake.take_calls(), ["status reg.io/app:v1", "pull reg.io/app:v1"]);
}

#[tokio::test]
async fn without_a_record_nothing_is_pulled() {
    let root = tempfile::tempdir().unwrap();
    let records = PullRecords::open(root.path(), VerificationPolicy::NeverVerifyPreloadedImages).unwrap();
    let pulling = root.path().join("image_manager/pulling");
    std::fs::remove_dir(&pulling).unwrap();
    std::fs::write(&pulling, "in the way").unwrap();
    let fake = FakeRuntime::new();
    fake.offer("app:v1", "app", 1000);
    let node = TestNode::new(Arc::new(fake.clone()), Wanted { records, ..Wanted::default() });
    let error = node.ensure(&request("app:v1")).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::RecordFailed);
    assert_eq!(error.reason(), "ErrImagePull");
    let message = "Failed to record image pull intent for container image \"app:v1\": could not write the pull record of `app:v1`: ";
    assert!(error.message().starts_with(message), "{}", error.message());
    assert_eq!(fake.take_calls(), ["status app:v1"]);
    assert_eq!(node.reported(), [("Warning", "Failed", error.message())]);
}

#[tokio::test]
async fn a_pull_is_on_disk_as_begun_while_it_runs_and_as_done_when_it_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let files = |folder: &str| std::fs::read_dir(root.path().join("image_manager").join(folder)).unwrap().count();
    let records = PullRecords::open(root.path(), VerificationPolicy::NeverVerifyPreloadedImages).unwrap();
    let fake = FakeRuntime::new();
    fake.offer("app:v1", "app", 1000);
    let node = TestNode::new(Arc::new(fake), Wanted { records, ..Wanted::default() });
    let seen = Arc::new(Mutex::new(0));
    let progress: PullWatcher = {
        let seen = Arc::clone(&seen);
        let pulling = root.path().join("image_manager/pulling");
        Arc::new(move |_| *seen.lock().unwrap() = std::fs::read_dir(&pulling).unwrap().count())
    };
    node.manager.ensure(&request("app:v1"), progress).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), 1);
    assert_eq!((files("pulling"), files("pulled")), (0, 1));
    assert!(node.metrics.render().contains("kubelet_imagemanager_ondisk_pulledrecords 1\n"));
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_secret_is_passed_over_and_named_with_the_failure() {
    let fake = FakeRuntime::new();
    fake.offer_to("reg.io/app:v1", "app", 1000, Some(("u", "p")));
    let node = TestNode::new(Arc::new(fake.clone()), Wanted::default());
    let broken = secret("broken", "{");
    let alone = EnsureRequest { secrets: vec![broken.clone()], ..request("reg.io/app:v1") };
    let error = node.ensure(&alone).await.unwrap_err();
    assert_eq!(error.reason(), "ErrImagePull");
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("cannot read the pull secret `test-ns/broken`: unexpected end of JSON input"), "{hint}");

    let good = secret("good", r#"{"auths": {"reg.io": {"username": "u", "password": "p"}}}"#);
    advance(Duration::from_secs(10)).await;
    node.ensure(&EnsureRequest { secrets: vec![broken, good], ..request("reg.io/app:v1") }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_asked_is_reported_with_the_name_of_the_image() {
    let store = Arc::new(Scripted::default());
    store.lock().inspect_error = Some("no".into());
    let node = TestNode::new(Arc::clone(&store) as Arc<dyn ImageService>, Wanted::default());
    let error = node.ensure(&request("app:v1")).await.unwrap_err();
    assert_eq!(error.reason(), "ImageInspectError");
    assert_eq!(node.reported(), [("Warning", "InspectFailed", "Failed to inspect image \"app:v1\": no".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn for_the_kubelet_each_request_has_its_own_pull_and_each_credential_its_try() {
    let settings = PullSettings { node_policy: NodePolicy::KUBELET, ..Wanted::default().settings };
    let fake = FakeRuntime::new();
    fake.offer("app:v1", "app", 1000);
    fake.set_pull_takes(Duration::from_secs(5));
    let node = TestNode::new(Arc::new(fake.clone()), Wanted { settings, ..Wanted::default() });
    let (one, other) = (node.begin(&request("app:v1")).await, node.begin(&request("app:v1")).await);
    assert_eq!(fake.pulls_running(), 2);
    one.await.unwrap().unwrap();
    other.await.unwrap().unwrap();

    let store = Arc::new(Scripted::default());
    let mut keyring = Keyring::new();
    for user in 0..70 {
        let credential = Credential::basic("", user.to_string(), Secret::new(""));
        keyring.add_credential("reg.io", CredentialSource::Node, credential);
    }
    store.lock().pull_error = Some("no".into());
    let node =
        TestNode::new(Arc::clone(&store) as Arc<dyn ImageService>, Wanted { settings, keyring, ..Wanted::default() });
    node.ensure(&request("reg.io/app:v1")).await.unwrap_err();
    assert_eq!(store.lock().shown.len(), 70);
}
