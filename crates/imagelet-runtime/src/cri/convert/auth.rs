//! Converts credentials. They are sent only to their registry and never logged.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret, spellings},
    error::{RuntimeError, RuntimeErrorKind},
    image::{DOCKER_HUB, DOCKER_HUB_HOST, Reference, is_docker_hub},
    ports::PullRequest,
};

use tonic::Status;

use crate::cri::v1::AuthConfig;

/// Converts a credential for a pull. The result names a host, so no runtime sends the secret to another host.
///
/// containerd silently drops a credential if the host of its address URL is not the registry's host. So a scheme is
/// added, an alias of Docker Hub becomes Docker Hub's host, and an empty address or a pattern becomes the image's host.
pub(crate) fn auth_to_wire(credential: &Credential, image: &str) -> AuthConfig {
    let host = match address_host(&credential.server_address) {
        host if host.is_empty() || host.contains('*') => image_host(image).unwrap_or_default(),
        host if is_docker_hub(host) => DOCKER_HUB_HOST.to_owned(),
        host => host.to_owned(),
    };
    let mut auth = AuthConfig {
        server_address: if host.is_empty() { credential.server_address.clone() } else { format!("https://{host}") },
        ..AuthConfig::default()
    };
    match &credential.kind {
        CredentialKind::Basic { username, password } => {
            auth.username.clone_from(username);
            password.expose().clone_into(&mut auth.password);
        }
        CredentialKind::IdentityToken(token) => token.expose().clone_into(&mut auth.identity_token),
        CredentialKind::RegistryToken(token) => token.expose().clone_into(&mut auth.registry_token),
    }
    auth
}

/// Converts the credential of a pull of `image`. `None` means that the credential is empty or belongs to another host.
pub(crate) fn credential_from_wire(auth: &AuthConfig, image: &str) -> Result<Option<Credential>, RuntimeError> {
    // An address without a scheme has no host.
    let host = if auth.server_address.contains("://") { address_host(&auth.server_address) } else { "" };
    if !auth.server_address.is_empty() && !is_contacted(host, image) {
        return Ok(None);
    }
    let kind = if !auth.username.is_empty() {
        CredentialKind::Basic { username: auth.username.clone(), password: Secret::new(auth.password.as_str()) }
    } else if !auth.identity_token.is_empty() {
        CredentialKind::IdentityToken(Secret::new(auth.identity_token.as_str()))
    } else if !auth.auth.is_empty() {
        let Some(kind) = kind_from_base64(&auth.auth)? else { return Ok(None) };
        kind
    } else if !auth.registry_token.is_empty() {
        CredentialKind::RegistryToken(Secret::new(auth.registry_token.as_str()))
    } else {
        return Ok(None);
    };
    let server_address = if host == DOCKER_HUB_HOST { DOCKER_HUB } else { host };
    Ok(Some(Credential { kind, server_address: server_address.to_owned() }))
}

/// As in containerd, a password without a user is an identity token. `None` means that both are empty.
fn kind_from_base64(text: &str) -> Result<Option<CredentialKind>, RuntimeError> {
    // The error messages do not quote the text, because the text is the secret.
    let invalid = |why| RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("invalid auth: {why}"));
    let decoded = STANDARD.decode(text).map_err(|_| invalid("it is not base64"))?;
    let decoded = String::from_utf8(decoded).map_err(|_| invalid("it is not text"))?;
    let (username, password) = decoded.split_once(':').ok_or_else(|| invalid("it has no colon"))?;
    let password = Secret::new(password.trim_matches('\0'));
    Ok(match (username, password.expose().is_empty()) {
        ("", true) => None,
        ("", false) => Some(CredentialKind::IdentityToken(password)),
        _ => Some(CredentialKind::Basic { username: username.to_owned(), password }),
    })
}

/// Removes the credential from a runtime's error text, because events and logs contain this text.
pub(crate) fn without_credential(status: Status, request: &PullRequest) -> Status {
    let Some(credential) = &request.credential else { return status };
    let mut secrets: Vec<Secret> = match &credential.kind {
        CredentialKind::Basic { username, password } => {
            let basic = Secret::new(STANDARD.encode(format!("{username}:{}", password.expose())));
            [basic].into_iter().chain(written(password)).collect()
        }
        CredentialKind::IdentityToken(token) | CredentialKind::RegistryToken(token) => written(token),
    };
    // Longest first, because a secret may be part of another secret.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
    if !secrets.iter().any(|secret| status.message().contains(secret.expose())) {
        return status;
    }
    let hide = |message: String, secret: &Secret| message.replace(secret.expose(), "[redacted]");
    // The details of the status are dropped, because they may contain the secret and no client reads them.
    Status::new(status.code(), secrets.iter().fold(status.message().to_owned(), hide))
}

/// All encodings in which an error text may contain a secret. An empty secret has none.
fn written(secret: &Secret) -> Vec<Secret> {
    let coded = Some(secret.expose()).filter(|secret| !secret.is_empty()).map(|secret| STANDARD.encode(secret));
    spellings(secret.expose()).into_iter().chain(coded.map(Secret::new)).collect()
}

fn address_host(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

fn image_host(image: &str) -> Option<String> {
    let reference: Reference = image.parse().ok()?;
    Some(if reference.domain() == DOCKER_HUB { DOCKER_HUB_HOST.to_owned() } else { reference.domain().to_owned() })
}

fn is_contacted(host: &str, image: &str) -> bool {
    let host = if is_docker_hub(host) { DOCKER_HUB_HOST } else { host };
    image_host(image).is_some_and(|contacted| contacted == host)
}

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, server_address, .. } = self;
        f.debug_struct("AuthConfig").field("username", username).field("server", server_address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::v1::PullImageRequest;

    #[test]
    fn a_printed_pull_request_hides_every_secret() {
        let request = PullImageRequest {
            auth: Some(AuthConfig {
                username: "bob".into(),
                password: "hunter2".into(),
                auth: "Ym9iOmh1bnRlcjI=".into(),
                server_address: "r.example".into(),
                identity_token: "refresh-me".into(),
                registry_token: "bearer-me".into(),
            }),
            ..PullImageRequest::default()
        };
        let text = format!("{request:?}");
        for secret in ["hunter2", "Ym9i", "refresh-me", "bearer-me"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert!(text.contains("bob") && text.contains("r.example"), "{text}");
    }

    #[test]
    fn a_refusal_is_repeated_without_the_credential_it_was_for() {
        let shown = |kind: &CredentialKind, message: &str| {
            let credential = Some(Credential { kind: kind.clone(), server_address: "r.example".into() });
            let status = Status::with_details(tonic::Code::PermissionDenied, message, message.to_owned().into());
            let status = without_credential(status, &PullRequest { credential, ..PullRequest::default() });
            assert_eq!(status.code(), tonic::Code::PermissionDenied);
            assert!(status.message() == message || status.details().is_empty(), "the details repeat it");
            status.message().to_owned()
        };
        let password = "p@s-s\"word";
        let basic = CredentialKind::Basic { username: "bob".into(), password: Secret::new(password) };
        let identity = CredentialKind::IdentityToken(Secret::new(password));
        let registry = CredentialKind::RegistryToken(Secret::new(password));
        let spelled = [password, "p@s-s\\\"word", "p%40s-s%22word", "p%40s%2Ds%22word", &STANDARD.encode(password)];
        for kind in [&basic, &identity, &registry] {
            for secret in spelled {
                assert_eq!(shown(kind, &format!("bob: {secret}, {secret}!")), "bob: [redacted], [redacted]!");
            }
            assert_eq!(shown(kind, "bob may not pull"), "bob may not pull");
        }
        let coded = STANDARD.encode(format!("bob:{password}"));
        assert_eq!(shown(&basic, &format!("Authorization: Basic {coded}")), "Authorization: Basic [redacted]");
        // The encoded form of this one contains it.
        let short = CredentialKind::RegistryToken(Secret::new("Q"));
        assert_eq!(
            (STANDARD.encode("Q").as_str(), shown(&short, "no UQ== here").as_str()),
            ("UQ==", "no [redacted] here")
        );
        let empty = CredentialKind::Basic { username: String::new(), password: Secret::new("") };
        assert_eq!(shown(&empty, "no credentials"), "no credentials");
    }

    fn basic(server_address: &str) -> Credential {
        Credential::basic(server_address, "bob", Secret::new("hunter2"))
    }

    #[test]
    fn an_address_names_the_one_host_a_credential_is_for() {
        for (address, image, wire) in [
            ("r.example", "r.example/a", "https://r.example"),
            ("http://r.example:5000/v2/", "r.example:5000/a", "https://r.example:5000"),
            ("r.example/team", "r.example/team/a", "https://r.example"),
            ("https://index.docker.io/v1/", "busybox", "https://registry-1.docker.io"),
            ("docker.io", "busybox", "https://registry-1.docker.io"),
            ("*.example", "r.example/a", "https://r.example"),
            ("", "r.example/a", "https://r.example"),
            ("other.example", "r.example/a", "https://other.example"),
        ] {
            assert_eq!(auth_to_wire(&basic(address), image).server_address, wire, "{address}");
        }
    }

    #[test]
    fn a_credential_for_another_host_is_not_used() {
        let from = |server_address: &str, image: &str| {
            let auth = AuthConfig {
                username: "bob".into(),
                password: "hunter2".into(),
                server_address: server_address.into(),
                ..AuthConfig::default()
            };
            credential_from_wire(&auth, image).unwrap().is_some()
        };
        assert!(from("", "r.example/a"));
        assert!(from("https://r.example", "r.example/a"));
        assert!(from("https://index.docker.io/v1/", "busybox"));
        assert!(!from("https://evil.example", "r.example/a"));
        assert!(!from("r.example", "r.example/a"), "without a scheme there is no host");
    }

    #[test]
    fn the_first_form_of_credential_that_is_there_is_used() {
        let full = AuthConfig {
            username: "bob".into(),
            password: "one".into(),
            identity_token: "two".into(),
            auth: STANDARD.encode("ann:three\0"),
            registry_token: "four".into(),
            ..AuthConfig::default()
        };
        let read = |auth: &AuthConfig| credential_from_wire(auth, "a").unwrap().map(|credential| credential.kind);
        let user = |username: &str, password: &str| {
            Some(CredentialKind::Basic { username: username.into(), password: Secret::new(password) })
        };
        assert_eq!(read(&full), user("bob", "one"));
        let full = AuthConfig { username: String::new(), ..full };
        assert_eq!(read(&full), Some(CredentialKind::IdentityToken(Secret::new("two"))));
        let full = AuthConfig { identity_token: String::new(), ..full };
        assert_eq!(read(&full), user("ann", "three"));
        let full = AuthConfig { auth: String::new(), ..full };
        assert_eq!(read(&full), Some(CredentialKind::RegistryToken(Secret::new("four"))));
        assert_eq!(read(&AuthConfig::default()), None);
    }

    #[test]
    fn an_auth_without_a_user_is_an_identity_token() {
        let read = |text: &str| {
            let auth = AuthConfig { auth: STANDARD.encode(text), ..AuthConfig::default() };
            credential_from_wire(&auth, "a").unwrap().map(|credential| credential.kind)
        };
        assert_eq!(read(":refresh\0"), Some(CredentialKind::IdentityToken(Secret::new("refresh"))));
        assert_eq!(read(":"), None);
        assert_eq!(read("bob:"), Some(CredentialKind::Basic { username: "bob".into(), password: Secret::new("") }));
    }

    #[test]
    fn an_auth_that_does_not_decode_is_refused_without_being_shown() {
        for auth in ["%%%", &STANDARD.encode("nocolon"), &STANDARD.encode([0xff, b':'])] {
            let config = AuthConfig { auth: auth.to_owned(), ..AuthConfig::default() };
            let error = credential_from_wire(&config, "a").unwrap_err();
            assert_eq!(error.kind(), RuntimeErrorKind::InvalidArgument);
            assert!(!error.chain().contains(auth), "{}", error.chain());
        }
    }
}
