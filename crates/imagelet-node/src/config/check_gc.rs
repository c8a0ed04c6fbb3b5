//! The rules of the section `gc`.

use std::num::{NonZeroU32, NonZeroU64};

use imagelet_core::{
    error::error_chain,
    gc::{GcMarks, GcOrder, GcPolicy, KEEP_RULES_MAX, KeepRule, KeepRules, KeepScope, ReliefMarks},
    image::Glob,
    inventory::PinError,
    node_policy::NodePolicy,
    text::{GoDuration, PlainError},
};

use super::{
    keys_and_defaults::{File, GcKeys, KeepKeys, LEASE_MAX},
    settings::CollectionSettings,
    violations::Violations,
};

/// A smaller audit log has no space for one collection of a large node.
const DECISIONS_MIN: u64 = 64 << 10;
/// A larger value probably has a wrong unit.
const DECISIONS_MAX: u64 = 16 << 30;
/// The maximum of `gc.keep[].lastTags`.
const LAST_TAGS_MAX: u32 = 10_000;
const PERIOD_MIN: GoDuration = GoDuration::seconds(1);

/// Builds the collection settings from the keys of `gc`. `policy` has the values of the kubelet's keys.
pub(super) fn check(
    file: &File,
    policy: GcPolicy,
    node_policy: NodePolicy,
    found: &mut Violations,
) -> CollectionSettings {
    let keys = &file.own.gc;
    let period = found.at_least("gc.period", keys.period, PERIOD_MIN);
    lease(file, found);
    let idle_min = found.not_negative("gc.outOfReachIdle", keys.out_of_reach_idle);
    if file.own.is_like_kubelet() && keys.policy == GcOrder::Cost {
        found.add_of(
            &["gc.policy", "compatibility"],
            "gc.policy `cost` does not go with compatibility `kubelet`, whose policy is `lru`",
        );
    }
    let pressure_relief = Some(ReliefMarks { idle_min, critical: found.percent("gc.critical", keys.critical, 0) });
    let own = GcPolicy { order: keys.policy, inodes: inodes(keys, found), pressure_relief, ..policy };
    let of_kubelet = GcPolicy { order: GcOrder::ListedSizes, rules: node_policy.gc, ..policy };
    CollectionSettings {
        policy: if file.own.is_like_kubelet() { of_kubelet } else { own },
        period: keys.enabled.then_some(period),
        for_pulls: keys.for_pulls,
        mode: keys.mode,
        rules: KeepRules { keep: keep(&keys.keep, found), only_owned: keys.only_owned },
        adopt_from: found.path("gc.adoptFrom", &keys.adopt_from),
        lease_for: keys.lease_for.to_std(),
        decisions_max: decisions_max(&keys.decisions.max_bytes, found),
    }
}

fn lease(file: &File, found: &mut Violations) {
    const KEY: &str = "gc.leaseFor";
    let (lease, detection, age_min) =
        (file.own.gc.lease_for, file.own.detection.period, file.kubelet.image_minimum_gc_age);
    if !(GoDuration(0)..=LEASE_MAX).contains(&lease) {
        found.between(KEY, &lease, GoDuration(0)..=LEASE_MAX);
    } else if lease.0 > 0 && file.own.is_like_kubelet() {
        let rule = "does not go with compatibility `kubelet`, which holds an image by its minimum age alone";
        found.add_of(&[KEY, "compatibility"], format!("{KEY} {lease} {rule}"));
    } else if lease.0 > 0 && lease < file.lease_min() {
        let rule = format!("no shorter than detection.period {detection} and imageMinimumGCAge {age_min}");
        found.add_of(&[KEY, "detection.period", "imageMinimumGCAge"], format!("{KEY} {lease} must be 0s, or {rule}"));
    }
}

fn inodes(keys: &GcKeys, found: &mut Violations) -> Option<GcMarks> {
    const HIGH: &str = "gc.inodesHighPercent";
    const LOW: &str = "gc.inodesLowPercent";
    let (high, low) =
        (found.percent(HIGH, keys.inodes_high_percent, 1), found.percent(LOW, keys.inodes_low_percent, 0));
    if keys.inodes_high_percent == 100 {
        return None;
    }
    if low >= high {
        found.add_of(
            &[LOW, HIGH],
            format!("{LOW} {} must be less than {HIGH} {}", keys.inodes_low_percent, keys.inodes_high_percent),
        );
    }
    Some(GcMarks::new(high, low))
}

/// Converts the keep rules. Each invalid rule adds one violation, at the line of the rule.
fn keep(rules: &[KeepKeys], found: &mut Violations) -> Vec<KeepRule> {
    if rules.len() > KEEP_RULES_MAX {
        found.add("gc.keep", format!("gc.keep has {} rules; the limit is {KEEP_RULES_MAX}", rules.len()));
        return Vec::new();
    }
    let mut valid: Vec<KeepRule> = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        let place = format!("gc.keep[{index}]");
        if let Some(age) = rule.r#for.filter(|age| age.0 < 0) {
            found.add(&place, format!("{place}: for {age} must not be negative"));
            continue;
        }
        match keep_rule(rule) {
            Ok(rule) if valid.contains(&rule) => found.add(&place, format!("{place}: `{rule}` is there twice")),
            Ok(rule) => valid.push(rule),
            Err(error) => found.add(&place, format!("{place}: {error}")),
        }
    }
    valid
}

/// Exactly one of `repository`, `label`, `namespace` and `image` must be set.
pub(super) fn keep_rule(rule: &KeepKeys) -> Result<KeepRule, PlainError> {
    let refused = |text: &str| Err(PlainError(text.to_owned()));
    if rule.r#for == Some(GoDuration(0)) {
        return refused("a rule that keeps for no time keeps nothing");
    }
    let scope = match (&rule.repository, rule.last_tags, &rule.label, &rule.namespace, &rule.image) {
        (None, Some(_), None, None, None) | (Some(_), None, None, None, None) => {
            return refused("`repository` and `lastTags` go together");
        }
        (Some(repository), Some(count), None, None, None) => {
            let number = u32::try_from(count).ok().filter(|count| *count <= LAST_TAGS_MAX);
            let number = number.and_then(NonZeroU32::new).ok_or_else(|| {
                PlainError(format!("lastTags {count} must be between 1 and {LAST_TAGS_MAX}, inclusive"))
            })?;
            KeepScope::LastTags { repository: glob("repository", repository)?, count: number }
        }
        (None, None, Some(label), None, None) => {
            let (key, value) = label.split_once('=').map_or((label.as_str(), None), |(key, value)| (key, Some(value)));
            if key.is_empty() || key.chars().any(|found| found.is_whitespace() || found.is_control()) {
                return refused(&format!("label `{label}` has no name, or one with blanks"));
            }
            KeepScope::Label { key: key.to_owned(), value: value.map(|value| glob("label", value)).transpose()? }
        }
        (None, None, None, Some(namespace), None) => KeepScope::Namespace(glob("namespace", namespace)?),
        (None, None, None, None, Some(image)) => {
            let parsed = image.parse();
            let refused = |error: PinError| PlainError(format!("image `{image}`: {}", error_chain(&error)));
            KeepScope::Image(parsed.map_err(refused)?)
        }
        _ => return refused("a rule has exactly one of `repository`, `label`, `namespace` and `image`"),
    };
    Ok(KeepRule { scope, unused_max: rule.r#for.map(GoDuration::to_std) })
}

fn glob(key: &'static str, text: &str) -> Result<Glob, PlainError> {
    Glob::new(text).map_err(|error| PlainError(format!("{key} `{text}`: {error}")))
}

fn decisions_max(text: &str, found: &mut Violations) -> Option<NonZeroU64> {
    const KEY: &str = "gc.decisions.maxBytes";
    let size = found.size(KEY, text)?;
    let is_valid = size == 0 || (DECISIONS_MIN..=DECISIONS_MAX).contains(&size);
    found.rule(is_valid, KEY, format!("`{text}`"), "must be 0, or between 64Ki and 16Gi, inclusive");
    NonZeroU64::new(size)
}
