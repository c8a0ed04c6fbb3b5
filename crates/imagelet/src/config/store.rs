//! The section `store` of the configuration: where the embedded store is, and how it works.

use std::{path::PathBuf, time::Duration};

use imagelet_oci::{Admission, Durability, LayerLimits, LayerSharing};
use serde::{Deserialize, Serialize};

/// `store` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StoreFile {
    /// Directory of the embedded store and of what the node remembers, changed by one process at a time.
    #[serde(rename = "directory", skip_serializing_if = "Option::is_none")]
    pub(super) directory: Option<PathBuf>,
    /// At most this many layers of one image are fetched and unpacked at once, 1 to 64.
    #[serde(rename = "layersInFlight", skip_serializing_if = "Option::is_none")]
    pub(super) layers_in_flight: Option<i32>,
    /// `commit`: a pull answers when every file of the image is on the disk. `background`: it answers before, and the disk follows; the image survives the end of the process at any moment, but a power cut may lose the whole pull, never part of it.
    #[serde(rename = "durability", skip_serializing_if = "Option::is_none")]
    pub(super) durability: Option<String>,
    /// Keep the compressed blobs as well, so that a broken pull resumes and a layer can be unpacked again without the registry. Beside a runtime: imports put them into its content store, as its own pulls do.
    #[serde(rename = "keepBlobs", alias = "keep_blobs", skip_serializing_if = "Option::is_none")]
    pub(super) keep_blobs: Option<bool>,
    /// Which layers that are here a pull need not fetch: `node`, all; `repository`, those of images with a name in the same repository, so that each repository has to send its layers once. See [the store](store.md#what-pulls-share).
    #[serde(rename = "shareLayers", skip_serializing_if = "Option::is_none")]
    pub(super) share_layers: Option<String>,
    /// When a pull is refused before its first layer for want of room: `compressed`, when not even its compressed layers fit; `strict`, when they do not fit as large as they are expected to become; `off`, never. See [admission](admission.md).
    #[serde(rename = "admission", skip_serializing_if = "Option::is_none")]
    pub(super) admission: Option<String>,
    /// The socket of a CRI runtime that runs containers from images of this store, such as `unix:///run/containerd/containerd.sock`: images that its containers use, running or exited, stay, and while it does not answer nothing is removed. Absent or empty: nobody does.
    #[serde(rename = "runtimeEndpoint", skip_serializing_if = "Option::is_none")]
    pub(super) runtime_endpoint: Option<String>,
    /// What unpacking the layers of all pulls may hold of the process's memory, at least `48Mi`. A layer that needs more than its share is refused. See [the store](store.md).
    #[serde(rename = "unpackMemory", skip_serializing_if = "Option::is_none")]
    pub(super) unpack_memory: Option<String>,
    /// What a layer may do to the node.
    #[serde(rename = "limits", skip_serializing_if = "Option::is_none")]
    pub(super) limits: Option<LimitsFile>,
}

/// `store.limits` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsFile {
    /// A layer may inflate to this many times its compressed size, 1 to 100000; gzip reaches 1032 on zeros alone.
    #[serde(rename = "expansionMax", skip_serializing_if = "Option::is_none")]
    pub(super) expansion_max: Option<i32>,
    /// The layers of an image may together inflate to this size beyond that, such as `256Mi`.
    #[serde(rename = "expansionFree", skip_serializing_if = "Option::is_none")]
    pub(super) expansion_free: Option<String>,
    /// Entries in one layer, 1 to 100000000.
    #[serde(rename = "entriesMax", skip_serializing_if = "Option::is_none")]
    pub(super) entries_max: Option<i32>,
    /// Unpacking stops before less than this is free on the store's filesystem, such as `16Mi`.
    #[serde(rename = "freeBytesFloor", skip_serializing_if = "Option::is_none")]
    pub(super) free_bytes_floor: Option<String>,
    /// Unpacking stops before fewer inodes than this are free on the store's filesystem, 0 to 1000000000.
    #[serde(rename = "freeInodesFloor", skip_serializing_if = "Option::is_none")]
    pub(super) free_inodes_floor: Option<i32>,
}

/// How the embedded store works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// Layers of one image at once.
    pub(crate) layers_in_flight: usize,
    /// When a pull may answer.
    pub(crate) durability: Durability,
    /// Keep compressed blobs too.
    pub(crate) keep_blobs: bool,
    /// Which layers that are here a pull need not fetch.
    pub(crate) sharing: LayerSharing,
    /// When a pull is refused for want of room.
    pub(crate) admission: Admission,
    /// What unpacking may hold of memory, in bytes.
    pub(crate) unpack_memory: u64,
    /// What a layer may do to the node.
    pub(crate) limits: LayerLimits,
    /// Whose containers run from it, if anybody's, and how long that runtime may take to answer.
    pub(crate) runtime: Option<(String, Duration)>,
}

impl StoreFile {
    pub(super) fn defaults(directory: PathBuf) -> Self {
        Self {
            directory: Some(directory),
            layers_in_flight: Some(4),
            durability: Some("commit".into()),
            keep_blobs: Some(false),
            share_layers: Some("node".into()),
            admission: Some("compressed".into()),
            runtime_endpoint: Some(String::new()),
            unpack_memory: Some("64Mi".into()),
            limits: Some(LimitsFile {
                expansion_max: Some(200),
                expansion_free: Some("256Mi".into()),
                entries_max: Some(2_000_000),
                free_bytes_floor: Some("16Mi".into()),
                free_inodes_floor: Some(1_000),
            }),
        }
    }
}
