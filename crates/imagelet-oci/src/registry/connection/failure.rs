//! Why a host could not be reached: the error, its class, and the correction if there is one.

use std::{error::Error as StdError, io};

use http::StatusCode;
use imagelet_core::runtime::{ErrorClass, Fault, RuntimeError, Stage};
use rustls::{CertificateError, InvalidMessage};

use super::{connector::ConnectError, dial::DialError, proxies::Proxy, tunnel::TunnelError};
use crate::registry::error::unavailable;

const PROXY_CREDENTIAL_HINT: &str = "set user and password in the URL of the proxy: `http://USER:PASSWORD@HOST:PORT`";

pub(crate) fn unreachable(host: &str, cause: impl StdError + Send + Sync + 'static) -> RuntimeError {
    let fault = connect_fault(&cause);
    if fault.hop == Stage::Proxy {
        return proxy_failure(host, cause, fault);
    }
    let refusal = causes(&cause).find_map(|error| error.downcast_ref::<rustls::Error>()).cloned();
    if let Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) = refusal {
        let message = format!("could not speak TLS with registry `{host}`: the server speaks plain HTTP");
        let hint = format!("if that is meant, say `server = \"http://{host}\"` in `{host}/hosts.toml`");
        return unavailable(message).with_fault(fault).with_hint(hint).not_an_outage();
    }
    let error = unavailable(format!("could not reach registry `{host}`")).caused_by(cause).with_fault(fault);
    match refusal.and_then(|refusal| tls_hint(&refusal, host)) {
        // A server answers, so this is not an outage.
        Some(hint) => error.with_hint(hint).not_an_outage(),
        None => error,
    }
}

fn proxy_failure(host: &str, cause: impl StdError + Send + Sync + 'static, fault: Fault) -> RuntimeError {
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
        // An I/O error exposes its wrapped error by `get_ref`, not by `source`.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

fn connect_fault(error: &(dyn StdError + 'static)) -> Fault {
    let failed = causes(error).find_map(|error| error.downcast_ref::<ConnectError>());
    if let Some(ConnectError::BadProxy(_) | ConnectError::ProxyAway { .. } | ConnectError::Tunnel { .. }) = failed {
        return Fault::new(ErrorClass::ProxyFailed, Stage::Proxy);
    }
    if let Some(refusal) = causes(error).find_map(|error| error.downcast_ref::<rustls::Error>()) {
        let is_trust = matches!(refusal, rustls::Error::InvalidCertificate(_));
        let class = if is_trust { ErrorClass::CertificateInvalid } else { ErrorClass::TlsFailed };
        return Fault::new(class, Stage::Tls);
    }
    match failed {
        Some(ConnectError::Dial(DialError::Unresolved { .. })) => Fault::new(ErrorClass::HostNotFound, Stage::Dns),
        Some(ConnectError::Dial(DialError::Late { .. })) => Fault::new(ErrorClass::Unreachable, Stage::Connect),
        Some(ConnectError::Dial(error @ DialError::Failed(_))) => {
            Fault::new(error.io().and_then(io_class).unwrap_or(ErrorClass::ConnectionLost), Stage::Connect)
        }
        Some(ConnectError::TlsLate(_)) => Fault::new(ErrorClass::TimedOut, Stage::Tls),
        Some(ConnectError::Tls(error)) => Fault::new(io_class(error).unwrap_or(ErrorClass::TlsFailed), Stage::Tls),
        _ => {
            let class = causes(error).filter_map(|error| error.downcast_ref()).find_map(io_class);
            Fault::new(class.unwrap_or(ErrorClass::ConnectionLost), Stage::Connect)
        }
    }
}

fn io_class(error: &io::Error) -> Option<ErrorClass> {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => Some(ErrorClass::ConnectionRefused),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
            Some(ErrorClass::ConnectionLost)
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut => {
            Some(ErrorClass::Unreachable)
        }
        _ => None,
    }
}

fn tls_hint(refusal: &rustls::Error, host: &str) -> Option<String> {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
    };
    match refusal {
        rustls::Error::InvalidCertificate(problem) => Some(match problem {
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. } => {
                format!("renew the certificate of `{host}`, or set the clock of this node")
            }
            NotValidForName | NotValidForNameContext { .. } => {
                format!(
                    "the certificate is for other names: ask for one with `{host}` in it, or pull by one of its names"
                )
            }
            _ => format!(
                "if you trust it, name its certificate authority, or the certificate itself, as `ca` in `{host}/hosts.toml`, \
                 or where another registry's `hosts.toml` names this host"
            ),
        }),
        rustls::Error::InvalidMessage(_) => {
            Some(format!("if it speaks plain HTTP, say `server = \"http://{host}\"` in `{host}/hosts.toml`"))
        }
        _ => None,
    }
}
