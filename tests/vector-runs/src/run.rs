//! The vectors in both ways: as the kubelet does it, and as imagelet does it where nothing is configured.

use std::{fmt::Write as _, vec::IntoIter};

use serde_json::Value;

use crate::{
    case::{VectorCase, Way, cases},
    differences,
};

/// One file's cases in one way. Findings are compared as a whole, so that no expected field is skipped.
#[derive(Debug)]
pub struct VectorRun {
    file: &'static str,
    way: Way,
    cases: IntoIter<VectorCase>,
    total: usize,
    compared: usize,
    wrong: Vec<String>,
}

impl VectorRun {
    /// All cases of a file, with the expected differences of this way.
    #[must_use]
    pub fn of(file: &'static str, way: Way) -> Self {
        Self::where_input(file, way, |_| true)
    }

    /// Cases of a file that no way affects: those whose input is the driver's own, where several drivers share the
    /// file.
    #[must_use]
    pub fn once(file: &'static str, is_mine: impl Fn(&Value) -> bool) -> Self {
        Self::where_input(file, Way::Shipped, is_mine)
    }

    fn where_input(file: &'static str, way: Way, is_mine: impl Fn(&Value) -> bool) -> Self {
        let mut cases = cases(file);
        cases.retain(|case| is_mine(&case.input));
        for case in &mut cases {
            differences::apply(file, way, case);
        }
        Self { file, way, total: cases.len(), cases: cases.into_iter(), compared: 0, wrong: Vec::new() }
    }

    /// The next case; `None` after the last.
    pub fn next_case(&mut self) -> Option<VectorCase> {
        self.cases.next()
    }

    /// Compares the findings of a case: exactly the expected fields.
    pub fn compare(&mut self, case: &VectorCase, found: &Value) {
        self.compared += 1;
        if *found != case.expected {
            let Self { file, way, .. } = self;
            let mut wrong = format!("{file} {way}: {}", case.name);
            describe(&mut wrong, "", &case.expected, found);
            self.wrong.push(wrong);
        }
    }

    /// Asserts that all cases were compared and met.
    pub fn end(self) {
        assert!(self.wrong.is_empty(), "{} of {}:\n{}", self.wrong.len(), self.total, self.wrong.join("\n"));
        assert_eq!(self.compared, self.total, "{} {}: all cases are compared", self.file, self.way);
        assert!(self.total > 0, "{}: no cases", self.file);
    }
}

/// Lists where two values differ: a line for the expected one, and one for the found one.
fn describe(text: &mut String, path: &str, expected: &Value, found: &Value) {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            for key in expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key))) {
                let of =
                    |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_else(|| "(absent)".into());
                describe(text, &format!("{path}/{key}"), &of(expected), &of(found));
            }
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => {
            for (place, (expected, found)) in expected.iter().zip(found).enumerate() {
                describe(text, &format!("{path}/{place}"), expected, found);
            }
        }
        _ if expected == found => {}
        _ => write!(text, "\n  {path}\n    expected {expected}\n    found    {found}").expect("a string takes all"),
    }
}
