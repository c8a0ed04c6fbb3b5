//! `registries.yaml` of k3s and RKE2: mirrors by registry, credentials and TLS settings by host.
//!
//! ```text
//! mirrors.REGISTRY    endpoints in order, and other names of repositories at them
//! configs.HOST        credential and TLS settings of one host, be it a registry or an endpoint
//! "*" in either       for what has no entry of its own
//! ```

use std::{collections::BTreeMap, fmt, marker::PhantomData, path::Path};

use base64::Engine as _;
use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    image::{ByteSize, DOCKER_HUB, Reference},
    runtime::RuntimeError,
};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_saphyr::Error::{AliasExpansionLimitExceeded, AliasReplayLimitExceeded, Budget, DuplicateMappingKey};
use zeroize::Zeroizing;

use super::{Host, check_file, complaint, not_read, pem, shown, target_at, utf8, warn_once};
use crate::{
    manifest::printable,
    registry::connection::{ConnectionSettings, Identity, Origin, Target, TlsSettings},
};

const WILDCARD: &str = "*";
const ENDPOINTS_MAX: usize = 32;
const REWRITES_MAX: usize = 64;
const REWRITE_BYTES_MAX: usize = 1 << 10;
const REGEX_BYTES_MAX: usize = 256 << 10;
/// Values in a file with its aliases expanded.
const NODES_MAX: usize = 20_000;

/// The hosts of an image, where the file knows its registry.
pub(super) fn load(
    file: &Path,
    reference: &Reference,
    found: &mut Vec<String>,
) -> Result<Option<Vec<Host>>, RuntimeError> {
    let folder = file.parent().unwrap_or(Path::new(""));
    read_file(file, found)?.hosts(reference, folder).map_err(|problem| complaint(file, &problem))
}

/// Reads the file, with every endpoint and host in it.
pub(super) fn check(file: &Path, found: &mut Vec<String>) -> Result<(), RuntimeError> {
    let read = read_file(file, found)?;
    let mirrors = read.mirrors.iter().flatten().filter_map(|(_, mirror)| mirror.as_ref());
    for endpoint in mirrors.flat_map(|mirror| mirror.endpoint.iter().flatten()) {
        if let Err(problem) = host_at(endpoint) {
            found.push(complaint(file, &format!("endpoint `{}`: {problem}", shown(endpoint))).chain());
        }
    }
    Ok(())
}

fn read_file(file: &Path, found: &mut Vec<String>) -> Result<File, RuntimeError> {
    let bytes = Zeroizing::new(check_file(file)?);
    let read = utf8(&bytes).and_then(File::parse).map_err(|problem| complaint(file, &problem))?;
    warn_once(file, read.warnings(), found);
    Ok(read)
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct File {
    mirrors: Option<BTreeMap<String, Option<Mirror>>>,
    configs: Option<BTreeMap<String, Option<Config>>>,
    #[serde(flatten)]
    unread: Unread,
}

/// The keys that are not read.
type Unread = Pairs<IgnoredAny>;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Mirror {
    endpoint: Option<Vec<String>>,
    rewrite: Option<Pairs<String>>,
    #[serde(flatten)]
    unread: Unread,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    auth: Option<Auth>,
    tls: Option<Tls>,
    #[serde(flatten)]
    unread: Unread,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    #[serde(deserialize_with = "or_null")]
    username: String,
    #[serde(deserialize_with = "or_null")]
    password: Zeroizing<String>,
    /// `USER:PASSWORD` in base64.
    #[serde(rename = "auth")]
    #[serde(deserialize_with = "or_null")]
    encoded: Zeroizing<String>,
    #[serde(deserialize_with = "or_null")]
    identity_token: Zeroizing<String>,
    #[serde(flatten)]
    unread: Unread,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tls {
    #[serde(deserialize_with = "or_null")]
    ca_file: String,
    #[serde(deserialize_with = "or_null")]
    cert_file: String,
    #[serde(deserialize_with = "or_null")]
    key_file: String,
    #[serde(deserialize_with = "or_null")]
    insecure_skip_verify: bool,
    #[serde(flatten)]
    unread: Unread,
}

/// A null is an absent value.
fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A mapping in the order of the file.
#[derive(Default)]
struct Pairs<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Collect<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Collect(PhantomData))
    }
}

impl File {
    /// The error names key and line, and no value.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! { budget: serde_saphyr::budget! { max_nodes: NODES_MAX } };
        let mut place = String::new();
        let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
            serde_path_to_error::deserialize::<_, Option<Self>>(deserializer).map_err(|error| {
                place = error.path().to_string();
                error.into_inner()
            })
        });
        read.map(Option::unwrap_or_default).map_err(|error| {
            let line = error.location().map(|location| format!("line {}: ", location.line())).unwrap_or_default();
            let key = if matches!(place.as_str(), "" | ".") { "the file".to_owned() } else { format!("`{place}`") };
            let problem = match error.without_snippet() {
                DuplicateMappingKey { .. } => "has a key twice",
                Budget { .. } | AliasReplayLimitExceeded { .. } | AliasExpansionLimitExceeded { .. } => {
                    "has more values than a configuration has"
                }
                _ if place.len() > 1 => "has a value of another type, or no valid YAML",
                _ => "is no mapping of `mirrors` and `configs`, or no valid YAML",
            };
            printable(&format!("{line}{key} {problem}"))
        })
    }

    /// `None`: the file knows neither the registry nor all registries.
    pub(super) fn hosts(&self, reference: &Reference, folder: &Path) -> Result<Option<Vec<Host>>, String> {
        let own = Host::own(reference.domain())?;
        let mirrors = self.mirrors.as_ref();
        let mirror = mirrors.and_then(|mirrors| mirrors.get(reference.domain()).or_else(|| mirrors.get(WILDCARD)));
        if mirror.is_none() && self.config(&own.origin).is_none() {
            return Ok(None);
        }
        let mut hosts: Vec<Host> = Vec::new();
        if let Some(mirror) = mirror.and_then(Option::as_ref) {
            let rewrites = mirror.rewrite.as_ref().map_or(&[][..], |rewrites| &rewrites.0);
            let repository = renamed(rewrites, reference).map_err(|problem| format!("`rewrite`: {problem}"))?;
            for endpoint in mirror.endpoint.iter().flatten() {
                let bad = |problem| format!("endpoint `{}`: {problem}", shown(endpoint));
                let host = host_at(endpoint).map_err(bad)?;
                let is_known = |other: &Host| (&other.origin, &other.base_path) == (&host.origin, &host.base_path);
                if hosts.iter().any(is_known) {
                    continue;
                }
                if hosts.len() == ENDPOINTS_MAX {
                    return Err(format!("it names more than {ENDPOINTS_MAX} endpoints for one registry"));
                }
                let is_mirror = !host.origin.is_same_place(&own.origin);
                let repository = repository.clone();
                hosts.push(Host { is_mirror, names_registry: is_mirror, repository, ..host });
            }
        }
        let is_own = |host: &Host| (&host.origin, &host.base_path) == (&own.origin, &own.base_path);
        if !hosts.last().is_some_and(is_own) {
            hosts.push(own);
        }
        hosts.into_iter().map(|host| self.configured(host, folder)).collect::<Result<_, _>>().map(Some)
    }

    /// The settings of a host, and whether they are those of all hosts without an entry.
    fn config(&self, origin: &Origin) -> Option<(&str, Option<&Config>)> {
        let configs = self.configs.as_ref()?;
        let is_of = |key: &str| Host::own(key).is_ok_and(|host| host.origin.is_same_place(origin));
        // Docker Hub has two names; that of its host goes before.
        let found = configs.iter().filter(|(key, _)| is_of(key)).min_by_key(|(key, _)| *key == DOCKER_HUB);
        let (key, config) = found.or_else(|| configs.get_key_value(WILDCARD))?;
        Some((key, config.as_ref()))
    }

    fn configured(&self, host: Host, folder: &Path) -> Result<Host, String> {
        let Some((key, Some(config))) = self.config(&host.origin) else { return Ok(host) };
        let bad = |problem| format!("`configs` of `{}`: {problem}", printable(key));
        let tls = config.tls.as_ref().map(|tls| tls.settings(folder)).transpose().map_err(bad)?;
        // A credential belongs to one host.
        let auth = config.auth.as_ref().filter(|_| key != WILDCARD);
        let kind = auth.map(Auth::kind).transpose().map_err(bad)?.flatten();
        let server_address = host.origin.authority();
        let credential = kind.map(|kind| Credential { kind, server_address });
        let connection = ConnectionSettings { tls: tls.unwrap_or_default(), ..host.connection };
        Ok(Host { connection, credential, ..host })
    }

    fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut add = |unread: &Unread, place: &str| {
            found.extend(unread.0.iter().map(|(key, _)| not_read(key, place)));
        };
        add(&self.unread, "");
        for (name, mirror) in self.mirrors.iter().flatten() {
            if let Some(mirror) = mirror {
                add(&mirror.unread, &format!(" of mirror `{}`", printable(name)));
            }
        }
        let configs = self.configs.iter().flatten().filter_map(|(name, config)| Some((name, config.as_ref()?)));
        for (name, config) in configs.clone() {
            let place = format!("of `configs.{}`", printable(name));
            add(&config.unread, &format!(" {place}"));
            for (key, unread) in [
                ("auth", config.auth.as_ref().map(|auth| &auth.unread)),
                ("tls", config.tls.as_ref().map(|tls| &tls.unread)),
            ] {
                if let Some(unread) = unread {
                    add(unread, &format!(" in `{key}` {place}"));
                }
            }
        }
        for (name, config) in configs {
            if name == WILDCARD && config.auth.is_some() {
                found.push("`auth` of `configs.*` is not used: a credential belongs to one host".to_owned());
            } else if name != WILDCARD && (name.contains(['/', '@', '?', '#']) || Host::own(name).is_err()) {
                found.push(format!("`configs.{}` is not used: it is no `HOST` or `HOST:PORT`", printable(name)));
            }
        }
        found
    }
}

/// An endpoint with a path other than `/v2` is complete, as with `override_path`.
fn host_at(endpoint: &str) -> Result<Host, String> {
    let is_plain = |port| !matches!(port, 80 | 443);
    let target = if endpoint.contains("://") { Target::parse(endpoint)? } else { target_at(endpoint, is_plain)? };
    let path = target.path().trim_end_matches('/');
    let base_path = if path.is_empty() { "/v2".to_owned() } else { path.to_owned() };
    let origin = if target.origin.host() == DOCKER_HUB { Host::own(DOCKER_HUB)?.origin } else { target.origin };
    Ok(Host::new(origin, base_path))
}

/// The repository after the first expression that changes it; `None`: none does.
fn renamed(rewrites: &[(String, String)], reference: &Reference) -> Result<Option<String>, String> {
    if rewrites.len() > REWRITES_MAX {
        return Err(format!("it has more than {REWRITES_MAX} expressions"));
    }
    for (pattern, replacement) in rewrites {
        if pattern.len().max(replacement.len()) > REWRITE_BYTES_MAX {
            let limit = ByteSize(REWRITE_BYTES_MAX as u64);
            return Err(format!("an expression or replacement is longer than {limit}"));
        }
        let expression = regex_lite::RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build();
        let expression =
            expression.map_err(|error| printable(&format!("`{pattern}` is no regular expression: {error}")))?;
        let name = expression.replace_all(reference.path(), replacement.as_str());
        if name == reference.path() {
            continue;
        }
        let read: Result<Reference, _> = format!("{}/{name}", reference.domain()).parse();
        if read.is_ok_and(|read| read.path() == name) {
            return Ok(Some(name.into_owned()));
        }
        let (pattern, name) = (printable(pattern), printable(&name));
        return Err(format!("`{pattern}` makes `{name}` of `{}`, which is no repository", reference.path()));
    }
    Ok(None)
}

impl Auth {
    fn kind(&self) -> Result<Option<CredentialKind>, String> {
        if !self.username.is_empty() {
            let (username, password) = (self.username.clone(), Secret::new(self.password.as_str()));
            return Ok(Some(CredentialKind::Basic { username, password }));
        }
        if !self.identity_token.is_empty() {
            return Ok(Some(CredentialKind::IdentityToken(Secret::new(self.identity_token.as_str()))));
        }
        if self.encoded.is_empty() {
            return Ok(None);
        }
        let bytes = base64::engine::general_purpose::STANDARD.decode(self.encoded.trim()).map(Zeroizing::new);
        let text = bytes.ok().and_then(|bytes| Some(Zeroizing::new(std::str::from_utf8(&bytes).ok()?.to_owned())));
        let pair = text.as_ref().and_then(|text| text.split_once(':'));
        let (username, password) = pair.ok_or("`auth.auth` is not `USER:PASSWORD` in base64")?;
        let password = Secret::new(password.trim_end_matches('\0'));
        Ok(Some(CredentialKind::Basic { username: username.to_owned(), password }))
    }
}

impl Tls {
    fn settings(&self, folder: &Path) -> Result<TlsSettings, String> {
        let file = |path: &str| pem(&folder.join(path));
        let authorities = match self.ca_file.as_str() {
            "" => Vec::new(),
            path => vec![file(path)?],
        };
        let identities = match (self.cert_file.as_str(), self.key_file.as_str()) {
            ("", "") => Vec::new(),
            (certificate, key) if !certificate.is_empty() && !key.is_empty() => {
                vec![Identity { chain: file(certificate)?, key: file(key)? }]
            }
            _ => return Err("`cert_file` and `key_file` need one another".to_owned()),
        };
        Ok(TlsSettings { authorities, identities, skip_verify: self.insecure_skip_verify })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
mirrors:
  docker.io:
    endpoint: ["https://mirror.example:5000", "harbor.example/v2/hub", "mirror.example:5000/v2/", "localhost:5001"]
    rewrite:
      "^library/(.*)": "copies/$1"
      "^(team)/(.*)$": "$2/${1}"
      "o": "0"
  r.example:5000:
    endpoint: ["http://r.example:5000", "https://r.example:5000"]
    rewrite: {"^": "own/"}
  embedded.example:
  "*":
    endpoint: ["https://all.example"]
configs:
  mirror.example:5000:
    auth: {username: puller, password: hunter2}
    tls: {insecure_skip_verify: true}
  harbor.example: {auth: {auth: cHVsbGVyOmh1bnRlcjI6eA==}}
  docker.io: {auth: {identity_token: hunter2}}
  plain.example:
  "*": {tls: {insecure_skip_verify: yes}}
"#;

    fn hosts(name: &str, text: &str) -> Result<Option<Vec<Host>>, String> {
        File::parse(text)?.hosts(&name.parse().expect(name), Path::new("/nonexistent"))
    }

    /// Host, path and repository in order: `~` before a mirror, `?` for any certificate, `+` with a credential.
    fn chain(name: &str, text: &str) -> Result<Option<Vec<String>>, String> {
        let show = |host: &Host| {
            assert_eq!(host.is_mirror, host.names_registry);
            let mirror = if host.is_mirror { "~" } else { "" };
            let any = if host.connection.tls.skip_verify { "?" } else { "" };
            let credential = if host.credential.is_some() { "+" } else { "" };
            let repository = host.repository.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            format!("{mirror}{}{}{any}{credential}{repository}", host.origin, host.base_path)
        };
        Ok(hosts(name, text)?.map(|hosts| hosts.iter().map(show).collect()))
    }

    #[test]
    fn endpoints_come_before_the_registry_with_the_settings_of_their_own_hosts() {
        let hub = |repository: &str| {
            let repository = if repository.is_empty() { String::new() } else { format!(" {repository}") };
            vec![
                format!("~https://mirror.example:5000/v2?+{repository}"),
                format!("~https://harbor.example/v2/hub+{repository}"),
                format!("~http://localhost:5001/v2?{repository}"),
                "https://registry-1.docker.io/v2+".to_owned(),
            ]
        };
        let list = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect();
        for (name, expected) in [
            ("docker.io/library/app:v1", hub("copies/app")),
            ("docker.io/team/app:v1", hub("app/team")),
            ("docker.io/other/app:v1", hub("0ther/app")),
            ("docker.io/x/app:v1", hub("")),
            // A registry that is named as its own last endpoint is not added again, and its names are rewritten.
            (
                "r.example:5000/app:v1",
                list(&["http://r.example:5000/v2? own/app", "https://r.example:5000/v2? own/app"]),
            ),
            ("embedded.example/app:v1", list(&["https://embedded.example/v2?"])),
            ("other.example/app:v1", list(&["~https://all.example/v2?", "https://other.example/v2?"])),
            ("plain.example/app:v1", list(&["~https://all.example/v2?", "https://plain.example/v2"])),
            ("mirror.example:5000/app:v1", list(&["~https://all.example/v2?", "https://mirror.example:5000/v2?+"])),
            ("mirror.example/app:v1", list(&["~https://all.example/v2?", "https://mirror.example/v2?"])),
        ] {
            assert_eq!(chain(name, FILE), Ok(Some(expected)), "{name}");
        }
        for (text, expected) in [
            ("", None),
            ("mirrors:\nconfigs:\n", None),
            ("configs: {other.example: {}}", None),
            (
                "mirrors: null\nconfigs: {r.example: {auth: null, tls: {ca_file: null, insecure_skip_verify: ~}}}",
                Some("https://r.example/v2"),
            ),
            ("mirrors: {r.example: {endpoint: null, rewrite: null}}", Some("https://r.example/v2")),
            ("configs: {r.example: {}}", Some("https://r.example/v2")),
            ("configs: {\"r.example:443\": {tls: {insecure_skip_verify: true}}}", Some("https://r.example/v2?")),
        ] {
            assert_eq!(chain("r.example/app:v1", text), Ok(expected.map(|host| vec![host.to_owned()])), "{text}");
        }
        assert_eq!(File::parse(FILE).unwrap().warnings(), Vec::<String>::new());
    }

    #[test]
    fn an_endpoint_without_a_scheme_is_https_but_for_an_odd_port_of_loopback() {
        for (endpoint, expected) in [
            ("m.example", "https://m.example/v2"),
            ("http://m.example/", "http://m.example/v2"),
            ("https://m.example:443/v2/", "https://m.example/v2"),
            ("https://m.example/hub", "https://m.example/hub"),
            ("127.0.0.1:5000", "http://127.0.0.1:5000/v2"),
            ("localhost", "https://localhost/v2"),
            ("localhost:443", "https://localhost/v2"),
            ("https://localhost:5000", "https://localhost:5000/v2"),
            ("docker.io", "https://registry-1.docker.io/v2"),
        ] {
            let host = host_at(endpoint).expect(endpoint);
            assert_eq!(format!("{}{}", host.origin, host.base_path), expected, "{endpoint}");
        }
    }

    #[test]
    fn a_credential_is_read_in_each_form_and_belongs_to_its_host_alone() {
        for (auth, expected) in [
            ("{username: u, password: 12345, auth: eDp5}", Some(("u", "12345"))),
            ("{auth: dTpodW50ZXIyOng=}", Some(("u", "hunter2:x"))),
            ("{auth: dTpwAAA=}", Some(("u", "p"))),
            ("{identity_token: t, auth: eDp5}", Some(("<token>", "t"))),
            ("{password: p}", None),
            ("{username: null, password: ~, auth: dTpwAAA=, identity_token: }", Some(("u", "p"))),
            ("{auth: null}", None),
            ("{}", None),
        ] {
            let text = format!("configs: {{r.example: {{auth: {auth}}}}}");
            let hosts = hosts("r.example/x:v1", &text).unwrap().expect(auth);
            let found = hosts[0].credential.clone().map(|credential| {
                assert_eq!(credential.server_address, "r.example");
                match credential.kind {
                    CredentialKind::Basic { username, password } => (username, password.expose().to_owned()),
                    CredentialKind::IdentityToken(token) => ("<token>".to_owned(), token.expose().to_owned()),
                    CredentialKind::RegistryToken(_) => unreachable!("no form of this file"),
                }
            });
            let expected = expected.map(|(user, secret)| (user.to_owned(), secret.to_owned()));
            assert_eq!(found, expected, "{auth}");
            assert!(!format!("{hosts:?}").contains("hunter2"), "{hosts:?}");
        }
        let all = "configs: {\"*\": {auth: {username: u, password: hunter2}}}";
        assert!(hosts("r.example/x:v1", all).unwrap().unwrap()[0].credential.is_none());
        let warnings = File::parse(all).unwrap().warnings();
        assert_eq!(warnings, ["`auth` of `configs.*` is not used: a credential belongs to one host"]);
    }

    #[test]
    fn a_check_names_keys_without_effect_and_endpoints_that_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("registries.yaml");
        let check = |text: &str| {
            std::fs::write(&file, text).unwrap();
            crate::registry::hosts::check_registry_files(std::slice::from_ref(&file))
        };
        let found = check("mirror: 1\nmirrors: {a.example: {endpoint: [m.example, \"ftp://u:hunter2@m.example\"]}}\n");
        assert!(found[0].ends_with("`mirror` is no key that is read"), "{found:?}");
        assert!(found[1].contains("endpoint `ftp://m.example`") && found.len() == 2, "{found:?}");
        assert!(check("mirrors: [").last().is_some_and(|last| last.contains("cannot be used: line ")));
        assert_eq!(check("mirrors: {a.example: {endpoint: [m.example]}}\n"), Vec::<String>::new());
    }

    #[test]
    fn keys_that_are_not_read_are_named() {
        let text = "mirror: 1\nmirrors: {docker.io: {endpoints: []}}\n\
                    configs: {r.example: {auth: {user: hunter2}, tls: {skip: 1}, x: 2}, \"https://r.example\": {}}\n";
        assert_eq!(
            File::parse(text).unwrap().warnings(),
            [
                "`mirror` is no key that is read",
                "`endpoints` of mirror `docker.io` is no key that is read",
                "`x` of `configs.r.example` is no key that is read",
                "`user` in `auth` of `configs.r.example` is no key that is read",
                "`skip` in `tls` of `configs.r.example` is no key that is read",
                "`configs.https://r.example` is not used: it is no `HOST` or `HOST:PORT`",
            ]
        );
    }

    #[test]
    fn a_bad_file_is_refused_by_key_and_line_without_its_secrets() {
        let endpoints = |count| {
            format!("mirrors: {{r.example: {{endpoint: [{}]}}}}", {
                let texts: Vec<String> = (0..count).map(|number| format!("m{number}.example")).collect();
                texts.join(", ")
            })
        };
        let rewrite =
            |rewrite: &str| format!("mirrors: {{r.example: {{endpoint: [m.example], rewrite: {{{rewrite}}}}}}}");
        let bomb = (1..9).fold("a0: &a0 [1, 1]\n".to_owned(), |text, level| {
            let alias = format!("*a{}, ", level - 1).repeat(10);
            format!("{text}a{level}: &a{level} [{alias}]\n")
        });
        for (text, words) in [
            ("mirrors: [", "line "),
            ("mirrors: {}\nmirrors: {}", "twice"),
            ("- hunter2", "no mapping of `mirrors` and `configs`"),
            ("mirrors:\n  r.example:\n    endpoint: 1", "line 3: `mirrors.r.example.endpoint`"),
            (
                "mirrors: {r.example: {endpoint: [\"ftp://user:hunter2@m.example/?hunter2\"]}}",
                "endpoint `ftp://m.example/`",
            ),
            ("mirrors: {r.example: {endpoint: [\"https://m.example:99999\"]}}", "bad port"),
            (
                "configs:\n  r.example:\n    auth:\n      username: [hunter2]",
                "line 4: `configs.r.example.auth.username`",
            ),
            ("configs: {r.example: {auth: {auth: hunter2}}}", "`configs` of `r.example`: `auth.auth`"),
            ("configs: {r.example: {auth: hunter2}}", "`configs.r.example.auth`"),
            ("configs: {r.example: {tls: {cert_file: a.pem}}}", "need one another"),
            ("configs: {r.example: {tls: {ca_file: missing.pem}}}", "/nonexistent/missing.pem"),
            (
                "configs: {r.example: {tls: {insecure_skip_verify: hunter2}}}",
                "`configs.r.example.tls.insecure_skip_verify`",
            ),
            (&endpoints(33), "more than 32 endpoints"),
            (&rewrite("\"(\": a"), "`(` is no regular expression"),
            (&rewrite("\".*\": \"a/../b\""), "is no repository"),
            (&rewrite("\".*\": \"?x\""), "is no repository"),
            (&rewrite(&format!("a: \"{}\"", "b".repeat(2000))), "longer than 1.02kB"),
            (&rewrite("\"((((a{9}){9}){9}){9}){9}\": b"), "no regular expression"),
            (&rewrite(&(0..65).map(|number| format!("a{number}: b, ")).collect::<Vec<_>>().concat()), "more than 64"),
            (&format!("{}x", "[".repeat(9000)), "no valid YAML"),
            (&bomb, "line 5: `a4"),
        ] {
            let error = chain("r.example/x:v1", text).expect_err(text);
            assert!(error.contains(words) && !error.contains("hunter2"), "{error}\n{text}");
        }
        // What is wrong with another registry does not matter.
        assert!(chain("r.example/x:v1", "configs: {r.example: {}, x: {auth: {auth: 1}}}").is_ok());
    }
}
