//! Texts in the form Go prints them, which is the form people filter events by.

use std::{fmt::Write as _, time::Duration};

/// A text in double quotes with Go's escapes.
pub(crate) fn quoted(text: &str) -> String {
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

fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return character == ' ' || character.is_ascii_graphic();
    }
    // What Rust's own escape leaves as it is, is printable; all other spaces and format characters are not.
    !character.is_whitespace() && character.escape_debug().len() == 1
}

/// A duration cut to whole milliseconds, as Go prints it: `0s`, `350ms`, `1.5s`, `2m3.004s`.
pub(crate) fn whole_milliseconds(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    if milliseconds == 0 {
        return "0s".into();
    }
    if milliseconds < 1000 {
        return format!("{milliseconds}ms");
    }
    let (minutes, rest) = (milliseconds / 60_000, milliseconds % 60_000);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let (seconds, fraction) = (rest / 1000, rest % 1000);
    let mut text = String::new();
    if hours > 0 {
        text = format!("{hours}h");
    }
    if hours > 0 || minutes > 0 {
        text = format!("{text}{minutes}m");
    }
    let fraction = format!("{fraction:03}");
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() { format!("{text}{seconds}s") } else { format!("{text}{seconds}.{fraction}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
