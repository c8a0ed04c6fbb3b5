//! The ids of imagelet's leases.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use tonic::metadata::{Ascii, MetadataValue};

/// A lease id of imagelet: its name with 128 random bits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(Arc<str>);

impl LeaseId {
    const PREFIX: &str = "imagelet-";

    /// A new unique id.
    pub fn unique() -> Self {
        // Each `RandomState` has its own seed: random enough to be unique.
        let (high, low) = (RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        let bits = u128::from(high) << 64 | u128::from(low);
        let part = |from: u32, digits: u32| bits >> (128 - 4 * (from + digits)) & ((1 << (4 * digits)) - 1);
        let (first, second, third) = (part(0, 8), part(8, 4), part(13, 3));
        let (fourth, last) = (part(17, 3), part(20, 12));
        Self(format!("{}{first:08x}-{second:04x}-4{third:03x}-8{fourth:03x}-{last:012x}", Self::PREFIX).into())
    }

    /// Parses an id of imagelet.
    pub(crate) fn own(text: &str) -> Option<Self> {
        let is_own = text.starts_with(Self::PREFIX) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_own.then(|| Self(text.into()))
    }

    /// The id as text.
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
