//! `imagelet doctor`: each step of the path, the first that fails, and nothing on the disk.

use std::fs;

use crate::{
    fake_registry::{Answer, FakeRegistry, Listening},
    images::Image,
    program::{Daemon, program, run, write_store_config},
    scripted::{Runtime, Script},
    testbed::scratch,
};

/// Steps and hosts of a diagnosis, `!` before a failed one.
fn steps(diagnosis: &serde_json::Value) -> Vec<String> {
    let step = |step: &serde_json::Value| {
        let mark = if step["ok"] == true { "" } else { "!" };
        format!("{mark}{} {}", step["step"].as_str().unwrap(), step["host"].as_str().unwrap_or("-"))
    };
    diagnosis["steps"].as_array().unwrap().iter().map(step).collect()
}

#[test]
fn a_healthy_path_is_walked_without_a_trace() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("team/app:v1", &Image::marked("doctor", 3000));
    let store = folder.path().join("store");
    let doctor = || run(program().arg("--store").arg(&store).args(["doctor", &name, "-o", "json"]));
    let diagnosis = doctor().json();
    assert_eq!((&diagnosis["healthy"], &diagnosis["served"]), (&true.into(), &true.into()), "{diagnosis:#}");
    let mut words: Vec<String> = Vec::new();
    for step in steps(&diagnosis) {
        let word = step.split(' ').next().unwrap().to_owned();
        // A connection that is not given back yet is followed by another one to the same host.
        if !(["dns", "connect"].contains(&word.as_str()) && words.contains(&word)) {
            words.push(word);
        }
    }
    let expected =
        ["name", "configuration", "credentials", "mirrors", "dns", "connect", "manifest", "blob", "platform"];
    assert_eq!(words[..expected.len()], expected);
    assert_eq!(words.last().map(String::as_str), Some("disk"));
    assert!(!store.exists(), "a store was made");
    let text = run(program().arg("--store").arg(&store).args(["doctor", &name])).ok();
    assert!(text.contains("✓   manifest") && text.contains("nothing in its way"), "{text}");
}

#[test]
fn the_first_step_that_fails_is_named_with_its_host_and_a_hint() {
    let (folder, registry, dead) = (scratch(), FakeRegistry::start(), Listening::bind());
    let image = Image::marked("doctor", 3000);
    let name = registry.put("team/app:v1", &image);
    let registry_host = name.split('/').next().unwrap().to_owned();
    // A server that ended: its port was bound by this test, and no other test is given it while it is named here.
    let mirror = dead.address.clone();
    drop(dead);
    let hosts = folder.path().join("certs.d");
    fs::create_dir_all(hosts.join(&registry_host)).unwrap();
    fs::write(hosts.join(&registry_host).join("hosts.toml"), format!("[host.\"http://{mirror}\"]\n")).unwrap();
    let config = folder.path().join("config.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nregistry: {{configPath: '{}'}}\n",
        hosts.display()
    );
    fs::write(&config, text).unwrap();
    let doctor = |arguments: &[&str]| {
        let store = folder.path().join("store");
        run(program().env("IMAGELET_CONFIG", &config).arg("--store").arg(store).args(arguments))
    };
    let outcome = doctor(&["doctor", &name, "-o", "json"]);
    let diagnosis: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&diagnosis["healthy"], &diagnosis["served"]), (&false.into(), &true.into()), "{diagnosis:#}");
    assert!(steps(&diagnosis).contains(&format!("!connect {mirror}")), "{diagnosis:#}");
    assert_eq!(diagnosis["failure"]["class"], "connection-refused");
    outcome.refused(&["the first step that fails is `connect`", &mirror, "hint: check that the registry runs"]);

    registry.answer("/v2/team/app/manifests/v1", Answer::status(403, "{}"));
    let outcome = doctor(&["doctor", &name, "--creds", "user:hunter2pass"]);
    assert!(outcome.stdout.contains("✗   manifest") && outcome.stdout.contains("forbidden"), "{}", outcome.stdout);
    assert!(!format!("{outcome:?}").contains("hunter2pass"), "{outcome:?}");
    // Behind a mirror that is away, the registry without the tag is the cause.
    let absent = name.replace(":v1", ":v2");
    let outcome = doctor(&["doctor", &absent, "-o", "json"]);
    let diagnosis: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(steps(&diagnosis).contains(&format!("!connect {mirror}")), "{diagnosis:#}");
    assert_eq!(diagnosis["failure"]["class"], "image-unknown", "{diagnosis:#}");
    let stderr = outcome.refused(&[&registry_host, "hint: check"]);
    assert!(!stderr.contains(&mirror), "{stderr}");
    doctor(&["doctor", "Not/A Name"]).refused(&["the first step that fails is `name`"]);
}

#[test]
fn the_free_space_is_that_of_the_file_system_that_a_runtime_reports_for_images() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("team/app:v1", &Image::marked("doctor", 3000));
    let runtime = Runtime::start(folder.path(), Script::default());
    let state = format!("directory: {}", folder.path().join("state").display());
    let config = write_store_config(folder.path(), &state);
    let daemon = Daemon::start(folder.path(), ["--config", &config, "--runtime-endpoint", &runtime.endpoint()]);
    let beside = folder.path().join("beside.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&beside, format!("{text}imageService: {{cri: {{endpoint: '{}'}}}}\n", runtime.endpoint())).unwrap();
    let place = format!("free at `{}`; ", folder.path().join("ctd/io.containerd.snapshotter.v1.overlayfs").display());
    let doctor = |command: &mut std::process::Command| run(command.args(["doctor", &name, "-o", "json"])).json();
    for (way, diagnosis) in [
        ("a daemon", doctor(&mut daemon.command())),
        ("a runtime", doctor(program().arg("--endpoint").arg(runtime.endpoint()))),
        ("a configuration", doctor(program().env("IMAGELET_CONFIG", &beside))),
    ] {
        let disk = diagnosis["steps"].as_array().unwrap().last().unwrap();
        assert_eq!(disk["step"], "disk", "{way}: {diagnosis:#}");
        assert!(disk["detail"].as_str().unwrap().contains(&place), "{way}: {disk:#}");
    }
}

/// What stands in the way of a pull on the node itself, while the registry serves the image.
#[test]
fn a_refusal_by_the_node_is_no_success_of_another_host() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let name = registry.put("team/app:v1", &Image::marked("doctor", 3000));
    let home = folder.path().join("docker");
    fs::create_dir_all(&home).unwrap();
    let policy = folder.path().join("policy.json");
    let doctor = |settings: &str| {
        let store = folder.path().join("store");
        let config = write_store_config(folder.path(), &format!("directory: '{}'", store.display()));
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, format!("{text}{settings}")).unwrap();
        let outcome =
            run(program().env("IMAGELET_CONFIG", &config).env("DOCKER_CONFIG", &home).args(["doctor", &name]));
        (outcome.stdout.clone(), outcome)
    };
    let signed = format!("registry: {{signaturePolicy: '{}'}}\n", policy.display());
    fs::write(&policy, r#"{"default": [{"type": "insecureAcceptAnything"}]}"#).unwrap();
    let (text, outcome) = doctor(&signed);
    assert!(text.contains("rule `default` accepts it unsigned") && text.contains("nothing in its way"), "{text}");
    outcome.ok();
    fs::write(&policy, r#"{"default": [{"type": "reject"}]}"#).unwrap();
    for missing in [false, true] {
        if missing {
            fs::remove_file(&policy).unwrap();
        }
        let (text, outcome) = doctor(&signed);
        assert!(text.contains("✗   signature") && text.contains("A pull of") && text.contains("fails."), "{text}");
        outcome.refused(&["the first step that fails is `signature`", "signature policy"]);
    }

    let host = name.split('/').next().unwrap();
    fs::write(home.join("config.json"), format!(r#"{{"credHelpers": {{"{host}": "absent-here"}}}}"#)).unwrap();
    let (text, outcome) = doctor("");
    assert!(text.contains("✗   credentials") && text.contains("all the same, so that a pull may succeed"), "{text}");
    outcome.refused(&["docker-credential-absent-here"]);

    // The mirror would be asked without its credential.
    let hosts = folder.path().join("certs.d");
    fs::create_dir_all(hosts.join(host)).unwrap();
    fs::write(hosts.join(host).join("hosts.toml"), "[host.\"http://127.0.0.1:1\"]\n").unwrap();
    fs::write(home.join("config.json"), r#"{"credHelpers": {"127.0.0.1:1": "absent-here"}}"#).unwrap();
    let (text, outcome) = doctor(&format!("registry: {{configPath: '{}'}}\n", hosts.display()));
    let is_named = |row: &str| row.split_whitespace().take(3).eq(["✗", "credentials", "127.0.0.1:1"]);
    assert!(text.lines().any(is_named), "{text}");
    outcome.refused(&["the first step that fails is `credentials` at `127.0.0.1:1`", "docker-credential-absent-here"]);
}
