//! A containerd of a test's own, in a folder of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use imagelet_runtime::containerd::ContainerdClient;

/// How long anything may take that a test waits for; the machine may be busy.
const PATIENCE: Duration = Duration::from_mins(1);

/// Ends when dropped.
pub(crate) struct Node {
    folder: tempfile::TempDir,
    child: Child,
}

impl Node {
    /// Starts one and waits until it answers.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let config = format!(
            "version = 2\nroot = \"{at}/root\"\nstate = \"{at}/state\"\n[grpc]\naddress = \"{at}/containerd.sock\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nrestrict_oom_score_adj = true\n"
        );
        fs::write(folder.path().join("config.toml"), config).unwrap();
        let node = Self { child: spawn(folder.path()), folder };
        node.answers().await;
        node
    }

    async fn answers(&self) {
        let client = self.client();
        self.until("it answers", async || client.snapshotters().await.is_ok()).await;
    }

    /// Ends it the hard way.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.folder.path());
        self.answers().await;
    }

    pub(crate) fn client(&self) -> ContainerdClient {
        ContainerdClient::new(&self.socket())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("containerd.sock")
    }

    /// Containerd's root folder.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Its version, as it prints it.
    pub(crate) fn version() -> String {
        let printed = Command::new(program()).arg("--version").output().unwrap();
        String::from_utf8(printed.stdout).unwrap().split(' ').nth(2).expect("name, origin, version").to_owned()
    }

    /// The folder of its snapshots.
    pub(crate) fn snapshotter(&self) -> PathBuf {
        self.root().join("io.containerd.snapshotter.v1.overlayfs")
    }

    pub(crate) async fn until(&self, what: &str, mut done: impl AsyncFnMut() -> bool) {
        let wait = async {
            while !done().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        let log = || read(&self.folder.path().join("log"));
        assert!(waited.is_ok(), "{what}: not within {PATIENCE:?}; containerd's log:\n{}", log());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The installed one, or another that is to be tried.
fn program() -> PathBuf {
    std::env::var_os("IMAGELET_TEST_CONTAINERD").map_or_else(|| "containerd".into(), PathBuf::from)
}

fn spawn(folder: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    Command::new(program())
        .arg("-c")
        .arg(folder.join("config.toml"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("the package containerd is installed")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
}
