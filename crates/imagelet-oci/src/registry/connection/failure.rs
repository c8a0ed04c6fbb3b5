//! Why a host could not be reached: the error, its class, and the correction if there is one.

use std::{
    error::Error as StdError,
    io,
    time::{Duration, SystemTime},
};

use http::StatusCode;
use imagelet_core::runtime::{ErrorClass, Fault, RuntimeError, Stage};
use rustls::{AlertDescription, CertificateError, InvalidMessage, pki_types::UnixTime};

use super::{
    connector::ConnectError,
    dial::DialError,
    http_error::HttpError,
    proxy::{Proxy, TunnelError},
    stream::Rejected,
    tls::extension::UnknownExtension,
};
use crate::{manifest::printable, registry::error::unavailable};

const PROXY_CREDENTIAL_HINT: &str = "set user and password in the URL of the proxy: `http://USER:PASSWORD@HOST:PORT`";

pub(crate) fn unreachable(host: &str, stage: Stage, cause: impl StdError + Send + Sync + 'static) -> RuntimeError {
    let cause = HttpError::new(cause);
    if causes(&cause).filter_map(|error| error.downcast_ref()).any(hyper::Error::is_parse) {
        let message = format!("registry `{host}` did not answer in HTTP");
        return unavailable(message).caused_by(cause).with_fault(Fault::new(ErrorClass::AnswerInvalid, stage));
    }
    let fault = connect_fault(&cause);
    if fault.stage == Stage::Proxy {
        return proxy_failure(host, cause, fault);
    }
    if causes(&cause).any(<dyn StdError>::is::<Rejected>) {
        return unavailable(format!("could not set up TLS with registry `{host}`"))
            .caused_by(cause)
            .with_fault(Fault::new(ErrorClass::TlsFailed, Stage::Tls))
            .with_hint(client_hint(host))
            .not_an_outage();
    }
    let refusal = causes(&cause).find_map(|error| error.downcast_ref::<rustls::Error>()).cloned();
    // A server answers, so this is not an outage.
    if let Some((problem, hint)) = refusal.and_then(|refusal| tls_problem(&refusal, host)) {
        return unavailable(format!("could not set up TLS with registry `{host}`: {problem}"))
            .with_fault(fault)
            .with_hint(hint)
            .not_an_outage();
    }
    let error = unavailable(format!("could not reach registry `{host}`")).with_fault(fault);
    let words = causes(&cause).find_map(|error| error.downcast_ref()).map(tls_words);
    match words {
        Some(words) => error.caused_by(words),
        None => error.caused_by(cause),
    }
}

/// Whether the answer was not HTTP, or was cut before its head.
pub(crate) fn is_no_http(error: &RuntimeError) -> bool {
    let error = causes(error).find_map(|error| error.downcast_ref::<hyper::Error>());
    error.is_some_and(|error| error.is_parse() || error.is_incomplete_message())
}

/// Whether a server that requested a client certificate closed the connection without an alert.
pub(crate) fn is_unexplained(error: &RuntimeError) -> bool {
    causes(error).any(<dyn StdError>::is::<Rejected>)
}

fn proxy_failure(host: &str, cause: HttpError, fault: Fault) -> RuntimeError {
    let failed = causes(&cause).find_map(|error| error.downcast_ref::<ConnectError>());
    let hint = match failed {
        Some(ConnectError::BadProxy(_)) => Some("correct the variable, or name the registry in `NO_PROXY`"),
        Some(ConnectError::Tunnel {
            source: TunnelError::Refused(StatusCode::PROXY_AUTHENTICATION_REQUIRED), ..
        }) => Some(PROXY_CREDENTIAL_HINT),
        _ => None,
    };
    let error = unavailable(format!("could not reach registry `{host}`")).caused_by(cause).with_fault(fault);
    // The registry may be well: only the configuration of this node is wrong.
    match hint {
        Some(hint) => error.with_hint(hint).not_an_outage(),
        None => error,
    }
}

/// A proxy that forwards plain HTTP requires a credential, or another one.
pub(crate) fn proxy_denied(host: &str, proxy: &Proxy) -> RuntimeError {
    let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
    unavailable(format!("could not reach registry `{host}`: proxy `{proxy}` answers {status}"))
        .with_fault(Fault::new(ErrorClass::ProxyFailed, Stage::Proxy))
        .with_hint(PROXY_CREDENTIAL_HINT)
        .not_an_outage()
}

/// An error and its causes.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // Both expose their wrapped error by `get_ref`, not by `source`.
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return Some(error.get_ref());
        }
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

fn connect_fault(error: &(dyn StdError + 'static)) -> Fault {
    let failed = causes(error).find_map(|error| error.downcast_ref::<ConnectError>());
    let refusal = causes(error).find_map(|error| error.downcast_ref::<rustls::Error>());
    let (class, stage) = match (failed, refusal) {
        (Some(ConnectError::BadProxy(_) | ConnectError::ProxyAway { .. } | ConnectError::Tunnel { .. }), _) => {
            (ErrorClass::ProxyFailed, Stage::Proxy)
        }
        (_, Some(rustls::Error::InvalidCertificate(_))) => (ErrorClass::CertificateInvalid, Stage::Tls),
        (_, Some(_)) => (ErrorClass::TlsFailed, Stage::Tls),
        (Some(ConnectError::Dial(DialError::Unresolved { .. })), _) => (ErrorClass::HostNotFound, Stage::Dns),
        (Some(ConnectError::Dial(DialError::Late { .. })), _) => (ErrorClass::Unreachable, Stage::Connect),
        (Some(ConnectError::Dial(DialError::Failed(attempts))), _) => {
            // The address that the resolver prefers decides.
            let class = attempts.first().and_then(|(_, error)| io_class(error));
            (class.unwrap_or(ErrorClass::ConnectionLost), Stage::Connect)
        }
        (Some(ConnectError::TlsLate(_)), _) => (ErrorClass::TimedOut, Stage::Tls),
        (Some(ConnectError::Tls(error)), _) => (io_class(error).unwrap_or(ErrorClass::TlsFailed), Stage::Tls),
        _ => {
            let class = causes(error).filter_map(|error| error.downcast_ref()).find_map(io_class);
            (class.unwrap_or(ErrorClass::ConnectionLost), Stage::Connect)
        }
    };
    Fault::new(class, stage)
}

fn io_class(error: &io::Error) -> Option<ErrorClass> {
    use io::ErrorKind;
    Some(match error.kind() {
        ErrorKind::ConnectionRefused => ErrorClass::ConnectionRefused,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => ErrorClass::ConnectionLost,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut => ErrorClass::Unreachable,
        _ => return None,
    })
}

/// Why TLS failed, and the correction.
fn tls_problem(refusal: &rustls::Error, host: &str) -> Option<(String, String)> {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown,
        HandshakeFailure, NoCertificate, ProtocolVersion, UnknownCA, UnrecognisedName, UnsupportedCertificate,
    };
    Some(match refusal {
        rustls::Error::InvalidCertificate(problem) => certificate_problem(problem, host),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            ("the server speaks plain HTTP".to_owned(), format!("if that is meant, {}", plain_http(host)))
        }
        rustls::Error::InvalidMessage(_) => (
            "the server answers with no valid TLS".to_owned(),
            format!("if it speaks plain HTTP, {}", plain_http(host)),
        ),
        rustls::Error::AlertReceived(ProtocolVersion) | rustls::Error::PeerIncompatible(_) => (
            "the server speaks neither TLS 1.2 nor 1.3 as this client does".to_owned(),
            format!("enable TLS 1.2 or 1.3 with a current cipher on `{host}`; older versions are not used"),
        ),
        rustls::Error::AlertReceived(UnrecognisedName) => (
            "the server has no certificate for this name".to_owned(),
            format!("check that `{host}` is a name that the server serves"),
        ),
        rustls::Error::AlertReceived(CertificateRequired) => {
            ("the server requires a client certificate".to_owned(), client_hint(host))
        }
        rustls::Error::AlertReceived(HandshakeFailure) => (
            "the server ends the handshake: it requires a client certificate, or a cipher that this client lacks"
                .to_owned(),
            client_hint(host),
        ),
        rustls::Error::AlertReceived(
            alert @ (AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRevoked
            | CertificateUnknown
            | NoCertificate
            | UnknownCA
            | UnsupportedCertificate),
        ) => (
            format!("the server rejects the client certificate, or requires one (alert `{alert:?}`)"),
            client_hint(host),
        ),
        _ => return None,
    })
}

/// What went wrong in TLS, for errors without a correction.
fn tls_words(refusal: &rustls::Error) -> String {
    match refusal {
        rustls::Error::AlertReceived(alert) => format!("the server ends the TLS connection (alert `{alert:?}`)"),
        rustls::Error::PeerMisbehaved(how) => format!("the server breaks the rules of TLS: {}", words(how)),
        other => format!("TLS failed: {}", words(other)),
    }
}

/// The words of the name of a variant: `BadSignature` is `bad signature`.
fn words(variant: &impl std::fmt::Debug) -> String {
    let debug = format!("{variant:?}");
    let name = debug.split(|character: char| !character.is_ascii_alphanumeric()).next().unwrap_or_default();
    let mut words = String::new();
    for (index, letter) in name.char_indices() {
        if index > 0 && letter.is_ascii_uppercase() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words.trim_end_matches(" context").to_owned()
}

fn plain_http(host: &str) -> String {
    format!(
        "say `server = \"http://{host}\"` in `{host}/hosts.toml`, or `insecure = true` for it in `registries.conf`, which accepts any certificate, too"
    )
}

fn client_hint(host: &str) -> String {
    format!(
        "name a certificate and its key that `{host}` accepts: `client = [[\"client.cert\", \"client.key\"]]` in `{host}/hosts.toml`"
    )
}

fn certificate_problem(problem: &CertificateError, host: &str) -> (String, String) {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
    };
    let date = |time: &UnixTime| httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    let other = if let CertificateError::Other(other) = problem { Some(&*other.0) } else { None };
    let is_authority =
        other.is_some_and(|other| matches!(other.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity)));
    let unknown_extension = other.and_then(|other| other.downcast_ref::<UnknownExtension>());
    let text = match problem {
        ExpiredContext { not_after, .. } => format!("its certificate expired on {}", date(not_after)),
        NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid yet, only from {}", date(not_before))
        }
        NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            format!("its certificate is for another name: {}", names(presented))
        }
        CertificateError::UnknownIssuer => "its certificate is signed by an unknown authority".to_owned(),
        CertificateError::Other(_) if is_authority => {
            "its certificate is that of an authority, as a self-signed one often is, and is not itself named as `ca`"
                .to_owned()
        }
        CertificateError::Other(other) => unknown_extension
            .map_or_else(|| format!("its certificate is not trusted: {}", words(&other.0)), ToString::to_string),
        NotValidForNameContext { .. } | CertificateError::InvalidPurposeContext { .. } => {
            format!("its certificate is not trusted: {problem}")
        }
        other => format!("its certificate is not trusted: {}", words(other)),
    };
    let hint = match problem {
        Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. } => {
            format!("renew the certificate of `{host}`, or set the clock of this node")
        }
        NotValidForName | NotValidForNameContext { .. } => {
            format!("the certificate is for other names: ask for one with `{host}` in it, or pull by one of its names")
        }
        _ if unknown_extension.is_some() => format!(
            "ask for a certificate in which this extension is not critical; until then, `skip_verify = true` in \
             `{host}/hosts.toml` takes any certificate of `{host}`"
        ),
        _ if is_authority => format!(
            "if you trust it, name this very certificate as `ca` in `{host}/hosts.toml`, or where another registry's \
             `hosts.toml` names this host"
        ),
        _ => format!(
            "if you trust it, name its certificate authority, or the certificate itself, as `ca` in `{host}/hosts.toml`, \
             or where another registry's `hosts.toml` names this host"
        ),
    };
    (text, hint)
}

/// The names that a certificate has, as far as a message repeats them.
fn names(presented: &[String]) -> String {
    const NAMES_MAX: usize = 8;
    // The verifier writes `DnsName("example.com")`.
    let bare = |name: &String| name.split('"').nth(1).unwrap_or(name).chars().take(256).collect::<String>();
    let mut names: Vec<_> =
        presented.iter().take(NAMES_MAX).map(|name| format!("`{}`", printable(&bare(name)))).collect();
    if presented.len() > NAMES_MAX {
        names.push("…".to_owned());
    }
    names.join(", ")
}
