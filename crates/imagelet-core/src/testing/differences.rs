//! What imagelet does otherwise than the kubelet, as far as the vectors show it: the one table of it.
//!
//! A rule computes from a case what is expected in place of the kubelet's answer. A run of the vectors fails where that
//! does not come true, and where something differs that no rule speaks of.

mod cri;
mod gc;
mod pull;

use std::fmt::Write as _;

use serde_json::Value;

use super::vector_case::{VectorCase, Way, cases};

/// One difference, in all files that show it.
pub(super) struct Difference {
    /// What it is about.
    pub(super) about: &'static str,
    pub(super) kubelet: &'static str,
    pub(super) imagelet: &'static str,
    /// Why imagelet does otherwise.
    pub(super) reason: &'static str,
    /// In which ways.
    pub(super) ways: &'static [Way],
    /// What decides.
    pub(super) setting: &'static str,
    pub(super) files: &'static [&'static str],
    /// Puts what is expected in the place of what the kubelet does; a case that the rule does not concern stays as it is.
    pub(super) expect: fn(&mut VectorCase),
}

const SHIPPED: &[Way] = &[Way::Shipped];
const BOTH: &[Way] = &Way::BOTH;
const COMPATIBILITY: &str = "`compatibility`";

/// All of them. Later ones see what earlier ones expect.
pub(super) fn all() -> impl Iterator<Item = &'static Difference> {
    gc::DIFFERENCES.iter().chain(pull::DIFFERENCES).chain(cri::DIFFERENCES)
}

/// Turns what the kubelet does into what is expected in a way.
pub(super) fn apply(file: &str, way: Way, case: &mut VectorCase) {
    for difference in all().filter(|it| it.files.contains(&file) && it.ways.contains(&way)) {
        (difference.expect)(case);
    }
}

/// The table of all differences for the documents, with how many cases show each.
///
/// A rule that concerns no case of one of its files is refused: the table would name what is not so.
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

/// How many cases of a file are expected otherwise by a difference, once those before it are expected.
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
