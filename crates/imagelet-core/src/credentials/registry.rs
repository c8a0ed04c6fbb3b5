//! Which registry a repository's name means.

/// Whether a name belongs to the registry that is meant when none is named.
pub fn is_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        Some(("", _)) => false,
        None => !repository.is_empty(),
        Some(("docker.io" | "index.docker.io", _)) => true,
        Some((first, _)) => !first.contains(['.', ':']),
    }
}

/// The registry under which a credential provider's answer is kept: the repository up to its first slash.
pub fn registry_key(repository: &str) -> &str {
    repository.split_once('/').map_or(repository, |(registry, _)| registry)
}
