//! What Go says of a document it cannot read: the texts that stand in a pod's status (`spec/pull.md §6.3`).
//!
//! A text names at most one byte of the document and never a value, so that it may be shown.

use serde_json::Value;

use super::{DockerConfig, DockerConfigError, PullSecretKind};

/// Go refuses to nest deeper.
const DEPTH_MAX: usize = 10_000;

/// The complaint of the kubelet about a secret's document; `None` where it has none.
pub(crate) fn complaint(kind: PullSecretKind, document: &[u8]) -> Option<String> {
    if let Some(text) = syntax(document) {
        return Some(text);
    }
    match DockerConfig::parse(kind, document).err()? {
        DockerConfigError::Auth(error) => Some(error.to_string()),
        error => Some(types(kind, document).unwrap_or_else(|| error.to_string())),
    }
}

/// A field or value of the wrong type, as Go names both.
fn types(kind: PullSecretKind, document: &[u8]) -> Option<String> {
    let document: Value = serde_json::from_slice(document).ok()?;
    let wrong = |value: &Value, place: &str| format!("json: cannot unmarshal {} into Go {place}", kind_of(value));
    let (entries, outer) = match kind {
        PullSecretKind::DockerCfg => (&document, ""),
        PullSecretKind::DockerConfigJson => {
            let Some(fields) = document.as_object() else {
                return Some(wrong(&document, "value of type credentialprovider.DockerConfigJSON"));
            };
            (member(fields, "auths").unwrap_or(&Value::Null), "DockerConfigJSON.auths")
        }
    };
    let Some(entries) = entries.as_object() else {
        return Some(if outer.is_empty() {
            wrong(entries, "value of type credentialprovider.DockerConfig")
        } else {
            wrong(entries, &format!("struct field {outer} of type credentialprovider.DockerConfig"))
        });
    };
    let place = if outer.is_empty() { "dockerConfigEntryWithAuth" } else { outer };
    entries.values().filter(|entry| !entry.is_null()).find_map(|entry| {
        let Some(fields) = entry.as_object() else {
            return Some(match outer {
                "" => wrong(entry, "value of type credentialprovider.dockerConfigEntryWithAuth"),
                outer => {
                    wrong(entry, &format!("struct field {outer} of type credentialprovider.dockerConfigEntryWithAuth"))
                }
            });
        };
        ["username", "password", "email", "auth"].into_iter().find_map(|name| {
            let value = member(fields, name).filter(|value| !value.is_null() && !value.is_string())?;
            Some(wrong(value, &format!("struct field {place}.{name} of type string")))
        })
    })
}

/// Names match in any case.
fn member<'a>(fields: &'a serde_json::Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Where the reader stands; each names what Go says of a byte that has no place there.
#[derive(Clone, Copy)]
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    AfterValue,
    Text,
    Escape,
    /// So many hexadecimal digits are still to come.
    Hex(u8),
    /// Behind a minus sign.
    Minus,
    /// In the whole part of a number that does not begin with a zero.
    Digits,
    /// Where a number's whole part is over.
    Fraction,
    /// Behind the point.
    Point,
    Decimals,
    /// Behind the `e`.
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// In a word; so many of its letters were read.
    Word(&'static str, usize),
}

#[derive(Clone, Copy)]
enum Open {
    Key,
    Member,
    Array,
}

/// The first byte that cannot stand where it does, or that the document ends too soon.
fn syntax(document: &[u8]) -> Option<String> {
    let mut reader = Reader { state: State::Value, open: Vec::new(), done: false };
    for &byte in document {
        if let Err(text) = reader.step(byte) {
            return Some(text);
        }
    }
    // A number at the end is only known to be over when something follows.
    if !reader.done
        && let Err(text) = reader.step(b' ')
    {
        return Some(text);
    }
    (!reader.done).then(|| "unexpected end of JSON input".into())
}

struct Reader {
    state: State,
    open: Vec<Open>,
    /// The one value of the document is over.
    done: bool,
}

impl Reader {
    fn step(&mut self, byte: u8) -> Result<(), String> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        self.state = match (self.state, byte) {
            (State::Value | State::ValueOrEnd | State::Key | State::KeyOrEnd | State::AfterValue, _) if is_space => {
                return Ok(());
            }
            (State::ValueOrEnd, b']') | (State::KeyOrEnd, b'}') => return self.close(),
            (State::Value | State::ValueOrEnd, _) => self.begin_value(byte)?,
            (State::Key | State::KeyOrEnd, b'"') => State::Text,
            (State::Key | State::KeyOrEnd, _) => return refuse(byte, "looking for beginning of object key string"),
            (State::AfterValue, _) => return self.after_value(byte),
            (State::Text, b'"') => return self.end_value(),
            (State::Text, b'\\') => State::Escape,
            (State::Text, ..=0x1f) => return refuse(byte, "in string literal"),
            (State::Text, _) => State::Text,
            (State::Escape, b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => State::Text,
            (State::Escape, b'u') => State::Hex(4),
            (State::Escape, _) => return refuse(byte, "in string escape code"),
            (State::Hex(left), _) if byte.is_ascii_hexdigit() => {
                if left > 1 {
                    State::Hex(left - 1)
                } else {
                    State::Text
                }
            }
            (State::Hex(_), _) => return refuse(byte, "in \\u hexadecimal character escape"),
            (State::Minus, b'0') => State::Fraction,
            (State::Minus, b'1'..=b'9') | (State::Digits, b'0'..=b'9') => State::Digits,
            (State::Minus, _) => return refuse(byte, "in numeric literal"),
            (State::Digits | State::Fraction, b'.') => State::Point,
            (State::Digits | State::Fraction | State::Decimals, b'e' | b'E') => State::Exponent,
            (State::Point | State::Decimals, b'0'..=b'9') => State::Decimals,
            (State::Point, _) => return refuse(byte, "after decimal point in numeric literal"),
            (State::Exponent, b'+' | b'-') => State::ExponentSign,
            (State::Exponent | State::ExponentSign | State::ExponentDigits, b'0'..=b'9') => State::ExponentDigits,
            (State::Exponent | State::ExponentSign, _) => return refuse(byte, "in exponent of numeric literal"),
            (State::Digits | State::Fraction | State::Decimals | State::ExponentDigits, _) => {
                self.end_value()?;
                return self.step(byte);
            }
            (State::Word(word, read), _) if word.as_bytes()[read] == byte => {
                if read + 1 == word.len() {
                    return self.end_value();
                }
                State::Word(word, read + 1)
            }
            (State::Word(word, read), _) => {
                let expected = char::from(word.as_bytes()[read]);
                return refuse(byte, &format!("in literal {word} (expecting '{expected}')"));
            }
        };
        Ok(())
    }

    fn begin_value(&mut self, byte: u8) -> Result<State, String> {
        Ok(match byte {
            b'{' => {
                self.enter(Open::Key)?;
                State::KeyOrEnd
            }
            b'[' => {
                self.enter(Open::Array)?;
                State::ValueOrEnd
            }
            b'"' => State::Text,
            b'-' => State::Minus,
            b'0' => State::Fraction,
            b'1'..=b'9' => State::Digits,
            b't' => State::Word("true", 1),
            b'f' => State::Word("false", 1),
            b'n' => State::Word("null", 1),
            _ => return Err(refusal(byte, "looking for beginning of value")),
        })
    }

    fn enter(&mut self, open: Open) -> Result<(), String> {
        self.open.push(open);
        if self.open.len() > DEPTH_MAX { Err("exceeded max depth".into()) } else { Ok(()) }
    }

    fn after_value(&mut self, byte: u8) -> Result<(), String> {
        let (state, open) = match (self.open.last(), byte) {
            (None, _) => return refuse(byte, "after top-level value"),
            (Some(Open::Key), b':') => (State::Value, Open::Member),
            (Some(Open::Key), _) => return refuse(byte, "after object key"),
            (Some(Open::Member), b',') => (State::Key, Open::Key),
            (Some(Open::Array), b',') => (State::Value, Open::Array),
            (Some(Open::Member), b'}') | (Some(Open::Array), b']') => return self.close(),
            (Some(Open::Member), _) => return refuse(byte, "after object key:value pair"),
            (Some(Open::Array), _) => return refuse(byte, "after array element"),
        };
        self.state = state;
        *self.open.last_mut().expect("something is open") = open;
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.open.pop();
        self.end_value()
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is the last word of steps that may refuse")]
    fn end_value(&mut self) -> Result<(), String> {
        self.state = State::AfterValue;
        self.done = self.open.is_empty();
        Ok(())
    }
}

fn refuse(byte: u8, place: &str) -> Result<(), String> {
    Err(refusal(byte, place))
}

fn refusal(byte: u8, place: &str) -> String {
    let shown = match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => "'\\\\'".to_owned(),
        0x07 => "'\\a'".to_owned(),
        0x08 => "'\\b'".to_owned(),
        0x0c => "'\\f'".to_owned(),
        b'\n' => "'\\n'".to_owned(),
        b'\r' => "'\\r'".to_owned(),
        b'\t' => "'\\t'".to_owned(),
        0x0b => "'\\v'".to_owned(),
        0x20..=0x7e => format!("'{}'", char::from(byte)),
        ..=0x7f => format!("'\\x{byte:02x}'"),
        // Go takes the byte for a character of Latin-1; these are the ones it does not print.
        0x80..=0xa0 | 0xad => format!("'\\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    };
    format!("invalid character {shown} {place}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    #[test]
    fn every_document_vector_has_its_complaint() {
        let mut refused = 0;
        for case in vectors("pull-docker-config.json") {
            let input = &case["input"];
            let kind = match (input["kind"].as_str(), input["format"].as_str()) {
                (Some("document"), Some("dockercfg")) => PullSecretKind::DockerCfg,
                (Some("document"), _) => PullSecretKind::DockerConfigJson,
                _ => continue,
            };
            let document = input["data"].as_str().expect("a document");
            let wanted = case["expected"]["error"].as_str();
            assert_eq!(complaint(kind, document.as_bytes()).as_deref(), wanted, "{document}");
            refused += usize::from(wanted.is_some());
        }
        assert!(refused >= 7, "{refused}");
    }

    #[test]
    fn bytes_without_a_place_are_named_as_go_names_them() {
        for (document, expected) in [
            ("invalid", "invalid character 'i' looking for beginning of value"),
            ("", "unexpected end of JSON input"),
            ("  ", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("-", "invalid character ' ' in numeric literal"),
            ("{x", "invalid character 'x' looking for beginning of object key string"),
            ("{\"a\",", "invalid character ',' after object key"),
            ("{\"a\":1 \"", "invalid character '\"' after object key:value pair"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("\"\n\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g0\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1e+x", "invalid character 'x' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
            ("\u{e9}", "invalid character 'Ã' looking for beginning of value"),
            ("'", "invalid character '\\'' looking for beginning of value"),
        ] {
            assert_eq!(syntax(document.as_bytes()).as_deref(), Some(expected), "{document:?}");
        }
        for document in ["1", "-0.5e10", "null", "[]", "{\"a\": [1, {\"b\": \"\\u00e9\"}]}\n", " true "] {
            assert_eq!(syntax(document.as_bytes()), None, "{document:?}");
        }
    }
}
