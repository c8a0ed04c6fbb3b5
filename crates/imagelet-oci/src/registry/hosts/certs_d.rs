//! containerd's `certs.d/HOST/hosts.toml`.
//!
//! ```text
//! certs.d/HOST_PORT_/   certs.d/HOST:PORT/   certs.d/HOST/   certs.d/_default/    the first that exists
//!     hosts.toml        mirrors in order, and the server that they mirror
//!     *.crt  *.cert+*.key    without hosts.toml: authorities and client certificates for the registry itself
//! ```

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use imagelet_core::{error::RuntimeError, text::GoDuration};
use indexmap::IndexMap;
use serde::Deserialize;

use super::{
    Capabilities, Host, SourceKind, check_folder, complaint, kind_of, parse_toml, pem, read_file, shown, target_at,
    tls_settings, warn_once,
};
use crate::{
    manifest::printable,
    registry::connection::{ConnectionSettings, Identity, Proxy},
};

const HOSTS_MAX: usize = 32;
const DEFAULT_DIRECTORY: &str = "_default";
/// The capabilities that containerd knows. A pull needs the first two.
const CAPABILITIES: [&str; 4] = ["pull", "resolve", "push", "referrers"];
/// Directories in which containers/image looks for the certificates of a host.
const SYSTEM_CERTIFICATES: [&str; 2] = ["/etc/containers/certs.d", "/etc/docker/certs.d"];
const DIRECTORIES_MAX: usize = 1000;
/// Maximum number of client certificates. Each costs a signature check when it is read.
const IDENTITIES_MAX: usize = 32;

/// Checks the folder: its files decide which host receives credentials and which certificates are trusted.
pub(super) fn load(root: &Path, registry: &str, found: &mut Vec<String>) -> Result<Option<Vec<Host>>, RuntimeError> {
    check_folder(root)?;
    let mut directories = directory_names(registry).into_iter().map(|name| root.join(name));
    let Some(directory) = directories.find(|path| path.is_dir()) else { return Ok(None) };
    check_folder(&directory)?;
    let file = directory.join("hosts.toml");
    if file.try_exists().unwrap_or(true) {
        return read_file(&file, found, |text, warnings| parse(text, registry, &directory, warnings)).map(Some);
    }
    let own = Host::own(registry).map_err(|problem| complaint(&directory, &problem))?;
    Ok(Some(vec![with_certificates(own, &directory, found)?]))
}

/// The directory names that match a registry, most exact first.
fn directory_names(registry: &str) -> Vec<String> {
    let with_port = registry.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !registry.ends_with(']'));
    let with_port = with_port.map(|(host, port)| format!("{host}_{port}_"));
    with_port.into_iter().chain([registry.to_owned(), DEFAULT_DIRECTORY.to_owned()]).collect()
}

/// `hosts.toml`, or the table of one host in it.
#[derive(Default, Deserialize)]
#[serde(default, expecting = "a table")]
struct Settings {
    server: String,
    host: IndexMap<String, Settings>,
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

pub(super) fn parse(
    text: &str,
    registry: &str,
    directory: &Path,
    warnings: &mut Vec<String>,
) -> Result<Vec<Host>, String> {
    let mut file: Settings = parse_toml(text, warnings)?;
    let own = Host::own(registry)?;
    let own_place = own.origin.clone();
    if file.host.len() > HOSTS_MAX {
        return Err(format!("it names more than {HOSTS_MAX} hosts"));
    }
    let mut hosts = Vec::new();
    for (url, settings) in std::mem::take(&mut file.host) {
        warnings.extend(unknown_capabilities(&settings, &format!(" of host `{}`", shown(&url))));
        for (key, is_set) in [("server", !settings.server.is_empty()), ("host", !settings.host.is_empty())] {
            warnings.extend(is_set.then(|| format!("`host.{}.{key}` is no key that is read", shown(&url))));
        }
        let host = host_at(&url, &settings).and_then(|host| with_settings(host, settings, directory));
        let host = host.map_err(|problem| format!("host `{}`: {problem}", shown(&url)))?;
        let is_mirror = !host.origin.is_same_place(&own_place);
        hosts.push(Host { is_mirror, names_registry: is_mirror, ..host });
    }
    // In a registry's directory, `server` is the operator's address of the registry and receives the registry's
    // credential. In `_default`, `server` is a shared cache and must not receive the credentials of the registries.
    let is_shared = directory.file_name().is_some_and(|name| name == DEFAULT_DIRECTORY);
    let url = shown(&file.server);
    warnings.extend(unknown_capabilities(&file, ""));
    let server = if file.server.is_empty() { Ok(own) } else { host_at(&file.server, &file) };
    let server = server.and_then(|server| with_settings(server, file, directory));
    let server = server.map_err(|problem| format!("server `{url}`: {problem}"))?;
    let is_mirror = is_shared && !server.origin.is_same_place(&own_place);
    hosts.push(Host { is_mirror, names_registry: is_mirror, ..server });
    Ok(hosts)
}

fn unknown_capabilities(settings: &Settings, place: &str) -> Vec<String> {
    let is_known = |name: &&String| CAPABILITIES.iter().any(|known| name.eq_ignore_ascii_case(known));
    let unknown = settings.capabilities.iter().filter(|name| !is_known(name));
    unknown.map(|name| format!("capability `{}`{place} is unknown and grants nothing", printable(name))).collect()
}

fn host_at(url: &str, settings: &Settings) -> Result<Host, String> {
    let target = target_at(url, |_| true)?;
    let path = target.path().trim_end_matches('/').to_owned();
    let base_path = if settings.override_path || path.ends_with("/v2") { path } else { format!("{path}/v2") };
    Ok(Host::new(target.origin, base_path))
}

fn with_settings(host: Host, settings: Settings, directory: &Path) -> Result<Host, String> {
    // As in containerd, an empty list grants all capabilities. An unknown capability grants nothing.
    let granted = &settings.capabilities;
    let can = |wanted: &str| granted.is_empty() || granted.iter().any(|granted| granted.eq_ignore_ascii_case(wanted));
    let capabilities = Capabilities { pull: can("pull"), resolve: can("resolve") };
    let authorities = settings.ca.map(OneOrMany::list).unwrap_or_default();
    let identities = settings.client.map(client_paths).transpose()?.unwrap_or_default();
    let tls = tls_settings(directory, &authorities, &identities, settings.skip_verify)?;
    // As in containerd, zero means the default.
    let dial_timeout = settings.dial_timeout.filter(|limit| *limit > GoDuration::default()).map(GoDuration::to_std);
    // The message does not repeat the URL, which may contain a password.
    let proxy = settings.proxy.filter(|url| !url.is_empty()).map(|url| Proxy::parse_strict(&url, None).map(Arc::new));
    let proxy = proxy.transpose().map_err(|problem| format!("`proxy`: {problem}"))?;
    let connection = ConnectionSettings { tls, dial_timeout, proxy, ..host.connection };
    Ok(Host { capabilities, connection, headers: headers(settings.header)?, ..host })
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

/// Reads the headers for a host. Errors do not repeat values, because headers may contain secrets.
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

/// As in containers/image, an authority that is a link to a missing file is skipped: packages link to other packages.
fn with_certificates(mut host: Host, folder: &Path, found: &mut Vec<String>) -> Result<Host, RuntimeError> {
    let unusable = |problem: String| complaint(folder, &problem);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let warning = "the folder cannot be read by this user, and its certificates are not used";
            warn_once(folder, vec![warning.to_owned()], found);
            return Ok(host);
        }
        entries => entries.map_err(|error| unusable(error.to_string()))?,
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).take(256).collect();
    paths.sort();
    let tls = &mut host.connection.tls;
    for path in paths {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("crt") if path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) => {
                let warning = format!("`{}` leads to no file and is not used", path.display());
                warn_once(folder, vec![warning], found);
            }
            Some("crt") => tls.authorities.push(pem(&path).map_err(unusable)?),
            Some("cert") if tls.identities.len() < IDENTITIES_MAX => {
                let key = pem(&path.with_extension("key")).map_err(unusable)?;
                tls.identities.push(Identity { chain: pem(&path).map_err(unusable)?, key });
            }
            _ => {}
        }
    }
    Ok(host)
}

/// Adds the certificates of a host in `registries.conf` (containers-certs.d(5)). Of these trees, the first with a
/// directory for the host is used: the configured trees, `certs.d` beside the file, the system's trees.
pub(super) fn add_certificates(
    sources: &[PathBuf],
    host: Host,
    warnings: &mut Vec<String>,
) -> Result<Host, RuntimeError> {
    let trees = sources.iter().filter(|source| kind_of(source) == SourceKind::CertsD).cloned();
    let files = sources.iter().filter(|source| kind_of(source) == SourceKind::RegistriesConf);
    let beside = files.filter_map(|file| Some(file.parent()?.join("certs.d")));
    let names = host.names();
    for root in trees.chain(beside).chain(SYSTEM_CERTIFICATES.map(PathBuf::from)) {
        if let Some(directory) = names.iter().map(|name| root.join(name)).find(|path| path.is_dir()) {
            check_folder(&root)?;
            check_folder(&directory)?;
            return with_certificates(host, &directory, warnings);
        }
    }
    Ok(host)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::hosts::load;

    fn reference(registry: &str) -> imagelet_core::image::Reference {
        format!("{registry}/team/app:v1").parse().expect("a reference")
    }

    fn read(text: &str, registry: &str, directory: &Path) -> (Result<Vec<Host>, String>, Vec<String>) {
        let mut warnings = Vec::new();
        (parse(text, registry, directory, &mut warnings), warnings)
    }

    #[test]
    fn keys_that_are_not_read_are_named() {
        let text = "server = \"https://r.example\"\nskip-verify = true\ncapabilities = [\"pull\"]\n\
                    [host.\"https://user:hunter2@m.example\"]\nskip_verify = true\nrewrite = 1\n\
                    server = \"https://x.example\"\ndial_timeout = \"1s\"\n[hosts]\n";
        let (_, warnings) = read(text, "r.example", Path::new("/nonexistent"));
        let keys = ["skip-verify", "host.https://m.example.rewrite", "hosts", "host.https://m.example.server"];
        assert_eq!(warnings, keys.map(|key| format!("`{key}` is no key that is read")));
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
                let (hosts, warnings) = read(&text, "example.com", Path::new("/nonexistent"));
                let hosts = hosts.expect(&text);
                assert_eq!(
                    (hosts[0].capabilities.pull, hosts[0].capabilities.resolve),
                    (can_pull, can_resolve),
                    "{text}"
                );
                let place = if hosts.len() == 2 { " of host `https://m.example`" } else { "" };
                let warning = unknown.map(|name| format!("capability `{name}`{place} is unknown and grants nothing"));
                assert_eq!(warnings, Vec::from_iter(warning), "{text}");
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
            (file("a.example"), ": `host.https://m.example.skip-verify` is no key that is read"),
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
            let file: Settings = parse_toml(&text, &mut Vec::new()).expect(&text);
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
        let hosts = read(text, registry, Path::new("/nonexistent")).0?;
        let show = |host: &Host| {
            let mirror = if host.is_mirror { "~" } else { "" };
            let resolve = if host.capabilities.resolve { "" } else { "!" };
            format!("{mirror}{}{}{resolve}", host.origin, host.path.base)
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
        for (text, key) in [
            ("server = 1", "`server`: line 1"),
            ("[host.\"https://x\"]\nskip_verify = 1", "`host.https://x.skip_verify`: line 2"),
        ] {
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
