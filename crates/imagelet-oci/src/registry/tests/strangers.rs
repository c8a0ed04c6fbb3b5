//! No redirect, challenge or mirror obtains a password, token or certificate of another origin.

use std::{path::Path, time::Duration};

use imagelet_core::{
    credentials::{Credential, CredentialKind, Secret},
    error::{ErrorClass, RuntimeError, RuntimeErrorKind},
    image::Platform,
};

use super::fake::{FakeRegistry, Guard, RecordedRequest, Trick};
use crate::registry::{Registry, RegistryConfig, RegistryTimeouts, Resolved};

/// `Basic` for `user` and `hunter2pass`.
const SHOWN: &str = "Basic dXNlcjpodW50ZXIycGFzcw==";

/// A client with `settings` as the registry's `hosts.toml`, and the files they name in `folder`.
fn configured(folder: &Path, fake: &FakeRegistry, settings: &str) -> Registry {
    let own = folder.join(fake.address.to_string());
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("hosts.toml"), settings).unwrap();
    let config = RegistryConfig {
        hosts_dirs: vec![folder.to_owned()],
        timeouts: RegistryTimeouts {
            header: Duration::from_secs(10),
            retry_budget: Duration::ZERO,
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    Registry::new(config)
}

fn password() -> Credential {
    Credential::basic("", "user", Secret::new("hunter2pass"))
}

async fn resolve(
    registry: &Registry,
    fake: &FakeRegistry,
    credential: Option<&Credential>,
) -> Result<Resolved, RuntimeError> {
    let platform: Platform = "linux/amd64".parse().unwrap();
    registry.resolve(&fake.reference("team/app:v1"), credential, &platform).await
}

async fn layer(resolved: &Resolved) -> Result<Vec<u8>, RuntimeError> {
    let mut stream = resolved.session.open_blob(&resolved.manifest.layers[0], 0).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn sent_on(to: String) -> Trick {
    Trick::Answer(307, vec![("location", to)], "".into())
}

fn shown(seen: &[RecordedRequest]) -> Vec<Option<&str>> {
    seen.iter().map(|seen| seen.authorization.as_deref()).collect()
}

/// Every secret received, by header or form.
fn secrets_of(fake: &FakeRegistry) -> Vec<String> {
    let carries = |seen: &RecordedRequest| {
        seen.authorization.clone().or_else(|| Some(seen.body.clone()).filter(|it| !it.is_empty()))
    };
    fake.seen().iter().filter_map(carries).collect()
}

#[tokio::test]
async fn a_token_service_that_a_redirect_target_names_is_never_shown_the_password() {
    let (fake, storage) = (FakeRegistry::start().await, FakeRegistry::start().await);
    let (thief, authority) = FakeRegistry::start_encrypted().await;
    fake.put_image("v1", &[b"layer"]);
    fake.guard(Guard::Basic("user", "hunter2pass"));
    thief.guard(Guard::Bearer { shown: None, form: None, realm: None });
    // A trusted HTTPS host: as the registry's own token service it would receive the password.
    let realm = Some(format!("https://{}/token", thief.address));
    storage.guard(Guard::Bearer { shown: None, form: None, realm });
    let folder = tempfile::tempdir().unwrap();
    let settings = format!("server = \"http://{}\"\nca = \"ca.pem\"\n", fake.address);
    let registry = configured(folder.path(), &fake, &settings);
    std::fs::write(folder.path().join(fake.address.to_string()).join("ca.pem"), authority).unwrap();
    let resolved = resolve(&registry, &fake, None).await;
    assert_eq!(resolved.unwrap_err().kind(), RuntimeErrorKind::Denied, "the registry wants the password");
    // One client that has used the credential at the registry, and one that has not.
    let resolved = resolve(&registry, &fake, Some(&password())).await.unwrap();
    let digest = resolved.manifest.layers[0].digest.clone();
    fake.trick(digest.as_str(), 9, sent_on(format!("http://{}/blobs/{digest}", storage.address)));
    let error = layer(&resolved).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Denied, "{}", error.chain());
    fake.guard(Guard::Open);
    let resolved = resolve(&registry, &fake, Some(&password())).await.unwrap();
    layer(&resolved).await.unwrap_err();
    assert_eq!(shown(&storage.seen()), [None, None]);
    assert_eq!(thief.seen(), [], "a stranger's challenge was answered");
}

#[tokio::test]
async fn a_password_and_an_identity_token_stay_away_from_a_plain_token_service_elsewhere() {
    let identity = CredentialKind::IdentityToken(Secret::new("refresh/me"));
    let identity = Credential { kind: identity, server_address: String::new() };
    for credential in [password(), identity] {
        let (fake, thief) = (FakeRegistry::start().await, FakeRegistry::start().await);
        fake.put_image("v1", &[b"layer"]);
        let realm = Some(format!("http://{}/token", thief.address));
        fake.guard(Guard::Bearer { shown: None, form: None, realm });
        thief.guard(Guard::Bearer { shown: Some(SHOWN.to_owned()), form: None, realm: None });
        let folder = tempfile::tempdir().unwrap();
        let registry = configured(folder.path(), &fake, "");
        let error = resolve(&registry, &fake, Some(&credential)).await.unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::Denied);
        let (text, service) = (error.chain(), format!("http://{}", thief.address));
        assert!(text.contains(&service) && text.contains("not encrypted"), "{text}");
        assert!(error.hint().unwrap().contains("over HTTPS"), "{text}");
        assert_eq!(secrets_of(&thief), [""; 0]);
        // Public content is pulled without the credential.
        thief.guard(Guard::Bearer { shown: None, form: None, realm: None });
        resolve(&registry, &fake, Some(&credential)).await.unwrap();
        assert_eq!(secrets_of(&thief), [""; 0]);
        // An anonymous token may grant less than the credential; the message then says that it was withheld.
        fake.expire_tokens();
        let error = resolve(&registry, &fake, Some(&credential)).await.unwrap_err();
        assert!(error.chain().contains(&service), "{}", error.chain());
    }
}

#[tokio::test]
async fn a_layer_behind_a_redirect_from_https_to_plain_http_is_fetched_without_a_credential_and_verified() {
    let (fake, authority) = FakeRegistry::start_encrypted().await;
    let storage = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    fake.guard(Guard::Basic("user", "hunter2pass"));
    let digest = storage.put_blob(&b"layer"[..]);
    let folder = tempfile::tempdir().unwrap();
    let settings =
        format!("server = \"https://{}\"\nca = \"ca.pem\"\n[header]\nx-key = \"hunter2pass\"\n", fake.address);
    let registry = configured(folder.path(), &fake, &settings);
    std::fs::write(folder.path().join(fake.address.to_string()).join("ca.pem"), authority).unwrap();
    let resolved = resolve(&registry, &fake, Some(&password())).await.unwrap();
    let elsewhere = format!("http://{}/v2/x/blobs/{digest}", storage.address);
    fake.trick(digest.as_str(), 99, sent_on(elsewhere.clone()));
    for _ in 0..2 {
        assert_eq!(layer(&resolved).await.unwrap(), b"layer");
    }
    let seen = storage.seen();
    assert_eq!(shown(&seen), [None, None]);
    assert!(seen.iter().all(|seen| !format!("{:?}", seen.headers).contains("hunter2pass")), "{seen:?}");
    assert_eq!(registry.shared.transport.plain_warned.lock().unwrap().len(), 1, "one warning");
    storage.trick(digest.as_str(), 9, Trick::Body("other".into()));
    let error = resolved.session.fetch_blob_bytes(&resolved.manifest.layers[0], 100).await.unwrap_err();
    assert_eq!(error.fault().class, ErrorClass::DigestMismatch, "{}", error.chain());

    // A manifest by its tag has no digest that is known before.
    storage.seen();
    fake.trick("/v1", 9, sent_on(elsewhere));
    let error = resolve(&registry, &fake, Some(&password())).await.unwrap_err();
    assert!(error.chain().contains("not encrypted"), "{}", error.chain());
    assert_eq!(storage.seen(), []);
}
