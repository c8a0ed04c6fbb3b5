//! The service of a node: pulls, images, collection and status behind one HTTP/JSON interface, with dashboard and jobs.
//!
//! [`serve`] builds a node and runs the daemon. [`node`] calls a node, in this process or behind a socket.

#[macro_use]
pub mod api;
pub mod config;
mod connections;
pub mod durations;
pub mod failure;
pub mod http;
mod jobs;
pub mod nearest;
pub mod node;
pub mod serve;
pub mod size;
mod traces;

/// The parser of configuration files, for the fuzz target `crates/imagelet/tests/fuzz/configuration.rs`.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    use std::path::Path;

    use serde_json::Value;

    use crate::config::{ConfigError, Environment, Source, Sources};

    #[derive(Debug, PartialEq)]
    pub struct ReadConfiguration {
        /// The keys that the file sets, with value and line.
        pub given: Vec<(String, Value, usize)>,
        /// Why keys or values were rejected.
        pub refusal: Option<String>,
        /// The checked settings as a text, or every violated rule.
        pub settings: Result<String, String>,
    }

    /// Reads a file of imagelet or of a kubelet, as a daemon run by root does.
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
}
