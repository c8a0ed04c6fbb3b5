//! Docker's configuration documents, read as the kubelet reads them (`spec/pull.md §6.1-6.3`).

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::{PullSecretKind, Secret};

/// Longest document that is read; a Kubernetes secret holds at most this much.
pub(super) const DOCKER_CONFIG_LENGTH_MAX: usize = 1024 * 1024;

/// A document's entries by the keys they were written under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DockerConfig {
    /// Keys as written: hosts, URLs, globs.
    pub entries: BTreeMap<String, DockerEntry>,
}

/// One entry. `Debug` hides the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerEntry {
    /// The user.
    pub username: String,
    /// The password.
    pub password: Secret,
    /// Takes part in the credential's hash and in nothing else.
    pub email: String,
}

/// A document cannot be read. Prints nothing of what it holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DockerConfigError {
    /// It is too long.
    #[error("the document is longer than {DOCKER_CONFIG_LENGTH_MAX} bytes")]
    TooLong,
    /// It is no JSON, or ends too soon, or goes on too long.
    #[error("the document is no valid JSON: line {line}, column {column}")]
    Syntax {
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
    },
    /// A field is not of the type it should be.
    #[error("the document has a field of the wrong type: line {line}, column {column}")]
    Type {
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
    },
    /// An `auth` field is not what it should be.
    #[error(transparent)]
    Auth(#[from] AuthError),
}

/// An `auth` field cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// It is not in base64.
    #[error("illegal base64 data at input byte {0}")]
    Base64(usize),
    /// It does not hold a user and a password.
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    NoColon,
}

impl DockerConfig {
    /// Reads a document.
    pub fn parse(kind: PullSecretKind, document: &[u8]) -> Result<Self, DockerConfigError> {
        if document.len() > DOCKER_CONFIG_LENGTH_MAX {
            return Err(DockerConfigError::TooLong);
        }
        let read = match kind {
            PullSecretKind::DockerConfigJson => {
                serde_json::from_slice::<Nullable<RawConfig>>(document).map(|raw| raw.0.auths)
            }
            PullSecretKind::DockerCfg => serde_json::from_slice::<Nullable<RawEntries>>(document).map(|raw| raw.0),
        };
        // The parser's own message may show a value, and a value may be a password.
        let RawEntries(entries) = read.map_err(|error| {
            let (line, column) = (error.line(), error.column());
            if error.is_data() {
                DockerConfigError::Type { line, column }
            } else {
                DockerConfigError::Syntax { line, column }
            }
        })?;
        let entries = entries.into_iter().map(|(key, entry)| Ok((key, entry.decode()?)));
        Ok(Self { entries: entries.collect::<Result<_, AuthError>>()? })
    }
}

/// `null` where the default will do.
#[derive(Default)]
struct Nullable<T>(T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Nullable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<T>::deserialize(deserializer).map(|value| Self(value.unwrap_or_default()))
    }
}

#[derive(Default)]
struct RawConfig {
    auths: RawEntries,
}

#[derive(Default)]
struct RawEntries(BTreeMap<String, RawEntry>);

#[derive(Default)]
struct RawEntry {
    username: String,
    password: String,
    email: String,
    auth: String,
}

impl RawEntry {
    fn decode(self) -> Result<DockerEntry, AuthError> {
        let (username, password) =
            if self.auth.is_empty() { (self.username, self.password) } else { decode_auth(&self.auth)? };
        Ok(DockerEntry { username, password: Secret::new(password), email: self.email })
    }
}

/// Reads an object member by member: names match in any case, unknown ones are passed over, the last one wins.
macro_rules! read_members {
    ($target:ty, $expecting:literal, |$self_:ident, $name:ident, $map:ident| $body:block) => {
        impl<'de> Deserialize<'de> for $target {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Members;
                impl<'de> Visitor<'de> for Members {
                    type Value = $target;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_map<A: MapAccess<'de>>(self, mut $map: A) -> Result<$target, A::Error> {
                        let mut $self_ = <$target>::default();
                        while let Some($name) = $map.next_key::<String>()? $body
                        Ok($self_)
                    }
                }
                deserializer.deserialize_map(Members)
            }
        }
    };
}

read_members!(RawConfig, "an object with `auths`", |config, name, map| {
    if name.eq_ignore_ascii_case("auths") {
        // A repeated object is merged into the earlier one.
        config.auths.0.extend(map.next_value::<Nullable<RawEntries>>()?.0.0);
    } else {
        map.next_value::<IgnoredAny>()?;
    }
});

read_members!(RawEntries, "an object of entries", |entries, name, map| {
    entries.0.insert(name, map.next_value::<Nullable<RawEntry>>()?.0);
});

read_members!(RawEntry, "an entry", |entry, name, map| {
    let field = match name.to_ascii_lowercase().as_str() {
        "username" => &mut entry.username,
        "password" => &mut entry.password,
        "email" => &mut entry.email,
        "auth" => &mut entry.auth,
        _ => {
            map.next_value::<IgnoredAny>()?;
            continue;
        }
    };
    if let Some(text) = map.next_value::<Option<String>>()? {
        *field = text;
    }
});

/// User and password of an `auth` field.
fn decode_auth(auth: &str) -> Result<(String, String), AuthError> {
    let padded = auth.trim().ends_with('=');
    let decoded = decode_base64(auth.as_bytes(), padded)?;
    let colon = decoded.iter().position(|byte| *byte == b':').ok_or(AuthError::NoColon)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&decoded[..colon]), text(&decoded[colon + 1..])))
}

/// Standard base64 as Go reads it: line ends are passed over, stray trailing bits too; an error names the byte.
fn decode_base64(input: &[u8], padded: bool) -> Result<Vec<u8>, AuthError> {
    let mut symbols = input.iter().copied().enumerate().filter(|(_, byte)| !matches!(byte, b'\r' | b'\n'));
    let mut decoded = Vec::with_capacity(input.len() / 4 * 3);
    loop {
        let mut quantum = 0u32;
        let mut filled = 0;
        while filled < 4 {
            match symbols.next() {
                None if filled == 0 => return Ok(decoded),
                // Go points at the start of the quantum that is not whole.
                None if filled == 1 || padded => return Err(AuthError::Base64(input.len() - filled)),
                None => break,
                Some((at, b'=')) if padded => return end_padded(decoded, quantum, filled, at, symbols, input.len()),
                Some((at, symbol)) => {
                    quantum = quantum << 6 | sextet(symbol).ok_or(AuthError::Base64(at))?;
                    filled += 1;
                }
            }
        }
        push_quantum(&mut decoded, quantum, filled);
    }
}

fn end_padded(
    mut decoded: Vec<u8>,
    quantum: u32,
    filled: usize,
    at: usize,
    mut rest: impl Iterator<Item = (usize, u8)>,
    length: usize,
) -> Result<Vec<u8>, AuthError> {
    if filled < 2 {
        return Err(AuthError::Base64(at));
    }
    if filled == 2 {
        match rest.next() {
            Some((_, b'=')) => {}
            Some((at, _)) => return Err(AuthError::Base64(at)),
            None => return Err(AuthError::Base64(length)),
        }
    }
    if let Some((at, _)) = rest.next() {
        return Err(AuthError::Base64(at));
    }
    push_quantum(&mut decoded, quantum, filled);
    Ok(decoded)
}

fn push_quantum(decoded: &mut Vec<u8>, quantum: u32, filled: usize) {
    let bytes = (quantum << (6 * (4 - filled))).to_be_bytes();
    decoded.extend(&bytes[1..filled]);
}

fn sextet(symbol: u8) -> Option<u32> {
    let value = match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    #[test]
    fn every_document_and_auth_vector_holds() {
        let mut cases = 0;
        for case in vectors("pull-docker-config.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            match input["kind"].as_str() {
                Some("auth") => {
                    let decoded = decode_auth(&text(&input["auth"]));
                    match expected["error"].as_str() {
                        Some(error) => assert_eq!(decoded.map_err(|error| error.to_string()), Err(error.to_owned())),
                        None => assert_eq!(decoded, Ok((text(&expected["username"]), text(&expected["password"])))),
                    }
                }
                Some("document") => {
                    let kind = match input["format"].as_str() {
                        Some("dockercfg") => PullSecretKind::DockerCfg,
                        _ => PullSecretKind::DockerConfigJson,
                    };
                    let parsed = DockerConfig::parse(kind, text(&input["data"]).as_bytes());
                    match expected["error"].as_str() {
                        Some(error) if error.starts_with("illegal base64") => {
                            assert_eq!(parsed.map_err(|error| error.to_string()), Err(error.to_owned()));
                        }
                        Some(_) => assert!(parsed.is_err(), "{}", case["name"]),
                        None => {
                            let entries =
                                expected["entries"].as_object().expect("entries").iter().map(|(key, entry)| {
                                    let entry = DockerEntry {
                                        username: text(&entry["username"]),
                                        password: Secret::new(text(&entry["password"])),
                                        email: text(&entry["email"]),
                                    };
                                    (key.clone(), entry)
                                });
                            assert_eq!(parsed, Ok(DockerConfig { entries: entries.collect() }), "{}", case["name"]);
                        }
                    }
                }
                Some("hash") => {}
                other => panic!("unknown kind {other:?}"),
            }
            cases += 1;
        }
        assert_eq!(cases, 60);
    }

    #[test]
    fn an_error_shows_nothing_of_the_document() {
        let document = br#"{"auths": {"reg.io": {"username": "u", "password": "hunter2", "auth": {"hunter2": 1}}}}"#;
        let error = DockerConfig::parse(PullSecretKind::DockerConfigJson, document).unwrap_err();
        assert!(matches!(error, DockerConfigError::Type { line: 1, .. }), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
