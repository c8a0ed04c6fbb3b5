//! Tests of files, flags and their effect, and of the configuration's vectors.

mod keep_rules;
mod kubelet_files;
mod reference;

use imagelet_vectors::vectors;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    keys_and_defaults::{File, IGNORED},
    violations::ConfigError,
    *,
};

fn defaults() -> Sources {
    Sources::new(Environment { root: true, ..Environment::default() })
}

fn given(text: &str) -> Sources {
    let (_folder, path) = in_file("f.yaml", text);
    let mut sources = defaults();
    sources.add_file(&path).expect("the file is read");
    sources
}

fn given_kubelet(document: &Value) -> Sources {
    let mut document = document.clone();
    document["kind"] = "KubeletConfiguration".into();
    let (_folder, path) = in_file("kubelet.yaml", &document.to_string());
    let mut sources = defaults();
    sources.add_kubelet_file(&path).expect("the file is read");
    sources
}

/// The message with `f.yaml` instead of its full path.
fn message(error: &ConfigError) -> String {
    let lines = error.to_string();
    let lines: Vec<&str> = lines.lines().map(|line| line.find("f.yaml:").map_or(line, |at| &line[at..])).collect();
    lines.join("\n")
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
        defaults().add_file(&path)
    };
    for more in ["", "imageService: {cri: {endpoint: 'unix:///other.sock'}}\n"] {
        let message = read(more).expect_err("it is refused").to_string();
        for word in
            ["f.yaml:3: containerRuntimeEndpoint", endpoint, "imageService.cri.endpoint", "store.runtimeEndpoint"]
        {
            assert!(message.contains(word), "{message}");
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
        let sources = given_kubelet(&case["input"]);
        let effective: BTreeMap<String, Value> =
            sources.effective().expect("defaults apply").into_iter().map(|one| (one.key, one.value)).collect();
        let fields = case["expected"].as_object().expect("the vector has fields");
        for (key, expected) in fields.iter().filter(|(key, _)| !IGNORED.contains(&key.as_str())) {
            let found = match key.as_str() {
                "effective_image_endpoint" => sources.settings().expect("it holds").node.image_endpoint.into(),
                key => effective.get(key).cloned().unwrap_or(Value::Null),
            };
            let empty = expected.is_null() && found == Value::Array(Vec::new());
            assert!(empty || &found == expected, "{}: {key}: {found} is not {expected}", case["name"]);
        }
    }
}

/// The vectors change a configuration that has defaults already: an empty text stays empty.
fn checked(change: &Value, gates: &Value) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/gc-config-validation.json");
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("the vectors are there")).expect("they parse");
    let defaults = File::defaults(&Environment { root: true, ..Environment::default() });
    let mut whole = serde_json::to_value(defaults).expect("defaults are a document");
    for (key, value) in [&document["base_config"], change].into_iter().flat_map(|it| it.as_object().expect("keys")) {
        // A Go zero value: the key is not given.
        if !value.is_null() {
            whole[key] = value.clone();
        }
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
    let violations = check::check(&file, &Environment::default()).err().unwrap_or_default();
    for text in violations.iter().map(|violation| &violation.message) {
        assert!(text.starts_with("invalid configuration: ") != text.starts_with("tracing."), "{text}");
    }
    violations.into_iter().map(|violation| violation.message + "\n").collect()
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

/// Like `kubeadm`'s file: unset keys are 0 or empty, and mean the default.
#[test]
fn a_file_full_of_zeros_leaves_all_defaults_in_force() {
    let (_kept, path) = in_file(
        "kubelet.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\ncontainerRuntimeEndpoint: \"\"\nkind: KubeletConfiguration\n\
         evictionPressureTransitionPeriod: 0s\nimageMaximumGCAge: 0s\nimageMinimumGCAge: 0s\neventBurst: 0\n\
         imagePullCredentialsVerificationPolicy: \"\"\nlogging: {flushFrequency: 0}\nmemorySwap: {}\n\
         nodeStatusReportFrequency: 0s\nnodeStatusUpdateFrequency: 0s\nregistryBurst: 0\n\
         runtimeRequestTimeout: 0s\nsyncFrequency: 0s\n",
    );
    let plain = defaults();
    let mut sources = plain.clone();
    sources.add_kubelet_file(&path).expect("it is read");
    assert_eq!(sources.settings().expect("it holds"), plain.settings().expect("it holds"));
}

#[test]
fn a_kubelets_eviction_settings_are_accepted_with_any_value_and_ignored() {
    let text = "kind: KubeletConfiguration\nevictionHard: {x: 1%}\nevictionSoft: 3\nevictionSoftGracePeriod: []\n\
                evictionMinimumReclaim:\nevictionPressureTransitionPeriod: soon\nmergeDefaultEvictionSettings: 1\n";
    let (_kept, path) = in_file("kubelet.yaml", text);
    let mut sources = defaults();
    sources.add_kubelet_file(&path).expect("a kubelet's file");
    let own = given(text.split_once('\n').expect("lines").1);
    for sources in [sources, own] {
        assert_eq!(sources.settings().expect("it holds"), defaults().settings().expect("it holds"));
        assert!(sources.effective().expect("sources merge").iter().all(|one| !one.key.contains("vict")));
    }
}

#[test]
fn every_vector_of_pull_settings_holds() {
    let cases = vectors("pull-config-validation.json");
    for case in &cases {
        let (input, expected) = (&case["input"], &case["expected"]);
        let mut document = input["config"].clone();
        document["featureGates"] =
            json!({"KubeletEnsureSecretPulledImages": input["feature_ensure_secret_pulled_images"]});
        let sources = given_kubelet(&document);
        let effective = sources.effective().expect("defaults apply");
        for (key, wanted) in expected["after_defaulting"].as_object().expect("values") {
            let found = effective.iter().find(|one| one.key == *key).map_or(Value::Null, |one| one.value.clone());
            let is_empty = wanted.is_null() && found == Value::Array(Vec::new());
            assert!(is_empty || found == *wanted, "{}: {key}: {found} is not {wanted}", case["name"]);
        }
        let findings: Vec<String> = match sources.settings() {
            Ok(_) => Vec::new(),
            // Each message follows its location.
            Err(ConfigError::Invalid(findings)) => {
                let text = |finding: &String| finding.find("invalid configuration").map(|at| finding[at..].to_owned());
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
    let mut sources = defaults();
    sources.add_kubelet_file(&path).expect("it is read");
    assert_eq!(sources.settings().expect("it holds").records.verification, None);
}

#[test]
fn flags_win_over_files_and_our_file_over_the_kubelets() {
    let (_kept, kubelet) = in_file(
        "kubelet.yaml",
        "kind: KubeletConfiguration\nclusterDNS: [10.0.0.10]\nimageServiceEndpoint: unix:///x\n\
         imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60\nregistryPullQPS: null\n",
    );
    let (_kept, own) = in_file("imagelet.yaml", "imageGCLowThresholdPercent: 50\nstore:\n  layersInFlight: 2\n");
    let mut sources = defaults();
    sources.add_kubelet_file(&kubelet).expect("the kubelet's file is read");
    sources.add_file(&own).expect("our file is read");
    sources.add_flag("--store", "store.directory", "/srv/images");

    let shown: BTreeMap<String, String> = sources
        .effective()
        .expect("sources merge")
        .into_iter()
        .map(|one| (one.key, format!("{} {}", one.value, one.source)))
        .collect();
    assert_eq!(shown["imageGCHighThresholdPercent"], format!("70 {}:4", kubelet.display()));
    assert_eq!(shown["imageGCLowThresholdPercent"], format!("50 {}:1", own.display()));
    assert_eq!(shown["store.layersInFlight"], format!("2 {}:3", own.display()));
    assert_eq!(shown["store.directory"], "\"/srv/images\" --store");
    assert_eq!(shown["registryPullQPS"], "5 default");
    let settings = sources.settings().expect("the configuration holds");
    let Backend::Embedded(store) = settings.images.backend else { panic!("another backend") };
    assert_eq!(store.engine.place.root, Path::new("/srv/images"));
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
        let mut sources = defaults();
        let Err(error) = sources.add_file(&path) else { panic!("{text} is accepted") };
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
        let Err(error) = defaults().add_kubelet_file(&path) else { panic!("accepted") };
        let error = error.to_string();
        assert!(error.starts_with(&format!("{}:{line}: ", path.display())) && error.contains(word), "{error}");
    }
}

#[test]
fn a_violated_rule_is_reported_with_its_place() {
    let error = given("socket: relative.sock\nstore:\n  layersInFlight: 0\n").settings().expect_err("refused");
    assert_eq!(
        message(&error),
        "f.yaml:1: invalid configuration: socket `relative.sock` must be an absolute path\n\
         f.yaml:3: invalid configuration: store.layersInFlight 0 must be between 1 and 64, inclusive"
    );
}

#[test]
fn a_signature_policy_is_taken_only_where_every_pull_obeys_it() {
    let runtime = "imageService: {cri: {endpoint: unix:///run/containerd/containerd.sock}}\n";
    let policy = "registry: {signaturePolicy: /etc/containers/policy.json}\n";
    for (text, accepted) in [
        (policy.to_owned(), true),
        (format!("{policy}{runtime}runtimeImport: require\n"), true),
        (format!("{policy}{runtime}"), false),
        (format!("{policy}{runtime}runtimeImport: never\n"), false),
        ("registry: {signaturePolicy: policy.json}\n".to_owned(), false),
    ] {
        match given(&text).settings() {
            Ok(settings) => {
                assert!(accepted, "{text}");
                assert_eq!(settings.images.registry.signature_policy, Some("/etc/containers/policy.json".into()));
            }
            Err(error) => assert!(!accepted && message(&error).contains("registry.signaturePolicy"), "{text}"),
        }
    }
    assert_eq!(defaults().settings().expect("the defaults").images.registry.signature_policy, None);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("the mode is set");
}

#[test]
fn the_password_of_a_proxy_is_read_from_its_file_where_others_neither_read_nor_change_it() {
    let (_folder, file) = in_file("password", "hunt%40er2\n");
    let path = file.display().to_string();
    let settings = |proxy: &str, file: &str| {
        given(&format!("registry: {{proxies: [{{hosts: ['*'], proxy: '{proxy}', passwordFile: '{file}'}}]}}\n"))
            .settings()
    };
    set_mode(&file, 0o600);
    let rules = settings("http://user@p", &path).expect("a good file").images.registry.proxies.rules;
    let in_url = given("registry: {proxies: [{hosts: ['*'], proxy: 'http://user:hunt%2540er2@p'}]}\n");
    assert_eq!(rules, in_url.settings().expect("a good URL").images.registry.proxies.rules);
    let refusal = |proxy: &str, file: &str| message(&settings(proxy, file).expect_err("refused"));
    let check = |refusal: String, words: &str| {
        assert!(refusal.starts_with("f.yaml:1: ") && refusal.contains("registry.proxies[0]: "), "{refusal}");
        assert!(refusal.contains(words) && !refusal.contains("hunt"), "{refusal}");
    };
    check(refusal("http://p", &path), "names no user");
    check(refusal("http://user:hunter3@p", &path), "has a password, too");
    check(refusal("none", &path), "have no proxy");
    check(refusal("http://user@p", "password"), "must be an absolute path");
    check(refusal("http://user@p", "/nonexistent/password"), "could not read passwordFile `/nonexistent/password`");
    for (mode, words) in [(0o604, "every user may read"), (0o602, "every user may write")] {
        set_mode(&file, mode);
        check(refusal("http://user@p", &path), words);
    }
    set_mode(&file, 0o600);
    std::fs::write(&file, "\n").expect("the file is written");
    check(refusal("http://user@p", &path), "one line of 1 to");
}

#[test]
fn a_file_with_a_password_that_every_user_may_read_is_warned_of() {
    for (proxy, mode, is_warned) in [
        ("http://user:hunter2@p", 0o644, true),
        ("http://user:hunter2@p", 0o640, false),
        ("http://user:hunter2@p", 0o600, false),
        ("http://user@p", 0o644, false),
        ("http://p:3128", 0o644, false),
        ("none", 0o644, false),
    ] {
        let text =
            format!("registry: {{proxies: [{{hosts: [a], proxy: none}}, {{hosts: ['*'], proxy: '{proxy}'}}]}}\n");
        let (_folder, path) = in_file("f.yaml", &text);
        set_mode(&path, mode);
        let mut sources = defaults();
        sources.add_file(&path).expect("the file is read");
        let warning = sources.exposed_password();
        assert_eq!(warning.is_some(), is_warned, "{proxy} {mode:o}: {warning:?}");
        assert!(warning.is_none_or(|text| text.contains("f.yaml` holds") && !text.contains("hunter2")));
    }
}

#[test]
fn what_a_store_promises_and_allows_is_said_in_the_file() {
    let settings = given(
        "store:\n  durability: background\n  keepBlobs: true\n  unpackMemory: 128Mi\n  limits: {expansionMax: 50, expansionFree: 1Gi}\n",
    )
    .settings()
    .expect("a good file");
    let Backend::Embedded(store) = settings.images.backend else { panic!("another backend") };
    assert_eq!((store.engine.durability, store.engine.keep_blobs), (imagelet_oci::Durability::Background, true));
    assert_eq!(store.engine.limits.memory, 128 << 20);
    assert_eq!((store.engine.limits.expansion_max, store.engine.limits.expansion_free), (50, 1 << 30));
    assert_eq!(store.engine.limits.entries_max, imagelet_oci::EngineConfig::new("/s").limits.entries_max);

    let error = given("store:\n  unpackMemory: 47Mi\n").settings().expect_err("refused");
    assert!(error.to_string().ends_with("store.unpackMemory `47Mi` must be at least 48Mi"), "{error}");
    let (_folder, path) = in_file("f.yaml", "store:\n  durability: never\n");
    let error = message(&defaults().add_file(&path).expect_err("refused"));
    assert_eq!(error, "f.yaml:2: store.durability: unknown variant `never`, expected `commit` or `background`");
    let error =
        given("store:\n  limits:\n    expansionMax: 0\n    freeBytesFloor: lots\n").settings().expect_err("refused");
    assert_eq!(
        message(&error),
        "f.yaml:3: invalid configuration: store.limits.expansionMax 0 must be between 1 and 100000, inclusive\n\
         f.yaml:4: invalid configuration: store.limits.freeBytesFloor: `lots` is no size such as `500M`, `1Gi` or `1048576`"
    );
}

#[test]
fn the_sandbox_image_is_taken_from_the_kubelets_file_and_from_our_own() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let settings = |kubelet: &str, own: &str| {
        let mut sources = defaults();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("the test's file is written");
            path
        };
        let kubelet = file("kubelet.yaml", &format!("kind: KubeletConfiguration\n{kubelet}"));
        sources.add_kubelet_file(&kubelet).expect("it is read");
        sources.add_file(&file("imagelet.yaml", &format!("socket: /s\n{own}"))).expect("it is read");
        sources.settings()
    };
    let names = |kubelet: &str, own: &str| {
        let names = settings(kubelet, own).expect("it holds").images.sandbox_images;
        names.map(|names| names.iter().map(|name| name.text().to_owned()).collect::<Vec<_>>())
    };
    let (of_kubelet, of_ours) = ("podInfraContainerImage: a.example/pause:1\n", "sandboxImage: b.example/pause\n");
    assert_eq!(names("", ""), Some(Vec::new()));
    assert_eq!(names(of_kubelet, of_ours), Some(vec!["a.example/pause:1".to_owned(), "b.example/pause".to_owned()]));
    assert_eq!(names("", of_kubelet), Some(vec!["a.example/pause:1".to_owned()]));
    assert_eq!(names(of_kubelet, "compatibility: kubelet\n"), None, "only the runtime's own pin holds there");
    for name in ["'*'", "'a*'", "UPPER", "'a b'", "'a@b'"] {
        let refused = settings("", &format!("sandboxImage: {name}\n")).expect_err("refused").to_string();
        assert!(refused.contains("imagelet.yaml:2: invalid configuration: sandboxImage `"), "{refused}");
    }
}

#[test]
fn a_complaint_does_not_repeat_what_is_no_setting() {
    for text in [
        "{\"auths\": {\"r\": {\"auth\": \"s3cr3t\"}}}",
        "data:\n  .dockerconfigjson: s3cr3t\n",
        "kind: [s3cr3t]\n",
        "store: {directory: /s, password: s3cr3t\n",
        "auths:\n\tr: s3cr3t\n",
    ] {
        let (_folder, path) = in_file("f.yaml", text);
        let shown = message(&defaults().add_file(&path).expect_err(text));
        assert!(shown.starts_with("f.yaml:"), "{shown}");
        assert!(!shown.contains("s3cr3t") || text.starts_with("kind"), "{shown}");
    }
}

#[test]
fn a_pipe_without_a_writer_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    let error = defaults().add_file(&path).expect_err("refused").to_string();
    assert!(error.contains("empty"), "{error}");
}

#[test]
fn layers_at_once_follow_the_machine_where_the_key_is_absent() {
    let machine = |cores, memory| Some(imagelet_oci::Machine { cores, memory });
    let (_folder, path) = in_file("f.yaml", "store: {layersInFlight: 2}\n");
    for (machine, wanted) in [(None, 4), (machine(2, 8 << 30), 4), (machine(8, 8 << 30), 8), (machine(8, 96 << 20), 3)]
    {
        let mut sources = Sources::new(Environment { root: true, machine, ..Environment::default() });
        let layers =
            |sources: &Sources| sources.settings().expect("it holds").images.backend.engine().limits.layers_in_flight;
        assert_eq!(layers(&sources), wanted, "{machine:?}");
        sources.add_file(&path).expect("the file is read");
        assert_eq!(layers(&sources), 2, "{machine:?}: the key counts");
    }
}
