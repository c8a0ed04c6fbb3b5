//! Reads which hosts serve a registry's content (`docs/spec/pull.md §13.1`). The default is the registry itself.

mod certs_d;
mod registries_conf;
mod registries_yaml;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use http::HeaderMap;
use imagelet_core::{
    credentials::Credential,
    error::{RuntimeError, RuntimeErrorKind},
    image::{DOCKER_HUB, DOCKER_HUB_HOST, Reference},
    ports::RegistryHost,
    trusted_files,
};
use indexmap::{IndexMap, IndexSet};
use serde::{Deserialize, Deserializer};

use super::{
    connection::{ConnectionSettings, Identity, Origin, Target, TlsSettings},
    is_new,
};
use crate::manifest::printable;

const FILE_BYTES_MAX: u64 = 1 << 20;
const WARNINGS_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) origin: Origin,
    pub(crate) path: HostPath,
    /// Whether the host is a mirror or another location. Then it does not receive the registry's credential.
    pub(crate) is_mirror: bool,
    /// Whether requests name the registry in the query `ns`, because a mirror may serve several registries.
    pub(crate) names_registry: bool,
    pub(crate) capabilities: Capabilities,
    pub(crate) connection: ConnectionSettings,
    pub(crate) headers: HeaderMap,
    /// The configured credential for this host. A credential of the pull overrides it.
    pub(crate) credential: Option<Credential>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPath {
    /// The path before the repository: `/v2` unless overridden, without a final slash.
    pub(crate) base: String,
    /// The repository's name at this host, if it differs from the name in the image's reference.
    pub(crate) repository: Option<String>,
}

/// The requests that a host may receive, by the words of `hosts.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub(crate) pull: bool,
    pub(crate) resolve: bool,
}

impl Host {
    pub(crate) fn new(origin: Origin, base_path: String) -> Self {
        let (connection, headers) = (ConnectionSettings::default(), HeaderMap::new());
        Self {
            origin,
            path: HostPath { base: base_path, repository: None },
            is_mirror: false,
            names_registry: false,
            capabilities: Capabilities { pull: true, resolve: true },
            connection,
            headers,
            credential: None,
        }
    }

    /// Whether `other` is the same host with the other scheme, which is tried if the host does not answer.
    pub(crate) fn is_twin(&self, other: &Self) -> bool {
        self.origin.is_same_place(&other.origin)
            && self.origin.is_https != other.origin.is_https
            && (self.is_mirror, &self.path) == (other.is_mirror, &other.path)
    }

    /// The registry itself, without configuration.
    pub(crate) fn own(registry: &str) -> Result<Self, String> {
        let name = if registry == DOCKER_HUB { DOCKER_HUB_HOST } else { registry };
        let mut host = Self::new(target_at(&format!("{name}/v2"), |_| true)?.origin, "/v2".to_owned());
        host.connection.may_be_tls = !host.origin.is_https && host.origin.port != 80;
        Ok(host)
    }

    /// The repository of an image at this host, including the part of its name in the base path.
    pub(crate) fn repository_of(&self, reference: &Reference) -> String {
        let prefix = self.path.base.strip_prefix("/v2/").map(|prefix| format!("{prefix}/")).unwrap_or_default();
        format!("{prefix}{}", self.path.repository.as_deref().unwrap_or_else(|| reference.path()))
    }

    /// The names of the host in docker configurations and in `certs.d`.
    fn names(&self) -> Vec<String> {
        match self.origin.authority() {
            authority if authority == DOCKER_HUB_HOST => vec![DOCKER_HUB.to_owned()],
            authority => vec![authority, format!("{}:{}", self.origin.host(), self.origin.port)],
        }
    }
}

/// The hosts other than the image's registry. Each occurs once, with all repositories that it has for the image.
pub(crate) fn other_hosts(hosts: &[Host], reference: &Reference) -> Vec<RegistryHost> {
    let own = Host::own(reference.domain()).ok();
    let is_other = |host: &&Host| own.as_ref().is_none_or(|own| !own.origin.is_same_place(&host.origin));
    let mut others: IndexMap<String, IndexSet<String>> = IndexMap::new();
    for host in hosts.iter().filter(is_other) {
        let repository = host.repository_of(reference);
        let keys = host.names().into_iter().map(|name| format!("{name}/{repository}"));
        others.entry(printable(&host.origin.authority())).or_default().extend(keys);
    }
    let named = |(host, repositories): (String, IndexSet<String>)| RegistryHost {
        host,
        repositories: repositories.into_iter().collect(),
    };
    others.into_iter().map(named).collect()
}

/// Reads a URL. Without a scheme, the URL is HTTPS, or HTTP for a loopback host at a port for which `is_plain` holds.
pub(crate) fn target_at(url: &str, is_plain: impl Fn(u16) -> bool) -> Result<Target, String> {
    if url.contains("://") {
        return Target::parse(url);
    }
    let plain = Target::parse(&format!("http://{url}"))?;
    let is_plain = plain.origin.is_loopback() && is_plain(plain.origin.port);
    if is_plain { Ok(plain) } else { Target::parse(&format!("https://{url}")) }
}

/// Reads the hosts for an image, from the first source that knows its registry. The registry itself is the last host.
pub(crate) fn load(sources: &[PathBuf], reference: &Reference) -> Result<ConfiguredHosts, RuntimeError> {
    let registry = reference.domain();
    let mut warnings = Vec::new();
    let mut has_conf = sources.iter().any(|source| kind_of(source) == SourceKind::RegistriesConf);
    let mut hosts = None;
    for source in sources {
        hosts = match kind_of(source) {
            SourceKind::RegistriesConf => registries_conf::load(source, reference, &mut warnings)?,
            SourceKind::RegistriesYaml => registries_yaml::load(source, reference, &mut warnings)?,
            SourceKind::CertsD => certs_d::load(source, registry, &mut warnings)?,
        };
        if hosts.is_some() {
            has_conf = kind_of(source) == SourceKind::RegistriesConf;
            break;
        }
    }
    let own = |problem| RuntimeError::new(RuntimeErrorKind::InvalidArgument, problem);
    let mut hosts = match hosts {
        Some(hosts) => hosts,
        None => vec![Host::own(registry).map_err(own)?],
    };
    if has_conf {
        let with_certificates = |host| certs_d::add_certificates(sources, host, &mut warnings);
        hosts = hosts.into_iter().map(with_certificates).collect::<Result<_, _>>()?;
    }
    Ok(ConfiguredHosts { hosts, warnings })
}

#[derive(Debug)]
pub(crate) struct ConfiguredHosts {
    pub(crate) hosts: Vec<Host>,
    pub(crate) warnings: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SourceKind {
    CertsD,
    RegistriesConf,
    RegistriesYaml,
}

fn kind_of(source: &Path) -> SourceKind {
    match source.extension().and_then(OsStr::to_str) {
        Some("conf") => SourceKind::RegistriesConf,
        Some("yaml" | "yml") => SourceKind::RegistriesYaml,
        _ => SourceKind::CertsD,
    }
}

/// Reads all files of all sources. Returns messages about keys and values without effect, and about unusable files.
pub fn check_registry_files(sources: &[PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    let is_there = |source: &&PathBuf| {
        let has_drop_ins = || kind_of(source) == SourceKind::RegistriesConf && registries_conf::folder(source).exists();
        source.exists() || has_drop_ins()
    };
    for source in sources.iter().filter(is_there) {
        let checked = match kind_of(source) {
            SourceKind::RegistriesConf => registries_conf::check(source, &mut found),
            SourceKind::RegistriesYaml => registries_yaml::check(source, &mut found),
            SourceKind::CertsD => certs_d::check(source, &mut found),
        };
        found.extend(checked.err().map(|error| error.chain()));
    }
    found
}

/// Parses the text of a file with this extension. Reads no other file.
#[cfg(feature = "fuzzing")]
pub(crate) fn of_text(text: &str, extension: &str, reference: &Reference) -> Result<Option<Vec<Host>>, String> {
    let folder = Path::new("/nonexistent");
    match extension {
        "conf" => registries_conf::parse(&text.split("# drop-in").collect::<Vec<_>>(), reference),
        "yaml" => registries_yaml::File::parse(text, &mut Vec::new())?.hosts(reference, folder),
        _ => certs_d::parse(text, reference.domain(), folder, &mut Vec::new()).map(Some),
    }
}

/// Reads a file of the configuration. The file and its folder must have safe permissions, because the file decides
/// which host receives credentials. Warnings go to `found`, and to the log only once, because each pull reads the file.
fn read_file<T>(
    path: &Path,
    found: &mut Vec<String>,
    parse: impl FnOnce(&str, &mut Vec<String>) -> Result<T, String>,
) -> Result<T, RuntimeError> {
    check_folder(path.parent().unwrap_or(Path::new("")))?;
    let bytes = trusted_files::read(path, FILE_BYTES_MAX).map_err(|error| complaint(path, &error.to_string()))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| complaint(path, "it is not UTF-8"))?;
    let mut warnings = Vec::new();
    let parsed = parse(text, &mut warnings);
    warn_once(path, warnings, found);
    parsed.map_err(|problem| complaint(path, &problem))
}

/// Deserializes a file, and adds a warning for each unknown key. An error has the key at which it occurred.
fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    warnings: &mut Vec<String>,
) -> Result<T, (String, D::Error)> {
    // The path has a step `?` for each `Option`, which is no part of the key.
    let key =
        |path: String| shown(&path.split('.').filter(|step| !matches!(*step, "?" | "")).collect::<Vec<_>>().join("."));
    let mut unread = |path: serde_ignored::Path<'_>| {
        warnings.push(format!("`{}` is no key that is read", key(path.to_string())));
    };
    let deserializer = serde_ignored::Deserializer::new(deserializer, &mut unread);
    serde_path_to_error::deserialize(deserializer).map_err(|error| (key(error.path().to_string()), error.into_inner()))
}

fn parse_toml<'de, T: Deserialize<'de>>(text: &'de str, warnings: &mut Vec<String>) -> Result<T, String> {
    let deserializer = toml::Deserializer::parse(text).map_err(|error| toml_problem(text, &error))?;
    deserialize(deserializer, warnings).map_err(|(key, error)| match key.as_str() {
        "" => toml_problem(text, &error),
        key => format!("`{key}`: {}", toml_problem(text, &error)),
    })
}

/// Reads TLS settings from files. `authorities` and `identities` (certificate and key) are paths below `folder`.
fn tls_settings(
    folder: &Path,
    authorities: &[String],
    identities: &[(String, String)],
    skip_verify: bool,
) -> Result<TlsSettings, String> {
    let file = |path: &String| pem(&folder.join(path));
    let identity = |(chain, key): &(String, String)| Ok::<_, String>(Identity { chain: file(chain)?, key: file(key)? });
    let authorities = authorities.iter().map(file).collect::<Result<_, _>>()?;
    Ok(TlsSettings { authorities, identities: identities.iter().map(identity).collect::<Result<_, _>>()?, skip_verify })
}

fn pem(path: &Path) -> Result<Arc<[u8]>, String> {
    let bytes = trusted_files::read(path, FILE_BYTES_MAX).map_err(|error| format!("`{}`: {error}", path.display()))?;
    Ok(Arc::from(bytes.as_slice()))
}

/// The parser's message with the line number, without quoted values, which may be secrets.
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

/// Rejects a directory that other users can write to. An absent directory is accepted.
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

fn warn_once(path: &Path, warnings: Vec<String>, found: &mut Vec<String>) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    for warning in warnings.into_iter().take(WARNINGS_MAX) {
        let message = format!("registry configuration `{}`: {warning}", path.display());
        if is_new(&WARNED, &message) {
            tracing::warn!("{message}");
        }
        found.push(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../../docs/registries.md");

    #[test]
    fn two_paths_of_one_host_are_looked_up_both() {
        let host = |base: &str| Host::new(Target::parse("https://h.example").unwrap().origin, base.to_owned());
        let hosts = [host("/v2/proxy-a"), host("/v2/proxy-b"), host("/v2/proxy-a")];
        let found = other_hosts(&hosts, &"r.example/app:v1".parse().unwrap());
        let names: Vec<&str> = found.iter().flat_map(|host| &host.repositories).map(String::as_str).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(
            names,
            [
                "h.example/proxy-a/app",
                "h.example:443/proxy-a/app",
                "h.example/proxy-b/app",
                "h.example:443/proxy-b/app"
            ]
        );
    }

    #[test]
    fn each_example_of_the_documentation_is_read_whole() {
        let reference: Reference = "docker.io/team/app:v1".parse().unwrap();
        let examples = ["```toml\n", "```yaml\nmirrors:"].into_iter().flat_map(|fence| PAGE.split(fence).skip(1));
        let examples = examples.map(|rest| rest.split("```").next().unwrap());
        let mut hosts_found = Vec::new();
        for example in examples {
            let folder = tempfile::tempdir().unwrap();
            let source = if example.contains("[[registry]]") {
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
                let own = folder.path().join("docker.io");
                std::fs::create_dir(&own).unwrap();
                std::fs::write(own.join("corp-ca.crt"), "").unwrap();
                std::fs::write(own.join("hosts.toml"), example).unwrap();
                folder.path().to_owned()
            };
            let ConfiguredHosts { hosts, warnings } = load(&[source], &reference).expect(example);
            assert_eq!(warnings, Vec::<String>::new());
            assert_eq!(
                hosts.last().map(|host| host.origin.to_string()).as_deref(),
                Some("https://registry-1.docker.io")
            );
            hosts_found.extend(hosts.into_iter().filter(|host| host.is_mirror));
        }
        assert_eq!(hosts_found.len(), 7, "one mirror per example");
    }

    #[test]
    fn the_certificates_of_a_host_that_the_file_names_are_those_of_certs_d() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("registries.conf");
        let text = "[[registry]]\nlocation = \"docker.io\"\n[[registry.mirror]]\nlocation = \"mirror.example:5000/hub\"\n\
                    [[registry.mirror]]\nlocation = \"lan.example\"\ninsecure = true\n";
        std::fs::write(&file, text).unwrap();
        let tree = folder.path().join("tree");
        for (place, names) in [
            ("certs.d/mirror.example:5000", &["ca.crt", "client.cert", "client.key", "note.txt"][..]),
            ("certs.d/docker.io", &["hub.crt"]),
            ("certs.d/lan.example:443", &["lan.crt"]),
            ("certs.d/unnamed.example", &["own.crt"]),
            ("tree/docker.io", &["first.crt", "second.crt"]),
        ] {
            let place = folder.path().join(place);
            std::fs::create_dir_all(&place).unwrap();
            for name in names {
                std::fs::write(place.join(name), *name).unwrap();
            }
        }
        let certificates = |sources: &[&Path], name: &str| {
            let sources: Vec<PathBuf> = sources.iter().map(|source| (*source).to_owned()).collect();
            let hosts = load(&sources, &name.parse().unwrap()).unwrap().hosts;
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let of_host = |host: &Host| {
                let tls = &host.connection.tls;
                let authorities = tls.authorities.iter().map(|bytes| text(bytes));
                authorities
                    .chain(tls.identities.iter().map(|identity| text(&identity.key)))
                    .collect::<Vec<_>>()
                    .join("+")
            };
            hosts.iter().map(|host| format!("{} {}", host.origin, of_host(host))).collect::<Vec<_>>()
        };
        let mirrors =
            ["https://mirror.example:5000 ca.crt+client.key", "https://lan.example lan.crt", "http://lan.example "];
        let with = |own: &str| mirrors.iter().copied().chain([own]).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(certificates(&[&file], "docker.io/a:v1"), with("https://registry-1.docker.io hub.crt"));
        let first = with("https://registry-1.docker.io first.crt+second.crt");
        assert_eq!(certificates(&[&file, &tree], "docker.io/a:v1"), first, "a configured tree goes before");
        assert_eq!(certificates(&[&file], "unnamed.example/a:v1"), ["https://unnamed.example own.crt"]);
        assert_eq!(certificates(&[&tree], "unnamed.example/a:v1"), ["https://unnamed.example "], "without the file");
        // Packages link to files of other packages.
        let place = folder.path().join("certs.d/mirror.example:5000");
        std::os::unix::fs::symlink("/nonexistent/redhat-uep.pem", place.join("redhat-ca.crt")).unwrap();
        assert_eq!(certificates(&[&file], "docker.io/a:v1"), with("https://registry-1.docker.io hub.crt"));
        let found = load(std::slice::from_ref(&file), &"docker.io/a:v1".parse().unwrap()).unwrap();
        let [warning] = &found.warnings[..] else { panic!("{:?}", found.warnings) };
        assert!(warning.contains("redhat-ca.crt` leads to no file and is not used"), "{warning}");
        if !rustix::process::geteuid().is_root() {
            let set_mode = |mode| {
                use std::os::unix::fs::PermissionsExt as _;
                std::fs::set_permissions(&place, std::fs::Permissions::from_mode(mode)).unwrap();
            };
            set_mode(0);
            let without = with("https://registry-1.docker.io hub.crt").into_iter();
            let without: Vec<_> = without.map(|host| host.replace("ca.crt+client.key", "")).collect();
            assert_eq!(certificates(&[&file], "docker.io/a:v1"), without, "a folder of another user");
            set_mode(0o755);
        }
        std::fs::remove_file(place.join("client.key")).unwrap();
        let error = load(&[file], &"docker.io/a:v1".parse().unwrap()).unwrap_err();
        assert!(error.chain().contains("client.key"), "{}", error.chain());
    }
}
