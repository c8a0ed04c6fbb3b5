//! Parses an endpoint with the rules of CRI's own clients (`docs/spec/cri.md §1.1`, §1.2), for Unix and Windows nodes.
//!
//! [`crate::cri::Endpoint`] decides which addresses imagelet accepts for its own sockets.

use std::borrow::Cow;

use imagelet_core::text::{GoUrl, quoted};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressPlatform {
    /// On Unix nodes, a runtime listens on a socket with a path (`unix://`).
    Unix,
    /// On Windows nodes, a runtime listens on a named pipe (`npipe://`) or on TCP.
    Windows,
}

/// The parts of an endpoint, as CRI's parser returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `unix`: a socket with a path. `tcp`: a host and a port. `npipe`: a named pipe of Windows.
    pub protocol: &'static str,
    pub address: String,
    /// The host of a Unix endpoint, such as `foo` in `unix://foo/bar`. CRI's clients ignore this user error.
    pub host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AddressError {
    message: String,
    /// The scheme of the text. It is empty if the text has no readable scheme.
    pub protocol: String,
}

fn refused(message: String, protocol: &str) -> AddressError {
    AddressError { message, protocol: protocol.to_owned() }
}

impl Address {
    /// Parses a text with a scheme.
    ///
    /// # Errors
    /// If the text is no URL, or its scheme is absent or unknown.
    pub fn parse(text: &str, platform: AddressPlatform) -> Result<Self, AddressError> {
        let (text, using) = match platform {
            AddressPlatform::Unix => (Cow::from(text), "using"),
            AddressPlatform::Windows => (Cow::from(text.replace('\\', "/")), "Using"),
        };
        let quoted_text = quoted(&text);
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            // Endpoints are printed unchanged, so control characters are rejected, which Go accepts in a fragment.
            return Err(refused(format!("parse {quoted_text}: net/url: invalid control character in URL"), ""));
        }
        let parsed = GoUrl::parse(&text).and_then(|GoUrl { scheme, host, path }| {
            let path = String::from_utf8(path).map_err(|_| "the path is not text".to_owned())?;
            Ok((scheme, host, path))
        });
        let (scheme, host, path) = parsed.map_err(|reason| refused(format!("parse {quoted_text}: {reason}"), ""))?;
        let reached = |protocol, address| Ok(Self { protocol, address, host: String::new() });
        match (scheme.as_str(), platform) {
            ("", _) => Err(refused(
                format!("{using} {quoted_text} as endpoint is deprecated, please consider using full url format"),
                "",
            )),
            ("tcp", _) => reached("tcp", host),
            ("unix", AddressPlatform::Unix) => Ok(Self { protocol: "unix", address: path, host }),
            ("npipe", AddressPlatform::Windows) if path.starts_with("//./pipe") => reached("npipe", path),
            ("npipe", AddressPlatform::Windows) => {
                let host = if host.is_empty() { "." } else { &host };
                reached("npipe", format!("//{host}{path}"))
            }
            (other, _) => Err(refused(format!("protocol {} not supported", quoted(other)), other)),
        }
    }

    /// Parses the address to dial or to listen on. On Unix, a text without a scheme is a path.
    pub(crate) fn to_dial(text: &str, platform: AddressPlatform) -> Result<Self, AddressError> {
        let address = match Self::parse(text, platform) {
            Err(error) if platform == AddressPlatform::Unix && error.protocol.is_empty() => {
                Self::parse(&format!("unix://{text}"), platform)?
            }
            parsed => parsed?,
        };
        if platform == AddressPlatform::Unix && address.protocol != "unix" {
            return Err(refused("only support unix socket endpoint".to_owned(), address.protocol));
        }
        Ok(address)
    }
}

/// Converts an address to a target for gRPC libraries. The target of a path prevents a name lookup.
pub fn client_target(address: &str) -> String {
    let address = match address.strip_prefix("unix://") {
        Some(path) if path.starts_with('/') => path,
        _ => address,
    };
    if address.starts_with('/') { format!("passthrough:///{address}") } else { address.to_owned() }
}

#[cfg(test)]
mod tests {

    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn every_endpoint_of_the_vectors_reads_as_they_say_on_both_platforms() {
        let cases = vectors("cri-endpoint-parse.json");
        assert_eq!(cases.len(), 36);
        for case in cases {
            let (input, expected, name) = (&case["input"], &case["expected"], &case["name"]);
            let text = |key: &str| input[key].as_str().unwrap_or_else(|| panic!("{name} has no {key}"));
            let function = text("function");
            if function == "client_target" {
                assert_eq!(client_target(text("address")), expected["target"].as_str().unwrap(), "{name}");
                continue;
            }
            let platform = match text("os") {
                "unix" => AddressPlatform::Unix,
                "windows" => AddressPlatform::Windows,
                other => panic!("no such platform: {other}"),
            };
            let (read, protocol_key) = match function {
                "parse_endpoint" => (Address::parse(text("endpoint"), platform), "protocol"),
                "address_and_dialer" => (Address::to_dial(text("endpoint"), platform), "network"),
                other => panic!("no such function: {other}"),
            };
            let (protocol, address, error) = match &read {
                Ok(read) => (read.protocol, read.address.as_str(), None),
                Err(error) => (error.protocol.as_str(), "", Some(error.to_string())),
            };
            assert_eq!(error.is_some(), expected["error"] == true, "{name}: {read:?}");
            assert_eq!(error.as_deref(), expected["error_text"].as_str(), "{name}");
            assert_eq!(Some(address), expected["address"].as_str(), "{name}");
            // A rejected dial names no network.
            if let Some(wanted) = expected.get(protocol_key) {
                assert_eq!(Some(protocol), wanted.as_str(), "{name}");
            } else {
                assert!(error.is_some() && function == "address_and_dialer", "{name}");
            }
        }
    }

    #[test]
    fn a_text_that_is_no_url_says_which_rule_it_breaks_and_has_no_protocol() {
        for (text, message) in [
            (":x", "parse \":x\": missing protocol scheme"),
            ("1:x", "parse \"1:x\": first path segment in URL cannot contain colon"),
            ("unix:///a\nb", "parse \"unix:///a\\nb\": net/url: invalid control character in URL"),
            ("unix:///a%zz", "parse \"unix:///a%zz\": invalid URL escape \"%zz\""),
            ("unix:///a%2", "parse \"unix:///a%2\": invalid URL escape \"%2\""),
            ("tcp://host:port", "parse \"tcp://host:port\": invalid port \":port\" after host"),
            ("tcp://[::1", "parse \"tcp://[::1\": missing ']' in host"),
            ("tcp://a b", "parse \"tcp://a b\": invalid character \" \" in host name"),
        ] {
            let error = Address::parse(text, AddressPlatform::Unix).unwrap_err();
            assert_eq!((error.to_string(), error.protocol), (message.to_owned(), String::new()));
        }
        // An unreadable text is also parsed as a path, and the second complaint is reported.
        let error = Address::to_dial(":x", AddressPlatform::Unix).unwrap_err();
        assert_eq!(error.to_string(), "parse \"unix://:x\": invalid port \":x\" after host");
        let error = Address::to_dial(":x", AddressPlatform::Windows).unwrap_err();
        assert_eq!(error.to_string(), "parse \":x\": missing protocol scheme");
    }

    #[test]
    fn a_host_is_read_without_user_and_a_path_without_query() {
        let host = |text| Address::parse(text, AddressPlatform::Unix).unwrap().address;
        assert_eq!(host("tcp://bob:secret@[::1]:80/x"), "[::1]:80");
        assert_eq!(host("TCP://localhost"), "localhost");
        assert_eq!(host("unix:///a%20b?c#d"), "/a b");
        let dropped = Address::parse("unix://run/x.sock", AddressPlatform::Unix).unwrap();
        assert_eq!((dropped.host.as_str(), dropped.address.as_str()), ("run", "/x.sock"));
    }
}
