//! The error of a store or runtime call.

use std::{error::Error, iter::successors};

use super::error_class::Fault;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuntimeErrorKind {
    /// The name is malformed, empty or ambiguous.
    InvalidArgument,
    NotFound,
    /// The registry rejects the credential, or requires one.
    Denied,
    RegistryUnavailable,
    SignatureInvalid,
    /// The content does not match its digest, size or format.
    Corrupt,
    /// The image exceeds a limit, or its kind is not supported.
    Unacceptable,
    InUse,
    /// The image cannot be removed, or is still present after its removal.
    Remains,
    DiskFull,
    /// The store or runtime is unreachable or not writable.
    Unavailable,
    Unsupported,
    TimedOut,
    Cancelled,
    Defect,
    Other,
}

/// An error of a store or runtime. Prints the action, the subject and the reason. The source is the cause.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct RuntimeError {
    kind: RuntimeErrorKind,
    message: String,
    hint: Option<String>,
    pub(super) fault: Option<Box<Fault>>,
    /// The error is not an outage, whatever its kind.
    no_outage: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl RuntimeError {
    pub fn new(kind: RuntimeErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, fault: None, no_outage: false, source: None }
    }

    pub fn other(message: impl Into<String>) -> Self {
        Self::new(RuntimeErrorKind::Other, message)
    }

    pub fn defect(message: impl Into<String>) -> Self {
        Self::new(RuntimeErrorKind::Defect, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(RuntimeErrorKind::Unsupported, message)
    }

    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns a new error with the message `context`, with the same kind and hint, and with this error as its cause.
    #[must_use]
    pub fn about(self, context: impl Into<String>) -> Self {
        Self { hint: self.hint.clone(), ..Self::new(self.kind, context) }.caused_by(self)
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(Box::new(fault));
        self
    }

    /// Marks the error as no outage of the registry: the registry answered, or another host failed.
    #[must_use]
    pub fn not_an_outage(mut self) -> Self {
        self.no_outage = true;
        self
    }

    /// Whether the registry is unavailable: unreachable, overloaded or broken. A rejection, an untrusted certificate
    /// and a failure after the tag was resolved are not outages.
    pub fn is_outage(&self) -> bool {
        let mut known = causes(self).filter_map(|error| error.downcast_ref::<Self>());
        self.kind == RuntimeErrorKind::RegistryUnavailable && known.all(|error| !error.no_outage)
    }

    /// A copy with all causes in its message. Each client of a shared pull gets a copy.
    #[must_use]
    pub fn copied(&self) -> Self {
        let fault = self.fault();
        Self {
            hint: self.hint.clone(),
            no_outage: !self.is_outage(),
            ..Self::new(self.kind, self.chain()).with_fault(fault)
        }
    }

    pub fn kind(&self) -> RuntimeErrorKind {
        self.kind
    }

    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The message and all its causes in one line.
    pub fn chain(&self) -> String {
        error_chain(self)
    }
}

impl From<tokio::task::JoinError> for RuntimeError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::defect("a task or thread ended early").caused_by(error)
    }
}

/// The error, its cause, the cause of that, and so on.
pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

/// The texts of an error and its causes, joined by `: `.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
