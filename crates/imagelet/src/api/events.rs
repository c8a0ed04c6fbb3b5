//! The documents of `events`: what happened, and the progress of pulls.

use serde::{Deserialize, Serialize};

documents! {
    /// Asks for the events kept, and for those to come.
    EventsRequest {
        /// Go on with what happens from now on.
        follow: bool,
        /// Tell how far pulls are this often, in milliseconds; absent: not at all.
        progress_ms: Option<u64>,
    }
    /// Something that happened on the node.
    NodeEvent {
        /// When, to the millisecond.
        at: Option<String>,
        /// `Normal` or `Warning`.
        kind: String,
        /// The word for it: `Pulling`, `Pulled`, `Failed`, `Removed`.
        reason: String,
        message: String,
        /// Whether it happened to the node itself, as a collection does, and to no one's image.
        node: bool,
        /// The namespace of the pod it happened to; empty where it was none.
        namespace: String,
        pod: String,
        uid: String,
        /// The field of the pod; empty for the pod itself.
        field: String,
        /// What went wrong, in a word of `docs/errors.md`; empty where nothing did.
        class: String,
        /// Where on the way.
        hop: String,
    }
    /// How far a pull is.
    PullProgress {
        /// Its number, which no other pull of this daemon has; zero while it waits for its turn.
        pull: u64,
        /// As the store is asked for it.
        image: String,
        /// The namespace of the pod it is for, where there is one.
        namespace: String,
        pod: String,
        /// `waiting`, `asking`, `fetching`, `committing`, `done`, `failed` or `given-up`; `pulling` where a runtime pulls.
        phase: String,
        /// Digest of the manifest, once known.
        manifest: String,
        /// Bytes to fetch; absent before they are known, and always where a runtime tells none.
        bytes_total: Option<u64>,
        /// Bytes of them that came.
        bytes_received: u64,
        /// Of the last seconds.
        bytes_per_second: Option<u64>,
        /// At that speed, in milliseconds.
        remaining_ms: Option<u64>,
        /// Since it began, or waits, in milliseconds.
        elapsed_ms: u64,
        /// Where a runtime tells no sizes: those of the image that had the name until now.
        bytes_estimated: Option<u64>,
        /// Its place among those that wait, from 1.
        position: Option<usize>,
        failure: String,
        /// Layer by layer, in the image's order.
        layers: Vec<LayerProgress>,
        layers_hidden: u64,
    }
    /// How far a layer is.
    LayerProgress {
        /// Its digest.
        digest: String,
        /// `waiting`, `fetching`, `done`, or `present` when it was here before.
        state: String,
        /// Its compressed size.
        size: u64,
        /// Bytes of it that came.
        received: u64,
    }
}

impl EventsRequest {
    /// Its name on the socket.
    pub(crate) const NAME: &'static str = "events";
}

/// A line of the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(crate) enum EventLine {
    /// Something happened.
    Event(Box<NodeEvent>),
    /// A pull is under way, or over.
    Progress(Box<PullProgress>),
    /// The reader was too slow: so many events between the last one and the next are lost to it.
    Missed {
        /// How many.
        count: u64,
    },
}
