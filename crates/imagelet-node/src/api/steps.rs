//! The progress steps that the daemon reports while a command runs.

use std::sync::{Arc, Mutex};

use imagelet_core::{
    image::ByteSize,
    lock::locked,
    ports::{LayerState, NextRequest, Progress, PullProgress, PullWatcher, RemovedImage},
    printable::printable,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    events::{PullRetry, RemovedForPull},
    fields::milliseconds_of,
    pods::PodImageRow,
};

/// Receives the progress of a command. It must not block.
pub type Steps = Arc<dyn Fn(Step) + Send + Sync>;

pub fn no_steps() -> Steps {
    Arc::new(|_| {})
}

/// Reports the progress of a pull as steps.
pub fn watcher(steps: Steps) -> PullWatcher {
    let seen = Mutex::new(PullProgress::default());
    Arc::new(move |progress| {
        let mut seen = locked(&seen);
        for step in Step::between(&seen, progress) {
            steps(step);
        }
        seen.clone_from(progress);
    })
}

/// Reports the events of a store call as steps.
pub fn progress(steps: Steps) -> Progress {
    let (watcher, progress) = (watcher(steps), Mutex::new(PullProgress::default()));
    Arc::new(move |event| {
        let mut progress = locked(&progress);
        progress.apply(event, Instant::now());
        watcher(&progress);
    })
}

/// Passes only the text of [`Step::Notice`] to `note`.
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
    /// Bytes of the layer received so far.
    Fetching { digest: String, received: u64 },
    /// The layer was in the store before.
    Present { digest: String },
    /// The layer is fetched and unpacked.
    Done { digest: String },
    /// All layers are complete. The store syncs them and records the name.
    Committing,
    /// An image was removed to free space for the pull.
    Removed(RemovedForPull),
    /// The next request to a host is delayed.
    Retry(PullRetry),
    /// A warning for the user of the command.
    Warning { text: String },
    /// A host has not begun its answer. `over`: the answer has begun, or the request has ended.
    Waiting { host: String, over: bool },
    /// Bytes read so far, of about `total`.
    Checking { read: u64, total: u64 },
    /// Why no other step arrives: the daemon is silent, or the command waits. Never sent over the socket.
    Notice { note: String },
    /// An image of a pod is requested. Here and below, `image` is its index in the request.
    Asked { image: usize },
    /// A step of the pull of that image.
    Image { image: usize, of: Box<Step> },
    /// The request for an image of a pod has ended.
    Settled { image: usize, row: Box<PodImageRow> },
}

impl Step {
    /// The steps of a pull between two states of its progress.
    fn between(seen: &PullProgress, now: &PullProgress) -> Vec<Self> {
        let removed = now.removed.iter().skip(seen.removed.len()).map(|image| Self::Removed(image.clone().into()));
        let warnings = now.warnings.iter().skip(seen.warnings.len()).map(|text| Self::Warning { text: text.clone() });
        let mut steps: Vec<Self> = removed.chain(warnings).collect();
        let is_other = now.times.resolved != seen.times.resolved;
        if let Some((_, manifest)) = now.times.resolved.as_ref().filter(|_| is_other) {
            let layers = now.layers.iter();
            let layers = layers.map(|layer| LayerSize { digest: layer.digest.to_string(), size: layer.size.0 });
            steps.push(Self::Resolved { manifest: manifest.to_string(), layers: layers.collect() });
        }
        for (index, layer) in now.layers.iter().enumerate() {
            let known = seen.layers.get(index).filter(|_| !is_other).and_then(|layer| layer.state);
            let Some(state) = layer.state.filter(|state| known != Some(*state)) else { continue };
            let digest = layer.digest.to_string();
            steps.push(match state {
                LayerState::Present => Self::Present { digest },
                LayerState::Fetching { received: ByteSize(received) } => Self::Fetching { digest, received },
                LayerState::Done => Self::Done { digest },
            });
        }
        let waiting = |of: &PullProgress, not_of: &PullProgress, over| {
            let hosts = of.waits.unanswered.keys().filter(|host| !not_of.waits.unanswered.contains_key(*host));
            hosts.map(|host| Self::Waiting { host: host.clone(), over }).collect::<Vec<_>>()
        };
        steps.extend(waiting(seen, now, true).into_iter().chain(waiting(now, seen, false)));
        steps.extend(
            (now.times.committing.is_some() && now.times.committing != seen.times.committing)
                .then_some(Self::Committing),
        );
        let retry = now.waits.retry.as_ref().filter(|retry| seen.waits.retry.as_ref() != Some(retry));
        steps.extend(retry.and_then(PullRetry::of).map(Self::Retry));
        steps
    }
}

impl From<RemovedImage> for RemovedForPull {
    fn from(image: RemovedImage) -> Self {
        Self { names: image.names, bytes: image.bytes.0 }
    }
}

impl RemovedForPull {
    /// For example `removed old:v1 (20MB) to make room`.
    pub fn text(&self) -> String {
        format!("removed {} ({}) to make room", printable(&self.names.join(", ")), ByteSize(self.bytes))
    }
}

impl PullRetry {
    /// `None`: the wait is over.
    pub fn of(next: &NextRequest) -> Option<Self> {
        let remaining_ms = milliseconds_of(next.at.saturating_duration_since(Instant::now()));
        (remaining_ms > 0).then(|| Self { host: next.host.clone(), remaining_ms, requested: next.is_requested })
    }

    /// For example `r.example limits requests, next try in 12 s`.
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
