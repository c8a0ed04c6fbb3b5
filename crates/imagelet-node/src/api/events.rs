//! The documents of `events`: recorded events, and the progress of pulls.

use serde::{Deserialize, Serialize};

api_documents! {
    /// Requests the recorded events, and with `follow` the later ones.
    EventsRequest {
        follow: bool,
        /// Interval of progress messages in milliseconds; absent: no progress.
        progress_ms: Option<u64>,
    }
    NodeEvent {
        /// Position among the events of this daemon, from 1.
        number: u64,
        at: Option<String>,
        kind: String,
        reason: String,
        message: String,
        /// The event concerns the node itself, for example a collection.
        node: bool,
        /// The namespace of the pod; empty without a pod.
        namespace: String,
        pod: String,
        uid: String,
        /// The field of the pod; empty for the pod itself.
        field: String,
        /// A class of `docs/errors.md`; empty without a failure.
        class: String,
        hop: String,
    }
    PullProgressRow {
        /// Unique in this daemon; zero while the pull waits for a slot.
        pull: u64,
        /// The normalized name that the store pulls.
        image: String,
        namespace: String,
        pod: String,
        /// `waiting`, `asking`, `fetching`, `committing`, `done`, `failed` or `given-up`; `pulling` in a
        /// runtime.
        phase: String,
        /// Digest of the manifest; empty until it is known.
        manifest: String,
        /// Bytes to fetch; absent until known, and always absent where a runtime pulls.
        bytes_total: Option<u64>,
        bytes_received: u64,
        bytes_per_second: Option<u64>,
        remaining_ms: Option<u64>,
        /// Since the start of the pull or of its wait.
        elapsed_ms: u64,
        /// For a runtime that reports no sizes: the size of the image that had this name before.
        bytes_estimated: Option<u64>,
        position: Option<usize>,
        /// A request that waits, because its registry limits requests or did not answer.
        retry: Option<PullRetry>,
        /// What a layer waits for that another pull holds, and which one, else that content of an earlier pull is checked, else
        /// the host whose answer has not begun; empty without such a wait.
        waits: String,
        failure: String,
        /// Images that were removed, because the disk had no space for the pull.
        removed: Vec<RemovedForPull>,
        layers: Vec<LayerProgress>,
        layers_hidden: u64,
    }
    #[derive(PartialEq, Eq)]
    PullRetry {
        /// The host that gets the next request.
        host: String,
        remaining_ms: u64,
        /// The registry has requested the wait: it limits requests.
        requested: bool,
    }
    #[derive(PartialEq, Eq)]
    RemovedForPull {
        /// Its names, or its id if it has none.
        names: Vec<String>,
        /// Bytes that its removal freed.
        bytes: u64,
    }
    LayerProgress {
        digest: String,
        /// `waiting`, `fetching`, `done`, or `present` for a layer that was in the store before.
        state: String,
        size: u64,
        received: u64,
    }
}

impl EventsRequest {
    pub const NAME: &'static str = "events";
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum EventLine {
    Event(Box<NodeEvent>),
    Progress(Box<PullProgressRow>),
    /// The reader was too slow: this many events are missing here.
    Missed {
        count: u64,
    },
}
