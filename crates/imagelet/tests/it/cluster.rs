//! Prefetch as an operator sees it: a daemon, a controller and the command line on one API server.

use std::{
    net::TcpStream,
    path::{Path, PathBuf},
};

use imagelet_kube::testing::{FakeApi, FakeApiOptions};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    artifacts::artifact,
    fake_registry::FakeRegistry,
    http_api::get,
    images::Image,
    peers::resident,
    ports::Port,
    program::{Daemon, Outcome, program, run, write_store_config},
    testbed::{Part, scratch, wait_until},
};

const GROUP: &str = "/apis/imagelet.dev/v1alpha1";
const REPORTS: &str = "/apis/imagelet.dev/v1alpha1/nodeimages";
const SETS: &str = "/apis/imagelet.dev/v1alpha1/imagesets";
const NODES: &str = "/api/v1/nodes";

/// Nodes of the fleet whose reports a controller holds; the variable is another number.
const NODES_OF_FLEET: usize = 500;
const NODES_VARIABLE: &str = "IMAGELET_TEST_NODES";
/// Images of the set of the fleet.
const IMAGES_OF_SET: usize = 20;
/// The memory of a controller of 5000 nodes.
const MEMORY_MAX: u64 = 200 << 20;

/// An API server with one node, and the runtime that serves it.
struct Cluster {
    fake: FakeApi,
    kubeconfig: PathBuf,
    _runtime: Runtime,
}

impl Cluster {
    fn start(folder: &Path) -> Self {
        let runtime = Runtime::new().unwrap();
        let options = FakeApiOptions { token: Some("a-token".into()), tls: true };
        let fake = runtime.block_on(FakeApi::start(options));
        fake.install(GROUP);
        fake.put(NODES, json!({"metadata": {"name": "node-1", "labels": {"pool": "web"}}}));
        let kubeconfig = fake.kubeconfig(folder);
        Self { fake, kubeconfig, _runtime: runtime }
    }

    fn daemon(&self, folder: &Path) -> Daemon {
        let config = write_store_config(folder, "");
        // A full disk of the machine that runs the tests must not refuse a prefetch.
        let limits = "imageGCHighThresholdPercent: 100\n";
        std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + limits).unwrap();
        let store = folder.join("store");
        let arguments = ["--config", &config, "--store", store.to_str().unwrap()];
        let access = ["--kubeconfig", self.kubeconfig.to_str().unwrap(), "--node-name", "node-1"];
        Daemon::start(folder, arguments.into_iter().chain(access).map(str::to_owned).collect::<Vec<_>>())
    }

    fn prefetch(&self, arguments: &[&str]) -> Outcome {
        run(program().arg("prefetch").args(arguments).arg("--kubeconfig").arg(&self.kubeconfig))
    }

    /// The phases of the images that the node reports.
    fn phases(&self) -> Vec<Value> {
        let report = self.fake.object(REPORTS, "", "node-1").unwrap_or_default();
        let images = report["sets"].as_array().into_iter().flatten().filter_map(|set| set["images"].as_array());
        images.flatten().map(|image| image["phase"].clone()).collect()
    }
}

#[test]
fn a_set_is_fetched_pinned_counted_and_released_again() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let cluster = Cluster::start(folder.path());
    // A model, and an image.
    let kept = registry.put("kept:v1", &artifact(&[("weights", b"w")]));
    let other = registry.put("other:v1", &Image::marked("other", 100));
    let daemon = cluster.daemon(folder.path());
    let mut controller = program();
    controller.args(["controller", "--identity", "test", "--kubeconfig"]).arg(&cluster.kubeconfig);
    let mut controller = Part::start(&mut controller, "imagelet", folder.path().join("controller.log"));

    let file = folder.path().join("sets.yaml");
    let sets = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageSet\nmetadata: {{name: web}}\nspec:\n  keep: true\n  \
         maxConcurrentNodes: 1\n  nodeSelector: {{pool: web}}\n  images:\n  - reference: {kept}\n---\n\
         apiVersion: imagelet.dev/v1alpha1\nkind: ClusterImageSet\nmetadata: {{name: base}}\nspec:\n  images:\n  \
         - reference: {other}\n"
    );
    std::fs::write(&file, sets).unwrap();
    let applied = cluster.prefetch(&["apply", "-n", "shop", "-f", file.to_str().unwrap()]).ok();
    assert_eq!(applied, "ImageSet shop/web applied\nClusterImageSet base applied\n");

    wait_until("both images", || cluster.phases() == [json!("Present"), json!("Present")]);
    let status = || cluster.prefetch(&["status", "-o", "json"]).json();
    wait_until("the counts", || status()["sets"].as_array().unwrap().iter().all(|set| set["complete"] == true));
    let shown = cluster.prefetch(&["status", "-n", "shop", "web"]).ok();
    assert!(shown.contains("ImageSet") && shown.contains("shop") && shown.contains("complete"), "{shown}");

    // The set pins its image. The other one was never used, and is the first that a collection takes.
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    let present = |image: &str| daemon.run(["inspect", "-q", image]).code == 0;
    assert!(present(&kept) && !present(&other));
    let why = daemon.run(["why", &kept]).ok();
    assert!(why.contains("ImageSet shop/web"), "{why}");
    let pins = daemon.run(["pins", "-o", "json"]).json();
    let id = &daemon.run(["why", &kept, "-o", "json"]).json()["images"][0]["id"];
    assert_eq!(pins["pins"], json!([{"pattern": kept, "owner": "ImageSet shop/web", "images": [id]}]));
    assert!(daemon.run(["pins"]).ok().contains("ImageSet shop/web"));
    daemon.run(["unpin", &kept]).refused(&["is pinned by ImageSet shop/web", "set its `keep` to false"]);

    assert_eq!(cluster.prefetch(&["rm", "-n", "shop", "web"]).ok(), "ImageSet shop/web removed\n");
    cluster.prefetch(&["rm", "-n", "shop", "web"]).refused(&["no ImageSet shop/web"]);
    wait_until("the end of the pin", || {
        daemon.run(["gc", "--all-unused", "--now"]).ok();
        !present(&kept)
    });
    assert_eq!(daemon.run(["pins", "-o", "json"]).json()["pins"], json!([]));
    wait_until("the event of the pin", || !cluster.fake.events().is_empty());
    let event = &cluster.fake.events()[0];
    let note = "released pins of ImageSet objects: collections take their unused images from now on";
    assert_eq!(
        (&event["type"], &event["reason"], &event["note"]),
        (&json!("Normal"), &json!("PinsReleased"), &json!(note))
    );
    assert!(daemon.run(["events"]).ok().contains(&format!("released pins of ImageSet shop/web: `{kept}`")));
    controller.signal(rustix::process::Signal::TERM);
    wait_until("the end of the controller", || controller.ended().is_some());
    assert!(controller.log().contains("leading"), "{}", controller.log());
    assert!(!controller.log().contains("a-token"));
}

#[test]
fn a_controller_shows_its_state_on_loopback_and_elsewhere_with_a_token_alone() {
    let folder = scratch();
    let cluster = Cluster::start(folder.path());
    let start = |arguments: &[&str]| {
        let mut controller = program();
        controller.args(["controller", "--kubeconfig"]).arg(&cluster.kubeconfig).args(arguments);
        controller
    };
    run(&mut start(&["--http", "0.0.0.0:0"])).refused(&["`0.0.0.0:0` is not loopback and needs a token file"]);

    let port = Port::choose();
    let _controller =
        Part::start(&mut start(&["--http", &port.address()]), "imagelet", folder.path().join("controller.log"));
    let path = |path: &str| get(&port.address(), path);
    let until_it_listens = |port: &Port| wait_until("the listener", || TcpStream::connect(port.address()).is_ok());
    until_it_listens(&port);
    wait_until("the controller leads", || path("/readyz?verbose").body.contains("[+]lease ok: leading"));
    wait_until("it is ready", || path("/readyz").status == 200);
    assert_eq!((path("/livez").status, path("/images").status), (200, 404));
    let metrics = path("/metrics").body;
    for name in [
        "imagelet_controller_leader 1",
        "imagelet_controller_sets 0",
        "imagelet_controller_reports 0",
        "process_resident_memory_bytes ",
        "imagelet_build_info{",
    ] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "{name}: {metrics}");
    }

    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let port = Port::choose();
    let arguments = ["--http", &port.address(), "--http-token-file", token.to_str().unwrap()];
    let _second = Part::start(&mut start(&arguments), "imagelet", folder.path().join("second.log"));
    until_it_listens(&port);
    wait_until("the second one waits", || get(&port.address(), "/readyz").status == 200);
    assert_eq!(get(&port.address(), "/metrics").status, 401);
}

#[test]
fn a_controller_answers_probes_on_any_address_and_nothing_else_there() {
    let folder = scratch();
    let cluster = Cluster::start(folder.path());
    let port = Port::choose();
    let mut controller = program();
    controller.args(["controller", "--kubeconfig"]).arg(&cluster.kubeconfig).args(["--health", &port.to_string()]);
    let _controller = Part::start(&mut controller, "imagelet", folder.path().join("controller.log"));
    let path = |path: &str| get(&port.address(), path);
    wait_until("the listener", || TcpStream::connect(port.address()).is_ok());
    wait_until("it is ready", || path("/readyz").status == 200);
    assert!(!path("/readyz?verbose").body.contains("lease"), "it shows no details");
    for (name, status) in [("/livez", 200), ("/metrics", 404), ("/", 404)] {
        assert_eq!(path(name).status, status, "{name}");
    }
}

#[test]
fn a_controller_holds_the_reports_of_a_fleet_in_bounded_memory() {
    let number =
        |text: std::ffi::OsString| text.to_str().and_then(|text| text.parse().ok()).expect("a number of nodes");
    let nodes = std::env::var_os(NODES_VARIABLE).map_or(NODES_OF_FLEET, number);
    let folder = scratch();
    let cluster = Cluster::start(folder.path());
    cluster.fake.delete(NODES, "", "node-1");
    let image = |at: usize| format!("registry.example/team-{at}/application-{at}:v1.2.{at}");
    let images: Vec<Value> = (0..IMAGES_OF_SET).map(|at| json!({"reference": image(at)})).collect();
    cluster.fake.put(SETS, json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"images": images}}));
    let set = cluster.fake.object(SETS, "shop", "web").unwrap();
    let images: Vec<Value> = (0..IMAGES_OF_SET).map(|at| json!({"reference": image(at), "phase": "Present"})).collect();
    let labels: Value = (0..15).map(|at| (format!("label.example/key-{at}"), json!(format!("value-{at}")))).collect();
    for at in 0..nodes {
        let name = format!("node-{at}.example");
        let report = json!({
            "kind": "ImageSet", "namespace": "shop", "name": "web", "uid": set["metadata"]["uid"],
            "generation": set["metadata"]["generation"], "phase": "Ready", "images": images,
        });
        cluster.fake.put(NODES, json!({"metadata": {"name": name, "labels": labels}}));
        cluster.fake.put(REPORTS, json!({"metadata": {"name": name}, "sets": [report]}));
    }
    let mut controller = program();
    controller.args(["controller", "--kubeconfig"]).arg(&cluster.kubeconfig);
    let controller = Part::start(&mut controller, "imagelet", folder.path().join("controller.log"));
    wait_until("the counts", || {
        let status = cluster.fake.object(SETS, "shop", "web").unwrap_or_default();
        status["status"]["nodes"]["ready"] == json!(nodes)
    });
    let memory = resident(controller.id());
    println!("{nodes} nodes: {} MB", memory / 1_000_000);
    assert!(memory <= MEMORY_MAX, "{memory} bytes");
}

#[test]
fn a_wrong_set_is_refused_before_anything_is_sent_and_the_definitions_are_printed() {
    let folder = scratch();
    let cluster = Cluster::start(folder.path());
    let file = folder.path().join("set.yaml");
    let apply = |text: &str| {
        std::fs::write(&file, text).unwrap();
        cluster.prefetch(&["apply", "-f", file.to_str().unwrap()])
    };
    let head = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageSet\nmetadata: {name: web}\nspec: ";
    apply(&format!("{head}{{images: []}}\n")).refused(&["document 1: spec.images has 0 items; there may be 1 to 64"]);
    apply(&format!("{head}{{images: [{{reference: a, policy: x}}]}}\n")).refused(&["unknown field `policy`"]);
    apply("kind: Pod\napiVersion: v1\n").refused(&["`v1 Pod` is no set"]);
    apply("a: [").refused(&["the document in line 1 does not read as YAML or JSON"]);
    assert_eq!(cluster.fake.requests(), [""; 0]);
    let printed = run(program().args(["prefetch", "crds"])).ok();
    assert!(printed.contains("name: imagesets.imagelet.dev") && printed.contains("kind: NodeImages"));
    run(program().args(["prefetch", "status"]))
        .refused(&["there is no kubeconfig, and imagelet does not run in a pod"]);
}
