//! The section `gc` of the configuration: its keys, their defaults, and its rules.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use imagelet_core::{
    gc::{KEEP_RULES_MAX, KeepRule, KeepRuleText, KeepRules, ReliefMarks},
    image::Percent,
    manager::Compatibility,
};
use serde::{Deserialize, Serialize};

use super::{
    GoDuration,
    validate::{Complaints, period},
};
use crate::size::parse_size;

/// A log of decisions shorter than this would not hold one collection of a large node.
const DECISIONS_LEAST: u64 = 64 << 10;
/// One longer than this is a mistake in the unit.
const DECISIONS_MOST: u64 = 16 << 30;
/// A kubelet that was told that an image is here creates the container within seconds, or asks again: its longest
/// back-off is five minutes.
const LEASE_DEFAULT: GoDuration = GoDuration::minutes(10);
/// An image that was used within the hour is likely to be pulled again soon: its removal gives room for minutes.
const OUT_OF_REACH_IDLE_DEFAULT: GoDuration = GoDuration::minutes(60);
/// In percent. The kubelet evicts pods and taints the node at 85 to 95 % by its defaults.
const CRITICAL_DEFAULT: i32 = 95;
/// Where a kubelet keeps its data unless it is told otherwise.
const KUBELET_ROOT: &str = "/var/lib/kubelet";
/// An image is not held for longer than this without anybody using it.
const LEASE_MAX: GoDuration = GoDuration::minutes(7 * 24 * 60);

/// `gc` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GcFile {
    /// Whether the daemon collects on its own; `imagelet gc` works either way.
    #[serde(rename = "enabled", skip_serializing_if = "Option::is_none")]
    pub(super) enabled: Option<bool>,
    /// How often it considers to.
    #[serde(rename = "period", skip_serializing_if = "Option::is_none")]
    pub(super) period: Option<GoDuration>,
    /// Whether a pull into the embedded store, or an import into a runtime, that has no room makes some, under the usual rules. Defaults to false where `enabled` is, or where `compatibility` is `kubelet`.
    #[serde(rename = "forPulls", skip_serializing_if = "Option::is_none")]
    pub(super) for_pulls: Option<bool>,
    /// `enforce` removes what is chosen. `shadow` chooses and tells, and removes nothing unless `imagelet gc --enforce` says so: for a node whose kubelet still collects. See [why](why.md).
    #[serde(rename = "mode", skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<String>,
    /// Which of the images that may go do go when room is wanted: `cost`, those that cost least to do without for the bytes that only they take; `lru`, the longest unused first, as the kubelet. Defaults to `lru` where `compatibility` is `kubelet`, which goes with no other.
    #[serde(rename = "policy", skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<String>,
    /// Start collecting when so many of the image filesystem's inodes are in use, in percent, 1 to 100. 100 is off, which is the default where `compatibility` is `kubelet`; collection that is switched off by `imageGCHighThresholdPercent: 100` looks at no inodes either.
    #[serde(rename = "inodesHighPercent", skip_serializing_if = "Option::is_none")]
    pub(super) inodes_high: Option<i32>,
    /// Collect until no more than this are in use, in percent. Must be lower than the high one, unless that is off.
    #[serde(rename = "inodesLowPercent", skip_serializing_if = "Option::is_none")]
    pub(super) inodes_low: Option<i32>,
    /// Where all that may go is not enough to come below the thresholds, images go that were idle for at least this long; see [what a collection frees](reclaim.md). No effect where `compatibility` is `kubelet`, where all go.
    #[serde(rename = "outOfReachIdle", skip_serializing_if = "Option::is_none")]
    pub(super) out_of_reach_idle: Option<GoDuration>,
    /// From so much of the image filesystem in use on, in percent, 0 to 100, all images that may go do go where they are not enough to come below the thresholds, until less is in use; inodes count as well where they are looked at. No effect where `compatibility` is `kubelet`.
    #[serde(rename = "critical", skip_serializing_if = "Option::is_none")]
    pub(super) critical: Option<i32>,
    /// Images that stay although nobody uses them: a list of rules, see [keep rules](keep.md). Each has exactly one of `repository` (with `lastTags`), `label`, `namespace` and `image`, and may have `for`.
    #[serde(rename = "keep", skip_serializing_if = "Option::is_none")]
    pub(super) keep: Option<Vec<KeepFile>>,
    /// Collect only images that imagelet pulled or adopted (`gc.adoptFrom`): what something else brought to the node stays.
    #[serde(rename = "onlyOwned", skip_serializing_if = "Option::is_none")]
    pub(super) only_owned: Option<bool>,
    /// The data root of a kubelet on this node: images of a runtime that are in its pull records count as adopted, and are at least as old as its record when imagelet takes the node over. Empty: nobody is asked.
    #[serde(rename = "adoptFrom", skip_serializing_if = "Option::is_none")]
    pub(super) adopt_from: Option<String>,
    /// How long no collection takes an image that a pod or a caller over CRI was told is here, counted from the last telling; it ends earlier once the pod shows its containers. 0 is off, and the only value where `compatibility` is `kubelet`; else no shorter than `detection.period` and `imageMinimumGCAge`, and at most 168h. Defaults to the longest of these two and 10m.
    #[serde(rename = "leaseFor", skip_serializing_if = "Option::is_none")]
    pub(super) lease_for: Option<GoDuration>,
    /// The log of decisions.
    #[serde(rename = "decisions", skip_serializing_if = "Option::is_none")]
    pub(super) decisions: Option<DecisionsFile>,
}

/// A rule of `gc.keep` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct KeepFile {
    /// A glob over names of repositories, in full or as people shorten them: in each of them the last tags are kept.
    #[serde(rename = "repository", skip_serializing_if = "Option::is_none")]
    repository: Option<String>,
    /// How many, 1 to 10000; tags of one image count once, versions and other tags apart.
    #[serde(rename = "lastTags", skip_serializing_if = "Option::is_none")]
    last_tags: Option<i64>,
    /// `KEY` or `KEY=GLOB`: images whose configuration has such a label.
    #[serde(rename = "label", skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// A glob over namespaces: images last used by a pod there.
    #[serde(rename = "namespace", skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// A reference, a glob, or 12 or more digits of an id or digest. Without `for` this is a pin, as `imagelet pin` makes them.
    #[serde(rename = "image", skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// Keep it only for so long after its last use, or after it was first seen where it was never used.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    unused_max: Option<GoDuration>,
}

/// `gc.decisions` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DecisionsFile {
    /// How much of the disk the log of decisions may take, such as `16Mi`; the oldest go first. 0 keeps none.
    #[serde(rename = "maxBytes", skip_serializing_if = "Option::is_none")]
    pub(super) bytes_max: Option<String>,
}

/// What collection does beyond the kubelet's thresholds and ages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// How often to collect; `None`: on command only.
    pub(crate) period: Option<Duration>,
    /// Collect for a pull that has no room.
    pub(crate) for_pulls: bool,
    /// Whether what is chosen is removed.
    pub(crate) mode: CollectionMode,
    /// Which images go first.
    pub(crate) order: CollectionOrder,
    /// When so many inodes are in use, collect down to so many; `None`: inodes are not looked at.
    pub(crate) inodes: Option<InodeMarks>,
    /// What goes although the thresholds are out of reach.
    pub(crate) relief: ReliefMarks,
    /// What stays.
    pub(crate) keep: Vec<KeepRule>,
    /// Only what imagelet brought or adopted goes.
    pub(crate) only_owned: bool,
    /// Whose records tell of images that are adopted.
    pub(crate) adopt_from: Option<PathBuf>,
    /// How long an image is held that was handed out.
    pub(crate) lease_for: Duration,
    /// The most that the log of decisions takes; `None`: there is none.
    pub(crate) decisions_max: Option<NonZeroU64>,
}

impl Collection {
    /// What stays.
    pub(crate) fn rules(&self) -> KeepRules {
        KeepRules { keep: self.keep.clone(), only_owned: self.only_owned }
    }
}

/// Whether what is chosen is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CollectionMode {
    /// It is.
    #[default]
    Enforce,
    /// It is told, and stays.
    Shadow,
}

impl CollectionMode {
    /// The word of the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

/// Which images go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CollectionOrder {
    /// Those that cost least to do without for the bytes that only they take.
    #[default]
    Cost,
    /// The longest unused.
    Lru,
}

/// Watermarks of inodes; `low < high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeMarks {
    /// Start when so many are in use.
    pub(crate) high: Percent,
    /// Stop when no more than these are.
    pub(crate) low: Percent,
}

/// Times of other sections that the times of this one go by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ages {
    /// `imageMinimumGCAge`
    pub(super) age_min: GoDuration,
    /// `detection.period`
    pub(super) detection: GoDuration,
}

impl Ages {
    /// A shorter lease would end before a look for its container, or hold nothing that the minimum age does not.
    fn lease_least(self) -> GoDuration {
        self.age_min.max(self.detection).min(LEASE_MAX)
    }
}

impl GcFile {
    /// What holds where nothing else is said.
    pub(super) fn defaults(given: Option<&Self>, like_kubelet: bool, ages: Ages) -> Self {
        let collects = given.and_then(|given| given.enabled).unwrap_or(true);
        Self {
            enabled: Some(true),
            period: Some(GoDuration::minutes(5)),
            for_pulls: Some(collects && !like_kubelet),
            mode: Some("enforce".into()),
            policy: Some(if like_kubelet { "lru" } else { "cost" }.into()),
            inodes_high: Some(if like_kubelet { 100 } else { 95 }),
            inodes_low: Some(90),
            out_of_reach_idle: Some(OUT_OF_REACH_IDLE_DEFAULT),
            critical: Some(CRITICAL_DEFAULT),
            keep: Some(Vec::new()),
            only_owned: Some(false),
            adopt_from: Some(KUBELET_ROOT.into()),
            lease_for: Some(if like_kubelet { GoDuration(0) } else { LEASE_DEFAULT.max(ages.lease_least()) }),
            decisions: Some(DecisionsFile { bytes_max: Some("16Mi".into()) }),
        }
    }
}

/// Checks the section, in which every key has its value.
pub(super) fn check(
    file: &GcFile,
    compatibility: Compatibility,
    ages: Ages,
    complaints: &mut Complaints,
) -> Collection {
    let every = period("gc.period", file.period, complaints);
    let lease_for = lease(file.lease_for.unwrap_or_default(), compatibility, ages, complaints);
    Collection {
        period: file.enabled.unwrap_or(true).then_some(every),
        for_pulls: file.for_pulls.unwrap_or_default(),
        mode: mode(file.mode.as_deref(), complaints),
        order: order(file.policy.as_deref(), compatibility, complaints),
        inodes: inodes(file, complaints),
        relief: relief(file, complaints),
        keep: keep(file.keep.as_deref().unwrap_or_default(), complaints),
        only_owned: file.only_owned.unwrap_or_default(),
        adopt_from: adopt_from(file.adopt_from.as_deref().unwrap_or_default(), complaints),
        lease_for: lease_for.to_std(),
        decisions_max: decisions(file.decisions.as_ref(), complaints),
    }
}

fn lease(lease_for: GoDuration, compatibility: Compatibility, ages: Ages, complaints: &mut Complaints) -> GoDuration {
    const KEY: &str = "gc.leaseFor";
    let Ages { age_min, detection } = ages;
    if !(GoDuration(0)..=LEASE_MAX).contains(&lease_for) {
        complaints.add(KEY, format!("{KEY} {lease_for} must be between 0s and {LEASE_MAX}, inclusive"));
    } else if lease_for.0 == 0 {
        // There are none.
    } else if compatibility.is_kubelet() {
        complaints.add_of(
            &[KEY, "compatibility"],
            format!("{KEY} {lease_for} does not go with compatibility `kubelet`, which holds an image by its minimum age alone"),
        );
    } else if lease_for < ages.lease_least() {
        complaints.add_of(
            &[KEY, "detection.period", "imageMinimumGCAge"],
            format!("{KEY} {lease_for} must be 0s, or no shorter than detection.period {detection} and imageMinimumGCAge {age_min}"),
        );
    }
    lease_for
}

fn adopt_from(text: &str, complaints: &mut Complaints) -> Option<PathBuf> {
    const KEY: &str = "gc.adoptFrom";
    if text.is_empty() {
        return None;
    }
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        complaints.add(KEY, format!("{KEY} `{text}` must be an absolute path, or empty"));
    }
    Some(path)
}

fn mode(text: Option<&str>, complaints: &mut Complaints) -> CollectionMode {
    match text {
        None | Some("enforce") => CollectionMode::Enforce,
        Some("shadow") => CollectionMode::Shadow,
        Some(other) => {
            complaints.add("gc.mode", format!("gc.mode `{other}` must be one of [\"enforce\", \"shadow\"]"));
            CollectionMode::default()
        }
    }
}

fn order(text: Option<&str>, compatibility: Compatibility, complaints: &mut Complaints) -> CollectionOrder {
    match (text, compatibility) {
        (Some("cost"), Compatibility::Kubelet) => {
            complaints.add_of(
                &["gc.policy", "compatibility"],
                "gc.policy `cost` does not go with compatibility `kubelet`, whose policy is `lru`",
            );
            CollectionOrder::Lru
        }
        (None | Some("cost"), _) => CollectionOrder::Cost,
        (Some("lru"), _) => CollectionOrder::Lru,
        (Some(other), _) => {
            complaints.add("gc.policy", format!("gc.policy `{other}` must be one of [\"cost\", \"lru\"]"));
            CollectionOrder::default()
        }
    }
}

fn inodes(file: &GcFile, complaints: &mut Complaints) -> Option<InodeMarks> {
    const HIGH: &str = "gc.inodesHighPercent";
    const LOW: &str = "gc.inodesLowPercent";
    let (high, low) = (file.inodes_high.unwrap_or(100), file.inodes_low.unwrap_or_default());
    let mut is_sound = true;
    for (key, value, least) in [(HIGH, high, 1), (LOW, low, 0)] {
        if !(least..=100).contains(&value) {
            complaints.add(key, format!("{key} {value} must be between {least} and 100, inclusive"));
            is_sound = false;
        }
    }
    if !is_sound || high == 100 {
        return None;
    }
    if low >= high {
        complaints.add_of(&[LOW, HIGH], format!("{LOW} {low} must be less than {HIGH} {high}"));
        return None;
    }
    let percent = |value: i32| Percent::new(i64::from(value)).ok();
    Some(InodeMarks { high: percent(high)?, low: percent(low)? })
}

fn relief(file: &GcFile, complaints: &mut Complaints) -> ReliefMarks {
    const IDLE: &str = "gc.outOfReachIdle";
    const CRITICAL: &str = "gc.critical";
    let idle_min = file.out_of_reach_idle.unwrap_or(OUT_OF_REACH_IDLE_DEFAULT);
    if idle_min.0 < 0 {
        complaints.add(IDLE, format!("{IDLE} {idle_min} must not be negative"));
    }
    let critical = file.critical.unwrap_or(CRITICAL_DEFAULT);
    if !(0..=100).contains(&critical) {
        complaints.add(CRITICAL, format!("{CRITICAL} {critical} must be between 0 and 100, inclusive"));
    }
    let critical = Percent::new(i64::from(critical.clamp(0, 100))).expect("it is a percentage");
    ReliefMarks { idle_min: idle_min.to_std(), critical }
}

/// One complaint for each rule that is none, at the line of the rule.
fn keep(rules: &[KeepFile], complaints: &mut Complaints) -> Vec<KeepRule> {
    const KEY: &str = "gc.keep";
    if rules.len() > KEEP_RULES_MAX {
        complaints.add(KEY, format!("{KEY} has {} rules, at most {KEEP_RULES_MAX} are kept to", rules.len()));
        return Vec::new();
    }
    let mut kept: Vec<KeepRule> = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        let place = format!("{KEY}[{index}]");
        let unused_max = rule.unused_max.unwrap_or_default();
        if unused_max.0 < 0 {
            complaints.add(place.clone(), format!("{place}: for {unused_max} must not be negative"));
            continue;
        }
        let text = KeepRuleText {
            repository: rule.repository.clone(),
            last_tags: rule.last_tags,
            label: rule.label.clone(),
            namespace: rule.namespace.clone(),
            image: rule.image.clone(),
            unused_max: rule.unused_max.map(GoDuration::to_std),
        };
        match KeepRule::try_from(text) {
            Ok(rule) if kept.contains(&rule) => {
                complaints.add(place.clone(), format!("{place}: `{rule}` stands there twice"));
            }
            Ok(rule) => kept.push(rule),
            Err(error) => complaints.add(place.clone(), format!("{place}: {error}")),
        }
    }
    kept
}

fn decisions(file: Option<&DecisionsFile>, complaints: &mut Complaints) -> Option<NonZeroU64> {
    const KEY: &str = "gc.decisions.maxBytes";
    let text = file.and_then(|file| file.bytes_max.as_deref()).unwrap_or("0");
    let size = match parse_size(text) {
        Ok(size) => size.0,
        Err(error) => {
            complaints.add(KEY, format!("{KEY}: {error}"));
            return None;
        }
    };
    if size != 0 && !(DECISIONS_LEAST..=DECISIONS_MOST).contains(&size) {
        complaints.add(KEY, format!("{KEY} `{text}` must be 0, or between 64Ki and 16Gi, inclusive"));
    }
    NonZeroU64::new(size)
}
