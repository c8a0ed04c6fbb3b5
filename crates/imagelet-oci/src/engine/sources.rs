//! The registries that an image may come from, tried in turn.

use imagelet_core::{
    credentials::Credential,
    image::Reference,
    runtime::{Credentials, RuntimeError, RuntimeErrorKind},
};

/// Tries each source with each of its credentials, until one delivers. Returns the last error.
pub(super) async fn first_source<T, F>(
    names: &[String],
    credentials: &Credentials<'_>,
    attempt: impl Fn(Reference, Option<Credential>) -> F,
) -> Result<T, RuntimeError>
where
    F: Future<Output = Result<T, RuntimeError>>,
{
    let mut last = RuntimeError::new(RuntimeErrorKind::NotFound, "no name of it says where it came from");
    for reference in sources(names) {
        let found = credentials(&reference);
        let anonymous = found.is_empty().then_some(None);
        for credential in found.into_iter().map(Some).chain(anonymous) {
            match attempt(reference.clone(), credential).await {
                Ok(delivered) => return Ok(delivered),
                Err(error) => last = error,
            }
            // Another credential may have access.
            if !matches!(last.kind(), RuntimeErrorKind::Denied | RuntimeErrorKind::NotFound) {
                break;
            }
        }
    }
    Err(last)
}

/// The sources of an image: each repository once, by digest where a name has one.
fn sources(names: &[String]) -> Vec<Reference> {
    let mut parsed: Vec<Reference> = names.iter().filter_map(|name| name.parse().ok()).collect();
    parsed.sort_by_key(|reference| reference.digest().is_none());
    let mut sources: Vec<Reference> = Vec::new();
    for reference in parsed {
        if !sources.iter().any(|known| known.repository() == reference.repository()) {
            sources.push(reference);
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use imagelet_core::image::Digest;

    use super::*;

    #[test]
    fn each_repository_is_asked_once_and_by_digest_first() {
        let digest = Digest::of(b"x");
        let names = ["a.io/app:v1".into(), format!("a.io/app@{digest}"), "b.io/app:v2".into(), "b.io/app:v1".into()];
        let found: Vec<String> = sources(&names).iter().map(ToString::to_string).collect();
        assert_eq!(found, [format!("a.io/app@{digest}"), "b.io/app:v2".into()]);
    }
}
