//! A failed command, for people and programs: what failed, the causes, and a hint.

use std::{error::Error, fmt};

use imagelet_core::{
    error::{ErrorClass, RuntimeError, RuntimeErrorKind, Stage},
    image::ReferenceError,
    manager::EnsureError,
    printable::printable,
};
use serde::{Deserialize, Serialize};

const CAUSES_MAX: usize = 16;

/// Why a command failed. Sent over the daemon's socket, so that a daemon and a local node report the same words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Failure {
    pub message: String,
    /// The outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The stable word: a kubelet reason, or the kind of the runtime's error.
    pub reason: String,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Box<FaultWords>>,
}

/// Class and stage of a failure in the stable words of `docs/errors.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FaultWords {
    pub class: String,
    pub hop: String,
}

impl Failure {
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { message: message.into(), reason: reason.to_owned(), ..Self::default() }
    }

    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new("InvalidArgument", message.to_string())
    }

    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let mut failure = Self::new("Failed", error.to_string());
        let mut next: Option<&(dyn Error + 'static)> = Some(error);
        let mut kind = None;
        while let Some(error) = next {
            let text = error.to_string();
            // Some messages contain their hint on a separate line.
            let (text, hint) = text.split_once("\nhint: ").map_or((&*text, None), |(text, hint)| (text, Some(hint)));
            failure.hint = failure.hint.or_else(|| hint.map(str::to_owned));
            if failure.causes.last().is_none_or(|last| last != text) && failure.causes.len() <= CAUSES_MAX {
                failure.causes.push(text.to_owned());
            }
            let name = error.downcast_ref::<ReferenceError>();
            failure.hint = failure.hint.or_else(|| name.and_then(ReferenceError::hint).map(str::to_owned));
            if let Some(refusal) = runtime_error(error) {
                failure.hint = failure.hint.or_else(|| refusal.hint().map(str::to_owned));
                kind = kind.or(Some(refusal.kind()));
            }
            next = error.source();
        }
        failure.message = failure.causes.remove(0);
        failure.causes.retain(|cause| *cause != failure.message);
        // The reasons in `docs/errors.md` are the names of the error kinds.
        if let Some(kind) = kind.filter(|kind| !matches!(kind, RuntimeErrorKind::Defect | RuntimeErrorKind::Other)) {
            failure.reason = format!("{kind:?}");
        }
        failure
    }

    pub fn because(message: impl Into<String>, error: &(dyn Error + 'static)) -> Self {
        let mut failure = Self::of(error);
        failure.causes.insert(0, std::mem::replace(&mut failure.message, message.into()));
        failure
    }

    pub(crate) fn of_ensure(error: &EnsureError) -> Self {
        let fault = error.fault();
        let mut failure = Self::of(error).at(fault.class, fault.stage);
        failure.reason = error.reason().into();
        if fault.class == ErrorClass::NotPresent {
            failure = failure.or_hint("pull it with another policy, such as `--policy IfNotPresent`");
        }
        // The advice is for a registry that imagelet contacts. At the stage `Runtime`, the runtime contacts it.
        if fault.stage != Stage::Runtime
            && let Some(advice) = advice(fault.class)
        {
            failure = failure.or_hint(advice);
        }
        failure
    }

    #[must_use]
    pub fn at(mut self, class: ErrorClass, stage: Stage) -> Self {
        self.fault = Some(Box::new(FaultWords { class: class.name().into(), hop: stage.name().into() }));
        self
    }

    #[must_use]
    pub fn or_hint(mut self, hint: &str) -> Self {
        self.hint.get_or_insert_with(|| hint.to_owned());
        self
    }

    /// The message, the causes and the hint, each on a separate line.
    pub fn text(&self) -> String {
        let causes = self.causes.iter().map(|cause| format!("  because: {}\n", lines(cause)));
        let hint = self.hint.iter().map(|hint| format!("hint: {}\n", lines(hint)));
        [format!("error: {}\n", lines(&self.message))].into_iter().chain(causes).chain(hint).collect()
    }
}

/// The hint for a class of failures, if the error has no hint. `docs/errors.md` says more.
pub fn advice(class: ErrorClass) -> Option<&'static str> {
    Some(match class {
        ErrorClass::HostNotFound => "check the registry's name and the node's DNS",
        ErrorClass::ConnectionRefused => "check that the registry runs and that the port is right",
        ErrorClass::Unreachable => "check routes, firewalls and network policies between node and registry",
        ErrorClass::ConnectionLost => "try again; otherwise check proxies and load balancers on the way",
        ErrorClass::TimedOut => "check the load of the registry and of what is before it",
        ErrorClass::TlsFailed => {
            "name a registry without TLS with `http://` in its `hosts.toml`, or with `insecure` in `registries.conf`"
        }
        ErrorClass::ProxyFailed => {
            "check the proxy, and what names it: `registry.proxies`, or HTTPS_PROXY and NO_PROXY"
        }
        ErrorClass::Forbidden => "permit the account to pull from this repository",
        ErrorClass::Unauthorized => "check the name, then the credential",
        ErrorClass::ImageUnknown => "check name and tag, and that the image was pushed",
        ErrorClass::BlobUnknown => "push the image again: the registry or mirror lost a part of it",
        ErrorClass::RateLimited => "wait as long as the registry asks, log in, or configure a mirror",
        ErrorClass::RegistryFailed => "check the registry's log",
        ErrorClass::AnswerInvalid => "check the address: another service answers there",
        ErrorClass::PlatformMissing => "build the image for this platform, or look for another one with --platform",
        ErrorClass::DigestMismatch => "check the mirror or registry: it serves other bytes than announced",
        ErrorClass::ContentInvalid => "build and push the image again",
        _ => return None,
    })
}

fn lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n  ")
}

/// A chain of causes contains a runtime error directly, or in an `Arc` that several callers of one pull share.
fn runtime_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a RuntimeError> {
    error
        .downcast_ref::<RuntimeError>()
        .or_else(|| error.downcast_ref::<std::sync::Arc<RuntimeError>>().map(AsRef::as_ref))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.causes.iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::of(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_why_and_how_to_repair_it() {
        let inner = RuntimeError::new(RuntimeErrorKind::Denied, "registry said\u{1b} 401").with_hint("log in");
        let error = RuntimeError::other("could not pull `a`").caused_by(inner);
        let failure = Failure::of(&error);
        assert_eq!(failure.text(), "error: could not pull `a`\n  because: registry said? 401\nhint: log in\n");
        assert_eq!(failure.to_string(), "could not pull `a`: registry said\u{1b} 401");
    }

    #[test]
    fn a_failure_survives_the_socket() {
        let failure = Failure::new("NotFound", "no image `a`").or_hint("look").or_hint("ignored");
        let wire = serde_json::to_vec(&failure).expect("it has a wire form");
        assert_eq!(serde_json::from_slice::<Failure>(&wire).ok(), Some(failure));
        let failure = Failure::of_ensure(&EnsureError::never_pull("app:v1"));
        let wire = serde_json::to_value(&failure).expect("it has a wire form");
        assert_eq!((&wire["class"], &wire["hop"]), (&"not-present".into(), &"policy".into()));
        assert_eq!(serde_json::from_value::<Failure>(wire).ok(), Some(failure));
    }
}
