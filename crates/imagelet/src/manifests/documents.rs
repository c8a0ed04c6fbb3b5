//! Splits and parses a file of manifests as kubectl does: YAML documents separated by `---`, or concatenated JSON.

use serde_json::{Value, value::RawValue};
use serde_saphyr::DuplicateKeyPolicy;

/// Maximum size of a manifest file in bytes. An operator's bundle has a few megabytes.
pub(crate) const FILE_LENGTH_MAX: usize = 8 << 20;
pub(super) const DOCUMENTS_MAX: usize = 10_000;
/// A pod template in a `CronJob` in a `List` has a dozen levels.
const DEPTH_MAX: usize = 48;
/// Maximum number of values in a file. A value that a YAML alias repeats counts again.
pub(super) const NODES_MAX: usize = 400_000;
const ALIASES_MAX: usize = 1_000;

pub(crate) struct Document {
    pub(crate) line: u64,
    pub(crate) read: Result<Value, String>,
    /// The number of a line that repeats a key. The key's last value applies. `None`: no key is repeated.
    pub(super) repeated: Option<u64>,
}

/// Decodes a file in UTF-8 or UTF-16, with or without a byte order mark. `None`: the file has another encoding.
pub(crate) fn decode(bytes: Vec<u8>) -> Option<String> {
    let wide = |bytes: &[u8], read: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| read([pair[0], pair[1]])).collect();
        String::from_utf16(&units).ok()
    };
    match &bytes[..] {
        [0xef, 0xbb, 0xbf, text @ ..] => String::from_utf8(text.to_vec()).ok(),
        [0xff, 0xfe, text @ ..] => wide(text, u16::from_le_bytes),
        [0xfe, 0xff, text @ ..] => wide(text, u16::from_be_bytes),
        // Without a byte order mark, the zero byte shows the order: a manifest starts with an ASCII character.
        [first, 0, ..] if *first != 0 => wide(&bytes, u16::from_le_bytes),
        [0, second, ..] if *second != 0 => wide(&bytes, u16::from_be_bytes),
        _ => String::from_utf8(bytes).ok(),
    }
}

pub(crate) fn documents(text: &str) -> Vec<Document> {
    let mut nodes_left = NODES_MAX;
    let mut found = Vec::new();
    for (line, part) in parts(text).into_iter().filter(|(_, part)| !part.lines().all(is_comment)) {
        if found.len() == DOCUMENTS_MAX {
            let read = Err(format!("is beyond the limit of {DOCUMENTS_MAX} documents"));
            found.push(Document { line, read, repeated: None });
            break;
        }
        let document = document(line, part, &mut nodes_left);
        if !matches!(document.read, Ok(Value::Null)) {
            found.push(document);
        }
    }
    found
}

fn parts(text: &str) -> Vec<(u64, &str)> {
    let (mut found, mut from, mut first, mut at) = (Vec::new(), 0, 1, 0);
    let mut end = |from: usize, to: usize, first| match concatenated(&text[from..to], first) {
        Some(parts) => found.extend(parts),
        None => found.push((first, &text[from..to])),
    };
    for (line, whole) in (1..).zip(text.split_inclusive('\n')) {
        let rest =
            whole.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        let is_other = whole.starts_with('%') || whole.trim_end() == "...";
        if rest.is_some() || is_other {
            end(from, at, first);
            from = at + if is_other { whole.len() } else { 3 };
            first = line + u64::from(is_other);
        }
        at += whole.len();
    }
    end(from, text.len(), first);
    found
}

/// Splits concatenated JSON into values, each with its line number. `None`: no JSON object or list is at the start.
fn concatenated(text: &str, first: u64) -> Option<Vec<(u64, &str)>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut found: Vec<(u64, &str)> = Vec::new();
    let mut objects = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let mut read = 0;
    while let Some(object) = objects.next() {
        let rest = text[read..].trim_start();
        let from = text.len() - rest.len();
        let line = first + text[..from].matches('\n').count() as u64;
        match object {
            Ok(object) => found.push((line, object.get())),
            Err(_) if found.is_empty() => return None,
            Err(_) => {
                found.push((line, rest));
                break;
            }
        }
        read = objects.byte_offset();
    }
    Some(found)
}

fn document(line: u64, text: &str, nodes_left: &mut usize) -> Document {
    let read = |duplicate_keys| {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_depth: DEPTH_MAX,
                max_documents: 1,
                max_nodes: *nodes_left,
                max_aliases: ALIASES_MAX,
                max_anchors: ALIASES_MAX,
                max_total_scalar_bytes: 2 * FILE_LENGTH_MAX,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: *nodes_left },
            duplicate_keys: duplicate_keys,
            with_snippet: false,
            // Only `true` and `false` are booleans. `on` and `no` are strings, for example names.
            strict_booleans: true,
        };
        serde_saphyr::from_str_with_options::<Option<Value>>(text, options)
    };
    let place = |error: &serde_saphyr::Error| {
        error.location().map(|found| found.line()).filter(|found| *found > 0).map(|found| line + found - 1)
    };
    let strict = read(DuplicateKeyPolicy::Error);
    let repeated = strict.as_ref().err().and_then(place);
    let read = strict.or_else(|_| read(DuplicateKeyPolicy::LastWins)).map_err(|error| {
        let place = place(&error).map_or_else(String::new, |line| format!(" in line {line}"));
        format!("does not read as YAML or JSON{place}, or has too many values")
    });
    let read = read.map(|value| {
        let mut value = value.unwrap_or_default();
        *nodes_left = nodes_left.saturating_sub(remove_nulls(&mut value));
        value
    });
    let line = line + text.lines().take_while(|line| is_comment(line)).count() as u64;
    Document { line, repeated: repeated.filter(|_| read.is_ok()), read }
}

fn is_comment(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with('#')
}

/// Removes fields with the value `null`, which mean the same as absent fields. Returns the number of remaining values.
fn remove_nulls(value: &mut Value) -> usize {
    1 + match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().map(remove_nulls).sum()
        }
        Value::Array(items) => items.iter_mut().map(remove_nulls).sum(),
        _ => 0,
    }
}
