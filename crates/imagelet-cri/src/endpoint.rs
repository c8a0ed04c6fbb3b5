//! Where a runtime listens: reads `unix:///run/containerd/containerd.sock` as the kubelet does (`spec/cri.md §1`).

use std::{
    fmt,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

/// The longest path the kernel takes for a socket: `sun_path` less its final NUL.
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The absolute path of a unix socket. Prints as the URL it was given as, or as `unix://PATH`.
///
/// ```
/// use imagelet_cri::Endpoint;
/// let endpoint: Endpoint = "unix:///run/containerd/containerd.sock".parse()?;
/// assert_eq!(endpoint.path().to_str(), Some("/run/containerd/containerd.sock"));
/// # Ok::<(), imagelet_cri::EndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    text: String,
    path: PathBuf,
}

/// Why a text is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The text is empty.
    #[error("endpoint is required")]
    Missing,
    /// The text has no scheme.
    #[error("using {0:?} as endpoint is deprecated, please consider using full url format")]
    Deprecated(String),
    /// A scheme nobody knows here.
    #[error("protocol {0:?} not supported")]
    Protocol(String),
    /// A scheme the interface knows, but not on this system.
    #[error("only support unix socket endpoint")]
    NotUnix,
    /// Not a URL.
    #[error("parse {text:?}: {reason}")]
    Malformed {
        /// The text.
        text: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A relative path, which would lose its first part.
    #[error("{0:?} does not name the absolute path of a socket\nhint: write unix:///PATH, with three slashes")]
    Relative(String),
    /// Longer than the kernel takes.
    #[error("the socket path `{}` is longer than {SOCKET_PATH_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
}

impl Endpoint {
    /// The endpoint of a socket path.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, EndpointError> {
        let path = path.into();
        Self::new(format!("unix://{}", path.display()), path)
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn new(text: String, path: PathBuf) -> Result<Self, EndpointError> {
        if !path.is_absolute() {
            return Err(EndpointError::Relative(text));
        }
        if path.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX {
            return Err(EndpointError::TooLong(path));
        }
        Ok(Self { text, path })
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// A text without a scheme is taken as a path.
    ///
    /// What the reference client reads as a host and drops, `run/foo.sock` or `unix://run/foo.sock`, is refused.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.is_empty() {
            return Err(EndpointError::Missing);
        }
        let with_scheme;
        let url = match Address::parse(text) {
            Err(EndpointError::Deprecated(_)) => {
                with_scheme = format!("unix://{text}");
                Address::parse(&with_scheme)?
            }
            parsed => parsed?,
        };
        match url {
            Address::Unix { host, path } if host.is_empty() => Self::new(text.to_owned(), path.into()),
            Address::Unix { .. } => Err(EndpointError::Relative(text.to_owned())),
            Address::Tcp(_) => Err(EndpointError::NotUnix),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What the interface's own parser makes of a text.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    Unix { host: String, path: String },
    Tcp(String),
}

impl Address {
    fn parse(text: &str) -> Result<Self, EndpointError> {
        let malformed = |reason| EndpointError::Malformed { text: text.to_owned(), reason };
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(malformed("invalid control character in URL"));
        }
        let whole = text.split_once('#').map_or(text, |(whole, _)| whole);
        let (scheme, rest) = split_scheme(whole).ok_or_else(|| malformed("missing protocol scheme"))?;
        let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash)),
            // Behind a scheme, a rest without a slash is opaque and has no path.
            None if rest.starts_with('/') => ("", rest),
            None => ("", ""),
        };
        match scheme.as_str() {
            "" if rest.split('/').next().is_some_and(|segment| segment.contains(':')) => {
                Err(malformed("first path segment in URL cannot contain colon"))
            }
            "" => Err(EndpointError::Deprecated(text.to_owned())),
            "unix" => {
                let path = percent_decoded(path).ok_or_else(|| malformed("invalid URL escape"))?;
                Ok(Self::Unix { host: host.to_owned(), path })
            }
            "tcp" => Ok(Self::Tcp(host.to_owned())),
            other => Err(EndpointError::Protocol(other.to_owned())),
        }
    }
}

/// The scheme in lower case and what follows its colon; an empty scheme where there is none. `None`: a lone colon.
fn split_scheme(text: &str) -> Option<(String, &str)> {
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if position > 0 => {}
            b':' if position == 0 => return None,
            b':' => return Some((text[..position].to_ascii_lowercase(), &text[position + 1..])),
            _ => break,
        }
    }
    Some((String::new(), text))
}

fn percent_decoded(path: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let high = char::from(bytes.next()?).to_digit(16)?;
        let low = char::from(bytes.next()?).to_digit(16)?;
        decoded.push(u8::try_from(high << 4 | low).ok()?);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use imagelet_core::testing::vectors;

    use super::*;

    #[test]
    fn endpoints_parse_as_the_vectors_say() {
        for case in vectors("cri-endpoint-parse.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            if input["os"] == "windows" || input["function"] != "parse_endpoint" {
                continue;
            }
            let text = input["endpoint"].as_str().unwrap();
            let wanted = |key: &str| expected[key].as_str().unwrap_or_default().to_owned();
            match Address::parse(text) {
                Ok(Address::Unix { path, .. }) => {
                    assert_eq!(("unix".into(), path), (wanted("protocol"), wanted("address")));
                }
                Ok(Address::Tcp(host)) => assert_eq!(("tcp".into(), host), (wanted("protocol"), wanted("address"))),
                Err(error) => assert_eq!(error.to_string(), wanted("error_text"), "{text}"),
            }
        }
    }

    #[test]
    fn endpoints_dial_as_the_vectors_say_less_the_quirks() {
        for case in vectors("cri-endpoint-parse.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            if input["os"] != "unix" || input["function"] != "address_and_dialer" {
                continue;
            }
            let text = input["endpoint"].as_str().unwrap();
            let quirk = case["name"].as_str().unwrap().contains("quirk");
            match text.parse::<Endpoint>() {
                Ok(endpoint) => {
                    assert_eq!(endpoint.path().to_str(), expected["address"].as_str(), "{text}");
                    assert!(!quirk, "{text}");
                }
                Err(EndpointError::Relative(_)) => assert!(quirk, "{text}"),
                Err(error) => assert_eq!(Some(error.to_string().as_str()), expected["error_text"].as_str(), "{text}"),
            }
        }
    }

    #[test]
    fn an_endpoint_that_cannot_be_dialled_says_why() {
        for (text, part) in [
            ("", "endpoint is required"),
            ("unix://run/x.sock", "three slashes"),
            ("unix:run/x.sock", "three slashes"),
            ("unix://", "three slashes"),
            (":x", "missing protocol scheme"),
            ("1:x", "first path segment"),
            ("unix:///a%zz", "invalid URL escape"),
            ("unix:///a\nb", "control character"),
            ("npipe:////./pipe/x", "protocol \"npipe\" not supported"),
            (&format!("/{}", "x".repeat(107)), "longer than 107 bytes"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!("unix:///a%20b".parse::<Endpoint>().unwrap().path(), Path::new("/a b"));
        assert_eq!(Endpoint::at("/run/x.sock").unwrap().to_string(), "unix:///run/x.sock");
    }
}
