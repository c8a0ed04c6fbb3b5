//! One pull's view of its registry: repository, hosts and credential.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use imagelet_core::{
    credentials::{Credential, CredentialKind},
    image::Reference,
    runtime::RuntimeError,
};

use zeroize::Zeroizing;

use super::{
    auth::grant::{Grant, basic},
    connection::{
        origin::{Origin, Target},
        reception::Reception,
    },
    error::denied,
    hosts::Host,
};

/// Tokens live and die with the session, so that no other credential can use them.
#[derive(Clone)]
pub(crate) struct PullSession {
    inner: Arc<Inner>,
}

struct Inner {
    reference: Reference,
    hosts: Vec<Host>,
    grants: Vec<Mutex<Option<Grant>>>,
    /// For each host the token service that did not receive the credential.
    withheld: Vec<OnceLock<String>>,
    credential: Option<Credential>,
    reception: Arc<Reception>,
}

impl PullSession {
    pub(crate) fn new(
        reference: Reference,
        hosts: Vec<Host>,
        credential: Option<Credential>,
        reception: Reception,
    ) -> Self {
        let withheld = hosts.iter().map(|_| OnceLock::new()).collect();
        let reception = Arc::new(reception);
        let inner = Inner { reference, grants: Vec::new(), withheld, hosts, credential, reception };
        let grants =
            inner.hosts.iter().map(|host| Mutex::new(inner.credential_for(host).and_then(Grant::ready))).collect();
        Self { inner: Arc::new(Inner { grants, ..inner }) }
    }

    #[cfg(test)]
    pub(crate) fn nowhere(reference: Reference) -> Self {
        Self::new(reference, Vec::new(), None, Reception::new(None, None))
    }

    pub(crate) fn reference(&self) -> &Reference {
        &self.inner.reference
    }

    pub(crate) fn reception(&self) -> &Arc<Reception> {
        &self.inner.reception
    }

    /// Whether the pull has been slower than its minimum rate for at least one window.
    pub(crate) fn trickles_for(&self, time: Duration) -> bool {
        self.inner.reception.trickles_for(time)
    }

    pub(crate) fn hosts(&self) -> &[Host] {
        &self.inner.hosts
    }

    pub(crate) fn host(&self, index: usize) -> &Host {
        &self.inner.hosts[index]
    }

    pub(crate) fn grant_slot(&self, index: usize) -> &Mutex<Option<Grant>> {
        &self.inner.grants[index]
    }

    pub(crate) fn grant(&self, index: usize) -> Option<Grant> {
        self.grant_slot(index).lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn credential_for(&self, host: &Host) -> Option<&Credential> {
        self.inner.credential_for(host)
    }

    pub(crate) fn target(&self, host: &Host, path: &str) -> Target {
        let path_and_query = format!("{}/{}/{path}", host.base_path, self.inner.reference.path());
        let target = Target { origin: host.origin.clone(), path_and_query };
        // A mirror serves many registries: the query names the registry.
        if host.is_mirror { target.with_query(&format!("ns={}", self.inner.reference.domain())) } else { target }
    }

    /// The token scope: pull from this repository, whatever scope the challenge names.
    pub(crate) fn scope(&self, host: &Host) -> String {
        let prefix = host.base_path.strip_prefix("/v2/").map(|prefix| format!("{prefix}/")).unwrap_or_default();
        format!("repository:{prefix}{}:pull", self.inner.reference.path())
    }

    /// Every secret in use, for removal from messages.
    pub(crate) fn secrets(&self) -> Zeroizing<Vec<String>> {
        let mut secrets = Zeroizing::new(Vec::new());
        match self.inner.credential.as_ref().map(|credential| &credential.kind) {
            Some(CredentialKind::Basic { username, password }) => {
                secrets.push(basic(username, password).expose().to_owned());
                secrets.push(password.expose().to_owned());
            }
            Some(CredentialKind::IdentityToken(token) | CredentialKind::RegistryToken(token)) => {
                secrets.push(token.expose().to_owned());
            }
            None => {}
        }
        secrets.extend(
            (0..self.inner.hosts.len())
                .filter_map(|index| self.grant(index))
                .map(|grant| grant.secret.expose().to_owned()),
        );
        let headers = self.inner.hosts.iter().flat_map(|host| host.headers.values());
        secrets.extend(headers.filter_map(|value| value.to_str().ok()).map(str::to_owned));
        secrets
    }

    /// Records that a host's token service did not receive the credential, for the message of a refusal.
    pub(crate) fn withhold(&self, index: usize, service: &Origin) {
        self.inner.withheld[index].get_or_init(|| service.to_string());
    }

    /// The registry rejects the credential, or requires one.
    pub(crate) fn denied(&self, index: usize, detail: Option<String>) -> RuntimeError {
        let host = self.host(index);
        let place = host.origin.authority();
        let reference = &self.inner.reference;
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        match (self.credential_for(host), self.inner.withheld[index].get()) {
            (Some(_), Some(service)) => denied(format!(
                "registry `{place}` wants a credential for `{reference}`, which its token service `{service}` is not \
                 shown: that is another origin and not encrypted{detail}"
            ))
            .with_hint(format!(
                "serve `{service}` over HTTPS or at `{}` itself; a credential goes nowhere else",
                host.origin
            )),
            (Some(_), None) => {
                denied(format!("registry `{place}` does not accept the credential for `{reference}`{detail}"))
                    .with_hint("check user and password or token, and that it may pull this repository")
            }
            (None, _) => {
                denied(format!("registry `{place}` does not hand out `{reference}` without a credential{detail}"))
                    .with_hint(
                        "check the name; if the image is private, give a credential (imagePullSecrets, or --creds)",
                    )
            }
        }
    }
}

impl Inner {
    /// The registry's credential is sent to a mirror only when the credential names that mirror.
    fn credential_for(&self, host: &Host) -> Option<&Credential> {
        self.credential.as_ref().filter(|credential| !host.is_mirror || names(&credential.server_address, host))
    }
}

fn names(server_address: &str, host: &Host) -> bool {
    let url =
        if server_address.contains("://") { server_address.to_owned() } else { format!("https://{server_address}") };
    !server_address.is_empty() && Target::parse(&url).is_ok_and(|target| target.origin.is_same_place(&host.origin))
}

impl fmt::Debug for PullSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullSession").field("reference", &self.inner.reference).finish_non_exhaustive()
    }
}
