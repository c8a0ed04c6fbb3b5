//! A node: a containerd of its own, and imagelet before it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use imagelet_core::{image::ImageSpec, ports::ImageService as _};
use imagelet_runtime::containerd::{ContainerdClient, LeaseId};
use imagelet_runtime::cri::{Endpoint, RemoteImageService};

use crate::{
    images::Image,
    program::Daemon,
    relay::{connect, in_runtime, pull, request},
    testbed::{Containerd, ContainerdRelease, ContainerdSetup, scratch, wait_until},
    wire::pods::TestPods,
};

/// The snapshotter that layers are imported into.
pub(super) const SNAPSHOTTER: &str = "overlayfs";
/// How long a call to containerd may take.
const CALL_MAX: Duration = Duration::from_mins(1);
/// How long containerd may take to collect what nothing refers to.
const COLLECTED_MAX: Duration = Duration::from_secs(30);
/// Settings of a daemon that imports, and never forwards.
pub(super) const IMPORTS: &str = "runtimeImport: require\n";
/// The same, where containerd gets the blobs of layers, too; continues the settings of the store.
pub(super) const KEEPS_BLOBS: &str = "  keepBlobs: true\nruntimeImport: require\n";
/// Settings of a daemon as it is started by default.
pub(super) const DEFAULT: &str = "";

/// containerd with a folder for all that belongs to it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) containerd: Containerd,
    pub(super) folder: tempfile::TempDir,
    /// A containerd that was killed leaves what it was writing, after its own pulls as after imports.
    pub(super) was_killed: bool,
}

impl Node {
    /// A containerd of this version; its pods take this pause image.
    pub(super) fn start(release: &ContainerdRelease, pause: &str) -> Self {
        let folder = scratch();
        Self { containerd: ContainerdSetup::new(release, pause).start(folder.path()), folder, was_killed: false }
    }

    /// imagelet before it, with these settings.
    pub(super) fn daemon(&self, settings: &str) -> Daemon {
        Daemon::start(self.folder.path(), ["--config", &self.configure(self.folder.path(), settings)])
    }

    /// Writes settings and returns the file: imagelet before this containerd, its state in `folder`.
    pub(super) fn configure(&self, folder: &Path, settings: &str) -> String {
        let (config, state) = (folder.join("config.yaml"), folder.join("state"));
        let text = format!(
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {{enabled: false}}\npulls: {{retryBudget: 2s}}\n\
             imageService: {{cri: {{endpoint: '{}'}}}}\nstore:\n  directory: '{}'\n{settings}",
            self.containerd.endpoint(),
            state.display()
        );
        std::fs::write(&config, text).unwrap();
        config.into_os_string().into_string().expect("temporary directories have plain names")
    }

    /// containerd's own interface.
    pub(super) fn client(&self) -> ContainerdClient {
        let endpoint = self.containerd.endpoint();
        ContainerdClient::new(endpoint.strip_prefix("unix://").expect("a local socket").as_ref())
    }

    /// containerd's images as a kubelet sees them.
    pub(super) async fn images(&self) -> RemoteImageService {
        let endpoint: Endpoint = self.containerd.endpoint().parse().unwrap();
        RemoteImageService::connect(&endpoint, CALL_MAX).await.unwrap()
    }

    pub(super) async fn pods(&self) -> TestPods {
        let endpoint: Endpoint = self.containerd.endpoint().parse().unwrap();
        TestPods::connect(&endpoint, self.folder.path()).await.unwrap()
    }

    /// Kills containerd and starts it again over what it left.
    pub(super) fn restart(&mut self) {
        self.containerd.kill();
        self.containerd.restart();
        self.was_killed = true;
        let endpoint: Endpoint = self.containerd.endpoint().parse().unwrap();
        // Its socket is there before CRI is.
        wait_until("CRI after a restart", || in_runtime(RemoteImageService::connect(&endpoint, CALL_MAX)).is_ok());
    }

    /// Where imagelet unpacks before it hands layers over.
    pub(super) fn staging(&self) -> PathBuf {
        self.containerd.root().join("imagelet-staging")
    }

    /// Pulls by containerd itself.
    pub(super) async fn pull_natively(&self, name: &str) -> String {
        pull(&self.images().await, &request(name)).await.unwrap()
    }

    /// Runs a pod of the image that must be here, and removes it.
    pub(super) async fn runs(&self, image: &str) {
        let pods = self.pods().await;
        let sandbox = pods.run_sandbox("runs").await.unwrap();
        let started = pods.run_container(&sandbox, image, &["/bin/sleep", "3600"]).await;
        pods.remove_sandbox(&sandbox).await.unwrap();
        started.unwrap_or_else(|error| panic!("a container of {image}: {error}"));
    }

    /// Removes an image as a kubelet does, by its id.
    pub(super) async fn remove(&self, id: &str) {
        self.images().await.remove(&ImageSpec::new(id)).await.unwrap();
    }

    /// Fails unless containerd has neither records nor blobs nor snapshots, and no folder of one, before long, and
    /// imagelet has nothing staged.
    pub(super) async fn is_empty(&self, what: &str) {
        self.becomes_empty(async || self.left(&[]).await, what).await;
    }

    /// The same after a collection, and whole layers may be staged: they serve the next pull.
    pub(super) async fn is_empty_but_for_staged_layers(&self, what: &str) {
        let staged = [self.staging().join("tmp")];
        let left = async || {
            // What containerd was doing when the pull was given up goes with its next collection.
            collect(&self.client()).await;
            self.left(&staged).await
        };
        self.becomes_empty(left, what).await;
    }

    /// Fails unless imagelet's leases are gone before long.
    pub(super) async fn has_no_lease(&self, what: &str) {
        let leases = async || own_leases(&self.client()).await;
        self.becomes_empty(leases, what).await;
    }

    /// Whether containerd has the blobs of all layers, as it has after a pull of its own.
    pub(super) async fn has_layer_blobs(&self, image: &Image) -> bool {
        let blobs = self.client().contents().await.unwrap();
        image.layers.iter().all(|layer| blobs.iter().any(|blob| layer.digest == blob.digest))
    }

    /// Whether containerd has the blob of any layer, as it never has after an import.
    pub(super) async fn has_any_layer_blob(&self, image: &Image) -> bool {
        let blobs = self.client().contents().await.unwrap();
        image.layers.iter().any(|layer| blobs.iter().any(|blob| layer.digest == blob.digest))
    }

    /// Records, blobs, snapshots, leases and files that there are, but for those in these places.
    async fn left(&self, places: &[PathBuf]) -> Vec<String> {
        let client = self.client();
        let mut left = names(client.images().await.unwrap(), |image| image.name);
        left.extend(names(client.contents().await.unwrap(), |blob| blob.digest));
        left.extend(names(client.snapshots(SNAPSHOTTER).await.unwrap(), |snapshot| snapshot.name));
        left.extend(own_leases(&client).await);
        let files = self.files().into_iter().filter(|file| !places.iter().any(|place| file.starts_with(place)));
        left.extend(files.map(|file| file.display().to_string()));
        left
    }

    async fn becomes_empty(&self, list: impl AsyncFn() -> Vec<String>, what: &str) {
        let end = tokio::time::Instant::now() + COLLECTED_MAX;
        loop {
            let left = list().await;
            if left.is_empty() {
                return;
            }
            assert!(tokio::time::Instant::now() < end, "{what}: left behind: {left:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Folders of snapshots, files of blobs, and what is staged.
    fn files(&self) -> Vec<PathBuf> {
        let root = self.containerd.root();
        let mut places = vec![
            root.join(format!("io.containerd.snapshotter.v1.{SNAPSHOTTER}/snapshots")),
            root.join("io.containerd.content.v1.content/blobs/sha256"),
        ];
        if !self.was_killed {
            places.push(root.join("io.containerd.content.v1.content/ingest"));
        }
        let staged = ["layers", "tmp", "images", "trash"].map(|name| self.staging().join(name));
        let entries = places.iter().chain(&staged).flat_map(|place| std::fs::read_dir(place).into_iter().flatten());
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn names<T>(all: Vec<T>, name: impl Fn(T) -> String) -> Vec<String> {
    all.into_iter().map(name).collect()
}

/// Returns after a collection: the end of a lease is awaited with it.
pub(super) async fn collect(client: &ContainerdClient) {
    let lease = LeaseId::unique();
    client.create_lease(&lease, CALL_MAX).await.unwrap();
    client.delete_lease(&lease, true).await.unwrap();
}

/// Pulls through imagelet.
pub(super) async fn import(daemon: &Daemon, name: &str) -> String {
    pull(&connect(daemon).await, &request(name)).await.unwrap_or_else(|error| panic!("{name}: {error}"))
}

async fn own_leases(client: &ContainerdClient) -> Vec<String> {
    let mut leases = names(client.leases().await.unwrap(), |lease| lease.id);
    leases.retain(|id| id.starts_with("imagelet-"));
    leases
}
