//! The configuration of an image: what runs in it, as whom, and the identities of its unpacked layers.

use std::{collections::BTreeMap, str::FromStr};

use imagelet_core::{
    image::{Digest, Platform},
    runtime::RuntimeError,
};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{DescriptorPlatform, LAYERS_MAX, bounded, corrupt, null_as_default, platform, printable, unacceptable};

/// Largest configuration that is read.
pub const CONFIG_BYTES_MAX: u64 = 8 << 20;

/// An image's configuration. All of it but the diff-ids is advice from whoever built the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// `amd64`, …; empty where the image says nothing.
    pub architecture: String,
    /// `linux`; empty where the image says nothing.
    pub os: String,
    /// `v8`, …; empty for none.
    pub variant: String,
    /// When it was built, as written.
    pub created: String,
    /// Whom to run as, as written: name or number, with or without a group.
    pub user: String,
    /// The digest of each unpacked layer, lowest first.
    pub diff_ids: Vec<Digest>,
    /// Free text. Inert: nothing here acts on a label.
    pub labels: BTreeMap<String, String>,
    /// `NAME=VALUE`
    pub env: Vec<String>,
    /// The fixed part of the command.
    pub entrypoint: Vec<String>,
    /// The part of the command that is replaced by arguments.
    pub cmd: Vec<String>,
    /// Where to start.
    pub working_dir: String,
    /// Paths to mount volumes at, as written; never used as paths here.
    pub volumes: Vec<String>,
    /// `PORT/PROTOCOL`
    pub exposed_ports: Vec<String>,
    /// The signal that stops it; empty for the default.
    pub stop_signal: String,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default, deserialize_with = "null_as_default")]
    architecture: String,
    #[serde(default, deserialize_with = "null_as_default")]
    os: String,
    #[serde(default, deserialize_with = "null_as_default")]
    variant: String,
    #[serde(default, deserialize_with = "null_as_default")]
    created: String,
    #[serde(default, deserialize_with = "null_as_default")]
    config: RawExecution,
    #[serde(default, deserialize_with = "null_as_default")]
    rootfs: RawRootfs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawExecution {
    #[serde(default, deserialize_with = "null_as_default")]
    user: String,
    #[serde(default, deserialize_with = "null_as_default")]
    labels: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "null_as_default")]
    env: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    entrypoint: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    cmd: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    working_dir: String,
    #[serde(default, deserialize_with = "null_as_default")]
    volumes: Keys,
    #[serde(default, deserialize_with = "null_as_default")]
    exposed_ports: Keys,
    #[serde(default, deserialize_with = "null_as_default")]
    stop_signal: String,
}

/// The names in an object whose values mean nothing.
#[derive(Default)]
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, serde::de::IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[derive(Default, Deserialize)]
struct RawRootfs {
    #[serde(default, deserialize_with = "digests")]
    diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Reads a configuration whose digest was checked.
    ///
    /// # Errors
    /// `Corrupt` when it is no configuration, `Unacceptable` when it is too large.
    pub fn parse(bytes: &[u8]) -> Result<Self, RuntimeError> {
        if bytes.len() as u64 > CONFIG_BYTES_MAX {
            return Err(unacceptable(format!("the image configuration is larger than {CONFIG_BYTES_MAX} bytes")));
        }
        let raw: Raw =
            super::object(bytes).map_err(|error| corrupt("the image configuration cannot be read").caused_by(error))?;
        bounded("image configuration", "diff ids", raw.rootfs.diff_ids.len(), LAYERS_MAX)?;
        let execution = raw.config;
        Ok(Self {
            architecture: raw.architecture,
            os: raw.os,
            variant: raw.variant,
            created: raw.created,
            user: execution.user,
            diff_ids: raw.rootfs.diff_ids,
            labels: execution.labels,
            env: execution.env,
            entrypoint: execution.entrypoint,
            cmd: execution.cmd,
            working_dir: execution.working_dir,
            volumes: execution.volumes.0,
            exposed_ports: execution.exposed_ports.0,
            stop_signal: execution.stop_signal,
        })
    }

    /// Checks that the image runs on a platform. A configuration that names no machine runs anywhere.
    ///
    /// # Errors
    /// `Unacceptable`, naming both.
    pub fn check_platform(&self, wanted: &Platform) -> Result<(), RuntimeError> {
        if self.architecture.is_empty() && self.os.is_empty() {
            return Ok(());
        }
        let own = DescriptorPlatform {
            os: if self.os.is_empty() { wanted.os.clone() } else { self.os.clone() },
            architecture: self.architecture.clone(),
            variant: self.variant.clone(),
        };
        if self.architecture.is_empty() || platform::rank(&own, wanted).is_some() {
            return Ok(());
        }
        let (os, architecture) = (printable(&own.os), printable(&own.architecture));
        Err(unacceptable(format!("the image is for `{os}/{architecture}`, not for `{wanted}`")))
    }
}

fn digests<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Digest>, D::Error> {
    let texts = Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default();
    texts
        .iter()
        .map(|text| Digest::from_str(text).map_err(|error| D::Error::custom(format!("`{}`: {error}", printable(text)))))
        .collect()
}
