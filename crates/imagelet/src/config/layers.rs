//! Lays files and flags over one another and remembers which of them each value came from.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    ConfigError, Environment, File, GoDuration, KUBELET_KIND, Settings,
    document::{Lines, parse, read},
    kubelet::{KUBELET_KEYS, MAPS},
    validate,
};

/// Of a kubelet's feature gates, those that are about images.
const FEATURE_GATES: [&str; 2] = ["KubeletEnsureSecretPulledImages", "ImageMaximumGCAge"];

/// Keys that no default has a value for.
const ABSENT_BY_DEFAULT: [&str; 11] = [
    "maxParallelImagePulls",
    "credentials",
    "dockerConfig",
    "tracing",
    "samplingRatePerMillion",
    "repository",
    "lastTags",
    "label",
    "namespace",
    "image",
    "for",
];

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Source {
    /// Nobody said otherwise.
    Default,
    /// A file, at a line where that could be told.
    File(PathBuf, Option<usize>),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, Some(line)) => write!(f, "{}:{line}", path.display()),
            Self::File(path, None) => write!(f, "{}", path.display()),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sourced {
    /// Its key, with dots between the levels.
    pub(crate) key: String,
    /// The value as the file would spell it.
    pub(crate) value: Value,
    /// Where it came from.
    pub(crate) source: Source,
}

/// What was given, from weak to strong. Later layers win key by key.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    environment: Environment,
    given: BTreeMap<String, (Value, Source)>,
    /// On which line each entry of a list stands, by `key[index]`.
    entries: BTreeMap<String, usize>,
}

impl Layers {
    /// Nothing but defaults.
    pub(crate) fn new(environment: Environment) -> Self {
        Self { environment, given: BTreeMap::new(), entries: BTreeMap::new() }
    }

    /// Adds a file of our own kind.
    pub(crate) fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = read(path)?;
        let file: File = parse(path, &text)?;
        let lines = Lines::of(&text);
        if let Some(message) = file.unasked_runtime() {
            return Err(ConfigError::Parse { place: place(path, lines.line("containerRuntimeEndpoint")), message });
        }
        self.add(path, &lines, file)
    }

    /// Adds the image settings of a kubelet's file.
    pub(crate) fn add_kubelet_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = read(path)?;
        let mut document: serde_json::Map<String, Value> = parse(path, &text)?;
        let lines = Lines::of(&text);
        if document.get("kind").and_then(Value::as_str) != Some(KUBELET_KIND) {
            return Err(ConfigError::Parse {
                place: place(path, lines.line("kind")),
                message: format!("this is no `{KUBELET_KIND}`"),
            });
        }
        document.retain(|key, value| KUBELET_KEYS.contains(&key.as_str()) && !value.is_null());
        if let Some(gates) = document.get_mut("featureGates").and_then(Value::as_object_mut) {
            gates.retain(|gate, _| FEATURE_GATES.contains(&gate.as_str()));
        }
        // One key at a time, so that a complaint can name it.
        for (key, value) in document {
            let alone = Value::Object([(key.clone(), value)].into_iter().collect());
            let file: File = serde_json::from_value(alone).map_err(|error| ConfigError::Parse {
                place: place(path, lines.line(&key)),
                message: format!("{key}: {error}"),
            })?;
            self.add(path, &lines, file)?;
        }
        Ok(())
    }

    /// Adds what a flag says.
    pub(crate) fn add_flag(&mut self, flag: &'static str, key: &str, value: impl Into<Value>) {
        self.given.insert(key.to_owned(), (value.into(), Source::Flag(flag)));
    }

    fn add(&mut self, path: &Path, lines: &Lines, mut file: File) -> Result<(), ConfigError> {
        file.drop_zeros();
        for (key, value) in flatten(&file)? {
            let line = lines.line(&key);
            // The parser takes `"80"` for a number; the kubelet does not.
            if lines.is_text(&key) && !value.is_string() {
                let message = format!("{key}: a text in quotes is no {}", kind_of(&value));
                return Err(ConfigError::Parse { place: place(path, line), message });
            }
            let source = Source::File(path.to_owned(), line);
            let of_list = format!("{key}[");
            self.entries.retain(|entry, _| !entry.starts_with(&of_list));
            for index in 0..value.as_array().map_or(0, Vec::len) {
                let entry = format!("{key}[{index}]");
                let Some(line) = lines.line(&entry) else { continue };
                self.entries.insert(entry, line);
            }
            self.given.insert(key, (value, source));
        }
        Ok(())
    }

    /// Where a key was given; `key[2]` is the third entry of a list.
    fn source(&self, key: &str) -> Option<Source> {
        let list = key.split('[').next().unwrap_or_default();
        let source = self.given.get(list).map(|(_, source)| source.clone())?;
        Some(match (source, self.entries.get(key)) {
            (Source::File(path, _), Some(line)) => Source::File(path, Some(*line)),
            (source, _) => source,
        })
    }

    /// All keys with their effective values, sorted.
    pub(crate) fn effective(&self) -> Result<Vec<Sourced>, ConfigError> {
        let given = unflatten(self.given.iter().map(|(key, (value, _))| (key, value)))?;
        let mut all: BTreeMap<String, (Value, Source)> = flatten(&File::defaults(&given, &self.environment))?
            .into_iter()
            .map(|(key, value)| (key, (value, Source::Default)))
            .collect();
        all.extend(self.given.clone());
        Ok(all.into_iter().map(|(key, (value, source))| Sourced { key, value, source }).collect())
    }

    /// The checked configuration.
    ///
    /// # Errors
    /// Every rule that is broken, each with the place of the key that breaks it.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let effective = self.effective()?;
        let file = unflatten(effective.iter().map(|one| (&one.key, &one.value)))?;
        let settings = validate::check(&file).map_err(|complaints| {
            let given = |key: &Cow<'static, str>| self.source(key);
            let line = |complaint: validate::Complaint| match complaint.keys.iter().find_map(given) {
                None => complaint.message,
                Some(source) => format!("{source}: {}", complaint.message),
            };
            ConfigError::Invalid(complaints.into_iter().map(line).collect())
        })?;
        Ok(Settings { surroundings: self.environment.surroundings(), ..settings })
    }
}

pub(super) fn place(path: &Path, line: Option<usize>) -> String {
    Source::File(path.to_owned(), line).to_string()
}

/// Whether a key, without those above it, is one of the file's.
pub(super) fn is_known(name: &str) -> bool {
    let all = File::defaults(&File::default(), &Environment::default());
    let mut known = flatten(&all).unwrap_or_default().into_keys();
    known.any(|key| key.split('.').any(|part| part == name)) || ABSENT_BY_DEFAULT.contains(&name)
}

/// The leaves of a file, by dotted key. A list is a leaf.
fn flatten(file: &File) -> Result<BTreeMap<String, Value>, ConfigError> {
    fn walk(prefix: &str, value: Value, leaves: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) if !MAPS.contains(&prefix) => {
                for (name, field) in fields {
                    let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
                    walk(&key, field, leaves);
                }
            }
            leaf => {
                leaves.insert(prefix.to_owned(), leaf);
            }
        }
    }
    let mut leaves = BTreeMap::new();
    walk("", serde_json::to_value(file).map_err(|error| internal(&error))?, &mut leaves);
    Ok(leaves)
}

fn unflatten<'a>(leaves: impl Iterator<Item = (&'a String, &'a Value)>) -> Result<File, ConfigError> {
    let mut root = Value::Object(serde_json::Map::new());
    for (key, value) in leaves {
        let mut node = &mut root;
        for part in key.split('.') {
            if !node.is_object() {
                *node = Value::Object(serde_json::Map::new());
            }
            node = &mut node[part];
        }
        *node = value.clone();
    }
    serde_json::from_value(root).map_err(|error| internal(&error))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "boolean",
        _ => "number",
    }
}

fn internal(error: &serde_json::Error) -> ConfigError {
    ConfigError::Invalid(vec![format!("invalid configuration: {error}")])
}

impl From<GoDuration> for Value {
    fn from(duration: GoDuration) -> Self {
        Value::String(duration.to_string())
    }
}

#[cfg(test)]
mod tests {
    use imagelet_core::testing::vectors;
    use serde_json::json;

    use super::*;

    fn given(text: &str) -> Layers {
        let mut layers = Layers::new(Environment { root: true, ..Environment::default() });
        let file: File = serde_saphyr::from_str(text).expect("the file parses");
        layers.add(Path::new("f.yaml"), &Lines::of(text), file).expect("the file can be laid over");
        layers
    }

    fn in_file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("the test's file is written");
        (directory, path)
    }

    #[test]
    fn a_runtime_that_only_the_kubelets_key_names_is_refused_in_a_file_of_ours() {
        let endpoint = "unix:///run/containerd/containerd.sock";
        let head = format!(
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ncontainerRuntimeEndpoint: {endpoint}\n"
        );
        let read = |more: &str| {
            let (_folder, path) = in_file("f.yaml", &format!("{head}{more}"));
            Layers::new(Environment { root: true, ..Environment::default() }).add_file(&path)
        };
        for more in ["", "imageService: {cri: {endpoint: 'unix:///other.sock'}}\n"] {
            let told = read(more).expect_err("it is refused").to_string();
            for word in
                ["f.yaml:3: containerRuntimeEndpoint", endpoint, "imageService.cri.endpoint", "store.runtimeEndpoint"]
            {
                assert!(told.contains(word), "{told}");
            }
        }
        read(&format!("imageService: {{cri: {{endpoint: '{endpoint}'}}}}\n")).expect("it is asked for images");
        read(&format!("store: {{runtimeEndpoint: '{endpoint}'}}\n")).expect("it is asked for containers");
    }

    #[test]
    fn every_vector_of_defaults_holds() {
        let cases = vectors("gc-config-defaults.json");
        assert_eq!(cases.len(), 14);
        for case in &cases {
            let layers = given(&case["input"].to_string());
            let effective: BTreeMap<String, Value> =
                layers.effective().expect("defaults apply").into_iter().map(|one| (one.key, one.value)).collect();
            for (key, expected) in case["expected"].as_object().expect("the vector has fields") {
                let found = match key.as_str() {
                    "effective_image_endpoint" => layers.settings().expect("it holds").node.image_endpoint.into(),
                    key => effective.get(key).cloned().unwrap_or(Value::Null),
                };
                let empty = expected.is_null() && found == Value::Array(Vec::new());
                assert!(empty || &found == expected, "{}: {key}: {found} is not {expected}", case["name"]);
            }
        }
    }

    /// The vectors change a configuration whose defaults are applied already: an empty text stays one.
    fn checked(change: &Value, gates: &Value) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/gc-config-validation.json");
        let document: Value =
            serde_json::from_str(&std::fs::read_to_string(path).expect("the vectors are there")).expect("they parse");
        let defaults = File::defaults(&File::default(), &Environment { root: true, ..Environment::default() });
        let mut whole = serde_json::to_value(defaults).expect("defaults are a document");
        for (key, value) in [&document["base_config"], change].into_iter().flat_map(|it| it.as_object().expect("keys"))
        {
            whole[key] = value.clone();
        }
        for (gate, value) in gates.as_object().expect("gates") {
            whole["featureGates"][gate] = value.clone();
            let policy = "imagePullCredentialsVerificationPolicy";
            if *value == Value::Bool(false) && change.get(policy).is_none() {
                // With the gate off the kubelet's defaulting leaves the policy empty.
                whole[policy] = "".into();
            }
        }
        let file: File = serde_json::from_value(whole).expect("it is a file");
        let told = validate::check(&file).map_or_else(|told| told, |_| Vec::new());
        for text in told.iter().map(|complaint| &complaint.message) {
            assert!(text.starts_with("invalid configuration: ") != text.starts_with("tracing."), "{text}");
        }
        told.into_iter().map(|complaint| complaint.message + "\n").collect()
    }

    #[test]
    fn every_vector_of_validation_holds() {
        let cases = vectors("gc-config-validation.json");
        assert_eq!(cases.len(), 34);
        for case in &cases {
            let errors = checked(&case["input"]["change"], &case["input"]["feature_gates"]);
            let is_valid = case["expected"]["valid"].as_bool().expect("a verdict");
            assert_eq!(errors.is_empty(), is_valid, "{}: {errors}", case["name"]);
            for text in case["expected"]["error_contains"].as_array().expect("a list of texts") {
                let text = text.as_str().expect("a text");
                assert!(errors.contains(text), "{}: {errors} lacks {text}", case["name"]);
            }
        }
    }

    /// As `kubeadm` writes it: what nobody set is nought or empty, and stands for the default.
    #[test]
    fn a_file_full_of_noughts_leaves_all_defaults_in_force() {
        let (_kept, path) = in_file(
            "kubelet.yaml",
            "apiVersion: kubelet.config.k8s.io/v1beta1\ncontainerRuntimeEndpoint: \"\"\nkind: KubeletConfiguration\n\
             evictionPressureTransitionPeriod: 0s\nimageMaximumGCAge: 0s\nimageMinimumGCAge: 0s\neventBurst: 0\n\
             imagePullCredentialsVerificationPolicy: \"\"\nlogging: {flushFrequency: 0}\nmemorySwap: {}\n\
             nodeStatusReportFrequency: 0s\nnodeStatusUpdateFrequency: 0s\nregistryBurst: 0\n\
             runtimeRequestTimeout: 0s\nsyncFrequency: 0s\n",
        );
        let plain = Layers::new(Environment { root: true, ..Environment::default() });
        let mut layers = plain.clone();
        layers.add_kubelet_file(&path).expect("it is read");
        assert_eq!(layers.settings().expect("it holds"), plain.settings().expect("it holds"));
    }

    #[test]
    fn a_kubelet_knows_two_disks_where_it_asks_crio_alone() {
        let splits = |endpoint: &str| {
            given(&format!("containerRuntimeEndpoint: {endpoint}\n")).settings().expect("it holds").node.splits_disks
        };
        assert!(splits("unix:///var/run/crio/crio.sock") && splits("/run/crio/crio.sock"));
        assert!(!splits("unix:///run/containerd/containerd.sock"));
    }

    #[test]
    fn a_kubelets_eviction_settings_are_taken_as_they_are() {
        let (_kept, path) = in_file(
            "kubelet.yaml",
            "kind: KubeletConfiguration\nevictionHard:\n  imagefs.available: 20%\n  nodefs.available: 1Gi\n\
             mergeDefaultEvictionSettings: true\ntracing: {endpoint: 'localhost:4317', samplingRatePerMillion: 5}\n\
             imageServiceEndpoint: unix:///run/imagelet/imagelet.sock\nevictionSoft: {}\n",
        );
        let mut layers = Layers::new(Environment { root: true, ..Environment::default() });
        layers.add_kubelet_file(&path).expect("it is read");
        let shown: BTreeMap<String, (Value, String)> = layers
            .effective()
            .expect("layers merge")
            .into_iter()
            .map(|one| (one.key, (one.value, one.source.to_string())))
            .collect();
        let hard = json!({"imagefs.available": "20%", "nodefs.available": "1Gi"});
        assert_eq!(shown["evictionHard"], (hard, format!("{}:2", path.display())));
        assert_eq!(shown["tracing.samplingRatePerMillion"].0, json!(5));
        let settings = layers.settings().expect("it holds");
        let signals: Vec<&str> = settings.node.thresholds.iter().map(|it| it.signal.name()).collect();
        assert_eq!(signals.len(), 5, "the defaults of the others stay: {signals:?}");
        assert_eq!(settings.node.image_endpoint, "unix:///run/imagelet/imagelet.sock");
        assert!(matches!(settings.backend, super::super::Backend::Embedded(_)), "it is the kubelet's, not ours");
    }

    #[test]
    fn each_map_of_thresholds_is_blamed_at_its_line() {
        for (text, complaint) in [
            ("evictionHard: {x: 1%}", "evictionHard: unsupported eviction signal x"),
            (
                "evictionSoft: {imagefs.available: 5%}",
                "evictionSoft: grace period must be specified for the soft eviction threshold imagefs.available",
            ),
            (
                "evictionSoftGracePeriod: {imagefs.available: -1s}",
                "evictionSoftGracePeriod: invalid eviction grace period specified: -1s, must be a positive value",
            ),
            (
                "evictionMinimumReclaim: {imagefs.available: 0%}",
                "evictionMinimumReclaim: eviction percentage minimum reclaim imagefs.available must be positive: 0%",
            ),
        ] {
            let error = given(&format!("socket: /s\n{text}\n")).settings().expect_err("refused").to_string();
            let text = complaint.split_once(": ").expect("a key").1;
            assert_eq!(error, format!("f.yaml:2: invalid configuration: {text}"));
        }
    }

    #[test]
    fn every_vector_of_pull_settings_holds() {
        let cases = vectors("pull-config-validation.json");
        for case in &cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            let mut document = input["config"].clone();
            document["featureGates"] = json!({FEATURE_GATES[0]: input["feature_ensure_secret_pulled_images"]});
            let layers = given(&document.to_string());
            let effective = layers.effective().expect("defaults apply");
            for (key, wanted) in expected["after_defaulting"].as_object().expect("values") {
                let found = effective.iter().find(|one| one.key == *key).map_or(Value::Null, |one| one.value.clone());
                let is_empty = wanted.is_null() && found == Value::Array(Vec::new());
                assert!(is_empty || found == *wanted, "{}: {key}: {found} is not {wanted}", case["name"]);
            }
            let findings: Vec<String> = match layers.settings() {
                Ok(_) => Vec::new(),
                // Each stands behind the place it is about.
                Err(ConfigError::Invalid(findings)) => {
                    let text =
                        |finding: &String| finding.find("invalid configuration").map(|at| finding[at..].to_owned());
                    findings.iter().map(|finding| text(finding).expect("it says so")).collect()
                }
                Err(error) => panic!("{}: {error}", case["name"]),
            };
            assert_eq!(Value::from(findings), expected["errors"], "{}", case["name"]);
        }
        assert_eq!(cases.len(), 41);
    }

    #[test]
    fn of_a_kubelets_feature_gates_the_one_about_images_is_taken() {
        let (_kept, path) = in_file(
            "kubelet.yaml",
            "kind: KubeletConfiguration\nfeatureGates:\n  Other: true\n  KubeletEnsureSecretPulledImages: false\n",
        );
        let mut layers = Layers::new(Environment { root: true, ..Environment::default() });
        layers.add_kubelet_file(&path).expect("it is read");
        assert_eq!(layers.settings().expect("it holds").verification, super::super::Verification::Off);
    }

    #[test]
    fn flags_win_over_files_and_our_file_over_the_kubelets() {
        let (_kept, kubelet) = in_file(
            "kubelet.yaml",
            "kind: KubeletConfiguration\nclusterDNS: [10.0.0.10]\nimageServiceEndpoint: unix:///x\n\
             imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60\nregistryPullQPS: null\n",
        );
        let (_kept, own) = in_file("imagelet.yaml", "imageGCLowThresholdPercent: 50\nstore:\n  layersInFlight: 2\n");
        let mut layers = Layers::new(Environment { root: true, ..Environment::default() });
        layers.add_kubelet_file(&kubelet).expect("the kubelet's file is read");
        layers.add_file(&own).expect("our file is read");
        layers.add_flag("--store", "store.directory", "/srv/images");

        let sources: BTreeMap<String, String> = layers
            .effective()
            .expect("layers merge")
            .into_iter()
            .map(|one| (one.key, format!("{} {}", one.value, one.source)))
            .collect();
        assert_eq!(sources["imageGCHighThresholdPercent"], format!("70 {}:4", kubelet.display()));
        assert_eq!(sources["imageGCLowThresholdPercent"], format!("50 {}:1", own.display()));
        assert_eq!(sources["store.layersInFlight"], format!("2 {}:3", own.display()));
        assert_eq!(sources["store.directory"], "\"/srv/images\" --store");
        assert_eq!(sources["registryPullQPS"], "5 default");
        let settings = layers.settings().expect("the configuration holds");
        let super::super::Backend::Embedded(store) = settings.backend else { panic!("another backend") };
        assert_eq!(store.directory, Path::new("/srv/images"));
    }

    #[test]
    fn an_unknown_key_or_a_wrong_type_is_refused_with_its_line() {
        for (text, line, word) in [
            ("registryBurst: 10\nimageGCHighTreshold: 70\n", 2, "imageGCHighTreshold"),
            ("store:\n  layersInFligt: 2\n", 2, "layersInFligt"),
            ("\nregistryPullQPS: many\n", 2, "many"),
            ("imageMinimumGCAge: 5\n", 1, ""),
        ] {
            let (_kept, path) = in_file("imagelet.yaml", text);
            let mut layers = Layers::new(Environment::default());
            let Err(error) = layers.add_file(&path) else { panic!("{text} is accepted") };
            let error = error.to_string();
            assert!(error.starts_with(&format!("{}:{line}: ", path.display())), "{error}");
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_kubelets_file_names_the_key_of_a_wrong_type_and_must_be_one() {
        for (text, line, word) in [
            ("kind: KubeletConfiguration\nregistryBurst: many\n", 2, "registryBurst: "),
            ("kind: Pod\n", 1, "KubeletConfiguration"),
        ] {
            let (_kept, path) = in_file("kubelet.yaml", text);
            let Err(error) = Layers::new(Environment::default()).add_kubelet_file(&path) else { panic!("accepted") };
            let error = error.to_string();
            assert!(error.starts_with(&format!("{}:{line}: ", path.display())) && error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_broken_rule_is_told_with_its_place() {
        let error = given("socket: relative.sock\nstore:\n  layersInFlight: 0\n").settings().expect_err("refused");
        assert_eq!(
            error.to_string(),
            "f.yaml:1: invalid configuration: socket `relative.sock` must be an absolute path\n\
             f.yaml:3: invalid configuration: store.layersInFlight 0 must be between 1 and 64, inclusive"
        );
    }

    #[test]
    fn what_a_store_promises_and_allows_is_said_in_the_file() {
        let settings = given(
            "store:\n  durability: background\n  keepBlobs: true\n  unpackMemory: 128Mi\n  limits: {expansionMax: 50, expansionFree: 1Gi}\n",
        )
        .settings()
        .expect("a good file");
        let super::super::Backend::Embedded(store) = settings.backend else { panic!("another backend") };
        assert_eq!((store.durability, store.keep_blobs), (imagelet_oci::Durability::Background, true));
        assert_eq!(store.unpack_memory, 128 << 20);
        assert_eq!((store.limits.expansion_max, store.limits.expansion_free), (50, 1 << 30));
        assert_eq!(store.limits.entries_max, imagelet_oci::EngineConfig::new("/s").limits.entries_max);

        let error = given("store:\n  unpackMemory: 47Mi\n").settings().expect_err("refused");
        assert!(error.to_string().ends_with("store.unpackMemory `47Mi` must be at least 48Mi"), "{error}");
        let error = given("store:\n  durability: never\n  limits:\n    expansionMax: 0\n    freeBytesFloor: lots\n")
            .settings()
            .expect_err("refused");
        assert_eq!(
            error.to_string(),
            "f.yaml:2: invalid configuration: store.durability `never` must be one of [\"commit\", \"background\"]\n\
             f.yaml:4: invalid configuration: store.limits.expansionMax 0 must be between 1 and 100000, inclusive\n\
             f.yaml:5: invalid configuration: store.limits.freeBytesFloor: `lots` is no size such as `500M`, `1Gi` or `1048576`"
        );
    }
}
