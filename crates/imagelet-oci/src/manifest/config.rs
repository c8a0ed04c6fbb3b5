//! The configuration of an image: its platform, its user, and the diff-ids of its layers.

use imagelet_core::{
    error::RuntimeError,
    image::{ByteSize, Digest},
};
use serde::Deserialize;

use super::{Bounded, DescriptorPlatform, LAYERS_MAX, check_texts, corrupt, unacceptable};

pub(crate) const CONFIG_BYTES_MAX: u64 = 8 << 20;

/// The fields of an image's configuration that the store needs. The layers are verified against the diff-ids. The
/// fields for the runtime (command, environment, labels, volumes) are kept unchanged and not parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageConfig {
    pub(crate) platform: DescriptorPlatform,
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
            platform: DescriptorPlatform {
                os: raw.os.unwrap_or_default(),
                architecture: raw.architecture.unwrap_or_default(),
                variant: raw.variant.unwrap_or_default(),
            },
            user: raw.config.and_then(|config| config.user).unwrap_or_default(),
            diff_ids: rootfs.diff_ids.unwrap_or_default().all("image configuration", "diff ids")?,
        };
        check_texts("image configuration", config.platform.texts().into_iter().chain([&config.user]))?;
        Ok(config)
    }
}
