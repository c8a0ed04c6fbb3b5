//! The vectors in both ways: as the kubelet does it, and as imagelet does it where nothing is configured.

use std::{
    fmt::{self, Write as _},
    num::NonZeroUsize,
    time::Duration,
    vec::IntoIter,
};

use serde_json::Value;

use super::{differences, vectors};
use crate::{
    gc::{AgeCounts, GcOrder, GcPolicy, GcWay, InodeMarks, ReliefMarks},
    image::Percent,
    manager::{Compatibility, PullRate, PullSettings},
    records::Guard,
};

/// Which configuration a vector is run under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `compatibility: kubelet`.
    Kubelet,
    /// What is shipped: no configuration at all.
    Shipped,
}

impl Way {
    /// Each of them.
    pub const BOTH: [Self; 2] = [Self::Kubelet, Self::Shipped];

    /// What `compatibility` is.
    pub fn compatibility(self) -> Compatibility {
        match self {
            Self::Kubelet => Compatibility::Kubelet,
            Self::Shipped => Compatibility::default(),
        }
    }

    /// How the daemon pulls.
    pub fn pull_settings(self) -> PullSettings {
        PullSettings {
            slots: NonZeroUsize::new(1),
            rate: Some(PullRate { qps: 5.0, burst: 10 }),
            grace: Duration::from_secs(2),
            compatibility: self.compatibility(),
            ..PullSettings::default()
        }
    }

    /// What a pull guards that was begun.
    pub fn guard(self) -> Guard {
        match self {
            Self::Kubelet => Guard::Spelling,
            Self::Shipped => Guard::Image,
        }
    }

    /// These thresholds and ages, with all else as the program has it in this way.
    #[must_use]
    pub fn collecting(self, policy: GcPolicy) -> GcPolicy {
        let percent = |value| Percent::new(value).expect("a percentage");
        match self {
            Self::Kubelet => policy.in_order(GcOrder::Lru).counting(AgeCounts::FromUse).in_way(GcWay::Kubelet),
            Self::Shipped => {
                let relief = ReliefMarks { idle_min: Duration::from_hours(1), critical: percent(95) };
                let inodes = InodeMarks::new(percent(95), percent(90));
                policy.in_order(GcOrder::Cost).watching_inodes(Some(inodes)).relieving(Some(relief))
            }
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubelet => "in the kubelet's way",
            Self::Shipped => "as shipped",
        })
    }
}

/// A case with what is expected of it in one way.
#[derive(Clone, Debug)]
pub struct VectorCase {
    /// Its name in the file.
    pub name: String,
    /// What it is about.
    pub input: Value,
    /// All that is to be found.
    pub expected: Value,
}

/// One file's cases in one way. Each case's findings are compared as a whole, so that no expected field is unread.
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

    /// Cases of a file that is about what no way decides: those whose input is the driver's own, where several drivers
    /// share the file.
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

    /// Takes what was found of a case: exactly the fields that are expected.
    pub fn compare(&mut self, case: &VectorCase, found: &Value) {
        self.compared += 1;
        if *found != case.expected {
            let Self { file, way, .. } = self;
            let mut wrong = format!("{file} {way}: {}", case.name);
            describe(&mut wrong, "", &case.expected, found);
            self.wrong.push(wrong);
        }
    }

    /// All cases were compared, and each was as expected.
    pub fn end(self) {
        assert!(self.wrong.is_empty(), "{} of {}:\n{}", self.wrong.len(), self.total, self.wrong.join("\n"));
        assert_eq!(self.compared, self.total, "{} {}: all cases are compared", self.file, self.way);
        assert!(self.total > 0, "{}: no cases", self.file);
    }
}

/// Where two values differ: a line for what is expected, and one for what is found.
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

/// The cases of a file as the kubelet has them.
pub(super) fn cases(file: &str) -> Vec<VectorCase> {
    let case = |mut case: Value| VectorCase {
        name: case["name"].as_str().expect("each case has a name").to_owned(),
        input: case["input"].take(),
        expected: case["expected"].take(),
    };
    vectors(file).into_iter().map(case).collect()
}
