//! What a decision may know of images: as a pass found them, or as they were written down. Later passes change nothing.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    image::{ByteSize, ImageId, ImageKey, SharedNames},
    inventory::{Entry, Gaps, Kind, Origin, PullCost, Snapshot, UseHistory},
};

/// What a decision may know of one image. `None` for a time is earlier than all times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// Which.
    pub key: ImageKey,
    /// Its names with tag.
    pub tags: SharedNames,
    /// Its names with digest.
    pub digests: SharedNames,
    /// What the runtime lists it with; shared layers count in each image.
    pub size: ByteSize,
    /// When a pass first saw it.
    pub first_seen: Option<SystemTime>,
    /// When it was last used or asked for.
    pub last_used: Option<SystemTime>,
    /// When it was last asked for.
    pub leased_at: Option<SystemTime>,
    /// Until when the container it was asked for may still come.
    pub leased_until: Option<SystemTime>,
    /// When its last user was gone from a list, while that is to be seen twice.
    pub released_at: Option<SystemTime>,
    /// Who holds it.
    pub in_use_by: Vec<String>,
    /// What pins it.
    pub pinned_by: Vec<String>,
    /// How often it was used.
    pub use_count: u64,
    /// Who used it last, as `NAMESPACE/POD`.
    pub last_user: Option<String>,
    /// What its last pull cost.
    pub pulled: Option<PullCost>,
    /// How it came to be here.
    pub origin: Origin,
    /// Those labels of its configuration that rules ask for; `None`: nobody asked, or nobody could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// How its uses follow one another.
    #[serde(default)]
    pub history: UseHistory,
}

impl ImageFacts {
    /// What the inventory knows of it.
    pub fn of(entry: &Entry) -> Self {
        Self {
            key: entry.key(),
            tags: SharedNames::tags_of(&entry.image),
            digests: SharedNames::digests_of(&entry.image),
            size: entry.image.size,
            first_seen: Some(entry.first_seen),
            last_used: entry.last_used,
            leased_at: entry.leased_at,
            leased_until: entry.leased_until,
            released_at: entry.released_at,
            in_use_by: entry.in_use_by.clone(),
            pinned_by: entry.pinned_by.clone(),
            use_count: entry.use_count,
            last_user: entry.last_user.clone(),
            pulled: entry.pulled,
            origin: entry.origin,
            labels: None,
            history: entry.history.clone(),
        }
    }
}

/// All images that a plan is made for. Cheap to clone and to make where a pass found them.
#[derive(Clone)]
pub struct Images(Form);

#[derive(Clone)]
enum Form {
    Own(Vec<ImageFacts>),
    Of(Arc<Snapshot>),
}

impl Images {
    /// As a pass found them, which is in the order of their keys.
    pub fn of(snapshot: &Arc<Snapshot>) -> Self {
        Self(Form::Of(Arc::clone(snapshot)))
    }

    /// How many.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Own(facts) => facts.len(),
            Form::Of(snapshot) => snapshot.entries.len(),
        }
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether they are known to be in the order of their keys, each key once.
    pub(super) fn are_sorted(&self) -> bool {
        matches!(self.0, Form::Of(_))
    }

    pub(super) fn at(&self, place: usize) -> Facts<'_> {
        match &self.0 {
            Form::Own(facts) => Facts::Own(&facts[place]),
            Form::Of(snapshot) => Facts::Of(&snapshot.entries[place]),
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Facts<'_>> + Clone {
        (0..self.len()).map(|place| self.at(place))
    }

    /// Each as it is written down.
    pub fn written(&self) -> impl ExactSizeIterator<Item = ImageFacts> + '_ {
        self.iter().map(Facts::written)
    }
}

impl Default for Images {
    fn default() -> Self {
        Self(Form::Own(Vec::new()))
    }
}

impl From<Vec<ImageFacts>> for Images {
    fn from(facts: Vec<ImageFacts>) -> Self {
        Self(Form::Own(facts))
    }
}

impl PartialEq for Images {
    fn eq(&self, other: &Self) -> bool {
        self.written().eq(other.written())
    }
}

impl Eq for Images {}

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.written()).finish()
    }
}

impl Serialize for Images {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.written())
    }
}

impl<'de> Deserialize<'de> for Images {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(|facts| Self(Form::Own(facts)))
    }
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Facts<'a> {
    Own(&'a ImageFacts),
    Of(&'a Entry),
}

impl<'a> Facts<'a> {
    fn written(self) -> ImageFacts {
        match self {
            Self::Own(facts) => facts.clone(),
            Self::Of(entry) => ImageFacts::of(entry),
        }
    }

    pub(super) fn id(self) -> &'a ImageId {
        match self {
            Self::Own(facts) => facts.key.id(),
            Self::Of(entry) => &entry.image.id,
        }
    }

    pub(super) fn key(self) -> ImageKey {
        match self {
            Self::Own(facts) => facts.key.clone(),
            Self::Of(entry) => entry.key(),
        }
    }

    pub(super) fn tags(self) -> &'a [String] {
        match self {
            Self::Own(facts) => &facts.tags,
            Self::Of(entry) => &entry.image.tags,
        }
    }

    pub(super) fn digests(self) -> &'a [String] {
        match self {
            Self::Own(facts) => &facts.digests,
            Self::Of(entry) => &entry.image.digests,
        }
    }

    pub(super) fn size(self) -> ByteSize {
        match self {
            Self::Own(facts) => facts.size,
            Self::Of(entry) => entry.image.size,
        }
    }

    pub(super) fn first_seen(self) -> Option<SystemTime> {
        match self {
            Self::Own(facts) => facts.first_seen,
            Self::Of(entry) => Some(entry.first_seen),
        }
    }

    pub(super) fn labels(self) -> Option<&'a BTreeMap<String, String>> {
        match self {
            Self::Own(facts) => facts.labels.as_ref(),
            Self::Of(..) => None,
        }
    }

    pub(super) fn last_used(self) -> Option<SystemTime> {
        match self {
            Self::Own(facts) => facts.last_used,
            Self::Of(entry) => entry.last_used,
        }
    }

    pub(super) fn leased_at(self) -> Option<SystemTime> {
        match self {
            Self::Own(facts) => facts.leased_at,
            Self::Of(entry) => entry.leased_at,
        }
    }

    pub(super) fn leased_until(self) -> Option<SystemTime> {
        match self {
            Self::Own(facts) => facts.leased_until,
            Self::Of(entry) => entry.leased_until,
        }
    }

    pub(super) fn released_at(self) -> Option<SystemTime> {
        match self {
            Self::Own(facts) => facts.released_at,
            Self::Of(entry) => entry.released_at,
        }
    }

    /// Bytes and time of its last pull.
    pub(super) fn pulled(self) -> Option<(ByteSize, Duration)> {
        match self {
            Self::Own(facts) => facts.pulled,
            Self::Of(entry) => entry.pulled,
        }
        .map(|PullCost { bytes, duration, .. }| (bytes, duration))
    }

    pub(super) fn origin(self) -> Origin {
        match self {
            Self::Own(facts) => facts.origin,
            Self::Of(entry) => entry.origin,
        }
    }

    pub(super) fn in_use_by(self) -> &'a [String] {
        match self {
            Self::Own(facts) => &facts.in_use_by,
            Self::Of(entry) => &entry.in_use_by,
        }
    }

    pub(super) fn pinned_by(self) -> &'a [String] {
        match self {
            Self::Own(facts) => &facts.pinned_by,
            Self::Of(entry) => &entry.pinned_by,
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Own(facts) => Kind::of(&facts.history),
            Self::Of(entry) => Kind::of(&entry.history),
        }
    }

    /// Idle times of its own, where any are known.
    pub(super) fn gaps(self) -> Option<&'a Gaps> {
        let gaps = match self {
            Self::Own(facts) => &facts.history.gaps,
            Self::Of(entry) => &entry.history.gaps,
        };
        (!gaps.is_empty()).then_some(gaps)
    }

    pub(super) fn last_user(self) -> Option<&'a str> {
        match self {
            Self::Own(facts) => facts.last_user.as_deref(),
            Self::Of(entry) => entry.last_user.as_deref(),
        }
    }
}
