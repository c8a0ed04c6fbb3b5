//! Progress of a command, as the daemon reports it while the command runs.

use std::sync::Arc;

use imagelet_core::{
    image::ByteSize,
    printable::printable,
    runtime::{LayerState, Progress, PullEvent, RemovedImage},
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    events::{PullRetry, RemovedForPull},
    fields::milliseconds_of,
    pods::PodImageRow,
};

/// Receives the progress of a command. Must not block.
pub type Steps = Arc<dyn Fn(Step) + Send + Sync>;

pub fn no_steps() -> Steps {
    Arc::new(|_| {})
}

/// The sink of a pull whose events are steps of a command.
pub fn progress(steps: Steps) -> Progress {
    Arc::new(move |event| {
        if let Some(step) = Step::from_event(event) {
            steps(step);
        }
    })
}

/// Reports only [`Step::Notice`].
pub fn silences(note: impl Fn(&str) + Send + Sync + 'static) -> Steps {
    Arc::new(move |step| {
        if let Step::Notice { note: text } = step {
            note(&text);
        }
    })
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "camelCase")]
pub enum Step {
    /// A runtime pulls and reports no progress.
    ThroughRuntime,
    /// The manifest and layers are known.
    #[serde(rename_all = "camelCase")]
    Resolved {
        manifest: String,
        /// In the image's order.
        layers: Vec<LayerSize>,
    },
    /// Bytes received of a layer so far.
    Fetching { digest: String, received: u64 },
    /// The layer was in the store before.
    Present { digest: String },
    /// The layer is fetched and unpacked.
    Done { digest: String },
    /// All layers are here; the store makes them durable and records the name.
    Committing,
    /// An image was removed, because the disk had no space for the pull.
    Removed(RemovedForPull),
    /// The next request to a host is sent later.
    Retry(PullRetry),
    /// Something that the caller should know.
    Warning { text: String },
    /// A host has not begun its answer for a while; `over`: it has, or is not waited for any more.
    Waiting { host: String, over: bool },
    /// Bytes read so far, of about `total`.
    Checking { read: u64, total: u64 },
    /// Why nothing happens for a while: the daemon has sent nothing, or the command waits. Created here, never sent.
    Notice { note: String },
    /// The ensure of an image of a pod starts; `image` is its index in the request.
    Asked { image: usize },
    /// A step of an image of a pod.
    Image { image: usize, of: Box<Step> },
    /// The result of an image of a pod.
    Settled { image: usize, row: Box<PodImageRow> },
}

impl Step {
    /// `None` for an event without a step.
    pub(crate) fn from_event(event: PullEvent) -> Option<Self> {
        Some(match event {
            PullEvent::Resolved { manifest, layers } => Self::Resolved {
                manifest: manifest.to_string(),
                layers: layers
                    .into_iter()
                    .map(|(digest, size)| LayerSize { digest: digest.to_string(), size: size.0 })
                    .collect(),
            },
            PullEvent::Layer { digest, state } => {
                let digest = digest.to_string();
                match state {
                    LayerState::Present => Self::Present { digest },
                    LayerState::Fetching { received: ByteSize(received) } => Self::Fetching { digest, received },
                    LayerState::Done => Self::Done { digest },
                }
            }
            PullEvent::Committing => Self::Committing,
            PullEvent::Removed(image) => Self::Removed(image.into()),
            PullEvent::Retry { host, at, is_requested } => Self::Retry(PullRetry::new(host, at, is_requested)?),
            PullEvent::Warning { text } => Self::Warning { text },
            PullEvent::Head { host, is_awaited } => Self::Waiting { host, over: !is_awaited },
            PullEvent::Route(_) | PullEvent::Hosts(_) | PullEvent::Token { .. } | PullEvent::Waits { .. } => {
                return None;
            }
        })
    }
}

impl From<RemovedImage> for RemovedForPull {
    fn from(image: RemovedImage) -> Self {
        Self { names: image.names, bytes: image.bytes.0 }
    }
}

impl RemovedForPull {
    /// `removed old:v1 (20MB) to make room`.
    pub fn text(&self) -> String {
        format!("removed {} ({}) to make room", printable(&self.names.join(", ")), ByteSize(self.bytes))
    }
}

impl PullRetry {
    /// `None`: the wait is over.
    pub fn new(host: String, at: Instant, requested: bool) -> Option<Self> {
        let remaining_ms = milliseconds_of(at.saturating_duration_since(Instant::now()));
        (remaining_ms > 0).then_some(Self { host, remaining_ms, requested })
    }

    /// `r.example limits requests, next try in 12 s`.
    pub fn text(&self) -> String {
        let why = if self.requested { "limits requests" } else { "failed" };
        let next = match self.remaining_ms.div_ceil(1000) {
            0 => "now".to_owned(),
            seconds => format!("in {seconds} s"),
        };
        format!("{} {why}, next try {next}", printable(&self.host))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSize {
    pub digest: String,
    /// The compressed size in bytes.
    pub size: u64,
}
