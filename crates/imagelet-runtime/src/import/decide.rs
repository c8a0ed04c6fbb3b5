//! Decides whether a pull is imported natively or forwarded to the runtime, and what happens after a failed import.

use std::{collections::HashMap, time::Duration};

use imagelet_core::{
    error::{ErrorClass, Stage},
    image::{ImageSpec, Reference},
    ports::{ForwardReason, ImageDetails, Members, PullRequest},
    text::named_enum,
};
use imagelet_oci::{ImportError, ImportStage};
use tokio::time::Instant;

use crate::cri::{OVERLAYFS, RuntimeInfo, convert::HANDLER_ANNOTATION};

/// After a forwarded pull has succeeded, further pulls from its registry are forwarded for this time.
const PREFERRED_FOR: Duration = Duration::from_mins(10);
const PREFERRED_MAX: usize = 256;

named_enum! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ImportMode {
        /// Imports if possible, otherwise forwards.
        #[default]
        Auto = "auto",
        /// Forwards each pull.
        Never = "never",
        /// Forwards no pull. If an import is impossible, the pull fails with the reason.
        Require = "require",
    }
}

/// Returns the runtime if an import is permitted. Without a `request`, checks only the conditions of all pulls.
/// `is_preferred` means that the runtime has recently pulled from the image's registry after a failed import.
pub(super) fn import_target<'a>(
    mode: ImportMode,
    runtime: &'a Result<RuntimeInfo, ForwardReason>,
    request: Option<&PullRequest>,
    is_preferred: bool,
) -> Result<&'a RuntimeInfo, ForwardReason> {
    if mode == ImportMode::Never {
        return Err(ForwardReason::SwitchedOff);
    }
    let runtime = match runtime {
        Ok(runtime) if runtime.is_containerd() => runtime,
        Ok(other) => return Err(ForwardReason::OtherRuntime(other.name.clone())),
        Err(why) => return Err(why.clone()),
    };
    if runtime.snapshotter() != Some(OVERLAYFS) {
        let name = runtime.snapshotter().map(str::to_owned);
        return Err(name.map_or(ForwardReason::SnapshotterUnknown, ForwardReason::Snapshotter));
    }
    if runtime.place().is_none() {
        return Err(ForwardReason::RootUnreachable("it reports no folder of the snapshotter".to_owned()));
    }
    let Some(request) = request else { return Ok(runtime) };
    let Ok(name) = request.image.image.parse::<Reference>().map(|name| name.canonical()) else {
        return Err(ForwardReason::NameInvalid);
    };
    check_handler(&request.image, runtime)?;
    if runtime.is_sandbox_image(&name) {
        return Err(ForwardReason::SandboxImage);
    }
    let registry = name.domain().to_owned();
    if let Some(setting) = runtime.configuration.registries.unread(&registry) {
        return Err(ForwardReason::RegistrySetting { setting, registry });
    }
    // `Require` forwards no pull, so it ignores preferred registries.
    if is_preferred && mode == ImportMode::Auto {
        return Err(ForwardReason::RegistryPreferred(registry));
    }
    Ok(runtime)
}

/// containerd unpacks an image with the snapshotter of its handler, so imports must support this snapshotter.
fn check_handler(image: &ImageSpec, runtime: &RuntimeInfo) -> Result<(), ForwardReason> {
    let annotated = image.annotations.iter().filter(|(key, _)| key == HANDLER_ANNOTATION).map(|(_, handler)| handler);
    for handler in annotated.chain([&image.runtime_handler]).filter(|handler| !handler.is_empty()) {
        let handler = handler.clone();
        match runtime.configuration.handlers.get(&handler).map(String::as_str) {
            Some("" | OVERLAYFS) => {}
            Some(other) => return Err(ForwardReason::HandlerSnapshotter { handler, snapshotter: other.to_owned() }),
            None => return Err(ForwardReason::HandlerUnknown(handler)),
        }
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct Survey {
    pub(super) runtime: RuntimeInfo,
    pub(super) incarnation: Option<String>,
    pub(super) at: Instant,
}

impl Survey {
    pub(super) fn younger_than(
        &self,
        limit: Duration,
        incarnation: Option<&str>,
        now: Instant,
    ) -> Option<&RuntimeInfo> {
        (self.incarnation.as_deref() == incarnation && now < self.at + limit).then_some(&self.runtime)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterFailure {
    Forward { remember: bool },
    Fail,
}

/// The next step after a failed import. CRI has no platform field, so a pull for another platform is not forwarded.
pub(super) fn after_failure(mode: ImportMode, failed: &ImportError, request: &PullRequest) -> AfterFailure {
    use ErrorClass as C;
    let (stage, fault) = (failed.stage, failed.cause.fault());
    // An artifact is not forwarded, because the runtime would unpack no file of it. A later import may succeed.
    if mode != ImportMode::Auto || request.platform.is_some() || stage == ImportStage::Unusable || failed.is_artifact {
        return AfterFailure::Fail;
    }
    // containerd has the image records but may not list the image. containerd's own pull completes the image.
    if stage == ImportStage::Recorded {
        let is_hidden = fault.class == C::TimedOut && fault.stage == Stage::Runtime;
        return if is_hidden { AfterFailure::Forward { remember: false } } else { AfterFailure::Fail };
    }
    match fault.class {
        // The registry answered. A second request would have the same result.
        C::RateLimited | C::ImageUnknown | C::BlobUnknown => AfterFailure::Fail,
        C::Cancelled | C::HeldBack | C::RateExceeded => AfterFailure::Fail,
        // The runtime would fill the same disk.
        C::DiskFull => AfterFailure::Fail,
        // The content is invalid, or it was rejected to protect the node.
        C::DigestMismatch | C::ContentInvalid | C::SignatureRejected => AfterFailure::Fail,
        C::Unacceptable if fault.stage != Stage::Manifest => AfterFailure::Fail,
        C::HostNotFound
        | C::ConnectionRefused
        | C::Unreachable
        | C::ConnectionLost
        | C::CertificateInvalid
        | C::TlsFailed
        | C::ProxyFailed
        | C::Unauthorized
        | C::Forbidden => AfterFailure::Forward { remember: true },
        _ => AfterFailure::Forward { remember: false },
    }
}

/// Whether a pod that mounts this image sees an empty folder. containerd's own pull unpacks no file of an artifact.
pub(super) fn is_empty_folder(pulled: &ImageDetails) -> bool {
    let Some(config) = pulled.config.as_ref().and_then(|config| Members::of(config.as_str())) else { return false };
    // An image without layers (`FROM scratch`) still has an image configuration. A WebAssembly module is not mounted.
    let is_image = config.object("rootfs").get::<&str>("type") == Some("layers");
    pulled.layers.is_empty() && !is_image && config.get::<&str>("architecture") != Some("wasm")
}

/// Whether only a change of settings can make the import possible.
pub(super) fn is_lasting(reason: &ForwardReason) -> bool {
    use ErrorClass as C;
    match reason {
        ForwardReason::RegistryPreferred(_) => false,
        ForwardReason::Failed { fault, .. } => matches!(
            fault.class,
            C::CertificateInvalid | C::TlsFailed | C::ProxyFailed | C::Unauthorized | C::Forbidden | C::Unsupported
        ),
        reason => !reason.is_outage(),
    }
}

#[derive(Debug, Default)]
pub(super) struct PreferredRegistries(pub(super) HashMap<String, Instant>);

impl PreferredRegistries {
    pub(super) fn is_preferred(&self, registry: &str, now: Instant) -> bool {
        self.0.get(registry).is_some_and(|since| now < *since + PREFERRED_FOR)
    }

    pub(super) fn prefer(&mut self, registry: &str, now: Instant) {
        self.0.retain(|_, since| now < *since + PREFERRED_FOR);
        if self.0.len() < PREFERRED_MAX || self.0.contains_key(registry) {
            self.0.insert(registry.to_owned(), now);
        }
    }
}

#[cfg(test)]
mod tests;
