//! The section `cri` of the configuration: what callers over CRI may do.

use serde::{Deserialize, Serialize};

/// `cri` in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CallersFile {
    /// Whether `serializeImagePulls`, `maxParallelImagePulls`, `registryPullQPS` and `registryBurst` hold for pulls over CRI, too. A kubelet has limited its pulls before it asks: limited here again, they would only come later. Shared pulls, admission and registries that are left alone are no matter of this.
    #[serde(rename = "limitPulls", skip_serializing_if = "Option::is_none")]
    limits_pulls: Option<bool>,
}

/// What callers over CRI may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CriCallers {
    /// Their pulls wait for slots and rate as all others.
    pub(crate) limits_pulls: bool,
}

impl CallersFile {
    pub(super) fn defaults() -> Self {
        Self { limits_pulls: Some(false) }
    }

    pub(super) fn checked(&self) -> CriCallers {
        CriCallers { limits_pulls: self.limits_pulls.unwrap_or_default() }
    }
}
