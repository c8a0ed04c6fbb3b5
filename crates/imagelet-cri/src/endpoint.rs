//! Where a runtime listens: reads `unix:///run/containerd/containerd.sock` as the kubelet does (`spec/cri.md §1`).

use std::{
    fmt,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::address::{Address, AddressError, Platform};

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
    /// It is not how a socket is written.
    #[error(transparent)]
    Address(#[from] AddressError),
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
        let address = Address::to_dial(text, Platform::Unix)?;
        if address.host.is_empty() {
            Self::new(text.to_owned(), address.address.into())
        } else {
            Err(EndpointError::Relative(text.to_owned()))
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::testing::vectors;

    use super::*;

    #[test]
    fn an_endpoint_is_taken_as_the_vectors_say_unless_a_part_of_its_path_would_be_lost() {
        let (mut taken, mut relative) = (0, 0);
        for case in vectors("cri-endpoint-parse.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            if (&input["os"], &input["function"]) != (&"unix".into(), &"address_and_dialer".into()) {
                continue;
            }
            let text = input["endpoint"].as_str().unwrap();
            match text.parse::<Endpoint>() {
                Ok(endpoint) => {
                    assert_eq!(endpoint.path().to_str(), expected["address"].as_str(), "{text}");
                    taken += 1;
                }
                Err(EndpointError::Relative(_)) => {
                    assert!(case["name"].as_str().unwrap().ends_with("(quirk)"), "{text}");
                    relative += 1;
                }
                Err(error) => assert_eq!(Some(error.to_string().as_str()), expected["error_text"].as_str(), "{text}"),
            }
        }
        assert_eq!((taken, relative), (3, 2));
    }

    #[test]
    fn an_endpoint_that_cannot_be_dialled_says_why() {
        for (text, part) in [
            ("", "endpoint is required"),
            ("run/x.sock", "three slashes"),
            ("unix://run/x.sock", "three slashes"),
            ("unix:run/x.sock", "three slashes"),
            ("unix://", "three slashes"),
            (":x", "invalid port \":x\" after host"),
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
