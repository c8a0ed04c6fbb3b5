//! A pattern of hosts, as `NO_PROXY` has them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::url::without_brackets;
use crate::registry::connection::origin::Origin;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPattern {
    hosts: Hosts,
    port: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    /// An address is the network that holds it alone.
    Network(IpNet),
    /// `.example.com`, and whether `example.com` itself is meant too.
    Domain {
        suffix: String,
        with_parent: bool,
    },
}

impl HostPattern {
    /// As [`Self::parse`]; a pattern that no host can match is refused.
    pub(crate) fn parse_strict(item: &str) -> Option<Self> {
        let pattern = Self::parse(item)?;
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_host = match &pattern.hosts {
            Hosts::All | Hosts::Network(_) => true,
            Hosts::Domain { suffix, .. } => suffix.bytes().all(is_of_host) && !suffix.contains(".."),
        };
        let is_port = pattern.port.as_ref().is_none_or(|port| port.parse::<u16>().is_ok());
        (is_host && is_port).then_some(pattern)
    }

    /// Reads `HOST`, `.SUFFIX` or an address, each perhaps with a port, a CIDR network, or `*`.
    pub(crate) fn parse(item: &str) -> Option<Self> {
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

    pub(crate) fn matches(&self, origin: &Origin) -> bool {
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
        is_host && self.port.as_ref().is_none_or(|port| *port == origin.port().to_string())
    }
}
