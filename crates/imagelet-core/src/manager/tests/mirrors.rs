//! Hosts that serve a registry's content: each is shown its own credential, and the record says whose it was.

use super::*;
use crate::{
    audit_log::PullHost,
    error::ErrorClass,
    image::Reference,
    ports::{PullEvent, RegistryHost},
    records::RecordsSettings,
};

const IMAGE: &str = "reg.io/team/app:v1";
const MIRROR: &str = "m.example:5000";

/// A store behind a mirror that accepts this password, where the registry has nothing.
#[derive(Debug)]
struct Mirrored {
    scripted: Scripted,
    password: &'static str,
    /// What a pull fails with that the mirror refuses: the answer of the registry behind it.
    kind: RuntimeErrorKind,
    shown: Mutex<Vec<PullRequest>>,
}

impl Mirrored {
    fn new(password: &'static str) -> Arc<Self> {
        Self::before(RuntimeErrorKind::Denied, password)
    }

    fn before(kind: RuntimeErrorKind, password: &'static str) -> Arc<Self> {
        Arc::new(Self { scripted: Scripted::default(), password, kind, shown: Mutex::default() })
    }

    /// The passwords for the registry and for the mirror, of each attempt.
    fn shown(&self) -> Vec<(String, String)> {
        let password = |credential: Option<&Credential>| match credential.map(|credential| &credential.kind) {
            Some(CredentialKind::Basic { password, .. }) => password.expose().to_owned(),
            _ => String::new(),
        };
        let shown = std::mem::take(&mut *self.shown.lock().unwrap());
        let of_attempt = |request: &PullRequest| {
            let own = request.host_credentials.iter().find(|credential| credential.server_address == MIRROR);
            assert_eq!(request.host_credentials.len(), usize::from(own.is_some()), "{request:?}");
            (password(request.credential.as_ref()), password(own))
        };
        shown.iter().map(of_attempt).collect()
    }
}

#[async_trait]
impl ImageService for Mirrored {
    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        self.scripted.list(filter).await
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        self.scripted.status(spec).await
    }

    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        self.shown.lock().unwrap().push(request.clone());
        let accepted = Credential { server_address: MIRROR.into(), ..login(self.password) };
        if !request.host_credentials.contains(&accepted) {
            let failures = [(ErrorClass::Unauthorized.name().to_owned(), 1)].into();
            progress(PullEvent::Hosts(vec![PullHost { host: MIRROR.into(), failures, ..PullHost::default() }]));
            return Err(RuntimeError::new(self.kind, "the mirror rejects it"));
        }
        let host = PullHost { host: MIRROR.into(), manifest: true, ..PullHost::default() };
        progress(PullEvent::Hosts(vec![host]));
        self.scripted.pull(request, progress).await
    }

    async fn registry_hosts(&self, image: &Reference) -> Vec<RegistryHost> {
        let repositories = vec![format!("{MIRROR}/{}", image.path())];
        vec![RegistryHost { host: MIRROR.into(), repositories }]
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.scripted.remove(spec).await
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.scripted.filesystem().await
    }
}

fn login(password: &str) -> Credential {
    Credential::basic("", "u", Secret::new(password))
}

fn secret_for(name: &str, host: &str, password: &str) -> PullSecret {
    secret(name, &json!({ "auths": { host: { "username": "u", "password": password } } }).to_string())
}

fn keyring(entries: &[(&str, &str)]) -> Keyring {
    let mut keyring = Keyring::new();
    for (key, password) in entries {
        keyring.add_credential(key, CredentialSource::Node, login(password));
    }
    keyring
}

#[tokio::test(start_paused = true)]
async fn a_mirror_is_shown_the_nodes_own_credential_for_it_whatever_the_caller_brings_for_the_registry() {
    let client = |own_credentials| Caller::Client { own_credentials, is_limited: false };
    for (caller, given, expected) in [
        (Caller::Command, None, ("of registry", "of mirror")),
        (Caller::Command, Some("given"), ("given", "of mirror")),
        (Caller::Pod, None, ("of registry", "of mirror")),
        (client(true), Some("given"), ("given", "of mirror")),
        (client(true), None, ("of registry", "of mirror")),
        (client(false), Some("given"), ("given", "of mirror")),
        (client(false), None, ("", "of mirror")),
        (Caller::Prefetch { own_credentials: true }, None, ("of registry", "of mirror")),
        (Caller::Prefetch { own_credentials: false }, None, ("", "")),
    ] {
        let store = Mirrored::new("of mirror");
        let keyring = keyring(&[("reg.io", "of registry"), (MIRROR, "of mirror"), ("m.example", "of another port")]);
        let node = TestNode::new(Arc::clone(&store) as Arc<dyn ImageService>, Wanted { keyring, ..Wanted::default() });
        let mut request = EnsureRequest { caller, policy: PullPolicy::Always, ..request(IMAGE) };
        request.pull.credential = given.map(login);
        let pulled = node.ensure(&request).await;
        assert_eq!(pulled.is_ok(), !expected.1.is_empty(), "{caller:?}: {pulled:?}");
        let expected = [(expected.0.to_owned(), expected.1.to_owned())];
        assert_eq!(store.shown(), expected, "{caller:?} with {given:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_credential_for_a_mirror_is_tried_as_each_one_for_the_registry() {
    for behind in [RuntimeErrorKind::Denied, RuntimeErrorKind::RegistryUnavailable] {
        let store = Mirrored::before(behind, "right");
        let node = TestNode::new(Arc::clone(&store) as Arc<dyn ImageService>, Wanted::default());
        let secrets = vec![
            secret_for("a", "reg.io", "r"),
            secret_for("b", MIRROR, "wrong"),
            secret_for("c", &format!("{MIRROR}/team"), "longer"),
            secret_for("d", MIRROR, "right"),
        ];
        node.ensure(&EnsureRequest { secrets, ..request(IMAGE) }).await.unwrap();
        let expected = ["longer", "wrong", "right"].map(|of_mirror| ("r".to_owned(), of_mirror.to_owned()));
        assert_eq!(store.shown(), expected, "{behind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_that_a_mirror_granted_to_a_secret_is_that_secrets_and_not_every_pods() {
    let folder = tempfile::tempdir().unwrap();
    let settings = RecordsSettings::new(VerificationPolicy::AlwaysVerify);
    let records = PullRecords::open(folder.path(), settings).unwrap();
    let store = Mirrored::new("right");
    let node = TestNode::new(Arc::clone(&store) as Arc<dyn ImageService>, Wanted { records, ..Wanted::default() });
    let by = |secrets: Vec<PullSecret>| EnsureRequest { secrets, ..request(IMAGE) };
    let own = by(vec![secret_for("mirror", MIRROR, "right")]);
    assert!(matches!(node.ensure(&own).await.unwrap().origin, Origin::Pulled { .. }));
    store.shown();
    // No request is sent for what is on record.
    assert!(matches!(node.ensure(&own).await.unwrap().origin, Origin::AlreadyPresent));
    assert_eq!(store.shown(), []);
    for others in [vec![], vec![secret_for("registry", "reg.io", "other")], vec![secret_for("m", MIRROR, "wrong")]] {
        node.ensure(&by(others)).await.unwrap_err();
        assert_eq!(store.shown().len(), 1, "the registry decides");
    }

    // The node's own opens it to every pod.
    let folder = tempfile::tempdir().unwrap();
    let records = PullRecords::open(folder.path(), RecordsSettings::new(VerificationPolicy::AlwaysVerify)).unwrap();
    let keyring = keyring(&[(MIRROR, "right")]);
    let node = TestNode::new(store as Arc<dyn ImageService>, Wanted { keyring, records, ..Wanted::default() });
    node.ensure(&EnsureRequest { policy: PullPolicy::Always, ..by(vec![]) }).await.unwrap();
    assert!(matches!(node.ensure(&by(vec![])).await.unwrap().origin, Origin::AlreadyPresent));
}
