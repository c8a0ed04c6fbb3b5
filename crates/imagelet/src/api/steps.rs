//! How far a command is, as the daemon reports it while the command runs.

use std::sync::Arc;

use imagelet_core::{
    image::ByteSize,
    runtime::{LayerState, PullEvent},
};
use serde::{Deserialize, Serialize};

use super::pods::PodImageRow;

/// Hears how far a command is. Must not block.
pub(crate) type Steps = Arc<dyn Fn(Step) + Send + Sync>;

/// Hears nothing.
pub(crate) fn no_steps() -> Steps {
    Arc::new(|_| {})
}

/// Hears silences alone.
pub(crate) fn silences(note: impl Fn(&str) + Send + Sync + 'static) -> Steps {
    Arc::new(move |step| {
        if let Step::Silence { note: text } = step {
            note(&text);
        }
    })
}

/// How far a pull is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "camelCase")]
pub(crate) enum Step {
    /// A runtime pulls, and reports nothing on the way.
    ThroughRuntime,
    /// What will be fetched is known.
    #[serde(rename_all = "camelCase")]
    Resolved {
        /// Digest of the manifest.
        manifest: String,
        /// Each layer, in the image's order.
        layers: Vec<LayerSize>,
    },
    /// Bytes of a layer came in; so many of it so far.
    Fetching { digest: String, received: u64 },
    /// A layer was here before.
    Present { digest: String },
    /// A layer is fetched and unpacked.
    Done { digest: String },
    /// All are here; they are made durable and named.
    Committing,
    /// So many bytes of what is here were read, of about so many.
    Checking { read: u64, total: u64 },
    /// Nothing has come from the daemon for a while; made where it is waited for, never on the wire.
    Silence { note: String },
    /// An image of a pod, by its place in the request, is asked for from now on.
    Asked { image: usize },
    /// A step of an image of a pod.
    Image { image: usize, of: Box<Step> },
    /// An image of a pod is settled.
    Settled { image: usize, row: Box<PodImageRow> },
}

impl Step {
    /// What is reported of a step of a pull, if anything.
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
            PullEvent::Way(_) => return None,
        })
    }
}

/// A layer and its compressed size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerSize {
    /// Its digest.
    pub(crate) digest: String,
    /// Its compressed size in bytes.
    pub(crate) size: u64,
}
