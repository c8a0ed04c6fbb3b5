//! Keep rules of an operator: their kinds and their configuration.

mod label_cache;
mod matching;
mod version_order;

use std::{collections::BTreeSet, fmt, num::NonZeroU32, time::Duration};

pub(super) use self::{label_cache::LabelCache, matching::held_by_rules};
use crate::{
    error::error_chain,
    image::Glob,
    inventory::{PinError, PinPattern},
    text::{PlainError, duration_text},
};

/// The maximum number of keep rules. Each collection matches each image with each rule.
pub const KEEP_RULES_MAX: usize = 1_000;
const LAST_TAGS_MAX: u32 = 10_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepRules {
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
    pub(super) scope: KeepScope,
    /// The rule keeps an image only until it is idle for longer than this time. `None`: the rule has no time limit.
    pub(super) unused_max: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeepScope {
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

/// A rule as configured. Exactly one of `repository`, `label`, `namespace` and `image` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepRuleText {
    /// A glob that matches repository names. Requires `last_tags`.
    pub repository: Option<String>,
    pub last_tags: Option<i64>,
    /// `KEY` or `KEY=GLOB`.
    pub label: Option<String>,
    pub namespace: Option<String>,
    /// A reference, a glob, or 12 or more digits of an id or digest.
    pub image: Option<String>,
    pub unused_max: Option<Duration>,
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

impl TryFrom<KeepRuleText> for KeepRule {
    type Error = PlainError;

    fn try_from(text: KeepRuleText) -> Result<Self, PlainError> {
        let KeepRuleText { repository, last_tags, label, namespace, image, unused_max } = text;
        let refused = |text: &str| Err(PlainError(text.to_owned()));
        if unused_max.is_some_and(|max| max.is_zero()) {
            return refused("a rule that keeps for no time keeps nothing");
        }
        let scope = match (repository, last_tags, label, namespace, image) {
            (None, Some(_), None, None, None) | (Some(_), None, None, None, None) => {
                return refused("`repository` and `lastTags` go together");
            }
            (Some(repository), Some(count), None, None, None) => {
                let number = u32::try_from(count).ok().filter(|count| *count <= LAST_TAGS_MAX);
                let number = number.and_then(NonZeroU32::new).ok_or_else(|| {
                    PlainError(format!("lastTags {count} must be between 1 and {LAST_TAGS_MAX}, inclusive"))
                })?;
                KeepScope::LastTags { repository: glob("repository", &repository)?, count: number }
            }
            (None, None, Some(label), None, None) => {
                let (key, value) =
                    label.split_once('=').map_or((label.as_str(), None), |(key, value)| (key, Some(value)));
                if key.is_empty() || key.chars().any(|found| found.is_whitespace() || found.is_control()) {
                    return refused(&format!("label `{label}` has no name, or one with blanks"));
                }
                KeepScope::Label { key: key.to_owned(), value: value.map(|value| glob("label", value)).transpose()? }
            }
            (None, None, None, Some(namespace), None) => KeepScope::Namespace(glob("namespace", &namespace)?),
            (None, None, None, None, Some(image)) => {
                let parsed = image.parse();
                let refused = |error: PinError| PlainError(format!("image `{image}`: {}", error_chain(&error)));
                KeepScope::Image(parsed.map_err(refused)?)
            }
            _ => return refused("a rule has exactly one of `repository`, `label`, `namespace` and `image`"),
        };
        Ok(Self { scope, unused_max })
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

fn glob(key: &'static str, text: &str) -> Result<Glob, PlainError> {
    Glob::new(text).map_err(|error| PlainError(format!("{key} `{text}`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> KeepRuleText {
        KeepRuleText::default()
    }

    #[test]
    fn a_rule_shows_as_it_is_configured() {
        let week = Some(Duration::from_hours(168));
        for (written, shown) in [
            (
                KeepRuleText { repository: Some("ghcr.io/team/*".to_owned()), last_tags: Some(3), ..text() },
                "repository: ghcr.io/team/*, lastTags: 3",
            ),
            (KeepRuleText { label: Some("keep".to_owned()), ..text() }, "label: keep"),
            (KeepRuleText { label: Some("tier=prod*=x".to_owned()), ..text() }, "label: tier=prod*=x"),
            (
                KeepRuleText { namespace: Some("kube-*".to_owned()), unused_max: week, ..text() },
                "namespace: kube-*, for: 168h0m0s",
            ),
            (KeepRuleText { image: Some("busybox".to_owned()), ..text() }, "image: busybox"),
        ] {
            assert_eq!(KeepRule::try_from(written).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_keeps_nothing_or_two_things_is_no_rule() {
        let (repository, image) = (Some("a/*".to_owned()), Some("busybox".to_owned()));
        let not_one = "a rule has exactly one of `repository`, `label`, `namespace` and `image`";
        let alone = "`repository` and `lastTags` go together";
        for (written, error) in [
            (text(), not_one),
            (KeepRuleText { image: image.clone(), namespace: Some("a".to_owned()), ..text() }, not_one),
            (KeepRuleText { image, last_tags: Some(1), ..text() }, not_one),
            (KeepRuleText { last_tags: Some(1), ..text() }, alone),
            (KeepRuleText { repository: repository.clone(), ..text() }, alone),
            (
                KeepRuleText { repository: repository.clone(), last_tags: Some(0), ..text() },
                "lastTags 0 must be between 1 and 10000, inclusive",
            ),
            (
                KeepRuleText { repository, last_tags: Some(1 << 40), ..text() },
                "lastTags 1099511627776 must be between 1 and 10000, inclusive",
            ),
            (KeepRuleText { label: Some("=x".to_owned()), ..text() }, "label `=x` has no name, or one with blanks"),
            (
                KeepRuleText { namespace: Some("a".to_owned()), unused_max: Some(Duration::ZERO), ..text() },
                "a rule that keeps for no time keeps nothing",
            ),
        ] {
            assert_eq!(KeepRule::try_from(written).unwrap_err().to_string(), error);
        }
        for written in [
            KeepRuleText { namespace: Some(String::new()), ..text() },
            KeepRuleText { label: Some("a=".to_owned()), ..text() },
            KeepRuleText { image: Some("*".to_owned()), ..text() },
            KeepRuleText { image: Some("UPPER".to_owned()), ..text() },
        ] {
            assert!(KeepRule::try_from(written).is_err());
        }
    }
}
