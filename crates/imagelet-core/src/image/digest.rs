//! A checked content digest. Text from a registry reaches a path or a URL only in this form.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    printable::printable_start,
    text::{PlainError, named_enum},
};

/// The maximum bytes of an invalid digest in a message: the length of the longest valid digest.
const SHOWN_MAX: usize = 135;

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum DigestAlgorithm {
        Sha256 = "sha256",
        Sha384 = "sha384",
        Sha512 = "sha512",
    }
}

impl DigestAlgorithm {
    fn hex_length(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha384 => 96,
            Self::Sha512 => 128,
        }
    }
}

/// `ALGORITHM:HEX`, in lower case, with the right length. Both parts are safe as path components.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: DigestAlgorithm,
    text: Arc<str>,
}

impl Digest {
    /// Wraps raw hash output.
    ///
    /// # Panics
    /// If the length of `hash` is not the length that the algorithm produces.
    pub fn from_hash(algorithm: DigestAlgorithm, hash: &[u8]) -> Self {
        use fmt::Write as _;
        assert_eq!(hash.len() * 2, algorithm.hex_length(), "hash output has the algorithm's length");
        let mut text = String::with_capacity(8 + hash.len() * 2);
        text.push_str(algorithm.name());
        text.push(':');
        for byte in hash {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        }
        Self { algorithm, text: text.into() }
    }

    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hash(DigestAlgorithm::Sha256, aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
    }

    pub fn algorithm(&self) -> DigestAlgorithm {
        self.algorithm
    }

    pub fn hex(&self) -> &str {
        &self.text[self.algorithm.name().len() + 1..]
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Digest {
    type Err = PlainError;

    /// Checks in the order of `docs/spec/pull.md §5.2`: the algorithm's syntax, its name, the length, the digits.
    fn from_str(text: &str) -> Result<Self, PlainError> {
        let no_digest = || PlainError::new("invalid checksum digest format");
        let (name, hex) = text.split_once(':').ok_or_else(no_digest)?;
        if !is_algorithm_name(name) {
            return Err(no_digest());
        }
        let algorithm = DigestAlgorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        let algorithm = algorithm.ok_or_else(|| PlainError::new("unsupported digest algorithm"))?;
        if hex.len() != algorithm.hex_length() {
            return Err(PlainError::new("invalid checksum digest length"));
        }
        if !hex.bytes().all(is_lower_hex) {
            return Err(no_digest());
        }
        Ok(Self { algorithm, text: text.into() })
    }
}

pub(super) fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn is_algorithm_name(name: &str) -> bool {
    name.split(['.', '+', '_', '-'])
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()))
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| D::Error::custom(format!("`{}`: {error}", printable_start(&text, SHOWN_MAX))))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_refused_by_the_first_rule_they_break() {
        let (hex, no_digest) = ("ab".repeat(32), "invalid checksum digest format");
        assert!(format!("sha256:{hex}").parse::<Digest>().is_ok());
        for (text, error) in [
            (hex.clone(), no_digest),
            (format!("SHA256:{hex}"), no_digest),
            (format!("md5:{hex}"), "unsupported digest algorithm"),
            ("sha256:ab".to_owned(), "invalid checksum digest length"),
            (format!("sha256:{}", "AB".repeat(32)), no_digest),
            (format!("sha256:{}", "/.".repeat(32)), no_digest),
        ] {
            assert_eq!(text.parse::<Digest>(), Err(PlainError::new(error)), "{text}");
        }
    }

    #[test]
    fn a_wrong_digest_is_named_where_it_is_read() {
        let error = serde_json::from_str::<Digest>("\"sha256:12\"").unwrap_err();
        assert!(error.to_string().starts_with("`sha256:12`: invalid checksum digest length"), "{error}");
    }

    #[test]
    fn the_digest_of_nothing_is_the_known_one() {
        assert_eq!(Digest::of(b"").as_str(), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
