//! The two kinds of file, to the letter as the kubelet writes and reads them (`spec/pull.md §8.2`).

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, Visitor},
};

use crate::image::Digest;

const VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const VERSION_BEFORE: &str = "kubelet.config.k8s.io/v1alpha1";
const KIND_INTENT: &str = "ImagePullIntent";
const KIND_RECORD: &str = "ImagePulledRecord";

/// Who may use an image, by the names it was pulled under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PulledRecord {
    /// The image's id.
    pub image_ref: String,
    /// When this last changed.
    pub updated: Option<SystemTime>,
    /// Name without tag and digest, as the user spelled it → who may use it.
    pub mapping: BTreeMap<String, ImageAccess>,
}

/// Whose credentials opened an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageAccess {
    /// Pull secrets.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<RecordedSecret>,
    /// Service accounts.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<RecordedServiceAccount>,
    /// Anonymous access or the node's own credentials did: each pod may use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

/// A pull secret, by where it is and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedSecret {
    /// The secret's uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Hash of the credential in it.
    pub credential_hash: String,
}

/// A service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedServiceAccount {
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A file's content is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(String);

/// A decoded file, and whether an older version wrote it.
#[derive(Debug)]
pub(super) struct Decoded<T> {
    pub(super) content: T,
    pub(super) outdated: bool,
}

/// The name of the file of an image reference or id.
pub(super) fn file_name(key: &str) -> String {
    format!("sha256-{}", Digest::of(key.as_bytes()).hex())
}

pub(super) fn encode_intent(image: &str) -> Vec<u8> {
    line(&IntentFile { kind: KIND_INTENT.into(), api_version: VERSION.into(), image: image.to_owned() })
}

pub(super) fn decode_intent(bytes: &[u8]) -> Result<Decoded<String>, DecodeError> {
    let file: IntentFile = serde_json::from_slice(bytes).map_err(|error| DecodeError(error.to_string()))?;
    let outdated = check_header(&file.kind, KIND_INTENT, &file.api_version)?;
    Ok(Decoded { content: file.image, outdated })
}

pub(super) fn encode_record(record: &PulledRecord) -> Vec<u8> {
    line(&RecordFile {
        kind: KIND_RECORD.into(),
        api_version: VERSION.into(),
        last_updated_time: WireTime(record.updated),
        image_ref: record.image_ref.clone(),
        credential_mapping: WireMapping(record.mapping.clone()),
    })
}

pub(super) fn decode_record(bytes: &[u8]) -> Result<Decoded<PulledRecord>, DecodeError> {
    let file: RecordFile = serde_json::from_slice(bytes).map_err(|error| DecodeError(error.to_string()))?;
    let outdated = check_header(&file.kind, KIND_RECORD, &file.api_version)?;
    let content = PulledRecord {
        image_ref: file.image_ref,
        updated: file.last_updated_time.0,
        mapping: file.credential_mapping.0,
    };
    Ok(Decoded { content, outdated })
}

fn check_header(kind: &str, kind_wanted: &str, version: &str) -> Result<bool, DecodeError> {
    if kind != kind_wanted {
        return Err(DecodeError(format!("the file is of kind `{kind}`, not `{kind_wanted}`")));
    }
    match version {
        VERSION => Ok(false),
        VERSION_BEFORE => Ok(true),
        _ => Err(DecodeError(format!("no kind `{kind}` is known for version `{version}`"))),
    }
}

fn line(file: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(file).expect("texts, numbers and lists always encode");
    bytes.push(b'\n');
    bytes
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IntentFile {
    kind: String,
    api_version: String,
    #[serde(default)]
    image: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RecordFile {
    kind: String,
    api_version: String,
    #[serde(default)]
    last_updated_time: WireTime,
    #[serde(default)]
    image_ref: String,
    #[serde(default, skip_serializing_if = "WireMapping::is_empty")]
    credential_mapping: WireMapping,
}

/// RFC 3339, UTC, whole seconds; `null` when never.
#[derive(Default)]
struct WireTime(Option<SystemTime>);

impl Serialize for WireTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let seconds = self.0.and_then(|time| {
            let seconds = time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
            Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
        });
        match seconds {
            Some(timestamp) => serializer.collect_str(&timestamp),
            None => serializer.serialize_none(),
        }
    }
}

impl<'de> Deserialize<'de> for WireTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(Self(None)) };
        let timestamp: Timestamp = text.parse().map_err(D::Error::custom)?;
        let seconds = u64::try_from(timestamp.as_second()).unwrap_or_default();
        Ok(Self(SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))))
    }
}

/// A mapping that refuses a key twice.
#[derive(Default, Serialize)]
struct WireMapping(BTreeMap<String, ImageAccess>);

impl WireMapping {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for WireMapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = WireMapping;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of image names")
            }
            fn visit_unit<E>(self) -> Result<WireMapping, E> {
                Ok(WireMapping::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WireMapping, A::Error> {
                let mut mapping = BTreeMap::new();
                while let Some((name, access)) = map.next_entry::<String, ImageAccess>()? {
                    if mapping.insert(name, access).is_some() {
                        return Err(A::Error::custom("an image name is there twice"));
                    }
                }
                Ok(WireMapping(mapping))
            }
        }
        deserializer.deserialize_any(Members)
    }
}

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    #[test]
    fn every_file_name_vector_holds() {
        let cases = vectors("pull-records-filename.json");
        for case in &cases {
            let name = file_name(case["input"]["key"].as_str().expect("a key"));
            assert_eq!(Some(name.as_str()), case["expected"]["filename"].as_str());
        }
        assert_eq!(cases.len(), 29);
    }

    #[test]
    fn files_are_read_and_written_to_the_letter() {
        let (mut decoded, mut encoded) = (0, 0);
        for case in vectors("pull-records-files.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            match input["kind"].as_str() {
                Some("decode") => {
                    let content = input["content"].as_str().expect("a text");
                    let record = decode_record(content.as_bytes());
                    let key = input["file_name_key"].as_str().expect("a key");
                    let returned = record.as_ref().is_ok_and(|record| record.content.image_ref == key);
                    // The kubelet reads YAML too, though it never writes it. Here such a file is an unreadable one,
                    // which means that whoever wants the image has to show a credential.
                    let yaml = content.starts_with("kind:");
                    assert_eq!(returned, expected["record_returned"].as_bool().expect("a bool") && !yaml, "{content}");
                    assert_eq!(record.is_err(), !expected["error"].is_null() || yaml, "{content}: {record:?}");
                    decoded += 1;
                }
                Some("encode") => {
                    let object = &input["object"];
                    let bytes = if object["kind"] == KIND_INTENT {
                        encode_intent(object["image"].as_str().expect("an image"))
                    } else {
                        let instant: Option<Timestamp> =
                            object["lastUpdatedTime"].as_str().map(|time| time.parse().expect("a time"));
                        let mapping = object.get("credentialMapping").cloned().unwrap_or(serde_json::json!({}));
                        encode_record(&PulledRecord {
                            image_ref: object["imageRef"].as_str().expect("an id").into(),
                            updated: instant.map(SystemTime::from),
                            mapping: serde_json::from_value(mapping).expect("a mapping"),
                        })
                    };
                    assert_eq!(Some(String::from_utf8(bytes).unwrap().as_str()), expected["content"].as_str());
                    encoded += 1;
                }
                Some("directory") => {}
                other => panic!("unknown kind {other:?}"),
            }
        }
        assert_eq!((decoded, encoded), (13, 4));
    }
}
