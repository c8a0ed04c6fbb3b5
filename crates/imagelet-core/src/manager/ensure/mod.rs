//! The steps of one request from name to image (`docs/spec/pull.md §2`).

mod completion;
mod credentials;
mod reporter;
mod resolved_names;
mod stale_use;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::Instant};

pub use self::stale_use::StaleUse;
use self::{
    completion::{Completion, act_of, fetched},
    credentials::{FoundCredentials, RequestCredentials, proof_of},
    reporter::Reporter,
};
use super::{
    BackoffKey, ImageManager,
    error::{Cause, EnsureError},
    meters::{self, Tally},
    puller::{Pulled, Work},
    request::{Caller, EnsureRequest, Ensured, Origin, PullPolicy},
    startup_latency::ImageEnd,
};
use crate::{
    audit_log::ActCode,
    credentials::PullCredentials,
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    events::PodIdentity,
    image::{ByteSize, Image, ImageKey, ImageSpec, Reference, ReferenceError, default_tag},
    inventory::{PullCost, UseReport},
    lock::locked,
    metrics::Metrics,
    ports::{PullEstimate, PullProgress, PullRequest, PullRoute, PullWatcher},
    records::{CheckResult, Intent},
    text::{quoted, whole_milliseconds},
};

pub(super) struct Ensuring<'a> {
    manager: &'a ImageManager,
    request: &'a EnsureRequest,
    /// The parsed name of the image. `run` reports an invalid name.
    reference: Result<Reference, ReferenceError>,
    reporter: Reporter,
    tally: Tally<'a>,
    credentials: RequestCredentials,
}

impl<'a> Ensuring<'a> {
    /// `metrics` is `None` for an estimate, which is not counted as a request.
    pub(super) fn new(manager: &'a ImageManager, request: &'a EnsureRequest, metrics: Option<&'a Metrics>) -> Self {
        Self {
            manager,
            request,
            reference: request.image().parse(),
            reporter: Reporter::new(manager, request),
            tally: Tally { metrics, policy: &request.policy, present: None, required: None },
            credentials: RequestCredentials::default(),
        }
    }

    pub(super) async fn run(mut self, watcher: PullWatcher) -> Result<Ensured, EnsureError> {
        let named = self.named();
        let (spec, reference) =
            named.map_err(|source| self.reported("InspectFailed", self.error(Cause::InvalidName(source))))?;
        if let Some(key) = self.usable(&spec).await? {
            return Ok(self.present(&key, spec));
        }
        if self.request.policy == PullPolicy::Never {
            return Err(self.reported("ErrImageNeverPull", self.error(Cause::NeverPull)));
        }
        self.tally.required = Some(true);
        self.pull(spec, reference, watcher).await
    }

    /// Estimates the pull with the first credential only. `None`: there is no estimate.
    pub(super) async fn estimate(&self) -> Option<PullEstimate> {
        let (spec, reference) = self.named().ok()?;
        let credentials = self.credentials().await.ok()?.credentials.clone();
        self.manager.puller.estimate(&self.work(spec, reference, credentials)).await
    }

    /// The image with its default tag, as runtimes get it, and its normalised name.
    fn named(&self) -> Result<(ImageSpec, Reference), ReferenceError> {
        let image = default_tag(self.request.image())?;
        Ok((ImageSpec { image, ..self.request.pull.image.clone() }, self.reference.clone()?))
    }

    fn work(&self, image: ImageSpec, reference: Reference, credentials: PullCredentials) -> Work {
        let EnsureRequest { pull, caller, priority, .. } = self.request;
        let pull = PullRequest { image, ..pull.clone() };
        let request = EnsureRequest { pull, caller: *caller, priority: *priority, ..EnsureRequest::default() };
        Work { request, reference, credentials }
    }

    /// The present image that the client may use. `None`: it is absent, the policy does not permit its use, or the
    /// registry must decide on the client's access (`docs/spec/pull.md §2.5`).
    async fn usable(&mut self, spec: &ImageSpec) -> Result<Option<ImageKey>, EnsureError> {
        match &self.request.policy {
            PullPolicy::IfNotPresent | PullPolicy::Never => {}
            PullPolicy::Always => return Ok(None),
            PullPolicy::Other(_) => {
                self.tally.present = Some(false);
                return Ok(None);
            }
        }
        let found = self
            .manager
            .parts
            .runtime
            .usable(spec)
            .await
            .map_err(|source| self.reported("InspectFailed", self.error(Cause::Inspect(Arc::new(source)))))?;
        self.tally.present = Some(found.is_some());
        let Some(found) = found else { return Ok(None) };
        let is_usable = self.may_use(&found).await?;
        self.tally.required = Some(!is_usable);
        Ok(is_usable.then(|| found.key()))
    }

    async fn may_use(&self, found: &Image) -> Result<bool, EnsureError> {
        let records = &self.manager.parts.records;
        let evidence = records.latest_evidence(self.request.image(), found).await;
        let now = SystemTime::now();
        // The pod's secrets are compared first, because that needs no wait. If they prove no access, the other
        // credentials are compared: one may be for the pod's service account or for a mirror.
        let mut judged = records.judge(self.request.image(), &evidence, now, || self.own_proof());
        if matches!(&judged, Ok(Some(verdict)) if !verdict.allowed)
            && (evidence.names_service_accounts() || self.has_secret_for_host().await)
        {
            let found = self.credentials().await;
            let proof = || found.map(|found| proof_of(found.credentials.iter()));
            judged = records.judge(self.request.image(), &evidence, now, proof);
        }
        let verdict = match judged {
            Ok(verdict) => verdict,
            Err(error) => {
                meters::checked(&self.manager.parts.reports.metrics, CheckResult::Error);
                return Err(error);
            }
        };
        let is_client = self.request.caller.is_client();
        let Some(verdict) = verdict else { return Ok(!is_client) };
        if let Some(result) = verdict.result {
            meters::checked(&self.manager.parts.reports.metrics, result);
        }
        // A client may use the image only if a pull record permits it. Otherwise the registry decides in a pull.
        let allowed = verdict.allowed && (!is_client || verdict.result == Some(CheckResult::RecordFound));
        if let Some(access) = verdict.learned {
            let (image, id) = (self.request.image().to_owned(), found.id.clone());
            let learned = records.on_disk(move |records| records.learn(&image, &id, &access, SystemTime::now())).await;
            if let Err(error) = learned {
                tracing::warn!(image = self.request.image(), %error, "could not add a credential to a pull record");
            }
        }
        Ok(allowed)
    }

    fn present(&self, key: &ImageKey, spec: ImageSpec) -> Ensured {
        let suffix = if self.manager.parts.records.is_on() { " and can be accessed by the pod" } else { "" };
        // Faster than `format!`. Every request without a pull builds this message.
        let name = quoted(self.request.image());
        let message = ["Container image ", &name, " already present on machine", suffix].concat();
        self.reporter.normal("Pulled", message.clone());
        self.reporter.finished(ImageEnd::Present);
        self.touch(key, None);
        Ensured::new(key, spec, Origin::AlreadyPresent, message)
    }

    async fn pull(&self, spec: ImageSpec, reference: Reference, watcher: PullWatcher) -> Result<Ensured, EnsureError> {
        let image = self.request.image();
        let FoundCredentials { credentials, missing } = self.credentials().await?;
        let policy = self.manager.policy();
        let key = BackoffKey {
            pod_uid: self.request.pull.pod.uid.clone(),
            image: image.to_owned(),
            canonical: reference.canonical(),
            credentials: if policy.pulls.backoff_by_credentials { credentials.hashes() } else { Vec::new() },
        };
        let work = self.work(spec.clone(), reference, credentials.clone());
        // An image in back-off needs no intent, which saves disk writes. The kubelet writes an intent and withdraws it.
        let intended = if policy.access.intent_after_backoff { None } else { Some(self.intend().await?) };
        if let Err(held) = self.admit(&key, &work) {
            // No container waits for a look-ahead, so there is no event.
            if self.request.caller != Caller::LookAhead {
                self.reporter.normal("BackOff", format!("Back-off pulling image {}", quoted(image)));
            }
            self.withdraw(intended).await;
            return Err(held);
        }
        let intent = match intended {
            Some(intent) => intent,
            None => self.intend().await?,
        };
        if self.request.caller == Caller::Pod {
            locked(&self.manager.backoff).begin(&key);
        }
        self.reporter.pull_started();
        self.reporter.normal("Pulling", format!("Pulling image {}", quoted(image)));
        let began = Instant::now();
        let act = |code, why| self.request.act(&key.canonical, code, began.elapsed(), why);
        let completion = |progress| Completion {
            intent: Some(intent),
            credentials: credentials.clone(),
            reporter: self.reporter.clone(),
            bond: self.manager.ended_pods.bond(self.request),
            act: act(ActCode::PullGivenUp, String::new()),
            progress,
            image: image.to_owned(),
            began,
        };
        let (outcome, completion) = match self.manager.puller.pull(&work) {
            Ok(subscription) => {
                let completion = completion(subscription.progress.clone());
                let subscription = subscription.on_complete(completion, Completion::conclude, Completion::unwanted);
                subscription.outcome(&watcher).await
            }
            Err(refused) => (Err(refused), Some(completion(watch::channel(PullProgress::default()).1))),
        };
        let progress = completion.as_ref().map(|completion| completion.progress.borrow().clone()).unwrap_or_default();
        let failure = match outcome {
            Ok(pulled) => {
                if let Some(completion) = completion {
                    completion.fulfil(&pulled).await;
                }
                self.succeeded(&key);
                self.remember_resolved(&work.reference, &spec, pulled.key.id()).await;
                let why = progress.route.as_ref().map(ToString::to_string).unwrap_or_default();
                if let Some(PullRoute::ForwardedArtifact(_)) = progress.route {
                    self.reporter.notice("ArtifactForwarded", format!("Image {}: {why}", quoted(image)));
                }
                let act = self.request.act(&key.canonical, ActCode::Pulled, pulled.took, why);
                self.manager.parts.reports.decisions.act(act_of(&pulled, &progress, act));
                return Ok(self.pulled(&pulled, fetched(&pulled, &progress), spec, began.elapsed()));
            }
            Err(failure) => failure,
        };
        let intent = completion.and_then(Completion::failed);
        let intent = intent.filter(|_| !policy.access.keeps_doubtful_intents || !is_doubtful(failure.kind()));
        // A look-ahead starts no container, so it needs no stale image.
        if self.request.caller != Caller::LookAhead
            && let Some(ensured) = self.use_stale(&work.reference, &spec, &failure).await
        {
            self.withdraw(intent).await;
            return Ok(ensured);
        }
        let message = format!("Failed to pull image {}: {}", quoted(image), failure.chain());
        self.reporter.warning("Failed", message, &failure.fault());
        self.reporter.finished(ImageEnd::Failed);
        let mut act = act(ActCode::PullFailed, failure.chain());
        act.details.hosts = progress.traffic.hosts;
        self.manager.parts.reports.decisions.act(act);
        self.withdraw(intent).await;
        let error = EnsureError::from_pull(image, with_causes(failure, missing), policy.pods.stable_reasons);
        self.failed(key, &error);
        Err(error)
    }

    /// A successful pull for a pod ends the pod's back-off. A successful pull of a command ends the back-off of all
    /// pods that wait for the image.
    fn succeeded(&self, key: &BackoffKey) {
        let mut backoff = locked(&self.manager.backoff);
        match self.request.caller {
            Caller::Command => {
                for alike in backoff.alike(|other| other.is_alike(key)) {
                    backoff.forget(&alike);
                }
            }
            Caller::Prefetch { .. } => {}
            Caller::Pod | Caller::LookAhead | Caller::Client { .. } => {
                if self.manager.policy().pulls.success_ends_backoff {
                    backoff.forget(key);
                }
            }
        }
    }

    /// A failed pull for a pod starts or extends the pod's back-off. A failed pull of a command extends the back-off of
    /// all pods that are in back-off for the image.
    fn failed(&self, key: BackoffKey, error: &EnsureError) {
        let (mut backoff, now) = (locked(&self.manager.backoff), Instant::now());
        let keys = match self.request.caller {
            Caller::Pod => vec![key],
            Caller::Command => {
                let mut waiting = backoff.alike(|other| other.is_alike(&key));
                waiting.retain(|other| backoff.held(other, now).is_some());
                waiting
            }
            Caller::LookAhead | Caller::Client { .. } | Caller::Prefetch { .. } => return,
        };
        let failure = format!("{}: {}", error.reason(), error.message());
        for key in keys {
            backoff.advance(key, failure.clone(), now);
        }
    }

    fn admit(&self, key: &BackoffKey, work: &Work) -> Result<(), EnsureError> {
        if matches!(self.request.caller, Caller::Pod | Caller::LookAhead)
            && let Some(held) = locked(&self.manager.backoff).held(key, Instant::now())
        {
            return Err(self.error(Cause::HeldBack(held.failure.clone())));
        }
        self.manager.puller.admit(work).map_err(|open| {
            if !self.request.caller.is_client() {
                return self.error(Cause::HeldBack(open.to_string()));
            }
            // The client's interface has no error for an open circuit, so the client gets an error of the registry.
            let fault = Fault::new(ErrorClass::HeldBack, Stage::Queue);
            let refused = RuntimeError::new(open.kind(), open.to_string()).with_fault(fault);
            EnsureError::from_pull(self.request.image(), Arc::new(refused), self.manager.policy().pods.stable_reasons)
        })
    }

    async fn intend(&self) -> Result<Intent, EnsureError> {
        let image = self.request.image().to_owned();
        let intended = self.manager.parts.records.on_disk(move |records| records.intend(&image)).await;
        intended.map_err(|source| {
            let error = self.error(Cause::Intent(Arc::new(source)));
            if self.manager.policy().pods.stable_reasons { self.reported("Failed", error) } else { error }
        })
    }

    async fn withdraw(&self, intent: Option<Intent>) {
        let Some(intent) = intent else { return };
        if let Err(error) = self.manager.parts.records.on_disk(move |_| intent.withdraw()).await {
            tracing::warn!(image = self.request.image(), %error, "the intent of a failed pull stays recorded");
        }
    }

    fn pulled(&self, pulled: &Pulled, fetched: ByteSize, spec: ImageSpec, waited: Duration) -> Ensured {
        self.reporter.finished(ImageEnd::Pulled);
        // If the request joined a running pull, the message has only the time that this request waited.
        let took = pulled.took.min(waited);
        let message = format!(
            "Successfully pulled image {} in {} ({} including waiting). Image size: {} bytes.",
            quoted(self.request.image()),
            whole_milliseconds(took),
            whole_milliseconds(waited),
            pulled.size.0
        );
        self.reporter.normal("Pulled", message);
        meters::pulled(&self.manager.parts.reports.metrics, pulled.size, waited);
        locked(&self.manager.backoff).forget_expired(Instant::now());
        let cost = PullCost { bytes: fetched, duration: pulled.took, at: SystemTime::now() };
        self.touch(&pulled.key, Some(cost));
        Ensured::new(&pulled.key, spec, Origin::Pulled { took, size: pulled.size }, String::new())
    }

    fn error(&self, cause: Cause) -> EnsureError {
        EnsureError::new(self.request.image(), cause, self.manager.policy().pods.stable_reasons)
    }

    fn touch(&self, key: &ImageKey, pulled: Option<PullCost>) {
        let Some(inventory) = &self.manager.parts.inventory else { return };
        let PodIdentity { namespace, name, .. } = &self.request.pull.pod;
        let user = (!name.is_empty()).then(|| format!("{namespace}/{name}"));
        let is_prefetch = self.request.caller.is_prefetch();
        let report = UseReport { user, pulled, is_prefetch };
        inventory.record(key, report, u64::from(!is_prefetch), SystemTime::now());
    }

    fn reported(&self, reason: &'static str, error: EnsureError) -> EnsureError {
        self.reporter.warning(reason, error.message(), &error.fault());
        error
    }
}

/// Whether the store may have the image despite the error, because the end of the pull was not observed.
fn is_doubtful(kind: RuntimeErrorKind) -> bool {
    matches!(kind, RuntimeErrorKind::Unavailable | RuntimeErrorKind::TimedOut | RuntimeErrorKind::Cancelled)
}

/// Adds the errors of secrets and providers to the hint of a pull's error: a missing credential may be its cause.
fn with_causes(failure: Arc<RuntimeError>, missing: &[String]) -> Arc<RuntimeError> {
    if missing.is_empty() {
        return failure;
    }
    let hints: Vec<String> = failure.hint().map(str::to_owned).into_iter().chain(missing.iter().cloned()).collect();
    // The error is a new one, because other requests that share the pull may have another hint.
    let fault = failure.fault();
    Arc::new(RuntimeError::new(failure.kind(), failure.chain()).with_hint(hints.join("; ")).with_fault(fault))
}
