//! Authenticates requests to a registry (`docs/spec/pull.md §13.8`).
//!
//! **Invariant:** a credential and the tokens obtained with it belong to one pull session. They are sent only to their
//! registry, and to its token service if [`check_realm`] and [`may_see`] accept the service.

pub(super) mod challenge;

use std::time::SystemTime;

use http::{HeaderMap, StatusCode, header};
use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    error::{ErrorClass, Fault, Party, RuntimeError, RuntimeErrorKind, Stage},
    image::ByteSize,
    ports::{PullEvent, TokenExchange},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use tokio::time::Instant;
use zeroize::Zeroizing;

use self::challenge::{Challenge, challenges};
use super::{
    connection::{Origin, Request, RequestKind, Target, Urgency, authorization, basic, listing_hint, may_send_on},
    error::{ERROR_BYTES_MAX, Failure, Retry, denied, explanation, status_fault, status_retry, unavailable},
    locked,
    path_check::steps::record,
    pull_session::{Grant, PullSession, SessionHost},
    rate_limit::requested_wait,
};
use crate::manifest::{media_type_base, printable};

const TOKEN_BYTES_MAX: usize = 1 << 20;
const CLIENT_ID: &str = "imagelet";
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl PullSession {
    /// Obtains a grant (an `Authorization` header) after a 401. `shown` is the number of the rejected grant.
    pub(super) async fn authenticate(
        &self,
        host: &SessionHost,
        headers: &HeaderMap,
        shown: Option<u64>,
    ) -> Result<(), Failure> {
        let place = host.host.origin.authority();
        // The lock lets parallel requests of a pull share one new grant.
        let _renewal = host.renewal.lock().await;
        if host.grant().map(|grant| grant.number) != shown {
            return Ok(()); // Another request of this pull has obtained a new grant.
        }
        let credential = host.credential.as_ref().map(|credential| &credential.kind);
        if matches!(credential, Some(CredentialKind::RegistryToken(_))) {
            return Err(host.denied(None).into());
        }
        let challenges = challenges(headers).map_err(|error| {
            denied(format!("registry `{place}` sends a malformed request for a credential")).caused_by(error)
        })?;
        let (scheme, secret) = if let Some(bearer) = challenges.iter().find(|challenge| challenge.scheme == "bearer") {
            ("Bearer", self.token(host, bearer).await?)
        } else if challenges.iter().any(|challenge| challenge.scheme == "basic") {
            match credential {
                Some(CredentialKind::Basic { username, password }) if shown.is_none() => {
                    host.show();
                    ("Basic", basic(username, password))
                }
                _ => return Err(host.denied(None).into()),
            }
        } else {
            if host.was_shown() {
                return Err(host.denied(None).into());
            }
            let what = if credential.is_some() { "; the given one was not sent" } else { "" };
            return Err(denied(format!("registry `{place}` requires an unsupported kind of credential{what}")).into());
        };
        let grant = Grant::new(scheme, secret, shown.map_or(0, |number| number + 1))
            .map_err(|_| denied(format!("the credential for registry `{place}` cannot be sent in a header")))?;
        *locked(&host.grant) = Some(grant);
        Ok(())
    }

    async fn token(&self, host: &SessionHost, challenge: &Challenge) -> Result<Secret, Failure> {
        let target = check_realm(challenge.parameter("realm").unwrap_or_default(), &host.host.origin, &self.listed)?;
        let (service, began) = (target.origin.authority(), Instant::now());
        let token = self.token_from(target, host, challenge).await;
        let (ended, is_granted) = (Instant::now(), token.is_ok());
        self.report(PullEvent::Token(TokenExchange { service, began, ended, is_granted }));
        token
    }

    async fn token_from(&self, target: Target, host: &SessionHost, challenge: &Challenge) -> Result<Secret, Failure> {
        let place = target.origin.authority();
        let credential = host.credential.as_ref().filter(|_| may_see(&target.origin, &host.host.origin));
        if host.credential.is_some() && credential.is_none() {
            // The token is requested without the credential, because public content needs none.
            host.withheld.get_or_init(|| target.origin.clone());
        }
        let service = challenge.parameter("service");
        let (request, as_form) = token_requests(&target, service, credential, host)?;
        // Both token requests use one slot. The wait for the slot, which depends on other pulls, has no deadline.
        let _slot = self.shared.transport.slots.acquire(&target.origin, &Urgency::is_next()).await;
        // Both token requests and the body have one deadline, so that the next host is tried in time.
        let timeout = self.shared.transport.header_timeout;
        let is_own = target.origin == host.host.origin;
        let of_service = |failure: Failure| if is_own { failure } else { failure.of(Party::TokenService) };
        let began = Instant::now();
        let exchange = async {
            match (self.exchange_token(host, request, &place).await, as_form) {
                // Some services support only `POST`, the OAuth 2 form of the token protocol.
                (Ok(None), Some(as_form)) => self.exchange_token(host, as_form, &place).await,
                (answer, _) => answer,
            }
        };
        let Ok(answer) = tokio::time::timeout(timeout, exchange).await else {
            let message = format!("token service `{place}` did not end its answer within {} s", timeout.as_secs_f32());
            let error = unavailable(ErrorClass::TimedOut, Stage::Token, message);
            return Err(of_service(Failure { error, retry: Retry::Soon }));
        };
        let token = answer.map_err(|failure| of_service(failure.at(Stage::Token)))?;
        let token = token.ok_or_else(|| unusable(&place, "does not serve this kind of request"))?;
        let kind = if credential.is_some() { "with the credential" } else { "anonymous" };
        record(Stage::Token, began, &place, kind.to_owned());
        Ok(token)
    }

    /// Sends one token request. Returns `None` if the service does not support the method.
    async fn exchange_token(
        &self,
        host: &SessionHost,
        request: Request,
        place: &str,
    ) -> Result<Option<Secret>, Failure> {
        let has_credential =
            matches!(request.kind, RequestKind::Form(_)) || request.bound.contains_key(header::AUTHORIZATION);
        let answer = self.shared.transport.send(request, &self.reception).await?;
        if has_credential {
            host.show();
        }
        let kind = answer.header("content-type").to_owned();
        let wait = requested_wait(answer.status, &answer.headers, SystemTime::now());
        let (body, cut) = answer.body.read(TOKEN_BYTES_MAX).await.map_err(|error| error.failure("a token", place))?;
        let body = Zeroizing::new(Vec::from(body));
        if cut {
            let limit = ByteSize(TOKEN_BYTES_MAX as u64);
            return Err(unusable(place, &format!("answered with more than {limit}")));
        }
        if answer.status == StatusCode::OK {
            let with = media_type_base(&kind);
            let with = if with.is_empty() { with } else { format!(", with `{}`", printable(&with)) };
            let token = read_token(&body).map(Some);
            return token.ok_or_else(|| unusable(place, &format!("answered without a token{with}")));
        }
        if answer.status == StatusCode::METHOD_NOT_ALLOWED {
            return Ok(None);
        }
        // An error answer may contain a token. Then its body is not shown.
        let has_token = body.windows(6).any(|part| part == b"token\"");
        let shown: &[u8] = if has_token { &[] } else { &body[..body.len().min(ERROR_BYTES_MAX)] };
        let words = explanation(&kind, shown, body.len() > ERROR_BYTES_MAX, &self.secrets());
        // A registry may name any host as its token service. So the body from another origin is not shown.
        let words = words.filter(|_| answer.target.origin == host.host.origin);
        let words = words.map(|words| format!(": {words}")).unwrap_or_default();
        let message = format!("token service `{place}` answered {}{words}", answer.status);
        let status = answer.status.as_u16();
        let retry = status_retry(status, wait);
        let error = match status {
            401 | 403 => host.denied(Some(message)),
            _ if retry.is_some() => RuntimeError::new(RuntimeErrorKind::RegistryUnavailable, message),
            _ => denied(message),
        };
        let error = error.with_fault(status_fault(status, Stage::Token, wait));
        Err(Failure { error, retry: retry.unwrap_or(Retry::Never) })
    }
}

fn unusable(place: &str, what: &str) -> Failure {
    let fault = Fault::new(ErrorClass::AnswerInvalid, Stage::Token);
    denied(format!("token service `{place}` {what}")).with_fault(fault).into()
}

/// The token request. With a password, there is a second request with a form, for services that support only `POST`.
fn token_requests(
    target: &Target,
    service: Option<&str>,
    credential: Option<&Credential>,
    host: &SessionHost,
) -> Result<(Request, Option<Request>), RuntimeError> {
    // The registry's TLS settings also apply to its token service.
    let connection = host.host.connection.clone();
    let connection = if target.origin == host.host.origin { connection } else { connection.for_other_origin() };
    let request = |target| Request { stage: Stage::Token, urgency: None, ..Request::get(target, &connection) };
    let wanted = [("service", service.map(str::to_owned)), ("scope", host.scope())];
    let wanted: Vec<String> = wanted.into_iter().filter_map(|(name, value)| Some(pair(name, &value?))).collect();
    let query = |account: &[String]| request(target.clone().with_query(&[&wanted[..], account].concat().join("&")));
    let form = |grant: &[String]| Request {
        kind: RequestKind::Form(Secret::new([grant, &wanted, &[pair("client_id", CLIENT_ID)]].concat().join("&"))),
        ..request(target.clone())
    };
    Ok(match credential.map(|credential| &credential.kind) {
        Some(CredentialKind::Basic { username, password }) => {
            let shown = authorization("Basic", &basic(username, password));
            let shown = shown.map_err(|_| denied("the credential cannot be sent in a header"))?;
            let mut request = query(&[pair("account", username)]);
            request.bound.insert(header::AUTHORIZATION, shown);
            let password = pair("password", password.expose());
            (request, Some(form(&[pair("grant_type", "password"), pair("username", username), password])))
        }
        Some(CredentialKind::IdentityToken(token)) => {
            (form(&[pair("grant_type", "refresh_token"), pair("refresh_token", token.expose())]), None)
        }
        Some(CredentialKind::RegistryToken(_)) | None => (query(&[]), None),
    })
}

fn pair(name: &str, value: &str) -> String {
    format!("{name}={}", utf8_percent_encode(value, QUERY))
}

/// Whether a token service may receive the registry's credential. Over plain HTTP, an attacker can rewrite the
/// challenge and redirect the credential, so only HTTPS or the registry's origin is accepted.
fn may_see(service: &Origin, registry: &Origin) -> bool {
    service.is_https || service == registry
}

/// The target of a token request. The realm may be on another host, as for Docker Hub. It must use HTTPS, unless the
/// registry on the same host uses HTTP. An internal realm needs an internal registry, or an entry in the configuration.
fn check_realm(realm: &str, registry: &Origin, listed: &[Origin]) -> Result<Target, RuntimeError> {
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
    let beside = service.host() == registry.host() || (service.is_loopback() && registry.is_loopback());
    if !service.is_https && (registry.is_https || !beside) {
        return Err(refuse(format!("`{service}` is not encrypted")));
    }
    if !may_send_on(registry, service, listed) {
        let error = refuse(format!("`{service}` is inside the network, and the registry is not"));
        return Err(error.with_hint(listing_hint(service)));
    }
    Ok(target)
}

pub(crate) fn read_token(body: &[u8]) -> Option<Secret> {
    #[derive(serde::Deserialize)]
    struct Response {
        #[serde(default)]
        token: Option<Zeroizing<String>>,
        #[serde(default)]
        access_token: Option<Zeroizing<String>>,
    }
    let answer: Response = serde_json::from_slice(body).ok()?;
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
            assert_eq!(check_realm(realm, &origin, &[]).is_ok(), allowed, "{registry} -> {realm}");
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
            let service = check_realm(realm, &origin, &[]).expect(realm).origin;
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
