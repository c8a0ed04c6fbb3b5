//! Names of API objects, and how texts of other processes are shown.

use imagelet_core::printable::printable_start;

pub(crate) const NAMESPACE_LENGTH_MAX: usize = 63;
pub(crate) const NAME_LENGTH_MAX: usize = 253;
const SHOWN_MAX: usize = 120;

pub(crate) fn is_name(text: &str, length_max: usize) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let has_ends = is_end(text.bytes().next()) && is_end(text.bytes().last());
    text.len() <= length_max && has_ends && text.bytes().all(is_of_name)
}

pub(crate) fn shown(text: &str) -> String {
    printable_start(text, SHOWN_MAX)
}
