//! The kubelet's two record file formats, byte for byte (`docs/spec/pull.md §8.2`).

use std::{collections::BTreeMap, time::SystemTime};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _},
};

use crate::{
    credentials::ObjectIdentity,
    image::{Digest, Reference},
    text::{file_time, nullable, unique_map},
};

const VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const VERSION_BEFORE: &str = "kubelet.config.k8s.io/v1alpha1";
const KIND_INTENT: &str = "ImagePullIntent";
const KIND_RECORD: &str = "ImagePulledRecord";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PulledRecord {
    pub(crate) image_ref: String,
    pub(crate) updated: Option<SystemTime>,
    /// Image name as requested, without tag and digest → the access recorded for the name.
    pub(crate) mapping: BTreeMap<String, ImageAccess>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ImageAccess {
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(crate) kubernetes_secrets: Vec<RecordedSecret>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(crate) kubernetes_service_accounts: Vec<ObjectIdentity>,
    /// Whether every pod may use the image, because it was pulled anonymously or with a credential of the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) node_pods_accessible: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RecordedSecret {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) credential_hash: String,
}

impl RecordedSecret {
    pub(super) fn object(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct DecodeError(String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PullIntent {
    pub(super) image: String,
    /// `None`: the requested name is no reference, for example an image id.
    pub(super) reference: Option<Reference>,
}

impl PullIntent {
    pub(super) fn new(image: impl Into<String>) -> Self {
        let image = image.into();
        Self { reference: image.parse().ok(), image }
    }
}

pub(super) trait RecordFile: Sized {
    fn key(&self) -> &str;
    fn encode(&self) -> Vec<u8>;
    /// Returns the content, and whether the file has an older version.
    fn decode(bytes: &[u8]) -> Result<(Self, bool), DecodeError>;
}

pub(super) fn file_name(key: &str) -> String {
    format!("sha256-{}", Digest::of(key.as_bytes()).hex())
}

impl RecordFile for PullIntent {
    fn key(&self) -> &str {
        &self.image
    }

    fn encode(&self) -> Vec<u8> {
        line(&IntentDocument { kind: KIND_INTENT.into(), api_version: VERSION.into(), image: self.image.clone() })
    }

    fn decode(bytes: &[u8]) -> Result<(Self, bool), DecodeError> {
        let (file, outdated) = decode::<IntentDocument>(bytes, KIND_INTENT)?;
        Ok((Self::new(file.image), outdated))
    }
}

impl RecordFile for PulledRecord {
    fn key(&self) -> &str {
        &self.image_ref
    }

    fn encode(&self) -> Vec<u8> {
        line(&RecordDocument {
            kind: KIND_RECORD.into(),
            api_version: VERSION.into(),
            last_updated_time: WireTime(self.updated),
            image_ref: self.image_ref.clone(),
            credential_mapping: self.mapping.clone(),
        })
    }

    fn decode(bytes: &[u8]) -> Result<(Self, bool), DecodeError> {
        let (file, outdated) = decode::<RecordDocument>(bytes, KIND_RECORD)?;
        let content =
            Self { image_ref: file.image_ref, updated: file.last_updated_time.0, mapping: file.credential_mapping };
        Ok((content, outdated))
    }
}

#[cfg(feature = "fuzzing")]
pub fn rewritten_record(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(PulledRecord::decode(bytes).ok()?.0.encode())
}

#[cfg(feature = "fuzzing")]
pub fn rewritten_intent(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(PullIntent::decode(bytes).ok()?.0.encode())
}

/// Decodes JSON or YAML, as the kubelet. Returns whether the version is older. Errors have the kubelet's text.
fn decode<T: DeserializeOwned>(bytes: &[u8], kind: &str) -> Result<(T, bool), DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|error| DecodeError(error.to_string()))?;
    let header: Header = parse(text)?;
    if header.kind.is_empty() {
        return Err(DecodeError(format!("Object 'Kind' is missing in '{text}'")));
    }
    let outdated = match header.api_version.as_str() {
        VERSION => false,
        VERSION_BEFORE => true,
        other => {
            return Err(DecodeError(format!("no kind \"{}\" is registered for version \"{other}\"", header.kind)));
        }
    };
    match header.kind.as_str() {
        found if found == kind => Ok((parse(text)?, outdated)),
        found @ (KIND_INTENT | KIND_RECORD) => {
            Err(DecodeError(format!("failed to convert object to *{kind}: *config.{found}")))
        }
        found => Err(DecodeError(format!("no kind \"{found}\" is registered for version \"{}\"", header.api_version))),
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, DecodeError> {
    let complaint = match serde_json::from_str(text) {
        Ok(file) => return Ok(file),
        Err(error) if error.is_data() => error.to_string(),
        Err(_) if text.trim().is_empty() => return Err(DecodeError(format!("Object 'Kind' is missing in '{text}'"))),
        Err(error) => match serde_saphyr::from_str(text) {
            Ok(file) => return Ok(file),
            // Text that looks like JSON gets the error of the JSON parser.
            Err(_) if text.trim_start().starts_with('{') => error.to_string(),
            Err(error) => error.to_string(),
        },
    };
    let strict = |what: &str| {
        let field = complaint.strip_prefix(&format!("{what} field `"))?.split('`').next()?;
        Some(DecodeError(format!("strict decoding error: {what} field \"{field}\"")))
    };
    Err(strict("unknown").or_else(|| strict("duplicate")).unwrap_or_else(|| {
        let bare = complaint.strip_prefix("parsing time ").and_then(|_| complaint.rsplit_once(" at line "));
        DecodeError(bare.map_or_else(|| complaint.clone(), |(bare, _)| bare.to_owned()))
    }))
}

fn line(file: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(file).expect("texts, numbers and lists always encode");
    bytes.push(b'\n');
    bytes
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IntentDocument {
    kind: String,
    api_version: String,
    #[serde(default)]
    image: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RecordDocument {
    kind: String,
    api_version: String,
    #[serde(default)]
    last_updated_time: WireTime,
    #[serde(default)]
    image_ref: String,
    #[serde(default, deserialize_with = "unique_map", skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, ImageAccess>,
}

/// A time in RFC 3339, in UTC and whole seconds. `None` is `null` in the file.
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
        let timestamp: Timestamp = text.parse().map_err(|error| match text.get(..4) {
            Some(year) if year.bytes().all(|byte| byte.is_ascii_digit()) => D::Error::custom(error),
            // This is the error text of Go, whose parser expects a year at the start.
            _ => D::Error::custom(format!(
                "parsing time \"{text}\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"{text}\" as \"2006\""
            )),
        })?;
        Ok(Self(file_time(u64::try_from(timestamp.as_second()).unwrap_or_default())))
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;
    use crate::records::{PullRecords, VerificationPolicy};

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
    fn what_does_not_parse_is_reported_in_the_language_that_it_looks_like() {
        #[derive(Debug, Deserialize)]
        struct Kind {
            #[expect(dead_code, reason = "only its type matters")]
            kind: String,
        }
        for (text, expected) in [
            (" \n", "Object 'Kind' is missing in ' \n'"),
            ("{\"kind\": \"3\"", "EOF while parsing an object at line 1 column 12"),
            ("kind: [", "error: line 1 column 7: "),
        ] {
            let error = parse::<Kind>(text).unwrap_err().0;
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        for (time, expected) in [
            ("2026-13-01T00:00:00Z", "failed to parse two digit integer as month"),
            ("20x6-01-01T00:00:00Z", "parsing time \"20x6-01-01T00:00:00Z\" as \"2006-01-02T15:04:05Z07:00\""),
            ("", "parsing time \"\" as"),
        ] {
            let error = serde_json::from_value::<WireTime>(time.into()).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{time}: {error}");
        }
    }

    #[test]
    fn every_vector_of_files_holds() {
        use std::os::unix::fs::PermissionsExt;
        let (mut decoded, mut encoded, mut folders) = (0, 0, 0);
        let mode = |path: &std::path::Path| {
            let mode = std::fs::metadata(path).expect("it is there").permissions().mode();
            format!("{:04o}", mode & 0o7777)
        };
        for case in vectors("pull-records-files.json") {
            let (input, expected, place) = (&case["input"], &case["expected"], &case["name"]);
            let root = tempfile::tempdir().unwrap();
            let records = PullRecords::open(root.path(), VerificationPolicy::AlwaysVerify).unwrap();
            match input["kind"].as_str() {
                Some("decode") => {
                    let content = input["content"].as_str().expect("a text");
                    let key = input["file_name_key"].as_str().expect("a key");
                    std::fs::write(root.path().join("image_manager/pulled").join(file_name(key)), content).unwrap();
                    let records = PullRecords::open(root.path(), VerificationPolicy::AlwaysVerify).unwrap();
                    let found = records.records.find(key);
                    let (returned, exists) = (matches!(found, Ok(Some(_))), !matches!(found, Ok(None)));
                    assert_eq!(Some(returned), expected["record_returned"].as_bool(), "{place}");
                    assert_eq!(Some(exists), expected["exists"].as_bool(), "{place}");
                    let error = found.err().map(|error| error.to_string());
                    assert_eq!(error.as_deref(), expected["error"].as_str(), "{place}");
                    decoded += 1;
                }
                Some("encode") => {
                    let object = &input["object"];
                    if object["kind"] == KIND_INTENT {
                        records.intents.write(PullIntent::new(object["image"].as_str().expect("an image"))).unwrap();
                    } else {
                        let instant: Option<Timestamp> =
                            object["lastUpdatedTime"].as_str().map(|time| time.parse().expect("a time"));
                        let mapping = object.get("credentialMapping").cloned().unwrap_or(serde_json::json!({}));
                        let record = PulledRecord {
                            image_ref: object["imageRef"].as_str().expect("an id").into(),
                            updated: instant.map(SystemTime::from),
                            mapping: serde_json::from_value(mapping).expect("a mapping"),
                        };
                        records.records.write(record).unwrap();
                    }
                    let path = root.path().join(expected["path"].as_str().expect("a path"));
                    let content = std::fs::read_to_string(&path).unwrap();
                    assert_eq!(Some(content.as_str()), expected["content"].as_str(), "{place}");
                    assert_eq!(Some(mode(&path).as_str()), expected["mode"].as_str(), "{place}");
                    encoded += 1;
                }
                Some("directory") => {
                    let path = root.path().join(input["path"].as_str().expect("a path"));
                    assert_eq!(Some(mode(&path).as_str()), expected["mode"].as_str(), "{place}");
                    folders += 1;
                }
                other => panic!("unknown kind {other:?}"),
            }
        }
        assert_eq!((decoded, encoded, folders), (13, 4, 3));
    }
}
