//! containerd's `certs.d/HOST/hosts.toml`.
//!
//! ```text
//! certs.d/HOST_PORT_/   certs.d/HOST:PORT/   certs.d/HOST/   certs.d/_default/    the first that is there
//!     hosts.toml        mirrors in order, and the server they stand for
//!     *.crt  *.cert+*.key    without hosts.toml: authorities and client certificates for the registry itself
//! ```

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use imagelet_core::{
    image::{DOCKER_HUB, DOCKER_HUB_HOST},
    runtime::RuntimeError,
    text::GoDuration,
};
use serde::{Deserialize, Deserializer};
use toml::Table;

use super::{
    Host, SourceKind, check_folder, complaint, kind_of, pem, read, shown, target_at, toml_problem, unread, utf8,
    warn_once,
};
use crate::{
    manifest::printable,
    registry::connection::{ConnectionSettings, Identity, Proxy, Target, TlsSettings},
};

const HOSTS_MAX: usize = 32;
const DEFAULT_DIRECTORY: &str = "_default";
/// The keys of one host; the file itself has `server` and `host` too.
const HOST_KEYS: [&str; 8] =
    ["capabilities", "ca", "client", "skip_verify", "header", "override_path", "dial_timeout", "proxy"];
/// The capabilities that containerd knows. A pull needs the first two.
const CAPABILITIES: [&str; 4] = ["pull", "resolve", "push", "referrers"];
/// Where containers/image looks for certificates by host.
const SYSTEM_CERTIFICATES: [&str; 2] = ["/etc/containers/certs.d", "/etc/docker/certs.d"];
/// Directories of a tree that a check reads.
const DIRECTORIES_MAX: usize = 1000;
/// Each costs a signature to check when it is read.
const IDENTITIES_MAX: usize = 32;

/// The hosts of a registry that has a directory in this tree.
pub(super) fn load(root: &Path, registry: &str, found: &mut Vec<String>) -> Result<Option<Vec<Host>>, RuntimeError> {
    // These files decide which host receives credentials and which certificates are trusted.
    check_folder(root)?;
    let mut directories = directory_names(registry).into_iter().map(|name| root.join(name));
    let Some(directory) = directories.find(|path| path.is_dir()) else { return Ok(None) };
    check_folder(&directory)?;
    let file = directory.join("hosts.toml");
    let hosts = match read(&file) {
        Ok(bytes) => {
            warn_once(&file, std::str::from_utf8(&bytes).map(warnings).unwrap_or_default(), found);
            parse(&bytes, registry, &directory).map_err(|problem| complaint(&file, &problem))?
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let files = certificate_files(&directory).map_err(|error| complaint(&directory, &error.to_string()))?;
            let own = Host::own(registry).and_then(|host| with_certificates(host, &files));
            vec![own.map_err(|problem| complaint(&directory, &problem))?]
        }
        Err(error) => return Err(complaint(&file, &error.to_string())),
    };
    Ok(Some(hosts))
}

/// The directory names that match a registry, most exact first.
fn directory_names(registry: &str) -> Vec<String> {
    let with_port = registry.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !registry.ends_with(']'));
    let mut names = vec![registry.to_owned(), DEFAULT_DIRECTORY.to_owned()];
    if let Some((host, port)) = with_port {
        names.insert(0, format!("{host}_{port}_"));
    }
    names
}

/// `hosts.toml`, or the table of one host in it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    server: String,
    host: Table,
    override_path: bool,
    capabilities: Vec<String>,
    skip_verify: bool,
    dial_timeout: Option<GoDuration>,
    ca: Option<OneOrMany<String>>,
    client: Option<OneOrMany<OneOrMany<String>>>,
    header: BTreeMap<String, OneOrMany<String>>,
    proxy: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn list(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

pub(super) fn parse(bytes: &[u8], registry: &str, directory: &Path) -> Result<Vec<Host>, String> {
    let text = utf8(bytes)?;
    let mut file = toml::Deserializer::parse(text)
        .map_err(|error| toml_problem(text, &error))
        .and_then(|it| settings(text, it))?;
    let own = Host::own(registry)?;
    let own_place = own.origin.clone();
    if file.host.len() > HOSTS_MAX {
        return Err(format!("it names more than {HOSTS_MAX} hosts"));
    }
    let mut hosts = Vec::new();
    for (url, settings) in std::mem::take(&mut file.host) {
        let host = self::settings(text, settings);
        let host = host.and_then(|settings| with_settings(host_at(&url, &settings)?, settings, directory));
        let host = host.map_err(|problem| format!("host `{}`: {problem}", shown(&url)))?;
        let is_mirror = !host.origin.is_same_place(&own_place);
        hosts.push(Host { is_mirror, names_registry: is_mirror, ..host });
    }
    // In a registry's own directory, `server` is the operator's address of the registry and receives its credential.
    // In `_default` it is a shared cache and must not receive the credentials of the registries.
    let is_shared = directory.file_name().is_some_and(|name| name == DEFAULT_DIRECTORY);
    let url = shown(&file.server);
    let server = if file.server.is_empty() { Ok(own) } else { host_at(&file.server, &file) };
    let server = server.and_then(|server| with_settings(server, file, directory));
    let server = server.map_err(|problem| format!("server `{url}`: {problem}"))?;
    let is_mirror = is_shared && !server.origin.is_same_place(&own_place);
    hosts.push(Host { is_mirror, names_registry: is_mirror, ..server });
    Ok(hosts)
}

fn host_at(url: &str, settings: &Settings) -> Result<Host, String> {
    let target = if url.contains("://") { Target::parse(url)? } else { target_at(url, |_| true)? };
    let path = target.path().trim_end_matches('/').to_owned();
    let base_path = if settings.override_path || path.ends_with("/v2") { path } else { format!("{path}/v2") };
    Ok(Host::new(target.origin, base_path))
}

fn with_settings(host: Host, settings: Settings, directory: &Path) -> Result<Host, String> {
    // As in containerd, an empty list counts as an absent one. An unknown capability grants nothing.
    let granted = &settings.capabilities;
    let can = |wanted: &str| granted.is_empty() || granted.iter().any(|granted| granted.eq_ignore_ascii_case(wanted));
    let skip_verify = settings.skip_verify;
    let (can_pull, can_resolve) = (can("pull"), can("resolve"));
    let file = |path: String| pem(&directory.join(path));
    let authorities = settings.ca.map(OneOrMany::list).unwrap_or_default();
    let authorities = authorities.into_iter().map(file).collect::<Result<_, _>>()?;
    let identities = settings.client.map(client_paths).transpose()?.unwrap_or_default().into_iter();
    let identities = identities.map(|(chain, key)| Ok::<_, String>(Identity { chain: file(chain)?, key: file(key)? }));
    let tls = TlsSettings { authorities, identities: identities.collect::<Result<_, _>>()?, skip_verify };
    // As in containerd, zero keeps the default.
    let dial_timeout = settings.dial_timeout.filter(|limit| *limit > GoDuration::default()).map(GoDuration::to_std);
    // The message does not repeat the URL: it may hold a password.
    let proxy = settings.proxy.filter(|url| !url.is_empty()).map(|url| Proxy::parse_strict(&url, None).map(Arc::new));
    let proxy = proxy.transpose().map_err(|problem| format!("`proxy`: {problem}"))?;
    let connection = ConnectionSettings { tls, dial_timeout, proxy, ..host.connection };
    Ok(Host { can_pull, can_resolve, connection, headers: headers(settings.header)?, ..host })
}

/// Certificates with their keys: `"both.pem"`, `["both.pem", "other.pem"]`, or `[["cert.pem", "key.pem"], "both.pem"]`.
fn client_paths(client: OneOrMany<OneOrMany<String>>) -> Result<Vec<(String, String)>, String> {
    let entries: Vec<Vec<String>> = match client {
        OneOrMany::One(files) => files.list().into_iter().map(|both| vec![both]).collect(),
        OneOrMany::Many(entries) => entries.into_iter().map(OneOrMany::list).collect(),
    };
    if entries.len() > IDENTITIES_MAX {
        return Err(format!("`client` has {} certificates; the limit is {IDENTITIES_MAX}", entries.len()));
    }
    let pair = |files: Vec<String>| match &files[..] {
        [certificate, key] if !key.is_empty() => Ok((certificate.clone(), key.clone())),
        [both] | [both, _] if !both.is_empty() => Ok((both.clone(), both.clone())),
        _ => Err("`client` is neither paths nor pairs of paths".to_owned()),
    };
    entries.into_iter().map(pair).collect()
}

/// Errors do not repeat values: headers carry secrets.
fn headers(settings: BTreeMap<String, OneOrMany<String>>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, values) in settings {
        let bad = || format!("header `{}` cannot be sent", shown(&name));
        let key = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
        for text in values.list() {
            let mut value = HeaderValue::try_from(text).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.append(key.clone(), value);
        }
    }
    Ok(headers)
}

fn certificate_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?;
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).take(256).collect();
    paths.sort();
    Ok(paths)
}

fn with_certificates(mut host: Host, files: &[PathBuf]) -> Result<Host, String> {
    for path in files {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("crt") => host.connection.tls.authorities.push(pem(path)?),
            Some("cert") if host.connection.tls.identities.len() < IDENTITIES_MAX => {
                let identity = Identity { chain: pem(path)?, key: pem(&path.with_extension("key"))? };
                host.connection.tls.identities.push(identity);
            }
            _ => {}
        }
    }
    Ok(host)
}

/// Adds the certificates of a host that `registries.conf` is about (containers-certs.d(5)): those of the first folder with
/// a directory of its name, among the configured trees, `certs.d` beside the file, and those of the system. As in
/// containers/image, an authority that is a link to no file is passed over, and so is a folder that this user may not read:
/// packages link to files of other packages, and the folder is for the registries of others, too.
pub(super) fn add_certificates(
    sources: &[PathBuf],
    host: &mut Host,
    warnings: &mut Vec<String>,
) -> Result<(), RuntimeError> {
    let trees = sources.iter().filter(|source| kind_of(source) == SourceKind::CertsD).cloned();
    let files = sources.iter().filter(|source| kind_of(source) == SourceKind::RegistriesConf);
    let beside = files.filter_map(|file| Some(file.parent()?.join("certs.d")));
    let roots = trees.chain(beside).chain(SYSTEM_CERTIFICATES.map(PathBuf::from));
    let authority = host.origin.authority();
    let names = match authority.as_str() {
        DOCKER_HUB_HOST => vec![DOCKER_HUB.to_owned()],
        _ => vec![authority, format!("{}:{}", host.origin.host(), host.origin.port())],
    };
    for root in roots {
        if let Some(directory) = names.iter().map(|name| root.join(name)).find(|path| path.is_dir()) {
            check_folder(&root)?;
            check_folder(&directory)?;
            let (absent, files): (Vec<_>, Vec<_>) = match certificate_files(&directory) {
                Ok(files) => files.into_iter().partition(|path| is_absent_authority(path)),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    let warning = "the folder cannot be read by this user, and its certificates are not used";
                    warn_once(&directory, vec![warning.to_owned()], warnings);
                    return Ok(());
                }
                Err(error) => return Err(complaint(&directory, &error.to_string())),
            };
            let absent = absent.iter().map(|path| format!("`{}` leads to no file and is not used", path.display()));
            warn_once(&directory, absent.collect(), warnings);
            let found = with_certificates(host.clone(), &files);
            *host = found.map_err(|problem| complaint(&directory, &problem))?;
            return Ok(());
        }
    }
    Ok(())
}

fn is_absent_authority(path: &Path) -> bool {
    let is_absent = || std::fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    path.extension().is_some_and(|extension| extension == "crt") && is_absent()
}

/// Reads each `hosts.toml` of a tree.
pub(super) fn check(root: &Path, found: &mut Vec<String>) -> Result<(), RuntimeError> {
    check_folder(root)?;
    let entries = std::fs::read_dir(root).map_err(|error| complaint(root, &error.to_string()))?;
    let mut directories: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    directories.sort();
    let directories = directories.iter().filter(|directory| directory.join("hosts.toml").exists());
    for directory in directories.take(DIRECTORIES_MAX) {
        let name = directory.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        let registry = match name.strip_suffix('_').and_then(|name| name.rsplit_once('_')) {
            _ if name == DEFAULT_DIRECTORY => "registry.example".to_owned(),
            Some((host, port)) => format!("{host}:{port}"),
            None => name.to_owned(),
        };
        if let Err(error) = load(root, &registry, found) {
            found.push(error.chain());
        }
    }
    Ok(())
}

/// Reads a file or the table of one host; the error names the key.
fn settings<'de>(text: &str, source: impl Deserializer<'de, Error = toml::de::Error>) -> Result<Settings, String> {
    serde_path_to_error::deserialize(source).map_err(|error| {
        let (key, problem) = (error.path().to_string(), toml_problem(text, error.inner()));
        if key == "." { problem } else { format!("`{}`: {problem}", printable(&key)) }
    })
}

/// The keys that are not read, and the capabilities that grant nothing.
pub(super) fn warnings(text: &str) -> Vec<String> {
    let mut file: Table = toml::from_str(text).unwrap_or_default();
    file.remove("server");
    let hosts = file.remove("host");
    let mut found = without_effect(&file, "");
    for (url, host) in hosts.iter().filter_map(toml::Value::as_table).flatten() {
        let host = host.as_table().map(|table| without_effect(table, &format!(" of host `{}`", shown(url))));
        found.extend(host.unwrap_or_default());
    }
    found
}

fn without_effect(table: &Table, place: &str) -> Vec<String> {
    let granted = table.get("capabilities").and_then(toml::Value::as_array).into_iter().flatten();
    let is_known = |name: &&str| CAPABILITIES.iter().any(|known| name.eq_ignore_ascii_case(known));
    let unknown = granted.filter_map(toml::Value::as_str).filter(|name| !is_known(name));
    let unknown = unknown.map(|name| format!("capability `{}`{place} is unknown and grants nothing", printable(name)));
    unread(table, &HOST_KEYS, place).into_iter().chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::hosts::load;

    fn reference(registry: &str) -> imagelet_core::image::Reference {
        format!("{registry}/team/app:v1").parse().expect("a reference")
    }

    #[test]
    fn keys_that_are_not_read_are_named() {
        let text = "server = \"https://r.example\"\nskip-verify = true\ncapabilities = [\"pull\"]\n\
                    [host.\"https://user:hunter2@m.example\"]\nskip_verify = true\nrewrite = 1\n\
                    client = [[\"a\", \"b\"], [\"c\", \"d\"]]\ndial_timeout = \"1s\"\n[hosts]\n";
        let host = "of host `https://m.example`";
        assert_eq!(
            warnings(text),
            [
                "`skip-verify` is no key that is read".to_owned(),
                "`hosts` is no key that is read".to_owned(),
                format!("`rewrite` {host} is no key that is read"),
            ]
        );
        let each = HOST_KEYS.map(|key| format!("{key} = 1\n")).concat();
        assert!(warnings(&format!("{each}[host.\"https://m.example\"]\n{each}")).is_empty());
    }

    #[test]
    fn an_unknown_capability_grants_nothing_and_the_others_of_its_list_hold() {
        for (list, can_pull, can_resolve, unknown) in [
            ("[\"pull\", \"resolve\", \"referrers\"]", true, true, None),
            ("[\"pull\", \"referrers\"]", true, false, None),
            ("[\"Pull\", \"RESOLVE\"]", true, true, None),
            ("[\"resolve\", \"fly\", \"pull\"]", true, true, Some("fly")),
            ("[\"fly\"]", false, false, Some("fly")),
            ("[\"pull \"]", false, false, Some("pull ")),
            ("[\"referrers\"]", false, false, None),
            ("[\"push\"]", false, false, None),
            ("[]", true, true, None),
        ] {
            for text in
                [format!("capabilities = {list}\n"), format!("[host.\"https://m.example\"]\ncapabilities = {list}\n")]
            {
                let hosts = parse(text.as_bytes(), "example.com", Path::new("/nonexistent")).expect(&text);
                assert_eq!((hosts[0].can_pull, hosts[0].can_resolve), (can_pull, can_resolve), "{text}");
                let place = if hosts.len() == 2 { " of host `https://m.example`" } else { "" };
                let warning = unknown.map(|name| format!("capability `{name}`{place} is unknown and grants nothing"));
                assert_eq!(warnings(&text), Vec::from_iter(warning), "{text}");
            }
        }
    }

    #[test]
    fn a_check_names_what_has_no_effect_in_each_file_of_a_tree_and_what_cannot_be_used() {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.example", "[host.\"https://m.example\"]\nskip-verify = true\ncapabilities = [\"pull\", \"fly\"]\n"),
            ("b.example_5000_", "server = 1\n"),
            ("c.example:5000", "server = \"https://c.example\"\n"),
            ("_default", "servr = \"https://d.example\"\n"),
        ] {
            std::fs::create_dir(root.path().join(name)).unwrap();
            std::fs::write(root.path().join(name).join("hosts.toml"), text).unwrap();
        }
        std::fs::create_dir(root.path().join("empty.example")).unwrap();
        std::fs::write(root.path().join("note.txt"), "x").unwrap();
        let sources = [root.path().join("absent"), root.path().to_owned()];
        let found = crate::registry::hosts::check_registry_files(&sources);
        let file = |name: &str| format!("registry configuration `{}/{name}/hosts.toml`", root.path().display());
        let expected = [
            (file("_default"), ": `servr` is no key that is read"),
            (file("a.example"), ": `skip-verify` of host `https://m.example` is no key that is read"),
            (file("a.example"), ": capability `fly` of host `https://m.example` is unknown and grants nothing"),
            (file("b.example_5000_"), " cannot be used: `server`: line 1: "),
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, (file, words)) in found.iter().zip(&expected) {
            assert!(found.starts_with(&format!("{file}{words}")), "{found}");
        }
    }

    #[test]
    fn client_certificates_are_read_in_all_forms() {
        let read = |text: &str| {
            let text = format!("client = {text}");
            let file = toml::Deserializer::parse(&text).map(|it| settings(&text, it)).unwrap().expect(&text);
            client_paths(file.client.unwrap())
        };
        let (both, other, pair) = (("both.pem", "both.pem"), ("other.pem", "other.pem"), ("a.cert", "a.key"));
        for (text, files) in [
            ("\"both.pem\"", &[both][..]),
            ("[\"both.pem\"]", &[both]),
            ("[\"both.pem\", \"other.pem\"]", &[both, other]),
            ("[[\"both.pem\"]]", &[both]),
            ("[[\"both.pem\", \"\"], [\"a.cert\", \"a.key\"]]", &[both, pair]),
            ("[\"both.pem\", [\"a.cert\", \"a.key\"]]", &[both, pair]),
            ("[[\"a.cert\", \"a.key\"], \"both.pem\"]", &[pair, both]),
            ("[]", &[]),
        ] {
            let files = files.iter().map(|(chain, key)| ((*chain).to_owned(), (*key).to_owned())).collect();
            assert_eq!(read(text), Ok(files), "{text}");
        }
        for text in ["\"\"", "[[]]", "[[\"a\", \"b\", \"c\"]]", "[[\"\", \"a.key\"], \"\"]"] {
            assert!(read(text).unwrap_err().contains("`client`"), "{text}");
        }
        assert!(read(&format!("[{}]", "\"a\", ".repeat(33))).unwrap_err().contains("the limit is 32"));
    }

    /// Scheme, host, port and path of each host in order, `~` before a mirror, `!` for a host that cannot resolve
    /// tags.
    fn chain(registry: &str, text: &str) -> Result<Vec<String>, String> {
        let hosts = parse(text.as_bytes(), registry, Path::new("/nonexistent"))?;
        let show = |host: &Host| {
            let mirror = if host.is_mirror { "~" } else { "" };
            let resolve = if host.can_resolve { "" } else { "!" };
            format!("{mirror}{}{}{resolve}", host.origin, host.base_path)
        };
        Ok(hosts.iter().map(show).collect())
    }

    #[test]
    fn a_registry_configuration_that_others_may_change_is_refused_and_not_passed_over() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("example.com");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("hosts.toml"), "[host.\"https://mirror.example\"]\nca = \"ca.pem\"\n").unwrap();
        std::fs::write(directory.join("ca.pem"), "").unwrap();
        let load = |registry| load(&[root.path().to_owned()], &reference(registry)).map(|found| found.hosts);
        let set_mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for (path, mode) in [
            (root.path().to_owned(), 0o777),
            (root.path().to_owned(), 0o1777),
            (directory.clone(), 0o757),
            (directory.join("hosts.toml"), 0o646),
            (directory.join("ca.pem"), 0o666),
        ] {
            let before = std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            set_mode(&path, mode);
            let error = load("example.com").unwrap_err();
            assert!(error.chain().contains("every user may write to"), "{}", error.chain());
            assert_eq!(error.hint(), Some(format!("chmod go-w {}", path.display()).as_str()));
            set_mode(&path, before);
            assert_eq!(load("example.com").unwrap().len(), 2);
        }
        // Other users could add a directory for a registry that has none.
        set_mode(root.path(), 0o777);
        load("other.example").unwrap_err();
    }

    #[test]
    fn hosts_are_asked_in_the_order_of_the_file() {
        for (registry, text, expected) in [
            ("docker.io", "", vec!["https://registry-1.docker.io/v2"]),
            ("example.com", "", vec!["https://example.com/v2"]),
            ("localhost:5000", "", vec!["http://localhost:5000/v2"]),
            ("[::1]:5000", "", vec!["http://[::1]:5000/v2"]),
            ("example.com", r#"server = "http://10.0.0.1:5000""#, vec!["http://10.0.0.1:5000/v2"]),
            ("example.com", r#"server = "other.com""#, vec!["https://other.com/v2"]),
            (
                "docker.io",
                "server = \"https://registry-1.docker.io\"\n[host.\"https://z.example\"]\n  capabilities = [\"pull\"]\n\
                 [host.\"http://a.example:5000/v2\"]\n",
                vec!["~https://z.example/v2!", "~http://a.example:5000/v2", "https://registry-1.docker.io/v2"],
            ),
            (
                "example.com",
                "[host.\"https://harbor.example/v2/proxy\"]\n  override_path = true\n",
                vec!["~https://harbor.example/v2/proxy", "https://example.com/v2"],
            ),
            (
                "example.com",
                "[host.\"https://harbor.example/proxy/\"]\n",
                vec!["~https://harbor.example/proxy/v2", "https://example.com/v2"],
            ),
            ("example.com", "[host.\"http://example.com\"]", vec!["http://example.com/v2", "https://example.com/v2"]),
            (
                "example.com:5000",
                "[host.\"http://example.com:5000\"]\n[host.\"https://example.com:5001\"]",
                vec!["http://example.com:5000/v2", "~https://example.com:5001/v2", "https://example.com:5000/v2"],
            ),
        ] {
            let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(chain(registry, text), Ok(expected), "{registry}: {text}");
        }
    }

    #[test]
    fn a_bad_file_is_refused_by_name_and_without_its_secrets() {
        for text in [
            "server = 1",
            "server = [",
            "host = 1",
            "[host.\"ftp://x\"]",
            "[host.\"https://x\"]\ncapabilities = [5]",
            "[host.\"https://x\"]\ncapabilities = \"pull\"",
            "[host.\"https://x\"]\nskip_verify = \"yes\"",
            "[host.\"https://x\"]\nca = \"missing.pem\"",
            "[host.\"https://x\"]\ndial_timeout = \"5\"",
            "[host.\"https://x\".header]\nauthorization = \"hunter2\\n\"",
            "[host.\"ftp://user:hunter2@x/?sig=hunter2\"]",
            "[host.\"https://x\"]\nproxy = \"user:hunter2@p\"",
            "proxy = \"http://user:hunter2@p/path\"",
        ] {
            let error = chain("example.com", text).expect_err(text);
            assert!(!error.contains("hunter2"), "{error}");
        }
        for (text, key) in
            [("server = 1", "`server`: line 1"), ("[host.\"https://x\"]\nskip_verify = 1", "`skip_verify`")]
        {
            let error = chain("example.com", text).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn headers_certificates_and_flags_belong_to_their_host() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("example.com_5000_");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("ca.pem"), "CA").unwrap();
        let text = "[host.\"https://m.example\"]\nca = \"ca.pem\"\nskip_verify = true\ndial_timeout = \"1.5s\"\nclient = [[\"ca.pem\", \"ca.pem\"]]\nproxy = \"socks5://u:hunter2@p\"\n\
                    [host.\"https://m.example\".header]\nx-one = \"1\"\nx-two = [\"2\", \"3\"]\n";
        std::fs::write(own.join("hosts.toml"), text).unwrap();
        let hosts =
            load(&[directory.path().join("absent"), directory.path().to_owned()], &reference("example.com:5000"))
                .unwrap()
                .hosts;
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts[0].connection.tls.authorities.len(), 1);
        assert!(hosts[0].connection.tls.skip_verify && hosts[0].connection.tls.identities.len() == 1);
        let proxy = hosts[0].connection.proxy.as_ref().map(ToString::to_string);
        assert_eq!(proxy.as_deref(), Some("socks5://p"));
        assert!(!format!("{hosts:?}").contains("hunter2"), "{hosts:?}");
        assert_eq!(hosts[0].connection.dial_timeout, Some(std::time::Duration::from_millis(1500)));
        assert_eq!(hosts[0].headers.get_all("x-two").iter().count(), 2);
        assert_eq!(hosts[1].connection, ConnectionSettings::default());
        assert!(hosts[1].headers.is_empty());
    }

    #[test]
    fn the_default_directory_serves_those_without_their_own() {
        let directory = tempfile::tempdir().unwrap();
        for (name, server) in [("_default", "https://cache.example"), ("a.example", "https://b.example")] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            std::fs::write(directory.path().join(name).join("hosts.toml"), format!("server = \"{server}\"")).unwrap();
        }
        let host = |registry: &str| {
            let hosts = load(&[directory.path().to_owned()], &reference(registry)).unwrap().hosts;
            (hosts[0].origin.to_string(), hosts[0].is_mirror)
        };
        assert_eq!(host("a.example"), ("https://b.example".to_owned(), false));
        assert_eq!(host("c.example"), ("https://cache.example".to_owned(), true));
    }
}
