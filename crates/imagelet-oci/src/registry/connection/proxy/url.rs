//! A proxy from its URL: the address, the protocol, and the credential.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderValue, Uri, header::InvalidHeaderValue};
use hyper_util::client::proxy::matcher::Matcher;
use imagelet_core::credentials::Secret;
use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

/// Maximum bytes of a user or password for SOCKS, because RFC 1929 stores each length in one byte.
const SOCKS_CREDENTIAL_BYTES_MAX: usize = 255;

/// A proxy, displayed without user and password.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proxy {
    /// Only scheme, host and port.
    uri: Uri,
    /// The `Proxy-Authorization` header. `None` for SOCKS, where the login is sent in the protocol itself.
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) login: Option<(String, Secret)>,
}

impl Proxy {
    /// Reads `[SCHEME://][USER:PASSWORD@]HOST[:PORT]`; the default is `http`. The error quotes no part of the URL.
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.trim().split_once("://").unwrap_or(("http", url.trim()));
        match rest.rsplit_once('@') {
            Some((login, place)) => Self::new(scheme, Some(read_login(login)?), place),
            None => Self::new(scheme, None, rest),
        }
    }

    fn new(scheme: &str, login: Option<(String, Secret)>, place: &str) -> Result<Self, &'static str> {
        let scheme = scheme.to_ascii_lowercase();
        if !["http", "https", "socks5", "socks5h"].contains(&scheme.as_str()) {
            return Err("its scheme is not http, https, socks5 or socks5h");
        }
        // The URI is read without the login: the matcher would end the login at the first `@`, and keep a copy.
        let matcher = Matcher::builder().all(format!("{scheme}://{place}")).build();
        let found = matcher.intercept(&Uri::from_static("https://registry.example/"));
        let uri = found.ok_or("it is no URL of a proxy")?.uri().clone();
        let port = uri.authority().map_or("", |authority| authority.as_str()).rsplit_once(':');
        if uri.port_u16().is_none() && port.is_some_and(|(_, port)| !port.is_empty() && !port.ends_with(']')) {
            return Err("its port is not a port");
        }
        let mut proxy = Self { uri, authorization: None, login };
        if let Some((user, password)) = &proxy.login {
            if !proxy.is_socks() {
                proxy.authorization = authorization("Basic", &basic(user, password)).ok();
            } else if user.len().max(password.expose().len()) > SOCKS_CREDENTIAL_BYTES_MAX {
                return Err("its user or password is longer than 255 bytes");
            }
        }
        Ok(proxy)
    }

    /// Reads a URL in a configuration file, which has a scheme and no path. `password` is for the user in the URL.
    pub(crate) fn parse_strict(url: &str, password: Option<&Secret>) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme, such as `http://`")?;
        if rest.find(['/', '?', '#']).is_some_and(|end| &rest[end..] != "/") {
            return Err("it has a path, query or fragment");
        }
        let proxy = Self::parse(url)?;
        let Some(password) = password else { return Ok(proxy) };
        let (_, place) = rest.rsplit_once('@').unwrap_or_default();
        match proxy.login {
            Some((_, own)) if !own.expose().is_empty() => Err("its URL has a password, too"),
            Some((user, _)) if !user.is_empty() => Self::new(scheme, Some((user, password.clone())), place),
            _ => Err("its URL names no user for the password"),
        }
    }

    pub(crate) fn host(&self) -> &str {
        without_brackets(self.uri.host().unwrap_or_default())
    }

    pub(crate) fn port(&self) -> u16 {
        let default = if self.is_socks() {
            1080
        } else if self.is_encrypted() {
            443
        } else {
            80
        };
        self.uri.port_u16().unwrap_or(default)
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// Whether the scheme is `socks5` or `socks5h`. As in Go, the proxy looks up host names with both schemes.
    pub(crate) fn is_socks(&self) -> bool {
        self.uri.scheme_str().is_some_and(|scheme| scheme.starts_with("socks"))
    }

    /// Whether requests to a registry (HTTPS if `is_https`) go to the proxy in absolute form, without a tunnel.
    pub(crate) fn forwards(&self, is_https: bool) -> bool {
        !is_https && !self.is_socks()
    }
}

fn read_login(text: &str) -> Result<(String, Secret), &'static str> {
    // At one of these characters, a URL parser may end the host and read the rest of the password as a path.
    if text.contains(|character: char| character.is_control() || [' ', '/', '?', '#'].contains(&character)) {
        return Err("its user or password has a character that must be percent-encoded");
    }
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let decoded = |text| percent_decode_str(text).decode_utf8().map_err(|_| "its user or password is not UTF-8");
    Ok((decoded(user)?.into_owned(), Secret::new(decoded(password)?)))
}

pub(crate) fn basic(user: &str, password: &Secret) -> Secret {
    let pair = Zeroizing::new(format!("{user}:{}", password.expose()));
    Secret::new(BASE64_STANDARD.encode(pair.as_bytes()))
}

/// A header value with a credential, marked as sensitive.
pub(crate) fn authorization(scheme: &str, secret: &Secret) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(&Zeroizing::new(format!("{scheme} {}", secret.expose())))?;
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri.to_string().trim_end_matches('/'))
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
        let (user, password) = proxy.login.as_ref().unwrap();
        assert_eq!((user.as_str(), password.expose()), ("us:er", "hunt@er2"));
        assert!(!format!("{proxy} {proxy:?}").contains("hunt"));
        assert_eq!(proxy.to_string(), "http://[::1]:3128");
        let simple = Proxy::parse("user:hunter2@p").unwrap();
        assert_eq!(simple.authorization.unwrap().to_str().unwrap(), "Basic dXNlcjpodW50ZXIy");
        assert_eq!(Proxy::parse("p").unwrap().authorization, None);
    }

    #[test]
    fn a_login_ends_at_the_last_at_sign_and_is_printed_nowhere() {
        for (login, user, password, header) in [
            ("user:p@hunter2", "user", "p@hunter2", "Basic dXNlcjpwQGh1bnRlcjI="),
            ("user:hunter2@%40:", "user", "hunter2@@:", "Basic dXNlcjpodW50ZXIyQEA6"),
            (r#"u^r:hunter2{}|<>\"`ä"#, "u^r", r#"hunter2{}|<>\"`ä"#, "Basic dV5yOmh1bnRlcjJ7fXw8PlwiYMOk"),
            ("user", "user", "", "Basic dXNlcjo="),
        ] {
            for scheme in ["http", "socks5"] {
                let proxy = Proxy::parse(&format!("{scheme}://{login}@proxy:3128")).unwrap();
                let (read_user, read_password) = proxy.login.as_ref().unwrap();
                assert_eq!((read_user.as_str(), read_password.expose()), (user, password));
                let sent = proxy.authorization.as_ref().map(|value| value.to_str().unwrap());
                assert_eq!(sent, (scheme == "http").then_some(header), "{login}");
                assert_eq!(proxy.to_string(), format!("{scheme}://proxy:3128"));
                assert!(!format!("{proxy:?}").contains("hunter2"), "{proxy:?}");
            }
        }
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
            let read = Proxy::parse_strict(url, None);
            assert_eq!(read.is_ok(), is_good, "{url}");
            assert!(read.err().is_none_or(|problem| !problem.contains("hunter2")), "{url}");
        }
    }
}
