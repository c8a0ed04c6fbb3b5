//! The ids of imagelet's leases.

use std::sync::Arc;

use imagelet_core::retry_wait::random;
use tonic::metadata::{Ascii, MetadataValue};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(Arc<str>);

impl LeaseId {
    const PREFIX: &str = "imagelet-";

    pub fn unique() -> Self {
        let (high, low) = (random(), random());
        let hex = format!("{high:016x}{low:016x}");
        let (first, second, third, fourth, last) = (&hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..]);
        Self(format!("{}{first}-{second}-4{third}-8{fourth}-{last}", Self::PREFIX).into())
    }

    /// Parses the id of a lease that imagelet created. `None` means that another client created the lease.
    pub(crate) fn own(text: &str) -> Option<Self> {
        let is_own = text.starts_with(Self::PREFIX) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_own.then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn header(&self) -> MetadataValue<Ascii> {
        MetadataValue::try_from(self.as_str()).expect("an id that was made or read here is ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_leases_differ_and_read_as_uuids() {
        let (first, second) = (LeaseId::unique(), LeaseId::unique());
        assert_ne!(first, second);
        let parts: Vec<usize> = first.as_str().trim_start_matches(LeaseId::PREFIX).split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{first:?}");
        assert_eq!(first.header().to_str().unwrap(), first.as_str());
    }

    #[test]
    fn only_what_begins_as_they_do_is_read_as_one() {
        assert_eq!(LeaseId::own("imagelet-1").unwrap().as_str(), "imagelet-1");
        for other in ["", "1", "imageletx", "other-imagelet-1", "imagelet-\n", "imagelet-ä"] {
            assert_eq!(LeaseId::own(other), None, "{other:?}");
        }
    }
}
