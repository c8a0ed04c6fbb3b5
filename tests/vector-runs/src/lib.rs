//! The vectors: cases of what the kubelet, a runtime or a client does, and the runs that compare imagelet with them.

#![allow(clippy::missing_panics_doc, reason = "a test helper panics to fail its test")]

mod case;
mod differences;
mod run;

pub use case::{VectorCase, Way};
pub use differences::differences_table;
pub use run::VectorRun;
use serde_json::Value;

/// The cases of a file in `tests/vectors`.
pub fn vectors(file: &str) -> Vec<Value> {
    match vectors_document(file)["vectors"].take() {
        Value::Array(cases) => cases,
        other => panic!("{file}: `vectors` is {other}"),
    }
}

/// A whole vector file, for what its cases share.
pub fn vectors_document(file: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A text in double quotes with Go's escapes, as `%q` prints it.
pub fn go_quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            control if control.is_control() => quoted.extend(format!("\\x{:02x}", control as u32).chars()),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
