//! The address of a runtime, parsed with the kubelet's rules (`docs/spec/cri.md §1`).

use std::{
    fmt,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::cri::address::{Address, AddressError, AddressPlatform};

/// The kernel's limit of a socket path: the size of `sun_path` without the final NUL.
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The absolute path of a unix socket. It is printed as the text from which it was parsed, or as `unix://PATH`.
///
/// ```
/// use imagelet_runtime::cri::Endpoint;
/// let endpoint: Endpoint = "unix:///run/containerd/containerd.sock".parse()?;
/// assert_eq!(endpoint.path().to_str(), Some("/run/containerd/containerd.sock"));
/// # Ok::<(), imagelet_runtime::cri::EndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    text: String,
    path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("endpoint is required")]
    Missing,
    #[error(transparent)]
    Address(#[from] AddressError),
    /// CRI's clients parse the first part of a relative path as a host and ignore the host.
    #[error("{0:?} does not name the absolute path of a socket\nhint: write unix:///PATH, with three slashes")]
    Relative(String),
    #[error("the socket path `{}` is longer than {SOCKET_PATH_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
}

impl Endpoint {
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, EndpointError> {
        let path = path.into();
        Self::new(format!("unix://{}", path.display()), path)
    }

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

    /// A text without a scheme is a path. `run/foo.sock` and `unix://run/foo.sock` are errors: CRI's own client parses
    /// `run` as a host and ignores the host.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.is_empty() {
            return Err(EndpointError::Missing);
        }
        let address = Address::to_dial(text, AddressPlatform::Unix)?;
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
    use imagelet_vectors::VectorRun;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_endpoint_is_taken_as_the_vectors_say() {
        let is_dialled = |input: &Value| input["os"] == "unix" && input["function"] == "address_and_dialer";
        let mut run = VectorRun::once("cri-endpoint-parse.json", is_dialled);
        while let Some(case) = run.next_case() {
            let found = match case.input["endpoint"].as_str().unwrap().parse::<Endpoint>() {
                Ok(endpoint) => {
                    json!({"address": endpoint.path(), "network": "unix", "error": false, "error_text": null})
                }
                Err(EndpointError::Relative(_)) => json!({"error": true, "error_kind": "relative"}),
                Err(error) => json!({"address": "", "error": true, "error_text": error.to_string()}),
            };
            run.compare(&case, &found);
        }
        run.end();
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
            ("unix:///a#\u{1b}[2J", "control character"),
            ("unix:///a#%zz", "invalid URL escape"),
            ("unix:a#%zz", "invalid URL escape"),
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
