//! What imagelet does otherwise than the kubelet, as far as the vectors show it: the one table of it.
//!
//! A rule derives from a case the expectation that replaces the kubelet's answer. A run of the vectors fails where that
//! expectation is not met, and where something differs that no rule covers.

mod cri;
mod gc;
mod pull;

use std::fmt::Write as _;

use serde_json::Value;

use crate::case::{VectorCase, Way, cases};

pub(super) struct Difference {
    pub(super) about: &'static str,
    pub(super) kubelet: &'static str,
    pub(super) imagelet: &'static str,
    pub(super) reason: &'static str,
    pub(super) ways: &'static [Way],
    pub(super) setting: &'static str,
    pub(super) files: &'static [&'static str],
    /// Replaces the kubelet's answer by the expectation; a case outside the rule stays unchanged.
    pub(super) expect: fn(&mut VectorCase),
}

const SHIPPED: &[Way] = &[Way::Shipped];
const BOTH: &[Way] = &Way::BOTH;
const COMPATIBILITY: &str = "`compatibility`";

/// All differences, in order: a later one sees the expectations of earlier ones.
pub(super) fn all() -> impl Iterator<Item = &'static Difference> {
    gc::DIFFERENCES.iter().chain(pull::DIFFERENCES).chain(cri::DIFFERENCES)
}

/// Converts the kubelet's answer to the expectation of a way.
pub(super) fn apply(file: &str, way: Way, case: &mut VectorCase) {
    for difference in all().filter(|it| it.files.contains(&file) && it.ways.contains(&way)) {
        (difference.expect)(case);
    }
}

/// The table of all differences for the documents, with the number of cases of each.
///
/// Rejects a rule that applies to no case of one of its files, since the table would be wrong.
pub fn differences_table() -> String {
    let mut table = String::from(
        "| what | the kubelet, or the named runtime | imagelet | because | setting | cases |\n|---|---|---|---|---|---:|\n",
    );
    for it in all() {
        let shown: Vec<usize> = it.files.iter().map(|file| concerned(it, file)).collect();
        assert!(!shown.contains(&0), "no case of one of {:?} shows this: {}", it.files, it.about);
        let Difference { about, kubelet, imagelet, reason, setting, .. } = it;
        let cases: usize = shown.iter().sum();
        writeln!(table, "| {about} | {kubelet} | {imagelet} | {reason} | {setting} | {cases} |")
            .expect("a string takes all");
    }
    table
}

/// Number of cases of a file that a difference changes, after those before it are applied.
fn concerned(difference: &Difference, file: &str) -> usize {
    let mut concerned = 0;
    for mut case in cases(file) {
        for other in all().filter(|it| it.files.contains(&file) && it.ways.contains(&Way::Shipped)) {
            let before = case.expected.clone();
            (other.expect)(&mut case);
            if std::ptr::eq(other, difference) {
                concerned += usize::from(case.expected != before);
            }
        }
    }
    concerned
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
