//! The details of one image, as in CRI's verbose status.

mod info;

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::image::{ByteSize, Digest, Image};

/// Longest configuration kept; the engine reads none that is longer.
const CONFIG_BYTES_MAX: usize = 8 << 20;
/// Most labels reported for one image.
const LABELS_MAX: usize = 1000;
/// Most layers reported for one image; the embedded store accepts no image with more.
const LAYERS_MAX: usize = 1000;

/// An image and its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageDetails {
    /// The image as `status` reports it.
    pub image: Image,
    /// The chain id of the highest layer.
    pub chain_id: Option<Digest>,
    /// The labels of its configuration.
    pub labels: BTreeMap<String, String>,
    /// Its configuration, unchanged.
    pub config: Option<JsonText>,
    /// Its layers, lowest first; empty where the store does not report them.
    pub layers: Vec<LayerDetails>,
    /// The fetched size: manifest, configuration and compressed layers.
    pub compressed: Option<ByteSize>,
    /// What was pulled, as the embedded store records it.
    pub pulled: Option<PulledManifest>,
    /// Further details of the store: JSON texts by name.
    pub info: BTreeMap<String, String>,
}

/// The manifest that an image was pulled by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledManifest {
    /// Its digest.
    pub digest: Digest,
    /// `OS/ARCHITECTURE`; empty for an artifact.
    pub platform: String,
    /// The type of an artifact; `None`: it is an image.
    pub artifact_type: Option<String>,
    /// Lowest first.
    pub layers: Vec<PulledLayer>,
    /// Time of the pull, in seconds since 1970.
    pub at: u64,
}

/// A layer in the manifest of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PulledLayer {
    /// Digest of a compressed blob that was fetched and unpacked to this layer; empty if unknown.
    pub blob: String,
    /// Size of that blob.
    pub size: u64,
    /// Digest of the uncompressed tar.
    pub diff_id: Digest,
    /// Media type in the manifest.
    pub media_type: String,
}

/// A layer of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDetails {
    /// The digest of its uncompressed tar.
    pub diff_id: Digest,
    /// Its unpacked size, where the store knows it.
    pub bytes: Option<ByteSize>,
}

impl ImageDetails {
    /// An image without details.
    pub fn bare(image: Image) -> Self {
        Self {
            image,
            chain_id: None,
            labels: BTreeMap::new(),
            config: None,
            layers: Vec::new(),
            compressed: None,
            pulled: None,
            info: BTreeMap::new(),
        }
    }

    /// Reads labels, layers and chain id from an image's configuration. Invalid fields are ignored, as the image's
    /// author wrote them.
    pub fn of_config(image: Image, config: JsonText) -> Self {
        let said: Said = serde_json::from_str(config.as_str()).unwrap_or_default();
        let labels = said.config.map(|config| config.labels.0).unwrap_or_default();
        let diff_ids = said.rootfs.and_then(|rootfs| sound(&rootfs.diff_ids)).unwrap_or_default();
        Self {
            chain_id: chain_ids(&diff_ids).pop(),
            labels,
            layers: diff_ids.into_iter().map(|diff_id| LayerDetails { diff_id, bytes: None }).collect(),
            config: Some(config),
            ..Self::bare(image)
        }
    }
}

/// The chain id of each layer: the diff id of the lowest; for others the digest of the chain id below and the diff id
/// (OCI image specification, layer ChainID).
pub(crate) fn chain_ids<'a>(diff_ids: impl IntoIterator<Item = &'a Digest>) -> Vec<Digest> {
    let mut chains: Vec<Digest> = Vec::new();
    for diff_id in diff_ids {
        let stack = chains.last().map(|below| Digest::of(format!("{below} {diff_id}").as_bytes()));
        chains.push(stack.unwrap_or_else(|| diff_id.clone()));
    }
    chains
}

/// A bounded text that is one JSON object.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    /// Wraps a text; `None` where it is not an object or too long.
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        let is_one = text.len() <= CONFIG_BYTES_MAX
            && text.trim_start().starts_with('{')
            && serde_json::from_str::<&RawValue>(&text).is_ok();
        is_one.then_some(Self(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Prints the length only: an environment in it may hold a secret.
impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsonText({} bytes)", self.0.len())
    }
}

#[derive(Default, Deserialize)]
struct Said {
    #[serde(default, deserialize_with = "value_or_none")]
    config: Option<SaidConfig>,
    #[serde(default, deserialize_with = "value_or_none")]
    rootfs: Option<SaidRootfs>,
}

#[derive(Default, Deserialize)]
struct SaidConfig {
    #[serde(default, rename = "Labels")]
    labels: Labels,
}

#[derive(Default, Deserialize)]
struct SaidRootfs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

#[derive(Default)]
struct Labels(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let said: Option<BTreeMap<String, serde_json::Value>> = value_or_none(deserializer)?;
        let texts = said.unwrap_or_default().into_iter().filter_map(|(key, value)| match value {
            serde_json::Value::String(text) => Some((key, text)),
            _ => None,
        });
        Ok(Self(texts.take(LABELS_MAX).collect()))
    }
}

pub(super) fn value_or_none<'de, D: serde::Deserializer<'de>, T: serde::de::DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let raw = Box::<RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(raw.get()).ok())
}

fn sound(diff_ids: &[String]) -> Option<Vec<Digest>> {
    if diff_ids.len() > LAYERS_MAX {
        return None;
    }
    diff_ids.iter().map(|diff_id| diff_id.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageId, ImageSpec, ImageUser};

    pub(super) fn image() -> Image {
        Image {
            id: ImageId::new("sha256:a"),
            tags: Vec::new(),
            digests: Vec::new(),
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
        }
    }

    fn read(config: &str) -> ImageDetails {
        ImageDetails::of_config(image(), JsonText::new(config).expect("an object"))
    }

    #[test]
    fn a_configuration_tells_labels_layers_and_their_chain() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let told = read(&format!(
            r#"{{"config":{{"Labels":{{"a":"1","b":2}}}},"rootfs":{{"diff_ids":["{one}","{two}"]}},"other":[]}}"#
        ));
        assert_eq!(told.labels, BTreeMap::from([("a".into(), "1".into())]), "what is no text is left out");
        assert_eq!(
            told.layers.iter().map(|layer| layer.diff_id.clone()).collect::<Vec<_>>(),
            [one.clone(), two.clone()]
        );
        assert_eq!(told.chain_id, Some(Digest::of(format!("{one} {two}").as_bytes())));
        assert_eq!(chain_ids(&[one.clone(), two]), [one, told.chain_id.unwrap()]);
        assert_eq!(chain_ids(&[]), []);
    }

    #[test]
    fn a_hostile_configuration_tells_less_and_breaks_nothing() {
        for config in [
            "{}",
            r#"{"config":[],"rootfs":7}"#,
            r#"{"config":{"Labels":"x"},"rootfs":{"diff_ids":["../../etc"]}}"#,
            r#"{"config":null,"rootfs":{"diff_ids":null}}"#,
        ] {
            let told = read(config);
            assert!(told.labels.is_empty() && told.layers.is_empty() && told.chain_id.is_none(), "{config}");
        }
        let many: BTreeMap<String, String> = (0..2000).map(|number| (number.to_string(), String::new())).collect();
        let config = serde_json::json!({ "config": { "Labels": many } }).to_string();
        assert_eq!(read(&config).labels.len(), LABELS_MAX);
        for text in ["", "[]", "7", "{", "{}x", &"[".repeat(100_000), &format!("{}{{}}", " ".repeat(CONFIG_BYTES_MAX))]
        {
            assert_eq!(JsonText::new(text), None);
        }
    }
}
