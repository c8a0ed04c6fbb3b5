//! What is written to a plugin, and how its answer is read (`docs/spec/pull.md §7.4`).

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    DockerConfig, DockerEntry, Secret,
    strict_value::{JsonError, Strict, TypeError, Value, optional_text, text},
};
use crate::text::{DurationError, Nanoseconds, parse_duration};

/// The kinds of the documents.
const REQUEST_KIND: &str = "CredentialProviderRequest";
const RESPONSE_KIND: &str = "CredentialProviderResponse";
/// The group of their versions.
const GROUP: &str = "credentialprovider.kubelet.k8s.io";

/// What a plugin is asked. `Debug` hides the token.
#[derive(Clone, Debug, Default)]
pub(super) struct Request<'a> {
    pub(super) api_version: &'a str,
    /// The repository, without tag and digest.
    pub(super) image: &'a str,
    pub(super) token: Option<&'a Secret>,
    pub(super) annotations: Option<&'a BTreeMap<String, String>>,
}

/// For which images an answer is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheKeyType {
    /// The one that was asked for.
    Image,
    /// All of its registry.
    Registry,
    /// All.
    Global,
}

/// What a plugin answered. `Debug` hides passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    /// As the plugin wrote it; not checked yet.
    pub(super) cache_key_type: String,
    /// How long the answer is good; `None`: the provider's own default.
    pub(super) cache_duration: Option<Nanoseconds>,
    /// Credentials by the registries and repositories they are for.
    pub(super) auth: DockerConfig,
}

/// An answer is none. Shows nothing of it but its version, and at most one character; that the version is one, nobody
/// promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("error reading GVK from response: couldn't get version/kind; json parse error: {0}")]
    Json(#[from] JsonError),
    #[error("error reading GVK from response: couldn't get version/kind; json parse error: {0}")]
    Type(TypeError),
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual \
         apiVersion:{actual}"
    )]
    ApiVersion { expected: String, actual: String },
    /// Whatever is wrong with it may show secrets.
    #[error("error decoding credential provider plugin response from stdout")]
    Decode,
}

impl Request<'_> {
    /// One line of JSON.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut line = format!(
            "{{\"kind\":\"{REQUEST_KIND}\",\"apiVersion\":{},\"image\":{}",
            json_text(self.api_version),
            json_text(self.image)
        );
        if let Some(token) = self.token {
            line.push_str(",\"serviceAccountToken\":");
            line.push_str(&json_text(token.expose()));
        }
        if let Some(annotations) = self.annotations.filter(|annotations| !annotations.is_empty()) {
            let members: Vec<String> =
                annotations.iter().map(|(name, value)| format!("{}:{}", json_text(name), json_text(value))).collect();
            line.push_str(",\"serviceAccountAnnotations\":{");
            line.push_str(&members.join(","));
            line.push('}');
        }
        line.push_str("}\n");
        line.into_bytes()
    }
}

/// A text as Go's encoder writes it: what a browser might take for markup is escaped.
fn json_text(text: &str) -> String {
    serde_json::Value::from(text)
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

impl CacheKeyType {
    /// By its name in an answer.
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
    /// Reads an answer that must be of this version.
    pub(super) fn decode(output: &[u8], api_version: &str) -> Result<Self, ResponseError> {
        const APART_FROM_STRICTNESS: &str = "v1.CredentialProviderResponse";
        let root = Value::from_json(output)?;
        let actual = version_of(&root)?;
        if actual != api_version {
            return Err(ResponseError::ApiVersion { expected: api_version.to_owned(), actual });
        }
        let mut strict = Strict::default();
        let names = ["kind", "apiVersion", "cacheKeyType", "cacheDuration", "auth"];
        let [kind, _, key_type, duration, auth] = strict.fields(root, "", names, APART_FROM_STRICTNESS)?;
        let known_version = api_version.strip_prefix(GROUP).is_some_and(|rest| rest.starts_with('/'));
        if text(kind)? != RESPONSE_KIND || !known_version {
            return Err(ResponseError::Decode);
        }
        let mut entries = BTreeMap::new();
        for (key, value) in strict.members(auth, "auth", "map[string]v1.AuthConfig")? {
            let [username, password] = strict.fields(value, "auth", ["username", "password"], "v1.AuthConfig")?;
            let password = Secret::new(text(password)?);
            entries.insert(key, DockerEntry { username: text(username)?, password, email: String::new() });
        }
        let response = Self {
            cache_key_type: text(key_type)?,
            cache_duration: optional_text(duration)?.map(|text| parse_duration(&text)).transpose()?,
            auth: DockerConfig { entries, ..DockerConfig::default() },
        };
        if strict.findings.is_empty() { Ok(response) } else { Err(ResponseError::Decode) }
    }

    /// Whether what was read so far is a whole document.
    pub(super) fn is_whole(output: &[u8]) -> bool {
        Value::from_json(output).is_ok()
    }

    /// Every password it holds.
    pub(super) fn passwords(&self) -> BTreeSet<&str> {
        self.auth.entries.values().map(|entry| entry.password.expose()).collect()
    }
}

/// `apiVersion`, read as Go reads it before it knows the type: names in any case, the last one wins.
fn version_of(root: &Value) -> Result<String, ResponseError> {
    let members = match root {
        Value::Null => return Ok(String::new()),
        Value::Object(members) => members,
        other => return Err(ResponseError::Type(TypeError::of_value(other, "struct"))),
    };
    let mut version = String::new();
    for (name, value) in members {
        let Some(field) = ["apiVersion", "kind"].into_iter().find(|field| name.eq_ignore_ascii_case(field)) else {
            continue;
        };
        match value {
            Value::Null => {}
            Value::Text(text) if field == "apiVersion" => version.clone_from(text),
            Value::Text(_) => {}
            other => return Err(ResponseError::Type(TypeError::of_field(other, &format!(".{field}"), "string"))),
        }
    }
    Ok(version)
}

impl From<TypeError> for ResponseError {
    fn from(_: TypeError) -> Self {
        Self::Decode
    }
}

impl From<DurationError> for ResponseError {
    fn from(_: DurationError) -> Self {
        Self::Decode
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vectors;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

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
                api_version: input["apiVersion"].as_str().expect("a version"),
                image: input["image"].as_str().expect("an image"),
                token: token.as_ref(),
                annotations: annotations.as_ref(),
            };
            assert_eq!(String::from_utf8(request.encode()).unwrap(), line, "{}", case["name"]);
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
                assert_eq!(response.cache_duration, Some(Nanoseconds(seconds * 1_000_000_000)));
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
        let error = Response::decode(b"{\"apiVersion\":{\"hunter2\":1}}", V1).unwrap_err().to_string();
        assert!(
            error.ends_with("json: cannot unmarshal object into Go struct field .apiVersion of type string"),
            "{error}"
        );
        let foreign = whole("").replace(V1, "foo/v1");
        assert_eq!(Response::decode(foreign.as_bytes(), "foo/v1"), Err(ResponseError::Decode));
    }

    #[test]
    fn neither_question_nor_answer_prints_its_secrets() {
        let token = Secret::new("hunter2");
        let request = Request { token: Some(&token), ..Request::default() };
        let output = format!(
            "{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"{V1}\",\"auth\":{{\"a.io\":{{\"password\":\"hunter2\"}}}}}}"
        );
        let response = Response::decode(output.as_bytes(), V1).unwrap();
        assert_eq!(response.passwords().len(), 1);
        assert!(!format!("{request:?} {response:?}").contains("hunter2"));
    }
}
