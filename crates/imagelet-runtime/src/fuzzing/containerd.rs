//! Fuzz access to private parsers of containerd's lists and of the labels of blobs and leases.
//!
//! The checks are in `crates/imagelet/tests/fuzz/`.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{containerd::v1::leases::Lease, sizes::has_expired};
pub use crate::{
    import::sink::records::source_label,
    sizes::{CommittedSnapshot, Listed},
};

/// Whether a lease has expired. `now` is in seconds since 1970. `None` means that `now` is out of range.
pub fn lease_has_ended(labels: BTreeMap<String, String>, now: i64) -> Option<bool> {
    Some(has_expired(&Lease { id: String::new(), labels }, Timestamp::from_second(now).ok()?))
}
