//! Parses `WWW-Authenticate`.

use std::sync::LazyLock;

use http::{HeaderMap, header};
use imagelet_core::image::ByteSize;
use regex_lite::Regex;

const CHALLENGE_BYTES_MAX: usize = 8 << 10;
const CHALLENGES_MAX: usize = 8;
const PARAMETERS_MAX: usize = 16;
const MALFORMED: &str = "the header is malformed";

static PARAMETER: LazyLock<Regex> = LazyLock::new(|| regex(r"^([A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*=[ \t]*(.*)$"));
static SCHEME: LazyLock<Regex> = LazyLock::new(|| regex(r"^([A-Za-z0-9!#$%&'*+.^_`|~-]+)(?:[ \t]+(.*))?$"));
/// The single token that some schemes have instead of parameters.
static TOKEN68: LazyLock<Regex> = LazyLock::new(|| regex(r"^[A-Za-z0-9._~+/-]+=*$"));
static QUOTED: LazyLock<Regex> = LazyLock::new(|| regex(r#"^"((?:[^"\\]|\\.)*)"$"#));
static ESCAPED: LazyLock<Regex> = LazyLock::new(|| regex(r"\\(.)"));

fn regex(text: &str) -> Regex {
    Regex::new(text).expect("a regular expression")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    /// `basic`, `bearer`, …, in lower case.
    pub(crate) scheme: String,
    pub(crate) parameters: Vec<(String, String)>,
}

impl Challenge {
    fn is_known(&self) -> bool {
        matches!(self.scheme.as_str(), "basic" | "bearer")
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns whether the parameter is valid. Of a repeated name, the first value counts. A second `realm` or
    /// `service` must not differ, because these two decide where a credential is sent.
    fn add(&mut self, text: &str) -> bool {
        let parts = PARAMETER.captures(text);
        let Some((name, value)) = parts.and_then(|parts| Some((parts[1].to_ascii_lowercase(), value(&parts[2])?)))
        else {
            return false;
        };
        if let Some(first) = self.parameter(&name) {
            return first == value || !matches!(name.as_str(), "realm" | "service");
        }
        let has_space = self.parameters.len() < PARAMETERS_MAX;
        if has_space {
            self.parameters.push((name, value));
        }
        has_space
    }
}

/// Some registries send a plain value with spaces. A later word with `=` may be another parameter.
fn value(text: &str) -> Option<String> {
    if text.starts_with('"') {
        return Some(ESCAPED.replace_all(&QUOTED.captures(text)?[1], "$1").into_owned());
    }
    let is_one = text.split_ascii_whitespace().skip(1).all(|word| !word.contains('='));
    (!text.is_empty() && !text.contains('"') && is_one).then(|| text.to_owned())
}

/// The challenges of all headers, without malformed `Bearer` challenges. The parameters of other schemes are not used.
pub(crate) fn challenges(headers: &HeaderMap) -> Result<Vec<Challenge>, String> {
    let values = || headers.get_all(header::WWW_AUTHENTICATE).iter();
    if values().map(http::HeaderValue::len).sum::<usize>() > CHALLENGE_BYTES_MAX {
        return Err(format!("the header is longer than {}", ByteSize(CHALLENGE_BYTES_MAX as u64)));
    }
    let (mut found, mut is_broken) = (Vec::new(), false);
    for text in values().map(|value| String::from_utf8_lossy(value.as_bytes())) {
        let mut of_header: Vec<(Challenge, bool)> = Vec::new();
        let (mut is_quoted, mut is_escaped) = (false, false);
        let items = text.split(|letter| {
            is_quoted ^= letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && is_quoted && !is_escaped;
            letter == ',' && !is_quoted
        });
        for item in items.map(|item| item.trim_matches([' ', '\t'])) {
            let parts = SCHEME.captures(item).filter(|_| !PARAMETER.is_match(item));
            let mut parameter = item;
            if let Some(parts) = parts {
                let (scheme, parameters) = (parts[1].to_ascii_lowercase(), Vec::new());
                of_header.push((Challenge { scheme, parameters }, true));
                parameter = parts.get(2).map_or("", |rest| rest.as_str());
                if TOKEN68.is_match(parameter) {
                    continue;
                }
            }
            match of_header.last_mut() {
                _ if parameter.is_empty() => {}
                Some((challenge, is_whole)) => *is_whole &= challenge.add(parameter),
                None => is_broken = true,
            }
        }
        is_broken |= of_header.iter().any(|(challenge, is_whole)| !is_whole && challenge.scheme == "bearer");
        let kept = of_header.into_iter().filter(|(challenge, is_whole)| *is_whole || challenge.scheme != "bearer");
        found.extend(kept.map(|(challenge, _)| challenge));
    }
    let has_known = found.iter().any(Challenge::is_known);
    if found.len() > CHALLENGES_MAX || (is_broken && !has_known) { Err(MALFORMED.to_owned()) } else { Ok(found) }
}

pub(crate) fn is_answerable(headers: &HeaderMap) -> bool {
    challenges(headers).is_ok_and(|found| found.iter().any(Challenge::is_known))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Plain<'a> = Vec<(&'a str, Vec<(&'a str, &'a str)>)>;

    fn read(text: &str) -> Result<Vec<Challenge>, String> {
        read_bytes(text.as_bytes())
    }

    fn read_bytes(text: &[u8]) -> Result<Vec<Challenge>, String> {
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
            assert_eq!(read(text), Err(MALFORMED.to_owned()), "{text}");
        }
        assert!(read(&format!("Bearer realm=\"{}\"", "x".repeat(60_000))).unwrap_err().contains("longer than"));
        read(&"Basic,".repeat(9)).unwrap_err();
    }
}
