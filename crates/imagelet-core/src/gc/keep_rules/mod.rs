//! Rules of an operator about which images stay.

mod label_cache;
mod matching;
mod rule;
mod version_order;

pub use self::rule::{KEEP_RULES_MAX, KeepRule, KeepRuleError, KeepRuleText, KeepRules};
pub(super) use self::{label_cache::LabelCache, matching::held_by_rules};
