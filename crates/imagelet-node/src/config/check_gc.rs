//! The rules of the section `gc`.

use std::{num::NonZeroU64, path::PathBuf};

use imagelet_core::{
    gc::{GcMarks, GcOrder, GcPolicy, KEEP_RULES_MAX, KeepRule, KeepRuleText, KeepRules, ReliefMarks},
    node_policy::NodePolicy,
    text::GoDuration,
};

use super::{
    keys_and_defaults::{File, GcKeys, KeepKeys, LEASE_MAX},
    settings::{Collection, CollectionMode},
    violations::Violations,
};

/// A shorter audit log would not hold one collection of a large node.
const DECISIONS_MIN: u64 = 64 << 10;
/// A longer one is a mistake in the unit.
const DECISIONS_MAX: u64 = 16 << 30;
/// A shorter period only wastes CPU time.
const PERIOD_MIN: GoDuration = GoDuration::seconds(1);

/// Completes the policy of the kubelet's keys.
pub(super) fn check(
    file: &File,
    policy: GcPolicy,
    node_policy: NodePolicy,
    found: &mut Violations,
) -> (GcPolicy, Collection) {
    let keys = &file.own.gc;
    found.rule(keys.period >= PERIOD_MIN, "gc.period", keys.period, format!("must be at least {PERIOD_MIN}"));
    lease(file, found);
    let idle_min = keys.out_of_reach_idle;
    found.rule(idle_min.0 >= 0, "gc.outOfReachIdle", idle_min, "must not be negative");
    let modes = [CollectionMode::Enforce, CollectionMode::Shadow].map(|mode| (mode.name(), mode));
    let orders = [("cost", GcOrder::Cost), ("lru", GcOrder::Lru)];
    if file.own.is_like_kubelet() && keys.policy == "cost" {
        found.add_of(
            &["gc.policy", "compatibility"],
            "gc.policy `cost` does not go with compatibility `kubelet`, whose policy is `lru`",
        );
    }
    let adopt_from = Some(PathBuf::from(&keys.adopt_from)).filter(|path| !path.as_os_str().is_empty());
    let is_root = adopt_from.as_ref().is_none_or(|path| path.is_absolute());
    found.rule(is_root, "gc.adoptFrom", format!("`{}`", keys.adopt_from), "must be an absolute path, or empty");
    let collection = Collection {
        period: keys.enabled.then(|| keys.period.to_std()),
        for_pulls: keys.for_pulls,
        mode: found.one_of("gc.mode", &keys.mode, modes),
        rules: KeepRules { keep: keep(&keys.keep, found), only_owned: keys.only_owned },
        adopt_from,
        lease_for: keys.lease_for.to_std(),
        decisions_max: decisions_max(&keys.decisions.max_bytes, found),
    };
    let order = found.one_of("gc.policy", &keys.policy, orders);
    let critical = found.percent("gc.critical", keys.critical, 0);
    let pressure_relief = Some(ReliefMarks { idle_min: idle_min.to_std(), critical });
    let own = GcPolicy { order, inodes: inodes(keys, found), pressure_relief, ..policy };
    let of_kubelet = GcPolicy { order: GcOrder::ListedSizes, rules: node_policy.gc, ..policy };
    (if file.own.is_like_kubelet() { of_kubelet } else { own }, collection)
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

/// One violation per invalid rule, at the rule's line.
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
        let text = KeepRuleText {
            repository: rule.repository.clone(),
            last_tags: rule.last_tags,
            label: rule.label.clone(),
            namespace: rule.namespace.clone(),
            image: rule.image.clone(),
            unused_max: rule.r#for.map(GoDuration::to_std),
        };
        match KeepRule::try_from(text) {
            Ok(rule) if valid.contains(&rule) => found.add(&place, format!("{place}: `{rule}` is there twice")),
            Ok(rule) => valid.push(rule),
            Err(error) => found.add(&place, format!("{place}: {error}")),
        }
    }
    valid
}

fn decisions_max(text: &str, found: &mut Violations) -> Option<NonZeroU64> {
    const KEY: &str = "gc.decisions.maxBytes";
    let size = found.size(KEY, text)?;
    let is_valid = size == 0 || (DECISIONS_MIN..=DECISIONS_MAX).contains(&size);
    found.rule(is_valid, KEY, format!("`{text}`"), "must be 0, or between 64Ki and 16Gi, inclusive");
    NonZeroU64::new(size)
}
