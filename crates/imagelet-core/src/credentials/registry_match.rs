//! Maps repositories to registries, and matches keys with wildcards (`docs/spec/pull.md §6.7`).

use crate::{
    image::glob_matches,
    text::{GoUrl, quoted},
};

pub(super) fn is_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        Some(("", _)) => false,
        None => !repository.is_empty(),
        Some(("docker.io" | "index.docker.io", _)) => true,
        Some((first, _)) => !first.contains(['.', ':']),
    }
}

/// Whether the kubelet would read this repository as Docker Hub's, because its host has neither dot nor port. Docker
/// Hub's credentials must not be sent to that host.
pub(super) fn is_read_as_docker_hub(repository: &str) -> bool {
    is_default_registry(repository) && !repository.starts_with("docker.io/")
}

pub(super) fn registry_key(repository: &str) -> &str {
    repository.split_once('/').map_or(repository, |(registry, _)| registry)
}

/// Go's error for a pattern that is no URL. `None`: the pattern is valid.
pub(super) fn complaint(pattern: &str) -> Option<String> {
    let url = format!("https://{pattern}");
    let error = GoUrl::parse(&url).err()?;
    // Go's error shows the URL without its fragment.
    let shown = url.split_once('#').map_or(url.as_str(), |(shown, _)| shown);
    Some(format!("parse {}: {error}", quoted(shown)))
}

/// Whether a glob matches a repository, both without a scheme. Invalid text matches nothing.
pub(super) fn matches(glob: &str, target: &str) -> bool {
    let parsed = |text: &str| GoUrl::parse(&format!("https://{text}"));
    parsed(glob).is_ok_and(|glob| parsed(target).is_ok_and(|target| covers(&glob, &target)))
}

fn covers(glob: &GoUrl, target: &GoUrl) -> bool {
    let ((name, port), (target_name, target_port)) = (split_port(&glob.host), split_port(&target.host));
    port == target_port
        && name.split('.').count() == target_name.split('.').count()
        && target.path.starts_with(&glob.path)
        && name.split('.').zip(target_name.split('.')).all(|(glob, label)| label_matches(glob, label))
}

fn split_port(host: &str) -> (&str, &str) {
    if let Some(rest) = host.strip_prefix('[') {
        return match rest.split_once("]:") {
            Some((address, port)) => (address, port),
            None => (host, ""),
        };
    }
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') => (name, port),
        _ => (host, ""),
    }
}

fn label_matches(glob: &str, label: &str) -> bool {
    // Only an IPv6 address without a port still has brackets. A glob reads brackets as a character class.
    if let Some(class) = glob.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let mut characters = label.chars();
        return matches!((characters.next(), characters.next()), (Some(only), None) if class.contains(only));
    }
    glob_matches(glob, label)
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn every_glob_vector_holds() {
        let cases = vectors("pull-url-glob.json");
        for case in &cases {
            let glob = case["input"]["glob"].as_str().expect("a glob");
            let target = case["input"]["target"].as_str().expect("a target");
            assert_eq!(Some(matches(glob, target)), case["expected"]["match"].as_bool(), "{glob} ~ {target}");
            let error = complaint(glob).or_else(|| complaint(target));
            assert_eq!(error.as_deref(), case["expected"]["error"].as_str(), "{glob} ~ {target}");
        }
        assert_eq!(cases.len(), 84);
    }

    #[test]
    fn a_host_hides_no_character_and_a_user_is_plain() {
        let parsed = |rest: &str| GoUrl::parse(&format!("https://{rest}")).map(|url| url.host);
        for (rest, expected) in [
            ("reg.example/a", Some("reg.example")),
            ("user:p%40ss@reg.example/a", Some("reg.example")),
            ("us er@reg.example/a", None),
            ("user%zz@reg.example/a", None),
            ("reg%2Eexample/a", None),
            ("reg%25example/a", Some("reg%example")),
            ("r%C3%A9g.example/a", Some("r\u{e9}g.example")),
            ("r\u{e9}g.example/a", Some("r\u{e9}g.example")),
            ("reg%80.example/a", Some("reg\u{fffd}.example")),
            ("reg%7F.example/a", None),
            ("reg^example/a", None),
        ] {
            assert_eq!(parsed(rest).ok().as_deref(), expected, "{rest}");
        }
        for (host, parts) in
            [("reg:5000", ("reg", "5000")), ("fe80::1", ("fe80::1", "")), ("[fe80::1]:5000", ("fe80::1", "5000"))]
        {
            assert_eq!(split_port(host), parts);
        }
    }

    #[test]
    fn a_star_spans_what_is_left_between_its_neighbours() {
        for (glob, label, expected) in [
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "abc", true),
            ("a*a", "a", false),
            ("*", "", true),
            ("ab", "abc", false),
        ] {
            assert_eq!(label_matches(glob, label), expected, "{glob} ~ {label}");
        }
    }
}
