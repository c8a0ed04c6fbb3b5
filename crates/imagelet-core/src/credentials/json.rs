//! JSON as Go reads it, with the errors Go gives: kubelets show them, and people search for them.

use super::strict_value::Value;
use crate::text::quoted;

/// Deeper nesting than this is no document of ours.
const DEPTH_MAX: usize = 128;

/// The text is no JSON. Prints what Go prints: at most one character of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum JsonError {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid character {} {context}", shown(*.character))]
    Character { character: u8, context: &'static str },
    #[error("exceeded max depth")]
    Depth,
}

/// Reads one value, and nothing behind it.
pub(super) fn parse(text: &[u8]) -> Result<Value, JsonError> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(DEPTH_MAX)?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.error("after top-level value")),
    }
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

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// The error that the next character does not belong here.
    fn error(&self, context: &'static str) -> JsonError {
        self.peek().map_or(JsonError::End, |character| JsonError::Character { character, context })
    }

    /// The same where something was begun that the end cannot end; Go looks at a space there.
    fn error_inside(&self, context: &'static str) -> JsonError {
        JsonError::Character { character: self.peek().unwrap_or(b' '), context }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, wanted: u8, context: &'static str) -> Result<(), JsonError> {
        if self.peek() != Some(wanted) {
            return Err(self.error(context));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Value, JsonError> {
        let Some(below) = depth.checked_sub(1) else { return Err(JsonError::Depth) };
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.object(below),
            Some(b'[') => self.list(below),
            Some(b'"') => self.string().map(Value::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word(&TRUE, Value::Bool(true)),
            Some(b'f') => self.word(&FALSE, Value::Bool(false)),
            Some(b'n') => self.word(&NULL, Value::Null),
            _ => Err(self.error("looking for beginning of value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut members = Vec::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.error("looking for beginning of object key string"));
            }
            let name = self.string()?;
            self.skip_space();
            self.expect(b':', "after object key")?;
            members.push((name, self.value(depth)?));
            self.skip_space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.expect(b'}', "after object key:value pair")?;
            return Ok(Value::Object(members));
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut values = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::List(values));
        }
        loop {
            values.push(self.value(depth)?);
            self.skip_space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.expect(b']', "after array element")?;
            return Ok(Value::List(values));
        }
    }

    fn word(&mut self, word: &[(u8, &'static str)], value: Value) -> Result<Value, JsonError> {
        self.at += 1;
        for (letter, context) in word {
            if self.peek() != Some(*letter) {
                return Err(self.error_inside(context));
            }
            self.at += 1;
        }
        Ok(value)
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits("in numeric literal")?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits("after decimal point in numeric literal")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits("in exponent of numeric literal")?;
        }
        Ok(Value::Number)
    }

    fn digits(&mut self, context: &'static str) -> Result<(), JsonError> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.error_inside(context));
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    /// A string; what is no Unicode in it becomes U+FFFD.
    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(lossy(&bytes));
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(&mut bytes)?;
                }
                Some(byte) if byte >= 0x20 => {
                    self.at += 1;
                    bytes.push(byte);
                }
                _ => return Err(self.error("in string literal")),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), JsonError> {
        let plain = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                self.at += 1;
                let character = self.unicode()?;
                bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(self.error_inside("in string escape code")),
        };
        self.at += 1;
        bytes.push(plain);
        Ok(())
    }

    /// What stands behind `\u`; two of them where they are a pair.
    fn unicode(&mut self) -> Result<char, JsonError> {
        let first = self.hexadecimal()?;
        if let Some(character) = char::from_u32(first) {
            return Ok(character);
        }
        let high_first = (0xd800..0xdc00).contains(&first);
        if high_first && self.text[self.at..].starts_with(b"\\u") {
            let before = self.at;
            self.at += 2;
            let second = self.hexadecimal()?;
            if (0xdc00..0xe000).contains(&second)
                && let Some(character) = char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))
            {
                return Ok(character);
            }
            self.at = before;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hexadecimal(&mut self) -> Result<u32, JsonError> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            value = value << 4 | digit.ok_or_else(|| self.error_inside("in \\u hexadecimal character escape"))?;
            self.at += 1;
        }
        Ok(value)
    }
}

/// Each byte that is no UTF-8 becomes one U+FFFD.
fn lossy(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
    text
}

const TRUE: [(u8, &str); 3] = [
    (b'r', "in literal true (expecting 'r')"),
    (b'u', "in literal true (expecting 'u')"),
    (b'e', "in literal true (expecting 'e')"),
];
const FALSE: [(u8, &str); 4] = [
    (b'a', "in literal false (expecting 'a')"),
    (b'l', "in literal false (expecting 'l')"),
    (b's', "in literal false (expecting 's')"),
    (b'e', "in literal false (expecting 'e')"),
];
const NULL: [(u8, &str); 3] = [
    (b'u', "in literal null (expecting 'u')"),
    (b'l', "in literal null (expecting 'l')"),
    (b'l', "in literal null (expecting 'l')"),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        parse(text.as_bytes()).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn errors_are_gos() {
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            ("  ", "unexpected end of JSON input"),
            ("not json", "invalid character 'o' in literal null (expecting 'u')"),
            ("kind: x", "invalid character 'k' looking for beginning of value"),
            ("{", "unexpected end of JSON input"),
            ("{a", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\" 1", "invalid character '1' after object key"),
            ("{\"a\":1 2", "invalid character '2' after object key:value pair"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("01", "invalid character '1' after top-level value"),
            ("-a", "invalid character 'a' in numeric literal"),
            ("-", "invalid character ' ' in numeric literal"),
            ("1.", "invalid character ' ' after decimal point in numeric literal"),
            ("tru", "invalid character ' ' in literal true (expecting 'e')"),
            ("\"\\", "invalid character ' ' in string escape code"),
            ("\"abc", "unexpected end of JSON input"),
            ("1.a", "invalid character 'a' after decimal point in numeric literal"),
            ("1ea", "invalid character 'a' in exponent of numeric literal"),
            ("tru ", "invalid character ' ' in literal true (expecting 'e')"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g0\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("'", "invalid character '\\'' looking for beginning of value"),
            ("[\"a\" \"b\"]", "invalid character '\"' after array element"),
            ("\u{e9}", "invalid character 'Ã' looking for beginning of value"),
        ] {
            assert_eq!(error(text), expected, "{text:?}");
        }
        assert_eq!(error(&"[".repeat(100_000)), "exceeded max depth");
    }

    #[test]
    fn texts_are_decoded_as_go_decodes_them() {
        for (text, expected) in [
            (&br#""a\/\u00e9\n""#[..], "a/\u{e9}\n"),
            (br#""\ud83d\ude00""#, "\u{1f600}"),
            (br#""\ud83dx""#, "\u{fffd}x"),
            (br#""\ud83d\u0041""#, "\u{fffd}A"),
            (br#""\ude00""#, "\u{fffd}"),
            (b"\"a\xffb\"", "a\u{fffd}b"),
        ] {
            let Ok(Value::Text(found)) = parse(text) else { panic!("{text:?} is no text") };
            assert_eq!(found, expected);
        }
    }

    proptest! {
        #[test]
        fn whatever_serde_reads_is_read_alike(value in json_value()) {
            let text = value.to_string();
            let read = parse(text.as_bytes()).expect("it is JSON");
            prop_assert!(alike(&read, &value));
        }

        #[test]
        fn no_input_panics_and_both_parsers_agree(text in "[\\[\\]{}:,\"\\\\ua0-9.eE+tfn l]{0,40}") {
            let ours = parse(text.as_bytes()).is_ok();
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            // A number too large for a float, and half of a surrogate pair, are refused by the other one only.
            let only_theirs = theirs.as_ref().is_err_and(|error| {
                let error = error.to_string();
                error.contains("out of range") || error.contains("surrogate") || error.contains("hex escape")
            });
            prop_assert!(ours == theirs.is_ok() || only_theirs);
        }
    }

    fn json_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<String>().prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn alike(ours: &Value, theirs: &serde_json::Value) -> bool {
        use serde_json::Value as Theirs;
        match (ours, theirs) {
            (Value::Null, Theirs::Null) | (Value::Number, Theirs::Number(_)) => true,
            (Value::Bool(a), Theirs::Bool(b)) => a == b,
            (Value::Text(a), Theirs::String(b)) => a == b,
            (Value::List(a), Theirs::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b)),
            (Value::Object(a), Theirs::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| alike(a, b)))
            }
            _ => false,
        }
    }
}
