//! Configuration errors: unreadable files, and values that violate a rule.

use std::{
    fmt::Display,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::{
    image::Percent,
    printable::{printable, printable_start},
    text::GoDuration,
};

use crate::size::parse_size;

const MESSAGE_MAX: usize = 1_000;

/// Why a configuration is invalid. Prints each violation on a line, with the location if known.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("could not read the configuration `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

impl ConfigError {
    pub fn all(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Invalid(errors.iter().map(ToString::to_string).collect())),
        }
    }

    /// An error at a line of a file. Text quoted from the file is truncated.
    pub(super) fn at(path: &Path, line: Option<usize>, message: &str) -> Self {
        Self::Invalid(vec![format!("{}: {}", place(path, line), printable_start(message, MESSAGE_MAX))])
    }
}

pub(super) fn place(path: &Path, line: Option<usize>) -> String {
    line.map_or_else(|| path.display().to_string(), |line| format!("{}:{line}", path.display()))
}

#[derive(Debug)]
pub(super) struct Violation {
    /// The keys of the violated rule. The location is that of the first key that a source sets.
    pub(super) keys: Vec<String>,
    pub(super) message: String,
}

#[derive(Debug, Default)]
pub(super) struct Violations(pub(super) Vec<Violation>);

impl Violations {
    pub(super) fn add(&mut self, key: &str, message: impl Display) {
        self.add_of(&[key], message);
    }

    pub(super) fn add_of(&mut self, keys: &[&str], message: impl Display) {
        self.add_bare(keys, &format!("invalid configuration: {message}"));
    }

    /// Adds one of the few messages that the kubelet prints without its usual prefix.
    pub(super) fn add_bare(&mut self, keys: &[&str], message: &str) {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.0.push(Violation { keys, message: printable(message) });
    }

    /// Adds `NAME VALUE RULE` if `holds` is false. NAME is the key, with its flag if the kubelet prints the flag.
    pub(super) fn rule(&mut self, holds: bool, name: &str, value: impl Display, rule: impl Display) {
        if !holds {
            self.add(name.split(' ').next().unwrap_or_default(), format!("{name} {value} {rule}"));
        }
    }

    pub(super) fn between<T: PartialOrd + Display>(&mut self, name: &str, value: &T, range: RangeInclusive<T>) {
        let rule = format!("must be between {} and {}, inclusive", range.start(), range.end());
        self.rule(range.contains(value), name, value, rule);
    }

    pub(super) fn percent(&mut self, name: &str, value: i32, min: i32) -> Percent {
        self.between(name, &value, min..=100);
        Percent::new(i64::from(value.clamp(0, 100))).expect("it is clamped")
    }

    pub(super) fn count(&mut self, key: &str, value: i32, range: RangeInclusive<i32>) -> u64 {
        self.between(key, &value, range);
        u64::try_from(value).unwrap_or_default()
    }

    pub(super) fn not_negative(&mut self, key: &str, duration: GoDuration) -> Duration {
        self.rule(duration.0 >= 0, key, duration, "must not be negative");
        duration.to_std()
    }

    pub(super) fn positive(&mut self, key: &str, duration: GoDuration) -> Duration {
        self.rule(duration.0 > 0, key, duration, "must be positive");
        duration.to_std()
    }

    pub(super) fn at_least(&mut self, key: &str, duration: GoDuration, min: GoDuration) -> Duration {
        self.rule(duration >= min, key, duration, format!("must be at least {min}"));
        duration.to_std()
    }

    pub(super) fn off_or_second(&mut self, key: &str, duration: GoDuration) -> Duration {
        let is_valid = duration.0 == 0 || duration >= GoDuration::seconds(1);
        self.rule(is_valid, key, duration, "must be 0, or at least 1s");
        duration.to_std()
    }

    pub(super) fn size(&mut self, key: &str, text: &str) -> Option<u64> {
        parse_size(text).map_err(|error| self.add(key, format!("{key}: {error}"))).ok().map(|size| size.0)
    }

    pub(super) fn path(&mut self, key: &str, path: &Path) -> Option<PathBuf> {
        let given = Some(path).filter(|path| !path.as_os_str().is_empty())?;
        self.absolute(key, given);
        Some(given.to_owned())
    }

    pub(super) fn absolute(&mut self, key: &str, path: &Path) {
        let has_nul = path.as_os_str().as_encoded_bytes().contains(&0);
        self.rule(path.is_absolute(), key, format!("`{}`", path.display()), "must be an absolute path");
        self.rule(!has_nul || !path.is_absolute(), key, "contains", "a NUL");
    }
}
