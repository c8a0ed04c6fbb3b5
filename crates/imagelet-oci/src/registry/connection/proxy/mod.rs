//! Proxies between this process and the registries: which one a connection uses, and the tunnel through it.

mod choose;
mod host_pattern;
mod tunnel;
mod url;

pub use self::choose::{ProxyConfig, ProxyRule, ProxyRuleError, ProxyRules};
pub(crate) use self::{
    choose::{BadProxy, Proxies},
    tunnel::{TUNNEL_TIMEOUT, TunnelError, tunnel},
    url::{Proxy, without_brackets},
};
