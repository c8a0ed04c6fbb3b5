//! A secret text, which is not printed and is overwritten in memory, and its encodings in texts of other programs.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
};

use zeroize::{Zeroize as _, Zeroizing};

/// A password or token. Prints as `[redacted]`, has no `Display`, and overwrites its memory on drop.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Makes a secret from bytes, and overwrites the bytes. Invalid UTF-8 is replaced.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// A secret verbatim, URL-encoded and JSON-encoded. The longest text is first, because a text may be part of another.
pub fn spellings(secret: &str) -> Vec<Secret> {
    if secret.is_empty() {
        return Vec::new();
    }
    let json = Zeroizing::new(serde_json::Value::from(secret).to_string());
    let json = &json[1..json.len() - 1];
    let markup = Zeroizing::new(json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"));
    let strict = Zeroizing::new(percent_encoded(secret, ""));
    let url = Zeroizing::new(percent_encoded(secret, "-_.~"));
    let form = Zeroizing::new(url.replace("%20", "+"));
    let lower = Zeroizing::new(lower_escapes(&url));
    let all: BTreeSet<&str> = [secret, json, &markup, &strict, &url, &form, &lower].into_iter().collect();
    let mut all: Vec<Secret> = all.into_iter().map(Secret::new).collect();
    all.sort_by_key(|spelling| std::cmp::Reverse(spelling.expose().len()));
    all
}

fn percent_encoded(text: &str, kept: &str) -> String {
    // Three bytes per escape are enough. A reallocation would leave a copy of the secret in memory.
    let mut encoded = String::with_capacity(3 * text.len());
    for byte in text.bytes() {
        let character = char::from(byte);
        if character.is_ascii_alphanumeric() || kept.contains(character) {
            encoded.push(character);
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    encoded
}

fn lower_escapes(text: &str) -> String {
    let mut since = usize::MAX;
    text.chars()
        .map(|character| {
            since = if character == '%' { 0 } else { since.saturating_add(1) };
            if since <= 2 { character.to_ascii_lowercase() } else { character }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "[redacted]");
    }

    #[test]
    fn a_secret_is_known_however_it_is_written() {
        let spelled: Vec<String> =
            spellings("p@ s-W\"<%").iter().map(|spelling| spelling.expose().to_owned()).collect();
        for wanted in [
            "p@ s-W\"<%",
            "p@ s-W\\\"<%",
            "p@ s-W\\\"\\u003c%",
            "p%40%20s%2DW%22%3C%25",
            "p%40%20s-W%22%3C%25",
            "p%40+s-W%22%3C%25",
            "p%40%20s-W%22%3c%25",
        ] {
            assert!(spelled.iter().any(|found| found == wanted), "{wanted} is not among {spelled:?}");
        }
        assert!(spelled.is_sorted_by(|one, other| one.len() >= other.len()));
        assert_eq!(spellings("plain").len(), 1);
        assert!(spellings("").is_empty());
    }
}
