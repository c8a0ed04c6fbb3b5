//! Reads the configuration of credential providers: one file, or all files of a folder (`docs/spec/pull.md §7.1`).

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;

use crate::{
    image::Digest,
    text::{GoDuration, Object, json_error, nullable, quoted},
    trusted_files,
};

const KIND: &str = "CredentialProviderConfig";
const GROUP: &str = "kubelet.config.k8s.io";
const VERSION_WITH_TOKENS: &str = "v1";
const VERSIONS: [&str; 3] = [VERSION_WITH_TOKENS, "v1beta1", "v1alpha1"];
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];
const FILE_LENGTH_MAX: u64 = 1 << 20;
const FILES_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderConfig {
    pub(super) providers: Vec<ProviderEntry>,
    /// The SHA-256 of the files, as `sha256:…`.
    pub(super) hash: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Header {
    kind: String,
    api_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Document {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(deserialize_with = "nullable")]
    providers: Vec<ProviderEntry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ProviderEntry {
    pub(super) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) match_images: Vec<String>,
    pub(super) default_cache_duration: Option<GoDuration>,
    pub(super) api_version: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) env: Vec<Variable>,
    pub(super) token_attributes: Option<TokenAttributes>,
}

/// An environment variable of a provider. `Debug` hides its value.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct TokenAttributes {
    #[serde(rename = "serviceAccountTokenAudience")]
    pub(super) audience: String,
    /// What a cached response is valid for: `ServiceAccount` or `Token`.
    pub(super) cache_type: String,
    pub(super) require_service_account: Option<bool>,
    #[serde(rename = "requiredServiceAccountAnnotationKeys", deserialize_with = "nullable")]
    pub(super) required_annotations: Vec<String>,
    #[serde(rename = "optionalServiceAccountAnnotationKeys", deserialize_with = "nullable")]
    pub(super) optional_annotations: Vec<String>,
}

impl ProviderConfig {
    /// Reads a file, or all files of a folder sorted by name. Blocks. An error has the kubelet's text, without values.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        if path.as_os_str().is_empty() {
            return Err("credential provider config path is empty".to_owned());
        }
        let found = std::fs::metadata(path).map_err(|error| failed("access path", path, &error))?;
        let files = if found.is_dir() { files_of(path)? } else { vec![path.to_owned()] };
        let mut providers: Vec<ProviderEntry> = Vec::new();
        let mut hashed = Vec::new();
        for file in files {
            let content = trusted_files::read(&file, FILE_LENGTH_MAX);
            let content = content.map_err(|error| failed("read file", &file, &error))?;
            let read = decode(&content)
                .map_err(|error| format!("error decoding config {}: {error}", quoted(&file.to_string_lossy())))?;
            for provider in read {
                if providers.iter().any(|known| known.name == provider.name) {
                    let name = quoted(&provider.name);
                    return Err(format!("duplicate provider name {name} found in configuration file(s)"));
                }
                providers.push(provider);
            }
            hashed.extend((content.len() as u64).to_be_bytes());
            hashed.extend_from_slice(&content);
        }
        Ok(Self { providers, hash: Digest::of(&hashed).to_string() })
    }
}

fn failed(action: &str, path: &Path, error: &io::Error) -> String {
    format!("unable to {action} {}: {}", quoted(&path.to_string_lossy()), go_text(error))
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| failed("read directory", folder, &error);
    trusted_files::check_folder(folder).map_err(failed)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_ours = path.extension().is_some_and(|found| EXTENSIONS.iter().any(|known| found == *known));
        if is_ours && std::fs::metadata(&path).is_ok_and(|found| !found.is_dir()) {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(failed(io::Error::other(format!("more than {FILES_MAX} files"))));
        }
    }
    if files.is_empty() {
        return Err(format!("no configuration files found in directory {}", quoted(&folder.to_string_lossy())));
    }
    files.sort();
    Ok(files)
}

/// Decodes one file. The environment variables in it may be secrets, so no error contains a value.
fn decode(content: &[u8]) -> Result<Vec<ProviderEntry>, String> {
    let text = String::from_utf8_lossy(content);
    let yaml = if text.trim_start().starts_with('{') {
        serde_json::from_str::<IgnoredAny>(&text)
            .map_err(|error| format!("couldn't get version/kind; json parse error: {}", json_error(&error, &text)))?;
        None
    } else {
        Some(first_document(content)?)
    };
    let Object(header): Object<Header> = typed(&text, yaml.as_ref())?;
    let shown = if content.is_empty() { "" } else { "…" };
    for (field, value) in [("Kind", &header.kind), ("apiVersion", &header.api_version)] {
        if value.is_empty() {
            return Err(format!("Object '{field}' is missing in '{shown}'"));
        }
    }
    let Header { kind, api_version } = header;
    let known = api_version.split_once('/').filter(|(group, name)| *group == GROUP && VERSIONS.contains(name));
    let Some((_, version)) = known.filter(|_| kind == KIND) else {
        return Err(format!("no kind {} is registered for version {}", quoted(&kind), quoted(&api_version)));
    };
    let providers = typed::<Document>(&text, yaml.as_ref())?.providers;
    let with_tokens = providers.iter().position(|provider| provider.token_attributes.is_some());
    match with_tokens.filter(|_| version != VERSION_WITH_TOKENS) {
        Some(index) => Err(format!("strict decoding error: unknown field \"providers[{index}].tokenAttributes\"")),
        None => Ok(providers),
    }
}

#[cfg(feature = "fuzzing")]
pub fn provider_names(content: &[u8]) -> Result<Vec<String>, String> {
    decode(content).map(|providers| providers.into_iter().map(|provider| provider.name).collect())
}

/// Decodes a document strictly; an error names the path of an unknown or repeated field.
fn typed<T: DeserializeOwned>(text: &str, yaml: Option<&Value>) -> Result<T, String> {
    let read = match yaml {
        Some(value) => serde_path_to_error::deserialize(value),
        None => serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(text)),
    };
    read.map_err(|error| described(&error))
}

fn described(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (path, message) = (error.path().to_string(), error.inner().to_string());
    let strict = |what: &str| {
        let name = message.strip_prefix(&format!("{what} field `"))?.split('`').next()?;
        let full = match path.as_str() {
            "." => name.to_owned(),
            path if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
            path => format!("{path}.{name}"),
        };
        Some(format!("strict decoding error: {what} field {}", quoted(&full)))
    };
    let duration = || Some(message.split(" at line ").next()?.to_owned()).filter(|text| text.starts_with("time: "));
    strict("unknown")
        .or_else(|| strict("duplicate"))
        .or_else(duration)
        .unwrap_or_else(|| format!("`{path}` has a value of another type"))
}

fn first_document(content: &[u8]) -> Result<Value, String> {
    let mut reader = content;
    let mut documents = serde_saphyr::read::<_, Value>(&mut reader);
    match documents.next() {
        None | Some(Ok(Value::Null)) => Ok(Value::Object(serde_json::Map::new())),
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => {
            let line = error.location().map_or(0, |location| location.line());
            if let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } = error.without_snippet() {
                let key = quoted(key);
                return Err(format!(
                    "strict decoding error: yaml: unmarshal errors:\n  line {line}: key {key} already set in map"
                ));
            }
            // The parser's message may show a value, so it is not used.
            Err(format!("error converting YAML to JSON: yaml: line {line}: it does not read"))
        }
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=[redacted]", self.name)
    }
}

/// An operating system error as Go prints it: `no such file or directory`.
pub(super) fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(_) => {
            let text = text.rsplit_once(" (os error").map_or(text.as_str(), |(text, _)| text);
            let mut letters = text.chars();
            letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;
    use crate::credentials::provider::validate::check;

    #[test]
    fn every_config_read_vector_holds() {
        let cases = vectors("pull-credential-provider-config-read.json");
        for case in &cases {
            let (input, expected, name) = (&case["input"], &case["expected"], &case["name"]);
            let folder = tempfile::tempdir().unwrap();
            let mut path = folder.path().to_owned();
            for (name, content) in input["files"].as_object().expect("files") {
                std::fs::write(folder.path().join(name), content.as_str().expect("a text")).unwrap();
            }
            if input["is_directory"] == true {
                // A subfolder is ignored, whatever its name.
                std::fs::create_dir(folder.path().join("z.yaml")).unwrap();
            } else {
                path.push(input["files"].as_object().unwrap().keys().next().expect("one file"));
            }
            let place = folder.path().to_str().expect("the path is a text");
            let read = ProviderConfig::read(&path);
            let error = read.as_ref().err().map(|error| error.replace(place, "CONFIG_PATH"));
            assert_eq!(error.as_deref(), expected["read_error"].as_str(), "{name}");
            let Ok(config) = read else {
                assert!(expected["hash"].is_null(), "{name}");
                continue;
            };
            assert_eq!(Some(config.hash.as_str()), expected["hash"].as_str(), "{name}");
            let found: Vec<serde_json::Value> = config.providers.iter().map(shown).collect();
            assert_eq!(serde_json::Value::from(found), expected["providers"], "{name}");
            for (tokens, key) in [(true, "validation_error_feature_on"), (false, "validation_error_feature_off")] {
                let error = check(&config, tokens).err();
                assert_eq!(error.as_deref(), expected[key].as_str(), "{name}: {key}");
            }
        }
        assert_eq!(cases.len(), 42);
    }

    fn shown(provider: &ProviderEntry) -> Value {
        let mut shown = serde_json::json!({
            "name": provider.name, "apiVersion": provider.api_version, "matchImages": provider.match_images,
        });
        if let Some(duration) = provider.default_cache_duration {
            shown["defaultCacheDuration"] = duration.to_string().into();
        }
        if !provider.args.is_empty() {
            shown["args"] = provider.args.clone().into();
        }
        shown
    }

    fn refused(content: &str) -> String {
        decode(content.as_bytes()).expect_err(content)
    }

    #[test]
    fn a_field_that_is_unknown_or_repeated_is_named_by_its_path() {
        let head = r#""kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1""#;
        for (rest, expected) in [
            (r#""Providers": []"#, "unknown field \"Providers\""),
            (r#""providers": [{"name": "a", "name": "b"}]"#, "duplicate field \"providers[0].name\""),
            (r#""providers": [{"env": [{"valueFrom": 1}]}]"#, "unknown field \"providers[0].env[0].valueFrom\""),
            (
                r#""providers": [{"tokenAttributes": {"audience": ""}}]"#,
                "unknown field \"providers[0].tokenAttributes.audience\"",
            ),
        ] {
            assert_eq!(refused(&format!("{{{head}, {rest}}}")), format!("strict decoding error: {expected}"));
        }
    }

    #[test]
    fn a_file_that_is_none_is_refused_without_showing_it() {
        let head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
        for (content, expected) in [
            ("env: [{name: A, value: hunter2}]\n".to_owned(), "Object 'Kind' is missing in '…'"),
            ("kind: CredentialProviderConfig\n".to_owned(), "Object 'apiVersion' is missing in '…'"),
            ("{\"hunter2".to_owned(), "couldn't get version/kind; json parse error: unexpected end of JSON input"),
            (format!("{head}providers: hunter2\n"), "`providers` has a value of another type"),
            (
                format!("{head}providers: [{{defaultCacheDuration: 5}}]\n"),
                "`providers[0].defaultCacheDuration` has a value of another type",
            ),
            (
                format!("{head}providers: [{{tokenAttributes: {{requireServiceAccount: hunter2}}}}]\n"),
                "`providers[0].tokenAttributes.requireServiceAccount` has a value of another type",
            ),
        ] {
            assert_eq!(refused(&content), expected);
        }
        let broken = refused(&format!("{head}providers: [hunter2\n"));
        assert!(broken.starts_with("error converting YAML to JSON: yaml: line "), "{broken}");
        assert!(!broken.contains("hunter2"));
    }

    #[test]
    fn yaml_truth_is_the_kubelets() {
        let content = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n\
                       providers: [{tokenAttributes: {requireServiceAccount: yes}}]\n";
        let read = decode(content.as_bytes()).unwrap();
        assert_eq!(read[0].token_attributes.as_ref().unwrap().require_service_account, Some(true));
    }

    #[test]
    fn what_is_not_there_or_too_long_is_reported_as_go_does() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none");
        let error = ProviderConfig::read(&missing).unwrap_err();
        assert_eq!(error, format!("unable to access path \"{}\": no such file or directory", missing.display()));
        assert_eq!(ProviderConfig::read(Path::new("")).unwrap_err(), "credential provider config path is empty");
        let long = folder.path().join("long.yaml");
        std::fs::write(&long, vec![b' '; 1 << 21]).unwrap();
        let error = ProviderConfig::read(&long).unwrap_err();
        assert_eq!(error, format!("unable to read file \"{}\": longer than 1.05MB", long.display()));
    }

    #[test]
    fn a_file_is_read_to_its_bound_and_a_folder_to_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("0.yaml");
        for (length, is_read) in [(FILE_LENGTH_MAX, true), (FILE_LENGTH_MAX + 1, false)] {
            std::fs::File::create(&long).unwrap().set_len(length).unwrap();
            let error = ProviderConfig::read(&long).unwrap_err();
            assert_eq!(!error.contains("longer than"), is_read, "{length}: {error}");
        }
        for number in 1..FILES_MAX {
            std::fs::File::create(folder.path().join(format!("{number}.yaml"))).unwrap();
        }
        assert_eq!(files_of(folder.path()).unwrap().len(), FILES_MAX);
        std::fs::File::create(folder.path().join("more.yaml")).unwrap();
        assert!(files_of(folder.path()).unwrap_err().ends_with("more than 1000 files"));
    }

    #[test]
    fn an_environment_does_not_print() {
        let variable = Variable { name: "KEY".into(), value: "hunter2".into() };
        assert_eq!(format!("{variable:?}"), "KEY=[redacted]");
    }
}
