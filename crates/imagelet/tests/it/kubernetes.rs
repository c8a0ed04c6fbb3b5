//! A daemon that knows the pods of its node: what waits for an image is kept and shown, whatever the API server does.

use std::{fs, net::TcpStream, path::Path};

use imagelet_kube::testing::{ApiFault, FakeApi, FakeApiOptions};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    fake_registry::FakeRegistry,
    http_api::get,
    images::Image,
    ports::Port,
    program::{Daemon, program, run, write_store_config},
    testbed::{scratch, wait_until},
};

/// An API server with the runtime that serves it.
pub(crate) struct Api {
    pub(crate) fake: FakeApi,
    _runtime: Runtime,
}

impl Api {
    fn start(options: FakeApiOptions) -> Self {
        let runtime = Runtime::new().unwrap();
        Self { fake: runtime.block_on(FakeApi::start(options)), _runtime: runtime }
    }

    /// It requires a token, and speaks TLS.
    pub(crate) fn start_with_token() -> Self {
        Self::start(FakeApiOptions { token: Some("a-token".into()), tls: true })
    }

    /// A daemon that knows the pods of `node-1`.
    fn daemon(&self, folder: &Path, port: &Port) -> Daemon {
        self.daemon_with(folder, port, "")
    }

    /// The same with more of its configuration.
    pub(crate) fn daemon_with(&self, folder: &Path, port: &Port, more: &str) -> Daemon {
        let config = write_store_config(folder, "");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text + more).unwrap();
        let kubeconfig = self.fake.kubeconfig(folder);
        let arguments = [
            "--config",
            &config,
            "--store",
            folder.join("store").to_str().unwrap(),
            "--http",
            &port.address(),
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--node-name",
            "node-1",
        ]
        .map(str::to_owned);
        let daemon = Daemon::start(folder, &arguments);
        // The listener for HTTP follows the socket.
        wait_until("the HTTP endpoint", || TcpStream::connect(port.address()).is_ok());
        daemon
    }

    pub(crate) fn bind(&self, name: &str, image: &str) {
        self.fake.apply(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": image}]},
        }));
    }
}

#[test]
fn an_image_that_a_pod_of_the_node_waits_for_is_kept_and_shown_also_while_the_api_server_is_away() {
    let (registry, folder, port) = (FakeRegistry::start(), scratch(), Port::choose());
    let api = Api::start_with_token();
    let put = |name: &str| registry.put(&format!("{name}:v1"), &Image::marked(name, 100));
    let (awaited, free) = (put("awaited"), put("free"));
    let daemon = api.daemon(folder.path(), &port);
    for image in [&awaited, &free] {
        daemon.run(["pull", image]).ok();
    }
    api.bind("web", &awaited);
    let pods = || {
        let verbose = get(&port.address(), "/readyz?verbose").body;
        verbose.lines().find(|line| line.contains("pods")).unwrap_or_default().to_owned()
    };
    wait_until("the pod", || pods().starts_with("[+]pods ok: in sync; 1 pod, 1 waiting; "));

    let plan = daemon.run(["gc", "--all-unused", "--now", "--dry-run", "-o", "json"]).json();
    let row = plan["images"].as_array().unwrap().iter().find(|row| row["names"][0] == awaited.as_str()).unwrap();
    assert_eq!((&row["code"], &row["reason"]), (&json!("pod_waits"), &json!("awaited by shop/web")), "{row:#}");
    let why = daemon.run(["why", &awaited]).ok();
    assert!(why.contains("awaited by shop/web"), "{why}");
    let listed = daemon.run(["ls"]).ok();
    let line = listed.lines().find(|line| line.contains("awaited:v1")).unwrap();
    assert!(line.trim_end().ends_with("awaited"), "{listed}");

    // Nothing is released because the API server is away.
    api.fake.plant_lasting(Some(ApiFault::Status(500, "etcd is away".into())));
    api.fake.cut_connections();
    wait_until("the loss of the API server", || {
        pods().starts_with("[+]pods ok: not in sync, the API server answered 500: etcd is away; 1 pod, 1 waiting; ")
    });
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    let present = |image: &str| daemon.run(["inspect", "-q", image]).code == 0;
    assert!(present(&awaited) && !present(&free));
    let metrics = get(&port.address(), "/metrics").body;
    for line in
        ["imagelet_kubernetes_pods_synced 0\n", "imagelet_kubernetes_pods 1\n", "imagelet_kubernetes_pods_waiting 1\n"]
    {
        assert!(metrics.contains(line), "{metrics}");
    }

    // A removal on request warns of the pod.
    let removed = run(daemon.command().args(["rm", &awaited]));
    assert!(removed.stderr.contains("is awaited by shop/web"), "{}", removed.stderr);
    daemon.run(["pull", &awaited]).ok();

    api.fake.plant_lasting(None);
    api.fake.remove("shop", "web");
    wait_until("the end of the pod", || pods().starts_with("[+]pods ok: in sync; 0 pods, 0 waiting; "));
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    assert!(!present(&awaited));
}

#[test]
fn before_the_pods_are_known_the_daemon_is_not_ready_and_collects_nothing() {
    let (registry, folder, port) = (FakeRegistry::start(), scratch(), Port::choose());
    let api = Api::start(FakeApiOptions::default());
    api.fake.plant_lasting(Some(ApiFault::Status(503, "starting".into())));
    let image = registry.put("app:v1", &Image::marked("app", 100));
    let daemon = api.daemon(folder.path(), &port);
    daemon.run(["pull", &image]).ok();
    let unknown = "[-]pods failed: the pods of this node are not known yet: the API server answered 503: starting\n";
    wait_until("the first answer", || {
        let ready = get(&port.address(), "/readyz?verbose");
        ready.status == 503 && ready.body.contains(unknown)
    });
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    assert_eq!(daemon.run(["inspect", "-q", &image]).code, 0);
    api.fake.plant_lasting(None);
    wait_until("the first list", || get(&port.address(), "/readyz").status == 200);
    daemon.run(["gc", "--all-unused", "--now"]).ok();
    assert_eq!(daemon.run(["inspect", "-q", &image]).code, 1);
}

#[test]
fn a_node_without_a_way_to_its_api_server_is_a_mistake_of_the_configuration() {
    let folder = scratch();
    let socket = folder.path().join("imagelet.sock");
    let serve = |arguments: &[&str]| run(program().arg("serve").arg("--socket").arg(&socket).args(arguments));
    serve(&["--node-name", "node-1"]).refused(&["kubernetes.nodeName needs kubernetes.kubeconfig"]);
    let file = folder.path().join("config.yaml");
    let write = |kubernetes: &str| {
        let head = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n";
        fs::write(&file, format!("{head}kubernetes: {{{kubernetes}}}\n")).unwrap();
    };
    write("kubeconfig: /etc/kubeconfig");
    let file_name = file.to_str().unwrap();
    serve(&["--config", file_name]).refused(&["kubernetes.kubeconfig needs kubernetes.nodeName"]);
    // The options of a kubelet's unit have no name of the node.
    let show = |arguments: &[&str]| run(program().args(["config", "show"]).args(arguments));
    let unit = ["--bootstrap-kubeconfig=/etc/bootstrap", "--kubeconfig=/etc/kubeconfig"];
    let shown = show(&unit);
    assert!(shown.stderr.contains("warning: --kubeconfig is ignored: neither --node-name"), "{shown:?}");
    assert!(!shown.ok().contains("/etc/kubeconfig"));
    write("nodeName: node-1");
    let shown = show(&[&unit[..], &["--config", file_name]].concat());
    assert!(!shown.stderr.contains("--kubeconfig is ignored"), "{shown:?}");
    assert!(shown.ok().contains("/etc/kubeconfig"));
    serve(&["--kubeconfig", "/etc/kubeconfig", "--node-name", "Node_1"]).refused(&["must be the name of a Node"]);
}
