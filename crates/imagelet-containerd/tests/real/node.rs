//! A containerd of a test's own, in a folder of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use imagelet_containerd::ContainerdClient;

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
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new("containerd")
            .arg("-c")
            .arg(folder.path().join("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the package containerd is installed");
        let node = Self { folder, child };
        let client = node.client();
        node.until("it answers", async || client.snapshotters().await.is_ok()).await;
        node
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

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
}
