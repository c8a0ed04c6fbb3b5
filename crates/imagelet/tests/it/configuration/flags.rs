//! The kubelet's own flags on the daemon: they win over its file, and a bad value is refused by the flag's name.

use serde_json::{Value, json};

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, program, run},
    testbed::scratch,
};

/// A flag as it is given, the key that it sets, and the value of that key.
fn flags() -> [(&'static str, &'static str, Value); 8] {
    [
        ("--image-gc-high-threshold=70", "imageGCHighThresholdPercent", json!(70)),
        ("--image-gc-low-threshold=60", "imageGCLowThresholdPercent", json!(60)),
        ("--minimum-image-ttl-duration=5m", "imageMinimumGCAge", json!("5m0s")),
        ("--maximum-image-ttl-duration=24h", "imageMaximumGCAge", json!("24h0m0s")),
        ("--serialize-image-pulls=false", "serializeImagePulls", json!(false)),
        ("--registry-qps=7", "registryPullQPS", json!(7)),
        ("--registry-burst=14", "registryBurst", json!(14)),
        ("--max-parallel-image-pulls=4", "maxParallelImagePulls", json!(4)),
    ]
}

fn setting<'a>(shown: &'a Value, key: &str) -> &'a Value {
    let settings = shown["settings"].as_array().unwrap();
    settings.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("no `{key}`: {shown:#}"))
}

#[test]
fn the_kubelets_flags_win_over_both_files_and_are_shown_as_the_source() {
    let folder = scratch();
    let (kubelet, own) = (folder.path().join("kubelet.yaml"), folder.path().join("imagelet.yaml"));
    std::fs::write(&kubelet, "kind: KubeletConfiguration\nimageGCHighThresholdPercent: 90\nregistryPullQPS: 1\n")
        .unwrap();
    std::fs::write(&own, "imageGCLowThresholdPercent: 20\nserializeImagePulls: true\n").unwrap();
    let flags = flags();
    let shown = run(program()
        .args(["config", "show", "-o", "json", "--kubelet-config"])
        .arg(&kubelet)
        .arg("--config")
        .arg(&own)
        .args(flags.iter().map(|(flag, _, _)| flag)))
    .json();
    for (flag, key, value) in &flags {
        let setting = setting(&shown, key);
        assert_eq!(&setting["value"], value, "{flag}");
        assert_eq!(setting["source"], flag.split('=').next().unwrap(), "{flag}");
    }
    // As the kubelet's: without a value it is true, and a burst of 0 is the default.
    let shown =
        run(program().args(["config", "show", "-o", "json", "--serialize-image-pulls", "--registry-burst", "0"]))
            .json();
    assert_eq!(setting(&shown, "serializeImagePulls")["source"], "--serialize-image-pulls");
    assert_eq!(setting(&shown, "registryBurst")["value"], 10);
}

#[test]
fn a_bad_value_of_a_kubelets_flag_is_refused_by_the_flags_name() {
    for (flag, value, code, word) in [
        ("--image-gc-high-threshold", "101", 1, "101 must be between 0 and 100, inclusive"),
        ("--image-gc-high-threshold", "most", 2, "most"),
        ("--image-gc-low-threshold", "-1", 1, "-1 must be between 0 and 100, inclusive"),
        ("--image-gc-low-threshold", "85", 1, "85 must be less than imageGCHighThresholdPercent"),
        ("--minimum-image-ttl-duration", "5", 2, "missing unit in duration \"5\""),
        ("--minimum-image-ttl-duration", "-5m", 1, "imageMinimumGCAge -5m0s must not be negative"),
        ("--maximum-image-ttl-duration", "1m", 1, "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s"),
        ("--serialize-image-pulls", "perhaps", 2, "perhaps"),
        ("--registry-qps", "-1", 1, "registryPullQPS (--registry-qps) -1 must not be a negative number"),
        ("--registry-burst", "-1", 1, "registryBurst (--registry-burst) -1 must not be a negative number"),
        ("--max-parallel-image-pulls", "0", 1, "maxParallelImagePulls 0 must be a positive number"),
    ] {
        for command in [&["config", "show"][..], &["serve"]] {
            let outcome = run(program().args(command).arg(format!("{flag}={value}")));
            assert_eq!(outcome.code, code, "{flag}={value}: {}", outcome.stderr);
            let told = format!("`{flag}={value}` is refused with:\n{}", outcome.stderr);
            assert!(outcome.stderr.contains(flag) && outcome.stderr.contains(word), "{told}");
            assert_eq!(outcome.stdout, "", "{told}");
        }
    }
}

#[test]
fn a_store_of_the_environment_beside_a_runtime_of_the_configuration_is_refused_with_both_names() {
    let folder = scratch();
    let [config, store, socket] = ["own.yaml", "store", "i.sock"].map(|name| folder.path().join(name));
    let runtime = "unix:///run/containerd/containerd.sock";
    std::fs::write(&config, format!("registryPullQPS: 5\nimageService: {{cri: {{endpoint: '{runtime}'}}}}\n")).unwrap();
    let place = format!("{}:2", config.display());
    let words = ["IMAGELET_STORE", store.to_str().unwrap(), &place, runtime];
    let with_store = || {
        let mut command = program();
        command.env("IMAGELET_STORE", &store);
        command
    };
    run(with_store().args(["config", "check"]).arg(&config)).refused(&words);
    run(with_store().args(["config", "show", "--config"]).arg(&config)).refused(&words);
    run(with_store().args(["serve", "--config"]).arg(&config).arg("--socket").arg(&socket)).refused(&words);
    assert!(!store.exists() && !socket.exists(), "nothing is opened");
    // The flag, an empty variable and a configuration without a runtime are no contradiction.
    let backend = |shown: &Value| setting(shown, "imageService.cri.endpoint")["value"].clone();
    let show = |command: &mut std::process::Command| {
        run(command.args(["config", "show", "-o", "json", "--config"]).arg(&config)).json()
    };
    assert_eq!(backend(&show(with_store().arg("--store").arg(&store))), "");
    assert_eq!(backend(&show(program().env("IMAGELET_STORE", ""))), runtime);
    std::fs::write(&config, "registryPullQPS: 5\n").unwrap();
    assert_eq!(run(with_store().args(["config", "check"]).arg(&config)).code, 0);
}

#[test]
fn a_variable_that_is_set_and_empty_is_as_one_that_is_not_set() {
    let folder = scratch();
    let store = folder.path().join("store");
    for (variable, arguments) in [
        ("IMAGELET_STORE", &["ls"][..]),
        ("IMAGELET_ENDPOINT", &["ls"]),
        ("IMAGELET_CONFIG", &["config", "show"]),
        ("IMAGELET_CREDS", &["ls"]),
        ("IMAGELET_LOG", &["ls"]),
        ("KUBECONFIG", &["prefetch", "ls"]),
        ("XDG_RUNTIME_DIR", &["ls"]),
        ("DOCKER_CONFIG", &["ls"]),
        ("HTTPS_PROXY", &["doctor", "127.0.0.1:1/a:b"]),
        ("KUBERNETES_SERVICE_HOST", &["config", "show", "--node-name", "a"]),
    ] {
        let outcome = |command: &mut std::process::Command| {
            let outcome = run(command.env("HOME", &store).args(arguments));
            let stderr = outcome.stderr.lines().filter(|line| !line.contains("ms ")).collect::<Vec<_>>().join("\n");
            (outcome.code, stderr)
        };
        assert_eq!(outcome(program().env(variable, "")), outcome(&mut program()), "{variable}");
    }
}

#[test]
fn a_misspelt_key_of_hosts_toml_shows_in_pull_doctor_and_config_check_and_a_newer_capability_refuses_no_pull() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("team/app:v1", &Image::marked("hosts", 3000));
    let host = name.split('/').next().unwrap();
    let [certs, config, store] = ["certs.d", "config.yaml", "store"].map(|name| folder.path().join(name));
    std::fs::create_dir_all(certs.join(host)).unwrap();
    // As for containerd 2.2, with a capability of no version and a key that is misspelt.
    let text = format!(
        "server = \"http://{host}\"\n[host.\"http://{host}\"]\nskip-verify = true\n\
         capabilities = [\"pull\", \"resolve\", \"referrers\", \"fly\"]\n"
    );
    std::fs::write(certs.join(host).join("hosts.toml"), text).unwrap();
    std::fs::write(&config, format!("registry: {{configPath: {}}}\n", certs.display())).unwrap();
    let words = [
        format!("{}/{host}/hosts.toml`: `host.http://{host}.skip-verify` is no key that is read", certs.display()),
        format!("capability `fly` of host `http://{host}` is unknown and grants nothing"),
    ];
    let warns = |what: &str, text: &str| {
        for word in &words {
            assert_eq!(text.matches(word.as_str()).count(), 1, "{what}: {text}");
        }
    };
    let with_config = || {
        let mut command = program();
        command.env("IMAGELET_CONFIG", &config).arg("--store").arg(&store);
        command
    };
    let check = run(program().args(["config", "check", "-o", "json"]).arg(&config));
    warns("config check", &check.stderr);
    let checked = check.json();
    assert_eq!((&checked["valid"], checked["warnings"].as_array().map(Vec::len)), (&true.into(), Some(2)), "{checked}");
    let doctor = run(with_config().args(["doctor", "-o", "json", &name]));
    warns("doctor", &doctor.stdout);
    assert_eq!(doctor.code, 0, "{}", doctor.stderr);
    let pull = run(with_config().args(["pull", &name]));
    warns("pull", &pull.stderr);
    assert_eq!(pull.code, 0, "{}", pull.stderr);
    // And through a daemon, where the name is absent.
    let arguments = ["--config", config.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let daemon = Daemon::start(folder.path(), arguments);
    let absent = name.replace("app:v1", "absent:v1");
    warns("a failed pull of a daemon", &daemon.run(["pull", &absent]).refused(&["absent:v1"]));
    assert_eq!(daemon.run(["pull", "-q", "--policy", "Always", &name]).stderr, "");
}

#[test]
fn a_disconnected_node_pulls_from_the_mirror_of_a_registry_that_is_blocked() {
    let (folder, mirror) = (scratch(), FakeRegistry::start());
    let name = mirror.put("ocp/release/app:v1", &Image::marked("blocked", 3000));
    let host = name.split('/').next().unwrap();
    let [file, config, store] = ["registries.conf", "config.yaml", "store"].map(|name| folder.path().join(name));
    let text = format!(
        "[[registry]]\nprefix = \"quay.invalid\"\nlocation = \"quay.invalid\"\nblocked = true\n\
         [[registry.mirror]]\nlocation = \"{host}/ocp\"\ninsecure = true\n\
         [[registry]]\nlocation = \"closed.invalid\"\nblocked = true\n"
    );
    std::fs::write(&file, text).unwrap();
    std::fs::write(&config, format!("registry: {{configPath: {}}}\n", file.display())).unwrap();
    let pull =
        |name: &str| run(program().env("IMAGELET_CONFIG", &config).arg("--store").arg(&store).args(["pull", name]));
    assert!(pull("quay.invalid/release/app:v1").ok().starts_with("sha256:"));
    pull("closed.invalid/release/app:v1").refused(&["it blocks `closed.invalid`", "registries.conf"]);
}
