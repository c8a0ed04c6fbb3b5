//! Docker's configuration documents, read as the kubelet reads them (`docs/spec/pull.md §6.1-6.3`).

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use serde_json::{Map, Value};
use zeroize::Zeroizing;

use super::{Secret, registry_match::registry_key};
use crate::{
    image::{ByteSize, DOCKER_HUB, is_docker_hub},
    text::{PlainError, json_error},
    trusted_files,
};

const DOCKER_HUB_SERVER: &str = "https://index.docker.io/v1/";
/// The maximum length of a document. A Kubernetes secret cannot be longer.
pub(super) const DOCKER_CONFIG_LENGTH_MAX: usize = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullSecretKind {
    DockerConfigJson,
    DockerCfg,
}

impl PullSecretKind {
    /// The kind of a Kubernetes secret with this type. `None`: the secret is no pull secret.
    pub fn from_type(name: &str) -> Option<Self> {
        match name {
            "kubernetes.io/dockerconfigjson" => Some(Self::DockerConfigJson),
            "kubernetes.io/dockercfg" => Some(Self::DockerCfg),
            _ => None,
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Self::DockerConfigJson => ".dockerconfigjson",
            Self::DockerCfg => ".dockercfg",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DockerConfig {
    pub(crate) entries: BTreeMap<String, DockerEntry>,
    pub(crate) helpers: HelperNames,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HelperNames {
    store: String,
    /// Registry host → helper name. With an empty name, the registry has no helper.
    by_host: BTreeMap<String, String>,
}

impl HelperNames {
    pub(super) fn helper_for(&self, repository: &str) -> Option<(&str, String)> {
        self.helper_of(registry_key(repository))
    }

    pub(super) fn helper_of(&self, registry: &str) -> Option<(&str, String)> {
        let name = self.by_host.get(registry).unwrap_or(&self.store);
        (!name.is_empty()).then(|| (name.as_str(), server_of(registry).to_owned()))
    }

    fn take(&mut self, host: &str, name: String) {
        let host = host.split_once("://").map_or(host, |(_, rest)| rest).split('/').next().unwrap_or_default();
        let host = if is_docker_hub(host) { DOCKER_HUB } else { host };
        self.by_host.insert(host.to_ascii_lowercase(), name);
    }
}

pub(super) fn server_of(registry: &str) -> &str {
    if registry == DOCKER_HUB { DOCKER_HUB_SERVER } else { registry }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DockerEntry {
    pub(crate) username: String,
    pub(crate) password: Secret,
    pub(crate) email: String,
    /// A refresh token instead of a password. `az acr login` writes this field, and the kubelet ignores it.
    pub(crate) identity_token: Option<Secret>,
}

impl DockerConfig {
    pub(crate) fn parse(kind: PullSecretKind, document: &[u8]) -> Result<Self, PlainError> {
        if document.len() > DOCKER_CONFIG_LENGTH_MAX {
            let limit = ByteSize(DOCKER_CONFIG_LENGTH_MAX as u64);
            return Err(PlainError(format!("the document is longer than {limit}")));
        }
        let text = String::from_utf8_lossy(document);
        let root = serde_json::from_str(&text).map_err(|error| PlainError(json_error(&error, &text)))?;
        let mut config = Self::default();
        match kind {
            PullSecretKind::DockerConfigJson => config.read(root)?,
            PullSecretKind::DockerCfg => config.read_entries(root, None)?,
        }
        Ok(config)
    }

    pub(super) fn without_tokens(mut self) -> Self {
        self.entries.values_mut().for_each(|entry| entry.identity_token = None);
        self
    }

    /// Reads a file. If other users can change the file, also returns an error: the helpers in the file must not run.
    pub(super) fn read_file(path: &Path, kind: PullSecretKind) -> io::Result<(Self, Option<io::Error>)> {
        let file = File::open(path)?;
        let refused = trusted_files::check(path, &file).err();
        Ok((Self::parse(kind, &read_document(file)?).map_err(io::Error::other)?, refused))
    }

    /// Field names match in any case. Unknown fields are ignored. Of repeated fields, the last value is used.
    fn read(&mut self, root: Value) -> Result<(), PlainError> {
        for (name, value) in members(root, None, DOCKER_CONFIG_JSON)? {
            if name.eq_ignore_ascii_case("auths") {
                self.read_entries(value, Some("DockerConfigJSON.auths"))?;
            } else if name.eq_ignore_ascii_case("credsStore") {
                value.as_str().unwrap_or_default().clone_into(&mut self.helpers.store);
            } else if name.eq_ignore_ascii_case("credHelpers") {
                // The kubelet ignores this field, so a wrong value must not invalidate the document.
                let named = members(value, None, "").unwrap_or_default().into_iter();
                let named = named.filter_map(|(host, name)| Some((host, name.as_str()?.to_owned())));
                named.for_each(|(host, name)| self.helpers.take(&host, name));
            }
        }
        Ok(())
    }

    fn read_entries(&mut self, value: Value, field: Option<&str>) -> Result<(), PlainError> {
        for (key, value) in members(value, field, DOCKER_CONFIG)? {
            self.entries.insert(key, entry(value, field)?);
        }
        Ok(())
    }
}

/// Reads at most one byte over the limit, so that a document over the limit is rejected instead of cut.
pub(super) fn read_document(file: File) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut document = Zeroizing::new(Vec::new());
    file.take(DOCKER_CONFIG_LENGTH_MAX as u64 + 1).read_to_end(&mut document)?;
    Ok(document)
}

const DOCKER_CONFIG: &str = "credentialprovider.DockerConfig";
const DOCKER_CONFIG_JSON: &str = "credentialprovider.DockerConfigJSON";
const ENTRY: &str = "credentialprovider.dockerConfigEntryWithAuth";

#[cfg(feature = "fuzzing")]
pub type PlainLogin = (String, String, String);

#[cfg(feature = "fuzzing")]
pub fn config_logins(document: &[u8], kind: PullSecretKind) -> Result<Vec<PlainLogin>, String> {
    DockerConfig::parse(kind, document).map(DockerConfig::into_logins).map_err(|error| error.to_string())
}

#[cfg(feature = "fuzzing")]
impl DockerConfig {
    pub(super) fn into_logins(self) -> Vec<PlainLogin> {
        let entries = self.entries.into_iter();
        entries.map(|(registry, entry)| (registry, entry.username, entry.password.expose().to_owned())).collect()
    }
}

/// Go's error for a JSON value of a wrong type.
fn wrong(found: &Value, field: Option<&str>, wanted: &str) -> PlainError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let into = field.map_or_else(|| "Go value".to_owned(), |field| format!("Go struct field {field}"));
    PlainError(format!("json: cannot unmarshal {found} into {into} of type {wanted}"))
}

fn members(value: Value, field: Option<&str>, wanted: &str) -> Result<Map<String, Value>, PlainError> {
    match value {
        Value::Null => Ok(Map::new()),
        Value::Object(members) => Ok(members),
        other => Err(wrong(&other, field, wanted)),
    }
}

fn entry(value: Value, field: Option<&str>) -> Result<DockerEntry, PlainError> {
    const NAMES: [&str; 5] = ["username", "password", "email", "auth", "identitytoken"];
    let mut fields = [const { String::new() }; 5];
    for (name, value) in members(value, field, ENTRY)? {
        let Some(index) = NAMES.iter().position(|known| name.eq_ignore_ascii_case(known)) else { continue };
        match value {
            Value::Null => {}
            Value::String(text) => fields[index] = text,
            // The kubelet ignores this field, so a wrong value must not invalidate the document.
            _ if NAMES[index] == "identitytoken" => {}
            other => {
                let field = format!("{}.{}", field.unwrap_or("dockerConfigEntryWithAuth"), NAMES[index]);
                return Err(wrong(&other, Some(&field), "string"));
            }
        }
    }
    let [username, password, email, auth, identity_token] = fields;
    let (username, password) = if auth.is_empty() { (username, password) } else { decode_auth(&auth)? };
    let identity_token = (!identity_token.is_empty()).then(|| Secret::new(identity_token));
    Ok(DockerEntry { username, password: Secret::new(password), email, identity_token })
}

fn decode_auth(auth: &str) -> Result<(String, String), PlainError> {
    let padded = auth.trim().ends_with('=');
    let decoded = Zeroizing::new(decode_base64(auth.as_bytes(), padded)?);
    let colon = decoded.iter().position(|byte| *byte == b':').ok_or_else(|| {
        PlainError("unable to parse auth field, must be formatted as base64(username:password)".to_owned())
    })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&decoded[..colon]), text(&decoded[colon + 1..])))
}

fn illegal_base64(at: usize) -> PlainError {
    PlainError(format!("illegal base64 data at input byte {at}"))
}

/// Decodes standard base64 as Go does. Ignores line ends and unused trailing bits. Errors name the byte position.
fn decode_base64(input: &[u8], padded: bool) -> Result<Vec<u8>, PlainError> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let symbols: Vec<(usize, u8)> = input.iter().copied().enumerate().filter(|(_, byte)| !is_line_end(byte)).collect();
    let mut decoded = Vec::with_capacity(input.len() / 4 * 3);
    for (number, quantum) in symbols.chunks(4).enumerate() {
        let filled = quantum.iter().position(|(_, symbol)| padded && *symbol == b'=').unwrap_or(quantum.len());
        let mut bits = 0u32;
        for (at, symbol) in &quantum[..filled] {
            let sextet = ALPHABET.iter().position(|known| known == symbol).ok_or_else(|| illegal_base64(*at))?;
            bits = bits << 6 | u32::try_from(sextet).unwrap_or_default();
        }
        let stray = match (quantum.get(filled), quantum.get(3)) {
            (Some((at, _)), _) if filled < 2 => Some(*at),
            (Some(_), None) => Some(input.len()),
            (Some(_), Some((at, symbol))) if *symbol != b'=' => Some(*at),
            (Some(_), _) => symbols.get(4 * (number + 1)).map(|(at, _)| *at),
            // For an incomplete group of four symbols, Go reports the start of the group.
            (None, None) if filled == 1 || padded => Some(input.len() - filled),
            (None, _) => None,
        };
        if let Some(at) = stray {
            return Err(illegal_base64(at));
        }
        let bytes = (bits << (6 * (4 - filled))).to_be_bytes();
        decoded.extend(&bytes[1..filled]);
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn the_type_of_a_secret_says_where_and_how_it_keeps_its_document() {
        for (name, expected) in [
            ("kubernetes.io/dockerconfigjson", Some((PullSecretKind::DockerConfigJson, ".dockerconfigjson"))),
            ("kubernetes.io/dockercfg", Some((PullSecretKind::DockerCfg, ".dockercfg"))),
            ("Opaque", None),
            ("", None),
        ] {
            assert_eq!(PullSecretKind::from_type(name).map(|kind| (kind, kind.key())), expected, "{name}");
        }
    }

    #[test]
    fn the_longest_document_is_read_and_one_byte_more_is_refused() {
        let document = r#"{"auths": {"reg.io": {"username": "u", "password": "p"}}}"#;
        let longest = document.to_owned() + &" ".repeat(DOCKER_CONFIG_LENGTH_MAX - document.len());
        let parsed = |text: &str| DockerConfig::parse(PullSecretKind::DockerConfigJson, text.as_bytes());
        assert_eq!(parsed(&longest).unwrap().entries.len(), 1);
        let error = parsed(&(longest + " ")).unwrap_err().to_string();
        assert_eq!(error, "the document is longer than 1.05MB");
    }

    #[test]
    fn every_document_and_auth_vector_holds() {
        let mut cases = 0;
        for case in vectors("pull-docker-config.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            match input["kind"].as_str() {
                Some("auth") => {
                    let decoded = decode_auth(&text(&input["auth"]));
                    match expected["error"].as_str() {
                        Some(error) => assert_eq!(decoded.map_err(|error| error.to_string()), Err(error.to_owned())),
                        None => assert_eq!(decoded, Ok((text(&expected["username"]), text(&expected["password"])))),
                    }
                }
                Some("document") => {
                    let kind = match input["format"].as_str() {
                        Some("dockercfg") => PullSecretKind::DockerCfg,
                        _ => PullSecretKind::DockerConfigJson,
                    };
                    let parsed = DockerConfig::parse(kind, text(&input["data"]).as_bytes());
                    if let Some(error) = expected["error"].as_str() {
                        assert_eq!(parsed.map_err(|error| error.to_string()), Err(error.to_owned()));
                    } else {
                        let entries = expected["entries"].as_object().expect("entries").iter().map(|(key, entry)| {
                            let entry = DockerEntry {
                                username: text(&entry["username"]),
                                password: Secret::new(text(&entry["password"])),
                                email: text(&entry["email"]),
                                identity_token: None,
                            };
                            (key.clone(), entry)
                        });
                        let parsed = parsed.map(|read| read.without_tokens().entries);
                        assert_eq!(parsed, Ok(entries.collect()), "{}", case["name"]);
                    }
                }
                Some("hash") => {}
                other => panic!("unknown kind {other:?}"),
            }
            cases += 1;
        }
        assert_eq!(cases, 60);
    }

    #[test]
    fn an_error_shows_nothing_of_the_document() {
        let document = br#"{"auths": {"reg.io": {"username": "u", "password": "hunter2", "auth": {"hunter2": 1}}}}"#;
        let error = DockerConfig::parse(PullSecretKind::DockerConfigJson, document).unwrap_err();
        let expected = "json: cannot unmarshal object into Go struct field DockerConfigJSON.auths.auth of type string";
        assert_eq!(error.to_string(), expected);
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }

    #[test]
    fn a_helper_is_chosen_by_host_before_the_store_and_by_no_wrong_type() {
        let helpers =
            |text: &str| DockerConfig::parse(PullSecretKind::DockerConfigJson, text.as_bytes()).unwrap().helpers;
        let both = r#"{"credsStore": "all", "credHelpers": {"https://R.io:5000/v1/": "one", "index.docker.io": "hub", "off.io": "", "n.io": 5}}"#;
        for (document, repository, wanted) in [
            (both, "r.io:5000/team/app", Some(("one", "r.io:5000"))),
            (both, "r.io/team/app", Some(("all", "r.io"))),
            (both, "docker.io/library/busybox", Some(("hub", "https://index.docker.io/v1/"))),
            (both, "off.io/app", None),
            (both, "n.io/app", Some(("all", "n.io"))),
            (r#"{"credsStore": "all"}"#, "docker.io/library/busybox", Some(("all", "https://index.docker.io/v1/"))),
            (r#"{"credsStore": 5, "credHelpers": []}"#, "r.io/app", None),
            (r#"{"auths": {"r.io": {}}}"#, "r.io/app", None),
        ] {
            let wanted = wanted.map(|(name, server)| (name, server.to_owned()));
            assert_eq!(helpers(document).helper_for(repository), wanted, "{repository} by {document}");
        }
        let cfg = DockerConfig::parse(PullSecretKind::DockerCfg, br#"{"credsStore": {}}"#).unwrap();
        assert_eq!(cfg.helpers, HelperNames::default(), "an entry of the old form");
    }
}
