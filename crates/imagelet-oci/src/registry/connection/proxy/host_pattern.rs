//! A pattern of hosts, as `NO_PROXY` has them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::url::without_brackets;
use crate::registry::connection::origin::Origin;

/// The port is `None` where the pattern names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostPattern {
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

impl HostPattern {
    /// As [`Self::parse`]; a pattern that no host can match is refused.
    pub(crate) fn parse_strict(item: &str) -> Option<Self> {
        let pattern = Self::parse(item)?;
        let is_port = |port: &Option<String>| port.as_ref().is_none_or(|port| port.parse::<u16>().is_ok());
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let can_match = match &pattern {
            Self::All | Self::Network(_) => true,
            Self::Address(_, port) => is_port(port),
            Self::Domain { suffix, port, .. } => {
                is_port(port) && suffix.bytes().all(is_of_host) && !suffix.contains("..")
            }
        };
        can_match.then_some(pattern)
    }

    /// Reads `HOST`, `.SUFFIX` or an address, each perhaps with a port, a CIDR network, or `*`.
    pub(crate) fn parse(item: &str) -> Option<Self> {
        let item = item.trim().to_ascii_lowercase();
        if item == "*" {
            return Some(Self::All);
        }
        if item.contains('/') {
            return item.parse::<IpNet>().ok().map(Self::Network);
        }
        if let Ok(address) = without_brackets(&item).parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical(), None));
        }
        let (host, port) = match item.rsplit_once(':') {
            Some((host, port)) => (without_brackets(host), Some(port.to_owned()).filter(|port| !port.is_empty())),
            None => (item.as_str(), None),
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical(), port));
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        let with_parent = !host.starts_with('.');
        let suffix = if with_parent { format!(".{host}") } else { host.to_owned() };
        (suffix.len() > 1).then_some(Self::Domain { suffix, with_parent, port })
    }

    pub(crate) fn matches(&self, origin: &Origin) -> bool {
        let host = without_brackets(origin.host());
        let address = || host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let same_port =
            |wanted: &Option<String>| wanted.as_ref().is_none_or(|wanted| *wanted == origin.port().to_string());
        match self {
            Self::All => true,
            Self::Network(network) => address().is_some_and(|address| network.contains(&address)),
            Self::Address(wanted, port) => address() == Some(*wanted) && same_port(port),
            Self::Domain { suffix, with_parent, port } => {
                let is_in = host.ends_with(suffix.as_str()) || (*with_parent && suffix.strip_prefix('.') == Some(host));
                is_in && same_port(port)
            }
        }
    }
}
