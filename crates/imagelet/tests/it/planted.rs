//! Secrets planted in every input turn up in no output: no log, document, metric, event, file, argument or core file.
//!
//! Each test plants secrets of its own, makes the program use them under a log that tells all, lets as much as possible
//! go wrong with a registry that repeats whatever it is shown, and then looks everywhere for every spelling of them.

mod aborts;
mod plugins;
mod registry;
mod runtime;
mod seen;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::process::Signal;

use crate::{
    images::Image,
    ports::Port,
    program::{Daemon, Outcome, program, run},
    testbed::{http, scratch, wait_until, wait_until_within},
};
use registry::{EchoRegistry, Own, WAYS};
use seen::{Marker, Seen, in_memory};

/// What a curious operator sets.
const TRACE: (&str, &str) = ("IMAGELET_LOG", "trace");

/// A busy machine takes so long until a program has hidden its command line.
const HIDDEN_WITHIN: Duration = Duration::from_secs(30);
/// Pulls with the same login, every other one with a token of its own.
const PULLS: usize = 120;
/// Copies that may stay in free memory: the libraries' buffers for a command's arguments (h2) and for the head of a
/// request (hyper), which are not ours to overwrite, and are used again by the next pull.
const COPIES_MAX: usize = 10;
/// The same for a token: an answer names it twice and stays in the buffer that its connection read it into, until that
/// memory is used again. Twenty such pulls may well find fresh memory each and leave forty copies, eighty leave no more
/// than fifty; if all added up, these would leave 120.
const TOKEN_COPIES_MAX: usize = 80;

/// A registry with secrets of its own, and a folder in which all happens.
struct Scene {
    folder: tempfile::TempDir,
    registry: EchoRegistry,
    token: Marker,
    signature: Marker,
}

impl Scene {
    fn new() -> Self {
        let (token, signature) = (Marker::new("the registry's token"), Marker::new("a redirect's signature"));
        let own = Own { token: token.text.clone(), signature: signature.text.clone() };
        let image = Image::marked("planted", 40_000);
        Self { folder: scratch(), registry: EchoRegistry::start(own, &image), token, signature }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn name(&self, way: &str) -> String {
        format!("{}/{way}/app:v1", self.registry.address)
    }

    /// `imagelet --store STORE`, with a log that tells all.
    fn command(&self) -> Command {
        let mut command = program();
        command.env(TRACE.0, TRACE.1).env("HOME", self.folder.path().join("home"));
        command.arg("--store").arg(self.store());
        command
    }

    /// A docker configuration with this password for the registry, below the home folder.
    fn log_in(&self, user: &str, password: &str) {
        let home = self.folder.path().join("home/.docker");
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("config.json"), self.docker_config(user, password)).unwrap();
    }

    fn docker_config(&self, user: &str, password: &str) -> String {
        let auth = STANDARD.encode(format!("{user}:{password}"));
        format!(r#"{{"auths": {{"{}": {{"auth": "{auth}"}}}}}}"#, self.registry.address)
    }

    /// That a secret really came to the registry: else its absence elsewhere would prove nothing.
    fn assert_used(&self, marker: &Marker) {
        let shown = self.registry.shown().join("\n");
        assert!(marker.count(shown.as_bytes()) > 0, "{} was not used", marker.name);
    }
}

fn look_at(seen: &mut Seen, what: &str, outcome: &Outcome, markers: &[&Marker]) {
    seen.look(&format!("stdout of {what}"), outcome.stdout.as_bytes(), markers);
    seen.look(&format!("stderr of {what}"), outcome.stderr.as_bytes(), markers);
    assert!(!outcome.stderr.contains("panicked"), "{what}: {}", outcome.stderr);
}

/// Runs a command that reads stdin, and looks at its process on the way.
fn run_watched(command: &mut Command, stdin: &str, seen: &mut Seen, markers: &[&Marker]) -> Outcome {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that fails at once does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    // Its own command line is hidden as soon as it has read it; where it is not, that is seen below. While a program is
    // being started the system shows nothing at all of it, which hides nothing yet.
    let hides = |file: &str| {
        let shown = fs::read(format!("/proc/{}/{file}", child.id())).unwrap_or_default();
        !shown.is_empty() && markers.iter().all(|marker| marker.count(&shown) == 0)
    };
    let has_ended = || {
        let about = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        about.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
    };
    wait_until_within(HIDDEN_WITHIN, || (hides("cmdline") && hides("environ")) || has_ended());
    seen.look_at_process(child.id(), markers);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

#[test]
fn a_login_of_a_command_is_seen_nowhere() {
    let scene = Scene::new();
    let password = Marker::new("the password of --creds");
    let markers = [&password, &scene.token, &scene.signature];
    let login = format!("anna:{}", password.text);
    let file = scene.folder.path().join("login");
    fs::write(&file, format!("{login}\n")).unwrap();
    let mut seen = Seen::default();
    let mut succeeded = 0;
    for (number, way) in WAYS.into_iter().enumerate() {
        let name = scene.name(way);
        let mut command = scene.command();
        let mut stdin = "";
        if number % 2 == 0 {
            command.args(["-o", "json"]);
        }
        command.args(["pull", "--policy", "Always", &name]);
        match number % 4 {
            0 => drop(command.arg("--creds").arg(&login)),
            1 => drop(command.env("IMAGELET_CREDS", &login)),
            2 => drop(command.arg("--creds-file").arg(&file)),
            _ => {
                command.args(["--creds", "-"]);
                stdin = &login;
            }
        }
        let outcome = run_watched(&mut command, stdin, &mut seen, &markers);
        succeeded += usize::from(outcome.code == 0);
        look_at(&mut seen, way, &outcome, &markers);
    }
    assert!((3..WAYS.len()).contains(&succeeded), "{succeeded} pulls succeeded");
    scene.assert_used(&password);
    scene.assert_used(&scene.token);
    scene.assert_used(&scene.signature);
    seen.look_below(scene.folder.path(), &markers, &[&file]);
    seen.assert_nothing(100);
}

#[test]
fn a_daemons_secrets_are_seen_nowhere() {
    let scene = Scene::new();
    let node = Marker::new("the node's password");
    let secret = Marker::new("a pull secret's password");
    let creds = Marker::new("the password of a login");
    let header = Marker::new("a header of hosts.toml");
    let userinfo = Marker::new("the user of an address in hosts.toml");
    let markers = [&node, &secret, &creds, &header, &userinfo, &scene.token, &scene.signature];
    scene.log_in("node", &node.text);
    let certs = scene.folder.path().join("certs.d");
    let hosts = certs.join(&scene.registry.address);
    fs::create_dir_all(&hosts).unwrap();
    let server = format!("server = \"http://{}\"\n[header]\nX-Planted = \"{}\"\n", scene.registry.address, header.text);
    fs::write(hosts.join("hosts.toml"), server).unwrap();
    let broken = certs.join("broken.example");
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("hosts.toml"), format!("[host.\"http://u:{}@127.0.0.1:1\"]\nca = 5\n", userinfo.text))
        .unwrap();
    let config = scene.folder.path().join("config.yaml");
    let port = Port::choose();
    let text = format!(
        "registryPullQPS: 0\npulls: {{retryBudget: 2s}}\nhttp: {{address: '127.0.0.1:{port}'}}\nregistry: {{configPath: {}}}\ncredentials: {{dockerConfig: {}}}\n",
        certs.display(),
        scene.folder.path().join("home/.docker/config.json").display()
    );
    fs::write(&config, text).unwrap();
    let store = scene.store();
    let arguments = ["--store", store.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let daemon = Daemon::start_with(scene.folder.path(), arguments, &[TRACE]);
    let mut seen = Seen::default();

    let mut formats = ["table", "json"].into_iter().cycle();
    for way in WAYS {
        let pod = scene.folder.path().join("pod.yaml");
        fs::write(&pod, pod_of(&scene.name(way))).unwrap();
        let format = formats.next().expect("it begins anew");
        for (what, content) in secrets_of(&scene, &secret) {
            let file = scene.folder.path().join("secret.yaml");
            fs::write(&file, content).unwrap();
            let (pod, file) = (pod.to_str().unwrap(), file.to_str().unwrap());
            let ensured = daemon.run(["-o", format, "ensure", "-f", pod, "--secret", file]);
            assert_ne!(ensured.code, 2, "{}", ensured.stderr);
            look_at(&mut seen, &format!("ensure {way}, {what}"), &ensured, &markers);
            fs::remove_file(file).unwrap();
        }
        let mut pull = daemon.command();
        pull.args(["pull", "--policy", "Always", &scene.name(way).replace("/app:", "/second:")]);
        let pulled = run_watched(pull.env("IMAGELET_CREDS", format!("u:{}", creds.text)), "", &mut seen, &markers);
        look_at(&mut seen, &format!("pull {way}"), &pulled, &markers);
        let by_node = daemon.run(["pull", "-o", "json", &scene.name(way).replace("/app:", "/third:")]);
        look_at(&mut seen, &format!("pull {way} by the node's login"), &by_node, &markers);
    }
    look_at(&mut seen, "a broken registry", &daemon.run(["pull", "broken.example/app:v1"]), &markers);
    for marker in [&node, &secret, &creds, &header, &scene.token, &scene.signature] {
        scene.assert_used(marker);
    }
    for command in [&["status", "-o", "json"][..], &["ls", "-o", "json"], &["status"], &["pins"], &["df", "-v"]] {
        look_at(&mut seen, &format!("{command:?}"), &daemon.run(command), &markers);
    }
    let api = ["status", "images", "pulls", "queue", "registries", "decisions", "gc/plan", "pins"];
    let api = api.map(|route| format!("/api/v1/{route}"));
    let pages = ["/metrics", "/healthz", "/readyz?verbose", "/", "/plan", "/debug"];
    for path in pages.into_iter().chain(api.iter().map(String::as_str)) {
        let answer = ask(&port.address(), path);
        seen.look(&format!("GET {path}"), answer.as_bytes(), &markers);
    }
    assert!(http(&port.address(), "GET", "/metrics", "", &[]).status == 200);
    seen.look_at_process(daemon.part.id(), &markers);

    // A reload with a docker configuration that does not read.
    let docker = scene.folder.path().join("home/.docker/config.json");
    for spoilt in [format!("{{\"auths\": {{\"r\": \"{}\"}}}}", node.text), format!("{{\"auths\": {}", node.text)] {
        fs::write(&docker, spoilt).unwrap();
        let told = daemon.part.log().matches("configuration reloaded").count();
        daemon.part.signal(Signal::HUP);
        wait_until("the reload", || daemon.part.log().matches("configuration reloaded").count() > told);
    }
    let log = daemon.part.log();
    assert!(log.contains("\"level\":\"TRACE\"") || log.contains("\"level\":\"DEBUG\""), "the log does not tell all");
    assert!(daemon.stop(Signal::TERM).success());
    seen.look_below(scene.folder.path(), &markers, &[&docker, &hosts.join("hosts.toml"), &broken.join("hosts.toml")]);
    seen.assert_nothing(200);
}

/// The whole answer to a GET, head and body.
fn ask(address: &str, path: &str) -> String {
    use std::io::Read as _;
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn pod_of(image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: planted, namespace: default}}\nspec:\n  imagePullSecrets: [{{name: planted}}]\n  \
         containers:\n  - name: app\n    image: {image}\n    imagePullPolicy: Always\n"
    )
}

/// Secret manifests, good ones and those that are broken in all the places where one can be.
fn secrets_of(scene: &Scene, marker: &Marker) -> Vec<(&'static str, String)> {
    let document = scene.docker_config("pod", &marker.text);
    let manifest = |body: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: planted, namespace: default}}\n\
             type: kubernetes.io/dockerconfigjson\n{body}\n"
        )
    };
    let data = |document: &str| manifest(&format!("data:\n  .dockerconfigjson: {}", STANDARD.encode(document)));
    vec![
        ("data", data(&document)),
        ("stringData", manifest(&format!("stringData:\n  .dockerconfigjson: '{document}'"))),
        ("no base64", manifest(&format!("data:\n  .dockerconfigjson: '{}!'", marker.text))),
        ("no JSON", data(&format!("{{\"auths\": {}", marker.text))),
        ("another type", data(&format!("{{\"auths\": {{\"{}\": \"{}\"}}}}", scene.registry.address, marker.text))),
        (
            "an auth without a colon",
            data(&document.replace(&STANDARD.encode(format!("pod:{}", marker.text)), &STANDARD.encode(&marker.text))),
        ),
        (
            "a key that is no URL",
            data(&format!(
                "{{\"auths\": {{\"https://u:{}@[::1/\": {{\"username\": \"u\", \"password\": \"{}\"}}}}}}",
                marker.text, marker.text
            )),
        ),
        ("a list for data", manifest(&format!("data: ['{}']", marker.text))),
        ("a list for a document", manifest(&format!("stringData:\n  .dockerconfigjson: ['{}']", marker.text))),
        ("broken YAML", manifest(&format!("stringData:\n\t.dockerconfigjson: '{}'", marker.text))),
        ("an open quote", manifest(&format!("stringData:\n  .dockerconfigjson: \"{}", marker.text))),
        ("a key twice", manifest(&format!("stringData:\n  a: x{0}\n  a: y{0}", marker.text))),
    ]
}

#[test]
fn a_wrong_file_or_name_is_not_repeated_with_its_secret() {
    let scene = Scene::new();
    let marker = Marker::new("a secret where none belongs");
    let markers = [&marker];
    let mut seen = Seen::default();
    let path = scene.folder.path().join("wrong.yaml");
    for (what, content) in secrets_of(&scene, &marker) {
        fs::write(&path, &content).unwrap();
        for arguments in [
            &["config", "check"][..],
            &["config", "show", "--kubelet-config"],
            &["serve", "--config"],
            &["ensure", "-f"],
        ] {
            let outcome = run(program().env(TRACE.0, TRACE.1).args(arguments).arg(&path));
            assert_ne!(outcome.code, 0, "{what} as {arguments:?}");
            look_at(&mut seen, &format!("{what} as {arguments:?}"), &outcome, &markers);
        }
    }
    fs::remove_file(&path).unwrap();
    for name in [
        format!("user:{}@127.0.0.1:1/app:v1", marker.text),
        format!("https://user:{}@127.0.0.1:1/app:v1", marker.text),
        format!("https://127.0.0.1:1/app:v1?token={}", marker.text),
    ] {
        for arguments in [&["pull"][..], &["inspect"], &["rm"], &["untag"], &["verify"]] {
            let outcome = run(scene.command().args(arguments).arg(&name));
            assert_eq!(outcome.code, 1, "{arguments:?} {name}");
            look_at(&mut seen, &format!("{arguments:?} of an address with a user"), &outcome, &markers);
        }
    }
    for arguments in [&["ls", "--creds"][..], &["pull", "--cred"], &["pull", "a", "--creds", "-x", "--creds"]] {
        let outcome = run(scene.command().args(arguments).arg(format!("u:{}", marker.text)));
        assert_eq!(outcome.code, 2, "{arguments:?}");
        look_at(&mut seen, &format!("{arguments:?}"), &outcome, &markers);
    }
    seen.look_below(scene.folder.path(), &markers, &[]);
    seen.assert_nothing(80);
}

#[test]
fn a_secret_that_is_let_out_is_found_however_it_is_written() {
    let marker = Marker::new("a secret that is let out");
    let folder = scratch();
    let basic = STANDARD.encode(format!("anna:{}", marker.text));
    let file = |text: &str| fs::write(folder.path().join("log"), text).unwrap();
    for text in [&marker.text, &basic, &format!("{{\"a\":\"x{}y\"}}", marker.text), &STANDARD.encode(&marker.text)] {
        file(text);
        let mut seen = Seen::default();
        seen.look_below(folder.path(), &[&marker], &[]);
        assert_eq!(seen.leaks().len(), 1, "{text}");
    }
    file("nothing");
    let mut child = Command::new("sleep").arg("60").env("X", &marker.text).spawn().unwrap();
    let mut seen = Seen::default();
    seen.look_below(folder.path(), &[&marker], &[]);
    assert!(seen.leaks().is_empty());
    wait_until("the program to start", || !fs::read(format!("/proc/{}/environ", child.id())).unwrap().is_empty());
    seen.look_at_process(child.id(), &[&marker]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(seen.leaks().len(), 1);
}

/// The kernel's pattern for the names of core files, put back when dropped.
struct CorePattern(String);

const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";

impl CorePattern {
    fn set(folder: &Path) -> Option<Self> {
        let old = fs::read_to_string(CORE_PATTERN).ok()?;
        fs::write(CORE_PATTERN, format!("{}/core.%p", folder.display())).ok()?;
        Some(Self(old))
    }
}

impl Drop for CorePattern {
    fn drop(&mut self) {
        let _ = fs::write(CORE_PATTERN, self.0.trim_end());
    }
}

#[test]
fn an_abort_leaves_no_core_file_and_memory_forgets_a_login() {
    let scene = Scene::new();
    let once = Marker::new("the password of one pull");
    let cores = scratch();
    let pattern = CorePattern::set(cores.path());
    let limited = |arguments: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -c unlimited; exec {arguments}")).env_clear();
        shell.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null()).stdout(Stdio::null());
        shell.stderr(Stdio::null()).spawn().unwrap()
    };
    // That this machine writes cores at all.
    let mut other = limited("sleep 60");
    wait_until("sleep to start", || {
        fs::read_to_string(format!("/proc/{}/comm", other.id())).is_ok_and(|name| name == "sleep\n")
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&other), Signal::ABORT).unwrap();
    other.wait().unwrap();
    let writes_cores = cores.path().join(format!("core.{}", other.id())).exists();

    let (store, socket) = (scene.store(), scene.folder.path().join("imagelet.sock"));
    let program = env!("CARGO_BIN_EXE_imagelet");
    let mut daemon = limited(&format!("{program} serve --store {} --socket {}", store.display(), socket.display()));
    wait_until("the daemon", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    // Each pull of many leaves what it leaves: it must not add up.
    for way in ["basic", "bearer"].into_iter().cycle().take(PULLS) {
        let mut pull = crate::program::program();
        pull.arg("--endpoint").arg(format!("unix://{}", socket.display())).args([
            "pull",
            "--policy",
            "Always",
            &scene.name(way),
        ]);
        run(pull.env("IMAGELET_CREDS", format!("u:{}", once.text)));
    }
    scene.assert_used(&once);
    let held = || in_memory(daemon.id(), &[&once, &scene.token]);
    let began = held();
    // Connections end, and the heap is trimmed.
    thread::sleep(Duration::from_secs(6));
    let left = held();
    assert!(left[0].1 <= COPIES_MAX, "{began:?} at once, {left:?} later");
    assert!(left[1].1 <= TOKEN_COPIES_MAX, "{began:?} at once, {left:?} later");

    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::ABORT).unwrap();
    let status = daemon.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::ABORT.as_raw()));
    assert!(!std::os::unix::process::ExitStatusExt::core_dumped(&status), "it dumped its core");
    let core = cores.path().join(format!("core.{}", daemon.id()));
    assert!(!core.exists(), "a core file is left");
    if pattern.is_some() {
        assert!(writes_cores, "this machine writes no cores, so that none proves nothing");
    }
}
