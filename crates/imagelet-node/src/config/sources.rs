//! Merges files and flags key by key, and records the source of each value.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use imagelet_core::{text::GoDuration, trusted_files};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{
    check,
    environment::Environment,
    keys_and_defaults::{File, IGNORED, KubeletKeys, MAP, ZERO_IS_DEFAULT, ZERO_IS_MEANT},
    located_yaml::{Located, Node, read_mapping},
    settings::Settings,
    violations::{ConfigError, Violation, place},
};
use crate::nearest::nearest;

/// The values of this key may contain passwords.
const PROXIES: &str = "registry.proxies";
const KUBELET_KIND: &str = "KubeletConfiguration";
const DROP_INS_MAX: usize = 256;
const DROP_IN_DEPTH_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    File(PathBuf, usize),
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => f.write_str(&place(path, Some(*line))),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sourced {
    pub key: String,
    pub value: Value,
    #[serde(serialize_with = "as_text")]
    pub source: Source,
}

fn as_text<S: Serializer>(source: &Source, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(source)
}

#[derive(Clone, Debug)]
struct Given {
    value: Value,
    source: Source,
    entry_lines: Vec<usize>,
}

/// All configured values. A later source overrides an earlier source key by key.
#[derive(Clone, Debug)]
pub struct Sources {
    environment: Environment,
    given: BTreeMap<String, Given>,
    /// Keys with a rejected value. Their rules are not checked, because only the default value is known.
    refused: BTreeSet<String>,
}

impl Sources {
    pub fn new(environment: Environment) -> Self {
        Self { environment, given: BTreeMap::new(), refused: BTreeSet::new() }
    }

    /// Adds all valid keys. The error lists every rejected key and value, or says why the file is unreadable.
    pub fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let fields = read_mapping(path, false)?;
        let mut reader = Reader::new(path, true);
        reader.add_fields("", &fields, &to_value(&File::default()));
        reader.refuse_unasked_runtime();
        self.take(reader)
    }

    fn take(&mut self, reader: Reader<'_>) -> Result<(), ConfigError> {
        self.given.extend(reader.given);
        self.refused.extend(reader.refused);
        ConfigError::all(reader.errors)
    }

    pub fn add_kubelet_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        self.take(kubelet_keys(path)?)
    }

    /// Merges the `*.conf` files of a kubelet's `--config-dir` in name order, by RFC 7396. A null removes its key.
    pub fn add_kubelet_folder(&mut self, folder: &Path) -> Result<(), ConfigError> {
        let mut paths = Vec::new();
        drop_ins(folder, 0, &mut paths).map_err(|source| ConfigError::Read { path: folder.to_owned(), source })?;
        let merged = paths.iter().map(|path| self.merge(kubelet_keys(path)?));
        ConfigError::all(merged.filter_map(Result::err).collect())
    }

    fn merge(&mut self, reader: Reader<'_>) -> Result<(), ConfigError> {
        for taken_back in &reader.absent {
            let is_below = |key: &str| key.strip_prefix(taken_back).is_some_and(|rest| rest.starts_with('.'));
            self.given.retain(|key, _| key != taken_back && !is_below(key));
        }
        self.take(reader)
    }

    pub fn add_flag(&mut self, flag: &'static str, key: &str, value: impl Into<Value>) {
        let given = Given { value: value.into(), source: Source::Flag(flag), entry_lines: Vec::new() };
        self.given.insert(key.to_owned(), given);
    }

    pub fn runtime_of_file(&self) -> Option<(&str, &Source)> {
        let Given { value, source, .. } = self.given.get("imageService.cri.endpoint")?;
        Some((value.as_str().filter(|endpoint| !endpoint.is_empty())?, source))
    }

    pub fn has_node(&self) -> bool {
        let name = self.given.get("kubernetes.nodeName").and_then(|given| given.value.as_str());
        name.is_some_and(|name| !name.is_empty())
    }

    /// Returns a warning if every user can read a file that contains the password of a proxy.
    pub fn exposed_password(&self) -> Option<String> {
        let Given { value, source: Source::File(path, _), .. } = self.given.get(PROXIES)? else { return None };
        let mut entries = value.as_array()?.iter();
        let mode = fs::metadata(path).ok()?.mode();
        let is_exposed =
            trusted_files::is_public(mode) && entries.any(|entry| entry["proxy"].as_str().is_some_and(has_password));
        let path = path.display();
        is_exposed.then(|| {
            format!(
                "`{path}` holds the password of a proxy, and every user may read it (mode {:04o}): chmod o-r {path}, or \
                 use `passwordFile`",
                mode & 0o7777
            )
        })
    }

    fn file(&self) -> Result<File, ConfigError> {
        let mut tree = to_value(&File::defaults(&self.environment));
        for (key, given) in &self.given {
            *key.split('.').fold(&mut tree, |node, name| &mut node[name]) = given.value.clone();
        }
        let mut file: File = serde_json::from_value(tree)
            .map_err(|error| ConfigError::Invalid(vec![format!("invalid configuration: {error}")]))?;
        file.derive_defaults(|key| self.given.contains_key(key));
        Ok(file)
    }

    pub fn effective(&self) -> Result<Vec<Sourced>, ConfigError> {
        let leaves = leaves(&self.file()?);
        let source = |key: &str| self.given.get(key).map_or(Source::Default, |given| given.source.clone());
        Ok(leaves.into_iter().map(|(key, value)| Sourced { source: source(&key), key, value }).collect())
    }

    pub fn settings(&self) -> Result<Settings, ConfigError> {
        check::check(&self.file()?, &self.environment).map_err(|violations| {
            let text = |Violation { keys, message }: Violation| match keys.iter().find_map(|key| self.source(key)) {
                None => message,
                Some(source) => format!("{source}: {message}"),
            };
            let is_judged = |violation: &Violation| !violation.keys.iter().any(|key| self.refused.contains(key));
            ConfigError::Invalid(violations.into_iter().filter(is_judged).map(text).collect())
        })
    }

    /// Fails with every rule that the accepted keys violate. Rejected keys are reported when their file is read.
    pub fn violations(&self) -> Result<(), ConfigError> {
        match self.settings() {
            Err(ConfigError::Invalid(lines)) if lines.is_empty() => Ok(()),
            other => other.map(drop),
        }
    }

    /// The source of a key; `key[2]` is the third entry of a list.
    fn source(&self, key: &str) -> Option<Source> {
        let (list, entry) = key.split_once('[').unwrap_or((key, ""));
        let given = self.given.get(list)?;
        let entry = entry.trim_end_matches(']').parse().ok().and_then(|index: usize| given.entry_lines.get(index));
        Some(match (&given.source, entry) {
            (Source::File(path, _), Some(line)) => Source::File(path.clone(), *line),
            (source, _) => source.clone(),
        })
    }
}

fn has_password(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
    user.split_once(':').is_some_and(|(_, password)| !password.is_empty())
}

fn kubelet_keys(path: &Path) -> Result<Reader<'_>, ConfigError> {
    let fields = read_mapping(path, true)?;
    let kind = fields.iter().find(|(key, _)| key == "kind").map(|(_, kind)| kind);
    if kind.is_none_or(|kind| kind.value() != KUBELET_KIND) {
        let message = format!("this is not a `{KUBELET_KIND}`");
        return Err(ConfigError::at(path, kind.map(|kind| kind.line), &message));
    }
    let mut reader = Reader::new(path, false);
    reader.add_fields("", &fields, &to_value(&KubeletKeys::default()));
    Ok(reader)
}

/// The order of the drop-ins is that of a kubelet.
fn drop_ins(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> io::Result<()> {
    trusted_files::check_folder(folder)?;
    let entries = fs::read_dir(folder)?.take(DROP_INS_MAX + 1).collect::<io::Result<Vec<_>>>()?;
    let mut entries =
        entries.iter().map(|entry| Ok((entry.path(), entry.file_type()?.is_dir()))).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    if entries.len() + found.len() > DROP_INS_MAX || depth > DROP_IN_DEPTH_MAX {
        return Err(io::Error::other(format!("it has more than {DROP_INS_MAX} files, or {DROP_IN_DEPTH_MAX} levels")));
    }
    for (path, is_folder) in entries {
        if is_folder {
            drop_ins(&path, depth + 1, found)?;
        } else if path.as_os_str().as_encoded_bytes().ends_with(b".conf") {
            found.push(path);
        }
    }
    Ok(())
}

struct Reader<'a> {
    path: &'a Path,
    /// On: imagelet's file, where a number is accepted as a text and an unknown key is rejected. Off: a kubelet's file.
    is_own: bool,
    given: BTreeMap<String, Given>,
    /// Keys without a value: they are null, or zero if zero means the default.
    absent: Vec<String>,
    refused: Vec<String>,
    errors: Vec<ConfigError>,
}

impl<'a> Reader<'a> {
    fn new(path: &'a Path, is_own: bool) -> Self {
        let (given, absent, refused, errors) = Default::default();
        Self { path, is_own, given, absent, refused, errors }
    }

    fn add_fields(&mut self, above: &str, fields: &[(String, Located)], schema: &Value) {
        for (name, field) in fields {
            let key = path_to(above, name);
            if IGNORED.contains(&&*key) {
                tracing::debug!(key, "the key says nothing about images and is ignored");
                continue;
            }
            let Some(schema) = schema.get(name) else {
                if !self.is_own {
                    continue;
                }
                let near = near_key(above, name, schema);
                let more = near.map_or_else(String::new, |near| format!("; `{near}` is near"));
                self.refuse(&key, field.line, &format!("unknown key `{name}`{more}"));
                continue;
            };
            match &field.node {
                Node::Scalar(Value::Null) => self.absent.push(key),
                _ if !schema.is_object() || key == MAP => self.add_leaf(key, field, schema),
                Node::Map(fields) => self.add_fields(&key, fields, schema),
                _ => self.refuse(&key, field.line, &format!("{key}: expected a mapping")),
            }
        }
    }

    fn add_leaf(&mut self, key: String, field: &Located, schema: &Value) {
        let mut value = field.value();
        if self.is_own && schema.is_string() && value.is_number() {
            value = value.to_string().into();
        }
        if let Err(error) = type_check(&key, value.clone()) {
            let whole = (key.clone(), field.line, error);
            let (part, line, error) = first_refused(&key, field, &|value| type_check(&key, value)).unwrap_or(whole);
            let mut error = error.to_string();
            if part.starts_with(PROXIES) {
                // The rejected value may be a URL with a password.
                error = error.split_once(" string ").map_or(error.as_str(), |(problem, _)| problem).to_owned();
            }
            return self.refuse(&key, line, &format!("{part}: {error}"));
        }
        let is_meant = self.is_own && key == ZERO_IS_MEANT;
        if ZERO_IS_DEFAULT.contains(&&*key) && is_zero(&value) && !is_meant {
            return self.absent.push(key);
        }
        let entry_lines = match &field.node {
            Node::List(entries) => entries.iter().map(|entry| entry.line).collect(),
            Node::Map(_) | Node::Scalar(_) => Vec::new(),
        };
        let source = Source::File(self.path.to_owned(), field.line);
        self.given.insert(key, Given { value, source, entry_lines });
    }

    /// Rejects `containerRuntimeEndpoint` in imagelet's file if imagelet does not use the runtime that the key names.
    fn refuse_unasked_runtime(&mut self) {
        const KEY: &str = "containerRuntimeEndpoint";
        let value = |key| self.given.get(key).map(|given| &given.value);
        if let Some(Given { value: named, source: Source::File(_, line), .. }) = self.given.get(KEY)
            && ![value("imageService.cri.endpoint"), value("store.runtimeEndpoint")].contains(&Some(named))
        {
            let message = format!(
                "{KEY}: the kubelet asks {named}, imagelet does not: set imageService.cri.endpoint to it to manage the \
                 images in that runtime, or store.runtimeEndpoint if it runs containers from imagelet's own store"
            );
            self.refuse(KEY, *line, &message);
        }
    }

    fn refuse(&mut self, key: &str, line: usize, message: &str) {
        self.refused.push(key.to_owned());
        self.errors.push(ConfigError::at(self.path, Some(line), message));
    }
}

fn near_key(above: &str, name: &str, schema: &Value) -> Option<String> {
    let known = schema.as_object().into_iter().flat_map(serde_json::Map::keys).map(String::as_str);
    if let Some(near) = nearest(name, known) {
        return Some(path_to(above, near));
    }
    let leaves = leaves(&File::default());
    let named: Vec<String> = leaves.into_keys().filter(|key| key.rsplit('.').next() == Some(name)).collect();
    (!named.is_empty()).then(|| named.join("` or `"))
}

fn type_check(key: &str, value: Value) -> Result<(), serde_json::Error> {
    let document = key.rsplit('.').fold(value, |below, name| json!({ name: below }));
    serde_json::from_value::<File>(document).map(drop)
}

/// The innermost invalid part of a value: its key, its line and the error.
fn first_refused(
    key: &str,
    located: &Located,
    check: &dyn Fn(Value) -> Result<(), serde_json::Error>,
) -> Option<(String, usize, serde_json::Error)> {
    let part = |key: String, part: &Located, check: &dyn Fn(Value) -> Result<(), serde_json::Error>| {
        first_refused(&key, part, check).or_else(|| Some((key, part.line, check(part.value()).err()?)))
    };
    match &located.node {
        Node::List(entries) if check(json!([])).is_ok() => entries
            .iter()
            .enumerate()
            .find_map(|(index, entry)| part(format!("{key}[{index}]"), entry, &|value| check(json!([value])))),
        Node::Map(fields) if check(json!({})).is_ok() => fields
            .iter()
            .find_map(|(name, field)| part(format!("{key}.{name}"), field, &|value| check(json!({ name: value })))),
        _ => None,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty() || text.parse() == Ok(GoDuration(0)),
        value => *value == 0,
    }
}

fn to_value(keys: &impl Serialize) -> Value {
    serde_json::to_value(keys).expect("keys are texts, numbers and lists")
}

fn path_to(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") }
}

fn leaves(file: &File) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    flatten(String::new(), to_value(file), &mut leaves);
    leaves
}

fn flatten(key: String, value: Value, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Null => {}
        Value::Object(fields) if key != MAP => {
            for (name, field) in fields {
                flatten(path_to(&key, &name), field, leaves);
            }
        }
        mut value => {
            for rule in value.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                rule.retain(|_, value| !value.is_null());
            }
            leaves.insert(key, value);
        }
    }
}
