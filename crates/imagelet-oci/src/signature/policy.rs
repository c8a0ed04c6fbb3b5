//! The policy file in the format containers-policy.json(5): the requirements that an image must meet, by its name.

use std::{
    collections::BTreeMap,
    iter,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use imagelet_core::{
    image::Reference,
    text::{Object, unique_map},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Identity;
use crate::manifest::{object, printable};

pub(crate) const POLICY_BYTES_MAX: u64 = 1 << 20;
const SCOPES_MAX: usize = 10_000;
const REQUIREMENTS_MAX: usize = 32;
const KEYS_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct SignaturePolicy {
    default: Vec<Requirement>,
    /// The requirements by transport and scope. The empty scope is the default of its transport.
    transports: BTreeMap<Transport, BTreeMap<String, Vec<Requirement>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Docker,
    /// A file of `docker save`.
    DockerArchive,
    /// A folder with an OCI layout.
    Oci,
    /// A tar file with an OCI layout.
    OciArchive,
}

/// `Unsupported` rejects the image with this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Requirement {
    Accept,
    Reject,
    Sigstore { keys: Vec<KeySource>, identity: Identity },
    Unsupported(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    File(PathBuf),
    Text(Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct Rule<'a> {
    pub(crate) place: String,
    pub(crate) requirements: &'a [Requirement],
}

impl SignaturePolicy {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let raw: RawPolicy = object(bytes).map_err(|error| error.to_string())?;
        let requirements = |place: &str, raw: Vec<RawRequirement>| {
            if raw.is_empty() || raw.len() > REQUIREMENTS_MAX {
                return Err(format!("{place} has {} requirements, not 1 to {REQUIREMENTS_MAX}", raw.len()));
            }
            raw.into_iter()
                .map(Requirement::read)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|why| format!("{place}: {why}"))
        };
        let RawTransports { docker, docker_archive, oci, oci_archive } = raw.transports.0;
        let sections = [
            (Transport::Docker, docker),
            (Transport::DockerArchive, docker_archive),
            (Transport::Oci, oci),
            (Transport::OciArchive, oci_archive),
        ];
        let mut transports = BTreeMap::new();
        for (transport, section) in sections {
            let mut scopes = BTreeMap::new();
            if section.len() > SCOPES_MAX {
                return Err(format!("transports{} has more than {SCOPES_MAX} scopes", transport.section()));
            }
            for (scope, raw) in section {
                let place = place(transport, &scope);
                scopes.insert(scope, requirements(&place, raw)?);
            }
            transports.insert(transport, scopes);
        }
        Ok(Self { default: requirements("default", raw.default)?, transports })
    }

    /// The rule of the most specific scope in the policy. The scopes are: the name, its repository, the folders above
    /// the repository, its host, `*.` with a parent domain, the transport's default, and last the global default.
    pub(crate) fn rule(&self, reference: &Reference) -> Rule<'_> {
        self.first(Transport::Docker, scopes(reference))
    }

    /// The rule of the most specific scope for an archive. The scopes are: its path, the folders above it, the
    /// transport's default, and last the global default. `path` must have no links and no `..`.
    pub(crate) fn archive_rule(&self, transport: Transport, path: &Path) -> Rule<'_> {
        let above =
            path.ancestors().filter(|folder| folder.parent().is_some()).map(|folder| folder.display().to_string());
        // As in containers/image, an archive of `docker save` has no scope by path, only the transport's default.
        let paths = above.filter(|_| transport != Transport::DockerArchive);
        self.first(transport, paths.chain([String::new()]).collect())
    }

    fn first(&self, transport: Transport, scopes: Vec<String>) -> Rule<'_> {
        let section = self.transports.get(&transport);
        for scope in scopes {
            if let Some(requirements) = section.and_then(|section| section.get(&scope)) {
                return Rule { place: place(transport, &scope), requirements };
            }
        }
        Rule { place: "default".into(), requirements: &self.default }
    }
}

impl Transport {
    fn section(self) -> &'static str {
        match self {
            Self::Docker => ".docker",
            Self::DockerArchive => "[\"docker-archive\"]",
            Self::Oci => ".oci",
            Self::OciArchive => "[\"oci-archive\"]",
        }
    }
}

fn place(transport: Transport, scope: &str) -> String {
    format!("transports{}[\"{}\"]", transport.section(), printable(scope))
}

fn scopes(reference: &Reference) -> Vec<String> {
    let repository = reference.repository();
    let mut scopes = vec![reference.canonical().to_string(), repository.to_owned()];
    let above = iter::successors(repository.rsplit_once('/'), |(above, _)| above.rsplit_once('/'));
    scopes.extend(above.map(|(above, _)| above.to_owned()));
    let domains = iter::successors(reference.domain().split_once('.'), |(_, parent)| parent.split_once('.'));
    scopes.extend(domains.map(|(_, parent)| format!("*.{parent}")));
    scopes.push(String::new());
    scopes
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    default: Vec<RawRequirement>,
    #[serde(default)]
    transports: Object<RawTransports>,
}

/// A policy file may have more transports. They are not read, because images come only from registries and archives.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct RawTransports {
    #[serde(deserialize_with = "unique_map")]
    docker: Scopes,
    #[serde(deserialize_with = "unique_map")]
    docker_archive: Scopes,
    #[serde(deserialize_with = "unique_map")]
    oci: Scopes,
    #[serde(deserialize_with = "unique_map")]
    oci_archive: Scopes,
}

/// A scope that occurs twice is rejected, because parsers differ in which of the two they use.
type Scopes = BTreeMap<String, Vec<RawRequirement>>;

/// Known fields of `sigstoreSigned` and `signedBy` that are not supported, because they require more than keys.
const BEYOND_KEYS: [&str; 7] = [
    "fulcio",
    "pki",
    "rekorPublicKeyPath",
    "rekorPublicKeyPaths",
    "rekorPublicKeyData",
    "rekorPublicKeyDatas",
    "keyType",
];

/// Fields that only unsupported types of `signedIdentity` have.
const OF_IDENTITIES: [&str; 4] = ["dockerReference", "dockerRepository", "prefix", "signedPrefix"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRequirement {
    r#type: String,
    key_path: Option<PathBuf>,
    key_paths: Option<Vec<PathBuf>>,
    key_data: Option<String>,
    key_datas: Option<Vec<String>>,
    signed_identity: Option<RawIdentity>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
struct RawIdentity {
    r#type: String,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Requirement {
    fn read(mut raw: RawRequirement) -> Result<Self, String> {
        // A known field with the value `null` counts as absent.
        raw.others.retain(|field, value| !value.is_null() || !BEYOND_KEYS.contains(&field.as_str()));
        if let Some(identity) = &mut raw.signed_identity {
            identity.others.retain(|field, value| !value.is_null() || !OF_IDENTITIES.contains(&field.as_str()));
        }
        if let Some(unknown) = raw.others.keys().find(|field| !BEYOND_KEYS.contains(&field.as_str())) {
            return Err(format!("the field `{}` is unknown", printable(unknown)));
        }
        let keys = [raw.key_path.is_some(), raw.key_paths.is_some(), raw.key_data.is_some(), raw.key_datas.is_some()];
        let has_fields = keys.contains(&true) || !raw.others.is_empty() || raw.signed_identity.is_some();
        match raw.r#type.as_str() {
            "insecureAcceptAnything" if !has_fields => Ok(Self::Accept),
            "reject" if !has_fields => Ok(Self::Reject),
            "insecureAcceptAnything" | "reject" => Err(format!("`{}` has no other fields", raw.r#type)),
            "signedBy" => Ok(Self::Unsupported("`signedBy` (GPG) is not supported".into())),
            "sigstoreSigned" => Self::sigstore(raw),
            other => Err(format!("the type `{}` is unknown", printable(other))),
        }
    }

    fn sigstore(raw: RawRequirement) -> Result<Self, String> {
        if let Some(field) = raw.others.keys().next() {
            return Ok(Self::Unsupported(format!("`{field}` of `sigstoreSigned` is not supported, only keys are")));
        }
        let named = raw.signed_identity.as_ref();
        let identity = match named.map(|identity| identity.r#type.as_str()) {
            Some("matchExact" | "matchRepoDigestOrExact" | "matchRepository")
                if named.is_some_and(|identity| !identity.others.is_empty()) =>
            {
                return Err("the `signedIdentity` has unknown fields".into());
            }
            None => Identity::default(),
            Some("matchExact") => Identity::Exact,
            Some("matchRepoDigestOrExact") => Identity::RepositoryOfDigestOrExact,
            Some("matchRepository") => Identity::SameRepository,
            Some(known @ ("exactReference" | "exactRepository" | "remapIdentity")) => {
                return Ok(Self::Unsupported(format!("the `signedIdentity` `{known}` is not supported")));
            }
            Some(other) => return Err(format!("the `signedIdentity` `{}` is unknown", printable(other))),
        };
        let RawRequirement { key_path, key_paths, key_data, key_datas, .. } = raw;
        let files = |paths: Vec<PathBuf>| paths.into_iter().map(KeySource::file).collect::<Result<Vec<_>, _>>();
        let texts = |texts: Vec<String>| texts.iter().map(|text| KeySource::text(text)).collect::<Result<Vec<_>, _>>();
        let keys = match (key_path, key_paths, key_data, key_datas) {
            (Some(path), None, None, None) => files(vec![path])?,
            (None, Some(paths), None, None) => files(paths)?,
            (None, None, Some(data), None) => texts(vec![data])?,
            (None, None, None, Some(datas)) => texts(datas)?,
            _ => {
                return Err("`sigstoreSigned` needs exactly one of `keyPath`, `keyPaths`, `keyData`, `keyDatas`".into());
            }
        };
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return Err(format!("`sigstoreSigned` has {} keys, not 1 to {KEYS_MAX}", keys.len()));
        }
        Ok(Self::Sigstore { keys, identity })
    }
}

impl KeySource {
    fn file(path: PathBuf) -> Result<Self, String> {
        let refused = format!("`{}` is no absolute path", printable(&path.display().to_string()));
        if path.is_absolute() { Ok(Self::File(path)) } else { Err(refused) }
    }

    fn text(text: &str) -> Result<Self, String> {
        BASE64_STANDARD.decode(text).map(Self::Text).map_err(|error| format!("key data is no base64: {error}"))
    }
}
