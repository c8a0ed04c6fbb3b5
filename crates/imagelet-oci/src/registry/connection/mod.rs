//! One request to one origin: its connection, its redirects, and how long no byte came.

mod connector;
mod dial;
mod failure;
mod head_wait;
mod host_slots;
mod http_error;
mod origin;
mod proxy;
mod reception;
mod settings;
mod stream;
mod tls;
mod transport;

#[cfg(test)]
pub(super) use self::head_wait::{AwaitedHead, awaits};
pub use self::proxy::{ProxyConfig, ProxyRule, ProxyRuleError, ProxyRules};
pub(super) use self::{
    head_wait::HeadWait,
    host_slots::{HostSlots, Urgency},
    origin::{Origin, Target, listing_hint, may_send_on},
    proxy::{Proxies, Proxy},
    reception::{Reception, Silent},
    settings::{ConnectionSettings, Identity, TlsSettings},
    tls::Clients,
    transport::{BodyReader, ReadError, Request, Response, Transport, drain},
};
