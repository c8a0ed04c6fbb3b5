//! The section `cri` of the configuration: what callers over CRI may do.

use serde::{Deserialize, Serialize};

/// `cri` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CallersFile {
    /// Whether `serializeImagePulls`, `maxParallelImagePulls`, `registryPullQPS` and `registryBurst` hold for pulls over CRI, too. A kubelet has limited its pulls before it asks: limited here again, they would only come later. Shared pulls, admission and registries that are left alone are no matter of this.
    #[serde(rename = "limitPulls", skip_serializing_if = "Option::is_none")]
    limits_pulls: Option<bool>,
    /// Whether they may remove an image that a container holds, running or exited, or that is mounted into one. `false`: refused with `FailedPrecondition`. `true`: the runtime is asked to, and containerd takes the names away while its containers keep their files. An image that `imagelet mount` shows stays in the embedded store either way.
    #[serde(rename = "removeInUse", skip_serializing_if = "Option::is_none")]
    remove_in_use: Option<bool>,
}

/// What callers over CRI may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CriCallers {
    /// Their pulls wait for slots and rate as all others.
    pub(crate) limits_pulls: bool,
    /// What they remove may be in use.
    pub(crate) remove_in_use: bool,
}

impl CallersFile {
    pub(super) fn defaults() -> Self {
        Self { limits_pulls: Some(false), remove_in_use: Some(false) }
    }

    pub(super) fn checked(&self) -> CriCallers {
        CriCallers {
            limits_pulls: self.limits_pulls.unwrap_or_default(),
            remove_in_use: self.remove_in_use.unwrap_or_default(),
        }
    }
}
