//! Sends one request to one origin: makes the connection, follows redirects, limits the time without a byte.

mod connector;
mod dial;
mod failure;
mod host_slots;
mod http_error;
mod origin;
mod proxy;
mod reception;
mod settings;
mod stream;
mod tls;
mod transport;

pub use self::proxy::{ProxyConfig, ProxyRule, ProxyRuleError, ProxyRules};
#[cfg(test)]
pub(super) use self::reception::{AwaitedHead, awaits};
pub(super) use self::{
    host_slots::{HostSlots, Urgency},
    origin::{Origin, Target, listing_hint, may_send_on},
    proxy::{Proxies, Proxy, authorization, basic},
    reception::{HeadWait, Reception, Running, SharedClock, Silent},
    settings::{ConnectionSettings, Identity, TlsSettings},
    tls::Clients,
    transport::{BodyReader, ReadError, Request, RequestKind, Response, Transport, drain},
};
