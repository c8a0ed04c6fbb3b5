//! The client before a real containerd, with a real registry and real pods.
//!
//! Needs root and the packages containerd, runc, docker-registry and busybox-static:
//! `cargo test -p imagelet-runtime --test containerd`

mod wire;

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use imagelet_core::{
    error::RuntimeErrorKind,
    image::{Digest, ImageSpec},
    ports::{ContainerService, ContainerState, ImageService, PullRequest, no_progress},
    testing::conformance,
};
use imagelet_runtime::cri::{
    Endpoint, Handlers, RemoteContainerService, RemoteImageService, RuntimeServer, listen, routes,
};
use serde_json::json;
use tokio_stream::wrappers::UnixListenerStream;
use wire::pods::{TestPods, TestSandbox};

const PATIENCE: Duration = Duration::from_secs(30);

/// A registry with images and a containerd that may ask it; both end when dropped.
struct Node {
    folder: tempfile::TempDir,
    registry: String,
    endpoint: Endpoint,
    children: Vec<Child>,
}

impl Node {
    /// `refusing` is a registry that wants a login, `away` one where nobody listens.
    async fn start(refusing: &str, away: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().display();
        let registry = free_address();
        fs::write(
            folder.path().join("registry.yml"),
            format!(
                "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {root}/registry}}}}\n\
                 http: {{addr: \"{registry}\"}}\n"
            ),
        )
        .unwrap();
        let mut config = format!(
            "version = 2\nroot = \"{root}/root\"\nstate = \"{root}/state\"\n\
             [grpc]\naddress = \"{root}/containerd.sock\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nrestrict_oom_score_adj = true\nsandbox_image = \"{registry}/pause:3.9\"\n"
        );
        for host in [&registry, refusing, away] {
            config.extend([
                format!("[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"{host}\"]\n"),
                format!("endpoint = [\"http://{host}\"]\n"),
            ]);
        }
        fs::write(folder.path().join("containerd.toml"), config).unwrap();
        let endpoint = Endpoint::at(folder.path().join("containerd.sock")).unwrap();
        let children = vec![
            start(Command::new("docker-registry").arg("serve").arg(folder.path().join("registry.yml"))),
            start(Command::new("containerd").arg("-c").arg(folder.path().join("containerd.toml"))),
        ];
        let node = Self { folder, registry, endpoint, children };
        let registry_answers =
            || http(&node.registry, "GET", "/v2/", "", &[]).is_ok_and(|text| text.starts_with("HTTP/1.1 200"));
        until(async || registry_answers()).await;
        until(async || RemoteImageService::connect(&node.endpoint, PATIENCE).await.is_ok()).await;
        for (name, note) in [("pause:3.9", "pause"), ("app:v1", "app"), ("app:v2", "app"), ("other:v1", "other")] {
            push(&node.registry, name, note);
        }
        node
    }

    fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.registry)
    }

    fn promised(&self) -> conformance::PromisedImages {
        conformance::PromisedImages {
            first: self.name("app:v1"),
            first_again: self.name("app:v2"),
            second: self.name("other:v1"),
            absent: self.name("none:v1"),
            reports_progress: false,
            untags: false,
            reports_layers: false,
            reports_configs: true,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

async fn until(mut done: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it happens in time");
}

/// Pushes busybox as an image of one layer; equal notes are equal images.
fn push(registry: &str, name: &str, note: &str) {
    let (repository, tag) = name.split_once(':').unwrap();
    let mut layer = tar::Builder::new(Vec::new());
    layer.append_path_with_name("/bin/busybox", "bin/busybox").unwrap();
    let layer = layer.into_inner().unwrap();
    let config = json!({
        "architecture": imagelet_core::image::Platform::host().architecture,
        "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox", "sleep", "3600"], "User": "1002:7", "Labels": {"note": note}},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer).as_str()]},
    })
    .to_string()
    .into_bytes();
    for blob in [&layer, &config] {
        let location = http(registry, "POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[]).unwrap();
        let location =
            location.lines().find_map(|line| line.strip_prefix("Location: ")).expect("an upload has a place");
        let path = location.trim().trim_start_matches("http://").trim_start_matches(registry);
        let path = format!("{path}&digest={}", Digest::of(blob));
        assert!(http(registry, "PUT", &path, "application/octet-stream", blob).unwrap().starts_with("HTTP/1.1 201"));
    }
    let described =
        |kind: &str, blob: &[u8]| json!({"mediaType": kind, "size": blob.len(), "digest": Digest::of(blob).as_str()});
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": kind,
        "config": described("application/vnd.oci.image.config.v1+json", &config),
        "layers": [described("application/vnd.oci.image.layer.v1.tar", &layer)],
    });
    let path = format!("/v2/{repository}/manifests/{tag}");
    assert!(http(registry, "PUT", &path, kind, manifest.to_string().as_bytes()).unwrap().starts_with("HTTP/1.1 201"));
}

fn http(address: &str, method: &str, path: &str, kind: &str, body: &[u8]) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n")?;
    write!(stream, "Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n")?;
    stream.write_all(body)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A registry that answers everything with 401; lives as long as the test process.
fn refusing_registry() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(
                b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"test\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
        }
    });
    address
}

#[tokio::test]
async fn containerd_keeps_every_promise_and_its_pods_hold_images() {
    let (refusing, away) = (refusing_registry(), free_address());
    let node = Node::start(&refusing, &away).await;
    let images = RemoteImageService::connect(&node.endpoint, PATIENCE).await.unwrap();

    conformance::run(&images, &node.promised()).await;
    conformance::run(&images.clone().streaming_lists(true), &node.promised()).await;

    let socket = node.folder.path().join("imagelet.sock");
    let listener = UnixListenerStream::new(listen(&socket).await.unwrap());
    let service = routes(Arc::new(images.clone()), Handlers::Any, RuntimeServer::without_runtime("1"));
    tokio::spawn(async move {
        tonic::transport::Server::builder().add_routes(service).serve_with_incoming(listener).await.unwrap();
    });
    let between = RemoteImageService::connect(&Endpoint::at(socket).unwrap(), PATIENCE).await.unwrap();
    conformance::run(&between, &node.promised()).await;

    the_filesystem_is_a_directory(&images).await;
    for service in [&images, &between] {
        refusals_have_their_kind(service, &node, &refusing, &away).await;
    }
    pods_hold_images(&node, &images).await;
}

async fn the_filesystem_is_a_directory(images: &RemoteImageService) {
    let filesystems = images.filesystem().await.unwrap();
    assert!(filesystems.images[0].mountpoint.is_dir(), "{filesystems:?}");
    assert_eq!(filesystems.images, filesystems.containers);
    assert!(filesystems.images[0].inodes_used.is_some());
}

async fn refusals_have_their_kind(images: &RemoteImageService, node: &Node, refusing: &str, away: &str) {
    for (name, kind) in [
        (node.name("none:v1"), RuntimeErrorKind::NotFound),
        (format!("{refusing}/app:v1"), RuntimeErrorKind::Denied),
        (format!("{away}/app:v1"), RuntimeErrorKind::RegistryUnavailable),
        ("UPPER CASE".to_owned(), RuntimeErrorKind::InvalidArgument),
    ] {
        let request = PullRequest { image: ImageSpec::new(&name), ..PullRequest::default() };
        let error = images.pull(&request, no_progress()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {}", error.chain());
    }
}

async fn pods_hold_images(node: &Node, images: &RemoteImageService) {
    let pods = TestPods::connect(&node.endpoint, node.folder.path()).await.unwrap();
    let sandbox = pods.run_sandbox("web").await.unwrap();
    // Whatever fails in between, the pod goes.
    let task = tokio::spawn({
        let (pods, sandbox, images) = (pods.clone(), sandbox.clone(), images.clone());
        let (endpoint, name) = (node.endpoint.clone(), node.name("app:v1"));
        async move { a_pod_is_seen(&pods, &sandbox, &images, &endpoint, &name).await }
    });
    let outcome = task.await;
    pods.remove_sandbox(&sandbox).await.unwrap();
    outcome.unwrap();
    let containers = RemoteContainerService::connect(&node.endpoint, PATIENCE).await.unwrap();
    assert!(containers.sandboxes().await.unwrap().is_empty());
}

async fn a_pod_is_seen(
    pods: &TestPods,
    sandbox: &TestSandbox,
    images: &RemoteImageService,
    endpoint: &Endpoint,
    name: &str,
) {
    let request = PullRequest { image: ImageSpec::new(name), ..PullRequest::default() };
    let image = images.pull(&request, no_progress()).await.unwrap();
    let container = pods.run_container(sandbox, image.as_str(), &["/bin/busybox", "sleep", "3600"]).await.unwrap();

    let runtime = RemoteContainerService::connect(endpoint, PATIENCE).await.unwrap();
    assert_eq!(runtime.version().await.unwrap().name, "containerd");
    let sandboxes = runtime.sandboxes().await.unwrap();
    assert_eq!((sandboxes[0].name.as_str(), sandboxes[0].uid.as_str(), sandboxes[0].ready), ("web", "uid-web", true));
    let seen = runtime.containers().await.unwrap();
    assert_eq!((seen[0].id.as_str(), seen[0].state), (container.as_str(), ContainerState::Running));
    assert_eq!((seen[0].image.spec.image.as_str(), seen[0].image.reference.as_str()), (image.as_str(), image.as_str()));
    assert_eq!(seen[0].labels["io.kubernetes.pod.name"], "web");
    assert!(runtime.mounted_images(&container).await.unwrap().is_empty());
    assert!(runtime.mounted_images("gone").await.unwrap().is_empty(), "a container that is gone holds nothing");

    pods.stop_container(&container).await.unwrap();
    assert_eq!(runtime.containers().await.unwrap()[0].state, ContainerState::Exited);
    pods.remove_container(&container).await.unwrap();
    assert!(runtime.containers().await.unwrap().is_empty());
}
