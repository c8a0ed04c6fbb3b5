//! Reads a YAML file as a tree of values with their lines.

use std::{
    collections::HashSet,
    fmt,
    io::{ErrorKind, Read as _},
    os::unix::fs::FileTypeExt as _,
    path::Path,
    thread,
    time::Duration,
};

use imagelet_core::{image::ByteSize, trusted_files};
use rustix::fs::{Mode, OFlags};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};
use tokio::time::Instant;

use super::violations::ConfigError;

const FILE_LENGTH_MAX: u64 = 1 << 20;
/// Limit of the values of a document, after aliases are expanded. A kubelet's file has a few hundred values.
const NODES_MAX: usize = 20_000;
const PIPE_WAIT_MAX: Duration = Duration::from_secs(2);
const PIPE_WAIT: Duration = Duration::from_millis(10);

/// A value and its line: the line of the key or, in a list, of the entry.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) line: usize,
    pub(super) node: Node,
}

#[derive(Debug)]
pub(super) enum Node {
    Map(Vec<(String, Located)>),
    List(Vec<Located>),
    Scalar(Value),
}

impl Located {
    /// The value without lines. Keys without a value are omitted.
    pub(super) fn value(&self) -> Value {
        match &self.node {
            Node::Map(fields) => {
                let given = fields.iter().filter(|(_, field)| !matches!(field.node, Node::Scalar(Value::Null)));
                Value::Object(given.map(|(key, field)| (key.clone(), field.value())).collect::<Map<_, _>>())
            }
            Node::List(entries) => entries.iter().map(Self::value).collect(),
            Node::Scalar(value) => value.clone(),
        }
    }
}

/// Reads a mapping. `is_lenient`: as in the kubelet, the first document and the last value of a repeated key count.
pub(super) fn read_mapping(path: &Path, is_lenient: bool) -> Result<Vec<(String, Located)>, ConfigError> {
    let text = read(path)?;
    let duplicate_keys = if is_lenient { DuplicateKeyPolicy::LastWins } else { DuplicateKeyPolicy::Error };
    let budget = serde_saphyr::budget! { max_nodes: NODES_MAX };
    let options = serde_saphyr::options! { budget: budget, duplicate_keys: duplicate_keys };
    let node = if is_lenient {
        serde_saphyr::read_with_options(&mut text.as_bytes(), options).next().unwrap_or(Ok(Node::Scalar(Value::Null)))
    } else {
        serde_saphyr::from_str_with_options(&text, options)
    };
    match node {
        Ok(Node::Map(fields)) => Ok(fields),
        Ok(Node::Scalar(Value::Null)) => Ok(Vec::new()),
        Ok(_) => Err(ConfigError::at(path, Some(1), "the document is not a mapping")),
        Err(error) => {
            let line = error.location().and_then(|location| usize::try_from(location.line()).ok());
            Err(ConfigError::at(path, line.filter(|line| *line > 0), &message(&error)))
        }
    }
}

fn message(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let text = text.lines().next().unwrap_or_default();
    if text.starts_with("budget breached") {
        return "the document is too large, or becomes so by its aliases".into();
    }
    let ends = [" at line ", " rejected by the configured", ", set DuplicateKeyPolicy", "; use from_str", ". If you"];
    ends.iter().fold(text, |text, end| text.split(end).next().unwrap_or_default()).to_owned()
}

/// Reads a file as text. An empty file is rejected, because an interrupted write leaves an empty file.
fn read(path: &Path) -> Result<String, ConfigError> {
    let bytes = read_bytes(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > FILE_LENGTH_MAX {
        return Err(ConfigError::at(path, None, &format!("longer than {}", ByteSize(FILE_LENGTH_MAX))));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        ConfigError::at(path, Some(good.split(|byte| *byte == b'\n').count()), "this is no UTF-8 text")
    })?;
    if text.trim().is_empty() {
        return Err(ConfigError::at(path, None, "the file is empty"));
    }
    Ok(text)
}

/// A pipe must not block the daemon's signal handling, so the wait for a pipe has a limit.
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

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping, a list, a text, a number or a boolean")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields: Vec<(String, Located)> = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let line = usize::try_from(key.referenced.line()).unwrap_or_default();
            fields.push((key.value, Located { line, node: map.next_value()? }));
        }
        // If the parser permits repeated keys, the last value wins.
        let mut seen = HashSet::new();
        fields.reverse();
        fields.retain(|(key, _)| seen.insert(key.clone()));
        fields.reverse();
        Ok(Node::Map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = list.next_element::<Spanned<Node>>()? {
            let line = usize::try_from(entry.referenced.line()).unwrap_or_default();
            entries.push(Located { line, node: entry.value });
        }
        Ok(Node::List(entries))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Scalar(text.into()))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Scalar(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Scalar(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Scalar(number.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }
}
