//! How far a command is, as the daemon reports it while the command runs.

use serde::{Deserialize, Serialize};

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
    Settled { image: usize, row: Box<super::PodImageRow> },
}

/// A layer and its compressed size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerSize {
    /// Its digest.
    pub(crate) digest: String,
    /// Its compressed size in bytes.
    pub(crate) size: u64,
}
