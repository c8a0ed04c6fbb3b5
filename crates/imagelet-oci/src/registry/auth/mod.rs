//! Authenticates requests to a registry.
//!
//! **Invariant:** a credential, and every token obtained with it, lives in one pull session and is sent to one
//! origin:
//! its own registry, and that registry's token service if it passes [`check_realm`] and [`may_see`].

pub(super) mod challenge;
pub(super) mod grant;

use std::sync::PoisonError;

use http::{HeaderMap, Method, StatusCode, header};
use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    runtime::{ErrorClass, Fault, RuntimeError, Stage},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use zeroize::Zeroizing;

use self::{
    challenge::{Challenge, challenges},
    grant::{Grant, basic},
};
use super::{
    Registry,
    connection::{
        origin::{Origin, Target},
        transport::{Redirects, Request},
    },
    error::{Failure, denied, explanation, status_fault, unavailable},
    hosts::Host,
    pull_session::PullSession,
};

const TOKEN_BYTES_MAX: usize = 1 << 20;
const CLIENT_ID: &str = "imagelet";
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl Registry {
    /// Answers a 401. `shown` is the rejected grant.
    pub(super) async fn authenticate(
        &self,
        session: &PullSession,
        index: usize,
        headers: &HeaderMap,
        shown: Option<u64>,
    ) -> Result<(), Failure> {
        let host = session.host(index);
        let place = host.origin.authority();
        if session.grant(index).map(|grant| grant.number) != shown {
            return Ok(()); // Another request of this pull was quicker.
        }
        let credential = session.credential_for(host);
        if matches!(credential.map(|credential| &credential.kind), Some(CredentialKind::RegistryToken(_))) {
            return Err(session.denied(index, None).into());
        }
        let challenges = challenges(headers).map_err(|error| {
            denied(format!("registry `{place}` asks for a credential unintelligibly")).caused_by(error)
        })?;
        let number = shown.map_or(0, |number| number + 1);
        let secret = if let Some(bearer) = challenges.iter().find(|challenge| challenge.scheme == "bearer") {
            ("Bearer", self.token(session, index, bearer).await?)
        } else if challenges.iter().any(|challenge| challenge.scheme == "basic") {
            match credential.map(|credential| &credential.kind) {
                Some(CredentialKind::Basic { username, password }) if shown.is_none() => {
                    ("Basic", basic(username, password))
                }
                _ => return Err(session.denied(index, None).into()),
            }
        } else {
            return Err(
                denied(format!("registry `{place}` asks for a kind of credential that is not supported")).into()
            );
        };
        let grant = Grant::new(secret.0, secret.1, number)
            .map_err(|_| denied(format!("the credential for registry `{place}` cannot be sent in a header")))?;
        *session.grant_slot(index).lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
        Ok(())
    }

    /// Gets a token to pull this one repository.
    async fn token(&self, session: &PullSession, index: usize, challenge: &Challenge) -> Result<Secret, Failure> {
        let host = session.host(index);
        let realm = challenge.parameter("realm").unwrap_or_default();
        let target = check_realm(realm, &host.origin)?;
        let place = target.origin.authority();
        let own = session.credential_for(host);
        let credential = own.filter(|_| may_see(&target.origin, &host.origin));
        if own.is_some() && credential.is_none() {
            // Public content needs no credential.
            session.withhold(index, &target.origin);
        }
        let request = token_request(target, challenge.parameter("service"), &session.scope(host), credential, host)?;
        let at_token = |failure: Failure| failure.at(Stage::Token);
        let exchange = async {
            let answer = self.transport().send(request, session.reception()).await?;
            let (body, cut) = self
                .transport()
                .read(answer.body, TOKEN_BYTES_MAX, session.reception())
                .await
                .map_err(|error| error.failure("a token", &place))?;
            let body = Zeroizing::new(Vec::from(body));
            if cut {
                return Err(
                    denied(format!("token service `{place}` answered with more than {TOKEN_BYTES_MAX} bytes")).into()
                );
            }
            let kind =
                answer.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
            if answer.status == StatusCode::OK {
                return read_token(&body).ok_or_else(|| {
                    denied(format!("token service `{place}` answered without a token{}", of_type(kind))).into()
                });
            }
            // Such a service may return a token with any status.
            let has_token = body.windows(6).any(|part| part == b"token\"");
            let shown: &[u8] = if has_token { &[] } else { &body[..body.len().min(8 << 10)] };
            let words = explanation(kind, shown, body.len() > 8 << 10, &session.secrets());
            Err(token_refused(session, index, &place, answer.status, words))
        };
        let Ok(answer) = tokio::time::timeout(self.transport().token_timeout, exchange).await else {
            let seconds = self.transport().token_timeout.as_secs_f32();
            let message = format!("token service `{place}` did not end its answer within {seconds} s");
            return Err(unavailable(message).with_fault(Fault::new(ErrorClass::TimedOut, Stage::Token)).into());
        };
        answer.map_err(at_token)
    }
}

fn of_type(content_type: &str) -> String {
    let media_type_base = crate::manifest::media_type_base(content_type);
    if media_type_base.is_empty() {
        String::new()
    } else {
        format!(", with `{}`", crate::manifest::printable(&media_type_base))
    }
}

fn token_refused(
    session: &PullSession,
    index: usize,
    place: &str,
    status: StatusCode,
    words: Option<String>,
) -> Failure {
    let words = words.map(|words| format!(": {words}")).unwrap_or_default();
    let message = format!("token service `{place}` answered {status}{words}");
    let refused = match status.as_u16() {
        401 | 403 => session.denied(index, Some(message)).into(),
        408 | 429 | 500..=599 => Failure::passing(unavailable(message)),
        _ => denied(message).into(),
    };
    let fault = status_fault(status.as_u16(), Stage::Token, None);
    Failure { error: refused.error.with_fault(fault), again: refused.again }
}

/// A GET, or a POST to exchange a refresh token.
fn token_request(
    target: Target,
    service: Option<&str>,
    scope: &str,
    credential: Option<&Credential>,
    host: &Host,
) -> Result<Request, RuntimeError> {
    let pair = |name: &str, value: &str| format!("{name}={}", utf8_percent_encode(value, QUERY));
    let mut query: Vec<String> = service.map(|service| pair("service", service)).into_iter().collect();
    query.push(pair("scope", scope));
    let mut bound = HeaderMap::new();
    let mut form = None;
    match credential.map(|credential| &credential.kind) {
        Some(CredentialKind::Basic { username, password }) => {
            let unsendable = |_| denied("the credential cannot be sent in a header");
            bound.insert(
                header::AUTHORIZATION,
                Grant::new("Basic", basic(username, password), 0).map_err(unsendable)?.header,
            );
            query.push(pair("account", username));
        }
        Some(CredentialKind::IdentityToken(token)) => {
            let exchange = [
                pair("grant_type", "refresh_token"),
                pair("client_id", CLIENT_ID),
                pair("refresh_token", token.expose()),
            ];
            form = Some(exchange.into_iter().chain(query.drain(..)).collect::<Vec<_>>().join("&"));
        }
        Some(CredentialKind::RegistryToken(_)) | None => {}
    }
    let target = if query.is_empty() { target } else { target.with_query(&query.join("&")) };
    // The registry's TLS settings apply; the client certificate is sent only to the registry's own origin.
    let mut tls = host.tls.clone();
    tls.identity = tls.identity.filter(|_| target.origin == host.origin);
    let (redirects, hop) = (Redirects::SameOrigin, Stage::Token);
    Ok(Request { target, tls, bound, open: HeaderMap::new(), method: Method::GET, form, redirects, hop })
}

/// Whether a token service may receive the registry's credential: over HTTPS, or as the registry's own origin.
/// Over plain HTTP an attacker can rewrite the challenge and redirect the credential.
fn may_see(service: &Origin, registry: &Origin) -> bool {
    service.is_https() || service == registry
}

/// The target of a token request, if it is allowed.
///
/// The realm may be another host (Docker Hub's is). It must be encrypted, unless it is the host of an unencrypted
/// registry. It must not be an internal address, unless the registry has one.
fn check_realm(realm: &str, registry: &Origin) -> Result<Target, RuntimeError> {
    let place = registry.authority();
    let refuse = |why: String| denied(format!("registry `{place}` names a token service that is not asked: {why}"));
    if realm.is_empty() {
        return Err(refuse("its address is missing".to_owned()));
    }
    let target = Target::parse(realm).map_err(|problem| refuse(format!("its address is {problem}")))?;
    let authority = realm.split("://").nth(1).unwrap_or_default().split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(refuse("its address has a user in it".to_owned()));
    }
    let service = &target.origin;
    let beside = service.is_same_host(registry) || (service.is_loopback() && registry.is_loopback());
    if !service.is_https() && (registry.is_https() || !beside) {
        return Err(refuse(format!("`{service}` is not encrypted")));
    }
    if service.is_internal() && !registry.is_internal() {
        return Err(refuse(format!("`{service}` is inside the network, and the registry is not")));
    }
    Ok(target)
}

fn read_token(body: &[u8]) -> Option<Secret> {
    #[derive(serde::Deserialize)]
    struct Answer {
        #[serde(default)]
        token: Option<Zeroizing<String>>,
        #[serde(default)]
        access_token: Option<Zeroizing<String>>,
    }
    let answer: Answer = serde_json::from_slice(body).ok()?;
    let token = answer.token.filter(|token| !token.is_empty()).or(answer.access_token)?;
    (!token.is_empty()).then(|| Secret::new(token.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_service_is_asked_only_where_tokens_may_come_from() {
        for (registry, realm, allowed) in [
            ("https://registry-1.docker.io", "https://auth.docker.io/token", true),
            ("https://r.example", "https://r.example/token?x=1", true),
            ("https://r.example", "http://r.example/token", false),
            ("https://r.example", "https://127.0.0.1/token", false),
            ("https://r.example", "https://localhost/token", false),
            ("https://r.example", "https://169.254.169.254/latest", false),
            ("https://r.example", "https://[::1]/token", false),
            ("https://r.example", "https://2130706433/token", false),
            ("https://r.example", "https://user:pw@auth.example/token", false),
            ("https://r.example", "file:///etc/passwd", false),
            ("https://r.example", "/token", false),
            ("https://r.example", "", false),
            ("http://r.example:5000", "http://r.example:5001/token", true),
            ("http://r.example:5000", "http://other.example/token", false),
            ("http://r.example:5000", "https://other.example/token", true),
            ("http://127.0.0.1:5000", "http://127.0.0.1:5001/token", true),
            ("http://127.0.0.1:5000", "http://localhost:5001/token", true),
            ("http://10.0.0.1:5000", "http://169.254.169.254/token", false),
            ("https://10.0.0.1:5000", "https://10.0.0.2/token", true),
        ] {
            let origin = Target::parse(registry).unwrap().origin;
            assert_eq!(check_realm(realm, &origin).is_ok(), allowed, "{registry} -> {realm}");
        }
    }

    #[test]
    fn a_credential_follows_a_realm_over_https_or_to_the_registrys_own_origin_alone() {
        for (registry, realm, shown) in [
            ("https://registry-1.docker.io", "https://auth.docker.io/token", true),
            ("http://r.example:5000", "https://other.example/token", true),
            ("http://r.example:5000", "http://r.example:5000/token", true),
            ("http://r.example", "http://R.example:80/token", true),
            ("http://r.example:5000", "http://r.example:5001/token", false),
            ("http://r.example:5000", "http://r.example/token", false),
            ("http://127.0.0.1:5000", "http://localhost:5000/token", false),
            ("http://127.0.0.1:5000", "http://127.0.0.1:5001/token", false),
        ] {
            let origin = Target::parse(registry).unwrap().origin;
            let service = check_realm(realm, &origin).expect(realm).origin;
            assert_eq!(may_see(&service, &origin), shown, "{registry} -> {realm}");
        }
    }

    #[test]
    fn a_token_is_read_by_either_name() {
        let token = |body: &str| read_token(body.as_bytes()).map(|token| token.expose().to_owned());
        assert_eq!(token(r#"{"token":"a","access_token":"b","expires_in":60}"#).as_deref(), Some("a"));
        assert_eq!(token(r#"{"access_token":"b"}"#).as_deref(), Some("b"));
        for body in ["", "<html>", "{}", r#"{"token":""}"#, r#"{"token":null}"#, "[]"] {
            assert_eq!(token(body), None, "{body}");
        }
    }

    #[test]
    fn a_grant_does_not_print() {
        let grant = Grant::new("Basic", basic("user", &Secret::new("hunter2")), 0).unwrap();
        assert!(!format!("{grant:?} {:?}", grant.header).contains("aHVudGVyMg"));
        assert!(!format!("{grant:?}").contains("dXNlcjpodW50ZXIy"));
    }
}
