//! The reader of configuration files, for the fuzz target that checks it.
//!
//! `crates/imagelet/tests/fuzz/` has the check. The program itself does not call this module.

use std::path::Path;

use serde_json::Value;

use crate::config::{ConfigError, Environment, Source, Sources};

/// What became of a configuration file.
#[derive(Debug, PartialEq)]
pub struct ReadConfiguration {
    /// The keys that the file sets, with value and line.
    pub given: Vec<(String, Value, usize)>,
    /// Why keys or values were refused.
    pub refusal: Option<String>,
    /// The checked settings as a text, or every violated rule.
    pub settings: Result<String, String>,
}

/// Reads a file of imagelet's own, or of a kubelet, as a daemon of root does.
pub fn read_configuration(path: &Path, is_kubelets: bool) -> ReadConfiguration {
    let mut sources = Sources::new(Environment { root: true, ..Environment::default() });
    let read = if is_kubelets { sources.add_kubelet_file(path) } else { sources.add_file(path) };
    let text = |error: ConfigError| error.to_string();
    let given = sources.effective().expect("keys that were accepted make a file").into_iter();
    ReadConfiguration {
        given: given
            .filter_map(|key| match key.source {
                Source::File(_, line) => Some((key.key, key.value, line)),
                _ => None,
            })
            .collect(),
        refusal: read.err().map(text),
        settings: sources.settings().map(|settings| format!("{settings:?}")).map_err(text),
    }
}
