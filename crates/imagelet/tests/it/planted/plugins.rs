//! What credential provider plugins are given and answer is seen nowhere.

use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Marker, Scene, Seen, TRACE, ask, look_at, pod_of, run_watched};
use crate::{
    ports::Port,
    program::{Daemon, run, write_script},
    testbed::wait_until,
};

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// A scene with plugins in it.
struct Plugins {
    scene: Scene,
    password: Marker,
    variable: Marker,
    complaint: Marker,
}

impl Plugins {
    fn new() -> Self {
        let scene = Scene::new();
        fs::create_dir(scene.folder.path().join("bin")).unwrap();
        let password = Marker::plain("the password of a plugin's answer");
        let variable = Marker::plain("a variable of a provider");
        let complaint = Marker::plain("a token in a plugin's complaint");
        Self { scene, password, variable, complaint }
    }

    fn markers(&self) -> [&Marker; 5] {
        [&self.password, &self.variable, &self.complaint, &self.scene.token, &self.scene.signature]
    }

    fn path(&self, name: &str) -> String {
        self.scene.folder.path().join(name).into_os_string().into_string().expect("temporary directories are plain")
    }

    fn plugin(&self, name: &str, body: &str) {
        let path = self.scene.folder.path().join("bin").join(name);
        write_script(&path, body);
    }

    fn provider(&self, name: &str) -> Value {
        json!({
            "name": name, "matchImages": [self.scene.registry.address], "defaultCacheDuration": "0s",
            "apiVersion": V1, "env": [{"name": "PLANTED", "value": self.variable.text}]
        })
    }

    fn configure(&self, providers: &Value) {
        let config = json!({
            "kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": providers
        });
        fs::write(self.path("providers.json"), config.to_string()).unwrap();
    }

    fn answer(&self) -> Value {
        json!({
            "kind": "CredentialProviderResponse", "apiVersion": V1, "cacheKeyType": "Registry",
            "auth": {
                self.scene.registry.address.as_str(): {"username": "robot", "password": self.password.text},
                format!("https://u:{}@[::1/", self.password.text): {"username": "u", "password": self.password.text},
            }
        })
    }

    /// Names and scripts of plugins that go wrong in all the ways there are.
    fn liars(&self) -> Vec<(&'static str, String)> {
        let (password, complaint) = (&self.password.text, &self.complaint.text);
        let with = |key: &str, value: Value| {
            let mut answer = self.answer();
            answer[key] = value;
            answer.to_string()
        };
        let whole = self.answer().to_string();
        let cut = &whole[..whole.len() - 3];
        let says = |text: &str| format!("cat > /dev/null\ncat <<'END'\n{text}\nEND\n");
        let complains = |text: &str| format!("cat >&2 <<'END'\n{text}\nEND\n");
        let basic = STANDARD.encode(format!("robot:{password}"));
        let marked = format!("password={password}\n{whole}\ntoken: {complaint}\nAuthorization: Basic {basic}");
        let marked = format!("echo \"no luck with $PLANTED here\" >&2\n{}", complains(&marked));
        let fails = format!("{marked}{}exit 7\n", complains(&format!("it is {password}, or '{password}'")));
        vec![
            ("cut", says(cut)),
            ("field", says(&with("token", json!(password)))),
            ("version", says(&with("apiVersion", json!(format!("password={password}"))))),
            ("kind", says(&with("kind", json!(password)))),
            ("keytype", says(&with("cacheKeyType", json!(password)))),
            ("long-keytype", says(&with("cacheKeyType", json!(format!("{}{password}", "x".repeat(50)))))),
            ("duration", says(&with("cacheDuration", json!(password)))),
            ("text", says(password)),
            ("list", says(&json!([password]).to_string())),
            ("fails", format!("{}{fails}", says(&whole))),
            ("fails-cut", format!("{}{fails}", says(cut))),
            ("fails-otherwise", format!("{}{fails}", says(&with("apiVersion", json!("foo/v1"))))),
            ("fails-silently", format!("{marked}exit 7\n")),
            ("dies", format!("{}{}kill -SEGV $$\n", says(cut), complains(&format!("on {password}")))),
            ("hangs", format!("{}{}sleep 600\n", says(cut), complains(&format!("on {password}")))),
            // Nothing of it is wrong, and it talks.
            ("talks", format!("echo \"$PLANTED\" >&2\n{}{}", complains(password), says(&whole))),
        ]
    }
}

#[test]
fn what_plugins_say_is_seen_nowhere() {
    let bed = Plugins::new();
    let markers = bed.markers();
    let liars = bed.liars();
    for (name, body) in &liars {
        bed.plugin(name, body);
    }
    let config = bed.path("config.yaml");
    let port = Port::choose();
    let text = format!("registryPullQPS: 0\ncredentialProviderTimeout: 700ms\nhttp: {{address: '127.0.0.1:{port}'}}\n");
    fs::write(&config, text).unwrap();
    let all: Vec<Value> = liars.iter().map(|(name, _)| bed.provider(name)).collect();
    bed.configure(&json!(all));
    let flags = ["--config", "--store", "--image-credential-provider-config", "--image-credential-provider-bin-dir"];
    let paths = ["config.yaml", "store", "providers.json", "bin"].map(|name| bed.path(name));
    let arguments: Vec<&str> = flags.iter().zip(&paths).flat_map(|(flag, path)| [*flag, path]).collect();
    let daemon = Daemon::start_with(bed.scene.folder.path(), &arguments, &[TRACE]);
    let mut seen = Seen::default();
    for way in ["basic", "echo-basic", "page-basic", "bearer", "token-echo", "challenge", "teapot"] {
        let name = bed.scene.name(way);
        let mut pull = daemon.command();
        pull.args(["pull", "-o", "json", "--policy", "Always", &name]);
        let pulled = run_watched(&mut pull, "", &mut seen, &markers);
        look_at(&mut seen, &format!("pull {way}"), &pulled, &markers);
        let pod = bed.path("pod.yaml");
        fs::write(&pod, pod_of(&name).replace("imagePullSecrets: [{name: planted}]", "restartPolicy: Never")).unwrap();
        for format in ["table", "json"] {
            let ensured = daemon.run(["ensure", "-o", format, "-f", &pod]);
            look_at(&mut seen, &format!("ensure {way}"), &ensured, &markers);
        }
    }
    bed.scene.assert_used(&bed.password);
    let log = daemon.part.log();
    for (name, _) in &liars {
        let failed = log.contains(&format!("\"provider\":\"{name}\""));
        assert_eq!(failed, *name != "talks", "{name}:\n{log}");
    }
    for command in [&["status", "-o", "json"][..], &["ls", "-o", "json"]] {
        look_at(&mut seen, &format!("{command:?}"), &daemon.run(command), &markers);
    }
    let metrics = ask(&port.address(), "/metrics");
    assert!(metrics.contains("imagelet_credential_provider_failures_total"), "{metrics}");
    seen.look("the metrics", metrics.as_bytes(), &markers);
    seen.look_at_process(daemon.part.id(), &markers);
    assert!(daemon.stop(Signal::TERM).success());
    let (bin, providers) = (bed.scene.folder.path().join("bin"), bed.scene.folder.path().join("providers.json"));
    seen.look_below(bed.scene.folder.path(), &markers, &[&bin, &providers]);
    seen.assert_nothing(60);
}

#[test]
fn a_broken_configuration_of_providers_is_not_repeated_with_its_variables() {
    let bed = Plugins::new();
    let markers = bed.markers();
    let variable = &bed.variable.text;
    bed.plugin("good", &format!("cat > /dev/null\necho '{}'\n", bed.answer()));
    let good = bed.provider("good");
    let with = |key: &str, value: Value| {
        let mut provider = good.clone();
        provider[key] = value;
        json!({
            "kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": [provider]
        })
        .to_string()
    };
    let whole = with("args", json!([]));
    let broken = [
        with("env", json!({"name": "PLANTED", "value": variable})),
        with("env", json!([{"name": 5, "value": variable}])),
        with("env", json!([{"name": "A", "value": [variable]}])),
        with("env", json!([{"name": "A", "value": {"secret": variable}}])),
        with("env", json!([variable])),
        with("env", json!(variable)),
        with("args", json!({"--token": variable})),
        with("tokenAttributes", json!(variable)),
        with("defaultCacheDuration", json!("x")),
        with("matchImages", json!([])),
        whole[..whole.len() - 4].to_owned(),
        whole.replace("\"value\":", "\"value\": \"\n"),
        whole.replace("\"value\":", "\"value\":\t'"),
        whole.replace("\"value\":", "\"value\" "),
        format!("kind: CredentialProviderConfig\nproviders:\n- env:\n  - value: x: {variable}\n"),
        format!("kind: CredentialProviderConfig\nproviders:\n- env:\n  - value: \"{variable}\n"),
        format!("kind: CredentialProviderConfig\nproviders:\n- env:\n  - {{value: *{variable}}}\n"),
    ];
    let mut seen = Seen::default();
    let providers = bed.path("providers.json");
    for text in &broken {
        fs::write(&providers, text).unwrap();
        let mut serve = bed.scene.command();
        let socket = bed.path("refused.sock");
        serve.args(["serve", "--socket", &socket, "--image-credential-provider-config", &providers]);
        let outcome = run(serve.args(["--image-credential-provider-bin-dir", &bed.path("bin")]));
        assert_eq!(outcome.code, 1, "{text}\n{}", outcome.stderr);
        look_at(&mut seen, "serve", &outcome, &markers);
    }
    bed.configure(&json!([good]));
    let flags = ["--store", "--image-credential-provider-config", "--image-credential-provider-bin-dir"];
    let paths = ["store", "providers.json", "bin"].map(|name| bed.path(name));
    let arguments: Vec<&str> = flags.iter().zip(&paths).flat_map(|(flag, path)| [*flag, path]).collect();
    let daemon = Daemon::start_with(bed.scene.folder.path(), &arguments, &[TRACE]);
    for (told, text) in broken.iter().enumerate() {
        fs::write(&providers, text).unwrap();
        daemon.part.signal(Signal::HUP);
        wait_until("the refusal", || daemon.part.log().matches("the old one stays in force").count() > told);
    }
    daemon.run(["pull", &bed.scene.name("basic")]).ok();
    bed.scene.assert_used(&bed.password);
    assert!(daemon.stop(Signal::TERM).success());
    seen.look_below(
        bed.scene.folder.path(),
        &markers,
        &[&bed.scene.folder.path().join("bin"), &bed.scene.folder.path().join("providers.json")],
    );
    seen.assert_nothing(30);
}
