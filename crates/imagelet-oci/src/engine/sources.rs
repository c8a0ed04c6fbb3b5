//! The registries that an image may come from, tried in turn.

use imagelet_core::{
    credentials::Credential,
    error::{RuntimeError, RuntimeErrorKind},
    image::Reference,
    ports::{Credentials, RegistryHost},
};

use crate::registry::Registry;

pub(super) async fn first_source<T, F>(
    names: &[String],
    credentials: &Credentials<'_>,
    registry: &Registry,
    attempt: impl Fn(Reference, Vec<Credential>) -> F,
) -> Result<T, RuntimeError>
where
    F: Future<Output = Result<T, RuntimeError>>,
{
    let mut last = RuntimeError::new(RuntimeErrorKind::NotFound, "no name of it says where it came from");
    for reference in sources(names) {
        let mut by_host = vec![credentials(reference.repository())];
        for RegistryHost { host, repositories } in registry.other_hosts(&reference).await {
            let own = repositories.iter().flat_map(|name| credentials(name));
            by_host.push(own.map(|own| Credential { server_address: host.clone(), ..own }).collect());
        }
        for shown in in_turn(&by_host) {
            match attempt(reference.clone(), shown).await {
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

/// The credentials of each attempt. Attempts use each host's credentials in turn; a host without credentials gets none.
fn in_turn(by_host: &[Vec<Credential>]) -> Vec<Vec<Credential>> {
    let count = by_host.iter().map(Vec::len).max().unwrap_or_default().max(1);
    let of_attempt = |attempt| {
        let shown = by_host.iter().filter_map(|own| own.get(attempt).or(own.last()));
        shown.cloned().collect()
    };
    (0..count).map(of_attempt).collect()
}

/// The sources of an image: each repository once, by digest if a name has a digest.
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
    use imagelet_core::{credentials::Secret, image::Digest};

    use super::*;

    #[test]
    fn a_repair_shows_each_host_its_own_credentials_in_turn() {
        let of = |users: &[&str]| users.iter().map(|user| Credential::basic("", *user, Secret::new("x"))).collect();
        let users = |by_host: &[Vec<Credential>]| in_turn(by_host).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(users(&[of(&[])]), [0], "one anonymous attempt");
        assert_eq!(users(&[of(&[]), of(&["m", "n"])]), [1, 1]);
        assert_eq!(in_turn(&[of(&["a", "b"]), of(&["m"])]), [of(&["a", "m"]), of(&["b", "m"])]);
    }

    #[test]
    fn each_repository_is_asked_once_and_by_digest_first() {
        let digest = Digest::of(b"x");
        let names = ["a.io/app:v1".into(), format!("a.io/app@{digest}"), "b.io/app:v2".into(), "b.io/app:v1".into()];
        let found: Vec<String> = sources(&names).iter().map(ToString::to_string).collect();
        assert_eq!(found, [format!("a.io/app@{digest}"), "b.io/app:v2".into()]);
    }
}
