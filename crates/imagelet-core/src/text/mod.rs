//! Texts in the form that Go prints and parses. Users search for these texts.

mod named_enum;
mod url;

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    marker::PhantomData,
    str::FromStr,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use zeroize::Zeroizing;

pub use self::{named_enum::named_enum, url::GoUrl};

/// An error with a complete text that contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlainError(pub String);

impl PlainError {
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// A text in double quotes with Go's escapes.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            plain if is_printable(plain) => quoted.push(plain),
            other => {
                let code = u32::from(other);
                let written = match code {
                    0..=0x7f => write!(quoted, "\\x{code:02x}"),
                    0x80..=0xffff => write!(quoted, "\\u{code:04x}"),
                    _ => write!(quoted, "\\U{code:08x}"),
                };
                written.expect("writing to a string cannot fail");
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Splits a printed gRPC error into the name of its code and its message. Any other text is returned as the message.
pub fn split_grpc_error(text: &str) -> (Option<&str>, &str) {
    let parts = text.strip_prefix("rpc error: code = ").and_then(|rest| rest.split_once(" desc = "));
    parts.map_or((None, text), |(code, said)| (Some(code), said))
}

fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return character == ' ' || character.is_ascii_graphic();
    }
    // Rust's escape leaves printable characters unchanged. Other spaces and format characters are not printable.
    !character.is_whitespace() && character.escape_debug().len() == 1
}

/// The text of a serde JSON error in the words of Go. It has at most one character of the parsed text.
pub(crate) fn json_error(error: &serde_json::Error, text: &str) -> String {
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
    let start: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let at = start + error.column().saturating_sub(1);
    let Some(found) = text.as_bytes().get(at).filter(|_| !error.is_eof()) else {
        return "unexpected end of JSON input".to_owned();
    };
    let context = if message.starts_with("expected ident") {
        literal_context(&text.as_bytes()[..at])
    } else {
        CONTEXTS.iter().find(|(start, _)| message.starts_with(start)).map(|(_, context)| (*context).to_owned())
    };
    // Without a Go equivalent, serde's text is used. It contains nothing of the document.
    context.map_or(message, |context| format!("invalid character {} {context}", quoted_byte(*found)))
}

/// A value as Go's JSON encoder writes it, with escaped HTML characters. Its texts have at most `length_max` bytes.
pub(crate) fn json_text(value: &impl Serialize, length_max: usize) -> Zeroizing<String> {
    // An escape needs at most six bytes, so the buffer never moves, and no copy of a secret is left.
    let mut plain = Zeroizing::new(Vec::with_capacity(6 * length_max));
    serde_json::to_writer(&mut *plain, value).expect("texts and maps always encode");
    let mut json = Zeroizing::new(String::with_capacity(6 * length_max));
    for character in str::from_utf8(&plain).expect("JSON is a text").chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(json, "\\u{:04x}", u32::from(character)).expect("writing to a string cannot fail");
            }
            other => json.push(other),
        }
    }
    json
}

/// Names the literal (`null`, `true` or `false`) that an invalid letter interrupts. `before`: the text up to the letter.
fn literal_context(before: &[u8]) -> Option<String> {
    ["null", "true", "false"].into_iter().find_map(|word| {
        let read = (1..word.len()).rev().find(|read| before.ends_with(&word.as_bytes()[..*read]))?;
        Some(format!("in literal {word} (expecting '{}')", char::from(word.as_bytes()[read])))
    })
}

fn quoted_byte(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        other => {
            let text = quoted(&char::from(other).to_string());
            format!("'{}'", &text[1..text.len() - 1])
        }
    }
}

const KEY_SHOWN_MAX: usize = 128;

/// A map that rejects a duplicate key, as Go's strict decoder does. `null` is an empty map. The error has the start of
/// the key, so a caller whose keys may be secret must drop the error.
pub fn unique_map<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    struct Members<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
        type Value = BTreeMap<String, T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = BTreeMap::new();
            while let Some((name, value)) = map.next_entry::<String, T>()? {
                if members.contains_key(&name) {
                    let start = &name[..name.floor_char_boundary(KEY_SHOWN_MAX)];
                    return Err(A::Error::custom(format!("a key occurs twice: {}", quoted(start))));
                }
                members.insert(name, value);
            }
            Ok(members)
        }
    }
    deserializer.deserialize_any(Members(PhantomData))
}

/// A struct that is parsed only from an object or `null`, as in Go. serde's derive also accepts a list of the values:
/// then the secret of one field could be parsed as another field and printed.
#[derive(Default)]
pub struct Object<T>(pub T);

/// Prints no value, because the value may be a secret.
impl<T> fmt::Debug for Object<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Object").finish_non_exhaustive()
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Members<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Object(T::default()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_any(Members(PhantomData))
    }
}

/// Parses `null` as the default value.
pub fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A time of a file in RFC 3339, UTC, with the fraction that the time has. A time outside the years of RFC 3339 is
/// printed in seconds since 1970.
pub fn file_time_text(seconds: i64, nanoseconds: u32) -> String {
    i32::try_from(nanoseconds)
        .ok()
        .and_then(|nanoseconds| Timestamp::new(seconds, nanoseconds).ok())
        .map_or_else(|| format!("{seconds} s since 1970"), |at| at.to_string())
}

/// Converts seconds since 1970 from a file. `None`: a year outside RFC 3339, where additions would overflow.
pub fn file_time(seconds: u64) -> Option<SystemTime> {
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok().map(SystemTime::from)
}

/// A duration in Go's text form: `2m0s`, `1.5ms`.
pub fn duration_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let fraction = |value: u128, scale: u128, places: usize, unit: &str| {
        let rest = value % scale;
        let text = format!("{rest:0places$}");
        let text = text.trim_end_matches('0');
        if text.is_empty() { format!("{}{unit}", value / scale) } else { format!("{}.{text}{unit}", value / scale) }
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => fraction(nanos, 1_000, 3, "µs"),
        1_000_000..1_000_000_000 => fraction(nanos, 1_000_000, 6, "ms"),
        _ => {
            let seconds = nanos / 1_000_000_000;
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            let rest = fraction(nanos - (seconds - seconds % 60) * 1_000_000_000, 1_000_000_000, 9, "s");
            match (hours, minutes) {
                (0, 0) => rest,
                (0, _) => format!("{minutes}m{rest}"),
                _ => format!("{hours}h{minutes}m{rest}"),
            }
        }
    }
}

/// A duration cut to whole milliseconds: `0s`, `350ms`, `2m3.004s`.
pub(crate) fn whole_milliseconds(duration: Duration) -> String {
    duration_text(Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

/// Joins error texts without duplicates. Brackets enclose only two or more texts.
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for error in errors {
        if !unique.contains(&error.as_str()) {
            unique.push(error);
        }
    }
    match unique.as_slice() {
        [only] => (*only).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// A Go duration in nanoseconds, which may be negative. Configuration files contain its text form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub i64);

impl GoDuration {
    pub const fn seconds(seconds: i64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    pub const fn minutes(minutes: i64) -> Self {
        Self::seconds(60 * minutes)
    }

    /// Converts to the standard type. A negative duration becomes zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{}", duration_text(Duration::from_nanos(self.0.unsigned_abs())))
    }
}

/// Parses `2m30s`, `1.5h`, `-300ms` as strictly as Go's `time.ParseDuration`, with its error texts.
impl FromStr for GoDuration {
    type Err = PlainError;

    fn from_str(text: &str) -> Result<Self, PlainError> {
        const SHOWN_MAX: usize = 128;
        let shown = || quoted(&text.chars().take(SHOWN_MAX).collect::<String>());
        let invalid = || PlainError(format!("time: invalid duration {}", shown()));
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        // The limit is one higher for a negative duration, because `i64::MIN` has no positive counterpart.
        let limit = i128::from(i64::MAX) + i128::from(negative);
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (whole, tail) = rest.split_at(end);
            let (fraction, tail) = match tail.strip_prefix('.') {
                Some(tail) => tail.split_at(tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len())),
                None => ("", tail),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            let (unit, tail) = tail.split_at(tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len()));
            if unit.is_empty() {
                return Err(PlainError(format!("time: missing unit in duration {}", shown())));
            }
            let scale = unit_scale(unit).ok_or_else(|| {
                let unit = quoted(&unit.chars().take(SHOWN_MAX).collect::<String>());
                PlainError(format!("time: unknown unit {unit} in duration {}", shown()))
            })?;
            let whole: i128 = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| invalid())?.into() };
            total += whole * i128::from(scale) + fraction_of(fraction, scale);
            if total > limit {
                return Err(invalid());
            }
            rest = tail;
        }
        i64::try_from(if negative { -total } else { total }).map(Self).map_err(|_| invalid())
    }
}

fn unit_scale(unit: &str) -> Option<i64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// A fraction of a unit, cut to whole nanoseconds.
fn fraction_of(digits: &str, scale: i64) -> i128 {
    // Digits after the eighteenth change no nanosecond of an hour.
    let mut value: i128 = 0;
    let mut parts: i128 = 1;
    for digit in digits.bytes().take(18) {
        value = value * 10 + i128::from(digit - b'0');
        parts *= 10;
    }
    value * i128::from(scale) / parts
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn the_time_of_a_file_is_in_utc_and_whole_where_it_is_whole() {
        for (seconds, nanoseconds, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (1_700_000_000, 500_000_000, "2023-11-14T22:13:20.5Z"),
            (1_700_000_000, 7, "2023-11-14T22:13:20.000000007Z"),
            (-2, 750_000_000, "1969-12-31T23:59:58.75Z"),
            (i64::MAX, 0, "9223372036854775807 s since 1970"),
        ] {
            assert_eq!(file_time_text(seconds, nanoseconds), text);
        }
    }

    #[test]
    fn a_time_beyond_the_years_of_a_calendar_is_none() {
        for (seconds, expected) in [
            (0, Some("1970-01-01T00:00:00Z")),
            (1_700_000_000, Some("2023-11-14T22:13:20Z")),
            (1 << 40, None),
            (u64::MAX / 2, None),
            (u64::MAX, None),
        ] {
            let text = file_time(seconds).map(|time| Timestamp::try_from(time).unwrap().to_string());
            assert_eq!(text.as_deref(), expected, "{seconds}");
        }
    }

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        for (text, expected) in [
            ("reg.io/a:v1", "\"reg.io/a:v1\""),
            ("a\"b\\c", "\"a\\\"b\\\\c\""),
            ("\n\t\u{1}\u{7f}", "\"\\n\\t\\x01\\x7f\""),
            ("\u{a0}\u{200b}\u{e0001}", "\"\\u00a0\\u200b\\U000e0001\""),
            ("ü'x", "\"ü'x\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn durations_are_cut_to_milliseconds() {
        for (microseconds, expected) in [
            (0, "0s"),
            (999, "0s"),
            (350_999, "350ms"),
            (1_500_000, "1.5s"),
            (123_004_900, "2m3.004s"),
            (60_000_000, "1m0s"),
            (3_600_000_000, "1h0m0s"),
        ] {
            assert_eq!(whole_milliseconds(Duration::from_micros(microseconds)), expected);
        }
    }

    #[test]
    fn errors_of_json_are_gos() {
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
            let error = serde_json::from_str::<serde_json::Value>(text).expect_err("it is no JSON");
            assert_eq!(json_error(&error, text), expected, "{text:?}");
        }
    }

    #[test]
    fn durations_read_back_what_they_print() {
        let cases = vectors("gc-duration-text.json");
        for case in &cases {
            let nanoseconds = GoDuration(case["input"]["nanoseconds"].as_i64().expect("a number"));
            let text = case["expected"]["text"].as_str().expect("a text");
            assert_eq!(nanoseconds.to_string(), text);
            assert_eq!(text.parse(), Ok(nanoseconds), "{text}");
        }
        assert_eq!(cases.len(), 20);
    }

    #[test]
    fn a_duration_is_read_strictly() {
        const MINUTE: i64 = 60_000_000_000;
        for (text, nanoseconds) in [
            ("0", 0),
            ("-0", 0),
            ("1.5h", 90 * MINUTE),
            (".5m", MINUTE / 2),
            ("5.s", 5_000_000_000),
            ("+2m", 2 * MINUTE),
            ("-1ns", -1),
            ("1h1m1s", 3_661_000_000_000),
            ("0.3333333333333333333h", 1_200_000_000_000 - 1),
            ("-9223372036854775808ns", i64::MIN),
            ("9223372036854775807ns", i64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration(nanoseconds)), "{text}");
        }
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("abc", "time: invalid duration \"abc\""),
            (".s", "time: invalid duration \".s\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1h5", "time: missing unit in duration \"1h5\""),
            ("5 m", "time: unknown unit \" m\" in duration \"5 m\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("1h-5m", "time: unknown unit \"h-\" in duration \"1h-5m\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("99999999999999999999h", "time: invalid duration \"99999999999999999999h\""),
        ] {
            assert_eq!(text.parse::<GoDuration>().map_err(|error| error.to_string()), Err(error.to_owned()));
        }
    }
}
