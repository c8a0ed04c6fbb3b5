//! Reads which credential providers there are: one file, or all files of a folder (`docs/spec/pull.md §7.1`).

use std::{
    fmt,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::super::strict_value::{
    JsonError, Strict, TypeError, Value, list, optional_bool, optional_text, text, texts,
};
use crate::{
    image::Digest,
    text::{DurationError, Nanoseconds, parse_duration, quoted},
    trusted_files,
};

/// What `kind` says.
const KIND: &str = "CredentialProviderConfig";
/// The group of `apiVersion`.
const GROUP: &str = "kubelet.config.k8s.io";
/// The only version that knows `tokenAttributes`.
const VERSION_WITH_TOKENS: &str = "v1";
/// All versions.
const VERSIONS: [&str; 3] = [VERSION_WITH_TOKENS, "v1beta1", "v1alpha1"];
/// Files of other kinds in a folder are passed over.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];
/// A file longer than this is none.
const FILE_LENGTH_MAX: u64 = 1 << 20;
/// Most files of a folder.
const FILES_MAX: usize = 1000;

/// The providers of all files, as they are written; nothing but their shape was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderConfig {
    /// In the order of files and entries.
    pub(super) providers: Vec<ProviderEntry>,
    /// `sha256:…` over the files.
    pub(super) hash: String,
}

/// One provider as it is written. `Debug` hides its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProviderEntry {
    pub(super) name: String,
    pub(super) match_images: Vec<String>,
    pub(super) default_cache_duration: Option<Nanoseconds>,
    pub(super) api_version: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<Variable>,
    pub(super) token_attributes: Option<TokenAttributes>,
}

/// One variable of a provider's environment. `Debug` hides its value.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

/// How a provider wants tokens of service accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenAttributes {
    pub(super) audience: String,
    pub(super) cache_type: String,
    pub(super) require_service_account: Option<bool>,
    pub(super) required_annotations: Vec<String>,
    pub(super) optional_annotations: Vec<String>,
}

impl ProviderConfig {
    /// Reads a file, or the files of a folder by name. Waits for the disk.
    ///
    /// # Errors
    /// In the kubelet's words; shows no value of the configuration but names.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        if path.as_os_str().is_empty() {
            return Err("credential provider config path is empty".to_owned());
        }
        let found = std::fs::metadata(path).map_err(|error| failed("access path", path, &error))?;
        let files = if found.is_dir() { files_of(path)? } else { vec![path.to_owned()] };
        let mut providers: Vec<ProviderEntry> = Vec::new();
        let mut hashed = Vec::new();
        for file in files {
            let content = read_file(&file).map_err(|error| failed("read file", &file, &error))?;
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
            hashed.extend(content);
        }
        Ok(Self { providers, hash: Digest::of(&hashed).to_string() })
    }

    /// What tells this configuration from another one: `sha256:…` over the files.
    pub(super) fn hash(&self) -> &str {
        &self.hash
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

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    trusted_files::open(path)?.take(FILE_LENGTH_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > FILE_LENGTH_MAX {
        return Err(io::Error::other(format!("longer than {FILE_LENGTH_MAX} bytes")));
    }
    Ok(content)
}

/// Why a file is not what it should be.
#[derive(Debug, thiserror::Error)]
enum DecodeError {
    /// Which fields are unknown or repeated.
    #[error("strict decoding error: {0}")]
    Strict(String),
    #[error("Object '{field}' is missing in '{shown}'")]
    Missing { field: &'static str, shown: &'static str },
    #[error("no kind {} is registered for version {}", quoted(.kind), quoted(.version))]
    Kind { kind: String, version: String },
    #[error("couldn't get version/kind; json parse error: {0}")]
    Json(#[from] JsonError),
    #[error("error converting YAML to JSON: {0}")]
    Yaml(String),
    #[error(transparent)]
    Type(#[from] TypeError),
    #[error(transparent)]
    Duration(#[from] DurationError),
}

fn decode(content: &[u8]) -> Result<Vec<ProviderEntry>, DecodeError> {
    // What begins like a JSON object is read as one; all else is YAML.
    let is_json = content.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let root = if is_json { Value::from_json(content)? } else { parse_yaml(content)? };
    let mut strict = Strict::default();
    let [kind, version, providers] =
        strict.fields(root, "", ["kind", "apiVersion", "providers"], "plugin.CredentialProviderConfig")?;
    let (kind, version) = (text(kind)?, text(version)?);
    // A file may hold secrets in the environments of its providers, so that none is repeated here.
    let shown = if content.is_empty() { "" } else { "…" };
    if kind.is_empty() {
        return Err(DecodeError::Missing { field: "Kind", shown });
    }
    if version.is_empty() {
        return Err(DecodeError::Missing { field: "apiVersion", shown });
    }
    let known = version.split_once('/').filter(|(group, name)| *group == GROUP && VERSIONS.contains(name));
    let Some((_, short)) = known.filter(|_| kind == KIND) else { return Err(DecodeError::Kind { kind, version }) };
    let mut found = Vec::new();
    for (index, value) in list(providers, "[]v1.CredentialProvider")?.into_iter().enumerate() {
        found.push(provider(&mut strict, value, &format!("providers[{index}]"), short == VERSION_WITH_TOKENS)?);
    }
    if strict.findings.is_empty() { Ok(found) } else { Err(DecodeError::Strict(strict.findings.join(", "))) }
}

/// The first document; what follows it is not read.
fn parse_yaml(content: &[u8]) -> Result<Value, DecodeError> {
    let mut reader = content;
    let mut documents = serde_saphyr::read::<_, Value>(&mut reader);
    match documents.next() {
        None => Ok(Value::Null),
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => {
            let line = error.location().map_or(0, |location| location.line());
            if let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } = error.without_snippet() {
                let key = quoted(key);
                let message = format!("yaml: unmarshal errors:\n  line {line}: key {key} already set in map");
                return Err(DecodeError::Strict(message));
            }
            // The parser's own message may show a value.
            Err(DecodeError::Yaml(format!("yaml: line {line}: it does not read")))
        }
    }
}

fn provider(strict: &mut Strict, value: Value, path: &str, with_tokens: bool) -> Result<ProviderEntry, DecodeError> {
    const GO_TYPE: &str = "v1.CredentialProvider";
    const NAMES: [&str; 7] =
        ["name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env", "tokenAttributes"];
    let (fields, tokens) = if with_tokens {
        let [name, images, duration, version, args, env, tokens] = strict.fields(value, path, NAMES, GO_TYPE)?;
        ([name, images, duration, version, args, env], tokens)
    } else {
        let [name, images, duration, version, args, env, _] = NAMES;
        (strict.fields(value, path, [name, images, duration, version, args, env], GO_TYPE)?, None)
    };
    let [name, images, duration, version, args, env] = fields;
    let mut variables = Vec::new();
    for (index, value) in list(env, "[]v1.ExecEnvVar")?.into_iter().enumerate() {
        let path = format!("{path}.env[{index}]");
        let [name, value] = strict.fields(value, &path, ["name", "value"], "v1.ExecEnvVar")?;
        variables.push(Variable { name: text(name)?, value: text(value)? });
    }
    let token_attributes = match tokens {
        None | Some(Value::Null) => None,
        Some(value) => Some(token_attributes(strict, value, &format!("{path}.tokenAttributes"))?),
    };
    Ok(ProviderEntry {
        name: text(name)?,
        match_images: texts(images)?,
        default_cache_duration: optional_text(duration)?.map(|text| parse_duration(&text)).transpose()?,
        api_version: text(version)?,
        args: texts(args)?,
        env: variables,
        token_attributes,
    })
}

fn token_attributes(strict: &mut Strict, value: Value, path: &str) -> Result<TokenAttributes, DecodeError> {
    const NAMES: [&str; 5] = [
        "serviceAccountTokenAudience",
        "cacheType",
        "requireServiceAccount",
        "requiredServiceAccountAnnotationKeys",
        "optionalServiceAccountAnnotationKeys",
    ];
    let [audience, cache_type, require, required, optional] =
        strict.fields(value, path, NAMES, "v1.ServiceAccountTokenAttributes")?;
    Ok(TokenAttributes {
        audience: text(audience)?,
        cache_type: text(cache_type)?,
        require_service_account: optional_bool(require)?,
        required_annotations: texts(required)?,
        optional_annotations: texts(optional)?,
    })
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=[redacted]", self.name)
    }
}

/// An error of the system as Go prints it: `no such file or directory`.
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
    use super::*;
    use crate::{
        credentials::provider::validate::{Gates, check},
        testing::vectors,
    };

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
                // A folder in it is passed over, whatever its name.
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
            assert_eq!(Some(config.hash()), expected["hash"].as_str(), "{name}");
            let found: Vec<serde_json::Value> = config.providers.iter().map(told).collect();
            assert_eq!(serde_json::Value::from(found), expected["providers"], "{name}");
            for (tokens, key) in [(true, "validation_error_feature_on"), (false, "validation_error_feature_off")] {
                let error = check(&config, Gates { service_account_tokens: tokens }).err();
                let error = error;
                assert_eq!(error.as_deref(), expected[key].as_str(), "{name}: {key}");
            }
        }
        assert_eq!(cases.len(), 42);
    }

    /// The fields that the vectors show.
    fn told(provider: &ProviderEntry) -> serde_json::Value {
        let mut told = serde_json::json!({
            "name": provider.name, "apiVersion": provider.api_version, "matchImages": provider.match_images,
        });
        if let Some(duration) = provider.default_cache_duration {
            told["defaultCacheDuration"] = duration.to_string().into();
        }
        if !provider.args.is_empty() {
            told["args"] = provider.args.clone().into();
        }
        told
    }

    fn refused(content: &str) -> String {
        decode(content.as_bytes()).expect_err(content).to_string()
    }

    #[test]
    fn a_strict_decoder_names_every_field_that_is_unknown_or_repeated() {
        let json = r#"{"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "Providers": [],
            "providers": [{"name": "a", "name": "b", "env": [{"name": "x", "valueFrom": 1}],
            "tokenAttributes": {"audience": ""}}]}"#;
        assert_eq!(
            refused(json),
            "strict decoding error: unknown field \"Providers\", duplicate field \"providers[0].name\", \
             unknown field \"providers[0].env[0].valueFrom\", unknown field \"providers[0].tokenAttributes.audience\""
        );
    }

    #[test]
    fn a_file_that_is_none_is_refused_without_showing_it() {
        let head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
        for (content, expected) in [
            ("env: [{name: A, value: hunter2}]\n".to_owned(), "Object 'Kind' is missing in '…'"),
            ("kind: CredentialProviderConfig\n".to_owned(), "Object 'apiVersion' is missing in '…'"),
            ("{\"hunter2".to_owned(), "couldn't get version/kind; json parse error: unexpected end of JSON input"),
            (
                format!("{head}providers: hunter2\n"),
                "json: cannot unmarshal string into Go value of type []v1.CredentialProvider",
            ),
            (
                format!("{head}providers: [{{defaultCacheDuration: 5}}]\n"),
                "json: cannot unmarshal number into Go value of type string",
            ),
            (
                format!("{head}providers: [{{tokenAttributes: {{requireServiceAccount: hunter2}}}}]\n"),
                "json: cannot unmarshal string into Go value of type bool",
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
    fn what_is_not_there_or_too_long_is_told_as_go_tells_it() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none");
        let error = ProviderConfig::read(&missing).unwrap_err();
        assert_eq!(error, format!("unable to access path \"{}\": no such file or directory", missing.display()));
        assert_eq!(ProviderConfig::read(Path::new("")).unwrap_err(), "credential provider config path is empty");
        let long = folder.path().join("long.yaml");
        std::fs::write(&long, vec![b' '; 1 << 21]).unwrap();
        let error = ProviderConfig::read(&long).unwrap_err();
        assert_eq!(error, format!("unable to read file \"{}\": longer than 1048576 bytes", long.display()));
    }

    #[test]
    fn an_environment_does_not_print() {
        let variable = Variable { name: "KEY".into(), value: "hunter2".into() };
        assert_eq!(format!("{variable:?}"), "KEY=[redacted]");
    }
}
