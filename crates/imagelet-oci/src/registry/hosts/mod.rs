//! Reads the hosts that serve a registry's content from the configuration, or the registry itself
//! (`docs/spec/pull.md §13.1`).
//!
//! ```text
//! DIRECTORY/     containerd's tree of HOST/hosts.toml
//! FILE.conf      registries.conf of containers/image
//! FILE.yaml      registries.yaml of k3s and RKE2
//! ```

mod certs_d;
mod registries_conf;
mod registries_yaml;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io::{self, ErrorKind, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use http::HeaderMap;
use imagelet_core::{
    credentials::Credential,
    image::{ByteSize, DOCKER_HUB, DOCKER_HUB_HOST, Reference},
    runtime::{RuntimeError, RuntimeErrorKind},
    trusted_files,
};
use toml::Table;

use super::{
    connection::{ConnectionSettings, Origin, Target},
    locked,
};
use crate::manifest::printable;

const FILE_BYTES_MAX: u64 = 1 << 20;
/// A file that changes often repeats its warnings then.
const WARNED_MAX: usize = 256;
/// Warnings of one file.
const WARNINGS_MAX: usize = 16;

/// One host that serves a registry's content, and what a configuration says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is said of a host by itself")]
pub(crate) struct Host {
    pub(crate) origin: Origin,
    /// The path before the repository: `/v2` unless overridden, without a final slash.
    pub(crate) base_path: String,
    /// The repository at this host, where it has another name there.
    pub(crate) repository: Option<String>,
    /// A mirror receives no credential of the registry.
    pub(crate) is_mirror: bool,
    /// Requests name the registry in the query `ns`: the mirror may serve many.
    pub(crate) names_registry: bool,
    pub(crate) can_pull: bool,
    pub(crate) can_resolve: bool,
    pub(crate) connection: ConnectionSettings,
    pub(crate) headers: HeaderMap,
    /// What the configuration gives for this host; a credential of the pull goes before.
    pub(crate) credential: Option<Credential>,
}

impl Host {
    pub(crate) fn new(origin: Origin, base_path: String) -> Self {
        let (connection, headers) = (ConnectionSettings::default(), HeaderMap::new());
        Self {
            origin,
            base_path,
            repository: None,
            is_mirror: false,
            names_registry: false,
            can_pull: true,
            can_resolve: true,
            connection,
            headers,
            credential: None,
        }
    }

    /// The registry itself, without configuration.
    pub(crate) fn own(registry: &str) -> Result<Self, String> {
        let name = if registry == DOCKER_HUB { DOCKER_HUB_HOST } else { registry };
        let mut host = Self::new(target_at(&format!("{name}/v2"), |_| true)?.origin, "/v2".to_owned());
        host.connection.may_be_tls = !host.origin.is_https() && host.origin.port() != 80;
        Ok(host)
    }
}

/// Reads a URL without its scheme: HTTPS, but for loopback hosts at a port that `is_plain`.
fn target_at(place: &str, is_plain: impl Fn(u16) -> bool) -> Result<Target, String> {
    let plain = Target::parse(&format!("http://{place}"))?;
    let is_plain = plain.origin.is_loopback() && is_plain(plain.origin.port());
    if is_plain { Ok(plain) } else { Target::parse(&format!("https://{place}")) }
}

/// The hosts to try for an image, in order; the registry itself is the last. Reads files; the first source that knows
/// the registry decides.
pub(crate) fn load(sources: &[PathBuf], reference: &Reference) -> Result<Vec<Host>, RuntimeError> {
    let registry = reference.domain();
    for source in sources {
        let found = match source.extension().and_then(OsStr::to_str) {
            Some("conf") => registries_conf::load(source, reference)?,
            Some("yaml" | "yml") => registries_yaml::load(source, reference)?,
            _ => certs_d::load(source, registry)?,
        };
        if let Some(hosts) = found {
            return Ok(hosts);
        }
    }
    let own = Host::own(registry).map_err(|problem| RuntimeError::new(RuntimeErrorKind::InvalidArgument, problem))?;
    Ok(vec![own])
}

/// What the text of a file with this extension says, without other files.
#[cfg(feature = "fuzzing")]
pub(crate) fn of_text(text: &str, extension: &str, reference: &Reference) -> Result<Option<Vec<Host>>, String> {
    let folder = Path::new("/nonexistent");
    match extension {
        "conf" => registries_conf::parse(&text.split("# drop-in").collect::<Vec<_>>(), reference),
        "yaml" => registries_yaml::File::parse(text)?.hosts(reference, folder),
        _ => certs_d::parse(text.as_bytes(), reference.domain(), folder).map(Some),
    }
}

fn pem(path: &Path) -> Result<Arc<[u8]>, String> {
    read(path).map(Arc::from).map_err(|error| format!("`{}`: {error}", path.display()))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    trusted_files::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("larger than {}", ByteSize(FILE_BYTES_MAX))));
    }
    Ok(bytes)
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// The parser's message with the line number, without quoted values: they may be secrets.
fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| format!("line {}: ", 1 + before.matches('\n').count())).unwrap_or_default();
    let words = match (error.message().split_once('"'), error.message().rsplit_once('"')) {
        (Some((before, _)), Some((_, after))) => format!("{before}…{after}"),
        _ => error.message().to_owned(),
    };
    printable(&format!("{line}{words}"))
}

/// A URL for a message, without passwords and signatures.
fn shown(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    let text = match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}{}", &text[..scheme + 3], &text[at + 1..]),
        _ => text.to_owned(),
    };
    printable(&text)
}

/// Rejects a directory that other users can write to; an absent directory passes.
fn check_folder(path: &Path) -> Result<(), RuntimeError> {
    match trusted_files::check_folder(path) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(complaint(path, &error.to_string()))
        }
        _ => Ok(()),
    }
}

fn complaint(path: &Path, problem: &str) -> RuntimeError {
    let (problem, hint) =
        problem.split_once("\nhint: ").unwrap_or((problem, "mend the file, or remove it to ask the registry directly"));
    RuntimeError::other(format!("registry configuration `{}` cannot be used: {problem}", path.display()))
        .with_hint(hint)
}

/// Logs each warning once in the life of the process: the files are read again for each pull.
fn warn_once(path: &Path, warnings: Vec<String>) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    for warning in warnings.into_iter().take(WARNINGS_MAX) {
        let message = format!("registry configuration `{}`: {warning}", path.display());
        let mut warned = locked(&WARNED);
        if warned.len() >= WARNED_MAX {
            warned.clear();
        }
        if warned.insert(message.clone()) {
            tracing::warn!("{message}");
        }
    }
}

/// The bytes of a configured file; it and its folder decide which host receives credentials.
fn check_file(path: &Path) -> Result<Vec<u8>, RuntimeError> {
    if let Some(folder) = path.parent() {
        check_folder(folder)?;
    }
    read(path).map_err(|error| complaint(path, &error.to_string()))
}

/// A warning for each key of a table that is not read; `place` follows the key.
fn unread(table: &Table, keys: &[&str], place: &str) -> Vec<String> {
    let unread = table.keys().filter(|key| !keys.contains(&key.as_str()));
    unread.map(|key| not_read(key, place)).collect()
}

fn not_read(key: &str, place: &str) -> String {
    format!("`{}`{place} is no key that is read", printable(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../../docs/registries.md");

    #[test]
    fn each_example_of_the_documentation_is_read_whole() {
        let reference: Reference = "docker.io/team/app:v1".parse().unwrap();
        let examples = ["```toml\n", "```yaml\nmirrors:"].into_iter().flat_map(|fence| PAGE.split(fence).skip(1));
        let examples = examples.map(|rest| rest.split("```").next().unwrap());
        let mut hosts_found = Vec::new();
        for example in examples {
            let folder = tempfile::tempdir().unwrap();
            let source = if example.contains("[[registry]]") {
                assert_eq!(registries_conf::warnings(example), Vec::<String>::new());
                let file = folder.path().join("registries.conf");
                std::fs::write(&file, example).unwrap();
                file
            } else if example.contains("configs:") {
                let file = folder.path().join("registries.yaml");
                std::fs::write(folder.path().join("corp-ca.crt"), "").unwrap();
                let text = example.replace("/etc/ssl", folder.path().to_str().unwrap());
                std::fs::write(&file, format!("mirrors:{text}")).unwrap();
                file
            } else {
                assert_eq!(certs_d::warnings(example), Vec::<String>::new());
                let own = folder.path().join("docker.io");
                std::fs::create_dir(&own).unwrap();
                std::fs::write(own.join("corp-ca.crt"), "").unwrap();
                std::fs::write(own.join("hosts.toml"), example).unwrap();
                folder.path().to_owned()
            };
            let hosts = load(&[source], &reference).expect(example);
            assert_eq!(
                hosts.last().map(|host| host.origin.to_string()).as_deref(),
                Some("https://registry-1.docker.io")
            );
            hosts_found.extend(hosts.into_iter().filter(|host| host.is_mirror));
        }
        assert_eq!(hosts_found.len(), 7, "one mirror per example");
    }
}
