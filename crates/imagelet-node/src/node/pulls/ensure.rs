//! `ensure` and `pull`: ensures the images of a pod, with its events, or one image.

use std::{collections::HashMap, sync::Arc};

use imagelet_core::{
    credentials::{Credential, CredentialKind, ObjectIdentity, PullSecret, PullSecretKind, Secret},
    error::ErrorClass,
    events::{EventSubject, PodIdentity, RecordedEvent},
    image::{ImageSpec, shown_name},
    manager::{
        Caller, EnsureError, EnsureRequest, Origin, PodImage, PodOutcome, PodRequest as CoreRequest, PodRole,
        PullPolicy,
    },
    ports::{self, PullWatcher},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::Pulls;
use crate::{
    api::{
        EventRow, PodEnsured, PodImageRequest, PodImageRow, PodRequest, PullRequest, PullSecretText, Pulled, Step,
        Steps, milliseconds_of, moment, watcher,
    },
    failure::Failure,
    node::Images,
    traces::RequestTrace,
};

const IMAGES_MAX: usize = 1000;
/// Limit of the events in a reply for each image of the request. One attempt to pull records about four events.
const EVENTS_PER_IMAGE_MAX: usize = 16;
const POD_INITIALIZING: &str = "PodInitializing";

impl PodRequest {
    pub(crate) async fn run_on(self, pulls: &Pulls, steps: Steps) -> Result<PodEnsured, Failure> {
        let mut request = core_request(&self)?;
        if !pulls.images.settings().pulls.node_policy.pods.sends_runtime_handler {
            // The kubelet's feature gate for runtime handlers is off, so the kubelet sends no handler.
            request.common.pull.image.runtime_handler = String::new();
        }
        let mut listening = Listening {
            events: pulls.images.events.follow(),
            pod: request.common.pull.pod.clone(),
            heard: Vec::new(),
            heard_max: (request.images.len() + 1) * EVENTS_PER_IMAGE_MAX,
        };
        let is_silent = pulls.images.local().is_none();
        let report = PodReport { asked: &self, request: &request, steps, is_silent };
        let finished = |image, outcome: &PodOutcome| {
            (report.steps)(Step::Settled { image, row: Box::new(report.row(image, outcome, &[])) });
        };
        let ensure = async |trace: RequestTrace| {
            let watcher = |image: usize| trace.watch(&request.images[image].image, report.watcher(image));
            pulls.manager.ensure_pod(&request, &watcher, &finished).await
        };
        let outcomes = listening.during(pulls.tracer.ensure_pod(&self.pod.name, ensure)).await;
        let rows = outcomes.iter().enumerate().map(|(image, outcome)| report.row(image, outcome, &outcomes));
        let mut images: Vec<PodImageRow> = rows.collect();
        fill_sizes(&pulls.images, &mut images).await;
        Ok(PodEnsured { events: listening.heard, kind: self.kind.clone(), pod: self.pod.clone(), images })
    }
}

fn core_request(asked: &PodRequest) -> Result<CoreRequest, Failure> {
    if asked.images.len() > IMAGES_MAX {
        let why = format!("pod has {} images; the limit is {IMAGES_MAX}", asked.images.len());
        return Err(Failure::invalid(why));
    }
    let image = ImageSpec {
        runtime_handler: asked.runtime_handler.clone(),
        annotations: asked.annotations.clone().into_iter().collect(),
        ..ImageSpec::default()
    };
    let pod = PodIdentity {
        namespace: asked.pod.namespace.as_str().into(),
        name: asked.pod.name.as_str().into(),
        uid: asked.pod.uid.as_str().into(),
    };
    let common = EnsureRequest {
        pull: ports::PullRequest { image, pod, ..ports::PullRequest::default() },
        service_account: Some(asked.service_account.clone()).filter(|name| !name.is_empty()),
        secrets: secrets(&asked.secrets),
        ..EnsureRequest::default()
    };
    let images = asked.images.iter().map(core_image).collect::<Result<_, Failure>>()?;
    Ok(CoreRequest { common, images, secrets_unread: asked.secrets_unread.clone() })
}

fn core_image(asked: &PodImageRequest) -> Result<PodImage, Failure> {
    let role = match asked.role.as_str() {
        "" | "container" => PodRole::Container,
        "init" | "sidecar" => PodRole::Init,
        "ephemeral" => PodRole::Ephemeral,
        "volume" => PodRole::Volume,
        other => {
            let why =
                format!("`{other}` is no role of an image; there are container, init, sidecar, ephemeral, volume");
            return Err(Failure::invalid(why));
        }
    };
    let policy = match asked.policy.as_str() {
        // An invalid name has no default policy. The manager rejects the name with an event for the pod.
        "" => PullPolicy::default_for(&asked.image).unwrap_or(PullPolicy::IfNotPresent),
        policy => policy.parse().map_err(Failure::invalid)?,
    };
    Ok(PodImage {
        role,
        name: asked.name.clone(),
        position: asked.position,
        image: asked.image.clone(),
        policy,
        mounts: asked.mounts.clone(),
    })
}

/// Converts pull secrets for the keyring. Secrets of other types contain no credentials and are omitted.
fn secrets(asked: &[PullSecretText]) -> Vec<PullSecret> {
    let secret = |secret: &PullSecretText| {
        let kind = match secret.r#type.as_str() {
            "" => PullSecretKind::DockerConfigJson,
            name => PullSecretKind::from_type(name)?,
        };
        let (uid, namespace, name) = (secret.uid.clone(), secret.namespace.clone(), secret.name.clone());
        let document = secret.docker_config.as_ref().map_or_else(|| Secret::new(""), |text| text.0.clone());
        Some(PullSecret { identity: ObjectIdentity { uid, namespace, name }, kind, document })
    };
    asked.iter().filter_map(secret).collect()
}

struct PodReport<'a> {
    asked: &'a PodRequest,
    request: &'a CoreRequest,
    steps: Steps,
    is_silent: bool,
}

impl PodReport<'_> {
    fn watcher(&self, image: usize) -> PullWatcher {
        let steps = Arc::clone(&self.steps);
        steps(Step::Asked { image });
        if self.is_silent {
            steps(Step::Image { image, of: Box::new(Step::ThroughRuntime) });
        }
        watcher(Arc::new(move |step| steps(Step::Image { image, of: Box::new(step) })))
    }

    fn row(&self, image: usize, outcome: &PodOutcome, others: &[PodOutcome]) -> PodImageRow {
        let wanted = &self.request.images[image];
        let row = PodImageRow {
            field: wanted.field(),
            role: self.asked.images[image].role.clone(),
            image: wanted.image.clone(),
            policy: wanted.policy.name().into(),
            ..PodImageRow::default()
        };
        match outcome {
            PodOutcome::Ensured(ensured) => {
                let origin = match ensured.origin {
                    Origin::AlreadyPresent => "present",
                    Origin::Stale { .. } => "stale",
                    Origin::Pulled { .. } => "pulled",
                };
                let (took_ms, size) = fetched(&ensured.origin);
                PodImageRow {
                    id: ensured.id.to_string(),
                    origin: origin.into(),
                    size,
                    took_ms,
                    message: ensured.message.clone(),
                    ..row
                }
            }
            PodOutcome::Failed(error) => PodImageRow {
                reason: error.reason().into_owned(),
                message: error.message(),
                failure: Some(failure_of(error)),
                ..row
            },
            PodOutcome::Blocked { by } => self.blocked(row, *by, others.get(*by)),
        }
    }

    /// The row of an image that waits for image `by`. Its reason is the failure of a volume, or else `PodInitializing`.
    fn blocked(&self, row: PodImageRow, by: usize, failed: Option<&PodOutcome>) -> PodImageRow {
        let field = self.request.images[by].field();
        let (reason, message) = match failed {
            Some(PodOutcome::Failed(error)) if self.request.images[by].role == PodRole::Volume => {
                (error.reason().into_owned(), error.message())
            }
            _ => (POD_INITIALIZING.into(), String::new()),
        };
        let failure = Failure::new(&reason, format!("`{}` was not requested: `{field}` failed before", row.image));
        PodImageRow { reason, message, failure: Some(failure), ..row }
    }
}

/// The failure of a pod's image. Its hint names the pull policy, because the pod's manifest sets the policy.
fn failure_of(error: &EnsureError) -> Failure {
    let mut failure = Failure::of_ensure(error);
    if error.class() == ErrorClass::NotPresent {
        failure.hint = Some(
            "pull it first, or give the container another `imagePullPolicy`; a private image also needs the pod's own \
             `imagePullSecrets`"
                .into(),
        );
    }
    failure
}

async fn fill_sizes(images: &Images, rows: &mut [PodImageRow]) {
    // Containers of one pod often share an image, so each image is looked up once.
    let mut known: HashMap<String, Option<u64>> = HashMap::new();
    for row in rows.iter_mut().filter(|row| row.size.is_none() && !row.id.is_empty()) {
        if !known.contains_key(&row.id) {
            let found = images.runtime.images.status(&ImageSpec::new(&row.id)).await;
            known.insert(row.id.clone(), found.ok().flatten().map(|image| image.size.0));
        }
        row.size = known[&row.id];
    }
}

struct Listening {
    events: Receiver<RecordedEvent>,
    pod: PodIdentity,
    heard: Vec<EventRow>,
    heard_max: usize,
}

impl Listening {
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Ok(event) => self.take(event),
                    Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "a call reports not all of its events"),
                    Err(RecvError::Closed) => break work.as_mut().await,
                },
                done = work.as_mut() => break done,
            }
        };
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        done
    }

    fn take(&mut self, recorded: RecordedEvent) {
        let EventSubject::Pod { pod, field_path } = recorded.event.subject else { return };
        if self.heard.len() < self.heard_max && pod == self.pod {
            self.heard.push(EventRow {
                at: moment(recorded.at),
                r#type: recorded.event.kind.name().into(),
                reason: recorded.event.reason.into(),
                message: recorded.event.message,
                field: field_path.to_string(),
                class: recorded.event.cause.map(|(class, _)| class.to_string()).unwrap_or_default(),
                hop: recorded.event.cause.map(|(_, stage)| stage.to_string()).unwrap_or_default(),
            });
        }
    }
}

impl PullRequest {
    pub(crate) async fn run_on(self, pulls: &Pulls, steps: Steps) -> Result<Pulled, Failure> {
        let request = ensure_request(&self)?;
        if pulls.images.local().is_none() {
            steps(Step::ThroughRuntime);
        }
        let ensure = |watcher| pulls.manager.ensure(&request, watcher);
        let ensured = pulls.tracer.ensure(request.image(), watcher(steps), ensure).await;
        let ensured = ensured.map_err(|error| Failure::of_ensure(&error))?;
        let (took_ms, size) = fetched(&ensured.origin);
        Ok(Pulled {
            image: self.image,
            id: ensured.id.to_string(),
            present: !matches!(ensured.origin, Origin::Pulled { .. }),
            size,
            took_ms,
            warning: matches!(ensured.origin, Origin::Stale { .. }).then_some(ensured.message),
            removed: Vec::new(),
        })
    }
}

/// The duration of a pull in milliseconds, and the size of its image if known. A present image has neither.
fn fetched(origin: &Origin) -> (u64, Option<u64>) {
    match origin {
        Origin::Pulled { took, size } => (milliseconds_of(*took), Some(size.0).filter(|size| *size > 0)),
        Origin::AlreadyPresent | Origin::Stale { .. } => (0, None),
    }
}

fn ensure_request(asked: &PullRequest) -> Result<EnsureRequest, Failure> {
    let policy = match asked.policy.as_str() {
        "" => PullPolicy::default_for(&asked.image)
            .map_err(|error| Failure::invalid(format!("`{}` names no image: {error}", shown_name(&asked.image))))?,
        policy => policy.parse().map_err(Failure::invalid)?,
    };
    let platform = asked.platform.as_deref().map(str::parse).transpose().map_err(Failure::invalid)?;
    let credential = asked.login.as_ref().map(|login| Credential {
        kind: CredentialKind::Basic {
            username: login.user.clone(),
            password: login.password.as_ref().map_or_else(|| Secret::new(""), |password| password.0.clone()),
        },
        server_address: String::new(),
    });
    let pod = asked.pod.clone().unwrap_or_default();
    let is_for_a_pod = !(pod.name.is_empty() && pod.uid.is_empty());
    let pod = PodIdentity { namespace: pod.namespace.into(), name: pod.name.into(), uid: pod.uid.into() };
    Ok(EnsureRequest {
        pull: ports::PullRequest {
            image: ImageSpec::new(asked.image.clone()),
            credential,
            pod,
            platform,
            ..ports::PullRequest::default()
        },
        policy,
        caller: if is_for_a_pod { Caller::Pod } else { Caller::Command },
        container: asked.field.as_str().into(),
        secrets: secrets(&asked.secrets),
        ..EnsureRequest::default()
    })
}
