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
    fn is_known(&self) -> bool {
        matches!(self.scheme.as_str(), "basic" | "bearer")
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// The challenges of all headers. A broken one is left out; parameters of `Basic` do not matter, so that none breaks it.
///
/// # Errors
/// The headers are too long, or have only broken challenges.
pub(crate) fn challenges(headers: &HeaderMap) -> Result<Vec<Challenge>, ChallengeError> {
    let values = || headers.get_all(header::WWW_AUTHENTICATE).iter();
    if values().map(http::HeaderValue::len).sum::<usize>() > CHALLENGE_BYTES_MAX {
        return Err(ChallengeError::TooLong);
    }
    let (mut found, mut is_broken) = (Vec::new(), false);
    for value in values() {
        let text = String::from_utf8_lossy(value.as_bytes());
        let mut rest = Rest(&text);
        while let Some(challenge) = rest.challenge() {
            if found.len() == CHALLENGES_MAX {
                return Err(ChallengeError::Malformed);
            }
            is_broken |= challenge.is_err();
            found.extend(challenge.ok());
        }
    }
    if is_broken && !found.iter().any(Challenge::is_known) { Err(ChallengeError::Malformed) } else { Ok(found) }
}

/// Whether headers ask for a credential in a way that is understood.
pub(crate) fn is_answerable(headers: &HeaderMap) -> bool {
    challenges(headers).is_ok_and(|found| found.iter().any(Challenge::is_known))
}

/// A challenge or a parameter that is not written as one.
struct Broken;

struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// The next challenge; `None`: the header ends.
    fn challenge(&mut self) -> Option<Result<Challenge, Broken>> {
        self.skip(is_separator);
        if self.0.is_empty() {
            return None;
        }
        let scheme = self.take_while(is_token).to_ascii_lowercase();
        let spaced = self.skip(is_space);
        if scheme.is_empty() || self.0.starts_with('=') {
            self.skip(|byte| byte != b',');
            return Some(Err(Broken));
        }
        if spaced {
            self.skip_token68();
        }
        let (mut parameters, mut is_whole) = (Vec::new(), true);
        while let Some(parameter) = self.parameter() {
            is_whole &= parameter.is_ok_and(|(name, value)| add(&mut parameters, name, value));
        }
        Some(if is_whole || scheme != "bearer" { Ok(Challenge { scheme, parameters }) } else { Err(Broken) })
    }

    /// The next parameter of a challenge; `None`: another challenge follows, or the header ends.
    fn parameter(&mut self) -> Option<Result<(String, String), Broken>> {
        let mut ahead = Rest(self.0);
        ahead.skip(is_separator);
        if ahead.0.is_empty() {
            return None;
        }
        let name = ahead.take_while(is_token).to_ascii_lowercase();
        ahead.skip(is_space);
        let value = match ahead.0.strip_prefix('=') {
            Some(behind) if !name.is_empty() => {
                ahead.0 = behind.trim_start_matches([' ', '\t']);
                ahead.value()
            }
            None if !name.is_empty() => return None,
            _ => None,
        };
        ahead.skip(is_space);
        let is_whole = ahead.0.is_empty() || ahead.0.starts_with(',');
        ahead.skip(|byte| byte != b',');
        self.0 = ahead.0;
        Some(value.filter(|_| is_whole).map(|value| (name, value)).ok_or(Broken))
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let end = self.0.bytes().position(|byte| !accept(byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    fn skip(&mut self, accept: impl Fn(u8) -> bool) -> bool {
        !self.take_while(accept).is_empty()
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

    /// A quoted or a plain value. A plain one may have spaces, but nothing behind them that may be another parameter.
    fn value(&mut self) -> Option<String> {
        if !self.0.starts_with('"') {
            // Some registries send URLs without quotes, so more characters than a token's are accepted.
            let text = self.take_while(|byte| byte != b',').trim_end();
            let is_one = text.split_ascii_whitespace().skip(1).all(|word| !word.contains('='));
            return (!text.is_empty() && !text.contains('"') && is_one).then(|| text.to_owned());
        }
        let mut value = String::new();
        let mut characters = self.0.char_indices().skip(1);
        while let Some((index, character)) = characters.next() {
            match character {
                '"' => {
                    self.0 = &self.0[index + 1..];
                    return Some(value);
                }
                '\\' => value.push(characters.next()?.1),
                other => value.push(other),
            }
        }
        None
    }
}

/// Keeps the first of a repeated parameter. `false`: there are too many, or two parsers may read different values of one that
/// decides where a credential goes.
fn add(parameters: &mut Vec<(String, String)>, name: String, value: String) -> bool {
    if let Some((_, first)) = parameters.iter().find(|(known, _)| *known == name) {
        return *first == value || !matches!(name.as_str(), "realm" | "service");
    }
    let has_space = parameters.len() < PARAMETERS_MAX;
    if has_space {
        parameters.push((name, value));
    }
    has_space
}

fn is_separator(byte: u8) -> bool {
    byte == b',' || is_space(byte)
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
        read_bytes(text.as_bytes())
    }

    fn read_bytes(text: &[u8]) -> Result<Vec<Challenge>, ChallengeError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::WWW_AUTHENTICATE, http::HeaderValue::from_bytes(text).expect("a header value"));
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
            (
                r#"bEaReR Realm="x",Service="y",realm="x",error="a",error="b",x-trace=1, BASIC REALM=z"#,
                vec![
                    ("bearer", vec![("realm", "x"), ("service", "y"), ("error", "a"), ("x-trace", "1")]),
                    ("basic", vec![("realm", "z")]),
                ],
            ),
            (
                "Bearer realm=x, service=Docker registry",
                vec![("bearer", vec![("realm", "x"), ("service", "Docker registry")])],
            ),
            (r#"Bearer realm="x" service="y", Basic realm="z""#, vec![("basic", vec![("realm", "z")])]),
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
    fn a_basic_challenge_is_answered_whatever_its_parameters_are() {
        for text in [
            "Basic realm=\"B\u{fc}cher\"",
            "Basic realm=B\u{fc}cher",
            "Basic realm=Sonatype Nexus Repository Manager",
            "Basic realm='Sandstorm API'",
            "Basic realm=Foo, Inc. Registry",
            r#"Basic realm="a", realm="b""#,
            r#"Basic realm="a" charset="UTF-8""#,
            r#"Basic realm="the "inner" registry""#,
            r#"Basic realm="x"#,
            r#"Basic realm=/""#,
            "Basic realm=",
            "basic realm = \"x\" , charset=UTF-8",
            "Basic",
            r#"Basic "x""#,
            r#"Bearer realm="a",realm="b", Basic realm="x""#,
            r#""nothing", =, Basic realm="x""#,
        ] {
            let found = read_bytes(text.as_bytes()).expect(text);
            assert!(found.iter().any(|challenge| challenge.scheme == "basic"), "{text}: {found:?}");
            assert!(found.iter().all(|challenge| challenge.scheme != "bearer"), "{text}: {found:?}");
        }
        let latin = read_bytes(b"Basic realm=\"B\xfccher\"").expect("another encoding");
        assert_eq!(latin[0].scheme, "basic");
        let many = (0..40).map(|number| format!("p{number}=x,")).collect::<Vec<_>>().concat();
        let found = read(&format!("Basic {many}")).expect("many parameters");
        assert!(found[0].parameters.len() <= PARAMETERS_MAX);
        read(&format!("Bearer {many}")).unwrap_err();
    }

    #[test]
    fn each_header_is_read_by_itself_and_a_broken_one_hides_no_other() {
        let mut headers = HeaderMap::new();
        for text in ["Negotiate", r#"realm="y""#, r#"Bearer realm="broken"#, r#"Basic realm="x""#] {
            headers.append(header::WWW_AUTHENTICATE, text.parse().expect("a header value"));
        }
        let schemes: Vec<String> =
            challenges(&headers).unwrap().into_iter().map(|challenge| challenge.scheme).collect();
        assert_eq!(schemes, ["negotiate", "basic"]);
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
