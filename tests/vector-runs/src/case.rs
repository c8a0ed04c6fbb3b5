//! The cases of the vectors, and the two configurations under which they run.

use std::fmt;

use serde_json::Value;

use crate::vectors;

/// The configuration of a vector run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `compatibility: kubelet`.
    Kubelet,
    /// The defaults: no configuration at all.
    Shipped,
}

impl Way {
    /// Both ways.
    pub const BOTH: [Self; 2] = [Self::Kubelet, Self::Shipped];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubelet => "in the kubelet's way",
            Self::Shipped => "as shipped",
        })
    }
}

/// A case with its expectation in one way.
#[derive(Clone, Debug)]
pub struct VectorCase {
    /// Its name in the file.
    pub name: String,
    /// The input.
    pub input: Value,
    /// The complete expectation.
    pub expected: Value,
}

/// The cases of a file, as the kubelet's.
pub(crate) fn cases(file: &str) -> Vec<VectorCase> {
    let case = |mut case: Value| VectorCase {
        name: case["name"].as_str().expect("each case has a name").to_owned(),
        input: case["input"].take(),
        expected: case["expected"].take(),
    };
    vectors(file).into_iter().map(case).collect()
}
