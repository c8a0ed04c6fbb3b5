//! Checks a credential at its registry before the credential is stored, as `docker login` does.

use std::sync::Arc;

use imagelet_core::{
    credentials::Credential,
    error::{RuntimeError, RuntimeErrorKind},
    image::Reference,
};

use super::{
    PullSession, Registry, RegistryConfig,
    connection::{Urgency, drain},
    request::Query,
};

/// The result of a login that the registry did not reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginCheck {
    /// The registry, or its token service, accepts the credential.
    Accepted,
    /// The registry asks for no credential, so the credential was not checked.
    NotAsked,
}

/// Tests a credential at a registry (`HOST[:PORT]`) and its token service, without mirrors, retries and storage.
///
/// # Errors
/// The registry settings cannot be used, the registry cannot be reached, or it rejects the credential.
pub async fn check_login(
    config: RegistryConfig,
    registry: &str,
    credential: &Credential,
) -> Result<LoginCheck, RuntimeError> {
    let reference: Reference = format!("{registry}/login").parse().map_err(|error| {
        RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("`{registry}` names no registry")).caused_by(error)
    })?;
    if reference.domain() != registry {
        let domain = reference.domain();
        let message = format!("`{registry}` is read as a repository of `{domain}`, not as a registry");
        return Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, message)
            .with_hint(format!("give the registry's port or domain, such as `{registry}:443`")));
    }
    let client = Registry::for_check(config);
    let hosts = client.configured_hosts(&reference).await?.hosts;
    let last = hosts.last().map_or_else(String::new, |host| host.origin.authority());
    let own = hosts.into_iter().rfind(|host| !host.is_mirror).ok_or_else(|| {
        RuntimeError::other(format!("`{registry}` itself is not configured as a host"))
            .with_hint(format!("a credential belongs to the host that is asked: `imagelet login {last}`"))
    })?;
    let session = PullSession::of_login(Arc::clone(&client.shared), reference.canonical(), own, credential);
    let subject = format!("a login at `{registry}`");
    let query = Query { subject, ..Query::new("", Urgency::is_next()) };
    let answer = session.send_to_host(0, &query).await.map_err(|failure| failure.error)?;
    drain(answer.body).await;
    let host = &session.hosts[0];
    // The credential was not checked, because its token service must not receive it.
    if host.withheld.get().is_some() {
        return Err(host.denied(None));
    }
    Ok(if host.grant().is_some() { LoginCheck::Accepted } else { LoginCheck::NotAsked })
}
