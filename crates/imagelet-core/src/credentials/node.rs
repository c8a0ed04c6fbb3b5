//! The docker configuration of the node, found as in the kubelet, or a user's login files (`docs/spec/pull.md §6.5`).

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};

use super::{
    CredentialSource, DockerConfig, HelperNames, Keyring, PullSecretKind, TrackedCredential, Variables,
    keyring::KeySpelling,
    provider::{CredentialHelpers, HelperError},
};

/// How long the files are cached, as in the kubelet.
const CACHED_FOR: Duration = Duration::from_mins(5);

#[derive(Debug)]
pub struct NodeKeyring {
    /// Locked while the files are read, so that parallel lookups share one read.
    state: Mutex<NodeKeyringState>,
    helpers: Option<CredentialHelpers>,
}

#[derive(Debug, Default)]
struct NodeKeyringState {
    files: Vec<LoginFile>,
    /// On: keys match only as in the kubelet, and identity tokens are ignored, for all files.
    as_kubelet: bool,
    /// `true`: all files are used. `false`: only the first readable file.
    reads_all: bool,
    cached: Arc<NodeCredentials>,
    /// The time when the cache expires. `None`: the cache does not expire.
    until: Option<Instant>,
}

#[derive(Debug, Default)]
struct NodeCredentials {
    keyring: Arc<Keyring>,
    /// The helpers that each file names, and the reason if they must not run: other users can change the file.
    helpers: Vec<(HelperNames, Option<String>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginFile {
    /// The `auth.json` of podman, skopeo and buildah.
    Containers(PathBuf),
    Docker(PathBuf),
    DockerCfg(PathBuf),
    /// Docker's `config.json`, whose keys match as in the kubelet.
    Kubelet(PathBuf),
    KubeletCfg(PathBuf),
}

impl LoginFile {
    fn parts(&self) -> (&Path, PullSecretKind, KeySpelling) {
        match self {
            Self::Containers(path) => (path, PullSecretKind::DockerConfigJson, KeySpelling::Containers),
            Self::Docker(path) => (path, PullSecretKind::DockerConfigJson, KeySpelling::Docker),
            Self::DockerCfg(path) => (path, PullSecretKind::DockerCfg, KeySpelling::Docker),
            Self::Kubelet(path) => (path, PullSecretKind::DockerConfigJson, KeySpelling::Kubelet),
            Self::KubeletCfg(path) => (path, PullSecretKind::DockerCfg, KeySpelling::Kubelet),
        }
    }
}

impl NodeKeyring {
    pub fn fixed(keyring: Keyring) -> Self {
        let cached = Arc::new(NodeCredentials { keyring: Arc::new(keyring), ..NodeCredentials::default() });
        Self { state: Mutex::new(NodeKeyringState { cached, ..NodeKeyringState::default() }), helpers: None }
    }

    /// Also runs the credential helpers that the files name, with only these variables and for at most `limit`.
    #[must_use]
    pub fn running_helpers(self, environment: Variables, limit: Duration) -> Self {
        Self { helpers: Some(CredentialHelpers::new(environment, limit)), ..self }
    }

    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self::from_files(vec![LoginFile::Kubelet(path.into())], false)
    }

    /// Reads all files. For equal keys, the login of the first file is tried first.
    pub fn from_logins(files: impl IntoIterator<Item = LoginFile>) -> Self {
        Self::from_files(files.into_iter().collect(), true)
    }

    #[must_use]
    pub fn as_the_kubelet(mut self) -> Self {
        self.state.get_mut().as_kubelet = true;
        self
    }

    /// Uses the first readable file, in the kubelet's order: `config.json` in `root`, the working directory,
    /// `$HOME/.docker` and `/.docker`; then `.dockercfg` in `root`, the working directory, `$HOME` and `/`.
    pub fn searching(root: &Path, home: Option<&Path>) -> Self {
        let mut files = Vec::new();
        for (below_home, name, file) in [
            (".docker", "config.json", LoginFile::Kubelet as fn(PathBuf) -> LoginFile),
            ("", ".dockercfg", LoginFile::KubeletCfg),
        ] {
            let home = home.map(|home| home.join(below_home));
            let folders =
                [root.to_owned(), PathBuf::new()].into_iter().chain(home).chain([Path::new("/").join(below_home)]);
            files.extend(folders.map(|folder| file(folder.join(name))));
        }
        Self::from_files(files, false)
    }

    fn from_files(files: Vec<LoginFile>, reads_all: bool) -> Self {
        let state = NodeKeyringState { files, reads_all, until: Some(Instant::now()), ..NodeKeyringState::default() };
        Self { state: Mutex::new(state), helpers: None }
    }

    /// Runs the helpers of the files in order until a helper has a credential. If no helper has a credential, returns
    /// the first failure, if any. A drop of the future ends the helper.
    pub async fn ask_helper(&self, repository: &str) -> (Option<TrackedCredential>, Option<String>) {
        let Some(helpers) = &self.helpers else { return (None, None) };
        let named = self.read_now().await;
        let of_files =
            named.helpers.iter().filter_map(|(names, refused)| Some((names.helper_for(repository)?, refused)));
        let (mut asked, mut problem) = (Vec::new(), None);
        for ((name, server), refused) in of_files {
            if let Some(refused) = refused {
                problem.get_or_insert(format!("the credential helper `{name}` is not run: {refused}"));
                continue;
            }
            if asked.contains(&(name, server.clone())) {
                continue;
            }
            match helpers.ask(name, &server).await {
                Ok(Some(known)) => return (Some(TrackedCredential::new(known, CredentialSource::Node)), None),
                Ok(None) => {}
                Err(error) => {
                    if !matches!(error, HelperError::Missing { .. }) {
                        tracing::warn!(repository, %error, "a credential helper gave no credential");
                    }
                    problem.get_or_insert(error.to_string());
                }
            }
            asked.push((name, server));
        }
        (None, problem)
    }

    /// Reads the files again if the cache has expired. If files exist but none is readable, the previous keyring stays.
    pub async fn keyring(&self) -> Arc<Keyring> {
        Arc::clone(&self.read_now().await.keyring)
    }

    async fn read_now(&self) -> Arc<NodeCredentials> {
        let mut state = self.state.lock().await;
        if state.until.is_some_and(|until| until <= Instant::now()) {
            let (files, reads_all, until) = (state.files.clone(), state.reads_all, Instant::now() + CACHED_FOR);
            let as_kubelet = state.as_kubelet;
            let read = tokio::task::spawn_blocking(move || read_files(&files, reads_all, as_kubelet)).await;
            if let Some(found) = read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
                state.cached = Arc::new(found);
            }
            state.until = Some(until);
        }
        Arc::clone(&state.cached)
    }

    /// The next lookup reads the files of `by`. If files exist but none is readable, the previous keyring stays.
    pub async fn replace(&self, by: Self) {
        let (mut state, mut by) = (self.state.lock().await, by.state.into_inner());
        if by.until.is_some() {
            by.cached = Arc::clone(&state.cached);
        }
        *state = by;
    }
}

/// Reads the first readable file, or all files. `None`: files exist, but none is readable.
fn read_files(files: &[LoginFile], reads_all: bool, as_kubelet: bool) -> Option<NodeCredentials> {
    let (mut keyring, mut helpers, mut is_broken) = (Keyring::new(), Vec::new(), false);
    for (path, kind, spelling) in files.iter().map(LoginFile::parts) {
        match DockerConfig::read_file(path, kind) {
            Ok((document, refused)) => {
                let refused = refused.map(|error| error.to_string().replace('\n', "; "));
                helpers.push((document.helpers.clone(), refused));
                let (document, spelling) =
                    if as_kubelet { (document.without_tokens(), KeySpelling::Kubelet) } else { (document, spelling) };
                keyring.add_spelled(spelling, &CredentialSource::Node, document);
                if !reads_all {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "the docker configuration does not read");
                is_broken = true;
            }
        }
    }
    (!helpers.is_empty() || !is_broken).then(|| NodeCredentials { keyring: Arc::new(keyring), helpers })
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
        let paths: Vec<&str> = files.iter().map(|file| file.parts().0.to_str().unwrap()).collect();
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
        assert!(
            files
                .iter()
                .all(|file| (file.parts().1 == PullSecretKind::DockerCfg) == file.parts().0.ends_with(".dockercfg"))
        );
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
    async fn of_all_logins_of_a_user_the_first_files_is_shown_first_and_a_broken_one_hides_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let node = || {
            NodeKeyring::from_logins([
                LoginFile::Containers(path("auth.json")),
                LoginFile::Docker(path("config.json")),
                LoginFile::DockerCfg(path(".dockercfg")),
            ])
        };
        assert_eq!(users(&node()).await, Vec::<String>::new());
        std::fs::write(path("auth.json"), document("podman")).unwrap();
        std::fs::write(path("config.json"), document("docker")).unwrap();
        let older = r#"{"reg.io": {"username": "cfg", "password": "x"}}"#;
        std::fs::write(path(".dockercfg"), older).unwrap();
        assert_eq!(users(&node()).await, ["podman", "docker", "cfg"]);
        std::fs::write(path("auth.json"), "{ broken").unwrap();
        assert_eq!(users(&node()).await, ["docker", "cfg"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_token_counts_but_for_the_kubelet() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let text = r#"{"auths": {"reg.io": {"username": "az", "password": "x", "identitytoken": "hunter2"}}}"#;
        std::fs::write(&path, text).unwrap();
        assert_eq!(users(&NodeKeyring::from_file(&path).as_the_kubelet()).await, ["az"]);
        let found = NodeKeyring::from_file(&path).keyring().await.lookup("reg.io/a");
        assert!(matches!(found[0].credential.kind, crate::credentials::CredentialKind::IdentityToken(_)));
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
