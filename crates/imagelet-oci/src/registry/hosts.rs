//! Reads the hosts that serve a registry's content: containerd's `certs.d/HOST/hosts.toml`, or the registry itself.
//!
//! ```text
//! certs.d/HOST_PORT_/   certs.d/HOST:PORT/   certs.d/HOST/   certs.d/_default/    the first that is there
//!     hosts.toml        mirrors in order, and the server they stand for
//!     *.crt  *.cert+*.key    without hosts.toml: authorities and client certificates for the registry itself
//! ```

use std::{
    fmt,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use imagelet_core::{
    runtime::{RuntimeError, RuntimeErrorKind},
    trusted_files,
};
use toml::{Table, Value};

use super::connection::origin::{Origin, Target};

const FILE_BYTES_MAX: u64 = 1 << 20;
const HOSTS_MAX: usize = 32;
const DEFAULT_DIRECTORY: &str = "_default";
const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// A mirror or a registry with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) origin: Origin,
    /// The path before the repository: `/v2` unless overridden, without a final slash.
    pub(crate) base_path: String,
    /// The request to a mirror names the registry and carries no credential of the registry.
    pub(crate) is_mirror: bool,
    pub(crate) can_pull: bool,
    pub(crate) can_resolve: bool,
    pub(crate) tls: TlsSettings,
    /// Sent to this host alone.
    pub(crate) headers: HeaderMap,
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct TlsSettings {
    /// Added to the system's authorities, in PEM.
    pub(crate) authorities: Vec<Arc<[u8]>>,
    pub(crate) identity: Option<Identity>,
    pub(crate) skip_verify: bool,
}

/// A certificate and its key, in PEM. No `Debug`, so that no log prints the key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) chain: Arc<[u8]>,
    pub(crate) key: Arc<[u8]>,
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("authorities", &self.authorities.len())
            .field("identity", &self.identity.is_some())
            .field("skip_verify", &self.skip_verify)
            .finish()
    }
}

/// The hosts to try for a registry's content, in order; the registry itself is the last. Reads files.
pub(crate) fn load(directories: &[PathBuf], registry: &str) -> Result<Vec<Host>, RuntimeError> {
    for root in directories {
        // These files decide which host receives credentials and which certificates are trusted.
        check_folder(root)?;
        let Some(directory) =
            directory_names(registry).into_iter().map(|name| root.join(name)).find(|path| path.is_dir())
        else {
            continue;
        };
        check_folder(&directory)?;
        let file = directory.join("hosts.toml");
        return match read(&file) {
            Ok(bytes) => parse(&bytes, registry, &directory).map_err(|problem| complaint(&file, &problem)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                certificates(&directory, registry).map_err(|problem| complaint(&directory, &problem))
            }
            Err(error) => Err(complaint(&file, &error.to_string())),
        };
    }
    Ok(vec![own_host(registry).map_err(invalid)?])
}

/// The directory names that match a registry, most exact first.
fn directory_names(registry: &str) -> Vec<String> {
    let mut names = Vec::new();
    if let Some((host, port)) =
        registry.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !registry.ends_with(']'))
    {
        names.push(format!("{host}_{port}_"));
    }
    names.push(registry.to_owned());
    names.push(DEFAULT_DIRECTORY.to_owned());
    names
}

/// The registry without configuration.
fn own_host(registry: &str) -> Result<Host, String> {
    let name = if registry == DOCKER_HUB { DOCKER_HUB_HOST } else { registry };
    let scheme = if Origin::is_loopback_authority(name) { "http" } else { "https" };
    let target = Target::parse(&format!("{scheme}://{name}/v2"))?;
    Ok(Host {
        origin: target.origin,
        base_path: "/v2".to_owned(),
        is_mirror: false,
        can_pull: true,
        can_resolve: true,
        tls: TlsSettings::default(),
        headers: HeaderMap::new(),
    })
}

fn parse(bytes: &[u8], registry: &str, directory: &Path) -> Result<Vec<Host>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let document: Table = text.parse().map_err(|error: toml::de::Error| toml_problem(text, &error))?;
    let own = own_host(registry)?;
    let own_place = own.origin.clone();
    let mut hosts = Vec::new();
    match document.get("host") {
        Some(Value::Table(table)) => {
            if table.len() > HOSTS_MAX {
                return Err(format!("it names more than {HOSTS_MAX} hosts"));
            }
            for (url, settings) in table {
                let settings = settings.as_table().ok_or_else(|| format!("`host.\"{url}\"` is not a table"))?;
                let host =
                    host(url, settings, directory).map_err(|problem| format!("host `{}`: {problem}", shown(url)))?;
                let is_mirror = !host.origin.is_same_place(&own.origin);
                hosts.push(Host { is_mirror, ..host });
            }
        }
        Some(_) => return Err("`host` is not a table".to_owned()),
        None => {}
    }
    // In a registry's own directory, `server` is the operator's address of the registry and receives its credential.
    // In `_default` it is a shared cache and must not receive the credentials of the registries.
    let is_shared = directory.file_name().is_some_and(|name| name == DEFAULT_DIRECTORY);
    let server = match document.get("server") {
        Some(Value::String(server)) if !server.is_empty() => {
            host(server, &document, directory).map_err(|problem| format!("server `{}`: {problem}", shown(server)))?
        }
        Some(Value::String(_)) | None => with_settings(own, &document, directory)?,
        Some(_) => return Err("`server` is not a text".to_owned()),
    };
    let is_mirror = is_shared && !server.origin.is_same_place(&own_place);
    hosts.push(Host { is_mirror, ..server });
    Ok(hosts)
}

fn host(url: &str, settings: &Table, directory: &Path) -> Result<Host, String> {
    let url = if url.contains("://") {
        url.to_owned()
    } else {
        let authority = url.split('/').next().unwrap_or_default();
        let scheme = if Origin::is_loopback_authority(authority) { "http" } else { "https" };
        format!("{scheme}://{url}")
    };
    let target = Target::parse(&url)?;
    let path = target.path_and_query.split('?').next().unwrap_or_default().trim_end_matches('/').to_owned();
    let overrides = flag(settings, "override_path")?;
    let base_path = if overrides || path.ends_with("/v2") { path } else { format!("{path}/v2") };
    let host = Host {
        origin: target.origin,
        base_path,
        is_mirror: false,
        can_pull: true,
        can_resolve: true,
        tls: TlsSettings::default(),
        headers: HeaderMap::new(),
    };
    with_settings(host, settings, directory)
}

fn with_settings(host: Host, settings: &Table, directory: &Path) -> Result<Host, String> {
    let capabilities = match settings.get("capabilities") {
        Some(value) => Some(texts(value).ok_or("`capabilities` is not a list of texts")?),
        None => None,
    };
    for capability in capabilities.iter().flatten() {
        if !["pull", "resolve", "push"].contains(&capability.as_str()) {
            return Err(format!("unknown capability `{}`", shown(capability)));
        }
    }
    let can = |name: &str| capabilities.as_ref().is_none_or(|list| list.iter().any(|capability| capability == name));
    let file = |path: &str| {
        let path = directory.join(path);
        read(&path).map(Arc::<[u8]>::from).map_err(|error| format!("`{}`: {error}", path.display()))
    };
    let mut tls = TlsSettings { skip_verify: flag(settings, "skip_verify")?, ..TlsSettings::default() };
    if let Some(value) = settings.get("ca") {
        let paths = one_or_more(value).ok_or("`ca` is neither a path nor a list of paths")?;
        tls.authorities = paths.iter().map(|path| file(path)).collect::<Result<_, _>>()?;
    }
    if let Some(value) = settings.get("client") {
        let (certificate, key) = client_paths(value).ok_or("`client` is neither a path nor pairs of paths")?;
        tls.identity = Some(Identity { chain: file(&certificate)?, key: file(&key)? });
    }
    let headers = match settings.get("header") {
        Some(Value::Table(table)) => headers(table)?,
        Some(_) => return Err("`header` is not a table".to_owned()),
        None => HeaderMap::new(),
    };
    Ok(Host { can_pull: can("pull"), can_resolve: can("resolve"), tls, headers, ..host })
}

/// The first certificate and key: `"both.pem"`, `["both.pem"]`, or `[["cert.pem", "key.pem"]]`.
fn client_paths(value: &Value) -> Option<(String, String)> {
    match value {
        Value::String(both) => Some((both.clone(), both.clone())),
        Value::Array(list) => match list.first()? {
            Value::String(both) => Some((both.clone(), both.clone())),
            Value::Array(pair) => {
                let pair: Vec<&str> = pair.iter().filter_map(Value::as_str).collect();
                match pair[..] {
                    [certificate, key] if !key.is_empty() => Some((certificate.to_owned(), key.to_owned())),
                    [both] | [both, ""] => Some((both.to_owned(), both.to_owned())),
                    _ => None,
                }
            }
            _ => None,
        },
        _ => None,
    }
}

/// Errors do not repeat values: headers carry secrets.
fn headers(table: &Table) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in table {
        let bad = || format!("header `{}` cannot be sent", shown(name));
        let key = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
        for text in one_or_more(value).ok_or_else(bad)? {
            let mut value = HeaderValue::try_from(text).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.append(key.clone(), value);
        }
    }
    Ok(headers)
}

/// Reads a directory without `hosts.toml`, in Docker's layout.
fn certificates(directory: &Path, registry: &str) -> Result<Vec<Host>, String> {
    let mut host = own_host(registry)?;
    let entries = std::fs::read_dir(directory).map_err(|error| error.to_string())?;
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).take(256).collect();
    paths.sort();
    let bytes =
        |path: &Path| read(path).map(Arc::<[u8]>::from).map_err(|error| format!("`{}`: {error}", path.display()));
    for path in &paths {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("crt") => host.tls.authorities.push(bytes(path)?),
            Some("cert") if host.tls.identity.is_none() => {
                host.tls.identity = Some(Identity { chain: bytes(path)?, key: bytes(&path.with_extension("key"))? });
            }
            _ => {}
        }
    }
    Ok(vec![host])
}

fn flag(settings: &Table, name: &str) -> Result<bool, String> {
    match settings.get(name) {
        None => Ok(false),
        Some(Value::Boolean(value)) => Ok(*value),
        Some(_) => Err(format!("`{name}` is neither true nor false")),
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

fn one_or_more(value: &Value) -> Option<Vec<String>> {
    value.as_str().map(|text| vec![text.to_owned()]).or_else(|| texts(value))
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    trusted_files::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, "larger than 1 MiB"));
    }
    Ok(bytes)
}

/// The parser's complaint with the line number. The line itself may hold a secret.
fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| format!("line {}: ", 1 + before.matches('\n').count())).unwrap_or_default();
    format!("{line}{}", crate::manifest::printable(error.message()))
}

/// A URL for a message, without passwords and signatures.
fn shown(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    let text = match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}{}", &text[..scheme + 3], &text[at + 1..]),
        _ => text.to_owned(),
    };
    crate::manifest::printable(&text)
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

fn invalid(problem: String) -> RuntimeError {
    RuntimeError::new(RuntimeErrorKind::InvalidArgument, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let load = |registry| load(&[root.path().to_owned()], registry);
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
            "[host.\"https://x\"]\ncapabilities = [\"fly\"]",
            "[host.\"https://x\"]\nskip_verify = \"yes\"",
            "[host.\"https://x\"]\nca = \"missing.pem\"",
            "[host.\"https://x\".header]\nauthorization = \"hunter2\\n\"",
            "[host.\"ftp://user:hunter2@x/?sig=hunter2\"]",
        ] {
            let error = chain("example.com", text).expect_err(text);
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn headers_certificates_and_flags_belong_to_their_host() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("example.com_5000_");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("ca.pem"), "CA").unwrap();
        let text = "[host.\"https://m.example\"]\nca = \"ca.pem\"\nskip_verify = true\nclient = [[\"ca.pem\", \"ca.pem\"]]\n\
                    [host.\"https://m.example\".header]\nx-one = \"1\"\nx-two = [\"2\", \"3\"]\n";
        std::fs::write(own.join("hosts.toml"), text).unwrap();
        let hosts = load(&[directory.path().join("absent"), directory.path().to_owned()], "example.com:5000").unwrap();
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts[0].tls.authorities.len(), 1);
        assert!(hosts[0].tls.skip_verify && hosts[0].tls.identity.is_some());
        assert_eq!(hosts[0].headers.get_all("x-two").iter().count(), 2);
        assert_eq!(hosts[1].tls, TlsSettings::default());
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
            let hosts = load(&[directory.path().to_owned()], registry).unwrap();
            (hosts[0].origin.to_string(), hosts[0].is_mirror)
        };
        assert_eq!(host("a.example"), ("https://b.example".to_owned(), false));
        assert_eq!(host("c.example"), ("https://cache.example".to_owned(), true));
    }
}
