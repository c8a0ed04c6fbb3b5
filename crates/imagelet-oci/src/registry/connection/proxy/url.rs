//! One proxy, as its URL says: where it is, what it speaks, and the credential for it.

use std::fmt;

use base64::Engine as _;
use http::{HeaderValue, uri::Authority};
use imagelet_core::credentials::Secret;
use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

const URL_BYTES_MAX: usize = 8 << 10;
/// RFC 1929 has one byte for the length of each.
const SOCKS_CREDENTIAL_BYTES_MAX: usize = 255;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proxy {
    pub(crate) kind: ProxyKind,
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) credential: Option<ProxyCredential>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProxyKind {
    Http,
    Https,
    /// `socks5://` and `socks5h://`: both leave the lookup of names to the proxy, as in Go.
    Socks,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProxyCredential {
    pub(crate) user: String,
    pub(crate) password: Secret,
}

impl Proxy {
    /// Reads `[SCHEME://][USER:PASSWORD@]HOST[:PORT]`; the default scheme is `http`.
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
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
        let proxy = Self { kind, host, port, credential };
        proxy.check_credential()?;
        Ok(proxy)
    }

    fn check_credential(&self) -> Result<(), &'static str> {
        let is_too_long = |credential: &ProxyCredential| {
            credential.user.len().max(credential.password.expose().len()) > SOCKS_CREDENTIAL_BYTES_MAX
        };
        if self.kind == ProxyKind::Socks && self.credential.as_ref().is_some_and(is_too_long) {
            return Err("its user or password is longer than 255 bytes");
        }
        Ok(())
    }

    /// Sets the password of the user that the URL names.
    pub(crate) fn set_password(&mut self, password: Secret) -> Result<(), &'static str> {
        match &mut self.credential {
            Some(credential) if !credential.password.expose().is_empty() => return Err("the URL has a password, too"),
            Some(credential) if !credential.user.is_empty() => credential.password = password,
            _ => return Err("the URL names no user"),
        }
        self.check_credential()
    }

    /// Reads the URL in a file: the scheme is written, and nothing follows the host.
    pub(crate) fn parse_strict(url: &str) -> Result<Self, &'static str> {
        let (_, rest) = url.split_once("://").ok_or("it has no scheme, such as `http://`")?;
        if rest.find(['/', '?', '#']).is_some_and(|end| &rest[end..] != "/") {
            return Err("it has a path, query or fragment");
        }
        Self::parse(url)
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
        let Self { host, port, .. } = self;
        // An IPv6 address has brackets.
        if host.contains(':') { write!(f, "{scheme}://[{host}]:{port}") } else { write!(f, "{scheme}://{host}:{port}") }
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

pub(crate) fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn a_url_in_a_file_has_a_scheme_and_ends_with_the_host() {
        for (url, is_good) in [
            ("http://p:3128", true),
            ("https://user:hunter2@p/", true),
            ("socks5h://[::1]", true),
            ("p:3128", false),
            ("http://p/x", false),
            ("http://p?hunter2", false),
            ("http://p#x", false),
            ("ftp://p", false),
        ] {
            let read = Proxy::parse_strict(url);
            assert_eq!(read.is_ok(), is_good, "{url}");
            assert!(read.err().is_none_or(|problem| !problem.contains("hunter2")), "{url}");
        }
    }
}
