//! The error for an unreachable host, its class, and a hint if a correction is known.

use std::{
    error::Error as StdError,
    io::{self, ErrorKind},
    time::{Duration, SystemTime},
};

use http::StatusCode;
use imagelet_core::error::{ErrorClass, RuntimeError, Stage};
use rustls::{AlertDescription, CertificateError, pki_types::UnixTime};

use super::{ConnectError, HttpError, proxy::Proxy, stream::Rejected};
use crate::{manifest::printable, registry::error::unavailable};

const PROXY_CREDENTIAL_HINT: &str = "set user and password in the URL of the proxy: `http://USER:PASSWORD@HOST:PORT`";
const NAMES_MAX: usize = 8;

pub(crate) fn unreachable(host: &str, stage: Stage, cause: impl StdError + Send + Sync + 'static) -> RuntimeError {
    let cause = HttpError::new(cause);
    let with = |(class, stage), message: String| unavailable(class, stage, message);
    if causes(&cause).filter_map(|error| error.downcast_ref()).any(hyper::Error::is_parse) {
        let message = format!("registry `{host}` did not answer in HTTP");
        return with((ErrorClass::AnswerInvalid, stage), message).caused_by(cause);
    }
    let fault = connect_fault(&cause);
    let connecting = causes(&cause).find_map(|error| error.downcast_ref());
    let refusal = causes(&cause).find_map(|error| error.downcast_ref());
    let corrected = match (connecting, refusal) {
        (Some(ConnectError::BadProxy(_)), _) => {
            let hint = "correct the variable, or name the registry in `NO_PROXY`".to_owned();
            Some((format!("could not reach registry `{host}`"), hint))
        }
        (Some(ConnectError::Tunnel { source, .. }), _)
            if matches!(**source, ConnectError::ProxyRefused(StatusCode::PROXY_AUTHENTICATION_REQUIRED)) =>
        {
            Some((format!("could not reach registry `{host}`"), PROXY_CREDENTIAL_HINT.to_owned()))
        }
        _ if fault.1 == Stage::Proxy => None,
        _ if is_unexplained(&cause) => {
            Some((format!("could not set up TLS with registry `{host}`"), client_hint(host)))
        }
        (_, Some(refusal)) => {
            // The cause is omitted, because the problem says the same.
            if let Some((problem, hint)) = tls_problem(refusal, host) {
                let message = format!("could not set up TLS with registry `{host}`: {problem}");
                return with(fault, message).with_hint(hint).not_an_outage();
            }
            None
        }
        _ => None,
    };
    match corrected {
        // The registry may be healthy; only this node's configuration is wrong.
        Some((message, hint)) => with(fault, message).caused_by(cause).with_hint(hint).not_an_outage(),
        None => with(fault, format!("could not reach registry `{host}`")).caused_by(cause),
    }
}

pub(crate) fn is_no_http(error: &RuntimeError) -> bool {
    let error = causes(error).find_map(|error| error.downcast_ref::<hyper::Error>());
    error.is_some_and(|error| error.is_parse() || error.is_incomplete_message())
}

/// Whether a server that requested a client certificate closed the connection without an alert.
pub(crate) fn is_unexplained(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(<dyn StdError>::is::<Rejected>)
}

pub(crate) fn proxy_denied(host: &str, proxy: &Proxy) -> RuntimeError {
    let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
    let message = format!("could not reach registry `{host}`: proxy `{proxy}` answers {status}");
    unavailable(ErrorClass::ProxyFailed, Stage::Proxy, message).with_hint(PROXY_CREDENTIAL_HINT).not_an_outage()
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // `HttpError` and `io::Error` do not return their wrapped error from `source`.
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return Some(error.get_ref());
        }
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

fn connect_fault(error: &(dyn StdError + 'static)) -> (ErrorClass, Stage) {
    use ConnectError::{AllFailed, BadProxy, DialLate, ProxyAway, Tls, TlsLate, Tunnel, Unresolved};
    let failed = causes(error).find_map(|error| error.downcast_ref());
    let refusal = causes(error).find_map(|error| error.downcast_ref());
    match (failed, refusal) {
        (Some(BadProxy(_) | ProxyAway { .. } | Tunnel { .. }), _) => (ErrorClass::ProxyFailed, Stage::Proxy),
        _ if is_unexplained(error) => (ErrorClass::TlsFailed, Stage::Tls),
        (_, Some(rustls::Error::InvalidCertificate(_))) => (ErrorClass::CertificateInvalid, Stage::Tls),
        (_, Some(_)) => (ErrorClass::TlsFailed, Stage::Tls),
        (Some(Unresolved { .. }), _) => (ErrorClass::HostNotFound, Stage::Dns),
        (Some(DialLate { .. }), _) => (ErrorClass::Unreachable, Stage::Connect),
        (Some(AllFailed(attempts)), _) => {
            // The class is that of the first address, which the resolver prefers.
            let class = attempts.first().and_then(|(_, error)| io_class(error));
            (class.unwrap_or(ErrorClass::ConnectionLost), Stage::Connect)
        }
        (Some(TlsLate(_)), _) => (ErrorClass::TimedOut, Stage::Tls),
        (Some(Tls(error)), _) => (io_class(error).unwrap_or(ErrorClass::TlsFailed), Stage::Tls),
        _ => {
            let class = causes(error).filter_map(|error| error.downcast_ref()).find_map(io_class);
            (class.unwrap_or(ErrorClass::ConnectionLost), Stage::Connect)
        }
    }
}

fn io_class(error: &io::Error) -> Option<ErrorClass> {
    Some(match error.kind() {
        ErrorKind::ConnectionRefused => ErrorClass::ConnectionRefused,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => ErrorClass::ConnectionLost,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut => ErrorClass::Unreachable,
        _ => return None,
    })
}

fn tls_problem(refusal: &rustls::Error, host: &str) -> Option<(String, String)> {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown,
        HandshakeFailure, NoCertificate, ProtocolVersion, UnknownCA, UnrecognisedName, UnsupportedCertificate,
    };
    let (problem, hint) = match refusal {
        rustls::Error::InvalidCertificate(problem) => return Some(certificate_problem(problem, host)),
        rustls::Error::InvalidMessage(_) => (
            "the server speaks plain HTTP, or no valid TLS",
            format!(
                "if plain HTTP is meant, say `server = \"http://{host}\"` in `{host}/hosts.toml`, or `insecure = true` for \
                 it in `registries.conf`, which accepts any certificate, too"
            ),
        ),
        rustls::Error::AlertReceived(ProtocolVersion) | rustls::Error::PeerIncompatible(_) => (
            "the server speaks neither TLS 1.2 nor 1.3 as this client does",
            format!("enable TLS 1.2 or 1.3 with a current cipher on `{host}`; older versions are not used"),
        ),
        rustls::Error::AlertReceived(UnrecognisedName) => (
            "the server has no certificate for this name",
            format!("check that `{host}` is a name that the server serves"),
        ),
        rustls::Error::AlertReceived(HandshakeFailure) => (
            "the server ends the handshake: it requires a client certificate, or a cipher that this client lacks",
            client_hint(host),
        ),
        rustls::Error::AlertReceived(
            alert @ (AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | NoCertificate
            | UnknownCA
            | UnsupportedCertificate),
        ) => {
            let problem = format!("the server requires a client certificate, or rejects this one (alert `{alert:?}`)");
            return Some((problem, client_hint(host)));
        }
        _ => return None,
    };
    Some((problem.to_owned(), hint))
}

fn client_hint(host: &str) -> String {
    format!(
        "name a certificate and its key that `{host}` accepts: `client = [[\"client.cert\", \"client.key\"]]` in `{host}/hosts.toml`"
    )
}

fn certificate_problem(problem: &CertificateError, host: &str) -> (String, String) {
    use CertificateError::{ExpiredContext, NotValidForNameContext, NotValidYetContext, UnknownIssuer};
    let date = |time: &UnixTime| httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    let other = if let CertificateError::Other(other) = problem { other.0.downcast_ref() } else { None };
    let clock = format!("renew the certificate of `{host}`, or set the clock of this node");
    let trust = format!(
        "if you trust it, name its certificate authority, or the certificate itself, as `ca` in `{host}/hosts.toml`, or \
         where another registry's `hosts.toml` names this host"
    );
    let other_name =
        format!("the certificate is for other names: ask for one with `{host}` in it, or pull by one of its names");
    let (text, hint) = match (problem, other) {
        (ExpiredContext { not_after, .. }, _) => (format!("expired on {}", date(not_after)), clock),
        (NotValidYetContext { not_before, .. }, _) => {
            (format!("is not valid yet, only from {}", date(not_before)), clock)
        }
        (NotValidForNameContext { presented, .. }, _) if !presented.is_empty() => {
            // The verifier writes a name as `DnsName("example.com")`.
            let shown = |name: &String| format!("`{}`", printable(name.split('"').nth(1).unwrap_or(name)));
            let mut names: Vec<_> = presented.iter().take(NAMES_MAX).map(shown).collect();
            names.extend((presented.len() > NAMES_MAX).then(|| "…".to_owned()));
            (format!("is for another name: {}", names.join(", ")), other_name)
        }
        (NotValidForNameContext { .. }, _) => (format!("is not trusted: {problem}"), other_name),
        (UnknownIssuer, _) => ("is signed by an unknown authority".to_owned(), trust),
        (_, Some(webpki::Error::CaUsedAsEndEntity)) => {
            let text = "is that of an authority, as a self-signed one often is, and is not itself named as `ca`";
            (text.to_owned(), trust)
        }
        (_, Some(webpki::Error::UnsupportedCriticalExtension)) => (
            "has a critical extension that this client does not know".to_owned(),
            format!(
                "ask for a certificate in which this extension is not critical; until then, `skip_verify = true` in \
                 `{host}/hosts.toml` takes any certificate of `{host}`"
            ),
        ),
        (_, Some(other)) => (format!("is not trusted: {other:?}"), trust),
        (other, None) => (format!("is not trusted: {other}"), trust),
    };
    (format!("its certificate {text}"), hint)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn a_certificate_for_no_or_for_many_other_names_is_to_be_replaced_by_one_with_the_name() {
        let expected = ServerName::try_from("r.example").unwrap();
        for (count, words) in [(0, "is not trusted"), (2, "`n0`, `n1`"), (9, "`n7`, …")] {
            let presented = (0..count).map(|number| format!("DnsName(\"n{number}\")")).collect();
            let problem = CertificateError::NotValidForNameContext { expected: expected.clone(), presented };
            let (text, hint) = certificate_problem(&problem, "r.example");
            assert!(text.contains(words) && !text.contains("n8"), "{text}");
            assert!(hint.contains("ask for one with `r.example` in it"), "{hint}");
        }
    }
}
