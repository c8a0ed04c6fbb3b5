//! Why a store or runtime did not do what it was asked.

use std::{error::Error, fmt};

use super::error_class::Fault;

/// What kind of refusal it was; a kind exists because some caller acts differently on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuntimeErrorKind {
    /// The name is malformed, empty or ambiguous.
    InvalidArgument,
    /// The registry has no such image.
    NotFound,
    /// The registry refuses the credential, or wants one.
    Denied,
    /// The registry cannot be reached.
    RegistryUnavailable,
    /// A signature or policy check failed.
    SignatureInvalid,
    /// What was fetched is not what its digest, size or format promised.
    Corrupt,
    /// The image breaks a limit, or is of a kind that is not supported.
    Unacceptable,
    /// Something holds the image.
    InUse,
    /// No room on the disk.
    DiskFull,
    /// The store or runtime itself cannot be reached or written.
    Unavailable,
    /// The store knows no such call.
    Unsupported,
    /// Took longer than allowed.
    TimedOut,
    /// Given up by whoever asked.
    Cancelled,
    /// A defect of imagelet itself: what must not happen has.
    Defect,
    /// Anything else.
    Other,
}

/// A refusal by a store or runtime. Prints what was tried on what and why; the cause is its source.
#[derive(Debug)]
pub struct RuntimeError {
    kind: RuntimeErrorKind,
    message: String,
    hint: Option<String>,
    fault: Option<Box<Fault>>,
    /// It is more than the registry being away, whatever its kind.
    no_outage: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl RuntimeError {
    /// An error with its kind and message.
    pub fn new(kind: RuntimeErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, fault: None, no_outage: false, source: None }
    }

    /// An error nobody acts on differently.
    pub fn other(message: impl Into<String>) -> Self {
        Self::new(RuntimeErrorKind::Other, message)
    }

    /// A defect of ours.
    pub fn defect(message: impl Into<String>) -> Self {
        Self::new(RuntimeErrorKind::Defect, message)
    }

    /// A call this store does not know.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(RuntimeErrorKind::Unsupported, message)
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds where the user can mend it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what went wrong and where, for machines.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(Box::new(fault));
        self
    }

    /// What whoever met it said went wrong; see [`RuntimeError::fault`] for what it comes to.
    pub(super) fn said_fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    /// Marks that the registry was there, or is not the one that is meant: nothing may be concluded from its absence.
    #[must_use]
    pub fn not_an_outage(mut self) -> Self {
        self.no_outage = true;
        self
    }

    /// Whether the registry is away, and has answered nothing: not reached, too busy or broken. A refusal, a certificate
    /// that is not trusted and a failure after a tag was resolved are none.
    pub fn is_outage(&self) -> bool {
        let mut is_one = self.kind == RuntimeErrorKind::RegistryUnavailable && !self.no_outage;
        let mut cause = self.source();
        while let Some(error) = cause {
            is_one &= !error.downcast_ref::<Self>().is_some_and(|error| error.no_outage);
            cause = error.source();
        }
        is_one
    }

    /// The same again, its causes in its message: for one of several who share a refusal.
    #[must_use]
    pub fn copied(&self) -> Self {
        let fault = self.fault();
        Self {
            hint: self.hint.clone(),
            no_outage: !self.is_outage(),
            ..Self::new(self.kind, self.chain()).with_fault(fault)
        }
    }

    /// What kind of refusal.
    pub fn kind(&self) -> RuntimeErrorKind {
        self.kind
    }

    /// Where the user can mend it.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The message and all its causes in one line, for wires and logs that carry one text.
    pub fn chain(&self) -> String {
        error_chain(self)
    }
}

/// The message of an error and those of all its causes in one line.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for RuntimeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
