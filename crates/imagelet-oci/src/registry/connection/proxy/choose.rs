//! Which proxy a connection uses: the usual variables, read as Go's `httpproxy` reads them.

use std::{fmt, net::IpAddr, sync::Arc};

use base64::Engine as _;
use http::{HeaderValue, uri::Authority};
use imagelet_core::credentials::Secret;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

use crate::registry::connection::origin::Origin;

const URL_BYTES_MAX: usize = 8 << 10;
/// RFC 1929 has one byte for the length of each.
const SOCKS_CREDENTIAL_BYTES_MAX: usize = 255;

/// The proxies of a registry client. Without any, connections are direct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// `HTTPS_PROXY`, else `ALL_PROXY`: the URL of the proxy for `https://` origins, perhaps with user and password.
    pub https: Option<Secret>,
    /// `HTTP_PROXY`, else `ALL_PROXY`: the same for `http://` origins.
    pub http: Option<Secret>,
    /// `NO_PROXY`: hosts, `.suffixes`, addresses and CIDR networks, each perhaps with a port, or `*`.
    pub no_proxy: String,
}

#[derive(Debug, Default)]
pub(crate) struct Proxies {
    https: Option<Result<Arc<Proxy>, BadProxy>>,
    http: Option<Result<Arc<Proxy>, BadProxy>>,
    bypass: Vec<Bypass>,
}

/// The URL of a proxy cannot be used. The message does not repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxy in `{variable}` or `ALL_PROXY` cannot be used: {problem}")]
pub(crate) struct BadProxy {
    variable: &'static str,
    problem: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) kind: ProxyKind,
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) credential: Option<ProxyCredential>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    Http,
    Https,
    /// `socks5://` and `socks5h://`: both leave the lookup of names to the proxy, as in Go.
    Socks,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProxyCredential {
    pub(crate) user: String,
    pub(crate) password: Secret,
}

/// An item of `NO_PROXY`; the port is `None` where it names none.
#[derive(Debug, PartialEq, Eq)]
enum Bypass {
    All,
    Network(IpNet),
    Address(IpAddr, Option<String>),
    /// `.example.com`, and whether `example.com` itself is meant too.
    Domain {
        suffix: String,
        with_parent: bool,
        port: Option<String>,
    },
}

impl Proxies {
    pub(crate) fn new(config: &ProxyConfig) -> Self {
        let read = |variable, url: &Option<Secret>| {
            let url = url.as_ref().filter(|url| !url.expose().is_empty())?;
            Some(Proxy::parse(url.expose()).map(Arc::new).map_err(|problem| BadProxy { variable, problem }))
        };
        let (https, http) = (read("HTTPS_PROXY", &config.https), read("HTTP_PROXY", &config.http));
        Self { https, http, bypass: bypasses(&config.no_proxy) }
    }

    /// The proxy for an origin; `None`: the connection is direct.
    pub(crate) fn choose(&self, origin: &Origin) -> Result<Option<&Arc<Proxy>>, BadProxy> {
        let proxy = if origin.is_https() { &self.https } else { &self.http };
        let Some(proxy) = proxy.as_ref().filter(|_| !origin.is_loopback() && !self.is_bypassed(origin)) else {
            return Ok(None);
        };
        proxy.as_ref().map(Some).map_err(|bad| *bad)
    }

    /// Whether any connection to a proxy is encrypted.
    pub(crate) fn use_tls(&self) -> bool {
        let proxies = [&self.https, &self.http].into_iter().flatten().flatten();
        proxies.into_iter().any(|proxy| proxy.kind == ProxyKind::Https)
    }

    /// Every secret in use, for removal from messages.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let proxies = [&self.https, &self.http].into_iter().flatten().flatten();
        proxies.filter_map(|proxy| proxy.credential.as_ref()).map(|credential| &credential.password)
    }

    fn is_bypassed(&self, origin: &Origin) -> bool {
        let host = without_brackets(origin.host());
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let port = origin.port().to_string();
        let same_port = |wanted: &Option<String>| wanted.as_ref().is_none_or(|wanted| *wanted == port);
        self.bypass.iter().any(|bypass| match bypass {
            Bypass::All => true,
            Bypass::Network(network) => address.is_some_and(|address| network.contains(&address)),
            Bypass::Address(wanted, port) => address == Some(*wanted) && same_port(port),
            Bypass::Domain { suffix, with_parent, port } => {
                let is_in = host.ends_with(suffix.as_str()) || (*with_parent && suffix.strip_prefix('.') == Some(host));
                is_in && same_port(port)
            }
        })
    }
}

impl Proxy {
    /// Reads `[SCHEME://][USER:PASSWORD@]HOST[:PORT]`; the default scheme is `http`.
    fn parse(url: &str) -> Result<Self, &'static str> {
        let url = url.trim();
        if url.len() > URL_BYTES_MAX || url.chars().any(|character| character.is_control() || character == ' ') {
            return Err("it is too long or has forbidden characters");
        }
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (kind, default_port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (ProxyKind::Http, 80),
            "https" => (ProxyKind::Https, 443),
            "socks5" | "socks5h" => (ProxyKind::Socks, 1080),
            _ => return Err("its scheme is not http, https, socks5 or socks5h"),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        let parsed: Authority = place.parse().map_err(|_| "it has no valid host")?;
        let host = without_brackets(parsed.host()).to_ascii_lowercase();
        if host.is_empty() {
            return Err("it has no host");
        }
        let port = match place.get(parsed.host().len()..).unwrap_or_default() {
            "" | ":" => default_port,
            text => text.trim_start_matches(':').parse().map_err(|_| "its port is not a port")?,
        };
        let credential = user.map(ProxyCredential::parse).transpose()?;
        let is_too_long = |credential: &ProxyCredential| {
            credential.user.len().max(credential.password.expose().len()) > SOCKS_CREDENTIAL_BYTES_MAX
        };
        if kind == ProxyKind::Socks && credential.as_ref().is_some_and(is_too_long) {
            return Err("its user or password is longer than 255 bytes");
        }
        Ok(Self { kind, host, port, credential })
    }

    /// The `Proxy-Authorization` header; SOCKS sends user and password on its own.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let ProxyCredential { user, password } = self.credential.as_ref()?;
        let pair = Zeroizing::new(format!("{user}:{}", password.expose()));
        let encoded = Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(pair.as_bytes()));
        let mut value = HeaderValue::try_from(format!("Basic {}", encoded.as_str())).expect("base64 is ASCII");
        value.set_sensitive(true);
        Some(value)
    }

    /// Whether requests in absolute form are sent over the connection to this proxy.
    pub(crate) fn forwards(&self, is_https: bool) -> bool {
        !is_https && self.kind != ProxyKind::Socks
    }
}

/// Without user and password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            ProxyKind::Http => "http",
            ProxyKind::Https => "https",
            ProxyKind::Socks => "socks5",
        };
        write!(f, "{scheme}://{}", host_and_port(&self.host, self.port))
    }
}

impl ProxyCredential {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from);
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let bad = |_| "its user or password is not UTF-8";
        Ok(Self { user: decoded(user).map_err(bad)?, password: Secret::new(decoded(password).map_err(bad)?) })
    }
}

/// With brackets around an IPv6 address.
pub(crate) fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

pub(crate) fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn bypasses(no_proxy: &str) -> Vec<Bypass> {
    let items = no_proxy.split(',').map(|item| item.trim().to_ascii_lowercase());
    let mut bypasses = Vec::new();
    for item in items.filter(|item| !item.is_empty()) {
        if item == "*" {
            return vec![Bypass::All];
        }
        bypasses.extend(Bypass::parse(&item));
    }
    bypasses
}

impl Bypass {
    /// An item without a host is ignored.
    fn parse(item: &str) -> Option<Self> {
        if item.contains('/') {
            return item.parse::<IpNet>().ok().map(Self::Network);
        }
        if let Ok(address) = without_brackets(item).parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical(), None));
        }
        let (host, port) = match item.rsplit_once(':') {
            Some((host, port)) => (without_brackets(host), Some(port.to_owned()).filter(|port| !port.is_empty())),
            None => (item, None),
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical(), port));
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        let with_parent = !host.starts_with('.');
        let suffix = if with_parent { format!(".{host}") } else { host.to_owned() };
        (suffix.len() > 1).then_some(Self::Domain { suffix, with_parent, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::connection::origin::Target;

    fn config(https: &str, http: &str, no_proxy: &str) -> ProxyConfig {
        let secret = |text: &str| (!text.is_empty()).then(|| Secret::new(text));
        ProxyConfig { https: secret(https), http: secret(http), no_proxy: no_proxy.to_owned() }
    }

    fn choice(config: &ProxyConfig, url: &str) -> Result<Option<String>, BadProxy> {
        let origin = Target::parse(url).expect(url).origin;
        Proxies::new(config).choose(&origin).map(|proxy| proxy.map(ToString::to_string))
    }

    #[test]
    fn each_scheme_has_its_proxy_and_loopback_has_none() {
        let both = config("https://tls.example", "plain.example:3128", "");
        let https_only = config("socks5h://[fd00::1]", "", "");
        for (config, url, expected) in [
            (&both, "https://r.example/v2", Some("https://tls.example:443")),
            (&both, "http://r.example:5000/v2", Some("http://plain.example:3128")),
            (&both, "http://localhost:5000", None),
            (&both, "http://127.0.0.9", None),
            (&both, "https://[::1]", None),
            (&https_only, "https://r.example", Some("socks5://[fd00::1]:1080")),
            (&https_only, "http://r.example", None),
            (&ProxyConfig::default(), "https://r.example", None),
        ] {
            assert_eq!(choice(config, url), Ok(expected.map(str::to_owned)), "{url}");
        }
    }

    #[test]
    fn no_proxy_is_read_as_go_reads_it() {
        for (no_proxy, direct, proxied) in [
            ("", &[][..], &["a.example"][..]),
            ("*", &["a.example", "10.0.0.1", "[fd00::1]:5000"], &[]),
            ("b.example,*", &["a.example"], &[]),
            ("example.com", &["example.com", "a.example.com", "EXAMPLE.com:5000"], &["badexample.com", "example.org"]),
            (".example.com", &["a.example.com", "b.a.example.com"], &["example.com", "xexample.com"]),
            ("*.example.com", &["a.example.com"], &["example.com"]),
            (" EXAMPLE.com , b.example ", &["example.com", "b.example"], &["c.example"]),
            ("example.com:5000", &["example.com:5000", "a.example.com:5000"], &["example.com", "example.com:5001"]),
            ("example.com:443", &["example.com"], &["example.com:444"]),
            ("10.0.0.0/8,fd00::/8", &["10.1.2.3:5000", "[fd00::1]", "[::ffff:10.1.1.1]"], &["11.0.0.1", "[fe80::1]"]),
            ("10.0.0.1,[fd00::1]:5000", &["10.0.0.1:7", "[fd00::1]:5000"], &["10.0.0.2", "[fd00::1]"]),
            ("10.0.0.1:5000", &["10.0.0.1:5000"], &["10.0.0.1"]),
            // A network holds addresses, not names; what reads as nothing is ignored.
            ("10.0.0.0/8,10.0.0.0/99,:80,., ,", &["10.0.0.1"], &["ten.example"]),
        ] {
            let config = config("http://p:1", "http://p:1", no_proxy);
            for (hosts, expected) in [(direct, None), (proxied, Some("http://p:1".to_owned()))] {
                for host in hosts {
                    assert_eq!(
                        choice(&config, &format!("https://{host}/")),
                        Ok(expected.clone()),
                        "{no_proxy}: {host}"
                    );
                }
            }
        }
    }

    #[test]
    fn user_and_password_of_a_proxy_are_decoded_and_never_printed() {
        let proxy = Proxy::parse("HTTP://us%3Aer:hunt%40er2@[::1]:3128/x?y").unwrap();
        let credential = proxy.credential.as_ref().unwrap();
        assert_eq!((credential.user.as_str(), credential.password.expose()), ("us:er", "hunt@er2"));
        assert!(!format!("{proxy} {proxy:?} {:?}", proxy.authorization()).contains("hunt"));
        assert_eq!(proxy.to_string(), "http://[::1]:3128");
        let simple = Proxy::parse("user:hunter2@p").unwrap();
        assert_eq!(simple.authorization().unwrap().to_str().unwrap(), "Basic dXNlcjpodW50ZXIy");
        assert_eq!(Proxy::parse("p").unwrap().authorization(), None);
        assert!(!format!("{:?}", config("http://u:hunter2@p", "", "")).contains("hunter2"));
    }

    #[test]
    fn a_bad_proxy_url_is_an_error_of_the_connections_that_would_use_it() {
        for url in [
            "ftp://p",
            "socks4://p",
            "http://",
            "http://user:hunter2@",
            "http://p:port",
            "http://p:99999",
            "http://a b",
            "http://user:hunter2%ff@p",
            &format!("socks5://{}:hunter2@p", "u".repeat(256)),
        ] {
            let config = config(url, "", "direct.example");
            let error = choice(&config, "https://r.example").expect_err(url).to_string();
            assert!(error.contains("`HTTPS_PROXY`") && !error.contains("hunter2"), "{error}");
            for url in ["https://direct.example", "http://r.example"] {
                assert_eq!(choice(&config, url), Ok(None));
            }
        }
    }
}
