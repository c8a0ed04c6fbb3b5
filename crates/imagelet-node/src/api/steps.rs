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
    types::PodImageRow,
};

/// A function that receives the progress of a command. The function must not block.
pub type Steps = Arc<dyn Fn(Step) + Send + Sync>;

pub fn no_steps() -> Steps {
    Arc::new(|_| {})
}

/// Returns a watcher that reports the progress of a pull as steps.
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

/// Returns a receiver that reports the events of a store call as steps.
pub fn progress(steps: Steps) -> Progress {
    let (watcher, progress) = (watcher(steps), Mutex::new(PullProgress::default()));
    Arc::new(move |event| {
        let mut progress = locked(&progress);
        progress.apply(event, Instant::now());
        watcher(&progress);
    })
}

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
    /// A runtime runs the pull, and reports no progress.
    ThroughRuntime,
    /// The manifest and the layers of the image are known.
    #[serde(rename_all = "camelCase")]
    Resolved {
        manifest: String,
        /// The layers in the order of the image's manifest.
        layers: Vec<LayerSize>,
    },
    /// A layer is being fetched. `received` counts its bytes so far.
    Fetching { digest: String, received: u64 },
    /// The layer was in the store before the pull.
    Present { digest: String },
    /// A layer is fetched and unpacked.
    Done { digest: String },
    /// All layers are complete. The store syncs them and records the name.
    Committing,
    /// An image was removed to free space for the pull.
    Removed(RemovedForPull),
    /// The next request to a host is delayed.
    Retry(PullRetry),
    /// A warning for the user of the command.
    Warning { text: String },
    /// The pull waits for the answer of a host. `over`: the wait has ended.
    Waiting { host: String, over: bool },
    /// A check of the store has read `read` of about `total` bytes.
    Checking { read: u64, total: u64 },
    /// No other step arrives, because the daemon is silent or the command waits. A daemon never sends this step.
    Notice { note: String },
    /// An image of a pod is requested. `image` is the index of the image in the request.
    Asked { image: usize },
    /// A step of the pull of one image of a pod. `image` is the index of the image in the request.
    Image { image: usize, of: Box<Step> },
    /// The request for one image of a pod has ended. `image` is the index of the image in the request.
    Settled { image: usize, row: Box<PodImageRow> },
}

impl Step {
    /// The steps that lead from the progress `seen` of a pull to its progress `now`.
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
    /// The removal as a text, for example `removed old:v1 (20MB) to make room`.
    pub fn text(&self) -> String {
        format!("removed {} ({}) to make room", printable(&self.names.join(", ")), ByteSize(self.bytes))
    }
}

impl PullRetry {
    /// Returns the wait until the next request to a host. `None`: the wait is over.
    pub fn of(next: &NextRequest) -> Option<Self> {
        let remaining_ms = milliseconds_of(next.at.saturating_duration_since(Instant::now()));
        (remaining_ms > 0).then(|| Self { host: next.host.clone(), remaining_ms, requested: next.is_requested })
    }

    /// The wait as a text, for example `r.example limits requests, next try in 12 s`.
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
