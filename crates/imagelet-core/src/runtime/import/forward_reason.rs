//! The way of a pull, imported or forwarded, and the reason for a forward.

use std::fmt;

use crate::runtime::Fault;

/// A registry setting of a runtime that imagelet does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrySetting {
    /// `registry.mirrors`
    Mirrors,
    /// `registry.configs` or `registry.auths`
    Configs,
    /// `registry.headers`
    Headers,
    /// A setting that the runtime warns of and does not report.
    Hidden,
}

impl RegistrySetting {
    /// The key in the runtime's configuration.
    pub fn key(self) -> &'static str {
        match self {
            Self::Mirrors => "registry.mirrors",
            Self::Configs => "registry.configs",
            Self::Headers => "registry.headers",
            Self::Hidden => "a deprecated registry setting",
        }
    }
}

/// The way an image entered a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullWay {
    /// imagelet fetched it into the runtime's own stores.
    Imported,
    /// The runtime pulled it itself.
    Forwarded(ForwardReason),
}

/// Why a pull is forwarded to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardReason {
    /// `runtimeImport: never`
    SwitchedOff,
    /// The runtime is unknown.
    RuntimeUnknown(String),
    /// The runtime is not containerd.
    OtherRuntime(String),
    /// The images are in another snapshotter, or in several.
    Snapshotter(Option<String>),
    /// The runtime has no such handler.
    HandlerUnknown(String),
    /// The images of this handler are in another snapshotter.
    HandlerSnapshotter {
        /// The handler.
        handler: String,
        /// Its snapshotter.
        snapshotter: String,
    },
    /// The process is not root, or in a user namespace of its own.
    Rights(String),
    /// The runtime's folder is unreachable at the reported path.
    RootUnreachable(String),
    /// Layers cannot be staged beside the runtime's own.
    Staging(String),
    /// The runtime's own API does not respond.
    ApiClosed(String),
    /// The image has no name that can be pulled.
    NameInvalid,
    /// The runtime starts sandboxes from the image, and marks it during its own pull.
    SandboxImage,
    /// The runtime has a setting for the registry that imagelet does not read.
    RegistrySetting {
        /// The setting.
        setting: RegistrySetting,
        /// The registry.
        registry: String,
    },
    /// The runtime recently pulled from the registry where imagelet failed.
    RegistryPreferred(String),
    /// The import ended before any image record existed.
    Failed {
        /// Class and stage of the error.
        fault: Fault,
        /// The text of the error.
        text: String,
    },
}

impl PullWay {
    /// The stable word for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Imported => "imported",
            Self::Forwarded(_) => "forwarded",
        }
    }

    /// The reason of a forward, as a stable word.
    pub fn reason_code(&self) -> Option<&'static str> {
        match self {
            Self::Imported => None,
            Self::Forwarded(reason) => Some(reason.code()),
        }
    }
}

impl ForwardReason {
    /// The stable word for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::SwitchedOff => "switched-off",
            Self::RuntimeUnknown(_) => "runtime-unknown",
            Self::OtherRuntime(_) => "other-runtime",
            Self::Snapshotter(_) => "snapshotter",
            Self::HandlerUnknown(_) => "handler-unknown",
            Self::HandlerSnapshotter { .. } => "handler-snapshotter",
            Self::Rights(_) => "rights",
            Self::RootUnreachable(_) => "root-unreachable",
            Self::Staging(_) => "staging",
            Self::ApiClosed(_) => "api-closed",
            Self::NameInvalid => "name-invalid",
            Self::SandboxImage => "sandbox-image",
            Self::RegistrySetting { .. } => "registry-setting",
            Self::RegistryPreferred(_) => "registry-preferred",
            Self::Failed { .. } => "import-failed",
        }
    }
}

impl fmt::Display for PullWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Imported => f.write_str("imported into the runtime"),
            Self::Forwarded(reason) => write!(f, "forwarded to the runtime: {reason}"),
        }
    }
}

impl fmt::Display for ForwardReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("`runtimeImport` is `never`"),
            Self::RuntimeUnknown(why) => write!(f, "the runtime cannot be asked what it is: {why}"),
            Self::OtherRuntime(name) => write!(f, "the runtime is `{name}`, and import is for `containerd`"),
            Self::Snapshotter(Some(name)) => write!(f, "the snapshotter is `{name}`, and import is for `overlayfs`"),
            Self::Snapshotter(None) => f.write_str("the runtime has several snapshotters and reports no default"),
            Self::HandlerUnknown(handler) => write!(f, "the runtime reports no handler `{handler}`"),
            Self::HandlerSnapshotter { handler, snapshotter } => {
                write!(f, "the snapshotter of handler `{handler}` is `{snapshotter}`, and import is for `overlayfs`")
            }
            Self::Rights(why) => f.write_str(why),
            Self::RootUnreachable(why) => write!(f, "the runtime's folder cannot be reached: {why}"),
            Self::Staging(why) => write!(f, "layers cannot be staged beside the runtime's own: {why}"),
            Self::ApiClosed(why) => write!(f, "the runtime's own interface does not answer: {why}"),
            Self::NameInvalid => f.write_str("the image has no name that can be pulled"),
            Self::SandboxImage => f.write_str("sandboxes are started from the image, and the runtime has to mark it"),
            Self::RegistrySetting { setting, registry } => {
                write!(f, "the runtime has {} for registry `{registry}`, which imagelet does not read", setting.key())
            }
            Self::RegistryPreferred(registry) => {
                write!(f, "the runtime could pull from registry `{registry}` lately, and imagelet could not")
            }
            Self::Failed { fault, text } => write!(f, "the import failed ({} at {}): {text}", fault.class, fault.hop),
        }
    }
}
