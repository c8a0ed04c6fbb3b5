//! Pods as people hand them in: manifests and secrets, tenants on one node, what starts together, what a cancel leaves.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use base64::Engine as _;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    artifacts::artifact,
    fake_registry::{FakeRegistry, Held},
    images::Image,
    program::{Daemon, Outcome, program, run, with_store},
    testbed::{Containerd, ContainerdRelease, ContainerdSetup, Registry, scratch, wait_until},
};

const LOGIN: &str = "ada:hunter2";

/// A node with a folder for its files.
struct Node {
    folder: tempfile::TempDir,
    settings: String,
    /// Where images are kept; the embedded store without one.
    runtime: Option<String>,
}

impl Node {
    /// With these settings beside those of every test.
    fn new(settings: &str) -> Self {
        Self { folder: scratch(), settings: settings.to_owned(), runtime: None }
    }

    /// Beside a runtime.
    fn beside(endpoint: String, settings: &str) -> Self {
        Self { runtime: Some(endpoint), ..Self::new(settings) }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn daemon(&self) -> Daemon {
        // A full disk of the machine that runs the tests must not make a daemon collect.
        let text = format!(
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {{enabled: false}}\n\
             store: {{directory: {}}}\n{}\n",
            self.store().display(),
            self.settings
        );
        let config = self.write("config.yaml", &text);
        let runtime = self.runtime.iter().flat_map(|endpoint| ["--runtime-endpoint", endpoint]);
        Daemon::start(self.folder.path(), ["--config", &config].into_iter().chain(runtime))
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        text_of(&path).to_owned()
    }

    /// Files of the pull records below a folder: `pulling` or `pulled`.
    fn records(&self, folder: &str) -> Vec<PathBuf> {
        let mut state = self.store().join("state");
        if self.runtime.is_some() {
            state = self.store().join("runtimes");
            state = fs::read_dir(&state).unwrap().next().expect("the runtime has a folder").unwrap().path();
        }
        let files = fs::read_dir(state.join("image_manager").join(folder)).into_iter().flatten();
        files.map(|entry| entry.unwrap().path()).collect()
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

/// A Pod with one container and these other fields of its spec.
fn pod(name: &str, image: &str, policy: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: tenants}}\nspec:\n  containers:\n  \
         - {{name: app, image: '{image}', imagePullPolicy: {policy}}}\n  {spec}\n"
    )
}

fn secret(name: &str, registry: &str, login: &str) -> String {
    let auth = base64::engine::general_purpose::STANDARD.encode(login);
    let document = format!("{{\"auths\":{{\"{registry}\":{{\"auth\":\"{auth}\"}}}}}}");
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: tenants}}\n\
         type: kubernetes.io/dockerconfigjson\ndata:\n  .dockerconfigjson: {}\n",
        base64::engine::general_purpose::STANDARD.encode(document)
    )
}

/// The first image of the first pod in an answer.
fn first(answer: &Value) -> &Value {
    &answer["pods"][0]["images"][0]
}

fn reasons(answer: &Value) -> Vec<&str> {
    let images = answer["pods"][0]["images"].as_array().unwrap_or_else(|| panic!("no images in {answer:#}"));
    images.iter().map(|row| row["reason"].as_str().unwrap()).collect()
}

fn events(answer: &Value) -> Vec<(&str, &str)> {
    let events = answer["pods"][0]["events"].as_array().unwrap_or_else(|| panic!("no events in {answer:#}"));
    events.iter().map(|event| (event["reason"].as_str().unwrap(), event["message"].as_str().unwrap())).collect()
}

/// Stdout of a command that failed with exit code 1, as JSON.
fn failed(outcome: &Outcome) -> Value {
    assert_eq!(outcome.code, 1, "stdout: {}\nstderr: {}", outcome.stdout, outcome.stderr);
    assert!(!outcome.stderr.contains("hunter2") && !outcome.stdout.contains("hunter2"), "a password is shown");
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("not JSON: {error}\n{}", outcome.stdout))
}

/// Who asks, by their files: the pod, and the secret where they have one.
struct Tenants {
    owner: [String; 4],
    stranger: String,
    stranger_never: String,
    other_secret: [String; 4],
}

impl Tenants {
    fn write(node: &Node, registry: &Registry, image: &str) -> Self {
        let with_secret = |who: &str| {
            let pod = pod(who, image, "IfNotPresent", &format!("imagePullSecrets: [{{name: {who}-reg}}]"));
            let secret = secret(&format!("{who}-reg"), &registry.address(), LOGIN);
            let (pod, secret) =
                (node.write(&format!("{who}.yaml"), &pod), node.write(&format!("{who}-s.yaml"), &secret));
            ["-f".into(), pod, "--secret".into(), secret]
        };
        Self {
            owner: with_secret("owner"),
            stranger: node.write("stranger.yaml", &pod("stranger", image, "IfNotPresent", "")),
            stranger_never: node.write("never.yaml", &pod("never", image, "Never", "")),
            other_secret: with_secret("other"),
        }
    }

    /// What pods without the right secret are told of an image that is there.
    fn strangers_are_kept_out(&self, daemon: &Daemon, image: &str) {
        let never = failed(&daemon.run(["ensure", "-o", "json", "-f", &self.stranger_never]));
        assert_eq!(first(&never)["reason"], "ErrImageNeverPull");
        let text = format!("Container image \"{image}\" is not present with pull policy of Never");
        assert_eq!(first(&never)["message"], text.as_str());
        assert_eq!(events(&never), [("ErrImageNeverPull", text.as_str()), ("Failed", "Error: ErrImageNeverPull")]);
        let denied = failed(&daemon.run(["ensure", "-o", "json", "-f", &self.stranger]));
        assert_eq!(reasons(&denied), ["ErrImagePull"], "{denied:#}");
        assert_eq!(first(&denied)["id"], "");
    }
}

#[test]
fn a_private_image_is_used_by_those_who_hold_its_secret_and_by_nobody_else() {
    let (node, registry) = (Node::new(""), Registry::start_with_login(LOGIN));
    tenants_keep_apart(&node, &registry, &Image::marked("private", 2000));
}

#[test]
fn a_private_artifact_is_used_by_those_who_hold_its_secret_where_every_image_is_verified() {
    let (model, verified) = (artifact(&[("weights", b"w")]), "imagePullCredentialsVerificationPolicy: AlwaysVerify");
    tenants_keep_apart(&Node::new(verified), &Registry::start_with_login(LOGIN), &model);
    for release in ContainerdRelease::all().iter().filter(|release| release.has_image_volumes()) {
        let folder = scratch();
        let containerd = ContainerdSetup::new(release, "unused:v1").start(folder.path());
        let node = Node::beside(containerd.endpoint(), verified);
        tenants_keep_apart(&node, &Registry::start_with_login(LOGIN), &model);
    }
}

#[test]
fn beside_containerd_the_same_pods_are_let_in_and_kept_out() {
    let (folder, registry) = (scratch(), Registry::start_with_login(LOGIN));
    let containerd = Containerd::start(folder.path(), &registry);
    tenants_keep_apart(&Node::beside(containerd.endpoint(), ""), &registry, &Image::marked("private", 2000));
}

fn tenants_keep_apart(node: &Node, registry: &Registry, image: &Image) {
    let image = registry.push("team/app:v1", image);
    let tenants = Tenants::write(node, registry, &image);
    let daemon = node.daemon();
    let ensure = |daemon: &Daemon, arguments: &[String]| {
        daemon.run(["ensure", "-o", "json"].map(str::to_owned).iter().chain(arguments))
    };

    let pulled = ensure(&daemon, &tenants.owner).json();
    assert_eq!(first(&pulled)["origin"], "pulled", "{pulled:#}");
    assert_eq!(
        (first(&pulled)["policy"].as_str(), first(&pulled)["message"].as_str()),
        (Some("IfNotPresent"), Some(""))
    );
    let words: Vec<&str> = events(&pulled).into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(words, ["Pulling", "Pulled"]);
    tenants.strangers_are_kept_out(&daemon, &image);
    let again = failed(&daemon.run(["ensure", "-o", "json", "-f", &tenants.stranger]));
    assert_eq!(reasons(&again), ["ImagePullBackOff"]);
    let message = first(&again)["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("Back-off pulling image \"{image}\": ErrImagePull: ")), "{message}");
    let held = daemon.run(["status", "-o", "json"]).json();
    let remaining = held["heldBack"][0]["remainingMs"].as_u64().unwrap();
    assert!(remaining > 0 && remaining <= 10_000, "{held:#}");

    let blobs = registry.blob_requests();
    let present = ensure(&daemon, &tenants.other_secret).json();
    assert_eq!(first(&present)["origin"], "present", "{present:#}");
    let text = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
    assert_eq!(first(&present)["message"], text.as_str());
    assert!(first(&present)["size"].as_u64().is_some_and(|size| size > 0), "{present:#}");
    assert_eq!(registry.blob_requests(), blobs, "nothing is fetched for an identical secret");
    let [record] = &node.records("pulled")[..] else { panic!("{:?}", node.records("pulled")) };
    let record = fs::read_to_string(record).unwrap();
    assert!(record.contains("owner-reg") && record.contains("other-reg") && !record.contains("hunter2"), "{record}");

    assert!(daemon.stop(Signal::TERM).success());
    let daemon = node.daemon();
    tenants.strangers_are_kept_out(&daemon, &image);
    for tenant in [&tenants.owner, &tenants.other_secret] {
        assert_eq!(first(&ensure(&daemon, tenant).json())["origin"], "present");
    }
    assert_eq!(registry.blob_requests(), blobs);
    assert!(!daemon.part.log().contains("hunter2"), "a password is in the log");
}

#[test]
fn without_a_daemon_the_same_pods_are_let_in_and_kept_out() {
    let (node, registry) = (Node::new(""), Registry::start_with_login(LOGIN));
    let image = registry.push("team/app:v1", &Image::marked("private", 2000));
    let tenants = Tenants::write(&node, &registry, &image);
    let ensure = |arguments: &[String]| {
        with_store(&node.store(), ["ensure", "-o", "json"].map(str::to_owned).iter().chain(arguments))
    };
    assert_eq!(first(&ensure(&tenants.owner).json())["origin"], "pulled");
    let denied = failed(&ensure(&["-f".into(), tenants.stranger.clone()]));
    assert_eq!(reasons(&denied), ["ErrImagePull"]);
    assert_eq!(reasons(&failed(&ensure(&["-f".into(), tenants.stranger_never.clone()]))), ["ErrImageNeverPull"]);
    assert_eq!(first(&ensure(&tenants.other_secret).json())["origin"], "present");
}

#[test]
fn a_public_image_is_open_to_every_pod() {
    let (node, registry) = (Node::new(""), Registry::start());
    let image = registry.push("public:v1", &Image::marked("public", 2000));
    let (one, two) = (pod("one", &image, "IfNotPresent", ""), pod("two", &image, "Never", ""));
    let (one, two) = (node.write("one.yaml", &one), node.write("two.yaml", &two));
    let daemon = node.daemon();
    assert_eq!(first(&daemon.run(["ensure", "-o", "json", "-f", &one]).json())["origin"], "pulled");
    let [record] = &node.records("pulled")[..] else { panic!("{:?}", node.records("pulled")) };
    assert!(fs::read_to_string(record).unwrap().contains("\"nodePodsAccessible\":true"));
    assert_eq!(first(&daemon.run(["ensure", "-o", "json", "-f", &two]).json())["origin"], "present");
}

#[test]
fn an_image_loaded_by_hand_is_open_to_all_unless_every_image_is_verified() {
    let registry = Registry::start_with_login(LOGIN);
    let image = registry.push("team/app:v1", &Image::marked("loaded", 2000));
    for (settings, expected) in [("", "present"), ("imagePullCredentialsVerificationPolicy: AlwaysVerify", "")] {
        let node = Node::new(settings);
        let tenants = Tenants::write(&node, &registry, &image);
        let arguments = ["ensure", "-o", "json"].map(str::to_owned);
        with_store(&node.store(), arguments.iter().chain(&tenants.owner)).ok();
        // What nobody has a record of came with the node.
        node.records("pulled").iter().for_each(|record| fs::remove_file(record).unwrap());
        let daemon = node.daemon();
        let outcome = daemon.run(["ensure", "-o", "json", "-f", &tenants.stranger]);
        let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(first(&answer)["origin"], expected, "{answer:#}");
        if !settings.is_empty() {
            assert_eq!(events(&answer)[0].0, "Pulling", "a pull is attempted: {answer:#}");
        }
    }
}

/// Five images behind layers that nobody gets until they are let go, and a Pod of three init and two main containers.
struct FivePulls {
    registry: FakeRegistry,
    images: Vec<(String, Image)>,
    pod: String,
}

impl FivePulls {
    fn new(node: &Node) -> Self {
        let registry = FakeRegistry::start();
        let names = ["i1", "i2", "i3", "c1", "c2"];
        let images: Vec<_> = names.iter().map(|name| ((*name).to_owned(), Image::marked(name, 3000))).collect();
        let field = |name: &str, image: &Image| {
            format!("{{name: {name}, image: '{}'}}", registry.put(&format!("{name}:v1"), image))
        };
        let fields: Vec<String> = images.iter().map(|(name, image)| field(name, image)).collect();
        let text = format!(
            "kind: Pod\nmetadata: {{name: web}}\nspec:\n  initContainers: [{}]\n  containers: [{}]\n",
            fields[..3].join(", "),
            fields[3..].join(", ")
        );
        let pod = node.write("five.yaml", &text);
        Self { registry, images, pod }
    }

    fn hold(&self, at: usize) -> Held<'_> {
        let (name, image) = &self.images[at];
        self.registry.hold(name, &image.layers[0].digest)
    }

    fn hold_all(&self) -> Vec<Held<'_>> {
        (0..self.images.len()).map(|at| self.hold(at)).collect()
    }

    /// Begins, by the daemon if there is one, else by the command alone.
    fn ensure(&self, node: &Node, daemon: Option<&Daemon>) -> Background {
        let command = daemon.map_or_else(|| embedded(node), Daemon::command);
        Background::start(command, node, &self.pod)
    }

    fn is_asked_for(&self, at: usize) -> bool {
        let path = format!("/v2/{}/", self.images[at].0);
        self.registry.requests().iter().any(|request| request.contains(&path))
    }
}

/// `ensure` in the background; its answer is read from a file at the end.
struct Background {
    child: std::process::Child,
    stdout: PathBuf,
}

impl Background {
    fn start(mut command: std::process::Command, node: &Node, pod: &str) -> Self {
        let stdout = node.folder.path().join("stdout");
        command.args(["ensure", "-o", "json", "-f", pod]);
        command.stdout(fs::File::create(&stdout).unwrap()).stderr(Stdio::null());
        Self { child: command.spawn().unwrap(), stdout }
    }

    fn end(mut self) -> (Option<i32>, Value) {
        let code = self.child.wait().unwrap().code();
        (code, serde_json::from_str(&fs::read_to_string(&self.stdout).unwrap()).unwrap_or_default())
    }

    fn interrupt(&self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), Signal::INT).unwrap();
    }
}

fn embedded(node: &Node) -> std::process::Command {
    let mut command = program();
    command.arg("--store").arg(node.store());
    command
}

#[test]
fn all_images_of_a_pod_are_fetched_at_once() {
    for with_daemon in [false, true] {
        let node = Node::new("serializeImagePulls: false");
        let pulls = FivePulls::new(&node);
        let daemon = with_daemon.then(|| node.daemon());
        let held = pulls.hold_all();
        let ensure = pulls.ensure(&node, daemon.as_ref());
        // None is let go before all five are asked for.
        held.iter().for_each(Held::until_asked);
        drop(held);
        let (code, answer) = ensure.end();
        assert_eq!((code, reasons(&answer)), (Some(0), vec![""; 5]), "{answer:#}");
    }
}

#[test]
fn in_the_kubelets_way_the_images_of_a_pod_are_fetched_one_after_another() {
    let node = Node::new("compatibility: kubelet\nserializeImagePulls: false");
    let pulls = FivePulls::new(&node);
    let daemon = node.daemon();
    let mut held = pulls.hold_all();
    let ensure = Background::start(daemon.command(), &node, &pulls.pod);
    for at in 0..5 {
        held[0].until_asked();
        assert!((at + 1..5).all(|later| !pulls.is_asked_for(later)), "{:?}", pulls.registry.requests());
        drop(held.remove(0));
    }
    let (code, answer) = ensure.end();
    assert_eq!((code, reasons(&answer)), (Some(0), vec![""; 5]), "{answer:#}");

    // Another node, where the second init image is not to be had.
    let node = Node::new("compatibility: kubelet");
    let pulls = FivePulls::new(&node);
    let text = fs::read_to_string(&pulls.pod).unwrap().replace("i2:v1", "gone:v1");
    let answer = failed(&node.daemon().run(["ensure", "-o", "json", "-f", &node.write("gone.yaml", &text)]));
    assert_eq!(reasons(&answer), ["", "ErrImagePull", "PodInitializing", "PodInitializing", "PodInitializing"]);
    assert!(!pulls.is_asked_for(2) && !pulls.is_asked_for(3), "{:?}", pulls.registry.requests());
}

/// Four pods of one image each: no pod waits for itself.
fn four_pods(pulls: &FivePulls, node: &Node) -> String {
    let one = |name: &String| pod(name, &pulls.registry.name(&format!("{name}:v1")), "IfNotPresent", "");
    let pods: Vec<String> = pulls.images[..4].iter().map(|(name, _)| one(name)).collect();
    node.write("four.yaml", &pods.join("---\n"))
}

#[test]
fn a_serial_node_pulls_one_at_a_time_and_a_limit_of_two_lets_two() {
    for (settings, at_once) in
        [("serializeImagePulls: true", 1), ("serializeImagePulls: false\nmaxParallelImagePulls: 2", 2)]
    {
        let node = Node::new(&format!("compatibility: kubelet\n{settings}"));
        let pulls = FivePulls::new(&node);
        let daemon = node.daemon();
        let held = pulls.hold_all();
        let ensure = Background::start(daemon.command(), &node, &four_pods(&pulls, &node));
        let states = |state: &str| {
            let status = daemon.run(["status", "-o", "json"]).json();
            let is_so = |pull: &&Value| pull["state"].as_str().is_some_and(|word| word.starts_with(state));
            status["pulls"].as_array().unwrap().iter().filter(is_so).count()
        };
        wait_until("all pulls to be asked for", || states("running") + states("waiting") == 4);
        let asked = || (0..4).filter(|at| pulls.is_asked_for(*at)).count();
        wait_until("the first pulls to begin", || asked() >= at_once);
        assert_eq!((states("running"), states("waiting")), (at_once, 4 - at_once), "{settings}");
        assert_eq!(asked(), at_once, "{settings}: {:?}", pulls.registry.requests());
        drop(held);
        let (code, answer) = ensure.end();
        assert_eq!(code, Some(0), "{answer:#}");
        for pod in answer["pods"].as_array().unwrap() {
            let of_one = serde_json::json!({ "pods": [pod] });
            let (_, text) = *events(&of_one).last().expect("it was pulled");
            assert_eq!(text.split(' ').count(), 13, "{text}");
            assert!(text.contains(" including waiting). Image size: "), "{text}");
        }
    }
}

#[test]
fn an_interrupt_ends_all_pulls_of_the_pod_and_the_next_try_has_them_all() {
    for with_daemon in [false, true] {
        let node = Node::new("serializeImagePulls: false");
        let pulls = FivePulls::new(&node);
        let daemon = with_daemon.then(|| node.daemon());
        let held = pulls.hold_all();
        let ensure = pulls.ensure(&node, daemon.as_ref());
        held.iter().for_each(Held::until_asked);
        assert_eq!(node.records("pulling").len(), 5);
        ensure.interrupt();
        assert_eq!(ensure.end().0, Some(130));
        // Begun stays begun until somebody has looked for what came of it: nobody else is let in to it.
        assert_eq!(node.records("pulled").len(), 0);
        if let Some(daemon) = &daemon {
            let idle = || daemon.run(["status", "-o", "json"]).json()["pulls"].as_array().unwrap().is_empty();
            wait_until("the slots to be free", idle);
        }
        drop(held);
        for origin in ["pulled", "present"] {
            let command = daemon.as_ref().map_or_else(|| embedded(&node), Daemon::command);
            let (code, answer) = Background::start(command, &node, &pulls.pod).end();
            assert_eq!((code, reasons(&answer)), (Some(0), vec![""; 5]), "{answer:#}");
            assert_eq!(first(&answer)["origin"], origin, "{answer:#}");
        }
        assert_eq!(node.records("pulled").len(), 5);
    }
}

#[test]
fn a_secret_that_was_not_given_is_told_once_in_the_kubelets_words() {
    let (node, registry) = (Node::new(""), FakeRegistry::start());
    let image = registry.put("app:v1", &Image::marked("app", 1000));
    let spec = format!(
        "initContainers: [{{name: first, image: '{image}'}}]\n  imagePullSecrets: [{{name: one}}, {{name: ''}}, {{name: two}}]"
    );
    let file = node.write("pod.yaml", &pod("web", &image, "IfNotPresent", &spec));
    let outcome = with_store(&node.store(), ["ensure", "-o", "json", "-f", &file]);
    assert!(outcome.stderr.contains("`tenants/one` was not given with --secret"), "{}", outcome.stderr);
    let answer = outcome.json();
    let told: Vec<_> =
        events(&answer).into_iter().filter(|(reason, _)| *reason == "FailedToRetrieveImagePullSecret").collect();
    let text = "Unable to retrieve some image pull secrets (one, two); attempting to pull the image may not succeed.";
    assert_eq!(told, [("FailedToRetrieveImagePullSecret", text)]);
    assert_eq!(answer["pods"][0]["images"].as_array().map(Vec::len), Some(2), "each container is answered for");
    let manifests = registry.requests().iter().filter(|request| request.contains("/manifests/")).count();
    assert!(manifests <= 2, "one spelling is asked for once: {:?}", registry.requests());
}

#[test]
fn one_file_may_hold_a_deployment_its_account_its_secret_and_more() {
    let (node, registry) = (Node::new(""), Registry::start_with_login(LOGIN));
    let image = registry.push("team/app:v1", &Image::marked("bundle", 2000));
    let volume = registry.push("team/model:v1", &artifact(&[("weights", b"w")]));
    let auth = base64::engine::general_purpose::STANDARD.encode(LOGIN);
    let text = format!(
        "{{\"kind\": \"List\", \"items\": [{{\"kind\": \"Service\", \"metadata\": {{\"name\": \"web\"}}}}]}}\n---\n\
         kind: ServiceAccount\nmetadata: {{name: robot}}\nimagePullSecrets: [{{name: old}}]\n---\n\
         kind: Secret\nmetadata: {{name: old}}\ntype: kubernetes.io/dockercfg\n\
         stringData:\n  .dockercfg: '{{\"{}\": {{\"auth\": \"{auth}\"}}}}'\n---\n\
         kind: Deployment\nmetadata: {{name: web}}\nspec:\n  template:\n    spec:\n      serviceAccountName: robot\n      \
         containers: [{{name: app, image: '{image}'}}]\n      \
         volumes: [{{name: model, image: {{reference: '{volume}', pullPolicy: Always}}}}]\n",
        registry.address()
    );
    let file = node.write("bundle.yaml", &text);
    let outcome = with_store(&node.store(), ["ensure", "-o", "wide", "-f", &file]);
    assert!(outcome.stderr.contains("passed over 1 object"), "{}", outcome.stderr);
    let table = outcome.ok();
    let words = |line: usize| table.lines().nth(line).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(0), ["FIELD", "IMAGE", "ID", "STATUS", "POLICY", "SIZE", "TOOK", "MESSAGE"]);
    assert_eq!((words(1)[0], words(1)[3], words(1)[4]), ("containers{app}", "pulled", "IfNotPresent"), "{table}");
    assert_eq!((words(2)[0], words(2)[3], words(2)[4]), ("volumes{model}", "pulled", "Always"), "{table}");
    let ids = with_store(&node.store(), ["ensure", "-q", "-f", &file]);
    assert_eq!((ids.stdout.lines().count(), ids.stderr.as_str()), (2, ""), "{ids:?}");
}

#[test]
fn more_than_a_daemon_takes_is_refused_before_it_is_sent() {
    let node = Node::new("");
    let daemon = node.daemon();
    let long = "x".repeat(1 << 20);
    let text = pod("web", "127.0.0.1:1/a:v1", "Never", "")
        .replace("name: web", &format!("annotations: {{a: {long}}}, name: web"));
    let file = node.write("long.yaml", &text);
    let stderr = daemon.run(["ensure", "-f", &file]).refused(&["the limit is 1.05MB", "hint: "]);
    assert!(stderr.len() < 2000, "{stderr}");
    assert_eq!(
        reasons(&failed(&with_store(&scratch().path().join("s"), ["ensure", "-o", "json", "-f", &file]))),
        ["ErrImageNeverPull"]
    );
    let huge = node.write("huge.yaml", &format!("# {}\n", "x".repeat(9 << 20)));
    daemon.run(["ensure", "-f", &huge]).refused(&["is longer than 8.39MB"]);
}

#[test]
fn hostile_manifests_are_refused_in_a_moment() {
    let folder = scratch();
    let level = |level: usize| format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(","));
    let bomb =
        "kind: Pod\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned() + &(1..12).map(level).collect::<Vec<_>>().concat();
    let deep = format!("kind: Pod\nspec: {}", "[".repeat(2 << 20));
    let separators = "---\n".repeat(2 << 20);
    for (name, text) in [("bomb", &bomb), ("deep", &deep), ("separators", &separators)] {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        let began = tokio::time::Instant::now();
        run(program().args(["--store", "/nonexistent", "ensure", "-f"]).arg(&file)).refused(&[name]);
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{name} took {:?}", began.elapsed());
    }
}
