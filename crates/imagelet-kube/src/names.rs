//! Names of objects of the API, and texts of other processes as they are shown.

/// Longest namespace, and longest name of an object of the API.
pub(crate) const NAMESPACE_LENGTH_MAX: usize = 63;
pub(crate) const NAME_LENGTH_MAX: usize = 253;
/// Most of a rejected text that is shown.
const SHOWN_MAX: usize = 120;

/// Whether this is a name of the API: letters, digits, and `-` and `.` between them.
pub(crate) fn is_name(text: &str, length_max: usize) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let has_ends = is_end(text.bytes().next()) && is_end(text.bytes().last());
    text.len() <= length_max && has_ends && text.bytes().all(is_of_name)
}

/// A text from outside, cut, without control characters.
pub(crate) fn shown(text: &str) -> String {
    shown_to(text, SHOWN_MAX)
}

/// The same, with another limit in bytes.
pub(crate) fn shown_to(text: &str, length_max: usize) -> String {
    cut(text, length_max, '?')
}

/// The first bytes of a text, with a letter for each control character.
pub(crate) fn cut(text: &str, length_max: usize, for_control: char) -> String {
    let cut = &text[..text.floor_char_boundary(length_max)];
    cut.chars().map(|letter| if letter.is_control() { for_control } else { letter }).collect()
}
