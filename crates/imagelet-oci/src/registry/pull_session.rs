//! One pull's view of its registry: repository, hosts and credential.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, header};
use imagelet_core::{
    audit_log::PullHost,
    credentials::{Credential, CredentialKind},
    image::{Reference, is_docker_hub},
    runtime::{ErrorClass, Progress, PullEvent, RuntimeError},
};

use zeroize::Zeroizing;

use super::{
    Shared,
    auth::grant::{Grant, basic},
    blob::straggler::ConnectionRates,
    connection::{
        origin::{Origin, Target},
        reception::Reception,
        transport::Transport,
    },
    error::denied,
    hosts::Host,
    rate_limit::{Account, RateLimits},
    retry_budget::RetryBudget,
};
use crate::{image_archive::ArchiveBlobs, manifest::printable};

/// Tokens live and die with the session, so that no other credential can use them.
#[derive(Clone, Debug)]
pub(crate) struct PullSession {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    reference: Reference,
    hosts: Vec<SessionHost>,
    reception: Arc<Reception>,
    /// Where the content comes from instead of hosts.
    archive: Option<Arc<ArchiveBlobs>>,
    retry_budget: Arc<RetryBudget>,
    has_begun: AtomicBool,
    rates: ConnectionRates,
    reports: Reports,
}

/// Sends the events of requests to the pull. A token obtained before the pull begins is reported when it does.
#[derive(Default)]
struct Reports(Mutex<(Option<Progress>, Vec<PullEvent>)>);

const REPORTS_MAX: usize = 8;

impl Reports {
    fn attach(&self, progress: &Progress) {
        let missed = {
            let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            reports.0 = Some(Arc::clone(progress));
            std::mem::take(&mut reports.1)
        };
        for event in missed {
            progress(event);
        }
    }

    fn send(&self, event: PullEvent) {
        let listener = {
            let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if reports.0.is_none() && reports.1.len() < REPORTS_MAX && matches!(event, PullEvent::Token { .. }) {
                reports.1.push(event.clone());
            }
            reports.0.clone()
        };
        if let Some(progress) = listener {
            progress(event);
        }
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reports")
    }
}

/// A host, and what it may see of the credential.
#[derive(Debug)]
pub(crate) struct SessionHost {
    pub(crate) host: Host,
    pub(crate) credential: Option<Credential>,
    grant: Mutex<Option<Grant>>,
    /// Held while a grant is obtained.
    pub(crate) renewal: tokio::sync::Mutex<()>,
    /// The token service that did not receive the credential, for the message of a refusal.
    pub(crate) withheld: OnceLock<Origin>,
    reference: Reference,
    /// The session only checks a credential: it asks for no repository.
    is_login: bool,
    pub(crate) account: Account,
    pub(super) sent: SentTally,
}

/// What a host sent for the pull.
#[derive(Debug, Default)]
pub(super) struct SentTally {
    pub(super) manifest: AtomicBool,
    pub(super) blobs: AtomicU64,
    pub(super) bytes: AtomicU64,
    failures: Mutex<BTreeMap<&'static str, u64>>,
}

impl SentTally {
    pub(super) fn failed(&self, class: ErrorClass) {
        *self.failures.lock().unwrap_or_else(PoisonError::into_inner).entry(class.word()).or_default() += 1;
    }
}

impl PullSession {
    pub(super) fn new(
        shared: Arc<Shared>,
        reference: Reference,
        hosts: Vec<Host>,
        credential: Option<&Credential>,
    ) -> Self {
        let host = |host| SessionHost::new(host, &reference, credential, &shared.rate_limits);
        let hosts = hosts.into_iter().map(host).collect();
        let retry_budget = RetryBudget::new(shared.config.retry_budget);
        let reception = Arc::new(Reception::new(shared.config.silence_max, shared.config.trickle));
        let has_begun = AtomicBool::new(false);
        let (archive, rates) = (None, ConnectionRates::default());
        let inner = Inner {
            shared,
            reference,
            hosts,
            reception,
            archive,
            retry_budget,
            has_begun,
            rates,
            reports: Reports::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A session that checks this credential and no other at one host.
    pub(super) fn of_login(shared: Arc<Shared>, reference: Reference, host: Host, credential: &Credential) -> Self {
        let host = SessionHost {
            is_login: true,
            credential: Some(credential.clone()),
            grant: Mutex::new(Grant::ready(credential)),
            account: shared.rate_limits.account(Some(credential)),
            ..SessionHost::new(host, &reference, None, &shared.rate_limits)
        };
        let mut session = Self::new(shared, reference, Vec::new(), None);
        Arc::get_mut(&mut session.inner).expect("it was made here").hosts.push(host);
        session
    }

    /// A session without hosts: all blobs come from an archive.
    pub(super) fn of_archive(shared: Arc<Shared>, reference: Reference, archive: Arc<ArchiveBlobs>) -> Self {
        let reception = Arc::new(Reception::new(None, None));
        let (retry_budget, has_begun) = (RetryBudget::new(Duration::ZERO), AtomicBool::new(false));
        let (hosts, archive, rates) = (Vec::new(), Some(archive), ConnectionRates::default());
        let inner = Inner {
            shared,
            reference,
            hosts,
            reception,
            archive,
            retry_budget,
            has_begun,
            rates,
            reports: Reports::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn archive(&self) -> Option<&Arc<ArchiveBlobs>> {
        self.inner.archive.as_ref()
    }

    #[cfg(test)]
    pub(crate) fn nowhere(reference: Reference) -> Self {
        let registry = super::Registry::new(super::RegistryConfig::default()).expect("a user agent");
        Self::new(registry.shared, reference, Vec::new(), None)
    }

    pub(crate) fn reference(&self) -> &Reference {
        &self.inner.reference
    }

    /// Reports waits and requests for tokens from now on, and the tokens so far.
    pub(crate) fn report_to(&self, progress: &Progress) {
        self.inner.reports.attach(progress);
    }

    pub(super) fn report(&self, event: PullEvent) {
        self.inner.reports.send(event);
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    pub(super) fn transport(&self) -> &Transport {
        &self.inner.shared.transport
    }

    pub(crate) fn reception(&self) -> &Arc<Reception> {
        &self.inner.reception
    }

    pub(super) fn retry_budget(&self) -> &Arc<RetryBudget> {
        &self.inner.retry_budget
    }

    /// The rates of the pull's connections.
    pub(super) fn rates(&self) -> &ConnectionRates {
        &self.inner.rates
    }

    /// Whether a request of the pull has succeeded.
    pub(super) fn has_begun(&self) -> bool {
        self.inner.has_begun.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self) {
        self.inner.has_begun.store(true, Ordering::Relaxed);
    }

    /// Whether the pull has been slower than its minimum rate for at least one window.
    pub(crate) fn trickles_for(&self, time: Duration) -> bool {
        self.inner.reception.trickles_for(time)
    }

    pub(crate) fn hosts(&self) -> &[SessionHost] {
        &self.inner.hosts
    }

    /// What each host has sent so far; without those that were not needed. Hosts that sent something come first.
    pub(crate) fn senders(&self) -> Vec<PullHost> {
        let tally = |host: &SessionHost| {
            let failures = host.sent.failures.lock().unwrap_or_else(PoisonError::into_inner);
            let failures = failures.iter().take(PullHost::CLASSES_MAX);
            PullHost {
                host: printable(&host.host.origin.authority()),
                manifest: host.sent.manifest.load(Ordering::Relaxed),
                blobs: host.sent.blobs.load(Ordering::Relaxed),
                bytes: host.sent.bytes.load(Ordering::Relaxed),
                failures: failures.map(|(class, count)| ((*class).to_owned(), *count)).collect(),
            }
        };
        let mut hosts: Vec<PullHost> = self.hosts().iter().map(tally).collect();
        let has_sent = |host: &PullHost| host.manifest || host.bytes > 0;
        hosts.retain(|host| has_sent(host) || !host.failures.is_empty());
        hosts.sort_by_key(|host| !has_sent(host));
        hosts.truncate(PullHost::REPORTED_MAX);
        hosts
    }

    /// Every secret in use, for removal from messages.
    pub(crate) fn secrets(&self) -> Zeroizing<Vec<String>> {
        let proxies = &self.transport().clients.proxies;
        let mut secrets =
            Zeroizing::new(proxies.secrets().iter().map(|secret| secret.expose().to_owned()).collect::<Vec<_>>());
        for host in self.hosts() {
            let proxy = host.host.connection.proxy.as_ref().and_then(|proxy| proxy.credential.as_ref());
            secrets.extend(proxy.map(|credential| credential.password.expose().to_owned()));
            match host.credential.as_ref().map(|credential| &credential.kind) {
                Some(CredentialKind::Basic { username, password }) => {
                    secrets.push(basic(username, password).expose().to_owned());
                    secrets.push(password.expose().to_owned());
                }
                Some(CredentialKind::IdentityToken(token) | CredentialKind::RegistryToken(token)) => {
                    secrets.push(token.expose().to_owned());
                }
                None => {}
            }
            secrets.extend(host.grant().map(|grant| grant.secret.expose().to_owned()));
            let headers = host.host.headers.values();
            secrets.extend(headers.filter_map(|value| value.to_str().ok()).map(str::to_owned));
        }
        secrets
    }
}

impl SessionHost {
    /// Without a credential of the pull a host gets the one that the configuration has for it.
    fn new(host: Host, reference: &Reference, credential: Option<&Credential>, limits: &RateLimits) -> Self {
        let credential = credential.filter(|credential| is_for(&credential.server_address, &host, reference.domain()));
        let credential = credential.or(host.credential.as_ref());
        let grant = Mutex::new(credential.and_then(Grant::ready));
        let account = limits.account(credential);
        let (credential, reference) = (credential.cloned(), reference.clone());
        let renewal = tokio::sync::Mutex::default();
        Self {
            host,
            credential,
            grant,
            renewal,
            withheld: OnceLock::new(),
            reference,
            is_login: false,
            account,
            sent: SentTally::default(),
        }
    }

    pub(crate) fn grant(&self) -> Option<Grant> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The headers that only this host receives, and the number of the grant among them.
    pub(crate) fn bound_headers(&self) -> (HeaderMap, Option<u64>) {
        let (mut bound, grant) = (self.host.headers.clone(), self.grant());
        let shown = grant.as_ref().map(|grant| grant.number);
        if let Some(grant) = grant {
            bound.insert(header::AUTHORIZATION, grant.header);
        }
        (bound, shown)
    }

    pub(crate) fn set_grant(&self, grant: Grant) {
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
    }

    pub(crate) fn target(&self, path: &str) -> Target {
        let path_and_query = format!("{}/{}/{path}", self.host.base_path, self.repository());
        let target = Target { origin: self.host.origin.clone(), path_and_query };
        if self.host.names_registry { target.with_query(&format!("ns={}", self.reference.domain())) } else { target }
    }

    /// The token scope: pull from this repository, whatever scope the challenge names; `None` for a login.
    pub(crate) fn scope(&self) -> Option<String> {
        if self.is_login {
            return None;
        }
        let prefix = self.host.base_path.strip_prefix("/v2/").map(|prefix| format!("{prefix}/")).unwrap_or_default();
        Some(format!("repository:{prefix}{}:pull", self.repository()))
    }

    fn repository(&self) -> &str {
        self.host.repository.as_deref().unwrap_or_else(|| self.reference.path())
    }

    /// The registry rejects the credential, or requires one.
    pub(crate) fn denied(&self, detail: Option<String>) -> RuntimeError {
        let (origin, reference) = (&self.host.origin, &self.reference);
        let place = origin.authority();
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        let subject = if self.is_login { "a login".to_owned() } else { format!("`{reference}`") };
        match (&self.credential, self.withheld.get()) {
            (Some(_), None) if self.is_login => {
                denied(format!("registry `{place}` does not accept this user and password{detail}"))
                    .with_hint("check both; some registries want an access token in place of the password")
            }
            (Some(_), Some(service)) => denied(format!(
                "registry `{place}` wants a credential for {subject}, which its token service `{service}` is not \
                 shown: that is another origin and not encrypted{detail}"
            ))
            .with_hint(format!("serve `{service}` over HTTPS or at `{origin}` itself; a credential goes nowhere else")),
            (Some(_), None) => {
                denied(format!("registry `{place}` does not accept the credential for `{reference}`{detail}"))
                    .with_hint("check user and password or token, and that it may pull this repository")
            }
            (None, _) => {
                denied(format!("registry `{place}` does not serve `{reference}` without a credential{detail}"))
                    .with_hint(
                        "check the name; if the image is private, give a credential (`imagelet login`, imagePullSecrets, or --creds)",
                    )
            }
        }
    }
}

/// Whether a host may receive the credential for a server: a mirror one that names it, the registry also one that names
/// no server, or the registry as images do. One that names another server is not sent, as containerd does not send it.
fn is_for(server_address: &str, host: &Host, registry: &str) -> bool {
    let url =
        if server_address.contains("://") { server_address.to_owned() } else { format!("https://{server_address}") };
    let names_host = || Target::parse(&url).is_ok_and(|target| target.origin.is_same_place(&host.origin));
    let server = url.split("://").nth(1).unwrap_or_default().split(['/', '?', '#']).next().unwrap_or_default();
    // A pattern was matched with the image's name.
    let names_registry = server.is_empty()
        || server.contains('*')
        || server == registry
        || (is_docker_hub(server) && is_docker_hub(registry));
    names_host() || (!host.is_mirror && names_registry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_for_the_server_that_it_names_or_without_one_for_the_registry() {
        let host = |url: &str, is_mirror| Host {
            is_mirror,
            ..Host::new(Target::parse(url).expect("a URL").origin, "/v2".to_owned())
        };
        for (server, registry, url, is_mirror, expected) in [
            ("", "r.example", "https://r.example", false, true),
            ("", "r.example", "https://m.example", true, false),
            ("r.example", "r.example", "https://r.example", false, true),
            ("https://r.example/v2/", "r.example", "https://r.example", false, true),
            ("r.example:5000", "r.example:5000", "http://r.example:5000", false, true),
            ("r.example:5000", "r.example", "https://r.example", false, false),
            ("r.example", "r.example", "https://m.example", true, false),
            // The registry at another address, named by either.
            ("r.example", "r.example", "https://r.internal.example", false, true),
            ("r.internal.example", "r.example", "https://r.internal.example", false, true),
            ("m.example", "r.example", "https://m.example", true, true),
            ("m.example", "r.example", "https://r.example", false, false),
            ("other.example", "r.example", "https://r.example", false, false),
            ("*.example", "r.example", "https://r.example", false, true),
            ("*.example", "r.example", "https://m.example", true, false),
            ("https://index.docker.io/v1/", "docker.io", "https://registry-1.docker.io", false, true),
            ("docker.io", "docker.io", "https://registry-1.docker.io", false, true),
            ("docker.io", "docker.io", "https://m.example", true, false),
            ("docker.io.evil.example", "docker.io", "https://registry-1.docker.io", false, false),
        ] {
            let found = is_for(server, &host(url, is_mirror), registry);
            assert_eq!(found, expected, "`{server}` for `{registry}` at `{url}`");
        }
    }
}
