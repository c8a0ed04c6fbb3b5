//! The pod selector of a spec: a label selector as in Kubernetes, and its rules.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::names::shown;

pub(super) const LABELS_MAX: usize = 32;
pub(super) const LABEL_LENGTH_MAX: usize = 317;
pub(super) const VALUES_MAX: usize = 64;

/// A pod must match all labels and requirements. An empty selector matches every pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PodSelector {
    pub(crate) match_labels: BTreeMap<String, String>,
    pub(super) match_expressions: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LabelRequirement {
    pub(super) key: String,
    pub(super) operator: LabelOperator,
    #[serde(default)]
    pub(super) values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum LabelOperator {
    In,
    /// Also matches a pod without the label.
    NotIn,
    Exists,
    DoesNotExist,
}

impl PodSelector {
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { match_labels, match_expressions } = self;
        for (field, count) in [("matchLabels", match_labels.len()), ("matchExpressions", match_expressions.len())] {
            if count > LABELS_MAX {
                return Err(format!("{field} has {count} items; there may be 0 to {LABELS_MAX}"));
            }
        }
        if let Some((key, value)) = match_labels.iter().find(|(key, value)| !is_label(key, value)) {
            return Err(format!("matchLabels: `{}` is no label", shown(&format!("{key}={value}"))));
        }
        match_expressions
            .iter()
            .enumerate()
            .try_for_each(|(position, it)| it.check().map_err(|why| format!("matchExpressions[{position}].{why}")))
    }

    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let is_met = |it: &LabelRequirement| {
            let value = labels.get(&it.key);
            match it.operator {
                LabelOperator::In => value.is_some_and(|value| it.values.contains(value)),
                LabelOperator::NotIn => value.is_none_or(|value| !it.values.contains(value)),
                LabelOperator::Exists => value.is_some(),
                LabelOperator::DoesNotExist => value.is_none(),
            }
        };
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(is_met)
    }
}

impl LabelRequirement {
    fn check(&self) -> Result<(), String> {
        let Self { key, operator, values } = self;
        if !is_label(key, "") {
            return Err(format!("key: `{}` is no label", shown(key)));
        }
        if let Some(value) = values.iter().find(|value| !is_label(key, value)) {
            return Err(format!("values: `{}` is no value of a label", shown(value)));
        }
        let is_listing = matches!(operator, LabelOperator::In | LabelOperator::NotIn);
        let (min, max) = if is_listing { (1, VALUES_MAX) } else { (0, 0) };
        let count = values.len();
        if !(min..=max).contains(&count) {
            return Err(format!("values has {count} items; with `{operator:?}` there may be {min} to {max}"));
        }
        Ok(())
    }
}

pub(super) fn is_label(key: &str, value: &str) -> bool {
    let is_short = |text: &str| text.len() <= LABEL_LENGTH_MAX && !text.chars().any(char::is_control);
    !key.is_empty() && is_short(key) && is_short(value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_selector_of_pods_means_what_it_means_in_kubernetes() {
        let labels = BTreeMap::from([("app", "web"), ("tier", "front")].map(|(key, value)| (key.into(), value.into())));
        let required = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, is_matched) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "tier": "back"}}), false),
            (json!({"matchLabels": {"other": "web"}}), false),
            (required("app", "In", json!(["api", "web"])), true),
            (required("app", "In", json!(["api"])), false),
            (required("other", "In", json!(["web"])), false),
            (required("app", "NotIn", json!(["web"])), false),
            (required("app", "NotIn", json!(["api"])), true),
            (required("other", "NotIn", json!(["api"])), true),
            (required("app", "Exists", json!([])), true),
            (required("other", "Exists", json!([])), false),
            (required("app", "DoesNotExist", json!([])), false),
            (required("other", "DoesNotExist", json!([])), true),
            (
                json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
                false,
            ),
        ] {
            let read: PodSelector = from_value(selector.clone()).unwrap();
            read.check().unwrap();
            assert_eq!(read.matches(&labels), is_matched, "{selector}");
        }
    }
}
