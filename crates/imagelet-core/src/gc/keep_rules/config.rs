//! Keep rules as they are configured.

use std::{collections::BTreeSet, fmt, num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    image::{Glob, GlobError},
    inventory::{PinError, PinPattern},
    text::duration_text,
};

/// Most rules; each image is held against each.
pub const KEEP_RULES_MAX: usize = 1_000;
/// Most tags of a repository that one rule keeps.
const LAST_TAGS_MAX: u32 = 10_000;

/// All that an operator said about what stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeepRules {
    /// Rules, of which the first that keeps an image is the reason.
    pub keep: Vec<KeepRule>,
    /// Only images that imagelet pulled or adopted go.
    pub only_owned: bool,
}

impl KeepRules {
    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        self.keep.is_empty() && !self.only_owned
    }
}

/// What collection never takes because an operator said so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "KeepRuleText", into = "KeepRuleText")]
pub struct KeepRule {
    scope: KeepScope,
    unused_max: Option<Duration>,
}

/// Which images a rule keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeepScope {
    /// In each repository that the glob covers, those with the last tags.
    LastTags {
        /// Over names of repositories, in full or as people shorten them.
        repository: Glob,
        /// How many; tags of one image count once.
        count: NonZeroU32,
    },
    /// Whose configuration has this label.
    Label {
        /// Its name, to the letter.
        key: String,
        /// Over its value; `None`: any.
        value: Option<Glob>,
    },
    /// Last used by a pod of such a namespace.
    Namespace(Glob),
    /// Called so, or having such an id or digest.
    Image(PinPattern),
}

/// A rule as it is written: one of the first four, and what goes with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeepRuleText {
    /// A glob over names of repositories; goes with `last_tags`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// How many tags; goes with `repository`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_tags: Option<i64>,
    /// `KEY` or `KEY=GLOB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// A glob over namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A reference, a glob, or 12 or more digits of an id or digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Keep only what was used, or first seen, at most so long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused_max: Option<Duration>,
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeepRuleError {
    /// Nothing, or several things at once, say what to keep.
    #[error("a rule has exactly one of `repository`, `label`, `namespace` and `image`")]
    NotOne,
    /// A repository without a number, or a number without a repository.
    #[error("`repository` and `lastTags` go together")]
    TagsAlone,
    /// No such number of tags.
    #[error("lastTags {0} must be between 1 and {LAST_TAGS_MAX}, inclusive")]
    Count(i64),
    /// No glob.
    #[error("{key} `{text}`: {source}")]
    Glob {
        /// Of which key.
        key: &'static str,
        /// As written.
        text: String,
        /// What is wrong with it.
        source: GlobError,
    },
    /// A label's name that no label has.
    #[error("label `{0}` has no name, or one with blanks")]
    Label(String),
    /// No pattern of an image.
    #[error("image `{text}`: {}", with_cause(source))]
    Image {
        /// As written.
        text: String,
        /// What is wrong with it.
        source: PinError,
    },
    /// Kept for no time.
    #[error("a rule that keeps for no time keeps nothing")]
    NoTime,
}

/// An error and its cause in one line, as mistakes of a configuration are reported.
fn with_cause(error: &PinError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

impl KeepRule {
    /// Which images it keeps.
    pub(super) fn scope(&self) -> &KeepScope {
        &self.scope
    }

    /// How long an image may have gone unused to be kept; `None`: however long.
    pub fn unused_max(&self) -> Option<Duration> {
        self.unused_max
    }

    /// The pattern of a rule that pins: it keeps what it names, however long unused.
    pub fn pin(&self) -> Option<&PinPattern> {
        match (&self.scope, self.unused_max) {
            (KeepScope::Image(pattern), None) => Some(pattern),
            _ => None,
        }
    }
}

impl TryFrom<KeepRuleText> for KeepRule {
    type Error = KeepRuleError;

    fn try_from(text: KeepRuleText) -> Result<Self, KeepRuleError> {
        let unused_max = text.unused_max;
        if unused_max.is_some_and(|max| max.is_zero()) {
            return Err(KeepRuleError::NoTime);
        }
        let scope = match text {
            KeepRuleText {
                last_tags: Some(_), repository: None, label: None, namespace: None, image: None, ..
            } => {
                return Err(KeepRuleError::TagsAlone);
            }
            KeepRuleText {
                repository: Some(repository), last_tags, label: None, namespace: None, image: None, ..
            } => {
                let count = last_tags.ok_or(KeepRuleError::TagsAlone)?;
                let number = u32::try_from(count).ok().filter(|count| *count <= LAST_TAGS_MAX);
                let number = number.and_then(NonZeroU32::new).ok_or(KeepRuleError::Count(count))?;
                KeepScope::LastTags { repository: glob("repository", &repository)?, count: number }
            }
            KeepRuleText {
                label: Some(label),
                repository: None,
                last_tags: None,
                namespace: None,
                image: None,
                ..
            } => {
                let (key, value) =
                    label.split_once('=').map_or((label.as_str(), None), |(key, value)| (key, Some(value)));
                if key.is_empty() || key.chars().any(|found| found.is_whitespace() || found.is_control()) {
                    return Err(KeepRuleError::Label(label));
                }
                KeepScope::Label { key: key.to_owned(), value: value.map(|value| glob("label", value)).transpose()? }
            }
            KeepRuleText {
                namespace: Some(namespace),
                repository: None,
                last_tags: None,
                label: None,
                image: None,
                ..
            } => KeepScope::Namespace(glob("namespace", &namespace)?),
            KeepRuleText {
                image: Some(image),
                repository: None,
                last_tags: None,
                label: None,
                namespace: None,
                ..
            } => KeepScope::Image(image.parse().map_err(|source| KeepRuleError::Image { text: image, source })?),
            _ => return Err(KeepRuleError::NotOne),
        };
        Ok(Self { scope, unused_max })
    }
}

impl From<KeepRule> for KeepRuleText {
    fn from(rule: KeepRule) -> Self {
        let mut text = Self { unused_max: rule.unused_max, ..Self::default() };
        match rule.scope {
            KeepScope::LastTags { repository, count } => {
                text.repository = Some(repository.as_str().to_owned());
                text.last_tags = Some(i64::from(count.get()));
            }
            KeepScope::Label { key, value: None } => text.label = Some(key),
            KeepScope::Label { key, value: Some(value) } => text.label = Some(format!("{key}={value}")),
            KeepScope::Namespace(glob) => text.namespace = Some(glob.as_str().to_owned()),
            KeepScope::Image(pattern) => text.image = Some(pattern.text().to_owned()),
        }
        text
    }
}

impl fmt::Display for KeepRule {
    /// As the configuration spells it.
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

/// The names of the labels that rules read.
pub(super) fn labels_read(rules: &[KeepRule]) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for rule in rules {
        if let KeepScope::Label { key, .. } = &rule.scope {
            names.insert(key.as_str());
        }
    }
    names
}

fn glob(key: &'static str, text: &str) -> Result<Glob, KeepRuleError> {
    Glob::new(text).map_err(|source| KeepRuleError::Glob { key, text: text.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> KeepRuleText {
        KeepRuleText::default()
    }

    #[test]
    fn a_rule_reads_as_it_is_written_and_comes_back_from_a_log() {
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
            let rule = KeepRule::try_from(written.clone()).unwrap();
            assert_eq!(rule.to_string(), shown);
            assert_eq!(KeepRuleText::from(rule.clone()), written);
            let logged = serde_json::to_string(&rule).unwrap();
            assert_eq!(serde_json::from_str::<KeepRule>(&logged).unwrap(), rule);
        }
    }

    #[test]
    fn what_keeps_nothing_or_two_things_is_no_rule() {
        let (repository, image) = (Some("a/*".to_owned()), Some("busybox".to_owned()));
        for (written, error) in [
            (text(), KeepRuleError::NotOne),
            (KeepRuleText { image: image.clone(), namespace: Some("a".to_owned()), ..text() }, KeepRuleError::NotOne),
            (KeepRuleText { image, last_tags: Some(1), ..text() }, KeepRuleError::NotOne),
            (KeepRuleText { last_tags: Some(1), ..text() }, KeepRuleError::TagsAlone),
            (KeepRuleText { repository: repository.clone(), ..text() }, KeepRuleError::TagsAlone),
            (KeepRuleText { repository: repository.clone(), last_tags: Some(0), ..text() }, KeepRuleError::Count(0)),
            (KeepRuleText { repository, last_tags: Some(1 << 40), ..text() }, KeepRuleError::Count(1 << 40)),
            (KeepRuleText { label: Some("=x".to_owned()), ..text() }, KeepRuleError::Label("=x".to_owned())),
            (
                KeepRuleText { namespace: Some("a".to_owned()), unused_max: Some(Duration::ZERO), ..text() },
                KeepRuleError::NoTime,
            ),
        ] {
            assert_eq!(KeepRule::try_from(written), Err(error));
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
