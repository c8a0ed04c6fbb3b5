//! One pull's view of its registry: repository, hosts and credential.

use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{HeaderMap, HeaderValue, header};
use imagelet_core::{
    audit_log::PullHost,
    credentials::{Credential, CredentialKind, Secret},
    error::{ErrorClass, RuntimeError},
    image::{Reference, is_docker_hub},
    ports::{Patience, Progress, PullEvent},
};

use tokio::sync::OnceCell;

use super::{
    Registry, Shared,
    blob::straggler::ConnectionRates,
    connection::{Origin, Reception, Target, authorization, basic},
    error::denied,
    hosts::{Host, target_at},
    locked,
    next_host::RetryBudget,
    rate_limit::{Account, RateLimits},
};
use crate::{image_archive::ArchiveBlobs, manifest::printable};

const REPORTS_MAX: usize = 8;

/// The session of one pull. Tokens exist only in their session, so that no session with another credential uses them.
#[derive(Clone)]
pub(crate) struct PullSession(Arc<SessionState>);

impl fmt::Debug for PullSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PullSession({})", self.reference)
    }
}

pub(crate) struct SessionState {
    pub(super) shared: Arc<Shared>,
    pub(super) reference: Reference,
    pub(super) hosts: Vec<SessionHost>,
    /// The origins of all hosts.
    pub(super) listed: Arc<[Origin]>,
    pub(crate) reception: Arc<Reception>,
    /// The archive from which the content comes. A session with an archive has no hosts.
    pub(super) archive: Option<Arc<ArchiveBlobs>>,
    pub(super) retry_budget: RetryBudget,
    pub(super) rates: ConnectionRates,
    reports: Mutex<Reports>,
}

impl Deref for PullSession {
    type Target = SessionState;

    fn deref(&self) -> &SessionState {
        &self.0
    }
}

/// Sends events to the listener. Token events and warnings from before the listener is set are sent when it is set.
#[derive(Default)]
struct Reports {
    listener: Option<Progress>,
    missed: Vec<PullEvent>,
}

/// A host, and the credential that the host may receive.
pub(crate) struct SessionHost {
    pub(crate) host: Host,
    pub(crate) credential: Option<Credential>,
    pub(super) grant: Mutex<Option<Grant>>,
    /// The lock is held while a grant is obtained.
    pub(crate) renewal: tokio::sync::Mutex<()>,
    /// The token service that did not receive the credential, for an error message.
    pub(crate) withheld: OnceLock<Origin>,
    /// Whether the credential was sent to the host or to its token service.
    shown: AtomicBool,
    /// The challenge of the API root, requested once if the host's refusal had no challenge.
    pub(super) challenge: OnceCell<Option<HeaderMap>>,
    /// Whether the pull has no credential for this host, but one for another host.
    has_other: bool,
    reference: Reference,
    /// Whether the session only checks a credential. Then its requests name no repository.
    pub(super) is_login: bool,
    pub(crate) account: Account,
    /// The content that the host sent, and the host's failures.
    sent: Mutex<PullHost>,
}

/// The `Authorization` header for one host, until the host rejects it.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) header: HeaderValue,
    secret: Secret,
    /// The position of this grant among the pull's grants for the host, from 0. A caller sees by it whether a rejected
    /// grant was replaced.
    pub(super) number: u64,
}

impl Grant {
    pub(super) fn new(scheme: &str, secret: Secret, number: u64) -> Result<Self, header::InvalidHeaderValue> {
        Ok(Self { header: authorization(scheme, &secret)?, secret, number })
    }
}

impl PullSession {
    pub(super) fn new(
        shared: Arc<Shared>,
        reference: Reference,
        hosts: Vec<Host>,
        credentials: &[Credential],
        patience: Patience,
    ) -> Self {
        let host = |host| SessionHost::new(host, &reference, credentials, &shared.rate_limits);
        Self(Arc::new(SessionState {
            listed: hosts.iter().map(|host| host.origin.clone()).collect(),
            hosts: hosts.into_iter().map(host).collect(),
            reception: Arc::new(Reception::new(shared.config.timeouts.silence_max)),
            archive: None,
            retry_budget: RetryBudget::new(shared.config.timeouts.retry_budget, patience),
            rates: ConnectionRates::default(),
            reports: Mutex::default(),
            shared,
            reference,
        }))
    }

    /// The state of a new session, for changes. The session must not have a clone.
    fn state(&mut self) -> &mut SessionState {
        Arc::get_mut(&mut self.0).expect("a new session has no clone")
    }

    pub(super) fn of_login(shared: Arc<Shared>, reference: Reference, own: Host, credential: &Credential) -> Self {
        // Without a server address, the credential applies to the registry at any address.
        let credential = Credential { server_address: String::new(), ..credential.clone() };
        let mut session = Self::new(shared, reference, vec![own], &[credential], Patience::FULL);
        session.state().hosts[0].is_login = true;
        session
    }

    /// A session without hosts: all blobs come from an archive.
    pub(crate) fn of_archive(registry: &Registry, reference: &Reference, archive: Arc<ArchiveBlobs>) -> Self {
        let shared = Arc::clone(&registry.shared);
        let mut session = Self::new(shared, reference.canonical(), Vec::new(), &[], Patience::FULL);
        session.state().archive = Some(archive);
        session
    }

    pub(crate) fn archive(&self) -> Option<&Arc<ArchiveBlobs>> {
        self.archive.as_ref()
    }

    pub(crate) fn reference(&self) -> &Reference {
        &self.reference
    }

    pub(crate) fn usual_rate(&self) -> Option<u64> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of bytes, not below zero")]
        self.rates.usual().map(|rate| rate as u64)
    }

    /// Sends `progress` the token events and warnings so far, and then all later events.
    pub(crate) fn report_to(&self, progress: &Progress) {
        let mut reports = locked(&self.reports);
        reports.listener = Some(Arc::clone(progress));
        let missed = std::mem::take(&mut reports.missed);
        drop(reports);
        for event in missed {
            progress(event);
        }
    }

    pub(crate) fn report(&self, event: PullEvent) {
        let mut reports = locked(&self.reports);
        match reports.listener.clone() {
            Some(progress) => {
                drop(reports);
                progress(event);
            }
            None if reports.missed.len() < REPORTS_MAX => match event {
                PullEvent::Token(_) | PullEvent::Warning { .. } => reports.missed.push(event),
                _ => {}
            },
            None => {}
        }
    }

    /// All hosts that sent content, because they show which credential opened the image, then hosts that failed.
    pub(crate) fn senders(&self) -> Vec<PullHost> {
        let mut hosts: Vec<PullHost> = self.hosts.iter().map(|host| host.sent().clone()).collect();
        for host in &mut hosts {
            while host.failures.len() > PullHost::CLASSES_MAX {
                host.failures.pop_last();
            }
        }
        let has_sent = |host: &PullHost| host.manifest || host.bytes > 0;
        hosts.retain(|host| has_sent(host) || !host.failures.is_empty());
        hosts.sort_by_key(|host| !has_sent(host));
        let sent = hosts.iter().filter(|host| has_sent(host)).count();
        hosts.truncate(sent.max(PullHost::REPORTED_MAX));
        hosts
    }

    pub(super) fn secrets(&self) -> Vec<Secret> {
        let mut secrets = self.shared.transport.clients.proxies.secrets();
        for host in &self.hosts {
            let login = host.host.connection.proxy.as_ref().and_then(|proxy| proxy.login.as_ref());
            secrets.extend(login.map(|(_, password)| password.clone()));
            secrets.extend(host.credential.iter().flat_map(|credential| match &credential.kind {
                CredentialKind::Basic { username, password } => vec![basic(username, password), password.clone()],
                CredentialKind::IdentityToken(token) | CredentialKind::RegistryToken(token) => vec![token.clone()],
            }));
            secrets.extend(host.grant().map(|grant| grant.secret));
            secrets.extend(host.host.headers.values().filter_map(|value| value.to_str().ok()).map(Secret::new));
        }
        secrets
    }
}

impl SessionHost {
    pub(super) fn sent(&self) -> MutexGuard<'_, PullHost> {
        locked(&self.sent)
    }

    /// Chooses the credential: the pull's for the host, else the pull's for its registry, else the configured one.
    fn new(host: Host, reference: &Reference, credentials: &[Credential], limits: &RateLimits) -> Self {
        let named = credentials.iter().find(|credential| names_host(&credential.server_address, &host));
        let of_registry = |credential: &&Credential| is_for(&credential.server_address, &host, reference.domain());
        let credential = named.or_else(|| credentials.iter().find(of_registry));
        let credential = credential.or(host.credential.as_ref()).cloned();
        let grant = match credential.as_ref().map(|credential| &credential.kind) {
            Some(CredentialKind::RegistryToken(token)) => Grant::new("Bearer", token.clone(), 0).ok(),
            Some(CredentialKind::Basic { .. } | CredentialKind::IdentityToken(_)) | None => None,
        };
        Self {
            account: limits.account(credential.as_ref()),
            sent: Mutex::new(PullHost { host: printable(&host.origin.authority()), ..PullHost::default() }),
            has_other: credential.is_none() && !credentials.is_empty(),
            shown: AtomicBool::new(grant.is_some()),
            challenge: OnceCell::new(),
            host,
            credential,
            grant: Mutex::new(grant),
            renewal: tokio::sync::Mutex::default(),
            withheld: OnceLock::new(),
            reference: reference.clone(),
            is_login: false,
        }
    }

    pub(super) fn count_failure(&self, class: ErrorClass) {
        *self.sent().failures.entry(class.name().to_owned()).or_default() += 1;
    }

    pub(super) fn grant(&self) -> Option<Grant> {
        locked(&self.grant).clone()
    }

    pub(super) fn show(&self) {
        self.shown.store(true, Ordering::Relaxed);
    }

    /// Whether the host has a credential that was not sent, although it may be sent.
    pub(super) fn has_unshown_credential(&self) -> bool {
        self.credential.is_some() && !self.was_shown() && self.withheld.get().is_none()
    }

    pub(super) fn was_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }

    /// The headers that only this host receives, and the number of the grant in them.
    pub(crate) fn bound_headers(&self) -> (HeaderMap, Option<u64>) {
        let (mut bound, grant) = (self.host.headers.clone(), self.grant());
        let shown = grant.as_ref().map(|grant| grant.number);
        if let Some(grant) = grant {
            bound.insert(header::AUTHORIZATION, grant.header);
        }
        (bound, shown)
    }

    pub(crate) fn target(&self, path: &str) -> Target {
        let repository = self.host.path.repository.as_deref().unwrap_or_else(|| self.reference.path());
        let base_path = &self.host.path.base;
        let path_and_query =
            if self.is_login { format!("{base_path}/") } else { format!("{base_path}/{repository}/{path}") };
        let target = Target { origin: self.host.origin.clone(), path_and_query };
        if self.host.names_registry { target.with_query(&format!("ns={}", self.reference.domain())) } else { target }
    }

    /// The scope of a token: pull from this repository. The scope in the challenge is ignored. `None` for a login.
    pub(crate) fn scope(&self) -> Option<String> {
        if self.is_login {
            return None;
        }
        Some(format!("repository:{}:pull", self.host.repository_of(&self.reference)))
    }

    pub(crate) fn denied(&self, detail: Option<String>) -> RuntimeError {
        let (origin, reference) = (&self.host.origin, &self.reference);
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        let subject = if self.is_login { "a login".to_owned() } else { format!("`{reference}`") };
        let ending = self.credential.as_ref().and_then(Credential::line_break_hint);
        let (what, hint) = match (&self.credential, self.withheld.get()) {
            (None, _) => {
                let hint = if self.has_other {
                    format!(
                        "the credential of the pull is for another host and is not sent to this one: `imagelet login {0}`, \
                         or an entry for `{0}` in the docker configuration or in a pull secret",
                        origin.authority()
                    )
                } else {
                    "check the name; if the image is private, give a credential (`imagelet login`, imagePullSecrets, or \
                     --creds)"
                        .to_owned()
                };
                (format!("does not serve `{reference}` without a credential"), hint)
            }
            (Some(_), None) if !self.was_shown() => (
                format!("refuses {subject}, and asks for no credential of the given kind, so that it was not sent"),
                "check the name; the registry has to ask for a password or a token, at `/v2/` at least".to_owned(),
            ),
            (Some(_), None) => {
                let (what, hint) = if self.is_login {
                    (
                        "this user and password",
                        "check both; some registries want an access token in place of the password",
                    )
                } else {
                    ("the credential", "check user and password or token, and that it may pull this repository")
                };
                (format!("does not accept {what} for {subject}"), ending.unwrap_or(hint).to_owned())
            }
            (Some(_), Some(service)) => (
                format!(
                    "wants a credential for {subject}, which its token service `{service}` is not shown: that is \
                     another origin and not encrypted"
                ),
                format!("serve `{service}` over HTTPS or at `{origin}` itself; a credential goes nowhere else"),
            ),
        };
        denied(format!("registry `{}` {what}{detail}", origin.authority())).with_hint(hint)
    }
}

fn names_host(server_address: &str, host: &Host) -> bool {
    target_at(server_address, |_| true).is_ok_and(|target| target.origin.is_same_place(&host.origin))
}

/// Whether a host may receive the credential for a server. As in containerd, the credential must name the host. The
/// registry also receives a credential without a server, or with the registry's name as images write it.
fn is_for(server_address: &str, host: &Host, registry: &str) -> bool {
    let server = server_address.split_once("://").map_or(server_address, |(_, rest)| rest);
    let server = server.split(['/', '?', '#']).next().unwrap_or_default();
    // An address with `*` is a pattern, which has already matched the image's name.
    let names_registry = server.is_empty()
        || server.contains('*')
        || server == registry
        || (is_docker_hub(server) && is_docker_hub(registry));
    names_host(server_address, host) || (!host.is_mirror && names_registry)
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
