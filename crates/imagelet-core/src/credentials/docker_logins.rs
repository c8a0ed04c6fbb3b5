//! Writes logins into a docker configuration file, or passes them to the credential helper that the file names.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::{
    fs::{FlockOperation, Gid, Uid, fchown, flock},
    io::Errno,
};
use serde_json::{Map, Value, json, ser::PrettyFormatter};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{
    DockerConfig, PullSecretKind, Secret, Variables,
    docker_config::{DOCKER_CONFIG_LENGTH_MAX, read_document, server_of},
    provider::{CredentialHelpers, HelperError},
};
use crate::{
    durable::{MachineDisk, replace_file_on},
    image::{ByteSize, DOCKER_HUB, is_docker_hub, shown_name},
    printable::printable_start,
};

const AUTHS: &str = "auths";
const HOST_LENGTH_MAX: usize = 255;
/// The maximum wait for the lock. Another process holds it for a fraction of a second.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct DockerLogins {
    path: PathBuf,
    helpers: CredentialHelpers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginPlace {
    /// The configuration file, in which the password is not encrypted.
    File(PathBuf),
    Helper(String),
}

#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error("`{0}` names no registry")]
    Registry(String),
    #[error("a user name is not empty and has no colon")]
    User,
    #[error("could not {act} the docker configuration `{path}`")]
    File { act: &'static str, path: PathBuf, source: io::Error },
    /// The credential helper did not run or failed. The text contains no secret.
    #[error("{0}")]
    Helper(String),
}

impl From<HelperError> for LoginError {
    fn from(error: HelperError) -> Self {
        Self::Helper(error.to_string())
    }
}

/// The host and port of a registry, in lower case, without scheme and version. All names of Docker Hub become
/// `docker.io`.
pub fn registry_host(text: &str) -> Result<String, LoginError> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    let is_host = (1..=HOST_LENGTH_MAX).contains(&host.len()) && host.bytes().all(is_of_host);
    if !is_host || !matches!(path.trim_end_matches('/'), "" | "v1" | "v2") {
        return Err(LoginError::Registry(printable_start(&shown_name(text), HOST_LENGTH_MAX)));
    }
    let host = host.to_ascii_lowercase();
    Ok(match host.as_str() {
        "registry.hub.docker.com" => DOCKER_HUB.to_owned(),
        name if is_docker_hub(name) => DOCKER_HUB.to_owned(),
        _ => host,
    })
}

impl DockerLogins {
    /// The logins in a `config.json`. A credential helper runs with only these variables and for at most `limit`.
    pub fn new(path: impl Into<PathBuf>, environment: Variables, limit: Duration) -> Self {
        Self { path: path.into(), helpers: CredentialHelpers::new(environment, limit) }
    }

    /// Stores a login in the registry's helper, if any, or in the file. `registry` is a result of [`registry_host`].
    pub async fn store(&self, registry: &str, user: &str, password: &Secret) -> Result<LoginPlace, LoginError> {
        if user.is_empty() || user.contains(':') {
            return Err(LoginError::User);
        }
        let server = server_of(registry).to_owned();
        let (place, entry) = if let Some((name, server)) = self.helper(registry)? {
            self.helpers.store(&name, &server, user, password).await?;
            (LoginPlace::Helper(format!("docker-credential-{name}")), json!({}))
        } else {
            let pair = Zeroizing::new(format!("{user}:{}", password.expose()));
            (LoginPlace::File(self.path.clone()), json!({ "auth": STANDARD.encode(pair.as_bytes()) }))
        };
        let registry = registry.to_owned();
        self.change(move |auths| {
            // An older password under another name of the same registry must not stay.
            auths.retain(|key, _| !is_key_of(key, &registry));
            auths.insert(server, entry);
            true
        })
        .await?;
        Ok(place)
    }

    /// Removes a login from the registry's credential helper, if any, and from the file. Returns true if the file had a
    /// login, or if there is a helper, because a helper does not report whether it had a login.
    pub async fn erase(&self, registry: &str) -> Result<bool, LoginError> {
        let helper = self.helper(registry)?;
        if let Some((name, server)) = &helper {
            self.helpers.erase(name, server).await?;
        }
        if !self.path.exists() {
            return Ok(helper.is_some());
        }
        let registry = registry.to_owned();
        let is_changed = self.change(move |auths| {
            let before = auths.len();
            auths.retain(|key, _| !is_key_of(key, &registry));
            auths.len() < before
        });
        Ok(is_changed.await? || helper.is_some())
    }

    /// The helper for a registry, and the server name for the helper. Fails if other users can change the file.
    fn helper(&self, registry: &str) -> Result<Option<(String, String)>, LoginError> {
        let failed = |source| self.failed("read", source);
        let (config, refused) = match DockerConfig::read_file(&self.path, PullSecretKind::DockerConfigJson) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed)?,
        };
        let Some((name, server)) = config.helpers.helper_of(registry) else { return Ok(None) };
        refused.map_or_else(|| Ok(Some((name.to_owned(), server))), |refused| Err(failed(refused)))
    }

    async fn change(
        &self,
        edit: impl FnOnce(&mut Map<String, Value>) -> bool + Send + 'static,
    ) -> Result<bool, LoginError> {
        let path = self.path.clone();
        let replaced = tokio::task::spawn_blocking(move || replace(&path, LOCK_WAIT_MAX, edit)).await;
        replaced.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|source| self.failed("change", source))
    }

    fn failed(&self, act: &'static str, source: io::Error) -> LoginError {
        LoginError::File { act, path: self.path.clone(), source }
    }
}

/// Whether a key of `auths` is for this whole registry. A key with a path is another login.
fn is_key_of(key: &str, registry: &str) -> bool {
    registry_host(key).is_ok_and(|host| host == registry)
}

/// Replaces the file under a lock if `edit` returns true. A reader sees the old file or the new file.
fn replace(path: &Path, lock_wait: Duration, edit: impl FnOnce(&mut Map<String, Value>) -> bool) -> io::Result<bool> {
    let target = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        found => found?,
    };
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let lock = File::open(folder)?;
    lock_exclusively(&lock, lock_wait)?;
    let (mut root, owner) = match File::open(&target) {
        Ok(file) => {
            let owner = file.metadata()?;
            let document = read_document(file)?;
            let config = serde_json::from_slice(&document).map_err(|_| malformed())?;
            (config, Some(owner))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (json!({}), None),
        Err(error) => return Err(error),
    };
    let members = root.as_object_mut().ok_or_else(malformed)?;
    let auths = members.entry(AUTHS).or_insert_with(|| json!({})).as_object_mut().ok_or_else(malformed)?;
    if !edit(auths) {
        return Ok(false);
    }
    let mut document = Zeroizing::new(Vec::new());
    let mut writer = serde_json::Serializer::with_formatter(&mut *document, PrettyFormatter::with_indent(b"\t"));
    serde::Serialize::serialize(&root, &mut writer)?;
    if document.len() > DOCKER_CONFIG_LENGTH_MAX {
        let limit = ByteSize(DOCKER_CONFIG_LENGTH_MAX as u64);
        return Err(io::Error::other(format!("it would be longer than {limit}")));
    }
    let beside = folder.join(format!(".config.json.{}", std::process::id()));
    replace_file_on(&MachineDisk, &target, &beside, "state", |file| write(file, &document, owner.as_ref()))?;
    Ok(true)
}

/// Locks the folder. The wait is limited, because any process that can read the folder can hold the lock.
fn lock_exclusively(folder: &File, wait: Duration) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if began.elapsed() < wait => std::thread::sleep(LOCK_POLL),
            Err(Errno::WOULDBLOCK) => {
                let message = format!("another process has its folder locked for more than {} s", wait.as_secs_f32());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            locked => return Ok(locked?),
        }
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not a JSON object with an object `auths`")
}

fn write(file: &mut File, document: &[u8], owner: Option<&fs::Metadata>) -> io::Result<()> {
    if let Some(owner) = owner.filter(|owner| owner.uid() != file.metadata().map_or(owner.uid(), |own| own.uid())) {
        fchown(&*file, Some(Uid::from_raw(owner.uid())), Some(Gid::from_raw(owner.gid())))?;
    }
    file.write_all(document)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn logins(path: &Path) -> DockerLogins {
        let path_of_helpers = path.parent().unwrap().join("bin").into_os_string();
        let both = [path_of_helpers, "/usr/bin".into(), "/bin".into()].join(std::ffi::OsStr::new(":"));
        DockerLogins::new(path, Variables(vec![("PATH".into(), both)]), Duration::from_secs(30))
    }

    fn document(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn a_registry_is_named_by_its_host_in_any_form_that_docker_takes() {
        for (text, host) in [
            ("reg.io", Some("reg.io")),
            ("https://Reg.io:5000/v2/", Some("reg.io:5000")),
            ("http://[::1]:5000", Some("[::1]:5000")),
            ("https://index.docker.io/v1/", Some("docker.io")),
            ("registry-1.docker.io", Some("docker.io")),
            ("registry.hub.docker.com", Some("docker.io")),
            ("reg.io/team", None),
            ("user:pw@reg.io", None),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(registry_host(text).ok().as_deref(), host, "{text}");
        }
        for text in ["https://bob:hunter2@reg.io", "bob:hunter2@reg.io", "https://reg.io/?password=hunter2"] {
            let error = registry_host(text).unwrap_err().to_string();
            assert!(error.contains("reg.io") && !error.contains("hunter2"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_login_is_kept_for_its_owner_alone_and_everything_else_in_the_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/config.json");
        let kept = logins(&path);
        let place = kept.store("reg.io:5000", "bob", &Secret::new("hunter:2")).await.unwrap();
        assert_eq!(place, LoginPlace::File(path.clone()));
        assert_eq!(document(&path), json!({ "auths": { "reg.io:5000": { "auth": "Ym9iOmh1bnRlcjoy" } } }));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);

        let other = json!({ "auths": { "a.io": {}, "https://reg.io/v2/": { "auth": "eDp5" }, "reg.io/team": {} },
                            "psFormat": "table", "plugins": { "x": { "hooks": "1" } } });
        fs::write(&path, other.to_string()).unwrap();
        assert!(kept.erase("reg.io").await.unwrap());
        assert!(!kept.erase("reg.io").await.unwrap());
        kept.store("docker.io", "bob", &Secret::new("x")).await.unwrap();
        let expected = json!({ "auths": { "a.io": {}, "reg.io/team": {}, "https://index.docker.io/v1/": { "auth": "Ym9iOng=" } },
                               "psFormat": "table", "plugins": { "x": { "hooks": "1" } } });
        assert_eq!(document(&path), expected);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");

        let older = json!({ "auths": { "https://reg.io/v2/": { "auth": "eDp5" }, "reg.io/team": { "auth": "eDp6" } } });
        fs::write(&path, older.to_string()).unwrap();
        kept.store("reg.io", "bob", &Secret::new("x")).await.unwrap();
        let expected = json!({ "auths": { "reg.io": { "auth": "Ym9iOng=" }, "reg.io/team": { "auth": "eDp6" } } });
        assert_eq!(document(&path), expected, "no older password of the registry stays");
    }

    #[test]
    fn a_folder_that_another_process_keeps_locked_fails_the_change() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, path) = (File::open(folder.path()).unwrap(), folder.path().join("config.json"));
        flock(&lock, FlockOperation::LockShared).unwrap();
        let error = replace(&path, Duration::from_millis(50), |_| true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(lock);
        assert!(replace(&path, Duration::from_mins(1), |_| true).unwrap());
    }

    #[test]
    fn the_owner_of_the_file_keeps_it_when_root_changes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, "{}").unwrap();
        std::os::unix::fs::chown(&path, Some(12_345), Some(12_345)).expect("root runs this test");
        assert!(replace(&path, Duration::ZERO, |_| true).unwrap());
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.uid(), after.gid()), (12_345, 12_345));
    }

    #[test]
    fn a_file_is_read_to_the_bound_and_one_byte_more_and_below_a_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let file = File::create(&path).unwrap();
        for (length, expected) in [(0, DOCKER_CONFIG_LENGTH_MAX), (9, DOCKER_CONFIG_LENGTH_MAX + 1)] {
            file.set_len((DOCKER_CONFIG_LENGTH_MAX + length) as u64).unwrap();
            assert_eq!(read_document(File::open(&path).unwrap()).unwrap().len(), expected);
        }
        assert!(logins(&folder.path().join("absent.json")).helper("r.io").unwrap().is_none());
        let below = logins(&folder.path().join("config.json/config.json"));
        let Err(LoginError::File { source, .. }) = below.helper("r.io") else { panic!("no file lies below a file") };
        assert_eq!(source.kind(), io::ErrorKind::NotADirectory);
        let error = replace(&folder.path().join("config.json/config.json"), LOCK_WAIT_MAX, |_| true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn a_file_that_would_be_too_long_to_read_again_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let padded = |length: usize| {
            replace(&path, LOCK_WAIT_MAX, |auths| {
                auths.insert("reg.io".to_owned(), json!({ "auth": "x".repeat(length) }));
                true
            })
        };
        padded(0).unwrap();
        let room = DOCKER_CONFIG_LENGTH_MAX - fs::read(&path).unwrap().len();
        padded(room).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), DOCKER_CONFIG_LENGTH_MAX);
        assert!(padded(room + 1).unwrap_err().to_string().contains("longer than"));
        assert_eq!(fs::read(&path).unwrap().len(), DOCKER_CONFIG_LENGTH_MAX, "the file before stays");
    }

    #[tokio::test]
    async fn a_file_that_does_not_read_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for text in ["{", "[]", r#"{"auths": []}"#] {
            fs::write(&path, text).unwrap();
            let error = logins(&path).store("reg.io", "bob", &Secret::new("hunter2")).await.expect_err(text);
            assert!(
                error.to_string().contains("config.json") && !format!("{error:?}").contains("hunter2"),
                "{error:?}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(matches!(logins(&path).store("reg.io", "a:b", &Secret::new("x")).await, Err(LoginError::User)));
    }

    #[tokio::test]
    async fn parallel_logins_are_all_kept_and_a_symlink_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (link, path) = (folder.path().join("link.json"), folder.path().join("config.json"));
        fs::write(&path, "{}").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let link = &link;
                scope.spawn(move || {
                    replace(link, LOCK_WAIT_MAX, |auths| auths.insert(number.to_string(), json!({})).is_none())
                });
            }
        });
        assert_eq!(document(&path)["auths"].as_object().unwrap().len(), 8);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[tokio::test]
    async fn a_helper_keeps_the_login_and_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bin) = (folder.path().join("config.json"), folder.path().join("bin"));
        fs::create_dir(&bin).unwrap();
        let notes = folder.path().join("notes");
        let script = format!("#!/bin/sh\n(echo $1; cat; echo) >> {}\n", notes.display());
        let program = bin.join("docker-credential-box");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&path, r#"{"credHelpers": {"reg.io": "box"}}"#).unwrap();
        let kept = logins(&path);
        let place = kept.store("reg.io", "bob", &Secret::new("hunter2")).await.unwrap();
        assert_eq!(place, LoginPlace::Helper("docker-credential-box".to_owned()));
        assert_eq!(document(&path)["auths"], json!({ "reg.io": {} }), "the file names it without a secret");
        assert!(kept.erase("reg.io").await.unwrap());
        let entrusted = r#"{"ServerURL":"reg.io","Username":"bob","Secret":"hunter2"}"#;
        assert_eq!(fs::read_to_string(&notes).unwrap(), format!("store\n{entrusted}\nerase\nreg.io\n"));

        fs::write(&program, "#!/bin/sh\necho no hunter2 today >&2\nexit 1\n").unwrap();
        let error = kept.store("reg.io", "bob", &Secret::new("hunter2")).await.unwrap_err().to_string();
        assert!(error.contains("docker-credential-box") && !error.contains("hunter2"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let error = kept.store("reg.io", "bob", &Secret::new("hunter2")).await.unwrap_err();
        let refused = std::error::Error::source(&error).expect("a reason").to_string();
        assert!(refused.contains("every user may write"), "{refused}");
    }
}
