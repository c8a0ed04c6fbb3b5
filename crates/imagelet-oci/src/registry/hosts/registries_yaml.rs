//! `registries.yaml` of k3s and RKE2: mirrors by registry, credentials and TLS settings by host.
//!
//! ```text
//! mirrors.REGISTRY    endpoints in order, and other names of repositories at them
//! configs.HOST        credential and TLS settings of one host, a registry or an endpoint
//! "*" in either       for registries or hosts that have no entry
//! ```

use std::{collections::BTreeMap, path::Path};

use base64::Engine as _;
use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    error::RuntimeError,
    image::{ByteSize, DOCKER_HUB, Reference},
    text::nullable,
};
use indexmap::IndexMap;
use serde::{Deserialize, Deserializer};
use serde_saphyr::Error::{AliasExpansionLimitExceeded, AliasReplayLimitExceeded, Budget, DuplicateMappingKey};
use zeroize::Zeroizing;

use super::{Host, HostPath, complaint, deserialize, read_file, shown, target_at, tls_settings};
use crate::{
    manifest::printable,
    registry::connection::{ConnectionSettings, Origin, TlsSettings},
};

const WILDCARD: &str = "*";
const ENDPOINTS_MAX: usize = 32;
const REWRITES_MAX: usize = 64;
const REWRITE_BYTES_MAX: usize = 1 << 10;
const REGEX_BYTES_MAX: usize = 256 << 10;
/// Maximum number of values in a file, with its aliases expanded.
const NODES_MAX: usize = 20_000;

pub(super) fn load(
    file: &Path,
    reference: &Reference,
    found: &mut Vec<String>,
) -> Result<Option<Vec<Host>>, RuntimeError> {
    let folder = file.parent().unwrap_or(Path::new(""));
    read_file(file, found, File::parse)?.hosts(reference, folder).map_err(|problem| complaint(file, &problem))
}

pub(super) fn check(file: &Path, found: &mut Vec<String>) -> Result<(), RuntimeError> {
    let read = read_file(file, found, File::parse)?;
    for endpoint in read.mirrors.values().flat_map(|mirror| &mirror.endpoint) {
        if let Err(problem) = host_at(endpoint) {
            found.push(complaint(file, &format!("endpoint `{}`: {problem}", shown(endpoint))).chain());
        }
    }
    Ok(())
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct File {
    #[serde(deserialize_with = "all_nullable")]
    mirrors: BTreeMap<String, Mirror>,
    #[serde(deserialize_with = "all_nullable")]
    configs: BTreeMap<String, Config>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Mirror {
    #[serde(deserialize_with = "nullable")]
    endpoint: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    rewrite: IndexMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    auth: Option<Auth>,
    #[serde(deserialize_with = "nullable")]
    tls: Tls,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    #[serde(deserialize_with = "nullable")]
    username: String,
    #[serde(deserialize_with = "nullable")]
    password: Zeroizing<String>,
    /// `USER:PASSWORD` in base64.
    #[serde(rename = "auth", deserialize_with = "nullable")]
    encoded: Zeroizing<String>,
    #[serde(deserialize_with = "nullable")]
    identity_token: Zeroizing<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tls {
    #[serde(deserialize_with = "nullable")]
    ca_file: String,
    #[serde(deserialize_with = "nullable")]
    cert_file: String,
    #[serde(deserialize_with = "nullable")]
    key_file: String,
    #[serde(deserialize_with = "nullable")]
    insecure_skip_verify: bool,
}

/// Reads a mapping. `null` is the default, both for the mapping and for each of its values.
fn all_nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let read: BTreeMap<String, Option<T>> = nullable(deserializer)?;
    Ok(read.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect())
}

impl File {
    /// Parses the file. An error has the key and the line, but no value, because a value may be a secret.
    pub(super) fn parse(text: &str, warnings: &mut Vec<String>) -> Result<Self, String> {
        let options = serde_saphyr::options! { budget: serde_saphyr::budget! { max_nodes: NODES_MAX } };
        let mut place = String::new();
        let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
            deserialize::<Option<Self>, _>(deserializer, warnings).map_err(|(key, error)| {
                place = key;
                error
            })
        });
        let read = read.map(Option::unwrap_or_default).map_err(|error| {
            let line = error.location().map(|location| format!("line {}: ", location.line())).unwrap_or_default();
            let key = if place.is_empty() { "the file".to_owned() } else { format!("`{place}`") };
            let problem = match error.without_snippet() {
                DuplicateMappingKey { .. } => "has a key twice",
                Budget { .. } | AliasReplayLimitExceeded { .. } | AliasExpansionLimitExceeded { .. } => {
                    "has more values than a configuration has"
                }
                _ if place.is_empty() => "is no mapping of `mirrors` and `configs`, or no valid YAML",
                _ => "has a value of another type, or no valid YAML",
            };
            printable(&format!("{line}{key} {problem}"))
        })?;
        for (name, config) in &read.configs {
            if name == WILDCARD && config.auth.is_some() {
                warnings.push("`auth` of `configs.*` is not used: a credential belongs to one host".to_owned());
            } else if name != WILDCARD && (name.contains(['/', '@', '?', '#']) || Host::own(name).is_err()) {
                warnings.push(format!("`configs.{}` is not used: it is no `HOST` or `HOST:PORT`", printable(name)));
            }
        }
        Ok(read)
    }

    /// The hosts of an image. `None` if the file has neither an entry for its registry nor a wildcard.
    pub(super) fn hosts(&self, reference: &Reference, folder: &Path) -> Result<Option<Vec<Host>>, String> {
        let own = Host::own(reference.domain())?;
        let mirror = self.mirrors.get(reference.domain()).or_else(|| self.mirrors.get(WILDCARD));
        if mirror.is_none() && self.config(&own.origin).is_none() {
            return Ok(None);
        }
        let is_same = |one: &Host, other: &Host| (&one.origin, &one.path.base) == (&other.origin, &other.path.base);
        let mut hosts: Vec<Host> = Vec::new();
        if let Some(mirror) = mirror {
            let repository = renamed(&mirror.rewrite, reference).map_err(|problem| format!("`rewrite`: {problem}"))?;
            for endpoint in &mirror.endpoint {
                let host = host_at(endpoint).map_err(|problem| format!("endpoint `{}`: {problem}", shown(endpoint)))?;
                if hosts.iter().any(|other| is_same(other, &host)) {
                    continue;
                }
                if hosts.len() == ENDPOINTS_MAX {
                    return Err(format!("it names more than {ENDPOINTS_MAX} endpoints for one registry"));
                }
                let is_mirror = !host.origin.is_same_place(&own.origin);
                let path = HostPath { repository: repository.clone(), ..host.path };
                hosts.push(Host { is_mirror, names_registry: is_mirror, path, ..host });
            }
        }
        if !hosts.last().is_some_and(|last| is_same(last, &own)) {
            hosts.push(own);
        }
        hosts.into_iter().map(|host| self.configured(host, folder)).collect::<Result<_, _>>().map(Some)
    }

    fn config(&self, origin: &Origin) -> Option<(&String, &Config)> {
        let is_of = |key: &str| Host::own(key).is_ok_and(|host| host.origin.is_same_place(origin));
        // Docker Hub has two names. The name of its host takes precedence.
        let found = self.configs.iter().filter(|(key, _)| is_of(key)).min_by_key(|(key, _)| *key == DOCKER_HUB);
        found.or_else(|| self.configs.get_key_value(WILDCARD))
    }

    fn configured(&self, host: Host, folder: &Path) -> Result<Host, String> {
        let Some((key, config)) = self.config(&host.origin) else { return Ok(host) };
        let bad = |problem| format!("`configs` of `{}`: {problem}", printable(key));
        let tls = config.tls.settings(folder).map_err(bad)?;
        // A credential belongs to one host, so the credential of the wildcard is not used.
        let auth = config.auth.as_ref().filter(|_| key != WILDCARD);
        let kind = auth.map(Auth::kind).transpose().map_err(bad)?.flatten();
        let server_address = host.origin.authority();
        let credential = kind.map(|kind| Credential { kind, server_address });
        Ok(Host { connection: ConnectionSettings { tls, ..host.connection }, credential, ..host })
    }
}

/// Reads an endpoint. As with `override_path`, a path in it is complete: `/v2` is added only if there is no path.
fn host_at(endpoint: &str) -> Result<Host, String> {
    let target = target_at(endpoint, |port| !matches!(port, 80 | 443))?;
    let path = target.path().trim_end_matches('/');
    let base_path = if path.is_empty() { "/v2".to_owned() } else { path.to_owned() };
    let origin = if target.origin.host() == DOCKER_HUB { Host::own(DOCKER_HUB)?.origin } else { target.origin };
    Ok(Host::new(origin, base_path))
}

/// The repository after the first `rewrite` expression that changes it. `None` if no expression changes it.
fn renamed(rewrites: &IndexMap<String, String>, reference: &Reference) -> Result<Option<String>, String> {
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
        let authorities = Some(self.ca_file.clone()).filter(|path| !path.is_empty());
        let identities = match (self.cert_file.as_str(), self.key_file.as_str()) {
            ("", "") => None,
            ("", _) | (_, "") => return Err("`cert_file` and `key_file` need one another".to_owned()),
            (certificate, key) => Some((certificate.to_owned(), key.to_owned())),
        };
        tls_settings(folder, authorities.as_slice(), identities.as_slice(), self.insecure_skip_verify)
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
        File::parse(text, &mut Vec::new())?.hosts(&name.parse().expect(name), Path::new("/nonexistent"))
    }

    fn warnings(text: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        File::parse(text, &mut warnings).map(drop).expect(text);
        warnings
    }

    /// Host, path and repository in order: `~` before a mirror, `?` for any certificate, `+` with a credential.
    fn chain(name: &str, text: &str) -> Result<Option<Vec<String>>, String> {
        let show = |host: &Host| {
            assert_eq!(host.is_mirror, host.names_registry);
            let mirror = if host.is_mirror { "~" } else { "" };
            let any = if host.connection.tls.skip_verify { "?" } else { "" };
            let credential = if host.credential.is_some() { "+" } else { "" };
            let repository = host.path.repository.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            format!("{mirror}{}{}{any}{credential}{repository}", host.origin, host.path.base)
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
        assert_eq!(warnings(FILE), Vec::<String>::new());
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
            assert_eq!(format!("{}{}", host.origin, host.path.base), expected, "{endpoint}");
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
        assert_eq!(warnings(all), ["`auth` of `configs.*` is not used: a credential belongs to one host"]);
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
            warnings(text),
            [
                "`mirror` is no key that is read",
                "`mirrors.docker.io.endpoints` is no key that is read",
                "`configs.r.example.auth.user` is no key that is read",
                "`configs.r.example.tls.skip` is no key that is read",
                "`configs.r.example.x` is no key that is read",
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
