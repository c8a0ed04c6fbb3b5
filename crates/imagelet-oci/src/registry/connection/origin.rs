//! A request's target: its origin, to which credentials are bound, and its path.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use http::Uri;
use ipnet::IpNet;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

const URL_BYTES_MAX: usize = 16 << 10;
const NOT_IN_URLS: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`').add(b'{').add(b'|').add(b'}').add(b'^');
/// Networks of this machine, of a site or of a link, and multicast and broadcast addresses.
const INTERNAL: [&str; 13] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "::/127",
    "fc00::/7",
    "fe80::/10",
    "ff00::/8",
];

/// Scheme, host and port. A credential of one origin is never sent to another origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) is_https: bool,
    /// In lower case. An IPv6 address is in brackets.
    host: String,
    pub(crate) port: u16,
}

/// An absolute URL without user, password and fragment.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) origin: Origin,
    pub(crate) path_and_query: String,
}

impl Origin {
    fn scheme(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Host, and port unless it is the scheme's default, for messages.
    pub(crate) fn authority(&self) -> String {
        if self.has_default_port() { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    fn has_default_port(&self) -> bool {
        self.port == default_port(self.is_https)
    }

    pub(crate) fn over_tls(&self) -> Self {
        Self { is_https: true, ..self.clone() }
    }

    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        self.host == other.host && (self.port == other.port || (self.has_default_port() && other.has_default_port()))
    }

    pub(crate) fn is_loopback(&self) -> bool {
        address(&self.host).is_some_and(|address| address.is_loopback())
    }

    pub(crate) fn is_internal(&self) -> bool {
        address(&self.host).is_some_and(|address| {
            INTERNAL.iter().any(|network| network.parse::<IpNet>().expect("a network").contains(&address))
        })
    }
}

/// Whether `from` may direct requests to `to`, by a redirect or by naming its token service. An external host may name
/// an internal origin only if `listed`, from the registry's configuration, contains the origin.
pub(crate) fn may_send_on(from: &Origin, to: &Origin, listed: &[Origin]) -> bool {
    !to.is_internal() || from.is_internal() || listed.contains(to)
}

pub(crate) fn listing_hint(origin: &Origin) -> String {
    format!(
        "if that is meant, list it in the registry's `hosts.toml`: `[host.\"{origin}\"]` with `capabilities = [\"push\"]`"
    )
}

fn default_port(is_https: bool) -> u16 {
    if is_https { 443 } else { 80 }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority())
    }
}

impl Target {
    /// Parses an absolute `http` or `https` URL. The error does not repeat the URL.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let url = plain(url)?;
        let uri = Uri::from_str(&url).map_err(|_| "not a URL".to_owned())?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err("not an http or https URL".to_owned()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or("a URL without a host")?.to_ascii_lowercase();
        let place = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let place = place.rsplit('@').next().unwrap_or_default();
        let port = match place.get(host.len()..).unwrap_or_default() {
            "" | ":" => default_port(is_https),
            text => text.trim_start_matches(':').parse().map_err(|_| "a URL with a bad port")?,
        };
        let path_and_query = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        Ok(Self { origin: Origin { is_https, host, port }, path_and_query })
    }

    pub(crate) fn join(&self, location: &str) -> Result<Self, String> {
        let location = plain(location.trim())?;
        let scheme_end =
            location.find(|character: char| !(character.is_ascii_alphanumeric() || "+-.".contains(character)));
        if scheme_end.is_some_and(|end| end > 0 && location[end..].starts_with(':')) {
            return Self::parse(&location);
        }
        if location.starts_with("//") {
            return Self::parse(&format!("{}:{location}", self.origin.scheme()));
        }
        let path = self.path();
        let joined = match location.as_bytes().first() {
            Some(b'/') => without_dots(&location),
            Some(b'?') => format!("{path}{location}"),
            Some(_) => without_dots(&format!("{}/{location}", path.rsplit_once('/').map_or("", |(base, _)| base))),
            None => return Err("an empty URL".to_owned()),
        };
        Self::parse(&format!("{}{joined}", self.origin))
    }

    pub(crate) fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or_default()
    }

    pub(crate) fn with_query(mut self, query: &str) -> Self {
        self.path_and_query.push(if self.path_and_query.contains('?') { '&' } else { '?' });
        self.path_and_query.push_str(query);
        self
    }

    pub(crate) fn uri(&self) -> Result<Uri, http::Error> {
        Ok(format!("{}{}", self.origin, self.path_and_query).parse::<Uri>()?)
    }
}

/// Omits the query, which may contain a signature.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

/// Removes the fragment, escapes characters that URLs do not allow, rejects control characters and `\`.
fn plain(url: &str) -> Result<String, String> {
    if url.len() > URL_BYTES_MAX {
        return Err("a URL that is too long".to_owned());
    }
    if url.chars().any(char::is_control) || url.contains('\\') {
        return Err("a URL with forbidden characters".to_owned());
    }
    let url = url.split('#').next().unwrap_or_default();
    Ok(utf8_percent_encode(url, NOT_IN_URLS).to_string())
}

fn without_dots(path_and_query: &str) -> String {
    let (path, query) = path_and_query.split_at(path_and_query.find('?').unwrap_or(path_and_query.len()));
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            other => kept.push(other),
        }
    }
    // A path that ends with `.` or `..` is a directory, so it keeps a final slash.
    if path.ends_with("/.") || path.ends_with("/..") {
        kept.push("");
    }
    format!("/{}{query}", kept.join("/"))
}

/// The address of a host that is an IP address or `localhost`. A form that only resolvers accept, such as `127.1` or
/// `0x7f000001`, becomes 0.0.0.0, which is internal but not loopback.
fn address(host: &str) -> Option<IpAddr> {
    let host = host.trim_end_matches('.');
    let odd = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return Some(inner.parse::<Ipv6Addr>().map_or(odd, |address| IpAddr::V6(address).to_canonical()));
    }
    let last = host.rsplit('.').next().unwrap_or_default();
    let is_number = last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
        || (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()));
    match host.parse::<Ipv4Addr>() {
        Ok(address) => Some(IpAddr::V4(address)),
        Err(_) if last == "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        Err(_) => is_number.then_some(odd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        Target::parse(url).expect(url)
    }

    #[test]
    fn a_url_is_an_origin_and_a_path() {
        for (url, origin, path) in [
            ("https://Example.COM", "https://example.com", "/"),
            ("https://example.com:443/a?b=c#d", "https://example.com", "/a?b=c"),
            ("http://example.com:443/", "http://example.com:443", "/"),
            ("https://user:pw@example.com:5000/x", "https://example.com:5000", "/x"),
            ("http://[::1]:5000/x y", "http://[::1]:5000", "/x%20y"),
        ] {
            let target = target(url);
            assert_eq!((target.origin.to_string().as_str(), target.path_and_query.as_str()), (origin, path), "{url}");
            let uri = target.uri().unwrap().to_string();
            assert!(!uri.contains('@'), "{uri}");
        }
        let long = format!("https://a/{}", "x".repeat(20_000));
        for url in
            ["", "/x", "example.com", "file:///etc", "ftp://a", "https://", "https://a:99999/", "http://a\nb", &long]
        {
            assert!(Target::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_message_shows_no_query() {
        assert_eq!(format!("{0} {0:?}", target("https://a/b?sig=x")), "https://a/b Target(https://a/b)");
    }

    #[test]
    fn locations_are_joined_to_where_they_came_from() {
        let base = target("https://a.example:5000/v2/x/blobs/y?z=1");
        for (location, joined) in [
            ("https://b.example/c?d#e", "https://b.example/c?d"),
            ("//b.example/c", "https://b.example/c"),
            ("/c/./d/../e?f=/../g", "https://a.example:5000/c/e?f=/../g"),
            ("c", "https://a.example:5000/v2/x/blobs/c"),
            ("../c/", "https://a.example:5000/v2/x/c/"),
            ("../../../../..", "https://a.example:5000/"),
            ("?c", "https://a.example:5000/v2/x/blobs/y?c"),
            ("/a:b", "https://a.example:5000/a:b"),
        ] {
            let found = base.join(location).expect(location);
            assert_eq!(format!("{}{}", found.origin, found.path_and_query), joined, "{location}");
        }
        for location in ["file:///etc/passwd", "data:x", "", "http://", "/\u{0}"] {
            assert!(base.join(location).is_err(), "{location}");
        }
    }

    #[test]
    fn a_host_outside_sends_requests_to_no_place_inside_that_is_not_listed() {
        let origin = |url: &str| target(url).origin;
        let listed = [origin("http://10.0.0.5:9000")];
        for (from, to, allowed) in [
            ("https://r.example", "https://store.example/x", true),
            ("https://r.example", "http://10.0.0.5:9000/x", true),
            ("https://r.example", "http://10.0.0.5:9001/x", false),
            ("https://r.example", "https://127.0.0.1/x", false),
            ("https://r.example", "http://169.254.169.254/latest", false),
            ("https://r.example", "http://[::1]/x", false),
            ("https://r.example", "http://localhost:5000/x", false),
            ("https://8.8.8.8", "http://192.168.0.1/x", false),
            ("http://10.0.0.1:5000", "http://169.254.169.254/latest", true),
            ("http://127.0.0.1:5000", "http://127.0.0.1:5001/x", true),
            ("http://127.0.0.1:5000", "https://store.example/x", true),
        ] {
            assert_eq!(may_send_on(&origin(from), &origin(to), &listed), allowed, "{from} -> {to}");
        }
    }

    #[test]
    fn places_inside_are_told_from_those_outside() {
        for (host, internal, loopback) in [
            ("127.0.0.1", true, true),
            ("127.9.9.9:5000", true, true),
            ("localhost:5000", true, true),
            ("x.localhost", true, true),
            ("[::1]", true, true),
            ("[::ffff:127.0.0.1]", true, true),
            ("127.1", true, false),
            ("0x7f000001", true, false),
            ("2130706433", true, false),
            ("0.0.0.0", true, false),
            ("10.1.2.3", true, false),
            ("169.254.169.254", true, false),
            ("100.64.0.1", true, false),
            ("[fe80::1]", true, false),
            ("[fd00::1]", true, false),
            ("8.8.8.8", false, false),
            ("[2001:4860:4860::8888]", false, false),
            ("auth.docker.io", false, false),
            ("localhost.example", false, false),
        ] {
            let origin = target(&format!("https://{host}/")).origin;
            assert_eq!((origin.is_internal(), origin.is_loopback()), (internal, loopback), "{host}");
        }
    }
}
