//! The values of a JSON or YAML document before their meaning is known, and how they are taken apart strictly.
//!
//! Errors are Go's: kubelets show them, and people search for them.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};

use crate::text::quoted;

/// A value. Members keep their order and repeat where the document repeats them. Has no `Debug`: it may be a secret.
pub(super) enum Value {
    Null,
    Bool(bool),
    /// Which one never matters here.
    Number,
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

/// The text is no JSON. Prints what Go prints: at most one character of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct JsonError(String);

impl Value {
    /// Reads one JSON value, and nothing behind it.
    pub(super) fn from_json(document: &[u8]) -> Result<Self, JsonError> {
        let text = String::from_utf8_lossy(document);
        serde_json::from_str(&text).map_err(|error| JsonError::new(&error, &text))
    }

    /// Go's word for its type.
    pub(super) fn type_word(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Number => "number",
            Self::Text(_) => "string",
            Self::List(_) => "array",
            Self::Object(_) => "object",
        }
    }
}

impl JsonError {
    fn new(error: &serde_json::Error, text: &str) -> Self {
        const CONTEXTS: [(&str, &str); 10] = [
            ("trailing characters", "after top-level value"),
            ("expected value", "looking for beginning of value"),
            ("key must be a string", "looking for beginning of object key string"),
            ("trailing comma", "looking for beginning of value"),
            ("expected `:`", "after object key"),
            ("expected `,` or `}`", "after object key:value pair"),
            ("expected `,` or `]`", "after array element"),
            ("control character", "in string literal"),
            ("invalid escape", "in string escape code"),
            ("invalid number", "in numeric literal"),
        ];
        let message = error.to_string();
        if error.is_eof() {
            return Self("unexpected end of JSON input".to_owned());
        }
        let start: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let at = start + error.column().saturating_sub(1);
        let Some(found) = text.as_bytes().get(at).copied() else {
            return Self("unexpected end of JSON input".to_owned());
        };
        let context = if message.starts_with("expected ident") {
            literal_context(&text.as_bytes()[..at])
        } else {
            CONTEXTS.iter().find(|(start, _)| message.starts_with(start)).map(|(_, context)| (*context).to_owned())
        };
        // What Go has no text for is serde's: it shows nothing of the document.
        Self(context.map_or(message, |context| format!("invalid character {} {context}", shown(found))))
    }
}

/// In which literal a letter is wrong, by what stands before it.
fn literal_context(before: &[u8]) -> Option<String> {
    ["null", "true", "false"].into_iter().find_map(|word| {
        let read = (1..word.len()).rev().find(|read| before.ends_with(&word.as_bytes()[..*read]))?;
        let expected = char::from(word.as_bytes()[read]);
        Some(format!("in literal {word} (expecting '{expected}')"))
    })
}

/// A character between single quotes, as Go shows a byte.
fn shown(character: u8) -> String {
    match character {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        other => {
            let text = quoted(&char::from(other).to_string());
            format!("'{}'", &text[1..text.len() - 1])
        }
    }
}

/// The parsers of JSON and YAML have deserializers of their own.
impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_none<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
                Value::deserialize(deserializer)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
                Ok(Value::Number)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
                Ok(Value::Number)
            }
            fn visit_i128<E>(self, _: i128) -> Result<Value, E> {
                Ok(Value::Number)
            }
            fn visit_u128<E>(self, _: u128) -> Result<Value, E> {
                Ok(Value::Number)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
                Ok(Value::Number)
            }
            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }
            fn visit_string<E>(self, text: String) -> Result<Value, E> {
                Ok(Value::Text(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(value) = values.next_element()? {
                    list.push(value);
                }
                Ok(Value::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
                let mut object = Vec::new();
                while let Some((name, value)) = members.next_entry::<Value, Value>()? {
                    let Value::Text(name) = name else { return Err(A::Error::custom("a key that is no text")) };
                    object.push((name, value));
                }
                Ok(Value::Object(object))
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

/// Takes documents apart and collects what Go's strict decoder reports.
#[derive(Debug, Default)]
pub(super) struct Strict {
    /// Unknown and repeated fields, in the order in which they stand.
    pub(super) findings: Vec<String>,
}

/// A value has another type than it should. Shows nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("json: cannot unmarshal {found} into {into} of type {wanted}")]
pub(super) struct TypeError {
    pub(super) found: &'static str,
    /// `Go value`, or `Go struct field TYPE.FIELD`.
    pub(super) into: String,
    pub(super) wanted: &'static str,
}

impl TypeError {
    /// For a value that is no field, or whose field Go does not name.
    pub(super) fn of_value(found: &Value, wanted: &'static str) -> Self {
        Self { found: found.type_word(), into: "Go value".to_owned(), wanted }
    }

    /// For a field of a Go struct: `TYPE.FIELD`.
    pub(super) fn of_field(found: &Value, field: &str, wanted: &'static str) -> Self {
        Self { found: found.type_word(), into: format!("Go struct field {field}"), wanted }
    }
}

impl Strict {
    /// The members of an object in the order of `names`; the last of repeated ones. `null` is an object without any.
    pub(super) fn fields<const N: usize>(
        &mut self,
        value: Value,
        path: &str,
        names: [&str; N],
        go_type: &'static str,
    ) -> Result<[Option<Value>; N], TypeError> {
        let mut found = [const { None }; N];
        let members = match value {
            Value::Null => return Ok(found),
            Value::Object(members) => members,
            other => return Err(TypeError::of_value(&other, go_type)),
        };
        for (name, value) in members {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match names.iter().position(|known| *known == name) {
                None => self.findings.push(format!("unknown field \"{path}\"")),
                Some(index) => {
                    if found[index].is_some() {
                        self.findings.push(format!("duplicate field \"{path}\""));
                    }
                    found[index] = Some(value);
                }
            }
        }
        Ok(found)
    }

    /// An object with any names.
    pub(super) fn members(
        &mut self,
        value: Option<Value>,
        path: &str,
        go_type: &'static str,
    ) -> Result<Vec<(String, Value)>, TypeError> {
        let members = match value {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Object(members)) => members,
            Some(other) => return Err(TypeError::of_value(&other, go_type)),
        };
        let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
            self.findings.push(format!("duplicate field \"{path}.{}\"", pair[0]));
        }
        Ok(members)
    }
}

/// A text; absent and `null` are empty.
pub(super) fn text(value: Option<Value>) -> Result<String, TypeError> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::Text(text)) => Ok(text),
        Some(other) => Err(TypeError::of_value(&other, "string")),
    }
}

/// A text, or none.
pub(super) fn optional_text(value: Option<Value>) -> Result<Option<String>, TypeError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        some => text(some).map(Some),
    }
}

/// A truth value, or none.
pub(super) fn optional_bool(value: Option<Value>) -> Result<Option<bool>, TypeError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(value)),
        Some(other) => Err(TypeError::of_value(&other, "bool")),
    }
}

/// A list; absent and `null` are empty.
pub(super) fn list(value: Option<Value>, go_type: &'static str) -> Result<Vec<Value>, TypeError> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::List(values)) => Ok(values),
        Some(other) => Err(TypeError::of_value(&other, go_type)),
    }
}

/// A list of texts.
pub(super) fn texts(value: Option<Value>) -> Result<Vec<String>, TypeError> {
    list(value, "[]string")?.into_iter().map(|value| text(Some(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_gos() {
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            ("  ", "unexpected end of JSON input"),
            ("not json", "invalid character 'o' in literal null (expecting 'u')"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("kind: x", "invalid character 'k' looking for beginning of value"),
            ("{", "unexpected end of JSON input"),
            ("{a", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\" 1", "invalid character '1' after object key"),
            ("{\"a\":1 2", "invalid character '2' after object key:value pair"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("{}\n\n x", "invalid character 'x' after top-level value"),
            ("-a", "invalid character 'a' in numeric literal"),
            ("\"abc", "unexpected end of JSON input"),
            ("\"a\u{1}b\"", "invalid character '\\x01' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("'", "invalid character '\\'' looking for beginning of value"),
            ("[\"a\" \"b\"]", "invalid character '\"' after array element"),
        ] {
            let error = Value::from_json(text.as_bytes()).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), Some(expected), "{text:?}");
        }
        let deep = Value::from_json("[".repeat(100_000).as_bytes());
        assert!(deep.is_err_and(|error| error.to_string().starts_with("recursion limit exceeded")));
    }

    #[test]
    fn what_is_no_unicode_is_replaced() {
        let read = Value::from_json(b"\"a\xffb\"");
        assert!(matches!(read, Ok(Value::Text(text)) if text == "a\u{fffd}b"));
    }
}
