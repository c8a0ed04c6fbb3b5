//! Fuzz access to private parsers of containerd's lists and of the labels of blobs and leases.
//!
//! The checks are in `crates/imagelet/tests/fuzz/`.

use std::collections::{BTreeMap, HashSet};

use imagelet_core::{
    image::{ByteSize, Reference},
    ports::{Freed, LayerGraph},
};
use jiff::Timestamp;

use crate::{
    containerd::v1::{content, images, leases, snapshots},
    import::sink::records::source_label,
    sizes::{Listed, has_expired},
};

#[derive(Clone, Debug, Default)]
pub struct Lists {
    pub images: Vec<images::Image>,
    pub contents: Vec<content::Info>,
    pub snapshots: BTreeMap<String, Vec<snapshots::Info>>,
    pub leased: Vec<leases::Resource>,
    pub elsewhere: HashSet<String>,
}

/// `usage` gets a snapshotter and a snapshot's name, and returns the snapshot's bytes and inodes.
pub fn layer_graph(lists: &Lists, usage: impl Fn(&str, &str) -> Option<(u64, u64)>) -> Result<LayerGraph, String> {
    let Lists { images, contents, snapshots, leased, elsewhere } = lists.clone();
    let mut listed = Listed { images, contents, snapshots, leased, elsewhere, ..Listed::default() };
    let committed = listed.committed().map_err(|error| error.to_string())?;
    let measured = committed.into_iter().filter_map(|snapshot| {
        let (bytes, inodes) = usage(&snapshot.snapshotter, &snapshot.name)?;
        Some((snapshot, Freed { bytes: ByteSize(bytes), inodes }))
    });
    listed.usages = measured.collect();
    listed.graph().map_err(|error| error.to_string())
}

/// Whether a lease has expired. `now` is in seconds since 1970. `None` means that `now` is out of range.
pub fn lease_has_ended(labels: BTreeMap<String, String>, now: i64) -> Option<bool> {
    let lease = leases::Lease { id: String::new(), labels };
    Some(has_expired(&lease, Timestamp::from_second(now).ok()?))
}

/// The label with a blob's source repositories after a pull of `reference`. `before` has the labels before the pull.
pub fn label_of_source(reference: &Reference, before: &BTreeMap<String, String>) -> Option<(String, String)> {
    source_label(reference, before)
}
