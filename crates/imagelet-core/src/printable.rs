//! Makes text from outside safe for a terminal, a log and a message.

use std::fmt::Write as _;

/// Whether a character is a control, a line or paragraph separator, or a zero-width or text-direction mark.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

/// Replaces each unprintable character with `?`.
pub fn printable(text: &str) -> String {
    text.replace(is_unprintable, "?")
}

/// Like [`printable`], for at most the first `bytes_max` bytes.
pub fn printable_start(text: &str, bytes_max: usize) -> String {
    printable(&text[..text.floor_char_boundary(bytes_max)])
}

/// Replaces each unprintable character with a blank, so that the text has one line.
pub fn one_line(text: &str) -> String {
    text.replace(is_unprintable, " ")
}

/// Escapes the unprintable characters of a JSON text or a log line, except control characters: these are its line ends,
/// tabs and colours. The control characters of a value in the text are already escaped.
pub fn escape_unprintable(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unprintable(character) && !character.is_control() {
            write!(escaped, "\\u{:04x}", u32::from(character)).expect("writing to a string cannot fail");
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_ends_of_lines_and_marks_of_direction_are_not_printable_and_letters_of_all_scripts_are() {
        let hidden = "\0\t\n\u{1b}\u{7f}\u{85}\u{9b}\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\
                      \u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\u{feff}";
        assert_eq!(hidden.chars().find(|hidden| !is_unprintable(*hidden)), None);
        assert_eq!(printable(hidden), "?".repeat(hidden.chars().count()));
        let shown = "a B-9:/@ üß 東京 שלום مرحبا é \u{1f600}…–`";
        assert_eq!((printable(shown).as_str(), one_line(shown).as_str()), (shown, shown));
    }

    #[test]
    fn a_text_is_cut_before_a_letter_that_does_not_fit_and_its_lines_become_one() {
        assert_eq!(printable_start("aü\u{202e}b", 2), "a");
        assert_eq!(printable_start("aü\u{202e}b", 6), "aü?");
        assert_eq!(printable_start("a", 9), "a");
        assert_eq!(one_line("a\nb\u{2028}c"), "a b c");
    }

    #[test]
    fn an_escaped_json_text_has_the_same_value() {
        let value = serde_json::json!({"a": "x\u{202e}y\u{2028}\n", "ü": [1]});
        let text = escape_unprintable(&serde_json::to_string_pretty(&value).unwrap());
        assert!(text.contains("x\\u202ey\\u2028\\n") && text.contains('\n'), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
