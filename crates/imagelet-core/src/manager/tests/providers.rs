//! When credential providers are asked, and what becomes of what they say.

use super::*;
use crate::credentials::{CredentialProvider, CredentialQuery, Provided, TrackedCredential};

/// Gives what it has, and remembers what it was asked.
#[derive(Debug, Default)]
struct Asked {
    gives: Provided,
    queries: Mutex<Vec<CredentialQuery>>,
}

impl Asked {
    fn new(user: &str, source: CredentialSource) -> Arc<Self> {
        let mut keyring = Keyring::new();
        keyring.add_credential("reg.io", source, Credential::basic("", user, Secret::new("p")));
        let gives = Provided { credentials: keyring.lookup("reg.io/app"), failures: Vec::new() };
        Arc::new(Self { gives, ..Self::default() })
    }

    fn count(&self) -> usize {
        self.queries.lock().unwrap().len()
    }
}

#[async_trait]
impl CredentialProvider for Asked {
    async fn provide(&self, query: &CredentialQuery) -> Provided {
        self.queries.lock().unwrap().push(query.clone());
        yield_now().await;
        self.gives.clone()
    }
}

fn wanted(asked: &Arc<Asked>) -> Wanted {
    Wanted { providers: Arc::clone(asked) as Arc<dyn CredentialProvider>, ..Wanted::default() }
}

fn robot(image: &str) -> EnsureRequest {
    EnsureRequest { service_account: Some("robot".into()), ..request(image) }
}

fn account(name: &str) -> CredentialSource {
    let identity = ObjectIdentity { uid: format!("uid-{name}"), namespace: "default".into(), name: name.into() };
    CredentialSource::ServiceAccount(identity)
}

#[tokio::test(start_paused = true)]
async fn providers_are_asked_once_and_what_they_give_is_tried_last() {
    let asked = Asked::new("provider", CredentialSource::Node);
    let store = Arc::new(Scripted::default());
    store.lock().attempts = [Some("denied".to_owned()), Some("denied".to_owned()), None].into();
    let mut keyring = Keyring::new();
    keyring.add_credential("reg.io", CredentialSource::Node, Credential::basic("", "node", Secret::new("p")));
    let node = TestNode::new(Arc::clone(&store) as Arc<dyn ImageService>, Wanted { keyring, ..wanted(&asked) });
    let document = r#"{"auths": {"reg.io": {"username": "secret", "password": "p"}}}"#;
    let wants = EnsureRequest { secrets: vec![secret("s", document)], ..robot("reg.io/app:v1") };
    node.ensure(&wants).await.unwrap();
    let user = |credential: Credential| match credential.kind {
        CredentialKind::Basic { username, .. } => username,
        other => panic!("{other:?}"),
    };
    let users: Vec<String> = store.lock().shown.iter().flatten().cloned().map(user).collect();
    assert_eq!(users, ["secret", "node", "provider"]);
    let expected = CredentialQuery {
        repository: "reg.io/app".into(),
        namespace: "default".into(),
        pod_name: "web".into(),
        pod_uid: "uid-web".into(),
        service_account: Some("robot".into()),
    };
    assert_eq!(*asked.queries.lock().unwrap(), [expected]);
}

#[tokio::test(start_paused = true)]
async fn no_provider_is_asked_for_an_image_that_is_open_to_all_nor_beside_credentials_of_the_request() {
    let asked = Asked::new("provider", CredentialSource::Node);
    let fake = FakeRuntime::new();
    fake.offer_to("reg.io/app:v1", "app", 1000, Some(("u", "p")));
    let node = TestNode::new(Arc::new(fake.clone()), wanted(&asked));
    let credential = Credential::basic("", "u", Secret::new("p"));
    node.ensure(&with_credential(credential, robot("reg.io/app:v1"))).await.unwrap();
    assert_eq!(node.ensure(&robot("reg.io/app:v1")).await.unwrap().origin, Origin::AlreadyPresent);
    assert_eq!(asked.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_a_service_account_opened_is_that_accounts_and_each_request_asks_once() {
    let fake = FakeRuntime::new();
    let id = fake.offer_to("reg.io/app:v1", "app", 1000, Some(("u", "p")));
    let asked = Asked::new("u", account("robot"));
    let records = PullRecords::in_memory();
    let node = TestNode::new(Arc::new(fake.clone()), Wanted { records, ..wanted(&asked) });
    node.ensure(&robot("reg.io/app:v1")).await.unwrap();
    assert_eq!(asked.count(), 1);
    let recorded = node.records.record(&id).expect("it was recorded");
    let access = recorded.mapping.values().next().expect("for this image");
    assert_eq!(access.kubernetes_service_accounts[0].name, "robot");
    assert!(!access.node_pods_accessible);

    let never = EnsureRequest { policy: PullPolicy::Never, ..robot("reg.io/app:v1") };
    node.ensure(&never).await.unwrap();
    assert_eq!(asked.count(), 2, "once, although records and pull both wanted to know");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_failed_is_the_hint_of_the_failure_and_changes_no_message() {
    let failure = "credential provider `ecr`: no route".to_owned();
    let silent = Arc::new(Asked::default());
    let broken = Arc::new(Asked {
        gives: Provided { credentials: Vec::<TrackedCredential>::new(), failures: vec![failure] },
        ..Asked::default()
    });
    let mut messages = Vec::new();
    for (asked, hinted) in [(silent, false), (broken, true)] {
        let fake = FakeRuntime::new();
        fake.offer_to("reg.io/app:v1", "app", 1000, Some(("u", "p")));
        let node = TestNode::new(Arc::new(fake), wanted(&asked));
        let error = node.ensure(&robot("reg.io/app:v1")).await.unwrap_err();
        let hint = error.hint().unwrap_or_default().to_owned();
        assert_eq!(hint.contains("credential provider `ecr`: no route"), hinted, "{hint}");
        messages.push((error.message(), error.reason().into_owned(), node.reported()));
    }
    assert_eq!(messages[0], messages[1]);
}

/// `docker login` with a credential store leaves such entries: they say where a login is, and hold none.
#[tokio::test(start_paused = true)]
async fn an_entry_without_user_and_password_is_no_credential_and_the_registry_is_asked_anonymously() {
    let empty = [
        r#"{"auths": {"reg.io": {}}}"#,
        r#"{"auths": {"reg.io": {"auth": ""}}}"#,
        r#"{"auths": {"reg.io": {"username": "", "password": "", "email": "a@b.c"}}}"#,
        r#"{"auths": {"reg.io": {"auth": "Og=="}}}"#,
        r#"{"auths": {"reg.io": {"identitytoken": ""}}}"#,
    ];
    for document in empty {
        for (node_policy, shown) in [(NodePolicy::IMAGELET, None), (NodePolicy::KUBELET, Some(""))] {
            let mut keyring = Keyring::new();
            let parsed = DockerConfig::parse(PullSecretKind::DockerConfigJson, document.as_bytes()).unwrap();
            keyring.add(&CredentialSource::Node, parsed);
            let settings = PullSettings { node_policy, ..PullSettings::default() };
            let runtime = FakeRuntime::new();
            runtime.offer("reg.io/app:v1", "app", 10);
            runtime.offer("reg.io/other:v1", "other", 10);
            let node = TestNode::new(Arc::new(runtime.clone()), Wanted { settings, keyring, ..Wanted::default() });
            node.ensure(&request("reg.io/app:v1")).await.unwrap();
            let wants = EnsureRequest { secrets: vec![secret("s", document)], ..request("reg.io/other:v1") };
            node.ensure(&wants).await.unwrap();
            for asked in runtime.pull_requests() {
                let user = asked.credential.map(|credential| match credential.kind {
                    CredentialKind::Basic { username, .. } => username,
                    other => panic!("{other:?}"),
                });
                assert_eq!(user.as_deref(), shown, "{document}, {node_policy:?}");
            }
            assert_eq!(runtime.pull_requests().len(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn beside_an_empty_entry_the_others_are_tried_and_recorded() {
    let runtime = FakeRuntime::new();
    runtime.offer_to("reg.io/team/app:v1", "app", 10, Some(("ada", "p")));
    let wanted = Wanted { records: PullRecords::in_memory(), ..Wanted::default() };
    let node = TestNode::new(Arc::new(runtime.clone()), wanted);
    let document = r#"{"auths": {"reg.io/team": {}, "reg.io": {"username": "ada", "password": "p"}}}"#;
    let with = |document: &str| EnsureRequest { secrets: vec![secret("s", document)], ..request("reg.io/team/app:v1") };
    node.ensure(&with(document)).await.unwrap();
    // A secret that holds no credential any more proves nothing.
    let empty = with(r#"{"auths": {"reg.io": {}}}"#);
    assert_eq!(node.ensure(&empty).await.unwrap_err().reason(), "ErrImagePull");
    assert_eq!(node.ensure(&with(document)).await.unwrap().origin, Origin::AlreadyPresent);
}
