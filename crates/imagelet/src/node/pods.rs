//! The images of one pod, asked for in one call: what is sent, what is answered, what happened on the way.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use imagelet_core::{
    credentials::{ObjectIdentity, PullSecret, PullSecretKind, Secret},
    events::{EventSubject, RecordedEvent},
    image::ImageSpec,
    manager::{
        EnsureError, EnsureRequest, Origin, PodIdentity, PodImage, PodOutcome, PodRequest as CoreRequest, PodRole,
        PodWatch, PullPolicy,
    },
    runtime::Progress,
};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{AnswerTime, Command, LocalNode, PodName, PullSecretText, Step, Steps, local::moment, step};
use crate::failure::Failure;

/// Most images of one pod; whoever names more means something else.
const IMAGES_MAX: usize = 1000;
/// Events of one call that are kept for each of its images; an attempt makes about four.
const EVENTS_PER_IMAGE_MAX: usize = 16;
/// What the kubelet says of a container that an init container keeps from starting.
const POD_INITIALIZING: &str = "PodInitializing";

/// Asks for every image of a pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodRequest {
    /// `Pod`, or the kind of what makes such pods: `Deployment`, `Job`.
    pub(crate) kind: String,
    /// Which pod.
    pub(crate) pod: PodName,
    /// Its annotations; runtimes take hints from them.
    pub(crate) annotations: BTreeMap<String, String>,
    /// The name of its service account; empty where it has none.
    pub(crate) service_account: String,
    /// The handler of its runtime class; empty is the default one.
    pub(crate) runtime_handler: String,
    /// Its pull secrets that could be read, in the pod's order.
    pub(crate) secrets: Vec<PullSecretText>,
    /// Names of those that could not.
    pub(crate) secrets_unread: Vec<String>,
    /// Its images; they are answered in this order.
    pub(crate) images: Vec<PodImageRequest>,
}

/// An image that a pod names.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodImageRequest {
    /// What it is for: `container`, `init`, `sidecar`, `ephemeral` or `volume`; empty is `container`.
    pub(crate) role: String,
    /// The container's or the volume's name.
    pub(crate) name: String,
    /// Where it stands in its list, from 0; tells those without a name apart.
    pub(crate) position: usize,
    /// As the user spelled it.
    pub(crate) image: String,
    /// `Always`, `IfNotPresent` or `Never`; empty is the kubelet's default for the tag.
    pub(crate) policy: String,
    /// Names of the volumes that the container mounts.
    pub(crate) mounts: Vec<String>,
}

/// What became of a pod's images.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodEnsured {
    /// As it was asked.
    pub(crate) kind: String,
    /// Which pod.
    pub(crate) pod: PodName,
    /// Image by image, in the order of the request.
    pub(crate) images: Vec<PodImageRow>,
    /// What happened to this pod while its images were ensured, oldest first.
    pub(crate) events: Vec<EventRow>,
}

/// What became of one image of a pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodImageRow {
    /// The field that names it: `spec.containers{NAME}`.
    pub(crate) field: String,
    /// As in the request.
    pub(crate) role: String,
    /// As the user spelled it.
    pub(crate) image: String,
    /// The policy it was asked for under; the default for the tag where none was given.
    pub(crate) policy: String,
    /// Its id; empty where it is not to be used.
    pub(crate) id: String,
    /// `present` or `pulled`; empty where it is not to be used.
    pub(crate) origin: String,
    /// What it occupies, where known.
    pub(crate) size: Option<u64>,
    /// How long the pull took, in milliseconds, without waiting for its turn.
    pub(crate) took_ms: u64,
    /// The waiting reason that pod status shows; empty where all is well.
    pub(crate) reason: String,
    /// What pod status says of it; empty after a pull.
    pub(crate) message: String,
    /// What failed, why, and how to mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<Failure>,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EventRow {
    /// When.
    pub(crate) at: Option<String>,
    /// `Normal` or `Warning`.
    pub(crate) r#type: String,
    /// The word for it: `Pulling`, `Pulled`, `Failed`.
    pub(crate) reason: String,
    /// What happened.
    pub(crate) message: String,
    /// The field of the pod it happened to; empty for the pod itself.
    pub(crate) field: String,
    /// What went wrong, in a stable word of `docs/errors.md`; empty where nothing did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) class: String,
    /// Where on the way it went wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) hop: String,
}

#[async_trait]
impl Command for PodRequest {
    const NAME: &'static str = "ensure";
    const TIME: AnswerTime = AnswerTime::Unlimited;
    type Answer = PodEnsured;

    async fn run(self, node: &LocalNode, steps: Steps) -> Result<PodEnsured, Failure> {
        let mut request = core_request(&self)?;
        if node.settings().compatibility.is_kubelet() {
            // The kubelet sends one behind a feature gate alone, which is off.
            request.common.runtime_handler = String::new();
        }
        let mut listening = Listening::new(node.parts().events.follow(), &request);
        let is_silent = node.parts().engine.is_none();
        let telling = Telling { asked: &self, request: &request, steps, is_silent };
        let outcomes = listening.during(node.parts().manager.ensure_pod(&request, &telling)).await;
        let rows = outcomes.iter().enumerate().map(|(image, outcome)| telling.row(image, outcome, &outcomes));
        let mut images: Vec<PodImageRow> = rows.collect();
        fill_sizes(node, &mut images).await;
        Ok(PodEnsured { events: listening.heard, kind: self.kind.clone(), pod: self.pod.clone(), images })
    }
}

fn core_request(asked: &PodRequest) -> Result<CoreRequest, Failure> {
    if asked.images.len() > IMAGES_MAX {
        let why = format!("a pod with {} images is none; {IMAGES_MAX} are the most", asked.images.len());
        return Err(Failure::new("InvalidArgument", why));
    }
    let common = EnsureRequest {
        pod: PodIdentity {
            namespace: asked.pod.namespace.as_str().into(),
            name: asked.pod.name.as_str().into(),
            uid: asked.pod.uid.as_str().into(),
        },
        service_account: Some(asked.service_account.clone()).filter(|name| !name.is_empty()),
        annotations: asked.annotations.clone().into_iter().collect(),
        runtime_handler: asked.runtime_handler.clone(),
        secrets: secrets(&asked.secrets),
        ..EnsureRequest::new("", PullPolicy::IfNotPresent)
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
            return Err(Failure::new("InvalidArgument", why));
        }
    };
    let policy = match asked.policy.as_str() {
        // A name that does not read has no default; the manager refuses it, and says so to the pod.
        "" => PullPolicy::default_for(&asked.image).unwrap_or(PullPolicy::IfNotPresent),
        policy => policy.parse().map_err(|error: imagelet_core::manager::PullPolicyError| {
            Failure::new("InvalidArgument", error.to_string())
        })?,
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

/// Pull secrets as the keyring reads them; those of another type hold nothing for it.
pub(super) fn secrets(asked: &[PullSecretText]) -> Vec<PullSecret> {
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

/// Tells the caller how each image comes along.
struct Telling<'a> {
    asked: &'a PodRequest,
    request: &'a CoreRequest,
    steps: Steps,
    /// A runtime pulls.
    is_silent: bool,
}

impl PodWatch for Telling<'_> {
    fn progress(&self, image: usize) -> Progress {
        let steps = Arc::clone(&self.steps);
        steps(Step::Asked { image });
        if self.is_silent {
            steps(Step::Image { image, of: Box::new(Step::ThroughRuntime) });
        }
        Arc::new(move |event| {
            if let Some(step) = step(event) {
                steps(Step::Image { image, of: Box::new(step) });
            }
        })
    }

    fn settled(&self, image: usize, outcome: &PodOutcome) {
        (self.steps)(Step::Settled { image, row: Box::new(self.row(image, outcome, &[])) });
    }
}

impl Telling<'_> {
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
                let (origin, took, size) = match ensured.origin {
                    Origin::AlreadyPresent => ("present", Duration::ZERO, None),
                    Origin::Stale { .. } => ("stale", Duration::ZERO, None),
                    Origin::Pulled { took, size } => ("pulled", took, Some(size.0).filter(|size| *size > 0)),
                };
                PodImageRow {
                    id: ensured.id.to_string(),
                    origin: origin.into(),
                    size,
                    took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
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

    /// As the kubelet does, it shows the volume's failure on the container; who waits for an init container is told so.
    fn blocked(&self, row: PodImageRow, by: usize, failed: Option<&PodOutcome>) -> PodImageRow {
        let field = self.request.images[by].field();
        let (reason, message) = match failed {
            Some(PodOutcome::Failed(error)) if self.request.images[by].role == PodRole::Volume => {
                (error.reason().into_owned(), error.message())
            }
            _ => (POD_INITIALIZING.into(), String::new()),
        };
        let failure = Failure::new(&reason, format!("`{}` was not asked for: `{field}` failed before", row.image));
        PodImageRow { reason, message, failure: Some(failure), ..row }
    }
}

/// A pod's policy stands in its manifest, not on a command line.
fn failure_of(error: &EnsureError) -> Failure {
    let mut failure = Failure::of_ensure(error);
    if matches!(error, EnsureError::NeverPull { .. }) {
        failure.hint = Some(
            "pull it first, or give the container another `imagePullPolicy`; a private image also needs the pod's own \
             `imagePullSecrets`"
                .into(),
        );
    }
    failure
}

/// The sizes of what was there before, which nobody asked for on the way.
async fn fill_sizes(node: &LocalNode, rows: &mut [PodImageRow]) {
    let mut known: HashMap<String, Option<u64>> = HashMap::new();
    for row in rows.iter_mut().filter(|row| row.size.is_none() && !row.id.is_empty()) {
        if !known.contains_key(&row.id) {
            let found = node.parts().runtime.images().status(&ImageSpec::new(&row.id)).await;
            known.insert(row.id.clone(), found.ok().flatten().map(|image| image.size.0));
        }
        row.size = known[&row.id];
    }
}

/// Hears the events of one pod.
struct Listening {
    events: Receiver<RecordedEvent>,
    pod: PodIdentity,
    heard: Vec<EventRow>,
    heard_max: usize,
}

impl Listening {
    fn new(events: Receiver<RecordedEvent>, request: &CoreRequest) -> Self {
        let heard_max = (request.images.len() + 1) * EVENTS_PER_IMAGE_MAX;
        Self { events, pod: request.common.pod.clone(), heard: Vec::new(), heard_max }
    }

    /// Listens while something is done, and to what was said last.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Ok(event) => self.take(event),
                    Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "not all events of a call are told with it"),
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
        let EventSubject::Pod { namespace, name, uid, field_path } = recorded.event.subject else { return };
        if self.heard.len() < self.heard_max && (PodIdentity { namespace, name, uid }) == self.pod {
            self.heard.push(EventRow {
                at: moment(recorded.at),
                r#type: recorded.event.kind.name().into(),
                reason: recorded.event.reason.into(),
                message: recorded.event.message,
                field: field_path.to_string(),
                class: recorded.event.cause.map(|cause| cause.class.into()).unwrap_or_default(),
                hop: recorded.event.cause.map(|cause| cause.hop.into()).unwrap_or_default(),
            });
        }
    }
}
