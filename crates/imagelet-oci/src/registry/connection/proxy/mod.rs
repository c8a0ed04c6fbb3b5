//! Chooses the proxy of a connection: by rules for hosts, then by the environment variables as in Go's `httpproxy`.

mod tunnel;
mod url;

use std::{net::IpAddr, sync::Arc};

use imagelet_core::credentials::Secret;
use ipnet::IpNet;
use tokio::sync::watch;

pub(crate) use self::{
    tunnel::{TUNNEL_TIMEOUT, tunnel},
    url::{Proxy, authorization, basic, without_brackets},
};
use super::origin::Origin;
use crate::manifest::printable;

const PATTERNS_MAX: usize = 256;

/// The proxies of a registry client. By default, connections are direct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// The rules for hosts. They override the variables.
    pub rules: ProxyRules,
    /// `HTTPS_PROXY`, else `ALL_PROXY`: the URL of the proxy for `https://` origins. It may contain user and password.
    pub https: Option<Secret>,
    /// `HTTP_PROXY`, else `ALL_PROXY`: the URL of the proxy for `http://` origins. It may contain user and password.
    pub http: Option<Secret>,
    /// `NO_PROXY`: hosts, `.suffixes` and addresses, each with an optional port; CIDR networks; or `*`.
    pub no_proxy: String,
}

/// Proxy rules for hosts; the first rule that matches applies. Clones share the rules.
#[derive(Clone, Debug, Default)]
pub struct ProxyRules(watch::Sender<Arc<[ProxyRule]>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRule {
    hosts: Vec<HostPattern>,
    proxy: Option<Arc<Proxy>>,
}

#[derive(Default)]
pub(crate) struct Proxies {
    rules: ProxyRules,
    https: Option<Result<Arc<Proxy>, String>>,
    http: Option<Result<Arc<Proxy>, String>>,
    bypass: Vec<HostPattern>,
}

impl ProxyRules {
    pub fn new(rules: Vec<ProxyRule>) -> Self {
        Self(watch::Sender::new(rules.into()))
    }

    /// Replaces the rules of all clones. Clients use the new rules for their next request.
    pub fn replace(&self, other: &Self) {
        self.0.send_replace(other.current());
    }

    fn current(&self) -> Arc<[ProxyRule]> {
        Arc::clone(&self.0.borrow())
    }
}

impl PartialEq for ProxyRules {
    fn eq(&self, other: &Self) -> bool {
        self.current() == other.current()
    }
}

impl Eq for ProxyRules {}

impl ProxyRule {
    /// Reads host patterns in the form of `NO_PROXY`, and the URL of their proxy. If `proxy` is empty or `none`,
    /// connections are direct. `password` is the password of the user in the URL.
    ///
    /// # Errors
    /// `hosts` is empty or too long, a pattern or the URL is invalid, or the URL has no user for `password` or already
    /// has a password. The message does not repeat the URL.
    pub fn new(hosts: &[String], proxy: &str, password: Option<&Secret>) -> Result<Self, String> {
        if hosts.is_empty() {
            return Err("it names no hosts".to_owned());
        }
        if hosts.len() > PATTERNS_MAX {
            return Err(format!("it has {} hosts; the limit is {PATTERNS_MAX}", hosts.len()));
        }
        let pattern = |text: &String| {
            let is_url = text.contains("://") || text.contains('@');
            let pattern = HostPattern::parse_strict(text).filter(|_| !is_url);
            // The text before an `@` may be a password.
            let shown = text.rsplit('@').next().unwrap_or_default();
            pattern.ok_or_else(|| format!("`{}` is no host, `.suffix`, address, network or `*`", printable(shown)))
        };
        let hosts = hosts.iter().map(pattern).collect::<Result<_, _>>()?;
        let proxy = match (proxy, password) {
            ("" | "none", None) => None,
            ("" | "none", Some(_)) => return Err("it has a password, and its hosts have no proxy".to_owned()),
            (url, password) => {
                let bad = |problem| format!("its proxy cannot be used: {problem}");
                Some(Arc::new(Proxy::parse_strict(url, password).map_err(bad)?))
            }
        };
        Ok(Self { hosts, proxy })
    }
}

impl Proxies {
    pub(crate) fn new(config: &ProxyConfig) -> Self {
        let read = |variable: &str, url: &Option<Secret>| {
            let url = url.as_ref().filter(|url| !url.expose().is_empty())?;
            let bad = |problem| format!("the proxy in `{variable}` or `ALL_PROXY` cannot be used: {problem}");
            Some(Proxy::parse(url.expose()).map(Arc::new).map_err(bad))
        };
        let (https, http) = (read("HTTPS_PROXY", &config.https), read("HTTP_PROXY", &config.http));
        // An item of `NO_PROXY` that names no host is ignored.
        let bypass = config.no_proxy.split(',').filter_map(HostPattern::parse).collect();
        Self { rules: config.rules.clone(), https, http, bypass }
    }

    pub(crate) fn choose(&self, origin: &Origin) -> Result<Option<Arc<Proxy>>, String> {
        if origin.is_loopback() {
            return Ok(None);
        }
        let matches = |patterns: &[HostPattern]| patterns.iter().any(|pattern| pattern.matches(origin));
        if let Some(rule) = self.rules.current().iter().find(|rule| matches(&rule.hosts)) {
            return Ok(rule.proxy.clone());
        }
        let proxy = if origin.is_https { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !matches(&self.bypass)).cloned().transpose()
    }

    pub(crate) fn secrets(&self) -> Vec<Secret> {
        let rules = self.rules.current();
        let named = rules.iter().filter_map(|rule| rule.proxy.as_ref());
        let proxies = [&self.https, &self.http].into_iter().flatten().flatten().chain(named);
        proxies.filter_map(|proxy| proxy.login.as_ref()).map(|(_, password)| password.clone()).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPattern {
    hosts: Hosts,
    port: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    Network(IpNet),
    /// The subdomains of `suffix`, such as `.example.com`. If `with_parent`, also `example.com` itself.
    Domain {
        suffix: String,
        with_parent: bool,
    },
}

impl HostPattern {
    /// As [`Self::parse`], but rejects a pattern that matches no host.
    fn parse_strict(item: &str) -> Option<Self> {
        let pattern = Self::parse(item)?;
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_host = match &pattern.hosts {
            Hosts::All | Hosts::Network(_) => true,
            Hosts::Domain { suffix, .. } => suffix.bytes().all(is_of_host) && !suffix.contains(".."),
        };
        let is_port = pattern.port.as_ref().is_none_or(|port| port.parse::<u16>().is_ok());
        (is_host && is_port).then_some(pattern)
    }

    /// Reads `HOST`, `.SUFFIX` or an address, each with an optional port; a CIDR network; or `*`.
    fn parse(item: &str) -> Option<Self> {
        let item = item.trim().to_ascii_lowercase();
        let address = |text: &str| Some(Hosts::Network(text.parse::<IpAddr>().ok()?.to_canonical().into()));
        let without_port = match item.as_str() {
            "*" => Some(Hosts::All),
            network if network.contains('/') => Some(Hosts::Network(network.parse().ok()?)),
            host => address(without_brackets(host)),
        };
        if let Some(hosts) = without_port {
            return Some(Self { hosts, port: None });
        }
        let (host, port) = match item.rsplit_once(':') {
            Some((host, port)) => (without_brackets(host), Some(port.to_owned()).filter(|port| !port.is_empty())),
            None => (item.as_str(), None),
        };
        if let Some(hosts) = address(host) {
            return Some(Self { hosts, port });
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        let with_parent = !host.starts_with('.');
        let suffix = if with_parent { format!(".{host}") } else { host.to_owned() };
        (suffix.len() > 1).then_some(Self { hosts: Hosts::Domain { suffix, with_parent }, port })
    }

    fn matches(&self, origin: &Origin) -> bool {
        let host = without_brackets(origin.host());
        let is_host = match &self.hosts {
            Hosts::All => true,
            Hosts::Network(network) => {
                host.parse::<IpAddr>().is_ok_and(|address| network.contains(&address.to_canonical()))
            }
            Hosts::Domain { suffix, with_parent } => {
                host.ends_with(suffix.as_str()) || (*with_parent && suffix.strip_prefix('.') == Some(host))
            }
        };
        is_host && self.port.as_ref().is_none_or(|port| *port == origin.port.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::connection::origin::Target;

    fn config(https: &str, http: &str, no_proxy: &str) -> ProxyConfig {
        let secret = |text: &str| (!text.is_empty()).then(|| Secret::new(text));
        let no_proxy = no_proxy.to_owned();
        ProxyConfig { https: secret(https), http: secret(http), no_proxy, rules: ProxyRules::default() }
    }

    fn choice(config: &ProxyConfig, url: &str) -> Result<Option<String>, String> {
        let origin = Target::parse(url).expect(url).origin;
        Proxies::new(config).choose(&origin).map(|proxy| proxy.map(|proxy| proxy.to_string()))
    }

    #[test]
    fn each_scheme_has_its_proxy_and_loopback_has_none() {
        let both = config("https://tls.example", "plain.example:3128", "");
        let https_only = config("socks5h://[fd00::1]", "", "");
        for (config, url, expected) in [
            (&both, "https://r.example/v2", Some("https://tls.example")),
            (&both, "http://r.example:5000/v2", Some("http://plain.example:3128")),
            (&both, "http://localhost:5000", None),
            (&both, "http://127.0.0.9", None),
            (&both, "https://[::1]", None),
            (&https_only, "https://r.example", Some("socks5h://[fd00::1]")),
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
            "http://user:12/hunter2@p",
            "http://user:12?hunter2@p",
            "http://user:12#hunter2@p",
            "http://user: hunter2@p",
            &format!("socks5://{}:hunter2@p", "u".repeat(256)),
        ] {
            let config = config(url, "", "direct.example");
            let error = choice(&config, "https://r.example").expect_err(url);
            assert!(error.contains("`HTTPS_PROXY`") && !error.contains("hunter2"), "{error}");
            for url in ["https://direct.example", "http://r.example"] {
                assert_eq!(choice(&config, url), Ok(None));
            }
        }
    }

    #[test]
    fn rules_come_before_the_environment_in_their_order_and_can_be_replaced() {
        let rule = |hosts: &[&str], proxy: &str| {
            ProxyRule::new(&hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>(), proxy, None).unwrap()
        };
        let environment = config("http://env:1", "http://env:1", "direct.example");
        let rules = ProxyRules::new(vec![
            rule(&["a.corp.example"], "none"),
            rule(&[".corp.example", "direct.example"], "socks5://u:hunter2@inner:1"),
            rule(&["10.0.0.0/8", "b.example:5000"], ""),
        ]);
        let config = ProxyConfig { rules: rules.clone(), ..environment };
        let proxies = Proxies::new(&config);
        let choice = |url: &str| {
            let proxy = proxies.choose(&Target::parse(url).unwrap().origin).unwrap();
            proxy.map(|proxy| proxy.to_string())
        };
        for (url, expected) in [
            ("https://a.corp.example", None),
            ("https://b.corp.example", Some("socks5://inner:1")),
            ("http://direct.example", Some("socks5://inner:1")),
            ("https://10.1.2.3", None),
            ("https://b.example:5000", None),
            ("https://b.example", Some("http://env:1")),
            ("http://localhost", None),
        ] {
            assert_eq!(choice(url).as_deref(), expected, "{url}");
        }
        assert!(!format!("{config:?}").contains("hunter2"));
        assert_eq!(proxies.secrets().len(), 1);
        rules.replace(&ProxyRules::new(vec![rule(&["*"], "http://all:1")]));
        assert_eq!(choice("https://a.corp.example").as_deref(), Some("http://all:1"));
        assert_eq!(choice("http://localhost"), None);
    }

    #[test]
    fn a_rule_that_does_not_read_names_its_part_and_no_secret() {
        let hosts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for (patterns, proxy, words) in [
            (hosts(&[]), "none", "names no hosts"),
            (hosts(&["a.example", "10.0.0.0/99"]), "none", "`10.0.0.0/99` is no host"),
            (hosts(&["https://a.example"]), "none", "`https://a.example` is no host"),
            (hosts(&["b.example:50x0"]), "none", "`b.example:50x0` is no host"),
            (hosts(&["10.0.0.1:70000"]), "none", "`10.0.0.1:70000` is no host"),
            (hosts(&["10.0.0.0/8:5000"]), "none", "`10.0.0.0/8:5000` is no host"),
            (hosts(&["*:5000"]), "none", "`*:5000` is no host"),
            (hosts(&["*corp.example"]), "none", "`*corp.example` is no host"),
            (hosts(&["exa mple"]), "none", "`exa mple` is no host"),
            (hosts(&["a..example"]), "none", "`a..example` is no host"),
            (hosts(&["a.example"]), "user:hunter2@p", "no scheme"),
            (hosts(&["a.example"]), "ftp://user:hunter2@p", "scheme is not"),
        ] {
            let error = ProxyRule::new(&patterns, proxy, None).unwrap_err();
            assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
        }
        ProxyRule::new(&vec!["a.example".to_owned(); PATTERNS_MAX + 1], "none", None).unwrap_err();
        for (proxy, password, words) in [
            ("none", "hunter2", "have no proxy"),
            ("http://p", "hunter2", "names no user"),
            ("http://u:other@p", "hunter2", "has a password"),
            ("socks5://u@p", &"hunter2".repeat(50), "longer than 255 bytes"),
        ] {
            let rule = ProxyRule::new(&hosts(&["a.example"]), proxy, Some(&Secret::new(password)));
            let error = rule.unwrap_err();
            assert!(error.contains(words) && !error.contains("hunter2") && !error.contains("other"), "{error}");
        }
        let password = Secret::new("hunt%40er2");
        let rule = ProxyRule::new(&hosts(&["a.example"]), "http://us%3Aer@p", Some(&password)).unwrap();
        assert!(!format!("{rule:?}").contains("hunt"));
        let proxies = Proxies::new(&ProxyConfig { rules: ProxyRules::new(vec![rule]), ..ProxyConfig::default() });
        assert_eq!(
            proxies.secrets(),
            [Secret::new("hunt%40er2")],
            "a file has the password itself, not an encoded one"
        );
        let good = ["*", "*.a.example", ".a.example", "a_b.example:5000", "10.0.0.0/8", "[fd00::1]:5000", "a.example."];
        ProxyRule::new(&hosts(&good), "none", None).unwrap();
    }
}
