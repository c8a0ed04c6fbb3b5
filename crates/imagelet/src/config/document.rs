//! A configuration file as somebody wrote it: its text, the line of each key, and complaints that show both.

use std::{
    collections::BTreeMap,
    fmt,
    io::{ErrorKind, Read as _},
    os::unix::fs::FileTypeExt as _,
    path::Path,
    thread,
    time::Duration,
};

use imagelet_core::trusted_files;
use rustix::fs::{Mode, OFlags};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};
use tokio::time::Instant;

use super::{
    ConfigError, FILE_LENGTH_MAX,
    layers::{is_known, place},
};

/// So much of a line is repeated in a complaint about it.
const WRITTEN_MAX: usize = 80;
/// Values in a document, aliases followed. A kubelet's file has some hundred.
const NODES_MAX: usize = 20_000;
/// A complaint of the parser is cut here: it repeats what it does not know.
const MESSAGE_MAX: usize = 1_000;
/// Whoever writes into a pipe that is read as a file has this long.
const PIPE_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often such a pipe is looked at.
const PIPE_WAIT: Duration = Duration::from_millis(10);

/// Reads a file of settings.
///
/// # Errors
/// When it cannot be read, is no file, is longer than [`FILE_LENGTH_MAX`], is empty, or is no UTF-8. An empty file is
/// what a writer leaves that was interrupted; who wants nothing but defaults names no file.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let complaint = |line, message: &str| ConfigError::Parse { place: place(path, line), message: message.to_owned() };
    let bytes = read_bytes(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > FILE_LENGTH_MAX {
        return Err(complaint(None, &format!("longer than {FILE_LENGTH_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        complaint(Some(good.split(|byte| *byte == b'\n').count()), "this is no UTF-8 text")
    })?;
    if text.trim().is_empty() {
        return Err(complaint(None, "the file is empty"));
    }
    Ok(text)
}

/// Never waits for long: a pipe nobody writes to must not keep a daemon from hearing its signals.
fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let began = Instant::now();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if !(kind.is_file() || kind.is_dir() || kind.is_fifo()) {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "this is no file"));
    }
    trusted_files::check(path, &file)?;
    let mut bytes = Vec::new();
    let mut rest = file.take(FILE_LENGTH_MAX + 1);
    loop {
        match rest.read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < PIPE_WAIT_MAX => {
                thread::sleep(PIPE_WAIT);
            }
            Err(error) => return Err(error),
            Ok(_) => return Ok(bytes),
        }
    }
}

/// Reads a document, which may refer to its own parts, but not make much of little by it.
///
/// # Errors
/// With the place of what is wrong.
pub(super) fn parse<'a, T: Deserialize<'a>>(path: &Path, text: &'a str) -> Result<T, ConfigError> {
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| parse_error(path, text, &error))
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! { budget: serde_saphyr::budget! { max_nodes: NODES_MAX } }
}

/// What the parser could not take.
fn parse_error(path: &Path, text: &str, error: &serde_saphyr::Error) -> ConfigError {
    let location = error.location();
    let line = location.and_then(|location| usize::try_from(location.line()).ok()).filter(|line| *line > 0);
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or_default();
    // The place stands in front already; what stands there tells which key it is.
    let message = message.split(" at line ").next().unwrap_or_default();
    let message =
        if message.starts_with("budget breached") { "too much is in it, or comes of its aliases" } else { message };
    // The parser speaks to programmers about its options.
    let message = message.split(", set DuplicateKeyPolicy").next().unwrap_or_default();
    let message = message.split("; use from_str").next().unwrap_or_default();
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let written = match location {
        // The message names it already, and what follows it may be anything, also somebody's secret.
        _ if message.starts_with("unknown field") => String::new(),
        Some(location) => written(text, location),
        None => String::new(),
    };
    let shown = if written.is_empty() { String::new() } else { format!(" in `{written}`") };
    ConfigError::Parse { place: place(path, line), message: format!("{message}{shown}") }
}

/// What stands there, as far as it is a setting of ours: a wrong file may hold secrets.
fn written(text: &str, location: Location) -> String {
    let whole = usize::try_from(location.line()).ok().and_then(|line| text.lines().nth(line.checked_sub(1)?));
    let whole = whole.unwrap_or_default().trim();
    let key = whole.split(':').next().unwrap_or_default().trim_matches(['"', '\'', ' ', '{', '-', '?']);
    if !is_known(key) {
        return key.chars().take(WRITTEN_MAX).collect();
    }
    // Behind a comma another key may follow.
    let setting = whole.split(',').next().unwrap_or_default();
    setting.chars().take(WRITTEN_MAX).collect()
}

/// On which line each key of a document stands, and what is written as a text.
#[derive(Debug, Default)]
pub(super) struct Lines {
    keys: BTreeMap<String, (usize, bool)>,
}

impl Lines {
    /// Looks through a document; one that is broken has no lines.
    pub(super) fn of(text: &str) -> Self {
        let mut lines = Self::default();
        if let Ok(node) = serde_saphyr::from_str_with_options::<Node>(text, options()) {
            lines.add("", node);
        }
        lines
    }

    fn add(&mut self, above: &str, node: Node) {
        match node {
            Node::Fields(fields) => {
                for (name, line, value) in fields {
                    let key = if above.is_empty() { name } else { format!("{above}.{name}") };
                    self.keys.insert(key.clone(), (line, matches!(value, Node::Text)));
                    self.add(&key, value);
                }
            }
            Node::List(entries) => {
                for (index, line) in entries.into_iter().enumerate() {
                    self.keys.insert(format!("{above}[{index}]"), (line, false));
                }
            }
            Node::Text | Node::Other => {}
        }
    }

    /// The line that sets a key, with dots between the levels.
    pub(super) fn line(&self, key: &str) -> Option<usize> {
        self.keys.get(key).map(|(line, _)| *line).filter(|line| *line > 0)
    }

    /// Whether a text is written there, such as `"80"`, which is no number.
    pub(super) fn is_text(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|(_, text)| *text)
    }
}

/// A document of which only keys and lines are of interest.
#[derive(Debug)]
enum Node {
    Fields(Vec<(String, usize, Node)>),
    /// The lines of its entries.
    List(Vec<usize>),
    Text,
    Other,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let line = usize::try_from(key.referenced.line()).unwrap_or_default();
            fields.push((key.value, line, map.next_value()?));
        }
        Ok(Node::Fields(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut lines = Vec::new();
        while let Some(entry) = list.next_element::<Spanned<IgnoredAny>>()? {
            lines.push(usize::try_from(entry.referenced.line()).unwrap_or_default());
        }
        Ok(Node::List(lines))
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Text)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_none<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_the_line_it_stands_on() {
        let text = "# a comment\nstore: {directory: /s, limits: {entriesMax: 5}}\ngc:\n  period: 1s\n\
                    detection:\n\n  # another\n  \"period\": '1m'\npreloadedImagesVerificationAllowlist:\n  - a\n";
        let lines = Lines::of(text);
        for (key, line) in [
            ("store", 2),
            ("store.limits.entriesMax", 2),
            ("gc.period", 4),
            ("detection", 5),
            ("detection.period", 8),
            ("preloadedImagesVerificationAllowlist", 9),
            ("preloadedImagesVerificationAllowlist[0]", 10),
        ] {
            assert_eq!(lines.line(key), Some(line), "{key}");
        }
        assert_eq!(lines.line("period"), None);
        let json = "{\n  \"store\": {\n    \"layersInFlight\": \"2\"},\n \"registryBurst\": 2}";
        assert_eq!(Lines::of(json).line("store.layersInFlight"), Some(3));
        assert!(Lines::of(json).is_text("store.layersInFlight") && !Lines::of(json).is_text("registryBurst"));
        assert_eq!(Lines::of("store: {").line("store"), None);
    }

    #[test]
    fn a_complaint_does_not_repeat_what_is_no_setting() {
        for text in [
            "{\"auths\": {\"r\": {\"auth\": \"s3cr3t\"}}}",
            "data:\n  .dockerconfigjson: s3cr3t\n",
            "kind: [s3cr3t]\n",
            "store: {directory: /s, password: s3cr3t\n",
            "auths:\n\tr: s3cr3t\n",
        ] {
            let Err(error) = serde_saphyr::from_str::<super::super::File>(text) else { panic!("accepted: {text}") };
            let told = parse_error(Path::new("f"), text, &error).to_string();
            assert!(told.starts_with("f:"), "{told}");
            assert!(!told.contains("s3cr3t") || text.starts_with("kind"), "{told}");
        }
    }

    #[test]
    fn a_pipe_nobody_writes_to_is_no_file_to_wait_for() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        let error = read(&path).expect_err("refused").to_string();
        assert!(error.contains("empty"), "{error}");
    }
}
