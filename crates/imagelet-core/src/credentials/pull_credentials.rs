//! The credentials of one pull: for its registry and for each other host of the image (`docs/spec/pull.md §13.8`).

use super::{Credential, CredentialSource, TrackedCredential};

/// Each host gets only its own credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PullCredentials {
    /// The credentials for the registry, in the order in which they are tried. Empty: the requests are anonymous.
    pub(crate) registry: Vec<TrackedCredential>,
    pub(crate) hosts: Vec<HostCredentials>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostCredentials {
    pub(crate) host: String,
    /// At least one, in the order in which they are tried.
    pub(crate) credentials: Vec<TrackedCredential>,
}

impl PullCredentials {
    pub(crate) fn attempts(&self) -> usize {
        let of_hosts = self.hosts.iter().map(|host| host.credentials.len());
        of_hosts.chain([self.registry.len(), 1]).max().unwrap_or(1)
    }

    /// The registry's credential for an attempt, counted from zero. Further attempts repeat the last credential.
    pub(crate) fn of_registry(&self, attempt: usize) -> Option<&TrackedCredential> {
        at(&self.registry, attempt)
    }

    /// The credential of each other host for an attempt, with the host as `server_address`.
    pub(crate) fn of_hosts(&self, attempt: usize) -> Vec<Credential> {
        let named = |host: &HostCredentials| {
            let tracked = at(&host.credentials, attempt)?;
            Some(Credential { server_address: host.host.clone(), ..tracked.credential.clone() })
        };
        self.hosts.iter().filter_map(named).collect()
    }

    /// The hashes that identify the set of credentials. Only pulls with the same set are shared.
    pub(crate) fn hashes(&self) -> Vec<String> {
        let of_host = |host: &HostCredentials| {
            host.credentials.iter().map(|tracked| format!("{} {}", host.host, tracked.hash)).collect::<Vec<_>>()
        };
        self.registry.iter().map(|tracked| tracked.hash.clone()).chain(self.hosts.iter().flat_map(of_host)).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &TrackedCredential> {
        self.registry.iter().chain(self.hosts.iter().flat_map(|host| &host.credentials))
    }

    /// The credentials of the hosts that sent data, without those of the node, which would permit every pod. If none is
    /// left, the registry's credential.
    pub(crate) fn opened_by(&self, attempt: usize, senders: &[String]) -> Vec<&TrackedCredential> {
        let senders = self.hosts.iter().filter(|host| senders.contains(&host.host));
        let own: Vec<_> = senders.filter_map(|host| at(&host.credentials, attempt)).collect();
        let own: Vec<_> = own.into_iter().filter(|tracked| tracked.source != CredentialSource::Node).collect();
        if own.is_empty() { self.of_registry(attempt).into_iter().collect() } else { own }
    }
}

fn at(credentials: &[TrackedCredential], attempt: usize) -> Option<&TrackedCredential> {
    credentials.get(attempt).or(credentials.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{ObjectIdentity, Secret};

    fn tracked(user: &str, is_of_node: bool) -> TrackedCredential {
        let identity = ObjectIdentity { name: user.to_owned(), ..ObjectIdentity::default() };
        let source = if is_of_node { CredentialSource::Node } else { CredentialSource::Secret(identity) };
        TrackedCredential::new(Credential::basic("", user, Secret::new("x")), source)
    }

    fn users<'a>(found: impl IntoIterator<Item = &'a TrackedCredential>) -> Vec<String> {
        let user = |tracked: &TrackedCredential| match &tracked.credential.kind {
            crate::credentials::CredentialKind::Basic { username, .. } => username.clone(),
            other => panic!("{other:?}"),
        };
        found.into_iter().map(user).collect()
    }

    fn set(registry: &[&str], hosts: &[(&str, &[&str])]) -> PullCredentials {
        let all = |users: &[&str]| users.iter().map(|user| tracked(user, user.starts_with("node"))).collect::<Vec<_>>();
        let host = |(host, users): &(&str, &[&str])| HostCredentials { host: (*host).into(), credentials: all(users) };
        PullCredentials { registry: all(registry), hosts: hosts.iter().map(host).collect() }
    }

    #[test]
    fn each_host_is_shown_each_of_its_own_credentials_in_turn() {
        let both = set(&["a"], &[("m.example", &["m", "n"]), ("l.example:5000", &["l"])]);
        assert_eq!(both.attempts(), 2);
        for (attempt, of_mirror) in [(0, "m"), (1, "n")] {
            assert_eq!(users(both.of_registry(attempt)), ["a"]);
            let shown: Vec<_> = both.of_hosts(attempt);
            let servers: Vec<&str> = shown.iter().map(|credential| credential.server_address.as_str()).collect();
            assert_eq!(servers, ["m.example", "l.example:5000"]);
            assert!(format!("{:?}", shown[0]).contains(&format!("{of_mirror:?}")), "{shown:?}");
        }
        assert_eq!((set(&[], &[]).attempts(), set(&["a", "b", "c"], &[("m", &["m"])]).attempts()), (1, 3));
        assert!(set(&[], &[("m", &["m"])]).of_registry(0).is_none());
    }

    #[test]
    fn pulls_with_other_credentials_for_a_mirror_are_other_pulls() {
        let hashes = [
            set(&["a"], &[]),
            set(&["a"], &[("m", &["m"])]),
            set(&["a"], &[("n", &["m"])]),
            set(&[], &[("m", &["m"])]),
            set(&["m"], &[]),
        ]
        .map(|set| set.hashes());
        let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), hashes.len());
    }

    #[test]
    fn an_image_that_a_pods_secret_opened_at_a_mirror_is_not_open_to_every_pod() {
        for (registry, of_mirror, senders, expected) in [
            (&[][..], &["pod"][..], &["m"][..], &["pod"][..]),
            (&["node"], &["pod"], &["m"], &["pod"]),
            (&["secret"], &["pod"], &["m"], &["pod"]),
            (&["secret"], &["pod"], &["r"], &["secret"]),
            (&["secret"], &["node"], &["m"], &["secret"]),
            (&["secret"], &["pod"], &[], &["secret"]),
            (&[], &["pod"], &["r", "m"], &["pod"]),
            (&[], &["node"], &["m"], &[]),
            (&[], &["pod"], &["r"], &[]),
        ] {
            let set = set(registry, &[("m", of_mirror)]);
            let senders: Vec<String> = senders.iter().map(|sender| (*sender).to_owned()).collect();
            assert_eq!(users(set.opened_by(0, &senders)), expected, "{registry:?} {of_mirror:?} {senders:?}");
        }
    }
}
