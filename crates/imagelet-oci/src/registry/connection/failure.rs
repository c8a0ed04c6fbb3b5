//! Why a host could not be reached: the error, its class, and the correction if there is one.

use std::{error::Error as StdError, io};

use imagelet_core::runtime::{ErrorClass, Fault, RuntimeError, Stage};
use rustls::{CertificateError, InvalidMessage};

use super::{connector::ConnectError, dial::DialError};
use crate::registry::error::unavailable;

pub(crate) fn unreachable(host: &str, cause: impl StdError + Send + Sync + 'static) -> RuntimeError {
    let fault = connect_fault(&cause);
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
    if let Some(refusal) = causes(error).find_map(|error| error.downcast_ref::<rustls::Error>()) {
        let is_trust = matches!(refusal, rustls::Error::InvalidCertificate(_));
        let class = if is_trust { ErrorClass::CertificateInvalid } else { ErrorClass::TlsFailed };
        return Fault::new(class, Stage::Tls);
    }
    match causes(error).find_map(|error| error.downcast_ref::<ConnectError>()) {
        Some(ConnectError::Dial(DialError::Unresolved { .. })) => Fault::new(ErrorClass::HostNotFound, Stage::Dns),
        Some(ConnectError::Dial(DialError::Late { .. })) => Fault::new(ErrorClass::Unreachable, Stage::Connect),
        Some(ConnectError::Dial(error @ DialError::Failed(_))) => {
            Fault::new(error.io().and_then(io_class).unwrap_or(ErrorClass::ConnectionLost), Stage::Connect)
        }
        Some(ConnectError::TlsLate(_)) => Fault::new(ErrorClass::TimedOut, Stage::Tls),
        Some(ConnectError::Tls(error)) => Fault::new(io_class(error).unwrap_or(ErrorClass::TlsFailed), Stage::Tls),
        Some(ConnectError::BadHost) | None => {
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
