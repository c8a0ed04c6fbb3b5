//! Names of images and headers that ask for credentials: what is accepted is written back and reads the same.

use std::path::Path;

use http::HeaderValue;
use imagelet_core::image::{Reference, default_tag, trim_tag_and_digest};

use super::{
    assert_short_message,
    mutation::{self, Dice},
};
use imagelet_oci::fuzzing::parse_challenges;

/// Bounds of the grammar.
const PATH_MAX: usize = 255;
const TAG_MAX: usize = 128;
/// Bounds of challenges: bytes read, challenges, parameters of each.
const HEADER_MAX: usize = 8 << 10;
const CHALLENGES_MAX: usize = 8;
const PARAMETERS_MAX: usize = 16;
const REFERENCE_WORDS: [&[u8]; 14] = [
    b"docker.io/",
    b"index.docker.io/",
    b"library/",
    b"localhost",
    b"[::1]:5000/",
    b":latest",
    b"@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"@sha384:",
    b"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"__",
    b"---",
    b"../",
    b"%2e%2e/",
    b"\xc3\x84",
];
const CHALLENGE_WORDS: [&[u8]; 12] = [
    b"Bearer ",
    b"Basic ",
    b"Negotiate",
    b"realm=\"https://a/b\"",
    b"service=",
    b"scope=\"repository:a/b:pull\"",
    b",",
    b"=",
    b"\\\"",
    b"QWxhZGRpbg==",
    b"\n",
    b"\t",
];

/// Reads one name.
pub(crate) fn check_reference(bytes: &[u8], _: &Path) {
    let text = String::from_utf8_lossy(bytes);
    let trimmed = trim_tag_and_digest(&text);
    assert!(trimmed.as_ref().is_ok_and(|name| text.starts_with(name)) || trimmed.is_err());
    let reference: Reference = match text.parse() {
        Ok(reference) => reference,
        Err(error) => {
            assert_eq!(default_tag(&text).expect_err("no refused name reaches a runtime"), error);
            return;
        }
    };
    let (domain, path) = (reference.domain(), reference.path());
    // A few names match as a path whose first component is no domain.
    let whole = if domain.is_empty() { path.to_owned() } else { format!("{domain}/{path}") };
    assert_eq!(reference.repository(), whole);
    assert!(path.len() <= PATH_MAX && reference.tag().is_none_or(|tag| tag.len() <= TAG_MAX));
    assert!(reference.tag().is_some() || reference.digest().is_some());
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    for component in path.split('/') {
        // It becomes part of a URL as it is.
        assert!(!component.is_empty() && component.bytes().all(is_plain), "`{component}`");
        assert!(!component.starts_with('.') && !component.contains(".."), "`{component}`");
    }
    assert!(domain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte)), "`{domain}`");

    for written in [reference.to_string(), default_tag(&text).expect("the same grammar")] {
        assert_eq!(written.parse().as_ref(), Ok(&reference), "`{text}` is written `{written}`");
    }
    let canonical = reference.canonical();
    assert_eq!(canonical.canonical(), canonical);
    assert_eq!(canonical.to_string().parse().as_ref(), Ok(&canonical));
}

/// Reads headers, one a line.
pub(crate) fn check_challenge(bytes: &[u8], _: &Path) {
    let values: Vec<_> =
        bytes.split(|&byte| byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok()).collect();
    let found = match parse_challenges(&values) {
        Ok(found) => found,
        Err(error) => return assert_short_message(&*error),
    };
    assert!(values.iter().map(HeaderValue::len).sum::<usize>() <= HEADER_MAX && found.len() <= CHALLENGES_MAX);
    let mut written = Vec::new();
    for (scheme, parameters) in &found {
        assert!(!scheme.is_empty() && !scheme.bytes().any(|byte| byte.is_ascii_uppercase()));
        assert!(parameters.len() <= PARAMETERS_MAX);
        let mut quoted = Vec::new();
        for (at, (name, value)) in parameters.iter().enumerate() {
            assert!(parameters[..at].iter().all(|(earlier, _)| earlier != name), "`{name}` can be read in two ways");
            quoted.push(format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")));
        }
        written.push(format!("{scheme} {}", quoted.join(", ")));
    }
    let written =
        HeaderValue::from_bytes(written.join(", ").as_bytes()).expect("what was read from headers fits into one");
    if written.len() <= HEADER_MAX {
        assert_eq!(parse_challenges(&[written]).expect("written back"), found);
    }
}

/// Changes letters and inserts parts of names.
pub(crate) fn mutate_reference(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &REFERENCE_WORDS);
}

/// Changes letters and inserts parts of challenges.
pub(crate) fn mutate_challenge(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &CHALLENGE_WORDS);
}
