//! The route of a pull, imported or forwarded, and the reason for a forward.

use crate::{
    error::{Fault, RuntimeError, RuntimeErrorKind},
    metrics::{Family, MetricKind},
};

pub static PULLS: Family = Family {
    name: "imagelet_runtime_pulls_total",
    help: "Pulls into a runtime by the way they took, why they were forwarded, and how they ended.",
    kind: MetricKind::Counter,
    labels: &["way", "reason", "outcome"],
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullRoute {
    #[error("imported into the runtime")]
    Imported,
    #[error("forwarded to the runtime: {0}")]
    Forwarded(ForwardReason),
    #[error(
        "forwarded to the runtime, which unpacks no file of an artifact: a pod that mounts it sees an empty folder ({0})"
    )]
    ForwardedArtifact(ForwardReason),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardReason {
    #[error("`runtimeImport` is `never`")]
    SwitchedOff,
    #[error("the runtime cannot be asked what it is: {0}")]
    RuntimeUnknown(String),
    #[error("the runtime is `{0}`, and import is for `containerd`")]
    OtherRuntime(String),
    #[error("the snapshotter is `{0}`, and import is for `overlayfs`")]
    Snapshotter(String),
    #[error("the runtime has several snapshotters and reports no default")]
    SnapshotterUnknown,
    #[error("the runtime reports no handler `{0}`")]
    HandlerUnknown(String),
    #[error("the snapshotter of handler `{handler}` is `{snapshotter}`, and import is for `overlayfs`")]
    HandlerSnapshotter { handler: String, snapshotter: String },
    /// The process is not root, or is in its own user namespace.
    #[error("{0}")]
    Rights(String),
    #[error("the runtime's folder cannot be reached: {0}")]
    RootUnreachable(String),
    #[error("layers cannot be staged beside the runtime's own: {0}")]
    Staging(String),
    #[error("the runtime's own interface does not answer: {0}")]
    ApiAway(String),
    #[error("the runtime's own interface is not usable: {0}")]
    ApiClosed(String),
    #[error("the image has no name that can be pulled")]
    NameInvalid,
    #[error("sandboxes are started from the image, and the runtime has to mark it")]
    SandboxImage,
    #[error("the runtime has {setting} for registry `{registry}`, which imagelet does not read")]
    RegistrySetting { setting: &'static str, registry: String },
    #[error("the runtime could pull from registry `{0}` lately, and imagelet could not")]
    RegistryPreferred(String),
    /// The import failed before it created an image record in the runtime.
    #[error("the import failed ({} at {}): {text}", fault.class, fault.stage)]
    Failed { fault: Fault, text: String },
}

impl PullRoute {
    /// The route of a failed pull. The text does not claim a finished import.
    pub fn of_failed(&self) -> String {
        match self {
            Self::Imported => "import into the runtime".to_owned(),
            Self::Forwarded(_) | Self::ForwardedArtifact(_) => self.to_string(),
        }
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::Imported => "imported",
            Self::Forwarded(_) | Self::ForwardedArtifact(_) => "forwarded",
        }
    }

    pub fn reason_code(&self) -> Option<&'static str> {
        match self {
            Self::Imported => None,
            Self::Forwarded(reason) | Self::ForwardedArtifact(reason) => Some(reason.code()),
        }
    }
}

impl ForwardReason {
    pub fn code(&self) -> &'static str {
        match self {
            Self::SwitchedOff => "switched-off",
            Self::RuntimeUnknown(_) => "runtime-unknown",
            Self::OtherRuntime(_) => "other-runtime",
            Self::Snapshotter(_) | Self::SnapshotterUnknown => "snapshotter",
            Self::HandlerUnknown(_) => "handler-unknown",
            Self::HandlerSnapshotter { .. } => "handler-snapshotter",
            Self::Rights(_) => "rights",
            Self::RootUnreachable(_) => "root-unreachable",
            Self::Staging(_) => "staging",
            Self::ApiAway(_) | Self::ApiClosed(_) => "api-closed",
            Self::NameInvalid => "name-invalid",
            Self::SandboxImage => "sandbox-image",
            Self::RegistrySetting { .. } => "registry-setting",
            Self::RegistryPreferred(_) => "registry-preferred",
            Self::Failed { .. } => "import-failed",
        }
    }

    /// The reason after a failed call of the runtime's own interface. Only an unsupported interface is permanent.
    pub fn of_api(error: &RuntimeError) -> Self {
        match error.kind() {
            RuntimeErrorKind::Unsupported => Self::ApiClosed(error.chain()),
            _ => Self::ApiAway(error.chain()),
        }
    }

    /// Whether the runtime is unavailable or busy, so that a later pull may be imported.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::RuntimeUnknown(_) | Self::ApiAway(_))
    }
}
