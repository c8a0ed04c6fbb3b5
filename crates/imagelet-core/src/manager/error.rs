//! Why an image is not there, in the kubelet's words.

use std::{borrow::Cow, error::Error, sync::Arc};

use super::request::Compatibility;
use crate::{
    credentials::KeyringError,
    image::{ReferenceError, shown_name},
    records::RecordsError,
    runtime::{ErrorClass, Fault, Hop, RuntimeError, RuntimeErrorKind, error_chain},
    text::quoted,
};

/// Why an image is not there. [`EnsureError::reason`] is the word that pod status shows.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnsureError {
    /// The name names no image.
    #[error("`{}` names no image", shown_name(image))]
    InvalidName {
        /// As it was asked for.
        image: String,
        /// What is wrong with it.
        source: ReferenceError,
    },
    /// The store could not say whether the image is there.
    #[error("could not look for `{image}`")]
    Inspect {
        /// As it was asked for.
        image: String,
        /// Why.
        source: Arc<RuntimeError>,
        /// In whose words.
        compatibility: Compatibility,
    },
    /// Absent, or present and not this client's to use. Which of the two is not said.
    #[error("`{image}` is not present, and its pull policy is `Never`")]
    NeverPull {
        /// As it was asked for.
        image: String,
    },
    /// A pull secret cannot be read.
    #[error("could not read the credentials for `{image}`")]
    Credentials {
        /// As it was asked for.
        image: String,
        /// Which, and what is wrong with it.
        source: KeyringError,
        /// The kubelet's own text, where its way is gone.
        raw: Option<String>,
    },
    /// The pull could not be recorded, so it did not start.
    #[error("could not record the pull of `{image}`")]
    Intent {
        /// As it was asked for.
        image: String,
        /// Why.
        source: Arc<RecordsError>,
        /// In whose words.
        compatibility: Compatibility,
    },
    /// It failed a short while ago and is held back.
    #[error("pulling `{image}` is held back{}", after(.failure))]
    HeldBack {
        /// As it was asked for.
        image: String,
        /// `REASON: MESSAGE` of the last failure; empty while another try runs.
        failure: String,
    },
    /// The registry cannot be reached.
    #[error("could not pull `{image}`: the registry is unavailable")]
    RegistryUnavailable {
        /// As it was asked for.
        image: String,
        /// Why.
        source: Arc<RuntimeError>,
    },
    /// The signature is missing or wrong.
    #[error("could not pull `{image}`: its signature was not accepted")]
    SignatureInvalid {
        /// As it was asked for.
        image: String,
        /// Why.
        source: Arc<RuntimeError>,
    },
    /// The store did not deliver it.
    #[error("could not pull `{image}`")]
    Pull {
        /// As it was asked for.
        image: String,
        /// Why.
        source: Arc<RuntimeError>,
    },
}

fn after(failure: &str) -> String {
    if failure.is_empty() { String::new() } else { format!(" after {failure}") }
}

/// What the runtimes of the kubelet's contract begin the text with when no registry answers.
const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
/// The same for a signature.
const SIGNATURE_VALIDATION_FAILED: &str = "SignatureValidationFailed";

impl EnsureError {
    /// Names a failed pull: by the kind the store gave, else by the word runtimes begin their text with.
    ///
    /// The kubelet knows no kinds, and takes any text that begins with those letters.
    pub(crate) fn from_pull(image: &str, source: Arc<RuntimeError>, compatibility: Compatibility) -> Self {
        let image = image.to_owned();
        let text = source.chain();
        let begins = |word: &str| match text.strip_prefix(word) {
            Some(rest) => compatibility.is_kubelet() || !rest.starts_with(char::is_alphanumeric),
            None => false,
        };
        let is = |kind| !compatibility.is_kubelet() && source.kind() == kind;
        if is(RuntimeErrorKind::RegistryUnavailable) || begins(REGISTRY_UNAVAILABLE) {
            Self::RegistryUnavailable { image, source }
        } else if is(RuntimeErrorKind::SignatureInvalid) || begins(SIGNATURE_VALIDATION_FAILED) {
            Self::SignatureInvalid { image, source }
        } else {
            Self::Pull { image, source }
        }
    }

    /// The word that pod status shows as the container's waiting reason.
    ///
    /// Where the kubelet shows a raw error text (an unreadable pull secret, a failed record), this is `ErrImagePull`
    /// unless its way is asked for: a reason is one of a known few.
    pub fn reason(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Credentials { raw: Some(raw), .. } => return Cow::Owned(raw.clone()),
            Self::Intent { source, compatibility: Compatibility::Kubelet, .. } => {
                return Cow::Owned(raw_intent_text(source));
            }
            Self::InvalidName { .. } => "InvalidImageName",
            Self::Inspect { .. } => "ImageInspectError",
            Self::NeverPull { .. } => "ErrImageNeverPull",
            Self::HeldBack { .. } => "ImagePullBackOff",
            Self::RegistryUnavailable { .. } => "RegistryUnavailable",
            Self::SignatureInvalid { .. } => "SignatureValidationFailed",
            Self::Credentials { .. } | Self::Intent { .. } | Self::Pull { .. } => "ErrImagePull",
        })
    }

    /// The text that pod status shows as the container's waiting message.
    pub fn message(&self) -> String {
        match self {
            Self::InvalidName { image, source } => {
                let name = quoted(&shown_name(image));
                format!("Failed to apply default image tag {name}: couldn't parse image name {name}: {source}")
            }
            // The kubelet prints an empty name here: it quotes what it has not found.
            Self::Inspect { source, compatibility: Compatibility::Kubelet, .. } => {
                format!("Failed to inspect image \"\": {}", source.chain())
            }
            Self::Inspect { image, source, .. } => {
                format!("Failed to inspect image {}: {}", quoted(image), source.chain())
            }
            Self::NeverPull { image } => {
                format!("Container image {} is not present with pull policy of Never", quoted(image))
            }
            Self::Credentials { raw: Some(raw), .. } => raw.clone(),
            Self::Credentials { source, .. } => error_chain(source),
            Self::Intent { image, source, compatibility } => format!(
                "Failed to record image pull intent for container image {}: {}",
                quoted(image),
                if compatibility.is_kubelet() { raw_intent_text(source) } else { error_chain(source) }
            ),
            Self::HeldBack { image, failure } if failure.is_empty() => {
                format!("Back-off pulling image {}", quoted(image))
            }
            Self::HeldBack { image, failure } => format!("Back-off pulling image {}: {failure}", quoted(image)),
            Self::RegistryUnavailable { image, source } => format!(
                "image pull failed for {image} because the registry is unavailable{}",
                rest(&source.chain(), REGISTRY_UNAVAILABLE)
            ),
            Self::SignatureInvalid { image, source } => format!(
                "image pull failed for {image} because the signature validation failed{}",
                rest(&source.chain(), SIGNATURE_VALIDATION_FAILED)
            ),
            Self::Pull { source, .. } => source.chain(),
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.runtime_error().and_then(RuntimeError::hint)
    }

    /// What went wrong, in a stable word (`docs/errors.md`).
    pub fn class(&self) -> ErrorClass {
        self.fault().class
    }

    /// Where on the way it went wrong, in a stable word.
    pub fn hop(&self) -> Hop {
        self.fault().hop
    }

    /// Both, and the time the registry asks for before a retry.
    pub fn fault(&self) -> Fault {
        let (class, hop) = match self {
            Self::InvalidName { .. } => (ErrorClass::NameInvalid, Hop::Name),
            Self::NeverPull { .. } => (ErrorClass::NotPresent, Hop::Policy),
            Self::Credentials { .. } => (ErrorClass::CredentialsUnreadable, Hop::Credentials),
            Self::Intent { .. } => (ErrorClass::RecordFailed, Hop::Records),
            Self::HeldBack { .. } => (ErrorClass::HeldBack, Hop::Queue),
            Self::Inspect { source, .. } => {
                let fault = source.fault();
                // Looking asks no registry: what the text does not say is the store's own.
                return if fault.class == ErrorClass::Other { Fault { hop: Hop::Store, ..fault } } else { fault };
            }
            Self::RegistryUnavailable { source, .. }
            | Self::SignatureInvalid { source, .. }
            | Self::Pull { source, .. } => return source.fault(),
        };
        Fault::new(class, hop)
    }

    /// What kind of refusal by the store is below this, if one is.
    pub fn kind(&self) -> Option<RuntimeErrorKind> {
        self.runtime_error().map(RuntimeError::kind)
    }

    /// The same as a store's error, for a caller in a store's place.
    pub fn into_runtime_error(self) -> RuntimeError {
        let fault = self.fault();
        let refused = |kind, message: String| RuntimeError::new(kind, message).with_fault(fault);
        match self {
            Self::Inspect { source, .. }
            | Self::RegistryUnavailable { source, .. }
            | Self::SignatureInvalid { source, .. }
            | Self::Pull { source, .. } => source.copied(),
            Self::InvalidName { image, source } => refused(
                RuntimeErrorKind::InvalidArgument,
                format!("failed to parse image reference {}: {source}", quoted(&shown_name(&image))),
            ),
            Self::NeverPull { .. } => refused(RuntimeErrorKind::NotFound, self.to_string()),
            Self::Credentials { .. } => refused(RuntimeErrorKind::Other, error_chain(&self)),
            Self::Intent { .. } | Self::HeldBack { .. } => refused(RuntimeErrorKind::Unavailable, error_chain(&self)),
        }
    }

    fn runtime_error(&self) -> Option<&RuntimeError> {
        match self {
            Self::Inspect { source, .. }
            | Self::RegistryUnavailable { source, .. }
            | Self::SignatureInvalid { source, .. }
            | Self::Pull { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The kubelet's words, and of ours only the disk's own.
fn raw_intent_text(source: &RecordsError) -> String {
    let mut cause: &dyn Error = source;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    format!("failed to record image pull intent: {cause}")
}

/// What follows the word a text begins with; the whole text where it does not.
fn rest(text: &str, word: &str) -> String {
    text.strip_prefix(word).map_or_else(|| format!(": {text}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{VectorRun, Way};

    #[test]
    fn every_classification_vector_holds_in_both_ways() {
        for way in Way::BOTH {
            let mut run = VectorRun::of("pull-error-classification.json", way);
            while let Some(case) = run.next_case() {
                let text = |field: &str| case.input[field].as_str().expect("a text");
                let source = Arc::new(RuntimeError::other(text("cri_error")));
                let error = EnsureError::from_pull(text("image"), source, way.compatibility());
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
        let of_kubelet = EnsureError::from_pull("reg.io/a", Arc::clone(&source), Compatibility::Kubelet);
        assert_eq!(
            (of_kubelet.reason().as_ref(), of_kubelet.message().as_str()),
            ("ErrImagePull", "could not reach `reg.io`")
        );
        let error = EnsureError::from_pull("reg.io/a", source, Compatibility::Imagelet);
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
            assert_eq!(EnsureError::from_pull("reg.io/a", source, Compatibility::Imagelet).reason(), reason, "{text}");
        }
    }
}
