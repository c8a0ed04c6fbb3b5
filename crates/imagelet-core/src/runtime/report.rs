//! Reads JSON objects of runtimes' verbose reports, of which any part may be missing or of another type.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The members of a JSON object, each decoded when it is asked for. Nothing else of the object is copied, as it may hold
/// passwords.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Members<'a>(#[serde(borrow)] BTreeMap<String, &'a RawValue>);

impl<'a> Members<'a> {
    /// `None`: the text is not a JSON object.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// A member, where it has this type.
    pub(super) fn get<T: Deserialize<'a>>(&self, name: &str) -> Option<T> {
        self.0.get(name).and_then(|member| serde_json::from_str(member.get()).ok())
    }

    /// A member that is an object; an empty one in place of anything else.
    pub(super) fn object(&self, name: &str) -> Self {
        self.get(name).unwrap_or_default()
    }

    /// All members of this type.
    pub(super) fn all<T: Deserialize<'a>>(self) -> impl Iterator<Item = (String, T)> {
        self.0.into_iter().filter_map(|(name, member)| Some((name, serde_json::from_str(member.get()).ok()?)))
    }

    /// The names of all members.
    pub(super) fn names(self) -> impl Iterator<Item = String> {
        self.0.into_keys()
    }
}
