//! Pulls beside containerd: which are imported and which are forwarded, and where that is shown.

use std::{collections::BTreeSet, path::Path, time::Duration};

use imagelet_core::{image::ImageSpec, ports::ImageService as _};
use imagelet_runtime::containerd::ContainerdClient;
use imagelet_runtime::cri::RemoteImageService;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::{Image, Layer},
    program::{Daemon, program, run},
    relay::{connect, pull, request},
    testbed::{Containerd, ContainerdRelease, ContainerdSetup, Registry, scratch, wait_until},
};

/// A registry, a containerd without settings for it, and a daemon between.
struct Node {
    registry: Registry,
    containerd: Containerd,
    daemon: Daemon,
    clients: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
}

impl Node {
    fn start(release: &ContainerdRelease, settings: &str) -> Self {
        Self::start_with(release, settings, |_| String::new())
    }

    /// `tables` makes tables of containerd's configuration for a registry.
    fn start_with(release: &ContainerdRelease, settings: &str, tables: impl FnOnce(&str) -> String) -> Self {
        let (folder, registry) = (scratch(), Registry::start());
        let pause = format!("{}/pause:3.9", registry.address());
        let setup = ContainerdSetup::new(release, &pause).settings(&tables(&registry.address()));
        let containerd = setup.start(folder.path());
        let daemon = daemon(folder.path(), &containerd, settings);
        let clients = tokio::runtime::Runtime::new().unwrap();
        Self { registry, containerd, daemon, clients, folder }
    }

    fn client(&self) -> RemoteImageService {
        self.clients.block_on(connect(&self.daemon))
    }

    fn pull(&self, name: &str) -> String {
        let client = self.client();
        self.clients.block_on(pull(&client, &request(name))).unwrap_or_else(|error| {
            panic!("{}\n{}", error.chain(), self.containerd.log());
        })
    }

    /// containerd's images, past the daemon.
    fn behind(&self) -> RemoteImageService {
        let endpoint = self.containerd.endpoint().parse().unwrap();
        self.clients.block_on(RemoteImageService::connect(&endpoint, Duration::from_mins(1))).unwrap()
    }

    fn leases(&self) -> usize {
        let all = self.clients.block_on(own_api(&self.clients, &self.containerd).leases()).unwrap();
        all.iter().filter(|lease| lease.id.starts_with("imagelet-")).count()
    }

    /// Removes all snapshots of containerd, each before those that it stands on.
    fn remove_snapshots(&self) {
        let client = own_api(&self.clients, &self.containerd);
        self.clients.block_on(async {
            loop {
                let all = client.snapshots("overlayfs").await.unwrap();
                let parents: BTreeSet<&str> = all.iter().map(|snapshot| snapshot.parent.as_str()).collect();
                let Some(top) = all.iter().find(|snapshot| !parents.contains(snapshot.name.as_str())) else { return };
                client.remove_snapshot("overlayfs", &top.name).await.unwrap();
            }
        });
    }

    fn import(&self) -> Value {
        self.daemon.run(["status", "-o", "json"]).json()["runtimeImport"].clone()
    }

    /// The way of the last pull, and why it was forwarded.
    fn last_way(&self) -> (String, String) {
        let last = self.import()["recent"].as_array().unwrap().last().expect("a pull ended").clone();
        let text = |key: &str| last[key].as_str().unwrap_or_default().to_owned();
        (text("way"), text("code"))
    }
}

/// The interface of containerd's own.
fn own_api(clients: &tokio::runtime::Runtime, containerd: &Containerd) -> ContainerdClient {
    let _reactor = clients.enter();
    let endpoint = containerd.endpoint();
    ContainerdClient::new(Path::new(endpoint.strip_prefix("unix://").unwrap()))
}

fn daemon(folder: &Path, containerd: &Containerd, settings: &str) -> Daemon {
    let config = folder.join("config.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n{settings}\
         imageService: {{cri: {{endpoint: '{}'}}}}\nstore: {{directory: '{}'}}\n",
        containerd.endpoint(),
        folder.join("state").display()
    );
    std::fs::write(&config, text).unwrap();
    Daemon::start(folder, ["--config", config.to_str().unwrap()])
}

fn two_layers(text: &str) -> Image {
    let lower = Layer::gzip().directory("a", 0o750).file("a/lower", text, 0o640);
    Image::oci(&[lower, Layer::gzip().file("a/upper", text, 0o644)])
}

#[test]
fn a_pull_beside_containerd_is_imported_and_its_way_is_shown() {
    for release in ContainerdRelease::all() {
        let node = Node::start(&release, "");
        let image = two_layers("imported");
        let name = node.registry.push("app:v1", &image);
        assert_eq!(node.pull(&name), image.id(), "{release}");
        assert_eq!(node.last_way(), ("imported".into(), String::new()), "{release}: {:#}", node.import());
        let import = node.import();
        assert_eq!((&import["decision"], &import["mode"]), (&"import".into(), &"auto".into()));
        assert!(import["runtime"].as_str().unwrap().starts_with("containerd "), "{import}");
        assert!(import["staging"].as_str().unwrap().ends_with("/root/imagelet-staging"), "{import}");
        let text = node.daemon.run(["status", "-v"]).ok();
        for words in ["imported into containerd", "overlayfs", &name] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
        let why = node.daemon.run(["why", &name]).ok();
        assert!(why.contains("imported into the runtime"), "{why}");
    }
}

/// Makes tables of containerd's configuration for a registry.
type Tables<'a> = &'a dyn Fn(&str) -> String;

#[test]
fn what_imagelet_does_not_read_or_shall_not_import_is_forwarded_and_the_reason_shown() {
    let installed = ContainerdRelease::installed();
    let mirror = |address: &str| {
        let table = format!("[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"{address}\"]\n");
        table + &format!("endpoint = [\"http://{address}\"]\n")
    };
    let native = |_: &str| "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n".to_owned();
    let rows: [(&str, Tables<'_>, &str, &str); 4] = [
        ("", &mirror, "app:v1", "registry-setting"),
        ("", &native, "app:v1", "snapshotter"),
        ("runtimeImport: never\n", &|_| String::new(), "app:v1", "switched-off"),
        ("", &|_| String::new(), "pause:3.9", "sandbox-image"),
    ];
    for (settings, tables, repository, code) in rows {
        let node = Node::start_with(&installed, settings, tables);
        let image = two_layers(code);
        let name = node.registry.push(repository, &image);
        assert_eq!(node.pull(&name), image.id(), "{code}");
        assert_eq!(node.last_way(), ("forwarded".into(), code.into()), "{:#}", node.import());
        assert!(node.daemon.run(["why", &name]).ok().contains("forwarded to the runtime"), "{code}");
    }
}

#[test]
fn where_import_is_required_the_reason_is_the_error() {
    let node = Node::start(&ContainerdRelease::installed(), "runtimeImport: require\n");
    let image = two_layers("required");
    let name = node.registry.push("app:v1", &image);
    assert_eq!(node.pull(&name), image.id());
    let pause = node.registry.push("pause:3.9", &image);
    let client = node.client();
    let error = node.clients.block_on(pull(&client, &request(&pause))).expect_err("it may not be forwarded");
    assert!(error.chain().contains("sandboxes are started from the image"), "{}", error.chain());
}

#[test]
fn an_image_whose_layers_are_gone_is_reported_absent_and_comes_back_with_the_next_pull() {
    for release in ContainerdRelease::all() {
        let node = Node::start(&release, "");
        let image = two_layers("whole");
        let name = node.registry.push("app:v1", &image);
        node.pull(&name);
        let client = node.client();
        let status = || node.clients.block_on(client.status(&ImageSpec::new(&name))).unwrap();
        assert!(status().is_some());
        node.remove_snapshots();
        let behind = node.behind();
        let listed = node.clients.block_on(behind.status(&ImageSpec::new(&name))).unwrap();
        assert!(listed.is_some(), "containerd lists it");
        // What was seen whole a moment ago is believed for a while.
        wait_until("the image to be reported absent", || status().is_none());
        node.pull(&name);
        assert!(status().is_some(), "{release}");
    }
}

#[test]
fn an_image_whose_layers_are_gone_is_absent_for_each_command_as_it_is_over_cri() {
    for release in ContainerdRelease::all() {
        let node = Node::start(&release, "");
        let image = two_layers("whole");
        let name = node.registry.push("app:v1", &image);
        node.pull(&name);
        let alone =
            |arguments: &[&str]| run(program().args(["--endpoint", &node.containerd.endpoint()]).args(arguments));
        let never: [&str; 4] = ["pull", "--policy", "Never", &name];
        assert_eq!((node.daemon.run(never).code, alone(&["inspect", &name]).code), (0, 0), "{release}");
        node.remove_snapshots();
        assert!(node.daemon.run(["ls"]).ok().contains("app"), "{release}: the runtime lists it");
        let absent = [alone(&["inspect", &name]), alone(&never)];
        // What was seen whole a moment ago is believed for a while.
        wait_until("the image to be absent for the daemon", || node.daemon.run(["inspect", &name]).code == 1);
        for outcome in [node.daemon.run(never)].into_iter().chain(absent) {
            outcome.refused(&[]);
        }
        let ensured = node.daemon.run(["pull", "--policy", "IfNotPresent", &name]);
        assert_eq!(ensured.code, 0, "{release}: {ensured:?}");
        assert_eq!(
            (node.daemon.run(never).code, alone(&["inspect", &name]).code),
            (0, 0),
            "{release}: it is pulled again"
        );
        // One without layers is removed like any other.
        node.remove_snapshots();
        wait_until("the image to be absent again", || node.daemon.run(["inspect", &name]).code == 1);
        node.daemon.run(["rm", &name]).ok();
        assert_eq!(node.daemon.run(["ls", "-q", "--all"]).ok().trim(), "", "{release}");
    }
}

#[test]
fn a_stop_ends_imports_and_containerd_releases_what_they_held() {
    let (node, slow) = (Node::start(&ContainerdRelease::installed(), ""), FakeRegistry::start());
    let image = two_layers("slow");
    let name = slow.put("slow:v1", &image);
    let held = slow.hold("slow", &image.layers[1].digest);
    let client = node.client();
    let under_way = node.clients.spawn(async move { pull(&client, &request(&name)).await });
    held.until_asked();
    wait_until("the import's lease", || node.leases() == 1);
    let Node { containerd, daemon, clients, folder, .. } = node;
    assert!(daemon.stop(Signal::TERM).success());
    let error = clients.block_on(under_way).unwrap().expect_err("the daemon has stopped");
    let after = own_api(&clients, &containerd);
    assert_eq!(clients.block_on(after.leases()).unwrap(), [], "{}", error.chain());
    assert!(clients.block_on(after.snapshots("overlayfs")).unwrap().is_empty(), "nothing is left");
    drop((held, folder));
}
