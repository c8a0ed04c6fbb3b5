//! One request's walk from the name to the image (`docs/spec/pull.md §2`).

use std::{
    borrow::Borrow,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{task::spawn_blocking, time::Instant};

use super::{
    BackoffKey, ImageManager,
    access::asker_of,
    begun::{Announced, Begun},
    decide::{Decision, Presence, decide, wants_look},
    error::EnsureError,
    flights::Keepsake,
    meters::Tally,
    puller::{LeftAlone, Pulled, Work},
    request::{Caller, EnsureRequest, Ensured, Origin, PodIdentity, PullPolicy},
    secrets::OfSecrets,
    startup::ImageEnd,
    text::{quoted, whole_milliseconds},
};
use crate::{
    credentials::{KeyringError, TrackedCredential},
    decisions::{Act, ActCode},
    events::{Event, EventCause, EventKind},
    image::{ByteSize, Image, ImageKey, ImageSpec, Reference, ReferenceError, default_tag},
    inventory::HandedOut,
    records::{Asker, Intent, PullRecords},
    runtime::{ErrorClass, Fault, Hop, Progress, RuntimeError, RuntimeErrorKind},
};

/// One request on its way.
pub(super) struct Ensuring<'a> {
    pub(super) manager: &'a ImageManager,
    pub(super) request: &'a EnsureRequest,
    pub(super) tally: Tally<'a>,
    /// Looked up at most once, and only where they matter.
    pub(super) credentials: OnceLock<Result<Found, KeyringError>>,
}

/// What there is to show a registry.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// In the order in which to try them.
    credentials: Vec<TrackedCredential>,
    /// Why there are no more: secrets that cannot be read, providers that did not answer.
    missing: Vec<String>,
}

impl Ensuring<'_> {
    /// Walks from the name to the image, and counts the walk.
    pub(super) async fn run(mut self, progress: Progress) -> Result<Ensured, EnsureError> {
        let spec = self.name().map_err(|source| {
            let error = EnsureError::InvalidName { image: self.request.image.clone(), source };
            self.told(EventKind::Warning, "InspectFailed", error)
        })?;
        let (presence, key) = self.look(&spec).await?;
        match (decide(self.request.policy, presence), key) {
            (Decision::Use, Some(key)) => Ok(self.hand_out_present(&key, spec)),
            (Decision::Refuse, _) => {
                let error = EnsureError::NeverPull { image: self.request.image.clone() };
                Err(self.told(EventKind::Warning, "ErrImageNeverPull", error))
            }
            (Decision::Use | Decision::Pull, _) => {
                self.tally.required = Some(true);
                self.pull(spec, progress).await
            }
        }
    }

    fn name(&self) -> Result<ImageSpec, ReferenceError> {
        Ok(ImageSpec {
            image: default_tag(&self.request.image)?,
            runtime_handler: self.request.runtime_handler.clone(),
            annotations: self.request.annotations.clone(),
        })
    }

    /// Whether the image is here, and whether the asker may use it.
    async fn look(&mut self, spec: &ImageSpec) -> Result<(Presence, Option<ImageKey>), EnsureError> {
        match self.request.policy {
            policy if wants_look(policy) => {}
            PullPolicy::Other(_) => {
                self.tally.present = Some(false);
                return Ok((Presence::Absent, None));
            }
            _ => return Ok((Presence::Unchecked, None)),
        }
        let found = self.manager.runtime.status(spec).await.map_err(|source| {
            let error = EnsureError::Inspect {
                image: self.request.image.clone(),
                source: Arc::new(source),
                compatibility: self.manager.compatibility,
            };
            self.told(EventKind::Warning, "InspectFailed", error)
        })?;
        self.tally.present = Some(found.is_some());
        let Some(found) = found else { return Ok((Presence::Absent, None)) };
        let usable = self.may_use(&found).await?;
        self.tally.required = Some(!usable);
        Ok((if usable { Presence::Usable } else { Presence::Guarded }, Some(found.key())))
    }

    pub(super) async fn may_use(&self, found: &Image) -> Result<bool, EnsureError> {
        let records = &self.manager.records;
        let evidence = if let Some(evidence) = records.recall(&self.request.image, found) {
            evidence
        } else {
            let (records, image, found) = (Arc::clone(records), self.request.image.clone(), found.clone());
            on_disk(&self.manager.records, move || records.look_up(&image, &found)).await
        };
        let now = SystemTime::now();
        // Records are judged without waiting, by the pod's secrets. Only where those do not let it in, the node's and the
        // providers' credentials are looked up, and it is judged again: one may be its service account's.
        let mut judged = records.judge(&self.request.image, &evidence, now, || self.asker_by_secrets());
        if matches!(&judged, Ok(Some(verdict)) if !verdict.allowed) && evidence.names_service_accounts() {
            let found = self.look_up_credentials().await;
            let asker = || match found {
                Ok(found) => Ok(asker_of(&found.credentials)),
                Err(error) => Err(self.credentials_error(error)),
            };
            judged = records.judge(&self.request.image, &evidence, now, asker);
        }
        let verdict = match judged {
            Ok(verdict) => verdict,
            Err(error) => {
                self.manager.meters.checked("error");
                return Err(error);
            }
        };
        let is_client = self.request.caller.is_client();
        let Some(verdict) = verdict else { return Ok(!is_client) };
        if let Some(outcome) = verdict.outcome {
            self.manager.meters.checked(outcome);
        }
        // A client asks so that the registry says who may use the image: only what the registry has said already will do.
        let allowed = verdict.allowed && (!is_client || verdict.is_by_record());
        if let Some(access) = verdict.learned {
            let (records, image, id) = (Arc::clone(records), self.request.image.clone(), found.id.clone());
            let learn = move || records.learn(&image, &id, &access, SystemTime::now());
            if let Err(error) = on_disk(&self.manager.records, learn).await {
                tracing::warn!(image = self.request.image, %error, "could not add a credential to a pull record");
            }
        }
        Ok(allowed)
    }

    fn hand_out_present(&self, key: &ImageKey, spec: ImageSpec) -> Ensured {
        let suffix = if self.manager.records.is_on() { " and can be accessed by the pod" } else { "" };
        let image = quoted(&self.request.image);
        let message = ["Container image ", &image, " already present on machine", suffix].concat();
        self.tell(EventKind::Normal, "Pulled", message.clone());
        self.settled(ImageEnd::Present);
        self.touch(key, None);
        let (id, handler) = (key.id().clone(), key.handler().to_owned());
        Ensured { id, handler, reference: spec.image, origin: Origin::AlreadyPresent, message }
    }

    async fn pull(&self, spec: ImageSpec, progress: Progress) -> Result<Ensured, EnsureError> {
        let image = &self.request.image;
        let Found { credentials, missing } = self.credentials().await?;
        let is_kubelet = self.manager.compatibility.is_kubelet();
        let hashes = if is_kubelet { &[][..] } else { credentials };
        let hashes = hashes.iter().map(|tracked| tracked.hash.clone()).collect();
        let key = BackoffKey { pod_uid: self.request.pod.uid.clone(), image: image.clone(), credentials: hashes };
        let work = Work {
            image: spec.clone(),
            credentials: credentials.clone(),
            sandbox: self.request.sandbox(),
            platform: self.request.platform.clone(),
            tenant: Arc::clone(&self.request.pod.namespace),
            priority: self.request.priority,
            caller: self.request.caller,
        };
        // An image that is left alone costs no disk; the kubelet writes its intent all the same, and takes it back.
        let intended = if self.manager.compatibility.is_kubelet() { Some(self.intend().await?) } else { None };
        if let Err(held) = self.is_free(&key, &work) {
            self.tell(EventKind::Normal, "BackOff", format!("Back-off pulling image {}", quoted(image)));
            if let Some(intent) = intended {
                self.withdraw(intent).await;
            }
            return Err(held);
        }
        let intent = match intended {
            Some(intent) => intent,
            None => self.intend().await?,
        };
        if self.request.caller == Caller::Pod {
            self.manager.backoff().begin(&key);
        }
        if let Some(recorder) = &self.manager.recorder {
            recorder.pull_started(&self.request.pod, image);
        }
        self.tell(EventKind::Normal, "Pulling", format!("Pulling image {}", quoted(image)));
        let began = Instant::now();
        let is_begun = Arc::new(AtomicBool::new(false));
        let begun = Begun {
            intent,
            records: Arc::clone(&self.manager.records),
            credentials: credentials.clone(),
            announced: Announced::new(self.manager, self.request, began, Arc::clone(&is_begun)),
        };
        let outcome = match self.manager.puller.pull(&work, Keepsake { kept: begun, conclude: Begun::conclude }) {
            Ok(asking) => {
                is_begun.store(true, Ordering::Relaxed);
                match asking.outcome(&progress).await {
                    (Ok(pulled), begun) => Ok((pulled, begun)),
                    (Err(failure), begun) => Err((failure, Some(begun.failed()))),
                }
            }
            Err(refused) => Err((refused, None)),
        };
        match outcome {
            Ok((pulled, begun)) => {
                begun.fulfil(&pulled).await;
                self.succeeded(&key);
                self.remember_verified(&spec, &pulled.id).await;
                Ok(self.hand_out_pulled(pulled, spec, began.elapsed()))
            }
            Err((failure, intent)) => {
                let withdrawn = self.manager.compatibility.is_kubelet() || !is_doubtful(failure.kind());
                if let Some(ensured) = self.use_stale(&spec, &failure).await {
                    if let Some(intent) = intent.filter(|_| withdrawn) {
                        self.withdraw(intent).await;
                    }
                    return Ok(ensured);
                }
                let message = format!("Failed to pull image {}: {}", quoted(image), failure.chain());
                self.tell_failure(EventKind::Warning, "Failed", message, &failure.fault());
                self.settled(ImageEnd::Failed);
                self.manager.decisions.act(self.request.act(ActCode::PullFailed, began.elapsed(), failure.chain()));
                if let Some(intent) = intent.filter(|_| withdrawn) {
                    self.withdraw(intent).await;
                }
                let error = EnsureError::of_pull(image, with_causes(failure, missing), self.manager.compatibility);
                self.failed(key, &error);
                Err(error)
            }
        }
    }

    /// Ends the back-off of what succeeded: for a pod its own, for a command that of all pods that wait for the same.
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

    /// Starts or lengthens the back-off of what failed: a pod's own; of a command's, that of the pods that wait already.
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

    /// Whether the registry may be asked now: nothing is left alone for this pod, then none for all.
    fn is_free(&self, key: &BackoffKey, work: &Work) -> Result<(), EnsureError> {
        let image = self.request.image.clone();
        if self.request.caller == Caller::Pod
            && let Some(held) = self.manager.backoff().held(key, Instant::now())
        {
            return Err(EnsureError::HeldBack { image, failure: held.failure.clone() });
        }
        self.manager.puller.admit(work).map_err(|LeftAlone { message, kind }| {
            if !self.request.caller.is_client() {
                return EnsureError::HeldBack { image, failure: message };
            }
            // It knows what to make of a registry that is away, and nothing of ours.
            let fault = Fault::new(ErrorClass::HeldBack, Hop::Queue);
            let refused = RuntimeError::new(kind, message).with_fault(fault);
            EnsureError::of_pull(&image, Arc::new(refused), self.manager.compatibility)
        })
    }

    /// Puts the pull on record before its first byte.
    async fn intend(&self) -> Result<Intent, EnsureError> {
        let (records, image) = (Arc::clone(&self.manager.records), self.request.image.clone());
        let intended = on_disk(&self.manager.records, move || records.intend(&image)).await;
        intended.map_err(|source| {
            let (image, compatibility) = (self.request.image.clone(), self.manager.compatibility);
            let error = EnsureError::Intent { image, source: Arc::new(source), compatibility };
            if compatibility.is_kubelet() { error } else { self.told(EventKind::Warning, "Failed", error) }
        })
    }

    /// Takes back what was put on record of a pull that failed.
    async fn withdraw(&self, intent: Intent) {
        if let Err(error) = on_disk(&self.manager.records, move || intent.withdraw()).await {
            tracing::warn!(image = self.request.image, %error, "a pull that failed stays on record as begun");
        }
    }

    fn hand_out_pulled(&self, pulled: Pulled, spec: ImageSpec, waited: Duration) -> Ensured {
        self.settled(ImageEnd::Pulled);
        // Of a pull that was under way before a caller joined it, only what that caller saw of it is its own.
        let took = pulled.took.min(waited);
        let message = format!(
            "Successfully pulled image {} in {} ({} including waiting). Image size: {} bytes.",
            quoted(&self.request.image),
            whole_milliseconds(took),
            whole_milliseconds(waited),
            pulled.size.0
        );
        self.tell(EventKind::Normal, "Pulled", message);
        self.manager.meters.pulled(pulled.size, waited);
        self.manager.backoff().forget_expired(Instant::now());
        self.touch(&pulled.key(), Some((pulled.fetched, pulled.took)));
        self.pulled_on_record(&pulled);
        let origin = Origin::Pulled { took, size: pulled.size };
        let Pulled { id, handler, .. } = pulled;
        Ensured { id, handler, reference: spec.image, origin, message: String::new() }
    }

    /// Puts on record for whom it was pulled, as far as that is known.
    fn pulled_on_record(&self, pulled: &Pulled) {
        self.manager.decisions.act(Act {
            keys: vec![pulled.key().to_string()],
            bytes: Some(pulled.fetched.0).filter(|size| *size > 0),
            ..self.request.act(
                ActCode::Pulled,
                pulled.took,
                pulled.way.as_ref().map(ToString::to_string).unwrap_or_default(),
            )
        });
    }

    /// What to show the registry, in order.
    async fn credentials(&self) -> Result<&Found, EnsureError> {
        self.look_up_credentials().await.as_ref().map_err(|error| self.credentials_error(error))
    }

    /// Asks pull secrets, then the node's own helpers and documents, then the providers; the first time only.
    async fn look_up_credentials(&self) -> &Result<Found, KeyringError> {
        if let Some(found) = self.credentials.get() {
            return found;
        }
        let found = self.ask_for_credentials().await;
        self.credentials.get_or_init(|| found)
    }

    async fn ask_for_credentials(&self) -> Result<Found, KeyringError> {
        if !self.request.credentials.is_empty() {
            let credentials = self.request.credentials.iter().cloned().map(TrackedCredential::of_request).collect();
            return Ok(Found { credentials, missing: Vec::new() });
        }
        if matches!(self.request.caller, Caller::Client { own_credentials: false, .. }) {
            return Ok(Found::default());
        }
        let Ok(reference) = self.request.image.parse::<Reference>() else { return Ok(Found::default()) };
        let of_secrets = self.of_secrets()?;
        let (mut credentials, mut missing) = (of_secrets.credentials.clone(), of_secrets.missing.clone());
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
        Ok(Found { credentials, missing })
    }

    fn of_secrets(&self) -> Result<Arc<OfSecrets>, KeyringError> {
        self.manager.secrets.read(&self.request.image, &self.request.secrets, self.manager.compatibility)
    }

    /// Who asks, as far as its own secrets tell.
    fn asker_by_secrets(&self) -> Result<Known, EnsureError> {
        if !self.request.credentials.is_empty() {
            let shown: Vec<_> = self.request.credentials.iter().cloned().map(TrackedCredential::of_request).collect();
            return Ok(Known::Shown(asker_of(&shown)));
        }
        self.of_secrets().map(Known::OfSecrets).map_err(|error| self.credentials_error(&error))
    }

    fn credentials_error(&self, error: &KeyringError) -> EnsureError {
        let is_raw = self.manager.compatibility.is_kubelet();
        EnsureError::Credentials {
            image: self.request.image.clone(),
            source: error.clone(),
            raw: is_raw.then(|| error.source.to_string()),
        }
    }

    pub(super) fn settled(&self, end: ImageEnd) {
        if let Some(recorder) = &self.manager.recorder {
            recorder.image_settled(&self.request.pod, end);
        }
    }

    /// Tells that the image was handed out; `pulled`: what it cost to fetch.
    pub(super) fn touch(&self, key: &ImageKey, pulled: Option<(ByteSize, Duration)>) {
        let Some(touched) = &self.manager.touched else { return };
        let key = key.clone();
        let PodIdentity { namespace, name, .. } = &self.request.pod;
        let user = (!name.is_empty()).then(|| format!("{namespace}/{name}"));
        touched(&HandedOut { key, user, pulled });
    }

    /// Tells an error's own message, and hands the error back.
    fn told(&self, kind: EventKind, reason: &'static str, error: EnsureError) -> EnsureError {
        self.tell_failure(kind, reason, error.message(), &error.fault());
        error
    }

    fn tell_failure(&self, kind: EventKind, reason: &'static str, message: String, fault: &Fault) {
        let cause = Some(EventCause { class: fault.class.word(), hop: fault.hop.word() });
        self.manager.events.record(Event { kind, reason, message, subject: self.request.subject(), cause });
    }

    pub(super) fn tell(&self, kind: EventKind, reason: &'static str, message: String) {
        self.manager.events.record(Event { kind, reason, message, subject: self.request.subject(), cause: None });
    }
}

/// Who asks, borrowed from where it is known.
enum Known {
    Shown(Asker),
    OfSecrets(Arc<OfSecrets>),
}

impl Borrow<Asker> for Known {
    fn borrow(&self) -> &Asker {
        match self {
            Self::Shown(asker) => asker,
            Self::OfSecrets(of_secrets) => &of_secrets.asker,
        }
    }
}

/// Does what may wait for a disk off the async threads. Given up by its caller, it is still done to its end.
pub(super) async fn on_disk<T: Send + 'static>(records: &PullRecords, work: impl FnOnce() -> T + Send + 'static) -> T {
    if !records.is_durable() {
        return work();
    }
    spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Whether the store may have the image although its answer is a failure: it was not heard to the end.
fn is_doubtful(kind: RuntimeErrorKind) -> bool {
    matches!(kind, RuntimeErrorKind::Unavailable | RuntimeErrorKind::TimedOut | RuntimeErrorKind::Cancelled)
}

/// Tells with a pull's failure which secrets and credential providers failed before it: a registry that says no may only
/// be missing what they should have given.
fn with_causes(failure: Arc<RuntimeError>, missing: &[String]) -> Arc<RuntimeError> {
    if missing.is_empty() {
        return failure;
    }
    let hints: Vec<String> = failure.hint().map(str::to_owned).into_iter().chain(missing.iter().cloned()).collect();
    // Others may wait for the same pull, and theirs is another hint.
    let fault = failure.fault();
    Arc::new(RuntimeError::new(failure.kind(), failure.chain()).with_hint(hints.join("; ")).with_fault(fault))
}
