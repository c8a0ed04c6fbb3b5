//! The node's own docker configuration: searched as the kubelet does, reread periodically (`docs/spec/pull.md §6.5`).

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};

use super::{
    CredentialSource, DockerConfig, HelperNames, Keyring, PullSecretKind, TrackedCredential, Variables,
    provider::{CredentialHelpers, HelperError},
};

/// The kubelet's cache time.
const CACHED_FOR: Duration = Duration::from_mins(5);

/// The node's own credentials, cached for a few minutes.
#[derive(Debug)]
pub struct NodeKeyring {
    /// Held while the files are read, so that parallel lookups share one read.
    state: Mutex<NodeKeyringState>,
    /// `None`: credential helpers do not run.
    helpers: Option<CredentialHelpers>,
}

#[derive(Debug, Default)]
struct NodeKeyringState {
    /// The first readable file is used.
    files: Vec<NodeFile>,
    cached: Arc<NodeCredentials>,
    /// `None`: no expiry.
    until: Option<Instant>,
}

#[derive(Debug, Default)]
struct NodeCredentials {
    keyring: Arc<Keyring>,
    helpers: HelperNames,
    /// The reason why no helper runs: other users may change the document.
    refused: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeFile {
    path: PathBuf,
    kind: PullSecretKind,
}

impl NodeKeyring {
    /// A fixed keyring that reads no file.
    pub fn fixed(keyring: Keyring) -> Self {
        let cached = Arc::new(NodeCredentials { keyring: Arc::new(keyring), ..NodeCredentials::default() });
        Self { state: Mutex::new(NodeKeyringState { cached, ..NodeKeyringState::default() }), helpers: None }
    }

    /// Runs the credential helpers of the node's document with these variables and this time limit.
    #[must_use]
    pub fn running_helpers(self, environment: Variables, limit: Duration) -> Self {
        Self { helpers: Some(CredentialHelpers::new(environment, limit)), ..self }
    }

    /// Reads a single `config.json`.
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self::from_files(vec![NodeFile { path: path.into(), kind: PullSecretKind::DockerConfigJson }])
    }

    /// Searches as the kubelet does: the first readable `config.json` in its root directory, the working directory,
    /// `$HOME/.docker` or `/.docker`; else the first such `.dockercfg` in its root directory, the working directory,
    /// `$HOME` or `/`.
    pub fn searching(root: &Path, home: Option<&Path>) -> Self {
        let mut files = Vec::new();
        for (below_home, name, kind) in [
            (".docker", "config.json", PullSecretKind::DockerConfigJson),
            ("", ".dockercfg", PullSecretKind::DockerCfg),
        ] {
            let home = home.map(|home| home.join(below_home));
            let folders =
                [root.to_owned(), PathBuf::new()].into_iter().chain(home).chain([Path::new("/").join(below_home)]);
            files.extend(folders.map(|folder| NodeFile { path: folder.join(name), kind }));
        }
        Self::from_files(files)
    }

    fn from_files(files: Vec<NodeFile>) -> Self {
        let state = NodeKeyringState { files, until: Some(Instant::now()), ..NodeKeyringState::default() };
        Self { state: Mutex::new(state), helpers: None }
    }

    /// The credential of the repository's helper, and the failure of that helper. Dropping the future ends the helper.
    pub async fn ask_helper(&self, repository: &str) -> (Option<TrackedCredential>, Option<String>) {
        let Some(helpers) = &self.helpers else { return (None, None) };
        let named = self.read_now().await;
        let Some((name, server)) = named.helpers.helper_for(repository) else { return (None, None) };
        if let Some(refused) = &named.refused {
            return (None, Some(format!("the credential helper `{name}` is not run: {refused}")));
        }
        match helpers.ask(name, &server).await {
            Ok(known) => (known.map(|credential| TrackedCredential::new(credential, CredentialSource::Node)), None),
            Err(error) => {
                if !matches!(error, HelperError::Missing { .. }) {
                    tracing::warn!(repository, %error, "a credential helper gave no credential");
                }
                (None, Some(error.to_string()))
            }
        }
    }

    /// The current keyring; rereads the files when the cache, also an empty one, expires. While files exist and none is
    /// readable, the previous keyring stays.
    pub async fn keyring(&self) -> Arc<Keyring> {
        Arc::clone(&self.read_now().await.keyring)
    }

    async fn read_now(&self) -> Arc<NodeCredentials> {
        let mut state = self.state.lock().await;
        if state.until.is_some_and(|until| until <= Instant::now()) {
            let (files, until) = (state.files.clone(), Instant::now() + CACHED_FOR);
            let read = tokio::task::spawn_blocking(move || first_readable(&files)).await;
            if let Some(found) = read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
                state.cached = Arc::new(found);
            }
            state.until = Some(until);
        }
        Arc::clone(&state.cached)
    }

    /// Takes over the files of another instance; the next call reads them. While they are unreadable, the previous
    /// keyring stays.
    pub async fn replace(&self, by: Self) {
        let (mut state, mut by) = (self.state.lock().await, by.state.into_inner());
        if by.until.is_some() {
            by.cached = Arc::clone(&state.cached);
        }
        *state = by;
    }
}

/// The first readable file; `None`: files exist, and none is readable.
fn first_readable(files: &[NodeFile]) -> Option<NodeCredentials> {
    let mut is_broken = false;
    for NodeFile { path, kind } in files {
        match DockerConfig::read_file(path, *kind) {
            Ok((document, refused)) => {
                let refused = refused.map(|error| error.to_string().replace('\n', "; "));
                let (helpers, mut keyring) = (document.helpers.clone(), Keyring::new());
                keyring.add(&CredentialSource::Node, document);
                return Some(NodeCredentials { keyring: Arc::new(keyring), helpers, refused });
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "the docker configuration does not read");
                is_broken = true;
            }
        }
    }
    (!is_broken).then(NodeCredentials::default)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::credentials::docker_config::DOCKER_CONFIG_LENGTH_MAX;

    fn document(user: &str) -> String {
        format!(r#"{{"auths": {{"reg.io": {{"username": "{user}", "password": "hunter2"}}}}}}"#)
    }

    async fn users(keyring: &NodeKeyring) -> Vec<String> {
        let found = keyring.keyring().await.lookup("reg.io/a");
        let user = |tracked: crate::credentials::TrackedCredential| match tracked.credential.kind {
            crate::credentials::CredentialKind::Basic { username, .. } => username,
            other => panic!("{other:?}"),
        };
        found.into_iter().map(user).collect()
    }

    #[test]
    fn files_are_looked_for_in_the_kubelets_order() {
        let keyring = NodeKeyring::searching(Path::new("/var/lib/x"), Some(Path::new("/home/u")));
        let files = keyring.state.into_inner().files;
        let paths: Vec<&str> = files.iter().map(|file| file.path.to_str().unwrap()).collect();
        assert_eq!(
            paths,
            [
                "/var/lib/x/config.json",
                "config.json",
                "/home/u/.docker/config.json",
                "/.docker/config.json",
                "/var/lib/x/.dockercfg",
                ".dockercfg",
                "/home/u/.dockercfg",
                "/.dockercfg",
            ]
        );
        assert!(files.iter().all(|file| (file.kind == PullSecretKind::DockerCfg) == file.path.ends_with(".dockercfg")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_file_that_reads_is_taken_whole_and_no_other() {
        let [root, home] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let searching = || NodeKeyring::searching(root.path(), Some(home.path()));
        assert_eq!(users(&searching()).await, Vec::<String>::new());
        let entries = r#"{"reg.io": {"username": "cfg", "password": "x"}}"#;
        std::fs::write(home.path().join(".dockercfg"), entries).unwrap();
        assert_eq!(users(&searching()).await, ["cfg"]);
        std::fs::create_dir(home.path().join(".docker")).unwrap();
        std::fs::write(home.path().join(".docker/config.json"), document("home")).unwrap();
        assert_eq!(users(&searching()).await, ["home"]);
        std::fs::write(root.path().join("config.json"), "{ broken").unwrap();
        assert_eq!(users(&searching()).await, ["home"], "what does not read is passed over");
        std::fs::write(root.path().join("config.json"), document("root")).unwrap();
        assert_eq!(users(&searching()).await, ["root"]);
        std::fs::write(root.path().join("config.json"), "{}").unwrap();
        assert_eq!(users(&searching()).await, Vec::<String>::new(), "an empty one reads");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_is_good_for_five_minutes_also_that_there_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let keyring = NodeKeyring::from_file(&path);
        assert_eq!(users(&keyring).await, Vec::<String>::new());
        std::fs::write(&path, document("one")).unwrap();
        advance(CACHED_FOR.saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(users(&keyring).await, Vec::<String>::new());
        advance(Duration::from_secs(1)).await;
        assert_eq!(users(&keyring).await, ["one"]);
        std::fs::write(&path, document("two")).unwrap();
        assert_eq!(users(&keyring).await, ["one"]);
        keyring.replace(NodeKeyring::from_file(&path)).await;
        assert_eq!(users(&keyring).await, ["two"]);
        std::fs::remove_file(&path).unwrap();
        advance(CACHED_FOR).await;
        assert_eq!(users(&keyring).await, Vec::<String>::new());
        assert!(!format!("{keyring:?}").contains("hunter2"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_too_long_is_refused_and_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let long = document("u") + &" ".repeat(DOCKER_CONFIG_LENGTH_MAX);
        std::fs::write(&path, long).unwrap();
        assert_eq!(users(&NodeKeyring::from_file(&path)).await, Vec::<String>::new());
    }

    async fn keys(node: &NodeKeyring) -> Vec<String> {
        node.keyring().await.keys().map(str::to_owned).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_breaks_leaves_what_was_read_in_force_until_it_is_mended_or_gone() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("config.json");
        let document =
            |registry: &str| format!(r#"{{"auths": {{"{registry}": {{"username": "u", "password": "p"}}}}}}"#);
        let write = |text: &str| std::fs::write(&path, text).expect("a file");
        write(&document("one.io"));
        let node = NodeKeyring::from_file(&path);
        assert_eq!(keys(&node).await, ["one.io"]);
        for text in ["{", "{\"auths\": []}"] {
            write(text);
            node.replace(NodeKeyring::from_file(&path)).await;
            assert_eq!(keys(&node).await, ["one.io"], "after a replacement by {text}");
            tokio::time::advance(CACHED_FOR * 2).await;
            assert_eq!(keys(&node).await, ["one.io"], "after some time with {text}");
        }
        write(&document("two.io"));
        node.replace(NodeKeyring::from_file(&path)).await;
        assert_eq!(keys(&node).await, ["two.io"]);
        std::fs::remove_file(&path).expect("it goes");
        node.replace(NodeKeyring::from_file(&path)).await;
        assert!(keys(&node).await.is_empty(), "who removes the file has no credentials");
        node.replace(NodeKeyring::fixed(Keyring::new())).await;
        assert!(keys(&node).await.is_empty());
    }
}
