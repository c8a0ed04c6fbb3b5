//! The configuration of an image: its platform, its user, and the diff-ids of its layers.

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, Stage},
    image::{ByteSize, Digest, Platform},
};
use serde::Deserialize;

use super::{Bounded, DescriptorPlatform, LAYERS_MAX, check_texts, corrupt, printable, unacceptable};

pub(crate) const CONFIG_BYTES_MAX: u64 = 8 << 20;

/// The fields of an image's configuration that the store needs. The layers are verified against the diff-ids. The
/// fields for the runtime (command, environment, labels, volumes) are kept unchanged and not parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageConfig {
    pub(crate) architecture: String,
    pub(crate) os: String,
    pub(crate) variant: String,
    /// The user, as written: name or number, with or without a group.
    pub(crate) user: String,
    pub(crate) diff_ids: Vec<Digest>,
}

/// As in Go, an absent field and a field with `null` have the empty value.
#[derive(Deserialize)]
struct Raw {
    architecture: Option<String>,
    os: Option<String>,
    variant: Option<String>,
    config: Option<RawExecution>,
    rootfs: Option<RawRootfs>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawExecution {
    user: Option<String>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Option<Bounded<Digest, LAYERS_MAX>>,
}

impl ImageConfig {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, RuntimeError> {
        if bytes.len() as u64 > CONFIG_BYTES_MAX {
            let limit = ByteSize(CONFIG_BYTES_MAX);
            return Err(unacceptable(format!("the image configuration is larger than {limit}")));
        }
        let raw: Raw =
            super::object(bytes).map_err(|error| corrupt("the image configuration cannot be read").caused_by(error))?;
        let rootfs = raw.rootfs.ok_or_else(|| corrupt("the image configuration has no `rootfs`"))?;
        let config = Self {
            architecture: raw.architecture.unwrap_or_default(),
            os: raw.os.unwrap_or_default(),
            variant: raw.variant.unwrap_or_default(),
            user: raw.config.and_then(|config| config.user).unwrap_or_default(),
            diff_ids: rootfs.diff_ids.unwrap_or_default().all("image configuration", "diff ids")?,
        };
        let Self { architecture, os, variant, user, .. } = &config;
        check_texts("image configuration", [architecture, os, variant, user])?;
        Ok(config)
    }

    pub(super) fn platform(&self) -> DescriptorPlatform {
        let Self { os, architecture, variant, .. } = self.clone();
        DescriptorPlatform { os, architecture, variant }
    }

    pub(crate) fn has_system_of(&self, wanted: &Platform) -> bool {
        self.platform().has_system_of(wanted)
    }

    /// Checks that the image runs on `wanted`. An absent OS is the host's OS; an absent architecture matches any.
    pub(crate) fn check_platform(&self, wanted: &Platform) -> Result<(), RuntimeError> {
        let own = self.platform();
        if own.rank(wanted).is_some() || own.may_be_for(wanted) {
            return Ok(());
        }
        let or = |own: &str, absent: String| if own.is_empty() { absent } else { printable(own) };
        let (os, architecture) = (or(&own.os, Platform::host().os), or(&own.architecture, wanted.architecture.clone()));
        let fault = Fault::new(ErrorClass::PlatformMissing, Stage::Manifest);
        Err(unacceptable(format!("the image is for `{os}/{architecture}`, not for `{wanted}`")).with_fault(fault))
    }
}
