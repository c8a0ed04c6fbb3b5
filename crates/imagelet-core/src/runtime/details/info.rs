//! Image details as JSON texts by name in a verbose status, ours and other runtimes' (`docs/spec/cri.md §5.4`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{ImageDetails, JsonText, LAYERS_MAX, LayerDetails, value_or_none};
use crate::image::{ByteSize, Digest, Image};

const INFO: &str = "info";
/// Longest JSON text read: the largest configuration with its surroundings.
const JSON_BYTES_MAX: usize = 9 << 20;
/// Most bytes of further texts, so that one image cannot fill a message.
const REST_BYTES_MAX: usize = 1 << 20;

/// The fields under `info`; containerd has the first and the third, CRI-O the second and the third.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Info {
    #[serde(rename = "chainID", deserialize_with = "value_or_none", skip_serializing_if = "Option::is_none")]
    chain_id: Option<String>,
    #[serde(deserialize_with = "value_or_none")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "value_or_none", skip_serializing_if = "Option::is_none")]
    image_spec: Option<Box<RawValue>>,
    #[serde(deserialize_with = "value_or_none", skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<InfoLayer>>,
    #[serde(deserialize_with = "value_or_none", skip_serializing_if = "Option::is_none")]
    compressed_size: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InfoLayer {
    #[serde(rename = "diffID")]
    diff_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

impl ImageDetails {
    /// Encodes the details for a verbose status.
    pub fn to_info(&self) -> BTreeMap<String, String> {
        let layers = self
            .layers
            .iter()
            .map(|layer| InfoLayer { diff_id: layer.diff_id.to_string(), size: layer.bytes.map(|bytes| bytes.0) });
        let said = Info {
            chain_id: self.chain_id.as_ref().map(Digest::to_string),
            labels: Some(self.labels.clone()),
            image_spec: self.config.as_ref().and_then(|config| RawValue::from_string(config.as_str().to_owned()).ok()),
            layers: Some(layers.collect()),
            compressed_size: self.compressed.map(|size| size.0),
        };
        let mut info: BTreeMap<String, String> = self.info.clone();
        // A serialisation error leaves an empty object, as the key must be present.
        info.insert(INFO.to_owned(), serde_json::to_string(&said).unwrap_or_else(|_| "{}".to_owned()));
        info
    }

    /// Decodes a runtime's verbose status. A text that is too long or invalid is ignored.
    pub fn of_info(image: Image, mut info: BTreeMap<String, String>) -> Self {
        let text = info.remove(INFO).unwrap_or_default();
        let said: Info = if text.len() <= JSON_BYTES_MAX {
            serde_json::from_str(&text).unwrap_or_default()
        } else {
            Info::default()
        };
        let config = said.image_spec.and_then(|config| JsonText::new(config.get()));
        let mut details = match config {
            Some(config) => Self::of_config(image, config),
            None => Self::bare(image),
        };
        if let Some(chain_id) = said.chain_id.and_then(|chain_id| chain_id.parse().ok()) {
            details.chain_id = Some(chain_id);
        }
        if details.labels.is_empty() {
            details.labels = said.labels.unwrap_or_default();
        }
        let layers = said.layers.filter(|layers| layers.len() <= LAYERS_MAX).unwrap_or_default();
        let layers: Option<Vec<LayerDetails>> = layers.iter().map(layer_of).collect();
        details.layers = layers.filter(|layers| !layers.is_empty()).unwrap_or(details.layers);
        details.compressed = said.compressed_size.map(ByteSize);
        let length = |(key, value): (&String, &String)| key.len() + value.len();
        if info.iter().map(length).sum::<usize>() <= REST_BYTES_MAX {
            details.info = info;
        }
        details
    }
}

fn layer_of(layer: &InfoLayer) -> Option<LayerDetails> {
    Some(LayerDetails { diff_id: layer.diff_id.parse().ok()?, bytes: layer.size.map(ByteSize) })
}

#[cfg(test)]
mod tests {
    use super::{super::tests::image, *};

    fn read(info: &str) -> ImageDetails {
        ImageDetails::of_info(image(), BTreeMap::from([(INFO.to_owned(), info.to_owned())]))
    }

    #[test]
    fn details_come_back_as_they_were() {
        let layer = Digest::of(b"1");
        let config = format!(r#"{{"config":{{"Labels":{{"a":"1"}}}},"rootfs":{{"diff_ids":["{layer}"]}}}}"#);
        let details = ImageDetails::of_config(image(), JsonText::new(config).expect("an object"));
        let details = ImageDetails {
            compressed: Some(ByteSize(7)),
            layers: vec![LayerDetails { diff_id: layer, bytes: Some(ByteSize(5)) }],
            info: BTreeMap::from([("other".to_owned(), "{}".to_owned())]),
            ..details
        };
        assert_eq!(ImageDetails::of_info(image(), details.to_info()), details);
        let bare = ImageDetails::bare(image());
        assert_eq!(ImageDetails::of_info(image(), bare.to_info()), bare);
    }

    #[test]
    fn containerd_and_cri_o_say_it_each_in_their_way() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let spec = format!(r#"{{"config":{{"Labels":{{"a":"1"}}}},"rootfs":{{"diff_ids":["{one}","{two}"]}}}}"#);
        let containerd = read(&format!(r#"{{"chainID":"{two}","imageSpec":{spec}}}"#));
        assert_eq!(containerd.chain_id, Some(two.clone()), "as it says, not as we would");
        assert_eq!(containerd.labels.get("a").map(String::as_str), Some("1"));
        assert_eq!(containerd.config.expect("is there").as_str(), spec);
        let crio = read(&format!(r#"{{"labels":{{"b":"2"}},"imageSpec":{{"rootfs":{{"diff_ids":["{one}"]}}}}}}"#));
        assert_eq!(crio.labels.get("b").map(String::as_str), Some("2"));
        assert_eq!((crio.chain_id, crio.layers.len()), (Some(one), 1));
    }

    #[test]
    fn a_lying_runtime_says_less_and_breaks_nothing() {
        let long = format!(r#"{{"chainID":"{}"}}"#, "x".repeat(JSON_BYTES_MAX));
        for info in [
            "",
            "x",
            "[]",
            "null",
            "7",
            r#"{"chainID":7,"labels":[],"imageSpec":"x","layers":{},"compressedSize":-1}"#,
            &long,
        ] {
            assert_eq!(read(info), ImageDetails::bare(image()), "{info:.80}");
        }
        let rest = BTreeMap::from([("more".to_owned(), "x".repeat(REST_BYTES_MAX))]);
        assert!(ImageDetails::of_info(image(), rest).info.is_empty());
    }
}
