//! Keep rules of an operator: their kinds and their configuration.

mod label_cache;
mod matching;
mod version_order;

use std::{collections::BTreeSet, fmt, num::NonZeroU32, time::Duration};

pub(super) use self::{label_cache::LabelCache, matching::held_by_rules};
use crate::{image::Glob, inventory::PinPattern, text::duration_text};

/// The maximum number of keep rules. Each collection matches each image with each rule.
pub const KEEP_RULES_MAX: usize = 1_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepRules {
    /// If several rules match an image, the first rule is reported.
    pub keep: Vec<KeepRule>,
    /// On: collections remove only images that imagelet pulled or adopted. Off: collections remove any image.
    pub only_owned: bool,
}

impl KeepRules {
    pub fn is_empty(&self) -> bool {
        self.keep.is_empty() && !self.only_owned
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepRule {
    pub scope: KeepScope,
    /// The rule keeps an image only until it is idle for longer than this time. `None`: the rule has no time limit.
    pub unused_max: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepScope {
    LastTags {
        /// The pattern is compared with the full and the short name of a repository.
        repository: Glob,
        /// The number of latest tags that the rule keeps. Several tags of one image count once.
        count: NonZeroU32,
    },
    Label {
        key: String,
        value: Option<Glob>,
    },
    /// The rule matches an image whose last user is a pod in a namespace that the glob matches.
    Namespace(Glob),
    Image(PinPattern),
}

impl KeepRule {
    /// The pattern if the rule acts as a pin: an `image` rule without `unused_max`.
    pub fn pin(&self) -> Option<&PinPattern> {
        match (&self.scope, self.unused_max) {
            (KeepScope::Image(pattern), None) => Some(pattern),
            _ => None,
        }
    }
}

impl fmt::Display for KeepRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            KeepScope::LastTags { repository, count } => write!(f, "repository: {repository}, lastTags: {count}"),
            KeepScope::Label { key, value: None } => write!(f, "label: {key}"),
            KeepScope::Label { key, value: Some(value) } => write!(f, "label: {key}={value}"),
            KeepScope::Namespace(glob) => write!(f, "namespace: {glob}"),
            KeepScope::Image(pattern) => write!(f, "image: {}", pattern.text()),
        }?;
        self.unused_max.map_or(Ok(()), |max| write!(f, ", for: {}", duration_text(max)))
    }
}

fn labels_read(rules: &[KeepRule]) -> BTreeSet<&str> {
    let labels = rules.iter().filter_map(|rule| match &rule.scope {
        KeepScope::Label { key, .. } => Some(key.as_str()),
        _ => None,
    });
    labels.collect()
}
