//! Stories of pulls beside a scripted runtime, with imports that end as each story sets them.

use crate::cri::{RuntimeConfiguration, SnapshotterPlace};
use imagelet_oci::ImportStage;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::*;
use imagelet_core::{
    error::{ErrorClass, Fault, Stage},
    image::ByteSize,
    ports::no_progress,
    testing::{FakeRuntime, conformance},
};

const IMAGE: &str = "r.io/app:v1";

/// A runtime, a site beside it, and what was asked of the site.
#[derive(Debug)]
struct Node {
    runtime: FakeRuntime,
    name: &'static str,
    version: Mutex<&'static str>,
    /// The snapshotters that the next surveys report.
    snapshotters: Mutex<Vec<&'static str>>,
    /// What the next imports find the manifest to be.
    is_artifact: AtomicBool,
    /// What the next imports end with.
    failure: Mutex<Option<(ImportStage, RuntimeErrorKind, ErrorClass, Stage)>>,
    refusal: Mutex<Option<ForwardReason>>,
    /// What surveys fail with.
    survey_failure: Mutex<Option<(RuntimeErrorKind, &'static str)>>,
    surveys: AtomicUsize,
    hangs: AtomicBool,
    opened: AtomicUsize,
    imports: AtomicUsize,
    given_up: AtomicUsize,
    reserved: AtomicU64,
}

struct GivenUp<'a>(&'a AtomicUsize);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl ImportSite for Node {
    async fn survey(&self) -> Result<RuntimeInfo, RuntimeError> {
        self.surveys.fetch_add(1, Ordering::SeqCst);
        let failure = *self.survey_failure.lock().unwrap();
        match failure {
            Some((RuntimeErrorKind::TimedOut, _)) => std::future::pending().await,
            Some((kind, message)) => return Err(RuntimeError::new(kind, message)),
            None => {}
        }
        let place = |name: &&str| SnapshotterPlace { root: "/c".into(), snapshotter: (*name).into() };
        let places = self.snapshotters.lock().unwrap().iter().map(place).collect();
        let version = (*self.version.lock().unwrap()).to_owned();
        let configuration =
            RuntimeConfiguration { snapshotter: Some("overlayfs".into()), ..RuntimeConfiguration::default() };
        Ok(RuntimeInfo { name: self.name.into(), version, places, configuration })
    }

    fn socket(&self) -> &Path {
        Path::new("/run/c.sock")
    }

    /// Another version was started after the one before it.
    fn incarnation(&self) -> Option<String> {
        Some((*self.version.lock().unwrap()).to_owned())
    }

    async fn open(&self, _: &RuntimeInfo) -> Result<(), ForwardReason> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.refusal.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    async fn close(&self) {}

    async fn import(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, ImportError> {
        self.imports.fetch_add(1, Ordering::SeqCst);
        let failure = *self.failure.lock().unwrap();
        if let Some((stage, kind, class, at)) = failure {
            let cause = RuntimeError::new(kind, "set by the story").with_fault(Fault::new(class, at));
            return Err(ImportError { stage, cause, is_artifact: self.is_artifact.load(Ordering::SeqCst) });
        }
        if self.hangs.load(Ordering::SeqCst) {
            let _guard = GivenUp(&self.given_up);
            std::future::pending::<()>().await;
        }
        self.runtime.pull(request, progress).await.map_err(|error| ImportStage::Fetch.failed(error))
    }

    async fn registry_hosts(&self, _: &Reference) -> Vec<RegistryHost> {
        Vec::new()
    }

    fn reserved(&self) -> Freed {
        Freed { bytes: ByteSize(self.reserved.load(Ordering::SeqCst)), inodes: 0 }
    }
}

impl Node {
    fn new() -> Arc<Self> {
        Self::of("containerd")
    }

    fn of(name: &'static str) -> Arc<Self> {
        let runtime = FakeRuntime::new();
        runtime.offer(IMAGE, "app", 1000);
        Arc::new(Self {
            runtime,
            name,
            version: Mutex::new("1.7.24"),
            snapshotters: Mutex::new(vec!["overlayfs"]),
            is_artifact: AtomicBool::new(false),
            failure: Mutex::default(),
            refusal: Mutex::default(),
            survey_failure: Mutex::default(),
            surveys: AtomicUsize::new(0),
            hangs: AtomicBool::new(false),
            opened: AtomicUsize::new(0),
            imports: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
            reserved: AtomicU64::new(0),
        })
    }

    fn images(self: &Arc<Self>, mode: ImportMode) -> (Arc<ImportingImages>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        let site: Arc<dyn ImportSite> = Arc::<Self>::clone(self);
        let inner = Arc::new(self.runtime.clone());
        (Arc::new(ImportingImages::new(inner, site, mode, Arc::clone(&metrics))), metrics)
    }

    fn go_away(&self) {
        *self.survey_failure.lock().unwrap() = Some((RuntimeErrorKind::Unavailable, "no such socket"));
    }

    fn fail_imports(&self, stage: ImportStage, class: ErrorClass) {
        *self.failure.lock().unwrap() = Some((stage, RuntimeErrorKind::Other, class, Stage::Manifest));
    }

    /// Imports that were begun since the last look.
    fn imports(&self) -> usize {
        self.imports.swap(0, Ordering::SeqCst)
    }
}

fn request() -> PullRequest {
    PullRequest { image: ImageSpec::new(IMAGE), ..PullRequest::default() }
}

async fn pull(images: &ImportingImages) -> Result<ImageId, RuntimeError> {
    images.pull(&request(), no_progress()).await
}

fn last(images: &ImportingImages) -> (&'static str, Option<&'static str>, bool) {
    let routes = images.recent_routes();
    let last = routes.last().expect("a pull ended");
    (last.route.code(), last.route.reason_code(), last.failure.is_some())
}

#[tokio::test(start_paused = true)]
async fn a_pull_is_imported_and_its_way_counted_and_remembered() {
    let node = Node::new();
    let (images, metrics) = node.images(ImportMode::Auto);
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let sink: Progress = Arc::new(move |event| heard.lock().unwrap().push(event));
    images.pull(&request(), sink).await.expect("it is imported");
    assert_eq!((node.imports(), last(&images)), (1, ("imported", None, false)));
    assert_eq!(events.lock().unwrap().first(), Some(&PullEvent::Route(PullRoute::Imported)));
    let line = "imagelet_runtime_pulls_total{way=\"imported\",reason=\"\",outcome=\"pulled\"} 1";
    assert!(metrics.render().lines().any(|found| found == line), "{}", metrics.render());
    node.reserved.store(7, Ordering::SeqCst);
    assert_eq!(images.filesystem().await.unwrap().reserved.bytes, ByteSize(7), "what imports have reserved counts");
}

#[tokio::test(start_paused = true)]
async fn the_service_keeps_the_promises_of_all_services_whichever_way_pulls_take() {
    for mode in ImportMode::ALL {
        let node = Node::new();
        node.runtime.offer("r.io/first:v1", "first", 1000);
        node.runtime.offer("r.io/first-again:v1", "first", 1000);
        node.runtime.offer("r.io/second:v1", "second", 2000);
        let images = conformance::PromisedImages {
            first: "r.io/first:v1".into(),
            first_again: "r.io/first-again:v1".into(),
            second: "r.io/second:v1".into(),
            absent: "r.io/absent:v1".into(),
            reports_progress: true,
            untags: false,
            reports_layers: false,
            reports_configs: true,
        };
        conformance::run(&*node.images(mode).0, &images).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_import_that_fails_is_forwarded_once_and_its_registry_first_for_ten_minutes() {
    let node = Node::new();
    let (images, metrics) = node.images(ImportMode::Auto);
    node.fail_imports(ImportStage::Fetch, ErrorClass::Unauthorized);
    pull(&images).await.expect("the runtime pulls it");
    assert_eq!((node.imports(), last(&images)), (1, ("forwarded", Some("import-failed"), false)));
    node.failure.lock().unwrap().take();
    pull(&images).await.expect("the runtime pulls it");
    assert_eq!((node.imports(), last(&images)), (0, ("forwarded", Some("registry-preferred"), false)));
    tokio::time::advance(Duration::from_mins(10)).await;
    pull(&images).await.expect("it is imported");
    assert_eq!((node.imports(), last(&images)), (1, ("imported", None, false)));
    let line = "imagelet_runtime_pulls_total{way=\"forwarded\",reason=\"registry-preferred\",outcome=\"pulled\"} 1";
    assert!(metrics.render().lines().any(|found| found == line), "{}", metrics.render());
}

/// Pulls, and returns the last route and the warnings of the pull.
async fn route_and_warnings(images: &ImportingImages) -> (String, Vec<String>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let sink: Progress = Arc::new(move |event| heard.lock().unwrap().push(event));
    images.pull(&request(), sink).await.expect("the runtime pulls it");
    let (mut route, mut warnings) = (String::new(), Vec::new());
    for event in std::mem::take(&mut *events.lock().unwrap()) {
        match event {
            PullEvent::Route(taken) => route = taken.to_string(),
            PullEvent::Warning { text } => warnings.push(text),
            _ => {}
        }
    }
    assert_eq!(images.recent_routes().pop().expect("a pull ended").route.to_string(), route);
    (route, warnings)
}

#[tokio::test(start_paused = true)]
async fn a_forward_of_an_artifact_to_containerd_says_that_pods_see_an_empty_folder() {
    const EMPTY: &str = "a pod that mounts it sees an empty folder";
    for mode in [ImportMode::Auto, ImportMode::Never] {
        let (node, crio) = (Node::new(), Node::of("cri-o"));
        *node.refusal.lock().unwrap() = Some(ForwardReason::Staging("EXDEV".into()));
        let (images, _) = node.images(mode);
        assert_eq!(route_and_warnings(&images).await.1, Vec::<String>::new(), "{mode}: an image with layers");
        for node in [&node, &crio] {
            node.runtime.unpack_nothing();
        }
        let (route, warnings) = route_and_warnings(&images).await;
        assert!(route.contains(EMPTY), "{mode}: {route}");
        assert_eq!(warnings, [route], "{mode}");
        let (route, warnings) = route_and_warnings(&crio.images(mode).0).await;
        assert!(!route.contains(EMPTY) && warnings.is_empty(), "{mode}: CRI-O mounts artifacts: {route}");
        let calls = crio.runtime.take_calls();
        assert!(!calls.iter().any(|call| call.starts_with("status")), "{mode}: CRI-O is asked nothing: {calls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_artifact_whose_import_fails_is_not_pulled_by_the_runtime() {
    let node = Node::new();
    node.is_artifact.store(true, Ordering::SeqCst);
    for (stage, class) in [
        (ImportStage::Unusable, ErrorClass::Unsupported),
        (ImportStage::Fetch, ErrorClass::ConnectionLost),
        (ImportStage::Handover, ErrorClass::RuntimeUnavailable),
    ] {
        node.fail_imports(stage, class);
        for mode in [ImportMode::Auto, ImportMode::Require] {
            let (images, _) = node.images(mode);
            let error = pull(&images).await.expect_err("it would be an empty folder");
            assert!(error.chain().contains("set by the story"), "{}", error.chain());
            assert_eq!(last(&images), ("imported", None, true), "{mode} {class}");
        }
    }
    assert!(node.runtime.pull_requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_artifact_of_a_preferred_registry_or_of_an_outage_is_withdrawn_and_imported_by_the_next_pull() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    let withdrawn = async |code| {
        let error = pull(&images).await.expect_err("it would be an empty folder");
        assert_eq!(error.kind(), RuntimeErrorKind::Unavailable, "{}", error.chain());
        assert_eq!(last(&images), ("forwarded", Some(code), true));
        assert!(images.status(&request().image).await.unwrap().is_none(), "{code}: it does not count as present");
    };
    node.fail_imports(ImportStage::Fetch, ErrorClass::HostNotFound);
    pull(&images).await.expect("an image is forwarded, and its registry preferred");
    node.runtime.unpack_nothing();
    withdrawn("registry-preferred").await;
    withdrawn("import-failed").await;
    node.failure.lock().unwrap().take();
    *node.refusal.lock().unwrap() = Some(ForwardReason::ApiAway("busy".into()));
    images.forget_runtime();
    withdrawn("api-closed").await;
    node.refusal.lock().unwrap().take();
    node.imports();
    pull(&images).await.expect("it is imported");
    assert_eq!((node.imports(), last(&images)), (1, ("imported", None, false)));
}

#[tokio::test(start_paused = true)]
async fn a_registry_is_not_preferred_for_an_empty_folder() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    node.runtime.unpack_nothing();
    node.fail_imports(ImportStage::Fetch, ErrorClass::Unauthorized);
    let (route, warnings) = route_and_warnings(&images).await;
    assert!(route.contains("empty folder") && warnings == [route.clone()], "{route}");
    node.failure.lock().unwrap().take();
    pull(&images).await.expect("it is imported");
    assert_eq!(last(&images), ("imported", None, false));
}

#[tokio::test(start_paused = true)]
async fn a_forward_that_does_not_help_is_not_preferred() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    node.fail_imports(ImportStage::Fetch, ErrorClass::Unauthorized);
    node.runtime.fail("pull", RuntimeErrorKind::Denied, "401 Unauthorized");
    let error = pull(&images).await.expect_err("neither way");
    assert_eq!(error.kind(), RuntimeErrorKind::Denied, "the runtime's own words: {}", error.chain());
    assert_eq!((node.imports(), last(&images)), (1, ("forwarded", Some("import-failed"), true)));
    node.runtime.heal();
    node.failure.lock().unwrap().take();
    pull(&images).await.expect("it is imported");
    assert_eq!(node.imports(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_limits_is_not_asked_a_second_time() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    node.fail_imports(ImportStage::Fetch, ErrorClass::RateLimited);
    pull(&images).await.expect_err("it fails");
    assert_eq!((node.imports(), node.runtime.pull_requests().len()), (1, 0));
    assert_eq!(last(&images), ("imported", None, true));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_comes_and_changes_is_found_by_the_next_pull() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    node.go_away();
    pull(&images).await.expect("it is forwarded");
    assert_eq!(last(&images), ("forwarded", Some("runtime-unknown"), false));
    node.survey_failure.lock().unwrap().take();
    for _ in 0..3 {
        pull(&images).await.expect("it is imported");
    }
    assert_eq!((node.imports(), node.opened.swap(0, Ordering::SeqCst)), (3, 1), "a site is opened once");
    for others in [vec!["overlayfs", "nydus", "devmapper"], vec!["devmapper", "overlayfs"], vec!["overlayfs"]] {
        *node.snapshotters.lock().unwrap() = others;
        images.standing().await;
        pull(&images).await.expect("it is imported");
    }
    assert_eq!(node.opened.load(Ordering::SeqCst), 0, "other snapshotters come and go");
    *node.version.lock().unwrap() = "2.1.9";
    pull(&images).await.expect("it is imported");
    assert_eq!(node.opened.swap(0, Ordering::SeqCst), 1, "a new version is another site");

    let broken = (ImportStage::Handover, RuntimeErrorKind::Unavailable, ErrorClass::RuntimeUnavailable, Stage::Runtime);
    *node.failure.lock().unwrap() = Some(broken);
    pull(&images).await.expect("it is forwarded");
    node.failure.lock().unwrap().take();
    pull(&images).await.expect("it is imported");
    assert_eq!(node.opened.swap(0, Ordering::SeqCst), 1, "after a broken connection it is opened anew");

    *node.version.lock().unwrap() = "2.2.0";
    *node.refusal.lock().unwrap() = Some(ForwardReason::Staging("EXDEV".into()));
    pull(&images).await.expect("it is forwarded");
    assert_eq!(last(&images), ("forwarded", Some("staging"), false));
    assert_eq!(images.standing().await.obstacle, Some(ForwardReason::Staging("EXDEV".into())));
}

#[tokio::test(start_paused = true)]
async fn where_import_is_required_nothing_is_forwarded() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Require);
    *node.refusal.lock().unwrap() = Some(ForwardReason::Staging("EXDEV".into()));
    let error = pull(&images).await.expect_err("it cannot be imported");
    assert!(error.chain().contains("EXDEV"), "{}", error.chain());
    node.refusal.lock().unwrap().take();
    node.fail_imports(ImportStage::Fetch, ErrorClass::Unauthorized);
    pull(&images).await.expect_err("it is not forwarded");
    assert_eq!((node.imports(), node.runtime.pull_requests().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn where_import_is_required_an_outage_of_the_runtime_can_be_retried_and_weakens_no_policy() {
    use RuntimeErrorKind as K;
    let closed = || Some(ForwardReason::ApiClosed("it answers CRI alone".into()));
    let away = || Some(ForwardReason::ApiAway("no answer at `/run/c.sock`".into()));
    for (survey, refusal, kind, text) in [
        (Some((K::Unavailable, "cannot reach the runtime at `/run/c.sock`")), None, K::Unavailable, "/run/c.sock"),
        (Some((K::TimedOut, "")), None, K::Unavailable, "no answer at `/run/c.sock` within 5 s"),
        (Some((K::Other, "not initialized")), None, K::Unavailable, "not initialized at `/run/c.sock`"),
        (None, away(), K::Unavailable, "/run/c.sock"),
        (Some((K::Unsupported, "unknown service")), None, K::Unsupported, "unknown service"),
        (None, closed(), K::Unsupported, "it answers CRI alone"),
        (None, Some(ForwardReason::Staging("EXDEV".into())), K::Unsupported, "EXDEV"),
    ] {
        let node = Node::new();
        let (images, _) = node.images(ImportMode::Require);
        *node.survey_failure.lock().unwrap() = survey;
        *node.refusal.lock().unwrap() = refusal;
        let error = pull(&images).await.expect_err("it cannot be imported");
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(error.chain().contains(text), "{}", error.chain());
        assert!(!error.hint().unwrap().contains("auto"), "{:?}", error.hint());
        assert!(node.runtime.pull_requests().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn pulls_of_one_minute_share_a_survey_until_the_connection_breaks_or_the_runtime_starts_again() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    let surveys = async |images: &ImportingImages| {
        pull(images).await.expect("it is present");
        node.surveys.swap(0, Ordering::SeqCst)
    };
    assert_eq!(surveys(&images).await, 1);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(surveys(&images).await, 0);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!((surveys(&images).await, surveys(&images).await), (1, 0));
    *node.version.lock().unwrap() = "2.1.9";
    assert_eq!((surveys(&images).await, surveys(&images).await), (1, 0), "another start");
    let broken = (ImportStage::Fetch, RuntimeErrorKind::Unavailable, ErrorClass::RuntimeUnavailable, Stage::Runtime);
    *node.failure.lock().unwrap() = Some(broken);
    assert_eq!((surveys(&images).await, surveys(&images).await), (1, 1), "after a broken import");
    images.standing().await;
    assert_eq!(node.surveys.swap(0, Ordering::SeqCst), 1, "the status is of now");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_busy_for_a_moment_is_the_one_of_the_last_survey() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    pull(&images).await.expect("it is imported");
    *node.survey_failure.lock().unwrap() = Some((RuntimeErrorKind::TimedOut, ""));
    tokio::time::advance(SURVEY_FRESH).await;
    pull(&images).await.expect("it is imported");
    assert_eq!((node.imports(), last(&images)), (2, ("imported", None, false)));
    assert_eq!(images.standing().await.obstacle, None);
    tokio::time::advance(SURVEY_RECENT).await;
    pull(&images).await.expect("it is forwarded");
    assert_eq!((node.imports(), last(&images)), (0, ("forwarded", Some("runtime-unknown"), false)));
}

#[tokio::test(start_paused = true)]
async fn where_import_is_off_neither_runtime_nor_site_is_asked() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Never);
    node.go_away();
    pull(&images).await.expect("it is forwarded");
    assert_eq!(last(&images), ("forwarded", Some("switched-off"), false));
    assert_eq!((node.imports(), node.opened.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_pull_gives_its_import_up() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    node.hangs.store(true, Ordering::SeqCst);
    timeout(Duration::from_secs(1), pull(&images)).await.expect_err("it hangs");
    assert_eq!((node.imports(), node.given_up.load(Ordering::SeqCst)), (1, 1));
    assert!(node.runtime.pull_requests().is_empty(), "and it is not forwarded");
}

#[tokio::test(start_paused = true)]
async fn imports_under_way_end_when_the_daemon_stops() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    node.hangs.store(true, Ordering::SeqCst);
    let under_way = tokio::spawn({
        let images = Arc::clone(&images);
        async move { pull(&images).await }
    });
    while node.imports.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    images.close().await;
    let error = under_way.await.expect("it ends").expect_err("it was given up");
    assert_eq!((error.kind(), node.given_up.load(Ordering::SeqCst)), (RuntimeErrorKind::Cancelled, 1));
    assert!(node.runtime.pull_requests().is_empty(), "and it is not forwarded");
}

#[tokio::test(start_paused = true)]
async fn the_ways_of_the_last_pulls_are_remembered_and_no_more() {
    let node = Node::new();
    let (images, _) = node.images(ImportMode::Auto);
    for _ in 0..ROUTES_MAX + 3 {
        pull(&images).await.expect("it is imported");
    }
    assert_eq!(images.recent_routes().len(), ROUTES_MAX);
}
