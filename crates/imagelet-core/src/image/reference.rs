//! Image references, parsed as `distribution/reference` v0.6.0 does (`docs/spec/pull.md §5`).

use std::{borrow::Cow, fmt, str::FromStr};

use super::{
    digest::{Digest, is_lower_hex},
    docker_hub::DOCKER_HUB,
};
use crate::text::PlainError;

const PATH_LENGTH_MAX: usize = 255;
const TAG_LENGTH_MAX: usize = 128;
const DEFAULT_FOLDER: &str = "library/";
const DEFAULT_TAG: &str = "latest";
/// Prefixes with which other tools mark the place of a local image: `docker-archive:PATH`, `docker-daemon:NAME`.
const PLACES: [&str; 6] = ["oci", "oci-archive", "docker-archive", "docker-daemon", "containers-storage", "dir"];

/// A normalised name: the repository with domain, and a tag, a digest, or both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReferenceError {
    message: String,
    hint: Option<String>,
}

impl ReferenceError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The format error, with a hint if `text` has a scheme. The hint repeats the text after the scheme only if it is a
    /// reference, because any other text may contain a password.
    fn format(text: &str) -> Self {
        let is_scheme = |scheme: &str| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let url = text.split_once("://").filter(|(scheme, _)| !scheme.is_empty() && is_scheme(scheme));
        let of_url = url.map(|(scheme, rest)| {
            // A reference has no `://`. Without this check, each scheme of `a://a://…` would be one more recursion.
            let is_name = !rest.contains("://") && rest.parse::<Reference>().is_ok();
            let name = if is_name { format!(": {rest}") } else { String::new() };
            format!("a name has no scheme; leave out `{scheme}://`{name}")
        });
        let place = text.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| PLACES.contains(scheme));
        let of_place = place.map(|place| {
            format!("`{place}:` is a place of other tools; an image of an archive comes by imagelet import FILE")
        });
        Self { hint: of_url.or(of_place), ..Self::new("invalid reference format") }
    }
}

impl Reference {
    /// The repository with domain: `docker.io/library/busybox`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The registry's host and port. Empty if the first component, such as `my_host.io`, is no valid domain.
    pub fn domain(&self) -> &str {
        split_domain(&self.repository).0
    }

    pub fn path(&self) -> &str {
        split_domain(&self.repository).1
    }

    /// The written tag, or the default tag. `None`: the reference has a digest and no tag.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    #[must_use]
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self { repository: self.repository.clone(), tag: None, digest: Some(digest) }
    }

    /// The names of the pulled image: by tag (`None` if the reference has a digest), and by `digest`.
    pub fn names_of(&self, digest: &Digest) -> (Option<String>, String) {
        let by_digest = self.with_digest(digest.clone()).to_string();
        (self.digest.is_none().then(|| self.to_string()), by_digest)
    }

    /// The name under which the image is stored. If the reference has a digest, the tag is dropped.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let tag = if self.digest.is_some() { None } else { self.tag.clone() };
        Self { tag, ..self.clone() }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    /// Normalises the text: expands short names, and adds the tag `latest` if there is neither tag nor digest.
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let full = full_name(text)?;
        let parts = Parts::parse(&full, text)?;
        let tag = parts.tag.map(str::to_owned);
        let digest = parts.digest.map(parse_digest).transpose()?;
        let tag = if tag.is_none() && digest.is_none() { Some(DEFAULT_TAG.to_owned()) } else { tag };
        Ok(Self { repository: parts.name.to_owned(), tag, digest })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

/// Redacts an invalid reference for a message, because a URL may contain a password. Removes the text before an `@`,
/// unless a digest follows, and the query of a URL.
pub fn shown_name(text: &str) -> Cow<'_, str> {
    let is_digest = |rest: &str| {
        rest.split_once(':').is_some_and(|(algorithm, hash)| {
            let is_known = ["sha256", "sha384", "sha512"].contains(&algorithm);
            let is_hash = hash.len() >= 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            !algorithm.contains(['/', '@']) && (is_known || is_hash)
        })
    };
    let (scheme, rest) = match text.split_once("://") {
        Some((_, rest)) => text.split_at(text.len() - rest.len()),
        None => ("", text),
    };
    let user = rest.rmatch_indices('@').find(|(at, _)| !is_digest(&rest[at + 1..]));
    let from = user.map_or(0, |(at, _)| at + 1);
    let query = rest[from..].find('?').filter(|_| !scheme.is_empty()).map(|query| query + from);
    if user.is_none() && query.is_none() {
        return Cow::Borrowed(text);
    }
    let hidden = if user.is_some() { "[redacted]@" } else { "" };
    let shown = match query {
        Some(query) => format!("{}?[redacted]", &rest[from..query]),
        None => rest[from..].to_owned(),
    };
    Cow::Owned(format!("{scheme}{hidden}{shown}"))
}

/// The text as the user wrote it, plus `:latest` if it has neither tag nor digest. Runtimes get this name.
pub fn default_tag(text: &str) -> Result<String, ReferenceError> {
    Parts::parse(&full_name(text)?, text)?;
    // A valid name ends with its last path component. A colon after the last slash starts a tag.
    let last = text.rsplit('/').next().unwrap_or(text);
    let bare = !text.contains('@') && !last.contains(':');
    Ok(if bare { format!("{text}:{DEFAULT_TAG}") } else { text.to_owned() })
}

/// The text as the user wrote it, without tag and digest. Short names are not expanded.
pub fn trim_tag_and_digest(text: &str) -> Result<&str, ReferenceError> {
    if text.is_empty() {
        return Err(ReferenceError::new("repository name must have at least one component"));
    }
    if Parts::cut(text).is_none() && Parts::cut(&text.to_lowercase()).is_some() {
        return Err(ReferenceError::new("repository name must be lowercase"));
    }
    Parts::parse(text, "").map(|parts| parts.name)
}

/// The parts of a name with a domain. `None` for other texts. A valid name is not copied.
pub(super) fn parts_of_full_name(text: &str) -> Option<Parts<'_>> {
    let Ok(Cow::Borrowed(full)) = full_name(text) else { return None };
    Parts::cut(full)?;
    Parts::parse(full, "").ok()
}

/// The text with its domain, which the grammar requires. Does not allocate if the text already has a domain.
fn full_name(text: &str) -> Result<Cow<'_, str>, ReferenceError> {
    if text.len() == 64 && text.bytes().all(is_lower_hex) {
        let what = format!("invalid repository name ({text}), cannot specify 64-byte hexadecimal strings");
        return Err(ReferenceError::new(what));
    }
    let written = text.split_once('/').filter(|(head, _)| {
        *head == "localhost" || head.contains(['.', ':']) || head.bytes().any(|byte| byte.is_ascii_uppercase())
    });
    let (domain, remainder) = match written {
        Some(("index.docker.io", remainder)) => (DOCKER_HUB, remainder),
        Some(written) => written,
        None => (DOCKER_HUB, text),
    };
    let folder = if domain == DOCKER_HUB && !remainder.contains('/') { DEFAULT_FOLDER } else { "" };
    let name_part = remainder.split(':').next().unwrap_or_default();
    if name_part.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let what = format!("invalid reference format: repository name ({folder}{name_part}) must be lowercase");
        return Err(ReferenceError::new(what));
    }
    if folder.is_empty() && written.is_some_and(|(head, _)| head == domain) {
        return Ok(Cow::Borrowed(text));
    }
    Ok(Cow::Owned(format!("{domain}/{folder}{remainder}")))
}

pub(super) struct Parts<'a> {
    name: &'a str,
    pub(super) tag: Option<&'a str>,
    pub(super) digest: Option<&'a str>,
}

impl<'a> Parts<'a> {
    /// `written`: the text of the user, for the hint of an error; empty for no hint.
    fn parse(text: &'a str, written: &str) -> Result<Self, ReferenceError> {
        let parts = Self::cut(text).ok_or_else(|| ReferenceError::format(written))?;
        if split_domain(parts.name).1.len() > PATH_LENGTH_MAX {
            let what = format!("repository name must not be more than {PATH_LENGTH_MAX} characters");
            return Err(ReferenceError::new(what));
        }
        parts.digest.map(parse_digest).transpose()?;
        Ok(parts)
    }

    fn cut(text: &'a str) -> Option<Self> {
        let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
        if !digest.is_none_or(has_digest_form) {
            return None;
        }
        let after_slash = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[after_slash..].rfind(':') {
            Some(colon) => (&rest[..after_slash + colon], Some(&rest[after_slash + colon + 1..])),
            None => (rest, None),
        };
        (is_name(name) && tag.is_none_or(is_tag)).then_some(Self { name, tag, digest })
    }
}

fn parse_digest(digest: &str) -> Result<Digest, ReferenceError> {
    digest.parse().map_err(|PlainError(message)| ReferenceError::new(message))
}

fn is_name(name: &str) -> bool {
    let path = |path: &str| path.split('/').all(is_path_component);
    path(name) || name.split_once('/').is_some_and(|(domain, rest)| is_domain(domain) && path(rest))
}

/// The domain and path of a valid name. The domain is empty if the first component belongs to the path.
fn split_domain(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((domain, path)) if is_domain(domain) => (domain, path),
        _ => ("", name),
    }
}

fn is_domain(domain: &str) -> bool {
    let is_address =
        |address: &str| !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
    let (is_host, port) = match domain.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((address, port))) => (is_address(address), port),
        Some(None) => return false,
        None => {
            let (host, port) = domain.split_at(domain.find(':').unwrap_or(domain.len()));
            (host.split('.').all(is_domain_component), port)
        }
    };
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_host && (port.is_empty() || port.strip_prefix(':').is_some_and(is_number))
}

fn is_domain_component(component: &str) -> bool {
    let bytes = component.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

fn is_path_component(component: &str) -> bool {
    let is_alnum = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    if !bytes.first().is_some_and(|byte| is_alnum(*byte)) || !bytes.last().is_some_and(|byte| is_alnum(*byte)) {
        return false;
    }
    bytes
        .split(|byte| is_alnum(*byte))
        .all(|separator| matches!(separator, b"" | b"." | b"_" | b"__") || separator.iter().all(|byte| *byte == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut bytes = tag.bytes();
    tag.len() <= TAG_LENGTH_MAX
        && bytes.next().is_some_and(word)
        && bytes.all(|byte| word(byte) || byte == b'.' || byte == b'-')
}

fn has_digest_form(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let part = |part: &str| {
        part.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    algorithm.split(['+', '.', '-', '_']).all(part)
        && hex.len() >= 32
        && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn a_scheme_before_a_name_is_named_with_what_to_write_instead() {
        for (text, hint) in [
            ("docker://nginx:1.25", Some("leave out `docker://`: nginx:1.25")),
            ("docker://r.io/app@sha256:00", Some("leave out `docker://`")),
            ("https://r.io/team/app:v1", Some("leave out `https://`: r.io/team/app:v1")),
            ("http://r.io:5000/app", Some("leave out `http://`: r.io:5000/app")),
            ("oci://r.io/charts/app:1", Some("leave out `oci://`: r.io/charts/app:1")),
            ("https://user:pw@r.io/app", Some("leave out `https://`")),
            ("https://r.io/app?token=pw", Some("leave out `https://`")),
            ("docker-daemon:nginx:latest", Some("`docker-daemon:` is a place of other tools")),
            ("docker-archive:/tmp/app.tar", Some("imagelet import")),
            ("oci:/srv/layout:v1", Some("imagelet import")),
            ("containers-storage:localhost/app:v1", Some("`containers-storage:`")),
            ("a b", None),
            ("a b://c", None),
            ("r.io/app:v1:v2", None),
            ("", None),
        ] {
            let error = text.parse::<Reference>().expect_err(text);
            let found = error.hint();
            assert_eq!(found.is_some(), hint.is_some(), "{text}: {found:?}");
            assert!(found.unwrap_or_default().contains(hint.unwrap_or_default()), "{text}: {found:?}");
            assert!(!found.unwrap_or_default().contains("pw"), "{text}: {found:?}");
            assert_eq!(default_tag(text).expect_err(text), error, "{text}");
        }
    }

    #[test]
    fn many_schemes_before_a_name_do_not_exhaust_the_stack() {
        let text = format!("{}app:v1", "a://".repeat(100_000));
        let error = text.parse::<Reference>().expect_err("it has a scheme");
        assert_eq!(error.hint(), Some("a name has no scheme; leave out `a://`"));
    }

    #[test]
    fn an_address_taken_for_a_name_is_shown_without_its_secrets() {
        for (text, shown) in [
            ("app:v1", "app:v1"),
            ("r.io/app@sha256:00", "r.io/app@sha256:00"),
            ("user:pw@r.io/app:v1", "[redacted]@r.io/app:v1"),
            ("u:p@w@r.io/app@sha256:00", "[redacted]@r.io/app@sha256:00"),
            ("r.io/app@md5:d41d8cd98f00b204e9800998ecf8427e", "r.io/app@md5:d41d8cd98f00b204e9800998ecf8427e"),
            ("u:pw@shaky.io:5000/app", "[redacted]@shaky.io:5000/app"),
            ("https://u:pw@r.io/app", "https://[redacted]@r.io/app"),
            ("https://r.io/app?token=pw", "https://r.io/app?[redacted]"),
            ("https://u:p?w@r.io/a?token=pw", "https://[redacted]@r.io/a?[redacted]"),
            ("pw@", "[redacted]@"),
            ("Not An Image", "Not An Image"),
        ] {
            assert_eq!(shown_name(text), shown, "{text}");
        }
    }

    #[test]
    fn every_reference_vector_holds() {
        let cases = vectors("pull-reference.json");
        assert_eq!(cases.len(), 270);
        for case in cases {
            let image = case["input"]["image"].as_str().expect("a text");
            let expected = &case["expected"];
            let wanted = |key: &str| expected.get(key).and_then(serde_json::Value::as_str);
            let wrapped = |error: &ReferenceError| {
                format!("couldn't parse image name {}: {error}", imagelet_vectors::go_quoted(image))
            };
            match image.parse::<Reference>() {
                Ok(reference) => {
                    assert_eq!(wanted("error"), None, "{image}");
                    assert_eq!(wanted("repo"), Some(reference.repository()), "{image}");
                    assert_eq!(wanted("tag"), Some(reference.tag().unwrap_or_default()), "{image}");
                    let digest = reference.digest().map(Digest::as_str).unwrap_or_default();
                    assert_eq!(wanted("digest"), Some(digest), "{image}");
                }
                Err(error) => assert_eq!(wanted("error"), Some(wrapped(&error).as_str()), "{image}"),
            }
            match default_tag(image) {
                Ok(text) => assert_eq!(wanted("with_default_tag"), Some(text.as_str()), "{image}"),
                Err(error) => assert_eq!(wanted("with_default_tag_error"), Some(wrapped(&error).as_str()), "{image}"),
            }
            match trim_tag_and_digest(image) {
                Ok(text) => assert_eq!(wanted("trimmed"), Some(text), "{image}"),
                Err(error) => assert_eq!(wanted("trimmed_error"), Some(error.to_string().as_str()), "{image}"),
            }
        }
    }
}
