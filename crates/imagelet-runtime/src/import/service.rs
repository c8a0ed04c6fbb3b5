//! A runtime's image service. Its pulls are imported natively if possible and otherwise forwarded.

use std::{
    collections::VecDeque,
    fmt,
    path::Path,
    sync::{Arc, Mutex, Weak},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Image, ImageId, ImageSpec, Reference, shown_name},
    lock::locked,
    metrics::Metrics,
    ports::{
        ForwardReason, Freed, ImageDetails, ImageFilesystems, ImageService, Listing, PULLS, Progress, PullEvent,
        PullRequest, PullRoute, RegistryHost,
    },
};
use imagelet_oci::ImportError;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::decide::{
    AfterFailure, ImportMode, PreferredRegistries, Survey, after_failure, import_target, is_empty_folder, is_lasting,
};
use crate::cri::RuntimeInfo;

const SURVEY_MAX: Duration = Duration::from_secs(5);
const SURVEY_FRESH: Duration = Duration::from_mins(1);
/// If a survey fails, the last successful survey is used up to this age, because the runtime may only be busy.
const SURVEY_RECENT: Duration = Duration::from_mins(10);
const OPEN_MAX: Duration = Duration::from_secs(10);
/// The interval of surveys. It is shorter than `SURVEY_FRESH`, so pulls find a fresh survey.
const WATCH_PERIOD: Duration = Duration::from_secs(50);
const ROUTES_MAX: usize = 32;

#[async_trait]
pub trait ImportSite: Send + Sync + fmt::Debug {
    async fn survey(&self) -> Result<RuntimeInfo, RuntimeError>;

    fn socket(&self) -> &Path;

    /// Identifies the current start of the runtime without a call to it. `None` means that the runtime does not run.
    fn incarnation(&self) -> Option<String>;

    async fn open(&self, runtime: &RuntimeInfo) -> Result<(), ForwardReason>;

    /// Fetches and imports an image, if the site is open. Returns after the runtime lists the image and the image is on
    /// disk. Dropping the future cancels the import. A background task then releases the import's lease.
    async fn import(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, ImportError>;

    async fn registry_hosts(&self, image: &Reference) -> Vec<RegistryHost>;

    /// Disk space that running imports have reserved and not yet written.
    fn reserved(&self) -> Freed;

    /// Returns once the runtime has released the resources of cancelled imports.
    async fn close(&self);
}

#[derive(Clone, Debug)]
pub struct RouteTaken {
    pub at: SystemTime,
    pub image: String,
    pub route: PullRoute,
    pub took: Duration,
    pub failure: Option<String>,
}

#[derive(Clone, Debug)]
pub struct ImportHealth {
    pub mode: ImportMode,
    pub runtime: Result<RuntimeInfo, ForwardReason>,
    /// Why pulls are not imported. `None` means that pulls are imported.
    pub obstacle: Option<ForwardReason>,
}

#[derive(Debug)]
pub struct ImportingImages {
    inner: Arc<dyn ImageService>,
    site: Arc<dyn ImportSite>,
    mode: ImportMode,
    /// Locked while the site is opened, so that concurrent pulls open it only once.
    opening: tokio::sync::Mutex<()>,
    closing: CancellationToken,
    shared: Mutex<Shared>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Shared {
    survey: Option<Survey>,
    /// The runtime for which the site is open. After a change of the runtime, the site is opened again.
    opened: Option<RuntimeInfo>,
    preferred: PreferredRegistries,
    routes: VecDeque<RouteTaken>,
}

struct Pull<'a> {
    request: &'a PullRequest,
    progress: Progress,
    began: Instant,
}

impl ImportingImages {
    pub fn new(
        inner: Arc<dyn ImageService>,
        site: Arc<dyn ImportSite>,
        mode: ImportMode,
        metrics: Arc<Metrics>,
    ) -> Self {
        metrics.declare(&PULLS);
        let (opening, closing) = (tokio::sync::Mutex::default(), CancellationToken::new());
        Self { inner, site, mode, opening, closing, shared: Mutex::default(), metrics }
    }

    /// Checks periodically whether imports are possible, so that no pull waits for it. Ends when `images` is dropped.
    pub async fn watch(images: Weak<Self>) {
        let mut last = None;
        loop {
            let Some(strong) = images.upgrade() else { return };
            let (mode, obstacle) = (strong.mode, strong.standing().await.obstacle);
            drop(strong);
            if last.as_ref() != Some(&obstacle) {
                match &obstacle {
                    None => tracing::info!("pulls are imported into the runtime"),
                    Some(reason) if mode == ImportMode::Auto => {
                        tracing::warn!(reason = reason.code(), "pulls are forwarded to the runtime: {reason}");
                    }
                    Some(reason) if mode == ImportMode::Require => {
                        tracing::error!(reason = reason.code(), "import is required and not possible: {reason}");
                    }
                    Some(reason) => tracing::info!(reason = reason.code(), "pulls are forwarded to the runtime"),
                }
                last = Some(obstacle);
            }
            tokio::time::sleep(WATCH_PERIOD).await;
        }
    }

    pub async fn standing(&self) -> ImportHealth {
        if self.mode == ImportMode::Never {
            let off = ForwardReason::SwitchedOff;
            return ImportHealth { mode: self.mode, runtime: Err(off.clone()), obstacle: Some(off) };
        }
        let runtime = self.survey(Duration::ZERO).await;
        let obstacle = self.choose(&runtime, None).await.err();
        ImportHealth { mode: self.mode, runtime, obstacle }
    }

    /// The newest route is last.
    pub fn recent_routes(&self) -> Vec<RouteTaken> {
        locked(&self.shared).routes.iter().cloned().collect()
    }

    /// Cancels the running imports. Returns after the runtime has released their resources.
    pub async fn close(&self) {
        self.closing.cancel();
        self.site.close().await;
    }

    /// Reuses a survey younger than `age_max`, or surveys the runtime. If this fails, an older survey may be used.
    async fn survey(&self, age_max: Duration) -> Result<RuntimeInfo, ForwardReason> {
        let incarnation = self.site.incarnation();
        let known = |age_max| {
            let shared = locked(&self.shared);
            let survey = shared.survey.as_ref()?;
            survey.younger_than(age_max, incarnation.as_deref(), Instant::now()).cloned()
        };
        if let Some(runtime) = known(age_max) {
            return Ok(runtime);
        }
        let socket = self.site.socket().display();
        let failed = match timeout(SURVEY_MAX, self.site.survey()).await {
            Ok(Ok(runtime)) => {
                let survey = Survey { runtime: runtime.clone(), incarnation, at: Instant::now() };
                locked(&self.shared).survey = Some(survey);
                return Ok(runtime);
            }
            Ok(Err(error)) if error.kind() == RuntimeErrorKind::Unsupported => {
                return Err(ForwardReason::ApiClosed(error.chain()));
            }
            // The texts of these errors already name the socket.
            Ok(Err(error)) if matches!(error.kind(), RuntimeErrorKind::Unavailable | RuntimeErrorKind::TimedOut) => {
                error.chain()
            }
            Ok(Err(error)) => format!("{} at `{socket}`", error.chain()),
            Err(_) => format!("no answer at `{socket}` within {} s", SURVEY_MAX.as_secs()),
        };
        known(SURVEY_RECENT).ok_or(ForwardReason::RuntimeUnknown(failed))
    }

    /// Drops the survey after an outage, because another runtime may run on the socket afterwards.
    fn forget_runtime(&self) {
        let mut shared = locked(&self.shared);
        (shared.survey, shared.opened) = (None, None);
    }

    async fn choose(
        &self,
        runtime: &Result<RuntimeInfo, ForwardReason>,
        request: Option<&PullRequest>,
    ) -> Result<(), ForwardReason> {
        let registry = request.and_then(registry_of);
        let is_preferred =
            registry.is_some_and(|name| locked(&self.shared).preferred.is_preferred(&name, Instant::now()));
        self.open(import_target(self.mode, runtime, request, is_preferred)?).await
    }

    async fn open(&self, runtime: &RuntimeInfo) -> Result<(), ForwardReason> {
        // Other snapshotters are listed in any order, and only while they have snapshots.
        let own = RuntimeInfo { places: runtime.place().cloned().into_iter().collect(), ..runtime.clone() };
        let _opening = self.opening.lock().await;
        if locked(&self.shared).opened.as_ref() == Some(&own) {
            return Ok(());
        }
        locked(&self.shared).opened = None;
        let opened = timeout(OPEN_MAX, self.site.open(runtime)).await;
        opened.unwrap_or_else(|_| {
            let socket = self.site.socket().display();
            Err(ForwardReason::ApiAway(format!("it did not open at `{socket}` within {} s", OPEN_MAX.as_secs())))
        })?;
        locked(&self.shared).opened = Some(own);
        Ok(())
    }

    async fn import(&self, pull: &Pull<'_>) -> Result<ImageId, RuntimeError> {
        (pull.progress)(PullEvent::Route(PullRoute::Imported));
        let imported = tokio::select! {
            biased;
            () = self.closing.cancelled() => {
                let image = shown_name(&pull.request.image.image);
                let message = format!("the import of `{image}` was given up: the daemon is stopping");
                return Err(RuntimeError::new(RuntimeErrorKind::Cancelled, message));
            }
            imported = self.site.import(pull.request, Arc::clone(&pull.progress)) => imported,
        };
        let failed = match imported {
            Ok(id) => {
                self.note(pull, PullRoute::Imported, None);
                return Ok(id);
            }
            Err(failed) => failed,
        };
        let after = after_failure(self.mode, &failed, pull.request);
        let cause = failed.cause;
        if cause.kind() == RuntimeErrorKind::Unavailable {
            self.forget_runtime();
        }
        match after {
            AfterFailure::Fail => {
                self.note(pull, PullRoute::Imported, Some(&cause));
                Err(cause)
            }
            AfterFailure::Forward { remember } => {
                let reason = ForwardReason::Failed { fault: cause.fault(), text: cause.chain() };
                self.forward(pull, reason, remember).await
            }
        }
    }

    /// If `remember` is set and the pull succeeds, the registry's further pulls are forwarded, too.
    async fn forward(&self, pull: &Pull<'_>, reason: ForwardReason, remember: bool) -> Result<ImageId, RuntimeError> {
        let mut route = PullRoute::Forwarded(reason.clone());
        (pull.progress)(PullEvent::Route(route.clone()));
        let mut pulled = self.inner.pull(pull.request, Arc::clone(&pull.progress)).await;
        if pulled.as_ref().is_err_and(|error| error.kind() == RuntimeErrorKind::Unavailable) {
            self.forget_runtime();
        }
        let is_empty = pulled.is_ok() && self.shows_empty_folder(&pull.request.image).await;
        if is_empty && !is_lasting(&reason) {
            pulled = Err(self.withdraw(pull.request, &reason).await);
        } else if is_empty {
            route = PullRoute::ForwardedArtifact(reason);
            (pull.progress)(PullEvent::Route(route.clone()));
            (pull.progress)(PullEvent::Warning { text: route.to_string() });
        } else if pulled.is_ok()
            && let Some(registry) = registry_of(pull.request).filter(|_| remember)
        {
            locked(&self.shared).preferred.prefer(&registry, Instant::now());
        }
        self.note(pull, route, pulled.as_ref().err());
        pulled
    }

    /// Whether a pod that mounts the image sees an empty folder. Runtimes other than containerd mount artifacts.
    async fn shows_empty_folder(&self, image: &ImageSpec) -> bool {
        if !self.survey(SURVEY_FRESH).await.is_ok_and(|runtime| runtime.is_containerd()) {
            return false;
        }
        let details = timeout(SURVEY_MAX, self.inner.details(image)).await;
        details.ok().and_then(Result::ok).flatten().is_some_and(|details| is_empty_folder(&details))
    }

    /// Removes an artifact that the runtime pulled without files. Returns the pull's error. A later pull may import it.
    async fn withdraw(&self, request: &PullRequest, reason: &ForwardReason) -> RuntimeError {
        let image = shown_name(&request.image.image);
        if let Some(registry) = registry_of(request) {
            locked(&self.shared).preferred.0.remove(&registry);
        }
        if let Err(error) = self.inner.remove(&request.image).await {
            tracing::warn!(%image, error = error.chain(), "could not remove an artifact without its files");
        }
        let message =
            format!("could not import `{image}`, an artifact, of which the runtime unpacks no file: {reason}");
        RuntimeError::new(RuntimeErrorKind::Unavailable, message).with_hint("a later pull is imported")
    }

    fn note(&self, pull: &Pull<'_>, route: PullRoute, failure: Option<&RuntimeError>) {
        let (image, took) = (shown_name(&pull.request.image.image).into_owned(), pull.began.elapsed());
        let (code, reason) = (route.code(), route.reason_code().unwrap_or_default());
        let outcome = if failure.is_some() { "failed" } else { "pulled" };
        self.metrics.increment(&PULLS, &[code, reason, outcome]);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let failure = failure.map(RuntimeError::chain);
        let ended = if failure.is_some() { format!("failed: {}", route.of_failed()) } else { route.to_string() };
        tracing::info!(image, route = code, reason, took_ms, failure, "{ended}");
        let mut shared = locked(&self.shared);
        if shared.routes.len() == ROUTES_MAX {
            shared.routes.pop_front();
        }
        shared.routes.push_back(RouteTaken { at: SystemTime::now(), image, route, took, failure });
    }
}

/// The error of a pull that must not be forwarded. If the reason is temporary, clients retry a pull with this error.
fn not_importable(image: &str, reason: &ForwardReason) -> RuntimeError {
    let (kind, hint) = match reason {
        ForwardReason::NameInvalid => {
            (RuntimeErrorKind::InvalidArgument, "give a name such as `registry.example/app:v1`")
        }
        reason if reason.is_outage() => (RuntimeErrorKind::Unavailable, "does the runtime run?"),
        _ => (RuntimeErrorKind::Unsupported, "`imagelet status -v` shows what imports need; no pull is forwarded here"),
    };
    RuntimeError::new(kind, format!("could not import `{}`: {reason}", shown_name(image))).with_hint(hint)
}

fn registry_of(request: &PullRequest) -> Option<String> {
    Some(request.image.image.parse::<Reference>().ok()?.canonical().domain().to_owned())
}

#[async_trait]
impl ImageService for ImportingImages {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        self.inner.list(filter).await
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        self.inner.status(spec).await
    }

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        self.inner.details(spec).await
    }

    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        let pull = Pull { request, progress, began: Instant::now() };
        let runtime = match self.mode {
            ImportMode::Never => Ok(RuntimeInfo::default()),
            _ => self.survey(SURVEY_FRESH).await,
        };
        match self.choose(&runtime, Some(request)).await {
            Ok(()) => self.import(&pull).await,
            Err(reason) if self.mode == ImportMode::Require => {
                let error = not_importable(&request.image.image, &reason);
                self.note(&pull, PullRoute::Imported, Some(&error));
                Err(error)
            }
            Err(reason) => self.forward(&pull, reason, false).await,
        }
    }

    async fn registry_hosts(&self, image: &Reference) -> Vec<RegistryHost> {
        if self.mode == ImportMode::Never {
            return Vec::new();
        }
        match self.choose(&self.survey(SURVEY_FRESH).await, None).await {
            Ok(()) => self.site.registry_hosts(image).await,
            Err(_) => Vec::new(),
        }
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.inner.remove(spec).await
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(ImageFilesystems { reserved: self.site.reserved(), ..self.inner.filesystem().await? })
    }
}

#[cfg(test)]
mod tests;
