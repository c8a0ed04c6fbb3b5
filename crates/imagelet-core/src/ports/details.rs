//! The details of one image, and their JSON form in the verbose status of CRI (`docs/spec/cri.md §5.4`).

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::image::{ByteSize, Digest, Image};

/// The maximum length of a stored configuration in bytes, the same as in the engine.
const CONFIG_BYTES_MAX: usize = 8 << 20;
const LABELS_MAX: usize = 1000;
/// The maximum number of layers. The embedded store accepts no image with more layers.
const LAYERS_MAX: usize = 1000;

const INFO: &str = "info";
/// The maximum length of a JSON text: the longest configuration and the JSON around it.
const JSON_BYTES_MAX: usize = 9 << 20;
/// The maximum bytes of all texts except the text of [`INFO`], so that one image cannot fill a message.
const REST_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageDetails {
    pub image: Image,
    /// The chain id of the highest layer.
    pub chain_id: Option<Digest>,
    pub labels: BTreeMap<String, String>,
    pub config: Option<JsonText>,
    /// The layers of the image, lowest first. Empty if the store does not report them.
    pub layers: Vec<LayerDetails>,
    /// The fetched size: manifest, configuration and compressed layers.
    pub compressed: Option<ByteSize>,
    pub pulled: Option<PulledManifest>,
    /// Other details from the store: JSON texts by name.
    pub info: BTreeMap<String, String>,
}

/// The manifest by which an image was pulled. Field names are those of `image.json` in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledManifest {
    #[serde(rename = "manifest")]
    pub digest: Digest,
    /// `OS/ARCHITECTURE`; empty for an artifact.
    pub platform: String,
    /// The fields of an artifact. `None`: the manifest is of an image, whose id is the digest of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<PulledArtifact>,
    /// The layers, lowest first.
    pub layers: Vec<PulledLayer>,
    /// Time of the pull, in seconds since 1970.
    #[serde(rename = "pulled_at")]
    pub at: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledArtifact {
    pub kind: String,
    pub config: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledLayer {
    /// Digest of a compressed blob that was fetched and unpacked to this layer.
    #[serde(default, deserialize_with = "digest_if_known", skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
    /// The size of the compressed blob in bytes.
    pub size: u64,
    /// Digest of the uncompressed tar, which is the key of the layer in the store. For a file of an artifact, the
    /// digest of its blob and path.
    pub diff_id: Digest,
    pub media_type: String,
}

fn digest_if_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Digest>, D::Error> {
    Ok(String::deserialize(deserializer)?.parse().ok())
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerDetails {
    /// The digest of the layer's uncompressed tar, or the key of an artifact's blob.
    #[serde(rename = "diffID")]
    pub diff_id: Digest,
    #[serde(default, rename = "size", skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ByteSize>,
    /// For an artifact: the path of a file, or with a `/` at its end, of the folder into which an archive is unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// The fields under `info`. containerd reports `chainID` and `imageSpec` too, CRI-O `labels` and `imageSpec`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    #[serde(rename = "chainID", skip_serializing_if = "Option::is_none")]
    chain_id: Option<&'a Digest>,
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_spec: Option<&'a RawValue>,
    layers: &'a [LayerDetails],
    #[serde(skip_serializing_if = "Option::is_none")]
    compressed_size: Option<ByteSize>,
}

impl ImageDetails {
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

    /// Reads labels, layers and chain id from an image's configuration. Ignores invalid fields, because the image's
    /// author wrote them.
    pub fn of_config(image: Image, config: JsonText) -> Self {
        let said = Members::of(config.as_str()).unwrap_or_default();
        let labels = said.object("config").object("Labels").all().take(LABELS_MAX).collect();
        let diff_ids: Option<Vec<Digest>> = said.object("rootfs").get("diff_ids");
        let diff_ids = diff_ids.filter(|diff_ids| diff_ids.len() <= LAYERS_MAX).unwrap_or_default();
        Self {
            chain_id: chain_ids(&diff_ids).pop(),
            labels,
            layers: diff_ids.into_iter().map(|diff_id| LayerDetails { diff_id, bytes: None, path: None }).collect(),
            config: Some(config),
            ..Self::bare(image)
        }
    }

    pub fn to_info(&self) -> BTreeMap<String, String> {
        let said = Info {
            chain_id: self.chain_id.as_ref(),
            labels: &self.labels,
            image_spec: self.config.as_ref().and_then(|config| serde_json::from_str(config.as_str()).ok()),
            layers: &self.layers,
            compressed_size: self.compressed,
        };
        let mut info: BTreeMap<String, String> = self.info.clone();
        // If serialisation fails, the value is an empty object, because the key must be present.
        info.insert(INFO.to_owned(), serde_json::to_string(&said).unwrap_or_else(|_| "{}".to_owned()));
        info
    }

    /// Decodes the verbose status of a runtime. Ignores a text that is too long or invalid.
    pub fn of_info(image: Image, mut info: BTreeMap<String, String>) -> Self {
        let text = info.remove(INFO).filter(|text| text.len() <= JSON_BYTES_MAX).unwrap_or_default();
        let said = Members::of(&text).unwrap_or_default();
        let config = said.get::<&RawValue>("imageSpec").and_then(|config| JsonText::new(config.get()));
        let mut details = match config {
            Some(config) => Self::of_config(image, config),
            None => Self::bare(image),
        };
        details.chain_id = said.get("chainID").or(details.chain_id);
        if details.labels.is_empty() {
            details.labels = said.get("labels").unwrap_or_default();
        }
        let layers: Option<Vec<LayerDetails>> = said.get("layers");
        let is_sound = |layers: &Vec<_>| !layers.is_empty() && layers.len() <= LAYERS_MAX;
        details.layers = layers.filter(is_sound).unwrap_or(details.layers);
        details.compressed = said.get("compressedSize");
        let length = |(key, value): (&String, &String)| key.len() + value.len();
        if info.iter().map(length).sum::<usize>() <= REST_BYTES_MAX {
            details.info = info;
        }
        details
    }
}

/// The chain id of each layer, lowest first (OCI image specification, layer ChainID).
pub fn chain_ids<'a>(diff_ids: impl IntoIterator<Item = &'a Digest>) -> Vec<Digest> {
    let mut chains: Vec<Digest> = Vec::new();
    for diff_id in diff_ids {
        let stack = chains.last().map(|below| Digest::of(format!("{below} {diff_id}").as_bytes()));
        chains.push(stack.unwrap_or_else(|| diff_id.clone()));
    }
    chains
}

#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        let is_one = text.len() <= CONFIG_BYTES_MAX
            && text.trim_start().starts_with('{')
            && serde_json::from_str::<&RawValue>(&text).is_ok();
        is_one.then_some(Self(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Prints only the length, because environment variables in the text may contain a secret.
impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsonText({} bytes)", self.0.len())
    }
}

/// The members of a JSON object from a verbose status. Any member may be missing or have another type, so each is
/// decoded on request. Other members are not copied, because they may contain passwords.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Members<'a>(#[serde(borrow)] BTreeMap<String, &'a RawValue>);

impl<'a> Members<'a> {
    pub fn of(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub fn get<T: Deserialize<'a>>(&self, name: &str) -> Option<T> {
        self.0.get(name).and_then(|member| serde_json::from_str(member.get()).ok())
    }

    /// The object in a member. Empty if the member is missing or is no object.
    #[must_use]
    pub fn object(&self, name: &str) -> Self {
        self.get(name).unwrap_or_default()
    }

    pub fn all<T: Deserialize<'a>>(self) -> impl Iterator<Item = (String, T)> {
        self.0.into_iter().filter_map(|(name, member)| Some((name, serde_json::from_str(member.get()).ok()?)))
    }

    pub fn names(self) -> impl Iterator<Item = String> {
        self.0.into_keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageId, ImageSpec, ImageUser};

    fn image() -> Image {
        Image {
            id: ImageId::new("sha256:a"),
            tags: Vec::new(),
            digests: Vec::new(),
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        }
    }

    fn read(config: &str) -> ImageDetails {
        ImageDetails::of_config(image(), JsonText::new(config).expect("an object"))
    }

    #[test]
    fn a_configuration_tells_labels_layers_and_their_chain() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let details = read(&format!(
            r#"{{"config":{{"Labels":{{"a":"1","b":2}}}},"rootfs":{{"diff_ids":["{one}","{two}"]}},"other":[]}}"#
        ));
        assert_eq!(details.labels, BTreeMap::from([("a".into(), "1".into())]), "what is no text is left out");
        assert_eq!(
            details.layers.iter().map(|layer| layer.diff_id.clone()).collect::<Vec<_>>(),
            [one.clone(), two.clone()]
        );
        assert_eq!(details.chain_id, Some(Digest::of(format!("{one} {two}").as_bytes())));
        assert_eq!(chain_ids(&[one.clone(), two]), [one, details.chain_id.unwrap()]);
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
            let details = read(config);
            assert!(details.labels.is_empty() && details.layers.is_empty() && details.chain_id.is_none(), "{config}");
        }
        let many: BTreeMap<String, String> = (0..2000).map(|number| (number.to_string(), String::new())).collect();
        let config = serde_json::json!({ "config": { "Labels": many } }).to_string();
        assert_eq!(read(&config).labels.len(), LABELS_MAX);
        for text in ["", "[]", "7", "{", "{}x", &"[".repeat(100_000), &format!("{}{{}}", " ".repeat(CONFIG_BYTES_MAX))]
        {
            assert_eq!(JsonText::new(text), None);
        }
    }

    fn read_info(info: &str) -> ImageDetails {
        ImageDetails::of_info(image(), BTreeMap::from([(INFO.to_owned(), info.to_owned())]))
    }

    #[test]
    fn details_come_back_as_they_were() {
        let layer = Digest::of(b"1");
        let config = format!(r#"{{"config":{{"Labels":{{"a":"1"}}}},"rootfs":{{"diff_ids":["{layer}"]}}}}"#);
        let details = ImageDetails::of_config(image(), JsonText::new(config).expect("an object"));
        let details = ImageDetails {
            compressed: Some(ByteSize(7)),
            layers: vec![LayerDetails { diff_id: layer, bytes: Some(ByteSize(5)), path: Some("a/b".to_owned()) }],
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
        let containerd = read_info(&format!(r#"{{"chainID":"{two}","imageSpec":{spec}}}"#));
        assert_eq!(containerd.chain_id, Some(two.clone()), "as it says, not as we would");
        assert_eq!(containerd.labels.get("a").map(String::as_str), Some("1"));
        assert_eq!(containerd.config.expect("is there").as_str(), spec);
        let crio = read_info(&format!(r#"{{"labels":{{"b":"2"}},"imageSpec":{{"rootfs":{{"diff_ids":["{one}"]}}}}}}"#));
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
            assert_eq!(read_info(info), ImageDetails::bare(image()), "{info:.80}");
        }
        let rest = BTreeMap::from([("more".to_owned(), "x".repeat(REST_BYTES_MAX))]);
        assert!(ImageDetails::of_info(image(), rest).info.is_empty());
    }
}
