//! Proxies between this process and the registries: which one a connection uses, and the tunnel through it.

mod choose;
mod tunnel;

pub use self::choose::ProxyConfig;
pub(crate) use self::{
    choose::{BadProxy, Proxies, Proxy, ProxyKind, host_and_port, without_brackets},
    tunnel::{TUNNEL_TIMEOUT, TunnelError, tunnel},
};
