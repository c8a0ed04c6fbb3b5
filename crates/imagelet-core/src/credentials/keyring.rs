//! Matches credentials to repositories (`docs/spec/pull.md §6.4`).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    fmt,
};

use serde::{Deserialize, Serialize, Serializer};
use zeroize::Zeroizing;

use super::{
    Credential, CredentialKind, Secret,
    docker_config::{DockerConfig, PullSecretKind},
    registry_match::{is_default_registry, is_read_as_docker_hub, matches, registry_key},
};
use crate::{
    image::{DOCKER_HUB, Digest, is_docker_hub, shown_name},
    text::{GoUrl, PlainError, json_text},
};

const DEFAULT_REGISTRY_KEY: &str = "index.docker.io";

/// Credentials by registry and repository. `Debug` hides the secrets.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    /// Key → credentials, in reverse lexical order: a longer key is before its prefix, and a leading wildcard is last.
    index: BTreeMap<Reverse<String>, Vec<TrackedCredential>>,
    /// The host of a key → credential. They are used only if no key in `index` matches, as in `docker`.
    by_host: Vec<(String, TrackedCredential)>,
}

/// The program whose forms of keys are accepted in `auths`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySpelling {
    /// The forms of the kubelet: a key has a host, a port and a path.
    Kubelet,
    /// Also the forms of `auth.json`: a key that is a URL may match by its host alone.
    Containers,
    /// Also the forms of docker: every key may match by its host alone.
    Docker,
}

impl KeySpelling {
    fn host(self, key: &str) -> Option<String> {
        let (is_url, rest) = key.split_once("://").map_or((false, key), |(_, rest)| (true, rest));
        let counts = self == Self::Docker || (self == Self::Containers && is_url);
        let host = rest.split('/').next().unwrap_or_default().to_ascii_lowercase();
        counts.then(|| if is_docker_hub(&host) { DOCKER_HUB.to_owned() } else { host })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedCredential {
    pub credential: Credential,
    pub source: CredentialSource,
    /// Identifies the credential in the pull records (`docs/spec/pull.md §6.6`).
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CredentialSource {
    /// A credential of the node. Every pod may use an image that was pulled with this credential.
    Node,
    Request,
    Secret(ObjectIdentity),
    ServiceAccount(ObjectIdentity),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectIdentity {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSecret {
    pub identity: ObjectIdentity,
    pub kind: PullSecretKind,
    /// The docker configuration in the secret. An empty document is skipped.
    pub document: Secret,
}

/// A pull secret cannot be read. The text contains no part of the secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the pull secret `{namespace}/{name}`")]
pub(crate) struct KeyringError {
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[source]
    pub(crate) source: PlainError,
}

impl Keyring {
    pub fn new() -> Self {
        Self::default()
    }

    /// Builds a keyring from the readable pull secrets, in order, and returns an error for each unreadable secret.
    /// Without `with_tokens`, identity tokens are ignored, as in the kubelet.
    pub(crate) fn from_secrets(secrets: &[PullSecret], with_tokens: bool) -> (Self, Vec<KeyringError>) {
        let (mut keyring, mut unreadable) = (Self::new(), Vec::new());
        for PullSecret { identity, kind, document } in secrets.iter().filter(|one| !one.document.expose().is_empty()) {
            match DockerConfig::parse(*kind, document.expose().as_bytes()) {
                Ok(document) => {
                    let document = if with_tokens { document } else { document.without_tokens() };
                    keyring.add(&CredentialSource::Secret(identity.clone()), document);
                }
                Err(source) => {
                    let ObjectIdentity { namespace, name, .. } = identity.clone();
                    unreadable.push(KeyringError { namespace, name, source });
                }
            }
        }
        (keyring, unreadable)
    }

    /// Appends the entries of a document. An entry whose key is not a URL is logged and skipped.
    pub(crate) fn add(&mut self, source: &CredentialSource, document: DockerConfig) {
        self.add_spelled(KeySpelling::Kubelet, source, document);
    }

    pub(crate) fn add_spelled(&mut self, spelling: KeySpelling, source: &CredentialSource, document: DockerConfig) {
        for (entry_key, entry) in document.entries {
            let key = match GoUrl::parse(&with_scheme(&entry_key)) {
                Ok(url) => index_key(&url),
                Err(error) => {
                    tracing::warn!(key = %shown_name(&entry_key), %error, "the docker config has an entry whose key is no URL");
                    continue;
                }
            };
            let hash = credential_hash(&[
                ("username", &entry.username),
                ("password", entry.password.expose()),
                ("email", &entry.email),
                ("identitytoken", entry.identity_token.as_ref().map_or("", Secret::expose)),
            ]);
            // The server address is empty: a key may be a glob, but the runtime compares the address with a host.
            let credential = Credential::basic("", entry.username, entry.password);
            let credential = match entry.identity_token {
                Some(token) => Credential { kind: CredentialKind::IdentityToken(token), ..credential },
                None => credential,
            };
            let tracked = TrackedCredential { credential, source: source.clone(), hash };
            self.by_host.extend(spelling.host(&entry_key).map(|host| (host, tracked.clone())));
            self.index.entry(Reverse(key)).or_default().push(tracked);
        }
    }

    /// Returns all credentials that the kubelet finds for a repository, in the order in which they are tried.
    pub fn lookup(&self, repository: &str) -> Vec<TrackedCredential> {
        self.found(repository, is_default_registry(repository))
    }

    /// Looks up without duplicates. A host without dot and port does not count as Docker Hub, unlike in the kubelet.
    pub fn lookup_at(&self, repository: &str) -> Vec<TrackedCredential> {
        let mut found = self.found(repository, is_default_registry(repository) && !is_read_as_docker_hub(repository));
        // Two files may have the same login. It is tried once, because a registry counts each rejected password.
        let mut seen = HashSet::new();
        found.retain(|tracked| seen.insert((tracked.hash.clone(), tracked.source.clone())));
        found
    }

    fn found(&self, repository: &str, is_of_hub: bool) -> Vec<TrackedCredential> {
        let matching = self.index.iter().filter(|(Reverse(key), _)| matches(key, repository));
        let mut found: Vec<_> = matching.flat_map(|(_, credentials)| credentials).cloned().collect();
        if found.is_empty() {
            let of_host = self.by_host.iter().filter(|(host, _)| host == registry_key(repository));
            found.extend(of_host.map(|(_, tracked)| tracked.clone()));
        }
        if found.is_empty() && is_of_hub {
            return self.index.get(&Reverse(DEFAULT_REGISTRY_KEY.to_owned())).cloned().unwrap_or_default();
        }
        found
    }
}

impl TrackedCredential {
    /// Whether the entry has a user or a secret. With a credential store, `docker` writes empty entries. A registry
    /// that receives an empty credential answers 401, even for public images.
    pub fn is_usable(&self) -> bool {
        match &self.credential.kind {
            CredentialKind::Basic { username, password } => !username.is_empty() || !password.expose().is_empty(),
            CredentialKind::IdentityToken(token) | CredentialKind::RegistryToken(token) => !token.expose().is_empty(),
        }
    }

    pub(crate) fn new(credential: Credential, source: CredentialSource) -> Self {
        let hash = hash_of(&credential);
        Self { credential, source, hash }
    }
}

impl ObjectIdentity {
    pub(crate) fn sorted_by(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl fmt::Display for ObjectIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

fn with_scheme(key: &str) -> String {
    if key.starts_with("http://") || key.starts_with("https://") { key.to_owned() } else { format!("https://{key}") }
}

fn index_key(url: &GoUrl) -> String {
    let path = String::from_utf8_lossy(&url.path);
    let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { &path };
    if path == "/" { url.host.clone() } else { format!("{}{path}", url.host) }
}

fn hash_of(credential: &Credential) -> String {
    let (username, password, identity, registry) = match &credential.kind {
        CredentialKind::Basic { username, password } => (username.as_str(), password.expose(), "", ""),
        CredentialKind::IdentityToken(token) => ("", "", token.expose(), ""),
        CredentialKind::RegistryToken(token) => ("", "", "", token.expose()),
    };
    credential_hash(&[
        ("username", username),
        ("password", password),
        ("serveraddress", &credential.server_address),
        ("identitytoken", identity),
        ("registrytoken", registry),
    ])
}

/// The SHA-256 of the JSON object that Go writes for the non-empty fields.
fn credential_hash(fields: &[(&str, &str)]) -> String {
    Digest::of(canonical_json(fields).as_bytes()).hex().to_owned()
}

fn canonical_json(fields: &[(&str, &str)]) -> Zeroizing<String> {
    struct Fields<'a>(&'a [(&'a str, &'a str)]);
    impl Serialize for Fields<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0.iter().filter(|(_, value)| !value.is_empty()).copied())
        }
    }
    json_text(&Fields(fields), fields.iter().map(|(name, value)| name.len() + value.len() + 6).sum::<usize>() + 2)
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;
    use crate::credentials::registry_key;
    use crate::image::Reference;

    impl Keyring {
        pub(crate) fn add_credential(&mut self, key: &str, source: CredentialSource, credential: Credential) {
            self.index.entry(Reverse(key.to_owned())).or_default().push(TrackedCredential::new(credential, source));
        }

        pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
            self.index.keys().map(|Reverse(key)| key.as_str())
        }
    }

    /// The hash in a pull record stands for the credential: another password may be another person.
    #[test]
    fn credentials_that_differ_in_any_part_have_different_hashes() {
        let basic = |server: &str, user: &str, password: &str| Credential::basic(server, user, Secret::new(password));
        let token = |kind: fn(Secret) -> CredentialKind, text: &str| Credential {
            kind: kind(Secret::new(text)),
            server_address: "a.example".into(),
        };
        let credentials = [
            basic("a.example", "user", "password"),
            basic("b.example", "user", "password"),
            basic("a.example", "other", "password"),
            basic("a.example", "user", "other"),
            token(CredentialKind::IdentityToken, "password"),
            token(CredentialKind::RegistryToken, "password"),
            token(CredentialKind::RegistryToken, "other"),
        ];
        let hashes: std::collections::BTreeSet<String> = credentials.iter().map(hash_of).collect();
        assert_eq!(hashes.len(), credentials.len());
        assert_eq!(hash_of(&credentials[0]), hash_of(&credentials[0].clone()));
    }

    fn text(value: &serde_json::Value) -> String {
        value.as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn every_keyring_vector_holds() {
        let cases = vectors("pull-keyring.json");
        for case in &cases {
            let mut keyring = Keyring::new();
            for config in case["input"]["configs"].as_array().expect("configs") {
                let kind = match config["format"].as_str() {
                    Some("dockercfg") => PullSecretKind::DockerCfg,
                    _ => PullSecretKind::DockerConfigJson,
                };
                let source = match config["source"].as_str() {
                    Some(name) => {
                        CredentialSource::Secret(ObjectIdentity { name: name.into(), ..ObjectIdentity::default() })
                    }
                    None => CredentialSource::Node,
                };
                let document = DockerConfig::parse(kind, text(&config["data"]).as_bytes()).expect("readable");
                keyring.add(&source, document.without_tokens());
            }
            let keys: Vec<&str> = keyring.keys().collect();
            let expected: Vec<String> = serde_json::from_value(case["expected"]["index"].clone()).unwrap_or_default();
            assert_eq!(keys, expected, "{}", case["name"]);
            for lookup in case["expected"]["lookups"].as_array().expect("lookups") {
                let found: Vec<(String, String, String, Option<String>)> = keyring
                    .lookup(lookup["image"].as_str().expect("an image"))
                    .into_iter()
                    .map(|tracked| {
                        let CredentialKind::Basic { username, password } = tracked.credential.kind else {
                            panic!("only user and password come from documents")
                        };
                        let source = match tracked.source {
                            CredentialSource::Secret(identity) => Some(identity.name),
                            _ => None,
                        };
                        (username, password.expose().to_owned(), tracked.hash, source)
                    })
                    .collect();
                let expected: Vec<_> = lookup["credentials"]
                    .as_array()
                    .map(Vec::as_slice)
                    .unwrap_or_default()
                    .iter()
                    .map(|credential| {
                        let source = credential["source_secret"].as_str().map(str::to_owned);
                        (
                            text(&credential["username"]),
                            text(&credential["password"]),
                            text(&credential["hash"]),
                            source,
                        )
                    })
                    .collect();
                assert_eq!(found, expected, "{}: {}", case["name"], lookup["image"]);
                assert_eq!(lookup["found"], !found.is_empty(), "{}: {}", case["name"], lookup["image"]);
            }
        }
        assert_eq!(cases.len(), 39);
    }

    #[test]
    fn every_hash_vector_holds() {
        let cases: Vec<_> =
            vectors("pull-docker-config.json").into_iter().filter(|case| case["input"]["kind"] == "hash").collect();
        for case in &cases {
            let auth = &case["input"]["auth"];
            let names = ["username", "password", "auth", "email", "serveraddress", "identitytoken", "registrytoken"];
            let fields: Vec<(&str, &str)> =
                names.into_iter().map(|name| (name, auth[name].as_str().unwrap_or_default())).collect();
            assert_eq!(Some(canonical_json(&fields).as_str()), case["expected"]["canonical_json"].as_str());
            assert_eq!(Some(credential_hash(&fields).as_str()), case["expected"]["sha256"].as_str());
        }
        assert_eq!(cases.len(), 9);
    }

    #[test]
    fn every_default_registry_vector_holds() {
        let cases = vectors("pull-default-registry.json");
        for case in &cases {
            let image = case["input"]["image"].as_str().expect("a name");
            assert_eq!(Some(is_default_registry(image)), case["expected"]["default_registry"].as_bool(), "{image:?}");
        }
        assert_eq!(cases.len(), 8);
    }

    #[test]
    fn every_reference_vector_has_its_registry() {
        let mut cases = 0;
        for case in vectors("pull-reference.json") {
            let image = case["input"]["image"].as_str().expect("a text");
            let Ok(reference) = image.parse::<Reference>() else { continue };
            let repository = reference.repository();
            let expected = &case["expected"];
            assert_eq!(
                Some(is_default_registry(repository)),
                expected["default_registry_match_of_repo"].as_bool(),
                "{image}"
            );
            assert_eq!(Some(registry_key(repository)), expected["plugin_registry_key"].as_str(), "{image}");
            cases += 1;
        }
        assert!(cases > 100);
    }

    fn secret(name: &str, document: &str) -> PullSecret {
        let identity = ObjectIdentity { namespace: "n".into(), name: name.into(), ..ObjectIdentity::default() };
        PullSecret { identity, kind: PullSecretKind::DockerConfigJson, document: Secret::new(document) }
    }

    const LOGIN: &str = r#"{"auths": {"reg.io": {"username": "u", "password": "hunter2"}}}"#;

    #[test]
    fn the_identity_token_of_an_entry_is_its_credential() {
        let document = r#"{"auths": {"a.azurecr.io": {"auth": "MDAwMDAwMDAtMDAwMC0wMDAwLTAwMDAtMDAwMDAwMDAwMDAwOg==",
            "identitytoken": "eyJhbGciOi"}, "b.azurecr.io": {"username": "<token>", "IdentityToken": "other"},
            "c.azurecr.io": {"username": "u", "password": "p", "identitytoken": ""}}}"#;
        let (keyring, unreadable) = Keyring::from_secrets(&[secret("s", document)], true);
        assert_eq!(unreadable.len(), 0);
        let kind = |host: &str| keyring.lookup(&format!("{host}/app")).remove(0).credential.kind;
        assert_eq!(kind("a.azurecr.io"), CredentialKind::IdentityToken(Secret::new("eyJhbGciOi")));
        assert_eq!(kind("b.azurecr.io"), CredentialKind::IdentityToken(Secret::new("other")));
        assert!(matches!(kind("c.azurecr.io"), CredentialKind::Basic { .. }));
        let hash = |host: &str| keyring.lookup(&format!("{host}/app")).remove(0).hash;
        assert_ne!(hash("a.azurecr.io"), hash("b.azurecr.io"));
    }

    #[test]
    fn a_key_of_docker_opens_its_whole_registry_to_commands_and_only_as_the_kubelet_reads_it_to_pods() {
        // Key, repository, and whether it opens to the kubelet, of an `auth.json`, and of docker's own file.
        for (key, repository, opens) in [
            ("https://reg.io/v1/", "reg.io/team/app", [true, true, true]),
            ("http://reg.io/v2/", "reg.io/team/app", [true, true, true]),
            ("https://reg.io/v1", "reg.io/team/app", [false, true, true]),
            ("https://REG.io/api/docker/", "reg.io/team/app", [false, true, true]),
            ("http://reg.io:5000/some/where", "reg.io:5000/team/app", [false, true, true]),
            ("reg.io:5000/other", "reg.io:5000/team/app", [false, false, true]),
            ("reg.io:5000/team", "reg.io:5000/team/app", [true, true, true]),
            ("reg.io:5000", "reg.io/team/app", [false, false, false]),
            ("reg.io", "reg.io.example/team/app", [false, false, false]),
            ("https://index.docker.io/v1/", "docker.io/library/app", [true, true, true]),
            ("https://index.docker.io/v1", "docker.io/library/app", [false, true, true]),
            ("docker.io", "docker.io/library/app", [true, true, true]),
            ("https://index.docker.io/v1/", "reg.io/library/app", [false, false, false]),
        ] {
            for (spelling, opens) in
                [KeySpelling::Kubelet, KeySpelling::Containers, KeySpelling::Docker].into_iter().zip(opens)
            {
                let document = format!(r#"{{"auths": {{"{key}": {{"username": "u", "password": "p"}}}}}}"#);
                let document = DockerConfig::parse(PullSecretKind::DockerConfigJson, document.as_bytes()).unwrap();
                let mut keyring = Keyring::new();
                keyring.add_spelled(spelling, &CredentialSource::Node, document);
                assert_eq!(keyring.lookup_at(repository).len(), usize::from(opens), "{key} {repository} {spelling:?}");
            }
        }
    }

    #[test]
    fn the_login_for_docker_hub_is_not_for_a_host_without_a_dot() {
        let document = LOGIN.replace("reg.io", "https://index.docker.io/v1/");
        let (keyring, _) = Keyring::from_secrets(&[secret("s", &document)], true);
        for (repository, at_host, to_kubelet) in [
            ("docker.io/library/app", 1, 1),
            ("mirror/library/app", 0, 1),
            ("localhost/library/app", 0, 1),
            ("mirror:5000/library/app", 0, 0),
        ] {
            assert_eq!(keyring.lookup_at(repository).len(), at_host, "{repository}");
            assert_eq!(keyring.lookup(repository).len(), to_kubelet, "{repository}");
        }
        let (mut keyring, _) = Keyring::from_secrets(&[secret("s", &LOGIN.replace("reg.io", "mirror"))], true);
        assert_eq!(keyring.lookup_at("mirror/library/app").len(), 1, "its own entry");
        for _ in 0..2 {
            let document = LOGIN.replace("reg.io", "mirror");
            let document = DockerConfig::parse(PullSecretKind::DockerConfigJson, document.as_bytes()).unwrap();
            keyring.add(&CredentialSource::Node, document);
        }
        assert_eq!(keyring.lookup_at("mirror/library/app").len(), 2, "one login of two files is shown once");
    }

    #[test]
    fn a_keyring_does_not_print_what_it_holds() {
        let secret = secret("s", LOGIN);
        let (keyring, _) = Keyring::from_secrets(std::slice::from_ref(&secret), true);
        let found = keyring.lookup("reg.io/a");
        assert_eq!(found.len(), 1);
        assert!(!format!("{secret:?} {keyring:?} {found:?}").contains("hunter2"));
    }

    #[test]
    fn each_readable_secret_of_a_pod_is_tried_and_each_other_one_is_named() {
        let second = LOGIN.replace("hunter2", "other");
        let secrets = [secret("a", LOGIN), secret("bad", "hunter2"), secret("empty", ""), secret("b", &second)];
        let (keyring, unreadable) = Keyring::from_secrets(&secrets, true);
        let tried: Vec<String> = keyring
            .lookup("reg.io/a")
            .into_iter()
            .map(|tracked| match tracked.source {
                CredentialSource::Secret(identity) => identity.name,
                _ => "of the node".to_owned(),
            })
            .collect();
        assert_eq!(tried, ["a", "b"]);
        let named: Vec<(&str, &str)> =
            unreadable.iter().map(|error| (error.namespace.as_str(), error.name.as_str())).collect();
        assert_eq!(named, [("n", "bad")], "an empty secret has no credential and no fault");
    }

    #[test]
    fn an_entry_without_a_user_and_a_secret_is_not_shown_to_a_registry() {
        let of = |kind| {
            let credential = Credential { kind, ..Credential::basic("", "", Secret::new("")) };
            TrackedCredential::new(credential, CredentialSource::Node).is_usable()
        };
        for (username, password, is_usable) in [("", "", false), ("u", "", true), ("", "p", true), ("u", "p", true)] {
            let kind = CredentialKind::Basic { username: username.to_owned(), password: Secret::new(password) };
            assert_eq!(of(kind), is_usable, "{username:?} {password:?}");
        }
        for (token, is_usable) in [("", false), ("t", true)] {
            assert_eq!(of(CredentialKind::IdentityToken(Secret::new(token))), is_usable, "{token:?}");
            assert_eq!(of(CredentialKind::RegistryToken(Secret::new(token))), is_usable, "{token:?}");
        }
    }
}
