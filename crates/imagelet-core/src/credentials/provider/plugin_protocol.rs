//! The request to a plugin and its response (`docs/spec/pull.md §7.4`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::IgnoredAny};
use zeroize::Zeroizing;

use super::super::{DockerConfig, DockerEntry, Secret};
use crate::text::{GoDuration, Object, json_error, json_text, nullable, unique_map};

pub(super) const REQUEST_KIND: &str = "CredentialProviderRequest";
const RESPONSE_KIND: &str = "CredentialProviderResponse";
const GROUP: &str = "credentialprovider.kubelet.k8s.io";

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    pub(super) kind: &'static str,
    pub(super) api_version: &'a str,
    pub(super) image: &'a str,
    #[serde(rename = "serviceAccountToken", skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<&'a str>,
    #[serde(rename = "serviceAccountAnnotations", skip_serializing_if = "Option::is_none")]
    pub(super) annotations: Option<&'a BTreeMap<String, String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) cache_key_type: String,
    /// `None`: the default in the provider's configuration.
    pub(super) cache_duration: Option<GoDuration>,
    pub(super) auth: DockerConfig,
}

/// The output is no valid response. The text shows at most one character and the version field of the output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("error reading GVK from response: couldn't get version/kind; json parse error: {0}")]
    Json(String),
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual \
         apiVersion:{actual}"
    )]
    ApiVersion { expected: String, actual: String },
    /// The text omits the cause, which may contain secrets.
    #[error("error decoding credential provider plugin response from stdout")]
    Decode,
}

impl Request<'_> {
    pub(super) fn encode(&self) -> Zeroizing<String> {
        let annotations = self.annotations.filter(|annotations| !annotations.is_empty());
        let request = Self { annotations, ..*self };
        let of_annotations = annotations.into_iter().flatten().map(|(name, value)| name.len() + value.len() + 6);
        let texts = [self.api_version, self.image, self.token.unwrap_or_default()].map(str::len);
        let mut line = json_text(&request, 128 + texts.into_iter().chain(of_annotations).sum::<usize>());
        line.push('\n');
        line
    }
}

impl CacheKeyType {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "Image" => Some(Self::Image),
            "Registry" => Some(Self::Registry),
            "Global" => Some(Self::Global),
            _ => None,
        }
    }
}

impl Response {
    pub(super) fn decode(output: &[u8], api_version: &str) -> Result<Self, ResponseError> {
        let text = Zeroizing::new(String::from_utf8_lossy(output).into_owned());
        serde_json::from_str::<IgnoredAny>(&text).map_err(|error| ResponseError::Json(json_error(&error, &text)))?;
        let Object(header): Object<Header> = serde_json::from_str(&text).map_err(|_| ResponseError::Decode)?;
        let actual = header.api_version;
        if actual != api_version {
            return Err(ResponseError::ApiVersion { expected: api_version.to_owned(), actual });
        }
        let Object(document): Object<Document> = serde_json::from_str(&text).map_err(|_| ResponseError::Decode)?;
        let is_known = api_version.strip_prefix(GROUP).is_some_and(|rest| rest.starts_with('/'));
        if document.kind != RESPONSE_KIND || !is_known {
            return Err(ResponseError::Decode);
        }
        let entry = |(key, Object(auth)): (String, Object<AuthConfig>)| {
            let password = Secret::new(auth.password);
            (key, DockerEntry { username: auth.username, password, email: String::new(), identity_token: None })
        };
        let entries = document.auth.into_iter().map(entry).collect();
        Ok(Self {
            cache_key_type: document.cache_key_type,
            cache_duration: document.cache_duration,
            auth: DockerConfig { entries, ..DockerConfig::default() },
        })
    }

    pub(super) fn is_whole(output: &[u8]) -> bool {
        serde_json::from_slice::<IgnoredAny>(output).is_ok()
    }

    pub(super) fn passwords(&self) -> BTreeSet<&str> {
        self.auth.entries.values().map(|entry| entry.password.expose()).collect()
    }
}

#[cfg(feature = "fuzzing")]
pub fn plugin_answer(output: &[u8], api_version: &str) -> Result<Vec<super::super::PlainLogin>, String> {
    let response = Response::decode(output, api_version).map_err(|error| error.to_string())?;
    Ok(response.auth.into_logins())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Header {
    #[serde(deserialize_with = "nullable")]
    api_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Document {
    kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(deserialize_with = "nullable")]
    cache_key_type: String,
    cache_duration: Option<GoDuration>,
    #[serde(deserialize_with = "unique_map")]
    auth: BTreeMap<String, Object<AuthConfig>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AuthConfig {
    #[serde(deserialize_with = "nullable")]
    username: String,
    #[serde(deserialize_with = "nullable")]
    password: String,
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    #[test]
    fn a_list_is_no_answer_and_no_value_of_it_is_taken_for_the_version() {
        let header = format!(r#""kind":"{RESPONSE_KIND}","apiVersion":"{V1}""#);
        let of_lists =
            ["[\"hunter2\"]".to_owned(), format!("{{{header},\"auth\":{{\"reg\":[\"user\",\"hunter2\"]}}}}")];
        for answer in of_lists {
            let error = Response::decode(answer.as_bytes(), V1).expect_err("it is refused");
            assert_eq!(error, ResponseError::Decode, "{answer}");
        }
    }

    #[test]
    fn every_request_vector_holds() {
        let mut cases = 0;
        for case in vectors("pull-credential-provider-exec.json") {
            let (input, expected) = (&case["input"], &case["expected"]);
            let Some(line) = expected["request_stdin"].as_str() else { continue };
            let token = input["service_account_token"].as_str().map(Secret::new);
            let annotations: Option<BTreeMap<String, String>> =
                serde_json::from_value(input["service_account_annotations"].clone()).unwrap();
            let request = Request {
                kind: REQUEST_KIND,
                api_version: input["apiVersion"].as_str().expect("a version"),
                image: input["image"].as_str().expect("an image"),
                token: token.as_ref().map(Secret::expose),
                annotations: annotations.as_ref(),
            };
            assert_eq!(*request.encode(), line, "{}", case["name"]);
            cases += 1;
        }
        assert_eq!(cases, 4);
    }

    #[test]
    fn every_response_vector_holds() {
        let mut cases = 0;
        for case in vectors("pull-credential-provider-exec.json") {
            let expected = &case["expected"];
            let (Some(output), Some(decoded)) = (case["input"]["response"].as_str(), expected["decoded"].as_bool())
            else {
                continue;
            };
            let version: serde_json::Value = serde_json::from_str(output).unwrap();
            let response = Response::decode(output.as_bytes(), version["apiVersion"].as_str().expect("a version"));
            assert_eq!(response.is_ok(), decoded, "{}", case["name"]);
            if let Ok(response) = response {
                assert_eq!(Some(response.cache_key_type.as_str()), expected["cacheKeyType"].as_str());
                let seconds = expected["cacheDuration_s"].as_i64().expect("a duration");
                assert_eq!(response.cache_duration, Some(GoDuration(seconds * 1_000_000_000)));
                for (key, auth) in expected["auth"].as_object().expect("credentials") {
                    let found = &response.auth.entries[key];
                    assert_eq!(Some(found.username.as_str()), auth["username"].as_str());
                    assert_eq!(Some(found.password.expose()), auth["password"].as_str());
                }
            }
            cases += 1;
        }
        assert_eq!(cases, 5);
    }

    #[test]
    fn an_answer_with_a_slip_is_refused_without_showing_it() {
        let whole = |rest: &str| {
            format!(
                "{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"{V1}\",\"cacheKeyType\":\"Image\"{rest}}}"
            )
        };
        assert!(Response::decode(whole("").as_bytes(), V1).is_ok());
        for rest in [
            ",\"hunter2\":1",
            ",\"cacheKeyType\":\"hunter2\"",
            ",\"Auth\":{}",
            ",\"auth\":{\"a.io\":{\"username\":\"u\",\"password\":5}}",
            ",\"auth\":{\"a.io\":{\"username\":\"u\",\"identitytoken\":\"hunter2\"}}",
            ",\"auth\":{\"a.io\":{\"password\":\"hunter2\"},\"a.io\":{}}",
            ",\"auth\":[\"hunter2\"]",
            ",\"cacheDuration\":\"hunter2\"",
            ",\"cacheDuration\":60",
        ] {
            let error = Response::decode(whole(rest).as_bytes(), V1).expect_err(rest);
            assert_eq!(error, ResponseError::Decode, "{rest}");
        }
        assert_eq!(Response::decode(b"{\"apiVersion\":{\"hunter2\":1}}", V1), Err(ResponseError::Decode));
        let foreign = whole("").replace(V1, "foo/v1");
        assert_eq!(Response::decode(foreign.as_bytes(), "foo/v1"), Err(ResponseError::Decode));
    }

    #[test]
    fn an_answer_does_not_print_its_secrets() {
        let output = format!(
            "{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"{V1}\",\"auth\":{{\"a.io\":{{\"password\":\"hunter2\"}}}}}}"
        );
        let response = Response::decode(output.as_bytes(), V1).unwrap();
        assert_eq!(response.passwords().len(), 1);
        assert!(!format!("{response:?}").contains("hunter2"));
    }
}
