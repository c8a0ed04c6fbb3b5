//! Parses `WWW-Authenticate`.

use http::{HeaderMap, header};
use imagelet_core::image::ByteSize;

const CHALLENGE_BYTES_MAX: usize = 8 << 10;
const CHALLENGES_MAX: usize = 8;
const PARAMETERS_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    /// `basic`, `bearer`, …, in lower case.
    pub(crate) scheme: String,
    pub(crate) parameters: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChallengeError {
    #[error("the header is longer than {}", ByteSize(CHALLENGE_BYTES_MAX as u64))]
    TooLong,
    #[error("the header is malformed")]
    Malformed,
}

impl Challenge {
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) fn challenges(headers: &HeaderMap) -> Result<Vec<Challenge>, ChallengeError> {
    let values = || headers.get_all(header::WWW_AUTHENTICATE).iter();
    if values().map(http::HeaderValue::len).sum::<usize>() > CHALLENGE_BYTES_MAX {
        return Err(ChallengeError::TooLong);
    }
    let mut found = Vec::new();
    for value in values() {
        let text = value.to_str().map_err(|_| ChallengeError::Malformed)?;
        parse(text, &mut found)?;
    }
    Ok(found)
}

fn parse(text: &str, found: &mut Vec<Challenge>) -> Result<(), ChallengeError> {
    let mut rest = Rest(text);
    loop {
        rest.skip(|byte| byte == b',' || is_space(byte));
        if rest.0.is_empty() {
            return Ok(());
        }
        let word = rest.take_while(is_token);
        if word.is_empty() {
            return Err(ChallengeError::Malformed);
        }
        let spaced = rest.skip(is_space);
        let opens_parameter = rest.0.starts_with('=') && !rest.is_padding();
        let is_full = found.len() == CHALLENGES_MAX;
        match found.last_mut() {
            Some(challenge) if opens_parameter => {
                rest.0 = &rest.0[1..];
                rest.skip(is_space);
                let value = rest.value()?;
                let name = word.to_ascii_lowercase();
                // A repeated parameter is an attack: two parsers may read different values.
                if challenge.parameter(&name).is_some() || challenge.parameters.len() == PARAMETERS_MAX {
                    return Err(ChallengeError::Malformed);
                }
                challenge.parameters.push((name, value));
                rest.skip(is_space);
                if !rest.0.is_empty() && !rest.0.starts_with(',') {
                    return Err(ChallengeError::Malformed);
                }
            }
            _ if opens_parameter || is_full => return Err(ChallengeError::Malformed),
            _ => {
                found.push(Challenge { scheme: word.to_ascii_lowercase(), parameters: Vec::new() });
                if spaced {
                    rest.skip_token68();
                }
            }
        }
    }
}

struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let end = self.0.bytes().position(|byte| !accept(byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    fn skip(&mut self, accept: impl Fn(u8) -> bool) -> bool {
        !self.take_while(accept).is_empty()
    }

    /// Whether the next `=` is base64 padding and not the start of a value.
    fn is_padding(&self) -> bool {
        let behind = self.0.trim_start_matches('=').trim_start();
        behind.is_empty() || behind.starts_with(',')
    }

    /// Skips the single token68 that some schemes carry instead of parameters.
    fn skip_token68(&mut self) {
        let mut ahead = Rest(self.0);
        let word = ahead.take_while(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte));
        ahead.take_while(|byte| byte == b'=');
        ahead.skip(is_space);
        if !word.is_empty() && (ahead.0.is_empty() || ahead.0.starts_with(',')) {
            self.0 = ahead.0;
        }
    }

    fn value(&mut self) -> Result<String, ChallengeError> {
        if !self.0.starts_with('"') {
            // Some registries send URLs without quotes, so more characters than a token's are accepted.
            let word = self.take_while(|byte| byte.is_ascii_graphic() && !b",\"".contains(&byte));
            return if word.is_empty() { Err(ChallengeError::Malformed) } else { Ok(word.to_owned()) };
        }
        let mut value = String::new();
        let mut characters = self.0.char_indices().skip(1);
        while let Some((index, character)) = characters.next() {
            match character {
                '"' => {
                    self.0 = &self.0[index + 1..];
                    return Ok(value);
                }
                '\\' => value.push(characters.next().ok_or(ChallengeError::Malformed)?.1),
                other => value.push(other),
            }
        }
        Err(ChallengeError::Malformed)
    }
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Plain<'a> = Vec<(&'a str, Vec<(&'a str, &'a str)>)>;

    fn read(text: &str) -> Result<Vec<Challenge>, ChallengeError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::WWW_AUTHENTICATE, text.parse().expect("a header value"));
        challenges(&headers)
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let realm = "https://auth.docker.io/token";
        let table: Vec<(&str, Plain)> = vec![
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#,
                vec![(
                    "bearer",
                    vec![("realm", realm), ("service", "registry.docker.io"), ("scope", "repository:a/b:pull,push")],
                )],
            ),
            (r#"Basic realm="a \"quoted\" one""#, vec![("basic", vec![("realm", "a \"quoted\" one")])]),
            ("BASIC", vec![("basic", vec![])]),
            ("Bearer realm=https://auth.docker.io/token", vec![("bearer", vec![("realm", realm)])]),
            (r#"Bearer Realm = "x" , service = y"#, vec![("bearer", vec![("realm", "x"), ("service", "y")])]),
            (
                r#"Negotiate, Basic realm="x", Bearer realm="y",error="invalid_token""#,
                vec![
                    ("negotiate", vec![]),
                    ("basic", vec![("realm", "x")]),
                    ("bearer", vec![("realm", "y"), ("error", "invalid_token")]),
                ],
            ),
            (r#"NTLM TlRMTVNTUAAB==, Basic realm="x""#, vec![("ntlm", vec![]), ("basic", vec![("realm", "x")])]),
            ("", vec![]),
            (" , ,", vec![]),
        ];
        for (text, expected) in table {
            let expected: Vec<Challenge> = expected
                .into_iter()
                .map(|(scheme, parameters)| Challenge {
                    scheme: scheme.to_owned(),
                    parameters: parameters
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value.to_owned()))
                        .collect(),
                })
                .collect();
            assert_eq!(read(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_challenges_are_refused() {
        for text in [
            r#"realm="x""#,
            r#"Bearer realm="x"#,
            r#"Bearer realm="x\"#,
            "Bearer a=b,realm=,",
            r#"Bearer realm="x" service="y""#,
            r#"Bearer realm="a",realm="b""#,
            r#"Bearer "x""#,
            "=",
        ] {
            assert_eq!(read(text), Err(ChallengeError::Malformed), "{text}");
        }
        assert_eq!(read(&format!("Bearer realm=\"{}\"", "x".repeat(60_000))), Err(ChallengeError::TooLong));
        assert_eq!(read(&"Basic,".repeat(9)), Err(ChallengeError::Malformed));
    }
}
