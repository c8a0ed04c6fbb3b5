//! The error of a request for an image, with the kubelet's texts.

use std::{borrow::Cow, error::Error, fmt, sync::Arc};

use super::{ended_pods::PodEnd, request::EnsureRequest};
use crate::{
    credentials::KeyringError,
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage, causes, error_chain},
    events::PodIdentity,
    image::{ReferenceError, shown_name},
    records::RecordsError,
    text::{named_enum, quoted},
};

/// An error with a [`reason`](Self::reason) for the pod status and a [`class`](Self::class) for programs.
#[derive(Clone, Debug)]
pub struct EnsureError {
    image: String,
    cause: Cause,
    /// The value of [`PodRules::stable_reasons`](crate::node_policy::PodRules::stable_reasons).
    is_stable: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Cause {
    InvalidName(ReferenceError),
    Inspect(Arc<RuntimeError>),
    /// The image is absent, or the client has no access. The text does not say which of the two.
    NeverPull,
    Credentials(KeyringError),
    /// The pull could not be recorded, so it did not start.
    Intent(Arc<RecordsError>),
    /// `REASON: MESSAGE` of the last failure; empty while the next attempt runs.
    HeldBack(String),
    Pull(PullFailure, Arc<RuntimeError>),
}

named_enum! {
    /// The name is the reason in the pod status. Runtimes report the failure to the kubelet with the name as a prefix.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum PullFailure {
        RegistryUnavailable = "RegistryUnavailable",
        SignatureInvalid = "SignatureValidationFailed",
        Other = "ErrImagePull",
    }
}

impl fmt::Display for EnsureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = &self.image;
        match &self.cause {
            Cause::InvalidName(_) => write!(f, "`{}` names no image", shown_name(image)),
            Cause::Inspect(_) => write!(f, "could not look for `{image}`"),
            Cause::NeverPull => write!(f, "`{image}` is not present, and its pull policy is `Never`"),
            Cause::Credentials(_) => write!(f, "could not read the credentials for `{image}`"),
            Cause::Intent(_) => write!(f, "could not record the pull of `{image}`"),
            Cause::HeldBack(failure) if failure.is_empty() => write!(f, "pulling `{image}` is held back"),
            Cause::HeldBack(failure) => write!(f, "pulling `{image}` is held back after {failure}"),
            Cause::Pull(failure, _) => {
                let why = match failure {
                    PullFailure::RegistryUnavailable => ": the registry is unavailable",
                    PullFailure::SignatureInvalid => ": its signature was not accepted",
                    PullFailure::Other => "",
                };
                write!(f, "could not pull `{image}`{why}")
            }
        }
    }
}

impl Error for EnsureError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::InvalidName(source) => Some(source),
            Cause::Credentials(source) => Some(source),
            Cause::Intent(source) => Some(source),
            _ => self.runtime_error().map(|source| source as _),
        }
    }
}

impl EnsureError {
    pub(super) fn new(image: &str, cause: Cause, is_stable: bool) -> Self {
        Self { image: image.to_owned(), cause, is_stable }
    }

    pub fn never_pull(image: &str) -> Self {
        Self::new(image, Cause::NeverPull, true)
    }

    /// Classifies a failed pull. With `is_stable`, the kind of the error decides, else the first word of its text.
    /// Without it, only the first letters of the text decide, as in the kubelet.
    pub(crate) fn from_pull(image: &str, source: Arc<RuntimeError>, is_stable: bool) -> Self {
        let text = source.chain();
        let is = |failure: &PullFailure| match (failure, source.kind(), text.strip_prefix(failure.name())) {
            (PullFailure::Other, ..) => true,
            (PullFailure::RegistryUnavailable, RuntimeErrorKind::RegistryUnavailable, _)
            | (PullFailure::SignatureInvalid, RuntimeErrorKind::SignatureInvalid, _)
                if is_stable =>
            {
                true
            }
            (.., Some(rest)) => !is_stable || !rest.starts_with(char::is_alphanumeric),
            (.., None) => false,
        };
        let failure = PullFailure::ALL.into_iter().find(is).unwrap_or(PullFailure::Other);
        Self::new(image, Cause::Pull(failure, source), is_stable)
    }

    pub(super) fn pod_ended(request: &EnsureRequest, end: PodEnd) -> Self {
        let (image, PodIdentity { namespace, name, .. }) = (request.image(), &request.pull.pod);
        let message = format!("the pull of `{image}` ended, because the pod `{namespace}/{name}` {end}");
        let fault = Fault::new(ErrorClass::Cancelled, Stage::Policy);
        let source = RuntimeError::new(RuntimeErrorKind::Cancelled, message).with_fault(fault);
        Self::new(image, Cause::Pull(PullFailure::Other, Arc::new(source)), true)
    }

    /// The waiting reason in the pod status. Without stable reasons, an unreadable pull secret or a failed record has
    /// the kubelet's raw error text.
    pub fn reason(&self) -> Cow<'static, str> {
        Cow::Borrowed(match &self.cause {
            Cause::Credentials(error) if !self.is_stable => return error.source.to_string().into(),
            Cause::Intent(error) if !self.is_stable => return raw_intent_text(error).into(),
            Cause::InvalidName(_) => "InvalidImageName",
            Cause::Inspect(_) => "ImageInspectError",
            Cause::NeverPull => "ErrImageNeverPull",
            Cause::HeldBack(_) => "ImagePullBackOff",
            Cause::Pull(failure, _) => failure.name(),
            Cause::Credentials(_) | Cause::Intent(_) => "ErrImagePull",
        })
    }

    pub fn message(&self) -> String {
        let (image, is_stable) = (&self.image, self.is_stable);
        let name = quoted(image);
        match &self.cause {
            Cause::InvalidName(source) => {
                let name = quoted(&shown_name(image));
                format!("Failed to apply default image tag {name}: couldn't parse image name {name}: {source}")
            }
            // The kubelet prints an empty image name, because it takes the name from the result, which is missing.
            Cause::Inspect(source) if !is_stable => format!("Failed to inspect image \"\": {}", source.chain()),
            Cause::Inspect(source) => format!("Failed to inspect image {name}: {}", source.chain()),
            Cause::NeverPull => format!("Container image {name} is not present with pull policy of Never"),
            Cause::Credentials(error) if !is_stable => error.source.to_string(),
            Cause::Credentials(error) => error_chain(error),
            Cause::Intent(error) => {
                let text = if is_stable { error_chain(&**error) } else { raw_intent_text(error) };
                format!("Failed to record image pull intent for container image {name}: {text}")
            }
            Cause::HeldBack(failure) if failure.is_empty() => format!("Back-off pulling image {name}"),
            Cause::HeldBack(failure) => format!("Back-off pulling image {name}: {failure}"),
            Cause::Pull(PullFailure::Other, source) => source.chain(),
            Cause::Pull(failure, source) => {
                let what = match failure {
                    PullFailure::RegistryUnavailable => "the registry is unavailable",
                    _ => "the signature validation failed",
                };
                let text = source.chain();
                let rest = text.strip_prefix(failure.name());
                let rest = rest.map_or_else(|| format!(": {text}"), str::to_owned);
                format!("image pull failed for {image} because {what}{rest}")
            }
        }
    }

    pub fn hint(&self) -> Option<&str> {
        match &self.cause {
            Cause::InvalidName(error) => error.hint(),
            _ => self.runtime_error().and_then(RuntimeError::hint),
        }
    }

    pub fn class(&self) -> ErrorClass {
        self.fault().class
    }

    pub fn stage(&self) -> Stage {
        self.fault().stage
    }

    pub fn fault(&self) -> Fault {
        let (class, stage) = match &self.cause {
            Cause::InvalidName(_) => (ErrorClass::NameInvalid, Stage::Name),
            Cause::NeverPull => (ErrorClass::NotPresent, Stage::Policy),
            Cause::Credentials(_) => (ErrorClass::CredentialsUnreadable, Stage::Credentials),
            Cause::Intent(_) => (ErrorClass::RecordFailed, Stage::Records),
            Cause::HeldBack(_) => (ErrorClass::HeldBack, Stage::Queue),
            Cause::Inspect(source) => {
                let fault = source.fault();
                // A lookup sends no request to a registry, so an unclassified error is an error of the store.
                return if fault.class == ErrorClass::Other { Fault { stage: Stage::Store, ..fault } } else { fault };
            }
            Cause::Pull(_, source) => return source.fault(),
        };
        Fault::new(class, stage)
    }

    pub fn kind(&self) -> Option<RuntimeErrorKind> {
        self.runtime_error().map(RuntimeError::kind)
    }

    pub fn into_runtime_error(self) -> RuntimeError {
        if let Some(source) = self.runtime_error() {
            return source.copied();
        }
        let (kind, message) = match &self.cause {
            Cause::InvalidName(source) => {
                let name = quoted(&shown_name(&self.image));
                (RuntimeErrorKind::InvalidArgument, format!("failed to parse image reference {name}: {source}"))
            }
            Cause::NeverPull => (RuntimeErrorKind::NotFound, self.to_string()),
            Cause::Intent(_) | Cause::HeldBack(_) => (RuntimeErrorKind::Unavailable, error_chain(&self)),
            _ => (RuntimeErrorKind::Other, error_chain(&self)),
        };
        RuntimeError::new(kind, message).with_fault(self.fault())
    }

    fn runtime_error(&self) -> Option<&RuntimeError> {
        match &self.cause {
            Cause::Inspect(source) | Cause::Pull(_, source) => Some(source),
            _ => None,
        }
    }
}

fn raw_intent_text(source: &RecordsError) -> String {
    let cause = causes(source).last().map(ToString::to_string).unwrap_or_default();
    format!("failed to record image pull intent: {cause}")
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::{VectorRun, Way};
    use serde_json::json;

    use super::*;
    use crate::testing::WaySettings as _;

    #[test]
    fn every_classification_vector_holds_in_both_ways() {
        for way in Way::BOTH {
            let mut run = VectorRun::of("pull-error-classification.json", way);
            while let Some(case) = run.next_case() {
                let text = |field: &str| case.input[field].as_str().expect("a text");
                let source = Arc::new(RuntimeError::other(text("cri_error")));
                let error = EnsureError::from_pull(text("image"), source, way.node_policy().pods.stable_reasons);
                run.compare(&case, &json!({"reason": error.reason(), "message": error.message()}));
            }
            run.end();
        }
    }

    #[test]
    fn a_kind_is_believed_before_a_text() {
        let source =
            RuntimeError::new(RuntimeErrorKind::RegistryUnavailable, "could not reach `reg.io`").with_hint("h");
        let source = Arc::new(source);
        let of_kubelet = EnsureError::from_pull("reg.io/a", Arc::clone(&source), false);
        assert_eq!(
            (of_kubelet.reason().as_ref(), of_kubelet.message().as_str()),
            ("ErrImagePull", "could not reach `reg.io`")
        );
        let error = EnsureError::from_pull("reg.io/a", source, true);
        assert_eq!(error.reason(), "RegistryUnavailable");
        assert_eq!(
            error.message(),
            "image pull failed for reg.io/a because the registry is unavailable: could not reach `reg.io`"
        );
        assert_eq!((error.hint(), error.kind()), (Some("h"), Some(RuntimeErrorKind::RegistryUnavailable)));
    }

    #[test]
    fn a_text_that_only_begins_like_a_known_word_is_no_such_failure() {
        for (text, reason) in [
            ("RegistryUnavailable", "RegistryUnavailable"),
            ("SignatureValidationFailed: no key", "SignatureValidationFailed"),
            ("RegistryUnavailableX: no", "ErrImagePull"),
        ] {
            let source = Arc::new(RuntimeError::other(text));
            assert_eq!(EnsureError::from_pull("reg.io/a", source, true).reason(), reason, "{text}");
        }
    }
}
