//! Credential helpers that the node's docker configuration names, before a private registry.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use base64::Engine as _;
use serde_json::{Value, json};

use crate::{
    images::Image,
    program::{Daemon, Outcome, program, run, write_script, write_store_config},
    testbed::{Registry, scratch},
};

const USER: &str = "robot";
const PASSWORD: &str = "open-sesame-23";

/// A folder of helpers, a docker configuration, and a registry that wants a login.
struct Bed {
    folder: tempfile::TempDir,
    registry: Registry,
}

impl Bed {
    fn new() -> Self {
        let folder = scratch();
        fs::create_dir(folder.path().join("bin")).unwrap();
        Self { folder, registry: Registry::start_with_login(&format!("{USER}:{PASSWORD}")) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A shell script that notes each run and its question.
    fn helper(&self, name: &str, body: &str) {
        let path = self.path("bin").join(format!("docker-credential-{name}"));
        let notes = self.path(name);
        write_script(&path, &format!("echo \"$* $(cat)\" >> {}\n{body}", notes.display()));
    }

    fn runs(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn configure(&self, document: &Value) {
        fs::write(self.path("config.json"), document.to_string()).unwrap();
    }

    fn variables(&self) -> [(&'static str, String); 2] {
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        [("PATH", path), ("DOCKER_CONFIG", self.folder.path().display().to_string())]
    }

    /// `imagelet pull` without a daemon.
    fn pull(&self, image: &str) -> Outcome {
        let mut command = program();
        command.envs(self.variables()).arg("--store").arg(self.path("alone")).args(["pull", "-q", image]);
        run(&mut command)
    }

    fn daemon(&self) -> Daemon {
        let store = format!("directory: {}", self.path("store").display());
        let config = write_store_config(self.folder.path(), &store);
        let variables = self.variables();
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Daemon::start_with(self.folder.path(), ["--config", &config], &variables)
    }
}

fn answer(user: &str, secret: &str) -> String {
    format!("echo '{}'\n", json!({ "ServerURL": "x", "Username": user, "Secret": secret }))
}

#[test]
fn a_helper_opens_a_registry_to_commands_and_pods() {
    let bed = Bed::new();
    let image = bed.registry.push("team/app:v1", &Image::marked("helped", 1000));
    bed.helper("good", &answer(USER, PASSWORD));
    let registry = bed.registry.address();
    bed.configure(&json!({ "auths": { &registry: {} }, "credHelpers": { &registry: "good" } }));
    bed.pull(&image).ok();
    assert_eq!(bed.runs("good"), format!("get {registry}\n"));

    let daemon = bed.daemon();
    daemon.run(["pull", "-q", &image]).ok();
    assert_eq!(bed.runs("good").lines().count(), 2);
    let pod = format!(
        "kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: a, image: '{image}', imagePullPolicy: Always}}]}}\n"
    );
    fs::write(bed.path("pod.yaml"), pod).unwrap();
    daemon.run(["ensure", "-f", bed.path("pod.yaml").to_str().unwrap()]).ok();
    assert_eq!(bed.runs("good").lines().count(), 3);
    assert!(!daemon.part.log().contains(PASSWORD), "a password is in the log");
}

#[test]
fn a_helper_that_is_missing_or_fails_is_named_in_the_hint_and_shows_no_secret() {
    let bed = Bed::new();
    let image = bed.registry.push("team/app:v1", &Image::marked("private", 1000));
    bed.configure(&json!({ "credsStore": "absent" }));
    bed.pull(&image).refused(&["hint: ", "`docker-credential-absent`", "PATH"]);

    bed.helper("bad", "echo 'password=hunter2-hunter2 is no longer good' >&2\nexit 3\n");
    bed.configure(&json!({ "credsStore": "bad" }));
    let told = bed.pull(&image).refused(&["hint: ", "`docker-credential-bad`", "exit status 3", "is no longer good"]);
    assert!(!told.contains("hunter2"), "{told}");

    bed.helper("open", &answer(USER, PASSWORD));
    fs::set_permissions(bed.path("bin/docker-credential-open"), fs::Permissions::from_mode(0o777)).unwrap();
    bed.configure(&json!({ "credsStore": "open" }));
    bed.pull(&image).refused(&["`docker-credential-open`", "every user may write to"]);
    bed.configure(&json!({ "credsStore": "../../tmp/x" }));
    bed.pull(&image).refused(&["names no credential helper"]);
    assert_eq!(bed.runs("open"), "");

    bed.helper("none", "echo 'credentials not found in native keychain'\nexit 1\n");
    bed.configure(&json!({ "credsStore": "none" }));
    let told = bed.pull(&image).refused(&["error: "]);
    assert!(!told.contains("docker-credential-none"), "a helper without an answer is no failure: {told}");
}

/// A pod must not choose which program the node runs.
#[test]
fn a_pull_secret_that_names_a_helper_runs_none() {
    let bed = Bed::new();
    let image = bed.registry.push("team/app:v1", &Image::marked("guarded", 1000));
    bed.helper("good", &answer(USER, PASSWORD));
    bed.configure(&json!({}));
    let registry = bed.registry.address();
    let document = json!({ "credsStore": "good", "credHelpers": { registry: "good" } }).to_string();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s", "namespace": "default" },
        "type": "kubernetes.io/dockerconfigjson",
        "data": { ".dockerconfigjson": base64::engine::general_purpose::STANDARD.encode(document) }
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "default" },
        "spec": { "imagePullSecrets": [{ "name": "s" }], "containers": [{ "name": "a", "image": image }] }
    });
    for (name, manifest) in [("secret.json", &secret), ("pod.json", &pod)] {
        fs::write(bed.path(name), manifest.to_string()).unwrap();
    }
    let daemon = bed.daemon();
    let outcome = daemon.run([
        "ensure",
        "-f",
        bed.path("pod.json").to_str().unwrap(),
        "--secret",
        bed.path("secret.json").to_str().unwrap(),
    ]);
    assert_eq!(outcome.code, 1, "{}", outcome.stdout);
    assert_eq!(bed.runs("good"), "");
    // The same names in the node's own file run it.
    bed.configure(&json!({ "credsStore": "good" }));
    let daemon = {
        drop(daemon);
        bed.daemon()
    };
    daemon
        .run([
            "ensure",
            "-f",
            bed.path("pod.json").to_str().unwrap(),
            "--secret",
            bed.path("secret.json").to_str().unwrap(),
        ])
        .ok();
    assert_eq!(bed.runs("good").lines().count(), 1);
}
