//! Credential provider plugins, good and bad, before a private registry.

use std::{fs, time::Duration};

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value, json};

use crate::{
    images::Image,
    ports::Port,
    program::{Daemon, program, run, write_script},
    testbed::{Registry, http, scratch, wait_until, wait_until_within},
};

const USER: &str = "robot";
const PASSWORD: &str = "open-sesame-17";
const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// A folder of plugins with their configuration, and a registry that wants a login.
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

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).into_os_string().into_string().expect("temporary directories have plain names")
    }

    /// A shell script that notes each run, and its process.
    fn plugin(&self, name: &str, body: &str) {
        let path = self.folder.path().join("bin").join(name);
        let notes = self.path(name);
        let text = format!("notes='{notes}'\necho x >> $notes.runs\necho $$ > $notes.leader\n{body}");
        write_script(&path, &text);
    }

    fn configure(&self, providers: &[Value]) {
        let config = json!({
            "kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": providers
        });
        fs::write(self.path("providers.json"), config.to_string()).unwrap();
    }

    fn provider(&self, name: &str) -> Value {
        json!({
            "name": name, "matchImages": [self.registry.address()], "defaultCacheDuration": "1h", "apiVersion": V1
        })
    }

    /// An answer that opens the registry.
    fn answer(&self, user: &str, password: &str) -> Value {
        json!({
            "kind": "CredentialProviderResponse", "apiVersion": V1, "cacheKeyType": "Registry",
            "auth": {self.registry.address(): {"username": user, "password": password}}
        })
    }

    fn arguments(&self) -> Vec<String> {
        let flags = ["--store", "--image-credential-provider-config", "--image-credential-provider-bin-dir"];
        let paths = ["store", "providers.json", "bin"];
        flags.iter().zip(paths).flat_map(|(flag, path)| [(*flag).to_owned(), self.path(path)]).collect()
    }

    fn daemon(&self, more: &[&str]) -> Daemon {
        let arguments = self.arguments().into_iter().chain(more.iter().map(|one| (*one).to_owned()));
        Daemon::start(self.folder.path(), arguments)
    }

    fn push(&self, name: &str) -> String {
        self.registry.push(name, &Image::marked(name, 1000))
    }

    fn runs(&self, name: &str) -> usize {
        fs::read_to_string(format!("{}.runs", self.path(name))).unwrap_or_default().lines().count()
    }

    fn note(&self, name: &str) -> Option<Pid> {
        fs::read_to_string(self.path(name)).ok()?.trim().parse().ok().and_then(Pid::from_raw)
    }

    fn is_gone(&self, note: &str) -> bool {
        let id = self.note(note).unwrap_or_else(|| panic!("nobody wrote {note}"));
        // What nobody has reaped yet does nothing any more.
        let state = fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).unwrap_or_default();
        test_kill_process(id).is_err() || state.contains(") Z ")
    }
}

fn print(answer: &Value) -> String {
    format!("cat > /dev/null\ncat <<'END'\n{answer}\nEND\n")
}

pub(crate) fn metrics(address: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    text
}

#[test]
fn a_plugin_opens_a_registry_and_its_answer_is_kept() {
    let bed = Bed::new();
    let mut provider = bed.provider("good");
    provider["args"] = json!(["--region", "here"]);
    provider["env"] = json!([{"name": "PLACE", "value": "there"}]);
    bed.plugin(
        "good",
        &format!(
            "echo \"$* $PLACE ${{IMAGELET_CREDS-none}}\" > $notes.shown\n\
             tee $notes.question > /dev/null\n{}",
            print(&bed.answer(USER, PASSWORD))
        ),
    );
    bed.configure(&[provider]);
    let (first, second) = (bed.push("team/one:v1"), bed.push("team/two:v1"));
    let port = Port::choose();
    let daemon = bed.daemon(&["--http", &port.address()]);
    daemon.run(["pull", &first]).ok();
    daemon.run(["pull", &second]).ok();
    assert_eq!(bed.runs("good"), 1, "the answer is good for the registry");
    assert_eq!(fs::read_to_string(bed.path("good.shown")).unwrap(), "--region here there none\n");
    let question = fs::read_to_string(bed.path("good.question")).unwrap();
    let expected = format!(
        "{{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"{V1}\",\"image\":\"{}/team/one\"}}\n",
        bed.registry.address()
    );
    assert_eq!(question, expected);
    let shown = metrics(&port.address());
    for line in [
        "kubelet_credential_provider_plugin_duration_count{plugin_name=\"good\"} 1\n",
        "kubelet_credential_provider_config_info{hash=\"sha256:",
    ] {
        assert!(shown.contains(line), "{line} is missing:\n{shown}");
    }
    assert!(!daemon.part.log().contains(PASSWORD));
    assert!(daemon.stop(Signal::TERM).success());
}

#[test]
fn a_plugin_that_fails_is_told_with_the_pull_that_fails_for_it_and_without_its_secrets() {
    let bed = Bed::new();
    bed.plugin(
        "broken",
        &format!(
            "echo 'no route to sts; password={PASSWORD}' >&2\nprintf '%s' '{}' >&2\nexit 7\n",
            bed.answer(USER, PASSWORD)
        ),
    );
    bed.configure(&[bed.provider("broken")]);
    let (name, port) = (bed.push("app:v1"), Port::choose());
    let daemon = bed.daemon(&["--http", &port.address()]);
    let stderr =
        daemon.run(["pull", &name]).refused(&["credential provider `broken`", "exit status 7: no route to sts"]);
    assert!(!stderr.contains(PASSWORD), "{stderr}");
    assert!(daemon.part.log().contains("Failed to provide credentials for image"));
    assert!(!daemon.part.log().contains(PASSWORD));
    let shown = metrics(&port.address());
    for line in [
        "kubelet_credential_provider_plugin_errors_total{plugin_name=\"broken\"} 1\n",
        "imagelet_credential_provider_failures_total{plugin_name=\"broken\",reason=\"run\"} 1\n",
    ] {
        assert!(shown.contains(line), "{line} is missing:\n{shown}");
    }
}

#[test]
fn a_plugin_that_hangs_ends_with_its_children_at_the_limit() {
    let bed = Bed::new();
    bed.plugin("hanging", "sleep 600 &\necho $! > $notes.child\nsleep 600\n");
    bed.configure(&[bed.provider("hanging")]);
    let name = bed.push("app:v1");
    let config = bed.path("config.yaml");
    let text = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ncredentialProviderTimeout: 700ms\n";
    fs::write(&config, text).unwrap();
    let daemon = bed.daemon(&["--config", &config]);
    daemon.run(["pull", &name]).refused(&["credential provider `hanging`", "context deadline exceeded"]);
    for note in ["hanging.leader", "hanging.child"] {
        assert!(wait_until_within(Duration::from_secs(10), || bed.is_gone(note)), "{note} is still there");
    }
}

#[test]
fn plugins_that_lie_are_each_told_apart_and_keep_nobody_from_the_one_that_does_not() {
    let bed = Bed::new();
    let with = |key: &str, value: Value| {
        let mut answer = bed.answer("liar", "wrong");
        answer[key] = value;
        print(&answer)
    };
    let liars: Vec<(&str, String, &str)> = vec![
        ("version", with("apiVersion", json!("foo/v1")), "actual apiVersion:foo/v1"),
        (
            "yaml",
            "echo 'kind: CredentialProviderResponse'\n".into(),
            "invalid character 'k' looking for beginning of value",
        ),
        ("field", with("token", json!("x")), "error decoding credential provider plugin response from stdout"),
        ("keytype", with("cacheKeyType", json!("Everything")), "did not return a valid cacheKeyType: Everything"),
        ("huge", "yes\n".into(), "standard output is longer than 1.05MB"),
        ("crash", "kill -SEGV $$\n".into(), "signal: segmentation fault"),
        ("empty", String::new(), "unexpected end of JSON input"),
        ("nobody", "exec 0<&-\nsleep 0.1\nexit 3\n".into(), "exit status 3"),
    ];
    for (name, body, _) in &liars {
        bed.plugin(name, body);
    }
    let providers: Vec<Value> = liars.iter().map(|(name, ..)| bed.provider(name)).collect();
    bed.configure(&providers);
    let image = bed.push("app:v1");
    let daemon = bed.daemon(&[]);
    let stderr = daemon.run(["pull", &image]).refused(&[]);
    for (name, _, text) in &liars {
        let shown = stderr.find(&format!("credential provider `{name}`")).unwrap_or_else(|| panic!("{name}: {stderr}"));
        assert!(stderr[shown..].contains(text), "{name} does not tell `{text}`:\n{stderr}");
        assert_eq!(bed.runs(name), 1, "{name}");
    }

    bed.plugin("good", &print(&bed.answer(USER, PASSWORD)));
    let all: Vec<Value> = providers.into_iter().chain([bed.provider("good")]).collect();
    bed.configure(&all);
    daemon.part.signal(Signal::HUP);
    wait_until("the reload", || daemon.part.log().contains("configuration reloaded"));
    // The other one is left alone for a while.
    daemon.run(["pull", &bed.push("other:v1")]).ok();
    assert_eq!(bed.runs("good"), 1);
}

#[test]
fn a_daemon_whose_plugins_cannot_be_registered_does_not_start() {
    let bed = Bed::new();
    bed.plugin("good", &print(&bed.answer(USER, PASSWORD)));
    let mut unknown = bed.provider("good");
    unknown["matchImage"] = json!([]);
    let mut nowhere = bed.provider("good");
    nowhere["matchImages"] = json!(["%invalid%"]);
    fs::write(bed.folder.path().join("bin/plain"), "").unwrap();
    for (providers, text) in [
        (vec![], "providers: Required value: at least 1 item in plugins is required"),
        (vec![bed.provider("none")], "bin/none did not exist"),
        (vec![bed.provider("plain")], "bin/plain: permission denied"),
        (vec![bed.provider("good"), bed.provider("good")], "duplicate provider name \\\"good\\\" found"),
        (vec![unknown], "strict decoding error: unknown field \\\"providers[0].matchImage\\\""),
        (vec![nowhere], "match image is invalid: parse \\\"https://%invalid%\\\": invalid URL escape"),
    ] {
        bed.configure(&providers);
        refuses_to_start(&bed, &bed.arguments(), text);
    }
    let arguments = bed.arguments();
    refuses_to_start(&bed, &arguments[..4], "imageCredentialProviderConfigPath needs imageCredentialProviderBinDir");
    fs::remove_file(bed.path("providers.json")).unwrap();
    refuses_to_start(&bed, &arguments, "unable to access path");
}

fn refuses_to_start(bed: &Bed, arguments: &[String], text: &str) {
    let folder = scratch();
    let mut daemon = Daemon::spawn(folder.path(), arguments);
    wait_until("the daemon to give up", || daemon.part.ended().is_some());
    assert_eq!(daemon.part.ended().and_then(|status| status.code()), Some(1));
    let log = daemon.part.log();
    assert!(log.contains(text) || log.contains(&text.replace("\\\"", "\"")), "`{text}` is not told:\n{log}");
    assert!(!log.contains("panicked") && bed.runs("good") == 0);
}

#[test]
fn a_reload_takes_good_plugins_and_never_bad_ones() {
    let bed = Bed::new();
    bed.plugin("good", &print(&bed.answer(USER, PASSWORD)));
    bed.plugin("better", &print(&bed.answer(USER, PASSWORD)));
    bed.configure(&[bed.provider("good")]);
    let images: Vec<String> = (0..3).map(|index| bed.push(&format!("app-{index}:v1"))).collect();
    let daemon = bed.daemon(&[]);
    let shown = |word: &str| daemon.part.log().matches(word).count();
    daemon.run(["pull", &images[0]]).ok();

    bed.configure(&[bed.provider("none")]);
    daemon.part.signal(Signal::HUP);
    wait_until("the refusal", || shown("the old one stays in force") == 1);
    daemon.run(["pull", &images[1]]).ok();
    assert_eq!((bed.runs("good"), shown("configuration reloaded")), (1, 0), "what was cached is still there");

    bed.configure(&[bed.provider("better")]);
    daemon.part.signal(Signal::HUP);
    wait_until("the reload", || shown("configuration reloaded") == 1);
    daemon.run(["pull", &images[2]]).ok();
    assert_eq!((bed.runs("good"), bed.runs("better")), (1, 1));
}

#[test]
fn a_command_without_a_daemon_uses_the_plugins_its_configuration_names() {
    let bed = Bed::new();
    bed.plugin("good", &print(&bed.answer(USER, PASSWORD)));
    bed.configure(&[bed.provider("good")]);
    let name = bed.push("app:v1");
    let config = bed.path("config.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageCredentialProviderConfigPath: {}\n\
         imageCredentialProviderBinDir: {}\n",
        bed.path("providers.json"),
        bed.path("bin")
    );
    fs::write(&config, text).unwrap();
    let store = bed.path("store");
    let mut command = program();
    command.env("IMAGELET_CONFIG", &config).args(["--store", &store, "pull", &name]);
    run(&mut command).ok();
    assert_eq!(bed.runs("good"), 1);
    let shown = run(program().env("IMAGELET_CONFIG", &config).args(["config", "show"])).ok();
    let line = shown.lines().find(|line| line.starts_with("imageCredentialProviderBinDir")).expect("it is shown");
    assert!(line.contains(&bed.path("bin")) && line.contains("config.yaml:4"), "{line}");
}

#[test]
fn a_daemon_that_stops_takes_a_running_plugin_along() {
    let bed = Bed::new();
    bed.plugin("hanging", "sleep 600 &\necho $! > $notes.child\nsleep 600\n");
    bed.configure(&[bed.provider("hanging")]);
    let name = bed.push("app:v1");
    let daemon = bed.daemon(&[]);
    let mut pull = daemon.command().args(["pull", &name]).spawn().unwrap();
    wait_until("the plugin", || bed.note("hanging.child").is_some());
    assert!(daemon.stop(Signal::TERM).success());
    assert!(!pull.wait().unwrap().success());
    for note in ["hanging.leader", "hanging.child"] {
        assert!(wait_until_within(Duration::from_secs(10), || bed.is_gone(note)), "{note} is still there");
    }
}

#[test]
fn a_plugin_that_wants_a_service_account_is_told_that_there_is_no_cluster() {
    let bed = Bed::new();
    bed.plugin("accounts", &print(&bed.answer(USER, PASSWORD)));
    let mut provider = bed.provider("accounts");
    provider["tokenAttributes"] =
        json!({"serviceAccountTokenAudience": "a", "cacheType": "Token", "requireServiceAccount": true});
    bed.configure(&[provider]);
    let name = bed.push("app:v1");
    let pod = bed.path("pod.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop, uid: u-1}}\n\
         spec: {{serviceAccountName: robot, containers: [{{name: app, image: '{name}'}}]}}\n"
    );
    fs::write(&pod, text).unwrap();
    let daemon = bed.daemon(&[]);
    daemon.run(["ensure", "-f", &pod]).refused(&["cannot get ServiceAccounts when kubelet is in standalone mode"]);
    assert_eq!(bed.runs("accounts"), 0);
    let anonymous = http(&bed.registry.address(), "GET", "/v2/", "", &[]);
    assert_eq!(anonymous.status, 401, "the registry is private");
}
