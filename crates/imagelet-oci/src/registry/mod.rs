//! The registry client: fetches manifests and blobs, with mirrors, retries and parallel connections.
//!
//! A token is used only in the pull that obtained it, so it never serves another credential.

mod auth;
mod bandwidth;
mod blob;
mod connection;
mod error;
mod health;
mod hosts;
mod login;
mod next_host;
mod path_check;
mod pull_session;
mod rate_limit;
mod request;
mod resolve;
mod signatures;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use imagelet_core::lock::locked;
use tokio::sync::Semaphore;

use self::{
    connection::{Clients, HostSlots, Proxies, Transport},
    health::HostsHealth,
    rate_limit::RateLimits,
};

use crate::{
    machine::{FetchSizes, Machine},
    scarce::DescriptorShare,
    store::Store,
};

pub use self::bandwidth::Bandwidth;
pub(crate) use self::blob::parallel::{RangedStream, ReaderWait};
pub use self::connection::{ProxyConfig, ProxyRule, ProxyRules};
pub use self::hosts::check_registry_files;
pub use self::login::{LoginCheck, check_login};
pub use self::path_check::{PathReport, PathStep, check_path, registry_hosts};
pub(crate) use self::pull_session::PullSession;
#[cfg(feature = "fuzzing")]
pub(crate) use self::{
    auth::{challenge::challenges, read_token},
    hosts::of_text as registry_hosts_of,
};
pub(crate) use blob::BlobSource;
pub use resolve::ImageDocument;
pub(crate) use resolve::Resolved;

/// The default limit: enough for all layers that are fetched at once from one registry, and for additional connections.
const CONNECTIONS_PER_HOST: NonZeroUsize = NonZeroUsize::new(48).expect("not zero");

/// Maximum bytes of documents that all pulls parse at once. A document counts only after all its bytes have arrived.
const PARSED_BYTES_MAX: usize = 32 << 20;

/// Maximum number of warnings in a set of logged warnings. A full set is cleared, so that warnings repeat.
const SEEN_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Trees of `HOST/hosts.toml`, files `registries.conf` or `registries.yaml`. The first that has a registry is used.
    pub hosts_dirs: Vec<PathBuf>,
    pub proxies: ProxyConfig,
    pub timeouts: RegistryTimeouts,
    /// Limits the parallel requests of all pulls to a host, and its connections with equal TLS settings and proxy.
    pub connections_per_host: NonZeroUsize,
    /// The rate limit for blobs, shared by all pulls and by all engines with a clone of it.
    pub bandwidth: Bandwidth,
    /// The file that saves the health of hosts for the next process. An engine replaces it by a file in its store.
    pub health_file: Option<PathBuf>,
    pub fetch_sizes: FetchSizes,
    /// The policy file (containers-policy.json) for images of registries. Without it, no signature is checked.
    pub signature_policy: Option<PathBuf>,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            hosts_dirs: Vec::new(),
            proxies: ProxyConfig::default(),
            timeouts: RegistryTimeouts::default(),
            connections_per_host: CONNECTIONS_PER_HOST,
            bandwidth: Bandwidth::default(),
            health_file: None,
            fetch_sizes: FetchSizes::of(Machine::here()),
            signature_policy: None,
        }
    }
}

/// Time limits for a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryTimeouts {
    /// Maximum time for a TCP connection: the name lookup and all addresses. The `dial_timeout` of a host overrides it.
    pub dial: Duration,
    /// Maximum time from a request to the head of its response. After 10 s, the next host is asked in parallel.
    pub header: Duration,
    /// Time without a byte in a body after which the connection is closed.
    pub progress: Duration,
    /// Time without a byte over all connections and retries after which a pull fails. `None`: no limit.
    pub silence_max: Option<Duration>,
    /// Maximum time that all requests of a pull spend on retries after temporary failures.
    pub retry_budget: Duration,
}

impl Default for RegistryTimeouts {
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(5),
            header: Duration::from_secs(30),
            progress: Duration::from_secs(20),
            silence_max: Some(Duration::from_mins(1)),
            retry_budget: Duration::from_mins(1),
        }
    }
}

/// Adds a text to a set, and returns whether the text is new. A full set is cleared first.
fn is_new(seen: &Mutex<BTreeSet<String>>, text: &str) -> bool {
    let mut seen = locked(seen);
    if seen.len() >= SEEN_MAX {
        seen.clear();
    }
    seen.insert(text.to_owned())
}

/// A client for all registries. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    config: RegistryConfig,
    transport: Transport,
    health: Arc<HostsHealth>,
    rate_limits: RateLimits,
    /// Limits that all blobs share: bytes that are read ahead, and additional connections (`extra_connections`).
    read_ahead: Arc<Semaphore>,
    extra_connections: Arc<Semaphore>,
    /// The store for large documents. Without a store, large documents stay in memory.
    documents: OnceLock<Arc<Store>>,
    parsing: Semaphore,
}

impl Registry {
    pub(crate) fn new(config: RegistryConfig) -> Self {
        let share = DescriptorShare::default();
        let connections_per_host = share.of(config.connections_per_host.get());
        let transport = Transport {
            clients: Clients::new(config.timeouts.dial, connections_per_host, Proxies::new(&config.proxies)),
            slots: HostSlots::new(connections_per_host),
            loopback_tls: Mutex::default(),
            loopback_plain: Mutex::default(),
            plain_warned: Mutex::default(),
            header_timeout: config.timeouts.header,
            progress_timeout: config.timeouts.progress,
        };
        let shared = Shared {
            transport,
            health: Arc::new(HostsHealth::load(config.health_file.clone())),
            rate_limits: RateLimits::default(),
            read_ahead: Arc::new(Semaphore::new(config.fetch_sizes.read_ahead)),
            extra_connections: Arc::new(Semaphore::new(share.of(config.fetch_sizes.extra_connections))),
            documents: OnceLock::new(),
            parsing: Semaphore::new(PARSED_BYTES_MAX),
            config,
        };
        Self { shared: Arc::new(shared) }
    }

    /// A client that only checks registries: it retries nothing, and stores no health of hosts.
    fn for_check(config: RegistryConfig) -> Self {
        let timeouts = RegistryTimeouts { retry_budget: Duration::ZERO, ..config.timeouts };
        Self::new(RegistryConfig { health_file: None, timeouts, ..config })
    }

    pub(crate) fn keep_documents_in(&self, store: &Arc<Store>) {
        let _ = self.shared.documents.set(Arc::clone(store));
    }
}
