//! The steps of one request from name to image (`docs/spec/pull.md §2`).

mod access_record;
mod completion;
mod pull_secret_cache;
mod reporter;
mod resolved_names;
mod stale_use;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

pub(super) use self::pull_secret_cache::PullSecretCache;
pub use self::stale_use::StaleUse;
use self::{access_record::proof_of, completion::Completion, pull_secret_cache::PullSecretEntry, reporter::Reporter};
use super::{
    BackoffKey, ImageManager,
    decide::{Decision, Presence, decide, wants_look},
    error::{Cause, EnsureError},
    meters::Tally,
    puller::{Pulled, Work},
    request::{Caller, EnsureRequest, Ensured, Origin, PodIdentity, PullPolicy},
    startup_latency::ImageEnd,
};
use crate::{
    audit_log::ActCode,
    credentials::{KeyringError, TrackedCredential},
    image::{ByteSize, Image, ImageKey, ImageSpec, Reference, default_tag},
    inventory::HandedOut,
    records::{AccessProof, CheckResult, Intent},
    runtime::{ErrorClass, Fault, Progress, RuntimeError, RuntimeErrorKind, Stage},
    text::{quoted, whole_milliseconds},
};

pub(super) struct Ensuring<'a> {
    manager: &'a ImageManager,
    request: &'a EnsureRequest,
    reporter: Reporter,
    tally: Tally<'a>,
    /// Looked up at most once, and only where needed.
    credentials: OnceLock<Result<FoundCredentials, KeyringError>>,
}

#[derive(Debug, Default)]
struct FoundCredentials {
    /// In the order to try them.
    credentials: Vec<TrackedCredential>,
    /// Failed sources: unreadable secrets, failed providers.
    missing: Vec<String>,
}

impl<'a> Ensuring<'a> {
    pub(super) fn new(manager: &'a ImageManager, request: &'a EnsureRequest) -> Self {
        let tally = Tally::new(&manager.meters, &request.policy);
        Self { manager, request, reporter: Reporter::new(manager, request), tally, credentials: OnceLock::new() }
    }

    /// Runs all steps and counts the request.
    pub(super) async fn run(mut self, progress: Progress) -> Result<Ensured, EnsureError> {
        let image = default_tag(&self.request.image)
            .map_err(|source| self.reported("InspectFailed", self.error(Cause::InvalidName(source))))?;
        let (runtime_handler, annotations) = (self.request.runtime_handler.clone(), self.request.annotations.clone());
        let spec = ImageSpec { image, runtime_handler, annotations };
        let (presence, key) = self.look(&spec).await?;
        match (decide(&self.request.policy, presence), key) {
            (Decision::Use, Some(key)) => Ok(self.present(&key, spec)),
            (Decision::Refuse, _) => Err(self.reported("ErrImageNeverPull", self.error(Cause::NeverPull))),
            (Decision::Use | Decision::Pull, _) => {
                self.tally.required = Some(true);
                self.pull(spec, progress).await
            }
        }
    }

    /// Looks the image up and decides the client's access.
    async fn look(&mut self, spec: &ImageSpec) -> Result<(Presence, Option<ImageKey>), EnsureError> {
        match &self.request.policy {
            policy if wants_look(policy) => {}
            PullPolicy::Other(_) => {
                self.tally.present = Some(false);
                return Ok((Presence::Absent, None));
            }
            _ => return Ok((Presence::Unchecked, None)),
        }
        let found = self
            .manager
            .runtime
            .status(spec)
            .await
            .map_err(|source| self.reported("InspectFailed", self.error(Cause::Inspect(Arc::new(source)))))?;
        self.tally.present = Some(found.is_some());
        let Some(found) = found else { return Ok((Presence::Absent, None)) };
        let usable = self.may_use(&found).await?;
        self.tally.required = Some(!usable);
        Ok((if usable { Presence::Usable } else { Presence::Guarded }, Some(found.key())))
    }

    async fn may_use(&self, found: &Image) -> Result<bool, EnsureError> {
        let records = &self.manager.records;
        let evidence = if records.is_durable() {
            let (image, found) = (self.request.image.clone(), found.clone());
            records.on_disk(move |records| records.look_up(&image, &found)).await
        } else {
            records.look_up(&self.request.image, found)
        };
        let now = SystemTime::now();
        // Records are judged with the pod's secrets first, without waiting. Only a negative result needs the
        // credentials of the node and the providers, as one may belong to the pod's service account.
        let mut judged = records.judge(&self.request.image, &evidence, now, || self.proof_by_secrets());
        if matches!(&judged, Ok(Some(verdict)) if !verdict.allowed) && evidence.names_service_accounts() {
            let found = self.look_up_credentials().await;
            let proof = || match found {
                Ok(found) => Ok(Arc::new(proof_of(&found.credentials))),
                Err(error) => Err(self.credentials_error(error)),
            };
            judged = records.judge(&self.request.image, &evidence, now, proof);
        }
        let verdict = match judged {
            Ok(verdict) => verdict,
            Err(error) => {
                self.manager.meters.checked(CheckResult::Error);
                return Err(error);
            }
        };
        let is_client = self.request.caller.is_client();
        let Some(verdict) = verdict else { return Ok(!is_client) };
        if let Some(result) = verdict.result {
            self.manager.meters.checked(result);
        }
        // A client's pull lets the registry decide: only access from a record counts here.
        let allowed = verdict.allowed && (!is_client || verdict.is_by_record());
        if let Some(access) = verdict.learned {
            let (image, id) = (self.request.image.clone(), found.id.clone());
            let learned = records.on_disk(move |records| records.learn(&image, &id, &access, SystemTime::now())).await;
            if let Err(error) = learned {
                tracing::warn!(image = self.request.image, %error, "could not add a credential to a pull record");
            }
        }
        Ok(allowed)
    }

    fn present(&self, key: &ImageKey, spec: ImageSpec) -> Ensured {
        let suffix = if self.manager.records.is_on() { " and can be accessed by the pod" } else { "" };
        let image = quoted(&self.request.image);
        let message = ["Container image ", &image, " already present on machine", suffix].concat();
        self.reporter.normal("Pulled", message.clone());
        self.reporter.finished(ImageEnd::Present);
        self.touch(key, None);
        Ensured::new(key, spec, Origin::AlreadyPresent, message)
    }

    async fn pull(&self, spec: ImageSpec, progress: Progress) -> Result<Ensured, EnsureError> {
        let image = &self.request.image;
        let reference: Reference =
            image.parse().map_err(|source| self.reported("InspectFailed", self.error(Cause::InvalidName(source))))?;
        let FoundCredentials { credentials, missing } = self.credentials().await?;
        let is_kubelet = self.manager.compatibility.is_kubelet();
        let hashes = if is_kubelet { &[][..] } else { credentials };
        let key = BackoffKey {
            pod_uid: self.request.pod.uid.clone(),
            image: image.clone(),
            canonical: reference.canonical(),
            credentials: hashes.iter().map(|tracked| tracked.hash.clone()).collect(),
        };
        let work = Work {
            image: spec.clone(),
            reference,
            credentials: credentials.clone(),
            sandbox: self.request.sandbox(),
            platform: self.request.platform.clone(),
            tenant: Arc::clone(&self.request.pod.namespace),
            priority: self.request.priority,
            caller: self.request.caller,
        };
        // An image in back-off costs no disk write; the kubelet writes and withdraws its intent nevertheless.
        let intended = if is_kubelet { Some(self.intend().await?) } else { None };
        if let Err(held) = self.admit(&key, &work) {
            self.reporter.normal("BackOff", format!("Back-off pulling image {}", quoted(image)));
            self.withdraw(intended).await;
            return Err(held);
        }
        let intent = match intended {
            Some(intent) => intent,
            None => self.intend().await?,
        };
        if self.request.caller == Caller::Pod {
            self.manager.backoff().begin(&key);
        }
        self.reporter.pull_started(image);
        self.reporter.normal("Pulling", format!("Pulling image {}", quoted(image)));
        let began = Instant::now();
        let act = |code, why| self.request.act(&key.canonical, code, began.elapsed(), why);
        let (outcome, completion) = match self.manager.puller.pull(&work) {
            Ok(subscription) => {
                let completion = Completion {
                    intent: Some(intent),
                    records: Arc::clone(&self.manager.records),
                    credentials: work.credentials,
                    reporter: self.reporter.clone(),
                    decisions: Arc::clone(&self.manager.decisions),
                    act: act(ActCode::PullGivenUp, String::new()),
                    image: image.clone(),
                    began,
                };
                let (outcome, completion) =
                    subscription.on_complete(completion, Completion::conclude).outcome(&progress).await;
                (outcome, Ok(completion))
            }
            Err(refused) => (Err(refused), Err(intent)),
        };
        let failure = match outcome {
            Ok(pulled) => {
                if let Ok(Some(completion)) = completion {
                    completion.fulfil(&pulled).await;
                }
                self.succeeded(&key);
                self.remember_resolved(&work.reference, &spec, pulled.key.id()).await;
                let why = pulled.way.as_ref().map(ToString::to_string).unwrap_or_default();
                let act = self.request.act(&key.canonical, ActCode::Pulled, pulled.took, why);
                self.manager.decisions.act(pulled.act(act));
                return Ok(self.pulled(&pulled, spec, began.elapsed()));
            }
            Err(failure) => failure,
        };
        let intent = completion.map_or_else(Some, |completion| completion.and_then(Completion::failed));
        let intent = intent.filter(|_| is_kubelet || !is_doubtful(failure.kind()));
        if let Some(ensured) = self.use_stale(&work.reference, &spec, &failure).await {
            self.withdraw(intent).await;
            return Ok(ensured);
        }
        let message = format!("Failed to pull image {}: {}", quoted(image), failure.chain());
        self.reporter.warning("Failed", message, &failure.fault());
        self.reporter.finished(ImageEnd::Failed);
        self.manager.decisions.act(act(ActCode::PullFailed, failure.chain()));
        self.withdraw(intent).await;
        let error = EnsureError::from_pull(image, with_causes(failure, missing), self.manager.compatibility);
        self.failed(key, &error);
        Err(error)
    }

    /// Ends the back-off after a success: a pod's own; after a command, that of all pods waiting for the same image.
    fn succeeded(&self, key: &BackoffKey) {
        let mut backoff = self.manager.backoff();
        match self.request.caller {
            Caller::Command => {
                for alike in backoff.alike(|other| other.is_alike(key)) {
                    backoff.forget(&alike);
                }
            }
            Caller::Pod | Caller::Client { .. } if self.manager.compatibility.is_kubelet() => {}
            Caller::Pod | Caller::Client { .. } => backoff.forget(key),
        }
    }

    /// Starts or extends the back-off after a failure: a pod's own; after a command, that of the waiting pods.
    fn failed(&self, key: BackoffKey, error: &EnsureError) {
        let (mut backoff, now) = (self.manager.backoff(), Instant::now());
        let keys = match self.request.caller {
            Caller::Pod => vec![key],
            Caller::Command => {
                let mut waiting = backoff.alike(|other| other.is_alike(&key));
                waiting.retain(|other| backoff.held(other, now).is_some());
                waiting
            }
            Caller::Client { .. } => return,
        };
        let failure = format!("{}: {}", error.reason(), error.message());
        for key in keys {
            backoff.advance(key, failure.clone(), now);
        }
    }

    /// Whether the registry may be asked now, by the pod's back-off and then by the circuits.
    fn admit(&self, key: &BackoffKey, work: &Work) -> Result<(), EnsureError> {
        if self.request.caller == Caller::Pod
            && let Some(held) = self.manager.backoff().held(key, Instant::now())
        {
            return Err(self.error(Cause::HeldBack(held.failure.clone())));
        }
        self.manager.puller.admit(work).map_err(|open| {
            if !self.request.caller.is_client() {
                return self.error(Cause::HeldBack(open.to_string()));
            }
            // A client's interface has unavailable registries, and no circuits.
            let fault = Fault::new(ErrorClass::HeldBack, Stage::Queue);
            let refused = RuntimeError::new(open.kind(), open.to_string()).with_fault(fault);
            EnsureError::from_pull(&self.request.image, Arc::new(refused), self.manager.compatibility)
        })
    }

    /// Records the pull before its first byte.
    async fn intend(&self) -> Result<Intent, EnsureError> {
        let image = self.request.image.clone();
        let intended = self.manager.records.on_disk(move |records| records.intend(&image)).await;
        intended.map_err(|source| {
            let error = self.error(Cause::Intent(Arc::new(source)));
            if self.manager.compatibility.is_kubelet() { error } else { self.reported("Failed", error) }
        })
    }

    async fn withdraw(&self, intent: Option<Intent>) {
        let Some(intent) = intent else { return };
        if let Err(error) = self.manager.records.on_disk(move |_| intent.withdraw()).await {
            tracing::warn!(image = self.request.image, %error, "the intent of a failed pull stays recorded");
        }
    }

    fn pulled(&self, pulled: &Pulled, spec: ImageSpec, waited: Duration) -> Ensured {
        self.reporter.finished(ImageEnd::Pulled);
        // For a pull that ran before this request joined it, only the request's own time counts.
        let took = pulled.took.min(waited);
        let message = format!(
            "Successfully pulled image {} in {} ({} including waiting). Image size: {} bytes.",
            quoted(&self.request.image),
            whole_milliseconds(took),
            whole_milliseconds(waited),
            pulled.size.0
        );
        self.reporter.normal("Pulled", message);
        self.manager.meters.pulled(pulled.size, waited);
        self.manager.backoff().forget_expired(Instant::now());
        self.touch(&pulled.key, Some((pulled.fetched, pulled.took)));
        Ensured::new(&pulled.key, spec, Origin::Pulled { took, size: pulled.size }, String::new())
    }

    async fn credentials(&self) -> Result<&FoundCredentials, EnsureError> {
        self.look_up_credentials().await.as_ref().map_err(|error| self.credentials_error(error))
    }

    /// Collects pull secrets, the node's helpers and documents, then the providers; once per request.
    async fn look_up_credentials(&self) -> &Result<FoundCredentials, KeyringError> {
        if let Some(found) = self.credentials.get() {
            return found;
        }
        let found = self.ask_for_credentials().await;
        self.credentials.get_or_init(|| found)
    }

    async fn ask_for_credentials(&self) -> Result<FoundCredentials, KeyringError> {
        if !self.request.credentials.is_empty() {
            let credentials = self.request.credentials.iter().cloned().map(TrackedCredential::from_request).collect();
            return Ok(FoundCredentials { credentials, missing: Vec::new() });
        }
        if matches!(self.request.caller, Caller::Client { own_credentials: false, .. }) {
            return Ok(FoundCredentials::default());
        }
        let Ok(reference) = self.request.image.parse::<Reference>() else { return Ok(FoundCredentials::default()) };
        let found = self.pull_secrets()?;
        let (mut credentials, mut missing) = (found.credentials.clone(), found.missing.clone());
        let (repository, is_kubelet) = (reference.repository(), self.manager.compatibility.is_kubelet());
        if !is_kubelet {
            let (known, problem) = self.manager.keyring.ask_helper(repository).await;
            credentials.extend(known);
            missing.extend(problem);
        }
        credentials.extend(self.manager.keyring.keyring().await.lookup(repository));
        let provided = self.manager.providers.provide(&self.request.query(repository)).await;
        credentials.extend(provided.credentials);
        if !is_kubelet {
            credentials = credentials.into_iter().filter_map(TrackedCredential::usable).collect();
        }
        missing.extend(provided.failures.iter().map(ToString::to_string));
        Ok(FoundCredentials { credentials, missing })
    }

    fn pull_secrets(&self) -> Result<Arc<PullSecretEntry>, KeyringError> {
        self.manager.secrets.read(&self.request.image, &self.request.secrets, self.manager.compatibility)
    }

    /// The proof by the client's own secrets.
    fn proof_by_secrets(&self) -> Result<Arc<AccessProof>, EnsureError> {
        if !self.request.credentials.is_empty() {
            let shown: Vec<_> = self.request.credentials.iter().cloned().map(TrackedCredential::from_request).collect();
            return Ok(Arc::new(proof_of(&shown)));
        }
        let found = self.pull_secrets().map_err(|error| self.credentials_error(&error))?;
        Ok(Arc::clone(&found.proof))
    }

    fn credentials_error(&self, error: &KeyringError) -> EnsureError {
        self.error(Cause::Credentials(error.clone()))
    }

    fn error(&self, cause: Cause) -> EnsureError {
        EnsureError::new(&self.request.image, cause, self.manager.compatibility)
    }

    /// Marks the image as used; `pulled`: size and duration of its fetch.
    fn touch(&self, key: &ImageKey, pulled: Option<(ByteSize, Duration)>) {
        let Some(touched) = &self.manager.touched else { return };
        let PodIdentity { namespace, name, .. } = &self.request.pod;
        let user = (!name.is_empty()).then(|| format!("{namespace}/{name}"));
        touched(&HandedOut { key: key.clone(), user, pulled });
    }

    /// Reports an error by its own message, and returns it.
    fn reported(&self, reason: &'static str, error: EnsureError) -> EnsureError {
        self.reporter.warning(reason, error.message(), &error.fault());
        error
    }
}

/// Whether the store may have the image despite the error: the end of the pull was not observed.
fn is_doubtful(kind: RuntimeErrorKind) -> bool {
    matches!(kind, RuntimeErrorKind::Unavailable | RuntimeErrorKind::TimedOut | RuntimeErrorKind::Cancelled)
}

/// Adds failed secrets and credential providers to a pull's error: the registry may reject the pull only because their
/// credentials are missing.
fn with_causes(failure: Arc<RuntimeError>, missing: &[String]) -> Arc<RuntimeError> {
    if missing.is_empty() {
        return failure;
    }
    let hints: Vec<String> = failure.hint().map(str::to_owned).into_iter().chain(missing.iter().cloned()).collect();
    // Other requests may share the same pull with another hint.
    let fault = failure.fault();
    Arc::new(RuntimeError::new(failure.kind(), failure.chain()).with_hint(hints.join("; ")).with_fault(fault))
}
